"""Solvers: iterations in plain Python over compiled kernels, from prior moments and labels to a Gaussian posterior."""
