"""Means of Laplace's method by the smoothed density, against SciPy's maximum and exact means."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from pymc_gpep.approximations.laplace import ScalarLaplace
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.likelihoods.counts import PoissonLikelihood

# Twelve rows of two coefficients with a wide prior: the posterior of the first coefficient is skewed.
ROWS = np.column_stack([np.ones(12), np.linspace(-1.0, 1.0, 12)]) * 2.0
Y = np.array([0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1])
PLAIN, SMOOTHED = ScalarLaplace(), ScalarLaplace(smoothed_mean=True)


def solved(approximation, array=ROWS[None], prior_type=RowPrior):
    parameters = np.zeros((1, 12))
    return approximation.solve(
        array, np.zeros((1, 12)), Y, likelihood=PoissonLikelihood(), parameters=parameters, prior_type=prior_type
    )


def test_means_are_at_the_maximum_of_the_smoothed_density():
    plain, found = solved(PLAIN), solved(SMOOTHED)
    assert found.convergence.converged
    assert found.evidence == plain.evidence
    assert_allclose(found.cov, plain.cov)
    variance = plain.cov[:, 0, 0]

    def loss(z):
        f = ROWS @ z
        return -(Y * f - np.exp(f + 0.5 * variance)).sum() + 0.5 * z @ z

    best = minimize(loss, np.zeros(2), method="BFGS", options={"gtol": 1e-9}).x
    assert_allclose(found.mean[0], ROWS @ best, atol=1e-6)
    assert_allclose(found.posterior.marginals()[0], found.mean, atol=1e-9)


def test_smoothing_moves_laplace_means_to_exact_means():
    z = np.stack(np.meshgrid(np.linspace(-5, 5, 301), np.linspace(-5, 5, 301), indexing="ij")).reshape(2, -1)
    f = ROWS @ z
    weights = np.exp((Y[:, None] * f - np.exp(f)).sum(axis=0) - 0.5 * (z**2).sum(axis=0))
    exact = f @ weights / weights.sum()
    plain, found = (solved(each) for each in (PLAIN, SMOOTHED))
    sd = np.sqrt(plain.cov[:, 0, 0])
    assert np.abs((plain.mean[0] - exact) / sd).max() > 0.3
    assert np.abs((found.mean[0] - exact) / sd).max() < 0.05


def test_means_of_a_fit_by_the_smoothed_mode_equal_means_of_its_solver():
    with pm.Model():
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Poisson("y", mu=pm.math.exp(0.5 * (b[0] * ROWS[:, 0] + b[1] * ROWS[:, 1])), observed=Y)
        fit = pm.fit(method="laplace", smoothed_mean=True, progressbar=False)
    assert fit.latent["mean"].values == pytest.approx(solved(SMOOTHED).mean[0], abs=1e-6)
