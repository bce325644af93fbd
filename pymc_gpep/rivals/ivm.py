"""Informative vector machine: the posterior given the labels of a few active rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky

from pymc_gpep.approximations.limits import at_least, check_limits, fraction, one_of
from pymc_gpep.approximations.methods import (
    COVARIANCE,
    ArrayMethod,
    FurtherMethod,
    approximator,
    check_fits,
    likelihood_named,
    with_options,
)
from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.gaussians.posterior import Posterior, make_posterior, posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import CoupledSites, IndependentSites, SiteForm, Sites
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.rivals.class_independent_ep import QIEP, independent_ep
from pymc_gpep.rivals.computations import IndependentQuadrature
from pymc_gpep.rivals.selection.greedy import EVEN, Candidates, Reweighting, choose_rows
from pymc_gpep.rivals.selection.row_site_rules import (
    OF_FUNCTIONS,
    RANDOM,
    RULE_NAMES,
    SCORE_NAMES,
    SEPARATE,
    ActiveBound,
    DenseRows,
    Places,
    RowBlocks,
    RowSiteRule,
    Selection,
    rows_can_be_chosen,
    selection_rule,
)
from pymc_gpep.solvers.inducing import Block, InducingWhitening, row_blocks
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, run
from pymc_gpep.solvers.site_ep import largest_change
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened


def _separate_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[bool, float, float]],
    there: NDArray[np.bool_],
    **options: Any,
) -> Found:
    """Run EP where each latent function has sites at the rows that it chose (Seeger and Jordan 2004, section 6).

    The rows are the union of the rows of all functions. The mask `there` (c, n) is True if a function has a site at a
    row. Other arguments are as in `independent_ep`. The common shift is not computed: functions with sites at different
    points have different shifts. The normaliser of a point also depends on functions without a site at the point. Their
    moments do not match. So EP's energy is not stationary at the fixed point, and no derivatives are computed.
    """

    def matched(*given: Any) -> tuple[bool, float, float]:
        *_, sites, target, scale = given
        ok, terms, _ = update(*given)
        target *= there.T
        return ok, terms, largest_change(target, sites, scale)

    def derivatives() -> Derivatives:
        return Derivatives(np.full_like(problem.k, np.nan), np.full_like(problem.mean, np.nan))

    found = independent_ep(problem, start, history, update=matched, shifts=False, **options)
    return found._replace(derivatives=derivatives)


def iterate_separately(
    method: QIEP, prior: DensePrior, labels: NDArray[np.int64], likelihood: Likelihood, there: NDArray[np.bool_]
) -> tuple[Posterior, Convergence]:
    """Return the fixed point of class-independent EP if some functions have no site at some rows.

    Parameters
    ----------
    method : QIEP
    prior : DensePrior
        Prior of the n rows in the union.
    labels : array (n,)
    likelihood : Likelihood
        Likelihood of these rows.
    there : array (c, n) of bool
        Whether each function has a site at each row.

    Returns
    -------
    tuple
        Posterior and convergence.
    """
    solver = partial(
        _separate_ep, update=likelihood.computation(IndependentQuadrature).update, there=there,
        largest_precision=likelihood.largest_precision, **method.settings,
    )  # fmt: skip
    outcome = run(
        solver, prior.k, prior.mean, labels, np.zeros(2 * there.size), method.max_iterations, relative=True,
        form=DensePrior, parameters=likelihood.parameters,
    )  # fmt: skip
    posterior = make_posterior(prior, method.site_form, outcome.precision, outcome.weights, outcome.mean)
    return posterior, method.convergence(outcome)


_ROOM = 64_000_000  # Largest number of stored entries of low-rank factors of candidates (512 MB).
_POOL = 1000  # Largest default number of candidates if their scores need integrals, for several functions.
_ROWS = 5000  # Smallest default number of rows in the sum of the bound.
_FORMS: dict[SiteForm, type[Sites]] = {SiteForm.COUPLED: CoupledSites, SiteForm.INDEPENDENT: IndependentSites}


@dataclass(frozen=True, eq=False)
class ActivePosterior:
    """Posterior of active rows, with the methods of a posterior of inducing values."""

    dense: Posterior
    """Posterior of the latent values of the active rows."""

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.dense.prior.shape[1]

    def predict(self, block: Block) -> tuple[Array, Array]:
        """Return means (c, m) and covariances (m, c, c) of latent functions at m points, given prior moments."""
        return self.dense.predict(np.ascontiguousarray(block.cross.swapaxes(1, 2)), block.variance, block.mean)

    @property
    def as_inducing(self) -> InducingPosterior:
        """Return this posterior with the latent values of the rows as inducing values, for draws and joint moments.

        Raises
        ------
        NotPositiveDefiniteError
            If the prior covariance of the rows has no Cholesky factor.
        """
        prior = self.dense.prior
        cov = self.dense.joint_covariance(prior.roots, np.eye(self.size)[None])
        flat = cov.reshape(self.dense.mean.size, -1)
        root = cholesky(flat[::-1, ::-1], lower=True)[::-1, ::-1].T  # Lower triangular R with Σ = Rᵀ R.
        mean = prior.whitened_slope(self.dense.weights)
        return InducingPosterior(
            InducingWhitening(prior.roots, 0.0), CoupledWhitened(mean, np.ascontiguousarray(root), np.nan)
        )


class RowSample(NamedTuple):
    """Inactive rows in the sum of a bound: all inactive rows, or a random sample."""

    others: Places
    weight: float
    """Number of rows that each row of the sample represents."""


@dataclass(frozen=True, eq=False)
class ActiveSolution:
    """Posterior given the labels of the active rows, at fixed hyperparameters.

    Attributes
    ----------
    selection : Selection
        Active rows in the order of their choice, with the sites from the time of the choice.
    posterior : Posterior
        Posterior of the latent values of the active rows, in the same order.
    bound : float
        Lower bound of the log evidence of all labels, or an estimate from a sample of rows.
    active_evidence : float
        Log evidence of the labels of the active rows alone; NaN if sites were not iterated, or are `"separate"`.
    convergence : Convergence or None
        Convergence of the iteration of the active rows' sites; None if sites were not iterated.
    labels : array (n,)
    likelihood : Likelihood
    sample : RowSample
        Inactive rows in the sum of the bound.
    """

    selection: Selection
    posterior: Posterior
    bound: float
    active_evidence: float
    convergence: Convergence | None
    labels: NDArray[np.int64]
    likelihood: Likelihood
    sample: RowSample

    @property
    def lower_bound(self) -> float:
        """Lower bound of the log evidence, the attribute `bound`."""
        return self.bound

    @property
    def objective(self) -> float:
        """Lower bound of the log evidence, which a search for hyperparameters maximises."""
        return self.bound

    @property
    def log_evidence(self) -> float:
        """NaN: only a bound, and the evidence of the active rows, are computed."""
        return np.nan

    @property
    def converged(self) -> bool:
        """Whether the sites are at a fixed point, or were not iterated."""
        return self.convergence is None or self.convergence.converged


@dataclass(frozen=True)
class IVM(FurtherMethod):
    """Posterior given the labels of d active rows. Rows are chosen one after another by their information.

    When a row is included, its site is computed from the posterior given earlier active rows (assumed density
    filtering). Afterwards EP, or another method that the option `sites` determines, iterates the sites of active rows
    to a fixed point. If all rows are active, the result is the result of this method. The time is O(n d²) or more, and
    the memory O(n d) if all n rows are candidates. No matrix has two axes over all rows (Seeger and Jordan 2004;
    Girolami and Rogers 2006, section 5).

    `pm.fit` accepts further options: `rounds`, `gp` and `data`. See the page "Options of methods for many rows" of the
    documentation.

    Parameters
    ----------
    active : int
        Number of active rows, d. If the data have at most d rows, all rows are active and no scores are computed.
    sites : {"coupled", "independent", "utility", "separate"}, optional
        `"coupled"` sites couple the functions of a row: sites of `"nested_ep"`, or of `"qep"` for a softmax.
        `"independent"` sites belong to `"qiep"`, or to `"ep"` for one function. `"utility"` sites belong to `"vb"`. The
        default is the first kind that the likelihood supports. With `"separate"` sites each function chooses rows.
    criterion : {"expected", "information", "probability", "random"}
        Score of candidates. With "information" it is the divergence of the posterior with the site of a candidate from
        the posterior without it. With "expected" it is the average of this divergence over possible labels. With
        "probability" it is minus the log probability of the label. With "random" rows are chosen at random. The scores
        "information" and "probability" favour rows with wrong labels. If classes overlap, "expected" is better.
    pool : int, optional
        Number of candidates that are scored for each inclusion. By default, low-rank factors of the candidates fit into
        512 MB. With several functions the default is at most 1000, unless sites are `"utility"`.
    retained : float
        Share of candidates, with the best scores, that remain candidates after an inclusion. Random rows replace the
        rest. The option has no effect if all rows are candidates.
    liquid : int
        Size of the moving window of active rows: the number of latest active rows whose sites are still updated by EP.
        With 1 the site of a row is fixed when the row is included.
    passes : int
        Number of updates of the sites in the moving window after each inclusion.
    weights : tuple of float, float and int, optional
        Numbers γ₀, α₀ and L₀ of Seeger and Jordan (2004, appendix D.5). They reduce the weight of labels in the moving
        window at first. A weight multiplies the latent values of a row in its likelihood. The latest of d active rows
        has the weight 1 − (1 − γ₀) exp(−α₀ (d − 1)). The weights of the L₀ rows before it rise to 1. At the end all
        weights are 1. By default all weights are always 1.
    polish : bool
        Whether sites are iterated to the fixed point after all rows are chosen.
    rows : int, optional
        Number of rows in the sum of the bound, active rows included. The inactive rows in the sum are a random sample
        with each class in proportion. The default is the larger of 5000 and twice `active`, but at most all rows.
    """

    active: int = field(default=500, metadata=at_least(1))
    sites: str | None = field(default=None, metadata=one_of(*RULE_NAMES))
    criterion: str = field(default="expected", metadata=one_of(*SCORE_NAMES))
    pool: int | None = field(default=None, metadata=at_least(1))
    retained: float = field(default=0.5, metadata=fraction())
    liquid: int = field(default=1, metadata=at_least(1))
    passes: int = field(default=2, metadata=at_least(1))
    weights: tuple[float, float, int] | None = None
    polish: bool = True
    rows: int | None = field(default=None, metadata=at_least(1))

    name: ClassVar[str] = "ivm"
    by: ClassVar[str] = "active rows"
    example: ClassVar[str] = "active=500"

    def __post_init__(self) -> None:
        check_limits(self)
        if self.sites == SEPARATE and (self.criterion not in OF_FUNCTIONS or self.liquid > 1):
            raise ValueError(
                f"sites={SEPARATE!r} needs criterion={' or '.join(map(repr, OF_FUNCTIONS))} and liquid=1, but "
                f"criterion is {self.criterion!r} and liquid is {self.liquid}. Use sites='independent' with these "
                "options."
            )
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))  # netCDF returns a list
            _ = self._reweighting
        if self.rows is not None and self.rows <= self.active:
            raise ValueError(
                f"rows must be larger than active={self.active}, but is {self.rows}. The additional rows are a "
                "sample of the rows that are not active."
            )

    @property
    def _reweighting(self) -> Reweighting:
        if self.weights is None:
            return EVEN
        match self.weights:
            case float() | int() as first, float() as rate, int() as rows if (
                0.0 < first <= 1.0 and 0.0 < rate < 1.0 and 1 <= rows < self.liquid
            ):
                return Reweighting(first, rate, rows)
        raise ValueError(
            "weights must be (γ₀, α₀, L₀), two numbers in (0, 1) and a whole number from 1 to below liquid. It is "
            f"{self.weights!r}, with liquid={self.liquid}. An example is weights=(0.5, 0.05, 10) with liquid=25."
        )

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Return whether a likelihood has sites for the choice of rows, and a bound over all rows."""
        return rows_can_be_chosen(likelihood)

    @classmethod
    def on_arrays(cls) -> ArrayMethod:
        """Return the method as a function of arrays."""

        def method(
            k: ArrayLike, mean: ArrayLike, labels: ArrayLike, likelihood: str, *, random_seed: int = 0, **options: Any
        ) -> ActiveSolution:
            found = likelihood_named(likelihood)
            check_fits(cls.name, cls.approximates, found)
            return with_options(cls, options).solve(
                DenseRows(k, mean), labels, likelihood=found, random_seed=random_seed
            )

        seed = (
            "random_seed : int\n"
            "    Seed for the first rows, for candidates, and for the sample that the bound is over.\n"
        )
        return ArrayMethod(method, COVARIANCE, seed, "K, mean, y", "bound")

    def rule(self, likelihood: Likelihood) -> RowSiteRule:
        """Return the rule that computes sites of rows; raise a ValueError if the likelihood has no such rule."""
        return selection_rule(self.sites, likelihood)

    def most_rows(self, n_functions: int, n_points: int) -> int:
        """Return the largest number of active rows, for all functions together."""
        return min(self.active * (n_functions if self.sites == SEPARATE else 1), n_points)

    def named(self, likelihood: Likelihood) -> Self:
        """Return a copy with the name of its site rule in the option `sites`."""
        return replace(self, sites=self.rule(likelihood).name)

    def select(
        self, prior: RowBlocks, labels: NDArray[np.int64], likelihood: Likelihood, random_seed: int = 0
    ) -> Selection:
        """Return chosen rows with their sites."""
        rule, rng = self.rule(likelihood), np.random.default_rng(random_seed)
        n, c = prior.n_points, prior.n_functions
        active = min(self.active, n)
        liquid, weights = min(self.liquid, active), self._reweighting
        if self.criterion == RANDOM or active == n:  # This choice needs no scores.
            rows = rng.permutation(n)[:active]
            candidates = Candidates(prior, labels, likelihood, rule, active, rows, liquid, self.passes, weights)
            return candidates.include_first(active).finish().selection
        coupled = rule.form is SiteForm.COUPLED
        numbers = active * (2 * c if coupled else 1 if rule.shares and prior.n_covariances == 1 else c)
        numbers += c * c * liquid if liquid > 1 else 0
        slow = c > 1 and not rule.shares
        pool = self.pool or max(1, min(_ROOM // numbers, _POOL if slow else n))
        return choose_rows(
            prior, labels, likelihood, rule, active=active, criterion=self.criterion, pool=pool, retained=self.retained,
            rng=rng, liquid=liquid, passes=self.passes, weights=weights,
        )  # fmt: skip

    @one_blas_thread()
    def solve(
        self, prior: RowBlocks, labels: ArrayLike, *, likelihood: Likelihood | None = None, random_seed: int = 0
    ) -> ActiveSolution:
        """Return chosen rows, and the approximate posterior given their labels.

        Parameters
        ----------
        prior : RowBlocks
            Prior in blocks, for example `DenseRows`.
        labels : array (n,)
            Observations: classes, counted from 0.
        likelihood : Likelihood, optional
            The default is the multinomial probit.
        random_seed : int
            Seed of the first rows, of candidates, and of the sample of rows for the bound.

        Raises
        ------
        ValueError
            If labels are not classes, or if the likelihood does not support the option `sites`.
        """
        likelihood = likelihood or MultinomialProbitLikelihood()
        observed = likelihood.check(labels, prior.n_functions, prior.n_points)
        selection = self.select(prior, observed, likelihood, random_seed)
        most = self.rows or max(_ROWS, 2 * self.most_rows(prior.n_functions, prior.n_points))
        sample = row_sample(observed, selection.rows, most, random_seed)
        return self.solve_chosen(prior, observed, likelihood, selection, sample)

    @one_blas_thread()
    def solve_chosen(
        self,
        prior: RowBlocks,
        labels: NDArray[np.int64],
        likelihood: Likelihood,
        selection: Selection,
        sample: RowSample,
    ) -> ActiveSolution:
        """Return the approximate posterior given the labels of the rows in `selection`, see `solve`."""
        rows, dense = selection.rows, active_prior(prior, selection.rows)
        posterior, evidence, convergence = self._given(dense, labels, likelihood, selection)
        bound = self._bound(prior, posterior, rows, sample, labels, likelihood)
        return ActiveSolution(selection, posterior, bound, evidence, convergence, labels, likelihood, sample)

    def _given(
        self, prior: DensePrior, labels: NDArray[np.int64], likelihood: Likelihood, selection: Selection
    ) -> tuple[Posterior, float, Convergence | None]:
        """Return the posterior given the labels of active rows, the log evidence of these, and the convergence."""
        rows, rule = selection.rows, self.rule(likelihood)
        if not self.polish:
            return posterior_of(prior, sites_of(rule, selection.precision, selection.location)), np.nan, None
        method, there = approximator(rule.method, likelihood, {}), selection.precision > 0.0
        if rule.separate and isinstance(method, QIEP) and not there.all():
            posterior, ended = iterate_separately(method, prior, labels[rows], likelihood.at(rows), there)
            return posterior, np.nan, ended
        found = method.solve(prior.k, prior.mean, labels[rows], likelihood=likelihood.at(rows))
        return found.posterior, found.evidence, found.convergence

    @one_blas_thread()
    def posterior_of_first(self, solution: ActiveSolution, count: int) -> Posterior:
        """Return the posterior of a solution with only the first `count` active rows."""
        whole, chosen = solution.posterior.prior, solution.selection
        prior = DensePrior(np.ascontiguousarray(whole.k[:, :count, :count]), whole.mean[:, :count].copy())
        first = Selection(
            chosen.rows[:count], chosen.scores[:count], chosen.precision[:, :count], chosen.location[:, :count]
        )
        return self._given(prior, solution.labels, solution.likelihood, first)[0]

    @staticmethod
    def _bound(
        prior: RowBlocks,
        posterior: Posterior,
        rows: Places,
        sample: RowSample,
        labels: NDArray[np.int64],
        likelihood: Likelihood,
    ) -> float:
        found = ActiveBound(posterior)
        k = posterior.prior.k
        own = Block(k, np.ascontiguousarray(k.diagonal(axis1=1, axis2=2)), posterior.prior.mean)
        found.value_of(own, labels[rows], likelihood.at(rows), 1.0)
        for part in row_blocks(len(sample.others), prior.n_functions * len(rows)):
            some = sample.others[part]
            found.value_of(prior.block(rows, some), labels[some], likelihood.at(some), sample.weight)
        return found.value


def sites_of(rule: RowSiteRule, precision: Array, location: Array) -> Sites:
    """Return sites in the form of a rule, from precisions and locations (c, d)."""
    return _FORMS[rule.form](precision, location)


def active_prior(prior: RowBlocks, rows: Places) -> DensePrior:
    """Return the prior of the latent values of the active rows."""
    block = prior.block(rows, rows)
    return DensePrior(np.ascontiguousarray(block.cross), np.ascontiguousarray(block.mean))


def row_sample(labels: NDArray[np.int64], active: Places, most: int, random_seed: int) -> RowSample:
    """Return the inactive rows in the sum of a bound: all of them, or a sample with each class in proportion."""
    n = len(labels)
    free = np.ones(n, bool)
    free[active] = False
    others = np.flatnonzero(free)
    wanted = max(most - len(active), 1)
    if len(others) <= wanted:
        return RowSample(others, 1.0)
    # Take every k-th row in the order of classes, with the rows of each class in random order.
    shuffled = np.random.default_rng(random_seed).permutation(n)
    shuffled = shuffled[free[shuffled]]
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    chosen = np.sort(ordered[((np.arange(wanted) + 0.5) * len(ordered) / wanted).astype(np.int64)])
    return RowSample(chosen, len(others) / wanted)
