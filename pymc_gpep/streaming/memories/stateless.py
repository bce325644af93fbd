"""EP that remembers no site: at a fixed point each follows from q alone, and is found again from it."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.limits import at_least
from pymc_gpep.graphs.repeated import repeat
from pymc_gpep.solvers.batch_sites import StatelessSites
from pymc_gpep.streaming.gaussian import Gaussian
from pymc_gpep.streaming.memories.averages import AveragesMemory, BatchSites
from pymc_gpep.streaming.memories.memory import Marginals, log_site_normalisers, site_of
from pymc_gpep.streaming.rules.rule import PointTerms, Rule

_LEAST = 0.05  # of the precision of a marginal that a cavity keeps


@dataclass(frozen=True)
class Stateless(AveragesMemory):
    """A site is the solution of site = update(q / site), on scalars; iterated from zero.

    Parameters
    ----------
    local_iterations : int
        How often. Few of them leave a little of the site in the cavity.
    """

    local_iterations: int = field(default=3, metadata=at_least(1))

    name: ClassVar[str] = "stateless"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "log normaliser of EP"

    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        def update(t: TensorVariable, nu: TensorVariable, *values: TensorVariable) -> list[TensorVariable]:
            here, own_labels = Marginals(*values[:-1]), values[-1]
            of_point, cavity_mean, cavity_variance = _terms(rule, here, own_labels, t, nu)
            gamma = of_point.in_mean**2 - 2.0 * of_point.in_variance
            new, location = site_of(of_point.in_mean, gamma, cavity_mean, cavity_variance)
            # The mean that the site has stays where its precision is held back.
            bounded = pt.minimum(new, (1.0 - _LEAST) / here.variance)
            return [bounded, pt.switch(new > bounded, location * bounded / new, location)]

        mean, variance = marginals.mean, marginals.variance
        nothing = pt.zeros_like(mean)
        t, nu = repeat(update, [nothing, nothing], [*marginals, labels], self.local_iterations)
        keep = 1.0 - t * variance
        of_point, cavity_mean, cavity_variance = _terms(rule, marginals, labels, t, nu)
        without = (t * mean - nu) / keep
        return BatchSites(
            t,
            nu,
            of_point.value - log_site_normalisers(t, nu, cavity_mean, cavity_variance),
            of_point.in_mean,
            0.5 * of_point.in_mean * without + of_point.in_variance / keep,
            of_point.in_variance,
            pt.ge(t * variance, (1.0 - _LEAST) * (1.0 - 1e-12)).any(axis=1),
        )

    def in_arrays(self) -> StatelessSites:
        return StatelessSites(self.local_iterations, _LEAST)

    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        return seen.log_normalisers.sum()


def _terms(
    rule: Rule, marginals: Marginals, labels: TensorVariable, t: TensorVariable, nu: TensorVariable
) -> tuple[PointTerms, TensorVariable, TensorVariable]:
    """Return the terms of the cavities without sites t, ν, and the means and variances of these cavities."""
    keep = 1.0 - t * marginals.variance
    cavity_mean, cavity_variance = (marginals.mean - nu * marginals.variance) / keep, marginals.variance / keep
    of_point = rule.terms(marginals.prior_mean + cavity_mean, marginals.rest + cavity_variance, labels)
    return of_point, cavity_mean, cavity_variance
