"""Local computations for methods of this package, registered for softmax and multinomial probit."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.local_computations import Computation, Kernel
from pymc_gpep.likelihoods.softmax import Nodes, class_nodes
from pymc_gpep.rivals.kernels.active_rows import (
    probit_information,
    rough_log_likelihood,
    rough_log_normalisers,
    softmax_information,
)
from pymc_gpep.rivals.kernels.class_independent import (
    iep_update,
    qiep_update,
    rough_softmax_sites,
    softmax_qiep_update,
)
from pymc_gpep.rivals.kernels.quadrature_ep import full_qep_update, qep_update


class IndependentFactors(NamedTuple):
    """Updates of sites by inner EP, for the factors of `DifferenceFactors` and independent cavities."""

    update: Kernel
    """Function that computes new sites, see `pymc_gpep.rivals.kernels.class_independent.iep_update`."""


class IndependentQuadrature(NamedTuple):
    """Tilted moments by quadrature, for cavities with independent latent values."""

    update: Kernel
    """New sites of independent latent values, see `pymc_gpep.rivals.kernels.class_independent.qiep_update`."""


class RoughNormaliser(NamedTuple):
    """Fast log normalisers of `PointFactor` to a few digits, for scores of many candidate points."""

    log_normalisers: Kernel
    """`(mean, variance, y, parameters, log_z)`, see
    `pymc_gpep.rivals.kernels.active_rows.rough_log_normalisers`."""


class RoughDensity(NamedTuple):
    """Fast log density to about nine digits, for averages over many latent values."""

    log_density: Kernel
    """Same signature as the log density of `BlockCurvature`."""


class SiteInformation(NamedTuple):
    """Information gained from the label of a point without site, to a few digits, for scores of many points."""

    terms: Kernel
    """`(mean, cov, y, log_z, information)`, for correlated latent values. The kernel writes log normalisers (n,) and
    divergences (n,) of posteriors with the site from posteriors without it. See
    `pymc_gpep.rivals.kernels.active_rows.probit_information`."""


class RoughSites(NamedTuple):
    """Independent sites for points that have no site yet, to a few digits, for scores of many candidate points."""

    terms: Kernel
    """`(mean, variance, y, log_z, sites)`. The kernel writes log normalisers (n,) and sites (n, 2, c) of points."""


class DifferenceQuadrature(NamedTuple):
    """Tilted moments, by quadrature, of the differences of latent values in `DifferenceFactors`."""

    diagonal_update: Kernel
    """Kernel that writes new scalar sites, see `pymc_gpep.rivals.kernels.quadrature_ep.qep_update`."""
    full_update: Kernel
    """Kernel that writes sites with full precisions, see `pymc_gpep.rivals.kernels.quadrature_ep.full_qep_update`."""


# Number of nodes for up to three classes, and for more classes. Errors are 1e-5 for standard deviations of 5.
_OF_THREE, _MOST = 600, 2000
# Number of nodes for scores, with three classes and at most. Each further class multiplies it by 3.
_ROUGH, _MOST_ROUGH = 9, 100
_CLASSES_OF_LATTICE = 6  # Largest number of classes for which nodes form a lattice.


@lru_cache(maxsize=8)
def edge_nodes(d: int) -> Nodes:
    """Return quadrature nodes in d dimensions: scaled midpoints of the edges of a simplex, and their opposites.

    Averages over these nodes are exact for cubic polynomials. In many dimensions they have a few digits.
    """
    corners = np.eye(d) - 1.0 / d
    first, second = np.triu_indices(d, 1)
    middles = corners[first] + corners[second]
    middles *= math.sqrt(d - 1) / np.linalg.norm(middles, axis=1, keepdims=True)
    points = np.concatenate([middles, -middles])
    return Nodes(points, np.full(len(points), -math.log(len(points))))


def independent_update(
    mean: Array, variance: Array, pi: Array, nu: Array, y: NDArray[np.int64], sites: Array, target: Array, scale: Array
) -> tuple[bool, float, float]:
    """Update independent sites of all points by an `IndependentQuadrature`."""
    c = len(mean)
    nodes = class_nodes(c - 1, _OF_THREE if c <= 3 else _MOST)
    ok, terms, residual = softmax_qiep_update(*nodes, mean, variance, pi, nu, y, sites, target, scale)
    return ok, terms, residual


def _rough_nodes(c: int) -> Nodes:
    """Return the few quadrature nodes that scores of candidates with c classes need."""
    return (
        class_nodes(c - 1, min(_ROUGH * 3 ** max(c - 3, 0), _MOST_ROUGH))
        if c <= _CLASSES_OF_LATTICE
        else edge_nodes(c - 1)
    )


def rough_sites(mean: Array, variance: Array, y: NDArray[np.int64], log_z: Array, sites: Array) -> None:
    """Write sites of candidates by quadrature with few nodes; arguments as in `RoughSites`."""
    rough_softmax_sites(*_rough_nodes(mean.shape[1]), mean, variance, y, log_z, sites)


def rough_information(mean: Array, cov: Array, y: NDArray[np.int64], log_z: Array, information: Array) -> None:
    """Write the information from labels by quadrature with few nodes; arguments as in `SiteInformation`."""
    softmax_information(*_rough_nodes(len(mean)), mean, cov, y, log_z, information)


PROBIT_FACTORS = Computation("multinomial_probit", IndependentFactors(iep_update))
PROBIT_QUADRATURE = Computation("multinomial_probit", IndependentQuadrature(qiep_update))
PROBIT_DIFFERENCES = Computation("multinomial_probit", DifferenceQuadrature(qep_update, full_qep_update))
PROBIT_INFORMATION = Computation("multinomial_probit", SiteInformation(probit_information))
PROBIT_NORMALISER = Computation("multinomial_probit", RoughNormaliser(rough_log_normalisers))
PROBIT_DENSITY = Computation("multinomial_probit", RoughDensity(rough_log_likelihood))
SOFTMAX_QUADRATURE = Computation("softmax", IndependentQuadrature(independent_update))
SOFTMAX_INFORMATION = Computation("softmax", SiteInformation(rough_information))
SOFTMAX_SITES = Computation("softmax", RoughSites(rough_sites))
