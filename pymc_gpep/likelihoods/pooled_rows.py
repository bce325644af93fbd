"""Replacement of the rows of a group by fewer factors. The product of the likelihoods does not change.

Binomial rows become one factor with the sum of trials, and Poisson rows one factor with the sum of exposures. Normal
rows become a normal density of their mean. Other rows become one factor if they are equal. Rows of two classes become
two factors. The product of both factors is a binomial density.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import disconnected_grad
from pytensor.tensor.variable import TensorVariable
from scipy.special import gammaln

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.counts import BinomialLikelihood, PoissonLikelihood
from pymc_gpep.likelihoods.grouped import Factors, GroupedLikelihood
from pymc_gpep.likelihoods.likelihood import UNBOUNDED, Likelihood
from pymc_gpep.likelihoods.links import NO_EXPOSURE
from pymc_gpep.likelihoods.real import LogNormalLikelihood, NormalLikelihood
from pymc_gpep.likelihoods.stacked import StackedLikelihood


class PooledRows(NamedTuple):
    """Rows of groups, with their parameters."""

    of: NDArray[np.int64]
    """Index of the group of each row, (n,)."""
    y: Observed
    """Observations of the rows, (n,)."""
    alike: NDArray[np.int64]
    """Index of the parameter set of each row, (n,). Rows of a set have equal parameters for all hyperparameters."""
    parameters: Callable[[NDArray[np.int64]], TensorVariable]
    """Function of m row indices that returns a graph of their parameters (p, m)."""

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.of.max()) + 1

    def merged(self, observations: bool = True) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row of each set of equal rows, (e,), and the index of its set for each row, (n,).

        Rows are equal if they have the same group, the same parameters and, with `observations`, the same observation.
        """
        keys = [self.of, self.alike, *([np.asarray(self.y, np.float64)] if observations else [])]
        ids = np.zeros(len(self.of), np.int64)
        for key in keys:
            _, own = np.unique(key, return_inverse=True)
            _, ids = np.unique(ids * (int(own.max()) + 1) + own, return_inverse=True)
        _, first = np.unique(ids, return_index=True)
        return first, ids


def pooled(likelihood: Likelihood, rows: PooledRows) -> tuple[GroupedLikelihood, Factors]:
    """Return the likelihood of groups of rows, and its factors.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood of a row, with values of its parameters.
    rows : PooledRows
    """
    pool = _POOLS.get(type(likelihood), _products)
    if isinstance(likelihood, NormalLikelihood | LogNormalLikelihood) and likelihood.parameters.size:
        bounds = likelihood.parameters[1:]
        if not (np.abs(bounds) == UNBOUNDED).all():
            pool = _products
    return pool(likelihood, rows)


def _products(likelihood: Likelihood, rows: PooledRows) -> tuple[GroupedLikelihood, Factors]:
    first, ids = rows.merged()
    weights = np.bincount(ids).astype(np.float64)
    parameters = rows.parameters(first)
    of = rows.of[first]
    factors = Factors(of, weights, np.asarray(rows.y, np.float64)[first], parameters, np.zeros(rows.n_groups))
    largest = float(np.bincount(of, weights).max())
    inner = likelihood.given(np.full((_count(likelihood), 1), np.nan))
    return GroupedLikelihood(inner=inner, count=_count(likelihood), largest=largest), factors


def _count(likelihood: Likelihood) -> int:
    return len(likelihood.parameters) if likelihood.has_parameters else 0


def _sums(rows: PooledRows, values: Array) -> Array:
    return np.bincount(rows.of, values, rows.n_groups)


def _one_of_each(rows: PooledRows, y: object, parameters: object, constant: object) -> Factors:
    """Return one factor of weight 1 for each group."""
    g = rows.n_groups
    return Factors(np.arange(g), np.ones(g), y, parameters, constant)


def _binomial(likelihood: Likelihood, rows: PooledRows) -> tuple[GroupedLikelihood, Factors]:
    first, ids = rows.merged()
    of, y, weights = rows.of[first], np.asarray(rows.y, np.float64)[first], np.bincount(ids)
    own = rows.parameters(first)[0]
    trials, successes = _summed(weights * own, of, rows.n_groups), np.bincount(of, weights * y, rows.n_groups)
    each = pt.gammaln(own + 1.0) - gammaln(y + 1.0) - pt.gammaln(own - y + 1.0)
    whole = pt.gammaln(trials + 1.0) - gammaln(successes + 1.0) - pt.gammaln(trials - successes + 1.0)
    constant = _summed(weights * each, of, rows.n_groups) - whole
    return GroupedLikelihood(inner=BinomialLikelihood(), count=1), _one_of_each(rows, successes, trials[None], constant)


def _poisson(likelihood: Likelihood, rows: PooledRows) -> tuple[GroupedLikelihood, Factors]:
    first, ids = rows.merged()
    of, y, weights = rows.of[first], np.asarray(rows.y, np.float64)[first], np.bincount(ids)
    offset = rows.parameters(first)[0]
    largest = disconnected_grad(pt.max(offset))
    exposure = _summed(weights * pt.exp(offset - largest), of, rows.n_groups)
    some = pt.gt(exposure, 0.0)
    nothing = pt.constant(NO_EXPOSURE, dtype="float64")
    whole = pt.switch(some, largest + pt.log(pt.switch(some, exposure, 1.0)), nothing)
    counts = np.bincount(of, weights * y, rows.n_groups)
    own = _summed(weights * y * offset, of, rows.n_groups) - np.bincount(of, weights * gammaln(y + 1.0), rows.n_groups)
    constant = own - counts * whole + gammaln(counts + 1.0)
    return GroupedLikelihood(inner=PoissonLikelihood(), count=1), _one_of_each(rows, counts, whole[None], constant)


