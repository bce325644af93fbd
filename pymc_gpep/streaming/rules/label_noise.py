"""Labels of which a part ε is drawn from all classes alike.

The likelihood of a point is (1 − ε) P + ε / c, taken as it is. P is the probability that the utility of the label is
the largest; utilities are latent values with the likelihood's noise.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.approximations.site_rules.whole_point import WholePoint
from pymc_gpep.likelihoods.label_noise.likelihood import LabelNoise
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.batch_sites import PointKernel, whole_point_kernel
from pymc_gpep.streaming.rules.rule import PointTerms, Rule
from pymc_gpep.streaming.rules.whole_point import log_largest

__all__ = ["LabelNoiseNormaliser"]

_LEAST = 1e-12  # variance of utilities that have none


@dataclass(frozen=True)
class LabelNoiseNormaliser(Rule):
    """log((1 − ε) P + ε / c), with ε and the variance of the noise of utilities.

    Tilted distributions may be wider than their cavities. Sites match the mean alone there: see `site_of`.
    """

    epsilon: float
    noise: float

    expresses: ClassVar[type[SiteRule]] = WholePoint
    functional: ClassVar[str] = "log normaliser"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return isinstance(likelihood, LabelNoise)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        assert isinstance(likelihood, LabelNoise)
        return cls(float(likelihood.parameters[0, 0]), likelihood.noise)

    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        return pt.zeros_like(labels)[:, None] + pt.arange(c)[None, :]

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        found = log_largest(mean, variance + max(self.noise, _LEAST), labels)
        if not self.epsilon:
            return found
        right = np.log1p(-self.epsilon) + found.value
        value = pt.logaddexp(right, np.log(self.epsilon / mean.type.shape[1]))
        share = pt.exp(right - value)[:, None]
        return PointTerms(value, share * found.in_mean, share * found.in_variance)

    def kernel(self) -> PointKernel:
        return whole_point_kernel(max(self.noise, _LEAST), self.epsilon)
