"""Approximations of the posterior at fixed hyperparameters, and the table of their names.

limits: options of an approximation, their limits, and their entries in docstrings
solution: the result of a solve, and warm starts from results at nearby hyperparameters
cumulants: third cumulants of tilted distributions, for skewed marginals and corrections of EP
linear_response: response of the means to a force on latent values, for leave-one-out
approximator: the contract of an approximation, with base classes for Newton and for EP
laplace: the Laplace approximation, for one latent function and for several
kl: the Gaussian nearest in Kullback-Leibler divergence, and variational bounds
ep: expectation propagation (EP) for one latent function
nested_ep: nested EP for the multinomial probit, with and without label noise
qep_softmax: EP by quadrature for a softmax
variational_bayes: variational Bayes for the multinomial probit
site_rules: factors of a likelihood for EP with inducing inputs, with one rule for each
sparse_ep: EP with inducing inputs, and the base class for other approximations with these
sparse_vi: variational inference with inducing inputs
methods: table of approximations by name, and of the likelihoods that each can fit
"""

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
