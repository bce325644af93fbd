"""The Gaussian posterior of latent functions whose sites leave the classes independent: prediction and draws."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.kernels.independent import factorise_class

__all__ = ["IndependentPosterior"]

Array = NDArray[np.float64]


class IndependentPosterior:
    """q(f) = N(m + K b, K − K B K), where the sites have precision diag(π), different for each class and point.

    B is block-diagonal with the blocks B_k = D_k^½ (I + D_k^½ K_k D_k^½)⁻¹ D_k^½, D_k = diag(π_k).

    Parameters
    ----------
    k : array (1 or c, n, n)
        Prior covariance.
    prior_mean : array (c, n)
    precision : array (c, n)
        Site precisions π, zero or more.
    weights : array (c, n)
        b = K⁻¹ (posterior mean − prior mean).
    """

    def __init__(self, k: Array, prior_mean: Array, precision: Array, weights: Array) -> None:
        self.k = k
        self.prior_mean = prior_mean
        self.precision = precision
        self.weights = weights

    @cached_property
    def _b(self) -> Array:
        """B_k, (1 or c, n, n): one where all classes have the same."""
        shared = len(self.k) == 1 and (self.precision == self.precision[0]).all()
        precision = self.precision[:1] if shared else self.precision
        n = precision.shape[1]
        b = np.empty((len(precision), n, n))
        for matrix, prior, pi in zip(b, np.broadcast_to(self.k, b.shape), precision, strict=True):
            ok, _ = factorise_class(prior, pi, matrix)
            if not ok:
                raise np.linalg.LinAlgError("The prior covariance is not positive semi-definite.")
            lower = np.tril(matrix)
            root = np.sqrt(pi)
            matrix[:] = (lower + np.tril(lower, -1).T) * root[:, None] * root
        return b

    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean (c, m) and covariance between classes (m, c, c) of the latent functions at m new points.

        Parameters
        ----------
        k_cross : array (1 or c, m, n)
            Prior covariance between the new points and the old.
        k_new : array (1 or c, m)
            Prior variances at the new points.
        prior_mean : array (c, m)
            Prior mean at the new points.
        """
        c, m = prior_mean.shape
        mean = prior_mean + np.squeeze(np.matmul(k_cross, self.weights[..., None]), -1)
        explained = np.einsum("kmn,kmn->km", *np.broadcast_arrays(np.matmul(k_cross, self._b), k_cross))
        cov = np.zeros((m, c, c))
        cov[:, range(c), range(c)] = np.maximum(k_new - explained, 0.0).T
        return mean, cov

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        """Prior − leftᵀ B left, (c, n, c, n), for a factor `left` and a prior covariance (1 or c, n, n) it belongs to.

        With both the prior covariance K this is the covariance of f; with L, K = L Lᵀ, and the identity it is that of
        z = L⁻¹ (f − m).
        """
        c, n = self.precision.shape
        cov = np.zeros((c, n, c, n))
        for a, own in enumerate(np.broadcast_to(prior - left.swapaxes(1, 2) @ self._b @ left, (c, n, n))):
            cov[a, :, a, :] = own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        """Diagonal (c, n) of `joint_covariance`."""
        explained = np.einsum("kji,kji->ki", *np.broadcast_arrays(left, self._b @ left))
        return np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1) - explained, self.precision.shape)

    def draw_whitened(self, rng: np.random.Generator, draws: int, roots: Array) -> Array:
        """Draws (draws, c, n) of z where f = m + L z and K = L Lᵀ: exact, at O(c n²) a draw.

        Perturbation: with f₀ ~ N(0, K) and ε ~ N(0, D), f₀ + K (ε − B (f₀ + K ε)) has the posterior covariance.

        Parameters
        ----------
        roots : array (1 or c, n, n)
            Lower Cholesky factors L of the prior covariance.
        """
        c, n = self.precision.shape
        z = rng.standard_normal((c, n, draws))
        noise = rng.standard_normal((c, n, draws)) * np.sqrt(self.precision)[..., None]
        observed = self._b @ (roots @ z + self.k @ noise)
        z += roots.swapaxes(1, 2) @ (self.weights[..., None] + noise - observed)
        return z.transpose(2, 0, 1)
