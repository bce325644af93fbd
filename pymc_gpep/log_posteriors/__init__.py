"""Log posteriors of the hyperparameters, and the latent functions at given hyperparameters."""
