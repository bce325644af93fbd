"""The prior of latent functions that are sums of effects, also at new rows, and as samplers move it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pymc as pm
from numpy.typing import ArrayLike
from pytensor.graph.basic import Variable

from pymc_gpep.latent.latent_prior import Elsewhere
from pymc_gpep.processes.cross_covariance import CrossCovariance, functions_of
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.effects_elsewhere import EffectsElsewhere, EffectsInMeans
from pymc_gpep.sums.sum_elsewhere import SumElsewhere
from pymc_gpep.sums.sum_values import SumValues


@dataclass(frozen=True, eq=False)
class LatentSum(EffectSum):
    """A sum of effects as a `LatentPrior`; attributes as of `EffectSum`."""

    def sampled(self, data: Mapping[Variable, Variable]) -> SumValues:
        return SumValues(self, data)

    def variables_there(
        self, names: Sequence[str], data: Mapping[Variable, Variable], x: ArrayLike | None, new: Mapping[str, ArrayLike]
    ) -> EffectsElsewhere:
        return EffectsElsewhere(self, names, data, x, new)

    def elsewhere(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> Elsewhere:
        if not self.alone:
            return SumElsewhere(self, gps, data)
        processes = CrossCovariance(self.without_means(), gps, data, means=False)
        return EffectsInMeans(self, processes, functions_of(self, gps), data)
