"""The only reader of model graphs: it says which Gaussian process classifier a PyMC model is, or why it is not one."""

from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.processes.processes import GPModel, read_processes
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.reading.model_reading import read_classifier

__all__ = ["GPClassifier", "GPModel", "LatentGP", "StructureError", "read_classifier", "read_processes"]
