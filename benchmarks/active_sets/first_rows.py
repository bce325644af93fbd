"""Predictions by the first active rows, and by more and more of them."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pymc_gpep.rivals.ivm import IVM

Array = np.ndarray


def predicted(posterior: Any, cross: Array, variance: float) -> tuple[Array, Array]:
    """Means (m, c) and covariances (m, c, c) at m points, from their covariances (m, n) with those of a posterior."""
    m, c = len(cross), len(posterior.mean)
    mean, cov = posterior.predict(np.ascontiguousarray(cross[None]), np.full((1, m), variance), np.zeros((c, m)))
    return np.ascontiguousarray(mean.T), cov


def by_first_rows(
    ivm: IVM, solution: Any, cross: Array, variance: float, counts: Iterable[int]
) -> Iterator[tuple[Array, Array]]:
    """The same by so many active rows; `cross` (m, active) is with these in their order."""
    for count in counts:
        yield predicted(ivm.posterior_of_first(solution, count), cross[:, :count], variance)
