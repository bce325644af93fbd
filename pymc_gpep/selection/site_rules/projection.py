"""Sites that couple the functions of a row, by quadrature and constrained projection (Seeger and Jordan 2004)."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.class_nodes import class_nodes
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.local_computations import CoupledQuadrature, SiteInformation
from pymc_gpep.selection.site_rules.contract import Matched, Told
from pymc_gpep.selection.site_rules.information import coupled_told

__all__ = ["Projection"]

_NODES = 2000
_NOTHING = 1e-14  # precision of a site that is none, in units of the variance


class Projection:
    """Of section 4.3: exact where a coupling has the form of these sites, and as near as they can be elsewhere."""

    name = "coupled"
    method = "qep"
    form = SiteForm.COUPLED
    shares = False
    from_cavity = True

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has such a projection."""
        return likelihood.offers(CoupledQuadrature) and likelihood.offers(SiteInformation)

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `SiteRule`."""
        c, p = mean.shape
        nodes = class_nodes(c - 1, _NODES)
        scale = cov.trace(axis1=1, axis2=2) / c
        none = np.ascontiguousarray(np.broadcast_to(_NOTHING / np.maximum(scale, _NOTHING), (c, p)))
        sites, target, room = np.zeros((2, p, c)), np.empty((2, p, c)), np.empty((p, c))
        likelihood.computation(CoupledQuadrature).update(
            *nodes, np.ascontiguousarray(mean), np.ascontiguousarray(cov), labels, none, sites, target, room
        )
        return Matched(np.ascontiguousarray(target[0].T), np.ascontiguousarray(target[1].T))

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """See `SiteRule`."""
        return coupled_told(likelihood, labels, mean, cov)

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `SiteRule`; by the formula for tails, to about a percent."""
        return likelihood.log_tail(np.ascontiguousarray(mean.T), np.ascontiguousarray(cov), labels)
