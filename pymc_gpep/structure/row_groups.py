"""Rows that have the same latent value whatever the hyperparameters are: one point of a fit, with one factor.

EP approximates the factor of a point. If all rows of a group are one factor, EP approximates their product, and not
each row by itself. So means and evidence are more accurate. Their cost is that of as many rows as there are groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Observed
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import ScalarDensity
from pymc_gpep.likelihoods.pooled_rows import Grouped, Rows, grouped_rows, products
from pymc_gpep.structure.initial_point import initial_point
from pymc_gpep.structure.interpreted import evaluate, graph_function
from pymc_gpep.structure.latent_sum import LatentSum
from pymc_gpep.structure.process_term import ProcessTerm
from pymc_gpep.structure.rows_alike import RowsOfGraph, combined, equal_rows
from pymc_gpep.structure.rows_of_graphs import ROWS, CannotSplitError

_POINTS = 5  # random hyperparameters and effects at which coefficients are compared
_FEWEST = 3  # of these at which they must be finite
_BESIDE = 1.0  # of the initial point, unconstrained
_SEED = 3
_WASTE = 20  # times as many numbers of factors as there are, which tables of them may have
_SMALL = 1_000_000  # numbers, below which a table may have any number


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Groups of rows.

    Attributes
    ----------
    of : array (n,)
        The group of each row. Groups are numbered by their first rows.
    first : array (g,)
        The first row of each group.
    alike : array (n,)
        A number that is the same for rows with the same parameters of the likelihood, whatever the hyperparameters are.
    points : Grouped
        Likelihood, observations and parameters of the groups.
    """

    of: NDArray[np.int64]
    first: NDArray[np.int64]
    alike: NDArray[np.int64]
    points: Grouped

    def likelihood_of(
        self,
        likelihood: Likelihood,
        y: Observed,
        rows: NDArray[np.int64],
        of: NDArray[np.int64],
        briefly: bool = False,
    ) -> tuple[Likelihood, NDArray[np.float64]]:
        """Return the likelihood of other groups with its parameters, and their observations.

        Parameters
        ----------
        likelihood : Likelihood
            The likelihood of all rows with its parameters.
        y : array (n,)
            Observations of all rows.
        rows : array (m,)
            The rows of these groups; one may be in several.
        of : array (m,)
            The groups that they are in, each with one row at least.
        briefly : bool
            Whether the likelihood is for few evaluations, which sufficient statistics are not worth.
        """
        own = likelihood.at(rows)
        known = own.parameters if own.has_parameters else np.zeros((0, len(rows)))
        plain = Rows(of, y[rows], self.alike[rows], lambda at: cast(TensorVariable, known[:, at]))
        if briefly and (made := products(own, plain)) is not None:
            return made, np.zeros(plain.n_groups)
        found = grouped_rows(own, plain._replace(parameters=lambda at: pt.constant(known[:, at])))
        (parameters,) = evaluate([found.parameters])
        return found.likelihood.given(parameters), found.labels


def row_groups(
    prior: LatentSum,
    likelihood: Likelihood,
    labels: TensorVariable,
    parameters: TensorVariable,
    data: Mapping[Variable, Variable],
) -> tuple[LatentSum, RowGroups] | None:
    """Return the prior of groups of rows, and the groups; None where no two rows have the same latent value."""
    if prior.n_functions > 1 or prior.by_class or not likelihood.offers(ScalarDensity):
        return None
    graph = _Rows(prior, data)
    of, first = _in_order(combined(graph.alike(), _parts_of(likelihood, prior.n_points)))
    if len(first) == prior.n_points:
        return None
    point = initial_point(prior.model)
    value_vars = [prior.model.rvs_to_values[rv] for rv in prior.hyperparameters]
    outputs = graph_replace([*prior.model.replace_rvs_by_values([parameters]), labels], dict(data), strict=False)
    given, y = graph_function(prior.model, value_vars, outputs)(*(point[v.name] for v in value_vars))
    try:
        alike = graph.walk().alike(parameters, 1) if len(given) else np.zeros(prior.n_points, np.int64)
    except CannotSplitError:
        alike = np.arange(prior.n_points)
    own = likelihood.given(np.asarray(given))
    rows = Rows(of, np.asarray(y), alike, partial(graph.at, parameters, (None, ROWS)))
    points = grouped_rows(own, rows)
    size = int(points.parameters.type.shape[0] or 0) * len(first)
    if size > max(_SMALL, _WASTE * prior.n_points * (2 + len(given))):
        return None
    return graph.grouped(first), RowGroups(of, first, alike, points)


