"""Variational inference by natural gradients: a site is what the expected log likelihood of a point does to q."""

from dataclasses import dataclass
from typing import ClassVar

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.streaming.gaussian import Gaussian, gaussian
from pymc_gpep.streaming.memories.averages import AveragesMemory, BatchSites
from pymc_gpep.streaming.memories.memory import Marginals
from pymc_gpep.streaming.rules.rule import Rule

__all__ = ["Variational"]


@dataclass(frozen=True)
class Variational(AveragesMemory):
    """Hensman et al. (2013) in natural parameters (Khan and Lin 2017): no cavity is formed.

    The objective is the lower bound Σ E_q[log t] − KL(q, N(0, I)).
    """

    name: ClassVar[str] = "variational"
    functional: ClassVar[str] = "expected log"
    objective: ClassVar[str] = "lower bound"

    def seen(self, precision: TensorVariable, location: TensorVariable, counts: TensorVariable) -> Gaussian:
        return gaussian(precision, location)

    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        of_point = rule.terms(marginals.prior_mean + marginals.mean, marginals.rest + marginals.variance, labels)
        t = -2.0 * of_point.in_variance
        return BatchSites(
            t,
            of_point.in_mean + t * marginals.mean,
            of_point.value,
            of_point.in_mean,
            of_point.in_variance,
            of_point.in_variance,
            pt.zeros_like(labels),
        )

    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        functions, size = location.type.shape
        root = pt.linalg.solve_triangular(
            seen.factor, pt.broadcast_to(pt.eye(size)[None], (functions, size, size)), lower=True, b_ndim=2
        )
        log_det = pt.log(pt.diagonal(seen.factor, axis1=1, axis2=2)).sum(axis=1)
        return -0.5 * ((root * root).sum() + (seen.mean**2).sum() - functions * size + 2.0 * log_det.sum())
