"""A softmax by quadrature, with the nodes that it needs: class-independent sites, and scores of candidates."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods.class_independent import rough_softmax_sites, softmax_qiep_update
from pymc_gpep.kernels.moments.site_information import softmax_information
from pymc_gpep.likelihoods.class_nodes import Nodes, class_nodes, edge_nodes

_OF_THREE, _MOST = 600, 2000  # nodes of three classes, and of more: errors of 1e-5 under standard deviations of 5
_ROUGH, _MOST_ROUGH = 9, 100  # nodes of three classes for scores, three times as many for each more
_LATTICE = 6  # classes up to which these are a lattice


def independent_update(
    mean: Array, variance: Array, pi: Array, nu: Array, y: NDArray[np.int64], sites: Array, target: Array, scale: Array
) -> tuple[bool, float, float]:
    """Update independent sites of all points by an `IndependentQuadrature`."""
    c = len(mean)
    nodes = class_nodes(c - 1, _OF_THREE if c <= 3 else _MOST)
    ok, terms, residual = softmax_qiep_update(*nodes, mean, variance, pi, nu, y, sites, target, scale)
    return ok, terms, residual


def _rough_nodes(c: int) -> Nodes:
    """Return as few nodes as scores of candidates of c classes need."""
    return class_nodes(c - 1, min(_ROUGH * 3 ** max(c - 3, 0), _MOST_ROUGH)) if c <= _LATTICE else edge_nodes(c - 1)


def rough_sites(mean: Array, variance: Array, y: NDArray[np.int64], log_z: Array, sites: Array) -> None:
    """Compute sites of candidates by few nodes, as `RoughSites`."""
    rough_softmax_sites(*_rough_nodes(mean.shape[1]), mean, variance, y, log_z, sites)


def rough_information(mean: Array, cov: Array, y: NDArray[np.int64], log_z: Array, information: Array) -> None:
    """Compute the information of coupled sites by few nodes, as `SiteInformation`."""
    softmax_information(*_rough_nodes(len(mean)), mean, cov, y, log_z, information)
