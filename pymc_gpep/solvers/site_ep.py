"""EP as a fixed point of sites, with a common sweep, iteration and fallback sequence for all kinds of sites.

`site_ep` is the algorithm. A kind of sites is a subclass of `SitePosterior`, which computes the posterior for the
sites. An approximation passes the update, which matches moments of tilted distributions. The iteration uses only the
interface `SiteSpace`. So sites may be in memory, or distributed over machines that exchange only inner products.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.acceleration import combination, combined_step, residual_products, weighted_norm
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.solvers.problem import NO_PARAMETERS, Derivatives, Found, History, Problem

type Sweep = Callable[[Array, Array, Array], tuple[bool, float, float]]
"""Function that makes one sweep of EP, `sweep(sites, target, scale)`.

It computes the posterior for the sites. It writes the sites that match the tilted moments into `target`, and marginal
variances of the variables of the sites into `scale` (n, d). It returns success, evidence, and the largest change of a
site in units of its marginal.
"""


class SiteSpace(Protocol):
    """Sites of an EP with stored past steps, in memory or distributed."""

    def sweep(self) -> tuple[bool, float, float]:
        """Make one sweep from the present sites. Return success, evidence, and the largest change of a site."""

    def norm(self) -> float:
        """Return the squared norm of the residual: the change of sites by the last sweep, in units of marginals."""

    def remember(self, slot: int) -> None:
        """Store the change of sites and residual since the previous sweep, in a slot of the memory."""

    def damp(self, damping: float) -> None:
        """Add `damping` times the residual to the sites."""

    def accelerate(self, used: int, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        """Take an accelerated step. Precisions that would leave the interval take a damped step."""

    def clear(self) -> None:
        """Make all sites 0."""


class SiteVector:
    """Sites (2, n, d) as a vector x, with their residual f, its weights in the norm, and past changes of x and f.

    Parameters
    ----------
    sites : array (2, n, d)
        Precisions and locations. They are overwritten.
    depth : int
        Number of stored differences.
    """

    def __init__(self, sites: Array, depth: int) -> None:
        self.sites = sites
        self.target, self.scale = np.empty_like(sites), np.empty(sites.shape[1:])
        self._x = sites.reshape(-1)
        self._weight, self._step = np.empty((2, self._x.size))
        self._dx, self._df = np.empty((2, depth, self._x.size))
        self._f = self.target.reshape(-1)  # In place, since sites of a million points take most of the memory.
        self._old_x, self._old_f = np.empty((2, self._x.size))

    def norm(self) -> float:
        """Return the squared norm of the residual, from `target` and `scale`. The residual overwrites `target`."""
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
        """Clear a slot of the memory."""
        self._dx[slot] = self._df[slot] = 0.0

    def rest(self) -> None:
        """Set residual and past to 0, so that steps do not change the sites before the next sweep."""
        for values in (self.target, self.scale, self._weight, self._dx, self._df):
            values[:] = 0.0

    def damp(self, damping: float) -> None:
        self._old_x[:], self._old_f[:] = self._x, self._f
        self._f *= damping
        self._x += self._f

    def products(self, used: int) -> tuple[Array, Array]:
        """Return the inner products (used, used) and (used,) from which the combination of past steps follows."""
        gram, rhs = residual_products(self._weight, self._f, self._df, used)
        return gram, rhs

    def combine(self, gamma: Array, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        """Take the step for coefficients (used,) of past steps, see `SiteSpace.accelerate`."""
        half = self._x.size // 2
        self._old_x[:], self._old_f[:] = self._x, self._f
        combined_step(self._f, self._dx, self._df, gamma, mixing, self._step)
        self._step += self._x
        # If acceleration moves a precision out of its interval, the precision takes the plain step.
        precisions = self._step[:half]
        outside = ~((precisions >= interval[0]) & (precisions < interval[1]))
        precisions[outside] = self._x[:half][outside] + damping * self._f[:half][outside]
        self._x[:] = self._step

    def clear(self) -> None:
        self.sites[:] = 0.0


class SitesInMemory(SiteVector):
    """`SiteSpace` of sites in arrays.

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
    """Options of the sweeps of an iteration; see `pymc_gpep.approximations.approximator.AcceleratedEP`."""

    tolerance: float
    depth: int
    mixing: float
    damping: float
    largest_precision: float
    """Exclusive upper bound of the precisions of matched sites."""
    least_precision: float = 0.0
    """Lower bound of the precisions of matched sites."""

    def times(self, size: float) -> Self:
        """Return the options with step lengths multiplied by `size`."""
        return self._replace(mixing=size * self.mixing, damping=size * self.damping)


