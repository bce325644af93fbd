"""Sums of effects at new rows: the argument of the model with new data."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.graphs.rows_apart import dependent_rows
from pymc_gpep.graphs.rows_of_graphs import CannotSplitError, MixedRowsError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import Elsewhere, RowsOfNormals
from pymc_gpep.processes.cross_covariance import new_inputs
from pymc_gpep.processes.process_functions import MovedSum
from pymc_gpep.solvers.coefficients import rows_of_functions
from pymc_gpep.sums.affine_map import AffineMap, ByValues, ValueTaken, at_inputs
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.levels import NewData, RowsOfData, as_data, common_length, repeated_rows
from pymc_gpep.sums.new_levels import NewLevels
from pymc_gpep.sums.row_parts import MovedProcess, PartsElsewhere
from pymc_gpep.sums.sparse_slopes import Blocks

_ARGUMENT = "argument"
_INPUTS = "Xnew"


class _AtRows(NamedTuple):
    """A sum at rows."""

    mean: Array
    """(c, m)."""
    roots: Array
    """Coefficients of the standard normals, (c, m, q)."""
    taken: list[list[ValueTaken]]
    """Coefficients and cells (c, m) of each output of each process that is moved."""
    inputs: list[Array]
    """Inputs of each process that is moved, (m, d)."""


class _Fixed(NamedTuple):
    """Inputs that all processes of a sum have, as an array."""

    inputs: Array
    """(n, d)."""
    processes: list[MovedProcess]


class SumElsewhere(Elsewhere):
    """Prior moments of latent functions that are sums, at new rows.

    Gaussian processes whose inputs are among the new data are moved to these inputs. The values of all others are those
    of the fit, of which new rows take other ones.

    Parameters
    ----------
    prior : EffectSum
    gps : sequence of pm.gp.Latent or None
        The makers of the processes.
    data : dict
        Data of the model → constants, as the fit had them.
    blocks : sequence of tuple of int, optional
        Shapes of the variables that the numbers are of; each variable has a row of standard normals if not given.
    """

    def __init__(
        self,
        prior: EffectSum,
        gps: Sequence[pm.gp.Latent] | None,
        data: Mapping[Variable, Variable],
        blocks: Blocks | None = None,
    ) -> None:
        self._prior, self._gps, self._data = prior, gps, data
        self._argument = prior.argument if prior.everywhere is None else prior.everywhere
        self._rows = prior.n_rows or prior.n_points
        within = set(ancestors([self._argument, *prior.recipe_means]))
        self._processes = [latent for latent in prior.processes if latent.f in within]
        self._known = prior.data_behind([self._argument])
        fitted = evaluate([data.get(v, v) for v in self._known.values()]) if self._known else []
        self._fitted = dict(zip(self._known, fitted, strict=True))
        self.takes = self._known.keys()
        self._new = (
            f"data of the model at new rows, data={{...}} with {', '.join(self._known)}."
            if self._known
            else "data={...} once what differs between rows is declared as pm.Data: here they depend on none."
        )
        self._made: dict[tuple[str, ...], tuple[AffineMap, list[Elsewhere]]] = {}
        self._blocks: Blocks = blocks or [(own.stop - own.start,) for own in prior.places.values()]
        self._of_fit: dict[tuple[TensorVariable, ...], AffineMap] = {}  # by the processes that are moved
        self._levels = NewLevels(prior, self._argument, self._known, data, self._blocks)
        self._complete: set[tuple[str, ...]] = set()  # names of data that rows were computed from

    @property
    def inputs(self) -> Array:
        name = self._input_name()
        if name is None and self._fixed is not None:
            return self._fixed.inputs
        if name is None:
            raise ValueError(f"Latent functions that are sums have no inputs. They take {self._new}")
        return np.asarray(self._fitted[name], dtype=np.float64)

    @cached_property
    def _fixed(self) -> _Fixed | None:
        """The inputs of all processes, where they are one array with a row for each row of the fit."""
        prior = self._prior
        covs = [latent.cov for latent in self._processes]
        if not covs or _INPUTS in self._known or not set(self._known.values()).isdisjoint(ancestors(covs)):
            return None
        processes = [prior.process(latent, self._gps, self._data) for latent in self._processes]
        arrays = [each.moments.inputs for each in processes]
        if len(arrays[0]) != self._rows or not all(np.array_equal(each, arrays[0]) for each in arrays):
            return None
        self._fitted[_INPUTS] = arrays[0]
        return _Fixed(arrays[0], processes)

    def _input_name(self) -> str | None:
        """Return the name of the data that are the inputs of all Gaussian processes, if they are one."""
        behind = set(ancestors([latent.cov for latent in self._processes]))
        found = [name for name, variable in self._known.items() if variable in behind]
        return found[0] if len(found) == 1 and self._each_row(found[0]) else None

    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> NewData:
        given = {name: value for name, value in new.items() if name in self._known}
        by_row: dict[str, NDArray[Any]] = {}
        others: dict[str, NDArray[Any]] = {}
        if x is not None:
            name = self._input_name()
            if name in given:
                raise TypeError(f"Xnew and data[{name!r}] are the same inputs. Give one of them.")
            if name is not None:
                given[name] = x
            elif self._fixed is not None:
                by_row[_INPUTS] = new_inputs(x, self._fixed.inputs.shape[1])
            else:
                advice = " Declare inputs as pm.Data('X', X) for predict(Xnew)." * bool(self._processes)
                raise TypeError(f"Latent functions that are sums have no Xnew. They take {self._new}{advice}")
        if not given and not by_row and any(map(self._each_row, self._known)):
            wanted = ", ".join(f"{name!r}: ..." for name in self._known if self._each_row(name))
            raise TypeError(f"predict needs the data of the new rows: fit.predict(data={{{wanted}}}).")
        for name, value in given.items():
            shape = self._fitted[name].shape
            of, shape = (by_row, ("rows", *shape[1:])) if self._each_row(name) else (others, shape)
            of[name] = as_data(self._prior.model, self._known[name], [self._argument], value, shape)
        lengths = {name: len(value) for name, value in by_row.items()}
        m = common_length(lengths)
        spread = {name: repeated_rows(value, m) for name, value in by_row.items()}
        return NewData(spread, others, m, self._levels.strange(spread, new_levels))

    def _each_row(self, name: str) -> bool:
        """Tell whether data have an entry for each row."""
        return self._fitted[name].shape[:1] == (self._rows,)

    def by_normals(self, point: PointType, x: NewData | RowsOfData) -> RowsOfNormals:
        """See `Elsewhere`, for sums whose Gaussian processes stay at their inputs; raises what a call raises."""
        if isinstance(x, RowsOfData):
            mean, roots = self._own(point, x)
            return RowsOfNormals(rows_of_functions(roots), np.zeros_like(mean), mean)
        m = len(x)
        if m > 1 and not x.strange and (parts := self._parts) is not None:
            if (names := (*x.by_row, *x.others)) not in self._complete:
                self._at(point, x[:1])  # refuses data that are missing
                self._complete.add(names)
            given = {self._known[name]: value for name, value in {**x.by_row, **x.others}.items()}
            mean, rows = parts(point, given, lambda values: self._by_function(values, m))
            return RowsOfNormals(rows, np.zeros_like(mean), mean)
        _, new, known = self._at(point, self._resolved(point, x))
        beside = (new.roots**2).sum(axis=2) - (known**2).sum(axis=2)
        rows = rows_of_functions(np.ascontiguousarray(known[:, :m]))
        return RowsOfNormals(rows, np.maximum(beside, 0.0)[:, :m], new.mean[:, :m])

    @cached_property
    def _parts(self) -> PartsElsewhere | None:
        return self._prior.parts_elsewhere(self._data)

    def missing_rows(self) -> RowsOfData:
        if self._prior.fitted is None:
            return super().missing_rows()
        return RowsOfData(np.setdiff1d(np.arange(self._rows), self._prior.fitted))

    def _own(self, point: PointType, x: RowsOfData) -> tuple[Array, Array]:
        """Return means (c, m) and coefficients (c, m, q) at rows of the model, with processes at their inputs."""
        if () not in self._made:
            self._made[()] = self._compiled((), None)
        own = self._evaluated(self._made[()][0], point, [], self._rows)
        return own.mean[:, x.positions], own.roots[:, x.positions]

    def _at_fit(self, point: PointType, moved: Sequence[LatentGP]) -> _AtRows:
        """Return the sum at the rows that were fitted, with `moved` processes separate."""
        prior, key = self._prior, tuple(latent.f for latent in moved)
        if key not in self._of_fit:
            self._of_fit[key] = AffineMap(prior, {_ARGUMENT: prior.argument}, self._data, moved, seen=True)
        lengths = [prior.sizes[prior.processes.index(latent)][-1] for latent in moved]
        return self._evaluated(self._of_fit[key], point, [], prior.n_points, lengths)

    def _evaluated(
        self, affine: AffineMap, point: PointType, values: Sequence[Any], n: int, lengths: Sequence[int] = ()
    ) -> _AtRows:
        """Return the sum at n rows."""
        found = affine(point, values, lengths, self._units)
        roots = self._by_function(found.slopes[_ARGUMENT], n, batched=True)
        taken = [
            [
                ValueTaken(self._by_function(own.coefficients, n), self._by_function(own.cells, n), own.alone)
                for own in each
            ]
            for each in found.taken[_ARGUMENT]
        ]
        mean = self._by_function(found.centres[_ARGUMENT], n)
        return _AtRows(mean, np.ascontiguousarray(roots), taken, found.inputs)

    def __call__(self, point: PointType, x: NewData | RowsOfData) -> tuple[Array, Array, Array]:
        """See `Elsewhere`.

        Raises
        ------
        ValueError
            If the argument has another number of rows, since data that were not given have those of the fit.
        """
        if isinstance(x, RowsOfData):
            mean, roots = self._own(point, x)
            seen = self._at_fit(point, []).roots
            return roots @ seen.swapaxes(1, 2), (roots**2).sum(axis=2), mean
        processes, new, known = self._at(point, self._resolved(point, x))
        m = len(x)
        fitted = self._at_fit(point, self._moved((*x.by_row, *x.others)))
        cross = known @ fitted.roots.swapaxes(1, 2)
        variance = (new.roots**2).sum(axis=2)
        for process, ahead, behind, inputs in zip(processes, new.taken, fitted.taken, new.inputs, strict=True):
            between, own, _ = process(point, inputs)
            for there, here in zip(ahead, behind, strict=True):
                for k in np.flatnonzero(here.coefficients.any(axis=1)):
                    cross[k] += there.coefficients[k][:, None] * between[0][:, here.cells[k]] * here.coefficients[k]
                variance += there.coefficients**2 * own
        return cross[:, :m], variance[:, :m], new.mean[:, :m]

    def _moved(self, names: Sequence[str]) -> list[LatentGP]:
        """Return the processes that are at other inputs where data of these names are given."""
        if _INPUTS in names:
            return self._processes
        known = {self._known[name] for name in names}
        return [each for each in self._processes if not known.isdisjoint(ancestors([each.cov]))]

    def _at(self, point: PointType, x: NewData) -> tuple[list[Elsewhere], _AtRows, Array]:
        """Return the processes that are moved, the sum at new rows, and its known coefficients.

        Coefficients (c, m, q) of levels that the fit has no rows of are 0 among those known. There may be a row more.
        """
        names = (*x.by_row, *x.others)
        if names not in self._made:
            made = self._compiled(names, (point, x.others))
            self._made[names] = made  # what was refused is refused again
        affine, processes = self._made[names]
        m = len(x)
        # Data that still have the rows of the fit must not fit by chance.
        extra = m + 1 if m == self._rows else m
        values = [repeated_rows(v, extra) for v in x.by_row.values()]
        try:
            new = self._evaluated(affine, point, [*values, *x.others.values()], extra, [extra] * len(processes))
            if any(len(inputs) != extra for inputs in new.inputs):
                raise ValueError("A process has other rows.")
        except (ValueError, IndexError, AssertionError) as error:
            raise ValueError(self._refusal(names, m)) from error
        known = new.roots.copy()  # less what belongs to levels that the fit has no rows of
        for owned in self._levels.owned(point, x):
            known[:, :m][:, owned] = 0.0
        return processes, new, known

    def _resolved(self, point: PointType, x: NewData) -> NewData:
        """Return rows with placeholders of new levels, which the argument of a row uses for these alone."""
        return self._levels.resolved(point, x, partial(self._used, point))

    def _used(self, point: PointType, x: NewData, other: NewData) -> NDArray[np.bool_]:
        """Return which rows have coefficients of the placeholders of other ones."""
        roots = self._at(point, x)[1].roots[:, : len(x)]
        return np.any([(owned & (roots != 0.0)).any(axis=(0, 2)) for owned in self._levels.owned(point, other)], axis=0)

    def _compiled(
        self, names: tuple[str, ...], checked: tuple[PointType, Mapping[str, Array]] | None
    ) -> tuple[AffineMap, list[Elsewhere]]:
        """Return the sum as a function of a point and data, and the processes that are moved.

        If `checked` is a point and data that rows share, rows that depend on each other there are refused.
        """
        prior = self._prior
        known = {name: self._known[name] for name in names if name in self._known}
        there: dict[str, TensorVariable] = {
            name: pt.tensor(name, dtype=v.dtype, shape=(None,) * v.ndim) for name, v in known.items()
        }
        by = None
        if _INPUTS in names:
            assert self._fixed is not None
            there[_INPUTS] = pt.dmatrix(_INPUTS)
            moved, processes = self._processes, self._fixed.processes
            inputs = [there[_INPUTS]] * len(moved)
            by = self._from_inputs(there[_INPUTS])
        else:
            moved = self._moved(names)
            self._check_row_by_row(moved)
            processes = [prior.process(latent, self._gps, self._data) for latent in moved]
            inputs = [each.inputs for each in processes]
        data = {**self._data, **{v: there[name] for name, v in known.items()}}
        given = [there[name] for name in names]
        affine = AffineMap(prior, {_ARGUMENT: self._argument}, data, moved, given, inputs, by, seen=True)
        if checked is not None:
            point, shared = checked
            rows = {v: self._fitted[name] for name, v in there.items() if name not in shared}
            others = {there[name]: value for name, value in shared.items()}
            axis = self._argument.ndim - 1 - prior.by_class
            checks: list[tuple[str, str | int, int | None]] = [
                ("Latent functions", _ARGUMENT, axis if axis >= 0 else None),
                *(("Inputs of processes", i, 0) for i in range(len(inputs))),
            ]
            for what, name, along in checks:
                affine.check_apart(what, name, along, point, rows, others, self._rows)
        return affine, [each.moments for each in processes]

    def _check_row_by_row(self, moved: Sequence[LatentGP]) -> None:
        """Refuse other inputs of a process whose values rows select from."""
        for latent in moved:
            own = self._prior.places[latent.f]
            count = (own.stop - own.start) // len(latent.classes)
            if count != self._rows:
                raise ValueError(
                    f"Rows take values of {latent.f.name!r}, which has {count} for {self._rows} rows, so that it stays "
                    "at its own inputs. Have new inputs among these when the model is fitted, and predict by the index."
                )

    @property
    def _units(self) -> Array | None:
        """Directions along which slopes are computed; None for all."""
        return None

    def _from_inputs(self, x: TensorVariable) -> ByValues:
        """Return the argument at new inputs as a function of values of all processes there, less their means."""
        prior = self._prior
        assert self._fixed is not None
        makers = {gp.f: gp for gp in self._gps or () if getattr(gp, "f", None) is not None}
        sums = MovedSum(self._fixed.inputs, self._processes, prior.model.basic_RVs, x)
        try:
            sums.check_apart(prior.recipe_means)
            axis = self._argument.ndim - 1 - prior.by_class
            return at_inputs(prior, sums, [self._argument], lambda _: axis, self._processes, makers, seen=True)
        except CannotSplitError as why:
            if isinstance(why, MixedRowsError) and (of := [f for f in sums.values if sums.is_of(why.source, f)]):
                raise dependent_rows("Latent functions", why, of, [str(f.name) for f in of]) from None
            raise ValueError(
                f"Latent functions cannot be computed from Xnew alone: their sum {why}. Compute numbers of all rows in "
                "NumPy before the model, and put what differs between rows into it as pm.Data."
            ) from None

    def _by_function(self, values: NDArray[Any], n: int, batched: bool = False) -> NDArray[Any]:
        """Values of the argument as (c, n), or with a first axis of normals as (c, n, q)."""
        prior, first = self._prior, np.shape(values)[:1] if batched else ()
        shape = (n, prior.n_functions)[: 1 + prior.by_class]
        missing = len(shape) + len(first) - np.ndim(values)
        spread = np.broadcast_to(
            np.reshape(values, (*first, *[1] * missing, *np.shape(values)[len(first) :])), (*first, *shape)
        )
        return spread.T if prior.by_class else spread.T[None]

    def _refusal(self, names: tuple[str, ...], m: int) -> str:
        if self._fixed is not None and _INPUTS not in names:
            return f"Latent functions at {m} new rows depend on inputs: predict(Xnew, data={{...}})."
        missing = [name for name in self._known if name not in names and self._each_row(name)]
        if missing:
            listed = ", ".join(f"{name!r}: ..." for name in missing)
            return f"Latent functions at {m} new rows depend on further data: data={{..., {listed}}}."
        return (
            f"Latent functions at {m} new rows cannot be computed from the data given: a part of the argument has an "
            f"entry for each of the {self._rows} rows of the model, or an index is out of range. Put what differs "
            "between rows into the model as pm.Data."
        )
