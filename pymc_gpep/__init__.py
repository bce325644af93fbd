"""Gaussian process classification in PyMC: accurate approximations to the posterior, on the model's own graph.

Importing the package lets `pm.fit` know its methods.
"""

from importlib.metadata import version

from pymc_gpep.approximation import GPApproximation
from pymc_gpep.approximations import NestedEP
from pymc_gpep.class_probabilities import class_probabilities
from pymc_gpep.likelihoods import MultinomialProbit
from pymc_gpep.marginal import MarginalModel, marginalize, recover
from pymc_gpep.registration import register
from pymc_gpep.structure import GPClassifier, StructureError, read_classifier

__all__ = [
    "GPApproximation",
    "GPClassifier",
    "MarginalModel",
    "MultinomialProbit",
    "NestedEP",
    "StructureError",
    "class_probabilities",
    "marginalize",
    "read_classifier",
    "recover",
]

__version__ = version("pymc_gpep")

register()
