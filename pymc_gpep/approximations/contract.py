"""What every approximation is: options, a solver, and `solve`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.approximations.solution import Array, Convergence, Solution
from pymc_gpep.gaussians.dense_posterior import DensePosterior
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.gaussians.registry import make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.problem import Found, Problem
from pymc_gpep.solvers.run import Outcome, run

__all__ = ["Approximator", "check_labels"]

_LIMITS = {
    "tolerance": (lambda value: value > 0, "positive"),
    "max_iterations": (lambda value: value >= 1, "at least 1"),
    "max_inner": (lambda value: value >= 1, "at least 1"),
    "max_products": (lambda value: value >= 0, "at least 0"),
    "max_size": (lambda value: value >= 1, "at least 1"),
    "order": (lambda value: value >= 1, "at least 1"),
    "memory": (lambda value: value >= 0, "at least 0"),
    "mixing": (lambda value: 0 < value <= 1, "in (0, 1]"),
    "damping": (lambda value: 0 < value <= 1, "in (0, 1]"),
}
"""Name of an option, whatever the approximation → what its value must be."""


@dataclass(frozen=True)
class Approximator(ABC):
    """An approximation with its options: a function from prior moments and labels to a `Solution`.

    Parameters
    ----------
    tolerance : float
        Of convergence.
    max_iterations : int
        Limit on iterations.

    Raises
    ------
    ValueError
        If an option has a value that makes no sense.
    """

    tolerance: float
    max_iterations: int

    name: ClassVar[str]
    """What `pm.fit(method=...)` calls it."""
    likelihood: ClassVar[str]
    """Kind of the likelihood that it approximates, see `pymc_gpep.structure.LIKELIHOODS`."""
    schemes: ClassVar[tuple[str, ...]]
    """What the solver tries, in order."""
    site_form: ClassVar[SiteForm]
    """What its sites look like."""

    def __post_init__(self) -> None:
        for field in fields(self):
            fits, must = _LIMITS.get(field.name, (None, ""))
            value = getattr(self, field.name)
            if fits and not fits(value):
                raise ValueError(f"{field.name} must be {must}, but is {value!r}.")

    @property
    def settings(self) -> dict[str, Any]:
        """Options of the solver by name: all but the limit on iterations."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "max_iterations"}

    @abstractmethod
    def solver(self, problem: Problem, start: Array, history: History) -> Found:
        """Solve from `start`, which is overwritten; see `pymc_gpep.solvers.run`."""

    @abstractmethod
    def start_size(self, c: int, n: int) -> int:
        """Length of the vector that a solve starts from.

        Raises
        ------
        ValueError
            If the problem is too large for the approximation.
        """

    def solve(self, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None = None) -> Solution:
        """Approximate the posterior of the latent values.

        Parameters
        ----------
        k : array (n, n) or (c, n, n)
            Prior covariance, shared by the classes or one for each.
        mean : array (c, n)
            Prior mean.
        labels : array (n,)
            Classes, 0…c−1.
        start : array, optional
            `Solution.start` of a neighbouring problem; a cold start if not given.

        Returns
        -------
        Solution
            Converged, or saying in `convergence` that it is not.

        Raises
        ------
        ValueError
            If an input has the wrong shape, is not finite, or holds labels that are no classes; or if the problem is
            too large for the approximation.
        """
        prior = DensePrior.checked(k, mean)
        labels = check_labels(labels, prior.shape)
        begin = np.zeros(self.start_size(*prior.shape))
        if start is not None:
            if np.shape(start) != begin.shape or not np.isfinite(start).all():
                raise ValueError(f"start must be {begin.size} finite numbers, the start of a solution of this size.")
            begin[:] = start
        outcome = self.run(prior.k, prior.mean, labels, begin)
        evidences, residuals = outcome.history.T.copy()
        return Solution(
            evidence=outcome.evidence,
            mean=outcome.mean,
            cov=outcome.cov,
            labels=labels,
            posterior=make_posterior(prior, self.site_form, outcome.precision, outcome.weights, outcome.mean),
            start=outcome.start,
            convergence=Convergence(
                outcome.status, outcome.iterations, evidences, residuals, self.tolerance, self.schemes[outcome.rung]
            ),
        )

    def run(self, k: Array, mean: Array, labels: NDArray[np.int64], start: Array, gradient: bool = False) -> Outcome:
        """Run the solver on arrays of the right shapes, see `pymc_gpep.solvers.run`."""
        return run(self.solver, k, mean, labels, start, self.max_iterations, gradient)

    def response(self, solution: Solution) -> DensePosterior:
        """The Gaussian whose covariance says how posterior means follow a small force on the latent values.

        It has the means of the solution. That of EP with all couplings, or of Laplace, is the posterior itself.
        """
        return solution.posterior


def check_labels(labels: ArrayLike, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Labels (n,) in the form that kernels want.

    Parameters
    ----------
    labels : array_like (n,)
    shape : tuple of int
        Number of classes c and of points n.

    Raises
    ------
    ValueError
        If there are fewer than two classes, if the shape does not fit, or if a label is no class.
    """
    c, n = shape
    if c < 2:
        raise ValueError(f"mean must be (c, n) with c ≥ 2 classes for labels, but has shape {shape}.")
    given = np.asarray(labels)
    if given.shape != (n,):
        raise ValueError(f"labels must be ({n},) to fit the mean, but have shape {given.shape}.")
    if given.dtype.kind not in "biuf":
        raise ValueError(f"labels must be integers 0…{c - 1}, but are of type {given.dtype}.")
    if not ((given >= 0) & (given < c)).all() or (given.astype(np.int64) != given).any():
        raise ValueError(f"labels must be integers 0…{c - 1}, but run from {given.min()} to {given.max()}.")
    return np.ascontiguousarray(given, np.int64)
