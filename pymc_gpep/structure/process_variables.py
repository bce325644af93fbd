"""Free variables of models whose latent functions are Gaussian processes."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from pymc.blocking import PointType

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.structure.integrated_variables import IntegratedVariables, Joint, PosteriorFunctions
from pymc_gpep.structure.latent import LatentGP


class ProcessVariables(IntegratedVariables):
    """Each is the latent values of a Gaussian process, or the standard normals that these are made of.

    Parameters
    ----------
    latents : sequence of LatentGP
    shape : tuple of int
        Numbers of functions and points, (c, n).
    """

    def __init__(self, latents: Sequence[LatentGP], shape: tuple[int, int]) -> None:
        self._latents, self._shape = latents, shape

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        values = {latent.f.name: f[:, latent.rows] for latent in self._latents}
        return values | {latent.free.name: z[:, latent.rows] for latent in self._latents if latent.rotated}

    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        mean, variance = {}, {}
        for latent in self._latents:
            centre, spread = functions.whitened() if latent.rotated else functions.marginals()
            mean[latent.free.name], variance[latent.free.name] = centre[latent.rows], spread[latent.rows]
        return mean, variance

    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        c, n = self._shape
        rotated = np.array([False] * c)
        where = {}
        for latent in self._latents:
            rotated[list(latent.classes)] = latent.rotated
            start = places[latent.free.name].start
            for row, k in enumerate(latent.classes):
                where[k] = slice(start + row * n, start + (row + 1) * n)
        joint = functions.joint_covariance(rotated)
        cov = np.zeros((size, size))
        for a in range(c):
            for b in range(c):
                cov[where[a], where[b]] = joint[a, :, b, :]
        return cov

    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        known = {str(latent.f.name): latent for latent in self._latents}
        if wrong := [name for name in names if name not in known]:
            raise ValueError(
                f"{wrong[0]!r} is not affine in latent values, or not a variable of the model. There are "
                f"{', '.join(map(repr, known))}.{did_you_mean(wrong[:1], known)}"
            )
        c, n = self._shape

        def joint(point: PointType, functions: PosteriorFunctions) -> Joint:
            mean, _ = functions.marginals()
            cov = functions.joint_covariance(np.zeros(c, bool)).reshape(c * n, c * n)
            unit = np.eye(c * n).reshape(c * n, c, n)
            rows = {name: known[name].rows for name in names}
            return Joint({k: mean[r] for k, r in rows.items()}, {k: unit[:, r] for k, r in rows.items()}, cov)

        return joint

    def elsewhere(
        self, names: Sequence[str], x: ArrayLike | None, data: Mapping[str, ArrayLike]
    ) -> Callable[[PointType, PosteriorFunctions], tuple[Joint, Mapping[str, int]]]:
        self.affine(names)
        raise ValueError(f"Values of {', '.join(map(repr, names))} depend on inputs alone: give Xnew, and no data.")

    def latent_values(self, values: Mapping[str, Array]) -> Array:
        f = np.empty((len(values[self._latents[0].f.name]), *self._shape))
        for latent in self._latents:
            f[:, latent.rows] = values[latent.f.name]
        return f
