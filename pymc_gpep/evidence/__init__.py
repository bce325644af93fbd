"""Evidences as parts of PyTensor graphs and of PyMC models."""
