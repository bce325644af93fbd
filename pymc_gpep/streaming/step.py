"""A step of a fit batch by batch, one graph: features, sites, q(v), objective, and a step of the optimiser.

The gradient of the objective in hyperparameters and inducing inputs is that of a number which a memory returns. In this
number the features of the batch depend on them, and all else is constant.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import compile as compile_graph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import refuse_draws
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.latent.latent_prior import RowsBeside
from pymc_gpep.solvers.step_blocks import StepBlocks
from pymc_gpep.streaming.features import batch_features, prior_blocks
from pymc_gpep.streaming.memories.memory import BatchGraph, Effect, Memory
from pymc_gpep.streaming.rules.rule import Rule
from pymc_gpep.streaming.state import State

type Optimiser = Callable[[list[TensorVariable], list[SharedVariable]], dict[SharedVariable, TensorVariable]]


class BatchProblem(NamedTuple):
    """What is fitted, and how."""

    space: Hyperparameters
    gps: Sequence[pm.gp.Latent] | None
    rule: Rule
    memory: Memory
    counts: Array
    """How many sites act on each function, (c,)."""
    batches: int
    """In an epoch."""
    batch_size: int
    rows: int
    """In all."""
    prior: StepBlocks | None = None
    """Prior moments on arrays."""
    beside: RowsBeside | None = None
    """Effects beside the process. Rows are then those of a table."""
    held: Array | None = None
    """Inputs of all rows, which steps then take from there instead of from their batches."""


class StepGraph(NamedTuple):
    """Consequences of a batch, before anything is changed."""

    inputs: TensorVariable
    labels: TensorVariable
    weights: TensorVariable
    beta: TensorVariable
    """Step size of q."""
    log_posterior: TensorVariable
    """Estimate of the objective over all rows and the log prior of hyperparameters."""
    gradient: list[TensorVariable]
    """Gradient of `log_posterior` in the flat hyperparameters and, where they are learned, the inducing inputs."""
    floored: TensorVariable
    """Share of points with a site that was held back."""
    effect: Effect
    """Effect of the batch on the variables that are remembered."""


class Taken(NamedTuple):
    """Results of a step."""

    log_posterior: float
    floored: float
    went_well: bool


type Step = Callable[[Array, NDArray[np.int64], Array, NDArray[np.int64], float, bool], Taken]


def step_graph(problem: BatchProblem, state: State) -> StepGraph:
    """The graph of a batch in terms of the state."""
    space, c = problem.space, problem.space.classifier.n_functions
    # Every shape is known: without that most of a graph would be about shapes.
    b, columns = problem.batch_size, len(problem.beside.columns) if problem.beside else len(state.units)
    x = pt.tensor("batch", dtype="float64", shape=(b, columns))
    labels = pt.tensor("labels", dtype="int64", shape=(b,))
    weights = pt.tensor("weights", dtype="float64", shape=(b,))
    beta = pt.dscalar("beta")
    inducing = state.inducing * state.units
    blocks = prior_blocks(space.classifier, problem.gps, space.data, inducing, x, problem.beside)
    values = dict(zip(space.value_vars, state.value_expressions(space), strict=True))
    # One after the other: they are tuples of their own kinds.
    features = batch_features(type(blocks)(*graph_replace(list(blocks), values, strict=False)), state.jitter)
    log_prior = graph_replace([space.prior], values, strict=False)[0]

    counts = pt.constant(problem.counts)
    functions = problem.rule.functions(labels, c)
    batch = BatchGraph(
        features,
        labels,
        weights,
        pt.eq(functions[:, :, None], np.arange(c)[None, None, :]),
        problem.batches,
        problem.rows,
        not space.classifier.likelihood_model.sees_common,
    )
    effect = problem.memory.take(problem.rule, state, batch, counts, beta)
    gradient = [
        of_data + of_prior
        for of_data, of_prior in zip(
            pytensor.grad(
                effect.surrogate, state.learned, consider_constant=effect.constants, disconnected_inputs="ignore"
            ),
            pytensor.grad(log_prior, state.learned, disconnected_inputs="ignore"),
            strict=True,
        )
    ]
    floored = (weights * effect.floored).sum() / weights.sum()
    return StepGraph(x, labels, weights, beta, effect.value + log_prior, gradient, floored, effect)


def make_step(problem: BatchProblem, state: State, optimiser: Optimiser, compile_kwargs: dict[str, Any]) -> Step:
    """Compile a step: a function of a batch (inputs, labels, weights, rows), β, and whether the optimiser moves.

    The function changes the state. It returns the log posterior, the share of floored points and whether all went well.
    Where a number is not finite the state stays as it is.
    """
    graph = step_graph(problem, state)
    learns = pt.scalar("learns", dtype="bool")
    downhill = [-slope for slope in graph.gradient]
    of_optimiser = optimiser(downhill, state.learned) if state.learned else {}
    state.hold([shared for shared in of_optimiser if shared not in state.learned])
    effect = graph.effect
    well = pt.isfinite(graph.log_posterior)
    for each in (*(new for _, new in effect.changes), *downhill):
        well = pt.and_(well, pt.isfinite(each.sum()))
    moves = pt.and_(well, learns)
    updates = {shared: pt.switch(moves, new, shared) for shared, new in of_optimiser.items()}
    updates |= {shared: pt.switch(well, new, shared) for shared, new in effect.changes}
    options = {"on_unused_input": "ignore"} | compile_kwargs  # nothing may be there to learn
    held, places = problem.held, pt.lvector("rows")
    of_batch, given = graph.inputs, {}
    if held is not None:
        of_batch, given = places, {graph.inputs: _kept(held, compile_kwargs)[places]}
    compiled = compile_graph(
        [of_batch, graph.labels, graph.weights, *effect.former, graph.beta, learns],
        [graph.log_posterior, graph.floored, well, *effect.latter],
        updates={shared: new.astype(shared.type.dtype) for shared, new in updates.items()},
        givens=given,
        **options,
    )
    refuse_draws(compiled)

    def step(
        inputs: Array, labels: NDArray[np.int64], weights: Array, rows: NDArray[np.int64], beta: float, learns: bool
    ) -> Taken:
        sites = state.sites
        former = sites.of(rows) if sites else ()
        try:
            first = inputs if held is None else rows
            value, floored, went_well, *latter = compiled(first, labels, weights, *former, beta, learns)
            if sites and went_well:
                real = weights > 0.0
                sites.put(rows[real], *(each[real] for each in latter))
        except KeyboardInterrupt:
            state.settle()  # q may have sites that are not kept yet
            raise
        return Taken(float(value), float(floored), bool(went_well))

    return step


def _kept(values: Array, compile_kwargs: dict[str, Any]) -> SharedVariable:
    """A variable with these values, where the backend computes: a function that it compiled has put them there."""
    variable = pytensor.shared(np.empty((0, values.shape[1])), "inputs of all rows", shape=(None, values.shape[1]))
    whole = pt.matrix("inputs", dtype="float64")
    compile_graph([whole], [], updates={variable: pt.specify_shape(whole, (None, values.shape[1]))}, **compile_kwargs)(
        values
    )
    return variable
