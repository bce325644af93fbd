"""Latent values as functions of independent standard normals, at given hyperparameters.

Let latent values f = f(z; θ) be a function of standard normals z and hyperparameters θ. Their joint density is

    p(θ) Z̃(θ) N(z; 0, I) p(y | f, θ) / sites(f),

where Z̃ is the integral of prior times sites. If the sites approximate the likelihood well, z is close to standard
normal for any θ. Without sites this is the usual whitening by the prior. Densities are exact in any case.

`posterior_of_normals` computes variances without subtraction. So variances far below prior variances are accurate.
`GivenUtilities` draws latent values given utilities v = f + noise of variance 1, for Gibbs sampling of a probit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dtrtrs

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_algebra import DenseCoupled, DenseIndependent
from pymc_gpep.gaussians.posterior import Posterior, posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PriorForm
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import SiteForm, Sites
from pymc_gpep.kernels.gaussians.whitening import colour, colour_transposed, whiten
from pymc_gpep.kernels.sampling import draw_latent_values, utility_precisions
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.problem import Prior
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened, coupled_whitened


class NormalsPrior(Prior):
    """Prior of standard normals z that determine c latent functions f_k = m_k + J_k z.

    Samplers update z (1, q) in place of latent values. So the covariance of latent values may be singular.

    Parameters
    ----------
    function_mean : array (c, n)
        Prior mean m.
    rows : Coefficients
        Coefficients J, (cn, q).
    roots : sequence of array, optional
        Cholesky factors of Gaussian processes that are functions of z, for the computation of their values.
    supported : bool
        Whether the hyperparameters are in the support of the model's prior.
    """

    def __init__(
        self, function_mean: Array, rows: Coefficients, roots: Sequence[Array] = (), supported: bool = True
    ) -> None:
        self.function_mean = np.require(function_mean, np.float64, ["C", "W"])
        self.rows = rows
        self.process_roots = tuple(roots)
        self._supported = supported
        self.mean = np.zeros((1, rows.sums(np.zeros(self.function_mean.size)).size))

    def check(self) -> None:
        known = [self.function_mean, *self.process_roots, self.functions(np.ones_like(self.mean))]
        if not self._supported or not all(np.isfinite(each).all() for each in known):
            raise NotPositiveDefiniteError.of("The prior covariance of the latent values")

    @cached_property
    def full(self) -> Array:
        """Coefficients J as a dense array, (c, n, q)."""
        return self.rows.some(np.arange(self.function_mean.size)).reshape(*self.function_mean.shape, -1)

    def functions(self, x: Array) -> Array:
        return self.function_mean + self.moved(x)

    def moved(self, x: Array) -> Array:
        """Return latent values minus their prior means, J x (..., c, n), for x (..., 1, q)."""
        flat = x.reshape(-1, self.mean.size)
        found = np.empty((len(flat), self.function_mean.size))
        for row, each in zip(found, flat, strict=True):
            row[:] = self.rows.products(each)
        return found.reshape(*x.shape[:-2], *self.function_mean.shape)

    def pulled(self, slope: Array) -> Array:
        return self.rows.sums(np.ravel(slope))[None]

    def precision(self, sites: Sites) -> Array:
        """Return the posterior precision I + JᵀΠJ (q, q) of z for site precisions Π, in the lower triangle."""
        if sites.form is SiteForm.INDEPENDENT:
            total = self.rows.gram(sites.precision.ravel())
        else:
            pulls = sites.product(self.full.transpose(2, 0, 1))
            total = np.tensordot(pulls, self.full, axes=((1, 2), (0, 1)))
        total[np.diag_indices(len(total))] += 1.0
        return total

    def for_solver(self, takes: Callable[[type[PriorForm]], bool]) -> tuple[Array, type[PriorForm]]:
        """Return array and form of the prior for a solver: rows if they are accepted and smaller, else covariances.

        Parameters
        ----------
        takes : callable
            Function that returns whether the solver accepts a form.
        """
        _, n, q = self.full.shape
        if takes(RowPrior) and q < n:
            return self.full, RowPrior
        return np.matmul(self.full, self.full.swapaxes(1, 2)), DensePrior

    # Sampled values are the standard normals.

    def latent(self, z: Array) -> Array:
        """Return z itself: the sampled values are the standard normals."""
        return z

    def whitened(self, x: Array) -> Array:
        """Return x itself, the inverse of `latent`."""
        return x

    def whitened_slope(self, slope: Array) -> Array:
        """Return `slope` itself: the derivative in z is the derivative in x."""
        return slope

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.standard_normal((count, *self.shape))


Sampled = DensePrior | NormalsPrior
"""Priors of sampled values: latent values, or standard normals that determine them."""

_NO_POSTERIOR = "The posterior covariance under the sites is not positive definite."


class Whitening(ABC):
    """Map between standard normals z and latent values f, at fixed hyperparameters.

    If latent functions depend on few standard normals x (1, q), x replaces f.

    Attributes
    ----------
    prior : DensePrior or NormalsPrior
    log_evidence : float
        Log of the integral of prior times sites; 0 without sites.
    centre : array (c, n)
        Latent values f for z = 0.
    """

    prior: Sampled
    log_evidence: float
    centre: Array

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Shape of z. Its last axis has length n."""

    @abstractmethod
    def latent(self, z: Array) -> Array:
        """Return the latent values f (c, n) of z."""

    @abstractmethod
    def slope(self, slope: Array) -> Array:
        """Return the derivative in z of a function with the derivative `slope` (c, n) in f."""

    @abstractmethod
    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        """Return a z that maps to f. Entries of z that f does not determine are drawn given f."""

    @abstractmethod
    def log_sites(self, f: Array) -> tuple[float, Array]:
        """Return the log of the sites at f, and its derivative (c, n)."""


