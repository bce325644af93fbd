"""The approximations, one file each, and the registry by which `pm.fit` and graphs know them."""

from pymc_gpep.approximations.nested_ep import NestedEP
from pymc_gpep.approximations.solution import Approximator, Convergence, Solution

__all__ = ["APPROXIMATIONS", "Approximator", "Convergence", "NestedEP", "Solution"]

APPROXIMATIONS: dict[str, type[Approximator]] = {approximation.name: approximation for approximation in (NestedEP,)}
"""Name for `pm.fit(method=...)` → approximation."""
