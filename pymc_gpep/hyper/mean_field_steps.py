"""Steps of variational Bayes for latent values, hyperparameters and their parents together.

Girolami and Rogers (2006, sections 4.3 and 4.4) take the posterior to be q(f) q(v) q(φ), with utilities v, the
hyperparameters φ of the latent values' prior, and the parents ψ of the priors of φ at a point. The best of each given
the others is

    q(f) = N(f̃, S), S_k = K_k (K_k + I)⁻¹ with K at the mean φ̃,                           equations 4.1 and 4.6
    q(φ) ∝ p(φ | ψ̃) exp E_q(f) log N(f | m_φ, K_φ),                                       equation A.3
    ψ̃ = argmax p(ψ) p(φ̃ | ψ), unconstrained,                                             equation 4.8

where E_q(f) log N(f | m, K) = log N(f̃ | m, K) − ½ Σ_k tr K_k⁻¹ S_k. The paper leaves the trace out, and has one φ for
each class; here all have one q(φ), and densities of the classes are multiplied. To put φ̃ for φ in K is the paper's
first-order approximation of E[K⁻¹] (appendix A.1).

With r_s = E_q(f) log N(f | m, K) at draws φ_s ~ p(φ | ψ̃), log p(y | ψ̃) is at least, with the trace and as far as the
mean of exp r_s is its expectation,

    Σ_i log p(y_i | f̃_i) − ½ Σ_k tr S_k + ½ Σ_k log|2πe S_k| + log mean_s exp r_s.

A posterior q(v) q(f, φ) asks for less. The best q(f, φ) has

    q(φ) ∝ p(φ | ψ̃) N(ṽ | m_φ, K_φ + I),

the latent values integrated out, with the mean utilities ṽ = f̃ + ∂ log p(y | f̃) / ∂f̃; their covariance says nothing of
φ. With r_s = log N(ṽ | m, K + I) the bound is, for q(v) = N(f̃, I) truncated to the cones of the labels,

    Σ_i log p(y_i | f̃_i) + ½ |ṽ − f̃|² + ½ c n log 2π + log mean_s exp r_s.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from pymc.blocking import DictToArrayBijection, PointType
from scipy.special import softmax

from pymc_gpep.approximations.variational_bayes import VariationalBayes
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.gaussians.independent import IndependentPosterior
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.gaussians.sites import IndependentSites
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.parents import most_probable_parents
from pymc_gpep.hyper.weights import importance_estimate
from pymc_gpep.structure.hierarchy import Hierarchy
from pymc_gpep.structure.natural_scale import unconstrain
from pymc_gpep.structure.prior_functions import Moments

__all__ = ["LatentValues", "Step", "log_weights", "mean_field_steps"]

_TOGETHER = 16  # densities that do not wait for each other


class LatentValues(NamedTuple):
    """q(f), and what it adds to bounds."""

    mean: Array
    """f̃, (c, n)."""
    roots: Array
    """R_k, (1 or c, n, n), with S_k = R_k R_kᵀ."""
    bound: float
    """Of the log evidence at the hyperparameters that K is of."""
    rest: float
    """Of the bound of log p(y | ψ̃) all but what the draws say, weighted by latent values."""
    rest_by_utilities: float
    """The same where they are weighted by utilities."""
    utilities: Array
    """Their means under q(v), (c, n)."""
    start: Array | None
    """Where a solve near by starts."""


class Step(NamedTuple):
    """Where one ended."""

    theta: Array
    """φ̃ and ψ̃, flat, unconstrained."""
    latent: LatentValues
    """With the hyperparameters that the step began with."""
    draws: Array
    """φ_s with the ψ̃ that they were drawn for, flat, unconstrained, (draws, d)."""
    log_weights: Array
    """Their r_s; −inf where K has no Cholesky factor, (draws,)."""
    joint_bound: float
    """Of log p(y | ψ̃), with the ψ̃ of the draws; weights of latent values without the trace do not make it one."""


def mean_field_steps(
    log_posterior: LogPosterior,
    theta: Array,
    *,
    draws: int,
    trace: bool = True,
    utilities: bool = False,
    inner: int | None = None,
    random_seed: int = 0,
) -> Iterator[Step]:
    """Go on from hyperparameters θ, one step after the other without end.

    Parameters
    ----------
    log_posterior : LogPosterior
        By variational Bayes of a multinomial probit.
    theta : array (d,)
        Unconstrained.
    draws : int
        New ones in each step.
    trace : bool
        Whether the spread of the latent values counts in the weights.
    utilities : bool
        Whether weights are those of the utilities, the latent values integrated out; `trace` then has no say.
    inner : int, optional
        How many updates (4.6) of q(f) a step has; until it converges if not given.
    random_seed : int

    Raises
    ------
    StructureError
        If the model has no hyperparameters that can be drawn from their priors.
    ValueError
        If a prior covariance cannot be one, at the mean of the hyperparameters or at all draws.
    """
    hierarchy = Hierarchy(log_posterior.classifier, log_posterior.data)
    sample = hierarchy.sampler(random_seed)
    values_of = unconstrain(log_posterior.classifier)
    order = [v.name for v in log_posterior.value_vars]

    def flat(values: PointType) -> Array:
        return np.asarray(DictToArrayBijection.map({name: values[name] for name in order}).data, dtype=np.float64)

    def natural(of: Array) -> dict[str, Array]:
        return {name: values[0] for name, values in log_posterior.natural(of[None]).items()}

    latent: LatentValues | None = None
    while True:
        latent = _latent_values(log_posterior, theta, inner, latent)
        own = natural(theta)
        drawn = sample(own, draws)
        thetas = np.array([flat(values_of({**own, **each})) for each in drawn])
        logs = log_weights(log_posterior, thetas, latent, trace=trace, utilities=utilities)
        if not np.isfinite(logs).any():
            raise ValueError(
                "hyper='mean_field': the prior covariance is not positive definite at any of the hyperparameters that "
                f"were drawn from their priors, with {_shown(own, hierarchy.parents)}. Give them other priors, or take "
                "hyper='importance'."
            )
        weights = softmax(logs)
        children = {name: np.tensordot(weights, np.array([each[name] for each in drawn]), 1) for name in drawn[0]}
        point = log_posterior.point(theta)
        theta = flat({**point, **most_probable_parents(hierarchy, point, children)})
        theta = flat(values_of({**natural(theta), **children}))
        if not np.isfinite(theta).all():
            raise ValueError(
                f"hyper='mean_field': with {_shown(children, hierarchy.children)} the most probable values of "
                f"{', '.join(hierarchy.parents) or 'none'} are at the edge of what is possible. Give them other "
                "priors, or take hyper='importance'."
            )
        rest = latent.rest_by_utilities if utilities else latent.rest
        yield Step(theta, latent, thetas, logs, rest + importance_estimate(logs)[0].value)


def _shown(values: dict[str, Array], names: list[str]) -> str:
    return ", ".join(f"{name} = {values[name].tolist()}" for name in names) or "no parents"


def _latent_values(
    log_posterior: LogPosterior, theta: Array, inner: int | None, before: LatentValues | None
) -> LatentValues:
    """q(f) at some hyperparameters, from where it was."""
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
            posterior = IndependentPosterior(prior, ones, np.zeros(prior.shape))
            _, utilities = approximator.bound(posterior, labels, likelihood)
            if before is not None:
                utilities = before.utilities
            for _ in range(inner):
                posterior = IndependentPosterior.of(prior, IndependentSites(ones, utilities))
                bound, utilities = approximator.bound(posterior, labels, likelihood)
        assert isinstance(posterior, IndependentPosterior)
        roots = posterior.covariance_roots()
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


def log_weights(
    log_posterior: LogPosterior, thetas: Array, latent: LatentValues, *, trace: bool, utilities: bool
) -> Array:
    """The r_s (draws,) of hyperparameters θ_s (draws, d), see above."""

    def density(moments: Moments) -> float:
        try:
            if utilities:
                noisy = moments.k + np.eye(moments.k.shape[-1])
                return DensePrior(noisy, moments.mean).expected_log_density(latent.utilities)
            prior = DensePrior(moments.k, moments.mean)
            return prior.expected_log_density(latent.mean, latent.roots if trace else None)
        except NotPositiveDefiniteError:
            return -np.inf

    found: list[float] = []
    for first in range(0, len(thetas), _TOGETHER):
        moments = [log_posterior.moments(theta) for theta in thetas[first : first + _TOGETHER]]
        found += log_posterior.each(density, moments)
    return np.array(found)
