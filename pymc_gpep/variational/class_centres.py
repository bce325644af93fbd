"""Initial inducing inputs at cluster centres of the rows of each class."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.inducing_inputs import in_turn, k_means
from pymc_gpep.rows.rows import chunks, inputs_at, sample_numbers
from pymc_gpep.rows.storage import open_rows

_MOST = 5_000  # Largest number of rows, drawn at random, from which centres of a class are computed.


def class_centres(
    data: Any, size: int, *, classes: int | None = None, shared: bool = False, random_seed: int = 0
) -> Array:
    """Return initial inducing inputs for `pm.fit(inducing=...)`: centres of k-means in each class.

    k-means begins with rows that are far from each other, and makes a few rounds (Lloyd 1982; Arthur and Vassilvitskii
    2007).

    For the function of a class, half of the centres are among rows of this class, where the function is high. The other
    half are among rows of other classes. If functions share inducing inputs, each class has equally many centres. If a
    class has too few rows, its remaining centres go to other classes.

    Parameters
    ----------
    data : pair of arrays, path or Rows
        Inputs (n, d) and labels (n,), whole numbers from 0, or another source for `gpep.open_rows`. If a class has more
        than 5000 rows, 5000 random rows are used. Distances are between unscaled inputs, so standardise columns of
        different units.
    size : int
        Number of inducing inputs of each function, M.
    classes : int, optional
        Number of classes c. The default is the largest label plus one; then the smallest label must be 0.
    shared : bool
        Whether all functions have the same centres, as required by `shared_inducing=True` and by a single function.
    random_seed : int
        Seed of k-means and of the choice of rows.

    Returns
    -------
    array (c, M, d), or (M, d) if shared

    Raises
    ------
    TypeError
        If the size or the number of classes is not a whole number, or if `gpep.open_rows` cannot read `data`.
    ValueError
        If the number of rows is below `size`, labels are outside the classes, or inputs are not finite.

    Examples
    --------
    >>> with model:
    ...     fit = pm.fit(method="sparse_ep", inducing=gpep.class_centres((X, y), 5))
    """
    rows = open_rows(data)
    check_whole("size", size, 1)
    if size > rows.n_rows:
        raise ValueError(f"size must be at most {rows.n_rows}, the number of rows, but is {size}.")
    if classes is not None:
        check_whole("classes", classes, 1)
    labels = np.concatenate([rows.labels(chunk) for chunk in chunks(rows)])
    c = int(labels.max()) + 1 if classes is None else classes
    if classes is None and labels.min() > 0:
        raise ValueError(
            f"labels are from {labels.min()} to {labels.max()}, but classes are numbered from 0. Subtract "
            f"{labels.min()}. If the first classes have no rows, give the number of classes: classes={c}."
        )
    if labels.min() < 0 or labels.max() >= c:
        raise ValueError(f"labels must be from 0 to {c - 1}, but are from {labels.min()} to {labels.max()}.")
    rng = np.random.default_rng(random_seed)

    def centres(among: NDArray[np.bool_], count: int) -> Array:
        there = np.flatnonzero(among)
        drawn = there[np.sort(sample_numbers(there.size, max(_MOST, count), rng))]
        inputs = inputs_at(rows, drawn)
        return k_means(inputs, inputs, count, rng) if count else inputs[:0]

    if shared:
        counts = in_turn(np.bincount(labels, minlength=c), size)
        return np.concatenate([centres(labels == k, int(counts[k])) for k in range(c)])
    sets = []
    for k in range(c):
        own = labels == k
        here = int(np.count_nonzero(own))
        some = max(min(size // 2, here), size - (labels.size - here))
        sets.append(np.concatenate([centres(own, some), centres(~own, size - some)]))
    return np.stack(sets)
