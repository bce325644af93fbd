"""The maximum of a log posterior, the search that found it, and the test that the end is a maximum.

Some searches end at a standard deviation of 0 of `pm.LKJCholeskyCov`, which is not a maximum (`collapsed`). PyMC's
coordinates of a Cholesky factor are its entries, with logarithms on the diagonal. In these coordinates, and if
correlations are 0, the density of row i > 1 is the density of its standard deviation σ times σ^(2 − i). If the density
of σ is positive at 0, the log posterior has no maximum near σ = 0. It rises to a bound for i = 2, and without a bound
for i > 2.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from pymc.distributions.transforms import CholeskyCovPacked
from scipy.optimize import minimize

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.ascent import (
    FLAT,
    STUCK,
    UNBOUNDED,
    Curve,
    HyperAscent,
    defined_nearby,
    higher_nearby,
    is_close,
    no_curvature,
)
from pymc_gpep.kernels.status import (
    CONVERGED,
    IMPROPER,
    MESSAGES,
    NOT_CONCAVE,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_DIGITS,
    OUT_OF_ITERATIONS,
    OUT_OF_MEMORY,
)
from pymc_gpep.log_posteriors.evaluation import Evaluation, evaluation_table
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.log_posteriors.quasi_newton import units_of
from pymc_gpep.reading.integrated import why_improper

AGREE = 0.1
"""Largest difference of the log posterior between two ends that count as equal."""


def why_stopped(stopped: BaseException) -> str:
    """Return the reason for the end of a search from an interrupt or a callback's StopIteration."""
    return str(stopped) or ("Interrupted." if isinstance(stopped, KeyboardInterrupt) else "Stopped by a callback.")


@dataclass(frozen=True)
class Optimum:
    """Result of an optimisation: the best point, whether it is a maximum, and the history."""

    best: Evaluation
    converged: bool
    message: str
    history: tuple[Evaluation, ...]
    """Evaluations at the initial point and after each iteration."""
    interrupted: bool = False
    """Whether Ctrl-C ended the search or the integral over the hyperparameters."""
    ends: tuple[Evaluation, ...] = ()
    """Ends of searches from several points, in the order of the points; with NaN if a search could not begin."""
    remark: str = ""
    """Text on the search that is appended to its outcome."""
    stopped: bool = False
    """Whether Ctrl-C or a callback ended the search before its end."""
    decrement: float = np.nan
    """Expected gain of the log posterior by a Newton step from the end; NaN if the curvature is unknown."""
    deviations: Array | None = None
    """Standard deviations (d,) by the curvature at the end; None if it is unknown, or for many parameters."""

    def settled(self) -> Self:
        """Return the search as converged if it ended at a border that is absent in the coordinates of the integral."""
        if self.converged or _BORDER not in self.message:
            return self
        return replace(self, converged=True, message="", remark=_AT_A_BORDER)

    def stopped_by(self, ended_by: BaseException) -> Self:
        """Return a copy that was ended by an interrupt or by the StopIteration of a callback."""
        why, interrupted = why_stopped(ended_by), isinstance(ended_by, KeyboardInterrupt)
        return replace(self, converged=False, message=why, interrupted=interrupted, stopped=True)

    def followed_by(self, later: "Optimum") -> "Optimum":
        """Return the better of two searches, with both histories; `later` began above the end of this search."""
        better = later if later.best.log_posterior > self.best.log_posterior else self
        return replace(better, history=(*self.history, *later.history), remark=_AGAIN, ends=self.ends)

    @property
    def ended_by(self) -> BaseException | None:
        """Exception of the kind that stopped the search early; None if the search was not stopped."""
        kind = KeyboardInterrupt if self.interrupted else StopIteration
        return kind(self.message) if self.stopped else None

    @property
    def first(self) -> Evaluation:
        return self.history[0]

    unit: ClassVar[str] = "iteration"
    per_epoch: ClassVar[int] = 1

    @property
    def slopes(self) -> Array:
        return np.array([np.abs(each.gradient).max(initial=0.0) for each in self.history])

    @property
    def units(self) -> Array | None:
        """Inverse curvature estimated by BFGS steps, see `Trace`; None without iterations."""
        steps = [(b.theta - a.theta, a.gradient - b.gradient) for a, b in pairwise(self.history)]
        return units_of([(step, fall) for step, fall in steps if step @ fall > _SHOWN])

    def stored(self) -> xr.Dataset:
        return evaluation_table(self.history, "iteration")

    def described(self) -> dict[str, Any]:
        return {
            "trace_converged": int(self.converged),
            "trace_interrupted": int(self.interrupted),
            "trace_message": self.message,
            "trace_remark": self.remark,
        }

    def broken_off(self, why: str) -> Self:
        return replace(self, converged=False, message=why, interrupted=True)

    def ended_as(self, why: str) -> Self:
        return replace(self, message=why)

    @property
    def columns(self) -> dict[str, Array]:
        return {
            name: np.array([getattr(each, name) for each in self.history])
            for name in ("evidence", "log_posterior", "iterations")
        }

    @property
    def losses(self) -> Array:
        """Negative log posterior at each iteration, like the losses of PyMC's methods."""
        return -np.array([each.log_posterior for each in self.history])

    @property
    def outcome(self) -> str:
        """Text on convergence, number of iterations and reason of the end, beginning with the target."""
        steps = len(self.history) - 1
        after = f"after {steps} iteration{'' if steps == 1 else 's'}"
        ended = f"converged {after}" if self.converged else f"did not converge {after} ({self.message.strip('. ')})"
        return f"{ended}, {self.remark}" if self.remark else ended

    @property
    def agreement(self) -> str:
        """Text on how many searches ended at the best point; empty for a single search."""
        if len(self.ends) < 2:
            return ""
        below = self.best.log_posterior - np.array([end.log_posterior for end in self.ends])
        failed, others = int(np.isnan(below).sum()), below[below > AGREE]
        many = len(below)
        same = many - failed - others.size
        everyone = "both" if many == 2 else f"all {many}"
        words = [f"{everyone if same == many else f'{same} of {many}'} starts ended there"]
        if others.size:
            words.append(f"the other{'' if others.size == 1 else 's up to'} {others.max():.2f} below")
        if failed:
            words.append(f"{failed} failed")
        return ", ".join(words)


