"""The standard normal distribution function of one latent value, `gpep.Probit`, and as a PyMC distribution."""
