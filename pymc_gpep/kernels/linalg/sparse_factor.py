"""Sparse symmetric matrices P = L D Lᵀ: elimination, factor, solves, and the entries of P⁻¹ on the pattern of L.

L has a unit diagonal. The row numbers of its entries below the diagonal are stored column by column, in ascending
order: column j has entries in the rows `rows[starts[j]:starts[j + 1]]`. The entries of a matrix are an array, first the
diagonal, then the columns. The position of an entry is its slot. The last slot is 0, for entries outside the pattern.

L has the entry (k, j) if P has it, and also if an earlier column of L has entries in rows j and k. The first row of
column j is the parent of j in the elimination tree (Liu 1990). S = P⁻¹ follows from L (Takahashi, Fagan and Chin 1973).

    S_ij = −Σ_k S_ik L_kj,   S_jj = 1 / d_j − Σ_k S_jk L_kj,   over the rows k of column j.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel, summing_kernel
from pymc_gpep.kernels.linalg.lapack import (
    add_outer_product,
    cholesky,
    invert_triangular,
    multiply,
    solve_right_transposed,
    square_triangular,
)


@kernel
def count_rows(before, columns, limit, parent, counts, seen):
    """Add the number of entries of each column of L to `counts`, and write parents in the elimination tree.

    Return whether L has at most `limit` entries below its diagonal. If not, counting ends early. A root has the parent
    −1. The columns before k in which row k of P has an entry are `columns[before[k]:before[k + 1]]`.
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
def fill_rows(before, columns, parent, starts, rows, seen, ends):
    """Write row numbers of the entries of L into `rows`, column by column, given parents in the elimination tree."""
    for j in range(parent.size):
        ends[j] = starts[j]
    for k in range(parent.size):
        seen[k] = k
        for t in range(before[k], before[k + 1]):
            j = columns[t]
            while seen[j] != k:
                seen[j] = k
                rows[ends[j]] = k
                ends[j] += 1
                j = parent[j]


@kernel
def place_in_runs(parent, by_count, order):
    """Write a postorder of a forest, given parents (−1 for a root). Children are visited in the order `by_count`."""
    first, following, after = np.full((3, parent.size), -1)
    root = -1
    for j in by_count[::-1]:  # The order is reversed, since each child is added at the front of a list.
        if parent[j] < 0:
            following[j] = root
            root = j
        else:
            following[j] = first[parent[j]]
            first[parent[j]] = j
    after[:] = first
    place, j = 0, root
    while j >= 0:
        if after[j] >= 0:
            child = after[j]
            after[j] = -1
            j = child
        else:
            order[place] = j
            place += 1
            j = following[j] if following[j] >= 0 else parent[j]


@kernel
def find_slots(starts, rows, first, second, slots):
    """Write the slots of the entries (first[t], second[t]) of a matrix. An absent entry has the last slot."""
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


@inlined_kernel
def _extends(starts, rows, j, dense):
    """Return whether column j of L has entries exactly in row j + 1 and in the rows of column j + 1."""
    return (
        0 <= j < dense - 1
        and starts[j + 1] > starts[j]
        and rows[starts[j]] == j + 1
        and starts[j + 1] - starts[j] == starts[j + 2] - starts[j + 1] + 1
    )


@kernel
def widen_runs(starts, rows, dense, counts):
    """Write the number of entries of each column after runs are merged with their parents.

    Run J and the run K after it are merged if the first row below J is a column of K. Columns of J then have entries in
    all columns and rows of K. A merged run is eliminated in one step, but some of its entries are 0. The smaller the
    run, the larger is the accepted share of these entries (Chen, Davis, Hager and Rajamanickam 2008).
    """
    last = dense
    end = dense  # The run from `first` to `end` includes all merged runs; `zeros` of its entries are 0.
    below, zeros = 0, 0.0
    while last > 0:
        first = last - 1
        while _extends(starts, rows, first - 1, dense):
            first -= 1
        own = starts[last] - starts[last - 1]
        merged = False
        if last < end and own > 0 and rows[starts[last - 1]] < end:
            width = end - first
            more = zeros + (last - first) * float(end - last + below - own)
            share = more / (width * (0.5 * width + below))
            merged = width <= 4 or (share < 0.8 and width <= 16) or (share < 0.1 and width <= 48) or share < 0.05
        if merged:
            zeros = more
        else:
            end, below, zeros = last, own, 0.0
        for j in range(first, last):
            counts[j] = end - j - 1 + below
        last = first


@kernel
def fill_widened(starts, rows, dense, wide_starts, wide_rows):
    """Write the rows of columns after `widen_runs`: the later columns of the run, then the rows of its last column."""
    for j in range(starts.size - 2, -1, -1):
        place, count = wide_starts[j], wide_starts[j + 1] - wide_starts[j]
        if j < dense and count > starts[j + 1] - starts[j]:
            # Column j + 1 belongs to the same run.
            wide_rows[place] = j + 1
            wide_rows[place + 1 : place + count] = wide_rows[wide_starts[j + 1] : wide_starts[j + 2]]
        else:
            wide_rows[place : place + count] = rows[starts[j] : starts[j + 1]]


