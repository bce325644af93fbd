"""Class-independent EP for the multinomial probit (IEP, QIEP), with dense linear algebra, without regard to speed.

In IEP (Riihimäki, Jylänki and Vehtari 2013, sections 3.1 and 3.2.2) prior, sites and posterior are independent over
classes. The symbols of the algorithm are:

Site of f_i        exp(ν_iᵀf_i − f_iᵀ diag(π_i) f_i / 2), one precision π and one location ν for each class and point.
Cavity             for each class 1/v_cav = 1/v − π and m_cav = v_cav (m/v − ν), where f_ik has the posterior moments
                   m and v. The cavity of f_i is N(m_cav, diag(v_cav)).
Tilted             N(f_i | m_cav, diag(v_cav)) p(y_i | f_i) / Ẑ_i. Its classes are dependent.
Moments matched    mean m̂ and variance v̂ of each f_ik under the tilted distribution (section 3.2.2). They minimise
                   KL(tilted ‖ q) over Gaussians q with diagonal covariance.
Site update        π = 1/v̂ − 1/v_cav, ν = m̂/v̂ − m_cav/v_cav, with damping of these natural parameters (section 5.4).
                   Tilted variances are at most cavity variances, so π ≥ 0.
Evidence           equation (28) with diagonal sites and the logarithms of Ẑ_i:

    log Z = Σ_k [(ν_kᵀμ_k + b_kᵀm_k) / 2 − log|I + D_k^½ K_k D_k^½| / 2] + Σ_i log Ẑ_i
            + Σ_ik [m_cav²/v_cav + log v_cav − μ²/v − log v] / 2,    b = ν − πμ = K⁻¹ (μ − m).

In this formula μ is the posterior mean, m_k the prior mean, and D_k = diag(π_k). At a fixed point, the derivatives are
d log Z / dK_k = (b_k b_kᵀ − B_k) / 2 with B_k = D_k^½ (I + D_k^½ K_k D_k^½)⁻¹ D_k^½, and d log Z / dm_k = b_k.

The two variants differ in the computation of tilted moments:

* "inner_ep": by inner EP of appendix A with a diagonal cavity covariance, as in the paper. The sites α, β of inner EP
  only serve the moments. Their fixed point for a cavity is unique, so their start does not change the result.
* "quadrature": exactly (QIEP). Seeger, Lawrence and Herbrich (2006) need 2c − 1 one-dimensional integrals and two
  two-dimensional integrals. Girolami and Zhong (2007) need 2c + 1 two-dimensional integrals. The fixed point is the
  same, up to errors of quadrature.

One-dimensional integrals suffice for all moments. With utilities v_k = f_k + e_k, e ~ N(0, I), p(y | f) is the
probability that v_y is the largest. Under the cavity the utilities are independent N(m_cav, s_k²), s_k² = 1 + v_cav.
With t = v_y,

    Ẑ = ∫ N(t | m_y, s_y²) ∏_{j≠y} Φ((t − m_j) / s_j) dt.

Given t, each other utility is a Gaussian truncated to v_j < t. Given v_k, f_k is Gaussian with mean
m_k + (v_cav / s_k²) (v_k − m_k) and variance v_cav / s_k².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from tests.reference.dense_nested_ep import inner_ep

__all__ = ["IndependentEP", "TiltedMoments", "independent_ep", "inner_ep_moments", "quadrature_moments"]

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


class TiltedMoments(NamedTuple):
    """log Zhat of one tilted distribution, and mean and variance (c,) of each latent value."""

    log_normaliser: float
    mean: Array
    variance: Array


@dataclass(frozen=True)
class IndependentEP:
    """A fixed point of class-independent EP.

    Attributes
    ----------
    evidence : float
    mean : ndarray, shape (c, n)
        Posterior mean of the latent values.
    covariance : ndarray, shape (c, n, n)
        Posterior covariance of each class.
    pi, nu : ndarray, shape (c, n)
        Site precisions and locations.
    weights : ndarray, shape (c, n)
        b = K^-1 (mean - prior mean), which is d evidence / d prior mean.
    gradient_covariance : ndarray, shape (c, n, n)
        d evidence / d K_k element by element. For a shared K, sum over the first axis.
    cavity_mean, cavity_variance : ndarray, shape (c, n)
    log_tilted_normaliser : ndarray, shape (n,)
    sweeps : int
    residual : float
        Largest change that one more undamped update would make to a posterior mean in units of the posterior
        standard deviation, or to a posterior variance in units of itself, each at its own point and class.
    """

    evidence: float
    mean: Array
    covariance: Array
    pi: Array
    nu: Array
    weights: Array
    gradient_covariance: Array
    cavity_mean: Array
    cavity_variance: Array
    log_tilted_normaliser: Array
    sweeps: int
    residual: float


def _hazard(z: Array) -> Array:
    return np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_ndtr(z))


def _truncated_variance(z: Array, hazard: Array) -> Array:
    """1 - h (h + z), the variance of a standard Gaussian truncated to x < z. Far below 0 by its asymptotic series."""
    t = np.where(z < -60.0, z, -60.0)
    return np.where(z < -60.0, 1.0 / t**2 - 6.0 / t**4 + 50.0 / t**6, 1.0 - hazard * (hazard + z))


def quadrature_moments(cavity_mean: Array, cavity_variance: Array, y: int) -> TiltedMoments:
    """Exact moments of N(f | cavity_mean, diag(cavity_variance)) p(y | f), by composite Gauss-Legendre sums over v_y.

    Parameters
    ----------
    cavity_mean, cavity_variance : ndarray, shape (c,)
    y : int
        Observed class.
    """
    m, s = cavity_mean, np.sqrt(1.0 + cavity_variance)
    others = np.delete(np.arange(m.size), y)
    m_other, s_other = m[others], s[others]

    def log_integrand(t: Array) -> Array:
        z = (t[..., None] - m_other) / s_other
        return -0.5 * ((t - m[y]) / s[y]) ** 2 + log_ndtr(z).sum(-1)

    # The mode by bisection: the slope decreases, is at least 0 at m_y, and at most 0 at `high`.
    low, high = m[y], max(m[y], m_other.max()) + s[y] ** 2 * (1.0 / s_other).sum() + 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        slope = -(middle - m[y]) / s[y] ** 2 + (_hazard((middle - m_other) / s_other) / s_other).sum()
        low, high = (middle, high) if slope > 0 else (low, middle)
    mode = low
    # The curvature of the log integrand lies between the Gaussian's and the Gaussian's plus one for each other class.
    narrow = (s[y] ** -2 + (s_other**-2).sum()) ** -0.5
    reach = 12.0 * s[y]
    steps = np.arange(0.0, 12.0)
    while narrow * steps[-1] < reach:
        steps = np.append(steps, 1.2 * steps[-1])
    breaks = np.concatenate([mode + narrow * steps, mode - narrow * steps])
    breaks = np.append(breaks, (m_other[:, None] + s_other[:, None] * np.arange(-12, 13)).ravel())
    breaks = np.unique(np.clip(breaks, mode - reach, mode + reach))
    centre, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * np.diff(breaks)
    t = (centre[:, None] + half[:, None] * _NODES).ravel()
    log_weight = log_integrand(t) + np.log((half[:, None] * _WEIGHTS).ravel())
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    total = weight.sum()
    weight /= total

    # utilities minus their cavity means
    first, second = np.empty((2, m.size))
    shift = mode - m[y]
    first[y] = shift + weight @ (t - mode)
    second[y] = weight @ (t - m[y] - first[y]) ** 2
    for j, m_j, s_j in zip(others, m_other, s_other, strict=True):
        z = (t - m_j) / s_j
        hazard = _hazard(z)
        first[j] = -s_j * (weight @ hazard)
        second[j] = s_j**2 * (weight @ _truncated_variance(z, hazard)) + weight @ (-s_j * hazard - first[j]) ** 2
    gain = cavity_variance / s**2
    log_normaliser = top + np.log(total) - np.log(s[y]) - 0.5 * np.log(2.0 * np.pi)
    return TiltedMoments(float(log_normaliser), m + gain * first, gain + gain**2 * second)


def inner_ep_moments(cavity_mean: Array, cavity_variance: Array, y: int) -> TiltedMoments:
    """The same moments by inner EP, in the c + 1 dimensions of appendix A."""
    c = cavity_mean.size
    found = inner_ep(cavity_mean, np.diag(cavity_variance), y, max_sweeps=1000)
    return TiltedMoments(found.log_normaliser, found.mean[:c], found.covariance.diagonal()[:c])


def _posterior(K: Array, m: Array, pi: Array, nu: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Means (c, n), covariances (c, n, n), b (c, n), B (c, n, n) and log determinants (c,)."""
    root = np.sqrt(pi)
    stretched = np.eye(K.shape[-1]) + root[:, :, None] * K * root[:, None, :]
    B = root[:, :, None] * np.linalg.inv(stretched) * root[:, None, :]
    B = 0.5 * (B + B.transpose(0, 2, 1))
    pull = nu - pi * m
    b = pull - np.einsum("kij,kj->ki", B, np.einsum("kij,kj->ki", K, pull))
    covariance = K - K @ B @ K
    mean = m + np.einsum("kij,kj->ki", K, b)
    return mean, 0.5 * (covariance + covariance.transpose(0, 2, 1)), b, B, np.linalg.slogdet(stretched)[1]


