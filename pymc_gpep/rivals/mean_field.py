"""Variational Bayes of latent values, hyperparameters and their parents together (Girolami and Rogers 2006).

Girolami and Rogers (2006, sections 4.3 and 4.4) approximate the posterior by q(f) q(v) q(φ), for latent values f,
utilities v, and hyperparameters φ of the prior of f. The parents ψ, in the priors of φ, have a point estimate ψ̃. The
prior of function k has the covariance K_k. A step computes

    q(f) = N(f̃, S), S_k = K_k (K_k + I)⁻¹ with K at the mean φ̃,                           equations 4.1 and 4.6

    q(φ) ∝ p(φ | ψ̃) Π_k exp r_k(φ),                                                       equation 4.5

    ψ̃ = argmax p(ψ) p(φ̃ | ψ), unconstrained.                                             equation 4.8

The value of K at φ̃ replaces E[K⁻¹]⁻¹, a first-order approximation of the paper (appendix A.1). If latent functions
have separate hyperparameters, q(φ) is a product, and the weights of each block of hyperparameters depend on its latent
functions alone (equation 4.5 and appendix A.3).

The log weight of a draw is a sum over latent functions k of terms r_k(φ). Let N(m, K) be the prior of the latent values
at φ, and ṽ = f̃ + ∂ log p(y | f̃) / ∂f̃ the mean utilities. The forms of the terms are:

- "authors": −½ (f̃_k − m_k)ᵀ (K_k + I)⁻¹ (f̃_k − m_k), as in the program of Girolami and Rogers (2006).

- "utilities": log N(ṽ_k | m_k, K_k + I), optimal for a posterior of the form q(v) q(f, φ).

- "latent": log N(f̃_k | m_k, K_k) − ½ tr K_k⁻¹ S_k, optimal for a posterior of the form q(f) q(v) q(φ).

- "printed": log N(f̃_k | m_k, K_k), equation 4.5 of their paper, without the trace.

The rules "latent" and "utilities" have lower bounds of log p(y | ψ̃), up to the Monte Carlo error of means over draws
φ_s ~ p(φ | ψ̃). With r_s = Σ_k r_k(φ_s) the bounds are

    Σ_i log p(y_i | f̃_i) − ½ Σ_k tr S_k + ½ Σ_k log|2πe S_k| + log mean_s exp r_s,

    Σ_i log p(y_i | f̃_i) + ½ |ṽ − f̃|² + ½ c n log 2π + log mean_s exp r_s,

the second for q(v) = N(f̃, I) truncated to the cones of the labels. For a derivation of the rule "authors" see the
page on mathematics of the documentation.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pymc.blocking import PointType
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import softmax

from pymc_gpep.approximations.limits import at_least, one_of
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.approximations.variational_bayes import VariationalBayes
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import Posterior, make_posterior, posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import IndependentSites, SiteForm
from pymc_gpep.hyper.hyper_method import HyperMethod, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.weights import Estimate, Weighing, importance_estimate, smooth, worth_keeping
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.log_posteriors.hyperparameters import unconstrain
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.prior_moments.prior_functions import Moments
from pymc_gpep.progress import progress_bar
from pymc_gpep.rivals.hierarchy import Hierarchy
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError


class LatentValues(NamedTuple):
    """Distribution q(f) of the latent values, and the terms of lower bounds that depend on it."""

    mean: Array
    """Mean f̃, (c, n)."""
    roots: Array
    """Roots R_k (1 or c, n, n), with S_k = R_k R_kᵀ."""
    bound: float
    """Lower bound of the log evidence at the mean of the hyperparameters."""
    rest: float
    """Lower bound of log p(y | ψ̃) for the rule "latent", without the log mean weight of the draws."""
    rest_by_utilities: float
    """Lower bound of log p(y | ψ̃) for the rule "utilities", without the log mean weight of the draws."""
    utilities: Array
    """Means of the utilities under q(v), (c, n)."""
    start: Array | None
    """Start of a solve at similar hyperparameters."""


class Weights(NamedTuple):
    """Rule for the weights of draws of the hyperparameters, and settings of steps with this rule."""

    each: Callable[[Moments, LatentValues], Array]
    """Function of a draw's prior of the latent values and of q(f). It returns log weights of functions, (c,)."""
    rest: Callable[[LatentValues], float] | None
    """Function of q(f) that returns the bound without the log mean weight; None if the rule has no bound."""
    updates: int | None
    """Number of updates of q(f) in a step; None for updates until convergence."""
    from_priors: bool
    """Whether steps begin at the prior means, and not at the maximum of the hyperparameters' posterior."""


