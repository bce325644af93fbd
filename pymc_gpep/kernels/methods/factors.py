"""Log normalisers and expected logarithms of the likelihood factors of many points.

Inputs are means and variances (B, d) of the latent values of d sites at each of B points. `value` (B,) is overwritten
with the result of each point, `in_mean` and `in_variance` (B, d) with its derivatives.

Variational methods use the average log probability of a label with noise ε, P log(1 − ε + ε/c) + (1 − P) log(ε/c). Here
P is the probability that the observed class has the largest of the utilities u_k ~ N(m_k, v_k + noise) (equations 14 to
17 of Villacampa-Calvo and Hernández-Lobato 2017). Without label noise this average is −∞. Girolami and Rogers (2006)
use a separate distribution of the utilities u. Since log ∫ p(y | u) exp(fᵀu − ½ uᵀu) du is convex in f, the average of
log p(y | f) is at least log p(y | m) − ½ Σ_k v_k.

EP uses the normaliser Z = ∫ t(f) ∏ N(f_k | m_k, v_k) df of a factor t, and ρ_k = ∂ log Z / ∂m_k. It also needs
γ_k = ρ_k² − 2 ∂ log Z / ∂v_k, which by the heat equation is −∂² log Z / ∂m_k².

`quadrature_tilted` treats a point of the multinomial probit as one factor. With independent cavities N(μ_k, v_k) the
utilities f_k + e_k, e_k ~ N(0, 1), are independent too. Class y is observed if its utility t ~ N(μ_y, τ²), τ² = 1 +
v_y, is the largest (Girolami and Zhong 2007). Given t the other integrals have closed forms, and each moment is an
integral over x = (t − μ_y) / τ:

    Ẑ = ∫ φ(x) ∏_{j≠y} Φ(z_j) dx,   z_j = (μ_y + τ x − μ_j) / σ_j,   σ_j² = 1 + v_j.

Seeger, Lawrence and Herbrich (2006) use two two-dimensional and 2c − 1 one-dimensional quadratures of a few nodes.
Girolami and Zhong use 2c + 1 two-dimensional quadratures of a few nodes. Here a trapezoid rule computes all moments to
nearly full precision.

Let V be the tilted variance of a class's standardised utility, and ρ its tilted mean divided by the standard deviation.
The tilted mean of f is then μ + v ρ and its variance v (1 + v V) / (1 + v). A site of precision (1 − V) / (1 + v V)
matches both moments. For class y, V is the variance of x. For other classes it is E[1 − λ (λ + z)] + Var λ, λ the
hazard at z, and ρ is −E[λ] / σ.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient
from pymc_gpep.kernels.special.largest_of_independent import LEGENDRE, log_largest_and_derivatives
from pymc_gpep.kernels.special.logistic_average import ROOM, log_logistic_normal
from pymc_gpep.kernels.special.normal import LOG_2PI, probit_moments
from pymc_gpep.kernels.special.probit import LOWEST_LOG_WEIGHT, log_integrand, near_mode, trapezoid_rule
from pymc_gpep.kernels.special.tabulated_normal import log_cdf_and_hazard

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_NEWTON_STEPS = 30
_MOST_NODES = 5000  # Largest number of nodes of a trapezoid rule; usually hundreds suffice.
_STEEP = 1000.0  # If κ of the integrand is larger, a sum over pieces replaces the trapezoid rule.
_PIECES, _OF_PIECES = LEGENDRE
_CLOSE = 0.02  # Newton's method ends after a step below this fraction of the integrand's width.


FLAT = 15.0
"""Largest curvature κ of an integrand for a Gauss-Hermite rule."""
FINE = math.log(1e-12)
"""`log_error` for integrals of EP and bounds that iterate to convergence."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_RULE = np.stack([_NODES, np.log(_WEIGHTS) + 0.5 * _NODES**2])  # Nodes and log weights of ∫ · dx.
_AT, _SHARES = np.polynomial.hermite_e.hermegauss(64)
_SHARES /= _SHARES.sum()


