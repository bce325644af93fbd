"""The prior of independent standard normals that latent functions are made of."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError, Prior
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import SiteForm, Sites
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.prior_form import PriorForm


class NormalsPrior(Prior):
    """z ~ N(0, I), of which c latent functions f_k = m_k + J_k z are made.

    Samplers move z, (1, q), so that covariances of latent values may be singular.

    Parameters
    ----------
    function_mean : array (c, n)
        m.
    rows : Coefficients
        J, (cn, q).
    roots : sequence of array, optional
        Cholesky factors of Gaussian processes among what is made of z, for those that compute their values.
    supported : bool
        Whether hyperparameters are where the model has a density.
    """

    of_values = False

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
        """J, (c, n, q)."""
        return self.rows.some(np.arange(self.function_mean.size)).reshape(*self.function_mean.shape, -1)

    def functions(self, x: Array) -> Array:
        return self.function_mean + self.moved(x)

    def moved(self, x: Array) -> Array:
        """J x (..., c, n), of x (..., 1, q)."""
        flat = x.reshape(-1, self.mean.size)
        found = np.empty((len(flat), self.function_mean.size))
        for row, each in zip(found, flat, strict=True):
            row[:] = self.rows.products(each)
        return found.reshape(*x.shape[:-2], *self.function_mean.shape)

    def pulled(self, slope: Array) -> Array:
        return self.rows.sums(np.ravel(slope))[None]

    def precision(self, sites: Sites) -> Array:
        """I + JᵀΠJ (q, q), whose lower triangle counts."""
        if sites.form is SiteForm.INDEPENDENT:
            total = self.rows.gram(sites.precision.ravel())
        else:
            pulls = sites.product(self.full.transpose(2, 0, 1))
            total = np.tensordot(pulls, self.full, axes=((1, 2), (0, 1)))
        total[np.diag_indices(len(total))] += 1.0
        return total

    def for_solver(self, takes: Callable[[type[PriorForm]], bool]) -> tuple[Array, type[DensePrior]]:
        """The array that a solver takes, and the prior that is made of it: by rows if that can be had and is smaller.

        Parameters
        ----------
        takes : callable
            Whether the solver takes a form.
        """
        _, n, q = self.full.shape
        if takes(RowPrior.form) and q < n:
            return self.full, RowPrior
        return np.matmul(self.full, self.full.swapaxes(1, 2)), DensePrior

    # Whitened values are what is sampled.

    def latent(self, z: Array) -> Array:
        """Standard normals z as samplers move them, themselves."""
        return z

    def whitened(self, x: Array) -> Array:
        """The inverse of `latent`."""
        return x

    def whitened_slope(self, slope: Array) -> Array:
        """The derivative with respect to z, which is that with respect to x."""
        return slope

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.standard_normal((count, *self.shape))
