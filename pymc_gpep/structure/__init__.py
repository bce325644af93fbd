"""The only reader of model graphs: it says which Gaussian process classifier a PyMC model is, or why it is not one."""

from pymc_gpep.structure.classifier import GPClassifier
from pymc_gpep.structure.errors import StructureError
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.model_reading import read_classifier
from pymc_gpep.structure.processes import GPModel, read_processes

__all__ = ["GPClassifier", "GPModel", "LatentGP", "StructureError", "read_classifier", "read_processes"]