@kernel
def pairs(mean, variance, noise, value, in_mean, in_variance):
    """Compute log normalisers of ∏_k Φ((f_y − f_k) / √noise). The first half of the columns is for f_y, then f_k."""
    rows, d = mean.shape
    half = d // 2
    for b in range(rows):
        total = 0.0
        for i in range(half):
            scale = 1.0 / math.sqrt(noise + variance[b, i] + variance[b, half + i])
            z = scale * (mean[b, i] - mean[b, half + i])
            log_cdf, rate = log_cdf_and_hazard(z)
            total += log_cdf
            slope = scale * rate
            bend = -0.5 * scale * slope * z
            in_mean[b, i] = slope
            in_mean[b, half + i] = -slope
            in_variance[b, i] = bend
            in_variance[b, half + i] = bend
        value[b] = total


@kernel
def one_probit(mean, variance, labels, noise, value, in_mean, in_variance):
    """Compute log Φ(±m / √(noise + v)) for means m and variances v: + for label 1, − for label 0."""
    for b in range(mean.shape[0]):
        scale = 1.0 / math.sqrt(noise + variance[b, 0])
        if labels[b] == 0:
            scale = -scale
        z = scale * mean[b, 0]
        value[b], rate = log_cdf_and_hazard(z)
        in_mean[b, 0] = scale * rate
        in_variance[b, 0] = -0.5 * scale * scale * rate * z


@kernel
def one_logit(mean, variance, labels, value, in_mean, in_variance):
    """Compute log ∫ σ(±f) N(f | m, v) df with the logistic function σ: + for label 1, − for label 0."""
    room = np.empty(ROOM)
    for b in range(mean.shape[0]):
        sign = 1.0 if labels[b] else -1.0
        centre, v = sign * mean[b, 0], variance[b, 0]
        if not (0.0 <= v < math.inf and math.isfinite(centre)):
            value[b] = np.nan
            in_mean[b, 0] = np.nan
            in_variance[b, 0] = np.nan
            continue
        found, first, second, _, _ = log_logistic_normal(centre, v, room)
        value[b] = found
        in_mean[b, 0] = sign * first
        in_variance[b, 0] = 0.5 * (second + first * first)


