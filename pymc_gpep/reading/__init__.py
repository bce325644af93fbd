"""The reader of PyMC models. It returns a `GPClassifier` of a model, or raises an error with a remedy.

integrated: Gaussian variables that are integrated out, and the cause of a prior without a density
classifier: a model after reading (prior, likelihood, observations), and its likelihood at new rows
rewritten_models: rewrites of models before reading: marginalised processes, potentials, series
likelihood_search: search for likelihoods among the observed variables, and observed arrays as rows
local_scales: effects with local scales, rewritten as normal effects and rows of priors
prior_rows: priors of effects that are not normal, rewritten as observed variables
model_reading: reading of a whole model
"""

from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.processes.processes import GPModel, read_processes
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.reading.model_reading import read_classifier

__all__ = ["GPClassifier", "GPModel", "LatentGP", "StructureError", "read_classifier", "read_processes"]
