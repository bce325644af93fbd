"""The precision of standard normals under sites on the rows that these make, and its factor."""

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.site_precisions import SitePrecisions

__all__ = ["precision_factor"]


def precision_factor(rows: Coefficients, precisions: SitePrecisions) -> Array | None:
    """Return the Cholesky factor L (q, q) of Λ = I + JᵀΠJ; None if Λ is not positive definite."""
    total = rows.coupled_gram(precisions)
    total[np.diag_indices(len(total))] += 1.0
    if not np.isfinite(total).all():
        return None
    try:
        factor: Array = cholesky(total, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    return factor
