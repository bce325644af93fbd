"""The approximations, and the registry by which `pm.fit` and graphs know them."""

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.ep import EP
from pymc_gpep.approximations.kl import KL, QuadraticVB
from pymc_gpep.approximations.laplace import Laplace, LaplaceProbit, ScalarLaplace
from pymc_gpep.approximations.methods import APPROXIMATIONS, METHODS, approximator
from pymc_gpep.approximations.nested_ep import NestedEP, NoisyNestedEP
from pymc_gpep.approximations.qep_softmax import QEPSoftmax
from pymc_gpep.approximations.solution import Convergence, Solution
from pymc_gpep.approximations.sparse_ep import InducedArrays, SparseEP
from pymc_gpep.approximations.sparse_vi import SparseVI
from pymc_gpep.approximations.variational_bayes import VariationalBayes

__all__ = [
    "APPROXIMATIONS",
    "EP",
    "KL",
    "METHODS",
    "Approximator",
    "Convergence",
    "InducedArrays",
    "Laplace",
    "LaplaceProbit",
    "NestedEP",
    "NoisyNestedEP",
    "QEPSoftmax",
    "QuadraticVB",
    "ScalarLaplace",
    "Solution",
    "SparseEP",
    "SparseVI",
    "VariationalBayes",
    "approximator",
]
