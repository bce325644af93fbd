"""The reader of PyMC models. It returns the classifier of a model, or raises an error.

integrated: Gaussian variables that are integrated, and explanation of a prior without a density
classifier: a model that was read (prior, likelihood, observations), and its likelihood at new rows
rewritten_models: models rewritten before they are read: marginalised processes, potentials, series
likelihood_search: search of the observed variables for likelihoods, and observed arrays as rows
local_scales: effects with scales of their own, as normal effects and rows of priors
prior_rows: priors of effects that are not normal, as observed variables
model_reading: reading of a whole model
"""

from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.processes.processes import GPModel, read_processes
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.reading.model_reading import read_classifier

__all__ = ["GPClassifier", "GPModel", "LatentGP", "StructureError", "read_classifier", "read_processes"]
