"""Fixed-point iteration of scalar sites that maximises a bound, with Anderson acceleration. The bound never falls.

With g(m, v) = ∫ log p(y | f) N(f | m, v) df the result is the Gaussian nearest to the posterior in Kullback–Leibler
divergence. With a lower bound of this g, it is a variational bound (Nickisch and Rasmussen 2008, sections 5 and 6). At
the maximum the Gaussian has sites of precision W = −2 ∂g/∂v, with the slope ∂g/∂m at m. A step towards the sites of the
present moments is a step along the natural gradient. A short step always raises the bound. Full steps may cycle if W
changes fast with v. Two targets need fewer sweeps:

- If g is an average, ∂²g/∂m² = 2 ∂g/∂v. A full natural-gradient step is then Newton's step in m at constant W. A
Newton step for m and v of each point under its cavity N(μ, D) accounts for changes of W. It solves m = μ + D ∂g/∂m
and 1/v = 1/D − 2 ∂g/∂v.

- If g is a lower bound, W may be far above the curvature H = −∂²g/∂m². The mean takes a Newton step with H, which
needs another factorisation. W is computed at the new mean.

Second derivatives are finite differences: they affect the steps, but not the result. The bound is Σ g − ½
[bᵀ(m − m₀) + tr A⁻¹ − n + log|A|].
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.acceleration import accelerated_step
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.solvers.newton import at_rows, sites_at_mode, step_length
from pymc_gpep.solvers.problem import Found, FunctionPosterior, History, Problem, lost_in_rounding, parameter_slopes
from pymc_gpep.solvers.site_ep import Ended, FunctionSitePosterior, largest_change

type Sweep = Callable[[Array, Array, Array, Array], tuple[bool, float, float]]
"""Function that makes one sweep, `sweep(sites, natural, better, scale)`.

It computes the posterior for the sites, and writes two kinds of target sites. A short step towards `natural` raises the
objective; at the maximum `natural` equals the sites. Steps to `better` need fewer sweeps; near the maximum `better` may
stay unwritten. Marginal variances of the variables of the sites are written into `scale` (n, d). The function returns
success, the objective, and the largest change to the natural sites in units of the marginal.
"""

_LEVEL = 1e-10  # Largest relative fall of the bound that counts as rounding.
_PATIENCE = 40  # Number of consecutive sweeps without progress after which the iteration ends.
_LAST_BETTER = 0.1  # Step length below which steps use the natural gradient.
_SHORTEST = 1e-8


def accelerated_ascent(
    sweep: Sweep,
    sites: Array,
    history: History,
    *,
    tolerance: float,
    depth: int,
    mixing: float,
    largest_precision: float = np.inf,
    least_precision: float = -np.inf,
) -> tuple[float, int]:
    """Maximise a bound from `sites` (2, n, d), which are overwritten. Return the bound and a status.

    If an accelerated step lowers the bound, the iteration goes back and takes a plain step. If the plain step lowers
    the bound, it is halved until it succeeds. Short steps use the natural gradient.
    """
    natural, better, scale = np.empty_like(sites), np.empty_like(sites), np.empty(sites.shape[1:])
    best_sites, to_natural, to_better = sites.copy(), np.zeros_like(sites), np.zeros_like(sites)
    half = sites.size // 2
    weight, step = np.empty((2, sites.size))
    dx, df = np.empty((2, depth, sites.size))
    best, length, stored = -np.inf, 1.0, 0
    closest, idle = np.inf, 0
    while not history.is_full() and idle < _PATIENCE:
        ok, value, residual = sweep(sites, natural, better, scale)
        if not ok:
            if not (least_precision < 0.0 and np.isfinite(best)):
                return np.nan, NOT_POSITIVE_DEFINITE
            value, residual = -np.inf, np.inf  # The posterior is improper, since precisions are too negative.
        history.add(value, residual)
        idle = 0 if value > best + _LEVEL * (1.0 + abs(best)) or residual < 0.5 * closest else idle + 1
        closest = min(closest, residual)
        if np.isfinite(value + residual) and value >= best - _LEVEL * (1.0 + abs(best)):
            if residual < tolerance and value - best < tolerance * (1.0 + abs(value)):
                return value, CONVERGED
            if residual < tolerance:
                better[:] = natural
            if depth > 0 and np.isfinite(best):
                slot = stored % depth
                dx[slot] = (sites - best_sites).reshape(-1)
                df[slot] = (better - sites - to_better).reshape(-1)
                stored += 1
            best, length = value, 1.0
            best_sites[:], to_natural[:], to_better[:] = sites, natural - sites, better - sites
        elif not np.isfinite(best):
            return np.nan, NOT_FINITE
        else:
            # Without stored steps, the failed step was plain.
            length *= 1.0 if stored else 0.5
            stored = 0
            if length < _SHORTEST:
                break
        if stored:
            variance = scale.reshape(-1)
            weight[half:] = variance
            np.multiply(variance, variance, out=weight[:half])
            accelerated_step(weight, to_better.reshape(-1), dx, df, min(stored, depth), mixing, step)
            np.add(best_sites, step.reshape(sites.shape), out=sites)
            # If acceleration moves a precision out of its interval, the precision takes the plain step.
            outside = ~((sites[0] >= least_precision) & (sites[0] <= largest_precision))
            sites[0][outside] = (best_sites + to_better)[0][outside]
        else:
            np.add(best_sites, length * (to_better if length > _LAST_BETTER else to_natural), out=sites)
    sites[:] = best_sites
    _, value, _ = sweep(sites, natural, better, scale)
    return value, OUT_OF_ITERATIONS


_DIFFERENCE = 1e-4  # Step of finite differences, relative to standard deviations and to variances.
_LEAST_DIFFERENCE = 1e-12  # Smallest step of finite differences of means.
_NARROWEST = 0.1  # Smallest ratio of a variance after and before a step.
_CLOSE = 0.3  # A step that moves means by less (standard deviations) is taken without a line search.
_ROUGHLY = 1e-3  # Tolerance of the sites from which a cold solve starts.
_WIDE = 1.0  # Largest precision at the start of a cold solve.
_DEAR = 2.0  # Value of `loss` above which a start is rejected; for good sites it is at most about 0.5.


class _Look(NamedTuple):
    """Posterior, and the average g of the log density, or a bound of it, at the posterior's moments."""

    posterior: FunctionPosterior
    g: Array
    """Value g of each point and its derivatives ∂g/∂m and ∂g/∂v, (3, n)."""
    at: Callable[[Array, Array], Array]
    """Function that returns g and both derivatives for other means and variances."""
    least: float
    """Lower bound of site precisions, 0 or −∞."""

    @property
    def precision(self) -> Array:
        """Precisions W = −2 ∂g/∂v (n,) of the target sites `natural`, at least `least`."""
        return np.asarray(np.maximum(-2.0 * self.g[2], self.least))


