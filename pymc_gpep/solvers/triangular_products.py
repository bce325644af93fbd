"""Matrix products of which BLAS does half, because a factor is triangular or the result symmetric."""

import numpy as np
from scipy.linalg.blas import dsyrk, dtrmm

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import mirror
from pymc_gpep.kernels.sparse_step.loops import scaled_rows, squared_rows


def lower_product(lower: Array, w: Array, transposed: bool = False) -> Array:
    """R w, or Rᵀ w, for a lower triangular R (M, M) in C order and w (M, B), best in Fortran order as the result is."""
    product: Array = dtrmm(1.0, lower.T, w, trans_a=not transposed)
    return product


def squared_columns(w: Array) -> Array:
    """Squared norms (B,) of the columns of w (M, B), best in Fortran order."""
    found = np.empty(w.shape[1])
    squared_rows(np.ascontiguousarray(w.T), found)
    return found


def weighted_gram(w: Array, weights: Array, out: Array | None = None) -> Array:
    """Σ_b weights_b w_b w_bᵀ, (M, M), of w (M, B), best in Fortran order."""
    rows = np.ascontiguousarray(w.T)
    half = np.zeros((len(w), len(w)))
    below = weights < 0.0
    for sign, chosen in ((1.0, ~below), (-1.0, below)) if below.any() else ((1.0, slice(None)),):
        own = rows[chosen]
        scaled = np.empty_like(own)
        scaled_rows(own, weights[chosen, None], 0, sign, scaled)
        dsyrk(sign, scaled.T, beta=1.0, c=half.T, lower=0, overwrite_c=1)  # the lower triangle, in the order of C
    mirror(half)
    if out is None:
        return half
    out[:] = half
    return out
