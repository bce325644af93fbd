"""The only reader of model graphs: which Gaussian process classifier a PyMC model is, or why it is none."""

from pymc_gpep.structure.classifier import GPClassifier, read_classifier
from pymc_gpep.structure.errors import StructureError
from pymc_gpep.structure.latent import LatentGP

__all__ = ["GPClassifier", "LatentGP", "StructureError", "read_classifier"]
