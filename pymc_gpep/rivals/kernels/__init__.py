"""Compiled kernels of the methods in `pymc_gpep.rivals`, by the rules of `pymc_gpep.kernels`."""
