"""Latent functions whose posterior is that of all rows together."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.dense_posterior import DensePosterior
from pymc_gpep.gaussians.normals import posterior_of_normals
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.hyper.latent_functions import GroupOfRows, LatentFunctions, NewRows, Reach
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.coupled_whitened import CoupledWhitened
from pymc_gpep.solvers.inducing import Block, row_blocks
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.structure.latent_prior import Elsewhere

__all__ = ["DenseFunctions", "leave_one_out_moments"]

_SOME = 200  # fitted rows that are looked at for all
_ROWS = 500  # after which progress is told, and an interrupt is heeded


class DenseFunctions(LatentFunctions):
    """Latent functions by the joint posterior of all rows.

    Parameters
    ----------
    approximator : Approximator
    solution : Solution
    point : dict
        Values of the model's value variables.
    elsewhere : callable
        Function that makes prior moments at new rows, where these are wanted.
    names : str
        Names of the latent values in the model, for messages.
    roots : callable, optional
        Function that computes factors (c, n, q) of the prior covariance that the model's variables belong to, where
        these are not its Cholesky factors.
    """

    def __init__(
        self,
        approximator: Approximator,
        solution: Solution,
        point: PointType,
        elsewhere: Callable[[], Elsewhere],
        names: str,
        roots: Callable[[], Array] | None = None,
    ) -> None:
        self.solution, self._roots = solution, roots
        self._approximator, self._point, self._make, self._names = approximator, point, elsewhere, names
        self.n_functions, self.n_points = solution.posterior.prior.shape
        self.size = self.n_points

    @cached_property
    def _elsewhere(self) -> Elsewhere:
        return self._make()

    @property
    def takes(self) -> Collection[str]:
        """See `LatentFunctions`."""
        return self._elsewhere.takes

    def new_rows(self, x: ArrayLike | None, data: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        """See `LatentFunctions`."""
        return self._elsewhere.rows(x, data, new_levels)

    def missing_rows(self) -> Any:
        """See `LatentFunctions`."""
        return self._elsewhere.missing_rows()

    @property
    def likelihood(self) -> Likelihood:
        """See `LatentFunctions`."""
        return self.solution.likelihood

    @property
    def labels(self) -> Observed:
        """See `LatentFunctions`."""
        return self.solution.labels

    @property
    def own(self) -> Array:
        """See `LatentFunctions`."""
        variances: Array = self.solution.posterior.prior.variances
        return variances

    def prior_at(self, inputs: Any) -> tuple[Array, Array, Array]:
        """See `LatentFunctions`."""
        return self._elsewhere(self._point, inputs)

    def at(self, inputs: Any) -> NewRows:
        """See `LatentFunctions`."""
        cross, variance, prior_mean = self.prior_at(inputs)
        mean, cov = self.solution.posterior.predict(cross, variance, prior_mean)
        return NewRows(mean, cov, Block(cross.swapaxes(1, 2), variance, prior_mean))

    def at_rows(self, rows: slice) -> tuple[Array, Array]:
        """See `LatentFunctions`."""
        return self.solution.mean[:, rows], self.solution.cov[rows]

    def left_out(self) -> Iterator[LeftOut]:
        """See `LatentFunctions`."""
        mean, cov = leave_one_out_moments(self._approximator, self.solution)
        for start in range(0, self.n_points, _ROWS):
            rows = slice(start, min(start + _ROWS, self.n_points))
            yield LeftOut(rows, mean[rows], cov[rows])

    @cached_property
    def _response(self) -> DensePosterior:
        """The posterior that says how means follow what is left out."""
        return self._approximator.response(self.solution)

    def group(self, rows: NDArray[np.intp]) -> GroupOfRows:
        """See `LatentFunctions`."""
        posterior = self._response
        if not posterior.sites.pointwise:
            raise NotImplementedError(
                f"Sites of {self._approximator.name!r} are not of rows, so that none can be left out."
            )
        sites = posterior.sites.at(rows)
        return GroupOfRows(self.solution.mean[:, rows], self._root(rows), sites, posterior.weights[:, rows])

    def _root(self, rows: NDArray[np.intp]) -> Array:
        """R (c, m, p), with the covariance R Rᵀ of latent values at some rows."""
        k = self._response.prior.k
        joint = self._response.joint_covariance(k[:, :, rows], k[:, rows][:, :, rows])
        c, m = joint.shape[:2]
        values, vectors = np.linalg.eigh(joint.reshape(c * m, c * m))
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).reshape(c, m, c * m))

    def refitted(self, i: int) -> tuple[Array, Array, bool]:
        """See `LatentFunctions`."""
        solution = self.solution
        k, prior_mean = solution.posterior.prior.k, solution.posterior.prior.mean
        others = np.delete(np.arange(self.n_points), i)
        again = self._approximator.solve(
            k[:, others][:, :, others], prior_mean[:, others], solution.labels[others],
            likelihood=solution.likelihood.at(others),
        )  # fmt: skip
        mean, cov = again.posterior.predict(k[:, [i]][:, :, others], k[:, [i], [i]], prior_mean[:, [i]])
        return mean.T, cov, again.convergence.converged

    def among_fitted(self) -> Reach:
        """See `LatentFunctions`."""
        k = self.solution.posterior.prior.k
        some = np.arange(0, self.n_points, -(-self.n_points // _SOME))
        cross = k[:, some].copy()
        cross[:, np.arange(some.size), some] = np.nan
        return Reach(cross, self.own[:, some], self.own)

    @cached_property
    def _factorised(self) -> DensePosterior:
        """The posterior, with factors of the prior covariance."""
        posterior: DensePosterior = self.solution.posterior
        if self._roots is not None:
            return posterior.rooted(self._roots())
        try:
            _ = posterior.prior.roots
        except NotPositiveDefiniteError:
            # An approximation needs no such factor; the model's own latent values, mean + factor × noise, need it.
            at = {name: np.asarray(value).tolist() for name, value in self._point.items()}
            raise NotPositiveDefiniteError.of(
                f"The prior covariance of the latent values {self._names}",
                f" at the hyperparameters {at} (unconstrained)",
            ) from None
        return posterior

    @cached_property
    def _normals(self) -> CoupledWhitened | None:
        """The posterior of the standard normals that the model's variables belong to, where these are given."""
        return None if self._roots is None else posterior_of_normals(self._factorised)

    def whitened(self) -> tuple[Array, Array]:
        """See `LatentFunctions`."""
        if (normals := self._normals) is not None:
            return normals.mean, np.einsum("ij,ij->j", normals.root, normals.root).reshape(normals.mean.shape)
        posterior = self._factorised
        prior = posterior.prior
        mean = prior.whitened_slope(posterior.weights)
        unit = np.eye(prior.roots.shape[-1])
        return mean, np.maximum(posterior.marginal_variance(prior.roots, unit), 0.0)

    def marginals(self) -> tuple[Array, Array]:
        """See `LatentFunctions`."""
        return self.solution.mean, self.solution.cov.diagonal(axis1=1, axis2=2).T

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """See `LatentFunctions`."""
        if rotated.all() and self._normals is not None:
            shape = self._normals.mean.shape
            return np.asarray(self._normals.root.T @ self._normals.root).reshape(*shape, *shape)
        which = rotated[:, None, None]
        posterior = self._factorised if rotated.any() else self.solution.posterior
        k = posterior.prior.k
        if not rotated.any():
            return posterior.joint_covariance(k, k)
        if rotated.all():
            return posterior.joint_covariance(posterior.prior.roots, np.eye(posterior.prior.roots.shape[-1]))
        return posterior.joint_covariance(
            np.where(which, posterior.prior.roots, k), np.where(which, np.eye(self.n_points), k)
        )

    def of_normals(self, matrix: Array) -> Array:
        """See `LatentFunctions`."""
        return np.asarray(self._factorised.prior.roots[0] @ matrix)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """See `LatentFunctions`."""
        posterior = self._factorised
        z = posterior.draw_whitened(rng, count) if self._normals is None else self._normals.draw(rng, count)
        return posterior.prior.latent(z), z

    def draw_at(self, rng: np.random.Generator, count: int, inputs: Array | None) -> Iterator[tuple[slice, Array]]:
        """See `LatentFunctions`."""
        f, _ = self.draw(rng, count)
        if inputs is None:
            yield slice(0, self.n_points), f
            return
        for rows in row_blocks(len(inputs), self.n_functions * max(self.n_points, count)):
            moments = self._elsewhere(self._point, inputs[rows])
            found = np.empty((count, self.n_functions, len(inputs[rows])))
            for s, values in enumerate(f):
                mean, variance = self.solution.posterior.prior.conditional(values, *moments)
                found[s] = mean + np.sqrt(variance) * rng.standard_normal(mean.shape)
            yield rows, found


def leave_one_out_moments(approximator: Approximator, solution: Solution) -> tuple[Array, Array]:
    """Return mean (n, c) and covariance (n, c, c) of the latent values of each row given the labels of the others.

    The cavity approximates them: the posterior with the site of the row left out (EP-LOO and LA-LOO of Vehtari,
    Mononen, Tolvanen, Sivula and Winther 2016, the most accurate of the fast ways they compare). Where the means of an
    approximation do not follow its own covariance, the mean of the cavity comes from its linear response instead.
    """
    mean, cov = solution.posterior.cavities(solution.mean, solution.cov)
    response = approximator.response(solution)
    if response is not solution.posterior:
        mean, _ = response.cavities(*response.marginals())
    return mean, cov
