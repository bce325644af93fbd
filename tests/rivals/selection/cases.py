"""Small problems with every likelihood and every kind of sites for selecting active rows."""

from typing import NamedTuple

import numpy as np

from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rivals.selection.row_site_rules import RULES, DenseRows, RowSiteRule
from tests.reference.data import Problem, random_problem

__all__ = ["CASES", "SEPARATE", "Case"]


class Case(NamedTuple):
    """A likelihood with a kind of sites."""

    likelihood: Likelihood
    rule: RowSiteRule

    def __str__(self) -> str:
        return f"{self.likelihood.name}-{self.rule.name}"

    @property
    def c(self) -> int:
        """Number of functions."""
        return 3 if self.likelihood.function_axis else 1

    def problem(self, n: int = 12, *, per_class: bool = True, seed: int = 1) -> Problem:
        """Return a problem with a prior mean, and a covariance for each function or one for all functions."""
        X, K, m, y = random_problem(seed, n, 3, per_class=per_class, with_mean=True)
        if self.c == 3:
            return Problem(X, K, m, y)
        return Problem(X, K[0] if per_class else K, m[:1], (y == 1).astype(np.int64))

    @staticmethod
    def rows(problem: Problem) -> DenseRows:
        return DenseRows(problem.K, problem.m)

    @staticmethod
    def prior(problem: Problem, rows: np.ndarray) -> DensePrior:
        k = problem.K if problem.K.ndim == 3 else problem.K[None]
        return DensePrior(k[:, rows[:, None], rows], problem.m[:, rows])

    def blocks(self, precision: np.ndarray) -> np.ndarray:
        """Π of each row (d, c, c), from π (c, d)."""
        own = np.stack([np.diag(pi) for pi in precision.T])
        if self.rule.form != "coupled":
            return own
        return own - np.einsum("ad,ed->dae", precision, precision) / precision.sum(0)[:, None, None]


_EVERY = [Case(likelihood, rule) for likelihood in LIKELIHOODS for rule in RULES if rule.fits(likelihood)]
CASES = [case for case in _EVERY if not case.rule.separate]
SEPARATE = [case for case in _EVERY if case.rule.separate]
"""Cases where each function has active rows of its own."""
