"""Latent functions and class probabilities at new inputs."""

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations import Solution
from pymc_gpep.approximations.tierney_kadane import tierney_kadane_probabilities
from pymc_gpep.likelihoods.multinomial_probit.predictive import class_probabilities
from pymc_gpep.likelihoods.softmax.predictive import softmax_probabilities
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.prior_functions import CrossCovariance

__all__ = ["labelled", "new_inputs", "predict"]

Array = NDArray[np.float64]

PROBABILITIES = {"multinomial_probit": ("orthant", "inner_ep"), "softmax": ("average",)}
"""Kind of likelihood → how class probabilities can be computed from a Gaussian, the default first."""

_ENTRIES = 4_000_000  # of a cross-covariance matrix held at a time, over all classes: 32 MB


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
        if kind != "softmax":
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