def _normal(likelihood: Likelihood, rows: PooledRows) -> tuple[GroupedLikelihood, Factors]:
    first, ids = rows.merged(observations=False)
    y = np.asarray(rows.y, np.float64)
    jacobian = np.zeros(rows.n_groups)
    if isinstance(likelihood, LogNormalLikelihood):
        y = np.log(y)
        jacobian = -_sums(rows, y)
    of, n = rows.of[first], np.bincount(ids).astype(np.float64)
    mean = np.bincount(ids, y) / n
    squares = np.bincount(ids, (y - mean[ids]) ** 2)
    sigma = rows.parameters(first)[0]
    precision = n / sigma**2
    total = _summed(precision, of, rows.n_groups)
    # Subtract the mean of each group: the sum of values far from 0 would lose digits.
    shift = _sums(rows, y) / _sums(rows, np.ones(len(y)))
    location = shift + _summed(precision * (mean - shift[of]), of, rows.n_groups) / total
    apart = squares / n + (mean - location[of]) ** 2
    each = -0.5 * n * math.log(2.0 * math.pi) - n * pt.log(sigma) - 0.5 * precision * apart
    constant = _summed(each, of, rows.n_groups) + 0.5 * pt.log(2.0 * math.pi / total) + jacobian
    bounds = pt.constant(np.repeat([[-UNBOUNDED], [UNBOUNDED]], rows.n_groups, axis=1))
    parameters = pt.concatenate([(1.0 / pt.sqrt(total))[None], bounds])
    inner = NormalLikelihood().given(np.full((3, 1), np.nan))
    return GroupedLikelihood(inner=inner, count=3, located=True), _one_of_each(rows, location, parameters, constant)


def _summed(values: TensorVariable, of: NDArray[np.int64], g: int) -> TensorVariable:
    """Return sums (g,) of values (e,) over groups."""
    if np.array_equal(of, np.arange(g)):
        return values
    found: TensorVariable = pt.zeros(g)[of].inc(values)
    return found


_POOLS: dict[type[Likelihood], Callable[[Likelihood, PooledRows], tuple[GroupedLikelihood, Factors]]] = {
    BinomialLikelihood: _binomial,
    PoissonLikelihood: _poisson,
    NormalLikelihood: _normal,
    LogNormalLikelihood: _normal,
}


def products(likelihood: Likelihood, rows: PooledRows) -> GroupedLikelihood | None:
    """Return the likelihood of groups of rows with its parameters, if parameters of rows are arrays.

    Return None for rows of several observed variables.
    """
    if isinstance(likelihood, StackedLikelihood):
        return None
    own, factors = _products(likelihood, rows)
    return own.given(factors.numbers(own.count))


class Grouped(NamedTuple):
    """Likelihood, observations and parameters of groups of rows."""

    likelihood: Likelihood
    labels: Array
    """Observations of the groups, (g,)."""
    parameters: TensorVariable
    """Parameters of the groups, (p, g), as a function of hyperparameters."""


def grouped_rows(likelihood: Likelihood, rows: PooledRows) -> Grouped:
    """Return the likelihood, observations and parameters of groups of rows. A group is one point.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood of a row, with values of the parameters of all rows.
    rows : PooledRows
        Rows and groups of several observed variables are concatenated by variable.
    """
    if not isinstance(likelihood, StackedLikelihood):
        found, factors = pooled(likelihood, rows)
        return Grouped(found, np.zeros(rows.n_groups), factors.together(found.count))
    number = likelihood.parameters[0]
    parts, counts, labels, parameters = [], [], [], []
    for k, (part, count) in enumerate(zip(likelihood.parts, likelihood.counts, strict=True)):
        places = np.flatnonzero(number == k)
        if not places.size:  # A selection may have no rows of a variable.
            parts.append(part)
            counts.append(count)
            parameters.append(pt.zeros((count, 0)))
            continue
        own = _of_part(rows, places, count)
        known = part.given(likelihood.parameters[1 : 1 + count, places])
        if own.n_groups == len(places):
            made = Grouped(part, np.asarray(own.y, np.float64), own.parameters(np.arange(len(places))))
        else:
            made = grouped_rows(known, own)
        parts.append(made.likelihood)
        counts.append(int(made.parameters.type.shape[0] or 0))
        labels.append(made.labels)
        parameters.append(made.parameters)
    whole = StackedLikelihood(parts=tuple(parts), counts=tuple(counts))
    return Grouped(whole, np.concatenate(labels), whole.together(parameters))


def _of_part(rows: PooledRows, places: NDArray[np.int64], count: int) -> PooledRows:
    """Return the rows of a single observed variable, with its parameters."""
    return PooledRows(
        rows.of[places] - rows.of[places].min(),
        rows.y[places],
        rows.alike[places],
        lambda at: rows.parameters(places[at])[1 : 1 + count],
    )
