"""Prior moments of the latent values as functions of the hyperparameters: at the points of the data, and elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.classifier import GPClassifier
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.process_functions import ProcessFunctions, process_functions

__all__ = [
    "CrossCovariance", "Moments", "as_gps", "check_moments", "frozen_data", "functions_of", "match_priors",
    "prior_moments",
]  # fmt: skip


def frozen_data(model: pm.Model) -> dict[Variable, Variable]:
    """Data and lengths of dims of a model → constants with their present values."""
    shared = [v for v in (*model.data_vars, *model.dim_lengths.values()) if isinstance(v, SharedVariable)]
    return {v: pt.constant(v.get_value(), name=v.name) for v in shared}


class Moments(NamedTuple):
    """What an approximation is of, at a point of a model."""

    k: Array
    """Prior covariance, (1 or c, n, n)."""
    mean: Array
    """Prior mean, (c, n)."""
    labels: NDArray[np.int64]
    """What was observed, (n,)."""
    likelihood: Likelihood
    """With the parameters that it has there."""


def prior_moments(
    classifier: GPClassifier, data: Mapping[Variable, Variable] | None = None
) -> Callable[[PointType], Moments]:
    """What an approximation is of, as a function of a point of the model.

    With the data given, as of `frozen_data`, else with those that the model has when the function is called.
    """
    model = classifier.model
    moments = [classifier.covariances(), classifier.mean(), classifier.parameters]
    outputs = [*model.replace_rvs_by_values(moments), classifier.labels]
    value_vars = [model.rvs_to_values[rv] for rv in classifier.hyperparameters]
    function = graph_function(model, value_vars, graph_replace(outputs, data or {}, strict=False))

    def at(point: PointType) -> Moments:
        k, mean, parameters, labels = function(*(point[v.name] for v in value_vars))
        return Moments(k, mean, labels, classifier.likelihood_model.given(parameters))

    return at


def check_moments(moments: Moments) -> None:
    """Raise a ValueError if prior moments cannot be those of a Gaussian process, or if the likelihood cannot be one."""
    k, mean, labels, likelihood = moments
    for name, values in (("covariance", k), ("mean", mean)):
        if bad := np.count_nonzero(~np.isfinite(values)):
            raise ValueError(
                f"The prior {name} must be finite, but has {bad} values that are not. Look for missing values in the "
                "inputs of the model, and at the hyperparameters it starts from."
            )
    likelihood.check(labels, *DensePrior.checked(k, mean).shape)
    likelihood.check_parameters(labels, "the labels")


def as_gps(gp: Any) -> tuple[pm.gp.Latent, ...] | None:
    """What made the latent values as a user gives it, one `pm.gp.Latent` or several, as a tuple; None stays None.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if gp is None:
        return None
    gps = tuple(gp) if isinstance(gp, Sequence) else (gp,)
    if wrong := [type(each).__name__ for each in gps if not isinstance(each, pm.gp.Latent)]:
        raise TypeError(
            f"gp must be the pm.gp.Latent that made the latent values, or a list of these, not a {wrong[0]}."
        )
    return gps


def match_priors(classifier: GPClassifier, gps: Sequence[pm.gp.Latent]) -> list[tuple[LatentGP, pm.gp.Latent]]:
    """Each prior of the model with the `pm.gp.Latent` that made it."""
    matched = []
    for latent in classifier.latents:
        makers = [gp for gp in gps if getattr(gp, "f", None) is latent.f]
        if not makers:
            wanted = ", ".join(repr(latent.f.name) for latent in classifier.latents)
            raise ValueError(
                f"gp: none of the {len(gps)} given made the latent values {latent.f.name!r}. Pass the pm.gp.Latent "
                f"whose .prior made them, or a list of these for {wanted}. For a model that PyMC has made of another "
                "one (pm.do, model.copy()) leave gp out."
            )
        if len(makers) > 1:
            raise ValueError(f"gp: {latent.f.name!r} was given {len(makers)} times. Pass every pm.gp.Latent once.")
        matched.append((latent, makers[0]))
    if len(gps) > len(matched):
        raise ValueError(f"gp: {len(gps)} were given, but the likelihood's latent values have only {len(matched)}.")
    return matched


def functions_of(
    classifier: GPClassifier, gps: Sequence[pm.gp.Latent] | None
) -> list[tuple[LatentGP, ProcessFunctions]]:
    """Each prior of the model with its covariance and mean functions; from the model's graph where `gps` is None.

    Raises
    ------
    ValueError
        If `gps` are not what made the latent values.
    StructureError
        If the graph does not say what they are at other inputs.
    """
    makers = None if gps is None else dict(match_priors(classifier, gps))
    return list(zip(classifier.latents, process_functions(classifier, makers), strict=True))


class CrossCovariance:
    """Prior moments at new inputs, compiled once.

    Covariance functions are those of `gps`, or where that is None those that the graph of the model has. The data of
    the model are those given, as the fit had them. Calling it with the values of the hyperparameters and inputs (m, d)
    gives prior covariance with the inputs of the model (1 or c, m, n), prior variance (1 or c, m) and prior mean
    (c, m).
    """

    def __init__(
        self, classifier: GPClassifier, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]
    ) -> None:
        matched = functions_of(classifier, gps)
        model = classifier.model
        (self._inputs,) = graph_replace([matched[0][1].inputs], data, strict=False)
        (columns,) = evaluate([self._inputs.shape[1]])
        self.columns = int(columns)
        x = pt.dmatrix("Xnew")
        rows: dict[int, tuple[Any, Any, Any]] = {}
        for latent, functions in matched:
            cross = functions.covariance(functions.inputs, x).T
            variance = functions.variance(x)
            mean = pt.broadcast_to(functions.mean(x), (len(latent.classes), x.shape[0]))
            for output, k in enumerate(latent.classes):
                rows[k] = cross, variance, mean[output]
        ordered = [rows[k] for k in range(classifier.n_functions)]
        distinct = ordered[:1] if len(matched) == 1 else ordered
        outputs = [
            pt.stack([cross for cross, _, _ in distinct]),
            pt.stack([variance for _, variance, _ in distinct]),
            pt.stack([mean for _, _, mean in ordered]),
        ]
        # In this order: a random variable may depend on data itself, and would no longer be the model's.
        outputs = graph_replace(model.replace_rvs_by_values(outputs), data, strict=False)
        self._names = [model.rvs_to_values[rv].name for rv in classifier.hyperparameters]
        inputs = [*(model.rvs_to_values[rv] for rv in classifier.hyperparameters), x]
        self._function = graph_function(model, inputs, outputs)

    @property
    def inputs(self) -> Array:
        """Inputs of the model, (n, d)."""
        return np.asarray(evaluate([self._inputs])[0], dtype=np.float64)

    def __call__(self, point: PointType, x: Array) -> tuple[Array, Array, Array]:
        """Evaluate at the inputs `x` (m, d)."""
        return tuple(np.asarray(out) for out in self._function(*(point[name] for name in self._names), x))  # type: ignore[return-value]  # three of them
