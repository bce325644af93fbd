"""A Gaussian process among the terms of a sum: which of its values rows take, and with which coefficients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Add, Neg, Sub
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.structure.latent import LatentGP

_SAME = 1e-9
_SEED = 2

type Linear = Callable[[TensorVariable], TensorVariable]
"""From values of a process less their mean, in its shape, to what they add to the latent functions, (c, n)."""


def probes(shape: tuple[int, ...]) -> list[Array]:
    """Values of a process, in its shape, that show which of them a row takes: ones, numbers from 1 on, and noise."""
    count = int(np.prod(shape))
    return [
        np.ones(shape),
        np.arange(1.0, count + 1).reshape(shape),
        np.random.default_rng(_SEED).standard_normal(shape),
    ]


def cells_by_probes(changes: Sequence[Array], shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which of some values each row takes, and whether each takes one, times a coefficient, at the most.

    Parameters
    ----------
    changes : sequence of array
        Changes that `probes` of that shape make, in one shape.
    shape : tuple of int
        Shape of the values.
    """
    coefficient, coded, noise = changes
    none = coefficient == 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        cells = np.where(none, 1.0, coded / coefficient).round().astype(np.int64) - 1
    values = probes(shape)[2].ravel()
    inside = (cells >= 0) & (cells < values.size)
    again = np.where(inside, coefficient * values[np.where(inside, cells, 0)], np.nan)
    return cells, np.isclose(again, noise, rtol=_SAME, atol=_SAME)


@dataclass(frozen=True, eq=False)
class ProcessTerm:
    """The part of the covariance of latent functions that is a Gaussian process.

    Attributes
    ----------
    latent : LatentGP
    shape : tuple of int
        Shape of its values, (points,) or (outputs, points).
    linear : callable
    feeds : array (outputs,)
        The function that each output has a part in, −1 for no function.
    selected : bool
        Whether a row takes one value, times a coefficient.
    whole : bool
        Whether each row takes the value at its own place, whatever the data of the model are.
    """

    latent: LatentGP
    shape: tuple[int, ...]
    linear: Linear
    feeds: NDArray[np.int64]
    selected: bool
    whole: bool

    @classmethod
    def read(
        cls, latent: LatentGP, shape: tuple[int, ...], linear: Linear, given: list[Array], taken: NDArray[np.bool_]
    ) -> "ProcessTerm":
        """Find out what rows take of a process.

        Parameters
        ----------
        given : list of array
            Changes of the latent functions by `probes`, (c, n) each.
        taken : array (c, outputs)
            Whether each output has a part in each function.
        """
        coefficient = given[0]
        cells, alone = cells_by_probes(given, shape)
        selected = bool(alone.all())
        feeds = np.where(taken.any(axis=0), taken.argmax(axis=0), -1)
        points = shape[-1]
        own = [np.array_equal(cells[k] % points, np.arange(points)) for k in feeds if k >= 0]
        plain = all(np.allclose(coefficient[k], 1.0, rtol=0.0, atol=_SAME) for k in feeds if k >= 0)  # but for rounding
        fixed = not _follows_data(linear, shape)
        return cls(latent, shape, linear, feeds, selected, selected and all(own) and plain and fixed)

    def covariance(self, k: int) -> list[TensorVariable]:
        """Return covariances (n, n) that it adds to that of a function, each of one of its outputs."""
        outputs = np.flatnonzero(self.feeds == k)
        if not outputs.size:
            return []
        cov = self.latent.cov
        if self.whole:
            return [cov]
        if self.selected:
            coefficient = self.linear(pt.ones(self.shape))[k]
            codes = self.linear(pt.constant(probes(self.shape)[1]))[k]
            ratio = pt.switch(
                pt.eq(coefficient, 0.0), 1.0, codes / pt.switch(pt.eq(coefficient, 0.0), 1.0, coefficient)
            )
            cells = pt.mod(pt.round(ratio).astype("int64") - 1, self.shape[-1])
            return [coefficient[:, None] * coefficient * cov[cells][:, cells]]
        rows = [self._map(k, int(output)) for output in outputs]
        return [each @ cov @ each.T for each in rows]

    def _map(self, k: int, output: int) -> TensorVariable:
        """Matrix (n, points) that takes an output to a function."""
        points = self.shape[-1]
        units = np.zeros((points, *self.shape))
        units[(range(points), output, range(points)) if len(self.shape) > 1 else (range(points), range(points))] = 1.0
        values = pt.tensor("values", dtype="float64", shape=self.shape)
        return vectorize_graph(self.linear(values)[k], {values: pt.constant(units)}).T


def _follows_data(linear: Linear, shape: tuple[int, ...]) -> bool:
    """Tell whether data of the model say which values rows take, or with which coefficients."""
    values = pt.tensor("values", dtype="float64", shape=shape)
    result = linear(values)
    behind = set(ancestors([result]))
    on_path = {values}
    for node in toposort([result]):
        if on_path.isdisjoint(node.inputs):
            continue
        on_path.update(node.outputs)
        added = isinstance(node.op, DimShuffle) or (
            isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Add | Sub | Neg)
        )
        others = [v for v in node.inputs if v not in on_path]
        if not added and any(isinstance(v, SharedVariable) for v in ancestors(others)):
            return True
    return values not in behind
