"""Posterior marginals of variables t that are affine in the integrated variables, and draws of all variables.

A marginal is a mixture over nodes of skew normals. At a node, t has the mean and variance of the Gaussian posterior.
Its third cumulant is a sum over rows i. With one latent function it is Σ_i (Cov(t, f_i) / Var f_i)³ κ₃ᵢ. Here κ₃ᵢ is
the third cumulant of the latent value f_i under its tilted distribution. For several functions see
`pymc_gpep.approximations.cumulants`.

Variances of EP lack a term of second order in the third cumulants (Opper, Paquet and Winther 2013). This module adds
the term. With one function it is

½ Σ_{i≠j} A_i A_j Cov(t, f_i) Cov(f_i, f_j)² Cov(f_j, t),   A_i = κ₃ᵢ / (Var f_i)³.

Marginals far from normal are computed from averages of rows given t (Cseke and Heskes 2011), or from EP given t.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import logsumexp, ndtr, ndtri, owens_t, softmax

from pymc_gpep.approximations.cumulants import DISTANCES, marginal_log_ratios, second_order, third_cumulants
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.mixture import Prediction
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.latent.latent_prior import Joint
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.log_posteriors.latent_functions import LatentFunctions
from pymc_gpep.log_posteriors.log_posterior import LogPosterior

_MOST_SKEWED = 0.99  # Skewness is clipped at this absolute value. Skew normals have at most 0.9953.
_HALVINGS = 60  # Number of bisection steps in the search for a quantile.
_RANGE = 12.0  # A quantile is searched within this number of standard deviations from the mean.
_MOST_VALUES = 3000  # The term of second order, a sum over all pairs, is computed up to this number of latent values.
_COLUMNS = 64  # Number of entries in a block. Covariances of a block with all rows are in memory.
# Largest number of covariances between entries and latent values, over all nodes. It limits the nodes with skewness.
_COVARIANCES = 10_000_000
_COST_OF_CUMULANT = 30  # Time of a third cumulant, in units of the time of a covariance.
_MOST_COVARIANCES = 2_000_000_000  # If a node needs more covariances, marginals are normal.
END = 4.5  # Stored quantiles have levels from Φ(−4.5) to Φ(4.5).
_NORMAL = np.linspace(-7.5, 7.5, 301)  # Nodes of a marginal density, in standard deviations.
_NORMAL_MASSES = softmax(-0.5 * _NORMAL**2)
_FAR_SHARE, _FAR_SKEWNESS = 0.02, 0.3  # A marginal with a larger change of variance or skewness is far from normal.
_MOST_AVERAGES = 600_000  # With more averages of rows given an entry, marginals stay skew normal.
_MOST_PRODUCTS = 60_000_000  # EP given entries is used if a sweep for all entries needs fewer products.
# A correction is left out if the mean square of corrected / uncorrected density is larger: by averages, by EP.
_MOST_UNEVEN, _MOST_UNEVEN_OF_EP = 2.0, 20.0
_COST_OF_PRIOR = 30.0  # Time of the average of a prior factor, in units of the time of the average of a row.
_SAME = 1.0 - 1e-9  # An entry with a larger squared correlation with an effect counts as its multiple.


class Conditional:
    """Gaussian posterior of the integrated variables at one value of the hyperparameters, in the unconstrained space.

    Parameters
    ----------
    log_posterior : LogPosterior
    theta : array (d,)
        Flat vector of the hyperparameters.
    solution
        Approximate posterior at these hyperparameters.

    Attributes
    ----------
    point : dict
        Values of the value variables of the model, except integrated variables.
    functions : LatentFunctions
        Latent functions at this point.
    """

    def __init__(self, log_posterior: LogPosterior, theta: Array, solution: Any) -> None:
        self.variables = log_posterior.space.variables
        self.point = log_posterior.point(theta)
        self.solution = solution
        self.functions = log_posterior.latent(theta, solution)
        self._effects = log_posterior.classifier.effects_by_factors

    def moments(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return means and variances by name of value variable; the variances of hyperparameters are 0."""
        mean, variance = self.variables.moments(self.point, self.functions)
        return self.point | mean, {name: np.zeros_like(value) for name, value in self.point.items()} | variance

    def covariance(self, places: Mapping[str, slice], size: int) -> Array:
        """Return the covariance (size, size) of a flat vector, given the slice `places` of each value variable."""
        return self.variables.covariance(self.point, self.functions, places, size)

    def draw(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return draws (draws, ...) of value variables and of deterministic latent values, by name."""
        values = {name: np.broadcast_to(value, (draws, *np.shape(value))) for name, value in self.point.items()}
        f, z = self.functions.draw(rng, draws)
        return values | self.variables.draws(self.point, f, z)

    def with_quantiles_of_priors(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Transform draws (draws, ...) of effects with non-normal priors to the quantiles of their tilted marginals.

        Parameters
        ----------
        values : mapping of str to array
            Draws from the Gaussian posterior. The results have the same ranks.
        """
        found, solution = {}, self.solution
        for name, at, factor, mean, variance in self._factors():
            drawn = values[name].reshape(len(values[name]), -1)
            levels = ndtr((drawn - solution.mean[0, at]) / np.sqrt(solution.cov[at, 0, 0]))
            found[name] = factor.quantiles(mean, variance, levels).reshape(values[name].shape)
        return found

    def factors(self) -> Iterator[tuple[str, tuple[NDArray[np.intp], Any]]]:
        """Yield name, rows and likelihood of each effect with a prior of factors. An entry has one row."""
        yield from zip(self._effects, self.solution.likelihood.priors(), strict=True)

    def _factors(self) -> Iterator[tuple[str, NDArray[np.intp], Any, Array, Array]]:
        """Yield name, rows, likelihood, cavity means and cavity variances of each effect with a prior of factors."""
        solution = self.solution
        if not self._effects or not solution.posterior.sites.pointwise:
            return
        size = solution.mean.size
        mean, variance = (each.reshape(size) for each in solution.posterior.cavities(solution.mean, solution.cov))
        for name, (at, factor) in self.factors():
            yield name, at, factor, mean[at], variance[at]

    def quantiles_of_priors(self, levels: Array) -> dict[str, Array]:
        """Return quantiles (k, entries) of effects with non-normal priors, at levels (k,), by name."""
        return {
            name: factor.quantiles(mean, variance, np.tile(levels[:, None], mean.size))
            for name, _, factor, mean, variance in self._factors()
        }

    def without_moments(self, names: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
        """Return masks (size,) of the entries without mean and variance, by name of variable.

        Such an entry depends on an effect without data. The prior of this effect has no variance.
        """
        return self.sharing(names, lambda: self.variables.affine(names)(self.point, self.functions))

    def sharing(self, names: Sequence[str], of: Callable[[], Joint]) -> dict[str, NDArray[np.bool_]]:
        """Return the masks of `without_moments`. The function `of` returns the joint Gaussian of the variables."""
        effects = {name: unknown for name, _, _, unknown, _ in self.factors_without_moments()}
        if not effects:
            return {}
        joint = of()
        own = self.variables.affine(list(effects))(self.point, self.functions)
        found = {}
        for name in names:
            columns, variance = joint.columns(name), np.ravel(joint.variances()[name])
            found[name] = np.zeros(variance.size, bool)
            for effect, unknown in effects.items():
                along = own.columns(effect)[:, unknown]
                moved = own.moved(along)
                both = np.outer(variance, (along * moved).sum(axis=0))
                found[name] |= ((columns.T @ moved) ** 2 > _SHARED * both).any(axis=1)
        return found

    def factors_without_moments(self) -> Iterator[tuple[str, NDArray[np.intp], Any, NDArray[np.bool_], Array]]:
        """Yield effects with entries without moments: name, rows, likelihood, mask of these entries, quantiles."""
        for name, at, factor, mean, variance in self._factors():
            if (unknown := factor.without_moments(mean, variance)).any():
                places = np.tile(_LEVELS[:, None], mean.size)
                yield name, at, factor, unknown, factor.quantiles(mean, variance, places)


def conditionals(hyper: HyperPosterior) -> Iterator[Conditional]:
    """Yield the Gaussian posterior given each node of the hyperparameters."""
    return (Conditional(hyper.log_posterior, node.theta, solution) for node, solution in hyper.solutions())


_LEVELS = (np.arange(64) + 0.5) / 64.0  # Quantiles at these levels replace a prior without moments.
_GROWTH = 20.0  # A variable grows with a scale if its variance grows by this factor for scale × e³.
MOMENTS = 2  # Number of moments: mean and variance.
_SHARED = 1e-6  # A variable with a larger squared correlation with an effect depends on the effect.


type Variances = Callable[[Conditional], Mapping[str, Array]]


def finite_moments(
    hyper: HyperPosterior, names: Sequence[str], variances: Variances | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return numbers of finite moments (0, 1 or 2) of entries, (size,), by name of variable; empty without heavy tails.

    If the standard deviation of an entry grows with a scale in `HyperPosterior.tails`, both have equally many moments.
    """
    affine = None if variances or not hyper.tails else hyper.log_posterior.space.variables.affine(names)
    of = variances or (lambda each: affine(each.point, each.functions).variances())  # type: ignore[misc]
    found: dict[str, NDArray[np.int64]] = {}
    for tail in hyper.tails:
        places = [(e.theta, hyper.log_posterior.solve(e.theta, e.start)) for e in tail.far]
        near, far = (of(Conditional(hyper.log_posterior, *place)) for place in places)
        for name in names:
            grows = ~(np.ravel(far[name]) <= _GROWTH * np.ravel(near[name])) | np.isinf(np.ravel(far[name]))
            found[name] = np.minimum(found.get(name, MOMENTS), np.where(grows, tail.moments, MOMENTS))
    return found


def without_moments(hyper: HyperPosterior, names: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Return masks (size,) by name of variable: True for entries without mean and variance at a node."""
    if not hyper.log_posterior.classifier.effects_by_factors:
        return {}
    found: dict[str, NDArray[np.bool_]] = {}
    for each in conditionals(hyper):
        for name, unknown in each.without_moments(names).items():
            found[name] = found.get(name, unknown) | unknown
    return {name: unknown for name, unknown in found.items() if unknown.any()}


NORMAL_LEVELS = np.linspace(-END, END, 181)  # Levels of stored quantiles, as quantiles of a normal distribution.
_PROBABILITIES = ndtr(NORMAL_LEVELS)
_MASSES = np.diff(np.r_[0.0, 0.5 * (_PROBABILITIES[1:] + _PROBABILITIES[:-1]), 1.0])


class SkewNormals(NamedTuple):
    """Mixtures of s skew normal distributions. Each of m numbers has its own mixture."""

    weights: Array
    """Weights of the parts, (s,); they sum to 1."""
    mean: Array
    """Means of the parts, (s, m)."""
    sd: Array
    """Standard deviations of the parts, (s, m)."""
    skewness: Array
    """Skewnesses of the parts, (s, m)."""
    tilted: Mapping[int, Array] = MappingProxyType({})
    """Quantiles (s, k) of numbers that are not skew normal, by position. Their levels are `_PROBABILITIES`."""

    def quantiles(self, p: float) -> Array:
        """Return the quantiles (m,) at probability p, by bisection."""
        below = _below(self.mean, self.sd, self.skewness)
        low, high = (self.mean - _RANGE * self.sd).min(axis=0), (self.mean + _RANGE * self.sd).max(axis=0)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            above = self.weights @ below(middle) < p
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        found = np.asarray(0.5 * (low + high))
        masses = np.outer(self.weights, _MASSES).ravel()
        for place, own in self.tilted.items():
            found[place] = quantiles_of(own.reshape(-1, 1), masses, p)[0]
        return found

    def moments(self) -> tuple[Array, Array]:
        """Return means and standard deviations (m,)."""
        mean = self.weights @ self.mean
        return mean, np.sqrt(self.weights @ (self.sd**2 + (self.mean - mean) ** 2))


def _below(mean: Array, sd: Array, skewness: Array) -> Callable[[Array], Array]:
    """Return the distribution function of skew normals with these moments (m,). It is a step if `sd` is 0."""
    size = np.cbrt(np.clip(skewness, -_MOST_SKEWED, _MOST_SKEWED) * 2.0 / (4.0 - np.pi))
    delta = size / np.sqrt(1.0 + size**2) * np.sqrt(np.pi / 2.0)  # δ of the skew normal distribution.
    alpha = delta / np.sqrt(1.0 - delta**2)
    scale = sd / np.sqrt(1.0 - 2.0 * delta**2 / np.pi)
    location = mean - scale * delta * np.sqrt(2.0 / np.pi)

    def below(x: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (x - location) / scale
            return np.where(scale > 0.0, ndtr(z) - 2.0 * owens_t(z, alpha), x >= location)

    return below


def _quantiles_of_skew_normals(mean: Array, sd: Array, skewness: Array) -> Array:
    """Return quantiles (m, k) of skew normals with these moments (m,), at the levels `_PROBABILITIES`."""
    places = mean + sd * _NORMAL[:, None]
    levels = ndtri(np.clip(_below(mean, sd, skewness)(places), 1e-300, 1.0 - 1e-16)).T
    return np.array([np.interp(NORMAL_LEVELS, *each) for each in zip(levels, places.T, strict=True)])


class AffineEntries(NamedTuple):
    """Gaussian moments at a node of m entries of variables that are affine in the q integrated variables."""

    joint: Joint
    mean: Array
    """Means of the entries, (m,)."""
    variance: Array
    """Variances of the entries, (m,)."""
    slopes: Sequence[Callable[[], Array]]
    """Functions, one for each block of s entries. They return slopes (q, s) of entries in integrated variables."""


def entries_of(hyper: HyperPosterior, names: Sequence[str]) -> Callable[[Conditional], AffineEntries]:
    """Return a function that computes the moments of all entries of the variables at a node."""
    joint = hyper.log_posterior.space.variables.affine(names)

    def at(each: Conditional) -> AffineEntries:
        own = joint(each.point, each.functions)
        mean, variance = (np.concatenate([np.ravel(of[name]) for name in names]) for of in (own.means, own.variances()))
        blocks = [
            partial(own.columns, name, slice(start, min(start + _COLUMNS, np.size(own.means[name]))))
            for name in names
            for start in range(0, np.size(own.means[name]), _COLUMNS)
        ]
        return AffineEntries(own, mean, variance, blocks)

    return at


class _Beyond(NamedTuple):
    """Corrections of the Gaussian marginals of m entries at one node."""

    moments: Array
    """Change of the mean in standard deviations, relative change of the variance, and skewness, (3, m)."""
    quantiles: dict[int, Array]
    """Standardised quantiles of entries far from normal, at the levels `_PROBABILITIES`, by position."""
    far: NDArray[np.bool_]
    """Mask of entries far from normal, (m,)."""


class _Corrections(NamedTuple):
    """Gaussian moments of m entries at s nodes, and corrections. Some nodes use averages of corrections."""

    means: Array
    """Means, (s, m)."""
    sds: Array
    """Standard deviations, (s, m)."""
    moments: Array
    """Changes of means and variances, and skewness, as in `_Beyond`, (s, 3, m)."""
    quantiles: dict[int, Array]
    """Standardised quantiles (s, k) of entries far from normal, by position, as in `_Beyond`."""
    far: NDArray[np.bool_]
    """Mask of entries far from normal, (m,)."""
    heaviest: AffineEntries
    """Moments of the entries at the node with the largest weight."""


def mixture_of(
    hyper: HyperPosterior, of: Callable[[Conditional], AffineEntries], *, only_far: bool = False
) -> tuple[SkewNormals, AffineEntries]:
    """Return the marginals of entries, and their Gaussian moments at the node with the largest weight.

    With `only_far`, entries that are not far from normal keep the moments of the Gaussian posterior.
    """
    found = _corrections(hyper, of, only_far=only_far)
    means, sds, moments = found.means, found.sds, found.moments
    moments[..., ~found.far & only_far] = 0.0
    tilted = {place: means[:, [place]] + sds[:, [place]] * own for place, own in found.quantiles.items()}
    shift, share, skewness = moments.swapaxes(0, 1)
    mixture = SkewNormals(hyper.weights, means + sds * shift, sds * np.sqrt(1.0 + share), skewness, tilted)
    return mixture, found.heaviest


def _corrections(hyper: HyperPosterior, of: Callable[[Conditional], AffineEntries], *, only_far: bool) -> _Corrections:
    """Return corrections of the Gaussian marginals of entries at all nodes.

    With `only_far`, one node is examined first. If no entry is far from normal at this node, all corrections are 0.
    """
    log_posterior = hyper.log_posterior
    means, variances, found = [], [], dict[int, _Beyond]()
    looked_at, chosen, heaviest = frozenset[int](), None, int(np.argmax(hyper.weights))
    far = np.zeros(0, bool)
    for s, each in enumerate(conditionals(hyper)):
        own = of(each)
        if s == heaviest:
            there = own
        means.append(own.mean)
        variances.append(own.variance)
        if s == 0:
            looked_at = _looked_at(hyper, each, own, only_far=only_far)
        if s in looked_at:
            found[s] = _beyond_gaussian(own, each, log_posterior, len(looked_at), chosen)
            far = found[s].far if chosen is None else far
            chosen = list(found[s].quantiles)
            if only_far and not far.any():
                looked_at, found = frozenset(), {}
    moments, quantiles = np.zeros((len(hyper), 3, len(means[0]))), dict[int, Array]()
    if known := list(found):
        weights = hyper.weights[known] / max(hyper.weights[known].sum(), 1e-300)

        def at_every_node(values: Array) -> Array:
            of_nodes = np.tile(np.tensordot(weights, values, 1), (len(hyper), *[1] * (values.ndim - 1)))
            of_nodes[known] = values
            return of_nodes

        moments = at_every_node(np.array([each.moments for each in found.values()]))
        quantiles = {p: at_every_node(np.array([each.quantiles[p] for each in found.values()])) for p in chosen or ()}
    return _Corrections(np.array(means), np.sqrt(variances), moments, quantiles, far, there)


def _any_far(hyper: HyperPosterior, of: Callable[[Conditional], AffineEntries]) -> bool:
    """Return whether an entry is far from normal at the first node that `_corrections` examines."""
    first = _conditional(hyper, 0)
    if not (looked_at := _looked_at(hyper, first, of(first), only_far=True)):
        return False
    each = _conditional(hyper, min(looked_at))
    return bool(_beyond_gaussian(of(each), each, hyper.log_posterior, len(looked_at), None).far.any())


def _conditional(hyper: HyperPosterior, s: int) -> Conditional:
    return Conditional(hyper.log_posterior, hyper.nodes[s].theta, hyper.solution(s))


def _corrects_moments(log_posterior: LogPosterior, values: int) -> bool:
    """Return whether variances have a correction of second order, for this number of latent values."""
    return bool(log_posterior.approximator.matches_moments) and values <= _MOST_VALUES


def _looked_at(hyper: HyperPosterior, each: Conditional, own: AffineEntries, *, only_far: bool) -> frozenset[int]:
    """Return the nodes at which skewness and second-order terms are computed: nodes with the largest weights.

    All other nodes use averages over these nodes. `own` are the entries at a node `each`. With `only_far`, no node is
    returned if variances have no correction of second order.
    """
    log_posterior = hyper.log_posterior
    values = each.solution.mean.size if log_posterior.joint else 0  # Skewness needs the latent values of all rows.
    if not values or (only_far and not _corrects_moments(log_posterior, values)):
        return frozenset()
    cost = (own.mean.size + (own.joint.size if values <= _MOST_VALUES else 0) + _COST_OF_CUMULANT) * values
    count = 0 if cost > _MOST_COVARIANCES else max(1, _COVARIANCES // max(cost, 1))
    return frozenset(np.argsort(-hyper.weights, kind="stable")[:count].tolist())


def _beyond_gaussian(
    own: AffineEntries, each: Conditional, log_posterior: LogPosterior, nodes: int, chosen: Sequence[int] | None
) -> _Beyond:
    """Return corrections of the Gaussian marginals of all entries at a node.

    For few entries t and one function, the term of second order is computed as

        ½ (tr(BVBV) − Σ_i a_i² (Var f_i)²),   B = Jᵀ diag(a) J,   a_i = A_i Cov(f_i, t).

    Here f = J z are latent values, and V is the posterior covariance of z, a smaller matrix than the covariance of f.

    Parameters
    ----------
    nodes : int
        Number of nodes with corrections.
    chosen : sequence of int, optional
        Positions of entries with marginals by averages of rows. The default is entries far from normal.
    """
    solution, functions, m = each.solution, each.functions, own.mean.size
    weights = third_cumulants(solution)
    if weights is None or not m:
        return _Beyond(np.zeros((3, m)), {}, np.zeros(m, bool))
    by_normals = not log_posterior.classifier.prior.samples_values
    image = functions.of_normals if by_normals else lambda each: each
    c, n = solution.mean.shape
    covs = [image(own.joint.moved(slopes())).reshape(c, n, -1) for slopes in own.slopes]
    cubes = [np.einsum("iabd,ait,bit,dit->t", weights, along, along, along, optimize=True) for along in covs]
    third, added = np.concatenate(cubes), np.zeros(m)
    exact = _corrects_moments(log_posterior, c * n)
    size = own.joint.size
    blocks = (np.eye(size, min(_COLUMNS, size - start), -start) for start in range(0, size, _COLUMNS))
    if exact and by_normals and c == 1 and m * size**2 <= n**2:
        cov = np.concatenate([own.joint.moved(unit) for unit in blocks], axis=1)
        a = weights.reshape(n, 1) * np.concatenate([along[0] for along in covs], axis=1)
        moved = [csr_array(functions.gram(each)) @ cov for each in a.T]
        added = 0.5 * (np.array([(m * m.T).sum() for m in moved]) - (a.T * solution.cov[:, 0, 0]) ** 2 @ np.ones(n))
    elif exact:
        cov = np.zeros((c * n, c * n))
        for unit in blocks:
            cov += image(own.joint.moved(unit)) @ image(unit).T
        pairs = second_order(weights, cov.reshape(c, n, c, n))
        flat = [along.swapaxes(0, 1).reshape(c * n, -1) for along in covs]
        added = np.concatenate([np.einsum("it,it->t", each, pairs @ each) for each in flat])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(np.maximum(added / own.variance, -0.5))
        skewness = np.nan_to_num(third / (own.variance * (1.0 + share)) ** 1.5, posinf=0.0, neginf=0.0)
    far = (np.abs(share) > _FAR_SHARE) | (np.abs(skewness) > _FAR_SKEWNESS)
    found = _Beyond(np.stack([np.zeros(m), share, skewness]), {}, far)
    if exact and c == 1 and solution.posterior.sites.pointwise:
        along = np.concatenate([along[0] for along in covs], axis=1)
        _by_averages(found, each, along, own, weights.reshape(n), nodes, chosen)
    return found


def _by_averages(
    found: _Beyond,
    each: Conditional,
    along: Array,
    own: AffineEntries,
    weights: Array,
    nodes: int,
    chosen: Sequence[int] | None,
) -> None:
    """Replace the corrections of entries far from normal. Their marginals come from `marginal_log_ratios`.

    If an entry t is an effect with a prior that is not normal, the tilted distribution of the prior replaces the
    Gaussian of t. For other entries, terms of second order that do not depend on t are added to the variance.
    """
    solution = each.solution
    of_rows = {int(row): (name, i) for name, (at, _) in each.factors() for i, row in enumerate(at)}
    rows_of_priors = np.array(list(of_rows), np.intp)
    variance, values = own.variance, solution.cov[:, 0, 0]
    informative = np.flatnonzero(values > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shared = np.nan_to_num(along**2 / (values[:, None] * variance))
    is_effect = (shared[rows_of_priors] > _SAME).any(axis=0)
    if chosen is None:
        np.logical_or(found.far, is_effect, out=found.far)
        costs = np.ones(len(values))
        costs[rows_of_priors] = _COST_OF_PRIOR
        chosen = np.flatnonzero(found.far).tolist()
        if nodes * DISTANCES * (costs @ (shared[:, chosen] > _SHARED)).sum() > _MOST_AVERAGES:
            return
    quantiles = each.quantiles_of_priors(_PROBABILITIES) if is_effect.any() else {}
    for place in chosen:
        sd, k = np.sqrt(variance[place]), along[:, place]
        rows = np.flatnonzero(shared[:, place] > _SHARED)
        distances, masses, row = sd * _NORMAL, _NORMAL_MASSES, -1
        if is_effect[place]:
            row = int(rows_of_priors[shared[rows_of_priors, place].argmax()])
            name, i = of_rows[row]
            order = 1 if k[row] > 0.0 else -1
            distances = ((quantiles[name][:, i] - solution.mean[0, row]) * variance[place] / k[row])[::order]
            masses, rows = _MASSES, rows[rows != row]
        with np.errstate(all="ignore"):
            most, others = _MOST_PRODUCTS / (nodes * len(chosen)), informative[informative != row]
            ratios, refitted = marginal_log_ratios(solution, k, variance[place], distances, masses, rows, others, most)
            if not np.isfinite(ratios).all():
                continue
            tilted = masses * np.exp(ratios - ratios.max())
            tilted /= tilted.sum()
        if tilted @ (tilted / masses) > (_MOST_UNEVEN_OF_EP if refitted else _MOST_UNEVEN):
            continue
        before, after = masses @ distances, tilted @ distances
        spread = np.sqrt([of @ (distances - centre) ** 2 for of, centre in ((masses, before), (tilted, after))])
        share, rest = (spread[1] / spread[0]) ** 2, 1.0
        if not (is_effect[place] or refitted):
            cumulants = weights * (k / sd) ** 3
            rest = max(1.0 + found.moments[1, place] - 0.5 * (cumulants.sum() ** 2 - cumulants @ cumulants), 0.5)
        found.moments[:2, place] = (after - before) / sd, share * rest - 1.0
        below = np.cumsum(tilted) - 0.5 * tilted
        own_quantiles = np.interp(_PROBABILITIES, below, distances)
        found.quantiles[place] = (after + np.sqrt(rest) * (own_quantiles - after)) / sd


def marginals_of_draws(fit: Fitted) -> dict[str, Array]:
    """Return standardised quantiles (entries, k) of effects by name; an empty dict if all effects are near normal.

    Mean and standard deviation of the Gaussian posterior standardise the quantiles. The levels are `_PROBABILITIES`.
    Quantiles are averages over nodes. Effects with non-normal priors and values of processes are left out.
    """
    hyper, prior = fit.hyper_posterior, fit.classifier.prior
    left_out = {latent.free for latent in prior.processes} | set(prior.implicit)
    names = [str(rv.name) for rv in prior.integrated if rv not in left_out]
    names = [name for name in names if name not in fit.classifier.effects_by_factors]
    if not names or not hyper.log_posterior.joint:
        return {}
    of = entries_of(hyper, names)
    if not _any_far(hyper, of):  # Draws of near-normal effects do not need the solutions of all nodes.
        return {}
    found = _corrections(hyper, of, only_far=True)
    shift, share, skewness = np.tensordot(hyper.weights, found.moments, 1)
    own = _quantiles_of_skew_normals(shift, np.sqrt(1.0 + share), skewness)
    for place, quantiles in found.quantiles.items():
        own[place] = hyper.weights @ quantiles
    ends = np.cumsum([np.size(found.heaviest.joint.means[name]) for name in names])[:-1]
    return dict(zip(names, np.split(own, ends), strict=True))


def quantiles_of(values: Array, weights: Array, p: float) -> Array:
    """Return the quantiles (k,) of weighted values (m, k). Half of the weight of a value counts as below the value."""
    order = np.argsort(values, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0) - 0.5 * weights[order]
    ordered = np.take_along_axis(values, order, axis=0)
    return np.array([np.interp(p, below[:, k], ordered[:, k]) for k in range(values.shape[1])])


def of_priors(hyper: HyperPosterior, sizes: Mapping[str, int]) -> dict[int, Array]:
    """Return quantiles (s, k) of effects with non-normal priors at s nodes, by position among all entries.

    Parameters
    ----------
    hyper : HyperPosterior
    sizes : dict of str to int
        Numbers of entries of variables, in the order of the entries.
    """
    if sizes.keys().isdisjoint(hyper.log_posterior.classifier.effects_by_factors):
        return {}
    of_nodes = [each.quantiles_of_priors(_PROBABILITIES) for each in conditionals(hyper)]
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    return {
        int(starts[name]) + i: np.array([own[name][:, i] for own in of_nodes])
        for name in of_nodes[0]
        if name in sizes
        for i in range(sizes[name])
    }


_NO_SLOPE = 1e-9  # A smaller coefficient of an effect counts as a rounding error.


class _Alone(NamedTuple):
    """Entries of an effect that keep their prior, since they are without data."""

    name: str
    rows: NDArray[np.intp]
    """Row of the prior factor of each of the n entries of the effect, (n,)."""
    places: NDArray[np.intp]
    """Positions of entries that keep their prior, (k,)."""
    cross: Array
    """Covariances of these k entries with m new rows, (k, m), under the Gaussian prior."""
    mean: Array
    """Means (n,) of the entries in a Gaussian prediction of new rows. `variance` (n,) are their variances."""
    variance: Array
    quantiles: Array
    """Quantiles of the prior at `_LEVELS`, (64, n)."""
    moments: Array
    """Mean and variance of the prior, (2, n); NaN if they do not exist."""


def _alone(functions: Any, inputs: Any, conditional: Conditional) -> Iterator[_Alone]:
    """Yield effects with entries that keep their prior: entries without moments or rows, and new levels."""
    solution = conditional.solution
    for name, at, _, unknown, quantiles in conditional.factors_without_moments():
        places, own = np.flatnonzero(unknown), (solution.mean[0, at], solution.cov[at, 0, 0])
        cross = functions.between(inputs, at[places])[0].T
        yield _Alone(name, at, places, cross, *own, quantiles, np.full((2, at.size), np.nan))
    for name, (at, factor) in conditional.factors():
        if (new := functions.of_new_levels(inputs, at)) is None:
            return
        cross = new[0]
        if not (places := np.flatnonzero(cross.any(axis=0))).size:
            continue
        if ((given := factor.parameters) != given[:, :1]).any():
            raise ValueError(
                f"A new level of {name!r} has no prior, since the priors of the levels differ. Add a level without "
                "rows to the model, fit it again, and predict that level."
            )
        mean, variance, terms = given[0], given[1] ** 2, np.empty((5, at.size))
        factor.computation(GaussianAverage).terms(mean, variance, np.zeros(at.size), given, terms)
        moments = np.stack([mean + variance * terms[1], variance + variance**2 * terms[2]])
        moments[:, factor.without_moments(mean, variance)] = np.nan
        quantiles = factor.quantiles(mean, variance, np.tile(_LEVELS[:, None], at.size))
        yield _Alone(name, at, places, cross[:, places].T, mean, variance, quantiles, moments)


def over_priors(
    found: Prediction,
    functions: LatentFunctions,
    inputs: Any,
    conditional: Conditional,
    predicted: Callable[[NDArray[np.intp], Array, Array], Prediction],
) -> tuple[Prediction, list[tuple[Array, Array]], str]:
    """Average predictions over the priors of new levels, and of effects without moments and without rows.

    In the posterior, a normal density stands in for such a prior. Here quantiles of the prior, in random order for each
    effect, replace the contribution of the effect. If the prior has no moments, latent values have no moments.

    Returns
    -------
    Prediction
    list of (array, array)
        Means (m, 1) and covariances (m, 1, 1) of latent values at the quantiles. Empty without such effects.
    str
        Text of the warning for the user. Empty without such effects.
    """
    m, own = len(found.mean), conditional.solution.posterior.prior.variances[0]
    assert found.cov is not None
    rng, rest, shifts = np.random.default_rng(0), found.cov.copy(), np.zeros((_LEVELS.size, m))
    names: dict[str, None] = {}
    changed, (mean, variance, shift, lacking) = np.zeros(m, bool), np.zeros((4, m))
    for each in _alone(functions, inputs, conditional):
        for i, cross in zip(each.places, each.cross, strict=True):
            slope = np.where(np.abs(ratio := cross / own[each.rows[i]]) > _NO_SLOPE, ratio, 0.0)
            if not slope.any():
                continue
            changed |= slope != 0.0
            rest[:, 0, 0] -= slope**2 * each.variance[i]
            quantiles, (centre, square) = each.quantiles[:, i], each.moments[:, i]
            shifts += rng.permutation(quantiles - each.mean[i])[:, None] * slope
            if np.isnan(centre):
                names[each.name] = None
            # A moment that does not exist is NaN. 0 × NaN is NaN, so `where` selects 0.
            mean += np.where(slope == 0.0, 0.0, slope * (centre - each.mean[i]))
            variance += np.where(slope == 0.0, 0.0, slope**2 * (square - each.variance[i]))
            shift += np.where(slope == 0.0, 0.0, slope * (centre - quantiles.mean()))
            lacking += np.where(slope == 0.0, 0.0, slope**2 * np.maximum(square - quantiles.var(), 0.0))
    if not changed.any():
        return found, [], ""
    rows, count = np.flatnonzero(changed), int(np.isnan(mean).sum())
    note = (
        f"{count} of {m} new rows depend on levels of {', '.join(map(repr, names))} without data, and the "
        "prior of these levels has no variance. Latent values and observations of these rows have no mean. Their "
        "probabilities and quantiles are averages over the prior."
    ) * bool(count)
    shifted = [(found.mean + own[:, None], np.maximum(rest, 0.0)) for own in shifts]
    nodes = [predicted(rows, at[rows], cov[rows]) for at, cov in shifted]
    nothing = {name: np.array(value) for name, value in found._asdict().items() if value is not None}
    nothing["mean"] = found.mean + mean[:, None]
    nothing["cov"] = np.maximum(found.cov + variance[:, None, None], 0.0)
    nothing["error"][rows] = np.nan
    if "outcome" in nothing:
        by, more = shift[:, None], lacking[:, None, None]
        moved = [predicted(rows, (at + by)[rows], (cov + more)[rows]) for at, cov in shifted]
        nothing["outcome"][rows] = np.mean([each.outcome for each in moved], axis=0)
    nothing["p"][rows] = np.mean([each.p for each in nodes], axis=0)
    if "log_density" in nothing:
        nothing["log_density"][rows] = logsumexp([each.log_density for each in nodes], axis=0) - np.log(len(nodes))
    return found._replace(**nothing), shifted, note
