"""Newton's method for the cavity means that belong to given latent values, started at other latent values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.solvers.newton import CavityAscent, at_rows
from pymc_gpep.solvers.problem import Problem
from tests.approximations.binary import KINDS

N = 24


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("log_width", [-6.0, 0.0, 10.0])
def test_cavity_means_from_any_start_imply_the_given_latent_values(kind, log_width):
    """Small steps use a Taylor series of the log averages h. Large steps go from one tail to the other."""
    rng = np.random.default_rng(1)
    width = np.exp(log_width) * rng.uniform(0.5, 2.0, N)
    problem = Problem(DensePrior(np.eye(N)[None], np.zeros((1, N))), np.zeros((1, N)), rng.integers(0, 2, N))
    average = kind.likelihood.computation(GaussianAverage).terms
    ascent = CavityAscent(problem, at_rows(average, problem.labels, problem.parameters), width, lambda log_det, w: 0.0)
    direction = rng.standard_normal(N) * np.sqrt(1.0 + width)
    for size in (0.0, 1.0, 1.001, 1.1, -300.0, 100.0, 99.999, 99.999999, -3.0, -3.00001):
        f = size * direction
        ascent.f[0] = f
        with np.errstate(all="ignore"):  # solvers run without floating-point warnings
            value = ascent.log_density()
        h = np.empty((5, N))
        average(ascent.cavity, width, problem.labels, problem.parameters, h)
        assert_allclose(ascent.cavity + width * h[1], f, rtol=1e-10, atol=1e-10)
        assert_allclose(ascent.h[:3], h[:3], rtol=1e-9, atol=1e-14)
        assert value == pytest.approx(float((h[0] + 0.5 * width * h[1] ** 2).sum()), rel=1e-10)
        ascent.settle()
        assert_allclose(ascent.h, h, rtol=1e-12, atol=1e-300)
