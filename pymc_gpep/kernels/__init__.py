"""Compiled inner loops: serial numba, NumPy arrays in and out; nothing here imports PyMC or PyTensor."""
