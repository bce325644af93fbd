"""Compiled kernels of the methods in this room; rules as for `pymc_gpep.kernels`."""