def expected_log_density(prior: DensePrior, mean: Array, roots: Array | None = None) -> Array:
    """Return the average log prior density of each latent function k, (c,), over a Gaussian of its values f_k.

    Parameters
    ----------
    prior : DensePrior
    mean : array (c, n)
    roots : array (1 or c, n, n), optional
        Roots R_k of the covariances R_k R_kᵀ of f_k, one for all functions or one for each. The default is R_k = 0.

    Raises
    ------
    NotPositiveDefiniteError
        If the prior covariance has no Cholesky factor.
    """
    log_det = 2.0 * np.log(prior.roots.diagonal(axis1=1, axis2=2)).sum(axis=1)  # (1,) or (c,)
    quadratic = (prior.whitened(mean) ** 2).sum(axis=1)
    if roots is not None:
        spread = [
            (solve_triangular(prior.roots[a % len(prior.k)], roots[a % len(roots)], lower=True, check_finite=False)
             ** 2).sum()
            for a in range(max(len(roots), len(prior.k)))
        ]  # fmt: skip
        quadratic = quadratic + np.array(spread)
    return np.asarray(-0.5 * (prior.shape[1] * np.log(2 * np.pi) + log_det + quadratic))


def covariance_roots(posterior: Posterior) -> Array:
    """Return roots R_k (1 or c, n, n) of posterior covariances R_k R_kᵀ; a single root if the covariances are equal.

    For K_k = L_k L_kᵀ and site precisions D_k the roots are L_k M_k⁻ᵀ, where M_k M_kᵀ = I + L_kᵀ D_k L_k.
    """
    shared = len(posterior.prior.k) == 1 and (posterior.precision == posterior.precision[0]).all()
    found = []
    for a, pi in enumerate(posterior.precision[:1] if shared else posterior.precision):
        root = own_matrix(posterior.prior.roots, a)
        inner = np.linalg.cholesky(np.eye(len(root)) + root.T @ (pi[:, None] * root))
        found.append(solve_triangular(inner, root.T, lower=True, check_finite=False).T)
    return np.stack(found)


def _with_noise(moments: Moments) -> DensePrior:
    return DensePrior(moments.k + np.eye(moments.k.shape[-1]), moments.mean)


def _by_authors(moments: Moments, latent: LatentValues) -> Array:
    return np.asarray(-0.5 * (_with_noise(moments).whitened(latent.mean) ** 2).sum(axis=1))


def _by_utilities(moments: Moments, latent: LatentValues) -> Array:
    return expected_log_density(_with_noise(moments), latent.utilities)


def _by_latent_values(moments: Moments, latent: LatentValues) -> Array:
    return expected_log_density(DensePrior(moments.k, moments.mean), latent.mean, latent.roots)


def _as_printed(moments: Moments, latent: LatentValues) -> Array:
    return expected_log_density(DensePrior(moments.k, moments.mean), latent.mean)


WEIGHTS: dict[str, Weights] = {
    "authors": Weights(_by_authors, None, 1, True),
    "utilities": Weights(_by_utilities, lambda latent: latent.rest_by_utilities, None, False),
    "latent": Weights(_by_latent_values, lambda latent: latent.rest, None, False),
    "printed": Weights(_as_printed, None, 1, True),
}
"""Rules for weights by name, the default first."""


_STEP = 1e-4  # Step in hyperparameters for finite differences of slopes.
_POLISH = 6  # Number of Newton steps. Each step reduces the error by a factor of 10⁷.
_LARGEST = 1.0  # Newton steps end before a larger step.


