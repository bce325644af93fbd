"""The posterior that sites make of a prior with a dense covariance: prediction, joint covariances, draws."""

from abc import abstractmethod
from copy import copy
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.team import one_blas_thread

__all__ = ["NO_COVARIANCE", "DensePosterior", "PointsElsewhere", "scaled_symmetric"]


NO_COVARIANCE = "The prior covariance is not positive semi-definite."


class PointsElsewhere(Protocol):
    """New points as a prior knows them; a posterior asks for them in the form that it is in itself."""

    def moments(self) -> tuple[Array, Array, Array]:
        """Return prior covariances with the points of the data (1 or c, m, n), variances and means there."""
        ...

    def by_normals(self) -> tuple[Coefficients, Array, Array]:
        """Return J* (cm, q), the variance (c, m) of e and m* (c, m) of m* + J* z + e."""
        ...


class DensePosterior(Posterior[DensePrior]):
    """q(f) = N(m + K b, K − K M K), where M is what the sites make of K."""

    @cached_property
    def mean(self) -> Array:
        shift = np.empty_like(self.weights)
        multiply_functions(self.prior.k, self.weights, shift)
        return self.prior.mean + shift

    @one_blas_thread()
    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        # Equations 26 and 27 of the nested EP paper.
        shape = (*prior_mean.shape, self.prior.shape[1])
        mean = prior_mean + np.einsum("kmn,kn->km", np.broadcast_to(k_cross, shape), self.weights)
        return mean, self._covariance_at(k_cross, np.broadcast_to(k_new, prior_mean.shape))

    def at(self, points: PointsElsewhere) -> tuple[Array, Array, Block]:
        """Mean (c, m) and covariance (m, c, c) at new points, and their prior moments with what functions are known by.

        Parameters
        ----------
        points : PointsElsewhere
        """
        cross, variance, prior_mean = points.moments()
        mean, cov = self.predict(cross, variance, prior_mean)
        return mean, cov, Block(cross.swapaxes(1, 2), variance, prior_mean)

    def draw_at(self, rng: np.random.Generator, f: Array, z: Array, points: PointsElsewhere) -> Array:
        """Draws (count, c, m) at new points, given draws of f (count, c, n) and of z that make them."""
        cross, variance, prior_mean = points.moments()
        found = np.empty((len(f), *prior_mean.shape))
        for own, values in zip(found, f, strict=True):
            mean, rest = self.prior.conditional(values, cross, variance, prior_mean)
            own[:] = mean + np.sqrt(rest) * rng.standard_normal(mean.shape)
        return found

    def at_left_out(self, whole: DensePrior, i: int) -> tuple[Array, Array]:
        """Mean (c, 1) and covariance (1, c, c) at point i of a prior, of whose other points this is the posterior."""
        own, others = np.array([i]), np.delete(np.arange(whole.shape[1]), i)
        return self.predict(whole.among(own, others), whole.variances[:, own], whole.mean[:, own])

    def covariance_among(self, points: NDArray[np.intp]) -> Array:
        """Covariance (c, s, c, s) of f at some points (s,)."""
        every = np.arange(self.prior.shape[1])
        return self.joint_covariance(self.prior.among(every, points), self.prior.among(points, points))

    def root_among(self, points: NDArray[np.intp]) -> Array:
        """R (c, s, p), with the covariance R Rᵀ of f at some points (s,)."""
        joint = self.covariance_among(points)
        c, s = joint.shape[:2]
        values, vectors = np.linalg.eigh(joint.reshape(c * s, c * s))
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).reshape(c, s, c * s))

    def whitened(self) -> tuple[Array, Array]:
        """Mean and variance (c, q) of z where f = m + L z and K = L Lᵀ."""
        unit = np.eye(self.prior.roots.shape[-1])
        mean = self.prior.whitened_slope(self.weights)
        return mean, np.maximum(self.marginal_variance(self.prior.roots, unit), 0.0)

    def whitened_covariance(self) -> Array:
        """Covariance (c, q, c, q) of z."""
        return self.joint_covariance(self.prior.roots, np.eye(self.prior.roots.shape[-1]))

    @abstractmethod
    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        """Covariance between classes (m, c, c) at new points, from prior variances (c, m)."""

    def smoothing(self) -> tuple[Array, Array | None]:
        """B (1 or c, n, n) and T (c, n, n) of M = blockdiag(B) − T Tᵀ, T stacked; None for a T that is 0.

        Raises
        ------
        TypeError
            If M is not of this form.
        """
        raise TypeError(f"The posterior of {self.sites_class.form} sites has no such factors.")

    def rooted(self, roots: Array) -> Self:
        """Return the same posterior with other factors (1 or c, n, q) of the prior covariance."""
        other = copy(self)
        other.prior = self.prior.rooted(roots)
        return other

    @abstractmethod
    def joint_covariance(self, left: Array, prior: Array) -> Array:
        """Prior − leftᵀ M left, (c, q, c, q), for a factor `left` (1 or c, n, q) and a prior covariance it belongs to.

        With both the prior covariance K this is the covariance of f. With L, K = L Lᵀ, and the identity it is that of
        z, f = m + L z.
        """

    @abstractmethod
    def marginal_variance(self, left: Array, prior: Array) -> Array:
        """Diagonal (c, q) of `joint_covariance`, cheaper where that is possible."""

    @abstractmethod
    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        """Draws (draws, c, q) of z where f = m + L z and K = L Lᵀ: exact, by perturbation.

        Let f₀ ~ N(0, K), and let ε have a normal distribution whose covariance is the precision of the sites. Then f₀ +
        K (ε − M (f₀ + K ε)) has the posterior covariance.
        """

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return self.prior.latent(self.draw_whitened(rng, count))

    @abstractmethod
    def derivatives(self) -> tuple[Array, Array]:
        """Derivatives of `log_normaliser` at fixed sites: ½ (b_k b_kᵀ − M_kk) (1 or c, n, n), and b (c, n).

        They are with respect to prior covariance and mean; summed over classes where there is one covariance.
        """


def scaled_symmetric(lower: Array, root: Array) -> Array:
    """D S D, where the lower triangle of `lower` (n, n) holds the symmetric S and D = diag(root)."""
    triangle = np.tril(lower)
    full: Array = (triangle + np.tril(triangle, -1).T) * root[:, None] * root
    return full
