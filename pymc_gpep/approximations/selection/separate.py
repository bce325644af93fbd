"""Active rows of each function's own, with sites that leave functions independent (Seeger and Jordan 2004, section 6).

A function chooses rows as if it were the only one, by what a site on its own latent value would tell. The site itself
comes from the tilted distribution of all functions of the row. The result has the union of the rows, in the order in
which they were first chosen. Sites that are not there have the precision zero.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.qiep import QIEP
from pymc_gpep.approximations.selection.growth import IndependentGrowth
from pymc_gpep.approximations.selection.scores import SCORES
from pymc_gpep.approximations.selection.selection import Places, RowPrior, Selection
from pymc_gpep.approximations.selection.site_rules.row_site_rule import RowSiteRule
from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.posteriors import make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.kernels.gaussians.independent import factorise_function, function_variance, function_weights
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import IndependentQuadrature
from pymc_gpep.solvers.accelerated_ep import ep_ladder
from pymc_gpep.solvers.dense_form import DenseForm
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, own_matrix, run

__all__ = ["SeparateCandidates", "iterate_separately"]


class SeparateCandidates:
    """Some of the rows, which know what each function's active rows say of it.

    Parameters
    ----------
    prior : RowPrior
    labels : array (n,)
    likelihood : Likelihood
    rule : RowSiteRule
        One that is `separate`.
    capacity : int
        Most active rows of a function.
    rows : array (p,) of int
        The candidates to begin with.

    Attributes
    ----------
    held : array (0,) of int
        Places that must stay: none.
    waiting : array (c, p) of bool
        Whether a function may have its site on a candidate, and has none yet.
    """

    def __init__(
        self,
        prior: RowPrior,
        labels: NDArray[np.int64],
        likelihood: Likelihood,
        rule: RowSiteRule,
        capacity: int,
        rows: Places,
    ) -> None:
        c = prior.n_functions
        self.rows = rows.copy()
        self.waiting = np.ones((c, len(rows)), bool)
        self.held: Places = np.empty(0, np.int64)
        self._prior, self._labels, self._likelihood, self._rule = prior, labels, likelihood, rule
        self._capacity = capacity
        self._prior_mean = np.empty((c, len(rows)))
        self._growths = [IndependentGrowth(1, 1, capacity, len(rows)) for _ in range(c)]
        self._active: list[Places] = [np.empty(0, np.int64) for _ in range(c)]
        self._scores: dict[int, float] = {}  # of each row of the union when it was first chosen
        self._wants = np.arange(0)
        self.replace(np.arange(len(rows)), rows)

    @property
    def moments(self) -> tuple[Array, Array]:
        """Means and variances of the candidates, (c, p) each."""
        growths = self._growths
        return np.concatenate([own.mean for own in growths]), np.concatenate([own.variance for own in growths])

    @property
    def _room(self) -> NDArray[np.bool_]:
        """Whether a function may have more sites, (c,)."""
        return np.array([growth.size < self._capacity for growth in self._growths])

    @property
    def full(self) -> bool:
        """Whether no function may have more sites."""
        return not self._room.any()

    @property
    def taken(self) -> Places:
        """The rows on which every function that may have more sites has one."""
        left = [own for own, room in zip(self._active, self._room, strict=True) if room]
        return reduce(np.intersect1d, left) if left else self._union

    @property
    def _union(self) -> Places:
        return np.array(list(self._scores), np.int64)

    @property
    def _places(self) -> list[list[int]]:
        """Where the active rows of each function are in the union."""
        where = {row: i for i, row in enumerate(self._scores)}
        return [[where[row] for row in own.tolist()] for own in self._active]

    def replace(self, places: Places, rows: Places) -> None:
        """Put other rows in some places."""
        self.rows[places] = rows
        block = self._prior.block(self._union, rows)
        self._prior_mean[:, places] = block.mean
        for k, (growth, known) in enumerate(zip(self._growths, self._places, strict=True)):
            variance = block.variance[min(k, len(block.variance) - 1)]
            growth.fill(places, own_matrix(block.cross, k)[None, known], variance[None], block.mean[k : k + 1])
            self.waiting[k, places] = ~np.isin(rows, self._active[k])

    def _seen(self, places: Places) -> tuple[Likelihood, NDArray[np.int64], Array, Array]:
        """Likelihood, labels and moments of some candidates."""
        rows = self.rows[places]
        mean, variance = (own[:, places] for own in self.moments)
        return self._likelihood.at(rows), self._labels[rows], mean, variance.T[:, :, None] * np.eye(len(mean))

    def scores(self, name: str) -> tuple[Places, Array]:
        """Places where some function may have a site, and the highest of the scores of these sites.

        Sites that tell nothing are left out, as in the paper.
        """
        found = SCORES[name](self._rule, *self._seen(np.arange(len(self.rows))))
        possible = self.waiting & self._room[:, None] & (found > 0.0)
        found = np.where(possible, found, -np.inf)
        self._wants = found.argmax(axis=0)
        places = np.flatnonzero(possible.any(axis=0))
        return places, found[self._wants[places], places]

    def include(self, place: int, score: float = np.nan) -> None:
        """Give a candidate its site for the function that scored best, or for all where there was no score."""
        row = self.rows[place : place + 1]
        site = self._rule.match(*self._seen(np.array([place])))
        cross = self._prior.block(row, self.rows).cross
        every = range(len(self._growths)) if np.isnan(score) else [int(self._wants[place])]
        for k in every:
            own = site.precision[k], site.location[k], self._prior_mean[k, [place]]
            self._growths[k].include(place, own_matrix(cross, k), *own)
            self._active[k] = np.append(self._active[k], row)
            self.waiting[k, place] = False
        self._scores.setdefault(int(row[0]), score)

    @property
    def selection(self) -> Selection:
        """The union of the active rows, and their sites: zero where a function has none."""
        sites = np.zeros((2, len(self._growths), len(self._scores)))
        for k, (growth, places) in enumerate(zip(self._growths, self._places, strict=True)):
            sites[:, k, places] = [own[0] for own in growth.sites]
        return Selection(self._union, np.array(list(self._scores.values())), *sites)


def _separate_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[bool, float, float]],
    there: NDArray[np.bool_],
    **options: Any,
) -> Found:
    """EP with those scalar sites that are `there` (c, n); others stay zero.

    `start`, which is overwritten, is π and ν (2, n, c). `update` and options are those of `independent_ep` in
    `pymc_gpep.solvers`. No common shift is solved for, as there: functions that see different points do not agree on
    one. The normaliser of a point depends on all functions, also on those without a site there, whose moments do not
    match. So EP's energy is not stationary at its fixed point, and has no derivatives.
    """
    k, prior_mean = problem.k, problem.mean
    c, n = prior_mean.shape
    sites = start.reshape(2, n, c)
    pi, nu, b, mean, variance = np.empty((5, c, n))
    inverses = np.empty((c, n, n))

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        pi[:], nu[:] = sites[0].T, sites[1].T
        total = 0.0
        for a in range(c):
            own = own_matrix(k, a)
            ok, log_det = factorise_function(own, pi[a], inverses[a])
            if not ok:
                return False, np.nan, np.nan
            function_weights(inverses[a], pi[a], nu[a], prior_mean[a], b[a])
            function_variance(own, pi[a], inverses[a], variance[a])
            away = own @ b[a]
            mean[a] = prior_mean[a] + away
            # Relative to the prior mean the location is ν − π m, and the sites have a value at m.
            location = nu[a] - pi[a] * prior_mean[a]
            total += 0.5 * float(prior_mean[a] @ (nu[a] + location) + location @ away - log_det)
        ok, terms, _ = update(mean, variance, pi, nu, problem.labels, sites, target, scale)
        target *= there.T
        moved = np.abs(target - sites)
        return ok, total + terms, float(max((moved[0] * scale).max(), (moved[1] * np.sqrt(scale)).max()))

    def derivatives() -> Derivatives:
        return Derivatives(np.full_like(k, np.nan), np.full_like(prior_mean, np.nan))

    evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    return Found(evidence, status, b, mean, variance.T[:, :, None] * np.eye(c), pi, derivatives, rung)


def iterate_separately(
    method: QIEP, prior: DensePrior, labels: NDArray[np.int64], likelihood: Likelihood, there: NDArray[np.bool_]
) -> tuple[DensePosterior, Convergence]:
    """Iterate sites to the fixed point of class-independent EP in which some functions of a row have none.

    Parameters
    ----------
    method : QIEP
    prior : DensePrior
        Prior of the n rows of the union.
    labels : array (n,)
    likelihood : Likelihood
        Likelihood of these rows.
    there : array (c, n) of bool
        Which sites there are.

    Returns
    -------
    tuple
        The posterior, and how the iteration ended.
    """
    solver = partial(
        _separate_ep, update=likelihood.computation(IndependentQuadrature).update, there=there,
        largest_precision=likelihood.largest_precision, **method.settings,
    )  # fmt: skip
    outcome = run(
        solver, prior.k, prior.mean, labels, np.zeros(2 * there.size), method.max_iterations, relative=True,
        form=DenseForm, parameters=likelihood.parameters,
    )  # fmt: skip
    posterior = make_posterior(prior, method.site_form, outcome.precision, outcome.weights, outcome.mean)
    return posterior, method.convergence(outcome)
