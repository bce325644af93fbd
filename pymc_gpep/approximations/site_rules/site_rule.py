"""The interface of a rule: how a point's likelihood is taken apart, and so what kind of sites stands for it."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.sparse_ep import LikelihoodFactors, Tilted
from pymc_gpep.solvers.sparse_sweeps import PointSites


class SiteRule(ABC):
    """Takes the likelihood of a point apart."""

    name: ClassVar[str]
    """What `sites=` calls it."""
    needs: ClassVar[tuple[type, ...]]
    """Types of the local computations that a likelihood must have."""
    follows_parameters: ClassVar[bool] = False
    """Whether a likelihood may be given numbers besides latent values, which then are no hyperparameters."""
    exact: ClassVar[bool]
    """Whether the factors multiply to the likelihood, so that EP's evidence is one of the model."""

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """Whether a likelihood can be taken apart like this."""
        follows = cls.follows_parameters or not likelihood.has_parameters
        return follows and all(likelihood.offers(kind) for kind in cls.needs)

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        """Whether it is to be taken, if none is named, for c functions with so many inducing inputs each."""
        return False

    @abstractmethod
    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> PointSites:
        """The likelihood of all points of c functions as the solver wants it."""


class ScalarSites(SiteRule):
    """Factors of the likelihood of a point, each with a scalar site for every function that it depends on.

    A point has d sites. Sites of one factor are on different functions, whose latent values are then independent.
    """

    @abstractmethod
    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        """Which of the c functions each site acts on, (n, d)."""

    @abstractmethod
    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        """Log normalisers and derivatives at B points.

        Parameters
        ----------
        likelihood : Likelihood
            At these points.
        mean, variance : array (B, d)
            Moments of the latent values, as the factor of each site sees them.
        labels : array (B,)
        """

    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> LikelihoodFactors:
        return LikelihoodFactors(
            self.functions(labels, c),
            lambda rows, mean, variance: self.tilted(likelihood.at(rows), mean, variance, labels[rows]),
            not likelihood.sees_common,
            log_concave=likelihood.log_concave,
        )
