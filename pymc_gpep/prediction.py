"""Latent functions and class probabilities at new inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_gpep.approximations import Solution
from pymc_gpep.posterior import CoupledPosterior
from pymc_gpep.probabilities import class_probabilities
from pymc_gpep.softmax_probabilities import softmax_probabilities
from pymc_gpep.structure import GPClassifier, LatentGP
from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.tierney_kadane import tierney_kadane_probabilities

__all__ = ["CrossCovariance", "labelled", "new_inputs", "predict"]

Array = NDArray[np.float64]

PROBABILITIES = {"multinomial_probit": ("orthant", "inner_ep"), "softmax": ("average",)}
"""Kind of likelihood → how class probabilities can be computed from a Gaussian, the default first."""

_ENTRIES = 4_000_000  # of a cross-covariance matrix held at a time, over all classes: 32 MB


def _match(classifier: GPClassifier, gps: Sequence[pm.gp.Latent]) -> list[tuple[LatentGP, pm.gp.Latent]]:
    """Each prior of the model with the `pm.gp.Latent` that made it."""
    matched = []
    for latent in classifier.latents:
        makers = [gp for gp in gps if getattr(gp, "f", None) is latent.f]
        if not makers:
            wanted = ", ".join(repr(latent.f.name) for latent in classifier.latents)
            raise ValueError(
                f"gp: none of the {len(gps)} given made the latent values {latent.f.name!r}. Pass the pm.gp.Latent "
                f"whose .prior made them, or a list of these for {wanted}."
            )
        if len(makers) > 1:
            raise ValueError(f"gp: {latent.f.name!r} was given {len(makers)} times. Pass every pm.gp.Latent once.")
        matched.append((latent, makers[0]))
    if len(gps) > len(matched):
        raise ValueError(f"gp: {len(gps)} were given, but the likelihood's latent values have only {len(matched)}.")
    return matched


class CrossCovariance:
    """Prior moments at new inputs, compiled once.

    The data of the model are those given, as the fit had them. Calling it with the values of the hyperparameters and
    inputs (m, d) gives prior covariance with the inputs of the model (1 or c, m, n), prior variance (1 or c, m) and
    prior mean (c, m).
    """

    def __init__(
        self, classifier: GPClassifier, gps: Sequence[pm.gp.Latent], data: Mapping[Variable, Variable]
    ) -> None:
        matched = _match(classifier, gps)
        model = classifier.model
        (self._inputs,) = graph_replace([pt.as_tensor_variable(matched[0][1].X)], data, strict=False)
        (columns,) = evaluate([self._inputs.shape[1]])
        self.columns = int(columns)
        x = pt.dmatrix("Xnew")
        rows: dict[int, tuple[Any, Any, Any]] = {}
        for latent, maker in matched:
            cross = maker.cov_func(maker.X, x).T
            variance = maker.cov_func(x, diag=True)
            mean = pt.broadcast_to(maker.mean_func(x), (len(latent.classes), x.shape[0]))
            for output, k in enumerate(latent.classes):
                rows[k] = cross, variance, mean[output]
        ordered = [rows[k] for k in range(classifier.n_classes)]
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


def new_inputs(x: ArrayLike, columns: int) -> Array:
    """Check new inputs against the number of columns of the model's; (m, columns)."""
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(
            f"Xnew must be (points, inputs), but has shape {values.shape}; one input is a column, Xnew[:, None]."
        )
    if values.shape[1] != columns:
        raise ValueError(f"Xnew has {values.shape[1]} columns, but the model's inputs have {columns}.")
    if not np.isfinite(values).all():
        raise ValueError(f"Xnew must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not.")
    return values


def _check_method(kind: str, solution: Solution, probabilities: str | None, correction: str | None) -> str:
    """Refuse what does not fit the likelihood or the approximation; the default is the first of those that do."""
    known = PROBABILITIES[kind]
    if probabilities is not None and probabilities not in known:
        names = " or ".join(map(repr, known))
        raise ValueError(f"probabilities is {probabilities!r}, but must be {names} for a {kind} likelihood.")
    if correction is not None:
        if correction != "tk":
            raise ValueError(f"correction is {correction!r}, but must be 'tk' (Tierney and Kadane) or None.")
        if kind != "softmax" or not isinstance(solution.posterior, CoupledPosterior):
            raise ValueError(
                "correction='tk' corrects the Laplace approximation of a softmax, pm.Categorical(logit_p=...); this is "
                f"a {kind} likelihood."
            )
    return probabilities or known[0]


def predict(
    classifier: GPClassifier,
    prior: CrossCovariance,
    solution: Solution,
    point: PointType,
    x: ArrayLike,
    *,
    probabilities: str | None,
    correction: str | None,
    tolerance: float,
    dim: str,
) -> xr.Dataset:
    """Latent means, covariances and class probabilities at new inputs, in chunks of bounded memory.

    See `GPApproximation.predict`.
    """
    inputs = new_inputs(x, prior.columns)
    probabilities = _check_method(classifier.kind, solution, probabilities, correction)
    posterior = solution.posterior
    chunk = max(1, _ENTRIES // (classifier.n_classes * classifier.n_points))
    means, covs, ps, errors = [], [], [], []
    for start in range(0, len(inputs), chunk):
        cross, variance, prior_mean = prior(point, inputs[start : start + chunk])
        mean, cov = posterior.predict(cross, variance, prior_mean)
        if correction:
            assert isinstance(posterior, CoupledPosterior)
            p = tierney_kadane_probabilities(posterior, solution.labels, cross, variance, prior_mean)
            error = np.full(len(p), np.nan)
        elif classifier.kind == "softmax":
            p, error = softmax_probabilities(mean.T, cov, tolerance=tolerance)
        else:
            p, error = class_probabilities(mean.T, cov, method=probabilities, tolerance=tolerance)
        means.append(mean.T)
        covs.append(cov)
        ps.append(p)
        errors.append(error)
    c = classifier.n_classes
    return labelled(
        classifier,
        x,
        dim,
        p=np.concatenate(ps) if ps else np.empty((0, c)),
        mean=np.concatenate(means) if means else np.empty((0, c)),
        cov=np.concatenate(covs) if covs else np.empty((0, c, c)),
        error=np.concatenate(errors) if errors else np.empty(0),
    ).assign_attrs({"probabilities": probabilities} | ({"correction": correction} if correction else {}))


def labelled(classifier: GPClassifier, x: ArrayLike, dim: str, **arrays: Array) -> xr.Dataset:
    """Arrays (m, ...) of what is predicted at new inputs `x`, by name; their other axes, if any, are over classes."""
    class_dim = classifier.class_dim or "class"
    other_dim = f"{class_dim}_other"
    classes = list(classifier.class_labels or range(classifier.n_classes))
    coords: dict[str, Any] = {class_dim: classes, other_dim: classes}
    if isinstance(x, xr.DataArray):
        dim = str(x.dims[0])
        if dim in x.coords:
            coords[dim] = x.coords[dim].values
    dims = (dim, class_dim, other_dim)
    return xr.Dataset({name: (dims[: array.ndim], array) for name, array in arrays.items()}, coords=coords)
