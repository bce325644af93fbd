"""Sites and scores of candidate rows, and the bound of the log evidence over all rows given the active rows.

The bound is Σ_i E log p(y_i | f_i) − KL(q ‖ p), where q is the posterior and p the prior of the active latent values
f_I. Other latent values have their prior given f_I (Seeger and Jordan 2004, equation 15). For fixed sites and the prior
p = N(m, K), q is N(m + K b, K − K M K). A row with prior variances κ_k, and prior covariances C_k with active rows, has
the posterior mean h and covariance A,

    h_k = m_k + C_k b_k,   A_kl = δ_kl (κ_k − C_k B_k C_kᵀ) + C_k T_k (C_l T_l)ᵀ,   M = blockdiag(B) − T Tᵀ.

Derivatives follow from dM = −M dK M and db = −M (dK b + dm), in O(c d²) operations for a row and d active rows.

The average of a log density is exact for a single function. With several functions, the log density depends on
differences x from the function of the label. Let x = μ + L s with standard normals s. The average is a sum over fixed
nodes s. Derivatives are propagated through the Cholesky factor L.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.moments.inner_ep import site_parameters
from pymc_gpep.likelihoods.factor_averages import normal_rule
from pymc_gpep.likelihoods.likelihood import Likelihood, LogDensity, log_density_with_slope
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    BlockCurvature,
    CoupledCurvature,
    CoupledQuadrature,
    DifferenceFactors,
    GaussianAverage,
    PointFactor,
    UtilityBound,
)
from pymc_gpep.rivals.computations import (
    IndependentQuadrature,
    RoughDensity,
    RoughNormaliser,
    RoughSites,
    SiteInformation,
)
from pymc_gpep.rivals.responses import projected_sites
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.site_ep import site_of

_MOST = 81  # Largest number of nodes of a product rule.
_FINEST, _COARSEST = 20, 3  # Largest and smallest number of nodes in each dimension.
_SPHERE = 64  # Number of nodes on a sphere, which replace a product rule with more than `_MOST` nodes.
_SEED = 20_040_661  # Fixed seed of the rotations of nodes on a sphere.
_ROUNDING = 1e-13  # Number that is added to the diagonal of a covariance, relative to its largest entry.


class RowAverages(NamedTuple):
    """Sum of the average log densities of B rows under Gaussians, and derivatives of this sum."""

    value: float
    """Sum of E log p(y_i | f_i)."""
    slope: Array
    """Derivatives of `value` in the means of the Gaussians, (c, B)."""
    curvature: Array
    """Derivatives of `value` in the covariances of the Gaussians, symmetric, (B, c, c)."""


def has_averages(likelihood: Likelihood) -> bool:
    """Return whether a likelihood has averages of its log density."""
    return any(likelihood.offers(kind) for kind in (AverageLogDensity, BlockCurvature, CoupledCurvature))


def average_log_density(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> RowAverages:
    """Return the sum of average log densities of B rows over normals with means (c, B) and covariances (B, c, c)."""
    if likelihood.offers(AverageLogDensity):
        found = np.empty((3, len(labels)))
        given = np.ascontiguousarray(mean[0]), np.ascontiguousarray(cov[:, 0, 0]), labels, likelihood.parameters
        likelihood.computation(AverageLogDensity).terms(*given, found)
        return RowAverages(float(found[0].sum()), found[1][None], found[2][:, None, None])
    return _by_nodes(_log_density(likelihood), labels, mean, cov)


def _log_density(likelihood: Likelihood) -> LogDensity:
    """Return a function for the log density and its slope, for several functions. It may have few digits."""
    if likelihood.offers(RoughDensity):
        return likelihood.computation(RoughDensity).log_density
    found = log_density_with_slope(likelihood)
    assert found is not None, likelihood
    return found


def _by_nodes(log_density: LogDensity, labels: NDArray[np.int64], mean: Array, cov: Array) -> RowAverages:
    c, rows = mean.shape
    d = c - 1
    away = _differences(c)[labels]  # (B, d, c)
    centre = np.einsum("bdc,cb->bd", away, mean)
    spread = away @ cov @ away.swapaxes(1, 2)
    every = range(d)
    spread[:, every, every] += _ROUNDING * (np.abs(spread).max(axis=(1, 2)) + 1e-300)[:, None]
    lower = np.linalg.cholesky(spread)
    points, weights = _rule(d)
    slope, of_lower = np.zeros((rows, d)), np.zeros((rows, d, d))
    f, gradient = np.zeros((c, rows)), np.empty((c, rows))
    # Indices of all functions except the function of the row's label.
    others = np.argsort(away.sum(axis=1) > 0, axis=1, kind="stable")[:, :d].T
    column = np.arange(rows)
    value = 0.0
    for point, weight in zip(points, weights, strict=True):
        f[others, column] = -(centre + lower @ point).T
        value += weight * log_density(f, labels, gradient)
        pull = -weight * gradient[others, column].T
        slope += pull
        of_lower += pull[:, :, None] * point
    # The derivative in S = L Lᵀ is ½ L⁻ᵀ (Φ + Φᵀ) L⁻¹. Φ is the lower triangle of Lᵀ ∂/∂L, with its diagonal halved.
    inner = np.tril(lower.swapaxes(1, 2) @ of_lower)
    inner[:, every, every] *= 0.5
    half = np.linalg.solve(lower.swapaxes(1, 2), inner + inner.swapaxes(1, 2))
    of_spread = 0.5 * np.linalg.solve(lower.swapaxes(1, 2), half.swapaxes(1, 2))
    return RowAverages(float(value), np.einsum("bdc,bd->cb", away, slope), away.swapaxes(1, 2) @ of_spread @ away)


@lru_cache(maxsize=8)
def _differences(c: int) -> Array:
    """Return the differences between the function of each label and all other functions, (c, c − 1, c)."""
    return np.stack([np.delete(np.eye(c)[y] - np.eye(c), y, axis=0) for y in range(c)])


@lru_cache(maxsize=8)
def _rule(d: int) -> tuple[Array, Array]:
    """Return points (N, d) and weights (N,) of a quadrature rule for N(0, I)."""
    order = min(int(_MOST ** (1.0 / d) + 1e-9), _FINEST)
    if order < _COARSEST:
        # Use opposite points on the sphere of radius √d, on rotated axes: averages of cubic functions are exact.
        rng = np.random.default_rng(_SEED)
        axes = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(max(_SPHERE // (2 * d), 1))]
        points = np.sqrt(d) * np.concatenate([side * each for each in axes for side in (1.0, -1.0)])
        return points, np.full(len(points), 1.0 / len(points))
    return normal_rule(order, d)


class BoundSlopes(NamedTuple):
    """Derivatives of the bound in the prior moments of the active rows."""

    covariance: Array
    """Derivatives in the prior covariance, (q, d, d), symmetric."""
    mean: Array
    """Derivatives in the prior mean, (c, d)."""


class _Rows(NamedTuple):
    """Posterior moments of B rows, and the matrix products from which they are computed (see the module)."""

    cross: list[Array]
    """Prior covariances C_kᵀ of active rows and these rows, (d, B) for each function k."""
    smoothed: list[Array]
    """Products B_k C_kᵀ, (d, B) for each function k."""
    shared: Array | None
    """Products T_kᵀ C_kᵀ, (c, d, B); None without coupled sites."""
    moments: tuple[Array, Array]
    """Means (c, B) and covariances (B, c, c) of the rows' latent values."""


