"""Counts, `pm.Poisson(mu=pm.math.exp(f))`."""
