"""Where inducing inputs begin: by k-means++ among the rows of the data, or where the user has them."""

from numbers import Integral
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.rows.chunks import sample_inputs
from pymc_gpep.rows.rows import Rows

__all__ = ["initial_inducing"]

_DEFAULT = 50  # where their number is not given
_CANDIDATES = 20_000  # rows that are drawn from, of more of them


def initial_inducing(given: Any, rows: Rows, functions: int, shared: bool, random_seed: int) -> Array:
    """Inducing inputs (1 or c, M, d).

    Parameters
    ----------
    given : int or array (M, d) or (c, M, d), or None
        How many there are to be for each function, at rows of the data; or the inputs. If None 50, or as many as rows.
    rows : Rows
        The data.
    functions : int
        c.
    shared : bool
        Whether all functions have them in common.
    random_seed : int

    Raises
    ------
    TypeError
        If `given` is something else.
    ValueError
        If there are more than rows, or fewer than one, or if an array has a wrong shape or values that are not finite.
    """
    sets = 1 if shared else functions
    n, d = rows.n_rows, rows.n_inputs
    if given is None:
        given = min(_DEFAULT, n)
    if not isinstance(given, bool) and isinstance(given, Integral):
        count = int(given)
        if not 1 <= count <= n:
            instead = (
                ' A fit without inducing inputs, method="nested_ep", is exact in what these approximate, and for so '
                "few rows not slower."
            )
            raise ValueError(
                f"inducing must be from 1 to {n}, the number of rows, but is {count}.{instead if count > n else ''}"
            )
        rng = np.random.default_rng(random_seed)
        return np.stack([_spread(rows, count, rng) for _ in range(sets)])
    try:
        z = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"inducing must be a whole number or an array of inputs, but is a {type(given).__name__}."
        ) from None
    wanted = f"(M, {d})" + ("" if shared or functions == 1 else f" or ({functions}, M, {d})")
    found = f"is {given!r}" if z.ndim == 0 else f"has shape {z.shape}"
    if z.ndim not in (2, 3) or z.shape[-1] != d or 0 in z.shape or (z.ndim == 3 and len(z) not in (1, sets)):
        sets_too_many = z.ndim == 3 and sets == 1 and len(z) > 1
        advice = " All functions have one set: give gpep.class_centres shared=True." if sets_too_many else ""
        raise ValueError(f"inducing must be a whole number or an array {wanted}, but {found}.{advice}")
    if not np.isfinite(z).all():
        raise ValueError(f"inducing must be finite, but has {np.count_nonzero(~np.isfinite(z))} values that are not.")
    return np.broadcast_to(z, (sets, *z.shape[-2:])).copy()


def _spread(data: Rows, count: int, rng: np.random.Generator) -> Array:
    """Rows, each drawn with a probability that goes with its squared distance from those before (k-means++).

    Arthur and Vassilvitskii (2007). Columns count in units of their standard deviation. Rows that are the same are
    drawn twice only where there are not enough others.
    """
    rows = sample_inputs(data, max(_CANDIDATES, count), rng)
    deviations = rows.std(axis=0)
    scaled = rows / np.where(deviations > 0.0, deviations, 1.0)
    chosen = [int(rng.integers(len(rows)))]
    distance = np.full(len(rows), np.inf)
    while len(chosen) < count:
        distance = np.minimum(distance, ((scaled - scaled[chosen[-1]]) ** 2).sum(axis=1))
        total = distance.sum()
        weights = distance / total if total > 0.0 else None
        chosen.append(int(rng.choice(len(rows), p=weights)))
    return rows[chosen].copy()
