"""Relevances of inputs for the tables of Girolami and Rogers: by mean field as there, or at a maximum of evidence."""

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from benchmarks.active_sets.toy import model_of
from benchmarks.paper.data import Split
from benchmarks.paper.predictive import classifier
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.mean_field_steps import mean_field_steps
from pymc_gpep.hyper.weights import importance_estimate
from pymc_gpep.structure import read_classifier

Array = np.ndarray


class Weights(NamedTuple):
    """How draws of the relevances are weighted, and when a run ends."""

    options: dict[str, Any]
    patience: int
    """It ends where so many steps have not raised the bound by a hundredth."""


WEIGHTS = {
    "utilities": Weights({"utilities": True, "inner": None}, 5),
    "as in the paper": Weights({"trace": False, "inner": 1}, 1),
}
TOLERANCE = 0.01
MAXIMA = {"maximum, VB": "vb", "maximum, nested EP": "nested_ep"}
RELEVANCES = (*WEIGHTS, *MAXIMA)
"""Ways to them."""


class Learned(NamedTuple):
    """Where a run of the mean field ended, or a search for the maximum."""

    phi: Array
    """Relevances (d,), the same ones where there is a single one: of all steps those with the highest bound."""
    bound: float
    """Of the evidence, at these."""
    steps: int
    effective: float
    """What the draws of a step are worth, the median over steps."""
    magnitude: float = 1.0
    """Prior variance of the functions."""


def learn(split: Split, how: str, *, ard: bool, draws: int, steps: int, seed: int) -> Learned:
    """Relevances in one of the ways: by mean field from φ = 1, or, with a magnitude, at a maximum of evidence.

    Without `ard` all inputs have the same one.
    """
    if how in MAXIMA:
        return _at_maximum(split, MAXIMA[how], ard)
    options, patience = WEIGHTS[how]
    with threadpool_limits(1):
        log_posterior = LogPosterior(read_classifier(model_of(split.X, split.y, ard)), gpep.VariationalBayes())
        theta = log_posterior.initial_point({"phi": np.ones(split.X.shape[1]) if ard else 1.0})
        bounds: list[float] = []
        effective: list[float] = []
        best = theta
        all_steps = mean_field_steps(log_posterior, theta, draws=draws, random_seed=seed, **options)
        for step in islice(all_steps, steps):
            bounds.append(step.latent.bound)
            if bounds[-1] == max(bounds):
                best = theta
            effective.append(importance_estimate(step.log_weights)[1])
            theta = step.theta
            if len(bounds) > patience:
                rise = max(bounds[-patience:]) - max(bounds[:-patience])
                if rise <= TOLERANCE * abs(bounds[-1]):
                    break
        phi = np.broadcast_to(log_posterior.natural(best[None])["phi"][0], split.X.shape[1])
    return Learned(np.array(phi), max(bounds), len(bounds), float(np.median(effective)))


def _at_maximum(split: Split, method: str, ard: bool) -> Learned:
    """Relevances and magnitude at the maximum of a method's evidence and the priors of `benchmarks.paper`."""
    model, _ = classifier(split, ard)
    with threadpool_limits(1):
        fit = pm.fit(method=method, model=model, progressbar=False)
    lengths = np.broadcast_to(fit.hyperparameters["length_scale"].values, split.X.shape[1])
    return Learned(
        0.5 / lengths**2, fit.log_evidence, len(fit.hist), np.nan, float(fit.hyperparameters["magnitude"].item())
    )
