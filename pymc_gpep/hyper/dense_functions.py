"""Latent functions whose posterior is that of all rows together."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.posterior import DensePosterior, posterior_of_normals
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.hyper.latent_functions import GroupOfRows, Labelled, LatentFunctions, NewRows, Reach
from pymc_gpep.latent.latent_prior import Elsewhere, PriorAtNewRows
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.inducing import row_blocks
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened

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
        Function that makes prior moments at new rows of an observed variable by its name, where these are wanted; of
        the only one, if None.
    names : str
        Names of the latent values in the model, for messages.
    roots : callable, optional
        Function that computes factors (c, n, q) of the prior covariance that the model's variables belong to, where
        these are not its Cholesky factors.

    Attributes
    ----------
    posterior : DensePosterior
        The posterior of the solution, which is asked for all that depends on the form of the prior.
    """

    posterior: DensePosterior

    def __init__(
        self,
        approximator: Approximator,
        solution: Solution,
        point: PointType,
        elsewhere: Callable[[str | None], Elsewhere],
        names: str,
        roots: Callable[[], Array] | None = None,
    ) -> None:
        self.solution, self.posterior, self._roots = solution, solution.posterior, roots
        self._approximator, self._point, self._make, self._names = approximator, point, elsewhere, names
        self._of: str | None = None
        self.n_functions, self.n_points = self.posterior.prior.shape
        self.size = self.posterior.prior.size

    @cached_property
    def _elsewhere(self) -> Elsewhere:
        return self._make(self._of)

    def of(self, response: str) -> Self:
        other = copy(self)
        other.__dict__.pop("_elsewhere", None)
        other._of = response
        return other

    @property
    def takes(self) -> Collection[str]:
        return self._elsewhere.takes

    def new_rows(self, x: ArrayLike | None, data: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        return self._elsewhere.rows(x, data, new_levels)

    def missing_rows(self) -> Any:
        return self._elsewhere.missing_rows()

    @property
    def likelihood(self) -> Likelihood:
        return self.solution.likelihood

    @property
    def labels(self) -> Observed:
        return self.solution.labels

    @property
    def own(self) -> Array:
        return self.posterior.prior.own

    def prior_at(self, inputs: Any) -> tuple[Array, Array, Array]:
        return self._elsewhere(self._point, inputs)

    def at(self, inputs: Any) -> NewRows:
        return NewRows(*self.posterior.at(PriorAtNewRows(self._elsewhere, self._point, inputs)))

    def at_rows(self, rows: slice) -> tuple[Array, Array]:
        return self.solution.mean[:, rows], self.solution.cov[rows]

    def left_out(self) -> Iterator[LeftOut]:
        mean, cov = leave_one_out_moments(self._approximator, self.solution)
        for start in range(0, self.n_points, _ROWS):
            rows = slice(start, min(start + _ROWS, self.n_points))
            yield LeftOut(rows, mean[rows], cov[rows])

    @cached_property
    def _response(self) -> DensePosterior:
        """The posterior that says how means follow what is left out."""
        return self._approximator.response(self.solution)

    def group(self, rows: NDArray[np.intp]) -> GroupOfRows:
        posterior = self._response
        if not posterior.sites.pointwise:
            raise NotImplementedError(
                f"Sites of {self._approximator.name!r} are not of rows, so that none can be left out."
            )
        sites = posterior.sites.at(rows)
        own = Labelled(self.solution.likelihood.at(rows), self.solution.labels[rows])
        moments = self.solution.mean[:, rows], posterior.root_among(rows)
        return GroupOfRows(*moments, sites, posterior.weights[:, rows], own)

    def refitted(self, i: int) -> tuple[LeftOut, bool]:
        solution, prior = self.solution, self.posterior.prior
        others = np.delete(np.arange(len(solution.labels)), i)
        rest = prior.some(others)
        again = self._approximator.solve(
            rest.array, rest.mean, solution.labels[others],
            likelihood=solution.likelihood.at(others), prior_type=rest.maker,
        )  # fmt: skip
        mean, cov = again.posterior.at_left_out(prior, i)
        return LeftOut(slice(i, i + 1), mean.T, cov), again.convergence.converged

    def among_fitted(self) -> Reach:
        n = self.posterior.prior.shape[1]
        some = np.arange(0, n, -(-n // _SOME))
        return Reach(*self.posterior.prior.reach(some), self.own)

    @cached_property
    def _factorised(self) -> DensePosterior:
        """The posterior, with factors of the prior covariance."""
        if self._roots is not None:
            return self.posterior.rooted(self._roots())
        try:
            self.posterior.prior.check()
        except NotPositiveDefiniteError as error:
            # An approximation needs no such factor; the model's own latent values, mean + factor × noise, need it.
            at = {name: np.asarray(value).tolist() for name, value in self._point.items()}
            raise NotPositiveDefiniteError.of(
                f"The prior covariance of the latent values {self._names}",
                f" at the hyperparameters {at} (unconstrained)",
                error,
            ) from None
        return self.posterior

    @cached_property
    def _normals(self) -> CoupledWhitened | None:
        """The posterior of the standard normals that the model's variables belong to, where these are given."""
        return None if self._roots is None else posterior_of_normals(self._factorised)

    def whitened(self) -> tuple[Array, Array]:
        if (normals := self._normals) is not None:
            return normals.mean, np.einsum("ij,ij->j", normals.root, normals.root).reshape(normals.mean.shape)
        return self._factorised.whitened()

    def marginals(self) -> tuple[Array, Array]:
        return self.solution.mean, self.solution.cov.diagonal(axis1=1, axis2=2).T

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        if rotated.all() and self._normals is not None:
            shape = self._normals.mean.shape
            return np.asarray(self._normals.root.T @ self._normals.root).reshape(*shape, *shape)
        if rotated.all():
            return self._factorised.whitened_covariance()
        if not rotated.any():
            return self.posterior.covariance_among(np.arange(self.n_points))
        which, posterior, k = rotated[:, None, None], self._factorised, self.posterior.prior.k
        return posterior.joint_covariance(
            np.where(which, posterior.prior.roots, k), np.where(which, np.eye(self.n_points), k)
        )

    def joint_covariance_among(self, points: Sequence[int]) -> Array:
        return self.posterior.covariance_among(np.asarray(points))

    def of_normals(self, matrix: Array) -> Array:
        return self._factorised.prior.combined(matrix)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        return self._drawn(rng, count)

    def _drawn(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Return draws of the values that the posterior is known by, and of z."""
        posterior = self._factorised
        z = posterior.draw_whitened(rng, count) if self._normals is None else self._normals.draw(rng, count)
        return posterior.prior.latent(z), z

    def draw_at(self, rng: np.random.Generator, count: int, inputs: Array | None) -> Iterator[tuple[slice, Array]]:
        if inputs is None:
            yield slice(0, self.n_points), self.draw(rng, count)[0]
            return
        f, z = self._drawn(rng, count)
        for rows in row_blocks(len(inputs), self.n_functions * max(self.size, count)):
            there = PriorAtNewRows(self._elsewhere, self._point, inputs[rows])
            yield rows, self.posterior.draw_at(rng, f, z, there)


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
