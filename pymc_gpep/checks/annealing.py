"""Evidence by annealing: from a Gaussian whose normaliser is known to the posterior, through what lies between.

The path is p_t(f) ∝ base(f) ratio(f)^t, 0 ≤ t ≤ 1, with base(f) ratio(f) = p(y | f) p(f) / exp(log_normaliser). So the
evidence is exp(log_normaliser) times the mean of the ratio under the base. Independent runs go along it by elliptical
slice sampling and note u = log ratio on the way. Two estimates come from the same runs:

- annealed importance sampling (Neal 2001): the mean of exp(Σ_j (t_{j+1} − t_j) u_j) is unbiased for that mean, however
  badly the transitions mix;

- thermodynamic integration: d/dt of the log normaliser of p_t is the expectation of u at t. The trapezoid rule is
  corrected by the second derivative, the variance of u (Friel, Hurn and Wyse 2014). It needs no large weights, but has
  the bias of the rule and of transitions that lag behind the temperature.

Nickisch and Rasmussen (2008, section 10) do the first, from the prior and from an approximation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.ellipse import elliptical_slice
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.gaussians.posteriors import sampled_posterior
from pymc_gpep.gaussians.prior import Prior
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.hyper.weights import Estimate


class Base(NamedTuple):
    """The Gaussian that annealing starts from: it is exp(log_sites) times the prior, normalised."""

    mean: Array
    """(c, n), or (1, q) of standard normals that latent values are made of."""
    draw: Callable[[np.random.Generator, int], Array]
    """Draws, less the mean."""
    log_sites: Callable[[Array], float]
    """What takes the prior to the base, as a function of latent values less the mean; zero for the prior itself."""
    log_normaliser: float
    """Log integral of the prior times exp(log_sites)."""


def prior_base(prior: Prior) -> Base:
    """Start from the prior."""
    return Base(prior.mean, lambda rng, count: prior.draw(rng, count) - prior.mean, lambda x: 0.0, 0.0)


def posterior_base(posterior: Posterior[Any], prior: Sampled | None = None) -> Base:
    """Start from an approximation, whether or not it has converged.

    Its sites are scaled to be 1 at the mean, which leaves no large terms to cancel.

    Parameters
    ----------
    posterior : Posterior
        The posterior of latent values.
    prior : DensePrior or NormalsPrior, optional
        The prior of what is sampled, where that is not latent values.
    """
    mean, draw, values = sampled_posterior(posterior, prior)
    return Base(
        mean=mean,
        draw=draw,
        log_sites=lambda x: float(posterior.relative_site_log_density(values(x))),
        log_normaliser=posterior.relative_log_normaliser,
    )


def anneal(
    base: Base,
    log_likelihood: Callable[[Array], float],
    temperatures: Array,
    runs: int,
    sweeps: int,
    rng: np.random.Generator,
    advance: Callable[[], None] = lambda: None,
) -> tuple[Array, int]:
    """Run along the path.

    Parameters
    ----------
    base : Base
    log_likelihood : callable
        Function that computes the log likelihood of latent values (c, n).
    temperatures : array (T,)
        Temperatures from 0 to 1, increasing.
    runs : int
        Number of independent runs.
    sweeps : int
        Updates of each run at each temperature.
    rng : Generator
    advance : callable
        Function that is called when all runs have left a temperature.

    Returns
    -------
    u : array (T, runs)
        Log ratio at the end of each temperature; −inf where the likelihood is zero or undefined.
    evaluations : int
        How often the likelihood was evaluated.
    """

    def log_ratio(x: Array) -> float:
        value = log_likelihood(base.mean + x) - base.log_sites(x)
        return -np.inf if np.isnan(value) else value

    x = base.draw(rng, runs)
    u = np.empty((len(temperatures), runs))
    u[0] = [log_ratio(own) for own in x]
    evaluations = runs
    advance()
    for j, temperature in enumerate(temperatures[1:], start=1):

        def tempered(x: Array, temperature: float = temperature) -> float:
            return temperature * log_ratio(x)

        values = temperature * u[j - 1]
        for _ in range(sweeps):
            directions = base.draw(rng, runs)
            for run in range(runs):
                x[run], values[run], count = elliptical_slice(x[run], directions[run], tempered, values[run], rng)
                evaluations += count
        u[j] = values / temperature
        advance()
    return u, evaluations


def importance_weights(u: Array, temperatures: Array) -> Array:
    """Log weight (runs,) of each run: u at each temperature but the last, times the way to the next."""
    weights: Array = np.diff(temperatures) @ u[:-1]
    return weights


def thermodynamic_estimate(u: Array, temperatures: Array) -> Estimate:
    """Corrected trapezoid rule ∫ E_t[u] dt ≈ Σ h (E + E') / 2 − h² (V' − V) / 12, V the variance of u between runs.

    The standard error is that of a mean over runs of what each adds, by the delta method. NaN where some u is infinite.
    """
    if not np.isfinite(u).all():
        return Estimate(np.nan, np.nan)
    runs = u.shape[1]
    steps = np.diff(temperatures)
    first, second = np.zeros((2, len(temperatures)))
    first[:-1] += 0.5 * steps
    first[1:] += 0.5 * steps
    second[:-1] += steps**2 / 12.0
    second[1:] -= steps**2 / 12.0
    squares = (u - u.mean(axis=1, keepdims=True)) ** 2 * (runs / (runs - 1))
    by_run = first @ u + second @ squares
    return Estimate(float(by_run.mean()), float(by_run.std(ddof=1) / np.sqrt(runs)))
