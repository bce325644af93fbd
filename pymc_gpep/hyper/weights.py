"""Importance weights: what their mean estimates, and their tail, smoothed.

What the shape of the tail says is from Vehtari, Simpson, Gelman, Yao and Gabry (2024).
"""

from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_gpep.array_types import Array

__all__ = [
    "ALL_ALIKE",
    "ENOUGH_ALIKE",
    "USABLE",
    "Estimate",
    "Weighing",
    "importance_estimate",
    "smooth",
    "stand_for_posterior",
    "worth_keeping",
]

USABLE = 0.7
"""Pareto k below which smoothing makes up for a variance that is not finite."""

ENOUGH_ALIKE = 0.9
"""Share of the draws that those are worth whose weights hardly vary."""

ALL_ALIKE = 0.99
"""The same, where not even the Pareto k says otherwise."""

_NEGLIGIBLE = 1e-4  # weight of the draws, all together, that are not worth keeping
_TAIL = 5  # draws at least that a tail can be fitted to
_CONSTANT = 1e-8  # a spread of log weights that is rounding


class Estimate(NamedTuple):
    """An estimate and its standard error."""

    value: float
    error: float


def importance_estimate(log_weights: Array) -> tuple[Estimate, float]:
    """Log mean of the weights, its standard error by the delta method, and the effective number of draws."""
    top = log_weights.max()
    if not np.isfinite(top):
        return Estimate(-np.inf, np.nan), 0.0
    weights = np.exp(log_weights - top)
    average = weights.mean()
    error = weights.std(ddof=1) / (average * np.sqrt(len(weights)))
    return Estimate(float(top + np.log(average)), float(error)), float(weights.sum() ** 2 / (weights**2).sum())


class Weighing(NamedTuple):
    """What the weights of draws say: what their mean estimates, and how far they can be relied on."""

    estimate: Estimate
    """Log of the mean of the weights."""
    effective_size: float
    """(Σw)² / Σw²: how many draws of equal weight these are worth."""
    pareto_k: float
    """Shape of the tail of the weights; −inf if they do not vary."""
    draws: int

    @classmethod
    def of(cls, log_weights: Array, pareto_k: float) -> "Weighing":
        """Of log weights (draws,), smoothed."""
        return cls(*importance_estimate(log_weights), pareto_k, len(log_weights))

    @property
    def usable(self) -> bool:
        """Whether weighted draws can be trusted, see `stand_for_posterior`."""
        return stand_for_posterior(self.pareto_k, self.effective_size, self.draws)

    def about(self, estimated: str) -> str:
        """In words; `estimated` is what the mean of the weights is."""
        return (
            f"{self.draws} draws are worth {self.effective_size:.0f} (Pareto k {self.pareto_k:.2f}), and the standard "
            f"error of {estimated} is {self.estimate.error:.3f}"
        )


def smooth(log_weights: Array) -> tuple[Array, float]:
    """Pareto-smooth log weights (draws,), their normaliser kept; and the Pareto k."""
    import arviz  # noqa: F401  # for the accessor `azstats`

    count = len(log_weights)
    tail = int(min(0.2 * count, 3.0 * np.sqrt(count)))  # as in the paper
    if tail < _TAIL:
        return log_weights, np.inf
    if np.ptp(np.sort(log_weights)[-tail:]) < _CONSTANT:
        return log_weights, -np.inf
    ratios: Any = xr.DataArray(-log_weights, dims=["draw"])
    smoothed, pareto_k = (result.to_numpy() for result in ratios.azstats.psislw(dim="draw"))
    # What has been normalised is known from the smallest, which is not in the tail.
    lowest = np.argmin(log_weights)
    smoothed = smoothed + (log_weights[lowest] - smoothed[lowest])
    # Where most of the tail underflows beside the largest weight, nothing can be fitted to it.
    return smoothed, np.inf if np.isnan(pareto_k) else float(pareto_k)


def stand_for_posterior(pareto_k: float, effective_size: float, draws: int, limit: float = USABLE) -> bool:
    """Whether weighted draws can be trusted: k below the limit, or weights all but alike.

    The Pareto k does not know the scale of the tail. Where weights are so alike that draws are worth 0.9 of their
    number a tail of any finite mean (k below 1) carries little. Those of a proper density have a finite mean; an
    estimate of 1 and more is of a tail that has hardly begun, and says nothing where draws are worth 0.99.
    """
    worth = effective_size / draws
    return pareto_k < limit or worth > ALL_ALIKE or (pareto_k < 1.0 and worth > ENOUGH_ALIKE)


def worth_keeping(weights: Array) -> NDArray[np.bool_]:
    """Which draws are worth keeping by their weights (draws,): all but the lightest, a ten thousandth together."""
    light_first = np.argsort(weights, kind="stable")
    kept = np.ones(len(weights), dtype=bool)
    kept[light_first[np.cumsum(weights[light_first]) < _NEGLIGIBLE * weights.sum()]] = False
    return kept
