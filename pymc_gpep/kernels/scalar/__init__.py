"""Likelihoods of one latent function: what `pymc_gpep.likelihoods.local_computations` asks of them, point by point."""
