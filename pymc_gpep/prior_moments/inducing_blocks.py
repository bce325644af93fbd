"""Prior moments with inducing inputs, block by block.

The graph of a model has the prior covariance of all points as one matrix. Here it is never evaluated: covariance and
mean functions are asked for blocks.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.prior_moments.moment_functions import MomentFunctions, moment_functions
from pymc_gpep.processes.cross_covariance import functions_of, named_inputs
from pymc_gpep.processes.stationary import Stationary
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.rows.in_memory import FirstColumns, InMemory
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.step_blocks import Group, grouped


class InducingBlocks:
    """Prior moments of the latent functions of a model with inducing inputs, made once for all hyperparameters.

    Parameters
    ----------
    classifier : GPClassifier
    gps : sequence of pm.gp.Latent, or None
        The processes that made the latent values; if None, covariance functions are read from the graph of the model.
    data : dict
        Data of the model → constants that take their place.
    compile_kwargs : dict, optional
        For `pytensor.function`; without a `mode` graphs are interpreted.
    rows : Rows, optional
        Rows that take the place of those of the model.

    Attributes
    ----------
    rows : Rows
        Inputs and labels. With effects beside the processes inputs are a table of all data of rows.
    beside : RowsBeside or None
        These effects.
    named : SharedVariable or None
        The data of the model that are the inputs.

    Raises
    ------
    ValueError
        If `gps` are not the processes that made the latent values, or if inputs of the model are not finite. It is
        raised as well if `rows` have another number of columns than these inputs, or names in another order.
    StructureError
        If there are no `gps`, and the graph does not say what the prior is at other inputs.
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
        self.beside = classifier.prior.beside(matched[0][1].inputs, data)
        table = inputs if self.beside is None else self.beside.table()
        self.rows: Rows = _rows_of_model(table, labels) if rows is None else rows
        if self.rows.n_inputs != table.shape[1]:
            which = f": {', '.join(self.beside.columns)}" if self.beside else ""
            raise ValueError(
                f"data must have inputs of {table.shape[1]} columns, as the model has them{which}, but have "
                f"{self.rows.n_inputs}{_which_columns(self.rows)}."
            )
        if self.beside:
            self.beside.check_names(getattr(self.rows, "columns", ()))
        self._moments = moment_functions(classifier, matched, data, self._columns, self.beside, compile_kwargs or {})
        self._of = {  # the prior that each function has, and which of its outputs that is
            k: (prior, output) for prior, (latent, _) in enumerate(matched) for output, k in enumerate(latent.classes)
        }
        self._outputs = [len(latent.classes) for latent, _ in matched]
        self._shared = len(matched) == 1
        self._alike = [0] * self.n_functions if self._shared else list(range(self.n_functions))

    def on(self, rows: Rows) -> "InducingBlocks":
        """The same with other rows."""
        other = copy(self)
        other.rows = rows
        return other

    def by_group(self) -> "InducingBlocks":
        """The same with q as the number of groups of functions, of which `grouped` has one for each covariance."""
        other = copy(self)
        other._alike = self.covariance_of
        return other

    @property
    def covariance_of(self) -> list[int]:
        """Place of the covariance of each function among the distinct ones, (c,)."""
        return [self._of[k][0] for k in range(self.n_functions)]

    @property
    def n_functions(self) -> int:
        """Number of latent functions, c."""
        return self._classifier.n_functions

    @property
    def n_effects(self) -> int:
        """Number of standard normals of effects beside the processes, p."""
        return self.beside.n_effects if self.beside else 0

    @property
    def places(self) -> Rows:
        """The same rows with the inputs of processes alone, whose other data are checked as they are read."""
        return FirstColumns(self.rows, self._columns, self.beside.check) if self.beside else self.rows

    @property
    def n_covariances(self) -> int:
        """q where all functions have the same inducing inputs: 1 if they share their prior covariance, else c."""
        return 1 if self._shared else self.n_functions

    def stationary(self, points: Sequence[Sequence[Array]]) -> list[Stationary] | None:
        """Each covariance as a variance times a known function of scaled distances; None unless all are such.

        `points` are places of the hyperparameters at which numbers are compared. Means must be 0.
        """
        moments = self._moments
        if self.beside:
            moments = moment_functions(self._classifier, self._matched, self._data, self._columns, None, {})
        return moments.stationary(points)

    def _values(self, point: PointType) -> list[Array]:
        return [np.asarray(point[name]) for name in self._names]

    def _parts(self, values: Sequence[Array], z: Array) -> Iterator[tuple[MomentFunctions, list[Array], Group, Array]]:
        """For each of the q sets of features what makes it and of what values, its functions, its z."""
        numbers = self._moments.numbers(values)
        for group in grouped(self._alike, len(z)):
            k = group.functions[0]
            prior, _ = self._of[k]
            own = z[group.inputs, :, : self._columns]  # a table has other data after these
            yield self._moments.functions[prior], [*values, *numbers[prior]], group, own

    def inducing(self, point: PointType, z: Array) -> Array:
        """Covariance (q, M, M) of the inducing values at hyperparameters and inducing inputs z (1 or c, M, d)."""
        return np.stack([part.inducing(*of, own) for part, of, _, own in self._parts(self._values(point), z)])

    def block(self, point: PointType, z: Array, x: Array) -> Block:
        """Moments at rows x (B, d)."""
        found, mean = [], np.empty((self.n_functions, len(x)))
        for part, of, group, own in self._parts(self._values(point), z):
            found.append(part.block(*of, own, x))
            for k in group.functions:
                mean[k] = found[-1][2][self._of[k][1]]
        cross, variance, _, *effects = zip(*found, strict=True)
        return Block(np.stack(cross), np.stack(variance), mean, *map(np.stack, effects))

    def inducing_slopes(self, point: PointType, z: Array, bar: Array) -> tuple[Array, Array]:
        """Derivatives in hyperparameters, flat and unconstrained, and in z, from those in `inducing`."""
        values = self._values(point)
        parts = self._parts(values, z)
        return self._summed(
            values, z, [part.inducing_slopes(*of, own, b) for (part, of, _, own), b in zip(parts, bar, strict=True)]
        )

    def block_slopes(self, point: PointType, z: Array, x: Array, bars: Block) -> tuple[Array, Array]:
        """The same from those in `block`."""
        values = self._values(point)
        found = []
        for q, (part, of, group, own) in enumerate(self._parts(values, z)):
            mean_bar = np.zeros((self._outputs[self._of[group.functions[0]][0]], len(x)))
            for k in group.functions:
                mean_bar[self._of[k][1]] = bars.mean[k]
            effects = [bars.effects[q]] if self.beside else []
            found.append(part.block_slopes(*of, own, x, bars.cross[q], bars.variance[q], mean_bar, *effects))
        return self._summed(values, z, found)

    def _summed(self, values: Sequence[Array], z: Array, found: Sequence[Sequence[Array]]) -> tuple[Array, Array]:
        """From derivatives of each set in hyperparameters, in its z and in its own numbers."""
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
        """Prior covariance of the inducing values, (q, M, M)."""
        return self._blocks.inducing(self.point, self.z)

    def block(self, rows: slice) -> Block:
        """Moments of some of the rows."""
        inputs = self._blocks.rows.inputs(rows)
        if self._blocks.beside:
            self._blocks.beside.check(inputs, rows.start + int(getattr(self._blocks.rows, "first", 0)))
        return self._blocks.block(self.point, self.z, inputs)

    def slopes(self, rows: slice, bars: Block) -> tuple[Array, Array]:
        """Derivatives in hyperparameters and inducing inputs, from those in the moments of some of the rows."""
        return self._blocks.block_slopes(self.point, self.z, self._blocks.rows.inputs(rows), bars)

    def inducing_slopes(self, bar: Array) -> tuple[Array, Array]:
        """The same from those in the covariance of the inducing values."""
        return self._blocks.inducing_slopes(self.point, self.z, bar)


def _which_columns(rows: Rows) -> str:
    """The names of the columns of rows that have such, and how to choose among them."""
    names = getattr(rows, "columns", ())
    chosen = "Choose those of the inputs with data=gpep.open_rows(path, label, columns=[...])"
    return f": {', '.join(map(repr, names))}. {chosen}" if names else ""


def _rows_of_model(inputs: Array, labels: Array) -> InMemory:
    if (bad := ~np.isfinite(inputs).all(axis=1)).any():
        raise ValueError(
            f"The inputs of the model must be finite, but {np.count_nonzero(bad)} of {len(bad)} rows have values that "
            f"are not; the first is row {int(np.flatnonzero(bad)[0])}. Leave these rows out, of the labels as well."
        )
    return InMemory(inputs, labels)
