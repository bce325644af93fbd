"""Order and nearest neighbours of places, and the regression of the value at a place on the values at its neighbours.

Place k of the order has the neighbours N = `cells[k, :counts[k]]`, all earlier in the order. C is the covariance of the
values at all places, and e_k a unit vector. The regression has coefficients b_k, variance d_k, and precision Q:

    b_k = C_NN⁻¹ C_Nk,   d_k = C_kk − C_kN b_k,   Q = Σ_k v_k v_kᵀ / d_k,   v_k = e_k − Σ_j b_kj e_N(j)

(Vecchia 1988; Datta, Banerjee, Finley and Gelfand 2016, equations 6 to 9). A matrix with the sparsity pattern of Q is
an array of entries. Set k is place k followed by its neighbours. Its pairs are (0, 0), (1, 0), (1, 1), (2, 0) …, where
0 is the place. Pair t of set k is the entry `slots[k, t]` of the matrix.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.small_matrices import solve_with_factor


@kernel
def _square_beyond(own, low, high):
    """Return the squared distance of a place (d,) from a box."""
    square = 0.0
    for j in range(own.size):
        square += max(low[j] - own[j], own[j] - high[j], 0.0) ** 2
    return square


@kernel
def _square(own, other):
    """Return the squared distance of two places (d,)."""
    square = 0.0
    for j in range(own.size):
        square += (own[j] - other[j]) ** 2
    return square


@kernel
def maximin_order(x, starts, low, high, order):
    """Write an order of places x (n, d). The next place is farthest from all earlier places.

    Places are sorted by leaves of the tree of `solvers.neighbour_precision.PlaceTree`. The first place in the order is
    nearest to the mean. Boxes of the tree that are too far from a new place for a change of distances are skipped.
    """
    n, d = x.shape
    boxes, leaves = len(low), len(starts) - 1
    distance, largest, mean = np.full(n, np.inf), np.full(boxes, np.inf), np.zeros(d)
    stack, seen = np.empty(boxes, np.int64), np.empty(boxes, np.int64)
    for i in range(n):
        mean += x[i] / n
    chosen = 0
    for i in range(n):
        if _square(x[i], mean) < _square(x[chosen], mean):
            chosen = i
    for k in range(n):
        if k:
            box = 0
            while box < boxes - leaves:
                box = 2 * box + (1 if largest[2 * box + 1] >= largest[2 * box + 2] else 2)
            leaf = box - boxes + leaves
            chosen = starts[leaf] + np.argmax(distance[starts[leaf] : starts[leaf + 1]])
        order[k] = chosen
        own = x[chosen]
        distance[chosen] = -1.0
        stack[0], size, count = 0, 1, 0
        while size:
            size -= 1
            box = stack[size]
            if _square_beyond(own, low[box], high[box]) <= largest[box]:
                seen[count] = box
                count += 1
                if box < boxes - leaves:
                    stack[size], stack[size + 1] = 2 * box + 1, 2 * box + 2
                    size += 2
        for t in range(count - 1, -1, -1):
            box = seen[t]
            if box < boxes - leaves:
                largest[box] = max(largest[2 * box + 1], largest[2 * box + 2])
                continue
            leaf, most = box - boxes + leaves, -1.0
            for i in range(starts[leaf], starts[leaf + 1]):
                if distance[i] >= 0.0:
                    distance[i] = min(distance[i], _square(x[i], own))
                    most = max(most, distance[i])
            largest[box] = most


@kernel
def nearest(x, before, known, numbers, first, starts, low, high, cells):
    """Write the numbers of the m places nearest to each place of x (s, d) into `cells` (s, m), sorted by distance.

    Candidates are the places `known` with `numbers`, sorted by leaves of the tree. Neighbours of place i have numbers
    less than `before[i]`. `first` is the smallest number in each box of the tree.
    """
    m = cells.shape[1]
    boxes, leaves = len(low), len(starts) - 1
    squares, stack, beyond = np.empty(m), np.empty(boxes, np.int64), np.empty(boxes)
    for i in range(x.shape[0]):
        count, own, size = 0, x[i], 1
        stack[0], beyond[0] = 0, 0.0
        while size:
            size -= 1
            box = stack[size]
            if first[box] >= before[i] or (count == m and beyond[size] >= squares[m - 1]):
                continue
            if box < boxes - leaves:
                one = _square_beyond(own, low[2 * box + 1], high[2 * box + 1])
                other = _square_beyond(own, low[2 * box + 2], high[2 * box + 2])
                near = 1 if one <= other else 2
                stack[size], beyond[size] = 2 * box + 3 - near, max(one, other)
                stack[size + 1], beyond[size + 1] = 2 * box + near, min(one, other)
                size += 2
                continue
            leaf = box - boxes + leaves
            for k in range(starts[leaf], starts[leaf + 1]):
                square = _square(known[k], own)
                if numbers[k] >= before[i] or (count == m and square >= squares[m - 1]):
                    continue
                place = count if count < m else m - 1
                while place > 0 and squares[place - 1] > square:
                    squares[place] = squares[place - 1]
                    cells[i, place] = cells[i, place - 1]
                    place -= 1
                squares[place] = square
                cells[i, place] = numbers[k]
                count = min(count + 1, m)


@kernel
def more_neighbours(x, cells, counts, starts, rows, order, positions):
    """Add the nearest earlier places to the neighbours of each place, without new entries of a factor.

    A place and its neighbours are rows of the first eliminated column among them. Any two rows of a column have an
    entry in the factor. So these rows are the candidates. `order` has the place of each column, and `positions` its
    inverse; places x (p, d) are in the order of the neighbours.

    Parameters
    ----------
    cells : array (p, m)
        Neighbours, of which `counts` (p,) are used. Further neighbours are added up to m.
    """
    m = cells.shape[1]
    squares = np.empty(m)
    for k in range(counts.size):
        own, base, column = cells[k], counts[k], positions[k]
        for a in range(base):
            column = min(column, positions[own[a]])
        count = base
        for t in range(starts[column] - 1, starts[column + 1]):
            candidate = order[column] if t < starts[column] else order[rows[t]]
            square = _square(x[candidate], x[k])
            if candidate >= k or (count == m and (base == m or square >= squares[m - 1])):
                continue
            known = False
            for a in range(base):
                known = known or own[a] == candidate
            if known:
                continue
            place = count if count < m else m - 1
            while place > base and squares[place - 1] > square:
                squares[place] = squares[place - 1]
                own[place] = own[place - 1]
                place -= 1
            squares[place] = square
            own[place] = candidate
            count = min(count + 1, m)
        counts[k] = count


@kernel
def _factorised(entries, slots, size, lower):
    """Write the Cholesky factor of the covariance of a place's neighbours into `lower`; NaN if it does not exist."""
    for a in range(size):
        for c in range(a + 1):
            total = entries[slots[(a + 1) * (a + 2) // 2 + c + 1]]
            for j in range(c):
                total -= lower[a, j] * lower[c, j]
            lower[a, c] = (math.sqrt(total) if total > 0.0 else np.nan) if a == c else total / lower[c, c]


@kernel
def regressions(entries, slots, counts, b, d):
    """Write regression coefficients `b` (p, m) and variances `d` (p,) for a covariance given by its entries."""
    m = b.shape[1]
    lower = np.empty((m, m))
    for k in range(d.size):
        size, own = counts[k], slots[k]
        _factorised(entries, own, size, lower)
        b[k] = 0.0
        for a in range(size):
            b[k, a] = entries[own[(a + 1) * (a + 2) // 2]]
        solve_with_factor(lower, size, b[k])
        total = entries[own[0]]
        for a in range(size):
            total -= b[k, a] * entries[own[(a + 1) * (a + 2) // 2]]
        d[k] = total if total > 0.0 else np.nan


@kernel
def pull_regressions(entries, slots, counts, b, of_b, of_d, out):
    """Add derivatives in the entries of the covariance to `out`, from derivatives `of_b` and `of_d` in b and d."""
    m = b.shape[1]
    lower, u = np.empty((m, m)), np.empty(m)
    for k in range(of_d.size):
        size, own = counts[k], slots[k]
        _factorised(entries, own, size, lower)
        u[:] = of_b[k]
        solve_with_factor(lower, size, u)
        out[own[0]] += of_d[k]
        for a in range(size):
            row = (a + 1) * (a + 2) // 2
            out[own[row]] += u[a] - 2.0 * of_d[k] * b[k, a]
            for c in range(a):
                out[own[row + c + 1]] += 2.0 * of_d[k] * b[k, a] * b[k, c] - u[a] * b[k, c] - u[c] * b[k, a]
            out[own[row + a + 1]] += (of_d[k] * b[k, a] - u[a]) * b[k, a]


@kernel
def precision_entries(slots, counts, b, d, out):
    """Add the entries of the precision matrix Q to `out`, for regression coefficients `b` and variances `d`."""
    v = np.empty(b.shape[1] + 1)
    for k in range(d.size):
        v[0] = 1.0
        v[1:] = -b[k]
        t = 0
        for a in range(counts[k] + 1):
            scaled = v[a] / d[k]
            for c in range(a + 1):
                out[slots[k, t]] += scaled * v[c]
                t += 1


@kernel
def pull_precision(slots, counts, b, d, of_entries, of_b, of_d):
    """Write derivatives in b and d into `of_b` and `of_d`, from derivatives in the entries of the precision Q."""
    v, half = np.empty(b.shape[1] + 1), np.empty(b.shape[1] + 1)
    for k in range(d.size):
        v[0] = 1.0
        v[1:] = -b[k]
        half[:] = 0.0
        t = 0
        for a in range(counts[k] + 1):
            for c in range(a + 1):
                half[a] += of_entries[slots[k, t]] * v[c]
                half[c] += of_entries[slots[k, t]] * v[a]
                t += 1
        total = 0.0
        for a in range(counts[k] + 1):
            total += half[a] * v[a]
        of_d[k] = -0.5 * total / d[k] ** 2
        of_b[k] = 0.0
        for a in range(counts[k]):
            of_b[k, a] = -half[a + 1] / d[k]


@kernel
def solve_forward(cells, counts, b, x):
    """Overwrite each row x of `x` (s, p) with (I − B)⁻¹ x. Row k of B has b[k] in the columns `cells[k]`."""
    for own in x:
        for k in range(own.size):
            for a in range(counts[k]):
                own[k] += b[k, a] * own[cells[k, a]]


@kernel
def solve_backward(cells, counts, b, x):
    """Overwrite each row x (p,) of `x` (s, p) with (I − B)⁻ᵀ x, see `solve_forward`."""
    for own in x:
        for k in range(own.size - 1, -1, -1):
            value = own[k]
            if value != 0.0:
                for a in range(counts[k]):
                    own[cells[k, a]] += b[k, a] * value
