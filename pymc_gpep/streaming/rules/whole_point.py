"""The probability of the class of a point as it is: one factor, and a site for each function.

A class is that of the largest of utilities, latent values with independent normal noise. With label noise the
likelihood of a point is (1 − ε) p + ε / c, where p is this probability. It averages to Ẑ₀ over normal latent values.
"""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.point_averages import check_label_noise
from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.approximations.site_rules.whole_point import WholePoint
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import LargestUtility
from pymc_gpep.likelihoods.log_probabilities import log_ndtr
from pymc_gpep.solvers.batch_sites import PointKernel, expected_labels_kernel, whole_point_kernel
from pymc_gpep.streaming.graph_functions import hazard, window
from pymc_gpep.streaming.rules.rule import PointTerms, Rule

_NODES = 64
_LEAST = 1e-12  # variance of utilities that have none


@dataclass(frozen=True)
class _OfWholePoint(Rule, ABC):
    """(1 − ε) p + ε / c.

    Attributes
    ----------
    epsilon : float
        ε, 0 where labels have no noise.
    noise : float
        Variance of the noise of utilities.
    """

    epsilon: float
    noise: float
    log_concave: bool

    expresses: ClassVar[type[SiteRule]] = WholePoint

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(LargestUtility)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        epsilon = float(likelihood.parameters[0, 0]) if likelihood.has_parameters else 0.0
        noise = max(likelihood.computation(LargestUtility).noise, _LEAST)
        return cls(epsilon, noise, likelihood.log_concave)

    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        return pt.zeros_like(labels)[:, None] + pt.arange(c)[None, :]


class WholePointNormaliser(_OfWholePoint):
    """log((1 − ε) Ẑ₀ + ε / c), Ẑ₀ = ∫ N(t | m_y, 1 + v_y) ∏_k Φ((t − m_k) / √(1 + v_k)) dt, k ≠ y.

    Villacampa-Calvo and Hernández-Lobato (2017), equation 3, of which they take a product over k apart. Ẑ₀ is computed
    by a fixed number of nodes. With label noise tilted distributions may be wider than their cavities: see `site_of`.
    """

    functional: ClassVar[str] = "log normaliser"

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        found = _log_largest(mean, variance + self.noise, labels)
        if not self.epsilon:
            return found
        right = np.log1p(-self.epsilon) + found.value
        value = pt.logaddexp(right, np.log(self.epsilon / mean.type.shape[1]))
        share = pt.exp(right - value)[:, None]
        return PointTerms(value, share * found.in_mean, share * found.in_variance)

    def kernel(self) -> PointKernel:
        return whole_point_kernel(self.noise, self.epsilon)


class ExpectedLogLabelNoise(_OfWholePoint):
    """Ẑ₀ log(1 − ε + ε / c) + (1 − Ẑ₀) log(ε / c) (Villacampa-Calvo and Hernández-Lobato 2017, equations 14 to 17).

    It is the expected logarithm where utilities have no noise of their own, and a lower bound of it where they have.
    """

    functional: ClassVar[str] = "expected log"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return super().fits(likelihood) and likelihood.has_parameters

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        check_label_noise(likelihood)
        return super().of(likelihood)

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        found = _log_largest(mean, variance + self.noise, labels)
        c = mean.type.shape[1]
        lowest = np.log(self.epsilon / c)
        gain = (np.log1p(-self.epsilon * (1.0 - 1.0 / c)) - lowest) * pt.exp(found.value)
        return PointTerms(lowest + gain, gain[:, None] * found.in_mean, gain[:, None] * found.in_variance)

    def kernel(self) -> PointKernel:
        return expected_labels_kernel(self.noise, self.epsilon)


def _log_largest(mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
    """Log probability that of independent normal numbers, means and variances (B, c), that of the label is largest."""
    # x is the utility of the observed class in its own units; the other classes' factors are Φ(a x + d).
    observed = pt.eq(pt.arange(mean.type.shape[1])[None, :], labels[:, None])
    inverse = 1.0 / pt.sqrt(variance)
    own_mean = (mean * observed).sum(axis=1, keepdims=True)
    own_scale = 1.0 / (inverse * observed).sum(axis=1, keepdims=True)
    a, d = own_scale * inverse, (own_mean - mean) * inverse
    others = 1.0 - observed

    def integrand(x: TensorVariable) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        z = a * x[..., None] + d
        rate = hazard(z) * others
        return (
            (log_ndtr(z) * others).sum(axis=-1) - 0.5 * x * x,
            (a * rate).sum(axis=-1) - x,
            (a * a * rate * (rate + z)).sum(axis=-1) + 1.0,
        )

    x, step = window(integrand, own_mean[:, 0], _NODES)
    z = a[:, :, None] * x[:, None, :] + d[:, :, None]
    log_terms = (log_ndtr(z) * others[:, :, None]).sum(axis=1) - 0.5 * x * x
    top = log_terms.max(axis=1, keepdims=True)
    weights = pt.exp(log_terms - top)
    total = weights.sum(axis=1)
    log_z = top[:, 0] + pt.log(total * step) - 0.5 * np.log(2.0 * np.pi)
    weights = weights / total[:, None]
    rate = hazard(z) * weights[:, None, :]
    of_others = -inverse * rate.sum(axis=2)
    in_variance = -0.5 * inverse * inverse * (rate * z).sum(axis=2)
    own = 0.5 * inverse * inverse * ((weights * x * x).sum(axis=1, keepdims=True) - 1.0)
    of_own = inverse * (weights * x).sum(axis=1, keepdims=True)
    return PointTerms(log_z, pt.switch(observed, of_own, of_others), pt.switch(observed, own, in_variance))
