"""The Bayesian bootstrap, for what was measured on held-out points."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_NUMBERS = 4_000_000  # weights held at a time: 32 MB


def bayesian_bootstrap(values: ArrayLike, *, draws: int = 4000, random_seed: Any = None) -> NDArray[np.float64]:
    """Posterior draws of the mean of what `values` are observations of, by the Bayesian bootstrap.

    A draw is the average of the values with weights from a Dirichlet(1, ..., 1) distribution. Its use for comparing
    models on held-out data follows Vehtari and Lampinen (2002), "Bayesian model assessment and comparison using
    cross-validation predictive densities", *Neural Computation* 14.

    Parameters
    ----------
    values : array (n, ...)
        One observation for each point; several columns get the same weights, so that their draws can be compared.
    draws : int
    random_seed : int, Generator or None

    Returns
    -------
    array (draws, ...)

    Raises
    ------
    ValueError
        If there are no values, or no draws are wanted.

    Examples
    --------
    >>> log_scores = np.log(ep.predict(gp, Xnew)["p"].values[np.arange(len(ynew)), ynew])
    >>> np.quantile(gpep.diagnostics.bayesian_bootstrap(log_scores), [0.05, 0.95])
    """
    observed = np.asarray(values, dtype=np.float64)
    if observed.ndim == 0 or not len(observed):
        raise ValueError(f"values must be one for each of at least 1 point, but has shape {observed.shape}.")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, but is {draws}.")
    rng = np.random.default_rng(random_seed)
    chunk = max(1, _NUMBERS // len(observed))
    parts = []
    for start in range(0, draws, chunk):
        weights = rng.standard_exponential((min(chunk, draws - start), len(observed)))
        parts.append(np.tensordot(weights / weights.sum(axis=1, keepdims=True), observed, axes=1))
    return np.concatenate(parts)