_WARM_UP = 2  # Number of damped sweeps before acceleration, since first steps are too nonlinear.
_BOLD = 1.0  # Residual below which acceleration starts at once, as from sites of nearby hyperparameters.
# Ratio of the squared residual to the smallest squared residual, above which past steps are cleared. The ratio is
# larger near the fixed point, where the iteration is nearly linear.
_GROWTH, _GROWTH_NEAR = 2.0, 100.0
_AT_ONCE = 0.3  # Residual, in units of the tolerance, below which the start of an iteration is its end.
_NEAR = 0.1  # Residual below which sites are near the fixed point.
_PROGRESS = 0.7  # Ratio of the residual to the smallest so far, below which a sweep counts as progress.


def iterate(space: SiteSpace, history: History, steps: Steps, *, patience: float = np.inf) -> tuple[float, int]:
    """Iterate from the sites of a space until converged or without progress for `patience` sweeps.

    Precisions of sites lie between the bounds of `steps`. The first sweeps are damped, later sweeps accelerated. If the
    residual grows, the iteration restarts with a damped step. Return evidence and status.
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
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE
        norm = space.norm()
        if sweeps == 1:
            change = norm  # The evidence is stationary in the sites, so its error is of the order of the norm.
        limit = tolerance if sweeps > 1 else _AT_ONCE * tolerance
        if residual < limit and change < tolerance * (1.0 + abs(evidence)):
            return evidence, CONVERGED
        if residual < _PROGRESS * best_residual:
            best_residual = residual
            progress = sweeps
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
            space.damp(1.0 if depth > 0 and sweeps == 1 and residual < _NEAR else damping)
    return evidence, OUT_OF_ITERATIONS


SCHEMES = ("accelerated EP", "damped EP", "damped EP with small steps")
PATIENCE = 40
"""Number of sweeps without progress before the next scheme."""
_PATIENCE_OF_RANKS = 12  # `PATIENCE` of a solve whose evidence only ranks hyperparameters.
_SHRINKAGE = 0.6  # Step length of each scheme, relative to the previous scheme.


class Ended(NamedTuple):
    """End of an iteration."""

    evidence: float
    """NaN if the iteration failed."""
    status: int
    """A status of `pymc_gpep.kernels.status`."""
    rung: int
    """Index of the last scheme, 0 for the first."""


def fallback(*, ladder: bool, **options: Any) -> list[Steps]:
    """Return the options of each of `SCHEMES`; only of the first if not `ladder`. `options` are passed to `Steps`."""
    first = Steps(**options)
    further = [first.times(_SHRINKAGE**rung)._replace(depth=0) for rung in range(1, len(SCHEMES))]
    return [first, *further] if ladder else [first]


def run_schemes(
    space: SiteSpace, history: History, schemes: Sequence[Steps], *, last_patience: float = np.inf
) -> Ended:
    """Iterate from the sites of a space by each scheme in turn, until a scheme converges, or the posterior fails.

    A scheme starts at the end of the previous scheme, or from zero if the end is not finite. The last scheme ends after
    `last_patience` sweeps without progress.
    """
    evidence, status, rung = np.nan, OUT_OF_ITERATIONS, 0
    for rung, steps in enumerate(schemes):
        last = rung == len(schemes) - 1
        evidence, status = iterate(space, history, steps, patience=last_patience if last else PATIENCE)
        if last or status in (CONVERGED, NOT_POSITIVE_DEFINITE) or history.is_full():
            break
        if status == NOT_FINITE:
            space.clear()
    return Ended(evidence, status, rung)


class ImpliedPosterior(Protocol):
    """Posterior for sites of one kind, used by a sweep."""

    least: float
    """Lower bound of site precisions, 0 or −∞, to which the update clips. The last scheme sets the bound to 0."""

    def take(self, sites: Array) -> tuple[bool, float]:
        """Compute the posterior from sites (2, n, d). Return success and log ∫ p(f) ∏ sites df."""
        ...

    def shrink(self, sites: Array, factor: float) -> bool:
        """Multiply negative precisions of sites by a factor in [0, 1). Return False if all precisions are positive."""
        ...


type Update[P] = Callable[[P, Array, Array, Array], tuple[bool, float, float]]
"""Function that matches moments, `update(posterior, sites, target, scale)`.

