"""Contracts of a prior of latent functions, and the parts of a model that show one."""
