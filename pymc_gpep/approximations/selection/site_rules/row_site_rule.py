"""The contract of a rule that gives rows their sites."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood

SEPARATE = "separate"
"""The name of rules by which each function chooses rows of its own."""


class SeenRows(NamedTuple):
    """Rows, and the moments of their latent values that sites are made from, as contiguous arrays."""

    likelihood: Likelihood
    """Likelihood of these rows."""
    labels: NDArray[np.int64]
    """(p,)."""
    mean: Array
    """(c, p)."""
    cov: Array
    """(p, c, c)."""

    @property
    def by_row(self) -> tuple[Array, Array]:
        """Means and variances (p, c) of each function alone."""
        return np.ascontiguousarray(self.mean.T), np.ascontiguousarray(np.diagonal(self.cov, axis1=1, axis2=2))


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


@dataclass(frozen=True)
class RowSiteRule(ABC):
    """Sites from the moments of latent values without them (assumed density filtering).

    Parameters
    ----------
    name : str
        Name of the rule in `sites=`.
    """

    name: str

    method: ClassVar[str]
    """The approximation whose fixed point these sites are on the way to."""
    form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    """Form of the sites."""
    shares: ClassVar[bool] = False
    """Whether all functions of a row have the same precision."""
    from_cavity: ClassVar[bool] = True
    """Whether a site is made from the moments without it, or from those with it, at a fixed point."""

    @property
    def separate(self) -> bool:
        """Whether each function chooses rows of its own."""
        return self.name == SEPARATE

    @abstractmethod
    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a likelihood has what it takes."""

    @abstractmethod
    def match(self, seen: SeenRows) -> Matched:
        """Sites of rows."""

    @abstractmethod
    def told(self, seen: SeenRows) -> Told:
        """For scores: ½(log|M| + tr(M⁻¹ − I) + gᵀAg) of each row, M = I + ΠA and g = M⁻¹(ν − Πμ).

        The divergence is that of the latent values of the row alone (Seeger and Jordan 2004, equation 14).
        """

    def log_normalisers(self, seen: SeenRows) -> Array:
        """The log probabilities alone, (p,)."""
        return self.told(seen).log_z
