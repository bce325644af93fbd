"""Levels of groups that a model does not have: the data that name them, and their placeholders.

The coefficients of a new level are those of a placeholder, a level of the model that the row does not use otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.sums.affine_map import AffineMap
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.levels import (
    NewData,
    levels_of,
    normals_of_one_level,
    of_each_level,
    outside_levels,
    owners_of,
    refuse_labels,
    selected_by,
    used_beside,
)
from pymc_gpep.sums.sparse_slopes import Blocks, rows_of


class NewLevels:
    """Levels that data of new rows name.

    Parameters
    ----------
    prior : EffectSum
    argument : TensorVariable
        The argument of the likelihood at all rows.
    known : dict of str to SharedVariable
        Data of the model that the argument depends on.
    data : mapping
        Data of the model → constants, as the fit had them.
    blocks : sequence of tuple of int
        Shapes of the numbers of each variable.
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
        self._owners: dict[str, NDArray[np.int64]] = {}  # of normals, by the data that say a level

    def count(self, name: str) -> int:
        """Return the number of levels that data select from; 0 where they are no index."""
        if name not in self._counts:
            self._counts[name] = levels_of(self._known[name], [self._argument]) or 0
        return self._counts[name]

    def strange(self, by_row: Mapping[str, NDArray[Any]], new_levels: bool) -> dict[str, NDArray[np.bool_]]:
        """Return which entries of data name a level that the model does not have, by the name of the data.

        Raises
        ------
        ValueError
            If there are such entries without `new_levels`, or if they are labels in place of positions. It is raised as
            well if an index that the model computes is out of range.
        """
        given = {self._known[name]: values for name, values in by_row.items() if name in self._known}
        found = {}
        for variable, (outside, count) in outside_levels(given, [self._argument], self._data).items():
            name, values = str(variable.name), given[variable]
            refuse_labels(self._prior.model, variable, [self._argument], values[outside])
            if not new_levels:
                raise ValueError(
                    f"data[{name!r}] has {values[outside][0]}, but its levels are 0 to {count - 1}. Give "
                    "new_levels=True for the prior of a level that the model does not have."
                )
            found[name] = outside
        return found

    def owners(self, point: PointType, name: str) -> NDArray[np.int64]:
        """Return the level of data that each standard normal belongs to alone, (q,); raise where levels differ."""
        if name not in self._owners:
            prior = self._prior
            number = of_each_level(self._known[name], [self._argument])
            if number is None:
                raise ValueError(
                    f"data[{name!r}] names a new level, and the model uses its values as numbers as well. Declare the "
                    f"numbers as data of their own, pm.Data('{name}_value', ...), and give both."
                )
            if self.count(name) == 1:
                self._owners[name] = normals_of_one_level(prior.places, number, prior.n_normals)
                return self._owners[name]
            affine = AffineMap(prior, {name: number}, self._data, seen=True)
            mean = affine(point, units=np.zeros((1, prior.n_normals))).centres[name]
            rows = rows_of(lambda normals: affine(point, units=normals[None]).slopes[name][0], self._blocks)
            self._owners[name] = owners_of(name, mean, rows)
        return self._owners[name]

    def _related(self, point: PointType, a: str, b: str) -> bool:
        """Whether the levels of two data, the first with new ones, are levels of the same variable."""
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
                f"data[{a!r}] names a new level, and data[{b!r}] numbers the same levels in another order."
            )
        return bool(both.any())

    def resolved(self, point: PointType, x: NewData, used: Callable[[NewData, NewData], NDArray[np.bool_]]) -> NewData:
        """Return rows with placeholders in place of new levels.

        `used` tells which rows (m,) with the placeholders of its first argument use those of its second one.

        Raises
        ------
        ValueError
            If the levels of the model differ a priori, or are too few for placeholders.
        """
        if not x.strange:
            return x
        first, short = self._placed(point, x)
        if short.any():
            name = next(iter(x.strange))
            raise ValueError(
                f"data[{name!r}] names a new level in a row with all {self.count(name)} levels of the model. Give the "
                "model one more level, without rows, as one more of its coords. Fit it again, and predict that level."
            )
        if not (wrong := self._used(point, first, used)).any():
            return first
        second, short = self._placed(point, x, first)
        if (wrong & (short | self._used(point, second, used))).any():
            raise ValueError(
                f"A row with a new level in {', '.join(f'data[{name!r}]' for name in x.strange)} uses all levels of "
                "the model. Give the model one more level, without rows, fit it again, and predict that level."
            )
        by_row = {
            name: np.where(wrong.reshape(-1, *[1] * (values.ndim - 1)), second.by_row[name], values)
            for name, values in first.by_row.items()
        }
        return replace(first, by_row=by_row)

    def _used(
        self, point: PointType, x: NewData, used: Callable[[NewData, NewData], NDArray[np.bool_]]
    ) -> NDArray[np.bool_]:
        """Return which rows use the placeholder of a new level otherwise, (m,): if another one is in its place."""
        m, found = len(x), np.zeros(len(x), bool)
        for name in x.strange:
            if self.count(name) == 1:  # no other level can show it
                places = self._prior.places.items()
                own = {v for v, place in places if (self.owners(point, name)[place] >= 0).any()}
                if used_beside(self._known[name], [self._argument], own):
                    found |= x.strange[name].reshape(m, -1).any(axis=1)
                continue
            for column, where in enumerate(x.strange[name].reshape(m, -1).T):
                if not where.any():
                    continue
                level = x.by_row[name].reshape(m, -1)[:, column]
                by_row = dict(x.by_row)
                for other, mask in x.strange.items():
                    values = x.by_row[other]
                    same = mask & (values == level.reshape(-1, *[1] * (values.ndim - 1)))
                    by_row[other] = np.where(same, (values + 1) % self.count(other), values).astype(values.dtype)
                only = np.zeros_like(x.strange[name].reshape(m, -1))
                only[:, column] = where
                alone = {name: only.reshape(x.strange[name].shape)}
                found |= used(replace(x, by_row=by_row), replace(x, strange=alone))
        return found

    def _placed(
        self, point: PointType, x: NewData, without: NewData | None = None
    ) -> tuple[NewData, NDArray[np.bool_]]:
        """Return rows with placeholders, other ones than those of rows `without`, and which rows have too few levels.

        The same new level of one variable has one placeholder in a row, and no other data of that variable name it.
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
            for column in (x.strange[name].reshape(m, -1).T if name in x.strange else [nothing] * widths[name])
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
                also = [k for k in x.strange if k in {of[other] for other in related}]
                avoided += [(~nothing, column) for k in also for column in without.by_row[k].reshape(m, -1).T]
            for _ in avoided:
                taken = np.any([where & (own == found) for where, own in avoided], axis=0)
                found = np.where(taken & ~settled, found + 1, found)
            short |= found >= self.count(name)
            found = np.where(short, 0, found)
            placed[place] = np.where(new[place], found, values[place])
        by_row = dict(x.by_row)
        for name in x.strange:
            own = np.stack([placed[place] for place in range(len(of)) if of[place] == name], axis=1)
            by_row[name] = own.reshape(x.by_row[name].shape).astype(x.by_row[name].dtype)
        return replace(x, by_row=by_row), short

    def owned(self, point: PointType, x: NewData) -> list[NDArray[np.bool_]]:
        """Return which normals (m, q) belong to the placeholders of each row, for each of the data with new levels."""
        return self.owned_cells(point, x, np.arange(self._prior.n_normals)[None])

    def owned_cells(self, point: PointType, x: NewData, cells: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
        """Return the same of some normals of each row, (m, k)."""
        m, found = len(x), []
        for name, strange in x.strange.items():
            owners = self.owners(point, name)[cells]
            levels, where = x.by_row[name].reshape(m, -1), strange.reshape(m, -1)
            found.append(((owners[:, None] == levels[..., None]) & where[..., None]).any(axis=1))
        return found
