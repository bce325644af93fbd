"""Fits by active rows: prior moments of rows, log posterior, rounds that choose rows, and the plan.

The covariance of a row with itself is the prior variance. It includes terms of the diagonal, such as PyMC's jitter. The
covariance of two distinct rows is the value of the covariance function, even if their inputs are equal.

A major round chooses active rows and their sites at the current hyperparameters. Minor steps then increase the bound
for fixed rows and sites (Seeger and Jordan 2004, section 5). A new choice of rows may lower the bound, so a round may
end with a lower bound than the round before. The result is the round with the highest bound.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations.methods import check_fits, with_options
from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.hyper.optimum import Optimum, looked_at, maximise, refuse
from pymc_gpep.hyper.several_starts import Follow
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE
from pymc_gpep.latent.gp_latent import jitter_of
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.log_posteriors.evaluation import Evaluation, Trace
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import Gps, LogPosterior, StoredFit
from pymc_gpep.log_posteriors.sparse_log_posterior import FEW, BlockLogPosterior
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.processes.processes import functions_of
from pymc_gpep.reading import GPClassifier
from pymc_gpep.rivals.ivm import IVM, ActivePosterior, ActiveSolution, RowSample, active_prior, sites_of
from pymc_gpep.rivals.selection.row_site_rules import ActiveBound, Selection
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import Block, row_blocks
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.model_warnings import warn_of_single_class
from pymc_gpep.variational.plans.plan import Climb, FitTask, Optimiser, Plan


class RowInputs(NamedTuple):
    """Inputs of all rows, with the functions that compute their prior covariances."""

    blocks: InducingBlocks
    inputs: Array
    """Inputs, (n, columns)."""
    jitter: Array
    """Jitter on the diagonal of each of the q prior covariances, (q, 1)."""

    @classmethod
    def of(cls, classifier: GPClassifier, blocks: InducingBlocks) -> "RowInputs":
        """Return the inputs of the rows of a model.

        Raises
        ------
        StructureError
            If the jitter of a prior is not a number.
        """
        jitter = np.empty((classifier.n_functions, 1))
        for latent in classifier.latents:
            jitter[list(latent.classes)] = jitter_of(latent)
        rows = blocks.rows
        return cls(blocks, np.asarray(rows.inputs(slice(0, rows.n_rows))), jitter[: blocks.n_covariances])


class ModelRows:
    """Prior of all rows at fixed hyperparameters, computed in blocks (`RowBlocks`).

    Parameters
    ----------
    given : RowInputs
    point : dict
        Values of the model's value variables.
    """

    def __init__(self, given: RowInputs, point: PointType) -> None:
        self._blocks, self._inputs, self._jitter = given
        self._point = point
        self.n_points = len(self._inputs)
        self.n_functions = self._blocks.n_functions
        self.n_covariances = self._blocks.n_covariances

    def block(self, columns: NDArray[np.int64], rows: NDArray[np.int64]) -> Block:
        some = columns if columns.size else rows[:1]
        found = self._blocks.block(self._point, self._inputs[some][None], self._inputs[rows])
        cross, variance = found.cross[:, : columns.size], found.variance + self._jitter
        if np.intersect1d(columns, rows).size:
            at, where = np.nonzero(columns[:, None] == rows)
            cross[:, at, where] = variance[:, where]
        return Block(cross, variance, found.mean)

    def slopes(self, columns: NDArray[np.int64], rows: NDArray[np.int64], bars: Block) -> Array:
        """Return derivatives in hyperparameters. `bars` are derivatives in the prior moments of `rows`."""
        return self._blocks.block_slopes(self._point, self._inputs[columns][None], self._inputs[rows], bars)[0]

    def own_slopes(self, rows: NDArray[np.int64], covariance: Array, mean: Array) -> Array:
        """Return derivatives in hyperparameters, from derivatives in covariances (q, d, d) and means (c, d) of rows."""
        every = np.arange(len(rows))
        apart = covariance.copy()
        apart[:, every, every] = 0.0
        variance = np.ascontiguousarray(covariance[:, every, every])
        none = np.zeros((len(covariance), 1, len(rows)))
        return np.asarray(
            self._blocks.inducing_slopes(self._point, self._inputs[rows][None], apart)[0]
            + self.slopes(rows[:1], rows, Block(none, variance, mean))
        )


_NO_START = np.empty(0)
_STEP = 0.01  # Unconstrained step of a hyperparameter for finite differences of the bound.


class ActiveLogPosterior(BlockLogPosterior):
    """Log posterior of hyperparameters with fixed active rows. Sites of the rows are computed at each point.

    The value is the log prior plus the bound of the log evidence of all rows. In a search the sites are fixed as well
    (`holding`). Gradients are then exact, but the bound is narrower in the hyperparameters than their posterior. Here
    sites are computed at each point, so the value can be integrated. Gradients are finite differences.

    Parameters
    ----------
    space : Hyperparameters
    approximator : IVM
    blocks : InducingBlocks or None
        None in a fit that was read from a file without `gp`. Then the graph of the model determines the blocks.
    random_seed : int
        Seed, the same for each choice of rows.
    rows : Rows, optional
        Rows that replace the rows of the model.
    inputs : array (d, columns), optional
        Inputs of the active rows, in a fit that is read from a file.
    """

    kind: ClassVar[str] = "active"
    by: ClassVar[str] = "active rows"

    def __init__(
        self,
        space: Hyperparameters,
        approximator: IVM,
        blocks: InducingBlocks | None,
        random_seed: int,
        rows: Rows | None = None,
        inputs: Array | None = None,
    ) -> None:
        super().__init__(space, blocks, rows)
        self.approximator = approximator
        self._seed = random_seed
        self._active_inputs = inputs
        self._chosen: ActiveSolution | None = None
        self._at: Array = np.empty(0)
        self._slopes = True

    @classmethod
    def of_file(cls, file: StoredFit) -> Self:
        stored = file.posterior
        made = IVM(**file.options)
        return cls(file.space, made, file.blocks, int(stored["seed"]), file.rows, stored["input"].values)

    @cached_property
    def _row_inputs(self) -> RowInputs:
        return RowInputs.of(self.classifier, self.blocks())

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of the model."""
        return self.classifier.likelihood_model

    @property
    def number(self) -> str:
        return "lower bound"

    @property
    def entries(self) -> int:
        c = self.classifier.n_functions
        return (c * self.approximator.most_rows(c, self.classifier.n_points)) ** 2

    def rows_at(self, x: Array) -> ModelRows:
        """Return the prior of the latent functions at all rows, at one point."""
        return ModelRows(self._row_inputs, self.point(x))

    def choose(self, x: Array) -> ActiveSolution:
        """Return a solution with active rows chosen at one point."""
        return self.approximator.solve(self.rows_at(x), self.labels, likelihood=self.likelihood, random_seed=self._seed)

    def holding(self, solution: ActiveSolution) -> "HeldActive":
        """Return the log posterior in which the rows and sites of a solution are fixed."""
        return HeldActive(self, solution)

    def held(self, best: Evaluation) -> Self:
        """See `LogPosterior`. The copy computes the sites at each point."""
        return copy(self)

    def ending_with(self, x: Array, solution: ActiveSolution) -> Self:
        """Return a copy with the active rows of a solution, and this solution as the result at x."""
        other = copy(self)
        other._at, other._chosen = x, solution
        return other

    def weighing(self) -> Self:
        """See `LogPosterior`. Evaluations of the copy omit the gradient."""
        other = copy(self)
        other._slopes = False
        return other

    def check_moments(self, x: Array) -> None:
        """Raise a ValueError if the covariance of the active rows at one point is invalid."""
        k = active_prior(self.rows_at(x), self._solution().selection.rows).k
        if bad := np.count_nonzero(~np.isfinite(k)):
            raise ValueError(
                f"The prior covariance of the active rows must be finite, but has {bad} values that are not. Look at "
                "the hyperparameters that the model starts from."
            )

    def _solution(self) -> ActiveSolution:
        if self._chosen is None:
            raise ValueError("No rows have been chosen yet.")
        return self._chosen

    def __call__(self, x: Array, start: Any = None) -> Evaluation:
        """See `LogPosterior`; `start` is not needed."""
        x = np.array(x)
        solution = self._tried(x)
        if solution is None:
            return Evaluation.failed(x, NOT_POSITIVE_DEFINITE)
        if not solution.converged and solution.convergence is not None:
            return Evaluation.failed(x, solution.convergence.status)
        log_prior = self.space.log_prior(x)
        gradient = np.full(x.size, np.nan)
        if self._slopes:
            for i, step in enumerate(_STEP * np.eye(x.size)):
                ahead, behind = self._value(x + step), self._value(x - step)
                gradient[i] = (ahead - behind) / (2.0 * _STEP)
        iterations = 1 if solution.convergence is None else solution.convergence.iterations
        bound = solution.bound
        status = CONVERGED if np.isfinite(bound) else NOT_FINITE
        return Evaluation(x, bound + log_prior, gradient, bound, iterations, status, _NO_START)

    def _value(self, x: Array) -> float:
        solution = self._tried(x)
        return np.nan if solution is None else solution.bound + self.space.log_prior(x)

    def _tried(self, x: Array) -> ActiveSolution | None:
        """Return the solution at a point; None if a covariance has no Cholesky factor."""
        try:
            return self.solve(x)
        except (NotPositiveDefiniteError, np.linalg.LinAlgError):
            return None

    def solve(self, x: Array, start: Array | None = None) -> ActiveSolution:
        """See `LogPosterior`. The solution has the active rows of the end of the search."""
        chosen = self._solution()
        if np.array_equal(x, self._at):
            return chosen
        with np.errstate(all="ignore"):
            return self.approximator.solve_chosen(
                self.rows_at(x), self.labels, self.likelihood, chosen.selection, chosen.sample
            )

    def anchors(self, x: Array, solution: ActiveSolution | None = None) -> Array:
        """Return the inputs of the active rows; see `BlockLogPosterior`."""
        if self._active_inputs is not None:
            return self._active_inputs[None]
        rows = (solution or self._solution()).selection.rows
        return np.asarray(self._row_inputs.inputs[rows][None])

    def active(self, x: Array, solution: ActiveSolution) -> xr.Dataset:
        classifier, chosen = self.classifier, solution.selection
        rows, own, there = chosen.rows, classifier.function_dims, chosen.precision.T > 0.0
        found = xr.Dataset(
            {
                "row": ("inclusion", rows),
                "label": ("inclusion", solution.labels[rows]),
                "score": ("inclusion", chosen.scores),
                "input": (("inclusion", "column"), self.anchors(x, solution)[0]),
                "site": (("inclusion", *own), there if own else there[:, 0]),
            },
            coords={"inclusion": np.arange(len(rows)), **dict.fromkeys(own, classifier.class_names)},
        )
        names = classifier.coords_of_points()
        if names is None or self.rows is not None:
            return found
        dim = str(classifier.point_dim)
        return found.assign_coords({f"{dim}_name" if dim in found else dim: ("inclusion", names[rows])})

    def posterior(self, solution: ActiveSolution) -> ActivePosterior:
        return ActivePosterior(solution.posterior)

    def left_out(self, x: Array, solution: ActiveSolution, gps: Gps) -> Iterator[LeftOut] | None:
        if self.classifier.n_functions > 1 and solution.posterior.sites_class.form is SiteForm.INDEPENDENT:
            return None
        return self._each_left_out(x, solution, gps)

    def _each_left_out(self, x: Array, solution: ActiveSolution, gps: Gps) -> Iterator[LeftOut]:
        """Yield leave-one-out moments of all rows, in blocks. Rows without a site have their posterior moments."""
        posterior, active = self.posterior(solution), solution.selection.rows
        prior, dense = self.prior_at(x, gps, solution), solution.posterior
        own_mean, own_cov = dense.cavities(*dense.marginals())
        for rows in row_blocks(prior.n_points, prior.n_functions * posterior.size):
            mean, cov = posterior.predict(prior.block(rows))
            means = mean.T.copy()
            here = (active >= rows.start) & (active < rows.stop)
            means[active[here] - rows.start], cov[active[here] - rows.start] = own_mean[here], own_cov[here]
            yield LeftOut(rows, means, cov)

    def stored(self, x: Array, solution: ActiveSolution) -> xr.Dataset:
        sites, chosen, found = solution.posterior.sites, solution.selection, solution.convergence
        rows, of_sites = chosen.rows, ("function", "inclusion")
        table = xr.Dataset(
            {
                "row": ("inclusion", rows),
                "label": ("inclusion", solution.labels[rows]),
                "score": ("inclusion", chosen.scores),
                "input": (("inclusion", "column"), self.anchors(x, solution)[0]),
                "precision": (of_sites, sites.precision),
                "location": (of_sites, sites.location),
                "first_precision": (of_sites, chosen.precision),
                "first_location": (of_sites, chosen.location),
                "prior_covariance": (("set", "some", "others"), solution.posterior.prior.k[:, :FEW, :FEW]),
                "other": ("others_of_bound", solution.sample.others),
                "seed": self._seed,
            },
            attrs={"bound": solution.bound, "weight": solution.sample.weight, "value": solution.active_evidence},
        )
        return table if found is None else found.stored(table)

    def restored(self, x: Array, table: xr.Dataset) -> ActiveSolution:
        attrs, rows, inputs = table.attrs, table["row"].values, table["input"].values
        labels = np.full(self.blocks().rows.n_rows, -1)  # Labels of other rows may be unavailable.
        labels[rows] = table["label"].values
        if self._rows is None:
            labels = self.labels
            if not np.allclose(self._row_inputs.inputs[rows], inputs, rtol=1e-9, atol=0.0):
                raise ValueError("The model differs from the fitted model: its active rows have different inputs.")
        active = RowInputs.of(self.classifier, self.blocks().on(InMemory(inputs, labels[rows])))
        dense = active_prior(ModelRows(active, self.point(x)), np.arange(len(rows)))
        precision, location, first_precision, first_location = (
            table[name].values for name in ("precision", "location", "first_precision", "first_location")
        )
        convergence = Convergence.restored(table, float(attrs["tolerance"])) if "status" in attrs else None
        return ActiveSolution(
            Selection(rows, table["score"].values, first_precision, first_location),
            posterior_of(dense, sites_of(self.approximator.rule(self.likelihood), precision, location)),
            float(attrs["bound"]),
            float(attrs["value"]),
            convergence,
            labels,
            self.likelihood,
            RowSample(table["other"].values, float(attrs["weight"])),
        )

    def few_prior(self, x: Array) -> Array:
        return self._solution().posterior.prior.k[:, :FEW, :FEW]

    def heading(self, trace: Trace, solution: ActiveSolution, converged: bool) -> str:
        sampled = solution.sample.weight > 1.0
        number = f"{'estimate of a ' if sampled else ''}lower bound {solution.bound:.4f} of the log evidence"
        given = f"criterion={self.approximator.criterion!r}, {len(solution.selection.rows)} of {len(solution.labels)}"
        chosen = f"sites={self.approximator.sites!r}, {given} rows active"
        return f"{self.name} ({chosen}): {number}, {self.state(converged)}."

    def ending(self, trace: Trace, solution: Callable[[], ActiveSolution]) -> str:
        found = solution().convergence
        sites = "the choice of rows determines the sites" if found is None else f"sites on the active rows {found}"
        theta = trace.best.theta
        if not theta.size:
            return f"Nothing to learn; {sites}."
        if len(trace.losses) == 1 and trace.converged:
            return f"{self.learns} stay at their initial values; {sites}."
        again = np.array_equal(theta, trace.first.theta)
        back = "; no other choice of active rows improved on the initial hyperparameters" if again else ""
        return f"{self.learns} {trace.outcome}{back}; {sites}."