@kernel
def whole_points(mean, variance, labels, noise, flat, log_error, modes, value, in_mean, in_variance):
    """Compute log probabilities that the label's utility is the largest of d independent normal utilities.

    Utilities are latent values plus noise. The result is log ∫ φ(x) ∏_k Φ(a_k x + d_k) dx, with a product over the
    other classes. If κ = 1 + Σ a_k² is below `flat`, a Gauss-Hermite rule of 16 nodes is used. For κ below `FLAT` its
    errors are at most 5e-5, usually 1e-8. Otherwise the trapezoid rule is used, with a step for errors of
    exp(`log_error`): see `pymc_gpep.kernels.special.probit`. Newton's method begins at `modes` (B,), and overwrites
    them. From κ = 1000 on the integral is a sum over pieces: see `pymc_gpep.kernels.special.largest_of_independent`.
    """
    rows, c = mean.shape
    slopes, offsets, scales = np.empty(c), np.empty(c), np.empty(c)
    rates, first_of, second_of = np.empty(c), np.empty(c), np.empty(c)
    spread, room = np.empty(c), np.empty((10, c))
    for b in range(rows):
        y = labels[b]
        own = math.sqrt(noise + variance[b, y])
        steepest = 1.0
        for k in range(c):
            spread[k] = noise + variance[b, k]
            scales[k] = 1.0 / math.sqrt(spread[k])
            slopes[k] = own * scales[k]
            offsets[k] = (mean[b, y] - mean[b, k]) * scales[k]
            first_of[k] = 0.0
            second_of[k] = 0.0
            if k != y:
                steepest += slopes[k] * slopes[k]
        if steepest > _STEEP and math.isfinite(steepest) and math.isfinite(offsets.sum()):
            value[b] = log_largest_and_derivatives(mean[b], spread, y, _PIECES, _OF_PIECES, rates, second_of, room)
            for k in range(c):
                in_mean[b, k] = rates[k]
                in_variance[b, k] = 0.5 * (rates[k] * rates[k] - second_of[k])
            continue
        mode = modes[b] if math.isfinite(modes[b]) else 0.0
        curvature = 1.0
        for _ in range(_NEWTON_STEPS):
            slope = -mode
            curvature = 1.0
            for k in range(c):
                if k != y:
                    z = slopes[k] * mode + offsets[k]
                    rate = log_cdf_and_hazard(z)[1]
                    slope += slopes[k] * rate
                    curvature += slopes[k] * slopes[k] * rate * (rate + z)
            step = slope / curvature
            mode += step
            if not step * step * curvature > _CLOSE * _CLOSE:
                break
        modes[b] = mode
        hermite = steepest < flat
        if hermite:
            step = 1.0 / math.sqrt(curvature)
            most = _RULE.shape[1]
            peak = -0.5 * mode * mode
            for k in range(c):
                if k != y:
                    peak += log_cdf_and_hazard(slopes[k] * mode + offsets[k])[0]
        else:
            step = math.pi * math.sqrt(-2.0 / (steepest * log_error))
            most = _MOST_NODES
            peak = 0.0
        narrow = steepest < 2.0  # x is nearly N(0, 1), so its moments would lose digits. Ratios φ/Φ are summed instead.
        total = 0.0
        first = 0.0
        second = 0.0
        bend = 0.0
        x = mode
        side = step
        for node in range(most):
            log_weight = -peak
            if hermite:
                x = mode + step * _RULE[0, node]
                log_weight += _RULE[1, node]
            log_weight -= 0.5 * x * x
            for k in range(c):
                if k != y:
                    log_cdf, rates[k] = log_cdf_and_hazard(slopes[k] * x + offsets[k])
                    log_weight += log_cdf
            if not hermite:
                if node == 0:
                    peak = log_weight
                    log_weight = 0.0
                if log_weight < log_error:
                    if side < 0.0:
                        break
                    side = -step
                    x = mode - step
                    continue
            weight = math.exp(log_weight)
            total += weight
            first += weight * x
            second += weight * x * x
            pull = 0.0
            curve = 0.0
            for k in range(c):
                if k != y:
                    of_rate = weight * rates[k]
                    first_of[k] += of_rate
                    second_of[k] += of_rate * x
                    if narrow:
                        own_rate = scales[k] * rates[k]
                        pull += own_rate
                        curve += own_rate * (own_rate + scales[k] * (slopes[k] * x + offsets[k]))
            bend += weight * (pull * pull - curve)
            x += side
        value[b] = peak + math.log(total * step) - _HALF_LOG_2PI
        in_mean[b, y] = 0.0
        for k in range(c):
            if k == y:
                if narrow:
                    in_variance[b, k] = 0.5 * bend / total
                else:
                    in_mean[b, k] += first / total / own
                    in_variance[b, k] = 0.5 * (second / total - 1.0) / (own * own)
            else:
                of_argument = slopes[k] * second_of[k] + offsets[k] * first_of[k]
                in_mean[b, k] = -first_of[k] / total * scales[k]
                if narrow:
                    in_mean[b, y] -= in_mean[b, k]
                in_variance[b, k] = -0.5 * of_argument / total * scales[k] * scales[k]


@kernel
def tabulated_derivatives(mean, variance, labels, log_z, rho, gamma):
    """Compute log normalisers of `whole_points` with unit noise to about ten digits, for EP run to convergence.

    `rho` and `gamma` (B, d) are the first derivatives and minus the second derivatives in the means.
    """
    whole_points(mean, variance, labels, 1.0, 0.0, FINE, np.zeros(mean.shape[0]), log_z, rho, gamma)
    for b in range(mean.shape[0]):
        for k in range(mean.shape[1]):
            gamma[b, k] = rho[b, k] * rho[b, k] - 2.0 * gamma[b, k]