type Target = Callable[[Problem, _Look], tuple[Array, Array]]
"""Function that returns precisions and locations (n,) of target sites."""


def average_target(problem: Problem, look: _Look) -> tuple[Array, Array]:
    """Return target sites if g is an average: a Newton step for the moments of each point under its cavity."""
    posterior, g = look.posterior, look.g
    m, v, b, w, fresh = posterior.mean, posterior.site_variance, posterior.weights, posterior.precision, look.precision
    wide = v / posterior.kept
    apart = _DIFFERENCE * v
    _, across, along = (look.at(m, posterior.variance + apart) - g) / apart  # ∂²g/∂m∂v and ∂²g/∂v²
    # Residuals of the equations for m and 1/v, and the residuals' derivatives in m and v.
    miss_m, miss_v = wide * (b - g[1]), w - fresh
    mm, mv, vm, vv = 1.0 + wide * fresh, -wide * across, 2.0 * across, 2.0 * along - 1.0 / v**2
    determinant = mm * vv - mv * vm
    to_m = (mv * miss_v - vv * miss_m) / determinant
    to_v = (vm * miss_m - mm * miss_v) / determinant
    # Use Newton's step if the bound of the point is concave and the step is short; else the natural gradient.
    good = (determinant < 0.0) & (vv < 0.0) & (to_v > (_NARROWEST - 1.0) * v)
    precision = np.where(good, np.maximum(1.0 / (v + to_v) - 1.0 / wide, look.least), fresh)
    return precision, np.where(good, b + to_m / wide + precision * (m + to_m), g[1] + fresh * m)


def bound_target(problem: Problem, look: _Look) -> tuple[Array, Array]:
    """Return target sites if g is a bound: a Newton step in the mean with a line search, then new precisions."""
    posterior, g = look.posterior, look.g
    m, v, b = posterior.mean, posterior.variance, posterior.weights
    apart = np.maximum(_DIFFERENCE * np.sqrt(v), _LEAST_DIFFERENCE)  # A variance may be 0.

    def curvature(mean: Array) -> Array:
        rise = look.at(mean - apart, v)[1] - look.at(mean + apart, v)[1]
        return np.asarray(np.maximum(rise / (2.0 * apart), 0.0))

    newton = problem.prior.posterior(problem.mean[0])
    if not newton.decompose(curvature(m)):
        return look.precision, g[1] + look.precision * m
    prior, x, bend = problem.prior, posterior.coordinates, newton.precision
    step, moved = newton.solve(prior.residual(g[1][None], x)), np.empty((1, m.size))
    prior.multiply(step, moved)
    image, turn, length = moved[0], g[1] - b - bend * moved[0], 1.0
    if (np.abs(image) > _CLOSE * np.sqrt(v)).any():

        def along_line(t: float) -> tuple[float, float]:
            mean = m + t * image
            return float(image @ look.at(mean, v)[1]), float(image**2 @ curvature(mean))

        start = prior.inner(x, step, moved)
        length = step_length(along_line, float(image @ g[1]) - start, start, prior.inner(step, step, moved))
    mean = m + length * image
    precision = np.maximum(-2.0 * look.at(mean, v)[2], 0.0)
    return precision, b + length * turn + precision * mean