class HeldActive(ActiveLogPosterior):
    """Log posterior of hyperparameters with fixed active rows and fixed sites, with an exact gradient.

    The posterior is prior times sites. Only the prior depends on the hyperparameters.

    Parameters
    ----------
    whole : ActiveLogPosterior
    solution : ActiveSolution
        Solution at some hyperparameters.
    """

    def __init__(self, whole: ActiveLogPosterior, solution: ActiveSolution) -> None:
        vars(self).update(vars(whole))
        self._chosen = solution

    def __call__(self, x: Array, start: Any = None) -> Evaluation:
        """Evaluate the log posterior; NaN with a status if the posterior has no Cholesky factor.

        `start` is not used.
        """
        x = np.array(x)
        try:
            with np.errstate(all="ignore"):
                bound, slope = self._bound(self.rows_at(x))
        except (NotPositiveDefiniteError, np.linalg.LinAlgError):
            return Evaluation.failed(x, NOT_POSITIVE_DEFINITE)
        log_prior, of_prior = self.space.log_prior_and_slope(x)
        if not np.isfinite(bound):
            return Evaluation.failed(x, NOT_FINITE)
        return Evaluation(x, bound + log_prior, slope + of_prior, bound, 1, CONVERGED, _NO_START)

    def solution_at(self, reached: Evaluation) -> ActiveSolution:
        """Return the solution with the fixed rows and sites at an evaluation."""
        solution = self._solution()
        prior = active_prior(self.rows_at(reached.theta), solution.selection.rows)
        return replace(solution, posterior=posterior_of(prior, solution.posterior.sites), bound=reached.evidence)

    def _bound(self, prior: ModelRows) -> tuple[float, Array]:
        solution = self._solution()
        rows = solution.selection.rows
        dense = active_prior(prior, rows)
        every = np.arange(len(rows))
        bound = ActiveBound(posterior_of(dense, solution.posterior.sites))
        own = Block(dense.k, np.ascontiguousarray(dense.k[:, every, every]), dense.mean)
        of_own = bound.add(own, solution.labels[rows], solution.likelihood.at(rows), 1.0)
        slope = np.zeros(self.space.size)
        for part in row_blocks(len(solution.sample.others), prior.n_functions * len(rows)):
            some = solution.sample.others[part]
            block, labels = prior.block(rows, some), solution.labels[some]
            bars = bound.add(block, labels, solution.likelihood.at(some), solution.sample.weight)
            slope += prior.slopes(rows, some, bars)
        found = bound.slopes()
        covariance = found.covariance + 0.5 * (of_own.cross + of_own.cross.swapaxes(1, 2))
        covariance[:, every, every] += of_own.variance
        return bound.value, slope + prior.own_slopes(rows, covariance, found.mean + of_own.mean)


