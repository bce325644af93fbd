"""What every approximation promises, and what it returns."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.kernels.entry import Entry, Outcome
from pymc_gpep.kernels.status import CONVERGED, MESSAGES
from pymc_gpep.posterior import Posterior
from pymc_gpep.prior import check_prior

__all__ = ["Approximator", "Convergence", "Solution", "run", "solve"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Convergence:
    """How an iteration ended.

    Attributes
    ----------
    status : int
        One of `pymc_gpep.kernels.status`.
    iterations : int
        Number of posteriors computed.
    evidence : array (iterations,)
        Evidence at each iteration.
    residual : array (iterations,)
        How far from the solution each iteration was: for EP the largest change of a site, in units of the marginal
        that it acts on; for Laplace and variational Bayes the largest slope of what is maximised, or the largest step
        that remains.
    tolerance : float
        What the residual had to fall below, and for EP the relative change of the evidence.
    scheme : str
        Which of the approximation's schemes had the last word.
    """

    status: int
    iterations: int
    evidence: Array
    residual: Array
    tolerance: float
    scheme: str

    @property
    def converged(self) -> bool:
        """Whether the fixed point was reached to the tolerance."""
        return self.status == CONVERGED

    def __str__(self) -> str:
        """One sentence."""
        last = f" (residual {self.residual[-1]:.1e}, tolerance {self.tolerance:.0e})" if self.iterations else ""
        return f"{MESSAGES[self.status]} after {self.iterations} iterations of {self.scheme}{last}"


@dataclass(frozen=True)
class Solution:
    """An approximation to the posterior of the latent values at fixed hyperparameters.

    Attributes
    ----------
    evidence : float
        Approximate log marginal likelihood, NaN where the solver failed.
    mean : array (c, n)
        Posterior means of the latent values.
    cov : array (n, c, c)
        Posterior covariances between the classes at each point.
    labels : array (n,)
        Classes of the data, 0…c−1.
    posterior : Posterior
        The joint Gaussian, for prediction and draws.
    sites : array
        Where to start the solver at neighbouring hyperparameters.
    convergence : Convergence
    """

    evidence: float
    mean: Array
    cov: Array
    labels: NDArray[np.int64]
    posterior: Posterior
    sites: Array
    convergence: Convergence


class Approximator(Protocol):
    """An approximation with its options: a function from prior moments and labels to a `Solution`."""

    name: ClassVar[str]
    """What `pm.fit(method=...)` calls it."""
    likelihood: ClassVar[str]
    """Name of the likelihood that it approximates, see `pymc_gpep.structure.LIKELIHOODS`."""
    entry: ClassVar[Entry]
    """The compiled solver, for graphs."""
    schemes: ClassVar[tuple[str, ...]]
    """What the solver tries, in order."""
    posterior: ClassVar[type[Posterior]]
    """What its sites make of the prior."""

    @property
    def max_iterations(self) -> int:
        """Limit on iterations."""
        ...

    @property
    def tolerance(self) -> float:
        """Of convergence."""
        ...

    @property
    def options(self) -> tuple[float, ...]:
        """Options in the order that the compiled solver wants them."""
        ...

    def sites_size(self, c: int, n: int) -> int:
        """Length of the vector of sites, from which a neighbouring solve can start."""
        ...

    def precision_shape(self, c: int, n: int) -> tuple[int, ...]:
        """Shape of the site precisions, as `posterior` wants them."""
        ...

    def solve(self, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None = None) -> Solution:
        """Approximate the posterior given prior covariance (n, n) or (c, n, n), prior mean (c, n), labels (n,)."""
        ...


def run(
    approximator: Approximator, k: Array, mean: Array, labels: NDArray[np.int64], sites: Array, gradient: bool = False
) -> Outcome:
    """Run the compiled solver from given sites, on C-ordered arrays of the right shapes."""
    shape = approximator.precision_shape(*mean.shape)
    options, limit = approximator.options, approximator.max_iterations
    return approximator.entry(k, mean, labels, sites, options, limit, shape, gradient)


def solve(
    approximator: Approximator, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None
) -> Solution:
    """Check the input, run the compiled solver, and return what it found."""
    k, mean, labels = check_prior(k, mean, labels)
    sites = np.zeros(approximator.sites_size(*mean.shape))
    if start is not None:
        if np.shape(start) != sites.shape or not np.isfinite(start).all():
            raise ValueError(f"start must be {sites.size} finite numbers, the sites of a solution of this size.")
        sites[:] = start
    outcome = run(approximator, k, mean, labels, sites)
    evidences, residuals = outcome.history.T.copy()
    return Solution(
        evidence=outcome.evidence,
        mean=outcome.mean,
        cov=outcome.cov,
        labels=labels,
        posterior=approximator.posterior(k, mean, outcome.precision, outcome.weights),
        sites=outcome.sites,
        convergence=Convergence(
            outcome.status,
            outcome.iterations,
            evidences,
            residuals,
            approximator.tolerance,
            approximator.schemes[outcome.rung],
        ),
    )
