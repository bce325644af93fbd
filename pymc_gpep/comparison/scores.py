"""Scores of predictions at held-out points: mean log predictive density and accuracy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.fits.prediction import predict_at
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.prior_functions import CrossCovariance

__all__ = ["held_out_labels", "scores_at"]


def held_out_labels(ynew: ArrayLike, m: int, n_classes: int) -> NDArray[np.int64]:
    """Labels (m,) of held-out points.

    Raises
    ------
    ValueError
        If they are not one of 0...c-1 for each point.
    """
    labels = np.asarray(ynew)
    if labels.shape != (m,):
        raise ValueError(f"ynew must be one label for each of the {m} points of Xnew, but has shape {labels.shape}.")
    if not np.isin(labels, np.arange(n_classes)).all():
        raise ValueError(f"ynew must be classes 0...{n_classes - 1}, but has others: {np.unique(labels).tolist()}.")
    return labels.astype(np.int64)


def scores_at(
    classifier: GPClassifier,
    solver: Approximator,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None,
    Xnew: ArrayLike | None,
    ynew: ArrayLike | None,
) -> Any:
    """Return the function of a solution and a point that gives mean log predictive density and accuracy, or None."""
    given = [gp is not None, Xnew is not None, ynew is not None]
    if not any(given):
        return None
    if Xnew is None or ynew is None or gp is None:
        raise ValueError("Predictions of held-out points need all of gp, Xnew and ynew.")
    labels = held_out_labels(ynew, len(np.asarray(Xnew)), classifier.n_classes)
    prior = CrossCovariance(classifier, tuple(gp) if isinstance(gp, Sequence) else (gp,), {})

    def score(solution: Solution, point: Any) -> tuple[float, float]:
        predicted = predict_at(
            classifier, solver, prior, solution, point, Xnew,
            probabilities=None, correction=None, tolerance=5e-5, dim="new_point",
        )  # fmt: skip
        p = predicted["p"].values
        with np.errstate(divide="ignore"):
            density = np.log(p[np.arange(len(labels)), labels])
        return float(density.mean()), float((p.argmax(axis=1) == labels).mean())

    return score
