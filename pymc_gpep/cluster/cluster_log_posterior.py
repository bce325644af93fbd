"""Log posterior of hyperparameters and inducing inputs, with the rows of the data on several machines.

EP has a site for each row. Sites stay on the machine of their row, and `SitesOnCluster` moves them by messages.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pymc_gpep.approximations.solution import Convergence, Neighbours
from pymc_gpep.approximations.sparse_ep import SparseEP, SparseSolution
from pymc_gpep.array_types import Array
from pymc_gpep.cluster.rounds import Begin, PartRecipe, Rounds, Sums, Task, WorkerPart
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.kernels.acceleration import combination
from pymc_gpep.kernels.status import CONVERGED, NOT_POSITIVE_DEFINITE
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters, checked_labels
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.rows.in_memory import InMemory, RowRange, rows_between
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import RowFeatures, whitening
from pymc_gpep.solvers.problem import History, from_start_or_cold
from pymc_gpep.solvers.site_ep import SCHEMES, Ended, fallback, run_schemes
from pymc_gpep.solvers.sparse_sweeps import SiteSweeps
from pymc_gpep.solvers.team import ALONE
from pymc_gpep.solvers.whitened_posterior import Whitened

if TYPE_CHECKING:
    from distributed import Client

_NONE = np.empty(0, np.int64)


class ClusterLogPosterior(SparseLogPosterior):
    """The same log posterior as `SparseLogPosterior`, computed by the workers of a cluster.

    Parameters
    ----------
    space : Hyperparameters
    approximator : SparseEP
    blocks : InducingBlocks
    inducing : array (1 or c, M, d)
        Initial inducing inputs.
    learn : bool
        Whether inducing inputs are learned, as part of the flat vector. If not, they are fixed.
    client : distributed.Client
    parts : int, optional
        Number of parts into which the rows are divided; by default the number of threads of all workers.
    rows : Rows, optional
        Rows that replace the rows of the model.

    Raises
    ------
    NotImplementedError
        If the approximation is not `SparseEP`. If the likelihood has parameters for each row, or is not log-concave.
    """

    def __init__(
        self,
        space: Hyperparameters,
        approximator: SparseEP,
        blocks: InducingBlocks,
        inducing: Array,
        learn: bool,
        client: "Client",
        parts: int | None = None,
        rows: Rows | None = None,
    ) -> None:
        likelihood = space.classifier.likelihood_model
        if type(approximator) is not SparseEP or likelihood.has_parameters or not likelihood.log_concave:
            raise NotImplementedError(
                f"client=... is for method='sparse_ep' of a log-concave likelihood without parameters, and this fit is "
                f"{approximator.name} of a {likelihood.name} likelihood. Leave client out."
            )
        self._rule = approximator.rule(likelihood, blocks.n_functions, inducing.shape[1] + blocks.n_effects)
        self._empty = blocks.on(RowRange(blocks.rows, slice(0, 0)))
        self._nothing = self._rule.factors(likelihood, _NONE, blocks.n_functions)
        super().__init__(space, approximator, blocks, inducing, learn, rows)
        count = sum(client.nthreads().values()) if parts is None else parts
        recipes = [
            PartRecipe(
                blocks.on(rows_between(blocks.rows, slice(start, stop))), likelihood, self._rule, approximator.depth
            )
            for start, stop in pairwise(part_ends(blocks.rows, max(count, 1)))
        ]
        self.rounds = Rounds(client, recipes)
        self._solved = 0

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Labels of all rows; empty if each part reads its labels from a file."""
        rows, classifier = self.blocks().rows, self.classifier
        if not isinstance(rows, InMemory):
            return _NONE
        return checked_labels(rows, classifier.likelihood_model, classifier.n_functions)

    def __call__(self, theta: Array, start: Array | Neighbours | None = None) -> Evaluation:
        """Evaluate, see `SparseLogPosterior`."""
        if isinstance(start, Neighbours):
            start = start.predict(_Combined(), theta)
        prior = self.prior_at(theta)
        return self._evaluated(theta, prior, *self._by_parts(prior, start, slopes=True))

    def after_one_sweep(self, theta: Array, start: Array) -> Evaluation:
        """Raise a NotImplementedError."""
        raise NotImplementedError('update="inner" does not work with client=... yet. Leave out update or client.')

    def solve(self, theta: Array, start: Array | None = None) -> SparseSolution:
        """Return the approximate posterior of the latent functions at one point. `start` is as for an evaluation."""
        return self._by_parts(self.prior_at(theta), start if start is not None and start.size else None)[0]

    def _by_parts(
        self, prior: PriorAt, start: Array | None, slopes: bool = False
    ) -> tuple[SparseSolution, tuple[Array, ...] | None]:
        """Solve from a start. If the solve does not converge, solve again from default sites."""
        return from_start_or_cold(
            lambda begin: self._once(prior, np.empty(0) if begin is None else _expanded(begin), slopes),
            start,
            lambda found: found[0].convergence.converged,
        )

    def _once(self, prior: PriorAt, start: Array, slopes: bool) -> tuple[SparseSolution, tuple[Array, ...] | None]:
        likelihood = self.space.classifier.likelihood_model
        history = History(self.approximator.max_iterations)
        (evidence, status, rung), posterior, sums = Ended(np.nan, NOT_POSITIVE_DEFINITE, 0), None, None
        self._solved += 1
        if (white := whitening(prior.inducing(), self.approximator.jitter, prior.n_effects)) is not None:
            sweeps = self._nothing.sweeps(RowFeatures(PriorAt(self._empty, prior.point, prior.z), white), ALONE)
            assert isinstance(self.approximator, SparseEP)
            sites = SitesOnCluster(self.rounds, Begin(prior.point, prior.z, white, start), sweeps)
            evidence, status, rung = run_schemes(sites, history, fallback(**self.approximator.steps(likelihood)))
            if np.isfinite(evidence):
                whitened = sites.end(self._solved)
                posterior = InducingPosterior(white, whitened)
                if slopes and status == CONVERGED:
                    sums = sites.slopes(whitened)
        solution = SparseSolution(
            evidence=evidence,
            number=self.approximator.number(likelihood, prior.n_functions, self._inducing.shape[1] + prior.n_effects),
            posterior=posterior,
            labels=self.labels,
            likelihood=likelihood,
            start=np.array([float(self._solved)]),
            convergence=Convergence(status, history.array, self.approximator.tolerance, SCHEMES[rung]),
        )
        return solution, sums


