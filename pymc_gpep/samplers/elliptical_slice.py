"""Elliptical slice sampling of latent values, with ellipses from an approximation."""

from typing import Any, ClassVar

import numpy as np
from pymc.blocking import PointType

from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.ellipse import elliptical_slice
from pymc_gpep.gaussians.whitening import Whitening
from pymc_gpep.samplers.guided import GuidedStep


class EllipticalSlice(GuidedStep):
    """Sample latent values by elliptical slice sampling, and hyperparameters by a random walk.

    The Gaussian of the ellipses is an approximation of the posterior (Fagan, Bhandari and Cunningham 2016), or the
    prior (Murray, Adams and MacKay 2010). The step for latent values needs no tuning, and no derivative of their
    likelihood. The sampler is exact: the approximation affects only the ellipses.

    Parameters
    ----------
    sweeps : int
        Number of ellipses for each draw of the latent values.

    Notes
    -----
    Sampler statistics are `ellipse_evaluations`, the mean number of likelihood evaluations for an ellipse, and, for
    models with hyperparameters, `hyper_acceptance` and `hyper_scale`.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=gpep.samplers.EllipticalSlice())
    """

    name = "elliptical_slice"
    default_tune_steps = 500
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = {
        "ellipse_evaluations": (np.float64, []),
        "hyper_acceptance": (np.float64, []),
        "hyper_scale": (np.float64, []),
        "tune": (bool, []),
    }
    progress: ClassVar[dict[str, tuple[str, str]]] = {
        "ellipse_evaluations": ("Evaluations", ".1f"),
        "hyper_acceptance": ("Hyper", ".2f"),
    }

    def __init__(self, vars: Any = None, *, sweeps: int = 10, **options: Any) -> None:
        check_whole("sweeps", sweeps, 1)
        super().__init__(vars, **options)
        self.sweeps = sweeps

    def move_latent_values(self, point: PointType, whitening: Whitening, f: Array) -> tuple[Array, dict[str, Any]]:
        def log_ratio(x: Array) -> float:
            return self.log_ratio(point, whitening, whitening.centre + x)[0]

        x, total = f - whitening.centre, 0
        current = log_ratio(x)
        for _ in range(self.sweeps):
            direction = whitening.latent(self.rng.standard_normal(whitening.shape)) - whitening.centre
            x, current, evaluations = elliptical_slice(x, direction, log_ratio, current, self.rng)
            total += evaluations
        return whitening.centre + x, {"ellipse_evaluations": total / self.sweeps}
