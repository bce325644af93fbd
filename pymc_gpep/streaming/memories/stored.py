"""EP that keeps the sites of every row: what a step takes out of q is what an earlier one has put in."""

from dataclasses import dataclass
from typing import ClassVar

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.streaming.gaussian import gaussian
from pymc_gpep.streaming.memories.memory import (
    BatchGraph,
    Effect,
    Memory,
    ReplacingSchedule,
    Schedule,
    log_site_normalisers,
    site_of,
)
from pymc_gpep.streaming.rules.rule import Rule
from pymc_gpep.streaming.state import State


@dataclass(frozen=True)
class StoredMemory(Memory):
    """Villacampa-Calvo and Hernández-Lobato (2017), section 2.3: EP with minibatches.

    A site acts on x′ = w′ᵀv, with the features w′ that its row had when it came last. The memory takes it out of q
    there. The moments of the row's factors are those of x = wᵀv, with the features of today. Where hyperparameters and
    inducing inputs do not move both are the same, and the fixed point is that of EP without any noise of batches.
    """

    name: ClassVar[str] = "sites"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "log normaliser of EP"
    decay: ClassVar[float] = 0.0
    schedule: ClassVar[type[Schedule]] = ReplacingSchedule

    def take(self, rule: Rule, state: State, batch: BatchGraph, counts: TensorVariable, beta: TensorVariable) -> Effect:
        w = batch.features.w
        (size, per_row, _), (sets, inducing, _) = batch.by_site.type.shape, w.type.shape
        state.hold_sites(batch.rows, per_row, sets, batch.differences)
        t = pt.tensor("former_precision", dtype="float64", shape=(size, per_row))
        nu = pt.tensor("former_location", dtype="float64", shape=(size, per_row))
        w_kept = pt.tensor("former_features", dtype="float32", shape=(size, sets, inducing))
        w_former = w_kept.transpose(1, 2, 0).astype("float64")

        q = gaussian(state.precision, state.location)
        half, half_former = q.half(w), q.half(w_former)
        mean, mean_former = batch.at_sites(q.means(w)), batch.at_sites(q.means(w_former))
        variance, both, variance_former = (
            batch.at_sites((a * b).sum(axis=1))
            for a, b in ((half, half), (half, half_former), (half_former, half_former))
        )
        # Without the site: moments of x′, and by its covariance with x those of x.
        keep = 1.0 - t * variance_former
        less = (t * mean_former - nu) / keep
        cavity_mean, cavity_variance = mean + both * less, variance + both * both * t / keep
        rest = batch.at_sites(pt.broadcast_to(batch.features.rest, (counts.type.shape[0], size)))
        latent_mean, latent_variance = batch.at_sites(batch.features.mean) + cavity_mean, rest + cavity_variance
        of_point = rule.terms(latent_mean, latent_variance, batch.labels)
        in_mean, in_variance = of_point.in_mean, of_point.in_variance

        gamma = in_mean**2 - 2.0 * in_variance
        found_t, found_nu = site_of(in_mean, gamma, cavity_mean, cavity_variance)
        new_t, new_nu = t + beta * (found_t - t), nu + beta * (found_nu - nu)
        w_keep = w.astype("float32")
        w_new = w_keep.astype("float64")
        came, went = (
            (batch.by_function(batch.weights[:, None] * each) for each in pair) for pair in ((new_t, new_nu), (t, nu))
        )
        of_new, of_former = _sums(w_new, *came), _sums(w_former, *went)
        of_sites = log_site_normalisers(t, nu, mean_former + variance_former * less, variance_former / keep)
        scale = batch.scale
        return Effect(
            (scale * (of_point.value - of_sites)).sum() + q.log_normalisers.sum(),
            (scale[:, None] * (in_mean * latent_mean + in_variance * latent_variance)).sum(),
            [in_mean, in_variance, q.mean, q.factor],
            [
                (remembered, remembered + new - former)
                for remembered, new, former in zip((state.precision, state.location), of_new, of_former, strict=True)
            ],
            pt.zeros_like(batch.labels),
            (t, nu, w_kept),
            (new_t, new_nu, w_keep.transpose(2, 0, 1), batch.by_site.argmax(axis=2)),
        )


def _sums(w: TensorVariable, t: TensorVariable, nu: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Σ t w wᵀ (c, M, M) and Σ ν w (c, M), for features w (q, M, B) and sites (c, B)."""
    return pt.matmul(w * t[:, None, :], w.transpose(0, 2, 1)), pt.matmul(w, nu[:, :, None])[:, :, 0]