def most_probable_parents(hierarchy: Hierarchy, start: PointType, children: Mapping[str, Any]) -> PointType:
    """Return the parents at the maximum of their log density given the children, in unconstrained coordinates.

    For the conjugate pair φ ~ Exponential(ψ), ψ ~ Gamma(σ, τ), the maximum is at ψ = (σ + 1) / (τ + φ). By the Jacobian
    of the logarithm this is also the mean of ψ given φ (Girolami and Rogers 2006, equation 4.8).

    Parameters
    ----------
    hierarchy : Hierarchy
    start : dict
        Initial values of these variables. It may contain further variables.
    children : mapping
        Children by name, on their natural scale.
    """
    names = hierarchy.parent_values
    if not names:
        return {}
    shapes = [np.shape(start[name]) for name in names]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def parts(flat: Array) -> list[Array]:
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]

    def slope(flat: Array) -> Array:
        return hierarchy.conditional(parts(flat), children)[1]

    def negative(flat: Array) -> tuple[float, Array]:
        value, gradient = hierarchy.conditional(parts(flat), children)
        return (-value, -gradient) if np.isfinite(value) and np.isfinite(gradient).all() else (np.inf, 0.0 * flat)

    found = np.concatenate([np.ravel(start[name]) for name in names]).astype(np.float64)
    found = np.asarray(minimize(negative, found, jac=True, method="L-BFGS-B").x)
    for _ in range(_POLISH):
        here = slope(found)
        curvature = np.array(
            [(slope(found - step) - slope(found + step)) / (2 * _STEP) for step in _STEP * np.eye(found.size)]
        )
        try:
            np.linalg.cholesky(0.5 * (curvature + curvature.T))
            step = np.linalg.solve(curvature, here)
        except np.linalg.LinAlgError:
            break  # Along a ridge all points are equally good.
        if not np.abs(step).max() < _LARGEST:
            break
        found = found + step
    return dict(zip(names, parts(found), strict=True))


class Blocks(NamedTuple):
    """Blocks of hyperparameters, and the latent functions of each block."""

    functions: NDArray[np.bool_]
    """Mask (b, c) of functions. The log weights of these functions are summed for each block."""
    of: dict[str, NDArray[np.int64]]
    """Block of each entry of the hyperparameters φ, by name."""


def find_blocks(
    hierarchy: Hierarchy,
    here: Mapping[str, Array],
    there: Mapping[str, Array],
    moments: Callable[[Mapping[str, Array]], Moments],
) -> Blocks:
    """Return blocks of hyperparameters. Hyperparameters in different blocks change priors of different functions.

    If all functions have the same covariance, there is one block with all hyperparameters. Functions with a common
    hyperparameter are in the same block. A block also contains all dependent entries of a variable, and both of two
    variables if the prior of one contains the other.

    Parameters
    ----------
    hierarchy : Hierarchy
    here, there : mapping
        Children by name, on their natural scale. The values must differ.
    moments : callable
        Function of children by name that returns the prior of the latent values.
    """
    children = {name: np.asarray(here[name], dtype=np.float64) for name in hierarchy.children}
    before = moments(children)
    functions = len(before.mean)
    if len(before.k) == 1:
        return Blocks(
            np.ones((1, functions), dtype=bool), {name: np.zeros(x.shape, dtype=int) for name, x in children.items()}
        )
    first = functions + np.cumsum([0, *(x.size for x in children.values())])
    nodes = {
        name: start + np.arange(x.size).reshape(x.shape)
        for (name, x), start in zip(children.items(), first, strict=False)
    }
    tied = set().union(*hierarchy.joint)
    edges: list[tuple[int, int]] = []
    for name, x in children.items():
        for entry in [...] if name in tied else list(np.ndindex(x.shape)):
            moved = x.copy()
            moved[entry] = np.asarray(there[name])[entry]
            after = moments({**children, name: moved})
            # A covariance that is not finite counts as changed.
            changed = (after.k != before.k).any(axis=(1, 2)) | (after.mean != before.mean).any(axis=1)
            edges += [(int(node), int(k)) for node in np.ravel(nodes[name][entry]) for k in np.flatnonzero(changed)]
    for names in hierarchy.joint:
        together = np.concatenate([nodes[name].ravel() for name in sorted(names)])
        edges += [(int(together[0]), int(node)) for node in together[1:]]
    ends = np.array(edges, dtype=int).reshape(-1, 2).T
    total = int(first[-1])
    _, part = connected_components(coo_array((np.ones(ends.shape[1]), tuple(ends)), shape=(total, total)), False)
    parts, block = np.unique(part[functions:], return_inverse=True)
    return Blocks(parts[:, None] == part[:functions], {name: block[own - functions] for name, own in nodes.items()})


_TOGETHER = 16  # Number of densities that are evaluated in parallel.


