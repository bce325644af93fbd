"""Latent functions at rows of which several have the same latent value, known by the values of groups of rows."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.hyper.dense_functions import DenseFunctions, leave_one_out_moments
from pymc_gpep.hyper.latent_functions import GroupOfRows, Labelled
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.sums.row_groups import RowGroups, combined

_ROWS = 2_000_000  # rows of groups without one of them, that are worked on at a time


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
            some = wanted[: max(1, int(np.searchsorted(sizes, _ROWS)))]
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
