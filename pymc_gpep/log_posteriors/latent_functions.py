"""Latent functions at given hyperparameters: base class, and classes for the posterior of rows or of groups of rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from scipy.special import logsumexp

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.approximations.prior_sites import Factor, PriorSites
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.gaussians.prior_form import PriorForm
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.gaussians.whitening import posterior_of_normals
from pymc_gpep.latent.latent_prior import PriorAtNewRows
from pymc_gpep.likelihoods.factor_averages import normal_rule
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened
from pymc_gpep.sums.row_groups import RowGroups, combined


class NewRows(NamedTuple):
    """Moments of the latent functions at m new rows."""

    mean: Array
    """Means, (c, m)."""
    cov: Array
    """Covariances between the functions at each row, (m, c, c)."""
    prior: Block
    """Prior moments at the rows, and prior covariances with the values that determine the posterior."""


class DistanceToFit(NamedTuple):
    """Prior moments for q covariances. They show whether m inputs are uncorrelated with the fitted values."""

    cross: Array
    """Covariances (q, m, n) of m inputs with the n values that determine the posterior. NaN entries are ignored."""
    variance: Array
    """Variances at the inputs, (q, m)."""
    own: Array
    """Variances of the values that determine the posterior, (q, n)."""


class GroupOfRows(NamedTuple):
    """Posterior N(μ, R Rᵀ) of latent values at m rows, and the sites of their observations."""

    mean: Array
    """Posterior mean μ, (c, m)."""
    root: Array
    """Root R of the posterior covariance, (c, m, p)."""
    sites: Sites
    """Sites of the rows."""
    weights: Array
    """Forces ν − Πμ of the sites (c, m), with precision Π and precision × mean ν of a site."""
    own: "Labelled"
    """Left-out observations. They belong to the first of the m rows."""
    kept: "tuple[tuple[NDArray[np.intp], Labelled], ...]" = ()
    """Positions and observations of rows that are not left out, but share sites with left-out rows."""
    whole: "Labelled | None" = None
    """All observations of the m rows if only a part of them is left out; else None."""
    removed: tuple[Array, Array] | None = None
    """Precisions and forces (m,) to subtract for draws without the observations. None stands for the sites."""


class Labelled(NamedTuple):
    """Observations of some rows, and the likelihood at these rows."""

    likelihood: Likelihood
    labels: Observed


class LatentFunctions(ABC):
    """Posterior of the latent functions at one value θ of the hyperparameters.

    Attributes
    ----------
    n_functions : int
        Number of latent functions, c.
    n_points : int
        Number of fitted rows, n.
    size : int
        Number of values of each function that determine the posterior: n, or the number of inducing inputs.
    """

    n_functions: int
    n_points: int
    size: int

    def of(self, response: str) -> Self:
        """Return latent functions for predictions of the observed variable with this name."""
        return self

    def at_rows_of(self, new_rows: PriorAtNewRows) -> Self:
        """Return a copy with `new_rows` as prior at new rows. It is another sum of the same variables.

        Raises
        ------
        TypeError
            If the posterior is not computed from all fitted rows.
        """
        raise TypeError(f"{type(self).__name__} cannot predict rows of another prior.")

    @property
    def takes(self) -> Collection[str]:
        """Names of data of the model that define new rows; empty if inputs are sufficient."""
        return ()

    @abstractmethod
    def new_rows(self, x: ArrayLike | None, data: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        """Check inputs or data of the user, and return new rows. The result has a length, and slices select rows.

        With `new_levels`, data may contain unseen levels of groups.
        """

    def missing_rows(self) -> Any:
        """Return the rows of the model with missing responses, in the form of `new_rows`.

        Raises
        ------
        ValueError
            If all rows have a response.
        """
        raise ValueError("All rows of the model have a response. Leave out missing=True.")

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood:
        """Likelihood at the fitted rows."""

    @property
    @abstractmethod
    def labels(self) -> Observed:
        """Observations at the fitted rows, (n,)."""

    @property
    @abstractmethod
    def own(self) -> Array:
        """Prior variances of the values that determine the posterior, (q, size)."""

    @abstractmethod
    def at(self, inputs: Any) -> NewRows:
        """Return the latent functions at new rows. The rows are inputs (m, d) or data."""

    def prior_at(self, inputs: Any) -> tuple[Array, Array, Array]:
        """Return prior covariances of new and fitted rows (1 or c, m, n), and variances and means of new rows.

        Raises
        ------
        TypeError
            If other values than the values at fitted rows determine the posterior.
        """
        raise TypeError(f"{type(self).__name__} does not compute covariances with the fitted rows.")

    @abstractmethod
    def at_rows(self, rows: slice) -> tuple[Array, Array]:
        """Return means (c, B) and covariances (B, c, c) at a slice of the fitted rows."""

    @property
    def alike(self) -> NDArray[np.int64] | None:
        """Numbers (n,) of the fitted rows. Equal rows have equal numbers. None if rows were not compared."""
        return None

    @abstractmethod
    def left_out(self) -> Iterator[LeftOut]:
        """Yield leave-one-out moments of all rows in parts, in order. Labels of all other rows are given.

        Raises
        ------
        NotImplementedError
            If sites treat the functions of a row as independent, so leave-one-out would be wrong.
        """

    def group(self, rows: NDArray[np.intp]) -> GroupOfRows:
        """Return the joint posterior of selected fitted rows, with their sites.

        Raises
        ------
        NotImplementedError
            If the rows have no joint posterior, or if sites do not belong to rows.
        """
        raise NotImplementedError("Leaving out groups needs a joint posterior. Use a method on all rows together.")

    @abstractmethod
    def refitted(self, i: int) -> tuple[LeftOut, bool]:
        """Return the moments of row i by a fit to the other rows, and whether this fit converged.

        Raises
        ------
        NotImplementedError
            If fits to a part of the rows are not supported.
        """

    @abstractmethod
    def among_fitted(self) -> DistanceToFit:
        """Return prior moments of fitted rows with other fitted rows. The covariance of a row with itself is NaN."""

    @abstractmethod
    def whitened(self) -> tuple[Array, Array]:
        """Return mean and variance (c, n) of z at the points of the model, for f = m + L z with prior covariance L Lᵀ.

        Raises
        ------
        NotPositiveDefiniteError
            If the prior covariance has no Cholesky factor.
        """

    @abstractmethod
    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (c, n) of the latent values f at the points of the model."""

    @abstractmethod
    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return the covariance (c, n, c, n) of f at the points of the model. For `rotated` functions z replaces f."""

    def of_normals(self, matrix: Array) -> Array:
        """Return J S (cn, p) for a matrix S (q, p). Rows J (cn, q) map standard normals z to f = J z.

        Raises
        ------
        NotImplementedError
            If the rows have no joint posterior.
        """
        raise NotImplementedError("This posterior is not available as a linear map of standard normals.")

    def gram(self, weights: Array) -> Array:
        """Return Jᵀ diag(weights) J (q, q) for one function. See `of_normals` for J and the error."""
        raise NotImplementedError("This posterior is not available as a linear map of standard normals.")

    def joint_covariance_among(self, points: Sequence[int]) -> Array:
        """Return the covariance (c, m, c, m) of f at m points of the model, given by positions."""
        return self.joint_covariance(np.zeros(self.n_functions, bool))[:, points][..., points]

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Return draws (count, c, n) of f at the points of the model, and draws of z."""

    @abstractmethod
    def draw_at(self, rng: np.random.Generator, count: int, inputs: Array | None) -> Iterator[tuple[slice, Array]]:
        """Yield draws (count, c, B) of f at slices of the inputs (m, d), or of the fitted rows if `inputs` is None.

        Shared random numbers are drawn first, so generators with equal states draw the same functions at any inputs.
        Given these numbers, residuals at new inputs are independent.
        """