def maximise(
    log_posterior: LogPosterior,
    theta: Array,
    max_iterations: int,
    callback: Callable[[tuple[Evaluation, ...]], None] = lambda history: None,
    start: Array | None = None,
    search: LogPosterior | None = None,
    flat: float = FLAT,
    units: Array | None = None,
    curvature: Curve = no_curvature,
) -> Optimum:
    """Find the maximum of the log posterior by BFGS, with exact gradients (type-II maximum a posteriori).

    The search ends where ½ gᵀH g is small, for the gradient g and the estimate H of the inverse curvature. This is the
    expected rise of the log posterior up to the maximum, and does not depend on units of parameters. If `curvature`
    returns curvatures in some hyperparameters, the search begins with Newton's method in these hyperparameters.

    A point without a slope need not be a maximum: a start about which the log posterior is symmetric has no slope. If a
    point near the end is higher, the search continues from this point.

    Parameters
    ----------
    log_posterior : LogPosterior
    theta : array
        First point, unconstrained.
    max_iterations : int
    callback : callable
        Function that is called with the history after each iteration. StopIteration or KeyboardInterrupt from it ends
        the search, and the best point so far is returned.
    start : array, optional
        `Evaluation.start` of a point near `theta`.
    search : LogPosterior, optional
        Log posterior used during the search. The default is `log_posterior` with a loose tolerance.
    flat : float
        Largest relative change of the log posterior in an iteration that counts as zero.
    units : array (d, d), optional
        Initial inverse curvature, which determines the first steps, such as `Optimum.units`.
    curvature : function of an Evaluation
        Curvature of the log posterior at an evaluation, or None; see `LogPosterior.curvature`.

    Raises
    ------
    ValueError
        If the approximation fails at the initial point.
    """
    searching = theta.size > 0 and max_iterations > 0
    evaluate = search or (log_posterior.loosely() if searching else log_posterior)
    rough = evaluate.roughly() if searching and not search else evaluate
    best = rough(theta, start)
    if not theta.size and best.status in (OUT_OF_ITERATIONS, OUT_OF_DIGITS, IMPROPER):
        return Optimum(best, True, _NOTHING, (best,))  # The status of the solution describes the failure.
    if searching and best.status == OUT_OF_ITERATIONS:
        best = rough(theta, best.start)  # The first solve needs most iterations, so its tolerance is wide.
    size, remark = how_many(log_posterior, theta), ""
    if searching and not np.isfinite(best.log_posterior):
        best, remark = off_start(evaluate, best, size)
    if not (np.isfinite(best.log_posterior) and (not searching or np.isfinite(best.gradient).all())):
        refuse(log_posterior, best)
    if not searching:
        return Optimum(best, not theta.size, "No iteration was allowed" if theta.size else _NOTHING, (best,))
    climb = HyperAscent(evaluate, rough, best, max_iterations, callback, flat)
    ended_by: BaseException | None = None
    converged, message = False, ""
    try:
        climb.begin(curvature, units)
        for _ in range(_SADDLES):
            converged, message = climb.run()
            if not converged or (higher := higher_nearby(evaluate, climb.history, size)) is None:
                break
            remark = _SADDLE
            climb.go_to(higher)
        best = climb.highest()
        exact = best if evaluate is log_posterior else log_posterior(best.theta, best.start)
        if converged:
            exact = climb.polished(exact, log_posterior)
        if exact.status == NOT_POSITIVE_DEFINITE and search is None:
            # The search skipped checks of covariances: repeat it with checks.
            return maximise(
                log_posterior, theta, max_iterations, callback, start, log_posterior, flat, units, curvature
            )
    except (KeyboardInterrupt, StopIteration) as stopped:
        converged, message, ended_by = False, "", stopped
        best = exact = climb.highest()  # A later solve at this point, if needed, has the full tolerance.
    found = Optimum(
        exact if exact.usable else best, converged, message, tuple(climb.history), remark=remark, **climb.judgement()
    )
    return found if ended_by is None else found.stopped_by(ended_by)


