"""Loops over the rows of a batch, for fits with inducing inputs.

loops: passes over features and covariances of a batch
point_terms: log normalisers and expected log likelihoods of the points
"""
