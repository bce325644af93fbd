"""Where to begin besides the prior's own point: hyperparameters that the covariances of the data suggest."""

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.prior_view import PriorView, correlations, pairs_by_kind, roles, view

__all__ = ["starting_points"]

_SUGGESTED = (("neighbours", 0.5), ("between", 0.9), ("between", 0.5), ("within", 0.1))
"""Pairs of points, and the median correlation that they are given: from near one another to alike wherever they are."""

_MAGNITUDE = 3.0  # standard deviation of the latent functions, in units of the probit's noise
_PATH = np.linspace(-9, 9, 37)  # steps along which a correlation is sought, unconstrained
_SAME = 0.5  # correlation above which points are the same, at scales far too short for others


def starting_points(log_posterior: LogPosterior, first: Array, count: int, random_seed: int = 0) -> Array:
    """Points (count, d) of the unconstrained space to begin at, `first` the first of them.

    Those that follow have length scales at which the median correlation between nearest neighbours, or between points
    of different or of the same class, is a given one, and a magnitude above the noise. The rest, and those where no
    length scale is found that does this, are draws from the prior.

    Parameters
    ----------
    log_posterior : LogPosterior
    first : array (d,)
    count : int
    random_seed : int
        For the draws.
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
    same = correlations(log_posterior.covariance(first + _PATH[0] * scales)[0]).max(axis=0) > _SAME
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
