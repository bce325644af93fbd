"""Sparse Gaussian process classifiers fitted batch by batch: a step is one graph, and no memory grows with the rows."""
