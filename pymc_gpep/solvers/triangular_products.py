"""Matrix products of which BLAS does half, because a factor is triangular or the result symmetric."""

import numpy as np
from scipy.linalg.blas import dtrmm

from pymc_gpep.array_types import Array

__all__ = ["lower_product", "weighted_gram"]


def lower_product(lower: Array, w: Array, transposed: bool = False) -> Array:
    """R w, or Rᵀ w, for a lower triangular R (M, M) in C order and w (M, B), best in Fortran order as the result is."""
    product: Array = dtrmm(1.0, lower.T, w, trans_a=not transposed)
    return product


def weighted_gram(w: Array, weights: Array) -> Array:
    """Σ_b weights_b w_b w_bᵀ, (M, M), of w (M, B)."""
    if (weights < 0.0).any():
        full: Array = (w * weights) @ w.T
        return full
    scaled = w * np.sqrt(weights)
    half: Array = scaled @ scaled.T  # numpy sees that this is symmetric
    return half