class ActiveBound:
    """Lower bound of the log evidence, computed as a sum over blocks of rows.

    Parameters
    ----------
    posterior : Posterior
        Posterior of the active latent values.
    """

    def __init__(self, posterior: Posterior) -> None:
        self._posterior = posterior
        self._b, self._t = posterior.algebra.smoothing()
        self.value: float = -posterior.divergence
        c, d = posterior.weights.shape
        self._pull = np.zeros((c, d))  # Derivatives in weights b, through the means of rows.
        self._inner = np.zeros((c, d, d))  # Derivatives in K, through the covariances of rows.
        self._common = np.zeros((d, d))

    def value_of(self, block: Block, labels: NDArray[np.int64], likelihood: Likelihood, weight: float) -> None:
        """Add rows to the value, without derivatives. Arguments are as in `add`."""
        self.value += weight * average_log_density(likelihood, labels, *self._seen(block).moments).value

    def _seen(self, block: Block) -> _Rows:
        b, t, weights = self._b, self._t, self._posterior.weights
        c, q = len(weights), len(block.cross)
        cross = [own_matrix(block.cross, k) for k in range(c)]
        smoothed = [own_matrix(b, k) @ cross[k] for k in range(c)] if len(b) > 1 or q > 1 else [b[0] @ cross[0]] * c
        mean = block.mean + np.stack([weights[k] @ cross[k] for k in range(c)])
        cov = np.zeros((mean.shape[1], c, c))
        shared = None if t is None else np.stack([t[k].T @ cross[k] for k in range(c)])
        if shared is not None:
            cov = np.einsum("kdj,ldj->jkl", shared, shared, optimize=True)
        for k in range(c):
            left = block.variance[min(k, q - 1)] - np.einsum("dj,dj->j", cross[k], smoothed[k])
            cov[:, k, k] += np.maximum(left, 0.0)
        return _Rows(cross, smoothed, shared, (mean, cov))

    def add(self, block: Block, labels: NDArray[np.int64], likelihood: Likelihood, weight: float) -> Block:
        """Add rows with weight `weight`, and return derivatives in their prior moments, in the same shapes.

        Parameters
        ----------
        block : Block
            Prior moments of B rows: covariances with the active rows (q, d, B), variances (q, B), means (c, B).
        labels : array (B,)
        likelihood : Likelihood
            Likelihood with the parameters of these rows.
        weight : float
        """
        t, weights = self._t, self._posterior.weights
        c, q = len(weights), len(block.cross)
        cross, smoothed, shared, moments = self._seen(block)
        found = average_log_density(likelihood, labels, *moments)
        self.value += weight * found.value
        slope, curvature = weight * found.slope, weight * found.curvature
        of_cross, of_variance = np.zeros_like(block.cross), np.zeros_like(block.variance)
        turned = None if shared is None else np.einsum("jke,edj->kdj", curvature, shared, optimize=True)
        for k in range(c):
            own = curvature[:, k, k]
            bar = weights[k][:, None] * slope[k] - 2.0 * own * smoothed[k]
            self._pull[k] += cross[k] @ slope[k]
            self._inner[k] += (own * smoothed[k]) @ smoothed[k].T
            if shared is not None and turned is not None and t is not None:
                bar += 2.0 * t[k] @ turned[k]
                both = smoothed[k] @ turned[k].T @ t[k].T
                self._inner[k] -= both + both.T
                self._common += shared[k] @ turned[k].T
            of_cross[min(k, q - 1)] += bar
            of_variance[min(k, q - 1)] += own
        return Block(of_cross, of_variance, slope)

    def slopes(self) -> BoundSlopes:
        """Return derivatives of the bound in the prior moments of active rows, through their posterior."""
        posterior, b, t = self._posterior, self._b, self._t
        k_prior, weights = posterior.prior.k, posterior.weights
        c, d = weights.shape
        # The derivative through the weights b is −(M r) bᵀ. Here r is the derivative in b, minus the term K b of the
        # divergence.
        pulled = self._m_times(self._pull - np.stack([own_matrix(k_prior, k) @ weights[k] for k in range(c)]))
        common = self._common
        if t is not None:
            within = sum(t[k].T @ own_matrix(k_prior, k) @ t[k] for k in range(c))
            common = common - 0.5 * within
        found = np.zeros((len(k_prior), d, d))
        for k in range(c):
            own_b, own_k = own_matrix(b, k), own_matrix(k_prior, k)
            bar = self._inner[k] - pulled[k][:, None] * weights[k] - 0.5 * np.outer(weights[k], weights[k])
            smoothed = own_k @ own_b
            bar -= 0.5 * own_b @ smoothed
            if t is not None:
                both = t[k] @ (t[k].T @ smoothed)
                bar += 0.5 * (both + both.T) + t[k] @ common @ t[k].T
            found[min(k, len(k_prior) - 1)] += 0.5 * (bar + bar.T)
        return BoundSlopes(found, -pulled)

    def _m_times(self, r: Array) -> Array:
        """Return M r (c, d)."""
        product = np.stack([own_matrix(self._b, k) @ own for k, own in enumerate(r)])
        if self._t is None:
            return product
        total = sum(t.T @ own for t, own in zip(self._t, r, strict=True))
        return np.asarray(product - np.stack([t @ total for t in self._t]))


