"""EP's iteration: damped parallel steps, Anderson acceleration, and the fallback sequence of schemes.

The iteration uses sites through the contract `SiteSpace` alone. Sites may be in memory, or in parts on many machines,
of which only inner products are gathered. If acceleration gets no closer, plain damped steps follow, for an EP without
an energy to descend.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.schemes.anderson import combination, combined_step, residual_products, weighted_norm
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.solvers.problem import History

type Sweep = Callable[[Array, Array, Array], tuple[bool, float, float]]
"""One sweep of a kind of EP, `sweep(sites, target, scale)`.

It computes the posterior that the sites imply, writes the sites that match the tilted moments into `target` and the
marginal variances of what they act on into `scale` (n, d), and returns success, evidence, and the largest change of a
site in units of its marginal.
"""


class SiteSpace(Protocol):
    """The sites of an EP and their past, wherever they are."""

    def sweep(self) -> tuple[bool, float, float]:
        """One sweep from the present sites: success, evidence, and the largest change of a site."""

    def norm(self) -> float:
        """Squared norm of the residual, the change that the last sweep is for; it is free of units."""

    def remember(self, slot: int) -> None:
        """Keep the change of sites and residual since the sweep before, in one of the places of the memory."""

    def damp(self, damping: float) -> None:
        """Take a part of the residual."""

    def accelerate(self, used: int, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        """Take an accelerated step; a precision that would leave the interval takes a part of the residual."""

    def clear(self) -> None:
        """Make all sites 0."""


class SiteVector:
    """Sites (2, n, d) as a vector x, their residual f, weights that make it free of units, and differences of both.

    Parameters
    ----------
    sites : array (2, n, d)
        Precisions and locations. They are overwritten.
    depth : int
        How many differences are kept.
    """

    def __init__(self, sites: Array, depth: int) -> None:
        self.sites = sites
        self.target, self.scale = np.empty_like(sites), np.empty(sites.shape[1:])
        self._x = sites.reshape(-1)
        self._weight, self._step = np.empty((2, self._x.size))
        self._dx, self._df = np.empty((2, depth, self._x.size))
        self._f = self.target.reshape(-1)  # in place, as all is: sites of a million points are what takes the memory
        self._old_x, self._old_f = np.empty((2, self._x.size))

    def norm(self) -> float:
        """Squared norm of the residual that `target` and `scale` imply; it takes the place of `target`."""
        half = self._x.size // 2
        self._f -= self._x
        variance = self.scale.reshape(-1)
        self._weight[half:] = variance
        np.multiply(variance, variance, out=self._weight[:half])
        return float(weighted_norm(self._weight, self._f))

    def remember(self, slot: int) -> None:
        np.subtract(self._x, self._old_x, out=self._dx[slot])
        np.subtract(self._f, self._old_f, out=self._df[slot])

    def forget(self, slot: int) -> None:
        """Keep no change in one of the places of the memory."""
        self._dx[slot] = self._df[slot] = 0.0

    def rest(self) -> None:
        """Have no residual and no past, so that steps leave the sites where they are until the next sweep."""
        for values in (self.target, self.scale, self._weight, self._dx, self._df):
            values[:] = 0.0

    def damp(self, damping: float) -> None:
        self._old_x[:], self._old_f[:] = self._x, self._f
        self._f *= damping
        self._x += self._f

    def products(self, used: int) -> tuple[Array, Array]:
        """Return the inner products (used, used) and (used,) that choose a combination of the past."""
        gram, rhs = residual_products(self._weight, self._f, self._df, used)
        return gram, rhs

    def combine(self, gamma: Array, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        """Take the step that a combination (used,) of the past makes, see `SiteSpace.accelerate`."""
        half = self._x.size // 2
        self._old_x[:], self._old_f[:] = self._x, self._f
        combined_step(self._f, self._dx, self._df, gamma, mixing, self._step)
        self._step += self._x
        # Where acceleration takes a precision out of its interval, the plain step does not.
        precisions = self._step[:half]
        outside = ~((precisions >= interval[0]) & (precisions < interval[1]))
        precisions[outside] = self._x[:half][outside] + damping * self._f[:half][outside]
        self._x[:] = self._step

    def clear(self) -> None:
        self.sites[:] = 0.0


class SitesInMemory(SiteVector):
    """Sites that are arrays, as a `SiteSpace`.

    Parameters
    ----------
    sweep : Sweep
    sites : array (2, n, d)
        They are overwritten.
    depth : int
    """

    def __init__(self, sweep: Sweep, sites: Array, depth: int) -> None:
        super().__init__(sites, depth)
        self._sweep = sweep

    def sweep(self) -> tuple[bool, float, float]:
        return self._sweep(self.sites, self.target, self.scale)

    def accelerate(self, used: int, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        self.combine(combination(*self.products(used)), mixing, damping, interval)


class Steps(NamedTuple):
    """How an iteration goes from sweep to sweep; see `pymc_gpep.approximations.approximator.AcceleratedEP`."""

    tolerance: float
    depth: int
    mixing: float
    damping: float
    largest_precision: float
    """Precisions of sites that match moments are less."""
    least_precision: float = 0.0
    """And at least this."""

    def times(self, size: float) -> Self:
        """Steps that are so many times as long."""
        return self._replace(mixing=size * self.mixing, damping=size * self.damping)


_WARM_UP = 2  # damped sweeps before the first acceleration: the first steps are too nonlinear to extrapolate,
_BOLD = 1.0  # unless the residual is already this small, as it is from the sites of neighbouring hyperparameters
# A squared norm of the residual this much above the smallest one means that the extrapolation has gone astray. Near the
# fixed point, where the iteration is all but linear, it may grow for a sweep and the memory is still worth keeping.
_GROWTH, _GROWTH_NEAR = 2.0, 100.0
_NEAR = 0.1  # residual
_PROGRESS = 0.7  # a residual this much below the smallest one counts as progress


def accelerated_ep(
    sweep: Sweep,
    sites: Array,
    history: History,
    steps: Steps,
    *,
    patience: float = np.inf,
) -> tuple[float, int]:
    """Iterate from `sites` (2, n, d), which are overwritten; see `iterate`."""
    return iterate(SitesInMemory(sweep, sites, steps.depth), history, steps, patience=patience)


def iterate(space: SiteSpace, history: History, steps: Steps, *, patience: float = np.inf) -> tuple[float, int]:
    """Iterate from the sites of a space until converged or without progress for `patience` sweeps.

    Sites are precisions and locations; those that match moments have precisions from the least to below the
    largest. Damped for the first sweeps, then accelerated, and starting afresh from a damped step whenever the residual
    grows. Returns evidence and status.
    """
    tolerance, depth, mixing, damping, largest_precision, least_precision = steps
    stored = sweeps = progress = 0
    smallest = best_residual = last_residual = np.inf
    evidence = np.nan
    while not history.is_full() and sweeps - progress < patience:
        ok, new_evidence, residual = space.sweep()
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE
        change = abs(new_evidence - evidence)
        evidence = new_evidence
        history.add(evidence, residual)
        sweeps += 1
        if residual < tolerance and change < tolerance * (1.0 + abs(evidence)):
            return evidence, CONVERGED
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE
        if residual < _PROGRESS * best_residual:
            best_residual = residual
            progress = sweeps
        norm = space.norm()
        if norm > (_GROWTH if last_residual > _NEAR else _GROWTH_NEAR) * smallest:
            stored = 0
            smallest = norm
        elif depth > 0 and sweeps > 1 and (sweeps > _WARM_UP + 1 or last_residual < _BOLD):
            space.remember(stored % depth)
            stored += 1
        smallest = min(smallest, norm)
        last_residual = residual
        if stored > 0:
            space.accelerate(min(stored, depth), mixing, damping, (least_precision, largest_precision))
        else:
            space.damp(damping)
    return evidence, OUT_OF_ITERATIONS


SCHEMES = ("accelerated EP", "damped EP", "damped EP with small steps")
_PATIENCE = 40  # sweeps without progress before the next rung
_ROUGHLY = 1e-2  # tolerance of problems on the way
_SHRINKAGE = 0.6  # damping of each rung, in units of that of the one before


def ep_ladder(sweep: Sweep, sites: Array, history: History, *, ladder: bool, **options: Any) -> tuple[float, int, int]:
    """Iterate from `sites` (2, n, d), which are overwritten; see `climb`."""
    space = SitesInMemory(sweep, sites, options["depth"])
    return climb(space, history, ladder=ladder, **options)


def signed_ladder(
    sweep: Sweep,
    sites: Array,
    history: History,
    without: Callable[[Array], None],
    *,
    easier: Callable[[int], bool] | None = None,
    again: bool = True,
    least_again: float = 0.0,
    **options: Any,
) -> tuple[float, int, int]:
    """Iterate from sites whose precisions may be negative, and without these where that does not converge.

    Where easier problems lead to the one at hand, they are tried in between, from sites of zero.

    Parameters
    ----------
    sweep, sites, history
        As for `ep_ladder`.
    without : callable
        Makes the sweep leave negative precisions out. It gets the sites to begin from again, and may change them.
    easier : callable, optional
        Makes the sweep that of problem 0, 1, …, each nearer to the one at hand than the one before. It returns True
        once it is that one. This is the last rung.
    again : bool
        Whether to begin again without negative precisions, which is the last rung but one.
    least_again : float
        Least entry of the first half of the sites then.
    **options
        As for `ep_ladder`.
    """
    begun = sites.copy()
    ended = ep_ladder(sweep, sites, history, least_precision=-np.inf, last_patience=_PATIENCE, **options)
    if ended[1] == CONVERGED or not again or history.is_full():
        return ended
    if easier is not None:
        sites[:] = 0.0
        stage, status = 0, CONVERGED
        while status == CONVERGED:
            arrived = easier(stage)
            steps = options | {name: _SHRINKAGE * options[name] for name in ("mixing", "damping")}
            steps |= {"ladder": False} | ({} if arrived else {"tolerance": _ROUGHLY})
            evidence, status, _ = ep_ladder(
                sweep, sites, history, least_precision=-np.inf, last_patience=_PATIENCE, **steps
            )
            if arrived and status == CONVERGED:
                return evidence, status, len(SCHEMES) + 1
            stage += 1
    sites[:] = begun
    without(sites)
    evidence, status, _ = ep_ladder(sweep, sites, history, least_precision=least_again, **options)
    return evidence, status, len(SCHEMES)


def climb(
    space: SiteSpace, history: History, *, ladder: bool, last_patience: float = np.inf, **options: Any
) -> tuple[float, int, int]:
    """Iterate from the sites of a space. Returns evidence, status and the rung reached.

    The last rung ends after `last_patience` sweeps without progress. Other options are those of
    `pymc_gpep.solvers.accelerated_ep.Steps`.
    """
    steps = Steps(**options)
    rung = 0
    while True:
        last = not ladder or rung == len(SCHEMES) - 1
        evidence, status = iterate(space, history, steps, patience=last_patience if last else _PATIENCE)
        if status in (CONVERGED, NOT_POSITIVE_DEFINITE) or last or history.is_full():
            return evidence, status, rung
        if status == NOT_FINITE:
            space.clear()
        rung += 1
        steps = steps.times(_SHRINKAGE)._replace(depth=0)
