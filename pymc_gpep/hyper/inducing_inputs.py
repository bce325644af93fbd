"""Where inducing inputs begin: among the rows of the data, at centres of classes, or where the user has them.

Rows that are taken are far from each other. Products of matrices give the distances, so that no array has two axes over
rows.
"""

import warnings
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from pymc_gpep.array_types import Array
from pymc_gpep.rows.chunks import chunks, inputs_at, sample_inputs, sample_numbers
from pymc_gpep.rows.rows import Rows
from pymc_gpep.tables.table import of_size_one

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
                " A fit without inducing inputs, by method='nested_ep' or 'ep', is exact in what these approximate, "
                "and for so few rows not slower."
            )
            raise ValueError(
                f"inducing must be from 1 to {n}, the number of rows, but is {count}.{instead if count > n else ''}"
            )
        rng = np.random.default_rng(random_seed)
        if centre_scales is not None and sets == 1:
            return centres_of_classes(rows, count, centre_scales, rng)[None]
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


_CANDIDATES = 4_000  # rows that are drawn from, of more of them
_OF_A_CLASS = 2_000
_ROUNDS = 5  # of k-means
_DISTANCE_ROUNDING = 1e-13  # of squared norms: what rounding makes of a distance of 0


def spread_rows(data: Rows, count: int, rng: np.random.Generator) -> Array:
    """Rows (count, d), each drawn with a probability that goes with its squared distance from those before (k-means++).

    Arthur and Vassilvitskii (2007). Columns count in units of their standard deviation. Rows that are the same are
    drawn twice only where there are not enough others.
    """
    rows = sample_inputs(data, max(_CANDIDATES, count), rng)
    scaled, _ = of_size_one(rows, axis=0)
    deviations = scaled.std(axis=0)
    return rows[_spread(_centred(scaled / np.where(deviations > 0.0, deviations, 1.0)), count, rng)].copy()


def centres_of_classes(data: Rows, count: int, scales: Array, rng: np.random.Generator) -> Array:
    """Centres (count, d) that k-means finds in each class; as many of each, where there are so many rows.

    Parameters
    ----------
    data : Rows
        With labels.
    count : int
        At most the number of rows.
    scales : array (d,)
        Factors of columns in distances.
    rng : Generator
    """
    labels = np.concatenate([data.labels(chunk) for chunk in chunks(data)])
    _, places = np.unique(labels, return_inverse=True)
    shares = in_turn(np.bincount(places), count)
    found = []
    for kind, share in enumerate(shares):
        if not share:
            continue
        own = np.flatnonzero(places == kind)
        drawn = own[np.sort(sample_numbers(len(own), max(_OF_A_CLASS, int(share)), rng))]
        rows = inputs_at(data, drawn)
        found.append(k_means(rows, rows * scales, int(share), rng))
    return np.concatenate(found)


def in_turn(available: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How many each of several gets of `size`, if they take one in turn until they have what is available to them."""
    taken = np.zeros_like(available)
    while (left := size - int(taken.sum())) > 0:
        takers = np.flatnonzero(taken < available)[:left]
        taken[takers] += 1
    return taken


def _centred(rows: Array) -> Array:
    """Rows about their mean, divided by one number, whose squared distances are in range."""
    scaled, _ = of_size_one(rows)
    return scaled - scaled.mean(axis=0)


def _spread(scaled: Array, count: int, rng: np.random.Generator) -> list[int]:
    norms = np.einsum("ij,ij->i", scaled, scaled)
    chosen = [int(rng.integers(len(scaled)))]
    distance = np.full(len(scaled), np.inf)
    while len(chosen) < count:
        last = chosen[-1]
        apart = norms + norms[last] - 2.0 * (scaled @ scaled[last])
        apart[apart <= _DISTANCE_ROUNDING * (norms + norms[last])] = 0.0
        distance = np.minimum(distance, apart)
        total = distance.sum()
        weights = distance / total if total > 0.0 else None
        chosen.append(int(rng.choice(len(scaled), p=weights)))
    return chosen


def k_means(rows: Array, scaled: Array, count: int, rng: np.random.Generator) -> Array:
    """Centres (count, d) of rows (n, d), whose distances are those of `scaled`: from rows that are far from each other.

    SciPy's rounds of Lloyd (1982). A centre that is nearest to no row stays.
    """
    scaled = _centred(scaled)
    chosen = _spread(scaled, count, rng)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty", UserWarning)
        nearest = kmeans2(scaled, scaled[chosen], iter=_ROUNDS, minit="matrix")[1]
    members = (nearest == place for place in range(count))
    return np.stack(
        [rows[own].mean(axis=0) if own.any() else rows[at] for own, at in zip(members, chosen, strict=True)]
    )
