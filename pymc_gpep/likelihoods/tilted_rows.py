"""Moments of tilted distributions of rows with several latent values, by quadrature.

The tilted distribution of a row is p(y | f) N(f | μ, R Rᵀ), normalised. Its latent values are f = μ + R z. The first
elements of z are outer elements. Their nodes form a product of Gauss–Hermite rules. All other elements are inner
elements. They are integrated at each outer node. This integral is exact if the log density is quadratic in the inner
latent values. Otherwise a single inner element has separate nodes at each outer node.

Means and covariances determine the nodes (Naylor and Smith 1982). First these are modes and inverse curvatures, then
moments computed with the previous nodes, until they agree. A row has more nodes if a larger rule changes its result.

J. C. Naylor and A. F. M. Smith (1982). Applications of a method for the efficient computation of posterior
distributions. *Applied Statistics* 31 (3), 214–225.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.moments.predictor_sites import (
    inner_moments,
    lower_roots,
    node_moments,
    normal_moments,
    ordered_roots,
    place_nodes,
)
from pymc_gpep.likelihoods.factor_averages import normal_rule
from pymc_gpep.likelihoods.local_computations import Kernel

type Rows = NDArray[np.intp]

# Rules by number of outer elements, smallest first: nodes along each outer element, and along the inner element.
_NORMAL = {1: ((15, 1), (31, 1), (91, 1), (181, 1)), 2: ((9, 1), (15, 1), (25, 1)), 3: ((7, 1), (11, 1), (15, 1))}
_OTHERS = {1: ((11, 9), (17, 15), (31, 25)), 2: ((9, 7), (13, 11), (19, 17)), 3: ((7, 7), (9, 9), (11, 11))}
_EQUIDISTANT, _END = 50, 9.0  # A rule with at least `_EQUIDISTANT` nodes is equidistant, from −_END to _END.
MOST_OUTER = max(_NORMAL)
"""Largest number of outer latent values."""
_AT_A_TIME = 16_384  # Log densities are computed at this number of nodes together.
_PASSES = 12  # The nodes of a row are moved at most this number of times.
_MOVED, _STRETCHED = 0.3, 1.5  # Nodes are moved if the mean or the standard deviation changes by more.
_SAME = 1e-7  # A larger rule is kept only if it changes log averages or moments by more than this.
# Trials choose the inner latent value if a row has at least the first number of values. A trial uses 24 rows.
_FEWEST_CHOSEN, _LOOKED_AT = 3, 24
_STEPS, _HALVINGS, _STILL = 50, 30, 1e-6
# A precision at a mode is at least this fraction of the precision of the cavity.
_LEAST_PRECISION = 0.05


class Split(NamedTuple):
    """Latent values of a row in the order of integration: outer values first, then inner values."""

    order: NDArray[np.int64]
    """Indices of the outer latent values, then of the inner latent values, (k,)."""
    outer: int
    """Number of outer latent values."""
    normal: bool
    """Whether the log density is quadratic in the inner latent values."""

    @property
    def inner(self) -> NDArray[np.int64]:
        """Indices of the inner latent values."""
        return self.order[self.outer :]


class NodesDensity(NamedTuple):
    """Density of several latent values of a point, for evaluation at quadrature nodes."""

    columns: Kernel
    """`(y, parameters)`: return columns (q, n), parts of the log density that do not depend on latent values."""
    values: Kernel
    """`(f, columns)`: return log p(y_i | f_i) (n,)."""
    inner: Kernel
    """`(f, columns, inner)`: return log p(y_i | f_i) (n,), and derivatives (q, n), (q, q, n) in q inner values."""
    derivatives: Kernel
    """`(f, y, parameters)`: return log p(y_i | f_i) (n,), its gradient (c, n) and second derivatives (n, c, c)."""
    slopes: Kernel
    """`(f, y, parameters)`: return derivatives (p, n) of log p(y_i | f_i) in each row of the parameters."""
    split: Kernel
    """`(y, parameters)`: return the `Split` into outer and inner latent values."""


class TiltedNumbers(NamedTuple):
    """Normalisers and moments of the tilted distributions of n rows."""

    log_z: Array
    """Log averages of the density over the cavities, (n,)."""
    mean: Array
    """Tilted means of the standard normals z, (n, k)."""
    cov: Array
    """Tilted covariances of the standard normals z, (n, k, k)."""

    @classmethod
    def empty(cls, n: int, k: int) -> "TiltedNumbers":
        """Return NaN for n rows."""
        return cls(np.full(n, np.nan), np.full((n, k), np.nan), np.full((n, k, k), np.nan))


class _Nodes(NamedTuple):
    """Nodes of m rows: d outer nodes, e inner nodes at each outer node, and moments of the q inner elements of z."""

    rows: Rows
    f: Array
    """Latent values at all nodes, (k, m d e)."""
    inner_weights: Array
    """Weights of the inner nodes, (m, d, e)."""
    squares: Array
    """½|z|² of the outer elements of z at each outer node, (m, d)."""
    log_z: Array
    """Log averages of the density over the inner elements, at each outer node, (m, d)."""
    mean: Array
    """Means of the inner elements at each outer node, (m, d, q)."""
    cov: Array
    """Covariances of the inner elements at each outer node, (m, d, q, q)."""


@lru_cache
def _rule(k: int, order: int) -> tuple[Array, Array]:
    """Return nodes x (d, k), and log weight + ½|x|² of each node (d,), for averages over k standard normals.

    A large rule for one element has equidistant nodes. They converge faster if the density has poles near the real
    axis.
    """
    if k == 1 and order >= _EQUIDISTANT:
        nodes = np.linspace(-_END, _END, order)
        return nodes[:, None], np.full(order, np.log(nodes[1] - nodes[0]) - 0.5 * np.log(2.0 * np.pi))
    nodes, weights = normal_rule(order, k)
    kept = weights > 1e-18 * weights.max()
    return nodes[kept], np.log(weights[kept]) + 0.5 * (nodes[kept] ** 2).sum(axis=1)


class TiltedRows:
    """Quadratures of the tilted distributions of n rows. Nodes move if the cavities change.

    Parameters
    ----------
    density : NodesDensity
    y : array (n,)
    parameters : array (p, n)
    k : int
        Number of latent values of a row.
    """

    def __init__(self, density: NodesDensity, y: Observed, parameters: Array, k: int) -> None:
        self._density, self._y, self._parameters, self._k = density, y, parameters, k
        self._columns = density.columns(y, parameters)
        self._known = np.zeros(len(y), np.intp)
        self._chosen = k < _FEWEST_CHOSEN
        self._divide(density.split(y, parameters))

    def _divide(self, split: Split) -> None:
        """Set the outer and inner latent values. Nodes are placed later."""
        self.split, n, o = split, len(self._y), split.outer
        self._rules = (_NORMAL if split.normal else _OTHERS)[o]
        self._centre, self._scale = np.full((n, o), np.nan), np.full((n, o, o), np.nan)
        # Centres and scales of the inner element at outer nodes, by rule.
        self._inner: dict[int, tuple[Array, Array]] = {}
        self._rank = np.minimum(self._known, len(self._rules) - 1)

    @property
    def ranks(self) -> Rows:
        """Index (n,) of the rule of each row; 0 is the smallest rule."""
        return self._rank

    @ranks.setter
    def ranks(self, known: Rows) -> None:
        self._known = known
        self._divide(self.split)

    def _choose(self, at: Array, cov: Array) -> None:
        """Choose the inner latent value for which two rules agree best at a few rows. `at` and `cov` are cavities."""
        self._chosen = True
        if self.split.normal:
            return
        some = np.unique(np.linspace(0, len(at) - 1, _LOOKED_AT).astype(int))
        mean, wide = np.ascontiguousarray(at[some]), np.ascontiguousarray(cov[some])
        errors = {}
        for inner in range(self._k):
            order = np.array([*(i for i in range(self._k) if i != inner), inner], np.int64)
            rows = TiltedRows(self._density, self._y[some], self._parameters[:, some], self._k)
            rows._chosen = True
            rows._divide(Split(order, self._k - 1, False))
            root = rows.roots(wide)
            small = rows.moments(mean, root).log_z
            rows._rank += 1
            errors[inner] = np.abs(rows.moments(mean, root).log_z - small).max()
        best = min(errors, key=lambda i: np.nan_to_num(errors[i], nan=np.inf))
        self._divide(Split(np.array([*(i for i in range(self._k) if i != best), best], np.int64), self._k - 1, False))

    def cavities(self, at: Array, cov: Array) -> Array:
        """Return roots R (n, k, k) of cavity covariances, R Rᵀ = `cov`, which may be singular; `at` are means."""
        if not self._chosen:
            self._choose(at, cov)
        return self.roots(cov)

    def roots(self, cov: Array) -> Array:
        """Return roots R (n, k, k) of covariances R Rᵀ, which may be singular."""
        root = np.empty(cov.shape)
        ordered_roots(np.ascontiguousarray(cov), self.split.order, root)
        return root

    def moments(self, at: Array, root: Array) -> TiltedNumbers:
        """Return tilted moments for cavity means `at` (n, k) and roots (n, k, k) of cavity covariances."""
        n, o = len(at), self.split.outer
        found = TiltedNumbers.empty(n, self._k)
        begun = ~np.isfinite(self._scale).all(axis=(1, 2))
        if begun.any():
            self._begin(np.flatnonzero(begun), at, root)
        rows = np.arange(n)
        for _ in range(_PASSES):
            centre, before = self._centre[rows], self._scale[rows]
            inside = self._average(rows, at, root, found)
            mean, cov, scale = found.mean[rows, :o], found.cov[rows, :o, :o], before.copy()
            lower_roots(np.ascontiguousarray(cov), scale)
            self._centre[rows], self._scale[rows] = np.where(np.isfinite(mean), mean, centre), scale
            moved = np.abs(mean - centre) > _MOVED * np.sqrt(cov.diagonal(axis1=1, axis2=2))
            ratio = np.abs(np.log(np.abs(scale.diagonal(axis1=1, axis2=2) / before.diagonal(axis1=1, axis2=2))))
            rows = rows[inside | moved.any(axis=1) | (ratio > np.log(_STRETCHED)).any(axis=1)]
            if not rows.size:
                break
        return found

    def refine(self, at: Array, root: Array) -> bool:
        """Use a larger rule for a row if this changes its moments. Return whether a row has a larger rule."""
        last, grown = len(self._rules) - 1, False
        rows = np.flatnonzero(self._rank < last)
        found = TiltedNumbers.empty(len(at), self._k)
        self._average(rows, at, root, found)
        while rows.size:
            before = [each[rows].copy() for each in found]
            self._rank[rows] += 1
            for _ in range(_PASSES):
                if not self._average(rows, at, root, found).any():
                    break
            same = np.abs(found.log_z[rows] - before[0]) < _SAME
            same &= (np.abs(found.mean[rows] - before[1]) < _SAME).all(axis=1)
            same &= (np.abs(found.cov[rows] - before[2]) < _SAME).all(axis=(1, 2))
            self._rank[rows[same]] -= 1
            grown |= not same.all()
            rows = rows[~same & (self._rank[rows] < last)]
        return grown

    def parameter_slopes(self, at: Array, root: Array, out: Array) -> None:
        """Write derivatives (p, n) of log Z with respect to parameters."""
        for nodes in self._conditional(np.arange(len(at)), at, root):
            rows, (m, d, e) = nodes.rows, nodes.inner_weights.shape
            weights = self._total(nodes, TiltedNumbers.empty(m, self._k))
            f, each = nodes.f, nodes.inner_weights * weights[:, :, None]
            if self.split.normal:
                f, e = self._normal_nodes(nodes, at, root)
                each = np.repeat(weights[:, :, None] / e, e, axis=2)
            y, parameters = np.repeat(self._y[rows], d * e), np.repeat(self._parameters[:, rows], d * e, axis=1)
            slopes = self._density.slopes(f, y, parameters).reshape(-1, *each.shape)
            out[:, rows] = np.einsum("pmde,mde->pm", np.where(each > 0.0, slopes, 0.0), each)

    def _normal_nodes(self, nodes: _Nodes, at: Array, root: Array) -> tuple[Array, int]:
        """Return latent values (k, m d e) at the nodes of an inner rule of degree 3, and its number of nodes e."""
        q = self._k - self.split.outer
        half = np.sqrt(q) * np.linalg.cholesky(nodes.cov).swapaxes(2, 3)
        moved = np.concatenate([half, -half], axis=2)
        inner = root[nodes.rows][:, :, self.split.outer :]
        f = nodes.f.reshape(self._k, *nodes.squares.shape)[..., None]
        f = f + np.einsum("maq,mdeq->amde", inner, nodes.mean[:, :, None] + moved)
        return np.ascontiguousarray(f).reshape(self._k, -1), 2 * q

    def _average(self, rows: Rows, at: Array, root: Array, found: TiltedNumbers) -> NDArray[np.bool_]:
        """Write moments of rows into `found`, by the present nodes. Return a mask of rows with moved inner nodes."""
        inside = np.zeros(len(at), bool)
        for nodes in self._conditional(rows, at, root):
            some = nodes.rows
            own = TiltedNumbers.empty(len(some), self._k)
            weights = self._total(nodes, own)
            found.log_z[some], found.mean[some], found.cov[some] = own
            if not self.split.normal:
                centre, scale = (each[some] for each in self._inner[self._rank[some[0]]])
                sd = np.sqrt(nodes.cov[:, :, 0, 0])
                moved = np.abs(nodes.mean[:, :, 0] - centre) > _MOVED * sd
                moved |= np.abs(np.log(sd / scale)) > np.log(_STRETCHED)
                inside[some] = (moved & (weights > _SAME) & (sd > 0.0)).any(axis=1)
                usable = np.isfinite(nodes.mean[:, :, 0]) & (sd > 0.0)
                kept = self._inner[self._rank[some[0]]]
                kept[0][some] = np.where(usable, nodes.mean[:, :, 0], centre)
                kept[1][some] = np.where(usable, sd, scale)
        return inside[rows]

    def _total(self, nodes: _Nodes, found: TiltedNumbers) -> Array:
        """Write the moments of m rows into `found`, and return the weights (m, d) of their outer nodes."""
        some = nodes.rows
        outer, log_weights = self._outer_rule(some)
        weights = np.empty_like(nodes.squares)
        node_moments(
            nodes.log_z,
            nodes.squares,
            log_weights,
            outer,
            self._centre[some],
            self._scale[some],
            nodes.mean,
            nodes.cov,
            weights,
            *found,
        )
        return weights

    def _outer_rule(self, rows: Rows) -> tuple[Array, Array]:
        """Return outer nodes and log weights of rows with the same rule."""
        return _rule(self.split.outer, self._rules[self._rank[rows[0]]][0])

    def _conditional(self, rows: Rows, at: Array, root: Array) -> Iterator[_Nodes]:
        """Yield the nodes of batches of rows. All rows of a batch have the same rule."""
        for rank in np.unique(self._rank[rows]):
            d, e = len(_rule(self.split.outer, self._rules[rank][0])[0]), self._rules[rank][1]
            own = rows[self._rank[rows] == rank]
            step = max(1, _AT_A_TIME // (d * e))
            for some in (own[begin : begin + step] for begin in range(0, len(own), step)):
                yield self._normal(some, at, root) if self.split.normal else self._by_nodes(some, at, root)

    def _normal(self, rows: Rows, at: Array, root: Array) -> _Nodes:
        """Return outer nodes with exact conditional moments of the inner elements."""
        (outer, _), q = self._outer_rule(rows), self._k - self.split.outer
        m, d = len(rows), len(outer)
        within, spread = np.zeros((m, d, q)), np.zeros((m, d))
        f, squares = self._placed(rows, at, root, within, spread, np.zeros(1))
        value, gradient, hessian = self._density.inner(
            f, np.repeat(self._columns[:, rows], d, axis=1), self.split.inner
        )
        log_z, mean, cov = np.empty((m, d)), np.empty((m, d, q)), np.empty((m, d, q, q))
        normal_moments(
            root[rows],
            self.split.order,
            value.reshape(m, d),
            gradient.reshape(q, m, d),
            hessian.reshape(q, q, m, d),
            log_z,
            mean,
            cov,
        )
        return _Nodes(rows, f, np.ones((m, d, 1)), squares, log_z, mean, cov)

    def _by_nodes(self, rows: Rows, at: Array, root: Array) -> _Nodes:
        """Return outer nodes, with moments of the inner element by quadrature."""
        rank = self._rank[rows[0]]
        (outer, _), (inner, log_weights) = self._outer_rule(rows), _rule(1, self._rules[rank][1])
        m, d, e = len(rows), len(outer), len(inner)
        if rank not in self._inner:
            self._inner[rank] = np.full((len(at), d), np.nan), np.full((len(at), d), np.nan)
        centre, scale = self._inner[rank]
        lacking = rows[~np.isfinite(scale[rows]).all(axis=1)]
        if lacking.size:
            centre[lacking], scale[lacking] = self._inner_modes(lacking, at, root)
        within, spread = centre[rows][:, :, None], scale[rows]
        f, squares = self._placed(rows, at, root, within, spread, inner[:, 0])
        values = self._density.values(f, np.repeat(self._columns[:, rows], d * e, axis=1)).reshape(m, d, e)
        weights, log_z = np.empty((m, d, e)), np.empty((m, d))
        mean, cov = np.empty((m, d, 1)), np.empty((m, d, 1, 1))
        inner_moments(np.ascontiguousarray(values), within, spread, inner[:, 0], log_weights, weights, log_z, mean, cov)
        return _Nodes(rows, f, weights, squares, log_z, mean, cov)

    def _placed(
        self, rows: Rows, at: Array, root: Array, within: Array, spread: Array, inner: Array
    ) -> tuple[Array, Array]:
        """Return latent values (k, m d e) at d outer nodes with e inner nodes, and ½|z|² (m, d) of outer elements."""
        outer, _ = self._outer_rule(rows)
        m, d, e = len(rows), len(outer), len(inner)
        f, squares = np.empty((self._k, m, d, e)), np.empty((m, d))
        place_nodes(
            at[rows], root[rows], self._centre[rows], self._scale[rows], outer, within, spread, inner, f, squares
        )
        return f.reshape(self._k, -1), squares

    def _inner_modes(self, rows: Rows, at: Array, root: Array) -> tuple[Array, Array]:
        """Return modes (m, d) of the inner element at outer nodes, and widths from the curvatures at the modes."""
        outer, _ = self._outer_rule(rows)
        m, d = len(rows), len(outer)
        columns = np.repeat(self._columns[:, rows], d, axis=1)
        own = np.repeat(root[rows, self.split.order[-1], self._k - 1], d)
        nothing = np.zeros((m, d))

        def height(z: Array) -> tuple[Array, Array, Array]:
            f, _ = self._placed(rows, at, root, z.reshape(m, d, 1), nothing, np.zeros(1))
            value, gradient, hessian = self._density.inner(f, columns, self.split.inner)
            return value - 0.5 * z**2, own * gradient[0] - z, 1.0 - own**2 * np.nan_to_num(hessian[0, 0])

        z, precision = _ascend(height, np.zeros(m * d))
        return z.reshape(m, d), 1.0 / np.sqrt(np.maximum(np.abs(precision), _LEAST_PRECISION)).reshape(m, d)

    def _begin(self, rows: Rows, at: Array, root: Array) -> None:
        """Place outer nodes of rows around the tilted modes, scaled by the curvature at the modes."""
        at, root, y, parameters = at[rows], root[rows], self._y[rows], self._parameters[:, rows]
        o = self.split.outer

        def height(z: Array) -> tuple[Array, Array, Array]:
            f = at + np.einsum("mij,mj->mi", root, z)
            value, gradient, hessian = self._density.derivatives(f.T, y, parameters)
            whole = np.eye(self._k) - np.einsum("mai,mab,mbj->mij", root, np.nan_to_num(hessian), root)
            return value - 0.5 * (z**2).sum(axis=1), np.einsum("mij,mi->mj", root, gradient.T) - z, whole

        z, precision = _ascend(height, np.zeros_like(at))
        values, vectors = np.linalg.eigh(precision)
        inverse = np.einsum("mij,mj,mkj->mik", vectors, 1.0 / np.maximum(np.abs(values), _LEAST_PRECISION), vectors)
        scale = np.broadcast_to(np.eye(o), (len(rows), o, o)).copy()
        lower_roots(np.ascontiguousarray(inverse[:, :o, :o]), scale)
        self._centre[rows], self._scale[rows] = z[:, :o], scale


class TiltedParts:
    """Quadratures of rows of several densities.

    Parameters
    ----------
    parts : sequence of tuple
        For each density: positions of its rows, indices of its parameters, and its quadratures.
    """

    def __init__(self, parts: Sequence[tuple[Rows, slice, TiltedRows]]) -> None:
        self._parts = parts

    @property
    def ranks(self) -> Rows:
        """Index (n,) of the rule of each row; 0 is the smallest rule."""
        found = np.zeros(sum(len(rows) for rows, *_ in self._parts), np.intp)
        for rows, _, own in self._parts:
            found[rows] = own.ranks
        return found

    @ranks.setter
    def ranks(self, known: Rows) -> None:
        for rows, _, own in self._parts:
            own.ranks = known[rows]

    def cavities(self, at: Array, cov: Array) -> Array:
        """Return roots (n, k, k) of the cavity covariances of all rows."""
        root = np.empty(cov.shape)
        for rows, _, own in self._parts:
            root[rows] = own.cavities(at[rows], cov[rows])
        return root

    def moments(self, at: Array, root: Array) -> TiltedNumbers:
        """Return tilted moments of all rows."""
        found = TiltedNumbers.empty(*at.shape)
        for rows, _, own in self._parts:
            for whole, part in zip(found, own.moments(at[rows], root[rows]), strict=True):
                whole[rows] = part
        return found

    def refine(self, at: Array, root: Array) -> bool:
        """Use a larger rule for a row if this changes its moments. Return whether a row has a larger rule."""
        return any([own.refine(at[rows], root[rows]) for rows, _, own in self._parts])  # noqa: C419  each is refined

    def parameter_slopes(self, at: Array, root: Array, out: Array) -> None:
        """Write derivatives of log Z of each row with respect to the parameters of its density."""
        out[:] = 0.0
        for rows, places, own in self._parts:
            slopes = np.empty((out[places].shape[0], len(rows)))
            own.parameter_slopes(at[rows], root[rows], slopes)
            out[places][:, rows] = slopes


def _ascend(height: Callable[[Array], tuple[Array, Array, Array]], z: Array) -> tuple[Array, Array]:
    """Maximise m functions by Newton's method from z (m,) or (m, k). Return the maxima and negative curvatures.

    `height` returns values (m,), slopes in the shape of z, and negative curvatures (m,) or (m, k, k).
    """
    now, slope, precision = height(z)
    for _ in range(_STEPS):
        if z.ndim == 1:
            step = slope / np.maximum(np.abs(precision), _LEAST_PRECISION)
        else:
            values, vectors = np.linalg.eigh(precision)
            values = np.maximum(np.abs(values), _LEAST_PRECISION)
            step = np.einsum("mij,mj->mi", vectors, np.einsum("mij,mi->mj", vectors, slope) / values)
        step = np.where(np.isfinite(step), step, 0.0)
        length = np.ones(len(z))
        for _ in range(_HALVINGS):
            at = z + (length if z.ndim == 1 else length[:, None]) * step
            new, own, bent = height(at)
            low = ~(new >= now - 1e-12 * np.abs(now))
            if not low.any():
                break
            length[low] *= 0.5
        keep = low if z.ndim == 1 else low[:, None]
        z = np.where(keep, z, at)
        now, slope = np.where(low, now, new), np.where(keep, slope, own)
        precision = np.where(low.reshape(-1, *[1] * (precision.ndim - 1)), precision, bent)
        if np.abs(step).max() < _STILL:
            break
    return z, precision
