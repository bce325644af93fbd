"""Rows of coefficients with few entries: products, and quadratic forms of small or sparse symmetric matrices.

Row a_i (q,) has the coefficients `values[i]` (k,) in the columns `cells[i]` (k,), in ascending order. Unused entries
have the value 0. For a sparse matrix, the columns of row i form pairs (0, 0), (1, 0), (1, 1), (2, 0) …. Pair t is the
entry `slots[i, t]` of the matrix, see `pymc_gpep.kernels.linalg.sparse_factor`.
"""

from pymc_gpep.kernels.compile import kernel


@kernel
def entry_gram(cells, values, weights, gram):
    """Add Σ_i w_i a_i a_iᵀ to the lower triangle of `gram` (q, q), for rows a_i and w = `weights` (n,)."""
    for i in range(cells.shape[0]):
        for a in range(cells.shape[1]):
            weighted = weights[i] * values[i, a]
            if weighted != 0.0:
                row = gram[cells[i, a]]
                for b in range(a + 1):
                    row[cells[i, b]] += weighted * values[i, b]


@kernel
def entry_variances(cells, values, matrix, out):
    """Write a_iᵀ S a_i of each row a_i into `out` (n,), for a symmetric S = `matrix` (q, q)."""
    for i in range(cells.shape[0]):
        total = 0.0
        for a in range(cells.shape[1]):
            value = values[i, a]
            if value != 0.0:
                row = matrix[cells[i, a]]
                half = 0.5 * value * row[cells[i, a]]
                for b in range(a):
                    half += values[i, b] * row[cells[i, b]]
                total += 2.0 * value * half
        out[i] = total


@kernel
def entry_products(cells, values, numbers, out):
    """Write the product a_iᵀ v of each row a_i into `out` (n,), for v = `numbers` (q,)."""
    for i in range(cells.shape[0]):
        total = 0.0
        for a in range(cells.shape[1]):
            total += values[i, a] * numbers[cells[i, a]]
        out[i] = total


@kernel
def entry_sums(cells, values, weights, out):
    """Add the weighted sum of rows Σ_i w_i a_i to `out` (q,), for w = `weights` (n,)."""
    for i in range(cells.shape[0]):
        for a in range(cells.shape[1]):
            out[cells[i, a]] += weights[i] * values[i, a]


@kernel
def row_combinations(cells, values, matrix, out):
    """Add a_iᵀ S to row i of `out` (n, p), for each row a_i and S = `matrix` (q, p)."""
    for i in range(cells.shape[0]):
        row = out[i]
        for a in range(cells.shape[1]):
            value = values[i, a]
            if value != 0.0:
                other = matrix[cells[i, a]]
                for j in range(matrix.shape[1]):
                    row[j] += value * other[j]


@kernel
def entry_between(cells, values, weights, other_cells, other_values, out):
    """Add Σ_i w_i a_i c_iᵀ to `out` (q, q′). Rows a_i belong to one function, c_i to another; w = `weights`."""
    for i in range(cells.shape[0]):
        for a in range(cells.shape[1]):
            weighted = weights[i] * values[i, a]
            if weighted != 0.0:
                row = out[cells[i, a]]
                for b in range(other_cells.shape[1]):
                    row[other_cells[i, b]] += weighted * other_values[i, b]


@kernel
def entry_covariances(cells, values, matrix, other_cells, other_values, out):
    """Write a_iᵀ S c_i into `out` (n,). Rows a_i belong to one function, c_i to another; S = `matrix` (q, q′)."""
    for i in range(cells.shape[0]):
        total = 0.0
        for a in range(cells.shape[1]):
            value = values[i, a]
            if value != 0.0:
                row = matrix[cells[i, a]]
                for b in range(other_cells.shape[1]):
                    total += value * other_values[i, b] * row[other_cells[i, b]]
        out[i] = total


@kernel
def add_gram(slots, weighed, values, entries):
    """Add Σ_i c_i a_iᵀ to `entries`, for rows c_i (`weighed`) and a_i with equal columns. The sum must be symmetric."""
    for i in range(values.shape[0]):
        t = 0
        for a in range(values.shape[1]):
            for b in range(a + 1):
                entries[slots[i, t]] += weighed[i, a] * values[i, b]
                t += 1


@kernel
def sparse_row_variances(slots, values, entries, out):
    """Write a_iᵀ S a_i of each row a_i into `out` (n,), for a symmetric S with the sparse `entries`."""
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
    """Add S a_i, restricted to the columns of row a_i, to `out[i]` (k,), for a symmetric S with sparse `entries`."""
    for i in range(values.shape[0]):
        t = 0
        for a in range(values.shape[1]):
            for b in range(a):
                out[i, a] += entries[slots[i, t]] * values[i, b]
                out[i, b] += entries[slots[i, t]] * values[i, a]
                t += 1
            out[i, a] += entries[slots[i, t]] * values[i, a]
            t += 1
