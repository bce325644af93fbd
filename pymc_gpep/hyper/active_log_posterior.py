"""The log posterior of hyperparameters by the bound over all rows, whose active ones and their sites are held."""

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations.ivm import IVM, ActiveSolution, active_prior
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.gaussians.registry import posterior_of
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import Evaluation
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.selection.bound import ActiveBound
from pymc_gpep.solvers.inducing import Block, row_blocks
from pymc_gpep.structure.model_rows import ModelRows, RowInputs

__all__ = ["ActiveLogPosterior", "HeldActive"]

_NO_START = np.empty(0)


class ActiveLogPosterior:
    """What stands at all hyperparameters: the model, its rows, and how active ones are chosen.

    Parameters
    ----------
    hyperparameters : Hyperparameters
    approximator : IVM
    rows : RowInputs
    labels : array (n,)
    random_seed : int
        The same at each choice.
    """

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        approximator: IVM,
        rows: RowInputs,
        labels: NDArray[np.int64],
        random_seed: int,
    ) -> None:
        self.hyperparameters = hyperparameters
        self.approximator = approximator
        self.labels = labels
        self._rows = rows
        self._seed = random_seed

    @property
    def likelihood(self) -> Likelihood:
        """Of the model."""
        return self.hyperparameters.classifier.likelihood_model

    def prior_at(self, theta: Array) -> ModelRows:
        """The prior of the latent functions at one point."""
        return ModelRows(self._rows, self.hyperparameters.point(theta))

    def choose(self, theta: Array) -> ActiveSolution:
        """Choose active rows at one point, with their posterior."""
        return self.approximator.solve(
            self.prior_at(theta), self.labels, likelihood=self.likelihood, random_seed=self._seed
        )

    def holding(self, solution: ActiveSolution) -> "HeldActive":
        """The log posterior with these active rows and sites at all hyperparameters."""
        return HeldActive(self, solution)


class HeldActive:
    """The log posterior while active rows and their sites are held, with its gradient.

    The Gaussian that the sites make of the prior follows the hyperparameters.

    Parameters
    ----------
    whole : ActiveLogPosterior
    solution : ActiveSolution
        Of some hyperparameters.
    """

    def __init__(self, whole: ActiveLogPosterior, solution: ActiveSolution) -> None:
        self._whole = whole
        self._solution = solution
        self._sites = solution.posterior.sites

    @property
    def name(self) -> str:
        """Of the approximation."""
        return self._whole.approximator.name

    def loosely(self) -> Self:
        """The same: nothing is iterated."""
        return self

    def point(self, theta: Array) -> PointType:
        """The values of the model's value variables that a flat vector stands for."""
        return self._whole.hyperparameters.point(theta)

    def check_moments(self, theta: Array) -> None:
        """Raise a ValueError if the covariance of the active rows at one point cannot be one."""
        k = active_prior(self._whole.prior_at(theta), self._solution.selection.rows).k
        if bad := np.count_nonzero(~np.isfinite(k)):
            raise ValueError(
                f"The prior covariance of the active rows must be finite, but has {bad} values that are not. Look at "
                "the hyperparameters that the model starts from."
            )

    def __call__(self, theta: Array, start: Any = None) -> Evaluation:
        """Evaluate; NaN with a status where the posterior has no Cholesky factor. `start` is not needed."""
        theta = np.array(theta)
        try:
            with np.errstate(all="ignore"):
                bound, slope = self._bound(self._whole.prior_at(theta))
        except (NotPositiveDefiniteError, np.linalg.LinAlgError):
            return self._failed(theta, NOT_POSITIVE_DEFINITE)
        log_prior, of_prior = self._whole.hyperparameters.log_prior_and_slope(theta)
        if not np.isfinite(bound):
            return self._failed(theta, NOT_FINITE)
        return Evaluation(theta, bound + log_prior, slope + of_prior, bound, 1, CONVERGED, _NO_START)

    def solution_at(self, reached: Evaluation) -> ActiveSolution:
        """What the rows and sites that are held make of the prior where an evaluation was."""
        prior = active_prior(self._whole.prior_at(reached.theta), self._solution.selection.rows)
        return replace(self._solution, posterior=posterior_of(prior, self._sites), bound=reached.evidence)

    @staticmethod
    def _failed(theta: Array, status: int) -> Evaluation:
        return Evaluation(theta, np.nan, np.full(theta.size, np.nan), np.nan, 0, status, _NO_START)

    def _bound(self, prior: ModelRows) -> tuple[float, Array]:
        solution, rows = self._solution, self._solution.selection.rows
        dense = active_prior(prior, rows)
        every = np.arange(len(rows))
        bound = ActiveBound(posterior_of(dense, self._sites))
        own = Block(dense.k, np.ascontiguousarray(dense.k[:, every, every]), dense.mean)
        of_own = bound.add(own, solution.labels[rows], solution.likelihood.at(rows), 1.0)
        slope = np.zeros(len(self._whole.hyperparameters.parameters))
        for part in row_blocks(len(solution.sample.others), prior.n_functions * len(rows)):
            some = solution.sample.others[part]
            block, labels = prior.block(rows, some), solution.labels[some]
            bars = bound.add(block, labels, solution.likelihood.at(some), solution.sample.weight)
            slope += prior.slopes(rows, some, bars)
        found = bound.slopes()
        covariance = found.covariance + 0.5 * (of_own.cross + of_own.cross.swapaxes(1, 2))
        covariance[:, every, every] += of_own.variance
        return bound.value, slope + prior.own_slopes(rows, covariance, found.mean + of_own.mean)
