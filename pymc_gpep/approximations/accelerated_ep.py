"""Options that every EP has in common which is a fixed-point iteration."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.contract import Approximator
from pymc_gpep.approximations.limits import at_least, fraction, positive
from pymc_gpep.solvers.ep_ladder import SCHEMES

__all__ = ["AcceleratedEP"]


@dataclass(frozen=True)
class AcceleratedEP(Approximator):
    """An EP, iterated with Anderson acceleration.

    Parameters
    ----------
    tolerance : float
        For the largest change of a site in units of its marginal, and the relative change of the evidence. Where the
        evidence is stationary in the sites, it is accurate to about the square of it.
    max_iterations : int
        Limit on outer iterations.
    memory : int
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
    memory: int = field(default=4, metadata=at_least(0))
    mixing: float = field(default=0.8, metadata=fraction())
    damping: float = field(default=0.7, metadata=fraction())
    ladder: bool = True

    schemes: ClassVar[tuple[str, ...]] = SCHEMES
