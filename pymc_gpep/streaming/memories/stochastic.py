"""Stochastic EP: all sites of a function are taken to be the same, and a cavity lacks one of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.sparse_step.site_updates import matching_sites
from pymc_gpep.solvers.shared_step import SharedPosterior
from pymc_gpep.streaming.gaussian import Gaussian, gaussian
from pymc_gpep.streaming.memories.averages import AveragesMemory, BatchSites
from pymc_gpep.streaming.memories.memory import ArrayMarginals, ArrayMemory, ArraySites, Marginals, site_of
from pymc_gpep.streaming.rules.point_kernel import ArrayTerms
from pymc_gpep.streaming.rules.rule import Rule

__all__ = ["Stochastic"]


@dataclass(frozen=True)
class Stochastic(AveragesMemory):
    """Villacampa-Calvo and Hernández-Lobato (2017), sections 2.3.1 and 2.3.2; Li et al. (2015).

    The objective takes each point's factor under a cavity that still holds almost all of its own site, and so is larger
    than EP's log normaliser by an amount that does not shrink with the number of rows.
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

    def in_arrays(self) -> ArrayMemory:
        return _StochasticArrays()

    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        whole = gaussian(precision, location).log_normalisers
        return (whole + counts * (seen.log_normalisers - whole)).sum()


class _StochasticArrays:
    def share(self, counts: Array) -> Array:
        """See `ArrayMemory`."""
        found: Array = 1.0 - 1.0 / counts
        return found

    def sites(self, terms: Callable[[Array, Array], ArrayTerms], at: ArrayMarginals) -> ArraySites:
        """See `ArrayMemory`."""
        found = terms(at.prior_mean + at.mean, at.rest + at.variance)
        t, nu = np.empty_like(at.mean), np.empty_like(at.mean)
        matching_sites(found.in_mean, found.in_variance, at.mean, at.variance, t, nu)
        return ArraySites(
            t, nu, found.value, found.in_mean, found.in_variance, found.in_variance, np.zeros(len(found.value))
        )

    def constant(self, seen: SharedPosterior, whole: Callable[[], Array], counts: Array) -> float:
        """See `ArrayMemory`."""
        of_all = whole()
        return float((of_all + counts * (seen.log_normalisers - of_all)).sum())
