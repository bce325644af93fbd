"""Steps with JAX, against the stored results of another implementation, over several successive steps."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import get_mode
from scipy import special

from pymc_gpep.streaming.memories import Stateless, Stochastic, StoredMemory, Variational
from pymc_gpep.streaming.step import FallingAdam
from tests import models
from tests.streaming.problems import small
from tests.streaming.steps import STEPS, kept, numbers, problem_of

jax = pytest.importorskip("jax")

from pymc_gpep.streaming import jax_step  # noqa: E402  # it imports JAX
from pymc_gpep.streaming.jax_step import log_cdf_and_hazard  # noqa: E402


def jax_step_of(problem, optimiser=None):
    """The step of a small fit."""
    optimiser = optimiser or pm.adam(learning_rate=0.02)
    return jax_step.jax_step(problem.problem, problem.state, optimiser, get_mode("JAX"))


@pytest.mark.variation(but=["stateless, pairwise", "sites, bernoulli_probit"])
@pytest.mark.parametrize("name", STEPS)
def test_step_matches_stored_results_of_the_graph(name):
    """Steps in JAX and stored steps have the same rule, with too few nodes for utilities without noise."""
    problem, tolerance = problem_of(name), 1e-3 if "robust max" in name else 1e-8
    found, expected = numbers(problem, jax_step_of(problem)), kept()[name]
    assert found.keys() == expected.keys()
    for each, values in expected.items():
        assert_allclose(found[each], values, rtol=tolerance, atol=tolerance * np.abs(values).max(), err_msg=each)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [Stateless(), Stochastic(), Variational(), StoredMemory()])
@pytest.mark.parametrize("build", [models.shared, models.effects_beside])
def test_steps_in_jax_match_steps_in_numpy(build, memory):
    def taken(step_of):
        problem = small(build, memory, "pairwise" if build is models.shared else None, 10)
        step, order = step_of(problem), problem.batches.after(0)
        values = [step(*next(order), 0.5, True).log_posterior for _ in range(20)]
        return values, problem.state.values()

    (values, state), (others, other) = taken(lambda problem: problem.step(0.02)), taken(jax_step_of)
    assert_allclose(others, values, rtol=1e-6)
    for name, each in state.items():
        assert_allclose(np.asarray(other[name]), each, rtol=1e-5, atol=1e-5 * np.abs(each).max(), err_msg=name)


def test_step_has_no_callback_to_the_host():
    """The step includes integrals by quadrature."""
    problem = problem_of("stateless, quadrature")
    step, batch, state = jax_step_of(problem), problem.all_rows(), problem.state
    batch = next(problem.batches.after(0))
    moved = [each.get_value() for each in step._moved]
    functions = step._sites.functions(batch.labels, 3)
    text = str(
        step._compiled.lower(
            state.theta.get_value(), state.inducing.get_value(), state.jitter.get_value(), state.remembered(), moved,
            None, batch.inputs, batch.labels, functions, batch.weights, None, 0.3, learns=True,
        ).as_text()
    )  # fmt: skip
    assert "cholesky" in text
    assert "callback" not in text


def test_failed_step_does_not_change_the_state():
    problem = problem_of("stateless, pairwise")
    step, batch = jax_step_of(problem), next(problem.batches.after(0))
    before = problem.state.values()
    bad = batch.inputs.copy()
    bad[3] = np.inf
    assert not step(*batch._replace(inputs=bad), 0.5, True).went_well
    after = problem.state.values()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    assert step(*batch, 0.5, True).went_well
    assert not np.array_equal(problem.state.values()["theta"], before["theta"])


@pytest.mark.variation(but=["bernoulli_probit"])
@pytest.mark.parametrize("build", [models.bernoulli_probit, models.effects_beside])
def test_steps_with_stored_inputs_equal_steps_with_inputs_in_batches(build):
    """With stored inputs of all rows, batches contain no inputs. The rate of the optimiser decreases."""

    def taken(held):
        parts = small(build, Stochastic(), None, 10)
        inputs = parts.rows.inputs(slice(0, parts.rows.n_rows)) if held else None
        parts = parts._replace(problem=parts.problem._replace(held=inputs))
        step, order = jax_step_of(parts, FallingAdam(5, 0.02)), parts.batches.after(0)
        for _ in range(3):
            batch = next(order)
            step(*(batch._replace(inputs=np.empty((len(batch.labels), 0))) if held else batch), 0.5, True)
        return parts.state.values()

    values, others = taken(False), taken(True)
    for name, each in values.items():
        assert_allclose(others[name], each, rtol=1e-12, err_msg=name)


def test_normal_tails_in_jax_keep_all_digits():
    mpmath = pytest.importorskip("mpmath")
    places = np.concatenate([np.linspace(-40.0, 40.0, 8001), [-1e4, -1e8, 1e3]])
    values, rates = map(np.asarray, jax.jit(log_cdf_and_hazard)(places))
    assert_allclose(values, special.log_ndtr(places), rtol=1e-12, atol=1e-300)
    assert np.isfinite(rates).all()
    for place in (-1e4, -40.0, -9.001, -9.0, -8.99, -1.0, 0.0, 3.0, 9.5, 37.0):
        (rate,) = np.asarray(log_cdf_and_hazard(np.array([place]))[1])
        with mpmath.workdps(40):
            assert_allclose(rate, float(mpmath.npdf(place) / mpmath.ncdf(place)), rtol=1e-12)


@pytest.mark.slow
def test_fits_in_jax_equal_fits_in_numpy():
    """The rows stay on the device from the start."""
    model, _ = models.shared()
    fits = [
        pm.fit(
            12, model=model, method="sparse_ep", inducing=5, batch_size=10, learn_inducing=True, progressbar=False,
            random_seed=1, backend=backend, shared_inducing=False, sites="pairwise",
        )
        for backend in ("jax", None)
    ]  # fmt: skip
    assert_allclose(*(fit.hist for fit in fits), rtol=1e-6)
    assert_allclose(*(fit.inducing_inputs for fit in fits), rtol=1e-6)
