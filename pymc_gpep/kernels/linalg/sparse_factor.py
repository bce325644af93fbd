"""Sparse symmetric matrices P = L D Lᵀ: elimination, factor, solves, and the entries of P⁻¹ on the pattern of L.

L has ones on its diagonal. Its rows below that are stored column by column, in ascending order: column j has the rows
`rows[starts[j]:starts[j + 1]]`. The entries of a matrix are one array, the diagonal in front and the columns behind
it. The place of an entry there is its slot. The last slot of all holds 0, for entries that no column has.

Column j of L has an entry in row k if P has one there. It also has one if a column before it has entries in both rows.
The first row of a column is its parent in the elimination tree (Liu 1990), and with S = P⁻¹ (Takahashi, Fagan and Chin
1973)

    S_ij = −Σ_k S_ik L_kj,   S_jj = 1 / d_j − Σ_k S_jk L_kj,   over the rows k of column j.
"""

from pymc_gpep.kernels.compile import kernel


@kernel
def count_rows(before, columns, limit, parent, counts, seen):
    """Count the rows of each column of L, and find parents in the elimination tree, −1 of a root.

    Returns whether L has no more entries below its diagonal than `limit`; counting ends where it has.

    The columns before k in which row k of P has an entry are `columns[before[k]:before[k + 1]]`; `counts` begins at 0.
    """
    left = limit
    for k in range(parent.size):
        parent[k] = -1
        seen[k] = k
        for t in range(before[k], before[k + 1]):
            j = columns[t]
            while seen[j] != k:
                seen[j] = k
                counts[j] += 1
                left -= 1
                if left < 0:
                    return False
                if parent[j] < 0:
                    parent[j] = k
                j = parent[j]
    return True


@kernel
def fill_rows(before, columns, parent, starts, rows, row_starts, row_columns, row_places, seen, ends):
    """Write the rows of each column, and for each row k its columns and the places of k among their rows."""
    total = 0
    for j in range(parent.size):
        ends[j] = starts[j]
    for k in range(parent.size):
        seen[k] = k
        row_starts[k] = total
        for t in range(before[k], before[k + 1]):
            j = columns[t]
            while seen[j] != k:
                seen[j] = k
                rows[ends[j]] = k
                row_columns[total] = j
                row_places[total] = ends[j]
                ends[j] += 1
                total += 1
                j = parent[j]
    row_starts[parent.size] = total


@kernel
def find_slots(starts, rows, first, second, slots):
    """Write the slots of entries (i, j), the last one where no column has the entry."""
    q = starts.size - 1
    for t in range(first.size):
        i, j = max(first[t], second[t]), min(first[t], second[t])
        if i == j:
            slots[t] = j
            continue
        low, high = starts[j], starts[j + 1]
        while low < high:
            middle = (low + high) // 2
            if rows[middle] < i:
                low = middle + 1
            else:
                high = middle
        slots[t] = q + (low if low < starts[j + 1] and rows[low] == i else rows.size)


@kernel
def factorise(starts, rows, row_starts, row_columns, row_places, dense, diagonal, lower, work):
    """Put D and L in the place of a matrix; whether it is positive definite. `work` (q,) begins and ends as 0.

    Columns from `dense` on are left as what those before leave of the matrix there.
    """
    for k in range(diagonal.size):
        for t in range(row_starts[k], row_starts[k + 1]):
            j, place = row_columns[t], row_places[t]
            if j >= dense:
                continue
            scaled = lower[place] * diagonal[j]
            diagonal[k] -= scaled * lower[place]
            for p in range(place + 1, starts[j + 1]):
                work[rows[p]] += scaled * lower[p]
        if not diagonal[k] > 0.0:
            return False
        pivot = diagonal[k] if k < dense else 1.0
        for p in range(starts[k], starts[k + 1]):
            lower[p] = (lower[p] - work[rows[p]]) / pivot
            work[rows[p]] = 0.0
    return True


@kernel
def solve_lower(starts, rows, lower, x):
    """Put L⁻¹ x in the place of each row x of `x` (m, q)."""
    for s in range(x.shape[0]):
        own = x[s]
        for j in range(own.size):
            value = own[j]
            if value != 0.0:
                for p in range(starts[j], starts[j + 1]):
                    own[rows[p]] -= lower[p] * value


@kernel
def solve_upper(starts, rows, lower, x):
    """Put L⁻ᵀ x in the place of each row x of `x` (m, q)."""
    for s in range(x.shape[0]):
        own = x[s]
        for j in range(own.size - 1, -1, -1):
            total = own[j]
            for p in range(starts[j], starts[j + 1]):
                total -= lower[p] * own[rows[p]]
            own[j] = total


@kernel
def selected_inverse(starts, rows, dense, diagonal, lower, inverse_diagonal, inverse, weights, sums):
    """Write the entries of (L D Lᵀ)⁻¹ on the pattern of L, of columns before `dense` from those behind.

    `weights` (q,) begins and ends as 0, `sums` (q,) may not.
    """
    for j in range(dense - 1, -1, -1):
        for p in range(starts[j], starts[j + 1]):
            weights[rows[p]] = lower[p]
            sums[rows[p]] = 0.0
        # The rows of column j are among those of each column that it has as a row.
        for p in range(starts[j], starts[j + 1]):
            k, own = rows[p], lower[p]
            total = inverse_diagonal[k] * own
            for t in range(starts[k], starts[k + 1]):
                total += inverse[t] * weights[rows[t]]
                sums[rows[t]] += inverse[t] * own
            sums[k] += total
        value = 1.0 / diagonal[j]
        for p in range(starts[j], starts[j + 1]):
            inverse[p] = -sums[rows[p]]
            value += lower[p] * sums[rows[p]]
            weights[rows[p]] = 0.0
        inverse_diagonal[j] = value