_MINOR = 10  # Number of minor steps in a round.
_STILL = 0.05  # Unconstrained changes of hyperparameters below this number in a round count as no change.
_QUIET = 2  # Number of consecutive rounds without a change after which the search ends.
_FLAT = 1e-6  # Minor steps end if the relative change of the log posterior is below this number.

_HOW = {
    "nothing": "There is nothing to optimise.",
    "held": "Hyperparameters were kept at their initial values.",
    "settled": "Further rounds do not change the hyperparameters.",
    "lost": "The bound was not finite after a new choice of rows, so the best earlier round is kept.",
    "rounds": "The limit of {rounds} rounds was reached, rounds={rounds}.",
    "iterations": "The limit of n={iterations} iterations was reached.",
}
_WELL = ("nothing", "held", "settled")

type Progress = Callable[[tuple[Evaluation, ...], HeldActive], None]


def climb_in_rounds(
    log_posterior: ActiveLogPosterior, theta: Array, max_iterations: int, rounds: int, callback: Progress
) -> tuple[Optimum, ActiveSolution]:
    """Return the optimum of a search in rounds from one point, and the solution at the optimum.

    Parameters
    ----------
    log_posterior : ActiveLogPosterior
    theta : array
        First point, in unconstrained coordinates.
    max_iterations : int
        Largest number of minor steps in all rounds together.
    rounds : int
        Largest number of major rounds after the first choice. With 0 hyperparameters are fixed.
    callback : callable
        Function that is called after each minor step with the history, and the log posterior of the current rows and
        sites. StopIteration or KeyboardInterrupt in it ends the search.

    Returns
    -------
    Optimum
        The best round, with the minor steps of all rounds as history.
    ActiveSolution
        Active rows of the best round.
    """
    history: tuple[Evaluation, ...] = ()
    best: tuple[Evaluation, ActiveSolution] | None = None
    still, ended, remark = 0, "", ""
    ended_by: BaseException | None = None

    def report(seen: tuple[Evaluation, ...]) -> None:
        callback((*history, *seen[bool(history) :]), held)

    chosen: set[int] = set()
    for major in range(rounds + 1):
        try:
            solution = log_posterior.choose(theta)
            held = log_posterior.holding(solution)
            here = held(theta)
        except KeyboardInterrupt as interrupt:
            if best is None:
                raise
            ended_by = interrupt
            break
        if not (np.isfinite(here.log_posterior) and (not rounds or np.isfinite(here.gradient).all())):
            if best is None:
                refuse(held, here)
            ended = "lost"
            break
        if best is None or here.log_posterior > best[0].log_posterior:
            best = here, solution
        before, chosen = chosen, set(solution.selection.rows.tolist())
        if still and chosen == before:  # This round and the last changed nothing.
            still = _QUIET
        left = max_iterations - max(len(history) - 1, 0)
        if not theta.size:
            ended = "nothing"
        elif not rounds:
            ended = "held"
        elif still == _QUIET:
            ended = "settled"
        elif major == rounds:
            ended = "rounds"
        elif left <= 0:
            ended = "iterations"
        if ended or ended_by:
            break
        found = maximise(held, theta, min(_MINOR, left), report, flat=_FLAT)
        history = (*history, *found.history[bool(history) :])
        moved = float(np.abs(found.best.theta - theta).max())
        still = still + 1 if moved < _STILL else 0
        theta, remark = found.best.theta, remark or found.remark
        ended_by = found.ended_by
    assert best is not None
    evaluation, solution = best
    message = "" if ended_by else _HOW[ended].format(rounds=rounds, iterations=max_iterations)
    optimum = Optimum(evaluation, ended in _WELL, message, history or (evaluation,), remark=remark)
    return optimum if ended_by is None else optimum.stopped_by(ended_by), solution


