"""Where inducing inputs begin: among the rows of the data, at centres of classes, or where the user has them."""

from numbers import Integral
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.centres import class_centres, spread_rows
from pymc_gpep.rows.rows import Rows

__all__ = ["initial_inducing"]

_DEFAULT = 50  # where their number is not given


def initial_inducing(
    given: Any,
    rows: Rows,
    functions: int,
    shared: bool,
    random_seed: int,
    *,
    default: int = _DEFAULT,
    centre_scales: Array | None = None,
) -> Array:
    """Inducing inputs (1 or c, M, d).

    Parameters
    ----------
    given : int or array (M, d) or (c, M, d), or None
        How many there are to be for each function; or the inputs. If None `default`, or as many as rows.
    rows : Rows
        The data.
    functions : int
        c.
    shared : bool
        Whether all functions have them in common.
    random_seed : int
    default : int
    centre_scales : array (d,), optional
        Factors of columns in distances. Inputs that all functions have in common are centres of classes if given, and
        else rows of the data (k-means++).

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
        given = min(default, n)
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
        if centre_scales is not None and sets == 1:
            return class_centres(rows, count, centre_scales, rng)[None]
        return np.stack([spread_rows(rows, count, rng) for _ in range(sets)])
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
