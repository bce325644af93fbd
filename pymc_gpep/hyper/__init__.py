"""The maximum of a log posterior of the hyperparameters, and integrals over it.

ascent: BFGS search for the maximum
optimum: the maximum, how the search ended, and warnings about it
several_starts: starting points, and the best of several searches
inducing_inputs: initial inducing inputs, and a search that moves them while EP runs
tails: ends of the posterior of hyperparameters with a flat prior
weights: importance weights, and their Pareto tail
hyper_posterior: weighted nodes of the hyperparameters, with latent functions at each
surrogate: interpolation of a log density from values and gradients
cells: coordinates in which a density is nearer to normal, and its interpolation in cells
curvature: Gaussian at the maximum of the log posterior
hyper_method: the contract of an integral over the hyperparameters
nodes: integrals by nodes: Gaussian, central composite, grid
draws: integrals by draws: importance sampling, Markov chain
adaptive: integral by an interpolated density, evaluated again where its mass is
hyper_methods: table of integrals by name, with the maximum as the default
"""

from pymc_gpep.hyper.hyper_method import HyperMethod
from pymc_gpep.hyper.hyper_methods import HYPER, Maximum, hyper_method
from pymc_gpep.hyper.hyper_posterior import HyperPosterior

__all__ = ["HYPER", "HyperMethod", "HyperPosterior", "Maximum", "hyper_method"]