@kernel
def mix_labels(epsilon, classes, value, in_mean, in_variance):
    """Replace log p and its derivatives by log((1 − ε) p + ε / c) and its derivatives, in place."""
    right, wrong = math.log1p(-epsilon), math.log(epsilon / classes)
    for b in range(value.shape[0]):
        of_right = right + value[b]
        largest = max(of_right, wrong)
        value[b] = largest + math.log(math.exp(of_right - largest) + math.exp(wrong - largest))
        share = math.exp(of_right - value[b])
        for k in range(in_mean.shape[1]):
            in_mean[b, k] *= share
            in_variance[b, k] *= share


@kernel
def average_labels(epsilons, classes, value, in_mean, in_variance):
    """Replace log p and its derivatives by p log(1 − ε + ε / c) + (1 − p) log(ε / c) and its derivatives."""
    for b in range(value.shape[0]):
        epsilon = epsilons[b] if 0.0 < epsilons[b] < 1.0 else math.nan
        lowest = math.log(epsilon / classes)
        gain = (math.log1p(-epsilon * (1.0 - 1.0 / classes)) - lowest) * math.exp(value[b])
        value[b] = lowest + gain
        for k in range(in_mean.shape[1]):
            in_mean[b, k] *= gain
            in_variance[b, k] *= gain


@kernel
def _expected_log_cdf(mean, deviation):
    """Return E log Φ(z), z ~ N(mean, deviation²), and its derivatives in mean and variance, by a rule of 64 nodes."""
    value = 0.0
    slope = 0.0
    along = 0.0
    for node in range(_AT.size):
        log_cdf, rate = log_cdf_and_hazard(mean + deviation * _AT[node])
        value += _SHARES[node] * log_cdf
        slope += _SHARES[node] * rate
        along += _SHARES[node] * rate * _AT[node]
    return value, slope, min(0.5 * along / deviation, 0.0)


@kernel
def expected_pairs(mean, variance, noise, value, in_mean, in_variance):
    """Compute Σ_k E log Φ((f_y − f_k) / √noise) over normal f. The first half of the columns is for f_y, then f_k."""
    rows, d = mean.shape
    half = d // 2
    scale = 1.0 / math.sqrt(noise)
    for b in range(rows):
        total = 0.0
        for i in range(half):
            deviation = scale * math.sqrt(variance[b, i] + variance[b, half + i])
            found, slope, bend = _expected_log_cdf(scale * (mean[b, i] - mean[b, half + i]), deviation)
            total += found
            in_mean[b, i] = scale * slope
            in_mean[b, half + i] = -scale * slope
            in_variance[b, i] = scale * scale * bend
            in_variance[b, half + i] = scale * scale * bend
        value[b] = total


@kernel
def expected_probit(mean, variance, labels, value, in_mean, in_variance):
    """Compute E log Φ(±f) for normal f: + for label 1, − for label 0."""
    for b in range(mean.shape[0]):
        sign = 1.0 if labels[b] else -1.0
        value[b], slope, in_variance[b, 0] = _expected_log_cdf(sign * mean[b, 0], math.sqrt(variance[b, 0]))
        in_mean[b, 0] = sign * slope


@kernel
def expected_logit(mean, variance, labels, value, in_mean, in_variance):
    """Compute E log σ(±f) for normal f, + for label 1 and − for label 0, by a rule of 64 nodes."""
    for b in range(mean.shape[0]):
        sign = 1.0 if labels[b] else -1.0
        centre, deviation = sign * mean[b, 0], math.sqrt(variance[b, 0])
        total = 0.0
        slope = 0.0
        along = 0.0
        for node in range(_AT.size):
            f = centre + deviation * _AT[node]
            small = math.exp(-abs(f))
            miss = (1.0 if f < 0.0 else small) / (1.0 + small)
            total += _SHARES[node] * (min(f, 0.0) - math.log1p(small))
            slope += _SHARES[node] * miss
            along += _SHARES[node] * miss * _AT[node]
        value[b] = total
        in_mean[b, 0] = sign * slope
        in_variance[b, 0] = min(0.5 * along / deviation, 0.0)


