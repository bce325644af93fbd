"""The paper's factors: the observed class against each other class."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.site_rules.pairs import Pairs
from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import LargestUtility
from pymc_gpep.likelihoods.log_probabilities import log_ndtr
from pymc_gpep.solvers.batch_sites import PointKernel, expected_pair_kernel, pair_kernel
from pymc_gpep.streaming.graph_functions import hazard
from pymc_gpep.streaming.rules.rule import PointTerms, Rule


@dataclass(frozen=True)
class _OfPairs(Rule):
    """∏_k Φ((f_y − f_k) / √2), k ≠ y; the sites on f_y come first, then those on the f_k.

    The factors are Θ(f_y − f_k) where utilities have no noise. Label noise is left out, as in the paper.

    Attributes
    ----------
    noise : float
        Variance of the noise of a difference that is no part of latent values.
    """

    noise: float

    expresses: ClassVar[type[SiteRule]] = Pairs

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(LargestUtility) and Pairs.fits(likelihood)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        return cls(2.0 * likelihood.computation(LargestUtility).noise)

    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        others = np.arange(c - 1)[None, :]
        return pt.concatenate([labels[:, None] + 0 * others, others + (others >= labels[:, None])], axis=1)

    def counts(self, labels: Array, c: int) -> Array:
        return labels * (c - 1) + labels.sum() - labels


class PairNormalisers(_OfPairs):
    """Villacampa-Calvo and Hernández-Lobato (2017), equations 6 to 8."""

    functional: ClassVar[str] = "log normaliser"

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        of_mean, of_variance = _differences(mean, variance)
        scale = 1.0 / pt.sqrt(self.noise + of_variance)
        z = scale * of_mean
        rate = hazard(z)
        rho, delta = scale * rate, -0.5 * scale * scale * rate * z
        return PointTerms(log_ndtr(z).sum(axis=1), *_of_both(rho, delta))

    def kernel(self) -> PointKernel:
        return pair_kernel(self.noise)


class ExpectedLogPairs(_OfPairs):
    """By a fixed rule of quadrature in each difference, and its own derivatives.

    The sum is a lower bound of the expectation of the whole likelihood's logarithm, since the product is one.
    """

    functional: ClassVar[str] = "expected log"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        # The logarithm of a step has no average.
        return super().fits(likelihood) and likelihood.computation(LargestUtility).noise > 0.0

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        of_mean, of_variance = _differences(mean, variance)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        weights = weights / weights.sum()
        deviation = pt.sqrt(of_variance)
        z = np.sqrt(0.5) * (of_mean[..., None] + deviation[..., None] * nodes)
        rate = np.sqrt(0.5) * weights * hazard(z)
        value = (log_ndtr(z) * weights).sum(axis=(1, 2))
        return PointTerms(value, *_of_both(rate.sum(axis=-1), 0.5 * (rate * nodes).sum(axis=-1) / deviation))

    def kernel(self) -> PointKernel:
        return expected_pair_kernel(self.noise)


_NODES = 64


def _differences(mean: TensorVariable, variance: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Means and variances of f_y − f_k, (B, c − 1)."""
    half = mean.type.shape[1] // 2
    return mean[:, :half] - mean[:, half:], variance[:, :half] + variance[:, half:]


def _of_both(slope: TensorVariable, in_variance: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Derivatives in both sides of differences from those in the differences."""
    return pt.concatenate([slope, -slope], axis=1), pt.concatenate([in_variance, in_variance], axis=1)
