"""Labels of which a part ε is drawn from all classes alike.

The likelihood of a point is (1 − ε) P + ε / c, taken as it is. P is the probability that the utility of the label is
the largest; utilities are latent values with the likelihood's noise.
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
from pymc_gpep.likelihoods.label_noise.likelihood import LabelNoise
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.batch_sites import PointKernel, whole_point_kernel
from pymc_gpep.streaming.rules.rule import PointTerms, Rule
from pymc_gpep.streaming.rules.whole_point import log_largest

__all__ = ["ExpectedLogLabelNoise", "LabelNoiseNormaliser"]

_LEAST = 1e-12  # variance of utilities that have none


@dataclass(frozen=True)
class _OfLabelNoise(Rule, ABC):
    """(1 − ε) P + ε / c, with ε and the variance of the noise of utilities."""

    epsilon: float
    noise: float

    expresses: ClassVar[type[SiteRule]] = WholePoint
    log_concave: ClassVar[bool] = False

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return isinstance(likelihood, LabelNoise)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        assert isinstance(likelihood, LabelNoise)
        return cls(float(likelihood.parameters[0, 0]), max(likelihood.noise, _LEAST))

    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        return pt.zeros_like(labels)[:, None] + pt.arange(c)[None, :]


class LabelNoiseNormaliser(_OfLabelNoise):
    """log((1 − ε) P + ε / c).

    Tilted distributions may be wider than their cavities. Sites match the mean alone there: see `site_of`.
    """

    functional: ClassVar[str] = "log normaliser"

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        found = log_largest(mean, variance + self.noise, labels)
        if not self.epsilon:
            return found
        right = np.log1p(-self.epsilon) + found.value
        value = pt.logaddexp(right, np.log(self.epsilon / mean.type.shape[1]))
        share = pt.exp(right - value)[:, None]
        return PointTerms(value, share * found.in_mean, share * found.in_variance)

    def kernel(self) -> PointKernel:
        return whole_point_kernel(self.noise, self.epsilon)


class ExpectedLogLabelNoise(_OfLabelNoise):
    """P log(1 − ε + ε / c) + (1 − P) log(ε / c) (Villacampa-Calvo and Hernández-Lobato 2017, equations 14 to 17).

    It is the expected logarithm where utilities have no noise of their own, and a lower bound of it where they have.
    """

    functional: ClassVar[str] = "expected log"

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        check_label_noise(likelihood)
        return super().of(likelihood)

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        found = log_largest(mean, variance + self.noise, labels)
        c = mean.type.shape[1]
        lowest = np.log(self.epsilon / c)
        gain = (np.log1p(-self.epsilon * (1.0 - 1.0 / c)) - lowest) * pt.exp(found.value)
        return PointTerms(lowest + gain, gain[:, None] * found.in_mean, gain[:, None] * found.in_variance)