@dataclass(frozen=True)
class ActiveRows(Plan):
    """Options of `"ivm"`.

    Parameters
    ----------
    rounds : int
        Largest number of new choices of active rows. With 0 hyperparameters have their initial values.
    """

    rounds: int = 10

    takes: ClassVar[tuple[str, ...]] = ("gp", "data", "starts")

    def __post_init__(self) -> None:
        check_whole("rounds, the limit on rounds of choosing rows,", self.rounds)

    @classmethod
    def methods(cls) -> Iterable[str]:
        return (IVM.name,)

    def approximation(self, method: str, classifier: GPClassifier, options: dict[str, Any], others: list[str]) -> Any:
        made = with_options(IVM, options, self.besides(), others)
        check_fits(method, made.approximates, classifier.likelihood_model, classifier.prior.singular)
        return made.named(classifier.likelihood_model)

    def check(self, given: FitTask) -> None:
        functions_of(given.classifier.prior, given.gps)

    def begin(self, given: FitTask, run: FitRun, kwargs: dict[str, Any], optimiser: Optimiser | None) -> Climb:
        run.stage("making the graphs of the covariances")
        blocks = InducingBlocks(given.classifier, given.gps, given.space.data, kwargs, given.rows)
        log_posterior = ActiveLogPosterior(given.space, given.approximator, blocks, given.seed, given.rows)
        warn_of_single_class(given.classifier, log_posterior.labels)
        run.stage("choosing rows")
        return _Rounds(given, log_posterior, self.rounds)