def scalar_bound(
    problem: Problem,
    start: Array,
    history: History,
    *,
    terms: Callable[..., None],
    target: Target,
    slopes: Callable[..., None] | None = None,
    average: Callable[..., None] | None = None,
    repeated: Callable[..., None] | None = None,
    largest_precision: float,
    least_precision: float = 0.0,
    several_rows: bool = False,
    tolerance: float,
    depth: int,
    mixing: float,
) -> Found:
    """Maximise the bound from `start`, precisions and locations of sites (2, n), which are overwritten.

    Precisions are at least `least_precision`, 0 or −∞. A density that is not log-concave may need negative precisions.

    `terms` is the kernel of `pymc_gpep.likelihoods.local_computations.AverageLogDensity` with the target
    `average_target`, or of `QuadraticBound` with `bound_target`. `slopes` is the kernel of `ParameterSlopes` for g.
    `average` is the kernel of `GaussianAverage`, if the likelihood has one, and `repeated` the function of its
    `of_rows`. A cold solve then starts at the sites of naive TAP, which need no factorisation, and are near the maximum
    for any magnitude. If the posterior with these sites is too wide for the density, the solve starts at precise sites
    at the mode. If factors combine `several_rows`, cavities of naive TAP are narrowed.
    """
    y, parameters = problem.labels, problem.parameters
    of_sites = FunctionSitePosterior(problem, least_precision)
    posterior, sites = of_sites.of, start.reshape(2, -1, 1)

    def at(mean: Array, variance: Array) -> Array:
        g = np.empty((3, y.size))
        terms(mean, variance, y, parameters, g)
        return g

    def sweep(sites: Array, natural: Array, better: Array, scale: Array) -> tuple[bool, float, float]:
        if not posterior.update(sites[0, :, 0], sites[1, :, 0]):
            return False, np.nan, np.nan
        m, v = posterior.mean, posterior.variance
        look = _Look(posterior, at(m, v), at, least_precision)
        natural[0, :, 0] = look.precision
        natural[1, :, 0] = look.g[1] + look.precision * m
        scale[:, 0] = v
        residual = largest_change(natural, sites, scale)
        if residual >= tolerance:
            better[0, :, 0], better[1, :, 0] = target(problem, look)
        return True, float(look.g[0].sum()) - posterior.divergence, residual

    def loss(sites: Array) -> float:
        """Return the average loss of log density due to the variance of the posterior with sites (2, n)."""
        if not posterior.update(*sites):
            return np.nan
        mean, variance = posterior.mean, posterior.variance
        return float((at(mean, np.zeros_like(variance))[0] - at(mean, variance)[0]).mean())

    if not sites.any() and average is not None:
        of_rows = at_rows(average, y, parameters)
        wide = sites_at_mode(problem, repeated or of_rows, _ROUGHLY, wide=True, several_rows=several_rows)
        wide[0] = np.clip(wide[0], 0.0, largest_precision)
        sites[:, :, 0] = wide
        if not (wide.any() and loss(wide) < _DEAR):
            # Under a wide posterior, averages of functions that grow exponentially may overflow.
            mode = sites_at_mode(problem, of_rows, _ROUGHLY, wide=False)
            more = np.maximum(min(_WIDE, largest_precision) - mode[0], 0.0)
            sites[:, :, 0] = [mode[0] + more, mode[1] + more * posterior.mean] if posterior.update(*mode) else 0.0
    if not sites.any():
        # Start with narrow sites: under a wide posterior, bounds are low and averages are slow.
        sites[0] = min(_WIDE, largest_precision)
        sites[1] = sites[0] * problem.mean[0][:, None]
    bound, status = accelerated_ascent(
        sweep,
        sites,
        history,
        tolerance=tolerance,
        depth=depth,
        mixing=mixing,
        largest_precision=largest_precision,
        least_precision=least_precision,
    )
    status = lost_in_rounding(problem, posterior.coordinates, history, status)
    return of_sites.found(
        Ended(bound, status, 0), lambda: parameter_slopes(problem, slopes, posterior.mean, posterior.variance)
    )
