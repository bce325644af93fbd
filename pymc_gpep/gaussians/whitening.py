"""Latent values as a function of independent standard normals, at given hyperparameters.

The joint density of hyperparameters and latent values becomes, with f = f(z; θ),

    p(θ) Z̃(θ) N(z; 0, I) p(y | f, θ) / sites(f),

where Z̃ normalises prior times sites. The better the sites stand in for the likelihood, the closer z is to standard
normal whatever θ is. Without sites this is the usual whitening by the prior. Densities are exact either way.
"""

from abc import ABC, abstractmethod

import numpy as np
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.lapack import dtrtrs

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.gaussians.row_prior import NormalsPrior
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.kernels.gaussians.whitening import colour, colour_transposed, whiten

Sampled = DensePrior | NormalsPrior
"""Priors of what samplers move: latent values, or the standard normals that they are made of."""

_NO_POSTERIOR = "The posterior covariance under the sites is not positive definite."


class Whitening(ABC):
    """The map between z and f at one point of the hyperparameters.

    Where latent functions are made of few standard normals x, these take the place of f, (1, q).

    Attributes
    ----------
    prior : DensePrior or NormalsPrior
    log_evidence : float
        log Z̃, 0 without sites.
    centre : array (c, n)
        f at z = 0.
    """

    prior: Sampled
    log_evidence: float
    centre: Array

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Shape of z; n is the last."""

    @abstractmethod
    def latent(self, z: Array) -> Array:
        """f (c, n) for a given z."""

    @abstractmethod
    def slope(self, slope: Array) -> Array:
        """Derivative with respect to z of what has the derivative `slope` (c, n) with respect to f."""

    @abstractmethod
    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        """z for a given f: what is needed besides f to determine it is drawn given f."""

    @abstractmethod
    def log_sites(self, f: Array) -> tuple[float, Array]:
        """Log of the sites at f, and its derivative (c, n)."""


class PriorWhitening(Whitening):
    """f_k = m_k + L_k z_k, with the Cholesky factors of the prior covariance."""

    def __init__(self, prior: Sampled) -> None:
        self.prior = prior
        self.log_evidence = 0.0
        self.centre = prior.mean

    @property
    def shape(self) -> tuple[int, int]:
        return self.prior.shape

    def latent(self, z: Array) -> Array:
        return self.prior.latent(z)

    def slope(self, slope: Array) -> Array:
        return self.prior.whitened_slope(slope)

    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        return self.prior.whitened(f)

    def log_sites(self, f: Array) -> tuple[float, Array]:
        return 0.0, np.zeros_like(f)


class SiteWhitening(Whitening):
    """A map under which f has the posterior that sites make of the prior where z is standard normal.

    Parameters
    ----------
    prior : DensePrior or NormalsPrior
    sites : Sites
    mean : array (c, n)
        Mean of the posterior.
    log_normaliser : float
        Log integral of prior times sites.

    Raises
    ------
    NotPositiveDefiniteError
        If there is no normaliser.
    """

    def __init__(self, prior: Sampled, sites: Sites, mean: Array, log_normaliser: float) -> None:
        if not np.isfinite(log_normaliser):
            raise NotPositiveDefiniteError(_NO_POSTERIOR)
        self.prior = prior
        self.sites = sites
        self.centre = mean
        self.log_evidence = log_normaliser

    def log_sites(self, f: Array) -> tuple[float, Array]:
        return self.sites.value_and_slope(f)


class CoupledWhitening(SiteWhitening):
    """The map of `pymc_gpep.kernels.gaussians.whitening`, for sites that couple the classes.

    Parameters
    ----------
    prior, sites, mean, log_normaliser
        See `SiteWhitening`.
    inverses, p : array (c, n, n), (n, n)
        A_k⁻¹ and the Cholesky factor of P, of `pymc_gpep.kernels.gaussians.coupled`, in their lower triangles.
    """

    prior: DensePrior

    def __init__(
        self, prior: DensePrior, sites: Sites, mean: Array, log_normaliser: float, inverses: Array, p: Array
    ) -> None:
        super().__init__(prior, sites, mean, log_normaliser)
        self._map = prior.k, prior.roots, sites.precision, inverses, p

    @property
    def shape(self) -> tuple[int, int]:
        c, n = self.prior.shape
        return 2 * c + 1, n

    def latent(self, z: Array) -> Array:
        f = np.empty_like(self.centre)
        colour(*self._map, z, f)
        return f + self.centre

    def slope(self, slope: Array) -> Array:
        z = np.empty(self.shape)
        colour_transposed(*self._map, slope, z)
        return z

    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        z = rng.standard_normal(self.shape)
        whiten(*self._map, f - self.centre, z)
        return z


class IndependentWhitening(SiteWhitening):
    """Matheron's rule, for sites of each latent function alone.

    f follows from w, a draw of the prior, and e, noise of the sites, z = (w, e) (2c, n): with D_k = diag(π_k),

        f_k = f̂_k + L_k w_k − K_k D_k^½ A_k⁻¹ (D_k^½ L_k w_k + e_k),   A_k = I + D_k^½ K_k D_k^½.

    In the other direction what f leaves open is drawn. If w, e give f − δ, then w + L⁻¹δ, e − D^½δ give f.

    Parameters
    ----------
    prior, sites, mean, log_normaliser
        See `SiteWhitening`.
    inverses : array (1 or c, n, n)
        A_k⁻¹, in full.
    """

    prior: DensePrior

    def __init__(self, prior: DensePrior, sites: Sites, mean: Array, log_normaliser: float, inverses: Array) -> None:
        super().__init__(prior, sites, mean, log_normaliser)
        self._inverses = inverses
        self._scale = np.sqrt(sites.precision)

    @property
    def shape(self) -> tuple[int, int]:
        c, n = self.prior.shape
        return 2 * c, n

    def latent(self, z: Array) -> Array:
        w, e = np.split(z, 2)
        drawn = _products(self.prior.roots, w)
        force = self._scale * _products(self._inverses, self._scale * drawn + e)
        return self.centre + drawn - _products(self.prior.k, force)

    def slope(self, slope: Array) -> Array:
        of_e = -_products(self._inverses, self._scale * _products(self.prior.k, slope))
        return np.concatenate([self.prior.whitened_slope(slope + self._scale * of_e), of_e])

    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        w, e = np.split(rng.standard_normal(self.shape), 2)
        missing = f - self.latent(np.concatenate([w, e]))
        return np.concatenate([w + self.prior.whitened_residual(missing), e - self._scale * missing])


class NormalsWhitening(SiteWhitening):
    """x = x̂ + L⁻ᵀ z with L Lᵀ = I + JᵀΠJ, of standard normals x that make f = m + J x."""

    prior: NormalsPrior

    def __init__(self, prior: NormalsPrior, sites: Sites) -> None:
        try:
            self._factor = cholesky(prior.precision(sites), lower=True, overwrite_a=True)
        except (LinAlgError, ValueError):  # as of what is not finite
            raise NotPositiveDefiniteError(_NO_POSTERIOR) from None
        half = self._halved(prior.pulled(sites.slope(prior.function_mean))[0])
        mean = self._coloured(half)[None]
        log_normaliser = float(sites.log_density(prior.functions(mean))) - 0.5 * float(np.vdot(mean, mean))
        super().__init__(prior, sites, mean, log_normaliser - float(np.log(self._factor.diagonal()).sum()))

    @property
    def shape(self) -> tuple[int, int]:
        return self.prior.shape

    def _coloured(self, z: Array) -> Array:
        found, _ = dtrtrs(self._factor, z, lower=1, trans=1)
        return np.asarray(found)

    def _halved(self, x: Array) -> Array:
        """L⁻¹ x."""
        found, _ = dtrtrs(self._factor, x, lower=1)
        return np.asarray(found)

    def latent(self, z: Array) -> Array:
        return self.centre + self._coloured(z[0])

    def slope(self, slope: Array) -> Array:
        return self._halved(slope[0])[None]

    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        return (f - self.centre) @ self._factor

    def log_sites(self, f: Array) -> tuple[float, Array]:
        value, slope = self.sites.value_and_slope(self.prior.functions(f))
        return value, self.prior.pulled(slope)


def _products(matrices: Array, x: Array) -> Array:
    """S_k x_k (c, n) of each function, from matrices (1 or c, n, n)."""
    return np.asarray(np.matmul(matrices, x[..., None])[..., 0])
