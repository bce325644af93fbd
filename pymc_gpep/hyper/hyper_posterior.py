"""The posterior of the hyperparameters as finitely many weighted points, with the latent values' Gaussian at each."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from pymc.blocking import PointType

from pymc_gpep.approximations import Solution
from pymc_gpep.hyper.log_posterior import Evaluation, LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.structure.prior_functions import frozen_data, prior_moments

__all__ = ["HyperPosterior", "Node"]

Array = NDArray[np.float64]

_ENTRIES = 32_000_000  # of the matrices of solutions that are kept, taken as (c n)² each: 256 MB


class Node(NamedTuple):
    """One point of the hyperparameters."""

    evaluation: Evaluation
    sites: Array
    """Where a solve at this point starts, and after an iteration or two ends."""


class HyperPosterior:
    """Σ_s w_s δ(θ − θ_s): nodes θ_s in the unconstrained space, their weights, and a solution at each.

    Given a node, the latent values have the Gaussian of the approximation there; everything else about the joint
    posterior, moments, draws and predictions, is that of this mixture.

    Parameters
    ----------
    name : str
        How it came about, one of `pymc_gpep.hyper.HYPER`.
    log_posterior : LogPosterior
    nodes : sequence of Node
    weights : array (s,)
        Positive; they are normalised.
    log_evidence : float
        log p(y) with the hyperparameters integrated out, NaN where the method does not give it.
    converged : bool
        Whether the nodes are those that the method wants.
    message : str
        How it went, in words.
    draws : DataTree, optional
        The Markov chains that nodes were taken from.

    Notes
    -----
    A solution has matrices of the size of the prior covariance. Sites are kept for all nodes, solutions for the first
    so many as fit a fixed amount of memory; the others are solved again when wanted, from their own sites, which takes
    an iteration or two.
    """

    def __init__(
        self,
        name: str,
        log_posterior: LogPosterior,
        nodes: Sequence[Node],
        weights: Array,
        *,
        log_evidence: float = np.nan,
        converged: bool = True,
        message: str = "",
        draws: xr.DataTree | None = None,
    ) -> None:
        self.name = name
        self.log_posterior = log_posterior
        self.nodes = tuple(nodes)
        self.weights = np.asarray(weights, dtype=np.float64) / np.sum(weights)
        self.log_evidence = log_evidence
        self.converged = converged
        self.message = message
        self.draws = draws
        classifier = log_posterior.classifier
        self._kept: dict[int, Solution] = {}
        # Later pm.set_data does not change a posterior that exists.
        self._data = frozen_data(classifier.model)
        self._keep = max(1, _ENTRIES // (classifier.n_functions * classifier.n_points) ** 2)

    def __repr__(self) -> str:
        """How it came about, how many nodes there are, and the integral."""
        evidence = "" if np.isnan(self.log_evidence) else f", log evidence {self.log_evidence:.4f}"
        plural = "" if len(self) == 1 else "s"
        return f"HyperPosterior({self.name!r}, {len(self)} node{plural}{evidence})"

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @property
    def theta(self) -> Array:
        """Hyperparameters at the nodes, unconstrained, (s, d)."""
        return np.array([node.evaluation.theta for node in self.nodes])

    def point(self, s: int) -> PointType:
        """Values of the model's value variables at a node."""
        return self.log_posterior.point(self.nodes[s].evaluation.theta)

    def solution(self, s: int) -> Solution:
        """The approximate posterior of the latent values at a node."""
        if s in self._kept:
            return self._kept[s]
        k, mean, labels = self._moments(self.point(s))
        likelihood = self.log_posterior.classifier.likelihood_model
        solution = self.log_posterior.approximator.solve(k, mean, labels, self.nodes[s].sites, likelihood=likelihood)
        if len(self._kept) < self._keep:
            self._kept[s] = solution
        return solution

    def solution_at(self, optimum: Optimum) -> Solution:
        """The approximate posterior of the latent values at the maximum, that of a node if it is one."""
        theta = optimum.best.theta
        for s, node in enumerate(self.nodes):
            if np.array_equal(node.evaluation.theta, theta):
                return self.solution(s)
        return self.log_posterior.solve(theta, optimum.sites)

    @cached_property
    def _moments(self) -> Any:
        return prior_moments(self.log_posterior.classifier, self._data)

    def solutions(self) -> Iterator[tuple[PointType, Solution]]:
        """All of them in turn, with the values of the model's value variables."""
        return ((self.point(s), self.solution(s)) for s in range(len(self)))

    def choose(self, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw nodes, each with the probability that is its weight; (draws,)."""
        return rng.choice(len(self), size=draws, p=self.weights)
