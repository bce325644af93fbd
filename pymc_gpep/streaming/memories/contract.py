"""What a fit remembers between batches: the q(v) of whitened inducing values, and what follows from it at a batch.

q(v_k) = N(μ, Σ), Σ = (I + S)⁻¹, μ = Σ h, with S = Σ t w wᵀ and h = Σ ν w over all sites exp(ν x − ½ t x²), x = wᵀv.
A memory says which Gaussian a batch's factors are taken with, which sites they get, and what the batch adds to the
objective and its gradient. Sites and Gaussians are constants there, being natural parameters of v, whose prior has no
hyperparameters: only w and s, in the moments that the factors see, depend on these.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.streaming.rules.contract import Rule

__all__ = ["BatchSites", "Gaussian", "Marginals", "Memory", "gaussian", "site_of"]


class Gaussian(NamedTuple):
    """N(μ_k, Σ_k) for c functions, by natural parameters."""

    factor: TensorVariable
    """Cholesky factor of I + S, (c, M, M)."""
    mean: TensorVariable
    """μ, (c, M)."""
    log_normalisers: TensorVariable
    """log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv, (c,)."""


class Marginals(NamedTuple):
    """What the sites of a batch see, (B, d)."""

    mean: TensorVariable
    """Of x."""
    variance: TensorVariable
    """Of x."""
    prior_mean: TensorVariable
    """What is added to x in the latent value."""
    rest: TensorVariable
    """Variance that is added."""


class BatchSites(NamedTuple):
    """What comes of a batch."""

    precision: TensorVariable
    """t, (B, d)."""
    location: TensorVariable
    """ν, (B, d)."""
    value: TensorVariable
    """What each point adds to the objective, (B,)."""
    in_mean: TensorVariable
    """Derivatives of that with w and s of the site: of the mean of x under the Gaussian, (B, d)."""
    in_variance: TensorVariable
    """Of its variance, (B, d)."""
    in_rest: TensorVariable
    """Of s, (B, d)."""
    floored: TensorVariable
    """Whether a site of a point was held back, (B,)."""


@dataclass(frozen=True)
class Memory(ABC):
    """A way to make sites of a batch, given nothing of its rows but what is in S and h."""

    name: ClassVar[str]
    """What `memory=` calls it."""
    functional: ClassVar[str]
    """What it needs of a rule, see `Rule.functional`."""
    objective: ClassVar[str]
    """What the printed number is."""

    def share(self, counts: TensorVariable) -> TensorVariable:
        """Which part of S and h is in the Gaussian that a batch is taken with, (c,), from the number of sites (c,)."""
        return pt.ones_like(counts)

    @abstractmethod
    def seen(self, precision: TensorVariable, location: TensorVariable, counts: TensorVariable) -> Gaussian:
        """The Gaussian that a batch is taken with, from S (c, M, M), h (c, M) and the number of sites (c,)."""

    @abstractmethod
    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        """Sites of a batch."""

    @abstractmethod
    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        """What the objective is without any points, a number."""


def gaussian(precision: TensorVariable, location: TensorVariable) -> Gaussian:
    """The Gaussian of S (c, M, M) and h (c, M); NaN where I + S has no Cholesky factor."""
    factor = pt.linalg.cholesky(precision + pt.eye(precision.type.shape[1])[None])
    half = pt.linalg.solve_triangular(factor, location, lower=True, b_ndim=1)
    mean = pt.linalg.solve_triangular(factor, half, lower=True, trans=1, b_ndim=1)
    log_det = pt.log(pt.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    return Gaussian(factor, mean, 0.5 * (half * half).sum(axis=1) - log_det)


def site_of(
    rho: TensorVariable, gamma: TensorVariable, mean: TensorVariable, variance: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """The site t, ν that makes a cavity N(mean, variance) have the moments of the tilted distribution.

    Of one that is wider than its cavity, as of labels that may be noise, it matches the mean alone.
    """
    gamma = pt.maximum(gamma, 0.0)
    narrower = 1.0 - gamma * variance
    return gamma / narrower, (rho + gamma * mean) / narrower
