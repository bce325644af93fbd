"""Gibbs sampling of the multinomial probit at fixed hyperparameters, for all points at once, with standard errors.

The sampler is the simple one of the tests, which shares no code with the package. No label depends on the mean of f
over classes: it is drawn from its prior in each sweep, and only differences from it are averaged. Averages are over E[·
| utilities].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import arviz as az
import numpy as np
import xarray as xr
from scipy.special import ndtr

from benchmarks.experiment import Arrays
from tests.reference.gibbs import draw_utilities

Array = np.ndarray

BATCHES = 10
THIN = 10
WATCHED, KEPT = 60, 1000
"""Number of points whose draws are stored for r-hat and effective sizes, and of stored draws of a chain."""


@dataclass
class Sampled:
    """Posterior means, variances and class probabilities (c, points), with standard errors.

    `r_hat` (rank-normalised) is the largest and `effective` the smallest value for the stored draws: a thousand of each
    chain, at some points.
    """

    values: dict[str, Array]
    errors: dict[str, Array]
    chains: int
    sweeps: int
    r_hat: float
    effective: float

    @property
    def trusted(self) -> bool:
        return self.r_hat < 1.01 and self.effective > 400

    def __str__(self) -> str:
        verdict = "" if self.trusted else " **Too short to be trusted.**"
        return (
            f"Gibbs: {self.chains} × {self.sweeps} sweeps; of at most {KEPT} of each chain, r-hat at most "
            f"{self.r_hat:.3f}, effective size at least {self.effective:.0f}.{verdict}"
        )


def probabilities_of_independent(mean: Array, variance: Array, order: int = 24) -> Array:
    """Class probabilities of independent latent values with moments (..., c), by one quadrature for each class."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    sigma = np.sqrt(1.0 + variance)
    p = np.empty(mean.shape)
    for k in range(mean.shape[-1]):
        t = mean[..., k, None] + sigma[..., k, None] * nodes
        product = np.broadcast_to(weights, t.shape).copy()
        for j in range(mean.shape[-1]):
            if j != k:
                product *= ndtr((t - mean[..., j, None]) / sigma[..., j, None])
        p[..., k] = product.sum(axis=-1)
    return p / p.sum(axis=-1, keepdims=True)


def sample(K: Array, n: int, y: Array, c: int, *, chains: int, sweeps: int, burn: int, seed: int) -> Arrays:
    """Chains given the labels of the first `n` points of K, for all points. `combine` summarises them.

    `sweeps` is a multiple of ten times the number of batches. Each batch of a chain has its own averages.
    """
    rng = np.random.default_rng(seed)
    length = sweeps // BATCHES
    if length * BATCHES != sweeps or length % THIN:
        raise ValueError(f"sweeps must be a multiple of {BATCHES * THIN}, but is {sweeps}.")
    gain = np.linalg.solve(K[:n, :n] + np.eye(n), K[:n]).T
    conditional = np.diagonal(K) - np.einsum("ij,ji->i", gain, K[:n])
    values, vectors = np.linalg.eigh(K[:n, :n])
    values = np.maximum(values, 0.0)
    prior_root = vectors * np.sqrt(values)
    conditional_root = vectors * np.sqrt(values / (values + 1.0))
    watched = np.unique(np.linspace(0, len(K) - 1, WATCHED).astype(int))
    f = rng.standard_normal((chains, c, n)) @ prior_root.T
    first, second, p = np.zeros((3, BATCHES, chains, c, len(K)))
    every = max(1, sweeps // KEPT)
    draws = np.empty((chains, -(-sweeps // every), c, watched.size))
    for sweep in range(-burn, sweeps):
        f += rng.standard_normal((chains, 1, n)) @ prior_root.T / np.sqrt(c) - f.mean(axis=1, keepdims=True)
        v = draw_utilities(rng, f, y)
        expected = v @ gain.T
        f = expected[..., :n] + rng.standard_normal(f.shape) @ conditional_root.T
        if sweep < 0:
            continue
        batch = sweep // length
        difference = expected - expected.mean(axis=1, keepdims=True)
        first[batch] += difference / length
        second[batch] += difference**2 / length
        if sweep % every == 0:
            draws[:, sweep // every] = difference[..., watched]
        if sweep % THIN == 0:
            moved = np.moveaxis(expected, 1, -1)
            probability = probabilities_of_independent(moved, np.broadcast_to(conditional[:, None], moved.shape))
            p[batch] += np.moveaxis(probability, -1, 1) * THIN / length
    own = conditional * (1.0 - 1.0 / c) + np.diagonal(K) / c
    return {"first": first, "second": second, "probabilities": p, "own": own, "draws": draws, "sweeps": sweeps}


def combine(groups: Sequence[Arrays]) -> Sampled:
    """Combine chains. For standard errors, each batch of a chain is one observation."""
    first, second, p = (
        np.concatenate([x[key] for x in groups], axis=1) for key in ("first", "second", "probabilities")
    )
    centre = first.mean(axis=(0, 1))
    spread = second - 2.0 * first * centre + centre**2
    batches, chains = first.shape[:2]
    values = {
        "means": centre,
        "variances": spread.mean(axis=(0, 1)) + groups[0]["own"],
        "probabilities": p.mean((0, 1)),
    }
    of_batches = {"means": first, "variances": spread, "probabilities": p}
    errors = {key: x.std(axis=(0, 1), ddof=1) / np.sqrt(batches * chains) for key, x in of_batches.items()}
    kept = xr.DataArray(np.concatenate([x["draws"] for x in groups]), dims=("chain", "draw", "class", "point"))
    return Sampled(
        values, errors, chains, int(groups[0]["sweeps"]), float(az.rhat(kept).max()), float(az.ess(kept).min())
    )
