"""The contract of a Gaussian posterior of latent functions, and posteriors with a covariance matrix.

`posterior_of_normals` subtracts nothing. So variances far below those of the prior keep their digits, which would be
lost in I − JᵀMJ.
"""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior, Prior
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.gaussians.whitening import Whitening
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened, coupled_whitened


class Posterior[P: Prior](ABC):
    """q(f) ∝ p(f) exp(νᵀf − ½ fᵀΠf), a prior times sites.

    Computing from a prior covariance that is not a covariance matrix raises `NotPositiveDefiniteError`.

    Parameters
    ----------
    prior : Prior
    precision : array
        Precisions of the sites, in the shape of their form.
    weights : array (c, n)
        b = ν − Πμ, the force with which the sites pull at the posterior mean μ. For a covariance K, μ = m + K b.
    mean : array (c, n), optional
        μ, where it is known already.
    """

    sites_class: ClassVar[type[Sites]]
    """Class of its sites."""
    whitens: ClassVar[bool] = False
    """Whether there is a `whitening`."""

    def __init__(self, prior: P, precision: Array, weights: Array, mean: Array | None = None) -> None:
        self.prior = prior
        self.precision: Array = np.require(precision, np.float64, ["C", "W"])
        self.weights: Array = np.require(weights, np.float64, ["C", "W"])
        if mean is not None:
            self.mean = mean

    @classmethod
    @abstractmethod
    def of(cls, prior: P, sites: Sites) -> Self:
        """The posterior of given sites.

        Raises
        ------
        NotPositiveDefiniteError
            If a matrix has no Cholesky factor to working precision.
        """

    @cached_property
    @abstractmethod
    def mean(self) -> Array:
        """Posterior means μ at the points of the data, (c, n)."""

    @cached_property
    def sites(self) -> Sites:
        """The sites, located by the weights and the mean."""
        return self.sites_class.through(self.precision, self.mean, self.weights)

    @property
    @abstractmethod
    def log_determinant(self) -> float:
        """log|I + KΠ|."""

    @property
    def relative_log_normaliser(self) -> float:
        """Log ∫ p(f) sites(f) df, of sites that are scaled to be 1 at μ: −½ log|I + KΠ| − ½ bᵀ(μ − m)."""
        return -0.5 * (self.log_determinant + float((self.weights * (self.mean - self.prior.mean)).sum()))

    @property
    def log_normaliser(self) -> float:
        """Log ∫ p(f) exp(νᵀf − ½ fᵀΠf) df."""
        return float(self.sites.log_density(self.mean)) + self.relative_log_normaliser

    @property
    def divergence(self) -> float:
        """KL(q ‖ p) from the prior: ½ (bᵀ(μ − m) + log|I + KΠ| − tr ΠΣ), Σ the posterior covariance."""
        _, kept = self.site_blocks()
        taken = float((np.eye(kept.shape[-1]) - kept).trace(axis1=1, axis2=2).sum())
        return -self.relative_log_normaliser - 0.5 * taken

    def relative_site_log_density(self, x: Array) -> Array:
        """Log of the sites at μ + x, of sites that are scaled to be 1 at μ: bᵀx − ½ xᵀΠx.

        With `relative_log_normaliser` it makes ratios of densities in which no large numbers cancel.

        Returns
        -------
        array () or (count,)
        """
        return np.asarray((self.weights * x).sum((-2, -1)) - 0.5 * self.sites.quadratic(x))

    @abstractmethod
    def marginals(self) -> tuple[Array, Array]:
        """Mean (c, n) and covariance (n, c, c) of the latent values at each point of the data."""

    @abstractmethod
    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean (c, m) and covariance (m, c, c) of the latent functions at m new points.

        Parameters
        ----------
        k_cross : array (1 or c, m, n)
            Prior covariance between the new points and the old.
        k_new : array (1 or c, m)
            Prior variances at the new points.
        prior_mean : array (c, m)
            Prior mean at the new points.
        """

    def cavities(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Mean (n, c) and covariance (n, c, c) of the latent values of each point when its own site is left out.

        With E_i from `site_blocks` the covariance is Σ_i + Σ_i R_i E_i⁻¹ R_iᵀ Σ_i, a sum without cancellation, and no
        Σ_i is inverted. The site pulls with the force b_i, ν_i − Π_i μ_i for a location ν_i. So without it the mean is
        μ_i less that covariance times b_i.

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
    def site_blocks(self) -> tuple[Array, Array]:
        """Roots R_i (n, c, r) of the site precisions, Π_i = R_i R_iᵀ, and E_i = I − R_iᵀ Σ_i R_i (n, r, r).

        With Σ_i the marginal covariance of f_i, E_i is what the site leaves of the cavity's covariance, as 1 − πσ² is
        for one class. It comes from M, R_i E_i R_iᵀ = M_ii, since the difference has no digits left where it is small.
        """

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count, c, n) of f at the points of the data."""

    @abstractmethod
    def derivatives(self) -> tuple[Array, ...]:
        """Derivatives of `log_normaliser` at fixed sites, one for each array that the prior is made of."""

    def whitening(self) -> Whitening:
        """The map from independent standard normals to f.

        Raises
        ------
        TypeError
            If no such map is known, see `whitens`.
        """
        raise TypeError(f"No map from standard normals is known for {self.sites_class.form} sites; ask `whitens`.")


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
        """Return mean (c, m), covariance (m, c, c) and prior moments of new points."""
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


def posterior_of_normals(posterior: DensePosterior) -> CoupledWhitened | None:
    """Return q(z) = N(μ, Σ) of z (c, q), with J (1 or c, n, q) the factors that the posterior's prior has.

    None where sites are not of single points, or the precision has no Cholesky factor.
    """
    sites, prior = posterior.sites, posterior.prior
    if not sites.pointwise:
        return None
    c, n = prior.shape
    roots = np.broadcast_to(prior.roots, (c, *prior.roots.shape[1:]))
    q = roots.shape[-1]
    precision = np.zeros((c, q, c, q))
    for k, own in enumerate(roots):
        columns = np.zeros((q, c, n))
        columns[:, k] = own.T
        precision[k] = np.einsum("jbi,bil->jbl", sites.product(columns), roots, optimize=True)
    try:
        found = coupled_whitened(precision.reshape(c * q, c * q), np.zeros((c, q)))
    except LinAlgError:
        return None
    return replace(found, mean=prior.whitened_slope(posterior.weights))


def draw_normals(posterior: DensePosterior, rng: np.random.Generator, count: int) -> Array:
    """Draw z (count, c, q); by perturbation where `posterior_of_normals` has no answer."""
    normals = posterior_of_normals(posterior)
    return posterior.draw_whitened(rng, count) if normals is None else normals.draw(rng, count)
