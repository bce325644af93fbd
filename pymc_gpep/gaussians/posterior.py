"""Gaussian posterior of latent functions, and a table of the linear algebra for each form of prior and of sites."""

from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_algebra import DenseBlocks, DenseCoupled, DenseIndependent, SignedBlocks
from pymc_gpep.gaussians.place_prior import PlaceAlgebra, PlacePrior
from pymc_gpep.gaussians.precision_prior import (
    NeighbourPrior,
    PrecisionAlgebra,
    PrecisionBlocks,
    PrecisionCoupled,
    PrecisionPrior,
)
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PosteriorAlgebra, PriorForm
from pymc_gpep.gaussians.row_prior import BlockRows, CoupledRows, IndependentRows, RowPrior
from pymc_gpep.gaussians.sites import BlockSites, CoupledSites, IndependentSites, SignedSites, SiteForm, Sites
from pymc_gpep.registry import Registry
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.team import one_blas_thread


class Posterior:
    """Gaussian posterior of a prior times sites, q(f) ∝ p(f) exp(νᵀf − ½ fᵀΠf).

    For the prior N(m, K), q(f) = N(μ, K − K M K) with μ = m + K b, b = ν − Πμ and M = (I + ΠK)⁻¹ Π. If K is not
    positive semi-definite, computations raise `NotPositiveDefiniteError`.

    Parameters
    ----------
    prior : PriorForm
    algebra : type of PosteriorAlgebra
        Algebra for this form of prior and of sites.
    sites_class : type of Sites
    precision : array
        Precisions of the sites, in the shape of their form.
    weights : array (c, n)
        b = ν − Πμ, the derivative of the log sites at the posterior mean μ.
    mean : array (c, n), optional
        Mean μ, if it is computed already.
    """

    def __init__(
        self,
        prior: Any,
        algebra: type[PosteriorAlgebra],
        sites_class: type[Sites],
        precision: Array,
        weights: Array,
        mean: Array | None = None,
    ) -> None:
        self.prior, self.algebra_class, self.sites_class = prior, algebra, sites_class
        self.precision: Array = np.require(precision, np.float64, ["C", "W"])
        self.weights: Array = np.require(weights, np.float64, ["C", "W"])
        if mean is not None:
            self.mean = mean

    @classmethod
    def of(cls, prior: Any, algebra: type[PosteriorAlgebra], sites: Sites) -> Self:
        """Return the posterior of a prior with sites.

        Raises
        ------
        NotPositiveDefiniteError
            If a matrix has no Cholesky factor in working precision.
        """
        posterior = cls(prior, algebra, type(sites), sites.precision, np.empty(prior.shape))
        posterior.sites = sites
        posterior.coordinates, posterior.weights = posterior.algebra.located(sites.slope(prior.mean))
        return posterior

    @cached_property
    def _taken(self) -> tuple[PosteriorAlgebra, float]:
        """Linear algebra with the factorised site precision Π, and log|I + KΠ|."""
        sites = vars(self).get("sites", None) or self.sites_class.of(self.precision, self.weights, self.prior)
        kind = self.algebra_class.signed if sites.signed else None
        algebra: PosteriorAlgebra = (kind or self.algebra_class)(self.prior, len(self.weights))
        return algebra, algebra.take(sites)

    @property
    def algebra(self) -> PosteriorAlgebra:
        """Linear algebra with the factorised precision of the sites."""
        return self._taken[0]

    @property
    def log_determinant(self) -> float:
        """Log determinant log|I + KΠ|, with prior covariance K and site precision Π."""
        return self._taken[1]

    @cached_property
    def coordinates(self) -> Array:
        """Coordinates of the mean: weights b (c, n), or normals (1, q); see `PriorForm.coordinates`."""
        if self.prior.by_weights:
            return self.weights
        if (mean := vars(self).get("mean")) is None:
            return np.asarray(self.prior.coordinates(self.weights))
        # The sum b + Π(μ − m) is accurate also if the prior is wide.
        sites = self.sites_class.of(self.precision, self.weights, self.prior)
        return self.algebra.located(self.weights + sites.product(mean - self.prior.mean))[0]

    @cached_property
    def mean(self) -> Array:
        """Posterior means μ of the latent values, (c, n)."""
        shift = np.empty_like(self.weights)
        self.prior.multiply(self.coordinates, shift)
        return np.asarray(self.prior.mean + shift)

    @cached_property
    def sites(self) -> Sites:
        """Sites with the derivative `weights` of the log at the posterior mean."""
        return self.sites_class.through(self.precision, self.mean, self.weights, self.prior)

    @property
    def relative_log_normaliser(self) -> float:
        """Log integral of prior times sites, for sites scaled to 1 at the mean μ: −½ log|I + KΠ| − ½ bᵀ(μ − m)."""
        return -0.5 * (self.log_determinant + float((self.weights * (self.mean - self.prior.mean)).sum()))

    @property
    def log_normaliser(self) -> float:
        """Log integral of prior times sites, ∫ p(f) exp(νᵀf − ½ fᵀΠf) df."""
        return float(self.sites.log_density(self.mean)) + self.relative_log_normaliser

    @property
    def divergence(self) -> float:
        """Kullback–Leibler divergence of the posterior N(μ, Σ) from the prior: ½ (bᵀ(μ − m) + log|I + KΠ| − tr ΠΣ)."""
        return -self.relative_log_normaliser - 0.5 * self.algebra.taken()

    def relative_site_log_density(self, x: Array) -> Array:
        """Return log sites at x plus the mean, for sites scaled to 1 at the mean: bᵀx − ½ xᵀΠx.

        With `relative_log_normaliser` it determines ratios of densities without cancellation of large numbers.

        Returns
        -------
        array () or (count,)
        """
        return np.asarray((self.weights * x).sum((-2, -1)) - 0.5 * self.sites.quadratic(x))

    def marginals(self) -> tuple[Array, Array]:
        """Return means (c, n) and covariances (n, c, c) of the latent values at each point of the data."""
        return self.mean, self.algebra.marginal_covariances()

    def derivatives(self) -> tuple[Array, Array]:
        """Return derivatives of `log_normaliser` at fixed sites: in the prior's array, and in its mean (c, n)."""
        return self.algebra.gradient(self.weights, None, self.coordinates), self.weights.copy()

    def cavities(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Return means (n, c) and covariances (n, c, c) of the cavities: each point without its own site.

        With R_i and E_i from `site_blocks`, the covariance is Σ_i + Σ_i R_i E_i⁻¹ R_iᵀ Σ_i. This sum has no
        cancellation, and no Σ_i is inverted. The mean is μ_i minus the cavity covariance times the weights b_i.

        Parameters
        ----------
        mean : array (c, n)
            Posterior means μ.
        cov : array (n, c, c)
            Posterior covariances Σ_i between the classes of each point.
        """
        return self.algebra.cavities(mean, cov, self.weights)

    def site_blocks(self) -> tuple[Array, Array]:
        """Return roots R_i (n, c, r) of site precisions R_i R_iᵀ, and E_i = I − R_iᵀ Σ_i R_i (n, r, r).

        Σ_i is the posterior covariance of the latent values of point i. For a single function E_i is the ratio of
        posterior to cavity variance.
        """
        return self.algebra.site_blocks()

    # Posterior moments at new points.

    @one_blas_thread()
    def predict(self, left: Any, variance: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Return means (c, m) and covariances (m, c, c) of the latent functions at m new points.

        Parameters
        ----------
        left : array (1 or c, m, n)
            Prior covariance between the new points and the points of the data, or rows of coefficients of the new
            points.
        variance : array (1 or c, m)
            Prior variances at the new points; if `left` are rows of coefficients, residual covariances (m, c, c).
        prior_mean : array (c, m)
            Prior means at the new points.
        """
        # Riihimäki, Jylänki and Vehtari (2013), equations 26 and 27.
        mean = prior_mean + self.prior.image(left, self.coordinates)
        own = variance if self.prior.by_normals else np.broadcast_to(variance, prior_mean.shape)
        return mean, self.algebra.covariance_at(left, own)

    def at(self, there: tuple[Any, Array, Array]) -> tuple[Array, Array, Block]:
        """Return means (c, m), covariances (m, c, c) and prior moments at new points, from arguments of `predict`."""
        return *self.predict(*there), self.prior.block(*there)

    def at_left_out(self, whole: Any, i: int) -> tuple[Array, Array]:
        """Return mean (c, 1) and covariance (1, c, c) at point i of the prior `whole`, from all other points."""
        return self.predict(*whole.point_of(i))

    # Joint moments of several points.

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        """Return the covariance `prior` − leftᵀ M left (c, q, c, q) of q linear functions of each latent function.

        `left` (1 or c, n, q) has their prior covariances with f, and `prior` with each other. If both are K, the result
        is the covariance of f. If `left` is a root L of K, and `prior` the identity, it is that of z in f = m + L z.
        """
        return self.algebra.joint_covariance(left, prior)

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        """Return the diagonal (c, q) of `joint_covariance`. Some forms of prior compute it in less time."""
        return self.algebra.marginal_variance(left, prior)

    def covariance_among(self, points: NDArray[np.intp]) -> Array:
        """Return the covariance (c, s, c, s) of f at these points (s,)."""
        return self.algebra.covariance_among(points)

    def root_among(self, points: NDArray[np.intp]) -> Array:
        """Return a root R (c, s, p) of the covariance R Rᵀ of f at these points (s,)."""
        return self.algebra.root_among(points)

    # Posterior of the standard normals z in f = m + J z.

    def rooted(self, roots: Array) -> Self:
        """Return this posterior with other factors (1 or c, n, q) of the prior covariance."""
        prior = self.prior.rooted(roots)
        if not self.prior.by_weights:
            return type(self)(prior, self.algebra_class, self.sites_class, self.precision, self.weights)
        other = copy(self)
        other.prior = prior
        return other

    @property
    def _centre(self) -> Array:
        """Posterior mean of the standard normals z."""
        return np.asarray(self.prior.whitened_slope(self.weights) if self.prior.by_weights else self.coordinates)

    def whitened(self) -> tuple[Array, Array]:
        """Return posterior means and variances (c, q) of the standard normals z."""
        return self._centre, self.algebra.whitened_variance(self.prior)

    def whitened_covariance(self) -> Array:
        """Return the posterior covariance (c, q, c, q) of the standard normals z."""
        return self.algebra.whitened_covariance(self.prior)

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        """Return posterior draws (draws, c, q) of the standard normals z."""
        found = self.algebra.deviations(rng, draws, self.prior)
        found += self._centre
        return found

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Return draws (count, c, n) of f at the points of the data."""
        if self.prior.by_weights and self.sites.signed:  # Whitening needs a root of K, which may not exist.
            root = self.algebra.root_among(np.arange(self.prior.shape[1]))
            return np.asarray(self.mean + np.einsum("kip,pd->dki", root, rng.standard_normal((root.shape[2], count))))
        return np.asarray(self.prior.latent(self.draw_whitened(rng, count)))


class PosteriorOf(NamedTuple):
    """Entry of the table: a form of prior, a form of sites, and the linear algebra for both."""

    prior: type[PriorForm]
    sites: type[Sites]
    algebra: type[PosteriorAlgebra]

    @property
    def name(self) -> str:
        """Text with the forms of prior and sites, for messages."""
        return f"{self.prior.__name__} with {self.sites.form} sites"


_OWN = (
    PosteriorOf(DensePrior, CoupledSites, DenseCoupled),
    PosteriorOf(DensePrior, BlockSites, DenseBlocks),
    PosteriorOf(DensePrior, SignedSites, SignedBlocks),
    PosteriorOf(DensePrior, IndependentSites, DenseIndependent),
    PosteriorOf(RowPrior, CoupledSites, CoupledRows),
    PosteriorOf(RowPrior, BlockSites, BlockRows),
    PosteriorOf(RowPrior, SignedSites, BlockRows),
    PosteriorOf(RowPrior, IndependentSites, IndependentRows),
    PosteriorOf(PrecisionPrior, CoupledSites, PrecisionCoupled),
    PosteriorOf(PrecisionPrior, BlockSites, PrecisionBlocks),
    PosteriorOf(PrecisionPrior, SignedSites, PrecisionBlocks),
    PosteriorOf(PrecisionPrior, IndependentSites, PrecisionAlgebra),
    PosteriorOf(NeighbourPrior, IndependentSites, PrecisionAlgebra),
    PosteriorOf(PlacePrior, IndependentSites, PlaceAlgebra),
)
POSTERIORS: Registry[PosteriorOf] = Registry("posterior", _OWN, of=PosteriorOf, classes=False)
"""Linear algebra of posteriors, by the form of the prior and the form of the sites."""


def pair_of(prior: type[PriorForm], form: SiteForm) -> PosteriorOf:
    """Return the entry of the table `POSTERIORS` for a form of prior and a form of sites.

    Raises
    ------
    ValueError
        If the table has no such entry.
    """
    for each in POSTERIORS:
        if each.prior is prior and each.sites.form == form:
            return each
    known = ", ".join(POSTERIORS.names)
    raise ValueError(f"POSTERIORS has no entry for {prior.__name__} with {form} sites. Its entries are: {known}.")


def make_posterior(
    prior: PriorForm, form: SiteForm, precision: Array, weights: Array, mean: Array | None = None
) -> Posterior:
    """Return the posterior for a form of sites, from site precisions and weights; see `Posterior`."""
    _, sites, algebra = pair_of(type(prior), form)
    return Posterior(prior, algebra, sites, precision, weights, mean)


def posterior_of(prior: PriorForm, sites: Sites) -> Posterior:
    """Return the posterior of a prior with sites.

    Raises
    ------
    NotPositiveDefiniteError
        If a matrix has no Cholesky factor in working precision.
    """
    return Posterior.of(prior, pair_of(type(prior), sites.form).algebra, sites)
