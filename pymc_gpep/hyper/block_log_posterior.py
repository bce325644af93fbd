"""Parts shared by log posteriors that ask the prior for blocks, and never for a matrix of all rows."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.graph.memory import check_memory
from pymc_gpep.hyper.block_functions import AnchoredPosterior, BlockFunctions
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import Gps, LogPosterior
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.structure.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.structure.likelihood_elsewhere import LikelihoodElsewhere
from pymc_gpep.structure.prior_functions import prior_moments

__all__ = ["FEW", "OVER_FITTED", "BlockLogPosterior"]

OVER_FITTED = (
    "Inducing inputs were fitted to the labels: the number comes out too high, and is not to be compared with that of "
    "inducing inputs that stay or of all rows."
)
"""What a fit by EP says that learned its inducing inputs."""

FEW = 6
"""Inputs whose prior covariance is kept in files, to know the model by."""

_PLACES, _MANY = 20, 400  # rows whose covariances stand for all


class BlockLogPosterior(LogPosterior):
    """A log posterior whose functions are known at anchors: inducing inputs, or the inputs of active rows.

    Parameters
    ----------
    space : Hyperparameters
    blocks : InducingBlocks or None
        Prior moments, with the rows that are fitted; None in a fit that was read without `gp`, which asks the model.
    rows : Rows, optional
        What is fitted in place of the rows of the model.
    """

    def __init__(self, space: Hyperparameters, blocks: InducingBlocks | None, rows: Rows | None) -> None:
        self.space = space
        self._blocks = blocks
        self._rows = rows
        self._made: dict[Gps, InducingBlocks] = {}

    @property
    def rows(self) -> Rows | None:
        """See `LogPosterior`."""
        return self._rows

    @abstractmethod
    def anchors(self, x: Array, solution: Any = None) -> Array:
        """Return the anchors (1 or c, M, d): one set for all functions, or one for each."""

    @abstractmethod
    def posterior(self, solution: Any) -> AnchoredPosterior:
        """Return the posterior of a solution; raise a ValueError if the solution has no posterior."""

    @abstractmethod
    def left_out(self, x: Array, solution: Any, gps: Gps) -> Iterator[LeftOut] | None:
        """Return all rows, each given the labels of all others; None where sites leave functions independent."""

    def blocks(self, gps: Gps = None) -> InducingBlocks:
        """Return prior moments by blocks, with the data that was fitted."""
        if gps is None and self._blocks is not None:
            return self._blocks
        if gps not in self._made:
            self._made[gps] = InducingBlocks(self.classifier, gps, self.space.data, rows=self._rows)
        return self._made[gps]

    def prior_at(self, x: Array, gps: Gps = None, solution: Any = None) -> PriorAt:
        """Return the prior at a flat vector, with the anchors there."""
        return PriorAt(self.blocks(gps), self.point(x), self.anchors(x, solution))

    def likelihood_at(self, x: Array, n_points: int) -> Likelihood:
        """Return the likelihood at any points, at the hyperparameters of a flat vector."""
        return LikelihoodElsewhere(self.classifier, n_points, self.space.data)(self.point(x))

    def covariance(self, x: Array) -> tuple[Array, NDArray[np.int64]]:
        """See `LogPosterior`."""
        rows = self.blocks().rows
        # As many rows from each of a few places: rows may come in an order.
        places = np.linspace(0, rows.n_rows, _PLACES + 1).astype(int)
        some = [slice(a, min(a + _MANY // _PLACES, b)) for a, b in pairwise(places) if a < b]
        inputs = np.concatenate([rows.inputs(each) for each in some])
        labels = np.concatenate([rows.labels(each) for each in some])
        return self.blocks().block(self.point(x), inputs[None], inputs).cross, labels

    def few_prior(self, x: Array) -> Array:
        """See `LogPosterior`."""
        return self.blocks().inducing(self.point(x), self.anchors(x)[:, :FEW])

    def inputs(self, gps: Gps = None) -> Array:
        """See `LogPosterior`."""
        rows = self.blocks(gps).rows
        return rows.inputs(slice(0, rows.n_rows))

    def observed(self, gps: Gps = None) -> NDArray[np.int64]:
        """See `LogPosterior`."""
        rows = self.blocks(gps).rows
        return rows.labels(slice(0, rows.n_rows))

    def latent(self, x: Array, solution: Any, gps: Gps = None) -> BlockFunctions:
        """See `LogPosterior`."""
        blocks, posterior = self.blocks(gps), self.posterior(solution)
        prior = self.prior_at(x, gps, solution)
        return BlockFunctions(prior, blocks, lambda: self._model_inputs(gps), posterior, _Given(self, x, solution, gps))

    def _model_inputs(self, gps: Gps) -> Array:
        """Inputs of the model's own points."""
        own = self.blocks(gps) if self._rows is None else InducingBlocks(self.classifier, gps, self.space.data)
        return own.rows.inputs(slice(0, own.rows.n_rows))

    def count(self, anchors: Array) -> str:
        """How many anchors there are, in words."""
        sets, size, _ = anchors.shape
        shared = "" if self.classifier.n_functions == 1 else " for each function" if sets > 1 else " for all functions"
        return f"{size} {self.by}{shared}"


class _Given:
    """See `pymc_gpep.hyper.block_functions.FittedRows`."""

    def __init__(self, log_posterior: BlockLogPosterior, x: Array, solution: Any, gps: Gps) -> None:
        self._log_posterior, self._x, self._solution, self._gps = log_posterior, x, solution, gps

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        return self._log_posterior.observed(self._gps)

    @cached_property
    def likelihood(self) -> Likelihood:
        return self._log_posterior.likelihood_at(self._x, self._log_posterior.blocks(self._gps).rows.n_rows)

    @cached_property
    def own_prior(self) -> DensePrior:
        classifier = self._log_posterior.classifier
        check_memory(classifier, "fit.mean, as fit.std and fit.cov,")
        moments = prior_moments(classifier, self._log_posterior.space.data)(self._log_posterior.point(self._x))
        return DensePrior(moments.k, moments.mean)

    def left_out(self) -> Iterator[LeftOut] | None:
        return self._log_posterior.left_out(self._x, self._solution, self._gps)