_LEAST = 1e-12  # It replaces the noise variance 0 of a step likelihood.


@kernel
def _step_average(noise, mean, variance, y, parameters, value, of_mean, of_variance):
    whole_points(mean, variance, y, noise, 0.0, FINE, np.zeros(mean.shape[0]), value, of_mean, of_variance)
    average_labels(parameters[0], mean.shape[1], value, of_mean, of_variance)


@kernel
def noisy_probit_average(mean, variance, y, parameters, value, of_mean, of_variance):
    """Compute the average log likelihood of labels with noise, over utilities with unit noise, by quadrature.

    Parameters
    ----------
    mean, variance : (n, c) array
        Moments of the latent values.
    y : (n,) array
        Classes.
    parameters : (1, n) array
        Label noise ε.
    value : (n,) array
        Overwritten.
    of_mean, of_variance : (n, c) array
        Overwritten with the derivatives.
    """
    _step_average(1.0, mean, variance, y, parameters, value, of_mean, of_variance)


@kernel
def noisy_step_average(mean, variance, y, parameters, value, of_mean, of_variance):
    """Compute the results of `noisy_probit_average` if the latent values themselves are the utilities."""
    _step_average(_LEAST, mean, variance, y, parameters, value, of_mean, of_variance)


@kernel
def utility_average(mean, variance, y, parameters, value, of_mean, of_variance):
    """Compute a lower bound on the average log probability under the multinomial probit; `parameters` are unused."""
    n, c = mean.shape
    for i in range(n):
        value[i] = log_probability_and_gradient(mean[i], y[i], of_mean[i])
        for k in range(c):
            value[i] -= 0.5 * variance[i, k]
            of_variance[i, k] = -0.5


@kernel
def _add_node(x, log_z, slopes, offsets, y, mode, at_mode, moments):
    """Add the terms of node x to sums for moments of standardised utilities. Return the weight of the node.

    `log_z` is the log integrand at the mode, up to a constant. Row 0 of `moments` (4, c) sums x − mode for class y. For
    other classes it sums λ = φ/Φ minus its value at the mode. Row 1 sums the squares of these differences. Row 2 sums
    truncated variances 1 − λ(λ + z), and row 3 is workspace.
    """
    c = slopes.shape[0]
    log_weight = -0.5 * x * x - log_z
    for j in range(c):
        if j != y:
            log_p, moments[3, j], _, _ = probit_moments(slopes[j] * x + offsets[j])
            log_weight += log_p
    if not log_weight > LOWEST_LOG_WEIGHT:
        return 0.0
    weight = math.exp(log_weight)
    for j in range(c):
        if j == y:
            difference = x - mode
        else:
            _, h, _, truncated = probit_moments(slopes[j] * x + offsets[j])
            difference = h - at_mode[j]
            moments[2, j] += weight * truncated
        moments[0, j] += weight * difference
        moments[1, j] += weight * difference * difference
    return weight