def how_many(log_posterior: LogPosterior, theta: Array) -> int:
    """Return the number of hyperparameters, the first elements of a flat vector."""
    return sum(np.size(value) for value in log_posterior.point(theta).values())


def off_start(evaluate: Callable[..., Evaluation], here: Evaluation, size: int) -> tuple[Evaluation, str]:
    """Return a better point near a start that fails or has no slope, and a remark for the user.

    If the start has a slope, or no better point is near, return the start and an empty text.
    """
    if not np.isfinite(here.log_posterior):
        beside = defined_nearby(evaluate, here.theta, size)
        return (here, "") if beside is None else (beside, _UNDEFINED)
    # The initial value makes `flat` False without hyperparameters; NaN compares as False.
    flat = np.abs(here.gradient[:size]).min(initial=np.inf) < _NO_SLOPE
    higher = higher_nearby(evaluate, (here,), size) if flat else None
    return (here, "") if higher is None else (higher, _SADDLE)


def too_wide(log_posterior: LogPosterior, x: Array) -> str:
    """Return advice if prior variances are too large for double precision; else an empty text."""
    covariance = getattr(log_posterior, "covariance", None)  # Plain functions have no covariance.
    largest = 0.0 if covariance is None else float(np.max(covariance(x)[0], initial=0.0))
    if not largest > _LARGE:
        return ""
    return (
        f"The largest prior variance is {largest:.2g}, and rounding hides the smaller variances. Divide covariates by "
        "their standard deviations, (x - x.mean()) / x.std(), or give their coefficients narrower priors."
    )


