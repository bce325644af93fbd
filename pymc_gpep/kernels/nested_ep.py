"""Nested EP: an outer loop over the coupled Gaussian posterior, inner EP at every point, accelerated."""

import numpy as np
from numba import carray

from pymc_gpep.kernels.anderson import accelerated_step, weighted_norm
from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.coupled import evidence_gradient, factorise, latent_weights, marginal_moments
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.inner_ep import inner_ep_update
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS

__all__ = ["nested_ep", "site_parameters"]

_WARM_UP = 2  # damped sweeps before the first acceleration: the first steps are too nonlinear to extrapolate
_GROWTH = 2.0  # a residual this much above the smallest one means the extrapolation has gone astray


@kernel
def site_parameters(y, alpha, beta, pi, nu):
    """π and ν (c, n) of the sites of f from the inner sites α, β (n, c − 1) (equations 12 and 15).

    Returns Σ_i (1ᵀβ_i)² / (2 1ᵀπ_i), what is left of the sites when f is zero and u is integrated out.
    """
    n, others = alpha.shape
    constant = 0.0
    for i in range(n):
        total = 1.0
        location = 0.0
        for j in range(others):
            total += alpha[i, j]
            location += beta[i, j]
        a = location / total
        constant += 0.5 * location * a
        pi[y[i], i] = 1.0
        nu[y[i], i] = a
        for j in range(others):
            k = j + (j >= y[i])
            pi[k, i] = alpha[i, j]
            nu[k, i] = a * alpha[i, j] - beta[i, j]
    return constant


@kernel
def _posterior(k, prior_mean, y, alpha, beta, pi, nu, inverses, p, work, b, mean, cov):
    """Posterior marginals for the given sites. Returns success, and the evidence without the sites' own terms."""
    c, n = pi.shape
    constant = site_parameters(y, alpha, beta, pi, nu)
    ok, log_det = factorise(k, pi, inverses, p)
    if not ok:
        return False, np.nan
    # Everything is relative to the prior mean: ν becomes ν − Π m, and the sites have a value at m.
    for i in range(n):
        total = 0.0
        average = 0.0
        for a in range(c):
            total += pi[a, i]
            average += pi[a, i] * prior_mean[a, i]
        average /= total
        for a in range(c):
            pull = pi[a, i] * (prior_mean[a, i] - average)
            constant += prior_mean[a, i] * (nu[a, i] - 0.5 * pull)
            nu[a, i] -= pull
    latent_weights(inverses, p, pi, nu, b)
    marginal_moments(k, inverses, p, pi, b, work, mean, cov)
    for a in range(c):
        for i in range(n):
            constant += 0.5 * nu[a, i] * mean[a, i]
            mean[a, i] += prior_mean[a, i]
    return True, constant - 0.5 * log_det


@kernel
def _fixed_point(k, prior_mean, y, sites, options, b, mean, cov, pi, inverses, p, work, history):
    """Iterate from `sites` (2, n, c − 1), the inner sites α and β, which are overwritten.

    Damped for the first sweeps, then accelerated, and starting afresh from a damped step whenever the residual grows.
    Returns evidence, status and number of sweeps.
    """
    tolerance = options[0]
    max_inner = int(options[1])
    memory = int(options[2])
    mixing = options[3]
    damping = options[4]
    _, n, others = sites.shape
    half = n * others
    nu = np.empty((others + 1, n))
    target = np.empty((2, n, others))
    variance = np.empty((n, others))
    # The sites as one vector x, its residual f, and the weights that make it free of units.
    x = sites.reshape(2 * half)
    new_x = target.reshape(2 * half)
    v = variance.reshape(half)
    f = np.empty(2 * half)
    weight = np.empty(2 * half)
    old_x = np.empty(2 * half)
    old_f = np.empty(2 * half)
    step = np.empty(2 * half)
    dx = np.empty((memory, 2 * half))
    df = np.empty((memory, 2 * half))
    stored = 0
    smallest = np.inf
    evidence = np.nan
    for sweep in range(history.shape[0]):
        ok, gaussian = _posterior(k, prior_mean, y, sites[0], sites[1], pi, nu, inverses, p, work, b, mean, cov)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE, sweep
        terms, residual = inner_ep_update(
            mean, cov, y, sites[0], sites[1], max_inner, tolerance, target[0], target[1], variance
        )
        change = abs(gaussian + terms - evidence)
        evidence = gaussian + terms
        history[sweep, 0] = evidence
        history[sweep, 1] = residual
        if residual < tolerance and change < tolerance * (1.0 + abs(evidence)):
            return evidence, CONVERGED, sweep + 1
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE, sweep + 1
        for i in range(2 * half):
            f[i] = new_x[i] - x[i]
            weight[i] = v[i] * v[i] if i < half else v[i - half]
        norm = weighted_norm(weight, f)
        if norm > _GROWTH * smallest:
            stored = 0
            smallest = norm
        elif sweep > _WARM_UP and memory > 0:
            slot = stored % memory
            for i in range(2 * half):
                dx[slot, i] = x[i] - old_x[i]
                df[slot, i] = f[i] - old_f[i]
            stored += 1
        smallest = min(smallest, norm)
        if stored > 0:
            accelerated_step(weight, f, dx, df, min(stored, memory), mixing, step)
        for i in range(2 * half):
            old_x[i] = x[i]
            old_f[i] = f[i]
            # A site's precision lies in [0, 1); where acceleration leaves that, the plain step does not.
            new = x[i] + step[i]
            accelerated = stored > 0 and (i >= half or (new >= 0.0 and new < 1.0))
            x[i] = new if accelerated else x[i] + damping * f[i]
    return evidence, OUT_OF_ITERATIONS, history.shape[0]


def _nested_ep(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, weights_, mean_, cov_, pi_, history_, max_iterations, outcome_,
):  # fmt: skip
    k = carray(k_, (matrices, n, n))
    prior_mean = carray(prior_mean_, (c, n))
    sites = carray(sites_, (2, n, c - 1))
    b = carray(weights_, (c, n))
    pi = carray(pi_, (c, n))
    inverses = np.empty((c, n, n))
    work = np.empty((c, n, n))
    p = np.empty((n, n))
    evidence, status, sweeps = _fixed_point(
        k, prior_mean, carray(y_, (n,)), sites, carray(options_, (5,)), b, carray(mean_, (c, n)),
        carray(cov_, (n, c, c)), pi, inverses, p, work, carray(history_, (max_iterations, 2)),
    )  # fmt: skip
    if wanted != 0 and status == CONVERGED:
        evidence_gradient(inverses, p, pi, b, work[0], carray(gradient_, (matrices, n, n)))
    carray(evidence_, (1,))[0] = evidence
    outcome = carray(outcome_, (2,))
    outcome[0] = status
    outcome[1] = sweeps


nested_ep = Entry(_nested_ep)
"""Nested EP. Its sites are α and β (2, n, c − 1); its options tolerance, inner sweeps, memory, mixing and damping."""
