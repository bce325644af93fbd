"""Base classes for priors of latent functions, and recognition of such priors in a PyMC model.

lowered_dims: models of `pymc.dims` as models of ordinary variables, and missing responses
gp_latent: variables of `pm.gp.Latent.prior`, and their position in an argument of a likelihood
latent_prior: base classes for the prior, at the rows of the data and at new rows
"""
