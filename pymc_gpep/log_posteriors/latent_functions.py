"""Latent functions at given hyperparameters: their contract, by all rows, and by groups of equal rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.posterior import DensePosterior, posterior_of_normals
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.latent.latent_prior import Elsewhere, PriorAtNewRows
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.solvers.inducing import Block, row_blocks
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened
from pymc_gpep.sums.row_groups import RowGroups, combined


class NewRows(NamedTuple):
    """Latent functions at m inputs."""

    mean: Array
    """(c, m)."""
    cov: Array
    """Between the functions at each input, (m, c, c)."""
    prior: Block
    """Prior moments there, with what the posterior is known by."""


class Reach(NamedTuple):
    """Prior moments that say how far some inputs are from what a posterior is known by."""

    cross: Array
    """Covariances, (q, m, n); NaN for what is to be left out."""
    variance: Array
    """Of the inputs, (q, m)."""
    own: Array
    """Of what the posterior is known by, (q, n)."""


class GroupOfRows(NamedTuple):
    """The posterior of latent values at m rows, N(μ, R Rᵀ), and the sites that stand for what was observed there."""

    mean: Array
    """μ, (c, m)."""
    root: Array
    """R, (c, m, p)."""
    sites: Sites
    """Sites of the rows."""
    weights: Array
    """The force ν − Πμ of the sites, (c, m)."""
    own: "Labelled"
    """What is left out."""
    others: "tuple[Labelled, NDArray[np.intp], Labelled] | None" = None
    """Where sites stand for other observations as well: all observations, places (k,) of others among the rows, and
    these others. None without others."""


class Labelled(NamedTuple):
    """Observations with their likelihood."""

    likelihood: Likelihood
    labels: Observed


class LatentFunctions(ABC):
    """The posterior of the latent functions at one θ.

    Attributes
    ----------
    n_functions : int
        c.
    n_points : int
        How many rows were fitted, n.
    size : int
        How many values of each function the posterior is known by: n, or the number of inducing inputs.
    """

    n_functions: int
    n_points: int
    size: int

    def of(self, response: str) -> Self:
        """Return the same functions, whose new rows are those of an observed variable of the model, by its name."""
        return self

    @property
    def takes(self) -> Collection[str]:
        """Names of data of the model that say what new rows are; nothing where inputs alone say it."""
        return ()

    @abstractmethod
    def new_rows(self, x: ArrayLike | None, data: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        """Return new rows, which have a length and slices, from inputs or data as a user gives them.

        With `new_levels`, data may name levels of groups that the model does not have.
        """

    def missing_rows(self) -> Any:
        """Return the rows of the model whose responses are missing, as `new_rows` returns others.

        Raises
        ------
        ValueError
            If all rows have a response.
        """
        raise ValueError("All rows of the model have a response, so that there are no missing ones to predict.")

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood:
        """At the rows that were fitted."""

    @property
    @abstractmethod
    def labels(self) -> Observed:
        """Observations there, (n,)."""

    @property
    @abstractmethod
    def own(self) -> Array:
        """Prior variances of what the posterior is known by, (q, size)."""

    @abstractmethod
    def at(self, inputs: Any) -> NewRows:
        """Return the functions at new rows, inputs (m, d) where these say what rows are."""

    def prior_at(self, inputs: Any) -> tuple[Array, Array, Array]:
        """Return prior moments at new rows: covariances with all fitted rows (1 or c, m, n), variances and means.

        Raises
        ------
        TypeError
            If the posterior is not known by all fitted rows.
        """
        raise TypeError(f"{type(self).__name__} knows no covariances with all rows that were fitted.")

    @abstractmethod
    def at_rows(self, rows: slice) -> tuple[Array, Array]:
        """Return means (c, B) and covariances (B, c, c) at some of the rows that were fitted."""

    @property
    def alike(self) -> NDArray[np.int64] | None:
        """Numbers (n,) of the fitted rows, the same for equal rows; None if all rows may differ."""
        return None

    @abstractmethod
    def left_out(self) -> Iterator[LeftOut]:
        """Return all rows in order, part by part, each given the labels of all others.

        Raises
        ------
        NotImplementedError
            If sites leave the functions of a row independent, so that leave-one-out would be wrong.
        """

    def group(self, rows: NDArray[np.intp]) -> GroupOfRows:
        """Return the posterior of some of the rows that were fitted, with their sites.

        Raises
        ------
        NotImplementedError
            If there is no joint posterior of rows, or if sites are not of rows.
        """
        raise NotImplementedError("Groups of rows are left out of posteriors of all rows together, which this has not.")

    @abstractmethod
    def refitted(self, i: int) -> tuple[LeftOut, bool]:
        """Return a row by a fit to the others, and whether that converged.

        Raises
        ------
        NotImplementedError
            If fits to some of the rows are not made.
        """

    @abstractmethod
    def among_fitted(self) -> Reach:
        """Return prior moments of some fitted rows with what the posterior is known by; NaN for a row and itself."""

    @abstractmethod
    def whitened(self) -> tuple[Array, Array]:
        """Return mean and variance (c, n) of z at the model's points, where f = m + L z and L Lᵀ is the prior's.

        Raises
        ------
        NotPositiveDefiniteError
            If the prior covariance has no Cholesky factor.
        """

    @abstractmethod
    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (c, n) of f at the model's points."""

    @abstractmethod
    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return the covariance (c, n, c, n) at the model's points of f, or of z for functions that are `rotated`."""

    def of_normals(self, matrix: Array) -> Array:
        """Return J S (cn, p) of S (q, p), where latent functions are made of standard normals by rows J (cn, q).

        Raises
        ------
        NotImplementedError
            If there is no joint posterior of all rows.
        """
        raise NotImplementedError("Latent values of all rows together are not made of standard normals here.")

    def joint_covariance_among(self, points: Sequence[int]) -> Array:
        """Return the covariance (c, m, c, m) of f at some of the model's points, by their positions."""
        return self.joint_covariance(np.zeros(self.n_functions, bool))[:, points][..., points]

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Return draws (count, c, n) of f at the model's points, and of z."""

    @abstractmethod
    def draw_at(self, rng: np.random.Generator, count: int, inputs: Array | None) -> Iterator[tuple[slice, Array]]:
        """Return draws (count, c, B) of f at inputs (m, d), part by part; at the rows that were fitted if None.

        Numbers that the draws of all parts share are drawn first: the same generator gives the same functions at any
        inputs. Given these, values at new inputs are independent.
        """


