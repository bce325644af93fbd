"""Problems with inducing inputs, as arrays that several tests use."""

from typing import NamedTuple

import numpy as np

from pymc_gpep.approximations.sparse_ep import InducedArrays, SparseApproximation, SparseSolution
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.inducing import Block, InducedPrior
from tests.reference.data import squared_exponential

__all__ = ["Sparse", "random_sparse", "solved"]


class Sparse(NamedTuple):
    """Rows, inducing inputs (q, M, d), log variance and log length scale (q, 2) of covariances, and noise variance."""

    x: np.ndarray
    z: np.ndarray
    log_scales: np.ndarray
    mean: np.ndarray
    y: np.ndarray
    noise: float = 0.1

    def k(self, a: np.ndarray, b: np.ndarray, q: int) -> np.ndarray:
        variance, lengthscale = np.exp(self.log_scales[q])
        return squared_exponential(a, b, variance=variance, lengthscale=lengthscale)

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Covariance of inducing values, cross covariances, prior variances and prior means."""
        sets = range(len(self.z))
        return (
            np.stack([self.k(self.z[q], self.z[q], q) for q in sets]),
            np.stack([self.k(self.z[q], self.x, q) for q in sets]),
            np.stack([np.full(len(self.x), np.exp(self.log_scales[q, 0]) + self.noise) for q in sets]),
            self.mean,
        )

    @property
    def prior(self) -> InducedArrays:
        return InducedArrays(*self.moments)

    def fitc(self, at: np.ndarray | None = None) -> np.ndarray:
        """The prior covariance that the inducing inputs imply, (q, n, n), or (q, m, n) with other inputs."""
        inducing, cross, variance, _ = self.moments
        found = []
        for q in range(len(self.z)):
            left = cross[q] if at is None else self.k(self.z[q], at, q)
            low_rank = left.T @ np.linalg.solve(inducing[q], cross[q])
            found.append(low_rank if at is not None else low_rank + np.diag(variance[q] - low_rank.diagonal()))
        return np.stack(found)


def random_sparse(seed: int, n: int, c: int, m: int, *, own: bool = False, classes: int | None = None) -> Sparse:
    """Random problem with c functions. With `own` each function has a covariance and inducing inputs of its own."""
    rng = np.random.default_rng(seed)
    q = c if own else 1
    x = rng.normal(size=(n, 2))
    return Sparse(
        x,
        rng.normal(size=(q, m, 2)),
        np.log([3.0, 1.0]) + 0.3 * rng.normal(size=(q, 2)),
        0.5 * rng.normal(size=(c, n)),
        np.where(rng.uniform(size=n) < 0.3, rng.integers(classes or c, size=n), np.arange(n) % (classes or c)),
    )


def solved(
    approximation: SparseApproximation, prior: InducedPrior, y: np.ndarray, likelihood: Likelihood | None = None
) -> tuple[SparseSolution, np.ndarray, Block]:
    """The solution, and derivatives in the covariance of inducing values and in the moments of all rows."""
    found = approximation.solved(prior, y, likelihood=likelihood)
    assert found.solution.converged, str(found.solution.convergence)
    _, blocks, products = zip(*found.bars(), strict=True)
    bars = Block(*(np.concatenate(each, axis=-1) for each in zip(*blocks, strict=True)))
    return found.solution, found.solution.posterior.whitening.pull_factor(sum(products)), bars