type Places = NDArray[np.int64]
"""Indices of rows."""


class RowBlocks(Protocol):
    """Prior of c latent functions at n rows, evaluated in blocks. The functions have q = 1 or q = c covariances."""

    n_points: int
    n_functions: int
    n_covariances: int
    """Number of covariances, q."""

    def block(self, columns: Places, rows: Places) -> Block:
        """Return prior covariances (q, columns, rows) of `columns` and `rows`, and the prior moments of `rows`."""


class DenseRows:
    """Prior of latent functions with the covariance matrix of all rows in memory."""

    def __init__(self, k: ArrayLike, mean: ArrayLike) -> None:
        self._prior = DensePrior.checked(np.asarray(k, np.float64), np.asarray(mean, np.float64))
        self.n_functions, self.n_points = self._prior.shape
        self.n_covariances = len(self._prior.k)

    @classmethod
    def of(cls, prior: RowBlocks) -> Self:
        """Return a copy of a prior, with the covariance matrix of all its rows in memory."""
        every = np.arange(prior.n_points)
        found = prior.block(every, every)
        return cls(found.cross, found.mean)

    def block(self, columns: Places, rows: Places) -> Block:
        k, mean = self._prior.k, self._prior.mean
        return Block(k[:, columns[:, None], rows], k[:, rows, rows], mean[:, rows])