class Step(NamedTuple):
    """Result of a step of the mean field method."""

    theta: Array
    """Hyperparameters φ̃ and their parents ψ̃ as a flat unconstrained vector."""
    latent: LatentValues
    """Distribution q(f) at the hyperparameters where the step began."""
    draws: Array
    """Draws of φ, together with the ψ̃ of their prior, flat and unconstrained, (draws, d)."""
    log_weights: Array
    """Log weight of each draw for each block, (b, draws); −∞ if a covariance has no Cholesky factor."""
    blocks: NDArray[np.int64]
    """Block of each entry of θ, (d,); −1 for parents."""
    joint_bound: float
    """Lower bound of log p(y | ψ̃) for the ψ̃ of the draws; NaN for weights without a bound."""

    def joint_draws(self, random_seed: int) -> tuple[Array, Array]:
        """Return draws of all hyperparameters (draws, d), and their log weights (draws,).

        With a single block, `draws` and their weights are returned. Several blocks are independent: draws of each block
        are resampled by weights, shuffled, and combined.
        """
        if len(self.log_weights) == 1:
            return self.draws, self.log_weights[0]
        rng, count = np.random.default_rng(random_seed), len(self.draws)
        joint = self.draws.copy()
        for block, weights in enumerate(softmax(self.log_weights, axis=1)):
            at = np.minimum(np.searchsorted(np.cumsum(weights), (np.arange(count) + rng.uniform()) / count), count - 1)
            own = self.blocks == block
            joint[:, own] = self.draws[rng.permutation(at)][:, own]
        return joint, np.zeros(count)


def mean_field_steps(
    log_posterior: DenseLogPosterior,
    theta: Array,
    *,
    draws: int,
    weights: str = next(iter(WEIGHTS)),
    inner: int | None = None,
    utilities: Array | None = None,
    random_seed: int = 0,
) -> Iterator[Step]:
    """Yield the results of steps without end, from initial hyperparameters θ.

    Parameters
    ----------
    log_posterior : DenseLogPosterior
        Log posterior by variational Bayes, for a multinomial probit.
    theta : array (d,)
        Hyperparameters, unconstrained.
    draws : int
        Number of new draws in each step.
    weights : str
        Name of a rule in `WEIGHTS`.
    inner : int, optional
        Number of updates of q(f) by equation 4.6 in a step. The default depends on `weights`.
    utilities : array (c, n), optional
        Mean utilities for the first update. The default is the mean utilities at the prior mean of the latent values.
    random_seed : int

    Raises
    ------
    StructureError
        If no hyperparameters can be drawn from their priors.
    ValueError
        If the prior covariance is invalid at the mean of the hyperparameters, or at all draws.
    """
    hierarchy = Hierarchy(log_posterior.classifier, log_posterior.space.data)
    sample, flat = hierarchy.sampler(random_seed), log_posterior.space.flat
    values_of = unconstrain(log_posterior.classifier.prior)
    kind = WEIGHTS[weights]
    updates = kind.updates if inner is None else inner

    def natural(of: Array) -> dict[str, Array]:
        return {name: values[0] for name, values in log_posterior.space.natural(of[None]).items()}

    def prior_at(given: Mapping[str, Array], children: Mapping[str, Array]) -> Moments:
        return log_posterior.moments(flat(values_of({**given, **children})))

    latent: LatentValues | None = None
    blocks = None
    while True:
        latent = _latent_values(log_posterior, theta, updates, latent, utilities)
        own = natural(theta)
        drawn = sample(own, draws)
        thetas = np.array([flat(values_of({**own, **each})) for each in drawn])
        if blocks is None:
            blocks = find_blocks(hierarchy, own, drawn[0], partial(prior_at, own))
            entries = _of_values(log_posterior, blocks.of)
        logs = _log_weights(log_posterior, thetas, latent, kind, blocks.functions)
        if not np.isfinite(logs).any(axis=1).all():
            raise ValueError(
                "hyper='mean_field': the prior covariance is not positive definite at any of the hyperparameters that "
                f"were drawn from their priors, with {_shown(own, hierarchy.parents)}. Give them other priors, or take "
                "hyper='importance'."
            )
        shares = softmax(logs, axis=1)
        children = {
            name: (np.moveaxis(shares[of], -1, 0) * np.array([each[name] for each in drawn])).sum(axis=0)
            for name, of in blocks.of.items()
        }
        point = log_posterior.point(theta)
        theta = flat({**point, **most_probable_parents(hierarchy, point, children)})
        theta = flat(values_of({**natural(theta), **children}))
        if not np.isfinite(theta).all():
            raise ValueError(
                f"hyper='mean_field': with {_shown(children, hierarchy.children)} the most probable values of "
                f"{', '.join(hierarchy.parents) or 'none'} are at the edge of their range. Give them other "
                "priors, or choose hyper='importance'."
            )
        bound = np.nan
        if kind.rest is not None:
            bound = kind.rest(latent) + sum(importance_estimate(of_block)[0].value for of_block in logs)
        yield Step(theta, latent, thetas, logs, entries, bound)


