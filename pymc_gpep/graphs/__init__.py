"""Tools for PyTensor graphs of any model.

errors: error for a model that cannot be read, and names of variables in messages
private_names: private names of PyMC and PyTensor that this package uses
graphs_on_disk: rewritten graphs stored for later processes
alike_graphs: graphs of the same structure: a single rewrite, and stacked graphs
affine: proof that a graph is affine; elementwise functions moved behind selections
interpreted: evaluation of graphs in plain Python, and compilation by a backend
rows_of_graphs: a graph over the rows of the data, evaluated at other rows
rows_apart: proof that the value of a row depends only on the data of that row
"""
