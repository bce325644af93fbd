"""Prior moments of a step from the covariance of a model: written down where it is stationary, else by its graphs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.alike_graphs import stacked
from pymc_gpep.graphs.interpreted import graph_function
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.processes.stationary import Stationary
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.step_blocks import (
    InducingMoments,
    RowMoments,
    ScaleFunctions,
    StationaryBlocks,
    StepBlocks,
    grouped,
)

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
