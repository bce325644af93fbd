"""Prior moments of a batch, by graphs of the model or by closed forms, and initial length scales."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.alike_graphs import stacked
from pymc_gpep.graphs.interpreted import ModelFunctions, flat, graph_function, pulled_back
from pymc_gpep.latent.latent_prior import EffectRows
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, moment_graphs
from pymc_gpep.processes.processes import functions_of
from pymc_gpep.processes.stationary import Stationary, scales_outside
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.rows.rows import Rows, column_deviations, sample_inputs
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.step_algebra import (
    Group,
    InducingMoments,
    RowMoments,
    ScaleFunctions,
    StationaryBlocks,
    StepBlocks,
    grouped,
)


class PriorBlocks(NamedTuple):
    """Prior moments of latent functions as graphs. The q groups of functions share features."""

    inducing: TensorVariable
    """Covariance of the inducing values, (q, M, M)."""
    cross: TensorVariable
    """Covariance of inducing values and rows, (q, M, B)."""
    variance: TensorVariable
    """Prior variances of the rows, (q, B)."""
    mean: TensorVariable
    """Prior means of the rows, (c, B)."""
    effects: TensorVariable
    """Coefficients of the p standard normals of effects, (q, p, B)."""


def prior_blocks(
    classifier: GPClassifier,
    gps: Sequence[pm.gp.Latent] | None,
    data: Mapping[Variable, Variable],
    inducing: TensorVariable,
    x: TensorVariable,
    groups: Sequence[Group],
    effect_rows: EffectRows | None = None,
) -> PriorBlocks:
    """Return graphs of prior moments, with value variables, inducing inputs and rows of a batch as inputs.

    Parameters
    ----------
    classifier, gps, data
        Parameters of `InducingBlocks`.
    inducing : TensorVariable (1 or c, M, d)
        Inducing inputs, with a static shape.
    x : TensorVariable (B, d)
        Rows, with a static shape; rows of a table if the model has effects (`effect_rows`).
    groups : sequence of Group
    effect_rows : EffectRows, optional
    """
    matched = functions_of(classifier.prior, gps)
    _, size, columns = inducing.type.shape
    z = pt.tensor("inducing_inputs_of_one", dtype="float64", shape=(size, columns))
    of = ModelFunctions(classifier.model, classifier.hyperparameters, data)
    made = [scales_outside(moment_graphs(of, latent, functions, z, x, effect_rows)) for latent, functions in matched]
    places = {
        k: (graphs, output)
        for graphs, (latent, _) in zip(made, matched, strict=True)
        for output, k in enumerate(latent.classes)
    }
    c, count, rows = classifier.n_functions, len(groups), x.type.shape[0]
    mean = pt.stack([graphs[3][output] for graphs, output in map(places.__getitem__, range(c))])
    own = [places[each.functions[0]][0][:3] for each in groups]
    along = pt.stack([inducing[each.inputs] for each in groups])
    shapes = (count, size, size), (count, size, rows), (count, rows)
    covariance, cross, variance = map(pt.specify_shape, stacked(own, {z: along}), shapes)
    effects = pt.stack(made[0][4:]) if effect_rows else pt.zeros((count, 0, rows))
    effects = pt.specify_shape(effects, (count, effect_rows.n_effects if effect_rows else 0, rows))
    return PriorBlocks(covariance, cross, variance, pt.specify_shape(mean, (c, rows)), effects)


_APART = 0.3  # Largest change of a hyperparameter between two points that test the form of a covariance.


def model_blocks(space: Hyperparameters, blocks: InducingBlocks) -> StepBlocks:
    """Return the prior moments of a model for steps over batches."""
    theta = space.initial_point()
    moved = theta + _APART * np.sin(1.0 + np.arange(theta.size))
    found = blocks.stationary([_values(space, at) for at in (theta, moved)])
    written = None
    if found is not None:
        profiles = [each.profile for each in found]
        written = StationaryBlocks(profiles, _ScaleFunctions(space, found), blocks.covariance_of)
    # In a model with effects, graphs compute their coefficients together with the moments of the process.
    return _GraphBlocks(space, blocks.by_group(), written) if written is None or blocks.effect_rows else written


def _values(space: Hyperparameters, theta: Array) -> list[Array]:
    point = space.point(theta)
    return [np.asarray(point[variable.name]) for variable in space.value_vars]


class _ScaleFunctions:
    """Inverse length scales, variances and noises, see `ScaleFunctions`. The last values are cached."""

    def __init__(self, space: Hyperparameters, found: Sequence[Stationary]) -> None:
        self._space = space
        outputs = stacked([[each.scales, each.variance, each.noise] for each in found], {})
        model = space.classifier.model
        self._function = graph_function(model, space.value_vars, outputs, trust_input=True)
        self._slopes: Any = None
        if space.value_vars:
            bars, slopes = pulled_back(outputs, space.value_vars)
            self._slopes = graph_function(model, [*space.value_vars, *bars], flat(slopes), trust_input=True)
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
    """Prior moments by graphs of the model. Inverse length scales are from the closed `form`, if it exists."""

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
        effects = np.ascontiguousarray(found.effects[0].T) if self._blocks.effect_rows else None
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
        if self._blocks.effect_rows:
            bars = bars._replace(effects=np.stack([each.effects.T for each in rows if each.effects is not None]))
        more_values, more_z = self._blocks.block_slopes(self._point, self._z, self._x, bars)
        return np.asarray(of_values + more_values), of_z + more_z


_PAIRS = 1000  # Number of pairs of rows from which the median distance is computed.
_SQUARE = 4.0  # Median squared distance of two rows for initial length scales, in units of length scales.
_NEWTON, _CLOSE, _LONGEST = 10, 1e-3, 2.0  # Newton steps: largest number, size of the last step, largest size.
_PARTS = 1.0, 0.5, 0.25  # Fractions of the step to length scales from the data. The first possible is taken.
_UNLIKELY = 10.0  # A step to length scales from the data may lower the log prior by at most this number.


def first_scales(
    space: Hyperparameters, functions: ScaleFunctions, theta: Array, free: Collection[str], rows: Rows, seed: int
) -> Array:
    """Return hyperparameters (p,) with length scales from the data, unless these are unlikely under the prior.

    A common length scale is half of the median distance of two rows. Length scales of columns are proportional to
    standard deviations of the columns. Much shorter or longer length scales are poor starts, with slopes near 0.

    Parameters
    ----------
    space : Hyperparameters
    functions : ScaleFunctions
        Functions that return the scales (inverse length scales) of the covariance for hyperparameters.
    theta : array (p,)
        Initial hyperparameters.
    free : collection of str
        Names of the hyperparameters that may move.
    rows : Rows
    seed : int
    """
    moves = np.array([owner in free for owner in space.owners], bool)
    if not moves.any():
        return theta
    x = sample_inputs(rows, 2 * _PAIRS, np.random.default_rng(seed))
    half = len(x) // 2
    (scales,), *_ = functions(theta)
    used = scales > 0.0
    own = not _same_slopes(functions, theta, scales, used)
    base = 1.0 / _positive(column_deviations(rows)) if own else scales
    square = float(np.median((x[:half, used] - x[half : 2 * half, used]) ** 2 @ base[used] ** 2)) if half else 0.0
    if not (np.isfinite(square) and square > 0.0):
        return theta
    wanted = np.log(base * np.sqrt(_SQUARE / square))
    looked_at = np.flatnonzero(used) if own else np.flatnonzero(used)[:1]
    at = theta.copy()
    for _ in range(_NEWTON):
        (scales,), *_ = functions(at)
        slopes = np.array([_slopes(functions, at, each) for each in np.eye(len(scales))[looked_at]])
        slopes = np.where(moves, slopes / scales[looked_at, None], 0.0)
        step, *_ = np.linalg.lstsq(slopes, wanted[looked_at] - np.log(scales[looked_at]), rcond=1e-8)
        if not np.isfinite(step).all() or np.abs(step).max(initial=0.0) < _CLOSE:
            break
        at = at + np.clip(step, -_LONGEST, _LONGEST)
    before = space.log_prior(theta)
    for part in _PARTS:
        moved = theta + part * (at - theta)
        if space.log_prior(moved) > before - _UNLIKELY:
            return moved
    return theta


def _same_slopes(functions: ScaleFunctions, theta: Array, scales: Array, used: NDArray[np.bool_]) -> bool:
    """Return whether all scales are equal and have equal derivatives in the hyperparameters.

    The derivative of a randomly weighted sum of scales is compared with the derivative of their sum.
    """
    if np.ptp(scales[used]):
        return False
    weights = np.where(used, np.random.default_rng(0).normal(size=len(scales)), 0.0)
    drawn = _slopes(functions, theta, weights)
    of_all = _slopes(functions, theta, used.astype(np.float64))
    return bool(np.allclose(drawn, of_all * weights.sum() / used.sum(), rtol=1e-8, atol=1e-12))


def _slopes(functions: ScaleFunctions, theta: Array, weights: Array) -> Array:
    """Return the derivatives (p,) of a weighted sum of scales, with weights (d,)."""
    return functions.pulled(theta, weights[None], np.zeros(1), np.zeros(1))


def _positive(deviations: Array) -> Array:
    return np.where(deviations > 0.0, deviations, 1.0)
