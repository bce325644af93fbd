"""Fits batch by batch, with inducing inputs. Memory does not grow with the number of rows.

features: prior moments of a step, and initial length scales
rules: log normalisers and expected log likelihoods of a batch
memories: computation and storage of the sites of batches: EP, stochastic EP, variational inference
state: variables that a step changes, and the state from which a fit continues
step: one step over a batch, with Adam for the hyperparameters
jax_step: the step and its rules under JAX
batch_log_posterior: log posterior after the last step
run: order of the batches, and the run of a fit
"""