class Selection(NamedTuple):
    """Active rows in the order of inclusion, with their sites."""

    rows: Places
    """Indices of the rows, (d,)."""
    scores: Array
    """Score of each row when it was chosen, (d,); NaN for rows chosen without a score."""
    precision: Array
    """Site precisions π, (c, d)."""
    location: Array
    """Site locations ν, (c, d)."""


SEPARATE = "separate"
"""Name of rules by which each function chooses rows separately."""


class SeenRows(NamedTuple):
    """Rows with moments of their latent values. Sites are computed from these moments. Arrays are contiguous."""

    likelihood: Likelihood
    """Likelihood of these rows."""
    labels: NDArray[np.int64]
    """Labels, (p,)."""
    mean: Array
    """Means of the latent values, (c, p)."""
    cov: Array
    """Covariances of the latent values of each row, (p, c, c)."""

    @property
    def by_row(self) -> tuple[Array, Array]:
        """Means and variances (p, c) of each function."""
        return np.ascontiguousarray(self.mean.T), np.ascontiguousarray(np.diagonal(self.cov, axis1=1, axis2=2))


class Matched(NamedTuple):
    """Sites of rows, each computed as the site of the next active row."""

    precision: Array
    """Site precisions π, (c, p)."""
    location: Array
    """Site locations ν, (c, p)."""


