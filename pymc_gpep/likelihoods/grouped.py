"""Likelihood of groups of rows. All rows of a group have the same latent value f.

A group has the likelihood exp(c) ∏_j p(y_j | f; θ_j)^w_j. Factor j has observation y_j, parameters θ_j and weight w_j.
Equal rows of a group form one factor with a weight. If the likelihood has sufficient statistics
(`pymc_gpep.likelihoods.pooled_rows`), all rows of a group form one factor, and c is the remaining constant of the
product. Factors are stored as parameters of their group, so groups can be selected, repeated and divided like rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.averages_over_cells import average_slopes, log_average_terms
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    ColumnDensity,
    GaussianAverage,
    Kernel,
    ParameterSlopes,
    PowersAverage,
    QuadraticBound,
    ScalarDensity,
)
from pymc_gpep.likelihoods.standard_density import LOG_RATE, CombinedLikelihood, StandardProduct

_TOGETHER = 20_000  # Averages are computed in batches with at most this number of factors.


class Factors(NamedTuple):
    """Factors of groups. Fields are arrays, or graphs that depend on hyperparameters."""

    of: NDArray[np.int64]
    """Index of the group of each factor, (e,)."""
    weights: Array
    """Weights w of the factors, (e,)."""
    y: Any
    """Observations of the factors, (e,)."""
    parameters: Any
    """Parameters θ of the factors, (p, e)."""
    constant: Any
    """Constant c of each group, (g,)."""

    def table(self) -> tuple[NDArray[np.int64], Array]:
        """Return indices and weights of the factors of each group, both (slots, g). Unused slots have weight 0."""
        g = int(self.of.max()) + 1
        order = np.argsort(self.of, kind="stable")
        counts = np.bincount(self.of, minlength=g)
        begins = np.cumsum(counts) - counts
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order)) - np.repeat(begins, counts)
        found = np.tile(order[np.minimum(begins, len(order) - 1)], (int(counts.max()), 1))
        weights = np.zeros(found.shape)
        found[place, self.of] = np.arange(len(order))
        weights[place, self.of] = self.weights
        return found, weights

    def numbers(self, count: int) -> Array:
        """Return the parameters that `together` returns, as an array instead of a graph."""
        table, weights = self.table()
        s, g = table.shape
        own = np.concatenate(
            [
                weights[:, None],
                np.asarray(self.y, np.float64)[table][:, None],
                self.parameters[:, table].swapaxes(0, 1),
            ],
            axis=1,
        )
        return np.concatenate([self.constant[None], own.reshape(s * (2 + count), g)])

    def together(self, count: int) -> TensorVariable:
        """Return parameters (1 + s(2 + p), g) of groups: c, then weight, observation and p parameters per factor."""
        table, weights = self.table()
        y, parameters = (pt.as_tensor_variable(each).astype("float64") for each in (self.y, self.parameters))
        own = [pt.constant(weights)[:, None], y[table][:, None], parameters[:, table].transpose(1, 0, 2)]
        s, g = table.shape
        shape = s * (2 + count), g
        rows = pt.concatenate([pt.as_tensor_variable(self.constant)[None], pt.concatenate(own, axis=1).reshape(shape)])
        found: TensorVariable = pt.specify_shape(rows, (1 + shape[0], g))
        return found


class _Members(NamedTuple):
    """Factors of selected groups as flat arrays. A factor is in slot `slots` of the group in column `columns`."""

    slots: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: Array
    y: Observed
    parameters: Array

    def summed(self, values: Array, n: int) -> Array:
        """Return sums (rows, n) of weight × value over the factors of each group, for values (rows, e) of e factors."""
        return np.stack([np.bincount(self.columns, self.weights * row, n) for row in values])


@dataclass(frozen=True)
class GroupedLikelihood(CombinedLikelihood):
    """Likelihood of groups of rows, a product over the factors of each group.

    Parameters
    ----------
    inner : Likelihood
        Likelihood of a factor.
    count : int
        Number of parameters of the inner likelihood.
    located : bool
        Whether the density of a factor is a function of y − f. Observations y may then depend on hyperparameters.
    largest : float
        Largest total weight of the factors of a group.
    """

    inner: Likelihood | None = None
    count: int = 0
    located: bool = False
    largest: float = 1.0

    written: ClassVar[str] = "rows that have the same latent value"
    several_rows: ClassVar[bool] = True

    @property
    def own(self) -> Likelihood:
        """Likelihood of a factor."""
        assert self.inner is not None
        return self.inner

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the factors' likelihood."""
        return self.own.name

    @property
    def method(self) -> str:  # type: ignore[override]
        """Default method of the factors' likelihood."""
        return self.own.method

    @property
    def guide(self) -> str:  # type: ignore[override]
        """Default guide of the factors' likelihood."""
        return self.own.guide

    @property
    def largest_precision(self) -> float:  # type: ignore[override]
        """Upper bound of the precision of a group: largest precision of a factor × largest total weight."""
        return self.own.largest_precision * self.largest

    @property
    def log_concave(self) -> bool:  # type: ignore[override]
        """Whether the likelihood of a factor is log-concave."""
        return self.own.log_concave

    def takes_rows(self, count: int) -> bool:
        return count > 0 and (count - 1) % (2 + self.count) == 0

    @property
    def local(self) -> tuple[object, ...]:  # type: ignore[override]
        """Local computations of groups, for each type of computation that the likelihood of a factor offers."""
        own = self.own
        if not own.offers(ScalarDensity):
            return ()
        found: list[object] = [self._density]
        if own.offers(GaussianAverage):
            normal = own.computation(GaussianAverage).normal
            found.append(GaussianAverage(self._average, normal=normal and partial(self._normal, normal)))
        sums: tuple[type[AverageLogDensity | QuadraticBound], ...] = AverageLogDensity, QuadraticBound
        found += [kind(partial(self._sum, own.computation(kind).terms)) for kind in sums if own.offers(kind)]
        if own.offers(ParameterSlopes) or not self.count:
            found.append(ParameterSlopes(self._slopes, self._average_slopes, self._average_log_slopes))
        return tuple(found)

    def _members(self, parameters: Array, some: NDArray[np.int64] | None = None) -> _Members:
        """Return the factors of all groups, or of the groups in columns `some` of the parameters."""
        rows = parameters[1:].reshape(-1, 2 + self.count, parameters.shape[1])
        slots, columns = np.nonzero(rows[:, 0] if some is None else rows[:, 0][:, some])
        at = rows[slots, :, columns if some is None else some[columns]]
        y = np.ascontiguousarray(at[:, 1], self.own.observed_dtype)
        return _Members(slots, columns, at[:, 0], y, np.ascontiguousarray(at[:, 2:].T))

    def _sum(self, kernel: Kernel, *given: Array) -> None:
        """Compute a kernel at each factor. Write weighted sums over the factors of each group into the last array."""
        *points, _, parameters, out = given
        members = self._members(parameters)
        found = np.empty((len(out), len(members.columns)))
        kernel(*(each[members.columns] for each in points), members.y, members.parameters, found)
        out[:] = members.summed(found, out.shape[-1])
        out[0] += parameters[0]

    def _normal(self, kernel: Kernel, y: Array, parameters: Array, out: Array) -> None:
        """Write precisions and precision × mean of products of normal densities into `out` (2, n)."""
        members = self._members(parameters)
        found = np.empty((2, len(members.columns)))
        kernel(members.y, members.parameters, found)
        out[:] = members.summed(found, out.shape[1])

    def _single(self, parameters: Array) -> NDArray[np.bool_]:
        """Return a mask (g,) of groups with a single factor of weight 1."""
        weights = parameters[1 :: 2 + self.count]
        return np.asarray((weights.sum(axis=0) == 1.0) & (weights[0] == 1.0))

    def _parted(
        self,
        moments: tuple[Array, Array],
        y: Array,
        parameters: Array,
        out: Array,
        kernels: tuple[Kernel, Kernel],
        slopes: bool = False,
    ) -> None:
        """Write averages into `out`: the first kernel computes groups of a single factor, the second kernel products.

        Products with similar numbers of factors are computed together. With `slopes`, rows of `out` are parameters.
        """
        one, product = kernels
        # A likelihood with a `ColumnDensity` has no compiled averages, so `product` also computes single factors.
        single = self._single(parameters) & (self.located or not self.own.offers(ColumnDensity))
        columns = np.flatnonzero(single)
        if columns.size:
            found = np.empty((len(out), columns.size))
            one(*(each[columns] for each in moments), y[columns], np.ascontiguousarray(parameters[:, columns]), found)
            out[..., columns] = found
        counts = (parameters[1 :: 2 + self.count] != 0.0).sum(axis=0)
        left = np.flatnonzero(~single)
        left = left[np.argsort(counts[left], kind="stable")]
        while left.size:
            some = left
            if int(counts[left[-1]]) * left.size > _TOGETHER:
                some = left[: max(1, _TOGETHER // max(int(counts[left[0]]), 1))]
                some = some[counts[some] <= 2 * counts[some[0]] + 1]
            left = left[len(some) :]
            rows = 1 + (2 + self.count) * max(int(counts[some[-1]]), 1)
            found = np.empty((rows if slopes else len(out), some.size))
            own = np.ascontiguousarray(parameters[:rows, some])
            product(*(each[some] for each in moments), y[some], own, found)
            out[: len(found), some] = found

    def _average(self, mean: Array, variance: Array, y: Array, parameters: Array, out: Array) -> None:
        own = partial(self._sum, self.own.computation(GaussianAverage).terms)
        self._parted((mean, variance), y, parameters, out, (own, self._product))

    def _table(self, parameters: Array) -> tuple[_Members, NDArray[np.intp], Array]:
        """Return all factors, and indices and weights (slots, g) of the factors of each group; weight 0 if unused."""
        members, n = self._members(parameters), parameters.shape[1]
        slots = int(members.slots.max()) + 1
        table, weights = np.zeros((slots, n), np.intp), np.zeros((slots, n))
        table[members.slots, members.columns] = np.arange(len(members.columns))
        weights[members.slots, members.columns] = members.weights
        return members, np.where(weights == 0.0, table[0], table), weights

    def _prepared(self, parameters: Array) -> tuple[Kernel, Array]:
        """Return a function for the log density of groups and its derivatives, and the group numbers (1, g).

        Arguments of the function are latent values and group numbers. Constants of the groups are computed only once.
        """
        members, table, weights = self._table(parameters)
        slots, n = table.shape
        kernel, constant = self.own.computation(ScalarDensity).derivatives, parameters[0]
        by_columns = self.own.computation(ColumnDensity) if self.own.offers(ColumnDensity) else None
        columns = None if by_columns is None else by_columns.columns(members.y, members.parameters)

        def derivatives(f: Array, y: Array, numbers: Array, out: Array) -> None:
            at = numbers[0].astype(np.intp)
            chosen = table[:, at].ravel()
            every, own = np.tile(f, slots), weights[:, at]
            if by_columns is not None and columns is not None and len(out) == 3:
                found = by_columns.two_derivatives(every, columns[:, chosen])
            else:
                found = np.empty((4, len(chosen)))
                kernel(every, members.y[chosen], np.ascontiguousarray(members.parameters[:, chosen]), found)
            shaped = found[: len(out)].reshape(len(out), *own.shape)
            out[:] = np.where(own == 0.0, 0.0, own * shaped).sum(axis=1)
            out[0] += constant[at]

        return derivatives, np.arange(n, dtype=np.float64)[None]

    def _product(self, mean: Array, variance: Array, y: Array, parameters: Array, out: Array) -> None:
        """Write the terms of `GaussianAverage` for groups with several factors."""
        left = np.arange(len(mean))
        members = self._members(parameters)
        if self.own.offers(PowersAverage):
            powers = [np.bincount(members.columns, members.weights * (members.y == k), len(mean)) for k in (1, 0)]
            self.own.computation(PowersAverage).terms(mean, variance, np.stack(powers), out)
            out[0] += parameters[0]
            return
        if self.own.offers(StandardProduct):
            same = self._standard(mean, variance, members, out)
            out[0] += parameters[0]
            left = np.flatnonzero(~same)
        if not left.size:
            return
        derivatives, numbers = self._prepared(np.ascontiguousarray(parameters[:, left]))
        given = mean[left], variance[left]
        found = np.empty((5, left.size))
        if not variance.any():
            found[4] = np.nan
            derivatives(given[0], y[left], numbers, found[:4])
        else:
            found = log_average_terms(_Cells(derivatives, 3), *given, numbers, self.log_concave)
        out[:, left] = found

    def _standard(self, mean: Array, variance: Array, members: _Members, out: Array) -> NDArray[np.bool_]:
        """Write averages of groups if their product has the standard form, without c. Return a mask of these groups."""
        density, form = self.own.computation(StandardProduct)
        n, columns, weights = len(mean), members.columns, members.weights
        scale, offset, shapes, constant = form(members.y, members.parameters)
        rate = density is LOG_RATE
        apart = scale != scale[columns]
        apart |= (shapes[1] != 0.0) if rate else (offset != offset[columns])
        chosen = np.bincount(columns, apart, n) == 0.0
        whole = np.stack([np.bincount(columns, weights * row, n) for row in shapes])
        added = np.bincount(columns, weights * constant, n)
        of, s = offset[:n], scale[:n]  # Offset and scale of the first factor of each group.
        if rate:
            top = np.full(n, -np.inf)
            np.maximum.at(top, columns, offset)
            of = top + np.log(np.bincount(columns, weights * np.exp(offset - top[columns]), n))
            added += np.bincount(columns, weights * shapes[0] * offset, n) - whole[0] * of
        some = np.flatnonzero(chosen)
        found, scratch = np.empty((5, some.size)), np.empty((2, some.size))
        with np.errstate(all="ignore"):
            given = s[some] * mean[some] + of[some], s[some] ** 2 * variance[some]
            density.average(*given, np.ascontiguousarray(whole[:, some]), found, scratch)
        found *= s[some] ** np.arange(5)[:, None]
        found[0] += added[some]
        out[:, some] = found
        return np.asarray(chosen)

    @property
    def _density(self) -> ScalarDensity:
        return ScalarDensity(partial(self._sum, self.own.computation(ScalarDensity).derivatives))

    def _placed(self, found: Array, members: _Members, out: Array) -> None:
        """Write weight × slope into the row of `out` for each parameter, given slopes (p, ..., e) of e factors."""
        out[:] = 0.0
        for i, row in enumerate(found):
            at = 1 + members.slots * (2 + self.count) + 2 + i
            out[at, ..., members.columns] = (members.weights * row).T

    def _slopes(self, f: Array, y: Array, parameters: Array, out: Array) -> None:
        members = self._members(parameters)
        at = f[members.columns]
        found = np.empty((self.count, 3, len(members.columns)))
        if self.count:
            self.own.computation(ParameterSlopes).derivatives(at, members.y, members.parameters, found)
        self._placed(found, members, out)
        out[0, 0] = 1.0
        if self.located:
            values = np.empty((4, len(at)))
            self.own.computation(ScalarDensity).derivatives(at, members.y, members.parameters, values)
            out[1 + members.slots * (2 + self.count) + 1, :, members.columns] = -(members.weights * values[1:]).T

    def _one_average_slopes(self, kind: str, *given: Array) -> None:
        """Write slopes in parameters of an average: `kind` is "average" for single factors, else "average_log"."""
        mean, variance, _, parameters, out = given
        members = self._members(parameters)
        moments = mean[members.columns], variance[members.columns]
        found = np.empty((self.count, len(members.columns)))
        if self.count:
            getattr(self.own.computation(ParameterSlopes), kind)(*moments, members.y, members.parameters, found)
        self._placed(found, members, out)
        out[0] = 1.0
        if self.located:
            kernel, rows = self.own.computation(GaussianAverage).terms, 5
            if kind == "average_log":
                kernel, rows = self.own.computation(AverageLogDensity).terms, 3
            terms = np.empty((rows, len(members.columns)))
            kernel(*moments, members.y, members.parameters, terms)
            out[1 + members.slots * (2 + self.count) + 1, members.columns] = -members.weights * terms[1]

    def _average_slopes(self, mean: Array, variance: Array, y: Array, parameters: Array, out: Array) -> None:
        out[:] = 0.0
        one = partial(self._one_average_slopes, "average")
        self._parted((mean, variance), y, parameters, out, (one, self._product_slopes), slopes=True)

    def _product_slopes(self, mean: Array, variance: Array, y: Array, parameters: Array, out: Array) -> None:
        if not self.count:
            out[:] = 0.0
            out[0] = 1.0
        else:
            members, table, weights = self._table(parameters)
            kernel, slots = self.own.computation(ParameterSlopes).derivatives, len(table)

            def slopes(f: Array, points: NDArray[np.intp]) -> Array:
                chosen = np.repeat(table[:, None, points], len(f), axis=1).ravel()
                found = np.empty((self.count, 3, chosen.size))
                own = np.ascontiguousarray(members.parameters[:, chosen])
                kernel(np.tile(f.ravel(), slots), members.y[chosen], own, found)
                placed = np.zeros((len(parameters), *f.shape))
                placed[0] = 1.0
                by_slot = found[:, 0].reshape(self.count, slots, *f.shape)
                for slot, weight in enumerate(weights[:, None, points]):
                    at = 3 + slot * (2 + self.count)
                    placed[at : at + self.count] = np.where(weight == 0.0, 0.0, weight * by_slot[:, slot])
                return placed

            derivatives, numbers = self._prepared(parameters)
            density, concave = _Cells(derivatives, 3), self.log_concave
            out[:] = average_slopes(density, mean, variance, numbers, slopes, len(parameters), concave)

    def _average_log_slopes(self, mean: Array, variance: Array, y: Array, parameters: Array, out: Array) -> None:
        self._one_average_slopes("average_log", mean, variance, y, parameters, out)

    def is_uninformative(self, observed: Observed) -> NDArray[np.bool_]:
        members = self._members(self.parameters)
        said = ~self.own.given(members.parameters).is_uninformative(members.y)
        return np.asarray(np.bincount(members.columns, said, len(observed)) == 0.0)

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Observed:
        return np.ascontiguousarray(self.checked_shape(observed, n_functions, n_points, name), np.float64)


class _Cells:
    """`CellDensity` of a function of latent values and parameters. Its columns are the parameters."""

    def __init__(self, derivatives: Callable[..., None], rows: int = 4) -> None:
        self._derivatives, self._rows = derivatives, rows

    def two_derivatives(self, f: Array, columns: Array) -> Array:
        out = np.empty((self._rows, len(f)))
        self._derivatives(f, np.zeros(len(f)), columns, out)
        return out[:3]