class _Rounds(Climb):
    """Search in rounds. It stores the active rows of the best round in the log posterior."""

    def __init__(self, given: FitTask, log_posterior: ActiveLogPosterior, rounds: int) -> None:
        super().__init__(given, log_posterior, whole=self._one)
        self._limit = rounds
        self._held: HeldActive | None = None
        self._solutions: dict[bytes, ActiveSolution] = {}

    def _one(self, x: Array, n: int, follow: Follow) -> Optimum:
        def tell(history: tuple[Evaluation, ...], held: HeldActive) -> None:
            self._held = held
            follow(history)

        optimum, solution = climb_in_rounds(self.log_posterior, x, n, self._limit, tell)
        self._solutions[optimum.best.theta.tobytes()] = solution
        return optimum

    def so_far(self, reached: Optimum) -> LogPosterior:
        assert self._held is not None
        return self._ending(reached.best, self._held.solution_at(reached.best))

    def judged(self, found: Optimum) -> Optimum:
        """See `Climb`. The slope at the end is not checked: minor steps may end before the slope is 0."""
        best = found.best
        self.log_posterior = self._ending(best, self._solutions[best.theta.tobytes()])
        return looked_at(found, self._given.space)

    def alarming(self, fit: Fit, n: int) -> bool:
        return bool(self._limit and n) and super().alarming(fit, n)

    def _ending(self, best: Evaluation, solution: ActiveSolution) -> ActiveLogPosterior:
        log_posterior: ActiveLogPosterior = self.log_posterior
        return log_posterior.ending_with(best.theta, solution)
