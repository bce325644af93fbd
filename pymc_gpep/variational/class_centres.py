"""Where inducing inputs can begin: at centres of the rows of each class."""

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.inducing_inputs import in_turn
from pymc_gpep.rows.chunks import chunks, inputs_at, sample_numbers
from pymc_gpep.rows.open_rows import open_rows

__all__ = ["class_centres"]

_MOST = 100_000  # rows that centres are made of, of more of them
_FEW = 5_000  # rows all of which each pass of k-means looks at; of more, passes look at some


def class_centres(
    data: Any, size: int, *, classes: int | None = None, shared: bool = False, random_seed: int = 0
) -> Array:
    """Inducing inputs to begin with, for `pm.fit(inducing=...)`: centres that k-means finds in the classes.

    The function of a class has half of them among the rows of that class, where it is high, and half among all others.
    Functions that share inducing inputs have as many centres of each class. A class that has too few rows leaves the
    rest to the others.

    Parameters
    ----------
    data : pair of arrays, path or Rows
        Inputs (n, d) and labels (n,), whole numbers from 0, or what else `gpep.open_rows` takes. If there are more than
        100 000 rows, 100 000 are drawn at random. Distances are those of the inputs as they are: columns of different
        units should be standardised.
    size : int
        How many inducing inputs each function has, M.
    classes : int, optional
        c; one more than the largest label if not given, and then the smallest must be 0.
    shared : bool
        Whether all functions have them in common. Wanted with `shared_inducing=True`, and where there is one function.
    random_seed : int
        For k-means, and for which rows are drawn.

    Returns
    -------
    array (c, M, d), or (M, d) where they are shared

    Raises
    ------
    TypeError
        If the size or the number of classes is no whole number, or if `data` are nothing that `gpep.open_rows` takes.
    ValueError
        If there are fewer rows than inducing inputs, labels that are no classes, or inputs that are not finite.
    ImportError
        If scikit-learn is not installed, which finds the centres: by `KMeans`, of more than 5000 rows by
        `MiniBatchKMeans` (Sculley 2010).

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
            f"{labels.min()}, or say how many there are if the first ones have no rows: classes={c}."
        )
    if labels.min() < 0 or labels.max() >= c:
        raise ValueError(f"labels must be from 0 to {c - 1}, but are from {labels.min()} to {labels.max()}.")
    drawn = np.sort(sample_numbers(labels.size, max(_MOST, size), np.random.default_rng(random_seed)))
    X, y = inputs_at(rows, drawn), labels[drawn]
    if shared:
        counts = in_turn(np.bincount(y, minlength=c), size)
        return np.concatenate([_centres(X[y == k], int(counts[k]), random_seed) for k in range(c)])
    sets = []
    for k in range(c):
        own = y == k
        here = int(np.count_nonzero(own))
        some = max(min(size // 2, here), size - (y.size - here))
        sets.append(np.concatenate([_centres(X[own], some, random_seed), _centres(X[~own], size - some, random_seed)]))
    return np.stack(sets)


def _centres(X: Array, count: int, random_seed: int) -> Array:
    if not count:
        return X[:0]
    try:
        from sklearn.cluster import KMeans, MiniBatchKMeans
    except ImportError as missing:
        raise ImportError('Centres are found by scikit-learn: pip install "pymc-gpep[scikit-learn]".') from missing
    with threadpool_limits(1):  # whoever forks later should find no threads of ours
        # The one of parts leaves centres on each other where there are many for few rows.
        found = (KMeans if len(X) <= _FEW else MiniBatchKMeans)(count, random_state=random_seed, n_init=1).fit(X)
    return np.asarray(found.cluster_centers_, dtype=np.float64)