def without_common(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Mean (m, c) and covariance (m, c, c) of latent values less their mean over functions, at each of m points."""
    centred = np.eye(mean.shape[1]) - 1.0 / mean.shape[1]
    found = centred @ cov @ centred
    places = np.arange(mean.shape[1])
    found[:, places, places] = np.maximum(found[:, places, places], 0.0)  # rounding
    return mean @ centred, found


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


_ROWS_AT_A_TIME = 2_000_000  # rows of groups without one of them, that are worked on at a time


class GroupedFunctions(DenseFunctions):
    """Latent functions at rows, by the joint posterior of the values of groups.

    Parameters
    ----------
    *given
        See `DenseFunctions`.
    groups : RowGroups
    rows : callable
        Function that returns observations and likelihood of all rows.
    """

    def __init__(self, *given: Any, groups: RowGroups, rows: Callable[[], tuple[Observed, Likelihood]]) -> None:
        super().__init__(*given)
        self._groups, self._make_rows = groups, rows
        self.n_points = len(groups.of)

    @cached_property
    def _rows(self) -> tuple[Observed, Likelihood]:
        return self._make_rows()

    @property
    def likelihood(self) -> Likelihood:
        return self._rows[1]

    @property
    def labels(self) -> Observed:
        return self._rows[0]

    @cached_property
    def alike(self) -> NDArray[np.int64]:
        _, y = np.unique(self.labels, return_inverse=True)
        return combined(self._groups.of, self._groups.alike, y)

    def at_rows(self, rows: slice) -> tuple[Array, Array]:
        of = self._groups.of[rows]
        return self.solution.mean[:, of], self.solution.cov[of]

    def marginals(self) -> tuple[Array, Array]:
        mean, variance = super().marginals()
        return mean[:, self._groups.of], variance[:, self._groups.of]

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        if rotated.any():
            return super().joint_covariance(rotated)
        return self.joint_covariance_among(np.arange(self.n_points))

    def joint_covariance_among(self, points: Sequence[int] | NDArray[np.intp]) -> Array:
        places, of = np.unique(self._groups.of[np.asarray(points)], return_inverse=True)
        return self.posterior.covariance_among(places)[:, of][..., of]

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        f, z = self._drawn(rng, count)
        return f[..., self._groups.of], z

    def _parts(self, rows: NDArray[np.int64], of: NDArray[np.int64], briefly: bool = False) -> tuple[Likelihood, Array]:
        """Return the likelihood of some rows in groups, and observations of these."""
        y, likelihood = self._rows
        return self._groups.likelihood_of(likelihood, y, rows, of, briefly)

    def left_out(self) -> Iterator[LeftOut]:
        """See `LatentFunctions`: a row given the others has the cavity of its group times their densities."""
        mean, cov = leave_one_out_moments(self._approximator, self.solution)
        of = self._groups.of
        log_density = np.full(self.n_points, np.nan)
        row_mean, row_cov = mean[of], cov[of]
        whole = _averages(self.solution.likelihood, self.solution.labels, mean[:, 0], cov[:, 0, 0])[0]
        for rows, places, likelihood, labels in self._without_each():
            group = of[rows]
            variance = cov[group, 0, 0]
            terms = _averages(likelihood, labels, mean[group, 0], variance)
            found = whole[group] - terms[0]
            log_density[:] = np.where(places >= 0, found[places], log_density)
            centre, spread = mean[group, 0] + variance * terms[1], variance * (1.0 + variance * terms[2])
            row_mean[:, 0] = np.where(places >= 0, centre[places], row_mean[:, 0])
            row_cov[:, 0, 0] = np.where(places >= 0, spread[places], row_cov[:, 0, 0])
        yield LeftOut(slice(0, self.n_points), row_mean, row_cov, log_density)

    def _without_each(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Likelihood, Array]]:
        """Yield rows (m,) of groups with others, and the likelihood of the other rows of the group of each.

        Equal rows of a group are looked at once. The second of what is yielded is the place among the m rows of each
        row (n,), −1 of rows that come in another part.
        """
        of, ids = self._groups.of, self.alike
        order = np.argsort(of, kind="stable")
        counts = np.bincount(of)
        begins = np.cumsum(counts) - counts
        first = np.unique(ids, return_index=True)[1]
        by_row = np.argsort(first)
        wanted = by_row[counts[of[first[by_row]]] > 1]
        while wanted.size:
            sizes = np.cumsum(counts[of[first[wanted]]])
            some = wanted[: max(1, int(np.searchsorted(sizes, _ROWS_AT_A_TIME)))]
            wanted = wanted[len(some) :]
            rows = first[some]
            members = [order[begins[j] : begins[j] + counts[j]] for j in of[rows]]
            others = [own[own != i] for own, i in zip(members, rows, strict=True)]
            group = np.repeat(np.arange(len(rows)), [len(own) for own in others])
            places = np.full(len(first), -1)
            places[some] = np.arange(len(some))
            yield rows, places[ids], *self._parts(np.concatenate(others), group)

    def refitted(self, i: int) -> tuple[LeftOut, bool]:
        of, j = self._groups.of, self._groups.of[i]
        if np.count_nonzero(of == j) == 1:
            return super().refitted(int(j))
        prior, others = self.posterior.prior, np.delete(np.arange(self.n_points), i)
        likelihood, labels = self._parts(others, of[others])
        again = self._approximator.solve(prior.array, prior.mean, labels, likelihood=likelihood, prior_type=prior.maker)
        mean, cov = (each[[j]] for each in leave_one_out_moments(self._approximator, again))
        moments = mean[:, 0], cov[:, 0, 0]
        whole = _averages(self.solution.likelihood.at([j]), self.solution.labels[[j]], *moments)
        rest = _averages(likelihood.at([j]), labels[[j]], *moments)
        left_out = LeftOut(slice(i, i + 1), again.mean[:, [j]].T, again.cov[[j]], whole[0] - rest[0])
        return left_out, again.convergence.converged

    def group(self, rows: NDArray[np.intp]) -> GroupOfRows:
        places = np.unique(self._groups.of[rows])
        found = super().group(places)
        members = np.flatnonzero(np.isin(self._groups.of, places))
        rest = np.setdiff1d(members, rows)
        if not rest.size:
            return found
        left, others = self._labelled(rest, places)
        return found._replace(own=self._labelled(rows, places)[1], others=(found.own, left, others))

    def _labelled(self, rows: NDArray[np.intp], groups: NDArray[np.intp]) -> tuple[NDArray[np.intp], Labelled]:
        """Return places among some groups of those that rows are in, and what was observed at the rows."""
        places, of = np.unique(np.searchsorted(groups, self._groups.of[rows]), return_inverse=True)
        return places, Labelled(*self._parts(rows, of, briefly=True))


def _averages(likelihood: Likelihood, labels: Observed, mean: Array, variance: Array) -> Array:
    """Terms (5, n) of `GaussianAverage`."""
    terms = np.empty((5, len(mean)))
    moments = np.ascontiguousarray(mean), np.ascontiguousarray(variance)
    likelihood.computation(GaussianAverage).terms(*moments, labels, likelihood.parameters, terms)
    return terms
