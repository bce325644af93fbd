"""Scores of predictions at held-out points: mean log predictive density, accuracy and information."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.fits.prediction import predict_at
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.prior_functions import CrossCovariance

__all__ = ["Scores", "held_out_labels", "information", "scores_at"]


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


def information(density: ArrayLike, labels: NDArray[np.int64], trained: NDArray[np.int64], n_classes: int) -> float:
    """What predictions tell of labels beyond the frequencies of classes, in bits for each label.

    The mean of log₂ p(y) − log₂ n_y/n over held-out labels, n_y/n the part of class y among the labels of training:
    0 for predictions by these frequencies, at most the entropy of the labels where both sets have the same frequencies.
    Nickisch and Rasmussen (2008), section 12.2, for two classes.

    Parameters
    ----------
    density : array (m,)
        Natural logarithms of the probabilities of the held-out labels.
    labels : array (m,)
        The held-out labels.
    trained : array (n,)
        The labels of training.
    n_classes : int

    Returns
    -------
    float
        Infinite if a class among the held-out labels is missing in training.
    """
    share = np.bincount(trained, minlength=n_classes) / trained.size
    with np.errstate(divide="ignore"):
        baseline = np.log(share[labels])
    return float((np.asarray(density).mean() - baseline.mean()) / np.log(2.0))


class Scores(NamedTuple):
    """How well held-out points are predicted at some hyperparameters."""

    mlpd: float
    """Mean log predictive density of their labels."""
    accuracy: float
    """Part of them whose most probable class is the right one."""
    information: float
    """In bits, see the function of this name."""


def scores_at(
    classifier: GPClassifier,
    solver: Approximator,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None,
    Xnew: ArrayLike | None,
    ynew: ArrayLike | None,
) -> Callable[[Solution, PointType], Scores] | None:
    """Return the function of a solution and a point that scores predictions there, None if there is nothing to score.

    Raises
    ------
    ValueError
        If only some of `gp`, `Xnew` and `ynew` are given.
    """
    given = [gp is not None, Xnew is not None, ynew is not None]
    if not any(given):
        return None
    if Xnew is None or ynew is None or gp is None:
        raise ValueError("Predictions of held-out points need all of gp, Xnew and ynew.")
    labels = held_out_labels(ynew, len(np.asarray(Xnew)), classifier.n_classes)
    prior = CrossCovariance(classifier, tuple(gp) if isinstance(gp, Sequence) else (gp,), {})

    def score(solution: Solution, point: PointType) -> Scores:
        p = predict_at(classifier, solver, prior, solution, point, Xnew).p
        with np.errstate(divide="ignore"):
            density = np.log(p[np.arange(len(labels)), labels])
        told = information(density, labels, solution.labels, classifier.n_classes)
        return Scores(float(density.mean()), float((p.argmax(axis=1) == labels).mean()), told)

    return score
