"""Prior moments with inducing inputs, block by block.

The graph of a model has the prior covariance of all points as one matrix. Here it is never evaluated: covariance and
mean functions are asked for blocks.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.rows.contract import Rows
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.classifier import GPClassifier
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.prior_functions import functions_of
from pymc_gpep.structure.process_functions import ProcessFunctions

__all__ = ["InducingBlocks", "PriorAt", "moment_graphs"]


def moment_graphs(
    model: pm.Model,
    latent: LatentGP,
    functions: ProcessFunctions,
    data: Mapping[Variable, Variable],
    z: TensorVariable,
    x: TensorVariable,
) -> list[TensorVariable]:
    """Moments of one prior with inducing inputs z (M, d) and rows x (B, d), in terms of value variables.

    Covariance (M, M) of the inducing values, (M, B) of these with the rows, variance (B,) and mean (outputs, B) of the
    rows.
    """
    outputs = [
        functions.covariance(z, z),
        functions.covariance(z, x),
        functions.variance(x),
        pt.broadcast_to(functions.mean(x), (len(latent.classes), x.shape[0])),
    ]
    # In this order: a random variable may depend on data itself, and would no longer be the model's.
    outputs = graph_replace(model.replace_rvs_by_values(outputs), data, strict=False)
    return [out.astype("float64") for out in outputs]


class _Moments:
    """Moments of one prior as functions of hyperparameters, inducing inputs z (M, d) and rows x (B, d)."""

    def __init__(
        self,
        classifier: GPClassifier,
        latent: LatentGP,
        functions: ProcessFunctions,
        data: Mapping[Variable, Variable],
        columns: int,
        compile_kwargs: Mapping[str, Any],
    ) -> None:
        self._model = model = classifier.model
        self._values = [model.rvs_to_values[rv] for rv in classifier.hyperparameters]
        self._kwargs = compile_kwargs
        self.n_outputs = len(latent.classes)
        self._z, self._x = (
            pt.tensor(name, dtype="float64", shape=(None, columns)) for name in ("inducing_inputs", "rows")
        )
        self._inducing, *self._block = moment_graphs(model, latent, functions, data, self._z, self._x)

    def _function(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Any:
        return graph_function(self._model, [*self._values, *inputs], outputs, **self._kwargs)

    def _slopes(self, outputs: Sequence[TensorVariable], bars: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Derivatives of Σ bar · output in the hyperparameters, flat, and in z."""
        total = pt.add(0.0, *((bar * out).sum() for bar, out in zip(bars, outputs, strict=True)))
        wanted = [*self._values, self._z]
        *of_values, of_z = pytensor.grad(total, wanted, disconnected_inputs="ignore")
        flat = pt.concatenate([slope.ravel() for slope in of_values]) if of_values else pt.zeros(0)
        return [flat, of_z]

    @cached_property
    def inducing(self) -> Any:
        """Function of (hyperparameters, z)."""
        return self._function([self._z], self._inducing)

    @cached_property
    def block(self) -> Any:
        """Function of (hyperparameters, z, x)."""
        return self._function([self._z, self._x], self._block)

    @cached_property
    def inducing_slopes(self) -> Any:
        """Function of (hyperparameters, z, derivatives in the result of `inducing`)."""
        bar = pt.dmatrix("inducing_bar")
        return self._function([self._z, bar], self._slopes([self._inducing], [bar]))

    @cached_property
    def block_slopes(self) -> Any:
        """Function of (hyperparameters, z, x, derivatives in each result of `block`)."""
        bars = pt.dmatrix("cross_bar"), pt.dvector("variance_bar"), pt.dmatrix("mean_bar")
        return self._function([self._z, self._x, *bars], self._slopes(self._block, bars))


