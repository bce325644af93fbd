"""The step likelihood with label noise: the class of the largest latent value, or any."""