def refuse(log_posterior: LogPosterior, best: Evaluation) -> NoReturn:
    """Raise a ValueError with the reason why a search cannot start; without memory for it, raise a MemoryError."""
    theta = best.theta
    size = how_many(log_posterior, theta)
    values = log_posterior.point(theta)
    point = {key: value.tolist() for key, value in values.items()}
    at = f"at the initial hyperparameters, unconstrained {point}" if size else "at the prior"
    if best.status == OUT_OF_MEMORY:
        raise MemoryError(
            f"{log_posterior.name} {MESSAGES[best.status]} {at}. Give the model fewer rows, or the process more memory."
        )
    if best.status in (NOT_POSITIVE_DEFINITE, NOT_FINITE):
        covariance = partial(log_posterior.covariance, theta) if best.status == NOT_POSITIVE_DEFINITE else None
        if why := why_improper(log_posterior.classifier.prior, values, covariance):
            raise ValueError(f"{log_posterior.name} cannot start {at}. {why}")
    log_posterior.check_moments(theta)
    name = log_posterior.name
    if best.status == CONVERGED and np.isfinite(best.log_posterior):
        names = [key for key, value in values.items() for _ in range(np.size(value))]
        bad = np.flatnonzero(~np.isfinite(best.gradient))
        of = ", ".join(dict.fromkeys(names[i] if i < len(names) else "the inducing inputs" for i in bad))
        beside = log_posterior(theta + _BESIDE, best.start)
        everywhere = "" if np.isfinite(beside.gradient).all() else ". Another start does not help"
        raise ValueError(
            f"{name} cannot start: the log posterior is {best.log_posterior} {at}, but its derivatives with respect to "
            f"{of} are not finite there{everywhere}. A covariance function, a mean or a prior takes the root, a power "
            "or the logarithm of 0. The squared distance between a point and itself is 0, for example. Add a small "
            "number under the root: pm.math.sqrt(squared + 1e-12)."
        )
    advice = (
        "The squares or exponentials of some numbers overflow. Check the magnitudes of the covariance, of the mean "
        f"and of data of the likelihood, such as exposures{'; or give another start=...' if size else '.'}"
    )
    if best.status == CONVERGED and np.isfinite(best.evidence) and best.log_posterior == -np.inf:
        advice = "The prior density of this start is 0. Give a start within the support: initval=... or start=..."
    if best.status == NOT_POSITIVE_DEFINITE:
        advice = too_wide(log_posterior, theta) or (
            "Check the covariance function, and the covariance matrices of Gaussian variables."
        )
    if best.status == OUT_OF_ITERATIONS:
        another = "; or give another start=..." if size else "."
        advice = f"Increase max_iterations, or increase tolerance if rounding prevents it{another}"
    if best.status == IMPROPER:
        effects = log_posterior.classifier.likelihood_model.effects
        advice = f"Sample the model, pm.sample(), or keep effects at their maximum: hyperparameters={effects}."
    if best.status == NOT_CONCAVE:
        advice = f"Take method='ep', which needs no concavity{'; or give another start=...' if size else '.'}"
    raise ValueError(
        f"{name} cannot start: it {MESSAGES[best.status]} {at}. The log posterior there is {best.log_posterior}. "
        f"{advice}"
    )


_NO_START = np.empty(0)
_LARGE = 1e9  # Prior variance above which rounding hides variances of about 1e-6.
_SADDLES = 5  # Largest number of saddles from which a search escapes.
_SADDLE = "having left a stationary point that is not a maximum"
_AGAIN = "having started again at a higher node of the integral over hyperparameters"
_BORDER = " ran to "  # Part of the message of `looked_at`, by which a border is recognised.
_AT_A_BORDER = "at a border that the integral over hyperparameters does not have"
_UNDEFINED = "having replaced the start, at which the log posterior is undefined"
_BESIDE = 0.1
_NO_SLOPE = 1e-7
_NOTHING = "There is nothing to optimise."
_SHOWN = 1e-4  # `units` uses a step if step · (decrease of the gradient over it) exceeds this number.


_STEEP = 0.5  # Slope (unconstrained) above which a point with unavailable curvature is not a maximum.
_FAR = 3.0  # Change of a log scale during a search that counts as divergence: a factor of twenty.
_VERY_FAR = 7.0  # Change of a log scale that counts as divergence in an unfinished search.
_SOME_WAY = 2.0  # Change of a log scale that counts as divergence in a search with noisy gradients.
_FURTHER = 3  # Number of unit steps beyond the end over which an unbounded prior rises.
_BEYOND = (1e-3, 1e-2, 1e-1)  # Lengths of steps along the slope (standard deviations) that search for a border.
_MUCH = 0.05  # Slope per standard deviation above which messages name a hyperparameter.


