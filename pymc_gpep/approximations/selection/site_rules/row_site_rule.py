"""The contract of a rule that gives rows their sites."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood

__all__ = ["Matched", "RowSiteRule", "Told"]


class Matched(NamedTuple):
    """Sites of rows, each as if it came next."""

    precision: Array
    """π (c, p)."""
    location: Array
    """ν (c, p)."""


class Told(NamedTuple):
    """Information of the labels of rows if each came next, to a few digits."""

    log_z: Array
    """Their log probabilities (p,)."""
    information: Array
    """Divergence of the posterior with a row's site from that without, (p,); (c, p) where a rule is `separate`."""


class RowSiteRule(Protocol):
    """Sites from the moments of latent values without them (assumed density filtering)."""

    @property
    def name(self) -> str:
        """Return the name of the rule in `sites=`."""

    @property
    def method(self) -> str:
        """The approximation whose fixed point these sites are on the way to."""

    @property
    def form(self) -> SiteForm:
        """Return the form of the sites."""

    @property
    def shares(self) -> bool:
        """Whether all functions of a row have the same precision."""

    @property
    def separate(self) -> bool:
        """Whether each function chooses rows of its own."""

    @property
    def from_cavity(self) -> bool:
        """Whether a site is made from the moments without it, or from those with it, at a fixed point."""

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a likelihood has what it takes."""

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """Sites of p rows from means (c, p) and covariances (p, c, c)."""

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """For scores: ½(log|M| + tr(M⁻¹ − I) + gᵀAg) of each row, M = I + ΠA and g = M⁻¹(ν − Πμ).

        The divergence is that of the latent values of the row alone (Seeger and Jordan 2004, equation 14).
        """

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """The log probabilities alone."""
