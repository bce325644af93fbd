"""What every approximation promises, and what it returns."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.status import CONVERGED, MESSAGES
from pymc_gpep.posterior import CoupledPosterior
from pymc_gpep.prior import check_prior

__all__ = ["Approximator", "Convergence", "Solution", "solve"]

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
        Largest change of a site at each iteration, in units of the marginal that it acts on.
    tolerance : float
        What residual and relative change of the evidence had to fall below.
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
    posterior : CoupledPosterior
        The joint Gaussian, for prediction and draws.
    sites : array
        Where to start the solver at neighbouring hyperparameters.
    convergence : Convergence
    """

    evidence: float
    mean: Array
    cov: Array
    posterior: CoupledPosterior
    sites: Array
    convergence: Convergence


class Approximator(Protocol):
    """An approximation with its options: a function from prior moments and labels to a `Solution`."""

    name: ClassVar[str]
    entry: ClassVar[Entry]
    """The compiled solver, for graphs."""
    schemes: ClassVar[tuple[str, ...]]
    """What the solver tries, in order."""

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

    def solve(self, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None = None) -> Solution:
        """Approximate the posterior given prior covariance (n, n) or (c, n, n), prior mean (c, n), labels (n,)."""
        ...


def solve(
    approximator: Approximator, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None
) -> Solution:
    """Check the input, run the compiled solver, and return what it found for a coupled posterior."""
    k, mean, labels = check_prior(k, mean, labels)
    sites = np.zeros(approximator.sites_size(*mean.shape))
    if start is not None:
        if np.shape(start) != sites.shape or not np.isfinite(start).all():
            raise ValueError(f"start must be {sites.size} finite numbers, the sites of a solution of this size.")
        sites[:] = start
    outcome = approximator.entry(
        k, mean, labels, sites, approximator.options, approximator.max_iterations, gradient=False
    )
    evidences, residuals = outcome.history.T.copy()
    return Solution(
        evidence=outcome.evidence,
        mean=outcome.mean,
        cov=outcome.cov,
        posterior=CoupledPosterior(k, mean, outcome.pi, outcome.weights),
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
