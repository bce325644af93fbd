"""Exact samplers for Gaussian process classifiers, as step methods of `pm.sample`."""
