"""Latent functions whose posterior is that of few standard normals, from all rows together."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.row_posterior import RowPosterior
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.hyper.dense_functions import DenseFunctions
from pymc_gpep.hyper.latent_functions import NewRows, Reach
from pymc_gpep.solvers.coupled_whitened import CoupledWhitened
from pymc_gpep.solvers.function_rows import rows_of_functions
from pymc_gpep.solvers.inducing import Block, row_blocks

__all__ = ["RowFunctions"]

_SOME = 200  # fitted rows that are looked at for all


class RowFunctions(DenseFunctions):
    """Latent functions by the posterior of q standard normals, which all have; nothing has two axes of rows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.size = self._posterior.prior.n_normals

    @property
    def _posterior(self) -> RowPosterior:
        return cast(RowPosterior, self.solution.posterior)

    @property
    def own(self) -> Array:
        """See `LatentFunctions`; what is known of a row is one number, of variance 1."""
        return np.ones((self.n_functions, 1))

    def at(self, inputs: Any) -> NewRows:
        """See `LatentFunctions`."""
        rows, beside, prior_mean = self._elsewhere.by_normals(self._point, inputs)
        mean, cov = self._posterior.at_coefficients(rows, beside, prior_mean)
        known = rows.variances(np.eye(self.size)).reshape(beside.shape)
        return NewRows(mean, cov, Block(np.sqrt(known)[:, None], beside + known, prior_mean))

    def _root(self, rows: NDArray[np.intp]) -> Array:
        response = cast(RowPosterior, self._response)
        return np.asarray(response.prior.at(rows) @ response.normals.root.T)

    def refitted(self, i: int) -> tuple[Array, Array, bool]:
        """See `LatentFunctions`."""
        solution, prior = self.solution, self._posterior.prior
        others = np.delete(np.arange(self.n_points), i)
        again = self._approximator.solve(
            prior.at(others), prior.mean[:, others], solution.labels[others],
            likelihood=solution.likelihood.at(others), prior_type=RowPrior,
        )  # fmt: skip
        posterior = cast(RowPosterior, again.posterior)
        mean, cov = posterior.at_coefficients(
            rows_of_functions(prior.at(np.array([i]))), np.zeros((self.n_functions, 1)), prior.mean[:, [i]]
        )
        return mean.T, cov, again.convergence.converged

    def among_fitted(self) -> Reach:
        """See `LatentFunctions`."""
        prior = self._posterior.prior
        some = np.arange(0, self.n_points, -(-self.n_points // _SOME))
        return Reach(np.sqrt(prior.variances[:, some, None]), prior.variances[:, some], self.own)

    def joint_covariance_among(self, points: Sequence[int]) -> Array:
        """See `LatentFunctions`."""
        half = self._posterior.prior.at(np.asarray(points)) @ self._posterior.normals.root.T
        return np.einsum("kiq,ljq->kilj", half, half, optimize=True)

    def of_normals(self, matrix: Array) -> Array:
        """See `LatentFunctions`."""
        return self._posterior.prior.rows.combined(matrix)

    @property
    def _factorised(self) -> RowPosterior:
        return self._posterior

    @property
    def _normals(self) -> CoupledWhitened:
        return self._posterior.normals

    def draw_at(self, rng: np.random.Generator, count: int, inputs: Any) -> Iterator[tuple[slice, Array]]:
        """See `LatentFunctions`."""
        f, z = self.draw(rng, count)
        if inputs is None:
            yield slice(0, self.n_points), f
            return
        for rows in row_blocks(len(inputs), max(self.size, count)):
            there, beside, prior_mean = self._elsewhere.by_normals(self._point, inputs[rows])
            values = prior_mean + np.stack([there.products(each).reshape(prior_mean.shape) for each in z[:, 0]])
            yield rows, values + np.sqrt(beside) * rng.standard_normal(values.shape)
