"""A latent function whose posterior is that of numbers with a sparse precision, from all rows together."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.precision_posterior import PrecisionPosterior
from pymc_gpep.gaussians.precision_prior import BoundPrecisionPrior
from pymc_gpep.hyper.latent_functions import NewRows
from pymc_gpep.hyper.row_functions import RowFunctions
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.solvers.inducing import Block

__all__ = ["PrecisionFunctions"]


class PrecisionFunctions(RowFunctions):
    """The latent function by the posterior of q numbers x; nothing has two axes of rows, or of numbers."""

    @property
    def numbers(self) -> PrecisionPosterior:
        """The posterior of x."""
        return cast(PrecisionPosterior, self.solution.posterior)

    def at(self, inputs: object) -> NewRows:
        """See `LatentFunctions`."""
        rows, beside, prior_mean = self._elsewhere.by_normals(self._point, inputs)
        mean, cov = self.numbers.at_coefficients(rows, beside, prior_mean)
        known = self.numbers.prior.precision.variances(rows)[None]
        return NewRows(mean, cov, Block(np.sqrt(known)[:, None], beside + known, prior_mean))

    def _root(self, rows: NDArray[np.intp]) -> Array:
        response = cast(PrecisionPosterior, self._response)
        return response.covariance.halved(response.prior.at(rows)[0])[None]

    def refitted(self, i: int) -> tuple[Array, Array, bool]:
        """See `LatentFunctions`."""
        solution, prior = self.solution, self.numbers.prior
        others = np.delete(np.arange(self.n_points), i)
        left = prior.some(others)
        again = self._approximator.solve(
            left.array, left.mean, solution.labels[others],
            likelihood=solution.likelihood.at(others), prior_type=BoundPrecisionPrior(left.structure),  # type: ignore[arg-type]
        )  # fmt: skip
        posterior = cast(PrecisionPosterior, again.posterior)
        row = Entries(prior.structure.cells[[i]], prior.as_form.values[[i]], self.size)
        mean, cov = posterior.at_coefficients(row, np.zeros((1, 1)), prior.mean[:, [i]])
        return mean.T, cov, again.convergence.converged

    def joint_covariance_among(self, points: Sequence[int]) -> Array:
        """See `LatentFunctions`."""
        half = self.numbers.covariance.halved(self.numbers.prior.at(np.asarray(points))[0])
        return np.asarray(half @ half.T)[None, :, None]

    def whitened(self) -> tuple[Array, Array]:
        """Return mean and variance (1, q) of x."""
        one_each = Entries(np.arange(self.size)[:, None], np.ones((self.size, 1)), self.size)
        return self.numbers.centre[None], self.numbers.variances_of(one_each)[None]

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return the covariance of latent values, or (1, q, 1, q) of x for a function that is `rotated`."""
        posterior = self.numbers
        if not rotated.all():
            return posterior.joint_covariance(posterior.prior.k, posterior.prior.k)
        return posterior.covariance.solve(np.eye(self.size))[None, :, None]

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Return draws (count, 1, n) of the latent values, and (count, 1, q) of x."""
        x = self.numbers.draw_whitened(rng, count)
        return self.numbers.prior.latent(x), x
