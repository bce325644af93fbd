"""The Laplace approximation for a likelihood of one latent function (Williams and Barber 1998).

The mean may be that of the smoothed density, at the variances of Laplace's method. The mode of Σ ℓ_i(f_i) − ½ (f − m₀)ᵀ
K⁻¹ (f − m₀) lies beside the mean where the posterior is skewed. In place of ℓ this takes its average g(m, v) over N(m,
v), with Laplace's variances v. The mode is then the best mean of a Gaussian with these variances (van Niekerk and Rue
2024). Newton's method finds it, by ∂²g/∂m² = 2 ∂g/∂v.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.newton_approximation import NewtonApproximation
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, ParameterSlopes, ScalarDensity
from pymc_gpep.solvers.newton import fixed_cavity
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

_STEPS, _HALVINGS = 50, 30
_TOLERANCE = 1e-8  # largest change of a mean, in standard deviations


def smoothed_mode(problem: Problem, found: Found, terms: Callable[..., None]) -> Found:
    """Return what Laplace's method found with other means, and the weights that belong to them.

    `terms` is the kernel of `pymc_gpep.likelihoods.local_computations.AverageLogDensity`. Evidence and derivatives stay
    those of Laplace's method.
    """
    prior_mean, variance = problem.mean[0], np.ascontiguousarray(found.cov[:, 0, 0])
    mean, b = found.mean[0].copy(), found.weights[0].copy()
    posterior = problem.prior.posterior(prior_mean)

    def look(at: Array) -> Array:
        g = np.empty((3, at.size))
        terms(at, variance, problem.labels, problem.parameters, g)
        return g

    def height(g: Array, at: Array, weights: Array) -> float:
        return float(g[0].sum() - 0.5 * weights @ (at - prior_mean))

    g = look(mean)
    for _ in range(_STEPS):
        precision = np.maximum(-2.0 * g[2], 0.0)
        if not posterior.update(precision, g[1] + precision * mean):
            break
        step, turn, before = posterior.mean - mean, posterior.weights - b, height(g, mean, b)
        length = 1.0
        for _ in range(_HALVINGS):
            new = look(mean + length * step)
            if height(new, mean + length * step, b + length * turn) >= before - 1e-10 * abs(before):
                break
            length *= 0.5
        mean, b, g = mean + length * step, b + length * turn, new
        if np.abs(step).max() < _TOLERANCE * np.sqrt(variance.max()):
            return found._replace(mean=mean[None], weights=b[None])
    return found._replace(status=OUT_OF_ITERATIONS)


@dataclass(frozen=True)
class ScalarLaplace(NewtonApproximation):
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    Parameters
    ----------
    smoothed_mean : bool
        Whether means are those that the log density averaged over Laplace's variances has, which are nearer to the
        posterior's where that is skewed. Variances and evidences stay those at the mode.
    """

    smoothed_mean: bool = False

    name: ClassVar[str] = "laplace"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (ScalarDensity,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTION
    follows_parameters: ClassVar[bool] = True
    looseness: ClassVar[float] = 1e4

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        density = likelihood.computation(ScalarDensity)

        def average(mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
            density.derivatives(mean, y, parameters, out[:4])  # of widths of 0

        slopes = likelihood.computation(ParameterSlopes).derivatives if likelihood.offers(ParameterSlopes) else None
        found = fixed_cavity(
            problem, start, history, average=average, slopes=slopes, wide=False, tolerance=self.tolerance
        )
        if not (self.smoothed_mean and found.status == CONVERGED):
            return found
        return smoothed_mode(problem, found, likelihood.computation(AverageLogDensity).terms)
