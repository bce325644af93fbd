"""The likelihood of a model at new points, with their own parameters such as exposures and cutpoints."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.graphs.interpreted import AtPoint, ModelFunctions, evaluate
from pymc_gpep.graphs.rows_apart import at_point, check_rows_apart
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.sums.levels import outside_levels, refuse_labels, repeated_rows


def rows_of_parameters(classifier: GPClassifier, new: Mapping[str, ArrayLike] | None) -> int:
    """Return the number of new rows that parameters of the likelihood have by the data given, 1 if these do not say."""
    if classifier.given is None or not new:
        return 1
    behind = set(ancestors([classifier.given]))
    known = [v for v in classifier.model.data_vars if v in behind and v.name in new]
    fitted = evaluate(known) if known else []
    each = [v.name for v, values in zip(known, fitted, strict=True) if values.shape[:1] == (classifier.n_rows,)]
    return max((len(np.atleast_1d(np.asarray(new[str(name)]))) for name in each), default=1)


class LikelihoodElsewhere:
    """The likelihood at m new points, as a function of the hyperparameters.

    Its parameters there are the model's own expression of them, with other data.

    Parameters
    ----------
    classifier : GPClassifier
    n_points : int
        m.
    data : dict
        Data of the model and what takes their place, as `frozen_data` returns them; other data are as they are now.
    new : dict of str to array_like, optional
        Data at the new points by name, with a row for each, or one number for all of them.
    others : collection of str
        Names of data that latent functions depend on, which `new` may have as well.
    positions : array (m,), optional
        Positions of the points among the rows of the model, where they are some of these.

    Raises
    ------
    ValueError
        If `new` has what the likelihood does not depend on, or values that do not fit.
    """

    def __init__(
        self,
        classifier: GPClassifier,
        n_points: int,
        data: Mapping[Variable, Variable],
        new: Mapping[str, ArrayLike] | None = None,
        others: Collection[str] = (),
        positions: NDArray[np.int64] | None = None,
    ) -> None:
        self._likelihood = classifier.likelihood_model
        self._name = classifier.response
        self._n_points, self._positions, self._n_rows = n_points, positions, classifier.n_rows
        model = classifier.model
        expressions = [] if classifier.given is None else model.replace_rvs_by_values([classifier.given])
        behind = set(ancestors(expressions))
        known = {v.name: v for v in model.data_vars if v in behind and isinstance(v, SharedVariable)}
        given = dict(new or {})
        if unknown := [name for name in given if name not in known and name not in others]:
            has = [*others, *known]
            depends = f"the data {_listing(has)}" if has else "no data besides latent values"
            advice = did_you_mean(unknown, has) if has else " Declare what differs between rows as pm.Data."
            raise ValueError(f"data names {_listing(unknown)}, but {self._name!r} depends on {depends}.{advice}")
        given = {name: value for name, value in given.items() if name in known}
        self._missing = [name for name in known if name not in given]
        # With one row too many, what still has the rows of the fitted data cannot fit by chance.
        self._rows = n_points + (n_points == classifier.n_rows) if given else None
        self._values, there = [], {}
        fitted_rows: dict[TensorVariable, NDArray[Any]] = {}
        for name, value in given.items():
            variable = known[name]
            (fitted,) = evaluate([data.get(variable, variable)])
            each_point = fitted.shape[:1] == (classifier.n_rows,)
            if np.asarray(value).dtype.kind not in "biuf" and classifier.given is not None:
                refuse_labels(model, variable, [classifier.given], np.asarray(value))
            checked = _checked(variable, value, n_points if each_point else None)
            self._values.append(repeated_rows(checked, self._rows or 0) if each_point else checked)
            there[variable] = pt.tensor(name, dtype=variable.dtype, shape=(None,) * variable.ndim)
            if each_point:
                fitted_rows[there[variable]] = fitted
        if classifier.given is None:
            return
        rows = {known[name]: value[:n_points] for name, value in zip(given, self._values, strict=True)}
        rows = {v: value for v, value in rows.items() if there[v] in fitted_rows}
        for variable, (outside, count) in outside_levels(rows, [classifier.given], data).items():
            raise ValueError(
                f"data[{variable.name!r}] has {rows[variable][outside][0]}, but parameters of the likelihood of "
                f"{self._name!r} have levels 0 to {count - 1}, and no value for another level. Predict rows of these "
                "levels."
            )
        functions = ModelFunctions(model, classifier.hyperparameters, {**data, **there})
        # Rows that depend on each other are found at the first hyperparameters.
        self._unchecked: list[Callable[[PointType], None]] = []

        def function(output: Variable) -> AtPoint:
            (known,) = functions.known([output])
            self._unchecked.append(partial(self._check_apart, functions, known, fitted_rows))
            return functions([output], list(there.values()))

        self._shared = {
            v: v_given for v, v_given in zip(there.values(), self._values, strict=True) if v not in fitted_rows
        }
        self._function = function(classifier.given)
        self._unbounded = None if classifier.unbounded is None else function(classifier.unbounded)

    def _check_apart(
        self,
        functions: ModelFunctions,
        output: TensorVariable,
        rows: Mapping[TensorVariable, NDArray[Any]],
        point: PointType,
    ) -> None:
        """Refuse parameters of rows that depend on other rows."""
        by_rows = at_point(functions, point, output, self._shared)
        check_rows_apart(f"Parameters of the likelihood of {self._name!r}", output, 1, rows, by_rows)

    def __call__(self, point: PointType, observed: Observed | None = None) -> Likelihood:
        """Return the likelihood at the new points, given values of the value variables.

        Raises
        ------
        ValueError
            If parameters of the likelihood differ between points, and are not known at the new ones. It is raised as
            well if no model can have such parameters, or not where these numbers (m,) were observed.
        """
        if not self._likelihood.has_parameters:
            return self._likelihood
        while self._unchecked:
            self._unchecked[-1](point)
            self._unchecked.pop()
        try:
            parameters = self._parameters(self._function, point)
        except ValueError:
            # Bounds say nothing of an observation that nobody has seen.
            if self._unbounded is None or observed is not None:
                raise
            parameters = self._parameters(self._unbounded, point)
        at_each: Array = np.broadcast_to(parameters, (len(parameters), max(self._n_points, parameters.shape[1])))
        likelihood = self._likelihood.given(at_each[:, : self._n_points])
        likelihood.check_parameters(observed, f"{self._name!r} at new points")
        if not np.isfinite(parameters).all():
            raise ValueError(
                f"At new points, values that {self._name!r} is given besides latent values are not finite."
            )
        return likelihood

    def _parameters(self, function: Callable[..., Any], point: PointType) -> Array:
        """Parameters at the new points (p, m), or as many as one row more, or (p, 1)."""
        try:
            (parameters,) = function(point, *self._values)
        except (ValueError, IndexError, AssertionError) as error:
            raise ValueError(self._refusal) from error
        if self._positions is not None:
            parameters = np.broadcast_to(parameters, (len(parameters), self._n_rows))[:, self._positions]
        elif self._rows is None and (parameters == parameters[:, :1]).all():
            parameters = parameters[:, :1]
        if self._positions is None and parameters.shape[1] not in (1, self._rows):
            raise ValueError(self._refusal)
        return np.asarray(parameters)

    @property
    def _refusal(self) -> str:
        what = f"What {self._name!r} is given besides latent values differs between points"
        if self._missing:
            return f"{what}, and depends on data. Give their values at Xnew: data={{{self._missing[0]!r}: ...}}."
        return (
            f"{what}, and not by data alone that can be given for others. Put what differs into the model as pm.Data, "
            "such as exposure = pm.Data('exposure', ...), and give its values at Xnew: data={'exposure': ...}."
        )


def _checked(variable: SharedVariable, value: ArrayLike, rows: int | None) -> NDArray[Any]:
    """Other values of data of a model, in their type; with so many rows if they are of points."""
    given = np.asarray(value)
    if rows is not None and given.ndim == 0:
        given = np.full((rows, *[1] * (variable.ndim - 1)), given)
    if rows is not None and given.ndim == variable.ndim and len(given) == 1:  # one row for all
        given = np.repeat(given, rows, axis=0)
    shape = (given.shape[:1] if rows is None else (rows,)) + given.shape[1:]
    fits = given.dtype.kind in "biuf" and given.ndim == variable.ndim and given.shape == shape
    with np.errstate(invalid="ignore", over="ignore"):
        converted = given.astype(variable.dtype) if fits else np.empty(0)
    # Bounds may be infinite. Where that makes parameters infinite, these are refused.
    if not fits or not np.allclose(converted, given, rtol=1e-6):
        points = "" if rows is None else f", the first with an entry for each of the {rows} rows to be predicted"
        raise ValueError(
            f"data[{variable.name!r}] must be numbers that fit {variable.dtype}, with {variable.ndim} axes"
            f"{points}, but has type {given.dtype} and shape {given.shape}."
        )
    return converted


def _listing(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
