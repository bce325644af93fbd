"""Protocols of the prior of latent functions, and the form of this prior in a PyMC model.

lowered_dims: models of `pymc.dims` as models of ordinary variables, and missing responses
gp_latent: variables of `pm.gp.Latent.prior`, and their position in an argument of a likelihood
latent_prior: protocols of the prior, at the rows of the data and at new rows
"""
