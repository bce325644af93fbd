"""The free energy of flat EP. The fixed points of EP are its stationary points.

Notation: the factors Φ(g_s) depend only on g = A x (see `flat_ep`), and the prior of g is N(h, C). Sites are
exp(β_s g_s − α_s g_s² / 2). The Gaussian q is the normalised product of prior and sites, and has the marginals
N(μ_s, z_s). A tilted distribution is r_s(g) ∝ Φ(g) exp(b g − a g² / 2), and (a, b) are the natural parameters of its
cavity.

The fixed points of EP are the stationary points of

    F(q, r) = KL(q ‖ prior) + Σ_s E_r[log r_s − log Φ] + Σ_s log(2πe z_s) / 2

over Gaussians q and densities r_s with the first two moments of q. At these points F = −log Z_EP. The divergence is
nonnegative, E_r log r_s + log(2πe z_s) / 2 is the negentropy of r_s, and −log Φ ≥ 0. Hence F is bounded below by zero,
and the evidence of EP is at most one. If F is bounded, q is in a compact set.

The minimum over r at given moments is a function of the site parameters,

    F = KL(q ‖ prior) + Σ_s ψ(μ_s, z_s) + Σ_s log(2πe z_s) / 2,
    ψ(μ, z) = max over a ≥ 0 and b of  b μ − a (z + μ²) / 2 − log ∫ Φ(g) exp(b g − a g² / 2) dg.

The maximising (a, b) is the cavity with tilted mean μ and tilted variance z. No such cavity exists if z is at least
1 + 1/b² with b = (μ − √(μ² + 4)) / 2 < 0. The maximum is then at a = 0 and this b, and r may have a smaller variance
than q. This case has no stationary point: a stationary point has a = 1/z_s − α_s > 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr

from tests.reference.flat_ep import flat_model

__all__ = ["Energy", "Factors", "Marginals", "energy", "factors", "marginals", "matching_cavity", "tilted"]

Array = NDArray[np.float64]


class Factors(NamedTuple):
    """Prior of the quantities that enter the probit factors: g ~ N(h, C), of dimension n(c - 1)."""

    h: Array
    C: Array


class Marginals(NamedTuple):
    """Marginal means and variances of g under prior and sites, and the log of that product's integral."""

    mean: Array
    variance: Array
    log_normaliser: float


class Energy(NamedTuple):
    """F and its ingredients.

    Attributes
    ----------
    value : float
        The free energy, -log Z_EP at a fixed point.
    q : Marginals
        Marginals of g.
    a, b : ndarray
        Cavities whose tilted distributions have the moments of q.
    """

    value: float
    q: Marginals
    a: Array
    b: Array


def factors(K: ArrayLike, y: ArrayLike, m: ArrayLike | None = None, *, c: int | None = None) -> Factors:
    """Return the prior mean h and covariance C of g, for arguments as in `flat_ep.flat_model`."""
    model = flat_model(K, y, m, c=c)
    return Factors(model.functionals @ model.mean, model.functionals @ model.covariance @ model.functionals.T)


def marginals(prior: Factors, alpha: Array, beta: Array) -> Marginals:
    """Marginals of N(g | h, C) prod_s exp(beta_s g_s - alpha_s g_s^2 / 2), for non-negative alpha."""
    h, C = prior
    root = np.sqrt(alpha)
    factor = np.linalg.cholesky(np.eye(h.size) + root[:, None] * C * root)
    W = np.linalg.solve(factor, root[:, None] * C)
    shift = beta - alpha * h
    moved = C @ shift - W.T @ (W @ shift)
    log_normaliser = beta @ h - 0.5 * alpha @ h**2 + 0.5 * shift @ moved - np.log(np.diag(factor)).sum()
    return Marginals(h + moved, np.diag(C) - (W**2).sum(axis=0), float(log_normaliser))


def _hazard(z: Array) -> tuple[Array, Array, Array]:
    """lambda = phi(z) / Phi(z), lambda + z, and 1 - lambda (lambda + z). The last uses a series in the far tail."""
    hazard = np.sqrt(2.0 / np.pi) / erfcx(-z / np.sqrt(2.0))
    t = np.maximum(-z, 60.0)
    far = z < -60.0
    rest = np.where(far, 1.0 / t - 2.0 / t**3 + 10.0 / t**5, hazard + z)
    shrinkage = np.where(far, 1.0 / t**2 - 6.0 / t**4 + 50.0 / t**6, 1.0 - hazard * rest)
    return hazard, rest, shrinkage


def tilted(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Mean, variance and log normaliser of Phi(g) exp(b g - a g^2 / 2), for a > 0."""
    w = 1.0 / a
    z = b * w / np.sqrt(1.0 + w)
    hazard, _, shrinkage = _hazard(z)
    mean = b * w + w * hazard / np.sqrt(1.0 + w)
    variance = w * (1.0 + w * shrinkage) / (1.0 + w)
    return mean, variance, log_ndtr(z) + 0.5 * b**2 * w + 0.5 * np.log(2.0 * np.pi * w)


def matching_cavity(mean: Array, variance: Array) -> tuple[Array, Array]:
    """The cavity whose tilted distribution has these moments, or a = 0 if there is no such cavity.

    At a given z = b / (a sqrt(1 + 1/a)) the variance is a quadratic in w = 1/a, and the mean then rises with z: the
    root is bracketed and bisected.

    Parameters
    ----------
    mean, variance : ndarray
        Required moments.

    Returns
    -------
    a, b : ndarray
    """
    spread = np.sqrt(mean**2 + 4.0)
    b_limit = np.where(mean > 0.0, -2.0 / (np.abs(mean) + spread), 0.5 * (mean - spread))
    feasible = variance < (1.0 + 1.0 / b_limit**2) * (1.0 - 1e-10)

    def at(z: Array) -> tuple[Array, Array]:
        _, rest, shrinkage = _hazard(z)
        half = 1.0 - variance
        root = np.sqrt(half**2 + 4.0 * shrinkage * variance)
        w = np.where(half >= 0.0, 2.0 * variance / np.maximum(half + root, 1e-300), (root - half) / (2.0 * shrinkage))
        return (z + w * rest) / np.sqrt(1.0 + w), w

    low, high = np.full(mean.shape, -1e6), np.maximum(mean, 0.0) + 40.0
    for _ in range(90):
        z = 0.5 * (low + high)
        below = at(z)[0] < mean
        low, high = np.where(below, z, low), np.where(below, high, z)
    z = 0.5 * (low + high)
    w = at(z)[1]
    return np.where(feasible, 1.0 / w, 0.0), np.where(feasible, z * np.sqrt(1.0 + w) / w, b_limit)


def energy(prior: Factors, alpha: Array, beta: Array) -> Energy:
    """F at given sites.

    Parameters
    ----------
    prior : Factors
    alpha, beta : ndarray, shape (n(c - 1),)
        Site parameters, `alpha` non-negative.

    Returns
    -------
    Energy
    """
    q = marginals(prior, alpha, beta)
    a, b = matching_cavity(q.mean, q.variance)
    inside = a > 0.0
    log_tilted = np.where(
        inside,
        tilted(np.where(inside, a, 1.0), b)[2],
        0.5 * b**2 - np.log(np.where(inside, 1.0, -b)),
    )
    terms = (beta + b) * q.mean - 0.5 * (alpha + a) * (q.variance + q.mean**2) - log_tilted
    terms += 0.5 * np.log(2.0 * np.pi * np.e * q.variance)
    return Energy(float(terms.sum() - q.log_normaliser), q, a, b)
