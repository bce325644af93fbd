"""Positive numbers by the logarithm of their scale: `pm.Gamma`, `pm.Weibull`, `pm.Exponential`."""
