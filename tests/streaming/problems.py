"""A small fit batch by batch, taken apart: what a step is made of."""

from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor

from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.streaming.batches import Batch, Batches
from pymc_gpep.streaming.memories.memory import Memory
from pymc_gpep.streaming.model_blocks import model_blocks
from pymc_gpep.streaming.rules.all_rules import rule_for
from pymc_gpep.streaming.state import State
from pymc_gpep.streaming.step import BatchProblem, make_step, step_graph
from pymc_gpep.structure import read_classifier
from pymc_gpep.structure.cross_covariance import as_gps
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.structure.likelihood_elsewhere import LikelihoodElsewhere
from tests import models
from tests.graphs import HARDLY_REWRITTEN

__all__ = ["Small", "small"]


class Small(NamedTuple):
    problem: BatchProblem
    state: State
    batches: Batches

    def estimates(self) -> Any:
        """Log posterior, its derivatives, and what whole steps make of S and h, as a function of a batch."""
        graph = step_graph(self.problem, self.state)
        effect, sites = graph.effect, self.state.sites
        outputs = [graph.log_posterior, *graph.gradient, *(new for _, new in effect.changes[:2])]
        compiled = pytensor.function(
            [graph.inputs, graph.labels, graph.weights, *effect.former],
            outputs,
            givens={graph.beta: np.float64(1.0)},
            mode=HARDLY_REWRITTEN,
        )
        return lambda *batch: compiled(*batch[:3], *(sites.of(batch[3]) if sites else ()))

    def step(self, learning_rate: float = 0.01, mode: Any = HARDLY_REWRITTEN, **compile_kwargs: Any) -> Any:
        optimiser = pm.adam(learning_rate=learning_rate)
        return make_step(self.problem, self.state, optimiser, {"mode": mode, **compile_kwargs})

    def refused(self, step: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state before and after a step by rows with an input that is not finite."""
        batch, before = self.all_rows(), self.state.values()
        bad = batch.inputs.copy()
        bad[3] = np.inf
        with np.errstate(all="ignore"):
            assert not step(*batch._replace(inputs=bad), 0.5, True).went_well
        return before, self.state.values()

    def all_rows(self) -> Batch:
        X, y = models.data()
        labels = (y == 2).astype(int) if self.problem.space.classifier.n_functions == 1 else y
        return Batch(X, labels, np.ones(len(X)), np.arange(len(X)))


def small(
    build: Any, memory: Memory, sites: str | None, batch_size: int, inducing: int = 5, together: bool = False
) -> Small:
    """With q after a few rows, so that nothing is at zero.

    Where functions are `together` they have the same inducing inputs, and steps may be taken on arrays.
    """
    model, gp = build()
    classifier = read_classifier(model)
    space = Hyperparameters(classifier)
    X, y = models.data()
    c = classifier.n_functions
    labels = (y == 2).astype(int) if c == 1 else y
    rng = np.random.default_rng(7)
    at_a_row = LikelihoodElsewhere(classifier, 1, space.data)(space.point(space.initial_point()))
    rule = rule_for(memory.functional, sites, at_a_row)
    counts = rule.counts(np.bincount(labels).astype(float), c)
    batches = Batches(InMemory(X, labels), batch_size, 1)
    z = np.stack([X[rng.choice(len(X), inducing, replace=False)] + 0.1 for _ in range(1 if together else c)])
    state = State(space.initial_point(), z, np.array([0.5, 2.0]), c, 1e-6, True)
    half = rng.normal(size=(c, inducing, inducing))
    state.precision.set_value(half @ half.swapaxes(1, 2))
    state.location.set_value(rng.normal(size=(c, inducing)))
    prior = model_blocks(space, InducingBlocks(classifier, as_gps(gp), space.data)) if together else None
    problem = BatchProblem(space, as_gps(gp), rule, memory, counts, batches.per_epoch, batches.size, len(X), prior)
    return Small(problem, state, batches)
