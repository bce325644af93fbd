"""The reader of PyMC models. It returns the classifier of a model, or raises an error.

rewritten_models: models rewritten before they are read
integrated: decision which Gaussian variables are integrated
improper: explanation of a prior without a density
likelihood_search: search of the observed variables for likelihoods
classifier: a model that was read: prior, likelihood, observations
sum_reading: latent functions that are sums of Gaussian variables
model_reading: reading of a whole model
likelihood_elsewhere: parameters of the likelihood at new rows
natural_scale: hyperparameters on their natural scale
"""

from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.processes.processes import GPModel, read_processes
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.reading.model_reading import read_classifier

__all__ = ["GPClassifier", "GPModel", "LatentGP", "StructureError", "read_classifier", "read_processes"]
