"""The logistic function of one latent value, `pm.Bernoulli(logit_p=...)`."""