class _Combined:
    """Combine the sites of several former solves into the start of another solve.

    A former solve is identified by its index. A start contains indices and weights, and parts combine stored sites.
    """

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        return np.concatenate([[nearest], starts[:, 0], weights])


def _expanded(start: Array) -> Array:
    """Return a start as indices and weights. The index of a single solve gets the weight 1."""
    return np.array([0.0, start[0], 1.0]) if start.size == 1 else start


def part_ends(rows: Rows, count: int) -> list[int]:
    """Return 0 and the row numbers where parts end. These are ends of chunks if there are enough chunks."""
    n, size = rows.n_rows, rows.chunk
    step = size if -(-n // size) >= count else 1
    ends = np.linspace(0, -(-n // step), min(count, n) + 1).round().astype(np.int64) * step
    return [int(end) for end in np.minimum(ends, n)]


class SitesOnCluster:
    """Sites of many parts of the rows at one prior, as a `SiteSpace`.

    Parts send sums over their rows, terms of the evidence, and inner products, but no sites. If a worker is lost, the
    sites of its parts are computed again from the posterior. At a fixed point of EP the posterior determines all sites.

    Parameters
    ----------
    rounds : Rounds
    begin : Begin
    sweeps : SiteSweeps
        Sweeps without rows. They compute the posterior and the evidence from the sums of all parts.
    """

    def __init__(self, rounds: Rounds, begin: Begin, sweeps: SiteSweeps[Any, Any]) -> None:
        self._rounds = rounds
        self._begin = begin
        self._sweeps = sweeps
        self._posterior: Whitened | None = None
        self._norm = np.nan
        self._slot: int | None = None
        self._start()

    def _start(self) -> None:
        begin, rounds = self._begin, self._rounds
        number = rounds.number + 1
        # If parts are lost, all parts run this task again, with the same number.
        rounds.number = number
        everyone = range(rounds.count)
        self._natural = rounds.until_done(lambda: rounds.tell(everyone, _begin(number, begin)), lambda lost: None).added

    def _mend(self, lost: tuple[int, ...]) -> None:
        """Send the prior and the posterior to restarted parts. Then compute the sums of all parts again."""
        number = self._rounds.number
        self._rounds.tell(lost, _begin(number, self._begin, self._posterior))
        self._natural = self._rounds.ask(WorkerPart.natural).added

    def _ask(self, task: Task) -> Sums:
        found: Sums = self._rounds.until_done(lambda: self._rounds.ask(task), self._mend)
        return found

    def sweep(self) -> tuple[bool, float, float]:
        ok, evidence, residual = self._rounds.until_done(self._sweep, self._mend)
        return ok, evidence, residual

    def _sweep(self) -> tuple[bool, float, float]:
        try:
            precision, location = self._natural
            posterior, shift = self._sweeps.shifted(precision, location, self._over_blocks)
        except LinAlgError:
            return False, np.nan, np.nan
        found = self._rounds.ask(lambda part: part.match(posterior, shift))
        self._posterior = posterior
        terms, self._norm = found.added
        return not np.isnan(found.largest), self._sweeps.of_posterior(posterior) + terms, found.largest

    def _over_blocks(self, work: Callable[[Any], tuple[Array, ...]]) -> Iterable[tuple[Array, ...]]:
        """Return the results of `work`, summed over all blocks of all parts, in a list of length 1."""
        return [self._rounds.ask(lambda part: part.over_blocks(work)).added]

    def norm(self) -> float:
        return self._norm

    def remember(self, slot: int) -> None:
        """See `SiteSpace`. Parts store the change of their sites at the next call of `accelerate`."""
        self._slot = slot

    def _move(self, task: Task) -> None:
        """Move the sites of all parts by a task. Sites of lost parts are recovered from the posterior instead."""
        moved = False

        def move() -> None:
            nonlocal moved
            if not moved:
                moved = True
                self._natural = self._rounds.ask(task).added

        self._rounds.until_done(move, self._mend)

    def damp(self, damping: float) -> None:
        self._slot = None
        self._move(lambda part: part.damp(damping))

    def accelerate(self, used: int, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        slot, self._slot = self._slot, None
        gamma = combination(*self._ask(lambda part: part.products(slot, used)).added)
        self._move(lambda part: part.combine(gamma, mixing, damping, interval))

    def clear(self) -> None:
        self._posterior = None
        self._natural = self._ask(WorkerPart.clear).added

    def end(self, number: int) -> Whitened:
        """Store the sites of all parts under the number of the solve. Return the posterior of these sites."""
        self._natural = self._ask(lambda part: part.end(number)).added
        return self._sweeps.implied(*self._natural)

    def slopes(self, posterior: Whitened) -> tuple[Array, ...]:
        """Return the sums of `PriorAt.row_slopes` over all parts."""
        return self._ask(lambda part: part.slopes(posterior)).added


def _begin(number: int, what: Begin, posterior: Whitened | None = None) -> Task:
    return lambda part: part.begin(number, what, posterior)
