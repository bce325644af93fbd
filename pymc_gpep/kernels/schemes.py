"""Parts of iterations: Anderson acceleration, Newton's direction, descent on the free energy of EP.

Anderson acceleration of a fixed-point iteration x ← x + f(x) stores the last steps. It combines past points so that the
residual f is smallest, and adds `mixing` times this residual (Walker and Ni 2011, SIAM J. Numer. Anal. 49, type II). A
memory is two ring buffers (memory, dimension): past steps `dx`, and past changes of the residual `df`.

Newton's direction for the mode of latent values f ~ N(m, K) is computed from matrix products with K. W (n, c, c) is
minus the second derivatives of the log likelihood at each point. The direction d solves (W + K⁻¹) d = r. It is computed
together with K⁻¹ d, which determines the latent values even if K is singular.

Descent on the free energy of EP needs matching cavities, energies and safe steps of sites. Their formulas are in
`pymc_gpep.approximations.nested_ep`.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import cholesky, copy_into, multiply_functions, solve_with_cholesky
from pymc_gpep.kernels.moments.inner_ep import matched_site
from pymc_gpep.kernels.special.normal import LOG_2PI, probit_moments

_RIDGE = 1e-12  # Ridge relative to the trace, since residuals of a converged iteration are parallel.
_BISECTIONS = 90


@kernel
def _weighted_dot(weight, a, b):
    total = 0.0
    for i in range(weight.shape[0]):
        total += weight[i] * a[i] * b[i]
    return total


@kernel
def weighted_norm(weight, f):
    """Return Σ weight · f²."""
    return _weighted_dot(weight, f, f)


@kernel
def residual_products(weight, f, df, used):
    """Return weighted inner products of the first `used` rows of `df` with each other, and with the residual `f`."""
    gram = np.empty((used, used))
    rhs = np.empty(used)
    for a in range(used):
        for e in range(a + 1):
            gram[a, e] = _weighted_dot(weight, df[a], df[e])
            gram[e, a] = gram[a, e]
        rhs[a] = _weighted_dot(weight, df[a], f)
    return gram, rhs


@kernel
def combination(gram, rhs):
    """Return the weights of past changes that minimise the residual; `gram` of `residual_products` is overwritten."""
    used = rhs.shape[0]
    trace = 0.0
    for a in range(used):
        trace += gram[a, a]
    for a in range(used):
        gram[a, a] += _RIDGE * trace
    return solve_with_cholesky(gram, rhs) if cholesky(gram) else np.zeros(used)


@kernel
def combined_step(f, dx, df, gamma, mixing, step):
    """Write the step from the combination of past points with weights `gamma` into `step`."""
    for i in range(step.shape[0]):
        step[i] = mixing * f[i]
        for a in range(gamma.shape[0]):
            step[i] -= gamma[a] * (dx[a, i] + mixing * df[a, i])


@kernel
def accelerated_step(weight, f, dx, df, used, mixing, step):
    """Write the accelerated step into `step`, from the first `used` rows of the memory."""
    gram, rhs = residual_products(weight, f, df, used)
    combined_step(f, dx, df, combination(gram, rhs), mixing, step)


@kernel
def interpolated_sites(starts, weights, nearest, far, start):
    """Write the combination of sites of similar problems into `start` (2n,), see `sites_between`.

    `starts` (s, 2n) has n precisions α > 0 and n locations β for each problem. Average log α and β / √α with weights
    (s,), which sum to 1. A predicted log √α is at most `far` outside the range of the combined values. Where an α is 0
    or negative, write the site of problem `nearest`.
    """
    n = starts.shape[1] // 2
    roots = np.empty(starts.shape[0])
    for i in range(n):
        base = math.sqrt(max(starts[nearest, i], 0.0))
        total = 0.0
        low = 0.0
        high = 0.0
        largest = 0.0
        location = 0.0
        positive = True
        for s in range(starts.shape[0]):
            positive = positive and starts[s, i] > 0.0
            roots[s] = math.sqrt(max(starts[s, i], 0.0))
        if not positive:
            start[i] = starts[nearest, i]
            start[n + i] = starts[nearest, n + i]
            continue
        for s in range(starts.shape[0]):
            u = (roots[s] - base) / (roots[s] + base)
            if abs(u) < 0.1:
                square = u * u
                log_ratio = 2.0 * u * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square / 7.0)))
            else:
                log_ratio = math.log(roots[s] / base)
            total += weights[s] * log_ratio
            low = min(low, log_ratio)
            high = max(high, log_ratio)
            largest = max(largest, starts[s, i])
            location += weights[s] * starts[s, n + i] / roots[s]
        root = base * math.exp(min(max(total, low - far), high + far))
        start[i] = min(root * root, largest)
        start[n + i] = root * location


@kernel
def inner_product(x, y):
    """Return the sum of the products of the elements of two (c, n) arrays."""
    total = 0.0
    for a in range(x.shape[0]):
        for i in range(x.shape[1]):
            total += x[a, i] * y[a, i]
    return total


@kernel
def newton_direction(k, w, r, reduction, limit, d, pull, left):
    """Solve (W + K⁻¹) d = r for d and `pull` = K⁻¹ d, (c, n), approximately. d is always an ascent direction.

    The method is conjugate gradients with the preconditioner K. Convergence then depends on the spectrum of I + KW. W
    is nearly 0 at points that are classified with certainty, so a large prior variance hardly slows the iteration.

    Parameters
    ----------
    k : (1 or c, n, n) array
    w : (n, c, c) array
    r : (c, n) array
    reduction : float
        Target of √(sᵀ K s) for the residual s, relative to its value for s = r.
    limit : int
        Limit on steps.
    d, pull, left : (c, n) arrays
        Overwritten with the direction d, K⁻¹ d, and the residual r − (W + K⁻¹) d.
    """
    c, n = r.shape
    d[:] = 0.0
    pull[:] = 0.0
    copy_into(left, r)
    conditioned = np.empty((c, n))
    multiply_functions(k, left, conditioned)
    search = conditioned.copy()
    search_pull = left.copy()
    curved = np.empty((c, n))
    size = inner_product(left, conditioned)
    enough = reduction * reduction * size
    gain = np.inf
    total = 0.0
    for _ in range(limit):
        if not (size > 0.0 and (size > enough or gain > reduction * reduction * total)):
            break
        for i in range(n):
            for a in range(c):
                curved[a, i] = search_pull[a, i]
                for e in range(c):
                    curved[a, i] += w[i, a, e] * search[e, i]
        length = size / inner_product(search, curved)
        gain = length * size
        total += gain
        for a in range(c):
            for i in range(n):
                d[a, i] += length * search[a, i]
                pull[a, i] += length * search_pull[a, i]
                left[a, i] -= length * curved[a, i]
        multiply_functions(k, left, conditioned)
        new_size = inner_product(left, conditioned)
        ratio = new_size / size
        size = new_size
        for a in range(c):
            for i in range(n):
                search[a, i] = conditioned[a, i] + ratio * search[a, i]
                search_pull[a, i] = left[a, i] + ratio * search_pull[a, i]


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
