"""Nested expectation propagation for the multinomial probit (Riihimäki, Jylänki and Vehtari 2013, section 3).

The kernels are in `pymc_gpep.kernels.moments.inner_ep`. A fallback sequence of schemes leads to the fixed point. Its
last step is EP that cannot cycle: descent on its free energy, with plain EP steps wherever they do no harm. The sites
of the n(c − 1) factors Φ(g) are exp(β g − α g²/2). EP's fixed points are the stationary points of

    F = KL(q ‖ prior) + Σ E_r[log r − log Φ] + Σ ½ log(2πe z)

over Gaussians q with marginals N(μ, z) and densities r with the same two moments; there F = −log Z (Heskes and Zoeter
2002; Opper and Winther 2005). The best r given the moments is Φ(g) exp(b g − a g²/2) for one cavity (a, b). The cavity
is a scalar root, so F is a plain function of the sites, bounded below by zero. The step

    α ← α + t (1/z − a − α),   β ← β + t (μ/z − b − β)

is its natural gradient: downhill for small t, and α stays non-negative for t ≤ 1.

An ordinary damped EP step is accepted if it brings the residual to a new low or the energy down. Otherwise the step is
the safe one, halved until the energy falls. The energy and the best residual cannot fall for ever, so some limit point
of the iteration is a fixed point. In the end rounding dominates: EP steps are then accepted without a test, with more
and more damping.

With label noise (`NoisyNestedEP`) sites may have negative eigenvalues. If these do not settle, the iteration excludes
them. Little noise makes factors far from Gaussian. EP then begins at more noise, and comes down by its sites.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.cumulants import TiltedFactors, difference_cavities, tilted_factors
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.methods.label_noise import sites_of_differences
from pymc_gpep.kernels.moments.full_sites import packed_size
from pymc_gpep.kernels.moments.inner_ep import flat_moments
from pymc_gpep.kernels.schemes.energy_descent import first_order, safe_step
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import DifferenceFactors, MixedDifferenceFactors
from pymc_gpep.solvers.accelerated_ep import SCHEMES, Steps, accelerated_ep, signed_ladder
from pymc_gpep.solvers.block_ep import (
    BlockEP,
    BlockSpace,
    SitePosterior,
    derivatives,
    refused,
    site_posterior,
    site_posterior_space,
)
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

type _Energies = Callable[..., tuple[float, float, float]]

_ARMIJO = 1e-4


class _State:
    """Sites with what belongs to them: marginals of g, matching cavities and EP's new sites, each (2, n, c − 1)."""

    def __init__(self, problem: Problem, sites: Array, space: SitePosterior, energies: _Energies) -> None:
        self.sites = sites
        self.moments, self.cavities, self.target = np.empty((3, *sites.shape))
        self.energy = self.cost = self.residual = np.nan  # the cost is −log Z as EP has it at these sites
        self.ok, gaussian = site_posterior(problem, sites, space)
        if self.ok:
            flat_moments(space.mean, space.cov, problem.labels, sites, self.moments)
            energy, cost, self.residual = energies(sites, self.moments, self.cavities, self.target)
            self.energy, self.cost = energy - gaussian, cost - gaussian

    @property
    def sound(self) -> bool:
        return self.ok and bool(np.isfinite(self.energy + self.cost + self.residual))


