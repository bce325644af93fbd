"""The Gaussian posterior of a latent function whose prior is by rows of few coefficients and a sparse precision."""

from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import NO_COVARIANCE
from pymc_gpep.gaussians.precision_prior import PrecisionPrior
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.gaussians.row_posterior import RowPosterior
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.solvers.coefficients import Coefficients, Entries
from pymc_gpep.solvers.sparse_precision import SparsePrecision


class PrecisionPosterior(RowPosterior):
    """Sites of precision diag(π) ≥ 0, from `precision` π (1, n), on f = m + A x.

    The posterior of x is N(Q⁻¹Aᵀb, P⁻¹) with P = Q + AᵀΠA; its mean is `centre` (q,).
    """

    prior: PrecisionPrior  # type: ignore[assignment]  # has what is asked of a prior by rows here

    @classmethod
    def of(cls, prior: PrecisionPrior, sites: Sites) -> Self:  # type: ignore[override]
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        force = sites.slope(prior.mean)
        posterior.centre = posterior._solved(prior.rows.sums(force[0]))
        posterior.weights = force - posterior.precision * prior.rows.products(posterior.centre)
        posterior.sites = sites
        return posterior

    @cached_property
    def covariance(self) -> SparsePrecision:
        """P, factorised."""
        found = self.prior.as_form.posterior_precision(self.precision[0])
        if found is None:
            raise NotPositiveDefiniteError(NO_COVARIANCE)
        return found

    def _solved(self, right: Array) -> Array:
        """P⁻¹ r (q,), of r (q,)."""
        return self.covariance.solve(right)

    @property
    def log_determinant(self) -> float:
        return self.covariance.log_det - self.prior.precision.log_det

    @cached_property
    def _cov(self) -> Array:
        structure, values = self.prior.structure, self.prior.as_form.values
        found = self.covariance.row_variances(structure.posterior_slots[1], structure.cells, values)
        return found[:, None, None]

    def derivatives(self) -> tuple[Array, Array]:
        """Derivatives of `log_normaliser` at fixed sites, in the array of the prior and in its mean (1, n)."""
        form = self.prior.as_form
        return form.gradient(self.covariance, self.precision[0], self.weights[0], self.centre), self.weights.copy()

    def variances_of(self, rows: Coefficients) -> Array:
        """Return the variances (m,) of T x, of rows T."""
        return self.covariance.variances(rows)

    def at_coefficients(self, rows: Coefficients, beside: Array, prior_mean: Array) -> tuple[Array, Array]:
        variance = self.variances_of(rows) + beside[0]
        return prior_mean + rows.products(self.centre)[None], variance[:, None, None]

    def root_among(self, points: NDArray[np.intp]) -> Array:
        return self.covariance.halved(self.prior.at(points)[0])[None]

    def whitened(self) -> tuple[Array, Array]:
        """Mean and variance (1, q) of x."""
        q = self.prior.n_normals
        one_each = Entries(np.arange(q)[:, None], np.ones((q, 1)), q)
        return self.centre[None], self.variances_of(one_each)[None]

    def whitened_covariance(self) -> Array:
        """Covariance (1, q, 1, q) of x."""
        return self.covariance.solve(np.eye(self.prior.n_normals))[None, :, None]

    def _halved(self, vectors: Array) -> Array:
        return np.stack([self.covariance.halved(own.T).T for own in vectors])

    def smoothing(self) -> tuple[Array, None]:
        half = self.precision[0][:, None] * self.covariance.halved(self.prior.at(np.arange(self.prior.shape[1]))[0])
        return (np.diag(self.precision[0]) - half @ half.T)[None], None

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        """Draws (draws, 1, q) of x."""
        return (self.centre + self.covariance.spread(rng.standard_normal((draws, self.prior.n_normals))))[:, None]
