"""Fits batch by batch, with inducing inputs. Memory does not grow with the number of rows.

first_scales: initial length scales
features: features of a batch, and the posterior of the inducing values, as graphs
rules: log normalisers and expected log likelihoods of a batch, as graphs
state: variables that a step changes, and the point where a fit continues
memories: sites kept between batches: EP, stochastic EP, variational inference
step: one step over a batch, with Adam for the hyperparameters
batch_log_posterior: log posterior at the end of the steps
run: order of the batches, and the run of a fit
"""