def looked_at(optimum: Optimum, space: Hyperparameters, log_posterior: LogPosterior | None = None) -> Optimum:
    """Check the end of a search. Return the search as not converged, with a reason, if its end is not a maximum.

    Parameters
    ----------
    optimum : Optimum
    space : Hyperparameters
    log_posterior : LogPosterior, optional
        Log posterior of the search. Without it only scales of priors are checked, as for a search by noisy gradients.
    """
    best, size = optimum.best, len(space.owners)
    stuck = not optimum.converged and optimum.message.startswith((STUCK, UNBOUNDED))
    ended = optimum.converged or stuck
    if optimum.interrupted or not size or not np.isfinite(best.gradient[:size]).all():
        return optimum
    slope = np.zeros(best.theta.size)
    slope[:size] = best.gradient[:size]
    theta = best.theta[:size]
    moved = theta - optimum.history[0].theta[:size]
    ran = _are_scales(space) & (np.abs(moved) > (_FAR if ended else _VERY_FAR))
    unknown = np.isnan(optimum.decrement)
    steep = np.abs(slope).max() > _STEEP if unknown else not is_close(optimum.decrement, best.theta.size)
    why = _where_they_ran(space, theta, moved * ran) if ran.any() and steep else ""
    if why and not ended:
        why = f"{optimum.message.strip('. ')}; {why}"
    if not why and ended and log_posterior is not None:
        try:
            why = collapsed(space, log_posterior, best)
            if not why and (stuck or steep):
                why = _at_a_border(log_posterior, best, slope, optimum.deviations) or _still_rising(space, optimum)
        except KeyboardInterrupt:
            return optimum.broken_off("the search ended, and the check of its end was interrupted")
    return replace(optimum, converged=False, message=why) if why else optimum


def ran_away(space: Hyperparameters, first: Array, theta: Array) -> str:
    """Return a text on scales in priors of hyperparameters that moved from `first` towards an unbounded density.

    A search with noisy gradients may stop early. Therefore the check evaluates the prior density further in the same
    direction.
    """
    moved = theta - first
    ran = _are_scales(space) & (np.abs(moved) > _SOME_WAY)
    if not ran.any():
        return ""
    heights, at = [], theta.astype(np.float64)
    for _ in range(2 * _FURTHER):
        at = at + np.where(ran, np.sign(moved), 0.0)
        at, height = _highest_prior(space, at, ~ran)
        heights.append(height)
    risen = heights[-1] - heights[-1 - _FURTHER]
    return _where_they_ran(space, theta, moved * ran) if risen > _STEEP * _FURTHER else ""


def _highest_prior(space: Hyperparameters, theta: Array, free: NDArray[np.bool_]) -> tuple[Array, float]:
    """Maximise the prior density over the `free` parameters, from theta. Return the point and its log density."""
    at = theta.copy()

    def negative(part: Array) -> tuple[float, Array]:
        at[free] = part
        height, slope = space.log_prior_and_slope(at)
        finite = np.isfinite(height) and np.isfinite(slope).all()
        return (-height, -slope[free]) if finite else (np.inf, np.zeros(part.size))

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = minimize(negative, at[free], jac=True, method="L-BFGS-B")
    at[free] = found.x
    return at, -float(found.fun)


def _are_scales(space: Hyperparameters) -> NDArray[np.bool_]:
    return np.isin(space.owners, list(space.scales_of_priors))


def _where_they_ran(space: Hyperparameters, theta: Array, moved: Array) -> str:
    """Return a text with the names and values of the moved scales, and a remedy."""
    owners, natural = np.array(space.owners), space.natural(theta[None])
    where = [
        f"{name!r} ran to {np.array2string(natural[name][0], precision=2)}"
        for name in dict.fromkeys(owners[moved != 0.0].tolist())
    ]
    what = f"{' and '.join(where)}, where the prior density of the scaled variables is unbounded. No maximum exists"
    if (moved > 0.0).any():
        return f"{what}. Give the scale a prior with little mass at large values, such as pm.Exponential"
    return (
        f"{what}. "
        "Give the scale a prior with little mass near 0, such as pm.InverseGamma, or write the scaled variables by "
        "standard normals z = pm.Normal('z', shape=...): pm.math.exp(mu + tau * z) in place of pm.LogNormal(mu, tau), "
        "and mu + tau * z in place of pm.Normal(mu, tau)"
    )


