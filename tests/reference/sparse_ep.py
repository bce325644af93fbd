"""EP with inducing inputs by the formulas of the paper, for the inducing values, with dense matrices.

Source: Villacampa-Calvo and Hernández-Lobato (2017), sections 2.1 and 2.2, with the unit noise of the multinomial
probit. Numbers in brackets are equations of this paper. Class k has inducing values uᵏ ~ N(0, K_k) at its own inducing
inputs. Let k_i be the prior covariances of uᵏ with the latent value at input x_i, and κ_i the prior variance there. The
projection is x_iᵏ = υᵀuᵏ with υ = K_k⁻¹ k_i. The latent value is f_iᵏ = m_iᵏ + x_iᵏ + e. The residuals e ~ N(0,
κ_i − k_iᵀυ) are independent between points (4, 5).

A factor is approximated by Gaussians exp(ν υᵀu − t (υᵀu)² / 2), one for each class that the factor depends on (8):

* "pairwise": φ_ik = Φ((f_iʸ − f_iᵏ) / √2) for k ≠ y, with the residuals integrated out (6).
* "quadrature": φ_i = p(y_i | f_i), with the residuals integrated out (3).

An update divides q by the Gaussians of a factor: natural parameters, M × M matrices, are subtracted. Quadrature
computes the mean and variance of the projections under cavity times factor. The factor depends on uᵏ only through the
projection, so the moments of uᵏ follow. Division by the cavity gives the new Gaussians. All factors are updated at
once, with damping.

Let g be the log normaliser of a Gaussian with given natural parameters, summed over classes. The evidence is

    log Z_q = g(q) − g(prior) + Σ_factors [log Z + g(cavity) − g(q)]                                      (9).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tests.reference.independent_ep import quadrature_moments

__all__ = ["SparseEP", "sparse_ep"]

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
_PLANE = np.stack(np.meshgrid(_NODES, _NODES, indexing="ij"), axis=-1).reshape(-1, 2)
_LOG_WEIGHTS = np.log(np.outer(_WEIGHTS, _WEIGHTS).ravel() / (2 * np.pi))


class SparseEP(NamedTuple):
    """A fixed point."""

    evidence: float
    mean: Array
    """Mean of the inducing values minus the prior mean, (c, M)."""
    cov: Array
    """Covariance of the inducing values, (c, M, M)."""
    change: float
    """Largest change of a natural parameter in the last sweep."""


def _log_normaliser(precision: Array, location: Array) -> float:
    """g: log ∫ exp(hᵀu − ½ uᵀP u) du."""
    _, log_det = np.linalg.slogdet(precision)
    return 0.5 * (location @ np.linalg.solve(precision, location) - log_det + len(location) * np.log(2 * np.pi))


def _pair_moments(mean: Array, variance: Array, residual: float) -> tuple[float, Array, Array]:
    """log Z, means and variances of two independent normals times Φ((a − b) / √(2 + residual)), by a product rule."""
    points = mean + np.sqrt(variance) * _PLANE
    log_terms = _LOG_WEIGHTS + log_ndtr((points[:, 0] - points[:, 1]) / np.sqrt(2.0 + residual))
    top = log_terms.max()
    weights = np.exp(log_terms - top)
    total = weights.sum()
    first = weights @ points / total
    return float(top + np.log(total)), first, weights @ (points - first) ** 2 / total


def _point_moments(mean: Array, variance: Array, rest: Array, y: int) -> tuple[float, Array, Array]:
    """The same moments of c projections under p(y | f), f = projection + e, by regression on the moments of f."""
    tilted = quadrature_moments(mean, variance + rest, y)
    share = variance / (variance + rest)
    return (
        tilted.log_normaliser,
        mean + share * (tilted.mean - mean),
        variance - share * variance + share**2 * tilted.variance,
    )


def sparse_ep(
    inducing: Array, cross: Array, variance: Array, prior_mean: Array, y: Array, sites: str, sweeps: int = 400
) -> SparseEP:
    """Iterate EP to a fixed point.

    Parameters
    ----------
    inducing : ndarray, shape (c, M, M)
        K_k.
    cross : ndarray, shape (c, M, n)
        k_i.
    variance : ndarray, shape (c, n)
        κ_i.
    prior_mean : ndarray, shape (c, n)
    y : ndarray of int, shape (n,)
    sites : {"pairwise", "quadrature"}
    """
    c, m, n = cross.shape
    projection = np.linalg.solve(inducing, cross)
    rest = variance - (cross * projection).sum(axis=1)
    everyone = tuple(range(c))
    factors = [
        (i, classes)
        for i in range(n)
        for classes in ([(y[i], k) for k in everyone if k != y[i]] if sites == "pairwise" else [everyone])
    ]
    t = {(f, k): 0.0 for f, (_, classes) in enumerate(factors) for k in classes}
    nu = dict(t)
    prior = np.linalg.inv(inducing)
    change = np.inf
    for _ in range(sweeps):
        precision, location = prior.copy(), np.zeros((c, m))
        for f, (i, classes) in enumerate(factors):
            for k in classes:
                direction = projection[k, :, i]
                precision[k] += t[f, k] * np.outer(direction, direction)
                location[k] += nu[f, k] * direction
        evidence = sum(
            _log_normaliser(precision[k], location[k]) - _log_normaliser(prior[k], np.zeros(m)) for k in everyone
        )
        new_t, new_nu = {}, {}
        for f, (i, classes) in enumerate(factors):
            cavities = {}
            for k in classes:
                direction = projection[k, :, i]
                cavity = precision[k] - t[f, k] * np.outer(direction, direction), location[k] - nu[f, k] * direction
                evidence += _log_normaliser(*cavity) - _log_normaliser(precision[k], location[k])
                cov = np.linalg.inv(cavity[0])
                cavities[k] = direction @ cov @ cavity[1], direction @ cov @ direction
            means, variances = (np.array([cavities[k][j] for k in classes]) for j in range(2))
            shifted = means + prior_mean[list(classes), i]
            if sites == "pairwise":
                log_z, tilted_mean, tilted_variance = _pair_moments(shifted, variances, rest[list(classes), i].sum())
            else:
                log_z, tilted_mean, tilted_variance = _point_moments(shifted, variances, rest[:, i], int(y[i]))
            tilted_mean = tilted_mean - prior_mean[list(classes), i]
            evidence += log_z
            for j, k in enumerate(classes):
                new_t[f, k] = 1.0 / tilted_variance[j] - 1.0 / variances[j]
                new_nu[f, k] = tilted_mean[j] / tilted_variance[j] - means[j] / variances[j]
        change = max(abs(new[key] - old[key]) for new, old in ((new_t, t), (new_nu, nu)) for key in t)
        if change < 1e-11:
            break
        for key in t:
            t[key] += 0.6 * (new_t[key] - t[key])
            nu[key] += 0.6 * (new_nu[key] - nu[key])
    cov = np.linalg.inv(precision)
    return SparseEP(float(evidence), np.einsum("kij,kj->ki", cov, location), cov, change)