@kernel
def _subtract(starts, rows, begin, count, dense, products, diagonal, lower):
    """Subtract the lower triangle of `products` (count, count) from the entries at the rows from `rows[begin]` on."""
    for c in range(count):
        k = rows[begin + c]
        diagonal[k] -= products[c, c]
        if k >= dense:  # The column has entries in all rows below.
            place = starts[k] - k - 1
            for i in range(c + 1, count):
                lower[place + rows[begin + i]] -= products[i, c]
        else:
            place = starts[k]
            for i in range(c + 1, count):
                while rows[place] < rows[begin + i]:
                    place += 1
                lower[place] -= products[i, c]


@kernel
def factorise(starts, rows, dense, diagonal, lower):
    """Overwrite the entries of P in the columns before `dense` with D and L. Return whether pivots are positive.

    Successive columns with the same rows below them form a run. A run is eliminated in one step. Columns from `dense`
    on receive the Schur complement of the earlier columns.
    """
    first = 0
    while first < dense:
        last = first + 1
        while _extends(starts, rows, last - 1, dense):
            last += 1
        width, begin, count = last - first, starts[last - 1], starts[last] - starts[last - 1]
        products = np.zeros((count, count))
        if width == 1:
            pivot = diagonal[first]
            if not pivot > 0.0:
                return False
            for i in range(count):
                for c in range(i + 1):
                    products[i, c] = lower[begin + i] * (lower[begin + c] / pivot)
            for i in range(count):
                lower[begin + i] /= pivot
        else:
            corner, below = np.zeros((width, width)), np.empty((count, width))
            for k in range(width):
                corner[k, k], place = diagonal[first + k], starts[first + k]
                for i in range(k + 1, width):
                    corner[i, k] = lower[place + i - k - 1]
                for i in range(count):
                    below[i, k] = lower[place + width - k - 1 + i]
            if not cholesky(corner):
                return False
            if count:
                solve_right_transposed(corner, below)
                add_outer_product(1.0, below, products)
            for k in range(width):
                root, place = corner[k, k], starts[first + k]
                diagonal[first + k] = root * root
                for i in range(k + 1, width):
                    lower[place + i - k - 1] = corner[i, k] / root
                for i in range(count):
                    lower[place + width - k - 1 + i] = below[i, k] / root
        _subtract(starts, rows, begin, count, dense, products, diagonal, lower)
        first = last
    return bool((diagonal[dense:] > 0.0).all())


_TOGETHER = 8  # A pass over L solves for this number of right-hand sides.


@kernel
def solve_lower(starts, rows, dense, lower, x):
    """Replace each row x of `x` (m, q) by L⁻¹ x. Columns from `dense` on have entries in all rows below."""
    some = np.empty((x.shape[1], _TOGETHER))
    first = 0
    while first + _TOGETHER <= x.shape[0]:
        some[:] = x[first : first + _TOGETHER].T
        for j in range(dense):
            value = some[j]
            if value.any():
                for p in range(starts[j], starts[j + 1]):
                    own, factor = some[rows[p]], lower[p]
                    for k in range(_TOGETHER):
                        own[k] -= factor * value[k]
        x[first : first + _TOGETHER] = some.T
        first += _TOGETHER
    for s in range(first, x.shape[0]):
        own = x[s]
        for j in range(dense):
            value = own[j]
            if value != 0.0:
                for p in range(starts[j], starts[j + 1]):
                    own[rows[p]] -= lower[p] * value
    for s in range(x.shape[0]):
        own = x[s]
        for j in range(dense, own.size):
            value, column, below = own[j], lower[starts[j] : starts[j + 1]], own[j + 1 :]
            for t in range(column.size):
                below[t] -= column[t] * value


@summing_kernel
def solve_upper(starts, rows, dense, lower, x):
    """Replace each row x of `x` (m, q) by L⁻ᵀ x. Columns from `dense` on have entries in all rows below."""
    for s in range(x.shape[0]):
        own = x[s]
        for j in range(own.size - 1, dense - 1, -1):
            column, below, total = lower[starts[j] : starts[j + 1]], own[j + 1 :], 0.0
            for t in range(column.size):
                total += column[t] * below[t]
            own[j] -= total
    some = np.empty((x.shape[1], _TOGETHER))
    first = 0
    while first + _TOGETHER <= x.shape[0]:
        some[:] = x[first : first + _TOGETHER].T
        for j in range(dense - 1, -1, -1):
            total = some[j]
            for p in range(starts[j], starts[j + 1]):
                own, factor = some[rows[p]], lower[p]
                for k in range(_TOGETHER):
                    total[k] -= factor * own[k]
        x[first : first + _TOGETHER] = some.T
        first += _TOGETHER
    for s in range(first, x.shape[0]):
        own = x[s]
        for j in range(dense - 1, -1, -1):
            total = own[j]
            for p in range(starts[j], starts[j + 1]):
                total -= lower[p] * own[rows[p]]
            own[j] = total


