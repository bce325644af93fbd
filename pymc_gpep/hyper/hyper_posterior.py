"""The posterior of the hyperparameters as weighted nodes, with Gaussian latent values at each node."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from pymc.blocking import PointType
from scipy.spatial import cKDTree

from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.tails import Tail, heavy_tails
from pymc_gpep.hyper.weights import Weighing, along_curve, with_marginals
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior

_TOGETHER = 16  # Number of solves that run in parallel.
_NEAR = 3  # Largest number of hyperparameters for which draws reuse solutions at other θ.
_SOLVES = 1000  # Largest number of solutions computed for draws.
_SOLVES_OF_ONE = 128  # Limit of solutions with one hyperparameter; each further hyperparameter doubles it.
_WORK = 200_000_000  # Largest total size of the matrices of solutions computed for draws.
_ENTRIES = 32_000_000  # Largest total size of solutions in memory, in numbers: 256 MB.


@dataclass(eq=False, repr=False)
class HyperPosterior:
    """Nodes θ_s with weights w_s, for the posterior Σ_s w_s δ(θ − θ_s) in the unconstrained space.

    Given a node, the latent values have the Gaussian of the approximation at this node. Moments, draws and predictions
    are computed from this mixture.

    Parameters
    ----------
    name : str
        Name of the integral in `pymc_gpep.hyper.HYPER`.
    log_posterior : LogPosterior
    nodes : sequence of Evaluation
    weights : array (s,)
        Positive weights; they are normalised.
    log_evidence : float
        log p(y) with the hyperparameters integrated out. NaN if the method does not compute it.
    converged : bool
        Whether the integral has no faults.
    message : str
        Text on the convergence.
    weighing : Weighing, optional
        Reliability of weights of importance sampling: effective size, Pareto k, and the standard error of log p(y).
    draws : DataTree, optional
        Markov chains whose draws are the nodes.
    density : array (m, d), optional
        Draws of equal weight from a continuous density of θ, if the method has such a density. Averages over the nodes
        and over the draws agree.
    doubt : str
        Reason why marginals of hyperparameters are rough, with the remedy; empty if they are accurate.
    settles : bool
        Whether the method searched a maximum itself, in coordinates without the border of the unconstrained space.
    solved : mapping, optional
        Computed solutions by the bytes of their vectors θ.

    Notes
    -----
    A solution has matrices of the size of the prior. Starts are stored for all nodes, solutions only for the first
    nodes, as far as they fit into 256 MB. For the other nodes a solution is computed again on demand from its start,
    which takes an iteration or two.
    """

    name: str
    log_posterior: LogPosterior
    nodes: Sequence[Evaluation]
    weights: Array
    _: KW_ONLY
    log_evidence: float = np.nan
    converged: bool = True
    message: str = ""
    weighing: Weighing | None = None
    draws: xr.DataTree | None = None
    density: Array | None = None
    doubt: str = ""
    settles: bool = False
    solved: InitVar[Mapping[bytes, Any] | None] = None

    def __post_init__(self, solved: Mapping[bytes, Any] | None) -> None:
        self.nodes = tuple(self.nodes)
        self.weights = np.asarray(self.weights, dtype=np.float64) / np.sum(self.weights)
        self._kept: dict[bytes, Any] = dict(solved or {})
        self._keep = max(1, len(self._kept), _ENTRIES // self.log_posterior.kept)

    def __repr__(self) -> str:
        """Return the name of the integral, the number of nodes and the log evidence."""
        evidence = "" if np.isnan(self.log_evidence) else f", log evidence {self.log_evidence:.4f}"
        plural = "" if len(self) == 1 else "s"
        return f"HyperPosterior({self.name!r}, {len(self)} node{plural}{evidence})"

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.nodes)

    @property
    def theta(self) -> Array:
        """Hyperparameters at the nodes, unconstrained, (s, d)."""
        return np.array([node.theta for node in self.nodes])

    @property
    def at_maximum(self) -> list[str]:
        """Names of hyperparameters that are equal at all nodes: one name for each such element of θ."""
        owners = self.log_posterior.space.owners
        spread = np.ptp(self.theta[:, : len(owners)], axis=0)
        return [owner for owner, width in zip(owners, spread, strict=True) if width == 0.0]

    @cached_property
    def tails(self) -> list[Tail]:
        """Tails of half-flat scales in which means or variances do not exist; empty at the maximum."""
        if len(self) == 1:
            return []
        held, best = set(self.at_maximum), max(self.nodes, key=lambda node: node.log_posterior)
        return [tail for tail in heavy_tails(self.log_posterior, best) if held.isdisjoint(tail.names)]

    def point(self, s: int) -> PointType:
        """Return the values of the model's value variables at node s."""
        return self.log_posterior.point(self.nodes[s].theta)

    def solution(self, s: int) -> Any:
        """Return the approximate posterior of the latent values at node s."""
        return self._solution(self.nodes[s], len(self._kept) < self._keep)

    def solution_at(self, best: Evaluation) -> Any:
        """Return the approximate posterior of the latent values at the maximum, which need not be a node."""
        return self._solution(best, keep=True)

    def _solution(self, evaluation: Evaluation, keep: bool) -> Any:
        key = evaluation.theta.tobytes()
        if key in self._kept:
            return self._kept[key]
        solution = self.log_posterior.solve(evaluation.theta, evaluation.start)
        if keep:
            self._kept[key] = solution
        return solution

    def solutions(self) -> Iterator[tuple[Evaluation, Any]]:
        """Yield all nodes with their solutions."""
        wanted = [node for node in self.nodes if node.theta.tobytes() not in self._kept]
        for first in range(0, len(wanted), _TOGETHER):
            together = wanted[first : first + min(_TOGETHER, max(0, self._keep - len(self._kept)))]
            for node, solution in zip(together, self.log_posterior.solve_each(together), strict=True):
                self._kept[node.theta.tobytes()] = solution
        return ((self.nodes[s], self.solution(s)) for s in range(len(self)))

    @property
    def continuous(self) -> tuple[Array, Array]:
        """Points (m, d) and weights (m,) for marginals of θ: draws from the density if it exists, else the nodes."""
        if self.density is None:
            return self.theta[:, : self.log_posterior.space.size], self.weights
        return self.density, np.full(len(self.density), 1.0 / len(self.density))

    def drawn(self, draws: int, rng: np.random.Generator) -> Iterator[tuple[NDArray[np.int64], Array, Any, Array]]:
        """Draw θ. Yield blocks of draws: their indices (k,), a near θ, the solution at that θ, and the drawn θ (k, d).

        The number of solutions is limited. A draw uses the solution at its own θ, or at the nearest θ with a solution.
        With more than three hyperparameters the nearest θ would be too far, so several draws have the same θ. Without a
        density, or without a joint posterior of all rows, θ is a node drawn by its weight.
        """
        if self.density is None or not self.log_posterior.joint:
            chosen = rng.choice(len(self), size=draws, p=self.weights)
            for s in np.unique(chosen):
                rows, theta = np.flatnonzero(chosen == s), self.nodes[s].theta
                yield rows, theta, self.solution(s), np.tile(theta, (len(rows), 1))
            return
        d = self.density.shape[1]
        solves = min(_SOLVES, _SOLVES_OF_ONE * 2 ** (d - 1))
        limit = max(len(self), min(solves, _WORK // max(self.log_posterior.entries, 1)))
        count = min(draws, limit, len(self.density))
        if d <= _NEAR and count < draws:
            repeats = -(-draws // len(self.density))
            own = np.concatenate(
                [_stratified(self.density, min(draws, len(self.density)), rng) for _ in range(repeats)]
            )
            own = own[rng.permutation(len(own))[:draws]]
            thetas = _stratified(own, count, rng)
            place = cKDTree(thetas / self._spread).query(own / self._spread)[1]
        else:
            thetas = _stratified(self.density, count, rng)
            place = rng.permutation(draws) % count
            own = thetas[place]
        near = self._neighbours()
        for first in range(0, count, _TOGETHER):
            some = thetas[first : first + _TOGETHER]
            found = self.log_posterior.solve_each(self._near(theta, near) for theta in some)
            for s, (theta, solution) in enumerate(zip(some, found, strict=True), first):
                rows = np.flatnonzero(place == s)
                if not rows.size:
                    continue
                if not solution.converged:
                    closest = int(np.argmin((((self.theta - theta) / self._spread) ** 2).sum(axis=1)))
                    theta, solution = self.nodes[closest].theta, self.solution(closest)
                yield rows, theta, solution, own[rows]

    @property
    def _spread(self) -> Array:
        """Standard deviations (d,) of the draws of θ, with 1 in place of 0."""
        assert self.density is not None
        spread = self.density.std(axis=0)
        return np.where(spread > 0.0, spread, 1.0)

    def _neighbours(self) -> Neighbours | None:
        """Return solutions at nodes, from which starts are predicted; None for a fit from a file without solutions."""
        known = [node for node in self.nodes if node.start.size]
        if not known:
            return None
        return Neighbours(tuple(n.theta for n in known), tuple(n.start for n in known), np.diag(self._spread))

    def _near(self, theta: Array, near: Neighbours | None) -> Evaluation:
        """Return an evaluation at θ that contains only a predicted start for a solve."""
        start = np.empty(0) if near is None else near.predict(self.log_posterior.approximator, theta)
        return self.nodes[0]._replace(theta=theta, start=start)


def _stratified(density: Array, count: int, rng: np.random.Generator) -> Array:
    """Return a subset (count, d) of draws (m, d) that covers the density evenly, in random order.

    The subset is equally spaced along a space-filling curve, and is moved to the marginals of all draws.
    """
    m = len(density)
    places = ((np.arange(count) + rng.random()) * m / count).astype(np.int64)
    draws = density[rng.permutation(along_curve(density)[places])]
    return with_marginals(draws, density, np.ones(m)) if count < m else draws