@kernel
def quadrature_tilted(settings, mean, variance, y, old, new, scale):
    """Write the site of a point that matches tilted moments. Return log Ẑ and 0. Cavities are `mean`, `variance` (c,).

    Precisions and locations are written into `new` (2, c). `settings` are scratch arrays, three (c,) and one (4, c).
    `old` and `scale` are unused; other kernels with this signature use them for inner sites.
    """
    slopes, offsets, at_mode, moments = settings
    c = mean.shape[0]
    tau = math.sqrt(1.0 + variance[y])
    curvature = 1.0
    for j in range(c):
        if j != y:
            sigma = math.sqrt(1.0 + variance[j])
            slopes[j] = tau / sigma
            offsets[j] = (mean[y] - mean[j]) / sigma
            curvature += slopes[j] * slopes[j]
    mode = near_mode(slopes, offsets, y, at_mode)
    peak = log_integrand(mode, slopes, offsets, y, at_mode)
    step, nodes = trapezoid_rule(curvature)
    moments[:] = 0.0
    total = _add_node(mode, peak, slopes, offsets, y, mode, at_mode, moments)
    for side in (-step, step):
        for node in range(1, nodes + 1):
            weight = _add_node(mode + node * side, peak, slopes, offsets, y, mode, at_mode, moments)
            if weight == 0.0:
                break
            total += weight
    for k in range(c):
        shift = moments[0, k] / total
        spread = moments[1, k] / total - shift * shift
        if k == y:
            rho = (mode + shift) / tau
        else:
            rho = -(at_mode[k] + shift) / math.sqrt(1.0 + variance[k])
            spread += moments[2, k] / total
        new[0, k] = max(0.0, 1.0 - spread) / (1.0 + variance[k] * spread)
        new[1, k] = new[0, k] * (mean[k] + variance[k] * rho) + rho
    return peak + math.log(total * step) - 0.5 * LOG_2PI, 0.0


@kernel
def point_derivatives(mean, variance, y, parameters, log_z, rho, gamma):
    """Compute log normalisers of the multinomial probit at each point, with derivatives in the means.

    Parameters
    ----------
    mean, variance : (n, c) array
        Moments of the latent values.
    y : (n,) array
        Classes.
    parameters : (0, n) array
    log_z : (n,) array
        Overwritten.
    rho, gamma : (n, c) array
        Overwritten.
    """
    n, c = mean.shape
    settings = (np.empty(c), np.empty(c), np.empty(c), np.empty((4, c)))
    nothing, site, room = np.zeros((2, c)), np.empty((2, c)), np.empty(c)
    for i in range(n):
        log_z[i], _ = quadrature_tilted(settings, mean[i], variance[i], y[i], nothing, site, room)
        for k in range(c):
            stretch = 1.0 + site[0, k] * variance[i, k]
            gamma[i, k] = site[0, k] / stretch
            rho[i, k] = (site[1, k] - site[0, k] * mean[i, k]) / stretch


@kernel
def _pair_derivatives(noise, mean, variance, log_z, rho, gamma):
    n, _, p = mean.shape
    for i in range(n):
        log_z[i] = 0.0
        for j in range(p):
            scale = 1.0 / math.sqrt(noise + variance[i, 0, j] + variance[i, 1, j])
            log_p, h, curvature, _ = probit_moments(scale * (mean[i, 0, j] - mean[i, 1, j]))
            log_z[i] += log_p
            rho[i, 0, j] = scale * h
            rho[i, 1, j] = -scale * h
            gamma[i, 0, j] = scale * scale * curvature
            gamma[i, 1, j] = scale * scale * curvature


@kernel
def pair_derivatives(mean, variance, log_z, rho, gamma):
    """Compute log normalisers of Φ((f − g) / √2) for pairs of the observed and another class, with derivatives.

    Both utilities have unit noise. Villacampa-Calvo and Hernández-Lobato (2017), equations 6 to 8.

    Parameters
    ----------
    mean, variance : (n, 2, p) array
        Moments of f and g of p pairs at n points.
    log_z : (n,) array
        Overwritten with the sums over pairs.
    rho, gamma : (n, 2, p) array
        Overwritten.
    """
    _pair_derivatives(2.0, mean, variance, log_z, rho, gamma)


@kernel
def step_pair_derivatives(mean, variance, log_z, rho, gamma):
    """Compute the results of `pair_derivatives` for utilities without noise: the factor is 1 if f > g, else 0."""
    _pair_derivatives(_LEAST, mean, variance, log_z, rho, gamma)
