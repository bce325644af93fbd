"""The seven methods, and variants of the authors' code where it differs from the paper.

The results in the paper are from Nickisch's published code. By reading it, three methods differ from the text:

- label regression tries six noises, and uses σ_n² as the precision of its sites where the text has 1 / σ_n²; - naive
TAP has cavities of variance K_ii − 1 where the text has K_ii; - the bound of the factorial method is as misprinted in
section 7.2, see `printed_bound`.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dtrtri
from scipy.special import log_expit, log_ndtr

from pymc_gpep.approximations import EP, KL, Approximator, QuadraticVB, ScalarLaplace, Solution
from pymc_gpep.approximations.laplace import function_found
from pymc_gpep.approximations.limits import positive
from pymc_gpep.gaussians.prior import DenseFunctionPosterior, DensePrior
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, GaussianAverage
from pymc_gpep.likelihoods.one_function import TwoClasses
from pymc_gpep.rivals.factorial_variational import FactorialVariational
from pymc_gpep.rivals.label_regression import LabelRegression
from pymc_gpep.rivals.naive_tap import NaiveTAP
from pymc_gpep.solvers.newton import CavityAscent, ascend, at_rows
from pymc_gpep.solvers.problem import Derivatives, Found, FunctionPosterior, History, Problem

Array = np.ndarray

_LOGARITHMS = {"probit": log_ndtr, "logit": log_expit}
LINKS: dict[str, TwoClasses] = {
    each.name: each for each in LIKELIHOODS if isinstance(each, TwoClasses) and each.name in _LOGARITHMS
}
"""The likelihoods: probit and logit."""
METHODS: dict[str, Approximator] = {
    "LA": ScalarLaplace(),
    "EP": EP(),
    "KL": KL(),
    "VB": QuadraticVB(),
    "FV": FactorialVariational(),
    "LR": LabelRegression(),
    "TAPnaive": NaiveTAP(),
}
"""Methods in the order of the paper's last table."""
GAUSSIAN = ("LA", "EP", "KL", "VB")
"""Methods of figures 9 and 11."""


@dataclass(frozen=True)
class AuthorsLabelRegression(LabelRegression):
    """Label regression as in the authors' code: the best of six noises, and σ_n² for the precision of the sites."""

    noises: ClassVar[tuple[float, ...]] = tuple(np.linspace(0.5, 2.0, 6))

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        terms = likelihood.computation(AverageLogDensity).terms
        g = np.empty((3, problem.labels.size))

        def at(noise: float) -> tuple[float, DenseFunctionPosterior]:
            posterior = DenseFunctionPosterior(problem.prior, problem.mean[0])
            posterior.decompose(np.full(problem.labels.size, noise**2))
            posterior.invert()
            posterior.spread()
            noisy = problem.k[0] + noise**2 * np.eye(problem.labels.size)
            weights = cho_solve(cho_factor(noisy), 2.0 * problem.labels - 1.0)
            posterior.put(weights[None], weights, problem.k[0] @ weights)
            terms(posterior.mean, posterior.variance, problem.labels, problem.parameters, g)
            bound = float(g[0].sum()) - posterior.divergence
            history.add(bound, 0.0)
            return bound, posterior

        bound, best = max(map(at, self.noises), key=lambda found: found[0])
        return _found(bound, CONVERGED, best)


@dataclass(frozen=True)
class AuthorsNaiveTAP(NaiveTAP):
    """Naive TAP as in the authors' code: cavities of variance K_ii − 1, or 0 where this is negative."""

    tolerance: float = field(default=1e-9, metadata=positive())

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        width = np.maximum(problem.prior.variances[0] - 1.0, 0.0)
        average = likelihood.computation(GaussianAverage).terms

        def volume(log_det: float, w: Array) -> float:
            return log_det - float(np.log1p(w * width).sum())

        of_rows = at_rows(average, problem.labels, problem.parameters)
        climbed = CavityAscent(problem, of_rows, width, volume)
        evidence, status = ascend(problem, start.reshape(1, -1), climbed, history, tolerance=self.tolerance)
        return _found(evidence, status, climbed.posterior)


AUTHORS: dict[str, Approximator] = {"LR, code": AuthorsLabelRegression(), "TAPnaive, code": AuthorsNaiveTAP()}
"""Variants of the authors with predictions that differ from the text's."""
EVERY = METHODS | AUTHORS


def log_link(likelihood: TwoClasses, f: Array) -> Array:
    """log p(y = 1 | f), accurate in the far tail."""
    log_p: Array = _LOGARITHMS[likelihood.name](f)
    return log_p


def printed_bound(solution: Solution, likelihood: TwoClasses) -> float:
    """The bound of the factorial method as section 7.2 prints it and the code computes it. It is not a bound.

    Σ log sig(y_i m_i / σ_i) − ½ αᵀ (K − Dg(σ²)) α − ½ log|K| + Σ log σ_i, with σ_i² = 1 / [K⁻¹]_ii.
    """
    prior = solution.posterior.prior
    if not isinstance(prior, DensePrior):
        raise TypeError(f"The prior must be dense, but is a {type(prior).__name__}.")
    root = prior.roots[0]
    width = 1.0 / (dtrtri(root.T)[0] ** 2).sum(1)
    sign, mean, weights = 2.0 * solution.labels - 1.0, solution.mean[0], solution.posterior.weights[0]
    fit = float(log_link(likelihood, sign * mean / np.sqrt(width)).sum())
    pull = float(weights @ mean - weights**2 @ width)
    return fit - 0.5 * pull - float(np.log(root.diagonal()).sum()) + 0.5 * float(np.log(width).sum())


def _found(evidence: float, status: int, posterior: FunctionPosterior) -> Found:
    """Results that predictions need. Derivatives are skipped."""
    nothing = np.full((posterior.mean.size, posterior.mean.size), np.nan)
    return function_found(posterior, evidence, status, lambda: Derivatives(nothing[None], nothing[:1]))