def _parts_of(likelihood: Likelihood, n: int) -> NDArray[np.int64]:
    """Return the number of the observed variable of each row."""
    parts = getattr(likelihood, "parts", ())
    return likelihood.parameters[0].astype(np.int64) if parts else np.zeros(n, np.int64)


def _in_order(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return groups numbered by their first rows, and these."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place[inverse], first[order]


class _Rows:
    """Rows of the argument of a sum.

    Parameters
    ----------
    prior : LatentSum
    data : mapping
        Data of the model → constants that take their place.
    """

    def __init__(self, prior: LatentSum, data: Mapping[Variable, Variable]) -> None:
        self._prior, self._data = prior, data
        self._proved = True

    def walk(self, at: NDArray[np.int64] | None = None) -> RowsOfGraph:
        """Return a walk over the rows, or some of them."""
        prior = self._prior
        processes = {latent.f: latent for latent in prior.processes}
        stop = [*prior.model.basic_RVs, *processes]
        return RowsOfGraph(stop, processes, self._data, prior.n_points, at)

    def alike(self) -> NDArray[np.int64]:
        """Return numbers (n,) that are the same for rows with the same latent value."""
        argument = self._prior.argument
        if not argument.type.ndim or argument.type.broadcastable[0]:
            return np.zeros(self._prior.n_points, np.int64)
        try:
            return self.walk().alike(argument, 0)
        except CannotSplitError:
            self._proved = False
            return self._by_values()

    def _by_values(self) -> NDArray[np.int64]:
        """Compare coefficients at random hyperparameters and effects, where a graph mixes rows."""
        prior = self._prior
        n, model = prior.n_points, prior.model
        value_vars = [model.rvs_to_values[rv] for rv in prior.hyperparameters]
        z = pt.vector("normals", shape=(prior.n_plain,), dtype="float64")
        values = [pt.tensor(f"values_{i}", dtype="float64", shape=shape) for i, shape in enumerate(prior.sizes)]
        outputs = model.replace_rvs_by_values(prior.by_parts([prior.argument], z, values, seen=True))
        known = graph_replace(outputs, dict(self._data), strict=False)
        function = graph_function(model, [*value_vars, z, *values], known)
        point, rng = initial_point(model), np.random.default_rng(_SEED)
        found = []
        for _ in range(_POINTS):
            theta = [point[v.name] + _BESIDE * rng.standard_normal(np.shape(point[v.name])) for v in value_vars]
            noise = [rng.standard_normal(prior.n_plain), *(rng.standard_normal(shape) for shape in prior.sizes)]
            (argument,) = function(*theta, *noise)
            found.append(np.broadcast_to(argument, (n,)))
        finite = [each for each in found if np.isfinite(each).all()]
        return equal_rows(np.stack(finite, axis=1)) if len(finite) >= _FEWEST else np.arange(n)

    def at(self, variable: TensorVariable, roles: tuple[object, ...], rows: NDArray[np.int64]) -> TensorVariable:
        """Return a variable at some rows."""
        axis = roles.index(ROWS)
        if variable.type.broadcastable[axis]:
            whole = pt.broadcast_to(variable, (*variable.shape[:axis], self._prior.n_points))
            return cast(TensorVariable, whole[(*[slice(None)] * axis, rows)])
        try:
            return self.walk(rows)(variable, roles)  # type: ignore[arg-type]
        except CannotSplitError:
            return cast(TensorVariable, variable[(*[slice(None)] * axis, rows)])

    def grouped(self, first: NDArray[np.int64]) -> LatentSum:
        """Return the prior at the first rows of groups."""
        prior, argument = self._prior, self._prior.argument
        if argument.type.ndim and not argument.type.broadcastable[0]:
            argument = self.at(argument, (ROWS,), first) if self._proved else argument[first]
        made = replace(
            prior,
            argument=argument,
            n_points=len(first),
            everywhere=prior.argument if prior.everywhere is None else prior.everywhere,
            n_rows=prior.n_rows or prior.n_points,
            alone=(),
        )
        terms = tuple(_moved(made, i, term) for i, term in enumerate(prior.terms))
        return replace(made, terms=terms)


def _moved(prior: LatentSum, i: int, term: ProcessTerm) -> ProcessTerm:
    """Return a term of the same process in another argument."""
    zeros = [pt.zeros(shape) for shape in prior.sizes]

    def linear(values: TensorVariable) -> TensorVariable:
        parts = [*zeros[:i], values, *zeros[i + 1 :]]
        normals = pt.zeros(prior.n_plain)
        moved, still = (prior.by_parts([prior.argument], normals, each, seen=True)[0] for each in (parts, zeros))
        return prior.shaped(moved - still, prior.n_points)

    return replace(term, linear=linear, whole=False)
