"""Whether the end of a search is a maximum, and why not.

Some searches end where a standard deviation of `pm.LKJCholeskyCov` is 0, and there is no maximum.

PyMC keeps the logarithms of the diagonal of a Cholesky factor, and all else of it as it is. In these values, and where
correlations are 0, the density of row i > 1 is that of its standard deviation σ times σ^(2 − i). Where σ has a density
at 0 the log posterior has no maximum there. It rises to a bound for i = 2, and without one for i > 2.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from pymc.distributions.transforms import CholeskyCovPacked
from scipy.optimize import minimize

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.ascent import STUCK, UNBOUNDED, is_close
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum, too_wide
from pymc_gpep.kernels.status import CONVERGED, MESSAGES, NOT_POSITIVE_DEFINITE

_STEEP = 0.5  # slope, per unit of the unconstrained space, that a maximum does not have where no curvature is known
_FAR = 3.0  # move of an unconstrained hyperparameter that makes a scale twenty times as large or small
_VERY_FAR = 7.0  # the same of a search that has not ended
_SOME_WAY = 2.0  # the same of a search with noise
_FURTHER = 3  # steps of one at the end of the way in that direction, over which priors rise where they have no bound
_BEYOND = (1e-3, 1e-2, 1e-1)  # steps along the slope, in standard deviations, at which a border is looked for
_MUCH = 0.05  # slope per standard deviation, above which a hyperparameter is named


def looked_at(optimum: Optimum, space: Hyperparameters, log_posterior: LogPosterior | None = None) -> Optimum:
    """Return what a search found, not converged and with a reason where its end has a slope.

    Parameters
    ----------
    optimum : Optimum
    space : Hyperparameters
    log_posterior : LogPosterior, optional
        Log posterior that was searched. None where the last step of a search leaves a slope: only scales of priors are
        looked at.
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
            return optimum.broken_off("the search ended, and was interrupted while its end was looked at")
    return replace(optimum, converged=False, message=why) if why else optimum


def ran_away(space: Hyperparameters, first: Array, theta: Array) -> str:
    """Which scales of the priors of others ran from `first` towards where there is no bound; empty if none did.

    This is for a search whose gradients are noisy, and which noise keeps from going all the way. The priors alone are
    followed further in the same direction.
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
    """Where priors are highest near theta, with what is not free held, and how high."""
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
    """Where scales of priors ran to, those that moved, and which priors hold them."""
    owners, natural = np.array(space.owners), space.natural(theta[None])
    where = [
        f"{name!r} ran to {np.array2string(natural[name][0], precision=2)}"
        for name in dict.fromkeys(owners[moved != 0.0].tolist())
    ]
    what = f"{' and '.join(where)}, where the prior density of what it scales has no bound, so that there is no maximum"
    if (moved > 0.0).any():
        return f"{what}. Give it a prior of which little is left at large values, such as pm.Exponential"
    return (
        f"{what}. "
        "Give it a prior that keeps it away from there, such as pm.InverseGamma, or write what it scales by standard "
        "normals: pm.math.exp(mu + tau * z) with z = pm.Normal('z', shape=...) in place of pm.LogNormal(mu, tau), and "
        "mu + tau * z in place of pm.Normal(mu, tau)"
    )


def _at_a_border(log_posterior: LogPosterior, best: Evaluation, slope: Array, deviations: Array | None) -> str:
    """The reason why nothing can be computed a short way along the slope; empty where it can."""
    units = np.ones_like(slope) if deviations is None else deviations
    length = np.linalg.norm(units * slope)
    for reach in _BEYOND:
        beyond = log_posterior(best.theta + reach * units * (units * slope) / (length or 1.0), best.start)
        if np.isfinite(beyond.log_posterior):
            continue
        try:
            log_posterior.check_moments(beyond.theta)
        except ValueError as error:
            return f"the search came to a border, and beyond it: {str(error).strip('. ')}"
        if beyond.status == CONVERGED:
            return (
                "the search came to a border, beyond which hyperparameters are outside of the support of their priors. "
                "PyMC's own transforms keep a search within it: leave out default_transform=None"
            )
        wide = too_wide(log_posterior, beyond.theta) if beyond.status == NOT_POSITIVE_DEFINITE else ""
        why = f"the search came to a border, beyond which {log_posterior.name} {MESSAGES[beyond.status]}"
        return f"{why}. {wide.strip('. ')}" if wide else why
    return ""


def _still_rising(space: Hyperparameters, optimum: Optimum) -> str:
    """The names of those along which it rises, where no step gets higher."""
    size = len(space.owners)
    slope, units = np.abs(optimum.best.gradient[:size]), optimum.deviations
    unbounded = optimum.message.startswith(UNBOUNDED)
    steep = slope > _STEEP if units is None or unbounded else units[:size] * slope > _MUCH
    if not steep.any():
        return optimum.message
    names = " and ".join(dict.fromkeys(repr(owner) for owner, rises in zip(space.owners, steep, strict=True) if rises))
    if unbounded:
        return (
            f"{UNBOUNDED}: it rises and narrows in {names}. Give scales of these, and scales of noise, priors that "
            "keep them away from 0, such as pm.InverseGamma"
        )
    if units is None:
        return f"the log posterior still has a slope of {slope.max():.2g} in {names}"
    return f"the log posterior still rises in {names}, by about {optimum.decrement:.2g}, and no step leads higher"


_NOTHING = -6.0  # logarithm of a standard deviation that is hardly one of data
_NEARER = 0.5  # a step towards 0, in logarithms
_FALLS = 1e-3  # of the log posterior over this step, and much more at a maximum


def collapsed(space: Hyperparameters, log_posterior: LogPosterior, best: Evaluation) -> str:
    """Return which Cholesky factors lost a row, where the log posterior does not fall; empty if none did.

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
        gone = rows[..., ends] < _NOTHING
        gone[..., 0] = False  # the first row is a logarithm alone
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
        f"{where}, where the log posterior of what PyMC keeps of pm.LKJCholeskyCov does not fall, so that there is "
        "no maximum. Give it an sd_dist without density at 0, such as pm.LogNormal.dist(-1, 1) or "
        "pm.InverseGamma.dist(3, 1), or leave out effects that vary by nothing. "
        "pm.sample(model=gpep.marginalize(model)) needs no maximum"
    )
