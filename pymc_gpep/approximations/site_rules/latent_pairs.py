"""The factors of pairs with sites on latent values: those of GFITC."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.site_rules.pairs import Pairs
from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import PairFactors
from pymc_gpep.solvers.sparse_latent_ep import LatentSites

__all__ = ["LatentPairs"]


class LatentPairs(SiteRule):
    """∏_k Φ((f_y − f_k) / √2), or Θ(f_y − f_k) of the step likelihood, with a site for each latent value of a factor.

    The generalised FITC approximation (Naish-Guzman and Holden 2008) with the factors of Kim and Ghahramani (2006), as
    Villacampa-Calvo and Hernández-Lobato (2017, section 3) have it. Factors depend on latent values, whose noise is not
    integrated out first, so that those of a step multiply to the step.
    """

    name: ClassVar[str] = "latent_pairs"
    needs: ClassVar[tuple[type, ...]] = (PairFactors,)
    follows_parameters: ClassVar[bool] = True  # by leaving them out
    exact: ClassVar[bool] = False

    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> LatentSites:
        return LatentSites(Pairs().factors(likelihood, labels, c))