class InducingBlocks:
    """Prior moments of the latent functions of a model with inducing inputs, made once for all hyperparameters.

    Parameters
    ----------
    classifier : GPClassifier
    gps : sequence of pm.gp.Latent, or None
        What made the latent values; if None, covariance functions are had from the graph of the model.
    data : dict
        Data of the model → constants that take their place.
    compile_kwargs : dict, optional
        For `pytensor.function`; without a `mode` graphs are interpreted.
    rows : Rows, optional
        Take the place of those of the model.

    Attributes
    ----------
    rows : Rows
        Inputs and labels.

    Raises
    ------
    ValueError
        If `gps` are not what made the latent values, if inputs of the model are not finite, or if `rows` have another
        number of columns than these.
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
        matched = functions_of(classifier, gps)
        self._classifier = classifier
        self._names = [classifier.model.rvs_to_values[rv].name for rv in classifier.hyperparameters]
        observed = [matched[0][1].inputs, classifier.labels]
        inputs, labels = evaluate(graph_replace(observed, data, strict=False))
        self.rows: Rows = _rows_of_model(inputs, labels) if rows is None else rows
        if self.rows.n_inputs != inputs.shape[1]:
            raise ValueError(
                f"data must have inputs of {inputs.shape[1]} columns, as the model has them, but have "
                f"{self.rows.n_inputs}."
            )
        parts = [
            _Moments(classifier, latent, functions, data, inputs.shape[1], compile_kwargs or {})
            for latent, functions in matched
        ]
        self._of = {  # the part that makes each function, and which of its outputs that is
            k: (part, output)
            for part, (latent, _) in zip(parts, matched, strict=True)
            for output, k in enumerate(latent.classes)
        }
        self._shared = len(parts) == 1

    def on(self, rows: Rows) -> "InducingBlocks":
        """The same with other rows."""
        other = copy(self)
        other.rows = rows
        return other

    @property
    def n_functions(self) -> int:
        """Number of latent functions, c."""
        return self._classifier.n_functions

    @property
    def n_covariances(self) -> int:
        """q where all functions have the same inducing inputs: 1 if they share their prior covariance, else c."""
        return 1 if self._shared else self.n_functions

    def _values(self, point: PointType) -> list[Array]:
        return [np.asarray(point[name]) for name in self._names]

    def _parts(self, z: Array) -> Iterator[tuple[_Moments, int, Array]]:
        """For each of the q sets of features what makes it, its first function, and its inducing inputs."""
        for k in range(1 if self._shared and len(z) == 1 else self.n_functions):
            yield self._of[k][0], k, z[k if len(z) > 1 else 0]

    def inducing(self, point: PointType, z: Array) -> Array:
        """Covariance (q, M, M) of the inducing values at hyperparameters and inducing inputs z (1 or c, M, d)."""
        values = self._values(point)
        return np.stack([part.inducing(*values, own) for part, _, own in self._parts(z)])

    def block(self, point: PointType, z: Array, x: Array) -> Block:
        """Moments at rows x (B, d)."""
        values = self._values(point)
        found = [part.block(*values, own, x) for part, _, own in self._parts(z)]
        mean = np.stack([found[min(k, len(found) - 1)][2][self._of[k][1]] for k in range(self.n_functions)])
        return Block(np.stack([cross for cross, _, _ in found]), np.stack([one for _, one, _ in found]), mean)

    def inducing_slopes(self, point: PointType, z: Array, bar: Array) -> tuple[Array, Array]:
        """Derivatives in hyperparameters, flat and unconstrained, and in z, from those in `inducing`."""
        values = self._values(point)
        found = [part.inducing_slopes(*values, own, of) for (part, _, own), of in zip(self._parts(z), bar, strict=True)]
        return self._summed(z, found)

    def block_slopes(self, point: PointType, z: Array, x: Array, bars: Block) -> tuple[Array, Array]:
        """The same from those in `block`."""
        values = self._values(point)
        found = []
        for q, (part, first, own) in enumerate(self._parts(z)):
            mean_bar = np.zeros((part.n_outputs, len(x)))
            for k in [first] if len(bars.cross) > 1 else range(self.n_functions):
                mean_bar[self._of[k][1]] = bars.mean[k]
            found.append(part.block_slopes(*values, own, x, bars.cross[q], bars.variance[q], mean_bar))
        return self._summed(z, found)

    @staticmethod
    def _summed(z: Array, found: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
        of_z = np.stack([slope for _, slope in found])
        return np.sum([slope for slope, _ in found], axis=0), of_z if len(z) > 1 else of_z.sum(axis=0, keepdims=True)


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

    def inducing(self) -> Array:
        """Prior covariance of the inducing values, (q, M, M)."""
        return self._blocks.inducing(self.point, self.z)

    def block(self, rows: slice) -> Block:
        """Moments of some of the rows."""
        return self._blocks.block(self.point, self.z, self._blocks.rows.inputs(rows))

    def slopes(self, rows: slice, bars: Block) -> tuple[Array, Array]:
        """Derivatives in hyperparameters and inducing inputs, from those in the moments of some of the rows."""
        return self._blocks.block_slopes(self.point, self.z, self._blocks.rows.inputs(rows), bars)

    def inducing_slopes(self, bar: Array) -> tuple[Array, Array]:
        """The same from those in the covariance of the inducing values."""
        return self._blocks.inducing_slopes(self.point, self.z, bar)


def _rows_of_model(inputs: Array, labels: Array) -> InMemory:
    if (bad := ~np.isfinite(inputs).all(axis=1)).any():
        raise ValueError(
            f"The inputs of the model must be finite, but {np.count_nonzero(bad)} of {len(bad)} rows have values that "
            f"are not; the first is row {int(np.flatnonzero(bad)[0])}. Leave these rows out, of the labels as well."
        )
    return InMemory(inputs, labels)
