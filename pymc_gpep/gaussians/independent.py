"""The Gaussian posterior of latent functions whose sites leave the classes independent: prediction and draws."""

from functools import cached_property

import numpy as np

from pymc_gpep.gaussians.posterior import FLOOR, Array, Posterior, scaled_symmetric
from pymc_gpep.kernels.gaussians.independent import factorise_class

__all__ = ["IndependentPosterior"]


class IndependentPosterior(Posterior):
    """Sites of precision diag(π) ≥ 0, different for each class and point, from `precision` π (c, n): M is B.

    B is block-diagonal with the blocks B_k = D_k^½ (I + D_k^½ K_k D_k^½)⁻¹ D_k^½, D_k = diag(π_k).
    """

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
            matrix[:] = scaled_symmetric(matrix, np.sqrt(pi))
        return b

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        c, m = k_new.shape
        explained = np.einsum("kmn,kmn->km", *np.broadcast_arrays(np.matmul(k_cross, self._b), k_cross))
        cov = np.zeros((m, c, c))
        cov[:, range(c), range(c)] = np.maximum(k_new - explained, 0.0).T
        return cov

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, n = self.precision.shape
        cov = np.zeros((c, n, c, n))
        for a, own in enumerate(np.broadcast_to(prior - left.swapaxes(1, 2) @ self._b @ left, (c, n, n))):
            cov[a, :, a, :] = own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        explained = np.einsum("kji,kji->ki", *np.broadcast_arrays(left, self._b @ left))
        return np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1) - explained, self.precision.shape)

    def site_blocks(self) -> tuple[Array, Array]:
        unit = np.eye(len(self.precision))
        own = self._b.diagonal(axis1=1, axis2=2) / np.maximum(self.precision, FLOOR)
        kept = np.where(self.precision > FLOOR, own, 1.0)
        return np.sqrt(self.precision).T[:, :, None] * unit, kept.T[:, :, None] * unit

    def draw_whitened(self, rng: np.random.Generator, draws: int, roots: Array) -> Array:
        c, n = self.precision.shape
        z = rng.standard_normal((c, n, draws))
        noise = rng.standard_normal((c, n, draws)) * np.sqrt(self.precision)[..., None]
        observed = self._b @ (roots @ z + self.k @ noise)
        z += roots.swapaxes(1, 2) @ (self.weights[..., None] + noise - observed)
        return z.transpose(2, 0, 1)
