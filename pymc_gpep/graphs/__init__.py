"""Tools for PyTensor graphs, without any model."""
