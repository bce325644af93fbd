"""The Gaussian posterior of the latent functions, whatever the structure of its sites: prediction and draws."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

__all__ = ["FLOOR", "Posterior", "scaled_symmetric"]

Array = NDArray[np.float64]

FLOOR = 1e-200
"""A site precision below this one does nothing."""


class Posterior(ABC):
    """q(f) = N(m + K b, K − K M K): a joint Gaussian, by what it can do; M is what the sites make of K.

    Parameters
    ----------
    k : array (1 or c, n, n)
        Prior covariance.
    prior_mean : array (c, n)
    precision : array
        Site precisions, in a shape of the subclass's own.
    weights : array (c, n)
        b = K⁻¹ (posterior mean − prior mean).
    """

    def __init__(self, k: Array, prior_mean: Array, precision: Array, weights: Array) -> None:
        self.k = k
        self.prior_mean = prior_mean
        self.precision = precision
        self.weights = weights

    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean (c, m) and covariance between classes (m, c, c) of the latent functions at m new points.

        Equations 26 and 27 of the nested EP paper.

        Parameters
        ----------
        k_cross : array (1 or c, m, n)
            Prior covariance between the new points and the old.
        k_new : array (1 or c, m)
            Prior variances at the new points.
        prior_mean : array (c, m)
            Prior mean at the new points.
        """
        shape = (*prior_mean.shape, self.k.shape[-1])
        mean = prior_mean + np.einsum("kmn,kn->km", np.broadcast_to(k_cross, shape), self.weights)
        return mean, self._covariance_at(k_cross, np.broadcast_to(k_new, prior_mean.shape))

    def cavities(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Mean (n, c) and covariance (n, c, c) of the latent values of each point when its own site is left out.

        With E_i from `site_blocks` the covariance is Σ_i + Σ_i R_i E_i⁻¹ R_iᵀ Σ_i, a sum without cancellation, and no
        Σ_i is inverted. The site pulls with the force b_i, ν_i − Π_i μ_i for a location ν_i, so that without it the
        mean is μ_i less that covariance times b_i.

        Parameters
        ----------
        mean : array (c, n)
            Posterior means μ at the points of the data.
        cov : array (n, c, c)
            Posterior covariances Σ_i between the classes there.
        """
        roots, kept = self.site_blocks()
        half = cov @ roots
        wide = cov + half @ np.linalg.solve(kept, half.swapaxes(1, 2))
        return mean.T - np.einsum("iab,bi->ia", wide, self.weights), wide

    @abstractmethod
    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        """Covariance between classes (m, c, c) at new points, from prior variances (c, m)."""

    @abstractmethod
    def joint_covariance(self, left: Array, prior: Array) -> Array:
        """Prior − leftᵀ M left, (c, n, c, n), for a factor `left` and a prior covariance (1 or c, n, n) it belongs to.

        With both the prior covariance K this is the covariance of f; with L, K = L Lᵀ, and the identity it is that of
        z = L⁻¹ (f − m).
        """

    @abstractmethod
    def marginal_variance(self, left: Array, prior: Array) -> Array:
        """Diagonal (c, n) of `joint_covariance`, cheaper where that is possible."""

    @abstractmethod
    def site_blocks(self) -> tuple[Array, Array]:
        """Roots R_i (n, c, r) of the site precisions, Π_i = R_i R_iᵀ, and E_i = I − R_iᵀ Σ_i R_i (n, r, r).

        With Σ_i the marginal covariance of f_i, E_i is what the site leaves of the cavity's covariance, as 1 − πσ² is
        for one class. It comes from M, R_i E_i R_iᵀ = M_ii, since the difference has no digits left where it is small.
        """

    @abstractmethod
    def draw_whitened(self, rng: np.random.Generator, draws: int, roots: Array) -> Array:
        """Draws (draws, c, n) of z where f = m + L z and K = L Lᵀ: exact, by perturbation.

        With f₀ ~ N(0, K) and ε from a normal distribution whose covariance is the precision of the sites,
        f₀ + K (ε − M (f₀ + K ε)) has the posterior covariance.

        Parameters
        ----------
        roots : array (1 or c, n, n)
            Lower Cholesky factors L of the prior covariance.
        """


def scaled_symmetric(lower: Array, root: Array) -> Array:
    """D S D, where the lower triangle of `lower` (n, n) holds the symmetric S and D = diag(root)."""
    triangle = np.tril(lower)
    full: Array = (triangle + np.tril(triangle, -1).T) * root[:, None] * root
    return full
