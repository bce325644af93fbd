"""Stochastic EP: all sites of a function are taken to be the same, and a cavity lacks one of them."""

from dataclasses import dataclass
from typing import ClassVar

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.solvers.batch_sites import StochasticSites
from pymc_gpep.streaming.gaussian import Gaussian, gaussian
from pymc_gpep.streaming.memories.averages import AveragesMemory, BatchSites
from pymc_gpep.streaming.memories.memory import Marginals, site_of
from pymc_gpep.streaming.rules.rule import Rule


@dataclass(frozen=True)
class Stochastic(AveragesMemory):
    """Villacampa-Calvo and Hernández-Lobato (2017), sections 2.3.1 and 2.3.2; Li et al. (2015).

    The objective takes each point's factor under a cavity that still holds almost all of its own site. It is therefore
    larger than EP's log normaliser, by an amount that does not shrink with the number of rows.
    """

    name: ClassVar[str] = "stochastic"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "objective of stochastic EP"
    decay: ClassVar[float] = 0.0

    def share(self, counts: TensorVariable) -> TensorVariable:
        return 1.0 - 1.0 / counts

    def seen(self, precision: TensorVariable, location: TensorVariable, counts: TensorVariable) -> Gaussian:
        share = self.share(counts)
        return gaussian(share[:, None, None] * precision, share[:, None] * location)

    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        of_point = rule.terms(marginals.prior_mean + marginals.mean, marginals.rest + marginals.variance, labels)
        gamma = of_point.in_mean**2 - 2.0 * of_point.in_variance
        t, nu = site_of(of_point.in_mean, gamma, marginals.mean, marginals.variance)
        return BatchSites(
            t,
            nu,
            of_point.value,
            of_point.in_mean,
            of_point.in_variance,
            of_point.in_variance,
            pt.zeros_like(labels),
        )

    def in_arrays(self) -> StochasticSites:
        return StochasticSites()

    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        whole = gaussian(precision, location).log_normalisers
        return (whole + counts * (seen.log_normalisers - whole)).sum()
