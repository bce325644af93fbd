"""The nine regimes of figure 3: two points of opposite labels, whose posterior is integrated on a grid."""

from typing import NamedTuple

import numpy as np

from benchmarks.binary_paper.methods import log_link
from pymc_gpep.likelihoods.one_function import TwoClasses

Array = np.ndarray

LABELS = np.array([1, 0])
REGIMES = {
    3 * row + column + 1: (log_lengthscale, log_magnitude)
    for row, log_magnitude in enumerate((1.5, 0.0, -1.5))
    for column, log_lengthscale in enumerate((0.0, 1.0, 2.5))
}
"""log ℓ and log σ_f of each regime. A row of the figure has one magnitude, and a column one length scale."""
SPAN = 9.0  # standard deviations of the prior that the grid covers


class Exact(NamedTuple):
    """Log evidence, mean (2,) and covariance (2, 2) of a posterior, and its density."""

    evidence: float
    mean: Array
    cov: Array
    f: Array
    """Latent values (2, side, side) of the grid."""
    log_density: Array
    """Unnormalised log posterior density on the grid, (side, side)."""


def covariance(log_lengthscale: float, log_magnitude: float) -> Array:
    """K for x = ±√2, a squared exponential."""
    other = np.exp(-4.0 * np.exp(-2.0 * log_lengthscale))
    return np.exp(2.0 * log_magnitude) * np.array([[1.0, other], [other, 1.0]])


def exact(K: Array, labels: Array, link: TwoClasses, side: int = 1201) -> Exact:
    """Integrals by the trapezoid rule in coordinates where the prior is standard normal."""
    z = np.linspace(-SPAN, SPAN, side)
    first, second = np.meshgrid(z, z, indexing="ij")
    f = np.tensordot(np.linalg.cholesky(K), np.stack([first, second]), 1)
    fit = np.einsum("ijk->jk", log_link(link, (2.0 * labels - 1.0)[:, None, None] * f))
    log_density = fit - 0.5 * (first**2 + second**2)
    top = log_density.max()
    weights = np.exp(log_density - top)
    total = weights.sum()
    mean = np.einsum("ijk,jk->i", f, weights) / total
    away = f - mean[:, None, None]
    cov = np.einsum("ijk,ljk,jk->il", away, away, weights) / total
    return Exact(float(top + np.log(total * (z[1] - z[0]) ** 2 / (2.0 * np.pi))), mean, cov, f, log_density)


def effective(mean: Array, cov: Array, K: Array) -> tuple[Array, Array]:
    """Precision W (2, 2) and location W⁻¹ν (2,) of the Gaussian likelihood with this posterior, equation 7."""
    precision = np.linalg.inv(cov) - np.linalg.inv(K)
    return precision, np.linalg.solve(precision, np.linalg.solve(cov, mean))
