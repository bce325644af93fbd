"""The paper's factors: the observed class against each other class, as if these comparisons were independent.

Sites stand on the utilities that are compared, or as in GFITC on latent values.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.site_rules.site_rule import ScalarSites, SiteRule
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import PairFactors
from pymc_gpep.solvers.sparse_ep import LatentSites, Tilted


class Pairs(ScalarSites):
    """∏_k Φ((f_y − f_k) / √2), k ≠ y, in place of the multinomial probit.

    This is equation 6 of Villacampa-Calvo and Hernández-Lobato (2017), whose f are utilities, latent values with unit
    noise. The events that y is above k are positively associated, since the noise of y is in all of them. So the
    product is a lower bound of the probability that they happen together, and over labels it does not sum to 1.

    The factors of the step likelihood are Θ(f_y − f_k), without the label noise, as in the paper.
    """

    name: ClassVar[str] = "pairwise"
    needs: ClassVar[tuple[type, ...]] = (PairFactors,)
    follows_parameters: ClassVar[bool] = True  # by leaving them out
    exact: ClassVar[bool] = False

    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        observed = np.repeat(labels[:, None], c - 1, axis=1)
        others = np.arange(c - 1) + (np.arange(c - 1) >= labels[:, None])
        return np.concatenate([observed, others], axis=1)

    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        n, d = mean.shape
        pairs = n, 2, d // 2
        found = Tilted(np.empty(n), np.empty(pairs), np.empty(pairs))
        likelihood.computation(PairFactors).derivatives(mean.reshape(pairs), variance.reshape(pairs), *found)
        return Tilted(found.log_z, found.rho.reshape(n, d), found.gamma.reshape(n, d))


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