class Told(NamedTuple):
    """Information gained from the label of each row if the row becomes the next active row, to a few digits."""

    log_z: Array
    """Log probabilities of the labels, (p,)."""
    information: Array
    """Divergence between the posteriors with and without a row's site, (p,); (c, p) for a `separate` rule."""


@dataclass(frozen=True)
class RowSiteRule(ABC):
    """Rule that computes sites from moments of latent values without these sites (assumed density filtering).

    Parameters
    ----------
    name : str
        Name of the rule for the option `sites`.
    """

    name: str

    method: ClassVar[str]
    """Approximation whose fixed point the sites approach."""
    form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    """Form of the sites."""
    shares: ClassVar[bool] = False
    """Whether all functions of a row have the same precision."""
    from_cavity: ClassVar[bool] = True
    """Whether a site is computed from moments without it. If False, it is computed from moments with it.
    """

    @property
    def separate(self) -> bool:
        """Whether each function chooses rows separately."""
        return self.name == SEPARATE

    @abstractmethod
    def fits(self, likelihood: Likelihood) -> bool:
        """Return whether a likelihood has the computations of this rule."""

    @abstractmethod
    def match(self, seen: SeenRows) -> Matched:
        """Return the sites of rows."""

    @abstractmethod
    def told(self, seen: SeenRows) -> Told:
        """Return divergences of the distributions of each row's latent values with the row's site from those without.

        The divergence is ½(log|M| + tr(M⁻¹ − I) + gᵀAg) with M = I + ΠA and g = M⁻¹(ν − Πμ). Here μ and A are the
        moments, Π is the precision and ν the location of the site (Seeger and Jordan 2004, equation 14).
        """

    def log_normalisers(self, seen: SeenRows) -> Array:
        """Return the log probabilities of the labels, (p,)."""
        return self.told(seen).log_z


type Score = Callable[[RowSiteRule, SeenRows], Array]

RANDOM = "random"
"""Name of the choice of rows in random order, without scores."""


