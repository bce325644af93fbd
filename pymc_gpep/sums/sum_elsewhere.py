"""Sums of effects at new rows: the argument of the model with new data."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import SEED, ModelFunctions, evaluate
from pymc_gpep.graphs.rows_apart import at_point, check_rows_apart, dependent_rows
from pymc_gpep.graphs.rows_of_graphs import CannotSplitError, MixedRowsError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import Elsewhere, RowsOfNormals
from pymc_gpep.processes.cross_covariance import new_inputs
from pymc_gpep.processes.process_functions import MovedSum
from pymc_gpep.solvers.coefficients import rows_of_functions
from pymc_gpep.sums.affine_variables import at_zero, slopes_of
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.levels import NewData, RowsOfData, as_data, common_length
from pymc_gpep.sums.new_levels import NewLevels
from pymc_gpep.sums.row_parts import MovedProcess, PartsElsewhere, probes
from pymc_gpep.sums.sparse_slopes import Blocks


class _Taken(NamedTuple):
    """The value of an output of a process that each row takes."""

    coefficients: Array
    """(c, n)."""
    cells: NDArray[np.int64]
    """Positions among the points of the process, (c, n)."""


class _AtFit(NamedTuple):
    """A sum at the rows that were fitted, at a point of the model."""

    roots: Array
    """Coefficients (c, n, q) of standard normals, 0 of those of processes that are moved."""
    taken: list[list[_Taken]]
    """The values of each output of each process that is moved."""


class FittedRows:
    """A sum at the rows that were fitted, some of its processes apart.

    Parameters
    ----------
    prior : EffectSum
    data : mapping
        Data of the model → constants, as the fit had them.
    """

    def __init__(self, prior: EffectSum, data: Mapping[Variable, Variable]) -> None:
        self._prior, self._data = prior, data
        self._made: dict[tuple[TensorVariable, ...], Callable[..., Any]] = {}

    def __call__(self, point: PointType, moved: Sequence[LatentGP]) -> _AtFit:
        """Return coefficients given values of the value variables, those of `moved` processes apart."""
        key = tuple(latent.f for latent in moved)
        if key not in self._made:
            functions = ModelFunctions(self._prior.model, self._prior.hyperparameters, self._data)
            self._made[key] = functions(self._graphs(moved))
        roots, *changes = self._made[key](point)
        pairs = iter(zip(changes[::2], changes[1::2], strict=True))
        taken = [[_taken(*next(pairs), self._shape(each)[-1]) for _ in each.classes] for each in moved]
        return _AtFit(np.ascontiguousarray(roots), taken)

    def _shape(self, latent: LatentGP) -> tuple[int, ...]:
        own = self._prior.places[latent.f]
        count = own.stop - own.start
        return (len(latent.classes), count // len(latent.classes)) if latent.f.ndim > 1 else (count,)

    def _graphs(self, moved: Sequence[LatentGP]) -> list[TensorVariable]:
        """Return graphs of coefficients, and of the changes that two probes of each output make."""
        prior, n = self._prior, self._prior.n_points
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        shapes = [self._shape(latent) for latent in moved]

        def argument(place: int | None = None, values: Array | None = None) -> TensorVariable:
            """The argument with values of one moved process, and 0 of all others."""
            given = [values if i == place else np.zeros(shape) for i, shape in enumerate(shapes)]
            by_process = {latent.f: pt.constant(each) for latent, each in zip(moved, given, strict=True)}
            return prior.by_normals([prior.argument], z, by_process, seen=True)[0]

        still = argument()
        centre = at_zero(still, z)
        outputs = [prior.shaped(slopes_of(still, z, prior.n_normals), n, batched=True)]
        for i, (latent, shape) in enumerate(zip(moved, shapes, strict=True)):
            for output in range(len(latent.classes)):
                for probe in probes(shape)[:2]:
                    own = probe * (np.arange(shape[0]) == output)[:, None] if len(shape) > 1 else probe
                    outputs.append(prior.shaped(at_zero(argument(i, own), z) - centre, n))
        return outputs


def _taken(ones: Array, codes: Array, points: int) -> _Taken:
    """Return what rows take, by the changes that ones and numbers from 1 on make."""
    ratio = np.divide(codes, ones, out=np.ones_like(ones), where=ones != 0.0)
    return _Taken(ones, (np.rint(ratio).astype(np.int64) - 1) % points)


_INPUTS = "Xnew"


class _AtRows(NamedTuple):
    """A sum at rows."""

    mean: Array
    """(c, m)."""
    roots: Array
    """Coefficients of the standard normals, (c, m, q)."""
    factors: list[Array]
    """Coefficients of the outputs of each process that is moved, (outputs, c, m)."""
    inputs: list[Array]
    """Inputs of each process that is moved, (m, d)."""

    def at(self, rows: Any) -> "_AtRows":
        """Return the sum at some of the rows; inputs of processes stay those of all places."""
        return _AtRows(self.mean[:, rows], self.roots[:, rows], [each[..., rows] for each in self.factors], self.inputs)


class _Fixed(NamedTuple):
    """Inputs that all processes of a sum have, as an array."""

    inputs: Array
    """(n, d)."""
    processes: list[MovedProcess]


type _Values = Mapping[TensorVariable, TensorVariable]

type _Rows = Callable[[PointType, Sequence[Any], int], _AtRows]


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
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        covs = [latent.cov for latent in self._processes]
        outputs = prior.model.replace_rvs_by_values([*prior.by_normals([self._argument], z), *covs])
        behind = set(ancestors(outputs))
        found = [v for v in prior.model.data_vars if v in behind and isinstance(v, SharedVariable)]
        self._known: dict[str, SharedVariable] = {str(v.name): v for v in found}
        self._fitted = dict(zip(self._known, evaluate([data.get(v, v) for v in found]) if found else [], strict=True))
        self.takes = self._known.keys()
        self._new = (
            f"data of the model at new rows, data={{...}} with {', '.join(self._known)}."
            if self._known
            else "data={...} once what differs between rows is declared as pm.Data: here they depend on none."
        )
        self._made: dict[tuple[str, ...], tuple[_Rows, list[Elsewhere]]] = {}
        self._blocks: Blocks = blocks or [(own.stop - own.start,) for own in prior.places.values()]
        self._at_fit = FittedRows(prior, data)
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
            fitted, array = self._fitted[name], np.asarray(value)
            each_row = self._each_row(name)
            self._levels.check_labels(name, array)
            wide = array[None] if each_row and array.ndim == fitted.ndim - 1 else array  # one for all rows
            shape = ("rows", *fitted.shape[1:]) if each_row else fitted.shape
            (by_row if each_row else others)[name] = as_data(self._known[name], array, wide, shape)
        lengths = {name: len(value) for name, value in by_row.items()}
        m = common_length(lengths)
        spread = {name: np.repeat(value, m // max(len(value), 1), axis=0) for name, value in by_row.items()}
        return NewData(spread, others, m, self._levels.strange(spread, new_levels))

    def _each_row(self, name: str) -> bool:
        """Tell whether data have an entry for each row."""
        return self._fitted[name].shape[:1] == (self._rows,)

    def by_normals(self, point: PointType, x: NewData | RowsOfData) -> RowsOfNormals:
        """See `Elsewhere`, for sums whose Gaussian processes stay at their inputs; raises what a call raises."""
        if isinstance(x, RowsOfData):
            there = self._own(point).at(x.positions)
            return RowsOfNormals(rows_of_functions(there.roots), np.zeros_like(there.mean), there.mean)
        m = len(x)
        if m > 1 and not x.strange and (parts := self._parts) is not None:
            if (names := (*x.by_row, *x.others)) not in self._complete:
                self._at(point, x[:1])  # refuses data that are missing
                self._complete.add(names)
            given = {self._known[name]: value for name, value in {**x.by_row, **x.others}.items()}
            mean, rows = parts(point, given, lambda values: self._by_function(values, m))
            return RowsOfNormals(rows, np.zeros_like(mean), mean)
        _, _, new, known = self._at(point, self._resolved(point, x))
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

    def _own(self, point: PointType) -> _AtRows:
        """Return the sum at all rows of the model, whose processes are where they were fitted."""
        if () not in self._made:
            self._made[()] = self._compiled((), None)
        return self._made[()][0](point, [], self._rows)

    def __call__(self, point: PointType, x: NewData | RowsOfData) -> tuple[Array, Array, Array]:
        """See `Elsewhere`.

        Raises
        ------
        ValueError
            If the argument has another number of rows, since data that were not given have those of the fit.
        """
        if isinstance(x, RowsOfData):
            ours = self._own(point).at(x.positions)
            seen = self._at_fit(point, []).roots
            return ours.roots @ seen.swapaxes(1, 2), (ours.roots**2).sum(axis=2), ours.mean
        _, processes, new, known = self._at(point, self._resolved(point, x))
        m = len(x)
        fitted = self._at_fit(point, self._moved((*x.by_row, *x.others)))
        cross = known @ fitted.roots.swapaxes(1, 2)
        variance = (new.roots**2).sum(axis=2)
        for process, ahead, behind, inputs in zip(processes, new.factors, fitted.taken, new.inputs, strict=True):
            between, own, _ = process(point, inputs)
            for there, (here, cells) in zip(ahead, behind, strict=True):
                for k in np.flatnonzero(here.any(axis=1)):
                    cross[k] += there[k][:, None] * between[0][:, cells[k]] * here[k]
                variance += there**2 * own
        return cross[:, :m], variance[:, :m], new.mean[:, :m]

    def _moved(self, names: Sequence[str]) -> list[LatentGP]:
        """Return the processes that are at other inputs where data of these names are given."""
        if _INPUTS in names:
            return self._processes
        known = {self._known[name] for name in names}
        return [each for each in self._processes if not known.isdisjoint(ancestors([each.cov]))]

    def _at(self, point: PointType, x: NewData) -> tuple[_Rows, list[Elsewhere], _AtRows, Array]:
        """Return a function of rows, the processes that are moved, the sum at new rows, and its known coefficients.

        Coefficients (c, m, q) of levels that the fit has no rows of are 0 among those known. There may be a row more.
        """
        names = (*x.by_row, *x.others)
        if names not in self._made:
            made = self._compiled(names, (point, x.others))
            self._made[names] = made  # what was refused is refused again
        function, processes = self._made[names]
        m = len(x)
        # Data that still have the rows of the fit must not fit by chance.
        extra = m + 1 if m == self._rows else m
        values = [np.concatenate([v, v[-1:]]) if extra > m else v for v in x.by_row.values()]
        try:
            new = function(point, [*values, *x.others.values()], extra)
        except (ValueError, IndexError, AssertionError) as error:
            raise ValueError(self._refusal(names, m)) from error
        known = new.roots.copy()  # less what belongs to levels that the fit has no rows of
        for owned in self._levels.owned(point, x):
            known[:, :m][:, owned] = 0.0
        return function, processes, new, known

    def _resolved(self, point: PointType, x: NewData) -> NewData:
        """Return rows with placeholders of new levels, which the argument of a row uses for these alone."""
        return self._levels.resolved(point, x, partial(self._used, point))

    def _used(self, point: PointType, x: NewData, other: NewData) -> NDArray[np.bool_]:
        """Return which rows have coefficients of the placeholders of other ones."""
        roots = self._at(point, x)[2].roots[:, : len(x)]
        return np.any([(owned & (roots != 0.0)).any(axis=(0, 2)) for owned in self._levels.owned(point, other)], axis=0)

    def _compiled(
        self, names: tuple[str, ...], checked: tuple[PointType, Mapping[str, Array]] | None
    ) -> tuple[_Rows, list[Elsewhere]]:
        """Return a function of a point and data, and the processes that are moved.

        If `checked` is a point and data that rows share, rows that depend on each other there are refused.
        """
        prior = self._prior
        known = {name: self._known[name] for name in names if name in self._known}
        there: dict[str, TensorVariable] = {
            name: pt.tensor(name, dtype=v.dtype, shape=(None,) * v.ndim) for name, v in known.items()
        }
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        if _INPUTS in names:
            assert self._fixed is not None
            there[_INPUTS] = pt.dmatrix(_INPUTS)
            moved, processes = self._processes, self._fixed.processes
            inputs = [there[_INPUTS]] * len(moved)
            argument = self._from_inputs(there[_INPUTS], z)
        else:
            moved = self._moved(names)
            self._check_row_by_row(moved)
            processes = [prior.process(latent, self._gps, self._data) for latent in moved]
            inputs = [each.inputs for each in processes]

            def argument(values: _Values) -> TensorVariable:
                return prior.by_normals([self._argument], z, values, seen=True)[0]

        shapes = [(*latent.f.type.shape[:-1], each.shape[0]) for latent, each in zip(moved, inputs, strict=True)]

        def with_one(place: tuple[int, int] | None = None) -> TensorVariable:
            """The argument with one output of a moved process at 1, and all else of these at 0."""
            values = {}
            for i, (latent, shape) in enumerate(zip(moved, shapes, strict=True)):
                value = pt.zeros(shape)
                if place is not None and place[0] == i:
                    value = pt.ones(shape) if value.ndim == 1 else value[place[1]].set(1.0)
                values[latent.f] = value
            return argument(values)

        still = with_one()
        centre = at_zero(still, z)
        outputs = [centre, self._slopes(still, z)]
        places = [(i, o) for i, latent in enumerate(moved) for o in range(len(latent.classes))]
        outputs += [at_zero(with_one(place), z) - centre for place in places]
        outputs += inputs
        replaced = {v: there[name] for name, v in known.items()}
        functions = ModelFunctions(prior.model, prior.hyperparameters, {**self._data, **replaced})
        if checked is not None:
            point, shared = checked
            noise = np.random.default_rng(SEED).standard_normal
            of = {each.f: pt.tensor(each.f.name, dtype="float64", shape=(None,) * each.f.ndim) for each in moved}
            rows = {v: self._fitted[name] for name, v in there.items() if name not in shared}
            rows |= {of[each.f]: noise((self._rows, *[len(each.classes)] * (each.f.ndim - 1))) for each in moved}
            made = argument({f: value.T for f, value in of.items()})
            (whole,) = functions.known([made], {z: pt.constant(noise(prior.n_normals))})
            axis = whole.ndim - 1 - prior.by_class
            others = {there[name]: value for name, value in shared.items()}
            for what, output, along in (
                ("Latent functions", whole, axis if axis >= 0 else None),
                *(("Inputs of processes", each, 0) for each in functions.known(inputs)),
            ):
                by_rows = at_point(functions, point, output, others)
                check_rows_apart(what, output, along, rows, by_rows, processes=[str(v.name) for v in of.values()])
        function = functions(outputs, [there[name] for name in names])
        counts = [len(latent.classes) for latent in moved]

        def at(point: PointType, values: Sequence[Any], n: int) -> _AtRows:
            centre, roots, *rest = function(point, *values)
            factors = [self._by_function(each, n) for each in rest[: len(places)]]
            ends = np.cumsum([0, *counts])
            return _AtRows(
                self._by_function(centre, n),
                np.ascontiguousarray(self._by_function(roots, n, batched=True)),
                [np.array(factors[begin:end]) for begin, end in pairwise(ends)],
                [np.asarray(each, dtype=np.float64) for each in rest[len(places) :]],
            )

        return at, [each.moments for each in processes]

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

    def _slopes(self, value: TensorVariable, z: TensorVariable) -> TensorVariable:
        """Coefficients of the standard normals z."""
        return slopes_of(value, z, self._prior.n_normals)

    def _from_inputs(self, x: TensorVariable, z: TensorVariable) -> Callable[[_Values], TensorVariable]:
        """Return the argument at new inputs as a function of values of all processes there, less their means."""
        prior = self._prior
        assert self._fixed is not None
        makers = {gp.f: gp for gp in self._gps or () if getattr(gp, "f", None) is not None}
        sums = MovedSum(self._fixed.inputs, self._processes, prior.model.basic_RVs, x)
        try:
            sums.check_apart(prior.recipe_means)
            own = sums.moved(self._argument, self._argument.ndim - 1 - prior.by_class)
            means = [sums.mean(latent, makers.get(latent.f)) for latent in self._processes]
        except CannotSplitError as why:
            if isinstance(why, MixedRowsError) and (of := [f for f in sums.values if sums.is_of(why.source, f)]):
                raise dependent_rows("Latent functions", why, of, [str(f.name) for f in of]) from None
            raise ValueError(
                f"Latent functions cannot be computed from Xnew alone: their sum {why}. Compute numbers of all rows in "
                "NumPy before the model, and put what differs between rows into it as pm.Data."
            ) from None
        nothing = {latent.f: pt.zeros(latent.f.type.shape[:0]) for latent in self._processes}
        made, *means = prior.by_normals([own, *means], z, nothing, seen=True)

        def argument(values: _Values) -> TensorVariable:
            each = zip(self._processes, means, strict=True)
            return sums.with_values(made, {latent.f: mean + values[latent.f] for latent, mean in each})

        return argument

    def _by_function(self, values: Array, n: int, batched: bool = False) -> Array:
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
