"""Gaussian priors, sites, and the posteriors that both imply: the only place where these are factorised."""
