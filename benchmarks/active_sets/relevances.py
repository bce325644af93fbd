"""Relevances of inputs for the tables of Girolami and Rogers: by their mean field, or at a maximum of evidence."""

from itertools import islice
from typing import NamedTuple

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

from benchmarks.active_sets.toy import model_of
from benchmarks.paper.data import Split
from benchmarks.paper.predictive import classifier
from pymc_gpep.approximations import VariationalBayes
from pymc_gpep.hyper.weights import importance_estimate
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.mean_field import mean_field_steps

Array = np.ndarray


WEIGHTS = ("authors", "utilities")
"""Weights of draws of the relevances."""
PATIENCE, TOLERANCE = 5, 0.01
"""With weights of the utilities, a run ends if this many steps have not raised the bound by this relative amount."""
MAXIMA = {"maximum, VB": "vb", "maximum, nested EP": "nested_ep"}
TOO_MUCH = 0.5 * np.log(2 * np.pi)
"""The bound as the paper prints it is too low by this number times n (c − 1)."""
RELEVANCES = (*WEIGHTS, *MAXIMA)
"""Methods to compute relevances."""


class Learned(NamedTuple):
    """Result of a run of the mean field, or of a search for the maximum."""

    phi: Array
    """Relevances (d,), equal if there is a single relevance.

    With the authors' weights they are the result of the last step, as in the authors' program. With other weights they
    are the start of the step with the highest bound.
    """
    bound: float
    """Bound of the evidence at the start of this step."""
    steps: int
    effective: float
    """Effective number of draws of a step, the median over steps."""
    magnitude: float = 1.0
    """Prior variance of the functions."""


def learn(
    split: Split, how: str, *, ard: bool, draws: int, steps: int, seed: int, rise: float | None = None
) -> Learned:  # fmt: skip
    """Relevances by one method: by mean field from φ = 1, or, with a magnitude, at a maximum of evidence.

    Without `ard` all inputs share one relevance. A run with the authors' weights and `rise` starts with random
    utilities, as the authors' runs, and ends with the first step that raises the printed bound by less than this
    fraction. Without `rise` it makes all steps, and its start does not matter.
    """
    if how in MAXIMA:
        return _at_maximum(split, MAXIMA[how], ard)
    with threadpool_limits(1):
        log_posterior = DenseLogPosterior(read_classifier(model_of(split.X, split.y, ard)), VariationalBayes())
        theta = log_posterior.space.initial_point({"phi": np.ones(split.X.shape[1]) if ard else 1.0})
        bounds: list[float] = []
        effective: list[float] = []
        best = theta
        begin = np.random.default_rng(seed).normal(size=(split.classes, len(split.y)))
        utilities = begin if how == "authors" and rise is not None else None
        all_steps = mean_field_steps(
            log_posterior, theta, draws=draws, weights=how, utilities=utilities, random_seed=seed
        )
        for step in islice(all_steps, steps):
            bounds.append(step.latent.bound)
            if bounds[-1] == max(bounds):
                best, bound = theta, bounds[-1]
            effective.append(importance_estimate(step.log_weights[0])[1])
            theta = step.theta
            if ended(bounds, split, how, rise):
                break
        if how == "authors":
            best, bound = theta, bounds[-1]
        phi = np.broadcast_to(log_posterior.space.natural(best[None])["phi"][0], split.X.shape[1])
    return Learned(np.array(phi), bound, len(bounds), float(np.median(effective)))


def ended(bounds: list[float], split: Split, how: str, rise: float | None) -> bool:
    """Whether the last step was the last one of a run."""
    if how == "authors":
        printed = abs(bounds[-1] - TOO_MUCH * len(split.y) * (split.classes - 1))
        return rise is not None and len(bounds) > 1 and bool(bounds[-1] - bounds[-2] < rise * printed)
    before = bounds[:-PATIENCE]
    return bool(before) and max(bounds[-PATIENCE:]) - max(before) <= TOLERANCE * abs(bounds[-1])


def _at_maximum(split: Split, method: str, ard: bool) -> Learned:
    """Relevances and magnitude at the maximum of a method's evidence with the priors of `benchmarks.paper`."""
    model, _ = classifier(split, ard)
    with threadpool_limits(1):
        fit = pm.fit(method=method, model=model, hyper="map", progressbar=False)
    lengths = np.broadcast_to(fit.hyperparameters["length_scale"].values, split.X.shape[1])
    return Learned(
        0.5 / lengths**2, fit.log_evidence, len(fit.hist), np.nan, float(fit.hyperparameters["magnitude"].item())
    )