class PriorWhitening(Whitening):
    """The map f_k = m_k + L_k z_k, with the Cholesky factors L_k of the prior covariance."""

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
    """Map from standard normals to the posterior distribution of prior times sites.

    Parameters
    ----------
    prior : DensePrior or NormalsPrior
    sites : Sites
    mean : array (c, n)
        Posterior mean.
    log_normaliser : float
        Log of the integral of prior times sites.

    Raises
    ------
    NotPositiveDefiniteError
        If `log_normaliser` is not finite.
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
    """Map of `pymc_gpep.kernels.gaussians.whitening`, for sites that couple the classes.

    Parameters
    ----------
    prior, sites, mean, log_normaliser
        See `SiteWhitening`.
    inverses, p : array (c, n, n), (n, n)
        Matrices A_k⁻¹ and the Cholesky factor of P of `pymc_gpep.kernels.gaussians.coupled`, in lower triangles.
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
    """Map by Matheron's rule, for separate sites of each latent function.

    z is (w, e), (2c, n): w defines a draw of the prior, e is site noise. With site precisions D_k = diag(π_k), the
    posterior mean f̂, the prior covariance K_k and its Cholesky factor L_k,

        f_k = f̂_k + L_k w_k − K_k D_k^½ A_k⁻¹ (D_k^½ L_k w_k + e_k),   A_k = I + D_k^½ K_k D_k^½.

    For given f, entries of z that f does not determine are drawn: if (w, e) maps to f − δ, then (w + L⁻¹δ, e − D^½δ)
    maps to f.

    Parameters
    ----------
    prior, sites, mean, log_normaliser
        See `SiteWhitening`.
    inverses : array (1 or c, n, n)
        Inverses A_k⁻¹, as full matrices.
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
    """Map from z to normals x of a `NormalsPrior`: the posterior mean plus L⁻ᵀ z, with L Lᵀ = I + JᵀΠJ."""

    prior: NormalsPrior

    def __init__(self, prior: NormalsPrior, sites: Sites) -> None:
        try:
            self._factor = cholesky(prior.precision(sites), lower=True, overwrite_a=True)
        except (LinAlgError, ValueError):  # for example, values that are not finite
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
        """Return L⁻¹ x, with the Cholesky factor L of the posterior precision."""
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
    """Return the products (c, n) of matrices (1 or c, n, n) and vectors x (c, n) of each function."""
    return np.asarray(np.matmul(matrices, x[..., None])[..., 0])


_SCALAR = (SiteForm.COUPLED, SiteForm.INDEPENDENT)
"""Forms of sites with one precision for each function of a point."""


def whitens(form: SiteForm) -> bool:
    """Return whether whitening is implemented for a form of sites."""
    return form in _SCALAR


def whitening_of(prior: Sampled, sites: Sites) -> Whitening:
    """Return the map from standard normals to the posterior of prior times sites.

    Negative precisions are replaced by 0.

    Raises
    ------
    NotPositiveDefiniteError
        If a matrix has no Cholesky factor in working precision.
    """
    if sites.form in _SCALAR:
        sites = type(sites)(np.maximum(sites.precision, 0.0), sites.location)
    if isinstance(prior, NormalsPrior):
        return NormalsWhitening(prior, sites)
    posterior = posterior_of(prior, sites)
    given = prior, sites, posterior.mean, posterior.log_normaliser
    algebra = posterior.algebra
    if isinstance(algebra, DenseCoupled):
        return CoupledWhitening(*given, *(np.asarray(each, np.float64) for each in (algebra.inverses, algebra.p)))
    if isinstance(algebra, DenseIndependent):
        return IndependentWhitening(*given, algebra.full_inverses)
    raise TypeError(f"Whitening is not implemented for {sites.form} sites. Check `whitens` first.")


class SampledPosterior(NamedTuple):
    """Posterior of sampled values: latent values, or standard normals that determine them."""

    mean: Array
    """Posterior mean of the sampled values, (c, n) or (1, q)."""
    draw: Callable[[np.random.Generator, int], Array]
    """Function that returns draws (count, c, n) or (count, 1, q) of sampled values minus their mean."""
    values: Callable[[Array], Array]
    """Function from sampled values to latent values (c, n), both minus prior means."""


def sampled_posterior(posterior: Posterior, prior: Sampled | None = None) -> SampledPosterior:
    """Return the posterior of the sampled values of `prior`; of latent values if `prior` is None."""
    if isinstance(prior, NormalsPrior):
        normals, whitening = prior, NormalsWhitening(prior, posterior.sites)

        def draw(rng: np.random.Generator, count: int) -> Array:
            return np.stack([whitening.latent(z) for z in normals.draw(rng, count)]) - whitening.centre

        return SampledPosterior(whitening.centre, draw, normals.moved)
    return SampledPosterior(posterior.mean, lambda rng, count: posterior.draw(rng, count) - posterior.mean, lambda x: x)


class GivenUtilities(ABC):
    """Draws of sampled values given utilities v = f + noise. Factorisations are computed once for all v.

    Attributes
    ----------
    prior : DensePrior or NormalsPrior
    """

    prior: Sampled

    @abstractmethod
    def draw(self, rng: np.random.Generator, v: Array) -> Array:
        """Return a draw given utilities v (c, n). A drawn shift of each point may be added to v in place."""


def given_utilities(prior: Sampled, shifted: bool) -> GivenUtilities:
    """Return an object that draws sampled values given utilities.

    Parameters
    ----------
    prior : DensePrior or NormalsPrior
    shifted : bool
        Whether the mean utility of a point is integrated out, because observations do not depend on it.
    """
    return _GivenByNormals(prior, shifted) if isinstance(prior, NormalsPrior) else _GivenByCovariance(prior, shifted)


class _GivenByCovariance(GivenUtilities):
    """Draws of latent values given utilities, see `pymc_gpep.kernels.sampling`."""

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
    """Draws of standard normals z given utilities v = m + J z + noise of variance 1.

    Draws are from N(Λ⁻¹JᵀP(v − m), Λ⁻¹) with Λ = I + JᵀPJ. P is the identity, or subtracts the mean utility of each
    point if this mean is integrated out.
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