It writes the sites that match the tilted moments into `target`, and marginal variances of the variables of the sites
into `scale` (n, d). It returns success, the terms of the points in the evidence, and the largest change of a site in
units of its marginal.
"""

_HALVINGS = 30  # Number of halvings of negative precisions before they become 0.


def site_sweep[P: ImpliedPosterior](posterior: P, update: Update[P]) -> Sweep:
    """Return the sweep of `site_ep`, its steps 1 to 4."""

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        ok, normaliser = posterior.take(sites)
        for factor in (*repeat(0.5, _HALVINGS), 0.0):
            if ok or not posterior.shrink(sites, factor):
                break
            ok, normaliser = posterior.take(sites)
        if not ok:
            return False, np.nan, np.nan
        ok, terms, residual = update(posterior, sites, target, scale)
        return ok, normaliser + terms, residual

    return sweep


_ROUGHLY = 1e-2  # Tolerance of the easier problems.


def site_ep[P: ImpliedPosterior](
    posterior: P,
    sites: Array,
    history: History,
    *,
    update: Update[P],
    easier: Sequence[Update[P]] | None = None,
    last_least: float = 0.0,
    ladder: bool,
    **options: Any,
) -> Ended:
    """Iterate sites to the fixed point of EP (Minka 2001; Opper and Winther 2000).

    A sweep, for all sites at once (van Gerven and others 2010):

    1. Compute precisions Π and locations ν of the latent values from the iterated sites.
    2. Compute b = (I + ΠK)⁻¹(ν − Πm), means m + Kb and covariances of each point. The prior has mean m and covariance
       K. If the posterior is improper, halve negative precisions up to 30 times, then set them to 0.
    3. Add log ∫ p(f) ∏ sites df and the terms of the points to log Z (Nickisch and Rasmussen 2008, section 4).
    4. Divide each marginal by its site, which gives the cavity. Compute the site with which the cavity has the moments
       of the tilted distribution (`site_of`).

    The iteration, see `iterate`:

    5. Add a fraction of the residual, which is the new sites minus the old sites. After a few sweeps combine past
       residuals by Anderson acceleration (Walker and Ni 2011). If the residual grows, clear the past.
    6. Stop if no site changes by more than the tolerance, in units of its marginal, nor the evidence.

    The fallback sequence; 40 sweeps without progress end a scheme:

    7. Accelerated steps, then damped steps of 0.6 and of 0.36 times their length (`SCHEMES`).
    8. If precisions may be negative: start from zero, and solve the `easier` problems first.
    9. If precisions may be negative: start again without negative precisions.

    At the fixed point log Z is stationary in the sites. Its derivatives equal derivatives at fixed sites
    (`SitePosterior.found`).

    Parameters
    ----------
    posterior : ImpliedPosterior
        Posterior for this kind of sites.
    sites : array (2, n, d)
        Start, which is overwritten. Its first half has precisions.
    history : History
    update : Update
    easier : sequence of Update, optional
        Updates of easier problems, each nearer to the problem of `update`. Without them step 8 is omitted.
    last_least : float
        Lower bound of precisions in step 9.
    ladder : bool
        Whether the fallback sequence goes beyond the first scheme.
    **options
        See `Steps`.

    Returns
    -------
    Ended
        Result, with the index of the last scheme: `len(SCHEMES)` for step 9, and `len(SCHEMES) + 1` for step 8.
    """
    begun, signed = sites.copy(), posterior.least < 0.0

    def iterated(update: Update[P], schemes: Sequence[Steps], patience: float = PATIENCE) -> Ended:
        space = SitesInMemory(site_sweep(posterior, update), sites, schemes[0].depth)
        return run_schemes(space, history, schemes, last_patience=patience)

    schemes = fallback(ladder=ladder, least_precision=posterior.least, **options)
    patience = PATIENCE if ladder or options["tolerance"] < _ROUGHLY else _PATIENCE_OF_RANKS
    ended = iterated(update, schemes, patience if signed else np.inf)
    if not (signed and ladder) or ended.status == CONVERGED or history.is_full():
        return ended
    if easier is not None:
        sites[:] = 0.0
        short = schemes[0].times(_SHRINKAGE)
        if all(iterated(each, [short._replace(tolerance=_ROUGHLY)]).status == CONVERGED for each in easier):
            evidence, status, _ = iterated(update, [short])
            if status == CONVERGED:
                return Ended(evidence, status, len(SCHEMES) + 1)
    sites[:] = begun
    posterior.least = 0.0
    posterior.shrink(sites, 0.0)
    evidence, status, _ = iterated(update, fallback(ladder=ladder, least_precision=last_least, **options), np.inf)
    return Ended(evidence, status, len(SCHEMES))


def site_of(rho: Array, gamma: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return t and ν of the site exp(νx − ½ t x²) with which a cavity N(mean, variance) has the tilted moments.

    `rho` and `gamma` are the first derivative and the negative second derivative of the log normaliser in the mean.
    """
    narrower = 1.0 - gamma * variance
    return gamma / narrower, (rho + gamma * mean) / narrower


