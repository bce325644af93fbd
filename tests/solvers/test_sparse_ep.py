"""Parts of an iteration of EP with inducing inputs: derivatives at fixed sites, also before convergence."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations.site_rules import site_rule
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.solvers.inducing import RowFeatures, whitening
from pymc_gpep.solvers.sparse_ep import SparseEPSweeps
from tests.approximations.sparse import random_sparse

N, C, M = 8, 3, 4
LIKELIHOOD = MultinomialProbitLikelihood()


def frozen_evidence(problem, factors, precision, location, sites, frozen):
    """Σ log Z of the factors as a function of the current features, with q and the sites fixed as Gaussians of v.

    `frozen` (q, M, N) are the features that the sites were made with. Cavities are computed by dense matrices.
    """
    inducing, cross, variance, mean = problem.moments
    factor = np.linalg.cholesky(inducing)
    w = np.linalg.solve(factor, cross)
    rest = variance - (w**2).sum(axis=1)
    q = len(w)
    of_sites = np.empty((2, *factors.functions.shape))
    for i, j in np.ndindex(factors.functions.shape):
        k = factors.functions[i, j]
        own = k % q
        t, nu = sites[:, i, j]
        cavity = np.linalg.inv(np.eye(M) + precision[k] - t * np.outer(frozen[own, :, i], frozen[own, :, i]))
        of_sites[0, i, j] = mean[k, i] + w[own, :, i] @ cavity @ (location[k] - nu * frozen[own, :, i])
        of_sites[1, i, j] = w[own, :, i] @ cavity @ w[own, :, i] + rest[own, i]
    return factors.tilted(slice(0, N), *of_sites).log_z.sum()


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("rule", ["quadrature", "pairwise"])
def test_derivatives_are_exact_for_frozen_sites_before_convergence(rule, own):
    problem = random_sparse(3, N, C, M, own=own)
    factors = site_rule(rule, LIKELIHOOD).factors(LIKELIHOOD, problem.y, C)
    rng = np.random.default_rng(1)
    sites = np.stack([rng.uniform(0.0, 0.4, factors.functions.shape), rng.normal(size=factors.functions.shape)])
    features = RowFeatures(problem.prior, whitening(problem.moments[0], 1e-14))
    ((_, found),) = features.blocks()
    precision, location = np.zeros((C, M, M)), np.zeros((C, M))
    for i, j in np.ndindex(factors.functions.shape):
        k = factors.functions[i, j]
        w = found.w[k % len(found.w), :, i]
        precision[k] += sites[0, i, j] * np.outer(w, w)
        location[k] += sites[1, i, j] * w
    sweeps = SparseEPSweeps(features, factors)
    ((_, bars, product),) = sweeps.bars(sites, sweeps.posterior(sites))
    slopes = features.whitening.pull_factor(product), *bars[:3]  # without derivatives for effects
    for name in ("z", "log_scales"):
        values = getattr(problem, name)
        for place in list(np.ndindex(values.shape))[:: max(1, values.size // 4)]:
            there = [problem._replace(**{name: values + sign * 1e-5 * (_at(values, place))}) for sign in (1, -1)]
            up, down = (frozen_evidence(each, factors, precision, location, sites, found.w) for each in there)
            expected = sum(
                float((slope * (a - b)).sum())
                for slope, a, b in zip(slopes, there[0].moments, there[1].moments, strict=True)
            )
            assert_allclose(expected, up - down, rtol=1e-5, atol=1e-10)


def _at(values, place):
    found = np.zeros_like(values)
    found[place] = 1.0
    return found
