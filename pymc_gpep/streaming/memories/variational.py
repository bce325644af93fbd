"""Variational inference by natural gradients: a site is what the expected log likelihood of a point does to q."""

from dataclasses import dataclass
from typing import ClassVar

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.solvers.batch_sites import VariationalSites
from pymc_gpep.streaming.gaussian import Gaussian
from pymc_gpep.streaming.memories.averages import AveragesMemory, BatchSites
from pymc_gpep.streaming.memories.memory import BatchGraph, Marginals
from pymc_gpep.streaming.rules.rule import Rule

_MOST = 0.5  # of what a step keeps of a precision, that sites may take away
_TINY = 1e-300


@dataclass(frozen=True)
class Variational(AveragesMemory):
    """Hensman et al. (2013) in natural parameters (Khan and Lin 2017): no cavity is formed.

    The objective is the lower bound Σ E_q[log t] − KL(q, N(0, I)). Where factors are not log-concave sites may have
    precisions below zero. A step makes (1 − β) (I + S) + β (I + Σ t w wᵀ) of the precision I + S. The precisions
    below zero take at most β Σ |t| wᵀ(I + S)⁻¹w of the first term. They are reduced where that is above a half of
    1 − β. Where steps get small they no longer are, and the fixed point is a maximum of the bound.
    """

    name: ClassVar[str] = "variational"
    functional: ClassVar[str] = "expected log"
    objective: ClassVar[str] = "lower bound"

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

    def bounded(self, sites: BatchSites, marginals: Marginals, batch: BatchGraph, beta: TensorVariable) -> BatchSites:
        below = pt.minimum(sites.precision, 0.0)
        taken = -beta * batch.by_function(below * marginals.variance * batch.scale[:, None]).sum(axis=1)
        kept = pt.minimum(1.0, _MOST * (1.0 - beta) / pt.maximum(taken, _TINY))
        less = below * (1.0 - batch.at_sites(pt.broadcast_to(kept[:, None], (kept.shape[0], below.shape[0]))))
        return sites._replace(
            precision=sites.precision - less,
            location=sites.location - less * marginals.mean,
            floored=pt.lt(less, 0.0).any(axis=1),
        )

    def in_arrays(self) -> VariationalSites:
        return VariationalSites(_MOST)

    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        functions, size = location.type.shape
        root = pt.linalg.solve_triangular(
            seen.factor, pt.broadcast_to(pt.eye(size)[None], (functions, size, size)), lower=True, b_ndim=2
        )
        log_det = pt.log(pt.diagonal(seen.factor, axis1=1, axis2=2)).sum(axis=1)
        return -0.5 * ((root * root).sum() + (seen.mean**2).sum() - functions * size + 2.0 * log_det.sum())
