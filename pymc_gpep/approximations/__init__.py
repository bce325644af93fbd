"""Approximations of the posterior at fixed hyperparameters, and the table of their names.

limits: options of an approximation, their limits, and their entries in docstrings
solution: result of a solve, and warm starts from nearby results
cumulants: third cumulants of tilted distributions, for skewed marginals and corrections of EP
approximator: base classes
laplace: the Laplace approximation, for one latent function and for several
kl: the Gaussian nearest in Kullback-Leibler divergence, bounds, and responses of means to forces
ep: expectation propagation (EP) for one latent function
prior_sites: leave-one-out with updates of the sites of prior factors
several_predictors: Laplace, EP and KL for rows of several linear predictors
nested_ep: EP with sites that couple classes, for the multinomial probit and the softmax
variational_bayes: variational Bayes for the multinomial probit
site_rules: factorisations of a likelihood for EP with inducing inputs
sparse_ep: EP with inducing inputs, and the base class of approximations with inducing inputs
sparse_vi: variational inference with inducing inputs
methods: tables of approximations by name
"""

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.ep import EP
from pymc_gpep.approximations.kl import KL, QuadraticVB
from pymc_gpep.approximations.laplace import Laplace, LaplaceProbit, ScalarLaplace
from pymc_gpep.approximations.methods import APPROXIMATIONS, METHODS, approximator
from pymc_gpep.approximations.nested_ep import NestedEP, NoisyNestedEP, QEPSoftmax
from pymc_gpep.approximations.several_predictors import EPPredictors, KLPredictors, LaplacePredictors
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
    "EPPredictors",
    "InducedArrays",
    "KLPredictors",
    "Laplace",
    "LaplacePredictors",
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
