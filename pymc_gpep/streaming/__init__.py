"""Fits batch by batch, with inducing inputs. Memory does not grow with the number of rows.

features: prior moments of a batch, and initial length scales
rules: log normalisers and expected log likelihoods of a batch
memories: sites of batches by EP, stochastic EP or variational inference, and their storage
state: variables that a step changes, and the state from which a fit continues
step: one step over a batch, with Adam for the hyperparameters
jax_step: the step and its rules under JAX
batch_log_posterior: log posterior after the last step
run: order of the batches, and the loop of a fit
"""
