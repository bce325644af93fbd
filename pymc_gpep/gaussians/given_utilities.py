"""Draws of latent values given utilities v = f + noise of variance 1, for Gibbs sampling of a probit."""

from abc import ABC, abstractmethod

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.row_prior import NormalsPrior
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.kernels.sampling import draw_latent_values, utility_precisions


class GivenUtilities(ABC):
    """Draws given utilities, from one prior, with all factorised that does not depend on utilities.

    Attributes
    ----------
    prior : DensePrior or NormalsPrior
    """

    prior: Sampled

    @abstractmethod
    def draw(self, rng: np.random.Generator, v: Array) -> Array:
        """A draw of what is sampled, given utilities (c, n), in which a common shift of a point may be in place."""


def given_utilities(prior: Sampled, shifted: bool) -> GivenUtilities:
    """Draws given utilities from a prior.

    Parameters
    ----------
    prior : DensePrior or NormalsPrior
    shifted : bool
        Whether observations say nothing of what all utilities of a point have in common, which is then integrated out.
    """
    return _GivenByNormals(prior, shifted) if isinstance(prior, NormalsPrior) else _GivenByCovariance(prior, shifted)


class _GivenByCovariance(GivenUtilities):
    """Latent values given utilities, see `pymc_gpep.kernels.sampling`."""

    prior: DensePrior

    def __init__(self, prior: DensePrior, shifted: bool) -> None:
        self.prior, self._shifted = prior, shifted
        self._precisions, self._total = np.empty_like(prior.k), np.empty(prior.k.shape[1:])
        utility_precisions(prior.k, self._precisions, self._total)

    def draw(self, rng: np.random.Generator, v: Array) -> Array:
        f, prior = np.empty_like(v), self.prior
        draw_latent_values(rng, prior.mean, prior.roots, self._precisions, self._total, self._shifted, f, v)
        return f


class _GivenByNormals(GivenUtilities):
    """Standard normals z given v = m + J z + noise: N(Λ⁻¹JᵀP(v − m), Λ⁻¹) with Λ = I + JᵀPJ.

    P is the identity, or takes from the utilities of a point their mean where that is integrated out.
    """

    prior: NormalsPrior

    def __init__(self, prior: NormalsPrior, shifted: bool) -> None:
        self.prior, self._shifted = prior, shifted
        total = prior.rows.gram(np.ones(prior.function_mean.size)) + np.eye(prior.mean.size)
        if shifted:
            common = prior.full.sum(axis=0)
            total -= common.T @ common / len(prior.function_mean)
        self._factor = cholesky(total, lower=True)

    def draw(self, rng: np.random.Generator, v: Array) -> Array:
        pull = v - self.prior.function_mean
        if self._shifted:
            pull = pull - pull.mean(axis=0)
        centre = cho_solve((self._factor, True), self.prior.pulled(pull)[0], check_finite=False)
        noise = rng.standard_normal(centre.size)
        return np.asarray(centre + solve_triangular(self._factor, noise, lower=True, trans=1, check_finite=False))[None]
