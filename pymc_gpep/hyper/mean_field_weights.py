"""Weights of draws of the hyperparameters in variational Bayes, by name.

The logarithm of a draw's weight is a sum over latent functions k of terms r_k(φ). Let q(f) = N(f̃, S), and let N(m, K)
be the prior of the latent values at φ. The mean utilities are ṽ = f̃ + ∂ log p(y | f̃) / ∂f̃. The terms are:

- "authors": −½ (f̃_k − m_k)ᵀ (K_k + I)⁻¹ (f̃_k − m_k), of the program behind the results of Girolami and Rogers (2006).

- "utilities": log N(ṽ_k | m_k, K_k + I), the latent values integrated out, which is the best q(φ) of q(v) q(f, φ).

- "latent": log N(f̃_k | m_k, K_k) − ½ tr K_k⁻¹ S_k, which is the best q(φ) of q(f) q(v) q(φ).

- "printed": log N(f̃_k | m_k, K_k), equation 4.5 of their paper, which has no trace.

Two of them bound log p(y | ψ̃) from below, as far as the mean of exp r_s over draws φ_s ~ p(φ | ψ̃) is its expectation.
With weights of the latent values and with those of the utilities the bound is

    Σ_i log p(y_i | f̃_i) − ½ Σ_k tr S_k + ½ Σ_k log|2πe S_k| + log mean_s exp r_s,

    Σ_i log p(y_i | f̃_i) + ½ |ṽ − f̃|² + ½ c n log 2π + log mean_s exp r_s,

the latter for q(v) = N(f̃, I) truncated to the cones of the labels. The documentation's page on mathematics derives the
authors' weights.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.prior_moments.prior_functions import Moments


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


class Weights(NamedTuple):
    """How draws are weighted, and what steps with these weights are like."""

    each: Callable[[Moments, LatentValues], Array]
    """The r_k, (c,), of a prior of the latent values."""
    rest: Callable[[LatentValues], float] | None
    """Of the bound of log p(y | ψ̃) all but what the draws say; None where there is no bound."""
    updates: int | None
    """Updates of the latent values in a step; None for as many as they need."""
    from_priors: bool
    """Whether steps begin at the means of the priors, and not at the maximum of the hyperparameters' posterior."""


def _with_noise(moments: Moments) -> DensePrior:
    return DensePrior(moments.k + np.eye(moments.k.shape[-1]), moments.mean)


def _by_authors(moments: Moments, latent: LatentValues) -> Array:
    return np.asarray(-0.5 * (_with_noise(moments).whitened(latent.mean) ** 2).sum(axis=1))


def _by_utilities(moments: Moments, latent: LatentValues) -> Array:
    return _with_noise(moments).expected_log_density(latent.utilities)


def _by_latent_values(moments: Moments, latent: LatentValues) -> Array:
    return DensePrior(moments.k, moments.mean).expected_log_density(latent.mean, latent.roots)


def _as_printed(moments: Moments, latent: LatentValues) -> Array:
    return DensePrior(moments.k, moments.mean).expected_log_density(latent.mean)


WEIGHTS: dict[str, Weights] = {
    "authors": Weights(_by_authors, None, 1, True),
    "utilities": Weights(_by_utilities, lambda latent: latent.rest_by_utilities, None, False),
    "latent": Weights(_by_latent_values, lambda latent: latent.rest, None, False),
    "printed": Weights(_as_printed, None, 1, True),
}
"""By name, the default first."""
