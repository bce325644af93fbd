"""Coefficients of effects at selected rows. The argument of the sum is computed from the data of these rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import Alloc
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import EVALUATION_TOLERANCE, SEED, evaluate
from pymc_gpep.processes.processes import new_inputs
from pymc_gpep.rows.rows import RowError
from pymc_gpep.sums.affine_map import AffineMap
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.new_data import XNEW, DataBehind, levels_of

_CHECKED = 50  # The check that rows are independent uses this number of rows.
_AXES = (1, 2)  # Numbers of axes that data over rows may have.

_NEW_LEVELS = " To predict a new level, add a level without rows to the coords of the model, and fit the model again."


class EffectsOfRows:
    """Effects at rows of a table. The columns are inputs of the process, then all other data with an axis of rows.

    Parameters
    ----------
    whole : EffectSum
    inputs : TensorVariable
        Inputs of the process in the model, (n, d).
    data : mapping
        Data of the model → constants that replace them.

    Attributes
    ----------
    leaves : list of Variable
        Data with one entry for each row, except inputs of the process, in the order of the columns.
    n_effects : int
        Number of standard normals of effects, p.

    Raises
    ------
    StructureError
        If the argument of the likelihood in a row depends on data of other rows.
    """

    def __init__(self, whole: EffectSum, inputs: TensorVariable, data: Mapping[Variable, Variable]) -> None:
        # Undo the broadcast of means to the number of rows in the model.
        bare = tuple(replace(latent, mean=_bare(latent.mean)) for latent in whole.processes)
        self._whole, self._data = replace(whole, processes=bare), data
        self.n_effects = whole.n_plain
        self._expressions = {"argument": whole.argument}
        self._inputs, behind = np.asarray(self._values([inputs])[0], np.float64), set(ancestors([inputs]))
        self.leaves: list[TensorVariable] = []
        # Data from which inputs of the process are computed, or data that are the inputs.
        self._own: list[TensorVariable] = []
        self._still = pt.vector("still", shape=(whole.n_points,), dtype="float64")
        argument = self._argument(pt.zeros(self.n_effects))
        found = [v for v in ancestors([argument], blockers=whole.model.basic_RVs) if self._each_row(v)]
        order = {v: i for i, v in enumerate(whole.model.data_vars)}
        for leaf in sorted(found, key=lambda v: order.get(v, len(order))):
            same = leaf in behind or (isinstance(leaf, Constant) and np.array_equal(_wide(leaf.data), self._inputs))
            (self._own if same else self.leaves).append(leaf)
        self._widths = [_wide(value).shape[1] for value in self._values(self.leaves)]
        ends = np.cumsum([self._inputs.shape[1], *self._widths])
        places = [slice(*ends[i : i + 2]) for i in range(len(self._widths))]
        places += [slice(0, _wide(value).shape[1]) for value in self._values(self._own)]
        self._levels = [
            (str(leaf.name or "a level"), place, levels)
            for leaf, place in zip([*self.leaves, *self._own], places, strict=True)
            if (levels := levels_of(leaf, [whole.argument])) is not None
        ]
        self._check()

    @property
    def names(self) -> list[str]:
        """Names of the data over rows; empty if some of these arrays have no name in the model."""
        named = set(self._whole.model.data_vars)
        return [str(leaf.name) for leaf in self.leaves] if named.issuperset(self.leaves) else []

    @cached_property
    def _inputs_by_name(self) -> dict[str, Variable]:
        """Data of the model that are inputs of the process, by name."""
        behind = set(ancestors([*self._own, *(latent.cov for latent in self._whole.processes)]))
        return {str(v.name): v for v in self._whole.model.data_vars if v in behind and self._each_row(v)}

    @property
    def takes(self) -> list[str]:
        """Names of the data that define new rows."""
        return [*self._inputs_by_name, *self.names]

    @property
    def columns(self) -> list[str]:
        """Name of each column of the table."""
        inputs = [f"inputs of {latent.f.name!r}" for latent in self._whole.processes]
        return [*inputs * self._inputs.shape[1], *(
            str(leaf.name or "an array")
            for leaf, width in zip(self.leaves, self._widths, strict=True)
            for _ in range(width)
        )]  # fmt: skip

    def _values(self, variables: Sequence[Variable]) -> list[Any]:
        return list(evaluate(graph_replace(list(variables), dict(self._data), strict=False))) if variables else []

    def _each_row(self, variable: Variable) -> bool:
        """Return whether a variable is data with one entry for each row."""
        if not isinstance(variable, Constant | SharedVariable) or getattr(variable.type, "ndim", 0) not in _AXES:
            return False
        (value,) = self._values([variable])
        return bool(np.shape(value)[:1] == (self._whole.n_points,) and self._whole.n_points > 1)

    def _argument(self, z: TensorVariable) -> TensorVariable:
        """Return the argument for standard normals z of effects, with `_still` in place of the centred process."""
        (made,) = self._whole.by_parts([self._whole.argument], z, [self._still], seen=True)
        return made

    def _map(self, x: TensorVariable) -> AffineMap:
        """Return the argument at rows x (B, columns) of a table, as an affine function of the normals of effects."""
        return AffineMap(
            self._whole, {"argument": self._whole.argument}, self._data, given=[x], by=partial(self._at, x)
        )

    def _at(self, x: TensorVariable, z: TensorVariable, g: Any) -> list[TensorVariable]:
        """Return the argument (B,) at rows x (B, columns) of a table, for standard normals z."""
        d = self._inputs.shape[1]
        begin, there = d, {}
        for leaf, width in zip(self.leaves, self._widths, strict=True):
            there[leaf] = _like(x[:, begin : begin + width], leaf)
            begin += width
        there |= {leaf: _like(x[:, :d], leaf) for leaf in self._own}
        made = _with_others(self._argument(z), {**there, self._still: pt.zeros(x.shape[0])})
        return [pt.broadcast_to(made.astype("float64"), (x.shape[0],))]

    def moments(self, x: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        """Return graphs of the mean (1, B) and of the coefficients J (p, B) at rows x (B, columns) of a table."""
        mean, coefficients = self._map(x).graphs("argument", [pt.eye(self.n_effects)])
        return mean[None], coefficients

    def table(self) -> Array:
        """Return the table (n, columns) of the rows of the model."""
        return np.concatenate([self._inputs, *(_wide(value) for value in self._values(self.leaves))], axis=1)

    def new_rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike]) -> Array:
        """Return the table (m, columns) of new rows, given inputs of the process and data of the model by name.

        Raises
        ------
        TypeError
            If inputs or data are missing.
        ValueError
            If inputs or data do not match the model.
        """
        given = {name: value for name, value in new.items() if name in self.takes}
        inputs = next((given[name] for name in self._inputs_by_name if name in given), None) if x is None else x
        wanted = ", ".join(f"{name!r}: ..." for name in self.names)
        if self.leaves and not self.names:
            raise TypeError(
                "New rows need data by name, and some arrays that differ between rows have no name in the model. "
                "Declare them as pm.Data."
            )
        if inputs is None or any(name not in given for name in self.names):
            raise TypeError(
                f"predict needs inputs of the process and data of all rows: predict(Xnew, data={{{wanted}}})."
            )
        known = {str(leaf.name): leaf for leaf in self.leaves if isinstance(leaf, SharedVariable)}
        behind = DataBehind(self._whole.model, [self._whole.argument], known, self._data, self._whole.n_points)
        rows = behind.read({name: given[name] for name in self.names}, new_inputs(inputs, self._inputs.shape[1]))
        behind.outside(rows)  # Raise an error if a computed index is out of range.
        found = np.concatenate([_wide(rows.by_row[name]) for name in (XNEW, *self.names)], axis=1)
        self.check(found, advice=_NEW_LEVELS)
        return found

    def check(self, x: Array, first: int = 0, advice: str = "") -> None:
        """Raise an error if rows have levels that are not in the model. Messages count rows from `first`."""
        for name, place, levels in self._levels:
            values = x[:, place]
            outside = (values < 0) | (values >= levels) | (values != np.floor(values))
            if outside.any():
                i, j = np.unravel_index(outside.argmax(), outside.shape)
                raise RowError(
                    f"has {values[i, j]:g} as {name!r}, but its levels are 0 to {levels - 1}.{advice}", first + int(i)
                )

    def check_names(self, given: Sequence[str]) -> None:
        """Raise an error if column names are in another order than the columns of the table."""
        wanted = self.columns
        for place, name in enumerate(wanted):
            if wanted.count(name) == 1 and given.count(name) == 1 and given.index(name) != place:
                raise ValueError(
                    f"data have the columns {', '.join(map(repr, given))}, but the model takes them in the order: "
                    f"{', '.join(wanted)}. Select the columns in this order."
                )

    def _check(self) -> None:
        """Raise an error if the argument in a row depends on other rows of the table."""
        x, n, table = pt.dmatrix("rows"), self._whole.n_points, self.table()
        rng = np.random.default_rng(SEED)
        some, noise = rng.permutation(n)[: min(_CHECKED, n - 1)], rng.standard_normal(self.n_effects)
        try:
            rows, every = (
                self._map(x),
                AffineMap(self._whole, {"argument": self._whole.argument}, self._data, seen=True),
            )
            point = every.functions.nearby(rng)
            (among,), (alone,) = every.at(point, noise), rows.at(point, noise, given=[table[some]])
            among = np.broadcast_to(among, (n,))[some]
            rounding = EVALUATION_TOLERANCE * (1.0 + np.abs(among).max())
            same = bool(np.allclose(among, alone, rtol=0.0, atol=rounding))
            rows.check_apart("Rows", "argument", 0, point, {x: table}, {}, n)
        except (ValueError, IndexError, TypeError, AssertionError, NotImplementedError):
            same = False
        if not same:
            raise StructureError(
                "With inducing inputs, the argument of the likelihood at a row must depend on the data of that row "
                "alone, one entry of each array. Compute quantities of several rows, such as means, "
                'before the model, or fit it by methods on all rows together: "ep", "laplace", "kl".'
            )


def _bare(mean: TensorVariable) -> TensorVariable:
    """Return a mean before its broadcast to all rows."""
    while mean.owner is not None and isinstance(mean.owner.op, Alloc):
        mean = mean.owner.inputs[0]
    return mean


def _with_others(output: TensorVariable, there: Mapping[Variable, Variable]) -> TensorVariable:
    """Return a graph with replaced data. The new number of rows may differ from static shapes in the graph."""
    made = dict(there)
    for node in toposort([output]):
        inputs = [made.get(v, v) for v in node.inputs]
        if inputs == node.inputs or isinstance(node.op, RNGConsumerOp):  # A copy would not be a variable of the model.
            continue
        if isinstance(node.op, SpecifyShape):  # The first axis has a new length.
            made[node.outputs[0]] = pt.specify_shape(inputs[0], (None, *node.outputs[0].type.shape[1:]))
        else:
            made |= zip(node.outputs, node.clone_with_new_inputs(inputs, strict=False).outputs, strict=True)
    return made.get(output, output)


def _wide(value: ArrayLike) -> Array:
    """Return data over rows as a matrix (n, width)."""
    array = np.asarray(value, dtype=np.float64)
    return array[:, None] if array.ndim == 1 else array


def _like(columns: TensorVariable, leaf: TensorVariable) -> TensorVariable:
    """Return columns (B, width) of a table in the dtype and shape of the data `leaf`."""
    values = columns[:, 0] if leaf.ndim == 1 else pt.specify_shape(columns, (None, leaf.type.shape[1]))
    return pt.round(values).astype(leaf.dtype) if leaf.dtype.startswith(("int", "uint")) else values.astype(leaf.dtype)
