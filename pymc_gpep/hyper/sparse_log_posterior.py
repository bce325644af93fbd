"""The log posterior of hyperparameters and inducing inputs, for more points than a prior covariance can have rows."""

from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import xarray as xr

from pymc_gpep.approximations.methods import SPARSE_APPROXIMATIONS
from pymc_gpep.approximations.solution import Convergence, Neighbours
from pymc_gpep.approximations.sparse import Number, SparseApproximation, SparseSolution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.hyper.block_log_posterior import FEW, OVER_FITTED, BlockLogPosterior
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import Gps, StoredFit
from pymc_gpep.hyper.trace import Trace
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.reading import GPClassifier
from pymc_gpep.rows.chunks import column_deviations
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.inducing import Block, InducingWhitening
from pymc_gpep.solvers.problem import from_start_or_cold
from pymc_gpep.solvers.sparse_sweeps import LeftOut
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened, WhitenedPosterior


class SparseLogPosterior(BlockLogPosterior):
    """log p(θ, Z | y) up to a constant, with gradient, as EP with the inducing inputs Z has it; Z has a flat prior.

    A flat vector is θ, unconstrained, and, where they are learned, the inducing inputs. These are in units of the
    standard deviation of their column of the model's inputs.

    Parameters
    ----------
    space : Hyperparameters
    approximator : SparseApproximation
    blocks : InducingBlocks or None
        None in a fit that was read without `gp`, which asks the model.
    inducing : array (1 or c, M, d)
        Inducing inputs to begin with.
    learn : bool
        Whether inducing inputs are part of the flat vector, or stay as they are.
    rows : Rows, optional
        Rows that are fitted in place of those of the model.
    units : array (d,), optional
        Units of the columns of inducing inputs, where the rows are no longer there to tell.
    """

    kind: ClassVar[str] = "inducing"
    by: ClassVar[str] = "inducing inputs"

    def __init__(
        self,
        space: Hyperparameters,
        approximator: SparseApproximation,
        blocks: InducingBlocks | None,
        inducing: Array,
        learn: bool,
        rows: Rows | None = None,
        units: Array | None = None,
    ) -> None:
        super().__init__(space, blocks, rows)
        self.approximator = approximator
        self._inducing = inducing
        self._learn = learn
        if units is not None:
            self._units = units

    @classmethod
    def in_form(cls, classifier: GPClassifier) -> GPClassifier:
        return by_inducing(classifier)

    @classmethod
    def of_file(cls, file: StoredFit) -> Self:
        stored, space = file.posterior, file.space
        made = SPARSE_APPROXIMATIONS[file.attrs["approximation"]](**file.options)
        learned = file.best.theta.size > space.size
        units = stored["units"].values if learned else None
        return cls(space, made, file.blocks, stored["inputs"].values, learned, file.rows, units)

    @property
    def learns(self) -> str:  # type: ignore[override]  # it depends on what is learned
        return "Hyperparameters and inducing inputs" if self._learn else "Hyperparameters"

    @property
    def entries(self) -> int:
        return 2 * (self.classifier.n_functions * self._inducing.shape[1]) ** 2

    @property
    def number(self) -> str:
        of_model = self.classifier.likelihood_model, self.classifier.n_functions, self._inducing.shape[1]
        return self.approximator.number(*of_model).value.partition(" {")[0]

    @cached_property
    def _units(self) -> Array:
        deviations = column_deviations(self.blocks().places)
        return np.where(deviations > 0.0, deviations, 1.0)

    @cached_property
    def _likelihood(self) -> Likelihood:
        # What a likelihood with sites is given is the same at all rows, of which the data may have more than the model.
        (parameters,) = evaluate([self.classifier.parameters])
        every_row = len(parameters), self.blocks().rows.n_rows
        return self.classifier.likelihood_model.given(np.broadcast_to(parameters[:, :1], every_row))

    def held(self, best: Evaluation) -> "SparseLogPosterior":
        if not self._learn:
            return self
        other = copy(self)
        other._inducing, other._learn = self.anchors(best.theta), False
        return other

    def flat(self, theta: Array) -> Array:
        """The vector for hyperparameters θ and the inducing inputs to begin with."""
        return np.concatenate([theta, (self._inducing / self._units).ravel()]) if self._learn else theta

    def anchors(self, x: Array, solution: Any = None) -> Array:
        """See `BlockLogPosterior`: inducing inputs."""
        if not self._learn:
            return self._inducing
        return np.asarray(x[self.space.size :].reshape(self._inducing.shape) * self._units)

    def check_moments(self, x: Array) -> None:
        """Raise a ValueError if the covariance of the inducing values at one point cannot be one."""
        if bad := np.count_nonzero(~np.isfinite(self.prior_at(x).inducing())):
            raise ValueError(
                f"The prior covariance of the inducing values must be finite, but has {bad} values that are not. Look "
                "at the hyperparameters that the model starts from."
            )

    def posterior(self, solution: SparseSolution) -> InducingPosterior:
        if solution.posterior is None:
            raise ValueError(
                f"There is no posterior to predict from: {self.approximator.title} {solution.convergence}."
            )
        return solution.posterior

    def left_out(self, x: Array, solution: SparseSolution, gps: Gps) -> Iterator[LeftOut] | None:
        coupled = isinstance(self.posterior(solution).whitened, CoupledWhitened)
        if self.classifier.n_functions > 1 and not coupled:
            return None
        prior = self.prior_at(x, gps)
        if not solution.start.size:  # a file has no sites
            labels = self.observed(gps)
            solution = self.approximator.solve(prior, labels, likelihood=self.likelihood_at(x, len(labels)))
        return self.approximator.left_out(prior, solution)

    def stored(self, x: Array, solution: SparseSolution) -> xr.Dataset:
        posterior = solution.posterior
        if posterior is None:
            raise ValueError(f"There is no posterior to store: {self.approximator.title} {solution.convergence}.")
        white, whitened, found = posterior.whitening, posterior.whitened, solution.convergence
        square = "inducing", "inducing_other"
        value = "value" if white.n_effects else "inducing"
        coupled = "function_and_inducing", "function_and_inducing_other"
        few = white.factor[:, :FEW]
        table = xr.Dataset(
            {
                "inputs": (("set_of_inputs", "inducing", "column"), self.anchors(x)),
                "factor": (("set", *square), white.factor),
                "mean": (("function", value), whitened.mean),
                "root": (("function", value, f"{value}_other") if whitened.root.ndim == 3 else coupled, whitened.root),
                "prior_covariance": (("set", "some", "others"), few @ few.swapaxes(1, 2)),
            },
            attrs={
                "jitter": white.jitter,
                "log_normaliser": whitened.log_normaliser,
                "value": solution.evidence,
                "floored": solution.floored,
            },
        )
        table = found.stored(table)
        return table.assign(units=("column", self._units)) if self._learn else table

    def restored(self, x: Array, table: xr.Dataset) -> SparseSolution:
        attrs, likelihood = table.attrs, self.classifier.likelihood_model
        factor = table["factor"].values
        whitened = WhitenedPosterior if table["root"].ndim == 3 else CoupledWhitened
        return SparseSolution(
            evidence=float(attrs["value"]),
            number=self.approximator.number(likelihood, *table["mean"].shape),
            posterior=InducingPosterior(
                InducingWhitening(factor, float(attrs["jitter"]), table["mean"].shape[1] - factor.shape[1]),
                whitened(table["mean"].values, table["root"].values, float(attrs["log_normaliser"])),
            ),
            labels=self.labels if self._rows is None else np.empty(0, np.int64),
            likelihood=likelihood,
            start=np.empty(0),
            convergence=Convergence.restored(table, self.approximator.tolerance),
            inducing_slope=np.empty(0),
            floored=int(attrs["floored"]),
        )

    def heading(self, trace: Trace, solution: SparseSolution, converged: bool) -> str:
        chosen = f"{self.approximator.chosen}{self.count(self.anchors(trace.best.theta))}"
        widened = f", {solution.floored} sites match a mean alone" if solution.floored else ""
        number = solution.number.text(solution.evidence)
        return f"{self.name} ({chosen}): {number}, {self.state(converged)}{widened}."

    def ending(self, trace: Trace, solution: Callable[[], SparseSolution]) -> str:
        title = self.approximator.title
        if not trace.best.theta.size:
            return f"Nothing to learn; {title} {solution().convergence}."
        ended = f"{self.learns} {trace.outcome}"
        if trace.interrupted:  # a user who interrupts a fit does not wait for another solve
            return f"{ended}."
        found = solution()
        over = "" if not self._learn or found.number is Number.BOUND else f" {OVER_FITTED}"
        return f"{ended}; {title}, started near its solution, {found.convergence}.{over}"

    def __call__(self, theta: Array, start: Array | Neighbours | None = None) -> Evaluation:
        if isinstance(start, Neighbours):
            start = start.predict(self.approximator, theta)
        found = self._evaluation(theta, lambda prior, pull: self._solve(prior, start, pull))
        if found.status != CONVERGED:
            found.gradient[:] = np.nan
        return found

    def after_one_sweep(self, theta: Array, start: Array) -> Evaluation:
        """Evaluate after one sweep from the sites of a neighbour, with the gradient for the sites that it ends with.

        The log posterior is that before the sweep. It is not that of the model until EP has converged; the gradient is
        exact for the sites as they are.
        """

        def swept(prior: PriorAt, pull: Callable[[slice, Block], None]) -> SparseSolution:
            return self.approximator.one_sweep().solve(
                prior, self.labels, start, likelihood=self._likelihood, pull=pull, pull_anyway=True
            )

        return self._evaluation(theta, swept)

    def _evaluation(
        self, theta: Array, solve: Callable[[PriorAt, Callable[[slice, Block], None]], SparseSolution]
    ) -> Evaluation:
        prior = self.prior_at(theta)
        of_theta, of_inducing = np.zeros(self.space.size), np.zeros(self._inducing.shape)

        def pull(rows: slice, bars: Block) -> None:
            by_theta, by_inducing = prior.slopes(rows, bars)
            of_theta[:] += by_theta
            of_inducing[:] += by_inducing

        return self._evaluated(theta, prior, solve(prior, pull), of_theta, of_inducing)

    def _evaluated(
        self, theta: Array, prior: PriorAt, solution: SparseSolution, of_theta: Array, of_inducing: Array
    ) -> Evaluation:
        """An evaluation from a solution, and from derivatives by way of the moments of rows."""
        if solution.inducing_slope.size:
            by_inducing = prior.inducing_slopes(solution.inducing_slope)
            of_theta, of_inducing = of_theta + by_inducing[0], of_inducing + by_inducing[1]
        log_prior, of_prior = self.space.log_prior_and_slope(self.theta(theta))
        gradient = of_theta + of_prior
        if self._learn:
            gradient = np.concatenate([gradient, (of_inducing * self._units).ravel()])
        return Evaluation(
            np.array(theta), solution.evidence + log_prior, gradient, solution.evidence,
            solution.convergence.iterations, solution.convergence.status, solution.start,
        )  # fmt: skip

    def solve(self, theta: Array, start: Array | None = None) -> SparseSolution:
        """The approximate posterior of the latent functions at one point; `start` as for an evaluation."""
        return self._solve(self.prior_at(theta), start if start is not None and start.size else None)

    def _solve(
        self, prior: PriorAt, start: Array | None, pull: Callable[[slice, Block], None] | None = None
    ) -> SparseSolution:
        """From a start, and where that does not converge from none.

        But a bound that has not got to its maximum is one, and higher than where an iteration from nothing would be.
        """

        def is_good(solution: SparseSolution) -> bool:
            bound = solution.number is Number.BOUND and np.isfinite(solution.evidence)
            return solution.convergence.converged or bool(bound)

        return from_start_or_cold(
            lambda begin: self.approximator.solve(prior, self.labels, begin, likelihood=self._likelihood, pull=pull),
            start,
            is_good,
        )
