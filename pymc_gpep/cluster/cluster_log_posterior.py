"""Log posterior of hyperparameters and inducing inputs, with rows and their sites on several machines."""

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Convergence, Neighbours
from pymc_gpep.approximations.sparse_ep import SparseEP, SparseSolution
from pymc_gpep.array_types import Array
from pymc_gpep.cluster.rounds import Begin, PartRecipe, Rounds
from pymc_gpep.cluster.sites import SitesOnCluster
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.kernels.status import CONVERGED, NOT_POSITIVE_DEFINITE
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters, checked_labels
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.rows.in_memory import InMemory, RowRange, rows_between
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.accelerated_ep import SCHEMES, climb
from pymc_gpep.solvers.inducing import RowFeatures, whitening
from pymc_gpep.solvers.problem import History
from pymc_gpep.solvers.team import ALONE

if TYPE_CHECKING:
    from distributed import Client
from pymc_gpep.solvers.problem import from_start_or_cold

_NONE = np.empty(0, np.int64)


class ClusterLogPosterior(SparseLogPosterior):
    """The same function as `SparseLogPosterior`, by the workers of a cluster.

    Parameters
    ----------
    space : Hyperparameters
    approximator : SparseEP
    blocks : InducingBlocks
    inducing : array (1 or c, M, d)
        Inducing inputs to begin with.
    learn : bool
        Whether inducing inputs are part of the flat vector, or stay as they are.
    client : distributed.Client
    parts : int, optional
        In how many parts the rows are; as many as workers have threads if not given.
    rows : Rows, optional
        Rows that are fitted in place of those of the model.

    Raises
    ------
    NotImplementedError
        If the approximation is not `SparseEP`, or the likelihood is given more than latent values or is not
        log-concave.
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
                f"client=... is for method='sparse_ep' and log-concave likelihoods that are given latent values alone, "
                f"and not for {approximator.name} of a {likelihood.name} likelihood yet. Leave the client out."
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
        """Labels of all rows; empty where each part reads its own from elsewhere than memory."""
        rows, classifier = self.blocks().rows, self.classifier
        if not isinstance(rows, InMemory):
            return _NONE
        return checked_labels(rows, classifier.likelihood_model, classifier.n_functions)

    def __call__(self, theta: Array, start: Array | Neighbours | None = None) -> Evaluation:
        """Evaluate, see `SparseLogPosterior`."""
        if isinstance(start, Neighbours):
            start = start.predict(_Combined(), theta)
        prior = self.prior_at(theta)
        found = self._evaluated(theta, prior, *self._by_parts(prior, start, slopes=True))
        if found.status != CONVERGED:
            found.gradient[:] = np.nan
        return found

    def after_one_sweep(self, theta: Array, start: Array) -> Evaluation:
        """Refused."""
        raise NotImplementedError('update="inner" is not there with client=... yet. Leave one of them out.')

    def solve(self, theta: Array, start: Array | None = None) -> SparseSolution:
        """The approximate posterior of the latent functions at one point; `start` as for an evaluation."""
        return self._by_parts(self.prior_at(theta), start if start is not None and start.size else None)[0]

    def _by_parts(
        self, prior: PriorAt, start: Array | None, slopes: bool = False
    ) -> tuple[SparseSolution, Array, Array]:
        """From a start, and where that does not converge from none."""
        return from_start_or_cold(
            lambda begin: self._once(prior, np.empty(0) if begin is None else _expanded(begin), slopes),
            start,
            lambda found: found[0].convergence.converged,
        )

    def _once(self, prior: PriorAt, start: Array, slopes: bool) -> tuple[SparseSolution, Array, Array]:
        likelihood = self.space.classifier.likelihood_model
        history = History(self.approximator.max_iterations)
        evidence, status, rung, posterior, slope = np.nan, NOT_POSITIVE_DEFINITE, 0, None, np.empty(0)
        of_theta, of_inducing = np.zeros(self.space.size), np.zeros(self._inducing.shape)
        self._solved += 1
        if (white := whitening(prior.inducing(), self.approximator.jitter, prior.n_effects)) is not None:
            sweeps = self._nothing.sweeps(RowFeatures(PriorAt(self._empty, prior.point, prior.z), white), ALONE)
            assert isinstance(self.approximator, SparseEP)
            sites = SitesOnCluster(self.rounds, Begin(prior.point, prior.z, white, start), sweeps)
            evidence, status, rung = climb(sites, history, **self.approximator.steps(likelihood))
            if np.isfinite(evidence):
                whitened = sites.end(self._solved)
                posterior = InducingPosterior(white, whitened)
                if slopes and status == CONVERGED:
                    of_theta, of_inducing, product = sites.slopes(whitened)
                    slope = white.pull_factor(product)
        solution = SparseSolution(
            evidence=evidence,
            number=self.approximator.number(likelihood, prior.n_functions, self._inducing.shape[1] + prior.n_effects),
            posterior=posterior,
            labels=self.labels,
            likelihood=likelihood,
            start=np.array([float(self._solved)]),
            convergence=Convergence(status, history.array, self.approximator.tolerance, SCHEMES[rung]),
            inducing_slope=slope,
        )
        return solution, of_theta, of_inducing


class _Combined:
    """A start is the number of a solve: a combination says of which, and parts combine their sites."""

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        return np.concatenate([[nearest], starts[:, 0], weights])


def _expanded(start: Array) -> Array:
    """The number of one solve as a combination."""
    return np.array([0.0, start[0], 1.0]) if start.size == 1 else start


def part_ends(rows: Rows, count: int) -> list[int]:
    """Where parts begin and end: at chunks, if there are enough of them."""
    n, size = rows.n_rows, rows.chunk
    step = size if -(-n // size) >= count else 1
    ends = np.linspace(0, -(-n // step), min(count, n) + 1).round().astype(np.int64) * step
    return [int(end) for end in np.minimum(ends, n)]
