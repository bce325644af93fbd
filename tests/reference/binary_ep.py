"""Binary probit EP by the algorithms of the textbook.

Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning* (2006), algorithms 3.5 and 3.6, and equation
(3.65) for the evidence. Labels y are −1 and +1, and p(y | f) = Φ(y f). The algorithms are for a prior mean of zero. For
a prior mean m they are applied to h = f − m with the factors Φ(y (h + m)).

The multinomial probit of two classes is equal to this model of f = (f_1 − f_0) / √2. The prior covariance of f is
(K_0 + K_1) / 2, since E_u Φ(u + d) = Φ(d / √2) for u ~ N(0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr

__all__ = ["BinaryEP", "binary_ep", "binary_predict"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BinaryEP:
    """A fixed point of binary EP.

    Attributes
    ----------
    evidence : float
        EP's log marginal likelihood.
    mean : ndarray, shape (n,)
        Posterior mean of f.
    covariance : ndarray, shape (n, n)
        Posterior covariance of f.
    tau, nu : ndarray, shape (n,)
        Site precisions and locations in h = f - m.
    sweeps : int
        Sweeps used.
    residual : float
        Largest relative change of a site parameter in the last sweep.
    """

    evidence: float
    mean: Array
    covariance: Array
    tau: Array
    nu: Array
    sweeps: int
    residual: float


def binary_ep(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike | None = None,
    *,
    tolerance: float = 1e-13,
    accept: float = 1e-9,
    max_sweeps: int = 1000,
) -> BinaryEP:
    """Algorithm 3.5.

    Parameters
    ----------
    K : array_like, shape (n, n)
        Prior covariance.
    y : array_like, shape (n,)
        Labels -1 and +1.
    m : array_like, shape (n,), optional
        Prior mean, zero by default.
    tolerance, accept, max_sweeps
        Stop when no site parameter changes by more than `tolerance` relative to 1 + its size; a change below
        `accept` is still convergence after `max_sweeps`.

    Returns
    -------
    BinaryEP

    Raises
    ------
    ArithmeticError
        If the changes stay above `accept`.
    """
    K, y = np.asarray(K, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = y.size
    m = np.zeros(n) if m is None else np.asarray(m, dtype=np.float64)
    tau, nu = np.zeros(n), np.zeros(n)
    covariance, mean = K.copy(), np.zeros(n)
    for sweep in range(1, max_sweeps + 1):
        change = 0.0
        for i in range(n):
            tau_cavity = 1.0 / covariance[i, i] - tau[i]
            nu_cavity = mean[i] / covariance[i, i] - nu[i]
            m_c, v_c = nu_cavity / tau_cavity, 1.0 / tau_cavity
            z = y[i] * (m_c + m[i]) / np.sqrt(1.0 + v_c)
            hazard = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_ndtr(z))
            tilted_mean = m_c + y[i] * v_c * hazard / np.sqrt(1.0 + v_c)
            tilted_variance = v_c - v_c**2 * hazard / (1.0 + v_c) * (z + hazard)
            new_tau = max(1.0 / tilted_variance - tau_cavity, 0.0)
            new_nu = tilted_mean / tilted_variance - nu_cavity
            d_tau = new_tau - tau[i]
            change = max(change, abs(d_tau) / (1.0 + abs(tau[i])), abs(new_nu - nu[i]) / (1.0 + abs(nu[i])))
            tau[i], nu[i] = new_tau, new_nu
            column = covariance[:, i].copy()
            covariance = covariance - np.outer(column, column) * (d_tau / (1.0 + d_tau * column[i]))
            mean = covariance @ nu
        root = np.sqrt(tau)
        B = np.eye(n) + root[:, None] * K * root
        covariance = K - (K * root) @ np.linalg.solve(B, root[:, None] * K)
        mean = covariance @ nu
        if change <= tolerance:
            break
    if change > accept:
        raise ArithmeticError(f"no fixed point in {max_sweeps} sweeps: the last change is {change:.2e}")

    v_c = 1.0 / (1.0 / np.diag(covariance) - tau)
    m_c = v_c * (mean / np.diag(covariance) - nu)
    site_mean, site_variance = nu / tau, 1.0 / tau
    total = K + np.diag(site_variance)
    evidence = -0.5 * np.linalg.slogdet(total)[1] - 0.5 * site_mean @ np.linalg.solve(total, site_mean)
    evidence += np.sum(log_ndtr(y * (m_c + m) / np.sqrt(1.0 + v_c)))
    evidence += 0.5 * np.sum(np.log(v_c + site_variance) + (m_c - site_mean) ** 2 / (v_c + site_variance))
    return BinaryEP(float(evidence), mean + m, covariance, tau, nu, sweep, float(change))


def binary_predict(
    solution: BinaryEP, K: ArrayLike, K_star: ArrayLike, k_star_star: ArrayLike
) -> tuple[Array, Array, Array]:
    """Algorithm 3.6, for a model of zero prior mean.

    Parameters
    ----------
    solution : BinaryEP
    K : array_like, shape (n, n)
        Prior covariance of the training points.
    K_star : array_like, shape (p, n)
        Covariances between the new and the training points.
    k_star_star : array_like, shape (p,)
        Prior variances at the new points.

    Returns
    -------
    mean, variance, probability : ndarray, shape (p,)
        Latent mean and variance, and p(y = +1).
    """
    K, K_star = np.asarray(K, dtype=np.float64), np.asarray(K_star, dtype=np.float64)
    root = np.sqrt(solution.tau)
    B = np.eye(root.size) + root[:, None] * K * root
    weights = solution.nu - root * np.linalg.solve(B, root * (K @ solution.nu))
    mean = K_star @ weights
    scaled = K_star * root
    variance = np.asarray(k_star_star, dtype=np.float64) - np.einsum("pi,ip->p", scaled, np.linalg.solve(B, scaled.T))
    return mean, variance, ndtr(mean / np.sqrt(1.0 + variance))
