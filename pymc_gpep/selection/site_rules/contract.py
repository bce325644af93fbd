"""What a way of giving rows their sites is."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.contract import Likelihood

__all__ = ["Matched", "SiteRule"]


class Matched(NamedTuple):
    """Sites of rows, each as if it came next."""

    precision: Array
    """π (c, p)."""
    location: Array
    """ν (c, p)."""


class SiteRule(Protocol):
    """Sites from the moments of latent values without them (assumed density filtering)."""

    @property
    def name(self) -> str:
        """What `sites=` calls it."""

    @property
    def method(self) -> str:
        """The approximation whose fixed point these sites are on the way to."""

    @property
    def form(self) -> SiteForm:
        """Of the sites."""

    @property
    def shares(self) -> bool:
        """Whether all functions of a row have the same precision."""

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a likelihood has what it takes."""

    def match(
        self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array, roughly: bool
    ) -> Matched:
        """Sites of p rows from means (c, p) and covariances (p, c, c); `roughly` where they are for scores alone."""
