"""Expectation propagation for a likelihood of one latent function (Minka 2001; Opper and Winther 2000, as TAP).

A point has the posterior mean m and variance v, a site of precision π, and the weight b, an entry of K⁻¹(m − m₀). Its
cavity has the variance D = v / (1 − πv) and the mean μ = m − D b. With h(μ, D) = log ∫ p(y | f) N(f | μ, D) df, the
tilted mean is μ + D h′ and the tilted variance D + D² h″. So the new site has the precision γ / (1 − Dγ), γ = −h″, and
the slope h′ at the tilted mean. If a likelihood is not log-concave, γ may be negative: an outlier under heavy tails has
a site of negative precision. With sites scaled to be 1 at m, and A = I + diag(π) K, the evidence is

Let h(μ, D) = log ∫ p(y | f) N(f | μ, D) df, with derivatives in μ. The tilted mean is μ + D h′ and the tilted variance
D + D² h″. So the new site has the precision γ / (1 − Dγ) with γ = −h″, and the slope h′ at the tilted mean. If a
likelihood is not log-concave, γ may be negative: an outlier under heavy tails has a site of negative precision.

For a prior with mean m₀ and covariance K, and sites scaled to be 1 at m, the log evidence is

    Σ [h + ½ D b² + ½ log(1 + πD)] − ½ log|I + ΠK| − ½ bᵀ(m − m₀),   Π = diag(π),

for any sites. At a fixed point, the evidence is stationary in the sites (Nickisch and Rasmussen 2008, section 4).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.cumulants import ScalarCavities, TiltedFactors, tilted_factors
from pymc_gpep.approximations.kl import KL
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.status import IMPROPER, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, GaussianAverage, ParameterSlopes, ScalarDensity
from pymc_gpep.solvers.newton import at_rows, of_width_zero, sites_at_mode
from pymc_gpep.solvers.problem import Algebra, Found, History, Problem, lost_in_rounding, parameter_slopes
from pymc_gpep.solvers.site_ep import SCHEMES, FunctionSitePosterior, largest_change, site_ep, site_of

_AT_MODE = 1e-2  # Tolerance of the mode from which a cold solve starts.
# The kernel `rough` is used if the tolerance is at least _WIDE, or if the largest change exceeds _CLOSE tolerances.
_WIDE, _CLOSE = 1e-5, 1e3
_WIDEST = 10.0  # Larger variances of cavities are lowered to this many prior variances.
_DIGITS = 8.0 * np.finfo(np.float64).eps


def scalar_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    average: Callable[..., None],
    repeated: Callable[..., None] | None = None,
    density: Callable[..., None] | None = None,
    rough: Callable[..., None] | None = None,
    slopes: Callable[..., None] | None = None,
    normal: Callable[..., None] | None = None,
    least_precision: float = 0.0,
    **options: Any,
) -> Found:
    """Run EP. `start` has the precisions and locations of the sites (2, n), and is overwritten.

    `average` is the kernel of `pymc_gpep.likelihoods.local_computations.GaussianAverage`, and `repeated` the function
    of its `of_rows`, used in place of `average`. `slopes` is the kernel of its `ParameterSlopes`. `density`
    is a faster kernel for cavities with variance 0. Sweeps far from the fixed point, and solves with a wide tolerance,
    use the kernel `rough`. `normal` writes the sites of normal densities, since matching moments loses digits for
    precise sites. Precisions of sites are at least `least_precision`, 0 or −∞. Other options are passed to
    `pymc_gpep.solvers.site_ep.site_ep`.
    """
    y = problem.labels
    posterior = FunctionSitePosterior(problem, least_precision)
    h = np.empty((5, y.size))
    mean, width = np.full((2, y.size), np.nan)
    close = _CLOSE * options["tolerance"] if options["tolerance"] < _WIDE else 0.0
    accurate = repeated or at_rows(average, y, problem.parameters)
    terms = fast = accurate if rough is None else at_rows(rough, y, problem.parameters)
    lost = False
    exact = np.full((2, y.size), np.nan)
    if normal is not None:
        normal(y, problem.parameters, exact)
    given = np.isfinite(exact).all(axis=0)
    signed, nothing, widest = least_precision < 0.0, np.zeros(y.size, bool), _WIDEST * problem.prior.variances[0]

    def changed(at: FunctionSitePosterior, sites: Array, target: Array, scale: Array) -> float:
        """Write the sites that match the moments of tilted distributions. Return the largest change."""
        terms(mean, width, h)
        target[:, :, 0] = site_of(h[1], np.maximum(-h[2], at.least), mean, width)
        target[:, given, 0] = exact[:, given]
        return largest_change(target, sites, scale)

    def matched(at: FunctionSitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        nonlocal terms, lost
        b, kept = at.of.weights, at.of.kept
        np.divide(at.of.variance, kept, out=width)
        # Negative site precisions may make a cavity improper.
        beyond = ~(width <= widest) | (kept <= 0.0) if signed else nothing
        width[beyond] = widest[beyond]
        np.subtract(at.of.mean, width * b, out=mean)
        scale[:, 0] = at.of.variance
        residual = changed(at, sites, target, scale)
        if terms is fast is not accurate and residual < close:
            terms = accurate
            residual = changed(at, sites, target, scale)
        # If the tilted density of a prior cannot be normalised, its site is 0.
        improper = np.isnan(h[0]) & np.isfinite(h[1:3]).all(axis=0)
        if lost := bool(improper.any()):
            h[0, improper] = 0.0
            residual = max(residual, 1.0)
        stretch = np.where(beyond, 1.0 + at.of.precision * width, 1.0 / np.where(beyond, 1.0, kept))
        return True, float((h[0] + 0.5 * width * b * b + 0.5 * np.log(stretch)).sum()), residual

    if not start.any() and not given.all():
        # EP may diverge from sites of 0 under a wide prior. Therefore it starts at the mode.
        narrow = at_rows(density or average, y, problem.parameters)
        start.reshape(2, -1)[:] = sites_at_mode(problem, narrow, _AT_MODE, wide=False)
    start.reshape(2, -1)[:, given] = exact[:, given]
    ended = site_ep(posterior, start.reshape(2, -1, 1), history, update=matched, **options)
    status = lost_in_rounding(problem, posterior.of.coordinates, history, ended.status)
    # Sites of large counts are precise. If I + ΠK has the magnitude 10ᵏ (at most its trace), its inverse loses k
    # digits.
    trace = float(problem.prior.variances[0] @ np.abs(posterior.of.precision))
    if problem.prior.by_weights and status == OUT_OF_ITERATIONS and history.smallest_residual < _DIGITS * trace:
        status = OUT_OF_DIGITS
    if lost and status == OUT_OF_ITERATIONS:
        status = IMPROPER
    return posterior.found(ended._replace(status=status), lambda: parameter_slopes(problem, slopes, mean, width))


_ROUGHLY, _FEW = 1e-2, 100  # Tolerance and largest number of iterations of the bound from which a cold solve starts.
_LITTLE = (
    0.05  # A row is an outlier if its site precision is below this fraction of its site precision under the prior.
)


@dataclass(frozen=True)
class EP(AcceleratedEP):
    """Gaussian sites that match mean and variance of every latent value under its tilted distribution."""

    name: ClassVar[str] = "ep"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    matches_moments: ClassVar[bool] = True
    algebra: ClassVar[Algebra] = Algebra.FUNCTION
    follows_parameters: ClassVar[bool] = True
    looseness: ClassVar[float] = 50.0
    schemes: ClassVar[tuple[str, ...]] = (*SCHEMES, "EP with site precisions of at least 0")

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        # At a kink of a log density Laplace's site has precision 0. The posterior of flat coefficients may then be
        # improper.
        hard = not likelihood.log_concave or (problem.prior.flat.size and not likelihood.offers(ScalarDensity))
        if likelihood.of_prior and not start.any():
            start.reshape(2, -1)[:] = self._start_with_priors(problem, likelihood)
        elif hard and not start.any() and likelihood.offers(AverageLogDensity):
            # There may be several fixed points. Start at the Gaussian with the smallest KL divergence.
            begin = np.zeros_like(start)
            KL(tolerance=_ROUGHLY).solver(problem, begin, History(_FEW), likelihood=likelihood)
            start[:] = begin if np.isfinite(begin).all() else 0.0
        average = likelihood.computation(GaussianAverage)
        of_rows = average.of_rows
        slopes = likelihood.computation(ParameterSlopes).average if likelihood.offers(ParameterSlopes) else None
        density = likelihood.computation(ScalarDensity).derivatives if likelihood.offers(ScalarDensity) else None
        return scalar_ep(
            problem,
            start,
            history,
            average=average.terms,
            repeated=of_rows and of_rows(problem.labels, problem.parameters),
            density=None if density is None else of_width_zero(density),
            rough=average.rough,
            slopes=slopes,
            normal=average.normal,
            largest_precision=likelihood.largest_precision,
            least_precision=likelihood.least_precision,
            **self.settings,
        )

    @staticmethod
    def _start_with_priors(problem: Problem, likelihood: Likelihood) -> Array:
        """Return start sites (2, n): sites at the mode, and for prior factors sites that match their moments."""
        terms = likelihood.computation(GaussianAverage).terms
        rows = np.concatenate([each for each, _ in likelihood.given(problem.parameters).priors()])
        mean, variance = (np.ascontiguousarray(each[0]) for each in (problem.prior.mean, problem.prior.variances))
        h = np.empty((5, mean.size))
        terms(mean, variance, problem.labels, problem.parameters, h)
        with np.errstate(invalid="ignore", divide="ignore"):
            own = np.stack(site_of(h[1], -h[2], mean, variance))[:, rows]
        own = np.where(np.isfinite(own).all(axis=0), own, 0.0)

        def normal_priors(mean: Array, variance: Array, y: Array, parameters: Array, out: Array) -> None:
            f, (precision, location) = mean[rows], own
            mean = mean.copy()
            mean[rows] = np.nan  # Factors do not compute terms of NaN.
            terms(mean, variance, y, parameters, out)
            out[:, rows] = 0.0
            out[:3, rows] = (location - 0.5 * precision * f) * f, location - precision * f, -precision

        of_rows = at_rows(normal_priors, problem.labels, problem.parameters)
        sites = sites_at_mode(problem, of_rows, _AT_MODE, wide=False)
        sites[:, rows] = own
        return sites

    def from_outliers(self, solution: Solution) -> tuple[NDArray[np.intp], Array]:
        """Return rows with sites far less precise than under the prior, and a start with these prior sites."""
        likelihood, prior = solution.likelihood, solution.posterior.prior
        if likelihood.log_concave:
            return super().from_outliers(solution)
        mean, variance = np.ascontiguousarray(prior.mean[0]), np.ascontiguousarray(prior.variances[0])
        h = np.empty((5, mean.size))
        likelihood.computation(GaussianAverage).terms(mean, variance, solution.labels, likelihood.parameters, h)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision, location = site_of(h[1], -h[2], mean, variance)
            taken = np.isfinite(location) & (solution.posterior.precision[0] < _LITTLE * precision)
        taken &= precision > 0.0
        return np.flatnonzero(taken), np.where(taken, [precision, location], 0.0).ravel()

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """Return the factors, one for each point, with their cumulants."""
        posterior = solution.posterior
        size = solution.mean.size
        covariance = posterior.covariance_among(np.arange(size)).reshape(size, size)
        mean, variance = posterior.cavities(solution.mean, solution.cov)
        cavities = ScalarCavities(covariance, mean.reshape(size), variance.reshape(size))
        average = solution.likelihood.computation(GaussianAverage).terms
        return tilted_factors(solution, cavities, average, solution.labels)
