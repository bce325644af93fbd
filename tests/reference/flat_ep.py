"""Multinomial probit EP as one flat EP with scalar probit factors: an independent check on the nested formulation.

All latent values f (cn) and all auxiliary variables u (n) form one Gaussian vector x ~ N(h, P), with P = blockdiag(K_1,
…, K_c, I). The posterior is this Gaussian times n(c − 1) factors Φ(a_sᵀx), one for each point and each unobserved
class, with a_sᵀx = f_y − f_j + u. EP of the textbook (Minka 2001; Rasmussen and Williams 2006, section 3.6)
approximates each factor by exp(β_s g − α_s g² / 2) in g = a_sᵀx. At convergence, the scalar sites of inner EP satisfy
the same equations of moments. So flat and nested EP have equal sites, moments and evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

__all__ = ["FlatEP", "FlatModel", "flat_ep", "flat_evidence", "flat_model", "gaussian", "site_update"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FlatModel:
    """A Gaussian vector and the linear functionals that enter the probit factors.

    Attributes
    ----------
    mean : ndarray, shape (cn + n,)
        Prior mean of (f, u), f stacked class by class.
    covariance : ndarray, shape (cn + n, cn + n)
        Prior covariance.
    functionals : ndarray, shape (n(c - 1), cn + n)
        The rows a_s, the wrong classes of point 0 first, then those of point 1, and so on.
    """

    mean: Array
    covariance: Array
    functionals: Array


@dataclass(frozen=True)
class FlatEP:
    """A fixed point of flat EP.

    Attributes
    ----------
    evidence : float
        EP's log marginal likelihood.
    mean : ndarray, shape (c, n)
        Posterior mean of the latent values.
    covariance : ndarray, shape (cn, cn)
        Posterior covariance of the latent values.
    alpha, beta : ndarray, shape (n, c - 1)
        Site precisions and locations.
    sweeps : int
        Sweeps used.
    residual : float
        Largest relative change of a site parameter in the last sweep.
    """

    evidence: float
    mean: Array
    covariance: Array
    alpha: Array
    beta: Array
    sweeps: int
    residual: float


def flat_model(K: ArrayLike, y: ArrayLike, m: ArrayLike | None = None, *, c: int | None = None) -> FlatModel:
    """The joint Gaussian of latent values and auxiliary variables, and the factors' functionals.

    Parameters
    ----------
    K : array_like, shape (n, n) or (c, n, n)
        Prior covariance, shared or per class.
    y : array_like of int, shape (n,)
        Labels 0..c-1.
    m : array_like, shape (c, n), optional
        Prior mean, zero by default.
    c : int, optional
        Number of classes. By default it follows from `m`, `K` or the largest label.

    Returns
    -------
    FlatModel
    """
    K, y = np.asarray(K, dtype=np.float64), np.asarray(y, dtype=np.int64)
    n = y.size
    if c is None:
        c = np.shape(m)[0] if m is not None else K.shape[0] if K.ndim == 3 else int(y.max()) + 1
    size = c * n + n
    covariance = np.eye(size)
    for k in range(c):
        covariance[k * n : (k + 1) * n, k * n : (k + 1) * n] = K if K.ndim == 2 else K[k]
    mean = np.zeros(size)
    if m is not None:
        mean[: c * n] = np.asarray(m, dtype=np.float64).ravel()
    rows = []
    for i in range(n):
        for j in range(c):
            if j != y[i]:
                row = np.zeros(size)
                row[y[i] * n + i], row[j * n + i], row[c * n + i] = 1.0, -1.0, 1.0
                rows.append(row)
    return FlatModel(mean, covariance, np.array(rows))


def gaussian(model: FlatModel, alpha: Array, beta: Array) -> tuple[Array, Array, float]:
    """The Gaussian prior times all sites.

    Parameters
    ----------
    model : FlatModel
    alpha, beta : ndarray, shape (n(c - 1),)
        Site parameters, `alpha` non-negative.

    Returns
    -------
    mean, covariance : ndarray, shapes (cn + n,) and (cn + n, cn + n)
    log_normaliser : float
        log of the integral of N(x | h, P) prod_s exp(beta_s g_s - alpha_s g_s^2 / 2).
    """
    A, P, h = model.functionals, model.covariance, model.mean
    root = np.sqrt(alpha)
    PA = P @ A.T
    inner = np.eye(alpha.size) + root[:, None] * (A @ PA) * root
    scaled = PA * root
    covariance = P - scaled @ np.linalg.solve(inner, scaled.T)
    covariance = 0.5 * (covariance + covariance.T)
    # natural location relative to the prior mean: A'(beta - alpha A h)
    shift = A.T @ (beta - alpha * (A @ h))
    mean = h + covariance @ shift
    g = A @ h
    exponent = beta @ g - 0.5 * alpha @ g**2 + 0.5 * shift @ covariance @ shift
    return mean, covariance, float(exponent - 0.5 * np.linalg.slogdet(inner)[1])


def site_update(cavity_mean: Array, cavity_variance: Array) -> tuple[Array, Array, Array]:
    """Moment matching for factors Phi(g) and cavities N(g | cavity_mean, cavity_variance).

    Parameters
    ----------
    cavity_mean, cavity_variance : ndarray
        Any shape.

    Returns
    -------
    alpha, beta : ndarray
        The site parameters that reproduce the tilted mean and variance.
    log_normaliser : ndarray
        log Phi(m / sqrt(1 + v)).
    """
    spread = np.sqrt(1.0 + cavity_variance)
    z = cavity_mean / spread
    log_z = log_ndtr(z)
    slope = np.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_z) / spread
    curvature = slope * (slope + z / spread)
    shrink = 1.0 - cavity_variance * curvature
    return curvature / shrink, (slope + cavity_mean * curvature) / shrink, log_z


def flat_evidence(model: FlatModel, alpha: Array, beta: Array) -> float:
    """EP's evidence at given sites: the Gaussian integral, each site replaced by its factor over its cavity.

    Parameters
    ----------
    model : FlatModel
    alpha, beta : ndarray, shape (n(c - 1),)

    Returns
    -------
    float
    """
    mean, covariance, log_z = gaussian(model, alpha, beta)
    g = model.functionals @ mean
    v = np.einsum("si,ij,sj->s", model.functionals, covariance, model.functionals, optimize=True)
    v_cavity = v / (1.0 - alpha * v)
    m_cavity = v_cavity * (g / v - beta)
    _, _, log_tilted = site_update(m_cavity, v_cavity)
    # log of the integral of N(g | m_cavity, v_cavity) exp(beta g - alpha g^2 / 2)
    log_site = 0.5 * np.log1p(-alpha * v) + 0.5 * (g**2 / v - m_cavity**2 / v_cavity)
    return float(log_z + np.sum(log_tilted - log_site))


def flat_ep(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike | None = None,
    *,
    c: int | None = None,
    tolerance: float = 1e-12,
    accept: float = 1e-9,
    max_sweeps: int = 1000,
) -> FlatEP:
    """Sequential EP with rank-one updates, undamped.

    Parameters
    ----------
    K, y, m, c
        As in `flat_model`.
    tolerance : float
        Stop when no site parameter changes by more than this, relative to 1 + its size, in a sweep.
    accept : float
        When rounding stops progress above `tolerance`, a change below this is still convergence.
    max_sweeps : int
        Sweeps before giving up.

    Returns
    -------
    FlatEP

    Raises
    ------
    ArithmeticError
        If the changes stay above `accept`.
    """
    y = np.asarray(y, dtype=np.int64)
    model = flat_model(K, y, m, c=c)
    n = y.size
    c = model.mean.size // n - 1
    alpha, beta = np.zeros(n * (c - 1)), np.zeros(n * (c - 1))
    best, since_best = np.inf, 0
    for sweep in range(1, max_sweeps + 1):
        mean, covariance, _ = gaussian(model, alpha, beta)
        change = 0.0
        for s, row in enumerate(model.functionals):
            support = np.flatnonzero(row)
            column = covariance[:, support] @ row[support]
            v, g = row[support] @ column[support], row[support] @ mean[support]
            v_cavity = v / (1.0 - alpha[s] * v)
            m_cavity = v_cavity * (g / v - beta[s])
            new_alpha, new_beta, _ = site_update(m_cavity, v_cavity)
            d_alpha, d_beta = new_alpha - alpha[s], new_beta - beta[s]
            mean += column * ((d_beta - d_alpha * g) / (1.0 + d_alpha * v))
            covariance -= np.outer(column * (d_alpha / (1.0 + d_alpha * v)), column)
            change = max(change, abs(d_alpha) / (1.0 + abs(alpha[s])), abs(d_beta) / (1.0 + abs(beta[s])))
            alpha[s], beta[s] = new_alpha, new_beta
        best, since_best = (change, 0) if change < best else (best, since_best + 1)
        if change <= tolerance or (since_best >= 20 and best <= accept):
            break
    if best > accept:
        raise ArithmeticError(f"no fixed point in {max_sweeps} sweeps: the smallest change is {best:.2e}")
    mean, covariance, _ = gaussian(model, alpha, beta)
    return FlatEP(
        evidence=flat_evidence(model, alpha, beta),
        mean=mean[: c * n].reshape(c, n),
        covariance=covariance[: c * n, : c * n],
        alpha=alpha.reshape(n, c - 1),
        beta=beta.reshape(n, c - 1),
        sweeps=sweep,
        residual=float(change),
    )
