"""Tests of the uniformity of ranks, by their histogram and by their empirical distribution function.

In simulation-based calibration (Talts et al. 2018) a parameter is drawn from its prior and data given it. Its rank
among L independent draws from the posterior is then uniform on 0, ..., L.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chisquare

__all__ = ["ecdf_p_value", "histogram_p_value"]


def histogram_p_value(ranks: NDArray[np.int64], draws: int, bins: int) -> float:
    """Pearson's chi-squared test with bins of equal size.

    Parameters
    ----------
    ranks : ndarray of int, shape (s,)
        Each in 0..draws.
    draws : int
        L; L + 1 is a multiple of `bins`.
    bins : int

    Returns
    -------
    float
    """
    width, rest = divmod(draws + 1, bins)
    if rest:
        raise ValueError(f"{draws + 1} possible ranks do not make {bins} equal bins.")
    return float(chisquare(np.bincount(ranks // width, minlength=bins)).pvalue)


def ecdf_p_value(ranks: NDArray[np.int64], draws: int) -> float:
    """Test by simultaneous bands about the distribution function (Säilynoja, Bürkner and Vehtari 2022).

    Bands of pointwise level γ belong to binomial counts at all possible ranks. The statistic is the widest γ whose
    bands contain the data. The p value is the probability that uniform ranks leave these bands somewhere. The counts
    are a Markov chain (section 3.2 there), so that the probability follows by summation.

    Parameters
    ----------
    ranks : ndarray of int, shape (s,)
        Each in 0..draws.
    draws : int
        L.

    Returns
    -------
    float
    """
    s = len(ranks)
    grid = np.arange(1, draws + 1) / (draws + 1)
    counts = np.cumsum(np.bincount(ranks, minlength=draws + 1))[:-1]
    gamma = 2.0 * np.minimum(binom.cdf(counts, s, grid), binom.sf(counts - 1, s, grid)).min()
    possible = np.arange(s + 1)
    inside = np.zeros(s + 1)
    inside[0] = 1.0  # probability of each count, jointly with being within the bands so far
    before = 0.0
    for z in grid:
        # each remaining rank is below z with this probability
        step = binom.pmf(possible[None, :] - possible[:, None], s - possible[:, None], (z - before) / (1.0 - before))
        inside = inside @ step
        tails = 2.0 * np.minimum(binom.cdf(possible, s, z), binom.sf(possible - 1, s, z))
        inside[tails <= gamma] = 0.0
        before = z
    return float(np.clip(1.0 - inside.sum(), 0.0, 1.0))