def _at_a_border(log_posterior: LogPosterior, best: Evaluation, slope: Array, deviations: Array | None) -> str:
    """Return the reason why evaluations a short step along the slope fail; empty if they succeed."""
    units = np.ones_like(slope) if deviations is None else deviations
    length = np.linalg.norm(units * slope)
    for reach in _BEYOND:
        beyond = log_posterior(best.theta + reach * units * (units * slope) / (length or 1.0), best.start)
        if np.isfinite(beyond.log_posterior):
            continue
        try:
            log_posterior.check_moments(beyond.theta)
        except ValueError as error:
            return f"the search came to a border. Beyond this border: {str(error).strip('. ')}"
        if beyond.status == CONVERGED:
            return (
                "the search came to a border, beyond which hyperparameters are outside the support of their priors. "
                "PyMC's own transforms keep a search within the support: leave out default_transform=None"
            )
        wide = too_wide(log_posterior, beyond.theta) if beyond.status == NOT_POSITIVE_DEFINITE else ""
        why = f"the search came to a border, beyond which {log_posterior.name} {MESSAGES[beyond.status]}"
        return f"{why}. {wide.strip('. ')}" if wide else why
    return ""


def _still_rising(space: Hyperparameters, optimum: Optimum) -> str:
    """Return a message with the hyperparameters along which the log posterior still rises at the end."""
    size = len(space.owners)
    slope, units = np.abs(optimum.best.gradient[:size]), optimum.deviations
    unbounded = optimum.message.startswith(UNBOUNDED)
    steep = slope > _STEEP if units is None or unbounded else units[:size] * slope > _MUCH
    if not steep.any():
        return optimum.message
    names = " and ".join(dict.fromkeys(repr(owner) for owner, rises in zip(space.owners, steep, strict=True) if rises))
    if unbounded:
        return (
            f"{UNBOUNDED}: it rises and narrows in {names}. Give their scales, and scales of noise, priors with little "
            "mass near 0, such as pm.InverseGamma"
        )
    if units is None:
        return f"the log posterior still has a slope of {slope.max():.2g} in {names}"
    return f"the log posterior still rises in {names}, by about {optimum.decrement:.2g}, and no step increases it"


_TINY_LOG_SPREAD = -6.0  # Logarithm of a diagonal entry of a Cholesky factor that counts as collapsed to 0.
_NEARER = 0.5  # Step towards a smaller logarithm of a standard deviation, at which the log posterior is compared.
_FALLS = 1e-3  # Smallest fall of the log posterior over the step `_NEARER` that shows a maximum.


def collapsed(space: Hyperparameters, log_posterior: LogPosterior, best: Evaluation) -> str:
    """Return a text on Cholesky factors with a standard deviation that collapsed to 0; else an empty text.

    Parameters
    ----------
    space : Hyperparameters
    log_posterior : LogPosterior
        Log posterior that was searched.
    best : Evaluation
        Evaluation at which the search ended.
    """
    model, point = space.classifier.model, space.point(best.theta)
    further = {name: np.array(value, dtype=np.float64) for name, value in point.items()}
    found = {}
    for rv in space.classifier.hyperparameters:
        if not isinstance(model.rvs_to_transforms[rv], CholeskyCovPacked):
            continue
        rows = further[model.rvs_to_values[rv].name]
        n = int((np.sqrt(8 * rows.shape[-1] + 1) - 1) / 2)
        ends = np.cumsum(np.arange(1, n + 1)) - 1
        gone = rows[..., ends] < _TINY_LOG_SPREAD
        gone[..., 0] = False  # Row 1 is only a log standard deviation, whose density falls to 0 at −∞.
        if not gone.any():
            continue
        found[str(rv.name)] = float(np.exp(rows[..., ends][gone].min()))
        for i in range(1, n):
            away = gone[..., i]
            rows[away, ends[i]] -= _NEARER
            rows[away, ends[i - 1] + 1 : ends[i]] *= np.exp(-_NEARER)
    if not found:
        return ""
    beside = log_posterior(space.flat(further), best.start).log_posterior
    if not beside > best.log_posterior - _FALLS:
        return ""
    where = " and ".join(f"a standard deviation of {name!r} ran to {value:.1g}" for name, value in found.items())
    return (
        f"{where}, where the log posterior in PyMC's coordinates of pm.LKJCholeskyCov does not fall, so a "
        "maximum does not exist. Use an sd_dist without density at 0, such as pm.LogNormal.dist(-1, 1) or "
        "pm.InverseGamma.dist(3, 1), or leave out effects that do not vary. "
        "pm.sample(model=gpep.marginalize(model)) needs no maximum"
    )
