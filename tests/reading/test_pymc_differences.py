"""Claims of the page of known differences. If a test fails, PyMC has changed, and the page must be updated."""

import numpy as np
import pymc as pm
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm

import pymc_gpep as gpep
from tests import sum_models


def test_density_of_areas_in_pymc_lacks_the_power_of_sigma():
    W = sum_models._lattice()
    effects = np.random.default_rng(1).normal(size=len(W))
    effects -= effects.mean()
    densities = [pm.logp(pm.ICAR.dist(W=W, sigma=s), s * effects).eval() for s in (1.0, 2.0)]
    assert_allclose(
        densities[1] - densities[0], 0.0, atol=1e-9
    )  # the density of a Gaussian would change by −(n − 1) log 2


def test_bernoulli_of_a_probit_loses_its_far_tail_in_pymc():
    f = np.float64(10.0)
    assert pm.logp(pm.Bernoulli.dist(p=pm.math.invprobit(f)), 0).eval() == -np.inf
    assert_allclose(pm.logp(gpep.Probit.dist(f), 0).eval(), norm.logcdf(-f), rtol=1e-12)


def test_density_of_areas_in_pymc_differs_from_the_normal_density_by_a_constant():
    W = sum_models._lattice()
    effects, degrees = np.random.default_rng(2).normal(size=len(W)), np.diag(W.sum(axis=0))
    constants = [
        pm.logp(pm.CAR.dist(mu=np.zeros(len(W)), W=W, alpha=alpha, tau=tau), effects).eval().item()
        - multivariate_normal(cov=np.linalg.inv(tau * (degrees - alpha * W))).logpdf(effects)
        for alpha, tau in ((0.5, 1.0), (0.9, 4.0))
    ]
    assert_allclose(constants, 0.5 * (len(W) * np.log(2 * np.pi) - np.log(np.diag(degrees)).sum()), atol=1e-9)