def _shown(values: dict[str, Array], names: list[str]) -> str:
    return ", ".join(f"{name} = {values[name].tolist()}" for name in names) or "no parents"


def _of_values(log_posterior: DenseLogPosterior, of: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the block of each entry of the vector of hyperparameters, (d,), from the blocks of children by name."""
    owners = np.array(log_posterior.space.owners)
    found = np.full(owners.size, -1)
    for name, blocks in of.items():
        own = owners == name
        # If a transform changes the number of entries, all entries of the variable are in the same block.
        found[own] = blocks.ravel() if blocks.size == own.sum() else blocks.flat[0]
    return found


def _latent_values(
    log_posterior: DenseLogPosterior, theta: Array, inner: int | None, before: LatentValues | None, begin: Array | None
) -> LatentValues:
    """Return q(f) at hyperparameters θ, computed from the last q(f), or in the first step from mean utilities."""
    approximator = log_posterior.approximator
    assert isinstance(approximator, VariationalBayes)
    k, prior_mean, labels, likelihood = log_posterior.moments(theta)
    prior = DensePrior(k, prior_mean)
    ones, start = np.ones(prior.shape), None
    try:
        if inner is None:
            solution = log_posterior.solve(theta, None if before is None else before.start)
            posterior, start = solution.posterior, solution.start
            bound, utilities = approximator.bound(posterior, labels, likelihood)
        else:
            posterior = make_posterior(prior, SiteForm.INDEPENDENT, ones, np.zeros(prior.shape))
            _, utilities = approximator.bound(posterior, labels, likelihood)
            if before is not None:
                utilities = before.utilities
            elif begin is not None:
                utilities = begin
            for _ in range(inner):
                posterior = posterior_of(prior, IndependentSites(ones, utilities))
                bound, utilities = approximator.bound(posterior, labels, likelihood)
        roots = covariance_roots(posterior)
    except NotPositiveDefiniteError as error:
        raise ValueError(f"hyper='mean_field': {error}") from None
    c, n = prior.shape
    log_det = c // len(prior.k) * 2.0 * np.log(prior.roots.diagonal(axis1=1, axis2=2)).sum()
    spread = c // len(roots) * (roots**2).sum()
    pull = (posterior.weights * (posterior.mean - prior_mean)).sum()
    constant = c * n * np.log(2 * np.pi)
    rest = bound + 0.5 * (pull + log_det - spread + c * n + constant)
    noise = ((utilities - posterior.mean) ** 2).sum()
    by_utilities = bound + 0.5 * (pull + posterior.log_determinant + noise + constant)
    return LatentValues(posterior.mean, roots, bound, float(rest), float(by_utilities), utilities, start)


def _log_weights(
    log_posterior: DenseLogPosterior, thetas: Array, latent: LatentValues, kind: Weights, functions: NDArray[np.bool_]
) -> Array:
    """Return log weights (b, draws) of hyperparameters (draws, d): sums over the functions of each block."""

    def of_each(moments: Moments) -> Array:
        try:
            return kind.each(moments, latent)
        except NotPositiveDefiniteError:
            return np.full(len(moments.mean), -np.inf)

    found: list[Array] = []
    for first in range(0, len(thetas), _TOGETHER):
        moments = [log_posterior.moments(theta) for theta in thetas[first : first + _TOGETHER]]
        found += log_posterior.each(of_each, moments)
    each = np.array(found)
    return np.stack([each[:, own].sum(axis=1) for own in functions])


_PATIENCE = 5  # Steps end if the largest bound of this number of steps is not above all bounds before them.


@dataclass(frozen=True)
class MeanField(HyperMethod):
    """Variational Bayes of hyperparameters and their parents, by weighted draws from priors.

    Each step first computes the posterior of the latent values. Then it draws hyperparameters from their priors given
    the parents, and weights the draws. Last it sets parents to their most probable values given the mean of the
    hyperparameters on the natural scale. Nodes are the draws of the last step. At a node latent values have the
    Gaussian of the approximation. If latent functions have separate hyperparameters, these are independent, with
    weights from the latent values of their function alone.

    Parameters
    ----------
    draws : int
        Number of draws in each step; at least 100, so that the weights have a tail.
    steps : int
        Largest number of steps.
    weights : {"authors", "utilities", "latent", "printed"}
        Rule for the weights of draws, see `pymc_gpep.rivals.mean_field`. `"authors"` are the weights in the program of
        Girolami and Rogers, which predict best on the paper's data. They are for functions of variance 1, have no
        bound, and do not learn a magnitude. `"utilities"` and `"latent"` have lower bounds of log p(y), and the bound
        of `"utilities"` is higher. `"printed"` are the weights of the paper's equation 4.5. With these, all inputs of
        its toy example become irrelevant. `"authors"` and `"printed"` begin at the prior means, and update latent
        values once in each step. All other rules begin at the maximum, and update latent values until convergence.
    inner : int, optional
        Number of updates of the latent values in a step. The default depends on the weights.
    tolerance : float
        The method ends after five steps without this relative increase of the bound. With weights that have no bound,
        it takes all steps. A message then states whether the bound at the mean of the hyperparameters still rises.

    Examples
    --------
    >>> import pymc as pm
    >>> with model:  # doctest: +SKIP
    ...     vb = pm.fit(method="vb", hyper="mean_field", hyper_options={"weights": "utilities"})
    """

    draws: int = field(default=500, metadata=at_least(100))
    steps: int = field(default=50, metadata=at_least(1))
    weights: str = field(default=next(iter(WEIGHTS)), metadata=one_of(*WEIGHTS))
    inner: int | None = field(default=None, metadata=at_least(1))
    tolerance: float = field(default=0.01, metadata=at_least(0))

    name: ClassVar[str] = "mean_field"
    only_for: ClassVar[tuple[type, str]] = (VariationalBayes, "method='vb' of a gpep.MultinomialProbit")

    @property
    def _bounded(self) -> bool:
        """Whether the weights have a bound of log p(y)."""
        return WEIGHTS[self.weights].rest is not None

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Return the draws of the last step with positive weight, and the bound of log p(y) given the parents."""
        self.check(log_posterior.approximator, log_posterior.name)
        bounds: list[float] = []
        rises = True
        steps = mean_field_steps(
            log_posterior,  # type: ignore[arg-type]  # `check` let no other pass
            log_posterior.space.initial_point() if WEIGHTS[self.weights].from_priors else optimum.best.theta,
            draws=self.draws,
            weights=self.weights,
            inner=self.inner,
            random_seed=random_seed,
        )
        with progress_bar(progressbar) as progress:
            task = progress.add_task("Hyperparameters by mean field", total=self.steps)
            for step in steps:
                bounds.append(step.joint_bound if self._bounded else step.latent.bound)
                progress.advance(task)
                if len(bounds) > _PATIENCE:
                    rise = max(bounds[-_PATIENCE:]) - max(bounds[:-_PATIENCE])
                    rises = rise > self.tolerance * abs(bounds[-1])
                if (self._bounded and not rises) or len(bounds) == self.steps:
                    break
        seen = len(bounds) > _PATIENCE
        known = "the bound still rises" if seen else "it is unknown whether the bound still rises"
        after = f"after {self.steps} step{'' if self.steps == 1 else 's'}"
        still = f"{after} {known}: increase steps" if rises else ""
        return self._posterior(log_posterior, step, still, random_seed, progressbar)

    def _posterior(
        self, log_posterior: LogPosterior, step: Step, still: str, random_seed: int, progressbar: bool
    ) -> HyperPosterior:
        weighing = self._weighing(step)
        draws, log_weights = step.joint_draws(random_seed)
        weights = np.exp(log_weights - log_weights.max())
        kept = worth_keeping(weights)
        here = log_posterior(step.theta, step.latent.start)
        spread = draws[kept].std(axis=0)
        near = Neighbours((here.theta,), (here.start,), np.diag(np.where(spread > 0, spread, 1.0)))
        nodes = evaluate_nodes(log_posterior, draws[kept], near, progressbar)
        good = self.usable(nodes)
        few = "" if weighing.usable else "too few: use more draws, or take hyper='importance'"
        about = weighing.about("the lower bound" if self._bounded else "their log mean weight")
        return self.posterior(
            log_posterior,
            good,
            weights[kept][[node is not None for node in nodes]],
            [few, still, failures(nodes)],
            about,
            log_evidence=weighing.estimate.value,
            weighing=weighing,
        )

    def _weighing(self, step: Step) -> Weighing:
        """Return the reliability of the weights in the worst block."""
        blocks = [Weighing.of(logs, smooth(logs[np.isfinite(logs)])[1]) for logs in step.log_weights]
        error = float(np.linalg.norm([block.estimate.error for block in blocks]))
        return Weighing(
            Estimate(step.joint_bound, error),
            min(block.effective_size for block in blocks),
            max(block.pareto_k for block in blocks),
            self.draws,
        )
