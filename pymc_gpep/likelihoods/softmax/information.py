"""Nodes for scores of candidates, and information of the labels of a softmax by these."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.site_information import softmax_information
from pymc_gpep.likelihoods.class_nodes import class_nodes, edge_nodes
from pymc_gpep.solvers.softmax_qep import Nodes

__all__ = ["rough_information", "rough_nodes"]

_OF_THREE, _MOST = 9, 100  # nodes of three classes, three times as many for each more
_LATTICE = 6  # classes up to which they are a lattice


def rough_nodes(c: int) -> Nodes:
    """Return as few nodes as scores of candidates of c classes need."""
    return class_nodes(c - 1, min(_OF_THREE * 3 ** max(c - 3, 0), _MOST)) if c <= _LATTICE else edge_nodes(c - 1)


def rough_information(mean: Array, cov: Array, y: NDArray[np.int64], log_z: Array, information: Array) -> None:
    """See `pymc_gpep.likelihoods.local_computations.SiteInformation`."""
    softmax_information(*rough_nodes(len(mean)), mean, cov, y, log_z, information)
