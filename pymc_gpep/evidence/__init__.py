"""The evidence as a part of PyTensor graphs and of PyMC models.

memory_check: check that the matrices of a dense method fit into memory
evidence: PyTensor operation that returns the log evidence of a model, with its gradient
marginal_model: `gpep.marginalize`: a PyMC model without its latent values
latent_model: latent values and hyperparameters of a model, as samplers move them
jax_loading: rewrite that loads JAX support if JAX compiles a graph with an Op of this package
jax_dispatch: likelihoods and the evidence under JAX
"""
