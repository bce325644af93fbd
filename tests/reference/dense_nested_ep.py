"""Nested EP with dense linear algebra, written from the formulas of the paper without regard to speed.

Source: Riihimäki, Jylänki and Vehtari, "Nested expectation propagation for Gaussian process classification with a
multinomial probit likelihood", JMLR 14 (2013). Numbers of equations are numbers in this paper.

Inner EP is the algorithm of appendix A in the c + 1 dimensions of w = (f_i, u_i). It converges in every outer update.
The site of point i follows from equation (11), and the evidence from equation (28). Vectors over all latent values
are sorted by class, f = (f¹, …, fᶜ), with n entries for each class.

The paper has a prior mean of zero. For a prior mean m, the first term νᵀμ / 2 of (28) becomes (νᵀμ + bᵀm) / 2 with
b = ν − Πμ. Here ν and Π are the site locations and precisions, and N(μ, Σ) is the posterior. The integral of
N(f | m, K) exp(νᵀf − fᵀΠf / 2) has the exponent (μᵀΣ⁻¹μ − mᵀK⁻¹m) / 2, with Σ⁻¹μ = K⁻¹m + ν and K⁻¹(μ − m) = b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

__all__ = ["InnerEP", "NestedEP", "block_diagonal", "inner_ep", "nested_ep", "predict", "site"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class InnerEP:
    """The Gaussian approximation of one tilted distribution (Appendix A).

    Attributes
    ----------
    alpha, beta : ndarray, shape (c - 1,)
        Precisions and locations of the scalar sites, classes in increasing order without the observed one.
    mean : ndarray, shape (c + 1,)
        Mean of w = (f_i, u_i).
    covariance : ndarray, shape (c + 1, c + 1)
        Covariance of w.
    log_normaliser : float
        log Z of the tilted distribution.
    """

    alpha: Array
    beta: Array
    mean: Array
    covariance: Array
    log_normaliser: float


@dataclass(frozen=True)
class NestedEP:
    """A fixed point of nested EP.

    Attributes
    ----------
    evidence : float
        Equation (28).
    mean : ndarray, shape (c, n)
        Posterior mean of the latent values.
    covariance : ndarray, shape (cn, cn)
        Posterior covariance, classes first.
    alpha, beta : ndarray, shape (n, c - 1)
        Scalar site parameters.
    site_precision : ndarray, shape (cn, cn)
        Block-structured precision of all the sites.
    site_location : ndarray, shape (c, n)
        Natural location parameters of the sites.
    cavity_mean : ndarray, shape (n, c)
    cavity_covariance : ndarray, shape (n, c, c)
    log_tilted_normaliser : ndarray, shape (n,)
    gradient_covariance : ndarray, shape (c, n, n)
        d evidence / d K_k element by element, (b_k b_k' - M_kk) / 2. For a shared K, sum over the first axis.
    gradient_mean : ndarray, shape (c, n)
        d evidence / d m, which is b.
    m_matrix : ndarray, shape (cn, cn)
        M = Pi (I + K Pi)^-1 of Appendix B.
    sweeps : int
        Outer sweeps used.
    residual : float
        Largest change of a site parameter, relative to 1 + its size, that an undamped sweep would still make.
    damping : float
        The damping factor in force at the end.
    """

    evidence: float
    mean: Array
    covariance: Array
    alpha: Array
    beta: Array
    site_precision: Array
    site_location: Array
    cavity_mean: Array
    cavity_covariance: Array
    log_tilted_normaliser: Array
    gradient_covariance: Array
    gradient_mean: Array
    m_matrix: Array
    sweeps: int
    residual: float
    damping: float


def _log_determinant(matrix: Array) -> float:
    sign, value = np.linalg.slogdet(matrix)
    if sign <= 0:
        raise ArithmeticError(f"a determinant that must be positive has sign {sign}")
    return float(value)


def _tilted_derivatives(mean: float, variance: float) -> tuple[float, float, float]:
    """log Phi(z), rho and gamma of Appendix A, step 2, for a cavity N(mean, variance)."""
    scale = 1.0 / np.sqrt(1.0 + variance)
    z = mean * scale
    log_phi = float(log_ndtr(z))
    rho = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_phi) * scale
    gamma = rho * rho + z * rho * scale
    return log_phi, rho, gamma


def _directions(y: int, c: int) -> Array:
    """The vectors b_j = (e_y - e_j, 1) as columns, shape (c + 1, c - 1)."""
    others = [j for j in range(c) if j != y]
    directions = np.zeros((c + 1, c - 1))
    directions[others, np.arange(c - 1)] = -1.0
    directions[y] = 1.0
    directions[c] = 1.0
    return directions


def inner_ep(
    cavity_mean: Array,
    cavity_covariance: Array,
    y: int,
    alpha: Array | None = None,
    beta: Array | None = None,
    *,
    tolerance: float = 1e-14,
    max_sweeps: int = 200,
) -> InnerEP:
    """EP for one tilted distribution (Appendix A, undamped, rank-one updates).

    Parameters
    ----------
    cavity_mean, cavity_covariance : ndarray, shapes (c,) and (c, c)
        Cavity of f_i.
    y : int
        Observed class.
    alpha, beta : ndarray, shape (c - 1,), optional
        Site parameters to start from; zero by default.
    tolerance : float
        Stop when no site parameter changes by more than this, relative to 1 + its size.
    max_sweeps : int
        Largest number of sweeps: rounding may keep the changes just above the small tolerance.

    Returns
    -------
    InnerEP
    """
    c = cavity_mean.size
    directions = _directions(y, c)
    alpha = np.zeros(c - 1) if alpha is None else alpha.copy()
    beta = np.zeros(c - 1) if beta is None else beta.copy()
    prior_mean = np.append(cavity_mean, 0.0)
    prior_covariance = np.zeros((c + 1, c + 1))
    prior_covariance[:c, :c] = cavity_covariance
    prior_covariance[c, c] = 1.0
    prior_precision = np.linalg.inv(prior_covariance)

    covariance = np.linalg.inv(prior_precision + (directions * alpha) @ directions.T)
    mean = covariance @ (prior_precision @ prior_mean + directions @ beta)
    for _ in range(max_sweeps):
        change = 0.0
        for j in range(c - 1):
            direction = directions[:, j]
            phi = covariance @ direction
            v, g = direction @ phi, direction @ mean
            v_cavity = 1.0 / (1.0 / v - alpha[j])
            m_cavity = v_cavity * (g / v - beta[j])
            _, rho, gamma = _tilted_derivatives(m_cavity, v_cavity)
            # 1/v_hat - 1/v_cavity and m_hat/v_hat - m_cavity/v_cavity, without cancellation
            d_alpha = gamma / (1.0 - v_cavity * gamma) - alpha[j]
            d_beta = (rho + m_cavity * gamma) / (1.0 - v_cavity * gamma) - beta[j]
            mean = mean + phi * (d_beta - d_alpha * g) / (1.0 + d_alpha * v)
            covariance = covariance - np.outer(phi, phi) * d_alpha / (1.0 + d_alpha * v)
            alpha[j] += d_alpha
            beta[j] += d_beta
            change = max(change, abs(d_alpha) / (1.0 + abs(alpha[j])), abs(d_beta) / (1.0 + abs(beta[j])))
        if change <= tolerance:
            break

    log_normaliser = 0.5 * mean @ np.linalg.solve(covariance, mean) + 0.5 * _log_determinant(covariance)
    log_normaliser -= 0.5 * prior_mean @ prior_precision @ prior_mean + 0.5 * _log_determinant(prior_covariance)
    for j in range(c - 1):
        direction = directions[:, j]
        v, g = direction @ covariance @ direction, direction @ mean
        v_cavity = 1.0 / (1.0 / v - alpha[j])
        m_cavity = v_cavity * (g / v - beta[j])
        log_phi, _, _ = _tilted_derivatives(m_cavity, v_cavity)
        log_normaliser += log_phi
        log_normaliser += 0.5 * (m_cavity**2 / v_cavity + np.log(v_cavity)) - 0.5 * (g**2 / v + np.log(v))
    return InnerEP(alpha, beta, mean, covariance, float(log_normaliser))


def site(alpha: Array, beta: Array, y: int) -> tuple[Array, Array]:
    """Precision and location of the site of one point, equations (11) and (15).

    The precision is B (T^-1 + 11')^-1 B', written B T^(1/2) (I + T^(1/2) 11' T^(1/2))^-1 T^(1/2) B' so that zero
    precisions need no care. The location is B (beta - (T^-1 + 11')^-1 1 1' beta).

    Parameters
    ----------
    alpha, beta : ndarray, shape (c - 1,)
        Scalar sites, all `alpha` non-negative.
    y : int
        Observed class.

    Returns
    -------
    precision : ndarray, shape (c, c)
    location : ndarray, shape (c,)
    """
    c = alpha.size + 1
    B = _directions(y, c)[:c]
    root = np.sqrt(alpha)
    inner = root[:, None] * np.linalg.solve(np.eye(c - 1) + np.outer(root, root), np.diag(root))
    precision = B @ inner @ B.T
    location = B @ (beta - inner @ np.ones(c - 1) * beta.sum())
    return 0.5 * (precision + precision.T), location


def block_diagonal(K: Array, c: int) -> Array:
    """The cn x cn prior covariance from a shared (n, n) or per-class (c, n, n) one."""
    n = K.shape[-1]
    full = np.zeros((c * n, c * n))
    for k, block in enumerate(np.broadcast_to(K, (c, n, n))):
        full[k * n : (k + 1) * n, k * n : (k + 1) * n] = block
    return full


def _assemble_sites(alpha: Array, beta: Array, y: NDArray[np.int64]) -> tuple[Array, Array]:
    """All sites as one precision (cn, cn) and one location (cn,)."""
    n, c = alpha.shape[0], alpha.shape[1] + 1
    precision, location = np.zeros((c * n, c * n)), np.zeros(c * n)
    for i in range(n):
        where = np.arange(c) * n + i
        precision[np.ix_(where, where)], location[where] = site(alpha[i], beta[i], int(y[i]))
    return precision, location


def _posterior(K: Array, m: Array, precision: Array, location: Array) -> tuple[Array, Array, Array, Array]:
    """Mean, covariance, b and M of N(f | m, K) exp(location' f - f' precision f / 2), without inverting K."""
    M = np.linalg.solve((np.eye(K.shape[0]) + K @ precision).T, precision.T).T
    M = 0.5 * (M + M.T)
    covariance = K - K @ M @ K
    b = np.linalg.solve(np.eye(K.shape[0]) + precision @ K, location - precision @ m)
    return m + K @ b, 0.5 * (covariance + covariance.T), b, M


def _cavity(mean: Array, covariance: Array, precision: Array, location: Array) -> tuple[Array, Array]:
    """Remove one site from the c-dimensional marginal."""
    marginal_precision = np.linalg.inv(covariance)
    cavity_covariance = np.linalg.inv(marginal_precision - precision)
    cavity_covariance = 0.5 * (cavity_covariance + cavity_covariance.T)
    return cavity_covariance @ (marginal_precision @ mean - location), cavity_covariance


def nested_ep(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike | None = None,
    *,
    c: int | None = None,
    schedule: str = "parallel",
    damping: float = 0.9,
    tolerance: float = 1e-12,
    accept: float = 1e-9,
    max_sweeps: int = 2000,
    start: tuple[Array, Array] | None = None,
) -> NestedEP:
    """Iterate nested EP to a fixed point with a small tolerance.

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
    schedule : {"parallel", "sequential"}
        Refresh the posterior once per sweep or after every point.
    damping : float
        Step taken in alpha and beta towards the inner solution. Halved whenever 15 sweeps bring no new best
        residual.
    tolerance : float
        Stop when the residual (see `NestedEP`) is below this.
    accept : float
        When rounding stops progress above `tolerance`, a residual below this is still a fixed point.
    max_sweeps : int
        Sweeps before giving up.
    start : tuple of ndarray, optional
        alpha and beta to start from, by default zero.

    Returns
    -------
    NestedEP

    Raises
    ------
    ArithmeticError
        If the residual stays above `accept`.
    """
    K, y = np.asarray(K, dtype=np.float64), np.asarray(y, dtype=np.int64)
    n = y.size
    if c is None:
        c = np.shape(m)[0] if m is not None else K.shape[0] if K.ndim == 3 else int(y.max()) + 1
    prior = block_diagonal(K, c)
    prior_mean = np.zeros(c * n) if m is None else np.asarray(m, dtype=np.float64).reshape(c * n)
    alpha, beta = (np.zeros((n, c - 1)), np.zeros((n, c - 1))) if start is None else (start[0].copy(), start[1].copy())
    where = [np.arange(c) * n + i for i in range(n)]

    best, since_best, best_sites = np.inf, 0, (alpha.copy(), beta.copy())
    for sweep in range(1, max_sweeps + 1):
        precision, location = _assemble_sites(alpha, beta, y)
        mean, covariance, _, _ = _posterior(prior, prior_mean, precision, location)
        residual = 0.0
        new_alpha, new_beta = alpha.copy(), beta.copy()
        for i in range(n):
            block = np.ix_(where[i], where[i])
            cavity = _cavity(mean[where[i]], covariance[block], precision[block], location[where[i]])
            inner = inner_ep(*cavity, int(y[i]), alpha[i], beta[i])
            step_alpha, step_beta = inner.alpha - alpha[i], inner.beta - beta[i]
            residual = max(residual, float(np.max(np.abs(step_alpha) / (1.0 + np.abs(alpha[i])))))
            residual = max(residual, float(np.max(np.abs(step_beta) / (1.0 + np.abs(beta[i])))))
            new_alpha[i] += damping * step_alpha
            new_beta[i] += damping * step_beta
            if schedule == "sequential":
                old_precision, old_location = precision[block].copy(), location[where[i]].copy()
                precision[block], location[where[i]] = site(new_alpha[i], new_beta[i], int(y[i]))
                # update of rank c: Sigma <- Sigma - Sigma_:i (I + dPi Sigma_ii)^-1 dPi Sigma_i:
                d_precision, d_location = precision[block] - old_precision, location[where[i]] - old_location
                columns = covariance[:, where[i]]
                gain = np.linalg.inv(np.eye(c) + d_precision @ covariance[block])
                mean = mean + columns @ (gain @ (d_location - d_precision @ mean[where[i]]))
                covariance = covariance - columns @ (gain @ d_precision) @ columns.T
        if residual < best:
            best, since_best, best_sites = residual, 0, (alpha.copy(), beta.copy())
        else:
            since_best += 1
        if best <= tolerance or (since_best >= 15 and best <= accept):
            break
        if since_best >= 15:
            damping, since_best = 0.5 * damping, 0
        alpha, beta = new_alpha, new_beta
    if best > accept:
        raise ArithmeticError(f"no fixed point in {max_sweeps} sweeps: the best residual is {best:.2e}")

    alpha, beta = best_sites
    precision, location = _assemble_sites(alpha, beta, y)
    mean, covariance, b, M = _posterior(prior, prior_mean, precision, location)
    cavity_mean, cavity_covariance, log_z = np.zeros((n, c)), np.zeros((n, c, c)), np.zeros(n)
    # equation (28)
    evidence = 0.5 * (location @ mean + b @ prior_mean) - 0.5 * _log_determinant(np.eye(c * n) + prior @ precision)
    for i in range(n):
        block = np.ix_(where[i], where[i])
        cavity_mean[i], cavity_covariance[i] = _cavity(
            mean[where[i]], covariance[block], precision[block], location[where[i]]
        )
        log_z[i] = inner_ep(cavity_mean[i], cavity_covariance[i], int(y[i]), alpha[i], beta[i]).log_normaliser
        evidence += log_z[i]
        evidence += 0.5 * cavity_mean[i] @ np.linalg.solve(cavity_covariance[i], cavity_mean[i])
        evidence += 0.5 * _log_determinant(cavity_covariance[i])
        evidence -= 0.5 * mean[where[i]] @ np.linalg.solve(covariance[block], mean[where[i]])
        evidence -= 0.5 * _log_determinant(covariance[block])
    b_blocks = b.reshape(c, n)
    m_blocks = np.stack([M[k * n : (k + 1) * n, k * n : (k + 1) * n] for k in range(c)])
    return NestedEP(
        evidence=float(evidence),
        mean=mean.reshape(c, n),
        covariance=covariance,
        alpha=alpha,
        beta=beta,
        site_precision=precision,
        site_location=location.reshape(c, n),
        cavity_mean=cavity_mean,
        cavity_covariance=cavity_covariance,
        log_tilted_normaliser=log_z,
        gradient_covariance=0.5 * (b_blocks[:, :, None] * b_blocks[:, None, :] - m_blocks),
        gradient_mean=b_blocks,
        m_matrix=M,
        sweeps=sweep,
        residual=best,
        damping=damping,
    )


def predict(
    solution: NestedEP, K_star: ArrayLike, K_star_star: ArrayLike, m_star: ArrayLike | None = None
) -> tuple[Array, Array]:
    """Latent mean and covariance at new points, equations (26) and (27).

    Parameters
    ----------
    solution : NestedEP
        The posterior at the training points.
    K_star : array_like, shape (p, n) or (c, p, n)
        Covariances between the p new and the n training points.
    K_star_star : array_like, shape (p, p) or (c, p, p)
        Covariances among the new points.
    m_star : array_like, shape (c, p), optional
        Prior mean at the new points, zero by default.

    Returns
    -------
    mean : ndarray, shape (c, p)
    covariance : ndarray, shape (cp, cp)
        Classes first, as in `NestedEP.covariance`.
    """
    c, n = solution.mean.shape
    cross = np.asarray(K_star, dtype=np.float64)
    p = cross.shape[-2]
    blocks = np.broadcast_to(cross, (c, p, n))
    full = np.zeros((c * p, c * n))
    for k in range(c):
        full[k * p : (k + 1) * p, k * n : (k + 1) * n] = blocks[k]
    mean = full @ solution.gradient_mean.reshape(-1)
    if m_star is not None:
        mean = mean + np.asarray(m_star, dtype=np.float64).reshape(-1)
    covariance = block_diagonal(np.asarray(K_star_star, dtype=np.float64), c) - full @ solution.m_matrix @ full.T
    return mean.reshape(c, p), covariance