def information(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Return the information of each row (p,): the divergence between the posteriors with and without its site.

    Seeger and Jordan (2004, equation 14) choose the row with the largest information. For separate sites, each function
    has a value, (c, p).
    """
    return rule.told(seen).information


def surprise(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Return minus the log predictive probability of the labels (p,) (Girolami and Rogers 2006, equation 5.5)."""
    return -rule.log_normalisers(seen)


def expected_information(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Return the information of each row, averaged over possible labels by their predictive probabilities.

    The observed label is not used, so rows are not chosen because of wrong labels.
    """
    parts, weight = [], np.zeros(len(seen.labels))
    for label in range(seen.likelihood.n_classes(len(seen.mean))):
        told = rule.told(seen._replace(labels=np.full_like(seen.labels, label)))
        p = np.exp(told.log_z)
        parts.append(p * told.information)
        weight += p
    return np.asarray(sum(parts) / weight)


SCORES: Mapping[str, Score] = {
    "information": information,
    "expected": expected_information,
    "probability": surprise,
}
"""Scores by name."""

SCORE_NAMES = (*SCORES, RANDOM)

OF_FUNCTIONS = ("expected", "information")
"""Scores that have a separate value for each function of a row."""


_SWEEPS, _TOLERANCE = 200, 1e-10  # Largest number of sweeps and tolerance of inner EP.


class _IndependentSites(RowSiteRule):
    """Base class of rules with independent sites."""

    @abstractmethod
    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        """Return log normalisers and sites of rows, to the few digits that scores need."""

    def match(self, seen: SeenRows) -> Matched:
        return self._rough(seen)[1]

    def log_normalisers(self, seen: SeenRows) -> Array:
        return self._rough(seen)[0]

    def told(self, seen: SeenRows) -> Told:
        log_z, sites = self._rough(seen)
        variance = np.diagonal(seen.cov, axis1=1, axis2=2).T
        stretch = 1.0 + sites.precision * variance
        slope = (sites.location - sites.precision * seen.mean) / stretch
        information = 0.5 * (np.log(stretch) + 1.0 / stretch - 1.0 + slope * slope * variance)
        return Told(log_z, information if self.separate else information.sum(axis=0))


class PointMoments(_IndependentSites):
    """Independent sites with exact moments of each function under its marginal (Seeger and Jordan 2004, section 6)."""

    method = "qiep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Return whether points are single factors with moments, and site precisions are not negative."""
        has = likelihood.offers(PointFactor) and likelihood.offers(RoughNormaliser)
        return has and likelihood.log_concave and not likelihood.has_parameters

    def log_normalisers(self, seen: SeenRows) -> Array:
        return _rough_normalisers(seen)

    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        mean, variance = seen.by_row
        log_z, rho, gamma = np.empty(len(mean)), np.empty(mean.shape), np.empty(mean.shape)
        given = mean, variance, seen.labels, seen.likelihood.parameters
        seen.likelihood.computation(PointFactor).derivatives(*given, log_z, rho, gamma)
        return log_z, _by_derivatives(seen, rho.T, gamma.T)


class QuadratureMoments(_IndependentSites):
    """Sites as in `PointMoments`, for a likelihood with quadrature in several dimensions. Scores use few nodes."""

    method = "qiep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Return whether the likelihood offers quadratures for sites and for scores."""
        return likelihood.offers(IndependentQuadrature) and likelihood.offers(RoughSites)

    def match(self, seen: SeenRows) -> Matched:
        c, p = seen.mean.shape
        variance = np.ascontiguousarray(np.diagonal(seen.cov, axis1=1, axis2=2).T)
        nothing, (sites, target), room = np.zeros((2, c, p)), np.zeros((2, 2, p, c)), np.empty((p, c))
        kernel = seen.likelihood.computation(IndependentQuadrature).update
        kernel(seen.mean, variance, *nothing, seen.labels, sites, target, room)
        return Matched(np.ascontiguousarray(target[0].T), np.ascontiguousarray(target[1].T))

    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        mean, variance = seen.by_row
        log_z, sites = np.empty(len(mean)), np.empty((len(mean), 2, mean.shape[1]))
        seen.likelihood.computation(RoughSites).terms(mean, variance, seen.labels, log_z, sites)
        return log_z, Matched(sites[:, 0].T, sites[:, 1].T)


class OneFunctionMoments(_IndependentSites):
    """Sites as in `PointMoments`, for a likelihood of one latent function."""

    method = "ep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Return whether the likelihood has one function, and site precisions are not negative."""
        return likelihood.offers(GaussianAverage) and likelihood.log_concave and not likelihood.has_parameters

    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        found = np.empty((5, len(seen.labels)))
        given = seen.mean[0], np.ascontiguousarray(seen.cov[:, 0, 0]), seen.labels, seen.likelihood.parameters
        seen.likelihood.computation(GaussianAverage).terms(*given, found)
        return found[0], _by_derivatives(seen, found[1][None], -found[2][None])


class UtilitySites(_IndependentSites):
    """Sites of one step of variational Bayes (Girolami and Rogers 2006, equations 5.1 to 5.4), with precisions of 1.

    Locations are the mean utilities at the mean of the latent values. Variances of latent values have no effect.
    """

    method = "vb"
    shares = True
    from_cavity = False

    def fits(self, likelihood: Likelihood) -> bool:
        """Return whether the likelihood offers a bound with utilities, and log normalisers for scores."""
        return likelihood.offers(UtilityBound) and likelihood.offers(RoughNormaliser)

    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        slope = np.empty(seen.mean.shape)
        seen.likelihood.computation(BlockCurvature).log_density(seen.mean, seen.labels, slope)
        return _rough_normalisers(seen), Matched(np.ones(slope.shape), seen.mean + slope)


def _by_derivatives(seen: SeenRows, rho: Array, gamma: Array) -> Matched:
    """Return sites, from first derivatives of log normalisers in the means, `rho`, and minus the second, `gamma`."""
    return Matched(*site_of(rho, np.maximum(gamma, 0.0), seen.mean, np.diagonal(seen.cov, axis1=1, axis2=2).T))


def _rough_normalisers(seen: SeenRows) -> Array:
    """Return log normalisers (p,) of a likelihood with `RoughNormaliser`, for independent functions."""
    log_z = np.empty(len(seen.labels))
    given = *seen.by_row, seen.labels, seen.likelihood.parameters
    seen.likelihood.computation(RoughNormaliser).log_normalisers(*given, log_z)
    return log_z


class _CoupledSites(RowSiteRule):
    """Base class of rules of coupled sites."""

    form = SiteForm.COUPLED

    def told(self, seen: SeenRows) -> Told:
        found = Told(*np.empty((2, len(seen.labels))))
        seen.likelihood.computation(SiteInformation).terms(seen.mean, seen.cov, seen.labels, *found)
        return found


class InnerEP(_CoupledSites):
    """Coupled sites by inner EP (Riihimäki and others 2013, appendix A)."""

    method = "nested_ep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Return whether the likelihood has factors of differences."""
        return likelihood.offers(DifferenceFactors) and likelihood.offers(SiteInformation)

    def match(self, seen: SeenRows) -> Matched:
        c, p = seen.mean.shape
        nothing, sites, scale = np.zeros((2, p, c - 1)), np.empty((2, p, c - 1)), np.empty((p, c - 1))
        kernel = seen.likelihood.computation(DifferenceFactors).coupled_update
        kernel(seen.mean, seen.cov, seen.labels, *nothing, _SWEEPS, _TOLERANCE, *sites, scale)
        found = Matched(np.empty((c, p)), np.empty((c, p)))
        site_parameters(seen.labels, *sites, *found)
        return found


class Projection(_CoupledSites):
    """Coupled sites by the projection of Seeger and Jordan (2004, section 4.3), exact for up to three classes."""

    method = "qep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Return whether the likelihood offers the computations of the projection."""
        return likelihood.offers(CoupledQuadrature) and likelihood.offers(SiteInformation)

    def match(self, seen: SeenRows) -> Matched:
        return Matched(*projected_sites(*seen))

    def log_normalisers(self, seen: SeenRows) -> Array:
        """See `RowSiteRule`. The log probabilities are accurate to about one percent."""
        return seen.likelihood.log_tail(np.ascontiguousarray(seen.mean.T), seen.cov, seen.labels)


RULES: tuple[RowSiteRule, ...] = (
    InnerEP("coupled"),
    Projection("coupled"),
    PointMoments("independent"),
    QuadratureMoments("independent"),
    OneFunctionMoments("independent"),
    UtilitySites("utility"),
    PointMoments(SEPARATE),
    QuadratureMoments(SEPARATE),
)
"""All rules. Rules with the same name are for different likelihoods. The first rule that fits is the default."""

RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def rows_can_be_chosen(likelihood: Likelihood) -> bool:
    """Return whether a likelihood has sites for the choice of rows, and a bound over all rows."""
    return has_averages(likelihood) and any(rule.fits(likelihood) for rule in RULES)


def selection_rule(name: str | None, likelihood: Likelihood) -> RowSiteRule:
    """Return the rule with this name for a likelihood. If `name` is None, return the first suitable rule.

    Raises
    ------
    ValueError
        If no such rule exists.
    """
    fitting = [rule for rule in RULES if rule.fits(likelihood)]
    for rule in fitting:
        if name in (None, rule.name):
            return rule
    known = " or ".join(f"sites={rule.name!r}" for rule in fitting)
    what = "sites" if name is None else f"{name!r} sites"
    instead = f"use {known}" if known else f"use another method, such as {likelihood.method!r}"
    meant = did_you_mean([name], [rule.name for rule in fitting])
    raise ValueError(f"Rows of a {likelihood.name} likelihood cannot be chosen by {what}; {instead}.{meant}")
