"""Points to start the optimiser of the hyperparameters from, by what the data suggest."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.log_posterior import LogPosterior

_STEPS = (1.0, 4.0)  # unconstrained; the second where the first shows nothing
_ROWS = 200  # points whose pairs with all others are enough for a median
_EFFECT = 1e-6  # least change that counts as one


class PriorView(NamedTuple):
    """Summary of the prior of the latent functions, before labels are seen."""

    log_sd: float
    """Logarithm of the median standard deviation."""
    correlation: dict[str, float]
    """Median correlation of each kind of pairs of points."""


def pairs_by_kind(labels: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Pairs of different points by kind, (n, n) each."""
    different = ~np.eye(labels.size, dtype=bool)
    same = labels[:, None] == labels
    return {"all": different, "within": different & same, "between": different & ~same}


def correlations(k: Array, rows: slice = slice(None)) -> Array:
    """Correlations of covariances (1 or c, n, n), some of their rows; 0 where they are undefined."""
    with np.errstate(all="ignore"):
        sd = np.sqrt(k.diagonal(axis1=1, axis2=2))
        return np.nan_to_num(k[:, rows] / (sd[:, rows, None] * sd[:, None, :]))


def view(k: Array, pairs: dict[str, NDArray[np.bool_]]) -> PriorView:
    """View of covariances (1 or c, n, n), over all functions; of many points, pairs with some of them."""
    rows = slice(None, None, -(-k.shape[1] // _ROWS))
    r = correlations(k, rows)
    chosen = {kind: which[rows] for kind, which in pairs.items()}
    medians = {kind: float(np.median(r[:, which])) for kind, which in chosen.items() if which.any()}
    medians["neighbours"] = float(np.median(np.where(chosen["all"], r, -1).max(axis=2)))
    with np.errstate(all="ignore"):
        return PriorView(float(np.nan_to_num(np.log(np.median(k.diagonal(axis1=1, axis2=2))) / 2)), medians)


def roles(look: Callable[[Array], PriorView], first: Array) -> tuple[Array, Array]:
    """Directions (d,) that raise the variance, and that raise correlations and leave the variance: 1, −1 or 0 each."""
    magnitudes, scales = np.zeros(first.size), np.zeros(first.size)
    for i, direction in enumerate(np.eye(first.size)):
        for step in _STEPS:
            ahead, behind = look(first + step * direction), look(first - step * direction)
            louder = ahead.log_sd - behind.log_sd
            closer = sum(ahead.correlation.values()) - sum(behind.correlation.values())
            if abs(louder) > _EFFECT:
                magnitudes[i] = np.sign(louder)
            elif abs(closer) > _EFFECT:
                scales[i] = np.sign(closer)
            else:
                continue
            break
    return magnitudes, scales


_SUGGESTED = (("neighbours", 0.5), ("between", 0.9), ("between", 0.5), ("within", 0.1))
"""Pairs of points, and the median correlation that they are given: from near one another to alike wherever they are."""

_MAGNITUDE = 3.0  # standard deviation of the latent functions, in units of the probit's noise
_PATH = np.linspace(-9, 9, 37)  # steps along which a correlation is sought, unconstrained
_CORRELATED = 0.5  # correlation above which points are the same, at scales far too short for others


def starting_points(log_posterior: LogPosterior, first: Array, count: int, random_seed: int = 0) -> Array:
    """Points (count, d) of the unconstrained space to begin at, `first` the first of them.

    The next points have a magnitude above the noise, and length scales at which a median correlation is a given one.
    The correlation is that between nearest neighbours, or between points of different or of the same class. The rest,
    and those where no length scale is found that does this, are draws from the prior.

    Parameters
    ----------
    log_posterior : LogPosterior
    first : array (d,)
    count : int
    random_seed : int
        Seed of the draws.
    """
    if count == 1 or not first.size:
        return first[None]
    suggested = _suggested(log_posterior, first)[: count - 1]
    drawn = log_posterior.space.draw_prior(count - 1 - len(suggested), random_seed)
    return np.array([first, *suggested, *drawn])


def _suggested(log_posterior: LogPosterior, first: Array) -> list[Array]:
    _, labels = log_posterior.covariance(first)
    pairs = pairs_by_kind(labels)

    def look(theta: Array) -> PriorView:
        return view(log_posterior.covariance(theta)[0], pairs)

    magnitudes, scales = roles(look, first)
    if not scales.any():
        return []
    # Points that are the same stay alike on any scale, and say nothing of one.
    same = correlations(log_posterior.covariance(first + _PATH[0] * scales)[0]).max(axis=0) > _CORRELATED
    pairs = {kind: which & ~same for kind, which in pairs.items()}
    seen = [look(first + step * scales) for step in _PATH]
    points = []
    for kind, target in _SUGGESTED:
        step = _crossing(np.array([prior.correlation.get(kind, 0.0) for prior in seen]), target)
        if step is None:
            continue
        point = first + step * scales
        if magnitudes.any():
            # An unconstrained magnitude is a logarithm, or nearly one; if it is not, this is a start like others.
            slope = look(point + magnitudes).log_sd - (here := look(point).log_sd)
            point = point + np.clip((np.log(_MAGNITUDE) - here) / slope, -9, 9) * magnitudes if slope else point
        points.append(point)
    return points


def _crossing(correlation: Array, target: float) -> float | None:
    """The least step along `_PATH` at which a correlation has a value, between its points; none if it never has."""
    above = correlation > target
    places = np.flatnonzero(above[1:] != above[:-1])
    if not places.size:
        return None
    i = places[np.abs(_PATH[places]).argmin()]
    share = (target - correlation[i]) / (correlation[i + 1] - correlation[i])
    return float(_PATH[i] + share * (_PATH[i + 1] - _PATH[i]))
