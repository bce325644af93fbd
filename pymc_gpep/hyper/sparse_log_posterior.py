"""The log posterior of hyperparameters and inducing inputs, for more points than a prior covariance can have rows."""

from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations.neighbours import Neighbours
from pymc_gpep.approximations.number import Number
from pymc_gpep.approximations.sparse import SparseApproximation, SparseSolution
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import Evaluation
from pymc_gpep.hyper.row_labels import checked_labels
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.rows.chunks import column_deviations
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.run import from_start_or_cold
from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.inducing_blocks import InducingBlocks, PriorAt

__all__ = ["SparseLogPosterior"]


class SparseLogPosterior:
    """log p(θ, Z | y) up to a constant, with gradient, as EP with the inducing inputs Z has it; Z has a flat prior.

    A flat vector is θ, unconstrained, and where they are learned the inducing inputs, in units of the standard
    deviation of their column of the model's inputs.

    Parameters
    ----------
    hyperparameters : Hyperparameters
    approximator : SparseApproximation
    blocks : InducingBlocks
    inducing : array (1 or c, M, d)
        Inducing inputs to begin with.
    learn : bool
        Whether inducing inputs are part of the flat vector, or stay as they are.
    """

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        approximator: SparseApproximation,
        blocks: InducingBlocks,
        inducing: Array,
        learn: bool,
    ) -> None:
        self.hyperparameters = hyperparameters
        self.approximator = approximator
        self.blocks = blocks
        self._inducing = inducing
        self._learn = learn
        deviations = column_deviations(blocks.rows)
        self._units = np.where(deviations > 0.0, deviations, 1.0)
        self._count = len(hyperparameters.parameters)
        classifier = hyperparameters.classifier
        self.labels = self._read_labels()
        """Of all rows; none where workers read their own."""
        # What a likelihood with sites is given is the same at all rows, of which the data may have more than the model.
        (parameters,) = evaluate([classifier.parameters])
        every_row = len(parameters), blocks.rows.n_rows
        self._likelihood = classifier.likelihood_model.given(np.broadcast_to(parameters[:, :1], every_row))

    def _read_labels(self) -> NDArray[np.int64]:
        rows, likelihood = self.blocks.rows, self.hyperparameters.classifier.likelihood_model
        return checked_labels(rows, likelihood, self.blocks.n_functions)

    @property
    def name(self) -> str:
        """Of the approximation."""
        return self.approximator.name

    def loosely(self) -> Self:
        """The same: gradients are as accurate as the fixed point."""
        return self

    def flat(self, theta: Array) -> Array:
        """The vector for hyperparameters θ and the inducing inputs to begin with."""
        return np.concatenate([theta, (self._inducing / self._units).ravel()]) if self._learn else theta

    def split(self, flat: Array) -> tuple[Array, Array]:
        """θ and Z of a vector."""
        if not self._learn:
            return flat, self._inducing
        return flat[: self._count], flat[self._count :].reshape(self._inducing.shape) * self._units

    def point(self, theta: Array) -> PointType:
        """The values of the model's value variables that a vector stands for."""
        return self.hyperparameters.point(self.split(theta)[0])

    def prior_at(self, flat: Array) -> PriorAt:
        """The prior of the latent functions at one point."""
        return PriorAt(self.blocks, self.point(flat), self.split(flat)[1])

    def check_moments(self, theta: Array) -> None:
        """Raise a ValueError if the covariance of the inducing values at one point cannot be one."""
        if bad := np.count_nonzero(~np.isfinite(self.prior_at(theta).inducing())):
            raise ValueError(
                f"The prior covariance of the inducing values must be finite, but has {bad} values that are not. Look "
                "at the hyperparameters that the model starts from."
            )

    def __call__(self, theta: Array, start: Array | Neighbours | None = None) -> Evaluation:
        """Evaluate; NaN with a status where EP fails.

        Parameters
        ----------
        theta : array
            A flat vector.
        start : array or Neighbours, optional
            `Evaluation.start` of a neighbouring point, or of several.
        """
        if isinstance(start, Neighbours):
            start = start.predict(self.approximator, theta)
        found = self._evaluation(theta, lambda prior, pull: self._solve(prior, start, pull))
        if found.status != CONVERGED:
            found.gradient[:] = np.nan
        return found

    def after_one_sweep(self, theta: Array, start: Array) -> Evaluation:
        """After one sweep from the sites of a neighbour, with the gradient for the sites that it ends with.

        The log posterior is that before the sweep. It is none of the model until EP has converged; the gradient is
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
        of_theta, of_inducing = np.zeros(self._count), np.zeros(self._inducing.shape)

        def add(slopes: tuple[Array, Array]) -> None:
            of_theta[:] += slopes[0]
            of_inducing[:] += slopes[1]

        def pull(rows: slice, bars: Block) -> None:
            add(prior.slopes(rows, bars))

        return self._evaluated(theta, prior, solve(prior, pull), of_theta, of_inducing)

    def _evaluated(
        self, theta: Array, prior: PriorAt, solution: SparseSolution, of_theta: Array, of_inducing: Array
    ) -> Evaluation:
        """An evaluation from a solution, and from derivatives by way of the moments of rows."""
        if solution.inducing_slope.size:
            by_inducing = prior.inducing_slopes(solution.inducing_slope)
            of_theta, of_inducing = of_theta + by_inducing[0], of_inducing + by_inducing[1]
        log_prior, of_prior = self.hyperparameters.log_prior_and_slope(self.split(theta)[0])
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