def posterior_of_normals(posterior: Posterior) -> CoupledWhitened | None:
    """Return the posterior of the standard normals z (c, q) in f = m + J z, with roots J of the prior.

    Return None if sites couple points, or if the precision of z has no Cholesky factor.
    """
    sites, prior = posterior.sites, posterior.prior
    if not sites.pointwise:
        return None
    c, n = prior.shape
    roots = np.broadcast_to(prior.roots, (c, *prior.roots.shape[1:]))
    q = roots.shape[-1]
    precision = np.zeros((c, q, c, q))
    for k, own in enumerate(roots):
        columns = np.zeros((q, c, n))
        columns[:, k] = own.T
        precision[k] = np.einsum("jbi,bil->jbl", sites.product(columns), roots, optimize=True)
    try:
        found = coupled_whitened(precision.reshape(c * q, c * q), np.zeros((c, q)))
    except LinAlgError:
        return None
    return replace(found, mean=prior.whitened_slope(posterior.weights))


def draw_normals(posterior: Posterior, rng: np.random.Generator, count: int) -> Array:
    """Return posterior draws (count, c, q) of the standard normals, by `posterior_of_normals` or by perturbation."""
    normals = posterior_of_normals(posterior)
    return posterior.draw_whitened(rng, count) if normals is None else normals.draw(rng, count)
