"""Prior moments with inducing inputs, block by block.

The graph of a model contains the prior covariance of all points as a single matrix. It is never evaluated: blocks are
computed from covariance and mean functions.

Moments as functions of the hyperparameters are compiled once for each form of covariance. Covariances of the same form
differ only in their parameters, called numbers. So a single function takes these numbers as inputs and evaluates all
covariances, and a second function returns the numbers of each. Compiling a graph takes as long as thousands of
evaluations.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.alike_graphs import differences
from pymc_gpep.graphs.interpreted import ModelFunctions, evaluate, flat, graph_function, pulled_back
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import EffectRows
from pymc_gpep.processes.process_functions import ProcessFunctions
from pymc_gpep.processes.processes import functions_of, named_inputs
from pymc_gpep.processes.stationary import Stationary, stationary
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.rows.in_memory import FirstColumns, InMemory
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.sparse_sweeps import Bars
from pymc_gpep.solvers.step_algebra import Group, grouped


def moment_graphs(
    of: ModelFunctions,
    latent: LatentGP,
    functions: ProcessFunctions,
    z: TensorVariable,
    x: TensorVariable,
    effect_rows: EffectRows | None = None,
) -> list[TensorVariable]:
    """Return moments of a prior with inducing inputs z (M, d) and rows x (B, d), in terms of value variables.

    They are the covariance (M, M) of the inducing values, their covariance (M, B) with the rows, and the variance (B,)
    and mean (outputs, B) of the rows. With effects, x is a table whose first columns are the inputs, and the last
    moments are the coefficients (p, B) of effects.
    """
    inputs: TensorVariable = x
    others: Sequence[TensorVariable]
    if effect_rows is None:
        others = (pt.broadcast_to(functions.mean(x), (len(latent.classes), x.shape[0])),)
    else:
        inputs, others = x[:, : z.type.shape[1]], effect_rows.moments(x)
    outputs = [functions.covariance(z, z), functions.covariance(z, inputs), functions.variance(inputs), *others]
    return [out.astype("float64") for out in of.known(outputs)]


class MomentFunctions:
    """Moments of a prior as functions of hyperparameters, its own numbers, inducing inputs z (M, d) and rows x (B, d).

    Parameters
    ----------
    model : pm.Model
    values : sequence of Variable
        Symbols of the hyperparameters.
    graphs : sequence of TensorVariable
        Graphs from `moment_graphs`, in terms of the hyperparameters and of `numbers`, `z` and `x`.
    numbers : sequence of TensorVariable
    z, x : TensorVariable
    compile_kwargs : dict
    """

    def __init__(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        graphs: Sequence[TensorVariable],
        numbers: Sequence[TensorVariable],
        z: TensorVariable,
        x: TensorVariable,
        compile_kwargs: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._values = list(values)
        self._numbers = list(numbers)
        self._inducing, *self._block = graphs
        self._z, self._x = z, x
        self._kwargs = compile_kwargs

    def _function(self, inputs: Sequence[Variable], outputs: Any) -> Any:
        return graph_function(self._model, [*self._values, *self._numbers, *inputs], outputs, **self._kwargs)

    def _slopes(self, inputs: Sequence[Variable], outputs: Sequence[TensorVariable]) -> Any:
        """Return the function of further inputs and of derivatives with respect to `outputs`.

        Its results are derivatives in the hyperparameters (one vector), in z, and in the continuous numbers.
        """
        bars, slopes = pulled_back(outputs, [*self._values, self._z, *_continuous(self._numbers)])
        count = len(self._values)
        return self._function([*inputs, *bars], [flat(slopes[:count]), *slopes[count:]])

    def stationary(self, points: Sequence[Sequence[Array]]) -> Stationary | None:
        """Return the stationary form whose values equal the covariance at `points`, or None; see `stationary`.

        The form does not include effects.
        """
        graphs = [self._inducing, *self._block]
        return stationary(self._model, [*self._values, *self._numbers], graphs, self._z, self._x, points)

    def with_numbers(self, found: Stationary, numbers: Sequence[TensorVariable]) -> Stationary:
        """Return the form `found` with symbols replaced by the graphs `numbers`."""
        places = dict(zip(self._numbers, numbers, strict=True))
        return Stationary(found.profile, *graph_replace(list(found[1:]), places, strict=False))

    @cached_property
    def inducing(self) -> Any:
        """Function of (hyperparameters, numbers, z) for the covariance of the inducing values."""
        return self._function([self._z], self._inducing)

    @cached_property
    def block(self) -> Any:
        """Function of (hyperparameters, numbers, z, x) for the moments at rows x."""
        return self._function([self._z, self._x], self._block)

    @cached_property
    def inducing_slopes(self) -> Any:
        """Pullback of `inducing`: a function of (hyperparameters, numbers, z, derivatives in the result)."""
        return self._slopes([self._z], [self._inducing])

    @cached_property
    def block_slopes(self) -> Any:
        """Pullback of `block`: a function of (hyperparameters, numbers, z, x, derivatives in the results)."""
        return self._slopes([self._z, self._x], self._block)


class OwnNumbers:
    """Numbers in which priors of the same form differ, as functions of the hyperparameters.

    Attributes
    ----------
    graphs : list of list of TensorVariable
        Numbers of each prior, in terms of the hyperparameters.

    Parameters
    ----------
    model : pm.Model
    values : sequence of Variable
        Symbols of the hyperparameters.
    numbers : sequence of sequence of TensorVariable
        Numbers of each prior. All priors have the same count.
    compile_kwargs : dict
    """

    def __init__(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        numbers: Sequence[Sequence[TensorVariable]],
        compile_kwargs: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._values = list(values)
        self.graphs = [list(own) for own in numbers]
        self._all = [each for own in numbers for each in own]
        self._kwargs = compile_kwargs

    @cached_property
    def _function(self) -> Any:
        return graph_function(self._model, self._values, self._all, **self._kwargs)

    @cached_property
    def _slopes(self) -> Any:
        bars, slopes = pulled_back(_continuous(self._all), self._values)
        return graph_function(self._model, [*self._values, *bars], flat(slopes), **self._kwargs)

    def __call__(self, values: Sequence[Array]) -> list[list[Array]]:
        """Return the numbers of each prior for these values of the hyperparameters."""
        count = len(self.graphs[0])
        found = self._function(*values) if count else []
        return [list(found[k * count : (k + 1) * count]) for k in range(len(self.graphs))]

    def pulled(self, values: Sequence[Array], bars: Mapping[int, Sequence[Array]]) -> Array | float:
        """Return derivatives in the hyperparameters, as one vector, given derivatives in the numbers of some priors."""
        if not _continuous(self.graphs[0]) or not self._values:
            return 0.0
        nothing = [0.0 * each for each in next(iter(bars.values()))]
        found: Array = self._slopes(*values, *(bar for k in range(len(self.graphs)) for bar in bars.get(k, nothing)))
        return found


class PriorMoments(NamedTuple):
    """Moment functions of all priors of a model."""

    functions: list[MomentFunctions]
    """Moment functions of each prior. Priors of the same form have the same object."""
    numbers: OwnNumbers

    def stationary(self, points: Sequence[Sequence[Array]]) -> list[Stationary] | None:
        """Return the form of each covariance, by comparison at `points`; None unless all covariances are stationary."""
        numbers = [self.numbers(point) for point in points]
        found: dict[MomentFunctions, Stationary] = {}
        for each in dict.fromkeys(self.functions):
            alike = [k for k, other in enumerate(self.functions) if other is each]
            form = each.stationary(
                [[*point, *own[k]] for point, own in zip(points, numbers, strict=True) for k in alike]
            )
            if form is None:
                return None
            found[each] = form
        return [
            each.with_numbers(found[each], own) for each, own in zip(self.functions, self.numbers.graphs, strict=True)
        ]


def moment_functions(
    classifier: GPClassifier,
    matched: Sequence[tuple[LatentGP, ProcessFunctions]],
    data: Mapping[Variable, Variable],
    columns: int,
    effect_rows: EffectRows | None,
    compile_kwargs: Mapping[str, Any],
) -> PriorMoments:
    """Return the moment functions of the priors of a model.

    Parameters
    ----------
    classifier : GPClassifier
    matched : sequence of LatentGP and ProcessFunctions
        Priors with their covariance and mean functions, from `functions_of`.
    data : dict
        Data of the model → constants that replace them.
    columns : int
        Number of columns of the inputs.
    effect_rows : EffectRows or None
        Effects in addition to the processes.
    compile_kwargs : dict
        Keyword arguments of `pytensor.function`.
    """
    model = classifier.model
    of = ModelFunctions(model, classifier.hyperparameters, data)
    values = of.values
    z = pt.tensor("inducing_inputs", dtype="float64", shape=(None, columns))
    x = pt.tensor("rows", dtype="float64", shape=(None, len(effect_rows.columns) if effect_rows else columns))
    graphs = [moment_graphs(of, latent, functions, z, x, effect_rows) for latent, functions in matched]
    own = differences(graphs, {z, x}) if len(graphs) > 1 else {}
    if own is None:
        functions = [MomentFunctions(model, values, each, [], z, x, compile_kwargs) for each in graphs]
        return PriorMoments(functions, OwnNumbers(model, values, [[] for _ in graphs], compile_kwargs))
    places = {first: first.type() for first in own}
    alike = graph_replace(graphs[0], places, strict=False)
    of_all = MomentFunctions(model, values, alike, list(places.values()), z, x, compile_kwargs)
    numbers = [[(first, *others)[k] for first, others in own.items()] for k in range(len(graphs))]
    return PriorMoments([of_all] * len(graphs), OwnNumbers(model, values, numbers, compile_kwargs))


def _continuous(variables: Sequence[TensorVariable]) -> list[TensorVariable]:
    return [each for each in variables if each.dtype.startswith("float")]


class InducingBlocks:
    """Prior moments of the latent functions of a model with inducing inputs, compiled once for all hyperparameters.

    Parameters
    ----------
    classifier : GPClassifier
    gps : sequence of pm.gp.Latent, or None
        Processes of the latent values. If None, covariance functions are read from the graph of the model.
    data : dict
        Data of the model → constants that replace them.
    compile_kwargs : dict, optional
        Keyword arguments of `pytensor.function`. Without a `mode` graphs are interpreted.
    rows : Rows, optional
        Rows that replace the rows of the model.

    Attributes
    ----------
    rows : Rows
        Inputs and labels. With effects, inputs are a table of all data over rows.
    effect_rows : EffectRows or None
        Effects in addition to the processes.
    named : SharedVariable or None
        Data variable of the model that contains the inputs; None for computed inputs.

    Raises
    ------
    ValueError
        If `gps` are not the processes of the latent values. If inputs of the model are not finite. If `rows` have
        another number of columns than these inputs, or their names in another order.
    StructureError
        If `gps` is None, and the graph of the model does not determine the prior at new inputs.
    """

    def __init__(
        self,
        classifier: GPClassifier,
        gps: Sequence[pm.gp.Latent] | None,
        data: Mapping[Variable, Variable],
        compile_kwargs: Mapping[str, Any] | None = None,
        rows: Rows | None = None,
    ) -> None:
        matched = functions_of(classifier.prior, gps)
        self._classifier = classifier
        self._names = [classifier.model.rvs_to_values[rv].name for rv in classifier.hyperparameters]
        observed = [matched[0][1].inputs, classifier.labels]
        inputs, labels = evaluate(graph_replace(observed, data, strict=False))
        self._matched, self._data, self._columns = matched, data, inputs.shape[1]
        self.named = named_inputs(matched[0][1].inputs, classifier.model)
        self.effect_rows = classifier.prior.effect_rows(matched[0][1].inputs, data)
        table = inputs if self.effect_rows is None else self.effect_rows.table()
        self.rows: Rows = _rows_of_model(table, labels) if rows is None else rows
        if self.rows.n_inputs != table.shape[1]:
            which = f" ({', '.join(self.effect_rows.columns)})" if self.effect_rows else ""
            raise ValueError(
                f"data must have inputs with {table.shape[1]} columns, like the model{which}, but have "
                f"{self.rows.n_inputs}{_which_columns(self.rows)}."
            )
        if self.effect_rows:
            self.effect_rows.check_names(getattr(self.rows, "columns", ()))
        self._moments = moment_functions(
            classifier, matched, data, self._columns, self.effect_rows, compile_kwargs or {}
        )
        self._of = {  # Latent function → its prior, and the output of the prior.
            k: (prior, output) for prior, (latent, _) in enumerate(matched) for output, k in enumerate(latent.classes)
        }
        self._outputs = [len(latent.classes) for latent, _ in matched]
        self._shared = len(matched) == 1
        self._alike = [0] * self.n_functions if self._shared else list(range(self.n_functions))

    def on(self, rows: Rows) -> "InducingBlocks":
        """Return a copy with other rows."""
        other = copy(self)
        other.rows = rows
        return other

    def by_group(self) -> "InducingBlocks":
        """Return a copy in which functions with the same covariance form a group, along the axis q; see `grouped`."""
        other = copy(self)
        other._alike = self.covariance_of
        return other

    @property
    def covariance_of(self) -> list[int]:
        """Index of each function's covariance among the distinct covariances, (c,)."""
        return [self._of[k][0] for k in range(self.n_functions)]

    @property
    def n_functions(self) -> int:
        """Number of latent functions, c."""
        return self._classifier.n_functions

    @property
    def n_effects(self) -> int:
        """Number of standard normals of effects, p."""
        return self.effect_rows.n_effects if self.effect_rows else 0

    @property
    def places(self) -> Rows:
        """Rows with the inputs of processes alone. Data of effects are checked when a row is read."""
        return FirstColumns(self.rows, self._columns, self.effect_rows.check) if self.effect_rows else self.rows

    @property
    def n_covariances(self) -> int:
        """Number q of groups of functions with the same inducing inputs: 1 if all share one covariance, else c."""
        return 1 if self._shared else self.n_functions

    def stationary(self, points: Sequence[Sequence[Array]]) -> list[Stationary] | None:
        """Return each covariance as a variance times a profile of scaled distances; None unless all have this form.

        Covariances are compared at `points`, values of the hyperparameters. Prior means must be 0.
        """
        moments = self._moments
        if self.effect_rows:
            moments = moment_functions(self._classifier, self._matched, self._data, self._columns, None, {})
        return moments.stationary(points)

    def _values(self, point: PointType) -> list[Array]:
        return [np.asarray(point[name]) for name in self._names]

    def _parts(self, values: Sequence[Array], z: Array) -> Iterator[tuple[MomentFunctions, list[Array], Group, Array]]:
        """Yield for each of q groups: its moment functions, their first arguments, the group, its inducing inputs."""
        numbers = self._moments.numbers(values)
        for group in grouped(self._alike, len(z)):
            k = group.functions[0]
            prior, _ = self._of[k]
            own = z[group.inputs, :, : self._columns]  # In a table, columns of inputs come first.
            yield self._moments.functions[prior], [*values, *numbers[prior]], group, own

    def inducing(self, point: PointType, z: Array) -> Array:
        """Return the covariance (q, M, M) of inducing values at a point, for inducing inputs z (1 or c, M, d)."""
        return np.stack([part.inducing(*of, own) for part, of, _, own in self._parts(self._values(point), z)])

    def block(self, point: PointType, z: Array, x: Array) -> Block:
        """Return the moments at rows x (B, d)."""
        found, mean = [], np.empty((self.n_functions, len(x)))
        for part, of, group, own in self._parts(self._values(point), z):
            found.append(part.block(*of, own, x))
            for k in group.functions:
                mean[k] = found[-1][2][self._of[k][1]]
        cross, variance, _, *effects = zip(*found, strict=True)
        return Block(np.stack(cross), np.stack(variance), mean, *map(np.stack, effects))

    def inducing_slopes(self, point: PointType, z: Array, bar: Array) -> tuple[Array, Array]:
        """Return derivatives in the hyperparameters (one vector) and in z, given derivatives in `inducing`."""
        values = self._values(point)
        parts = self._parts(values, z)
        return self._summed(
            values, z, [part.inducing_slopes(*of, own, b) for (part, of, _, own), b in zip(parts, bar, strict=True)]
        )

    def block_slopes(self, point: PointType, z: Array, x: Array, bars: Block) -> tuple[Array, Array]:
        """Return derivatives in hyperparameters and in z, given derivatives in the result of `block`."""
        values = self._values(point)
        found = []
        for q, (part, of, group, own) in enumerate(self._parts(values, z)):
            mean_bar = np.zeros((self._outputs[self._of[group.functions[0]][0]], len(x)))
            for k in group.functions:
                mean_bar[self._of[k][1]] = bars.mean[k]
            effects = [bars.effects[q]] if self.effect_rows else []
            found.append(part.block_slopes(*of, own, x, bars.cross[q], bars.variance[q], mean_bar, *effects))
        return self._summed(values, z, found)

    def _summed(self, values: Sequence[Array], z: Array, found: Sequence[Sequence[Array]]) -> tuple[Array, Array]:
        """Sum the groups' derivatives in hyperparameters, z and numbers to derivatives in hyperparameters and in z."""
        of_values = np.sum([slopes[0] for slopes in found], axis=0)
        of_z = np.stack([slopes[1] for slopes in found])
        of_numbers: dict[int, list[Array]] = {}
        for group, (_, _, *own) in zip(grouped(self._alike, len(z)), found, strict=True):
            prior, _ = self._of[group.functions[0]]
            before = of_numbers.get(prior, [np.zeros(())] * len(own))
            of_numbers[prior] = [total + each for total, each in zip(before, own, strict=True)]
        of_values = of_values + self._moments.numbers.pulled(values, of_numbers)
        return of_values, of_z if len(z) > 1 else of_z.sum(axis=0, keepdims=True)


