"""Gaussian processes whose means are affine in Gaussian variables, at other inputs than their own."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.structure.affine_variables import InNormals, at_zero, slopes_of
from pymc_gpep.structure.cross_covariance import CrossCovariance
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.latent_prior import Elsewhere
from pymc_gpep.structure.process_functions import ProcessFunctions


class EffectsInMeans(Elsewhere):
    """Prior moments of Gaussian processes at new inputs, with the effects in their means integrated.

    Parameters
    ----------
    prior : InNormals
        Latent functions that are processes, and nothing besides.
    processes : CrossCovariance
        The processes without their means.
    matched : list of pairs of LatentGP and ProcessFunctions
        The processes with their own means.
    data : dict
        Data of the model → constants, as the fit had them.
    """

    def __init__(
        self,
        prior: InNormals,
        processes: CrossCovariance,
        matched: Sequence[tuple[LatentGP, ProcessFunctions]],
        data: Mapping[Variable, Variable],
    ) -> None:
        model = prior.model
        self._processes, self.takes = processes, processes.takes
        x, z = pt.dmatrix("Xnew"), pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        rows: dict[int, TensorVariable] = {}
        for latent, functions in matched:
            mean = pt.broadcast_to(functions.mean(x), (len(latent.classes), x.shape[0]))
            rows |= {k: mean[output] for output, k in enumerate(latent.classes)}
        (means,) = prior.by_normals([pt.stack([rows[k] for k in range(prior.n_functions)])], z, seen=True)
        outputs = [at_zero(means, z), slopes_of(means, z, prior.n_normals)]
        outputs = graph_replace(model.replace_rvs_by_values(outputs), data, strict=False)
        value_vars = [model.rvs_to_values[rv] for rv in prior.hyperparameters]
        self._names = [v.name for v in value_vars]
        self._function = graph_function(model, [*value_vars, x], outputs)

    @property
    def inputs(self) -> Array:
        return self._processes.inputs

    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> Array:
        return self._processes.rows(x, new)

    def __call__(self, point: PointType, x: Array) -> tuple[Array, Array, Array]:
        cross, variance, _ = self._processes(point, x)
        given = [point[name] for name in self._names]
        mean, ahead = self._function(*given, x)
        _, behind = self._function(*given, self.inputs)
        return cross + np.einsum("qcm,qcn->cmn", ahead, behind), variance + (ahead**2).sum(axis=0), np.asarray(mean)
