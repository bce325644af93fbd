"""Scores of predictions at held-out points, and their Bayesian bootstrap."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.array_types import Array
from pymc_gpep.fits.prediction import held_out, predict_at
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.latent_functions import DenseFunctions
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.classifier import at_new_rows

_NUMBERS = 4_000_000  # At most this number of weights is in memory: 32 MB.


def bayesian_bootstrap(values: ArrayLike, *, draws: int = 4000, random_seed: Any = None) -> NDArray[np.float64]:
    """Draw the mean of a distribution from its posterior given `values`, by the Bayesian bootstrap.

    A draw is the average of the values with weights from a Dirichlet(1, ..., 1) distribution. Vehtari and Lampinen
    (2002), "Bayesian model assessment and comparison using cross-validation predictive densities", *Neural
    Computation* 14, compare models by such draws.

    Parameters
    ----------
    values : array (n, ...)
        Values of n points. Several columns have the same weights, so their draws can be compared.
    draws : int
    random_seed : int, Generator or None

    Returns
    -------
    array (draws, ...)

    Raises
    ------
    ValueError
        If `values` is empty, or the number of draws is below 1.

    Examples
    --------
    >>> log_scores = np.log(ep.predict(gp, Xnew)["p"].values[np.arange(len(ynew)), ynew])
    >>> np.quantile(gpep.diagnostics.bayesian_bootstrap(log_scores), [0.05, 0.95])
    """
    observed = np.asarray(values, dtype=np.float64)
    if observed.ndim == 0 or not len(observed):
        raise ValueError(f"values must have an entry for each of at least 1 point, not shape {observed.shape}.")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, but is {draws}.")
    rng = np.random.default_rng(random_seed)
    chunk = max(1, _NUMBERS // len(observed))
    parts = []
    for start in range(0, draws, chunk):
        weights = rng.standard_exponential((min(chunk, draws - start), len(observed)))
        parts.append(np.tensordot(weights / weights.sum(axis=1, keepdims=True), observed, axes=1))
    return np.concatenate(parts)


def information(density: ArrayLike, labels: NDArray[np.int64], trained: NDArray[np.int64], n_classes: int) -> float:
    """Return the gain of predictions over the class frequencies in training, in bits per label.

    The gain is the mean of log₂ p(y) − log₂ n_y/n over held-out labels y. Here n_y/n is the frequency of class y in
    training. The gain is 0 if p(y) = n_y/n. If held-out labels have the same frequencies, it is at most the entropy of
    the labels. Nickisch and Rasmussen (2008), section 12.2, define this gain for two classes.

    Parameters
    ----------
    density : array (m,)
        Natural logarithm of the probability of each held-out label.
    labels : array (m,)
        Held-out labels.
    trained : array (n,)
        Labels of training.
    n_classes : int

    Returns
    -------
    float
        Infinite if a held-out label has a class without training labels.
    """
    share = np.bincount(trained, minlength=n_classes) / trained.size
    with np.errstate(divide="ignore"):
        baseline = np.log(share[labels])
    return float((np.asarray(density).mean() - baseline.mean()) / np.log(2.0))


def scores_at(
    classifier: GPClassifier,
    solver: Approximator,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None,
    Xnew: ArrayLike | None,
    ynew: ArrayLike | None,
    data: Mapping[str, ArrayLike] | None = None,
) -> Callable[[Solution, PointType], dict[str, float]] | None:
    """Return a function of a solution and its hyperparameters that computes scores; None without held-out rows.

    The function returns scores by name: `mlpd`, the scores of the likelihood, and for classes `information`.

    Raises
    ------
    ValueError
        If `Xnew` (or `data`) or `ynew` is missing.
    """
    given = [gp is not None, Xnew is not None, ynew is not None]
    if not any(given) and data is None:
        return None
    if ynew is None or (Xnew is None and not data):
        raise ValueError(
            "Held-out scores need the new inputs Xnew, or data={...} if the latent function is a sum, and the new "
            "responses ynew. They also need gp if the graph of the model does not determine the prior at new inputs."
        )
    prior = classifier.prior.at_new_rows(as_gps(gp), {})
    x, new_likelihood = at_new_rows(classifier, prior.rows(Xnew, data or {}), {}, data, prior.takes)
    observed = held_out(classifier, ynew, len(x), "ynew")
    names = ", ".join(repr(variable.name) for variable in classifier.prior.integrated)

    (labels,) = evaluate([classifier.labels])

    def score(solution: Solution, point: PointType) -> dict[str, float]:
        likelihood = new_likelihood(point, observed)
        functions = DenseFunctions(solver, solution, point, lambda _: prior, names)
        found = predict_at(functions, x, likelihood=likelihood, observed=observed)
        density = cast(Array, found.log_density)
        scores = {"mlpd": density} | likelihood.scores(observed, found.p, found.moments)
        told = (
            {"information": information(density, observed, labels.astype(np.int64), classifier.n_classes)}
            if classifier.observes_classes
            else {}
        )
        return {name: float(each.mean()) for name, each in scores.items()} | told

    return score
