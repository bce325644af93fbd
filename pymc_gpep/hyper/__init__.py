"""Log posterior of the hyperparameters: its maximum, and integrals over it.

evaluation: values of a log posterior at one point, and tables of these
latent_functions: the contract of the latent functions at fixed hyperparameters
hyperparameters: hyperparameters of a model as a flat unconstrained vector, with their priors
log_posterior: the contract of a log posterior of the hyperparameters
dense_log_posterior: log posterior from the covariance matrix of all rows
sparse_log_posterior: log posterior of hyperparameters and inducing inputs
quasi_newton: quasi-Newton steps, and a line search
ascent: BFGS search for the maximum
optimum: the maximum, how the search ended, and warnings about it
several_starts: best of several searches, in parallel
inducing_inputs: initial inducing inputs
weights: importance weights, and the Pareto tail of these
surrogate: interpolation of a log density from values and gradients
curvature: Gaussian at the maximum of the log posterior
hyper_posterior: weighted nodes of the hyperparameters, with a Gaussian of the latent values each
hyper_method: the contract of an integral over the hyperparameters
nodes: integrals by nodes: Gaussian, central composite, grid
draws: integrals by draws: importance sampling, Markov chain
adaptive: integral by an interpolated density, with nodes that are chosen as it goes
hyper_methods: table of integrals by name, with the maximum as the default
"""

from pymc_gpep.hyper.hyper_method import HyperMethod
from pymc_gpep.hyper.hyper_methods import HYPER, Maximum, hyper_method
from pymc_gpep.hyper.hyper_posterior import HyperPosterior

__all__ = ["HYPER", "HyperMethod", "HyperPosterior", "Maximum", "hyper_method"]