class PriorAt:
    """The prior at fixed hyperparameters and inducing inputs.

    Parameters
    ----------
    blocks : InducingBlocks
    point : dict
        Values of the model's value variables.
    z : array (1 or c, M, d)
    """

    def __init__(self, blocks: InducingBlocks, point: PointType, z: Array) -> None:
        self._blocks = blocks
        self.point = point
        self.z = z
        self.n_points = blocks.rows.n_rows
        self.n_functions = blocks.n_functions
        self.n_effects = blocks.n_effects

    def inducing(self) -> Array:
        """Return the prior covariance of the inducing values, (q, M, M)."""
        return self._blocks.inducing(self.point, self.z)

    def block(self, rows: slice) -> Block:
        """Return the moments at a slice of the rows."""
        inputs = self._blocks.rows.inputs(rows)
        if self._blocks.effect_rows:
            self._blocks.effect_rows.check(inputs, rows.start + int(getattr(self._blocks.rows, "first", 0)))
        return self._blocks.block(self.point, self.z, inputs)

    def slopes(self, rows: slice, bars: Block) -> tuple[Array, Array]:
        """Return derivatives in hyperparameters and inducing inputs, given derivatives in the moments of these rows."""
        return self._blocks.block_slopes(self.point, self.z, self._blocks.rows.inputs(rows), bars)

    def row_slopes(self, found: Iterable[Bars]) -> tuple[Array, ...]:
        """Return the sums over blocks of rows of `slopes`, and of the matrix products in `found`."""
        total: tuple[Array, ...] = ()
        for rows, bars, product in found:
            own = (*self.slopes(rows, bars), product)
            total = tuple(a + b for a, b in zip(total, own, strict=True)) if total else own
        return total

    def inducing_slopes(self, bar: Array) -> tuple[Array, Array]:
        """Return derivatives in hyperparameters and in z, given derivatives in the covariance of inducing values."""
        return self._blocks.inducing_slopes(self.point, self.z, bar)


def _which_columns(rows: Rows) -> str:
    """Return for a message the names of the columns of rows, and the remedy; empty without names."""
    names = getattr(rows, "columns", ())
    chosen = "Choose the columns of the inputs with data=gpep.open_rows(path, label, columns=[...])"
    return f": {', '.join(map(repr, names))}. {chosen}" if names else ""


def _rows_of_model(inputs: Array, labels: Array) -> InMemory:
    if (bad := ~np.isfinite(inputs).all(axis=1)).any():
        raise ValueError(
            f"The inputs of the model must be finite, but {np.count_nonzero(bad)} of {len(bad)} rows have values that "
            f"are not. The first is row {int(np.flatnonzero(bad)[0])}. Remove these rows from inputs and labels."
        )
    return InMemory(inputs, labels)
