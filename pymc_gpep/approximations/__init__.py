"""The approximations, one file each, and the registry by which `pm.fit` and graphs know them."""

from pymc_gpep.approximations.contract import Approximator
from pymc_gpep.approximations.iep import IEP
from pymc_gpep.approximations.laplace import Laplace
from pymc_gpep.approximations.laplace_probit import LaplaceProbit
from pymc_gpep.approximations.nested_ep import NestedEP
from pymc_gpep.approximations.qep import QEP
from pymc_gpep.approximations.qiep import QIEP
from pymc_gpep.approximations.registry import APPROXIMATIONS, METHODS, approximator
from pymc_gpep.approximations.solution import Convergence, Solution
from pymc_gpep.approximations.variational_bayes import VariationalBayes

__all__ = [
    "APPROXIMATIONS",
    "IEP",
    "METHODS",
    "QEP",
    "QIEP",
    "Approximator",
    "Convergence",
    "Laplace",
    "LaplaceProbit",
    "NestedEP",
    "Solution",
    "VariationalBayes",
    "approximator",
]