@kernel
def write_corner(diagonal, lower, matrix):
    """Write a dense block into the upper triangle of `matrix` (m, m). `lower` contains its columns, joined."""
    t = 0
    for j in range(diagonal.size):
        matrix[j, j] = diagonal[j]
        for i in range(j + 1, diagonal.size):
            matrix[j, i] = lower[t]
            t += 1


@kernel
def read_corner(matrix, pivots, diagonal, lower):
    """Write the diagonal of `matrix` into `diagonal`, and its upper rows divided by `pivots` into `lower`."""
    t = 0
    for j in range(diagonal.size):
        diagonal[j] = matrix[j, j]
        for i in range(j + 1, diagonal.size):
            lower[t] = matrix[j, i] / pivots[j]
            t += 1


@kernel
def independent_set(starts, rows, order, within):
    """Mark vertices of a graph in `within` (q,), so that no two are neighbours. They are chosen greedily in `order`."""
    for j in order:
        free = True
        for t in range(starts[j], starts[j + 1]):
            if within[rows[t]]:
                free = False
                break
        within[j] = free


@kernel
def _gather(starts, rows, begin, dense, diagonal, entries, block):
    """Write the entries of a symmetric matrix at the rows from `rows[begin]` on into `block` (count, count)."""
    count = block.shape[0]
    for c in range(count):
        k = rows[begin + c]
        block[c, c] = diagonal[k]
        place = starts[k] - k - 1
        if k < dense:
            place = starts[k]
        for i in range(c + 1, count):
            if k >= dense:  # The column has entries in all rows below.
                value = entries[place + rows[begin + i]]
            else:
                while rows[place] < rows[begin + i]:
                    place += 1
                value = entries[place]
            block[c, i] = block[i, c] = value


@summing_kernel
def _invert_column(starts, rows, j, dense, diagonal, lower, inverse_diagonal, inverse):
    """Write column j of the inverse of L D Lᵀ, computed from later columns of the inverse."""
    first, count = starts[j], starts[j + 1] - starts[j]
    sums = np.zeros(count)
    for t in range(count):
        k, factor = rows[first + t], lower[first + t]
        place, total = starts[k] - k - 1, inverse_diagonal[k] * factor
        if k >= dense:  # The column has entries in all rows below.
            for s in range(t + 1, count):
                entry = inverse[place + rows[first + s]]
                total += entry * lower[first + s]
                sums[s] += entry * factor
        else:
            place = starts[k]
            for s in range(t + 1, count):
                while rows[place] < rows[first + s]:
                    place += 1
                total += inverse[place] * lower[first + s]
                sums[s] += inverse[place] * factor
        sums[t] += total
    value = 1.0 / diagonal[j]
    for t in range(count):
        inverse[first + t] = -sums[t]
        value += lower[first + t] * sums[t]
    inverse_diagonal[j] = value


@kernel
def selected_inverse(starts, rows, dense, diagonal, lower, inverse_diagonal, inverse):
    """Write the entries of (L D Lᵀ)⁻¹ on the pattern of L for columns before `dense`, given the later columns.

    All columns of a run J have the same rows R below the run. With S = (L D Lᵀ)⁻¹, G = L_JJ D^½ and Y = L_RJ D^½ G⁻¹

        S_RJ = −S_RR Y,   S_JJ = G⁻ᵀ G⁻¹ + Yᵀ S_RR Y.
    """
    last = dense
    while last > 0:
        first = last - 1
        while _extends(starts, rows, first - 1, dense):
            first -= 1
        width, begin, count = last - first, starts[last - 1], starts[last] - starts[last - 1]
        if width == 1:
            _invert_column(starts, rows, first, dense, diagonal, lower, inverse_diagonal, inverse)
            last = first
            continue
        corner, below = np.zeros((width, width)), np.empty((count, width))
        for k in range(width):
            root, place = math.sqrt(diagonal[first + k]), starts[first + k]
            corner[k, k] = root
            for i in range(k + 1, width):
                corner[i, k] = lower[place + i - k - 1] * root
            for i in range(count):
                below[i, k] = lower[place + width - k - 1 + i] * root
        invert_triangular(corner)
        square, own = np.zeros((width, width)), corner.copy()
        square_triangular(own)
        between = np.empty((count, width))
        if count:
            block, y = np.empty((count, count)), np.empty((count, width))
            _gather(starts, rows, begin, dense, inverse_diagonal, inverse, block)
            multiply(below, corner, y, False)
            multiply(block, y, between, False)
            multiply(y, between, square, True)
        for k in range(width):
            place = starts[first + k]
            inverse_diagonal[first + k] = own[k, k] + square[k, k]
            for i in range(k + 1, width):
                inverse[place + i - k - 1] = own[i, k] + square[i, k]
            for i in range(count):
                inverse[place + width - k - 1 + i] = -between[i, k]
        last = first
