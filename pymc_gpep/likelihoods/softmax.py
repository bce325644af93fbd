"""Softmax likelihoods of labels and of votes: quadrature nodes for sites, and class probabilities."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import CategoricalRV, MultinomialRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import gamma, gammaln, log_softmax, logsumexp, ndtr, ndtri
from scipy.stats import qmc

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.prior_form import covariance_root
from pymc_gpep.kernels.likelihoods import votes
from pymc_gpep.kernels.likelihoods.softmax import along_line, curvature_slope, softmax
from pymc_gpep.kernels.methods.softmax_qep import softmax_qep_update
from pymc_gpep.kernels.moments.softmax_quadrature import votes_log_normalisers
from pymc_gpep.kernels.special.softmax_average import BLOCK, SEQUENCES, softmax_average
from pymc_gpep.likelihoods.factor_averages import DEAR, FEWEST, UtilityNoise, over_factors
from pymc_gpep.likelihoods.likelihood import gaussian_moments
from pymc_gpep.likelihoods.links import Reading, has_cutpoints, softmax_argument
from pymc_gpep.likelihoods.local_computations import CoupledCurvature, CoupledQuadrature
from pymc_gpep.likelihoods.observed import checked_counts, shape_text
from pymc_gpep.likelihoods.one_function import OneFunctionPerClass

_LATTICE = 5  # A lattice is used up to this dimension. In more dimensions it would need too many points.
_WIDEST = 8.0  # The radius of the lattice is at most this number of standard deviations.
_FINEST = 0.1  # Smallest distance between lattice points, in standard deviations.
_SEED = 20_040_661


class Nodes(NamedTuple):
    """Quadrature rule for averages over N(0, I − 11ᵀ/d), the distribution of d standard normals minus their mean."""

    points: Array
    """Points, (N, d); the entries of each point sum to 0."""
    log_weights: Array
    """Log weights of the points, (N,)."""


@lru_cache(maxsize=8)
def class_nodes(d: int, most: int) -> Nodes:
    """Return a quadrature rule for d classes with about `most` nodes, or fewer nodes if they suffice.

    Up to six classes, the nodes are points of the lattice A* within a ball. A* is the lattice of integer vectors,
    projected orthogonally to the vector 1. The error decreases exponentially if the distance of nodes decreases
    and the radius grows, for smooth functions that fall like a normal density.

    For more classes the nodes are scrambled Sobol points, transformed to normals. Signs and cyclic orders of their
    coordinates are added.

    Both kinds of nodes are scaled to the exact covariance I − 11ᵀ/d. Otherwise sites would be inaccurate, even if
    evidences are accurate. Gradients treat sites as constants. With 2000 nodes for seven classes, gradients would be
    off by five percent.
    """
    e = d - 1
    if e == 0:
        return Nodes(np.zeros((1, 1)), np.zeros(1))
    if e > _LATTICE:
        return _sobol(d, most)
    ball = math.pi ** (e / 2) / float(gamma(e / 2 + 1))
    # The errors exp(−r² / 2) and exp(−2π² / h²) are equal if r h = 2π.
    radius = min(_WIDEST, ((2 * math.pi) ** e * most / ball) ** (1 / (2 * e)))
    distance = max(_FINEST, radius * (ball / most) ** (1 / e))
    edge = distance * d ** (1 / (2 * e))  # A cell of the lattice has the volume edgeᵉ / √d.
    reach = int(radius * math.sqrt(2.0) / edge) + 1
    integers = np.array([(*x, 0) for x in product(range(-reach, reach + 1), repeat=e)], float)
    points = edge * (integers - integers.mean(axis=1, keepdims=True))
    squares = (points**2).sum(axis=1)
    inside = squares <= radius**2
    points, squares = points[inside], squares[inside]
    log_weights = -0.5 * squares
    log_weights -= logsumexp(log_weights)
    if spread := float(np.exp(log_weights) @ squares):  # 0 if the origin is the only point.
        points *= math.sqrt(e / spread)
    return Nodes(points, log_weights)


def _sobol(d: int, most: int) -> Nodes:
    level = max(int(math.log2(max(most / (2 * d), 1.0))), 0)
    uniform = qmc.Sobol(d, rng=np.random.default_rng(_SEED)).random_base2(level)
    normals = ndtri(np.clip(uniform, 1e-12, 1.0 - 1e-12))
    normals -= normals.mean(axis=1, keepdims=True)
    points = np.concatenate([sign * np.roll(normals, shift, axis=1) for sign in (1.0, -1.0) for shift in range(d)])
    # Scale the points to the exact covariance I − 11ᵀ/d. This reduces noise in averages of nearly quadratic functions.
    values, vectors = np.linalg.eigh(points.T @ points / len(points))
    roots = 1.0 / np.sqrt(values[1:])  # The first eigenvalue, of the constant vector, is zero.
    points = points @ (vectors[:, 1:] * roots) @ vectors[:, 1:].T
    return Nodes(np.ascontiguousarray(points), np.full(len(points), -math.log(len(points))))


_SEED_OF_SAMPLE = 19_980_112  # Fixed seed, so that equal input has equal results.
_LAST_LEVEL = 14  # A sequence has 2 to the power of this number of points.
_BITS = 30  # Number of binary digits of a coordinate of a Sobol point.
_NEARLY = 20.0  # Expensive rules over factors are tried only below this error, in units of the tolerance.
_NARROW = 0.1  # Rules over factors are tried if the variance between classes is larger.
_WIDE = 5e5  # Expensive rules over factors are tried only if variance × classes / tolerance is larger.


def softmax_probabilities(mean: Array, cov: Array, *, tolerance: float = 5e-5) -> tuple[Array, Array]:
    """Return the probability of each class at m points, E[softmax(f)] for latent values f ~ N(mean, cov).

    Parameters
    ----------
    mean : (m, c) array
        Posterior means of the latent values.
    cov : (m, c, c) array
        Posterior covariances of the latent values. They may be singular.
    tolerance : float
        Target absolute error of each probability for four classes or more. For five classes or more, randomised rules
        average over common factors of the classes. For four classes, or if these rules do not reach the tolerance,
        quasi-Monte Carlo integration is used. For two classes the error is rounding, for three about 1e-9. The random
        numbers are fixed. The work is bounded, so check the returned errors.

    Returns
    -------
    probabilities : (m, c) array
        They sum to 1 at each point; NaN if mean or covariance is NaN, or if a variance is negative.
    errors : (m,) array
        Estimated error of the least certain probability of each point. For four classes or more it is half the width of
        a 99 % confidence interval, for fewer classes the error of a quadrature.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer than two classes, or if `tolerance` is not positive.
    """
    mean, cov = gaussian_moments(mean, cov, tolerance)
    if mean.shape[1] < FEWEST:
        return _averages(mean, cov, tolerance)
    probabilities, errors = np.full(mean.shape, np.nan), np.full(len(mean), np.nan)
    variance = cov.diagonal(axis1=1, axis2=2).mean(axis=1) - cov.mean(axis=(1, 2))  # Variance between classes.
    varied = np.flatnonzero(variance > _NARROW)
    probabilities[varied], errors[varied] = over_factors(mean[varied], cov[varied], gumbel_noise(), tolerance)
    # If the variance is large, integrate over common factors first: the integrand is smoother.
    wide = variance * mean.shape[1] > _WIDE * tolerance
    for average, worth_it in ((_over_factors, wide & (errors <= _NEARLY * tolerance)), (_averages, True)):
        at = np.flatnonzero(worth_it & ~(errors <= tolerance))
        p, error = average(mean[at], cov[at], tolerance)
        better = ~(error > errors[at])
        probabilities[at[better]], errors[at[better]] = p[better], error[better]
    return probabilities, errors


def _over_factors(mean: Array, cov: Array, tolerance: float) -> tuple[Array, Array]:
    return over_factors(mean, cov, gumbel_noise(), tolerance, DEAR)


def _averages(mean: Array, cov: Array, tolerance: float) -> tuple[Array, Array]:
    """Return averages of the softmax by closed form, quadrature or quasi-Monte Carlo integration."""
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    softmax_average(mean, cov, _normals(mean.shape[1]), tolerance, probabilities, errors)
    return probabilities, errors


@lru_cache(maxsize=4)
def _normals(c: int) -> NDArray[np.float32]:
    """Return standard normals (SEQUENCES, blocks, c − 2, BLOCK) for c classes, from scrambled Sobol sequences."""
    if c <= 3:
        return np.empty((SEQUENCES, 1, 0, BLOCK), dtype=np.float32)
    rng = np.random.default_rng(_SEED_OF_SAMPLE)
    each = [qmc.Sobol(c - 2, bits=_BITS, rng=rng).random_base2(_LAST_LEVEL) for _ in range(SEQUENCES)]
    uniform = np.stack(each).reshape(SEQUENCES, -1, BLOCK, c - 2).swapaxes(2, 3)
    return np.ascontiguousarray(ndtri(uniform + 0.5 ** (_BITS + 1)), dtype=np.float32)


_COMPONENTS = 20
_NARROWEST, _WIDEST_COMPONENT = 0.4, 1.0  # Standard deviations of the first and last normal of the Gumbel mixture.
# First and last mean of the normals of this mixture, and an exponent. The exponent makes small means denser.
_FIRST, _LAST, _DENSER = -1.6, 12.0, 1.8
_ERROR = 1.2e-5  # Error of class probabilities due to the mixture.


@lru_cache(maxsize=1)
def gumbel_noise() -> UtilityNoise:
    """Return Gumbel noise as a mixture of normals: exp(−e⁻ˣ) ≈ Σ_j w_j Φ((x − m_j) / s_j) to 1.4e-6.

    S. Frühwirth-Schnatter and R. Frühwirth (2007). Auxiliary mixture sampling with applications to logistic models.
    *Computational Statistics & Data Analysis* 51 (7), 3509–3528. The weights here are fitted by least squares, and may
    be negative.
    """
    x = np.linspace(-4.0, 24.0, 1401)
    along = np.linspace(0.0, 1.0, _COMPONENTS)
    means = _FIRST + (_LAST - _FIRST) * along**_DENSER
    sds = _NARROWEST + (_WIDEST_COMPONENT - _NARROWEST) * along
    sum_to_one = 1e3
    basis = np.vstack([ndtr((x[:, None] - means) / sds), np.full(_COMPONENTS, sum_to_one)])
    weights = np.linalg.lstsq(basis, np.append(np.exp(-np.exp(-x)), sum_to_one), rcond=1e-13)[0]
    return UtilityNoise(_NARROWEST**2, weights, means, sds**2 - _NARROWEST**2, _ERROR)


_DRAWS, _DEGREES, _TAIL_SEED = 8192, 5.0, 20_160_601  # `log_tail`: number of draws, degrees of freedom, fixed seed.
_NEWTON_STEPS = 100


def log_tail(mean: Array, cov: Array, y: NDArray[np.int64]) -> Array:
    """Return log E[softmax(f)_y] (m,) for labels y (m,) and f ~ N(mean, cov), with mean (m, c) and cov (m, c, c).

    The average is computed by importance sampling. Draws come from a Student t distribution about the mode.
    """
    return np.array([_log_tail_at(*point) for point in zip(mean, cov, y, strict=True)])


def _log_tail_at(mean: Array, cov: Array, y: int) -> float:
    c = len(mean)
    root = covariance_root(cov)

    def log_joint(z: Array) -> Array:
        joint: Array = log_softmax(mean + z @ root.T, axis=-1)[..., y] - 0.5 * (z**2).sum(-1)
        return joint

    z = np.zeros(c)
    height = log_joint(z)
    for _ in range(_NEWTON_STEPS):
        p = np.exp(log_softmax(mean + root @ z))
        slope = root[y] - p @ root - z
        precision = np.eye(c) + root.T @ (p[:, None] * root) - np.outer(p @ root, p @ root)
        step = np.linalg.solve(precision, slope)
        while (higher := log_joint(z + step)) < height and np.abs(step).max() > 1e-12:
            step /= 2
        if not higher > height:
            break
        z, height = z + step, higher
    rng = np.random.default_rng(_TAIL_SEED)
    scale = np.linalg.inv(np.linalg.cholesky(precision))  # The covariance at the mode is scaleᵀ scale.
    noise = rng.standard_normal((_DRAWS, c)) / np.sqrt(rng.chisquare(_DEGREES, (_DRAWS, 1)) / _DEGREES)
    half = 0.5 * (_DEGREES + c)
    log_density = gammaln(half) - gammaln(0.5 * _DEGREES) - 0.5 * c * np.log(0.5 * _DEGREES)
    log_density -= half * np.log1p((noise**2).sum(-1) / _DEGREES) + np.log(np.abs(scale.diagonal())).sum()
    # Both log densities omit the same power of 2π.
    return float(logsumexp(log_joint(z + noise @ scale) - log_density) - np.log(_DRAWS))


@dataclass(frozen=True)
class SoftmaxLikelihood(OneFunctionPerClass):
    """Softmax likelihood: class probabilities are proportional to exponentials of the latent values."""

    name: ClassVar[str] = "softmax"
    written: ClassVar[str] = "pm.Categorical(logit_p=...)"
    distributions: ClassVar[tuple[type[Op], ...]] = (CategoricalRV,)
    method: ClassVar[str] = "laplace"
    guide: ClassVar[str] = "laplace"
    ways: ClassVar[tuple[str, ...]] = ("average",)
    largest_precision: ClassVar[float] = 1.0
    local: ClassVar[tuple[object, ...]] = (
        CoupledCurvature(softmax, along_line, curvature_slope),
        CoupledQuadrature(softmax_qep_update),
    )

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Return f of pm.Categorical(logit_p=f) or pm.Categorical(p=softmax(f)) over the last axis; else None."""
        if not self.may_be(variable):
            return None
        (p,) = variable.owner.op.dist_params(variable.owner)
        argument = softmax_argument(p)
        return None if argument is None else Reading(argument)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        (p,) = variable.owner.op.dist_params(variable.owner)
        if has_cutpoints(p, latents):
            return None
        name = variable.name
        return (
            f"{name!r} is a Categorical, but not of a softmax over classes at each point. Write "
            f"pm.Categorical({name!r}, logit_p=f.T), where f has one row per class, or for two classes by one latent "
            f"function pm.Bernoulli({name!r}, logit_p=f)."
        )

    def log_densities(self, f: Array, observed: NDArray[np.int64]) -> Array:
        log_p: Array = log_softmax(f, axis=-2)[..., observed, np.arange(len(observed))]
        return log_p

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        self.check_way(how)
        return softmax_probabilities(mean, cov, tolerance=tolerance)

    def log_tail(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        return log_tail(mean, cov, observed)


_VOTES_NODES = 2000  # Number of nodes for a predictive density.


@dataclass(frozen=True)
class VotesLikelihood(SoftmaxLikelihood):
    """p(y | f) = N! / Π_a y_a! Π_a π_a^(y_a) for votes y (c,), with N = Σ_a y_a and the softmax π of f."""

    name: ClassVar[str] = "multinomial"
    written: ClassVar[str] = "pm.Multinomial(n=n, p=pm.math.softmax(f.T, axis=-1))"
    distributions: ClassVar[tuple[type[Op], ...]] = (MultinomialRV,)
    observed_axes: ClassVar[int] = 2
    largest_precision: ClassVar[float] = np.inf
    local: ClassVar[tuple[object, ...]] = (
        CoupledCurvature(votes.log_density, votes.along_line, votes.curvature_slope),
        CoupledQuadrature(softmax_qep_update, 0),
    )

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Return f of pm.Multinomial(n=n, p=softmax(f)) over the last axis; else None."""
        if not self.may_be(variable):
            return None
        totals, p = variable.owner.op.dist_params(variable.owner)
        argument = softmax_argument(p)
        return None if argument is None else Reading(argument, totals=cast(TensorVariable, totals))

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        name = repr(variable.name)
        return (
            f"{name} is a Multinomial, but not of a softmax over classes at each point. Write pm.Multinomial({name}, "
            "n=n, p=pm.math.softmax(f.T, axis=-1)), where f has one row per class, and n is a number or one for each "
            "point."
        )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        self.check_functions(n_functions)
        given, shape = np.asarray(observed), (n_points, n_functions)
        if given.shape != shape:
            raise ValueError(
                f"{name} must be {shape_text(shape)}, the number of votes for each class at each point, but have shape "
                f"{shape_text(given.shape)}."
            )
        return checked_counts(given.ravel(), name).reshape(shape)

    def is_uninformative(self, observed: Observed) -> NDArray[np.bool_]:
        return np.asarray(observed.sum(axis=1) == 0)

    def log_densities(self, f: Array, observed: Observed) -> Array:
        ways = gammaln(observed.sum(axis=1) + 1.0) - gammaln(observed + 1.0).sum(axis=1)
        with np.errstate(invalid="ignore"):
            terms = np.where(observed.T > 0, observed.T * log_softmax(f, axis=-2), 0.0)
        return np.asarray(ways + terms.sum(axis=-2))

    def scores(self, observed: Observed, p: Array, moments: Array | None) -> dict[str, Array]:
        """Return the squared error of the class shares, summed over classes."""
        with np.errstate(invalid="ignore"):
            share = observed / observed.sum(axis=1, keepdims=True)
        return {"squared_error": ((share - p) ** 2).sum(axis=1)}

    def log_tail(self, mean: Array, cov: Array, observed: Observed) -> Array:
        # Nodes around the mode make the result accurate also in the tails.
        mean, cov = np.ascontiguousarray(mean), np.ascontiguousarray(cov)
        out = np.empty(len(mean))
        votes_log_normalisers(mean, cov, np.ascontiguousarray(observed), *class_nodes(mean.shape[1], _VOTES_NODES), out)
        return out
