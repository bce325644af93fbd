"""Importance weights with a smoothed tail, and what its shape says (Vehtari, Simpson, Gelman, Yao and Gabry 2024)."""

from typing import Any

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array

__all__ = ["ENOUGH_ALIKE", "USABLE", "smooth", "stand_for_posterior"]

USABLE = 0.7
"""Pareto k below which smoothing makes up for a variance that is not finite."""

ENOUGH_ALIKE = 0.9
"""Share of the draws that those are worth whose weights hardly vary."""

_CONSTANT = 1e-8  # a spread of log weights that is rounding


def smooth(log_weights: Array) -> tuple[Array, float]:
    """Pareto-smooth log weights (draws,), their normaliser kept; and the Pareto k."""
    import arviz  # noqa: F401  # for the accessor `azstats`

    count = len(log_weights)
    tail = int(min(0.2 * count, 3.0 * np.sqrt(count)))  # as in the paper
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
    number a tail of any finite mean (k below 1) carries little.
    """
    return pareto_k < limit or (pareto_k < 1.0 and effective_size > ENOUGH_ALIKE * draws)
