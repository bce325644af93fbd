"""The approximations, one file each, and the registry by which `pm.fit` and graphs know them."""

from pymc_gpep.approximations.nested_ep import NestedEP
from pymc_gpep.approximations.registry import APPROXIMATIONS, METHODS, approximator
from pymc_gpep.approximations.solution import Approximator, Convergence, Solution

__all__ = ["APPROXIMATIONS", "METHODS", "Approximator", "Convergence", "NestedEP", "Solution", "approximator"]