def site_terms(mean: Array, variance: Array, location: Array, precision: Array) -> float:
    """Return Σ log ∫ N(x | mean, variance) exp(νx − ½ t x²) dx."""
    stretch = 1.0 + precision * variance
    quadratic = location * location * variance + 2.0 * location * mean - precision * mean * mean
    return 0.5 * float((quadratic / stretch - np.log(stretch)).sum())


def largest_change(target: Array, sites: Array, scale: Array) -> float:
    """Return the largest change from sites (2, n, d) to `target`, in units of marginals of variance `scale` (n, d)."""
    of_precision, of_location = np.abs(target - sites)
    return float(np.maximum((of_precision * scale).max(), (of_location * np.sqrt(scale)).max()))


class SitePosterior(ABC):
    """Posterior of the latent values for sites of one kind; NaN before the first `take`.

    Attributes
    ----------
    precision : array
        Precisions of the sites of latent values, in the shape of the kind.
    weights, mean : array (c, n)
        Weights K⁻¹ (mean − prior mean), and the posterior mean.
    cov : array (n, c, c)
        Posterior covariance of the latent values of each point.
    """

    least: float = 0.0
    precision: Array
    weights: Array
    mean: Array
    cov: Array

    @abstractmethod
    def take(self, sites: Array) -> tuple[bool, float]:
        """See `ImpliedPosterior`."""

    def shrink(self, sites: Array, factor: float) -> bool:
        """See `ImpliedPosterior`. The first half of `sites` is precisions."""
        below = sites[0] < 0.0
        sites[0][below] = factor * sites[0][below] + 0.0  # Avoid −0.0.
        return bool(below.any())

    @abstractmethod
    def gradient(self) -> Array:
        """Return the derivative of the log normaliser at fixed sites, in the array of the prior."""

    def found(self, ended: Ended, parameters: Callable[[], Array] = lambda: NO_PARAMETERS) -> Found:
        """Return the result of a solver at this posterior, with derivatives (p, n) in parameters of the likelihood.

        At a fixed point the evidence is stationary in the sites, and its derivative in the prior mean is b.
        """
        evidence, status, rung = ended

        def derivatives() -> Derivatives:
            return Derivatives(self.gradient(), self.weights.copy(), parameters())

        return Found(evidence, status, self.weights, self.mean, self.cov, self.precision, derivatives, rung)


class FunctionSitePosterior(SitePosterior):
    """Posterior of one function under scalar sites π, ν (2, n, 1).

    Parameters
    ----------
    problem : Problem
    least : float
        Lower bound of site precisions, 0 or −∞.

    Attributes
    ----------
    of : FunctionPosterior
    """

    def __init__(self, problem: Problem, least: float) -> None:
        self.of = problem.prior.posterior(problem.mean[0], signed=least < 0.0)
        self.least = least
        self.weights, self.mean, self.precision = self.of.weights[None], self.of.mean[None], self.of.precision[None]
        self.cov = self.of.variance[:, None, None]

    def take(self, sites: Array) -> tuple[bool, float]:
        """See `ImpliedPosterior`. Sites are scaled to be 1 at the posterior mean."""
        ok = self.of.update(sites[0, :, 0], sites[1, :, 0])
        return ok, self.of.log_normaliser if ok else np.nan

    def gradient(self) -> Array:
        return self.of.gradient()
