"""Tails of the posterior of hyperparameters with flat priors, and moments that do not exist because of them.

Scales with the prior `pm.HalfFlat` may grow together by a factor t. If the data determine r independent directions of
the effects of k such scales, the likelihood falls as t⁻ʳ. The density of log t then falls as t⁻ᵖ with p = r − k. The
posterior is proper if p > 0. Scales and the effects that grow with them have a mean if p > 1, a variance if p > 2
(Gelman 2006, section 3, for the scale of groups with a flat level: r is their number minus 1).
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from pymc.distributions.continuous import HalfFlatRV

from pymc_gpep.array_types import Array
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import LogPosterior

# Distances from the maximum at which the end of a density is evaluated, in standard deviations and in unconstrained
# units. The first distance with a finite log posterior is used.
_END, _ENDS = 100.0, (60.0, 20.0, 10.0, 5.0, 3.0)
# Smallest distance of an end from the maximum (sd). A maximum with a larger sd than _NO_MAXIMUM counts as absent.
_LEAST, _NO_MAXIMUM = 5.0, 20.0
# Smallest fall of the log posterior over the outer half of the distance; for a smaller fall the integral is infinite.
_FALL = 0.1
# Fall below the maximum at which an end of the density is negligible.
_DEEP = 12.0
# Pairs of distances from the maximum, in log scales, between which the power p is measured and rounded.
_FAR = (6.0, 9.0), (3.0, 6.0)
_MOMENTS = 2  # Largest power p of a tail in which the mean or the variance does not exist.
# Slope of the log posterior in the logarithm of a scale with a half-flat prior. If the slope is larger, the posterior
# rises without end.
_RISING = 0.5
_WITHOUT_END = "its log posterior rises without end towards larger values"
_TOGETHER = 3  # Largest number of half-flat scales in one tail.


class Tail(NamedTuple):
    """Tail of the posterior in which half-flat scales grow together."""

    places: tuple[int, ...]
    """Indices of the elements of θ that grow."""
    names: tuple[str, ...]
    """Names of the hyperparameters to which the growing elements of θ belong."""
    power: int
    """Power p: the density of the log scales falls as t⁻ᵖ."""
    far: tuple[Evaluation, Evaluation]
    """Evaluations in the tail, the nearer one first."""

    @property
    def moments(self) -> int:
        """Number of moments that exist: 0, 1 (mean) or 2 (mean and variance)."""
        return int(np.clip(self.power - 1, 0, _MOMENTS))


def heavy_tails(log_posterior: LogPosterior, best: Evaluation) -> list[Tail]:
    """Return the tails in which a scale has no mean or no variance, and tails that make the posterior improper.

    The data determine at least as many directions for several scales together as for each scale. So only scales with
    small powers can make a heavy tail together.
    """
    space = log_posterior.space
    alone = {i: tail for i in _half_flat(space) if (tail := _tail(log_posterior, best, (i,))) is not None}
    found = list(alone.values())
    for count in range(2, _TOGETHER + 1):
        few = [i for i, tail in alone.items() if tail.power <= count - 1 + _MOMENTS]
        found += [tail for some in combinations(few, count) if (tail := _tail(log_posterior, best, some)) is not None]
    return [tail for tail in found if tail.power <= _MOMENTS]


def _half_flat(space: Hyperparameters) -> list[int]:
    """Return the elements of θ that are logarithms of half-flat scales."""
    names = {str(rv.name) for rv in space.classifier.hyperparameters if isinstance(rv.owner.op, HalfFlatRV)}
    return [i for i in np.flatnonzero(space.transformed).tolist() if space.owners[i] in names]


def _tail(log_posterior: LogPosterior, best: Evaluation, places: tuple[int, ...]) -> Tail | None:
    """Return the tail in which elements `places` of θ grow; None if its mass is negligible or unknown."""
    direction = np.isin(np.arange(best.theta.size), places)
    for reaches in _FAR:
        with np.errstate(all="ignore"):
            near, far = (log_posterior(best.theta + reach * direction, best.start) for reach in reaches)
        fall = (near.log_posterior - far.log_posterior) / (reaches[1] - reaches[0])
        if np.isfinite(fall):
            power = round(fall)
            if best.log_posterior - near.log_posterior - power * reaches[0] > _DEEP:
                return None
            names = dict.fromkeys(log_posterior.space.owners[i] for i in places)
            return Tail(places, tuple(names), power, (near, far))
    return None


def check_rises(log_posterior: LogPosterior, theta: Array) -> None:
    """Raise a ValueError if the log posterior rises without end in a half-flat scale from the start of a search.

    The likelihood then has a positive limit. For example, a negative binomial becomes a Poisson distribution.
    """
    space = log_posterior.space
    for i in _half_flat(space):
        with np.errstate(all="ignore"):
            near, far = (log_posterior(theta + part * _ENDS[0] * np.eye(theta.size)[i]) for part in (0.5, 1.0))
        if far.log_posterior - near.log_posterior > _RISING * 0.5 * _ENDS[0]:
            raise _improper(space, [space.owners[i]], _WITHOUT_END, has_maximum=False)


def check_ends(log_posterior: LogPosterior, best: Evaluation, deviations: Array | None) -> None:
    """Raise a ValueError if a hyperparameter whose prior has no density has an improper posterior.

    An example is the scale of two groups with a flat level and a `pm.HalfFlat` prior.
    """
    space = log_posterior.space
    if rising := [i for i in _half_flat(space) if best.gradient[i] > _RISING]:
        raise _improper(space, [space.owners[rising[0]]], _WITHOUT_END, has_maximum=False)
    deviations = np.full(len(space.owners), np.nan) if deviations is None else deviations
    for i in np.flatnonzero(space.without_density):
        known = float(deviations[i]) if 0.0 < deviations[i] < _NO_MAXIMUM or not space.transformed[i] else np.nan
        reaches = [*([_END * known] if np.isfinite(known) else []), *_ENDS]
        reaches = [reach for reach in reaches if not reach < _LEAST * known]
        for sign in (-1.0, 1.0):
            depth = _depth_of_end(log_posterior, best, sign * np.eye(best.theta.size)[i], reaches)
            if depth is not None and depth < _DEEP:
                raise _improper(
                    space,
                    [space.owners[i]],
                    f"its log posterior stays {max(depth, 0.0):.2g} below the maximum towards "
                    f"{'larger' if sign > 0.0 else 'smaller'} values",
                )
    for tail in heavy_tails(log_posterior, best):
        if tail.power <= 0:
            raise _improper(space, tail.names, "its density falls too slowly towards larger values")


def _improper(space: Hyperparameters, names: Sequence[str], why: str, has_maximum: bool = True) -> ValueError:
    """Return the error of an improper posterior of hyperparameters."""
    name, every = names[0], " and ".join(map(repr, names))
    kept = f", or keep {'it at its' if len(names) == 1 else 'them at their'} maximum: hyper='map'" * has_maximum
    return ValueError(
        f"The posterior of {every} is improper: {why}. Give {name!r} a proper prior, such as "
        f"{_density(space, name)}{kept}."
    )


def _depth_of_end(
    log_posterior: LogPosterior, best: Evaluation, direction: Array, reaches: Sequence[float]
) -> float | None:
    """Return the depth of a far end below the maximum; None if the log posterior still falls, or is not finite."""
    for reach in reaches:
        with np.errstate(all="ignore"):
            near, far = (
                log_posterior(best.theta + part * reach * direction, best.start).log_posterior for part in (0.5, 1.0)
            )
        if np.isfinite(near) and np.isfinite(far):
            return float(best.log_posterior - far) if far > near - _FALL else None
    return None


def _density(space: Hyperparameters, name: str) -> str:
    """Return code of a prior with a density."""
    (rv,) = (rv for rv in space.classifier.hyperparameters if rv.name == name)
    return f"pm.HalfNormal({name!r}, s)" if isinstance(rv.owner.op, HalfFlatRV) else f"pm.Normal({name!r}, 0, s)"
