"""A step of a fit batch by batch, one graph: features, sites, q(v), objective, and a step of the optimiser.

The gradient of the objective with respect to hyperparameters and inducing inputs is that of
Σ (a m + b v + e s) over the sites of the batch, where m = wᵀμ, v = wᵀΣw and s depend on them and all else is constant:
a, b and e are the derivatives that a memory gives.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import compile as compile_graph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.streaming.common_shift import common_terms, shifted
from pymc_gpep.streaming.features import BatchFeatures, batch_features, prior_blocks
from pymc_gpep.streaming.memories.contract import Gaussian, Marginals, Memory
from pymc_gpep.streaming.rules.contract import Rule
from pymc_gpep.streaming.state import State

__all__ = ["Problem", "Step", "StepGraph", "Taken", "make_step", "step_graph"]

type Optimiser = Callable[[list[TensorVariable], list[SharedVariable]], dict[SharedVariable, TensorVariable]]


class Problem(NamedTuple):
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


class StepGraph(NamedTuple):
    """What comes of a batch, before anything is changed."""

    inputs: TensorVariable
    labels: TensorVariable
    weights: TensorVariable
    log_posterior: TensorVariable
    """Estimate of the objective over all rows and the log prior of hyperparameters."""
    gradient: list[TensorVariable]
    """Of that, in the flat hyperparameters and, where they are learned, the inducing inputs."""
    precision: TensorVariable
    """Estimate of S from this batch, (c, M, M)."""
    location: TensorVariable
    """And of h, (c, M)."""
    averages: list[tuple[SharedVariable, TensorVariable, TensorVariable]]
    """What is remembered of sites, what it is before the batch, with a shift common to all functions, and estimates."""
    floored: TensorVariable
    """Share of points with a site that was held back."""


class Taken(NamedTuple):
    """What a step says of itself."""

    log_posterior: float
    floored: float
    went_well: bool


type Step = Callable[..., Sequence[Any]]


def step_graph(problem: Problem, state: State) -> StepGraph:
    """The graph of a batch in terms of the state."""
    space, c = problem.space, problem.space.classifier.n_functions
    # Every shape is known: without that most of a graph would be about shapes.
    b, columns = problem.batch_size, len(state.units)
    x = pt.tensor("batch", dtype="float64", shape=(b, columns))
    labels = pt.tensor("labels", dtype="int64", shape=(b,))
    weights = pt.tensor("weights", dtype="float64", shape=(b,))
    inducing = state.inducing * state.units
    blocks = prior_blocks(space.classifier, problem.gps, space.data, inducing, x)
    values = dict(zip(space.value_vars, state.value_expressions(space), strict=True))
    # One after the other: they are tuples of their own kinds.
    features = batch_features(type(blocks)(*graph_replace(list(blocks), values, strict=False)), state.jitter)
    log_prior = graph_replace([space.prior], values, strict=False)[0]

    counts = pt.constant(problem.counts)
    location = state.location
    seen = problem.memory.seen(state.precision, location, counts)
    common = None
    if c > 1 and not space.classifier.likelihood_model.sees_common:
        common = state.hold_common(own=features.w.type.shape[0] > 1)
        remembered, share = common.terms(state.precision), problem.memory.share(counts)
        location, common_location = shifted(location, remembered, seen, share)
        seen = problem.memory.seen(state.precision, location, counts)
    functions = problem.rule.functions(labels, c)
    by_site = pt.eq(functions[:, :, None], pt.arange(c)[None, None, :])
    mean, variance = _marginals(seen, features)
    rest = pt.broadcast_to(features.rest, variance.shape)
    sites = problem.memory.sites(
        problem.rule,
        Marginals(*(_at_sites(each, by_site) for each in (mean, variance, features.mean, rest))),
        labels,
    )

    # What stands for the rows that are not in the batch.
    scale = weights * float(problem.batches)
    t, nu, of_mean, of_variance, of_rest = (
        _by_function(each * scale[:, None], by_site) for each in (*sites[:2], *sites[3:6])
    )
    w = features.w
    value = (scale * sites.value).sum() + problem.memory.constant(seen, state.precision, location, counts)
    surrogate = (of_mean * (mean + features.mean)).sum() + (of_variance * variance).sum() + (of_rest * rest).sum()
    frozen = [of_mean, of_variance, of_rest, seen.mean, seen.factor]
    gradient = [
        of_data + of_prior
        for of_data, of_prior in zip(
            pytensor.grad(surrogate, state.learned, consider_constant=frozen, disconnected_inputs="ignore"),
            pytensor.grad(log_prior, state.learned, disconnected_inputs="ignore"),
            strict=True,
        )
    ]
    of_precision = pt.matmul(w * t[:, None, :], w.transpose(0, 2, 1))
    of_location = pt.matmul(w, nu[:, :, None])[:, :, 0]
    averages = [(state.precision, state.precision, of_precision), (state.location, location, of_location)]
    if common is not None:
        before = [common_location, *common.variables[1:]]
        averages += zip(common.variables, before, common.estimates(common_terms(w, t, mean)), strict=True)
    return StepGraph(
        x,
        labels,
        weights,
        value + log_prior,
        gradient,
        of_precision,
        of_location,
        averages,
        (weights * sites.floored).sum() / weights.sum(),
    )


def make_step(problem: Problem, state: State, optimiser: Optimiser, compile_kwargs: dict[str, Any]) -> Step:
    """Compile a step: a function of (inputs, labels, weights, step size of q, whether the optimiser moves).

    It changes the state and returns the log posterior, the share of floored points and whether all went well; where a
    number is not finite the state stays as it is.
    """
    graph = step_graph(problem, state)
    beta, learns = pt.dscalar("beta"), pt.scalar("learns", dtype="bool")
    downhill = [-slope for slope in graph.gradient]
    of_optimiser = optimiser(downhill, state.learned) if state.learned else {}
    state.hold([shared for shared in of_optimiser if shared not in state.learned])
    well = pt.isfinite(graph.log_posterior)
    for each in (graph.precision, graph.location, *downhill):
        well = pt.and_(well, pt.isfinite(each.sum()))
    moves = pt.and_(well, learns)
    updates = {shared: pt.switch(moves, new, shared) for shared, new in of_optimiser.items()}
    for shared, before, new in graph.averages:
        updates[shared] = pt.switch(well, before + beta * (new - before), shared)
    return compile_graph(
        [graph.inputs, graph.labels, graph.weights, beta, learns],
        [graph.log_posterior, graph.floored, well],
        updates={shared: new.astype(shared.type.dtype) for shared, new in updates.items()},
        **({"on_unused_input": "ignore"} | compile_kwargs),  # nothing may be there to learn
    )


def _marginals(seen: Gaussian, features: BatchFeatures) -> tuple[TensorVariable, TensorVariable]:
    """Means and variances (c, B) of the wᵀv."""
    half = pt.linalg.solve_triangular(seen.factor, features.w, lower=True, b_ndim=2)
    return pt.matmul(seen.mean[:, None, :], features.w)[:, 0], (half * half).sum(axis=1)


def _at_sites(values: TensorVariable, by_site: TensorVariable) -> TensorVariable:
    """Of values (c, B) of functions those of the sites' own, (B, d)."""
    return (values.T[:, None, :] * by_site).sum(axis=2)


def _by_function(values: TensorVariable, by_site: TensorVariable) -> TensorVariable:
    """Sums (c, B) over the sites (B, d) of each function."""
    return (values[:, :, None] * by_site).sum(axis=1).T
