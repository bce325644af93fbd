"""Variational Bayes for the multinomial probit (Girolami and Rogers 2006)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Array, Solution, solve
from pymc_gpep.independent_posterior import IndependentPosterior
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.variational_bayes import variational_bayes
from pymc_gpep.posterior import Posterior

__all__ = ["VariationalBayes"]


@dataclass(frozen=True)
class VariationalBayes:
    """Factorised posterior q(f) q(v) of latent values and utilities v; the evidence is a lower bound.

    The posterior means are the mode of the posterior of the latent values, to which Newton steps go up: from 3 to 25 of
    them on iris and wine, whatever the prior variance (up to e¹²) and the length scale. Classes are independent under
    q(f), with covariance K (K + I)⁻¹: one factorisation for each distinct prior covariance is all there is.
    `pymc_gpep.kernels.variational_bayes` derives bound and iteration.

    Parameters
    ----------
    tolerance : float
        For the largest change of a mean utility, and the distance of the means from the optimum in units of the
        posterior.
    max_iterations : int
        Limit on Newton steps.
    max_products : int
        Limit on matrix products with the prior covariance, for each class, in one Newton step.
    """

    tolerance: float = 1e-8
    max_iterations: int = 200
    max_products: int = 50

    name: ClassVar[str] = "vb"
    likelihood: ClassVar[str] = "multinomial_probit"
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    entry: ClassVar[Entry] = variational_bayes
    posterior: ClassVar[type[Posterior]] = IndependentPosterior

    def __post_init__(self) -> None:
        for field, ok, must in (
            ("tolerance", self.tolerance > 0, "positive"),
            ("max_iterations", self.max_iterations >= 1, "at least 1"),
            ("max_products", self.max_products >= 0, "at least 0"),
        ):
            if not ok:
                raise ValueError(f"{field} must be {must}, but is {getattr(self, field)!r}.")

    @property
    def options(self) -> tuple[float, ...]:
        """Options in the order that the compiled solver wants them."""
        return self.tolerance, float(self.max_products)

    def sites_size(self, c: int, n: int) -> int:
        """Length of the vector of sites."""
        return c * n

    def precision_shape(self, c: int, n: int) -> tuple[int, ...]:
        """Shape of the site precisions, which are 1."""
        return c, n

    def solve(self, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None = None) -> Solution:
        """Maximise the bound.

        Parameters
        ----------
        k : array (n, n) or (c, n, n)
            Prior covariance, shared by the classes or one for each.
        mean : array (c, n)
            Prior mean.
        labels : array (n,)
            Classes, 0…c−1.
        start : array, optional
            `Solution.sites` of a neighbouring problem; from the prior mean if not given.

        Returns
        -------
        Solution
            Converged, or saying in `convergence` that it is not.

        Raises
        ------
        ValueError
            If an input has the wrong shape, is not finite, or holds labels that are no classes.
        """
        return solve(self, k, mean, labels, start)
