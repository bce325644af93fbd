"""Predictions by increasing numbers of first active rows."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pymc_gpep.rivals.ivm import IVM

Array = np.ndarray


def predicted(posterior: Any, cross: Array, variance: float) -> tuple[Array, Array]:
    """Means (m, c) and covariances (m, c, c) at m points, given their covariances (m, n) with n points."""
    m, c = len(cross), len(posterior.mean)
    mean, cov = posterior.predict(np.ascontiguousarray(cross[None]), np.full((1, m), variance), np.zeros((c, m)))
    return np.ascontiguousarray(mean.T), cov


def by_first_rows(
    ivm: IVM, solution: Any, cross: Array, variance: float, counts: Iterable[int]
) -> Iterator[tuple[Array, Array]]:
    """As `predicted`, by the given number of active rows. `cross` (m, active) is in their order."""
    for count in counts:
        yield predicted(ivm.posterior_of_first(solution, count), cross[:, :count], variance)
