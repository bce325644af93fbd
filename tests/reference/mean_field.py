"""The mean field of latent values and hyperparameters on a grid of hyperparameters, dense.

Source: Girolami and Rogers, "Variational Bayesian multinomial probit regression with Gaussian process priors", Neural
Computation 18 (2006), section 4.3 and appendix A.3, with the trace of the exact mean field where it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["GridPosterior", "grid_posterior"]

Array = NDArray[np.float64]


class GridPosterior(NamedTuple):
    """q(φ) as far as it is wanted."""

    mean: Array
    """Of φ, (d,)."""
    log_normaliser: float
    """log ∫ p(φ) exp E_q(f) log N(f | m, K_φ) dφ."""


def grid_posterior(
    covariance: Callable[[Array], Array],
    rates: Array,
    prior_mean: Array,
    mean: Array,
    spread: Array | None,
    log_axis: Array,
) -> GridPosterior:
    """q(φ) ∝ ∏_d Exp(φ_d | rate ψ_d) exp E_q(f) log N(f | m, K_φ), by the trapezoid rule over log φ.

    Parameters
    ----------
    covariance : callable
        K (n, n), of all classes, at φ (d,).
    rates : ndarray, shape (d,)
    prior_mean, mean : ndarray, shape (c, n)
        m, and that of q(f).
    spread : ndarray, shape (c, n, n), or None
        Covariances of q(f); None to leave the trace out.
    log_axis : ndarray
        Equally spaced, of each log φ_d.
    """
    d = rates.size
    phis = np.exp(np.stack(np.meshgrid(*[log_axis] * d, indexing="ij"), axis=-1).reshape(-1, d))
    logs = np.empty(len(phis))
    for s, phi in enumerate(phis):
        precision = np.linalg.inv(covariance(phi))
        log_det = np.linalg.slogdet(precision)[1]
        total = np.log(rates).sum() - rates @ phi + np.log(phi).sum()  # with the Jacobian of the logarithm
        for k, own in enumerate(mean - prior_mean):
            total -= 0.5 * (own @ precision @ own - log_det + own.size * np.log(2 * np.pi))
            if spread is not None:
                total -= 0.5 * np.trace(precision @ spread[k])
        logs[s] = total
    weights = np.exp(logs - logs.max())
    cell = d * np.log(log_axis[1] - log_axis[0])
    return GridPosterior(weights @ phis / weights.sum(), float(logs.max() + np.log(weights.sum()) + cell))
