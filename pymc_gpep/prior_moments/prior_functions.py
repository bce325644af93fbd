"""Prior moments at the rows of the data, or at the first rows of groups, as functions of the hyperparameters."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import rows_text
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PriorForm, TakesForms
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import ModelFunctions
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.sums.row_groups import row_groups


def frozen_data(model: pm.Model) -> dict[Variable, Variable]:
    """Return the data and dim lengths of a model → constants with their current values."""
    shared = [v for v in (*model.data_vars, *model.dim_lengths.values()) if isinstance(v, SharedVariable)]
    return {v: pt.constant(v.get_value(), name=v.name) for v in shared}


@contextmanager
def as_it_was(
    model: pm.Model, data: Mapping[Variable, Variable], coords: Mapping[str, tuple[Any, ...] | None]
) -> Iterator[None]:
    """Context manager in which a model has the data from an earlier `frozen_data`, and these coords."""
    now = {v: v.get_value() for v in data}, dict(model.coords)
    try:
        _set(model, {v: constant.data for v, constant in data.items()}, coords)
        yield
    finally:
        _set(model, *now)


def _set(model: pm.Model, values: Mapping[Variable, Any], coords: Mapping[str, tuple[Any, ...] | None]) -> None:
    for variable, value in values.items():
        variable.set_value(value)
    model.coords.clear()
    model.coords.update(coords)


class Moments(NamedTuple):
    """Prior, observations and likelihood for an approximation, at a point of the hyperparameters."""

    k: Array
    """Prior covariance (1 or c, n, n), or another array from which the prior is made."""
    mean: Array
    """Prior mean, (c, n)."""
    labels: Observed
    """Observations, (n,)."""
    likelihood: Likelihood
    """Likelihood with its parameters at the point."""


def prior_type_of(classifier: GPClassifier, approximator: TakesForms) -> type[PriorForm]:
    """Return the first type of prior that the model offers and an approximation supports."""
    found = next((kind for kind in classifier.prior.arrays if approximator.takes(kind)), None)
    if found is None and classifier.prior.flat:
        names = [str(variable.name) for variable, each in classifier.prior.recipes.items() if each.flat]
        raise StructureError(
            f"{approximator!r} needs prior covariances, but {', '.join(map(repr, names))} has a flat prior. "
            f"Give it a density, pm.Normal({names[0]!r}, 0, s), or take method='laplace'."
        )
    if found is None:
        offered = ", ".join(kind.__name__ for kind in classifier.prior.arrays)
        raise ValueError(f"{approximator!r} supports none of the forms of the prior of the model: {offered}.")
    return found


def prior_array_of(
    classifier: GPClassifier, approximator: TakesForms, data: Mapping[Variable, Variable], interpreted: bool
) -> tuple[Any, TensorVariable]:
    """Return the function that makes the prior for an approximation, and its array, for these data.

    Coefficients are split into parts only in an `interpreted` graph: compiled code identifies a prior by its name
    alone.
    """
    prior_type = prior_type_of(classifier, approximator)
    bound = classifier.prior.bound(prior_type, data) if interpreted else None
    return (prior_type, classifier.prior.arrays[prior_type]()) if bound is None else bound


def prior_moments(
    classifier: GPClassifier,
    data: Mapping[Variable, Variable] | None = None,
    array: TensorVariable | None = None,
) -> Callable[[PointType], Moments]:
    """Return a function from a point of the model to the moments for an approximation.

    `data` is the result of `frozen_data`. Without it, the function uses the current data of the model in each call.
    """
    labels, parameters, likelihood = classifier.at_points
    array = classifier.prior.covariances() if array is None else array
    functions = ModelFunctions(classifier.model, classifier.hyperparameters, data)
    function = functions([array, classifier.prior.mean(), parameters, labels], shared=True)

    def at(point: PointType) -> Moments:
        k, mean, parameters, labels = function(point)
        return Moments(k, mean, labels, likelihood.given(parameters))

    return at


def observed(
    classifier: GPClassifier, data: Mapping[Variable, Variable]
) -> Callable[[PointType], tuple[Observed, Likelihood]]:
    """Return a function from a point of the model to observations, and the likelihood with its parameters."""
    functions = ModelFunctions(classifier.model, classifier.hyperparameters, data)
    function = functions([classifier.parameters, classifier.labels])

    def at(point: PointType) -> tuple[Observed, Likelihood]:
        parameters, labels = function(point)
        return labels, classifier.likelihood_model.given(parameters)

    return at


def prior_roots(
    classifier: GPClassifier, data: Mapping[Variable, Variable], prior_type: Any
) -> Callable[[PointType], Array] | None:
    """Return a function from a point of the model to factors J (c, n, q) of the prior covariance.

    None if Cholesky factors are used, or if the prior's array already consists of the factors.
    """
    roots = None if prior_type.by_normals else classifier.prior.roots()
    if roots is None:
        return None
    function = ModelFunctions(classifier.model, classifier.hyperparameters, data)([roots])
    return lambda point: np.asarray(function(point)[0])


def check_moments(moments: Moments, prior_type: Any = DensePrior) -> None:
    """Raise a ValueError if prior moments, or parameters of the likelihood, are invalid."""
    k, mean, labels, likelihood = moments
    for name, values in (("covariance", k), ("mean", mean)):
        if bad := np.count_nonzero(~np.isfinite(values)):
            raise ValueError(
                f"The prior {name} must be finite, but has {bad} values that are not. Look for missing values in the "
                "inputs of the model, and check the initial hyperparameters. A precision, tau=, must be positive "
                "definite: if it is singular, add a small number to its diagonal."
            )
    likelihood.check(labels, *prior_type.checked(k, mean).shape)
    likelihood.check_parameters(labels, "the labels")


def check_densities(moments: Moments) -> None:
    """Raise a ValueError if the log density of an observation is not finite at the prior mean."""
    with np.errstate(all="ignore"):
        bad = ~np.isfinite(moments.likelihood.log_densities(moments.mean, moments.labels))
    if bad.any():
        raise ValueError(
            f"The log density is not finite at the prior mean in {rows_text(bad)}. A parameter may leave its support "
            "there: write a mean above 0 as pm.math.exp(f), and a probability as pm.math.invlogit(f)."
        )


def by_groups(classifier: GPClassifier, approximator: Any) -> GPClassifier:
    """Return a classifier with one point for each group of rows; the same if no rows have equal latent values.

    Groups are used only if the approximation supports the likelihood of a group.
    """
    prior = classifier.prior
    if classifier.groups is not None:
        return classifier
    if "groups" not in prior.made:
        given = classifier.likelihood_model, classifier.labels, classifier.parameters
        prior.made["groups"] = row_groups(prior, *given, frozen_data(prior.model))
    found = prior.made["groups"]
    if found is None or not approximator.approximates(found[1].points.likelihood):
        return classifier
    return replace(classifier, prior=found[0], groups=found[1])
