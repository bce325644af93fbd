"""Coupled sites of points that have none yet, by quadrature and constrained projection."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import CoupledQuadrature
from pymc_gpep.likelihoods.softmax import class_nodes

_NODES = 2000
_NOTHING = 1e-14  # precision of a site that says nothing, in units of the variance


def projected_sites(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return π and ν (c, p) that match the tilted moments of p points as nearly as coupled sites can.

    Parameters
    ----------
    likelihood : Likelihood
        One that offers `CoupledQuadrature`.
    labels : array (p,)
    mean, cov : arrays (c, p), (p, c, c)
        Moments of the latent values without the sites.
    """
    c, p = mean.shape
    update, conditioned = likelihood.computation(CoupledQuadrature)
    scale = cov.trace(axis1=1, axis2=2) / c
    none = np.ascontiguousarray(np.broadcast_to(_NOTHING / np.maximum(scale, _NOTHING), (c, p)))
    sites, target, room = np.zeros((2, p, c)), np.empty((2, p, c)), np.empty((p, c))
    moments = np.ascontiguousarray(mean), np.ascontiguousarray(cov)
    update(*class_nodes(c - conditioned, _NODES), *moments, labels, none, sites, target, room)
    return np.ascontiguousarray(target[0].T), np.ascontiguousarray(target[1].T)
