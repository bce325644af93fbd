"""Memories that keep nothing of a row: S and h are averages over batches, each of which is an estimate of them."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.streaming.common_shift import common_terms, shifted
from pymc_gpep.streaming.gaussian import Gaussian, gaussian
from pymc_gpep.streaming.memories.memory import AveragingSchedule, BatchGraph, Effect, Marginals, Memory, Schedule
from pymc_gpep.streaming.rules.rule import Rule
from pymc_gpep.streaming.state import State


class BatchSites(NamedTuple):
    """Sites that a batch gets, and its part of the objective."""

    precision: TensorVariable
    """t, (B, d)."""
    location: TensorVariable
    """ν, (B, d)."""
    value: TensorVariable
    """Part of the objective that each point adds, (B,)."""
    in_mean: TensorVariable
    """Derivatives of `value`, as w and s of the site move, in the mean of x under the Gaussian, (B, d)."""
    in_variance: TensorVariable
    """Derivatives likewise in the variance of x, (B, d)."""
    in_rest: TensorVariable
    """Derivatives likewise in s, (B, d)."""
    floored: TensorVariable
    """Whether a site of a point was held back, (B,)."""


@dataclass(frozen=True)
class AveragesMemory(Memory):
    """A memory whose sites follow from a Gaussian that is the same for the whole batch."""

    decay: ClassVar[float] = 0.1
    schedule: ClassVar[type[Schedule]] = AveragingSchedule

    def share(self, counts: TensorVariable) -> TensorVariable:
        """Return the part of S and h in the Gaussian that a batch is taken with, (c,), from numbers of sites (c,)."""
        return pt.ones_like(counts)

    def seen(self, precision: TensorVariable, location: TensorVariable, counts: TensorVariable) -> Gaussian:
        """The Gaussian that a batch is taken with, from S (c, M, M), h (c, M) and the number of sites (c,)."""
        return gaussian(precision, location)

    @abstractmethod
    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        """Sites of a batch."""

    def bounded(self, sites: BatchSites, marginals: Marginals, batch: BatchGraph, beta: TensorVariable) -> BatchSites:
        """The same sites where a step of size β leaves I + S positive definite; their precisions may be below zero."""
        return sites

    @abstractmethod
    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        """Return the objective without any points, a number."""

    def take(self, rule: Rule, state: State, batch: BatchGraph, counts: TensorVariable, beta: TensorVariable) -> Effect:
        features, location = batch.features, state.location
        w = features.w
        seen = self.seen(state.precision, location, counts)
        common = None
        if batch.differences:
            common = state.hold_common(own=w.type.shape[0] > 1)
            remembered, share = common.terms(state.precision), self.share(counts)
            location, common_location = shifted(location, remembered, seen, share)
            seen = self.seen(state.precision, location, counts)
        half, mean = seen.half(w), seen.means(w)
        variance = (half * half).sum(axis=1)
        rest = pt.broadcast_to(features.rest, variance.shape)
        marginals = Marginals(*map(batch.at_sites, (mean, variance, features.mean, rest)))
        sites = self.sites(rule, marginals, batch.labels)
        if not rule.log_concave:
            sites = self.bounded(sites, marginals, batch, beta)

        # What stands for the rows that are not in the batch.
        t, nu, of_mean, of_variance, of_rest = (
            batch.by_function(each * batch.scale[:, None]) for each in (*sites[:2], *sites[3:6])
        )
        of_precision = pt.matmul(w * t[:, None, :], w.transpose(0, 2, 1))
        of_location = pt.matmul(w, nu[:, :, None])[:, :, 0]
        averages = [(state.precision, state.precision, of_precision), (state.location, location, of_location)]
        if common is not None:
            before = [common_location, *common.variables[1:]]
            averages += zip(common.variables, before, common.estimates(common_terms(w, t, mean)), strict=True)
        return Effect(
            (batch.scale * sites.value).sum() + self.constant(seen, state.precision, location, counts),
            (of_mean * (mean + features.mean)).sum() + (of_variance * variance).sum() + (of_rest * rest).sum(),
            [of_mean, of_variance, of_rest, seen.mean, seen.factor],
            [(variable, before + beta * (new - before)) for variable, before, new in averages],
            sites.floored,
        )
