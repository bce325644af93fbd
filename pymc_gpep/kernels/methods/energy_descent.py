"""Descent on the free energy of EP: matching cavities, energies and safe steps of sites.

The formulas are in `pymc_gpep.approximations.nested_ep`.
"""

import math

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.moments.inner_ep import matched_site
from pymc_gpep.kernels.special.normal import LOG_2PI, probit_moments

_BISECTIONS = 90


@kernel
def _cavity_at(z, variance):
    """Return the tilted mean, and w = 1/a, of the cavity N(z √(1 + w), w) whose tilted variance is `variance`."""
    _, h, _, truncated = probit_moments(z)
    rest = h + z if z > -5.0 else (1.0 - truncated) / h
    half = 1.0 - variance
    root = math.sqrt(half * half + 4.0 * truncated * variance)
    w = 2.0 * variance / (half + root) if half >= 0.0 else (root - half) / (2.0 * truncated)
    return (z + w * rest) / math.sqrt(1.0 + w), w


@kernel
def matching_cavity(mean, variance):
    """Return (a, b) of the cavity exp(b g − a g²/2) whose tilted distribution with Φ(g) has these moments.

    If this cavity does not exist, return a = 0 and b < 0. The tilted variance is then smaller than `variance`.
    """
    spread = math.sqrt(mean * mean + 4.0)
    limit = -2.0 / (mean + spread) if mean > 0.0 else 0.5 * (mean - spread)
    if variance >= (1.0 + 1.0 / (limit * limit)) * (1.0 - 1e-10):
        return 0.0, limit
    low, high = -1e6, max(mean, 0.0) + 40.0
    for _ in range(_BISECTIONS):
        z = 0.5 * (low + high)
        if _cavity_at(z, variance)[0] < mean:
            low = z
        else:
            high = z
    z = 0.5 * (low + high)
    _, w = _cavity_at(z, variance)
    return 1.0 / w, z * math.sqrt(1.0 + w) / w


@kernel
def _tilted_log_normaliser(a, b):
    """Return log ∫ Φ(g) exp(b g − a g²/2) dg, for a > 0 or b < 0."""
    if a == 0.0:
        return 0.5 * b * b - math.log(-b)
    w = 1.0 / a
    return probit_moments(b * w / math.sqrt(1.0 + w))[0] + 0.5 * b * b * w + 0.5 * (LOG_2PI + math.log(w))


@kernel
def site_energies(sites, moments, cavities, target):
    """Write matching cavities and new sites of EP, each (2, n, c − 1), from the marginal moments of all g.

    Return the terms of the sites in the energy and in −log Z of EP, and the residual of EP.
    """
    _, n, others = sites.shape
    energy = 0.0
    negative_evidence = 0.0
    residual = 0.0
    for i in range(n):
        for j in range(others):
            alpha, beta = sites[0, i, j], sites[1, i, j]
            mu, z = moments[0, i, j], moments[1, i, j]
            a, b = matching_cavity(mu, z)
            cavities[0, i, j] = a
            cavities[1, i, j] = b
            energy += (beta + b) * mu - 0.5 * (alpha + a) * (z + mu * mu) + 0.5 * (LOG_2PI + 1.0 + math.log(z))
            energy -= _tilted_log_normaliser(a, b)
            keep = 1.0 - alpha * z
            cavity_mean, cavity_variance = (mu - beta * z) / keep, z / keep
            log_z, target[0, i, j], target[1, i, j] = matched_site(cavity_mean, cavity_variance)
            negative_evidence -= log_z - 0.5 * math.log(keep)
            negative_evidence += 0.5 * (mu * mu / z - cavity_mean * cavity_mean / cavity_variance)
            residual = max(residual, abs(target[0, i, j] - alpha) * z, abs(target[1, i, j] - beta) * math.sqrt(z))
    return energy, negative_evidence, residual


@kernel
def safe_step(sites, moments, cavities, step, trial):
    """Write the sites after a step of length `step` towards the sites implied by the matching cavities into `trial`."""
    _, n, others = sites.shape
    for i in range(n):
        for j in range(others):
            z = moments[1, i, j]
            alpha = 1.0 / z - cavities[0, i, j]
            beta = moments[0, i, j] / z - cavities[1, i, j]
            trial[0, i, j] = max(0.0, sites[0, i, j] + step * (alpha - sites[0, i, j]))
            trial[1, i, j] = sites[1, i, j] + step * (beta - sites[1, i, j])


@kernel
def first_order(sites, moments, cavities, trial_moments):
    """Return the first-order change of the energy F from the marginal moments (μ, z) to `trial_moments`.

    With sites (α, β) and cavities (a, b), dF/dμ = (β + b) − (α + a) μ and dF/dz = ½ (1/z − α − a).
    """
    _, n, others = sites.shape
    total = 0.0
    for i in range(n):
        for j in range(others):
            alpha, beta = sites[0, i, j] + cavities[0, i, j], sites[1, i, j] + cavities[1, i, j]
            mu, z = moments[0, i, j], moments[1, i, j]
            total += (beta - alpha * mu) * (trial_moments[0, i, j] - mu)
            total += 0.5 * (1.0 / z - alpha) * (trial_moments[1, i, j] - z)
    return total
