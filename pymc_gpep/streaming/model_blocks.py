"""Prior moments of a step from the covariance of a model: written down where it is stationary, else by its graphs."""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.step_blocks import InducingMoments, RowMoments, ScaleFunctions, StationaryBlocks, StepBlocks
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.structure.stationary import Stationary

__all__ = ["model_blocks"]

_APART = 0.3  # between places of the hyperparameters at which a covariance is looked at


def model_blocks(space: Hyperparameters, blocks: InducingBlocks) -> StepBlocks:
    """The prior of functions that share their covariance, of a model that steps are taken for."""
    theta = space.initial_point()
    moved = theta + _APART * np.sin(1.0 + np.arange(theta.size))
    found = blocks.stationary([_values(space, at) for at in (theta, moved)])
    written = None if found is None else StationaryBlocks(found.profile, _ScaleFunctions(space, found))
    # Coefficients of effects have graphs, which give the process beside them as well.
    return _GraphBlocks(space, blocks, written) if written is None or blocks.beside else written


def _values(space: Hyperparameters, theta: Array) -> list[Array]:
    point = space.point(theta)
    return [np.asarray(point[variable.name]) for variable in space.value_vars]


class _ScaleFunctions:
    """See `pymc_gpep.solvers.step_blocks.ScaleFunctions`; the last values are kept, which stay for many steps."""

    def __init__(self, space: Hyperparameters, found: Stationary) -> None:
        self._space = space
        outputs = [found.scales, found.variance]
        bars = [each.type() for each in outputs]
        model = space.classifier.model
        self._function = graph_function(model, space.value_vars, outputs, trust_input=True)
        self._slopes: Any = None
        if space.value_vars:
            total = pt.add(*((bar * out).sum() for bar, out in zip(bars, outputs, strict=True)))
            slopes = pytensor.grad(total, space.value_vars, disconnected_inputs="ignore")
            flat = pt.concatenate([each.ravel() for each in slopes])
            self._slopes = graph_function(model, [*space.value_vars, *bars], flat, trust_input=True)
        self._last: tuple[Array, tuple[Array, float]] | None = None

    def __call__(self, theta: Array) -> tuple[Array, float]:
        if self._last is None or not np.array_equal(self._last[0], theta):
            scales, variance = self._function(*_values(self._space, theta))
            self._last = theta.copy(), (np.asarray(scales, np.float64), float(variance))
        return self._last[1]

    def pulled(self, theta: Array, scales: Array, variance: float) -> Array:
        if self._slopes is None:
            return np.empty(0)
        return np.asarray(self._slopes(*_values(self._space, theta), scales, np.asarray(variance)))


class _GraphBlocks:
    """By graphs of the model for these moments alone; scales are those of the covariance that is `written` down."""

    def __init__(self, space: Hyperparameters, blocks: InducingBlocks, written: StationaryBlocks | None) -> None:
        self._space, self._blocks, self._written = space, blocks, written

    def at(self, theta: Array, z: Array, single: bool = False) -> InducingMoments:
        return _GraphMoments(self._space, self._blocks, theta, z)

    def same_scales(self, theta: Array) -> Array | None:
        return self._written.same_scales(theta) if self._written else None

    def scale_functions(self) -> ScaleFunctions | None:
        return self._written.scale_functions() if self._written else None


class _GraphMoments:
    def __init__(self, space: Hyperparameters, blocks: InducingBlocks, theta: Array, z: Array) -> None:
        self._blocks, self._point, self._z = blocks, space.point(theta.copy()), z[None]
        self.covariance = blocks.inducing(self._point, self._z)[0]
        self._x = np.empty((0, z.shape[1]))

    def rows(self, x: Array) -> RowMoments:
        self._x = x
        found = self._blocks.block(self._point, self._z, x)
        mean = np.ascontiguousarray(found.mean.T)
        effects = np.ascontiguousarray(found.effects[0].T) if self._blocks.beside else None
        cross = np.ascontiguousarray(found.cross[0].T)
        return RowMoments(cross, found.variance[0], mean if mean.any() else None, effects)

    def pulled(self, covariance: Array, rows: RowMoments) -> tuple[Array, Array]:
        assert rows.mean is not None
        of_values, of_z = self._blocks.inducing_slopes(self._point, self._z, covariance[None])
        bars = Block(rows.cross.T[None], rows.variance[None], rows.mean.T)
        bars = bars if rows.effects is None else bars._replace(effects=rows.effects.T[None])
        more_values, more_z = self._blocks.block_slopes(self._point, self._z, self._x, bars)
        return np.asarray(of_values + more_values), (of_z + more_z)[0]
