"""Contracts of the prior of latent functions, and how a PyMC model holds them.

lowered_dims: models of `pymc.dims` as models of ordinary variables, and missing responses
gp_latent: variables that `pm.gp.Latent.prior` made, and how they enter the argument of a likelihood
latent_prior: contracts of the prior, at the rows of the data and at new rows
"""
