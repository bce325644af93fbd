"""Label regression: labels taken for observations with normal noise (Nickisch and Rasmussen 2008, section 8)."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity
from pymc_gpep.solvers.label_regression import label_regression
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["LabelRegression"]


@dataclass(frozen=True)
class LabelRegression(Approximator):
    """Regression on labels −1 and +1; the evidence is the lower bound that its Gaussian gives the classifier's.

    The standard deviation of the noise is the one with the best bound, between two limits.

    Parameters
    ----------
    tolerance : float
        For the slope of the bound in the logarithm of the noise, relative to the bound where that is large.
    max_iterations : int
        Limit on the noises tried.
    least, most : float
        Limits of the standard deviation of the noise.

    Examples
    --------
    >>> solution = gpep.LabelRegression().solve(K, mean[0], y == 2)  # (n, n), (n,), (n,)
    >>> solution.log_evidence
    """

    tolerance: float = field(default=1e-7, metadata=positive())
    max_iterations: int = field(default=100, metadata=at_least(1))
    least: float = field(default=0.5, metadata=positive())
    most: float = field(default=2.0, metadata=positive())

    name: ClassVar[str] = "lr"
    needs: ClassVar[tuple[type, ...]] = (AverageLogDensity,)
    schemes: ClassVar[tuple[str, ...]] = ("a search for the noise",)
    bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise ValueError(f"least must be at most `most`, {self.most!r}, but is {self.least!r}.")

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Whether the likelihood is of two classes."""
        return super().approximates(likelihood) and likelihood.n_classes(1) == 2

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.INDEPENDENT

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        terms = likelihood.computation(AverageLogDensity).terms
        return label_regression(problem, start, history, terms=terms, **self.settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: the logarithm of the noise."""
        return 1
