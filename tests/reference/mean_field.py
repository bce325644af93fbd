"""The mean field of latent values and hyperparameters on a grid, and by the dense loop of Girolami and Rogers.

Source: Girolami and Rogers, "Variational Bayesian multinomial probit regression with Gaussian process priors", Neural
Computation 18 (2006), sections 4.3 and 4.4 and appendix A.3. The trace term of the exact mean field is optional. The
loop has the weights of the authors' program, of which the R version is vbmp (Lama and Girolami, Bioconductor).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.reference.variational_bayes import mean_utilities

__all__ = ["AuthorsStep", "GridPosterior", "authors_steps", "authors_weight", "expected_log_prior", "grid_posterior"]

Array = NDArray[np.float64]


class GridPosterior(NamedTuple):
    """Moments of q(φ) and its log normaliser."""

    mean: Array
    """Mean of φ, (d,)."""
    log_normaliser: float
    """log ∫ p(φ) exp r(φ) dφ, with the log weight r."""


def expected_log_prior(K: Array, residual: Array, spread: Array | None = None) -> float:
    """E log N(f | m, K), summed over functions of mean m + residual (c, n) and covariance (c, n, n) or 0."""
    precision = np.linalg.inv(K)
    log_det = np.linalg.slogdet(precision)[1]
    total = 0.0
    for k, own in enumerate(residual):
        total -= 0.5 * (own @ precision @ own - log_det + own.size * np.log(2 * np.pi))
        if spread is not None:
            total -= 0.5 * np.trace(precision @ spread[k])
    return float(total)


def authors_weight(K: Array, residual: Array) -> float:
    """Log of the authors' weight, −½ Σ_k m_kᵀ (K + I)⁻¹ m_k, for residuals (c, n)."""
    return float(-0.5 * np.trace(residual @ np.linalg.inv(K + np.eye(len(K))) @ residual.T))


def grid_posterior(log_weight: Callable[[Array], float], rates: Array, log_axis: Array) -> GridPosterior:
    """q(φ) ∝ ∏_d Exp(φ_d | rate ψ_d) exp r(φ), by the trapezoid rule over log φ.

    Parameters
    ----------
    log_weight : callable
        r at φ (d,).
    rates : ndarray, shape (d,)
    log_axis : ndarray
        Equally spaced values of each log φ_d.
    """
    d = rates.size
    phis = np.exp(np.stack(np.meshgrid(*[log_axis] * d, indexing="ij"), axis=-1).reshape(-1, d))
    # with the Jacobian of the logarithm
    logs = np.array([np.log(rates).sum() - rates @ phi + np.log(phi).sum() + log_weight(phi) for phi in phis])
    weights = np.exp(logs - logs.max())
    cell = d * np.log(log_axis[1] - log_axis[0])
    return GridPosterior(weights @ phis / weights.sum(), float(logs.max() + np.log(weights.sum()) + cell))


class AuthorsStep(NamedTuple):
    """Result of a step of the loop."""

    mean: Array
    """Means of the latent values, (c, n)."""
    log_weights: Array
    """Log weights of the draws, (1, s) for all classes together or (c, s)."""
    phi: Array
    psi: Array


def authors_steps(
    covariance: Callable[[Array], Array],
    y: NDArray[np.int64],
    prior_mean: Array,
    phi: Array,
    draws: Sequence[Array],
    sigma: float,
    tau: float,
    utilities: Array | None = None,
) -> list[AuthorsStep]:
    """The loop (4.6) to (4.8), with one step for each given set of draws.

    Parameters
    ----------
    covariance : callable
        C (n, n) at relevances (d,).
    y : ndarray of int, shape (n,)
    prior_mean : ndarray, shape (c, n)
        Zero in the paper.
    phi : ndarray, shape (1, d) or (c, d)
        Initial relevances, for all classes together or for each class.
    draws : sequence of ndarray, shape (s, 1, d) or (s, c, d)
        Draws from the exponential priors, with the rates at the end of the previous step.
    sigma, tau : float
        Parameters of the gamma prior of the rates.
    utilities : ndarray, shape (c, n), optional
        Initial utilities. They are random in the paper; the default here is the utilities at the prior mean.
    """
    unit = np.eye(y.size)
    utilities = mean_utilities(prior_mean, y) if utilities is None else utilities
    steps = []
    for drawn in draws:
        c = len(prior_mean)
        smoothers = [C @ np.linalg.inv(C + unit) for C in (covariance(own) for own in phi)]
        mean = np.array([prior_mean[k] + smoothers[k % len(phi)] @ (utilities[k] - prior_mean[k]) for k in range(c)])
        utilities = mean_utilities(mean, y)
        residual = mean - prior_mean
        of_class = [residual] if len(phi) == 1 else residual[:, None]
        logs = np.array(
            [[authors_weight(covariance(each[k]), own) for each in drawn] for k, own in enumerate(of_class)]
        )
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        phi = np.einsum("ks,skd->kd", weights, drawn)
        psi = (sigma + 1) / (tau + phi)
        steps.append(AuthorsStep(mean, logs, phi, psi))
    return steps
