"""Variational Bayes for the multinomial probit, q(f) q(v) with utilities v (Girolami and Rogers 2006, section 4.3).

The latent functions are f_k ~ N(m_k, K_k). The utility of class k at point i is v_ik = f_ik + noise of variance 1. The
label y_i is the class of the largest utility. The posterior of f and v is approximated by a product q(f) q(v), where
q(f) has means f̃ and covariances S_k. The log evidence log p(y) is at least

    E_q(v)[Σ_i log p(y_i | v_i) N(v_i | f̃_i, I) − log q(v)] − ½ Σ_k tr S_k − Σ_k KL(N(f̃_k, S_k) ‖ N(m_k, K_k)).

The best q(v) is N(f̃_i, I), truncated to the cone where the utility of y_i is largest. The first term is then Σ_i log
p(y_i | f̃_i), the log of the multinomial probit. The best S_k is K_k (K_k + I)⁻¹ for every f̃. The bound is then

    Σ_i log p(y_i | f̃_i) − ½ Σ_k (f̃_k − m_k)ᵀ K_k⁻¹ (f̃_k − m_k) − ½ Σ_k log|I + K_k|.

So f̃ is the mode of the posterior of f, and the bound is concave in f̃. Let b be the weights, f̃ = m + K b, and r = ∂
log p / ∂f̃ − b. The fixed-point iteration of the paper is b ← b + (K + I)⁻¹ r. It never lowers the bound, but uses the
upper limit I of the curvature W = −∂² log p / ∂f̃². If W is small, at large prior variances, it takes thousands of
steps. Therefore each iteration here is a Newton step. Its linear system is solved with a limited number of products
with K. A fixed-point step of the quadratic model follows, for components on which K has little effect. The step is
halved until the bound rises. The solver factorises only K + I, once.

The residual is the larger of max |r| and √(rᵀ (W + K⁻¹)⁻¹ r). The latter is the distance of f̃ from the optimum, in
units of the posterior with the present curvature. Half its square is the expected rise of the bound. At the optimum the
derivatives of the bound are ½ (b_k b_kᵀ − (K_k + I)⁻¹) in K_k, and b_k in m_k.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.kl import curvature_response
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.gaussians.independent import (
    add_function_gradient,
    factorise_function,
    function_variance,
    newton_direction,
)
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import BlockCurvature, UtilityBound
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, own_matrix

# Newton's linear system is solved to this relative residual, or near the optimum to √(max |r|) if that is smaller.
_REDUCTION = 0.1
_HALVINGS = 30
_SUFFICIENT = 1e-4  # Smallest accepted rise of the bound, relative to the rise predicted by the slope.
_ROUNDING = 1e-12  # Relative change of the bound below which steps are judged by the slope.


def variational_bayes(
    problem: Problem,
    start: Array,
    history: History,
    *,
    terms: Callable[..., float],
    tolerance: float,
    max_products: int,
) -> Found:
    """Run variational Bayes.

    `start` has the weights b (c, n), and is overwritten. `terms` is the kernel of
    `pymc_gpep.likelihoods.local_computations.UtilityBound`; `max_products` limits the products with K in one iteration.
    """
    k, prior_mean, team = problem.k, problem.mean, problem.team
    c, n = prior_mean.shape
    b = start.reshape(c, n)
    pi, inverses = np.ones((c, n)), np.empty_like(k)
    mean, cov = np.full((c, n), np.nan), np.full((n, c, c), np.nan)

    def derivatives() -> Derivatives:
        gradient = np.zeros_like(k)
        for a in range(c):
            add_function_gradient(pi[a], own_matrix(inverses, a), b[a], own_matrix(gradient, a))
        return Derivatives(gradient, b.copy())

    factors = team.each(lambda a: factorise_function(k[a], pi[a], inverses[a]), range(len(k)))
    if not all(ok for ok, _ in factors):
        return Found(np.nan, NOT_POSITIVE_DEFINITE, np.full_like(b, np.nan), mean, cov, pi, derivatives)
    log_det = sum(own for _, own in factors) * (c // len(k))
    multiply_functions(k, b, mean)
    mean += prior_mean
    evidence, status = _ascend(problem, terms, inverses, -0.5 * log_det, tolerance, max_products, mean, b, history)
    variance = np.empty((len(k), n))
    team.each(lambda a: function_variance(k[a], pi[a], inverses[a], variance[a]), range(len(k)))
    cov[:] = np.broadcast_to(variance, (c, n)).T[:, :, None] * np.eye(c)
    return Found(evidence, status, b, mean, cov, pi, derivatives)


def _ascend(
    problem: Problem,
    terms: Callable[..., float],
    inverses: Array,
    constant: float,
    tolerance: float,
    products: int,
    f: Array,
    b: Array,
    history: History,
) -> tuple[float, int]:
    """Maximise the bound from weights b (c, n) and means f = m + K b, and overwrite both. Return bound and status.

    `constant` is the part of the bound that does not depend on f.
    """
    k, prior_mean, y = problem.k, problem.mean, problem.labels
    c, n = f.shape
    w = np.empty((n, c, c))
    r, d, pull, left, smooth = np.empty((5, c, n))
    value = terms(y, f, b, prior_mean, r, w)
    while not history.is_full():
        largest = float(np.abs(r).max())
        newton_direction(k, w, r, min(_REDUCTION, math.sqrt(largest)), products, d, pull, left)
        multiply_functions(inverses, left, smooth)
        multiply_functions(k, smooth, left)
        pull += smooth
        d += left
        slope = float(np.vdot(r, d))
        residual = max(largest, math.sqrt(max(slope, 0.0)))
        history.add(value + constant, residual)
        if residual < tolerance:
            return value + constant, CONVERGED
        if not np.isfinite(value + residual):
            return np.nan, NOT_FINITE

        old_f, old_b, old_value = f.copy(), b.copy(), value
        length = 1.0
        for _ in range(_HALVINGS):
            # Steps shrink, so their sum is accurate; K b would lose digits if K is large.
            f[:] = old_f + length * d
            b[:] = old_b + length * pull
            value = terms(y, f, b, prior_mean, r, w)
            rise = value - old_value
            level = abs(rise) < _ROUNDING * (1.0 + abs(value))
            if rise >= _SUFFICIENT * length * slope or (level and float(np.vdot(r, d)) > -0.5 * slope):
                break
            length *= 0.5
        else:
            f[:], b[:] = old_f, old_b
            terms(y, f, b, prior_mean, r, w)
            multiply_functions(inverses, r, smooth)
            multiply_functions(k, smooth, d)
            f += d
            b += smooth
            value = terms(y, f, b, prior_mean, r, w)
    return value + constant, OUT_OF_ITERATIONS


@dataclass(frozen=True)
class VariationalBayes(Approximator):
    """Factorised posterior q(f) q(v) of latent values f and utilities v. The evidence is a lower bound.

    The posterior means are the mode of the posterior of the latent values, computed by Newton's method. On iris and
    wine it takes 3 to 25 steps for any length scale and prior variances up to e¹². Classes are independent under q(f).
    A class with prior covariance K has the covariance K (K + I)⁻¹, so each distinct K is factorised once.

    Parameters
    ----------
    tolerance : float
        Tolerance on the largest change of a mean utility, and on the posterior's distance of means from the optimum.
    max_iterations : int
        Limit on Newton steps.
    max_products : int
        Limit on matrix products with the prior covariance, for each class, in one Newton step.
    """

    tolerance: float = field(default=1e-8, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))
    max_products: int = field(default=50, metadata=at_least(0))

    name: ClassVar[str] = "vb"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (UtilityBound, BlockCurvature)  # `BlockCurvature` is for the response.
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    bounds: ClassVar[bool] = True

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        bound = likelihood.computation(UtilityBound)
        return variational_bayes(problem, start, history, terms=bound.terms, **self.settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts."""
        return n_functions * n_points

    def bound(self, posterior: Posterior, labels: NDArray[np.int64], likelihood: Likelihood) -> tuple[float, Array]:
        """Return the bound for a posterior q(f) with site precisions 1, and mean utilities (c, n) under the best q(v).

        In the paper's iteration (4.6), these utilities are observations with unit noise for the next posterior.
        """
        mean, weights = (np.ascontiguousarray(each) for each in (posterior.mean, posterior.weights))
        c, n = mean.shape
        slope, curvature = np.empty((c, n)), np.empty((n, c, c))
        terms = likelihood.computation(UtilityBound).terms
        value = terms(labels, mean, weights, posterior.prior.mean, slope, curvature)
        return float(value) - 0.5 * posterior.log_determinant, mean + slope + weights

    def response(self, solution: Solution) -> Posterior:
        """Return Laplace's posterior, since the means are the mode of the posterior of the latent values."""
        return curvature_response(solution)
