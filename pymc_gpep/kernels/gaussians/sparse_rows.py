"""Rows of coefficients with few entries each, under a sparse symmetric matrix by slots.

Row i has the coefficients `values[i]` (k,). Pair t of its entries, (0, 0), (1, 0), (1, 1), (2, 0) …, has the slot
`slots[i, t]` in the entries of the matrix, see `pymc_gpep.kernels.linalg.sparse_factor`.
"""

from pymc_gpep.kernels.compile import kernel


@kernel
def add_gram(slots, values, weights, entries):
    """Add Σ_i w_i a_i a_iᵀ to the entries, with w (n,)."""
    for i in range(values.shape[0]):
        t = 0
        for a in range(values.shape[1]):
            weighted = weights[i] * values[i, a]
            for b in range(a + 1):
                entries[slots[i, t]] += weighted * values[i, b]
                t += 1


@kernel
def sparse_row_variances(slots, values, entries, out):
    """Write a_iᵀ S a_i into `out` (n,)."""
    for i in range(values.shape[0]):
        t = 0
        total = 0.0
        for a in range(values.shape[1]):
            half = 0.0
            for b in range(a):
                half += values[i, b] * entries[slots[i, t]]
                t += 1
            total += values[i, a] * (2.0 * half + values[i, a] * entries[slots[i, t]])
            t += 1
        out[i] = total


@kernel
def sparse_row_products(slots, values, entries, out):
    """Add to `out` (n, k) what S a_i has at the entries of row i."""
    for i in range(values.shape[0]):
        t = 0
        for a in range(values.shape[1]):
            for b in range(a):
                out[i, a] += entries[slots[i, t]] * values[i, b]
                out[i, b] += entries[slots[i, t]] * values[i, a]
                t += 1
            out[i, a] += entries[slots[i, t]] * values[i, a]
            t += 1
