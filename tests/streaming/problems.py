"""Small fits by batches, with access to their state and to single steps."""

from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import read_classifier
from pymc_gpep.reading.classifier import LikelihoodAtNewRows
from pymc_gpep.rows.rows import Rows
from pymc_gpep.streaming.features import model_blocks
from pymc_gpep.streaming.memories import Memory
from pymc_gpep.streaming.rules import rule_for
from pymc_gpep.streaming.run import Batch, Batches
from pymc_gpep.streaming.state import State
from pymc_gpep.streaming.step import BatchProblem, array_step

__all__ = ["Small", "small"]


class Small(NamedTuple):
    problem: BatchProblem
    state: State
    batches: Batches
    rows: Rows

    def estimates(self) -> Any:
        """Log posterior, its derivatives, and S and h after a whole step, as a function of a batch."""
        slopes: list[Any] = []
        step = array_step(self.problem, self.state, pm.sgd(learning_rate=0.0))
        step._optimiser = slopes.extend

        def estimate(*batch: Any) -> list[Any]:
            before = self.state.values()
            slopes.clear()
            taken = step(*batch, 1.0, True)
            assert taken.went_well
            after = self.state.values()
            self.state.set_values(before)
            return [taken.log_posterior, *slopes, after["precision"], after["location"]]

        return estimate

    def step(self, learning_rate: float = 0.01, single: bool | None = None) -> Any:
        return array_step(self.problem, self.state, pm.adam(learning_rate=learning_rate), single)

    def refused(self, step: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """State before and after a step whose inputs are not finite. The step must fail."""
        batch, before = self.all_rows(), self.state.values()
        bad = batch.inputs.copy()
        bad[3] = np.inf
        with np.errstate(all="ignore"):
            assert not step(*batch._replace(inputs=bad), 0.5, True).went_well
        return before, self.state.values()

    def all_rows(self) -> Batch:
        n = self.rows.n_rows
        return Batch(self.rows.inputs(slice(0, n)), self.rows.labels(slice(0, n)), np.ones(n), np.arange(n))


def small(
    build: Any,
    memory: Memory,
    sites: str | None,
    batch_size: int,
    inducing: int = 5,
    together: bool = False,
) -> Small:
    """Return a fit whose q was updated with a few rows, so that no part of its state is zero.

    With `together` all functions share their inducing inputs.
    """
    model, gp = build()
    classifier = by_inducing(read_classifier(model))
    space = Hyperparameters(classifier)
    gps = None if gp is None else as_gps(gp)
    blocks = InducingBlocks(classifier, gps, space.data)
    rows, c = blocks.rows, classifier.n_functions
    n, d, values = rows.n_rows, blocks.places.n_inputs, inducing + blocks.n_effects
    labels = rows.labels(slice(0, n))
    rng = np.random.default_rng(7)
    at_a_row = LikelihoodAtNewRows(classifier, 1, space.data)(space.point(space.initial_point()))
    rule = rule_for(memory.functional, sites, at_a_row)
    counts = rule.counts(np.bincount(labels).astype(float), c)
    batches = Batches(rows, batch_size, 1)
    x = blocks.places.inputs(slice(0, n))
    z = np.stack([x[rng.choice(n, inducing, replace=False)] + 0.1 for _ in range(1 if together else c)])
    state = State(space.initial_point(), z, np.array([0.5, 2.0])[:d], c, 1e-6, True, blocks.n_effects)
    half = rng.normal(size=(c, values, values))
    state.precision.set_value(half @ half.swapaxes(1, 2))
    state.location.set_value(rng.normal(size=(c, values)))
    prior = model_blocks(space, blocks)
    of_batches = batches.per_epoch, batches.size, n
    problem = BatchProblem(space, gps, rule, memory, counts, *of_batches, prior, blocks.effect_rows)
    return Small(problem, state, batches, rows)
