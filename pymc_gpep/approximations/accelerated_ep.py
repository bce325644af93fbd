"""Options that every EP has in common which is a fixed-point iteration, and both bounds that are raised by one."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, fraction, positive
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.solvers.accelerated_ep import SCHEMES


@dataclass(frozen=True)
class AcceleratedBound(Approximator):
    """The best Gaussian under a bound, sought with Anderson acceleration.

    Parameters
    ----------
    tolerance : float
        Tolerance on the largest change of a site, in units of its marginal, and on the relative change of the bound.
        The bound is accurate to about the square of the tolerance.
    max_iterations : int
        Limit on iterations.
    depth : int
        Past steps that Anderson acceleration combines; 0 is the plain iteration.
    mixing : float
        Part of the combined residual that an accelerated step takes.
    """

    tolerance: float = field(default=1e-6, metadata=positive())
    max_iterations: int = field(default=500, metadata=at_least(1))
    depth: int = field(default=4, metadata=at_least(0))
    mixing: float = field(default=1.0, metadata=fraction())

    schemes: ClassVar[tuple[str, ...]] = ("accelerated ascent",)
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    bounds: ClassVar[bool] = True

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: sites."""
        return 2 * n_points

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        return sites_between(starts, weights, nearest)


_FAR = 1.0  # that log √α may be below those of the neighbours; none above, where it need not be legal


@dataclass(frozen=True)
class AcceleratedEP(Approximator):
    """An EP, iterated with Anderson acceleration.

    Parameters
    ----------
    tolerance : float
        Tolerance on the largest change of a site, in units of its marginal, and on the relative change of the evidence.
        Where the evidence is stationary in the sites, it is accurate to about the square of the tolerance.
    max_iterations : int
        Limit on outer iterations.
    depth : int
        Past steps that Anderson acceleration combines; 0 is plain damped EP.
    mixing : float
        Part of the combined residual that an accelerated step takes.
    damping : float
        Part of the full update that a plain step takes, in (0, 1].
    ladder : bool
        Whether to go on, where the iteration does not get closer any more, with plain steps, and ever smaller ones.
    """

    tolerance: float = field(default=1e-6, metadata=positive())
    max_iterations: int = field(default=500, metadata=at_least(1))
    depth: int = field(default=8, metadata=at_least(0))
    mixing: float = field(default=0.9, metadata=fraction())
    damping: float = field(default=0.7, metadata=fraction())
    ladder: bool = True

    schemes: ClassVar[tuple[str, ...]] = SCHEMES

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: sites of all latent values."""
        return 2 * n_points * n_functions

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        return sites_between(starts, weights, nearest)


def sites_between(starts: Array, weights: Array, nearest: int) -> Array:
    """Scalar sites from neighbouring ones: precisions α by their logarithms, locations β by β / √α.

    Over the hyperparameters both vary by orders of magnitude, and these nearly in proportion.
    """
    precisions, locations = np.split(starts, 2, axis=1)
    smooth = (precisions > 0.0).all(axis=0)
    start = starts[nearest].copy()
    precision, location = np.split(start, 2)
    logs = 0.5 * np.log(precisions[:, smooth])
    root = np.exp(np.clip(weights @ logs, logs.min(axis=0) - _FAR, logs.max(axis=0)))
    precision[smooth] = np.minimum(root**2, precisions[:, smooth].max(axis=0))  # rounding is to be no more either
    location[smooth] = root * (weights @ (locations[:, smooth] / np.exp(logs)))
    return start
