"""Latent functions and class probabilities at new inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.blocking import PointType

from pymc_gpep.approximations import APPROXIMATIONS, Approximator, Solution
from pymc_gpep.approximations.contract import Correction
from pymc_gpep.array_types import Array
from pymc_gpep.fits.datasets import of_functions
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.mixture import Prediction, average_predictions
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.prior_functions import CrossCovariance

__all__ = ["labelled", "new_inputs", "predict", "predict_at"]


_ENTRIES = 4_000_000  # of a cross-covariance matrix, and of covariances between functions, held at a time: 32 MB


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


def _correction(name: str, approximator: Approximator, classifier: GPClassifier) -> Correction:
    """The correction of a name, if it belongs to the approximation."""
    known = {each: correction for kind in APPROXIMATIONS for each, correction in kind.corrections.items()}
    if name not in known:
        raise ValueError(f"correction is {name!r}, but must be {' or '.join(map(repr, known))} or None.")
    if name not in approximator.corrections:
        raise ValueError(
            f"correction={name!r} corrects {known[name].corrects}; this is {approximator.name} of a "
            f"{classifier.kind} likelihood."
        )
    return approximator.corrections[name]


def predict(
    fit: Fit,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent],
    x: ArrayLike,
    *,
    probabilities: str | None = None,
    correction: str | None = None,
    tolerance: float = 5e-5,
    covariances: bool = True,
    dim: str = "new_point",
) -> xr.Dataset:
    """Latent means, covariances and class probabilities at new inputs, averaged over the nodes of a fit.

    See `GPApproximation.predict`.
    """
    prior = fit.cross_covariance(gp)
    classifier = fit.classifier
    probabilities = classifier.likelihood_model.check_way(probabilities, "probabilities")
    predictions = (
        predict_at(
            classifier,
            fit.approximator,
            prior,
            solution,
            point,
            x,
            probabilities=probabilities,
            correction=correction,
            tolerance=tolerance,
            covariances=covariances,
        )
        for point, solution in fit.hyper_posterior.solutions()
    )
    attrs = {"probabilities": probabilities} | ({"correction": correction} if correction else {})
    averaged = average_predictions(fit.hyper_posterior.weights, predictions)
    return labelled(classifier, x, dim, averaged).assign_attrs(attrs)


def predict_at(
    classifier: GPClassifier,
    approximator: Approximator,
    prior: CrossCovariance,
    solution: Solution,
    point: PointType,
    x: ArrayLike,
    *,
    probabilities: str | None = None,
    correction: str | None = None,
    tolerance: float = 5e-5,
    covariances: bool = True,
) -> Prediction:
    """The same at given hyperparameters, in chunks of bounded memory."""
    inputs = new_inputs(x, prior.columns)
    likelihood = solution.likelihood
    corrected = None if correction is None else _correction(correction, approximator, classifier)
    posterior = solution.posterior
    m, c = len(inputs), classifier.n_functions
    chunk = max(1, _ENTRIES // (c * max(classifier.n_points, c)))
    found = Prediction(
        np.empty((m, classifier.n_classes)),
        np.empty(m),
        np.empty((m, c)),
        np.empty((m, c, c)) if covariances else None,
        None if classifier.n_classes else np.empty((2, m)),
    )
    for start in range(0, m, chunk):
        rows = slice(start, start + chunk)
        cross, variance, prior_mean = prior(point, inputs[rows])
        mean, cov = posterior.predict(cross, variance, prior_mean)
        found.mean[rows] = mean.T
        if found.cov is not None:
            found.cov[rows] = cov
        if found.outcome is not None:
            found.outcome[:, rows] = likelihood.elsewhere(mean.shape[1]).outcome_moments(mean.T, cov)
            found.error[rows] = 0.0
        elif corrected is None:
            found.p[rows], found.error[rows] = likelihood.elsewhere(mean.shape[1]).probabilities(
                mean.T, cov, how=probabilities, tolerance=tolerance
            )
        else:
            found.p[rows] = corrected.probabilities(solution, cross, variance, prior_mean)
            found.error[rows] = np.nan
    return found


def labelled(classifier: GPClassifier, x: ArrayLike, dim: str, prediction: Prediction) -> xr.Dataset:
    """What is predicted at new inputs `x`, with names of axes and coordinates."""
    coords: dict[str, Any] = {}
    if isinstance(x, xr.DataArray):
        dim = str(x.dims[0])
        if dim in x.coords:
            coords[dim] = x.coords[dim].values
    arrays, of_functions_coords = of_functions(classifier, dim, prediction.mean, prediction.cov)
    coords = of_functions_coords | coords
    if prediction.outcome is None:
        class_dim = classifier.class_dim or "class"
        coords[class_dim] = classifier.class_names
        arrays = {"p": ((dim, class_dim), prediction.p), **arrays, "error": ((dim,), prediction.error)}
    else:
        first, second = prediction.outcome
        name = classifier.likelihood.name
        arrays |= {f"{name}_mean": ((dim,), first), f"{name}_variance": ((dim,), second - first**2)}
    return xr.Dataset(arrays, coords=coords)
