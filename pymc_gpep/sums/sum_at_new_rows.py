"""Sums of effects at new rows: the argument of the model with new data. New data may contain new levels.

A new level is not in the model. It is replaced by a placeholder, a level of the model that the new row does not use
otherwise. The standard normals of the placeholder then have the coefficients of the new level.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import AtPoint, ModelFunctions
from pymc_gpep.graphs.rows_of_graphs import CannotSplitError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import PriorAtNewRows, RowsOfNormals
from pymc_gpep.processes.processes import new_inputs
from pymc_gpep.solvers.coefficients import rows_of_functions
from pymc_gpep.sums.affine_map import AffineMap, Blocks, ByValues, ValueTaken, at_inputs, every_entry
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.new_data import (
    XNEW,
    DataBehind,
    NewData,
    RowsOfData,
    levels_of,
    normals_of_one_level,
    of_each_level,
    owners_of,
    refuse_labels,
    selected_by,
    used_beside,
)
from pymc_gpep.sums.row_parts import MovedProcess, PartsMap


class NewLevels:
    """Levels in new rows. Placeholders replace levels that are not in the model.

    Parameters
    ----------
    prior : EffectSum
    argument : TensorVariable
        Argument of the likelihood at all rows.
    known : dict of str to SharedVariable
        Data of the model on which the argument depends, by name.
    data : mapping
        Data of the model → constants with their values in the fit.
    blocks : sequence of tuple of int
        Shape of the coefficients of each variable.
    """

    def __init__(
        self,
        prior: EffectSum,
        argument: TensorVariable,
        known: Mapping[str, SharedVariable],
        data: Mapping[Variable, Variable],
        blocks: Blocks,
    ) -> None:
        self._prior, self._argument, self._known, self._data, self._blocks = prior, argument, known, data, blocks
        self._counts: dict[str, int] = {}
        self._owners: dict[str, NDArray[np.int64]] = {}  # Index name → levels of the standard normals.

    def count(self, name: str) -> int:
        """Return the number of levels of the index `name`; 0 if these data are not an index."""
        if name not in self._counts:
            self._counts[name] = levels_of(self._known[name], [self._argument]) or 0
        return self._counts[name]

    def unseen_levels(
        self, x: NewData, outside: Mapping[str, tuple[NDArray[np.bool_], int]], new_levels: bool
    ) -> dict[str, NDArray[np.bool_]]:
        """Return masks of entries with a level that is not in the model, by name of the index.

        Raises
        ------
        ValueError
            If there are such entries and `new_levels` is false, or if entries are labels instead of positions.
        """
        for name, (where, count) in outside.items():
            values = x.by_row[name][where]
            refuse_labels(self._prior.model, self._known[name], [self._argument], values)
            if not new_levels:
                raise ValueError(
                    f"data[{name!r}] has {values[0]}, but its levels are 0 to {count - 1}. Give "
                    "new_levels=True for the prior of a level that the model does not have."
                )
        return {name: where for name, (where, _) in outside.items()}

    def owners(self, point: PointType, name: str) -> NDArray[np.int64]:
        """Return the level of each standard normal, (q,), or −1. Raise an error if the priors of levels differ."""
        if name not in self._owners:
            prior = self._prior
            number = of_each_level(self._known[name], [self._argument])
            if number is None:
                raise ValueError(
                    f"data[{name!r}] names a new level, but the model also uses values of {name!r} as numbers. Declare "
                    f"these numbers as separate data, pm.Data('{name}_value', ...), and give both."
                )
            if self.count(name) == 1:
                self._owners[name] = normals_of_one_level(prior.places, number, prior.n_normals)
                return self._owners[name]
            mean, linear = AffineMap(prior, {name: number}, self._data, seen=True).along(point, name)
            self._owners[name] = owners_of(name, mean, every_entry(linear, self._blocks))
        return self._owners[name]

    def _related(self, point: PointType, a: str, b: str) -> bool:
        """Return whether the indices `a` and `b` select from the same variable. The index `a` has new levels."""
        if a == b:
            return True
        sources = self._prior.sources
        behind = [
            sources.intersection(ancestors(selected_by(self._known[name], [self._argument]), blockers=sources))
            for name in (a, b)
        ]
        if behind[0].isdisjoint(behind[1]):
            return False
        first = self.owners(point, a)
        try:
            second = self.owners(point, b)
        except ValueError:
            return True
        both = (first >= 0) & (second >= 0)
        if (first[both] != second[both]).any():
            raise ValueError(
                f"data[{a!r}] has a new level, and data[{b!r}] numbers the same levels in another order. Use the order "
                f"of data[{a!r}] for both."
            )
        return bool(both.any())

    def resolved(self, point: PointType, x: NewData, used: Callable[[NewData, NewData], NDArray[np.bool_]]) -> NewData:
        """Return rows with placeholders in place of new levels.

        `used(a, b)` returns a mask (m,): whether a row of `a` uses the placeholders of `b`.

        Raises
        ------
        ValueError
            If levels of the model have different priors, or if the model has too few levels.
        """
        if not x.unseen_levels:
            return x
        first, short = self._placed(point, x)
        if short.any():
            name = next(iter(x.unseen_levels))
            raise ValueError(
                f"data[{name!r}] names a new level in a row with all {self.count(name)} levels of the model. Add "
                "a level without rows to the coords of the model, fit the model again, and predict that level."
            )
        if not (wrong := self._used(point, first, used)).any():
            return first
        second, short = self._placed(point, x, first)
        if (wrong & (short | self._used(point, second, used))).any():
            raise ValueError(
                f"A row with a new level in {', '.join(f'data[{name!r}]' for name in x.unseen_levels)} depends on all "
                "levels of the model. Add a level without rows to the model, fit the model again, and predict it."
            )
        by_row = {
            name: np.where(wrong.reshape(-1, *[1] * (values.ndim - 1)), second.by_row[name], values)
            for name, values in first.by_row.items()
        }
        return replace(first, by_row=by_row)

    def _used(
        self, point: PointType, x: NewData, used: Callable[[NewData, NewData], NDArray[np.bool_]]
    ) -> NDArray[np.bool_]:
        """Return a mask (m,): whether a row uses a placeholder also if another level replaces the placeholder."""
        m, found = len(x), np.zeros(len(x), bool)
        for name in x.unseen_levels:
            if self.count(name) == 1:  # No other level can replace the placeholder.
                places = self._prior.places.items()
                own = {v for v, place in places if (self.owners(point, name)[place] >= 0).any()}
                if used_beside(self._known[name], [self._argument], own):
                    found |= x.unseen_levels[name].reshape(m, -1).any(axis=1)
                continue
            for column, where in enumerate(x.unseen_levels[name].reshape(m, -1).T):
                if not where.any():
                    continue
                level = x.by_row[name].reshape(m, -1)[:, column]
                by_row = dict(x.by_row)
                for other, mask in x.unseen_levels.items():
                    values = x.by_row[other]
                    same = mask & (values == level.reshape(-1, *[1] * (values.ndim - 1)))
                    by_row[other] = np.where(same, (values + 1) % self.count(other), values).astype(values.dtype)
                only = np.zeros_like(x.unseen_levels[name].reshape(m, -1))
                only[:, column] = where
                alone = {name: only.reshape(x.unseen_levels[name].shape)}
                found |= used(replace(x, by_row=by_row), replace(x, unseen_levels=alone))
        return found

    def _placed(
        self, point: PointType, x: NewData, without: NewData | None = None
    ) -> tuple[NewData, NDArray[np.bool_]]:
        """Return rows with placeholders, and a mask of rows with too few placeholders. Levels of `without` are avoided.

        In a row each new level of a variable has a separate placeholder. Other indices of the row do not select it.
        """
        m = len(x)
        names = [name for name in x.by_row if name in self._known and self.count(name)]
        widths = {name: int(np.prod(x.by_row[name].shape[1:])) for name in names}
        of = [name for name in names for _ in range(widths[name])]
        values = [column for name in names for column in x.by_row[name].reshape(m, -1).T]
        nothing = np.zeros(m, bool)
        new = [
            column
            for name in names
            for column in (
                x.unseen_levels[name].reshape(m, -1).T if name in x.unseen_levels else [nothing] * widths[name]
            )
        ]
        placed, short = list(values), np.zeros(m, bool)
        for place, name in enumerate(of):
            if not new[place].any():
                continue
            related = [other for other in range(len(of)) if self._related(point, name, of[other])]
            found, settled = np.zeros(m, np.int64), ~new[place]
            for other in related:
                if other < place:
                    same = new[other] & ~settled & (values[other] == values[place])
                    found, settled = np.where(same, placed[other], found), settled | same
            avoided = [(~nothing if other < place else ~new[other], placed[other]) for other in related]
            if without is not None:
                also = [k for k in x.unseen_levels if k in {of[other] for other in related}]
                avoided += [(~nothing, column) for k in also for column in without.by_row[k].reshape(m, -1).T]
            for _ in avoided:
                taken = np.any([where & (own == found) for where, own in avoided], axis=0)
                found = np.where(taken & ~settled, found + 1, found)
            short |= found >= self.count(name)
            found = np.where(short, 0, found)
            placed[place] = np.where(new[place], found, values[place])
        by_row = dict(x.by_row)
        for name in x.unseen_levels:
            own = np.stack([placed[place] for place in range(len(of)) if of[place] == name], axis=1)
            by_row[name] = own.reshape(x.by_row[name].shape).astype(x.by_row[name].dtype)
        return replace(x, by_row=by_row), short

    def owned(self, point: PointType, x: NewData) -> list[NDArray[np.bool_]]:
        """Return a mask (m, q) for each index with new levels: whether a normal belongs to a placeholder of a row."""
        return self.owned_cells(point, x, np.arange(self._prior.n_normals)[None])

    def owned_cells(self, point: PointType, x: NewData, cells: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
        """Return the masks of `owned`, (m, k), for k selected standard normals of each row."""
        m, found = len(x), []
        for name, unseen_levels in x.unseen_levels.items():
            whole = self.owners(point, name)
            if (whole[list(self._prior.flat)] >= 0).any():
                raise ValueError(
                    f"data[{name!r}] has a level that the model does not have, and coefficients of levels have a flat "
                    "prior. Give them a density, pm.Normal(...), for predictions of new levels."
                )
            owners = whole[cells]
            levels, where = x.by_row[name].reshape(m, -1), unseen_levels.reshape(m, -1)
            found.append(((owners[:, None] == levels[..., None]) & where[..., None]).any(axis=1))
        return found


def by_own_normals(process: PriorAtNewRows, cov: Array, point: PointType, inputs: Array) -> tuple[Array, Array]:
    """Return coefficients (m, n) of the standard normals of a process at inputs (m, d), and residual variances (m,).

    At its inputs in the model the process is L z, where L Lᵀ = `cov` (n, n). At new inputs it is k*ᵀL⁻ᵀz plus a
    residual, where k* is the covariance of both sets of inputs.
    """
    cross, variance, _ = process(point, inputs)
    ahead = solve_triangular(np.linalg.cholesky(cov), cross[0].T, lower=True).T
    return ahead, np.maximum(variance[0] - (ahead**2).sum(axis=1), 0.0)


def normals_by_output(prior: EffectSum, latent: LatentGP, cov: Array) -> NDArray[np.int64]:
    """Return the positions (outputs, n) of the standard normals of a process."""
    return np.arange(prior.n_normals)[prior.places[latent.f]].reshape(-1, cov.shape[0])


ARGUMENT = "argument"


class _AtRows(NamedTuple):
    """A sum at m rows: means, coefficients, and processes at new inputs."""

    mean: Array
    """Means, (c, m)."""
    roots: Array
    """Coefficients of the standard normals, (c, m, q)."""
    taken: list[list[ValueTaken]]
    """Coefficients and indices (c, m) of the selected values, for each output of each moved process."""
    inputs: list[Array]
    """New inputs of each moved process, (m, d)."""


class AtNewData:
    """Base class of expressions of a sum at new data. They are functions of standard normals or other coefficients."""

    @property
    def _size(self) -> int | None:
        """Number of other coefficients; None if expressions are functions of standard normals."""
        return None

    @property
    def _units(self) -> Array | None:
        """Directions (s, q) of slopes; None if slopes are computed in every standard normal."""
        return None


class SumAtNewRows(AtNewData, PriorAtNewRows):
    """Prior moments of latent functions that are sums, at new rows.

    If the inputs of a Gaussian process are among the new data, the process is evaluated at the new inputs. New rows
    select from the fitted values of all other processes.

    Parameters
    ----------
    prior : EffectSum
    gps : sequence of pm.gp.Latent or None
        The `pm.gp` objects of the processes.
    data : dict
        Data of the model → constants with their values in the fit.
    blocks : sequence of tuple of int, optional
        Shapes of the coefficients of each variable. By default they are vectors of standard normals.
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
        self._processes = prior.processes_behind([self._argument])
        self._known = prior.data_behind([self._argument])
        self.behind = DataBehind(prior.model, [self._argument], self._known, data, self._rows)
        self.takes = self._known.keys()
        self._new = (
            f"data of the model at new rows, data={{...}} with {', '.join(self._known)}."
            if self._known
            else "data={...}, after the covariates of the rows are declared as pm.Data: the model has no such data."
        )
        self._made: dict[tuple[str, ...], tuple[AffineMap, list[PriorAtNewRows]]] = {}
        self._blocks: Blocks = blocks or [(own.stop - own.start,) for own in prior.places.values()]
        self._of_fit: dict[tuple[TensorVariable, ...], AffineMap] = {}  # Moved processes → sum at fitted rows.
        self._levels = NewLevels(prior, self._argument, self._known, data, self._blocks)
        self._own_covariances: dict[tuple[TensorVariable, ...], AtPoint] = {}
        self._complete: set[tuple[str, ...]] = set()  # Names of data that are sufficient for new rows.

    @property
    def inputs(self) -> Array:
        name = self._input_name()
        if name is None and self._fixed is not None:
            return self.behind.fitted[XNEW]
        if name is None:
            raise ValueError(f"Latent functions that are sums have no inputs. Give {self._new}")
        return np.asarray(self.behind.fitted[name], dtype=np.float64)

    @cached_property
    def _fixed(self) -> list[MovedProcess] | None:
        """Return all processes if they share one input array with a row for each fitted row; else None."""
        prior = self._prior
        covs = [latent.cov for latent in self._processes]
        if not covs or XNEW in self._known or not set(self._known.values()).isdisjoint(ancestors(covs)):
            return None
        processes = [prior.process(latent, self._gps, self._data) for latent in self._processes]
        arrays = [each.moments.inputs for each in processes]
        if len(arrays[0]) != self._rows or not all(np.array_equal(each, arrays[0]) for each in arrays):
            return None
        self.behind.fitted[XNEW] = arrays[0]
        return processes

    def _input_name(self) -> str | None:
        """Return the name of the data on which inputs of processes depend, if there is only one name; else None."""
        behind = set(ancestors([latent.cov for latent in self._processes]))
        found = [name for name, variable in self._known.items() if variable in behind]
        return found[0] if len(found) == 1 and self.behind.each_row(found[0]) else None

    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> NewData:
        given = {name: value for name, value in new.items() if name in self._known}
        inputs = None
        if x is not None:
            name = self._input_name()
            if name in given:
                raise TypeError(f"Xnew and data[{name!r}] are the same inputs. Leave out one.")
            if name is not None:
                given[name] = x
            elif self._fixed is not None:
                inputs = new_inputs(x, self.behind.fitted[XNEW].shape[1])
            else:
                advice = " Declare inputs as pm.Data('X', X) for predict(Xnew)." * bool(self._processes)
                raise TypeError(f"Xnew is not an argument of latent functions that are sums. Give {self._new}{advice}")
        if not given and inputs is None and any(map(self.behind.each_row, self._known)):
            wanted = ", ".join(f"{name!r}: ..." for name in self._known if self.behind.each_row(name))
            raise TypeError(f"predict needs the data of the new rows: fit.predict(data={{{wanted}}}).")
        read = self.behind.read(given, inputs)
        return replace(read, unseen_levels=self._levels.unseen_levels(read, self.behind.outside(read), new_levels))

    def by_normals(self, point: PointType, x: NewData | RowsOfData) -> RowsOfNormals:
        """Return new rows in terms of standard normals, see `PriorAtNewRows`. Errors are as in a call."""
        if isinstance(x, RowsOfData):
            mean, roots = self._own(point, x)
            return RowsOfNormals.exact(rows_of_functions(roots), mean)
        m = len(x)
        if m > 1 and not x.unseen_levels and (parts := self._parts) is not None:
            affine, values = self._whole(point, x), x.values(m)
            (centre,) = affine.at(point, np.zeros(affine.n_normals), given=values)
            mean = self._prior.by_function(centre, m)
            found = parts(point, {self._known[name]: v for name, v in zip(x.names, values, strict=True)}, m)
            return RowsOfNormals.exact(found, mean)
        processes, new, known = self._at(point, self._resolved(point, x))
        unknown = new.roots - known
        beside = np.einsum("imq,jmq->mij", unknown, unknown)
        if moved := self._moved(x.names):
            for latent, process, cov, taken, inputs in zip(
                moved, processes, self._covariances(point, moved), new.taken, new.inputs, strict=True
            ):
                ahead, noise = by_own_normals(process, cov, point, inputs)
                for places, own in zip(normals_by_output(self._prior, latent, cov), taken, strict=True):
                    known[:, :, places] += own.coefficients[..., None] * ahead[own.cells]
                    shared = (own.cells == own.cells[:, None]) * own.coefficients * own.coefficients[:, None]
                    beside += (shared * noise[own.cells]).transpose(2, 0, 1)
        rows = rows_of_functions(np.ascontiguousarray(known[:, :m]))
        return RowsOfNormals(rows, beside[:m], new.mean[:, :m])

    def _covariances(self, point: PointType, moved: Sequence[LatentGP]) -> list[Array]:
        """Return the covariances (n, n) of processes at their inputs in the model."""
        key = tuple(latent.f for latent in moved)
        if key not in self._own_covariances:
            functions = ModelFunctions(self._prior.model, self._prior.hyperparameters, self._data)
            self._own_covariances[key] = functions([latent.cov for latent in moved])
        return list(self._own_covariances[key](point))

    @cached_property
    def _parts(self) -> PartsMap | None:
        return self._prior.parts(self._argument, self._data)

    def _whole(self, point: PointType, x: NewData) -> AffineMap:
        """Return the sum as a function of new data. Raise a ValueError if data are missing."""
        if (names := x.names) not in self._complete:
            self._at(point, replace(x, unseen_levels={})[:1])
            self._complete.add(names)
        return self._made[names][0]

    def missing_rows(self) -> RowsOfData:
        if self._prior.fitted is None:
            return super().missing_rows()
        return RowsOfData(np.setdiff1d(np.arange(self._rows), self._prior.fitted))

    @cached_property
    def _own_rows(self) -> AffineMap:
        """The sum at all rows of the model."""
        return self._compiled((), None)[0]

    def _own(self, point: PointType, x: RowsOfData) -> tuple[Array, Array]:
        """Return means (c, m) and coefficients (c, m, q) at selected rows of the model."""
        own = self._evaluated(self._own_rows, point, [], self._rows)
        return own.mean[:, x.positions], own.roots[:, x.positions]

    def _at_fit(self, point: PointType, moved: Sequence[LatentGP]) -> _AtRows:
        """Return the sum at the fitted rows, with separate terms for the processes `moved`."""
        prior, key = self._prior, tuple(latent.f for latent in moved)
        if key not in self._of_fit:
            self._of_fit[key] = AffineMap(prior, {ARGUMENT: prior.argument}, self._data, moved, seen=True)
        lengths = [prior.sizes[prior.processes.index(latent)][-1] for latent in moved]
        return self._evaluated(self._of_fit[key], point, [], prior.n_points, lengths)

    def _evaluated(
        self, affine: AffineMap, point: PointType, values: Sequence[Any], n: int, lengths: Sequence[int] = ()
    ) -> _AtRows:
        """Return the values of the sum at n rows."""
        found = affine(point, values, lengths, self._units)
        by_function = self._prior.by_function
        roots = np.moveaxis(by_function(found.slopes[ARGUMENT], n, batched=True), 0, -1)
        taken = [
            [ValueTaken(by_function(own.coefficients, n), by_function(own.cells, n), own.alone) for own in each]
            for each in found.taken[ARGUMENT]
        ]
        mean = by_function(found.centres[ARGUMENT], n)
        return _AtRows(mean, np.ascontiguousarray(roots), taken, found.inputs)

    def __call__(self, point: PointType, x: NewData | RowsOfData) -> tuple[Array, Array, Array]:
        """Return prior moments at new rows, see `PriorAtNewRows`.

        Raises
        ------
        ValueError
            If the argument has a different number of rows than the new data. Data that are not given keep the rows of
            the fit.
        """
        if isinstance(x, RowsOfData):
            mean, roots = self._own(point, x)
            seen = self._at_fit(point, []).roots
            return roots @ seen.swapaxes(1, 2), (roots**2).sum(axis=2), mean
        processes, new, known = self._at(point, self._resolved(point, x))
        m = len(x)
        fitted = self._at_fit(point, self._moved(x.names))
        cross = known @ fitted.roots.swapaxes(1, 2)
        variance = (new.roots**2).sum(axis=2)
        for process, ahead, behind, inputs in zip(processes, new.taken, fitted.taken, new.inputs, strict=True):
            between, own, _ = process(point, inputs)
            for there, here in zip(ahead, behind, strict=True):
                for k in np.flatnonzero(here.coefficients.any(axis=1)):
                    cross[k] += there.coefficients[k][:, None] * between[0][:, here.cells[k]] * here.coefficients[k]
                variance += there.coefficients**2 * own
        return cross[:, :m], variance[:, :m], new.mean[:, :m]

    def of_new_levels(self, point: PointType, x: NewData | RowsOfData, points: NDArray[np.intp]) -> Array | None:
        if isinstance(x, RowsOfData) or not x.unseen_levels:
            return None
        _, new, known = self._at(point, self._resolved(point, x))
        seen = self._at_fit(point, self._moved(x.names)).roots[:, points]
        return np.asarray((new.roots - known)[:, : len(x)] @ seen.swapaxes(1, 2))

    def _moved(self, names: Sequence[str]) -> list[LatentGP]:
        """Return the processes with inputs that depend on data with these names."""
        if XNEW in names:
            return self._processes
        known = {self._known[name] for name in names}
        return [each for each in self._processes if not known.isdisjoint(ancestors([each.cov]))]

    def _at(self, point: PointType, x: NewData) -> tuple[list[PriorAtNewRows], _AtRows, Array]:
        """Return processes at new inputs, the sum at new rows, and its coefficients (c, m, q).

        Coefficients of placeholders are 0. The result may have additional rows at the end.
        """
        names = x.names
        if names not in self._made:
            made = self._compiled(names, (point, x))
            # The map is stored only without an error, so that the next call raises the error again.
            self._made[names] = made
        affine, processes = self._made[names]
        m = len(x)
        extra = self.behind.free_length(m)
        try:
            new = self._evaluated(affine, point, x.values(extra), extra, [extra] * len(processes))
            if any(len(inputs) != extra for inputs in new.inputs):
                raise ValueError("A process and the data have different numbers of rows.")
        except (ValueError, IndexError, AssertionError) as error:
            raise ValueError(self._refusal(names, m)) from error
        known = new.roots.copy()  # The coefficients of placeholders become 0 below.
        for owned in self._owned(point, x):
            known[:, :m][:, owned] = 0.0
        return processes, new, known

    def _owned(self, point: PointType, x: NewData) -> list[NDArray[np.bool_]]:
        """Return a mask (m, s) for each index with new levels: whether a slope belongs to a placeholder of a row."""
        return self._levels.owned(point, x)

    def _resolved(self, point: PointType, x: NewData) -> NewData:
        """Return rows with placeholders in place of new levels. A row uses a placeholder only for its new level."""
        return self._levels.resolved(point, x, partial(self._used, point))

    def _used(self, point: PointType, x: NewData, other: NewData) -> NDArray[np.bool_]:
        """Return a mask (m,): whether a row uses the placeholders in the data `other`."""
        roots = self._at(point, x)[1].roots[:, : len(x)]
        return np.any([(owned & (roots != 0.0)).any(axis=(0, 2)) for owned in self._owned(point, other)], axis=0)

    def _compiled(
        self, names: tuple[str, ...], checked: tuple[PointType, NewData] | None
    ) -> tuple[AffineMap, list[PriorAtNewRows]]:
        """Return the sum as a function of a point and data, and the processes at new inputs.

        If `checked` is a point with new data, raise an error for rows that depend on each other.
        """
        prior = self._prior
        there = self.behind.symbols(names)
        by = None
        if XNEW in names:
            assert self._fixed is not None
            moved, processes = self._processes, self._fixed
            inputs = [there[XNEW]] * len(moved)
            by = self._from_inputs(there[XNEW])
        else:
            moved = self._moved(names)
            self._check_row_by_row(moved)
            processes = [prior.process(latent, self._gps, self._data) for latent in moved]
            inputs = [each.inputs for each in processes]
        data, given = self.behind.replaced(there), list(there.values())
        of = {ARGUMENT: self._argument}
        affine = AffineMap(prior, of, data, moved, given, inputs, by, seen=True, size=self._size)
        if checked is not None:
            point, x = checked
            rows, others = self.behind.apart(there, x)
            axis = self._argument.ndim - 1 - prior.by_class
            checks: list[tuple[str, str | int, int | None]] = [
                ("Latent functions", ARGUMENT, axis if axis >= 0 else None),
                *(("Inputs of processes", i, 0) for i in range(len(inputs))),
            ]
            for what, name, along in checks:
                affine.check_apart(what, name, along, point, rows, others, self._rows)
        return affine, [each.moments for each in processes]

    def _check_row_by_row(self, moved: Sequence[LatentGP]) -> None:
        """Raise an error if new inputs are given for a process, but rows select from its values."""
        for latent in moved:
            count = self._prior.sizes[self._prior.processes.index(latent)][-1]
            if count != self._rows:
                raise ValueError(
                    f"{latent.f.name!r} has {count} values for {self._rows} rows, and cannot be predicted at new "
                    "inputs. Include the new inputs when the model is fitted, and predict by the index of values."
                )

    def _from_inputs(self, x: TensorVariable) -> ByValues:
        """Return a function that computes the argument at new inputs x from centred values of all processes at x."""
        axis, own = self._argument.ndim - 1 - self._prior.by_class, self.behind.fitted[XNEW]
        what, outputs, moved = "Latent functions", [self._argument], self._processes
        try:
            return at_inputs(what, self._prior, outputs, own, x, lambda _: axis, moved, self._gps, seen=True)
        except CannotSplitError as why:
            raise ValueError(
                f"Latent functions cannot be computed from Xnew alone: their sum {why}. Compute quantities of "
                "all rows, such as means, in NumPy before the model, and declare covariates as pm.Data."
            ) from None

    def _refusal(self, names: tuple[str, ...], m: int) -> str:
        if self._fixed is not None and XNEW not in names:
            return f"Latent functions at {m} new rows depend on inputs: predict(Xnew, data={{...}})."
        missing = [name for name in self._known if name not in names and self.behind.each_row(name)]
        if missing:
            listed = ", ".join(f"{name!r}: ..." for name in missing)
            return f"Latent functions at {m} new rows depend on further data: data={{..., {listed}}}."
        return (
            f"Latent functions at {m} new rows cannot be computed from the data given: an array in the argument has an "
            f"entry for each of the {self._rows} rows of the model, or an index is out of range. Declare the "
            "covariates of the rows as pm.Data."
        )
