"""Nested dissection of a sparse matrix whose rows have places: an order in which its factor is sparse.

A line divides the places into two halves. A separator is a smallest set of rows without which no entry connects the
halves. It is last in the order, and the halves are dissected in turn (George 1973). Entries across the line form a
bipartite graph. Its smallest vertex cover follows from a maximum matching (Kőnig 1931).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from pymc_gpep.array_types import Array

type Indices = NDArray[np.int64]

_LEAF = 60  # Largest number of rows that are not divided.
_SHARES = (0.45, 0.5, 0.55)  # Shares of rows on one side of the tried lines.


def dissected(there: csr_array, places: Array) -> Indices:
    """Return an order (q,) of the rows of a symmetric pattern by nested dissection.

    Parameters
    ----------
    there : csr_array (q, q)
        Matrix with the pattern.
    places : array (q, d)
        Place of each row; NaN for a row without a place, which then has the mean place of its connected rows.
    """
    found, places = [], _completed(there, places)
    left = [np.arange(len(places))]
    while left:
        own = left.pop()
        if len(own) > _LEAF:
            between, one, other = _divided(there[own][:, own], places[own])
            if len(one) and len(other):
                found.append(own[between])
                left += [own[one], own[other]]
                continue
        found.append(own[::-1])  # The first places of a process are connected with the most distant places.
    return np.concatenate(found[::-1])


def _completed(there: csr_array, places: Array) -> Array:
    """Return the places (q, d) with missing places replaced, see `dissected`."""
    missing = np.isnan(places).any(axis=1)
    if not missing.any():
        return places
    known = np.where(missing[:, None], places[~missing].mean(axis=0), places)
    near = there[missing][:, ~missing]
    count = np.asarray(near.sum(axis=1)).reshape(-1, 1)
    known[missing] = np.where(count > 0.0, near @ places[~missing] / np.maximum(count, 1.0), known[missing])
    return known


def _divided(there: csr_array, places: Array) -> tuple[Indices, Indices, Indices]:
    """Return a separator and both parts, for the line across one axis that the fewest entries cross."""
    rows, columns = there.nonzero()
    best, fewest = np.zeros(len(places), bool), float(np.inf)
    for along in places.T:
        for at in np.quantile(along, _SHARES):
            below = along <= at
            crossing = float(np.count_nonzero(below[rows] & ~below[columns]))
            if crossing < fewest and not below.all():
                best, fewest = below, crossing
    one, other = np.flatnonzero(best), np.flatnonzero(~best)
    of_one, of_other = _cover(there[one][:, other])
    return np.concatenate([one[of_one], other[of_other]]), one[~of_one], other[~of_other]


def _cover(there: csr_array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of the rows and columns of a smallest vertex cover of a bipartite graph."""
    match = maximum_bipartite_matching(there, perm_type="column")
    matched = np.flatnonzero(match >= 0)
    back = np.full(there.shape[1], -1)
    back[match[matched]] = matched
    rows, columns = match < 0, np.zeros(there.shape[1], bool)
    front = np.flatnonzero(rows)  # Rows that an alternating path reaches from an unmatched row.
    while front.size:
        found = np.unique(there[front].indices)
        found = found[~columns[found]]
        columns[found] = True
        front = back[found]
        front = front[~rows[front]]
        rows[front] = True
    return ~rows, columns
