"""GFITC: EP over latent values with the FITC prior, as a comparison for EP with inducing inputs."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.limits import one_of
from pymc_gpep.approximations.site_rules import LatentPairs
from pymc_gpep.approximations.sparse_ep import SparseEP
from pymc_gpep.likelihoods.likelihood import Likelihood


@dataclass(frozen=True)
class GFITC(SparseEP):
    """EP with inducing inputs, a factor for each pair of classes, and sites on latent values.

    The generalised FITC approximation of Naish-Guzman and Holden (2008), for several classes as in Villacampa-Calvo and
    Hernández-Lobato (2017, section 3). It differs from `SparseEP(sites="pairwise")` by where the sites are. There the
    part of a latent value that the inducing values leave unsaid is integrated out of each factor first. Label noise is
    left out.

    `pm.fit` has more options than these, as `"sparse_ep"` has; batches are not among them.
    """

    sites: str | None = field(default=LatentPairs.name, metadata=one_of(LatentPairs.name))

    name: ClassVar[str] = "gfitc"

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        return LatentPairs.fits(likelihood)
