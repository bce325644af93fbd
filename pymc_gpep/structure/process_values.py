"""Latent values of Gaussian processes as samplers move them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import numpy as np
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg.decomposition.cholesky import cholesky
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.structure.errors import StructureError
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.latent_prior import LatentPrior
from pymc_gpep.structure.sampled_values import SampledValues


class ProcessValues(SampledValues):
    """x is the latent values f (c, n), whether the model has them or what they are rotated to.

    Parameters
    ----------
    processes : LatentPrior
        The prior of latent functions that are Gaussian processes.
    """

    data: Mapping[Variable, Variable] = MappingProxyType({})

    def __init__(self, processes: LatentPrior) -> None:
        self._processes = processes
        self._latents = processes.latents
        self.shape = processes.n_functions, processes.n_points

    @property
    def names(self) -> Mapping[TensorVariable, TensorVariable]:
        values = self._processes.model.rvs_to_values
        return {v: each.f for each in self._latents for v in (each.f, each.free, values[each.free])}

    @property
    def moments(self) -> list[TensorVariable]:
        return [self._processes.covariances(), self._processes.mean().astype("float64")]

    def prior(self, *moments: Array) -> DensePrior:
        k, mean = moments
        return DensePrior(k, mean)

    def parts(self) -> list[TensorVariable]:
        return [pt.dmatrix("f")]

    def in_parts(self, outputs: Sequence[TensorVariable], parts: Sequence[TensorVariable]) -> list[TensorVariable]:
        (f,) = parts
        found = graph_replace(outputs, {each.f: f[each.rows] for each in self._latents}, strict=False)
        behind = set(ancestors(found))
        for latent in self._latents:
            if latent.rotated and latent.free in behind:
                raise StructureError(
                    f"{latent.free.name!r} is used besides {latent.f.name!r}. Use the latent values themselves."
                )
        return found

    def parts_of(self, x: Array, prior: Sampled) -> list[Array]:
        return [x]

    def slope_of(self, slopes: Sequence[Array], prior: Sampled) -> Array:
        return slopes[0]

    def by_white(self, outputs: Sequence[TensorVariable], z: TensorVariable) -> list[TensorVariable]:
        k, mean = self.moments
        offset = (cholesky(k[0]) @ z.T).T if k.type.shape[0] == 1 else (cholesky(k) @ z[..., None])[..., 0]
        return self.in_parts(outputs, [mean + offset])

    def from_point(self, point: PointType, prior: Sampled, rng: np.random.Generator) -> Array:
        prior = cast(DensePrior, prior)
        f = np.empty_like(prior.mean)
        for latent in self._latents:
            value = point[self._name(latent)].reshape(len(latent.classes), -1)
            for k, own in zip(latent.classes, value, strict=True):
                f[k] = prior.mean[k] + prior.roots[k % len(prior.roots)] @ own if latent.rotated else own
        return f

    def to_point(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        values: dict[str, Array] = {}
        white = prior.whitened(x) if any(latent.rotated for latent in self._latents) else x
        for latent in self._latents:
            value = (white if latent.rotated else x)[list(latent.classes)]
            values[self._name(latent)] = value if latent.f.ndim == 2 else value[0]
        return values

    def _name(self, latent: LatentGP) -> str:
        return str(self._processes.model.rvs_to_values[latent.free].name)