def independent_ep(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike,
    *,
    moments: str = "quadrature",
    damping: float = 0.7,
    tolerance: float = 1e-12,
    accept: float = 1e-9,
    max_sweeps: int = 3000,
) -> IndependentEP:
    """Class-independent EP to a tight fixed point, by parallel damped updates.

    Parameters
    ----------
    K : array_like, shape (n, n) or (c, n, n)
        Prior covariance, shared or per class.
    y : array_like of int, shape (n,)
        Labels 0..c-1.
    m : array_like, shape (c, n)
        Prior mean.
    moments : {"quadrature", "inner_ep"}
        Computation of the tilted moments: QIEP or IEP.
    damping : float
        Fraction of the change of a site that is made, halved whenever 20 sweeps do not lower the best residual.
    tolerance : float
        Stop when the residual (see `IndependentEP`) is below this.
    accept : float
        When rounding stops progress above `tolerance`, a residual below this is still a fixed point.
    max_sweeps : int
        Sweeps before giving up.

    Returns
    -------
    IndependentEP

    Raises
    ------
    ArithmeticError
        If the residual stays above `accept`.
    """
    tilted = {"quadrature": quadrature_moments, "inner_ep": inner_ep_moments}[moments]
    m, y = np.asarray(m, dtype=np.float64), np.asarray(y, dtype=np.int64)
    c, n = m.shape
    K = np.broadcast_to(np.asarray(K, dtype=np.float64), (c, n, n))
    pi, nu = np.zeros((2, c, n))
    best, since_best, best_sites = np.inf, 0, (pi, nu)
    for sweep in range(1, max_sweeps + 1):
        mean, covariance, b, B, log_det = _posterior(K, m, pi, nu)
        variance = covariance.diagonal(axis1=1, axis2=2)
        cavity_variance = 1.0 / (1.0 / variance - pi)
        cavity_mean = cavity_variance * (mean / variance - nu)
        found = [tilted(cavity_mean[:, i], cavity_variance[:, i], int(y[i])) for i in range(n)]
        hat_mean = np.stack([point.mean for point in found], axis=1)
        hat_variance = np.stack([point.variance for point in found], axis=1)
        log_normaliser = np.array([point.log_normaliser for point in found])
        residual = max(
            float(np.max(np.abs(hat_mean - mean) / np.sqrt(variance))),
            float(np.max(np.abs(hat_variance / variance - 1.0))),
        )
        if residual < best:
            best, since_best, best_sites = residual, 0, (pi, nu)
        else:
            since_best += 1
        if residual < tolerance or (since_best >= 60 and best < accept):
            if residual >= tolerance and best_sites[0] is not pi:
                # Rounding stops the progress: return the best sites.
                pi, nu = best_sites
                tolerance = np.nextafter(best, np.inf) * (1.0 + 1e-6)
                continue
            break
        if since_best and since_best % 20 == 0:
            damping *= 0.5
        pi = np.maximum(pi + damping * (1.0 / hat_variance - 1.0 / cavity_variance - pi), 0.0)
        nu = nu + damping * (hat_mean / hat_variance - cavity_mean / cavity_variance - nu)
    else:
        raise ArithmeticError(f"class-independent EP stopped at a residual of {best:.1e} after {max_sweeps} sweeps")

    evidence = 0.5 * (nu * mean).sum() + 0.5 * (b * m).sum() - 0.5 * log_det.sum() + log_normaliser.sum()
    evidence += 0.5 * (cavity_mean**2 / cavity_variance + np.log(cavity_variance)).sum()
    evidence -= 0.5 * (mean**2 / variance + np.log(variance)).sum()
    gradient = 0.5 * (b[:, :, None] * b[:, None, :] - B)
    return IndependentEP(
        float(evidence), mean, covariance, pi, nu, b, gradient, cavity_mean, cavity_variance, log_normaliser,
        sweep, residual,
    )  # fmt: skip
