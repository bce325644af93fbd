"""One graph for the step: JAX runs it as the interpreter does, for as long as steps build on each other."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy import special

from pymc_gpep.graphs.interpreted import INTERPRETED
from pymc_gpep.likelihoods.log_probabilities import log_ndtr
from pymc_gpep.streaming.memories import Stateless, Stochastic, StoredMemory, Variational
from pymc_gpep.streaming.rules import hazard
from tests import models
from tests.streaming.problems import small

pytest.importorskip("jax")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "memory", "sites", "count"),
    [
        (models.shared, Stateless(local_iterations=2), "quadrature", 20),
        (models.shared, Stochastic(), "pairwise", 20),
        (models.shared, Variational(), "pairwise", 20),
        (models.shared, StoredMemory(), "pairwise", 20),
        (models.effects_beside, Stateless(local_iterations=2), None, 10),
        (models.effects_beside, Variational(), None, 10),
    ],
    ids=["stateless", "stochastic", "variational", "stored", "effects, stateless", "effects, variational"],
)
def test_steps_are_the_same(build, memory, sites, count):
    def taken(mode):
        problem = small(build, memory, sites, 10)
        step, order = problem.step(mode=mode), problem.batches.after(0)
        values = [float(step(*next(order), 0.5, True)[0]) for _ in range(count)]
        return values, problem.state.values()

    (values, state), (others, other) = taken(INTERPRETED), taken("JAX")
    assert_allclose(others, values, rtol=1e-8)
    for name, each in state.items():
        assert_allclose(np.asarray(other[name]), each, rtol=1e-8, atol=1e-8 * np.abs(each).max(), err_msg=name)


def test_tails_have_numbers():
    """JAX's own function has none at z from −37.67 to −37.54, where erfc underflows."""
    z, places = pt.vector(), np.linspace(-40.0, 40.0, 8001)
    values, rates = map(np.asarray, pytensor.function([z], [log_ndtr(z), hazard(z)], mode="JAX")(places))
    assert_allclose(values, special.log_ndtr(places), rtol=1e-12, atol=1e-300)
    assert np.isfinite(rates).all()


@pytest.mark.slow
def test_fits_are_the_same():
    """Their rows are on the device from the beginning."""
    model, _ = models.shared()
    fits = [
        pm.fit(
            12, model=model, method="sparse_ep", inducing=5, batch_size=10, learn_inducing=True, progressbar=False,
            random_seed=1, backend=backend, shared_inducing=False,
        )
        for backend in ("jax", None)
    ]  # fmt: skip
    assert_allclose(*(fit.hist for fit in fits), rtol=1e-7)
    assert_allclose(*(fit.inducing_inputs for fit in fits), rtol=1e-7)
