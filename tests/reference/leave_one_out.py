"""Leave-one-out predictive densities by slow methods: refits without each point, and exact sampling.

The functions are for the multinomial probit at a fixed prior covariance. Gibbs sampling draws the utilities v of all
points. Given the utilities v_-i of all other points, the latent values and the label of point i are integrated out. The
conditional distribution of v_i has the leave-one-out moments of v ~ N(m, K + I). The probability p(y_i | v_-i) is the
probability that entry y_i of v_i is the largest. The estimate uses 1 / p(y_i | y_-i) = E[1 / p(y_i | v_-i) | y]. Its
weights vary far less than the weights 1 / p(y_i | f_i).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.likelihoods.likelihood import log_predictive
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from tests.reference.data import Problem
from tests.reference.gibbs import draw_utilities

__all__ = ["integrated_log_likelihood", "without_each_point"]

Array = NDArray[np.float64]


def without_each_point(approximation: Any, problem: Problem) -> Array:
    """log p(y_i | y_-i) (n,) by an approximation without each point, and a prediction at the point."""
    n = problem.y.size
    k = problem.K.reshape(-1, n, n)
    out = np.empty(n)
    for i in range(n):
        rest = np.delete(np.arange(n), i)
        solution = approximation.solve(k[:, rest][:, :, rest], problem.m[:, rest], problem.y[rest])
        assert solution.convergence.converged
        mean, cov = solution.posterior.predict(k[:, [i]][:, :, rest], k[:, [i], [i]], problem.m[:, [i]])
        (out[i],) = log_predictive(approximation.first_likelihood(), mean.T, cov, problem.y[[i]])
    return out


def integrated_log_likelihood(
    problem: Problem, *, chains: int = 8, draws: int = 300, thin: int = 3, burn: int = 200, seed: int = 0
) -> Array:
    """log p(y_i | v_-i) (chains, draws, n) at draws of the utilities given all labels."""
    c, n = problem.m.shape
    k = np.broadcast_to(problem.K, (c, n, n))
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(k)
    values = np.maximum(values, 0.0)[:, None, :]
    gain = vectors * values / (values + 1.0) @ vectors.swapaxes(1, 2)
    root = vectors * np.sqrt(values / (values + 1.0))
    precision = np.eye(n) - gain
    variance = 1.0 / precision.diagonal(axis1=1, axis2=2)
    cov = np.tile(np.einsum("ki,kl->ikl", variance - 1.0, np.eye(c)), (chains, 1, 1))
    labels = np.tile(problem.y, chains)
    f = np.broadcast_to(problem.m, (chains, c, n))
    out = np.empty((chains, draws, n))
    for sweep in range(-burn, draws * thin):
        v = draw_utilities(rng, f, problem.y)
        noise = rng.standard_normal(f.shape)
        f = problem.m + np.einsum("kij,skj->ski", gain, v - problem.m) + np.einsum("kij,skj->ski", root, noise)
        if sweep >= 0 and sweep % thin == 0:
            mean = v - variance * np.einsum("kij,skj->ski", precision, v - problem.m)
            flat = mean.swapaxes(1, 2).reshape(-1, c)
            log_p = log_predictive(MultinomialProbitLikelihood(), flat, cov, labels)
            out[:, sweep // thin] = log_p.reshape(chains, n)
    return out
