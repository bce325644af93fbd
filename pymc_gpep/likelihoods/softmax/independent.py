"""Sites of a softmax that leave its classes independent, with the nodes that these need."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods.softmax_qiep import rough_softmax_sites, softmax_qiep_update
from pymc_gpep.likelihoods.class_nodes import class_nodes
from pymc_gpep.likelihoods.softmax.information import rough_nodes

__all__ = ["independent_update", "rough_sites"]

_OF_THREE, _MOST = 600, 2000  # nodes of three classes, and of more: errors of 1e-5 under standard deviations of 5


def independent_update(
    mean: Array, variance: Array, pi: Array, nu: Array, y: NDArray[np.int64], sites: Array, target: Array, scale: Array
) -> tuple[bool, float, float]:
    """See `pymc_gpep.likelihoods.local_computations.IndependentQuadrature`."""
    c = len(mean)
    nodes = class_nodes(c - 1, _OF_THREE if c <= 3 else _MOST)
    ok, terms, residual = softmax_qiep_update(*nodes, mean, variance, pi, nu, y, sites, target, scale)
    return ok, terms, residual


def rough_sites(mean: Array, variance: Array, y: NDArray[np.int64], log_z: Array, sites: Array) -> None:
    """See `pymc_gpep.likelihoods.local_computations.RoughSites`."""
    rough_softmax_sites(*rough_nodes(mean.shape[1]), mean, variance, y, log_z, sites)