def energy_descent(
    problem: Problem,
    sites: Array,
    space: SitePosterior,
    history: History,
    *,
    energies: _Energies,
    tolerance: float,
    damping: float,
) -> tuple[float, int]:
    """Go down from `sites` (2, n, c − 1), which are overwritten. Returns evidence and status.

    `space` is left at the sites returned. `energies` is the kernel of that name of
    `pymc_gpep.likelihoods.local_computations.DifferenceFactors`.
    """
    state = _State(problem, sites.copy(), space, energies)
    if not state.ok:
        return np.nan, NOT_POSITIVE_DEFINITE
    if not state.sound:
        return np.nan, NOT_FINITE
    best = state.residual
    step = 0.25
    last = np.inf
    status = OUT_OF_ITERATIONS
    while not history.is_full():
        history.add(-state.cost, state.residual)
        if state.residual < tolerance and abs(state.cost - last) < tolerance * (1.0 + abs(state.cost)):
            status = CONVERGED
            break
        last = state.cost
        rounding = 1e-11 * (1.0 + abs(state.energy)) * np.sqrt(sites.size)
        trial = _State(problem, state.sites + damping * (state.target - state.sites), space, energies)
        fall = state.energy - trial.energy
        lost_in_rounding = trial.sound and state.residual < 1e-3 and abs(fall) <= rounding
        taken = trial.sound and (
            lost_in_rounding or trial.residual <= 0.9 * best or fall >= _ARMIJO * state.residual * state.residual
        )
        if not taken:
            step = min(1.0, 4.0 * step)
        while not taken and not history.is_full() and step >= 1e-12:
            moved = np.empty_like(sites)
            safe_step(state.sites, state.moments, state.cavities, step, moved)
            trial = _State(problem, moved, space, energies)
            if trial.sound:
                predicted = first_order(state.sites, state.moments, state.cavities, trial.moments)
                slack = rounding if step < 1e-6 else 0.0
                taken = trial.energy <= state.energy + _ARMIJO * min(predicted, 0.0) + slack
            if not taken:
                step *= 0.5
                history.add(-state.cost, state.residual)
        if not taken:
            break
        if lost_in_rounding and trial.residual > state.residual:
            damping = max(0.5 * damping, 0.05)
        state = trial
        best = min(best, state.residual)
    sites[:] = state.sites
    site_posterior(problem, sites, space)  # it may hold a trial that was turned down
    return -state.cost, status


NESTED_SCHEMES = ("accelerated EP", "accelerated EP with small steps", "energy descent")
_PATIENCE = 40  # sweeps without progress before the next rung
_SMALL = 0.3  # mixing and damping of the second rung, in units of the first one's
# Rounding keeps residuals below this part of the trace of the prior covariance from falling further; where they still
# are smaller than the other number, the prior variance is not to blame.
_ROUNDING, _NEGLIGIBLE = 2e-15, 1e-9


