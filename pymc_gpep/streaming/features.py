"""Features of a batch, q(v), the common shift, and prior moments of a step, as graphs.

Here q(v_k) = N(μ, Σ), Σ = (I + S)⁻¹, μ = Σ h. The sums S = Σ t w wᵀ and h = Σ ν w are over all sites exp(ν x − ½ t x²),
x = wᵀv. The features are w = L⁻¹ k(x), with K = L Lᵀ the prior covariance of the inducing values of a function. Then
f = m + wᵀv + e with v ~ N(0, I) and e ~ N(0, s), s = κ − wᵀw, as in `pymc_gpep.solvers.inducing`. Coefficients of
effects stand below these features, as there.

The common shift is a function δ(x) added to all latent functions. It moves their sites with it, ν_k + t_k δ, and the
prior decides which δ is best. Steps alone would move it by a small part of the distance, while the noise of batches
moves it as much as anything else. All rows at once solve for it as well (`pymc_gpep.solvers.common_shift`).

The sites of a batch are computed at means m of its latent functions. For test functions φ(x) a fit keeps

    R_k = Σ t_k φ wᵀ,   Q = Σ φ φᵀ Σ_k t_k,   g = Σ φ Σ_k t_k m_k

over all sites, averages of batches as S and h are. Let sites be right up to a function δ = φᵀa, and μ_k be the means
that h_k + R_kᵀ a imply. Then Σ_k R_k μ_k = g + Q a. This is a linear system for a. At a fixed point μ_k are the means
at which sites were computed, and a = 0 for any φ.

Functions with common features have φ = w, R_k = S_k and Q = Σ_k S_k. Otherwise φ has some features of each function,
about as many in all as one function has. They are other features for each function, since inducing inputs may be the
same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.alike_graphs import stacked
from pymc_gpep.graphs.interpreted import ModelFunctions, graph_function
from pymc_gpep.latent.latent_prior import RowsBeside
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.prior_moments.moment_functions import moment_graphs
from pymc_gpep.processes.cross_covariance import functions_of
from pymc_gpep.processes.stationary import Stationary, scales_outside
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.step_algebra import LEAST_RIDGE, RIDGE
from pymc_gpep.solvers.step_blocks import (
    InducingMoments,
    RowMoments,
    ScaleFunctions,
    StationaryBlocks,
    StepBlocks,
    grouped,
)


class Gaussian(NamedTuple):
    """N(μ_k, Σ_k) for c functions."""

    factor: TensorVariable
    """Cholesky factor of I + S, (c, M, M)."""
    mean: TensorVariable
    """μ, (c, M)."""
    log_normalisers: TensorVariable
    """log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv, (c,)."""

    def half(self, w: TensorVariable) -> TensorVariable:
        """R w (c, M, B) for features w (q, M, B), where Σ = Rᵀ R."""
        return pt.linalg.solve_triangular(self.factor, w, lower=True, b_ndim=2)

    def means(self, w: TensorVariable) -> TensorVariable:
        """Return the means of the wᵀv, (c, B)."""
        return pt.matmul(self.mean[:, None, :], w)[:, 0]


def gaussian(precision: TensorVariable, location: TensorVariable) -> Gaussian:
    """The Gaussian of S (c, M, M) and h (c, M); NaN where I + S has no Cholesky factor."""
    factor = pt.linalg.cholesky(precision + pt.eye(precision.type.shape[1])[None])
    half = pt.linalg.solve_triangular(factor, location, lower=True, b_ndim=1)
    mean = pt.linalg.solve_triangular(factor, half, lower=True, trans=1, b_ndim=1)
    log_det = pt.log(pt.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    return Gaussian(factor, mean, 0.5 * (half * half).sum(axis=1) - log_det)


class PriorBlocks(NamedTuple):
    """Prior moments; q is 1 where all functions share their covariance and inducing inputs, else c."""

    inducing: TensorVariable
    """(q, M, M)."""
    cross: TensorVariable
    """(q, M, B)."""
    variance: TensorVariable
    """(q, B)."""
    mean: TensorVariable
    """(c, B)."""
    effects: TensorVariable
    """Coefficients of the p standard normals of effects, (q, p, B)."""


class BatchFeatures(NamedTuple):
    """Features of the rows of a batch, and the rest of their prior."""

    w: TensorVariable
    """(q, M + p, B)."""
    rest: TensorVariable
    """s, (q, B)."""
    mean: TensorVariable
    """m, (c, B)."""


def prior_blocks(
    classifier: GPClassifier,
    gps: Sequence[pm.gp.Latent] | None,
    data: Mapping[Variable, Variable],
    inducing: TensorVariable,
    x: TensorVariable,
    beside: RowsBeside | None = None,
) -> PriorBlocks:
    """Return prior moments in terms of value variables, inducing inputs (1 or c, M, d) and rows (B, d).

    Parameters
    ----------
    classifier, gps, data
        Parameters of `InducingBlocks`.
    inducing : TensorVariable (1 or c, M, d)
        Inducing inputs, with a known shape.
    x : TensorVariable (B, d)
        Rows, with a known shape; rows of a table with effects `beside` the process.
    beside : RowsBeside, optional
    """
    matched = functions_of(classifier.prior, gps)
    sets, size, columns = inducing.type.shape
    z = pt.tensor("inducing_inputs_of_one", dtype="float64", shape=(size, columns))
    of = ModelFunctions(classifier.model, classifier.hyperparameters, data)
    made = [scales_outside(moment_graphs(of, latent, functions, z, x, beside)) for latent, functions in matched]
    places = {
        k: (graphs, output)
        for graphs, (latent, _) in zip(made, matched, strict=True)
        for output, k in enumerate(latent.classes)
    }
    c = classifier.n_functions
    ordered = [places[k] for k in range(c)]
    mean = pt.stack([graphs[3][output] for graphs, output in ordered])
    own = [graphs[:3] for graphs, _ in ordered]
    if len(matched) == 1 and sets == 1:
        own = own[:1]
    count = len(own)
    along = pt.broadcast_to(inducing, (count, size, columns)) if sets < count else inducing
    rows = x.type.shape[0]
    shapes = (count, size, size), (count, size, rows), (count, rows)
    covariance, cross, variance = map(pt.specify_shape, stacked(own, {z: along}), shapes)
    effects = pt.stack(made[0][4:]) if beside else pt.zeros((count, 0, rows))
    effects = pt.specify_shape(effects, (count, beside.n_effects if beside else 0, rows))
    return PriorBlocks(covariance, cross, variance, pt.specify_shape(mean, (c, rows)), effects)


def batch_features(blocks: PriorBlocks, jitter: TensorVariable) -> BatchFeatures:
    """Features; NaN where a covariance with `jitter`, relative to its mean diagonal, has no Cholesky factor."""
    size = blocks.inducing.type.shape[1]
    diagonal = pt.diagonal(blocks.inducing, axis1=1, axis2=2).mean(axis=1)
    factor = pt.linalg.cholesky(blocks.inducing + (jitter * diagonal)[:, None, None] * pt.eye(size)[None])
    w = pt.linalg.solve_triangular(factor, blocks.cross, lower=True, b_ndim=2)
    rest = pt.maximum(blocks.variance - (w * w).sum(axis=1), 0.0)
    stacked_features = pt.concatenate([w, blocks.effects], axis=1) if blocks.effects.type.shape[1] else w
    return BatchFeatures(stacked_features, rest, blocks.mean)


class CommonTerms(NamedTuple):
    """What is known of sites and test functions."""

    location: TensorVariable
    """g, (r,)."""
    cross: TensorVariable
    """R, (c, r, M)."""
    precision: TensorVariable
    """Q, (r, r)."""


class CommonMemory:
    """Averages over batches, as variables that a compiled step changes.

    Parameters
    ----------
    functions, size : int
        c and M.
    own : bool
        Whether functions have features of their own.
    """

    def __init__(self, functions: int, size: int, own: bool) -> None:
        tests = _count(functions, size) * functions if own else size
        shapes: dict[str, tuple[int, ...]] = {"common_location": (tests,)}
        if own:
            shapes |= {"common_cross": (functions, tests, size), "common_precision": (tests, tests)}
        self.variables: list[SharedVariable] = [
            pytensor.shared(np.zeros(shape), name, shape=shape) for name, shape in shapes.items()
        ]

    def terms(self, precision: TensorVariable) -> CommonTerms:
        """As remembered, where S is `precision` (c, M, M)."""
        location, *own = self.variables
        return CommonTerms(location, *own) if own else CommonTerms(location, precision, precision.sum(axis=0))

    def estimates(self, terms: CommonTerms) -> list[TensorVariable]:
        """Return the terms that are remembered, in the order of the variables."""
        return list(terms[: len(self.variables)])


def common_features(w: TensorVariable) -> TensorVariable:
    """φ (r, B), for features w (q, M, B)."""
    sets, size, _ = w.type.shape
    part = _count(sets, size)
    first = [min(k * part, size - part) for k in range(sets)]
    return pt.concatenate([w[k, start : start + part] for k, start in enumerate(first)], axis=0)


def common_terms(w: TensorVariable, t: TensorVariable, mean: TensorVariable) -> CommonTerms:
    """Sums over a batch, for features w (q, M, B), Σ t (c, B) and the means of the wᵀv (c, B) that sites saw."""
    phi = common_features(w)
    weighted = phi[None] * t[:, None, :]
    return CommonTerms(
        pt.dot(phi, (t * mean).sum(axis=0)),
        pt.matmul(weighted, w.transpose(0, 2, 1)),
        pt.dot(phi * t.sum(axis=0), phi.T),
    )


def shifted(
    location: TensorVariable, terms: CommonTerms, seen: Gaussian, share: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """h (c, M) and g (r,) of sites that have moved with the best function common to all.

    Parameters
    ----------
    location : TensorVariable (c, M)
        h.
    terms : CommonTerms
    seen : Gaussian
        The one that batches are taken with, of S and h times `share` (c,).
    """
    half = pt.linalg.solve_triangular(seen.factor, terms.cross.transpose(0, 2, 1), lower=True, b_ndim=2)
    follows = (share[:, None, None] * pt.matmul(half.transpose(0, 2, 1), half)).sum(axis=0)
    system = terms.precision - follows
    tests = system.type.shape[0]
    ridge = RIDGE * pt.maximum(pt.diagonal(system).sum(), 0.0) / tests + LEAST_RIDGE
    missing = pt.matmul(terms.cross, seen.mean[:, :, None])[:, :, 0].sum(axis=0) - terms.location
    factor = pt.linalg.cholesky(system + ridge * pt.eye(tests))
    solved = pt.linalg.solve_triangular(factor, missing, lower=True, b_ndim=1)
    solved = pt.linalg.solve_triangular(factor, solved, lower=True, trans=1, b_ndim=1)
    weights = pt.switch(pt.isfinite(solved.sum()), solved, 0.0)
    moved = pt.matmul(weights[None, None, :], terms.cross)[:, 0]
    return location + moved, terms.location + pt.dot(terms.precision, weights)


def _count(functions: int, size: int) -> int:
    """How many of the features of each function are test functions."""
    return -(-size // functions)


_APART = 0.3  # between places of the hyperparameters at which a covariance is looked at


def model_blocks(space: Hyperparameters, blocks: InducingBlocks) -> StepBlocks:
    """The prior of a model that steps are taken for."""
    theta = space.initial_point()
    moved = theta + _APART * np.sin(1.0 + np.arange(theta.size))
    found = blocks.stationary([_values(space, at) for at in (theta, moved)])
    written = None
    if found is not None:
        profiles = [each.profile for each in found]
        written = StationaryBlocks(profiles, _ScaleFunctions(space, found), blocks.covariance_of)
    # Coefficients of effects have graphs, which give the process beside them as well.
    return _GraphBlocks(space, blocks.by_group(), written) if written is None or blocks.beside else written


def _values(space: Hyperparameters, theta: Array) -> list[Array]:
    point = space.point(theta)
    return [np.asarray(point[variable.name]) for variable in space.value_vars]


class _ScaleFunctions:
    """See `pymc_gpep.solvers.step_blocks.ScaleFunctions`; the last values are kept, which stay for many steps."""

    def __init__(self, space: Hyperparameters, found: Sequence[Stationary]) -> None:
        self._space = space
        outputs = stacked([[each.scales, each.variance, each.noise] for each in found], {})
        bars = [each.type() for each in outputs]
        model = space.classifier.model
        self._function = graph_function(model, space.value_vars, outputs, trust_input=True)
        self._slopes: Any = None
        if space.value_vars:
            total = pt.add(*((bar * out).sum() for bar, out in zip(bars, outputs, strict=True)))
            slopes = pytensor.grad(total, space.value_vars, disconnected_inputs="ignore")
            flat = pt.concatenate([each.ravel() for each in slopes])
            self._slopes = graph_function(model, [*space.value_vars, *bars], flat, trust_input=True)
        self._last: tuple[Array, tuple[Array, Array, Array]] | None = None

    def __call__(self, theta: Array) -> tuple[Array, Array, Array]:
        if self._last is None or not np.array_equal(self._last[0], theta):
            found = self._function(*_values(self._space, theta))
            scales, variances, noises = (np.asarray(each, np.float64) for each in found)
            self._last = theta.copy(), (scales, variances, noises)
        return self._last[1]

    def pulled(self, theta: Array, scales: Array, variances: Array, noises: Array) -> Array:
        if self._slopes is None:
            return np.empty(0)
        return np.asarray(self._slopes(*_values(self._space, theta), scales, variances, noises))


class _GraphBlocks:
    """By graphs of the model for these moments alone; scales are those of a `form` that is written down."""

    written = False

    def __init__(self, space: Hyperparameters, blocks: InducingBlocks, form: StationaryBlocks | None) -> None:
        self._space, self._blocks, self._form = space, blocks, form
        self.covariance_of = blocks.covariance_of

    def at(self, theta: Array, z: Array, single: bool = False) -> InducingMoments:
        return _GraphMoments(self._space, self._blocks, theta, z)

    def same_scales(self, theta: Array) -> Array | None:
        return self._form.same_scales(theta) if self._form else None

    def scale_functions(self) -> ScaleFunctions | None:
        return self._form.scale_functions() if self._form else None


class _GraphMoments:
    def __init__(self, space: Hyperparameters, blocks: InducingBlocks, theta: Array, z: Array) -> None:
        self._blocks, self._point, self._z = blocks, space.point(theta.copy()), z
        self._groups = grouped(blocks.covariance_of, len(z))
        self.covariances: list[Array] = list(blocks.inducing(self._point, z))
        self._x = np.empty((0, z.shape[2]))

    def rows(self, x: Array) -> list[RowMoments]:
        self._x = x
        found = self._blocks.block(self._point, self._z, x)
        effects = np.ascontiguousarray(found.effects[0].T) if self._blocks.beside else None  # of the only group
        means = [found.mean[each.taken].T for each in self._groups]
        return [
            RowMoments(np.ascontiguousarray(cross.T), variance, mean if mean.any() else None, effects)
            for cross, variance, mean in zip(found.cross, found.variance, means, strict=True)
        ]

    def pulled(self, covariances: Sequence[Array], rows: Sequence[RowMoments]) -> tuple[Array, Array]:
        of_values, of_z = self._blocks.inducing_slopes(self._point, self._z, np.stack(covariances))
        mean = np.empty((self._blocks.n_functions, len(self._x)))
        for group, each in zip(self._groups, rows, strict=True):
            assert each.mean is not None
            mean[group.taken] = each.mean.T
        bars = Block(np.stack([each.cross.T for each in rows]), np.stack([each.variance for each in rows]), mean)
        if self._blocks.beside:
            bars = bars._replace(effects=np.stack([each.effects.T for each in rows if each.effects is not None]))
        more_values, more_z = self._blocks.block_slopes(self._point, self._z, self._x, bars)
        return np.asarray(of_values + more_values), of_z + more_z