def without_common(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return mean (m, c) and covariance (m, c, c) of latent values minus their mean over functions, at m points."""
    centred = np.eye(mean.shape[1]) - 1.0 / mean.shape[1]
    found = centred @ cov @ centred
    places = np.arange(mean.shape[1])
    found[:, places, places] = np.maximum(found[:, places, places], 0.0)  # Rounding can make a variance negative.
    return mean @ centred, found


_SOME = 200  # `among_fitted` uses about this number of fitted rows.
_ROWS = 500  # Progress and interrupts are checked after this number of rows.


class DenseFunctions(LatentFunctions):
    """Latent functions from the joint posterior of all rows.

    Parameters
    ----------
    approximator : Approximator
    solution : Solution
    point : dict
        Values of the value variables of the model.
    new_rows : callable
        Function of the name of an observed variable that returns the prior at its new rows; None for a single variable.
    names : str
        Names of the latent values in the model, for messages.
    roots : callable, optional
        Function that returns roots (c, n, q) of the prior covariance, with a column for each standard normal of the
        model. By default roots are Cholesky factors.

    Attributes
    ----------
    posterior : Posterior
        Posterior of the solution. It computes all results that depend on the form of the prior.
    """

    posterior: Posterior

    def __init__(
        self,
        approximator: Approximator,
        solution: Solution,
        point: PointType,
        new_rows: Callable[[str | None], PriorAtNewRows],
        names: str,
        roots: Callable[[], Array] | None = None,
    ) -> None:
        self.solution, self.posterior, self._roots = solution, solution.posterior, roots
        self._approximator, self._point, self._make, self._names = approximator, point, new_rows, names
        self._of: str | None = None
        self.n_functions, self.n_points = self.posterior.prior.shape
        self.size = self.posterior.prior.size

    @cached_property
    def _at_new_rows(self) -> PriorAtNewRows:
        return self._make(self._of)

    def of(self, response: str) -> Self:
        other = copy(self)
        other.__dict__.pop("_at_new_rows", None)
        other._of = response
        return other

    def at_rows_of(self, new_rows: PriorAtNewRows) -> Self:
        other = copy(self)
        other._at_new_rows = new_rows
        return other

    @property
    def takes(self) -> Collection[str]:
        return self._at_new_rows.takes

    def new_rows(self, x: ArrayLike | None, data: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        return self._at_new_rows.rows(x, data, new_levels)

    def missing_rows(self) -> Any:
        return self._at_new_rows.missing_rows()

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
        return self._at_new_rows(self._point, inputs)

    def of_new_levels(self, inputs: Any, points: NDArray[np.intp]) -> Array | None:
        return self._at_new_rows.of_new_levels(self._point, inputs, points)

    def between(self, inputs: Any, points: NDArray[np.intp]) -> Array:
        return self._at_new_rows.between(self._point, inputs, points)

    def at(self, inputs: Any) -> NewRows:
        there = self._at_new_rows.at(self._point, inputs, self.posterior.prior.by_normals)
        return NewRows(*self.posterior.at(there))

    def at_rows(self, rows: slice) -> tuple[Array, Array]:
        return self.solution.mean[:, rows], self.solution.cov[rows]

    def left_out(self) -> Iterator[LeftOut]:
        mean, cov = leave_one_out_moments(self._approximator, self.solution)
        _refuse_improper(self.posterior.prior, self.solution.cov, cov)
        for start in range(0, self.n_points, _ROWS):
            rows = slice(start, min(start + _ROWS, self.n_points))
            yield self._following(LeftOut(rows, mean[rows], cov[rows]))

    @cached_property
    def _priors(self) -> PriorSites | None:
        """Sites of prior factors. They are updated if rows are left out."""
        return PriorSites.of(self.solution, self._response)

    def _following(self, found: LeftOut, of: NDArray[np.int64] | None = None) -> LeftOut:
        """Return leave-one-out moments with updated sites of prior factors. The update leaves out the same row.

        Parameters
        ----------
        found : LeftOut
            Leave-one-out moments with the sites of the fit.
        of : array (n,), optional
            Index of the point of each row. By default each row is a point.
        """
        if self._priors is None or not self._approximator.matches_moments:
            return found
        return self._priors.followed(found, self.alike, of, self._rest)

    def _rest(self, rows: NDArray[np.intp]) -> list[Factor]:
        """Return the likelihood factors of rows that are in the same groups as `rows`, but not in `rows`."""
        return []

    @cached_property
    def _response(self) -> Posterior:
        """Posterior with the linear response of means to left-out rows as covariance."""
        return self._approximator.response(self.solution)

    def _at_points(self, points: NDArray[np.intp]) -> GroupOfRows:
        """Return the joint posterior of points. Their observations are left out together."""
        posterior = self._response
        if not posterior.sites.pointwise:
            raise NotImplementedError(
                f"Sites of {self._approximator.name!r} do not belong to rows, so rows cannot be left out."
            )
        own = Labelled(self.solution.likelihood.at(points), self.solution.labels[points])
        moments = self.solution.mean[:, points], posterior.root_among(points)
        return GroupOfRows(*moments, posterior.sites.at(points), posterior.weights[:, points], own)

    def group(self, rows: NDArray[np.intp]) -> GroupOfRows:
        found = self._at_points(rows)
        if self._priors is None or np.isin(rows, self._priors.points).any():
            return found
        factors, *moved = self._priors.of_group(rows)
        if not factors.size:
            return found
        whole = self._at_points(every := np.concatenate([rows, factors]))
        precision, location = (each.copy() for each in self._priors.natural(every))
        precision[len(rows) :] -= moved[0]
        location[len(rows) :] -= moved[1]
        of_factors = Labelled(self.solution.likelihood.at(factors), self.solution.labels[factors])
        kept = np.arange(len(rows), len(every)), of_factors
        taken = precision, location - precision * whole.mean[0]
        return whole._replace(own=found.own, kept=(kept,), whole=whole.own, removed=taken)

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

    def among_fitted(self) -> DistanceToFit:
        some = np.arange(0, self.posterior.prior.shape[1], -(-self.posterior.prior.shape[1] // _SOME))
        cross, variance = self.posterior.prior.reach(some)
        return DistanceToFit(cross, variance, self.own)

    @cached_property
    def _factorised(self) -> Posterior:
        """Posterior with Cholesky factors of the prior covariance."""
        if self._roots is not None:
            return self.posterior.rooted(self._roots())
        try:
            self.posterior.prior.check()
        except NotPositiveDefiniteError as error:
            # The model computes latent values as mean + Cholesky factor × noise. Approximations use other matrix roots.
            at = {name: np.asarray(value).tolist() for name, value in self._point.items()}
            raise NotPositiveDefiniteError.of(
                f"The prior covariance of the latent values {self._names}",
                f" at the hyperparameters {at} (unconstrained)",
                error,
            ) from None
        return self.posterior

    @cached_property
    def _normals(self) -> CoupledWhitened | None:
        """Posterior of the standard normals of variables; None if the prior is not a sum of variables."""
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

    def gram(self, weights: Array) -> Array:
        return self._factorised.prior.gram(weights)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        return self._drawn(rng, count)

    def _drawn(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Return draws of the values that determine the posterior, and of z."""
        posterior = self._factorised
        z = posterior.draw_whitened(rng, count) if self._normals is None else self._normals.draw(rng, count)
        return posterior.prior.latent(z), z

    def draw_at(self, rng: np.random.Generator, count: int, inputs: Array | None) -> Iterator[tuple[slice, Array]]:
        if inputs is None:
            yield slice(0, self.n_points), self.draw(rng, count)[0]
            return
        yield from self._at_new_rows.draws(self._point, inputs, self.posterior.prior, rng, *self._drawn(rng, count))


def leave_one_out_moments(approximator: Approximator, solution: Solution) -> tuple[Array, Array]:
    """Return leave-one-out means (n, c) and covariances (n, c, c) of the latent values of each row.

    They are moments of the cavity, the posterior without the site of the row. This is EP-LOO or LA-LOO, the most
    accurate fast methods of Vehtari, Mononen, Tolvanen, Sivula and Winther (2016). The cavity mean uses the response of
    means to data, also if it is not the posterior covariance.
    """
    mean, cov = solution.posterior.cavities(solution.mean, solution.cov)
    response = approximator.response(solution)
    if response is not solution.posterior:
        mean, _ = response.cavities(*response.marginals())
    return mean, cov


def _refuse_improper(prior: PriorForm, cov: Array, without: Array) -> None:
    """Raise a ValueError if a coefficient with a flat prior depends on a single row."""
    if not prior.flat.size:
        return
    own, wide = (each.diagonal(axis1=1, axis2=2).max(axis=1) for each in (cov, without))
    if (alone := np.flatnonzero(own < 10.0 * prior.least_kept * wide)).size:
        raise ValueError(
            f"Row {alone[0]} alone determines a coefficient with a flat prior (such rows: {alone.size}). Without the "
            "row the posterior is improper. Give the coefficient a density, pm.Normal(..., 0, s)."
        )


_NODES = 64  # Number of Gauss–Hermite nodes for the marginal of a group without a row.
_ROWS_AT_A_TIME = 2_000_000  # A batch has at most this number of pairs (left-out row, other row of its group).


class GroupedFunctions(DenseFunctions):
    """Latent functions from the joint posterior of groups. All rows of a group have the same latent value.

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
        """Return the likelihood and the observations of groups `of` (m,) of selected rows (m,)."""
        y, likelihood = self._rows
        return self._groups.likelihood_of(likelihood, y, rows, of, briefly)

    def left_out(self) -> Iterator[LeftOut]:
        """Yield moments as in `LatentFunctions`, of the cavity of a group times the densities of its other rows."""
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
        # With heavy-tailed priors, the cavity of a group may be improper. These rows are computed in another way.
        improper = ~(cov[of, 0, 0] > 0.0) & (np.bincount(of)[of] > 1)
        if (rows := np.flatnonzero(improper)).size:
            log_density[rows], row_mean[rows, 0], row_cov[rows, 0, 0] = self._divided(rows)
        yield self._following(LeftOut(slice(0, self.n_points), row_mean, row_cov, log_density), of)

    def _rest(self, rows: NDArray[np.intp]) -> list[Factor]:
        of = self._groups.of
        others = [np.flatnonzero((of == of[i]) & (np.arange(len(of)) != i)) for i in rows]
        problem = np.flatnonzero([len(each) for each in others])
        if not problem.size:
            return []
        group = np.repeat(np.arange(problem.size), [len(others[i]) for i in problem])
        likelihood, labels = self._parts(np.concatenate([others[i] for i in problem]), group)
        return [Factor(likelihood, labels, problem, np.zeros(problem.size, np.intp))]

    def _divided(self, rows: NDArray[np.intp]) -> tuple[Array, Array, Array]:
        """Return leave-one-out log densities, means and variances (m,) of rows: marginals divided by row densities."""
        of, (z, weights) = self._groups.of[rows], normal_rule(_NODES, 1)
        f = self.solution.mean[0, of] + np.sqrt(self.solution.cov[of, 0, 0]) * z
        of_row = self.likelihood.at(rows).log_densities(f[:, None], self.labels[rows])
        terms = np.log(weights)[:, None] - of_row
        total = logsumexp(terms, axis=0)
        mean = ((share := np.exp(terms - total)) * f).sum(axis=0)
        return -total, mean, (share * (f - mean) ** 2).sum(axis=0)

    def _without_each(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Likelihood, Array]]:
        """Yield batches of m rows, positions (n,), and likelihood and observations of the other rows of their groups.

        Only groups with several rows are included. Equal rows of a group are computed once. A position is the index of
        the row, or of an equal row, among the m rows; −1 for all other rows.
        """
        of, ids = self._groups.of, self.alike
        order = np.argsort(of, kind="stable")
        counts = np.bincount(of)
        begins = np.cumsum(counts) - counts
        first = np.unique(ids, return_index=True)[1]
        by_row = np.argsort(first)
        wanted = by_row[counts[of[first[by_row]]] > 1]
        while wanted.size:
            some = wanted[: max(1, int(np.searchsorted(np.cumsum(counts[of[first[wanted]]]), _ROWS_AT_A_TIME)))]
            wanted = wanted[len(some) :]
            rows = first[some]
            members = [order[begins[j] : begins[j] + counts[j]] for j in of[rows]]
            others = [own[own != i] for own, i in zip(members, rows, strict=True)]
            group = np.repeat(np.arange(len(rows)), [len(own) for own in others])
            places = np.full(len(first), -1)
            places[some] = np.arange(len(some))
            yield rows, places[ids], *self._parts(np.concatenate(others), group)

    def refitted(self, i: int) -> tuple[LeftOut, bool]:
        of = self._groups.of
        if np.count_nonzero(of == (j := of[i])) == 1:
            return super().refitted(int(j))
        prior, others = self.posterior.prior, np.delete(np.arange(self.n_points), i)
        likelihood, labels = self._parts(others, of[others])
        again = self._approximator.solve(prior.array, prior.mean, labels, likelihood=likelihood, prior_type=prior.maker)
        mean, cov = leave_one_out_moments(self._approximator, again)
        moments = mean[[j], 0], cov[[j], 0, 0]
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
        own, kept = self._labelled(rows, places)[1], (*found.kept, self._labelled(rest, places))
        return found._replace(own=own, kept=kept, whole=found.whole or found.own)

    def _labelled(self, rows: NDArray[np.intp], groups: NDArray[np.intp]) -> tuple[NDArray[np.intp], Labelled]:
        """Return the groups of the rows, as positions in the array `groups`, and the observations of the rows."""
        places, of = np.unique(np.searchsorted(groups, self._groups.of[rows]), return_inverse=True)
        return places, Labelled(*self._parts(rows, of, briefly=True))


def _averages(likelihood: Likelihood, labels: Observed, mean: Array, variance: Array) -> Array:
    """Return log ∫ p(y | f) N(f | mean, variance) df and four derivatives in the mean, (5, n)."""
    terms = np.empty((5, len(mean)))
    given = np.ascontiguousarray(mean), np.ascontiguousarray(variance), labels, likelihood.parameters
    likelihood.computation(GaussianAverage).terms(*given, terms)
    return terms
