"""The factorial variational method (Csató, Fokoué, Opper, Schottky and Winther 2000; Nickisch and Rasmussen 2008).

The method finds the distribution q(f) with independent latent values that maximises the lower bound of the evidence.
Its factors are q_i ∝ N(f | μ_i, D_i) p(y_i | f). For the prior N(m₀, K), D_i = 1 / [K⁻¹]_ii is the prior variance given
all other values. For the cavity means μ_i see `pymc_gpep.solvers.newton`. Let h_i = log ∫ N(f | μ_i, D_i) p(y_i | f) df
and γ_i = −∂²h_i/∂μ_i². The factors have the variances v_i = D_i (1 − D_iγ_i). With the weights b = K⁻¹(f − m₀) at the
means f, the log evidence is

    Σ_i [h_i + ½ D_i b_i² + ½ log D_i] − ½ bᵀ(f − m₀) − ½ log|K|

(Nickisch and Rasmussen 2008, section 7, with a misprint). It is stationary in q: its derivatives are b in m₀, and ½
(bbᵀ − K⁻¹ + K⁻¹ diag(v) K⁻¹) in K.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.laplace import NewtonApproximation, function_found
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.linalg.lapack import cholesky, inverse_from_cholesky
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_DIGITS, SINGULAR
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage, ParameterSlopes
from pymc_gpep.rivals.responses import factorial_response
from pymc_gpep.solvers.newton import CavityAscent, ascend, at_rows
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, parameter_slopes

_DIGITS = 1e-4  # The solve fails if the estimated rounding error of the bound is larger.


def factorial_variational(
    problem: Problem,
    start: Array,
    history: History,
    *,
    average: Callable[..., None],
    slopes: Callable[..., None] | None = None,
    tolerance: float,
) -> Found:
    """Run the factorial variational method. `start` has the weights b (1, n), and is overwritten.

    `average` is the kernel of `pymc_gpep.likelihoods.local_computations.GaussianAverage`, `slopes` the kernel of
    `ParameterSlopes`. The `precision` of the result contains the variances of the factors.
    """
    k, n = problem.k[0], problem.labels.size
    inverse = k.copy()
    if not cholesky(inverse):
        return _not_found(n, SINGULAR)
    log_det = 2.0 * float(np.log(inverse.diagonal()).sum())
    inverse_from_cholesky(inverse)
    width = 1.0 / inverse.diagonal()
    if np.finfo(np.float64).eps * float(k.diagonal().max() / width.min()) > _DIGITS / n:
        return _not_found(n, OUT_OF_DIGITS)
    of_rows = at_rows(average, problem.labels, problem.parameters)
    ascent = CavityAscent(problem, of_rows, width, lambda *_: log_det - float(np.log(width).sum()))
    posterior = ascent.posterior
    evidence, status = ascend(problem, start.reshape(1, n), ascent, history, tolerance=tolerance)
    variance = width * ascent.kept
    if status == CONVERGED and not ((variance >= 0.0) & np.isfinite(variance)).all():
        return _not_found(n, OUT_OF_DIGITS)

    def derivatives() -> Derivatives:
        lower = np.tril(inverse)
        full = lower + np.tril(lower, -1).T
        b = posterior.weights
        half = full * np.sqrt(variance)
        return Derivatives(
            0.5 * (np.outer(b, b) - full + half @ half.T)[None],
            b[None].copy(),
            parameter_slopes(problem, slopes, ascent.cavity, width),
        )

    found = function_found(posterior, evidence, status, derivatives)
    return found._replace(cov=variance[:, None, None], precision=variance[None])


def without_points(
    solve: Callable[[Problem, Array], Found], problem: Problem, start: Array, silent: NDArray[np.bool_]
) -> Found:
    """Solve without the points in the mask `silent` (n,). Their latent values follow from other points by the prior.

    A factor of q for such a point could only lower the bound. The variance of its factor is set to 0.
    """
    seen = ~silent
    k, n, size = problem.k[0], len(silent), int(seen.sum())
    mean = np.ascontiguousarray(problem.mean[:, seen])
    part = problem._replace(
        prior=DensePrior(problem.k[:, seen][:, :, seen], mean), mean=mean,
        labels=problem.labels[seen], parameters=np.ascontiguousarray(problem.parameters[:, seen]),
    )  # fmt: skip
    own = start[seen].copy()
    found = solve(part, own) if size else _nothing_observed()
    start[seen], start[silent] = own, 0.0
    weights, v = np.zeros((2, 1, n))
    weights[:, seen], v[:, seen] = found.weights, found.precision
    mean = problem.mean + weights @ k
    mean[:, seen] = found.mean
    variance = v[0].copy()
    if found.status == CONVERGED:
        left = np.linalg.solve(k[seen][:, seen], k[seen][:, silent])
        kept = k.diagonal()[silent] - (left * k[seen][:, silent]).sum(axis=0)
        variance[silent] = np.maximum(kept, 0.0) + v[0, seen] @ left**2

    def derivatives() -> Derivatives:
        of_part = found.derivatives()
        of_k, of_mean = np.zeros((1, n, n)), np.zeros((1, n))
        of_k[0][np.ix_(seen, seen)], of_mean[:, seen] = of_part.k[0], of_part.mean
        of_parameters = np.zeros((of_part.parameters.shape[0], n))
        of_parameters[:, seen] = of_part.parameters
        return Derivatives(of_k, of_mean, of_parameters)

    return Found(found.evidence, found.status, weights, mean, variance[:, None, None], v, derivatives)


def _nothing_observed() -> Found:
    nothing = np.zeros((1, 0))
    return Found(
        0.0,
        CONVERGED,
        nothing,
        nothing,
        np.zeros((0, 1, 1)),
        nothing,
        lambda: Derivatives(np.zeros((1, 0, 0)), nothing),
    )


def _not_found(n: int, status: int) -> Found:
    nothing = np.full((1, n), np.nan)
    return Found(
        np.nan,
        status,
        nothing,
        nothing,
        nothing.T[:, :, None],
        nothing,
        lambda: Derivatives(nothing[:, :, None], nothing),
    )


@dataclass(frozen=True)
class FactorialVariational(NewtonApproximation):
    """Posterior with independent latent values of any distribution. The evidence is a lower bound.

    The Gaussian of the result has the means and variances of these distributions (Nickisch and Rasmussen 2008, section
    7). The method needs the inverse of the prior covariance, and the bound tends to −∞ as latent values become equal. A
    point without observation, such as a count under an exposure of 0, has no factor.
    """

    name: ClassVar[str] = "fv"
    site_form: ClassVar[SiteForm] = SiteForm.FACTORIAL
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    follows_parameters: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    inverts_prior: ClassVar[bool] = True

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Return whether a likelihood is log-concave and has the required averages."""
        return likelihood.log_concave and super().approximates(likelihood)

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        average = likelihood.computation(GaussianAverage).terms
        slopes = likelihood.computation(ParameterSlopes).average if likelihood.offers(ParameterSlopes) else None

        def solve(problem: Problem, start: Array) -> Found:
            return factorial_variational(problem, start, history, average=average, slopes=slopes, **self.settings)

        silent = likelihood.is_uninformative(problem.labels)
        return without_points(solve, problem, start, silent) if silent.any() else solve(problem, start)

    def response(self, solution: Solution) -> Posterior:
        """Return a Gaussian with correlated points, for responses of means to forces; see `factorial_response`."""
        return factorial_response(solution)