def nested_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    energies: Callable[..., tuple[float, float, float]],
    ladder: bool,
    max_inner: int,
    **options: Any,
) -> Found:
    """Iterate from the inner sites α and β in `start` (2n(c − 1),), which are overwritten.

    The ladder: accelerated EP, the same with small steps, descent on the energy, each from where the last one ended.
    `update` and `energies` are the kernels `coupled_update` and `energies` of
    `pymc_gpep.likelihoods.local_computations.DifferenceFactors`; options are those of
    `pymc_gpep.solvers.accelerated_ep.Steps`.
    """
    steps = Steps(**options)
    tolerance = steps.tolerance
    c, n = problem.mean.shape
    sites = start.reshape(2, n, c - 1)
    space = site_posterior_space(problem)
    rounded = space.in_single_precision
    single = SinglePrecision(problem, not sites.any(), tolerance, exists=rounded is not None)

    def compute(space: SitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        ok, gaussian = site_posterior(problem, sites, space)
        if not ok:
            return False, np.nan, np.nan
        terms, residual = update(
            space.mean, space.cov, problem.labels, sites[0], sites[1], max_inner, tolerance, target[0], target[1], scale
        )
        return True, gaussian + terms, residual

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        if rounded is not None and single.usable:
            ok, evidence, residual = compute(rounded, sites, target, scale)
            single.note(evidence, residual)
            if np.isfinite(evidence) and tolerance <= residual < np.inf:
                return ok, evidence, residual
        ok, evidence, residual = compute(space, sites, target, scale)
        single.note(evidence, residual)
        return ok, evidence, residual

    rounding = _ROUNDING * float(problem.prior.variances.sum(axis=1).max())
    rung = 0
    while True:
        evidence, status = accelerated_ep(
            sweep, sites, history, steps.times(_SMALL) if rung else steps, patience=_PATIENCE if ladder else np.inf
        )
        if not (ladder and status in (OUT_OF_ITERATIONS, NOT_FINITE)) or history.is_full():
            break
        if rung == 1 and status == OUT_OF_ITERATIONS and _NEGLIGIBLE < rounding > history.smallest_residual:
            status = OUT_OF_DIGITS
            break
        if status == NOT_FINITE:
            sites[:] = 0.0
        rung += 1
        if rung == 2:
            evidence, status = energy_descent(
                problem, sites, space, history, energies=energies, tolerance=tolerance, damping=steps.damping
            )
            break
    return Found(evidence, status, space.weights, space.mean, space.cov, space.pi, lambda: derivatives(space), rung)


_FEW = 200  # points; below, factorisations take little of the time
_USELESS = 0.03  # error of the sites beyond which too few sweeps are left
_REACH = 3.0  # residual, in units of this error, that the next sweep has to leave for it to gain on the error
_RATE = 0.4  # of the residual that a sweep leaves
_UNIMPROVED = 3  # sweeps that may pass without a smaller residual


class SinglePrecision:
    """The decision before each sweep whether it may be in single precision.

    The first sweep may from cold alone, since nothing says yet how far from the solution another start is. Once
    residuals are too small no sweep may.

    Rounding changes the sites that match the moments of a posterior by up to ε trace K, in units of their marginals.
    An iteration comes that close to its fixed point, and goes on from there with 64 bits. The final sites and the
    evidence are computed with 64 bits.

    Parameters
    ----------
    problem : Problem
    cold : bool
        Whether the iteration starts from nothing.
    tolerance : float
        Largest residual of a converged iteration.
    exists : bool
        Whether the posterior has matrices in single precision.
    """

    def __init__(self, problem: Problem, cold: bool, tolerance: float, *, exists: bool = True) -> None:
        error = float(np.finfo(np.float32).eps) * float(problem.prior.variances.sum(axis=1).max())
        self._possible = exists and len(problem.labels) >= _FEW and error < _USELESS
        self.usable = cold and self._possible
        self._enough = max(_REACH * error, tolerance)
        self._smallest = np.inf
        self._patience = _UNIMPROVED

    def note(self, evidence: float, residual: float) -> None:
        """Note the evidence and the residual of the last sweep, NaN where it failed."""
        self._patience = _UNIMPROVED if residual < self._smallest else self._patience - 1
        self._smallest = min(residual, self._smallest)
        closer = self._enough < _RATE * residual < np.inf and self._patience > 0
        self._possible &= closer and bool(np.isfinite(evidence))
        self.usable = self._possible


@dataclass(frozen=True)
class NestedEP(AcceleratedEP):
    """Full nested EP: between-class coupling kept, tilted moments by inner EP.

    Parameters
    ----------
    ladder : bool
        Whether to go on where the iteration does not get closer any more. Smaller steps come first, and then a scheme
        that lowers EP's energy and cannot cycle.
    max_inner : int
        Inner sweeps per outer iteration: 1 is the paper's incremental scheme, more runs inner EP on to the tolerance.
    """

    max_inner: int = field(default=1, metadata=at_least(1))

    name: ClassVar[str] = "nested_ep"
    site_form: ClassVar[SiteForm] = SiteForm.COUPLED
    needs: ClassVar[tuple[type, ...]] = (DifferenceFactors,)
    matches_moments: ClassVar[bool] = True
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    schemes: ClassVar[tuple[str, ...]] = NESTED_SCHEMES
    looseness: ClassVar[float] = 50.0

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        factors = likelihood.computation(DifferenceFactors)
        return nested_ep(
            problem,
            start,
            history,
            update=factors.coupled_update,
            energies=factors.energies,
            largest_precision=likelihood.largest_precision,
            **self.settings,
        )

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: α and β."""
        return 2 * n_points * (n_functions - 1)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """The Φ(g_j) of all points: the fixed point is that of EP with these as factors."""
        c, n = solution.mean.shape
        alpha, beta = solution.start.reshape(2, n, c - 1)
        average = solution.likelihood.computation(DifferenceFactors).average
        cavities = difference_cavities(solution, alpha, beta)
        return tilted_factors(solution, cavities, average, np.ones(alpha.size, np.int64))


_HALVINGS = 30  # of eigenvalues below zero, where there is no posterior
_MOST, _LEAST = 0.1, 1e-6  # noise that EP comes down from, and where it ends


def nested_label_noise(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    max_size: int,
    **options: Any,
) -> Found:
    """Iterate from sites of the differences in `start`, which is overwritten.

    `update` is the kernel of `pymc_gpep.likelihoods.local_computations.MixedDifferenceFactors`, in whose layout sites
    are. Where EP with negative eigenvalues does not converge, it comes down from more label noise. Where that fails as
    well, it begins again without them.
    `max_size` is the largest number cn of latent values whose covariance is a matrix. Other options are those of
    `pymc_gpep.solvers.accelerated_ep.ep_ladder`.
    """
    c, n = problem.mean.shape
    sites = start.reshape(2, n, packed_size(c))
    if (result := refused(problem, max_size)) is not None:
        return result
    alpha, beta = np.zeros((2, n, c - 1))
    slopes = np.full_like(problem.parameters, np.nan)
    widens, epsilon = 1.0, problem.parameters

    def tilted(space: BlockSpace, sites: Array, target: Array, scale: Array) -> tuple[float, float]:
        return update(
            space.mean, space.cov, problem.labels, epsilon, widens, space.pi, space.nu, sites, alpha, beta,
            target, scale, slopes,
        )  # fmt: skip

    ep = BlockEP(problem, problem.prior.blocks(c, signed=True), sites_of_differences, tilted)

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        for _ in range(_HALVINGS):
            found = ep.sweep(sites, target, scale)
            if found[0] or not _halved_below_zero(ep.space.pi, sites):
                break
        return found

    def easier(stage: int) -> bool:
        nonlocal epsilon
        noise = _MOST / 2.0 ** (stage / 2)
        epsilon = np.maximum(problem.parameters, noise if noise > _LEAST else 0.0)
        return bool((epsilon == problem.parameters).all())

    def without(_: Array) -> None:
        nonlocal widens, epsilon
        widens, epsilon = 0.0, problem.parameters

    ended = signed_ladder(
        sweep, sites, history, without, easier=easier, again=options["ladder"], least_again=-np.inf, **options
    )
    return ep.found(*ended, slopes)


def _halved_below_zero(precision: Array, sites: Array) -> bool:
    """Halve the eigenvalues below zero of `precision` (n, d, d), and write it into `sites`; False without any."""
    if not np.isfinite(precision).all():
        return False
    values, vectors = np.linalg.eigh(precision)
    if not (below := values < 0.0).any():
        return False
    less = (vectors * np.where(below, 0.5 * values, values)[:, None, :]) @ vectors.swapaxes(1, 2)
    d = precision.shape[1]
    rows, columns = np.tril_indices(d, -1)
    sites[0, :, :d] = less.diagonal(axis1=1, axis2=2)
    sites[1, :, d:] = less[:, rows, columns]
    return True


@dataclass(frozen=True)
class NoisyNestedEP(AcceleratedEP):
    """Nested EP where labels may be noise: the factor of a point is (1 − ε) p + ε / c.

    Inner EP integrates the multinomial probit p as in `"nested_ep"` (Riihimäki, Jylänki and Vehtari 2013). A step is
    the probit of latent values that are many times as large. The moments of the whole factor follow in closed form, and
    sites match them all. Such a factor is not log-concave: a label that contradicts its neighbours gets a site of
    negative precision. The evidence is stationary in the sites, and has exact derivatives with respect to ε as well.
    Time grows with (cn)³ where prior covariances are matrices.

    Parameters
    ----------
    ladder : bool
        Whether to go on where the iteration does not get closer any more. Plain steps come first, then smaller ones,
        then more label noise that becomes less. Last come sites without negative precisions, whose derivatives are
        approximate.
    max_size : int
        Largest number cn of latent values to accept where prior covariances are matrices.
    """

    max_size: int = field(default=1500, metadata=at_least(1))

    name: ClassVar[str] = "nested_ep"
    site_form: ClassVar[SiteForm] = SiteForm.SIGNED
    needs: ClassVar[tuple[type, ...]] = (MixedDifferenceFactors,)
    matches_moments: ClassVar[bool] = True
    whole_factors: ClassVar[str] = "with label noise"
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    follows_parameters: ClassVar[bool] = True
    schemes: ClassVar[tuple[str, ...]] = (
        *SCHEMES, "EP without sites of negative precision", "EP that came down from more label noise"
    )  # fmt: skip

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        return nested_label_noise(
            problem,
            start,
            history,
            update=likelihood.computation(MixedDifferenceFactors).update,
            largest_precision=likelihood.largest_precision,
            **self.settings,
        )

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """The nearest start: between matrices some combinations leave no posterior."""
        return starts[nearest].copy()

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: sites of the differences of latent values."""
        return n_points * n_functions * (n_functions - 1)

    def too_large(self, n_functions: int, n_points: int) -> str:
        size = n_functions * n_points
        if size > self.max_size:
            return (
                f"{self.name} with label noise is slow for {n_functions} latent functions at {n_points} points: they "
                f'are {size} latent values. Use method="sparse_ep", which takes inducing inputs and '
                f"epsilon as a number, or allow it with max_size={size} (now {self.max_size})."
            )
        return ""
