"""The result of a solve, and warm starts from solves at nearby hyperparameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.kernels.status import CONVERGED, MESSAGES
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity

_REACH = 4.0  # Length scale of the Gaussian process that predicts starts, in units of distance of places.
_NUGGET = 1e-9
_NEAREST = 16  # Number of solutions that a prediction combines.


class Combines(Protocol):
    """Function that combines starts of several problems."""

    def between(self, starts: Array, weights: Array, nearest: int) -> Array: ...


class Neighbours(NamedTuple):
    """Starts of solves at several hyperparameter vectors (places), the oldest first."""

    places: tuple[Array, ...]
    """Place of each problem: a vector (d,), such as its hyperparameters."""
    starts: tuple[Array, ...]
    """`Solution.start` at each place."""
    root: Array | None = None
    """Matrix R (d, d): the distance of places x and x′ is |R⁻¹(x − x′)|. The default is the identity."""

    def joined(self, place: Array, start: Array, limit: int) -> "Neighbours":
        """Return the last `limit` of the stored starts and one more start, with their places."""
        return self._replace(places=(*self.places, place)[-limit:], starts=(*self.starts, start)[-limit:])

    def predict(self, approximator: Combines, place: Array) -> Array:
        """Return a start for a solve at `place`: the mean of a Gaussian process through the nearest solutions.

        The process has an unknown constant mean and a squared exponential covariance. So the prediction combines the
        stored solutions with weights that sum to 1 (ordinary kriging).
        """
        known = np.array([*self.places, place])
        if self.root is not None:
            known = np.linalg.solve(self.root, known.T).T
        squares = ((known[:-1] - known[-1]) ** 2).sum(axis=1)
        nearest = np.sort(np.argsort(squares, kind="stable")[:_NEAREST])
        known, count = known[[*nearest, -1]], len(nearest)
        covariance = np.exp(-0.5 * ((known[:, None] - known) ** 2).sum(axis=-1) / _REACH**2)
        system = np.ones((count + 1, count + 1))
        system[:count, :count] = covariance[:count, :count] + _NUGGET * np.eye(count)
        system[count, count] = 0.0
        weights = np.linalg.solve(system, np.append(covariance[count, :count], 1.0))[:count]
        return approximator.between(
            np.array([self.starts[s] for s in nearest]), weights, int(covariance[count, :count].argmax())
        )


@dataclass(frozen=True)
class Convergence:
    """Record of an iteration and its end.

    Attributes
    ----------
    status : int
        Status in `pymc_gpep.kernels.status`.
    history : array (iterations, 2)
        Evidence and residual at each iteration.
    tolerance : float
        Threshold of the residual, and for EP also of the relative change of the evidence.
    scheme : str
        Last scheme of the fallback sequence that was used.
    """

    status: int
    history: Array
    tolerance: float
    scheme: str

    @property
    def iterations(self) -> int:
        """Number of computed posteriors."""
        return len(self.history)

    @property
    def evidence(self) -> Array:
        """Evidence at each iteration, (iterations,)."""
        return self.history[:, 0]

    @property
    def residual(self) -> Array:
        """Distance from the solution at each iteration, (iterations,).

        For EP it is the largest change of a site, in units of its marginal. For Laplace and variational Bayes it is the
        largest slope of the objective, or the largest remaining step.
        """
        return self.history[:, 1]

    @property
    def converged(self) -> bool:
        """Whether the fixed point was reached to the tolerance."""
        return self.status == CONVERGED

    def stored(self, table: xr.Dataset) -> xr.Dataset:
        """Return a dataset with this record added, for a file."""
        own = table.assign(evidence=("sweep", self.evidence), residual=("sweep", self.residual))
        return own.assign_attrs(status=self.status, scheme=self.scheme, tolerance=self.tolerance)

    @classmethod
    def restored(cls, table: xr.Dataset, tolerance: float) -> Self:
        """Return the record in the dataset of a file, with this tolerance."""
        history = np.stack([table["evidence"].values, table["residual"].values], axis=1)
        return cls(int(table.attrs["status"]), history, tolerance, table.attrs["scheme"])

    def __str__(self) -> str:
        """Return a sentence on the convergence."""
        last = f" (residual {self.residual[-1]:.1e}, tolerance {self.tolerance:.0e})" if self.iterations else ""
        iterations = "1 iteration" if self.iterations == 1 else f"{self.iterations} iterations"
        return f"{MESSAGES[self.status]} after {iterations} of {self.scheme}{last}"


@dataclass(frozen=True)
class Solution:
    """Approximate posterior of the latent values at fixed hyperparameters.

    Attributes
    ----------
    evidence : float
        Approximate log marginal likelihood; NaN if the solver failed.
    mean : array (c, n)
        Posterior means of the latent values.
    cov : array (n, c, c)
        Posterior covariances between the latent functions at each point.
    labels : array (n,)
        Observations. Classes are counted from 0.
    likelihood : Likelihood
        Likelihood with its parameters at each point.
    posterior : Posterior
        Joint Gaussian posterior, for predictions and draws.
    start : array
        Start for the solver at nearby hyperparameters.
    convergence : Convergence
    """

    evidence: float
    mean: Array
    cov: Array
    labels: Observed
    likelihood: Likelihood
    posterior: Posterior
    start: Array
    convergence: Convergence

    @property
    def log_evidence(self) -> float:
        """Log evidence, the attribute `evidence`."""
        return self.evidence

    @property
    def objective(self) -> float:
        """The evidence, which a search for hyperparameters maximises."""
        return self.evidence

    @property
    def converged(self) -> bool:
        """Whether the fixed point was reached."""
        return self.convergence.converged

    @property
    def lower_bound(self) -> float:
        """Jensen's lower bound of the log marginal likelihood, E_q log p(y | f) − KL(q ‖ prior), for this posterior q.

        `KL` has the largest bound of a Gaussian. The bound is NaN if the likelihood does not offer `AverageLogDensity`.

        References
        ----------
        Nickisch and Rasmussen (2008), equation 9.
        """
        if not (self.likelihood.offers(AverageLogDensity) and np.isfinite(self.mean).all()):
            return np.nan
        terms = np.empty((3, self.labels.size))
        average = self.likelihood.computation(AverageLogDensity)
        variance = np.ascontiguousarray(self.cov[:, 0, 0])
        average.terms(np.ascontiguousarray(self.mean[0]), variance, self.labels, self.likelihood.parameters, terms)
        return float(terms[0].sum()) - self.posterior.divergence


class Correction(NamedTuple):
    """Correction of predictive probabilities. Uncorrected probabilities are averages over the Gaussian posterior."""

    corrects: str
    """Text for messages: approximation whose predictions are corrected."""
    probabilities: Callable[[Solution, Array, Array, Array], Array]
    """Function that returns probabilities of classes (m, classes) from a solution and prior moments at m new points.

    The moments are covariances with the points of the data (1 or c, m, n), variances (1 or c, m) and means (c, m).
    """
