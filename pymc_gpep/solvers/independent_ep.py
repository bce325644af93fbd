"""EP whose posterior keeps the latent functions independent, for any way to take tilted moments.

The common shift of all functions is solved for. A likelihood of differences does not see a function δ added to all
classes. The moments it asks for then shift by δ, and the sites of class k become (π_k, ν_k + π_k δ). The prior decides
which δ is best. A fixed point of EP has Σ_k b_k = 0. This sum is the derivative of the evidence with respect to a mean
that all classes share. An iteration that updates each class given the others goes there in steps of a size of 1/(1 +
πK). For a large K that is no progress. The solver therefore solves for that δ in every sweep. It changes Σ_k b_k by P
δ, P = Σ_k B_k: one more matrix to factorise than the c of the classes.

The algebra is that of `pymc_gpep.kernels.gaussians.coupled` and `pymc_gpep.kernels.gaussians.independent`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.independent import add_function_gradient, function_variance, function_weights
from pymc_gpep.kernels.linalg.lapack import multiply_functions, solve_with_cholesky
from pymc_gpep.solvers.accelerated_ep import ep_ladder
from pymc_gpep.solvers.dense_form import factorise
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, own_matrix


class ShiftedPosterior(NamedTuple):
    """Results of `shifted_posterior`."""

    pi: Array
    """Site precisions, (c, n)."""
    nu: Array
    """Site locations, (c, n)."""
    weights: Array
    """b = K⁻¹ (mean − prior mean), (c, n)."""
    mean: Array
    """Posterior mean of the latent values, (c, n)."""
    variance: Array
    """Posterior variance of the latent values, (c, n)."""
    inverses: Array
    """A_k⁻¹ (c, n, n)."""
    p: Array
    """The Cholesky factor of P, (n, n)."""


def shifted_posterior_space(c: int, n: int) -> ShiftedPosterior:
    """Room for a posterior, NaN where nothing is computed yet."""
    pi, nu, weights, mean, variance = np.full((5, c, n), np.nan)
    return ShiftedPosterior(pi, nu, weights, mean, variance, np.empty((c, n, n)), np.empty((n, n)))


def shifted_posterior(problem: Problem, sites: Array, space: ShiftedPosterior) -> tuple[bool, float]:
    """Shift the locations in `sites` (2, n, ≥ c), π and ν first, and compute the posterior.

    Returns success and log ∫ p(f) ∏ sites.
    """
    k, prior_mean, team = problem.k, problem.mean, problem.team
    pi, nu, b, mean, variance, inverses, p = space
    c, _ = pi.shape
    pi[:], nu[:] = sites[0, :, :c].T, sites[1, :, :c].T
    ok, log_det = factorise(k, pi, inverses, p, team)
    if not ok:
        return False, np.nan
    for a in range(c):
        function_weights(inverses[a], pi[a], nu[a], prior_mean[a], b[a])
    nu -= pi * solve_with_cholesky(p, b.sum(0))
    sites[1, :, :c] = nu.T
    for a in range(c):
        function_weights(inverses[a], pi[a], nu[a], prior_mean[a], b[a])
    multiply_functions(k, b, mean)
    team.each(lambda a: function_variance(own_matrix(k, a), pi[a], inverses[a], variance[a]), range(c))
    # The log determinant is that of the A_k and P. Relative to the prior mean the location is ν − π m, and the sites
    # have a value at m.
    location = nu - pi * prior_mean
    total = np.log(p.diagonal()).sum() - 0.5 * log_det
    total += 0.5 * float(np.vdot(prior_mean, nu + location) + np.vdot(location, mean))
    mean += prior_mean
    return True, total


def independent_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[bool, float, float]],
    **options: Any,
) -> Found:
    """EP with scalar sites for the latent values.

    `start`, which is overwritten, is (2, n, d) when it has its shape: of each point first π and ν (c,), then what else
    the `update` iterates. `update(mean, variance, pi, nu, y, sites, target, scale)` takes the moments, as
    `pymc_gpep.kernels.methods.class_independent.independent_update` does; options are those of `ep_ladder`.
    """
    sites = start.reshape(2, problem.labels.size, -1)
    c, n = problem.mean.shape
    space = shifted_posterior_space(c, n)
    pi, nu, b, mean, variance, inverses, _ = space

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        ok, gaussian = shifted_posterior(problem, sites, space)
        if not ok:
            return False, np.nan, np.nan
        ok, terms, residual = update(mean, variance, pi, nu, problem.labels, sites, target, scale)
        return ok, gaussian + terms, residual

    def derivatives() -> Derivatives:
        gradient = np.zeros_like(problem.k)
        for a in range(c):
            add_function_gradient(pi[a], inverses[a], b[a], own_matrix(gradient, a))
        return Derivatives(gradient, b.copy())

    evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    return Found(evidence, status, b, mean, variance.T[:, :, None] * np.eye(c), pi, derivatives, rung)
