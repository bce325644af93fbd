"""Options that both approximations by a lower bound have in common which is raised by a fixed-point iteration."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.accelerated_ep import sites_between
from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, fraction, positive
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm

__all__ = ["AcceleratedBound"]


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
    memory : int
        Past steps that Anderson acceleration combines; 0 is the plain iteration.
    mixing : float
        Part of the combined residual that an accelerated step takes.
    """

    tolerance: float = field(default=1e-6, metadata=positive())
    max_iterations: int = field(default=500, metadata=at_least(1))
    memory: int = field(default=4, metadata=at_least(0))
    mixing: float = field(default=1.0, metadata=fraction())

    schemes: ClassVar[tuple[str, ...]] = ("accelerated ascent",)
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    bounds: ClassVar[bool] = True

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: sites."""
        return 2 * n_points

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """See `sites_between`."""
        return sites_between(starts, weights, nearest)
