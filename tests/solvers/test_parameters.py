"""Gradient of the evidence in parameters of the likelihood: counts with an exposure, and cutpoints."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations.ep import scalar_ep
from pymc_gpep.approximations.laplace import fixed_cavity
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.kernels.scalar import ordinal
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.likelihoods.averages_over_cells import average_log_density, parameter_slopes
from pymc_gpep.likelihoods.counts import PoissonLikelihood
from pymc_gpep.likelihoods.local_computations import ParameterSlopes, ScalarDensity
from pymc_gpep.rivals.factorial_variational import factorial_variational
from pymc_gpep.solvers.problem import run
from pymc_gpep.solvers.scalar_bound import average_target, scalar_bound
from tests.approximations.binary import random_binary
from tests.likelihoods.concave import gaussian_average

N = 7
ACCELERATION = {"tolerance": 1e-10, "depth": 4, "largest_precision": np.inf}


class Given(NamedTuple):
    """A likelihood, its parameters and observations."""

    density: ScalarDensity
    slopes: object
    y: np.ndarray
    parameters: np.ndarray


RNG = np.random.default_rng(0)
POISSON, POISSON_SLOPES = (
    next(each for each in PoissonLikelihood.local if isinstance(each, kind))
    for kind in (ScalarDensity, ParameterSlopes)
)
GIVEN = {
    "poisson": Given(
        POISSON,
        parameter_slopes(POISSON, POISSON_SLOPES.derivatives),
        np.array([0, 3, 1, 0, 6, 2, 1]),
        RNG.normal(scale=0.5, size=(1, N)),
    ),
    "ordinal probit": Given(
        ScalarDensity(ordinal.probit_derivatives),
        parameter_slopes(ScalarDensity(ordinal.probit_derivatives), ordinal.probit_parameter_derivatives),
        np.array([0, 2, 1, 0, 2, 1, 1]),
        np.array([[-0.5], [0.8]]) + RNG.normal(scale=0.1, size=(2, N)),
    ),
}


def solver(method, given):
    density, slopes, *_ = given
    match method:
        case "laplace":

            def average(mean, variance, y, parameters, out):
                density.derivatives(mean, y, parameters, out[:4])

            return partial(fixed_cavity, average=average, slopes=slopes.derivatives, wide=False, tolerance=1e-12), N
        case "ep":
            terms = gaussian_average(density).terms
            options = ACCELERATION | {"mixing": 0.8, "damping": 0.7, "ladder": True}
            return partial(scalar_ep, average=terms, slopes=slopes.average, **options), 2 * N
        case "fv":
            terms = gaussian_average(density).terms
            return partial(factorial_variational, average=terms, slopes=slopes.average, tolerance=1e-11), N
    terms = average_log_density(density).terms
    options = ACCELERATION | {"mixing": 1.0, "target": average_target}
    return partial(scalar_bound, terms=terms, slopes=slopes.average_log, **options), 2 * N


@pytest.mark.variation(but=["kl-ordinal probit", "laplace-ordinal probit", "laplace-poisson"])
@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("method", ["laplace", "ep", "kl", "fv"])
def test_gradient_in_parameters_matches_differences(name, method):
    given = GIVEN[name]
    problem = random_binary(3, N, variance=1.5, jitter=0.05)
    solve, size = solver(method, given)

    def outcome(parameters):
        found = run(
            solve,
            problem.k[None],
            problem.mean,
            given.y,
            np.zeros(size),
            300,
            True,
            relative=False,
            form=DensePrior,
            parameters=parameters,
        )
        assert found.status == CONVERGED
        return found

    at = outcome(given.parameters)
    assert at.gradient_parameters.shape == given.parameters.shape
    direction = np.random.default_rng(1).normal(size=given.parameters.shape)
    step = 1e-3
    up, down, far_up, far_down = (
        outcome(given.parameters + t * step * direction).evidence for t in (1.0, -1.0, 2.0, -2.0)
    )
    slope = (8.0 * (up - down) - far_up + far_down) / (12.0 * step)
    assert (at.gradient_parameters * direction).sum() == pytest.approx(slope, rel=1e-6)


def test_log_exposure_is_equivalent_to_a_prior_mean():
    given = GIVEN["poisson"]
    problem = random_binary(3, N, variance=1.5, jitter=0.05)
    solve, size = solver("ep", given)
    arguments = given.y, np.zeros(size), 300, True
    with_exposure = run(
        solve, problem.k[None], problem.mean, *arguments, relative=False, form=DensePrior, parameters=given.parameters
    )
    with_mean = run(
        solve,
        problem.k[None],
        problem.mean + given.parameters,
        *arguments,
        relative=False,
        form=DensePrior,
        parameters=np.zeros_like(given.parameters),
    )
    assert with_exposure.evidence == pytest.approx(with_mean.evidence, abs=1e-9)
    assert_allclose(with_exposure.mean + given.parameters, with_mean.mean, atol=1e-8)
    assert_allclose(with_exposure.gradient_parameters, with_mean.gradient_mean, atol=1e-7)


def test_gradient_of_parameters_is_nan_without_slopes():
    given = GIVEN["poisson"]
    problem = random_binary(3, N, variance=1.5, jitter=0.05)
    solve, size = solver("ep", given)
    found = run(
        partial(solve, slopes=None),
        problem.k[None],
        problem.mean,
        given.y,
        np.zeros(size),
        300,
        True,
        relative=False,
        form=DensePrior,
        parameters=given.parameters,
    )
    assert np.isfinite(found.gradient).all()
    assert np.isnan(found.gradient_parameters).all()
