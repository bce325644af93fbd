"""New rows of which a fit knows nothing: no length scale reaches from them to what was fitted."""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.user_warnings import warn

__all__ = ["unreached", "warn_of_far_rows"]

_NOTHING = 1e-3  # of a correlation, below which a posterior is the prior to three digits
_MOST = 0.5
_TWO = 2  # rows at least that can be near or far from each other
_ALL = "all rows"
_SEVERAL = 5  # from so many rows on it is no chance that all are equally far


def unreached(cross: Array, variance: Array, own: Array) -> Array:
    """Which of m points are correlated with no fitted point more than with any other, as with none: 1 or 0, (m,).

    A level that all points share, as of `pm.gp.cov.Constant`, says nothing of a point, and so is left out.

    Parameters
    ----------
    cross : array (q, m, n)
        Prior covariance with the n points that were fitted, or with inducing values; NaN for what is to be left out.
    variance : array (q, m)
        Prior variance.
    own : array (q, n)
        That of the fitted points.
    """
    q, m, n = cross.shape
    if not m or not n:
        return np.zeros(m)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = cross / np.sqrt(variance[:, :, None] * own[:, None, :])
    # What does not vary is neither near nor far: NaN, which compares as False.
    highest = np.fmax.reduce(correlation, axis=2)
    lowest = np.fmin.reduce(correlation, axis=2)
    level = np.where(np.abs(lowest) < 1.0 - _NOTHING, lowest, 0.0) if n >= _SEVERAL else np.zeros((q, m))
    spread = np.maximum(highest - level, level - lowest)
    far: Array = (spread < _NOTHING * (1.0 - np.abs(level))).all(axis=0).astype(np.float64)
    return far


def warn_of_far_rows(far: Array | None, among_fitted: Callable[[], Array], by: str) -> None:
    """Warn of new rows that are `far`, (m,), as of `unreached`, unless most of the fitted rows are.

    A fit goes by all rows, or by what `by` calls it, such as inducing inputs; rows that were fitted may then be near.
    """
    if far is None or not (count := int(np.count_nonzero(far > _MOST))):
        return
    among = among_fitted()
    if len(among) < _TWO or among.mean() > _MOST:
        return
    of, nothing, more = "rows that were fitted", "there are no labels near by to predict them from", ""
    if by != _ALL:
        of, nothing = by, "the fit has nothing to predict them from"
        more = f" Where rows that were fitted are near them, the fit needs more {by}."
    warn(
        f"{count} of {len(far)} rows of Xnew {'is' if count == 1 else 'are'} further from all {of} than the length "
        f"scales of the covariance reach, and {nothing}. Xnew must be scaled as the inputs of the model are.{more}"
    )
