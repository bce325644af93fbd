"""Where inducing inputs begin among rows: far from each other, or at centres of classes.

Products of matrices give the distances, so that no array has two axes over rows.
"""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.rows.chunks import chunks, inputs_at, sample_inputs, sample_numbers
from pymc_gpep.rows.rows import Rows

__all__ = ["class_centres", "in_turn", "spread_rows"]

_CANDIDATES = 4_000  # rows that are drawn from, of more of them
_OF_A_CLASS = 2_000
_ROUNDS = 5  # of k-means
_SAME = 1e-13  # of squared norms: what rounding makes of a distance of 0


def spread_rows(data: Rows, count: int, rng: np.random.Generator) -> Array:
    """Rows (count, d), each drawn with a probability that goes with its squared distance from those before (k-means++).

    Arthur and Vassilvitskii (2007). Columns count in units of their standard deviation. Rows that are the same are
    drawn twice only where there are not enough others.
    """
    rows = sample_inputs(data, max(_CANDIDATES, count), rng)
    deviations = rows.std(axis=0)
    return rows[_spread(_centred(rows / np.where(deviations > 0.0, deviations, 1.0)), count, rng)].copy()


def class_centres(data: Rows, count: int, scales: Array, rng: np.random.Generator) -> Array:
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
        found.append(_centres(rows, _centred(rows * scales), int(share), rng))
    return np.concatenate(found)


def in_turn(available: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How many each of several gets of `size`, if they take one in turn until they have what is available to them."""
    taken = np.zeros_like(available)
    while (left := size - int(taken.sum())) > 0:
        takers = np.flatnonzero(taken < available)[:left]
        taken[takers] += 1
    return taken


def _centred(rows: Array) -> Array:
    """The same distances, of smaller numbers."""
    return rows - rows.mean(axis=0)


def _spread(scaled: Array, count: int, rng: np.random.Generator) -> list[int]:
    norms = np.einsum("ij,ij->i", scaled, scaled)
    chosen = [int(rng.integers(len(scaled)))]
    distance = np.full(len(scaled), np.inf)
    while len(chosen) < count:
        last = chosen[-1]
        apart = norms + norms[last] - 2.0 * (scaled @ scaled[last])
        apart[apart <= _SAME * (norms + norms[last])] = 0.0
        distance = np.minimum(distance, apart)
        total = distance.sum()
        weights = distance / total if total > 0.0 else None
        chosen.append(int(rng.choice(len(scaled), p=weights)))
    return chosen


def _centres(rows: Array, scaled: Array, count: int, rng: np.random.Generator) -> Array:
    """Centres of rows, whose distances are those of `scaled`: k-means from rows that are far from each other."""
    chosen = _spread(scaled, count, rng)
    centres, at = rows[chosen].copy(), scaled[chosen].copy()
    for _ in range(_ROUNDS):
        nearest = (0.5 * np.einsum("ij,ij->i", at, at) - scaled @ at.T).argmin(axis=1)
        sizes = np.bincount(nearest, minlength=count)
        members = np.zeros((count, len(rows)))
        members[nearest, np.arange(len(rows))] = 1.0 / sizes[nearest]
        some = sizes > 0  # one that is nearest to no row stays
        centres[some], at[some] = (members @ rows)[some], (members @ scaled)[some]
    return centres
