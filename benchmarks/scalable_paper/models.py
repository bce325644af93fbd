"""The model of the paper: a Gaussian covariance with relevances, an amplitude and noise for each class.

Priors of the logarithms of hyperparameters are flat, as in the paper, or normal around the initial values with standard
deviation `spread`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.spatial.distance import pdist

import pymc_gpep as gpep
from benchmarks.scalable_paper.scoring import EPSILON

Array = np.ndarray

AMPLITUDE, NOISE = 1.0, 1e-2
"""Initial variances. The paper does not print them."""
WEAK = 3.0  # one standard deviation is a factor of 20


def step_model(X: Array, y: Array, noise: float = NOISE, spread: float | None = None) -> pm.Model:
    """Labels are the class of the largest latent value. Noise is part of the covariance (equations 1 and 13)."""
    with pm.Model() as model:
        f = _latent(X, int(y.max()) + 1, noise, spread)
        gpep.RobustMax("y", f.T, epsilon=EPSILON, observed=y)
    return model


def probit_model(X: Array, y: Array, spread: float | None = None) -> pm.Model:
    """As `step_model`, with noise of variance 1 for each class, since the step likelihood has no scale."""
    with pm.Model() as model:
        f = _latent(X, int(y.max()) + 1, None, spread)
        gpep.MultinomialProbit("y", f.T, observed=y)
    return model


def _latent(X: Array, classes: int, noise: float | None, spread: float | None) -> Any:
    """Latent values (c, n), with a process for each class."""
    amplitude = AMPLITUDE if noise is not None else 10.0 * AMPLITUDE
    log_ls = _logarithms("log_ls", np.full((classes, X.shape[1]), np.log(typical_distance(X))), spread)
    log_amplitude = _logarithms("log_amplitude", np.full(classes, np.log(amplitude)), spread)
    ls, variance = pt.exp(log_ls), pt.exp(log_amplitude)
    if noise is not None:
        log_noise = _logarithms("log_noise", np.full(classes, np.log(noise)), spread)
    rows = []
    for k in range(classes):
        cov = variance[k] * pm.gp.cov.ExpQuad(X.shape[1], ls=ls[k])
        if noise is not None:
            cov += pm.gp.cov.WhiteNoise(pt.exp(0.5 * log_noise[k]))
        rows.append(pm.gp.Latent(cov_func=cov).prior(f"f_{k}", X=X))
    return pt.stack(rows)


def _logarithms(name: str, first: Array, spread: float | None) -> Any:
    if spread is None:
        return pm.Flat(name, shape=first.shape, initval=first)
    return pm.Normal(name, first, spread, initval=first)


def typical_distance(X: Array) -> float:
    """Root of the median squared distance of (up to a thousand) inputs."""
    return float(np.sqrt(np.median(pdist(X[:1000], "sqeuclidean"))))


def inducing_rows(X: Array, classes: int, size: int, seed: int) -> Array:
    """Initial inducing inputs (c, M, d), random rows for each class."""
    rng = np.random.default_rng(seed)
    return np.stack([X[rng.choice(len(X), size, replace=False)] for _ in range(classes)])


def sizes(points: int, percents: Sequence[int]) -> dict[int, int]:
    """Number of inducing inputs from a percentage of the points."""
    return {percent: max(1, round(points * percent / 100)) for percent in percents}
