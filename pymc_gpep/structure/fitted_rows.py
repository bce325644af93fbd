"""Coefficients of a sum at the rows that were fitted, for covariances with new rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.structure.affine_variables import at_zero, slopes_of
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.process_term import probes
from pymc_gpep.structure.row_sum import RowSum


class _Taken(NamedTuple):
    """The value of an output of a process that each row takes."""

    coefficients: Array
    """(c, n)."""
    cells: NDArray[np.int64]
    """Positions among the points of the process, (c, n)."""


class _AtFit(NamedTuple):
    """A sum at the rows that were fitted, at a point of the model."""

    roots: Array
    """Coefficients (c, n, q) of standard normals, 0 of those of processes that are moved."""
    taken: list[list[_Taken]]
    """The values of each output of each process that is moved."""


class FittedRows:
    """A sum at the rows that were fitted, some of its processes apart.

    Parameters
    ----------
    prior : RowSum
    data : mapping
        Data of the model → constants, as the fit had them.
    """

    def __init__(self, prior: RowSum, data: Mapping[Variable, Variable]) -> None:
        self._prior, self._data = prior, data
        self._made: dict[tuple[TensorVariable, ...], Callable[..., Any]] = {}

    def __call__(self, point: PointType, moved: Sequence[LatentGP]) -> _AtFit:
        """Return coefficients given values of the value variables, those of `moved` processes apart."""
        model, key = self._prior.model, tuple(latent.f for latent in moved)
        value_vars = [model.rvs_to_values[rv] for rv in self._prior.hyperparameters]
        if key not in self._made:
            outputs = graph_replace(model.replace_rvs_by_values(self._graphs(moved)), self._data, strict=False)
            self._made[key] = graph_function(model, value_vars, outputs)
        roots, *changes = self._made[key](*(point[v.name] for v in value_vars))
        pairs = iter(zip(changes[::2], changes[1::2], strict=True))
        taken = [[_taken(*next(pairs), self._shape(each)[-1]) for _ in each.classes] for each in moved]
        return _AtFit(np.ascontiguousarray(roots), taken)

    def _shape(self, latent: LatentGP) -> tuple[int, ...]:
        own = self._prior.places[latent.f]
        count = own.stop - own.start
        return (len(latent.classes), count // len(latent.classes)) if latent.f.ndim > 1 else (count,)

    def _graphs(self, moved: Sequence[LatentGP]) -> list[TensorVariable]:
        """Return graphs of coefficients, and of the changes that two probes of each output make."""
        prior, n = self._prior, self._prior.n_points
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        shapes = [self._shape(latent) for latent in moved]

        def argument(place: int | None = None, values: Array | None = None) -> TensorVariable:
            """The argument with values of one moved process, and 0 of all others."""
            given = [values if i == place else np.zeros(shape) for i, shape in enumerate(shapes)]
            by_process = {latent.f: pt.constant(each) for latent, each in zip(moved, given, strict=True)}
            return prior.by_normals([prior.argument], z, by_process, seen=True)[0]

        still = argument()
        centre = at_zero(still, z)
        outputs = [prior.shaped(slopes_of(still, z, prior.n_normals), n, batched=True)]
        for i, (latent, shape) in enumerate(zip(moved, shapes, strict=True)):
            for output in range(len(latent.classes)):
                for probe in probes(shape)[:2]:
                    own = probe * (np.arange(shape[0]) == output)[:, None] if len(shape) > 1 else probe
                    outputs.append(prior.shaped(at_zero(argument(i, own), z) - centre, n))
        return outputs


def _taken(ones: Array, codes: Array, points: int) -> _Taken:
    """Return what rows take, by the changes that ones and numbers from 1 on make."""
    ratio = np.divide(codes, ones, out=np.ones_like(ones), where=ones != 0.0)
    return _Taken(ones, (np.rint(ratio).astype(np.int64) - 1) % points)
