"""Nested expectation propagation for the multinomial probit (Riihimäki, Jylänki and Vehtari 2013, section 3).

The kernels are in `pymc_gpep.kernels.moments.inner_ep`. A fallback sequence of schemes leads to the fixed point. Its
last scheme cannot cycle: it descends on EP's free energy, and uses plain EP steps unless they raise the energy. The
likelihood has n(c − 1) factors Φ(g), each of one difference g of latent values plus noise. Their sites are exp(β g − α
g²/2). EP's fixed points are the stationary points of the free energy

    F = KL(q ‖ prior) + Σ E_r[log r − log Φ] + Σ ½ log(2πe z).

Here q is a Gaussian with marginals N(μ, z) of g, and r is any density of g with the same mean and variance. At the
stationary points F = −log Z, the negative log evidence (Heskes and Zoeter 2002; Opper and Winther 2005). Given μ and z,
the optimal r is Φ(g) exp(b g − a g²/2). A scalar root search finds this cavity (a, b). So F is a function of the sites.
It is bounded below by zero. The step

    α ← α + t (1/z − a − α),   β ← β + t (μ/z − b − β)

of length t follows the natural gradient of F: F falls for small t, and α stays nonnegative for t ≤ 1.

A damped EP step is accepted if it lowers the smallest residual so far or the energy. Otherwise the natural gradient
step is taken, halved until the energy falls. The energy and the smallest residual cannot fall for ever, so a limit
point of the iteration is a fixed point. Near the end, where rounding dominates, shorter EP steps are always accepted.

With label noise (`NoisyNestedEP`) sites may have negative eigenvalues. Without convergence, a last iteration excludes
such sites. With little noise, factors are far from Gaussian. EP then starts with more noise, and decreases it.

EP by quadrature for a softmax (`QEPSoftmax`) has sites that couple the classes (Seeger and Jordan 2004).
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Self

import numpy as np

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.cumulants import TiltedFactors, difference_cavities, tilted_factors
from pymc_gpep.approximations.limits import at_least, refused
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.methods.energy_descent import first_order, safe_step
from pymc_gpep.kernels.methods.label_noise import sites_of_differences
from pymc_gpep.kernels.methods.softmax_qep import softmax_sites
from pymc_gpep.kernels.moments.full_sites import write_precision
from pymc_gpep.kernels.moments.inner_ep import flat_moments, relative_location, site_parameters
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_DIGITS,
    OUT_OF_ITERATIONS,
)
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import CoupledQuadrature, DifferenceFactors, MixedDifferenceFactors
from pymc_gpep.likelihoods.softmax import class_nodes
from pymc_gpep.solvers.problem import Algebra, Found, History, Problem
from pymc_gpep.solvers.site_ep import (
    PATIENCE,
    SCHEMES,
    Ended,
    SitePosterior,
    SitesInMemory,
    Steps,
    Sweep,
    run_schemes,
    site_ep,
    site_sweep,
)


class CoupledSitePosterior(SitePosterior):
    """Posterior of several functions under sites that couple the functions of a point.

    The site precision of point i is Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i with π (c, n), or any (c, c) with `blocks`.

    Parameters
    ----------
    problem : Problem
    reader : callable
        `reader(labels, sites, precision, location)` writes precisions and locations of the Gaussian sites of f. It
        returns the log of the remaining constant factor, including ½ Σ_i log 1ᵀπ_i, or None for 0. With blocks it also
        writes two arguments before `precision`, the attributes `pi` and `nu`.
    blocks : bool
        Whether site precisions are arbitrary matrices (c, c).
    signed : bool
        Whether these matrices may have negative eigenvalues.

    Attributes
    ----------
    location : array (c, n)
        Locations of the sites, relative to the prior mean after `take`.
    pi, nu : array (n, c − 1, c − 1), (n, c − 1)
        Precisions and locations of sites of the differences f_y − f_j, with blocks.
    """

    def __init__(
        self, problem: Problem, reader: Callable[..., float | None], *, blocks: bool = False, signed: bool = False
    ) -> None:
        (c, n), prior = problem.mean.shape, problem.prior
        self.problem, self._reader, self.least = problem, reader, -np.inf if signed else 0.0
        self.algebra = prior.blocks(c, signed=signed) if blocks else prior.coupled(c, problem.team)
        self.precision = np.full((n, c, c) if blocks else (c, n), np.nan)
        self.location, self.weights, self.mean = np.full((3, c, n), np.nan)
        self.cov = np.full((n, c, c), np.nan)
        self.pi, self.nu = np.empty((n, c - 1, c - 1)), np.empty((n, c - 1))
        self._written = (*((self.pi, self.nu) if blocks else ()), self.precision, self.location)

    def take(self, sites: Array) -> tuple[bool, float]:
        total = self._read(sites)
        ok, log_det = self.algebra.factorise(self.precision)
        if not ok:
            return False, np.nan
        total += self._centre()
        self.algebra.weights(self.location, self.weights)
        self.algebra.moments(self.weights, self.mean, self.cov)
        total += 0.5 * float(np.vdot(self.location, self.mean)) - 0.5 * log_det
        self.mean += self.problem.mean
        return True, total

    def _read(self, sites: Array) -> float:
        return self._reader(self.problem.labels, sites, *self._written) or 0.0

    def _centre(self) -> float:
        """Replace locations ν by ν − Πm, relative to the prior mean m. Return the log of the sites at m."""
        mean = self.problem.mean
        if self.precision.ndim == 2:
            return float(relative_location(mean, self.precision, self.location))
        pull = np.einsum("iae,ei->ai", self.precision, mean)
        total = float(np.vdot(mean, self.location - 0.5 * pull))
        self.location -= pull
        return total

    def shrink(self, sites: Array, factor: float) -> bool:
        """See `ImpliedPosterior`. With blocks, negative eigenvalues of `pi` are multiplied by `factor`."""
        if self.precision.ndim == 2:
            return super().shrink(sites, factor)
        self._read(sites)
        if not np.isfinite(self.pi).all():
            return False
        values, vectors = np.linalg.eigh(self.pi)
        below = values < 0.0
        if below.any():
            less = (vectors * np.where(below, factor * values, values)[:, None, :]) @ vectors.swapaxes(1, 2)
            for i, own in enumerate(less):
                write_precision(own, sites, i)
        return bool(below.any())

    def gradient(self) -> Array:
        return self.algebra.gradient(self.weights)


# The square of a larger prior variance overflows. With such variances, sites of 0 would look like a fixed point.
_BEYOND_REASON = 1e150


class InnerSitePosterior(CoupledSitePosterior):
    """Posterior of nested EP, from its inner sites α and β (2, n, c − 1).

    If all sites are 0, the posterior is the prior, and no factorisation is computed.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, lambda labels, sites, *written: site_parameters(labels, *sites, *written))

    def take(self, sites: Array) -> tuple[bool, float]:
        """See `ImpliedPosterior`. The second result is log ∫ p(f) p(u) ∏ sites, with the probit noise u ~ N(0, 1)."""
        variances = self.problem.prior.variances
        if sites.any() or not variances.max() < _BEYOND_REASON:
            return super().take(sites)
        # At a cold start the posterior is the prior, and factorisations would take as long as for other sites.
        self._read(sites)
        self.weights[:], self.mean[:] = 0.0, self.problem.mean
        self.cov[:] = variances.T[:, :, None] * np.eye(len(self.mean))
        return True, 0.0

    @property
    def in_single_precision(self) -> Self | None:
        """Copy of this posterior with matrices of single precision in the same memory; None if the prior has none."""
        other, algebra = copy(self), self.algebra.in_single_precision
        if algebra is None:
            return None
        other.algebra = algebra
        return other


type _Energies = Callable[..., tuple[float, float, float]]

_ARMIJO = 1e-4


class _State:
    """Sites of differences g, with the marginals of g, the cavities and EP's next sites, each (2, n, c − 1)."""

    def __init__(self, sites: Array, posterior: InnerSitePosterior, energies: _Energies) -> None:
        self.sites = sites
        self.moments, self.cavities, self.target = np.empty((3, *sites.shape))
        self.energy = self.cost = self.residual = np.nan  # The cost is EP's −log Z at these sites.
        self.ok, gaussian = posterior.take(sites)
        if self.ok:
            flat_moments(posterior.mean, posterior.cov, posterior.problem.labels, sites, self.moments)
            energy, cost, self.residual = energies(sites, self.moments, self.cavities, self.target)
            self.energy, self.cost = energy - gaussian, cost - gaussian

    @property
    def sound(self) -> bool:
        return self.ok and bool(np.isfinite(self.energy + self.cost + self.residual))


def energy_descent(
    posterior: InnerSitePosterior,
    sites: Array,
    history: History,
    *,
    energies: _Energies,
    tolerance: float,
    damping: float,
) -> tuple[float, int]:
    """Descend on EP's free energy from `sites` (2, n, c − 1), and overwrite them. Return log evidence and status.

    At the end `posterior` has the final sites. `energies` is a kernel of
    `pymc_gpep.likelihoods.local_computations.DifferenceFactors`.
    """
    state = _State(sites.copy(), posterior, energies)
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
        trial = _State(state.sites + damping * (state.target - state.sites), posterior, energies)
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
            trial = _State(moved, posterior, energies)
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
    posterior.take(sites)  # The last trial that was evaluated may have been rejected.
    return -state.cost, status


NESTED_SCHEMES = ("accelerated EP", "accelerated EP with small steps", "energy descent")
_SMALL = 0.3  # Mixing and damping of the second scheme, relative to the first scheme.
# Rounding limits residuals to about the first number times the trace of the prior covariance. If this limit exceeds the
# second number, and the residual has reached the limit, the solve ends.
_ROUNDING, _NEGLIGIBLE = 2e-15, 1e-9


_FEW = 200  # Smallest number of points for single precision. For fewer points factorisations take little time.
_USELESS = 0.03  # Single precision is used only if its rounding error of the sites is below this number.
_REACH = 3.0  # Expected residual, in rounding errors of single precision, below which double precision is used.
_RATE = 0.4  # Expected ratio of residuals of consecutive sweeps.
_UNIMPROVED = 3  # Single precision ends after this number of sweeps without a smaller residual.


class SinglePrecision:
    """Rule that decides before each sweep whether the sweep runs in single precision.

    The first sweep runs in single precision only from a cold start: the distance of another start from the solution is
    unknown. In units of the marginals, rounding changes sites by up to the machine precision times the trace of the
    prior covariance. Once residuals are about as small, all sweeps run in double precision, also for the final sites
    and the evidence.

    Parameters
    ----------
    problem : Problem
    cold : bool
        Whether the iteration starts cold.
    tolerance : float
        Largest residual of a converged iteration.
    """

    def __init__(self, problem: Problem, cold: bool, tolerance: float) -> None:
        error = float(np.finfo(np.float32).eps) * float(problem.prior.variances.sum(axis=1).max())
        self._possible = len(problem.labels) >= _FEW and error < _USELESS
        self.usable = cold and self._possible
        self._tolerance = tolerance
        self._enough = max(_REACH * error, tolerance)
        self._smallest = np.inf
        self._patience = _UNIMPROVED

    def note(self, evidence: float, residual: float) -> None:
        """Record the evidence and the residual of the last sweep; NaN if the sweep failed."""
        self._patience = _UNIMPROVED if residual < self._smallest else self._patience - 1
        self._smallest = min(residual, self._smallest)
        closer = self._enough < _RATE * residual < np.inf and self._patience > 0
        self._possible &= closer and bool(np.isfinite(evidence))
        self.usable = self._possible

    def sweep(self, single: Sweep, double: Sweep) -> Sweep:
        """Return a sweep that uses single precision if possible."""

        def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
            if self.usable:
                ok, evidence, residual = single(sites, target, scale)
                self.note(evidence, residual)
                if np.isfinite(evidence) and self._tolerance <= residual < np.inf:
                    return ok, evidence, residual
            ok, evidence, residual = double(sites, target, scale)
            self.note(evidence, residual)
            return ok, evidence, residual

        return sweep


@dataclass(frozen=True)
class NestedEP(AcceleratedEP):
    """Nested EP with couplings between classes, and tilted moments by inner EP.

    `pymc_gpep.solvers.site_ep.site_ep` runs the iteration, with the first sweeps in single precision. The last scheme
    of the fallback sequence is descent on EP's free energy.

    Parameters
    ----------
    ladder : bool
        Whether to continue with a fallback sequence if the residual no longer falls: first smaller steps, then descent
        on EP's free energy, which cannot cycle.
    max_inner : int
        Largest number of inner sweeps per outer iteration. One sweep is the paper's incremental scheme; with a larger
        number inner EP runs to its tolerance.
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
        factors, tolerance = likelihood.computation(DifferenceFactors), self.tolerance
        sites = start.reshape(2, len(problem.labels), -1)

        def matched(at: InnerSitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
            given = at.mean, at.cov, problem.labels, *sites, self.max_inner, tolerance
            return True, *factors.coupled_update(*given, *target, scale)

        posterior = InnerSitePosterior(problem)
        sweep, single = site_sweep(posterior, matched), posterior.in_single_precision
        if single is not None:
            sweep = SinglePrecision(problem, not sites.any(), tolerance).sweep(site_sweep(single, matched), sweep)
        steps = Steps(tolerance, self.depth, self.mixing, self.damping, likelihood.largest_precision)
        schemes = [steps, steps.times(_SMALL)] if self.ladder else [steps]
        space = SitesInMemory(sweep, sites, steps.depth)
        ended = run_schemes(space, history, schemes, last_patience=PATIENCE if self.ladder else np.inf)
        if self.ladder and ended.status in (OUT_OF_ITERATIONS, NOT_FINITE) and not history.is_full():
            rounding = _ROUNDING * float(problem.prior.variances.sum(axis=1).max())
            if ended.status == OUT_OF_ITERATIONS and _NEGLIGIBLE < rounding > history.smallest_residual:
                return posterior.found(ended._replace(status=OUT_OF_DIGITS))
            if ended.status == NOT_FINITE:
                space.clear()
            ended = Ended(
                *energy_descent(
                    posterior, sites, history, energies=factors.energies, tolerance=tolerance, damping=self.damping
                ),
                rung=2,
            )
        return posterior.found(ended)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts: α and β."""
        return 2 * n_points * (n_functions - 1)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """Return the factors Φ(g_j) of all points with their cumulants at EP's fixed point."""
        c, n = solution.mean.shape
        alpha, beta = solution.start.reshape(2, n, c - 1)
        average = solution.likelihood.computation(DifferenceFactors).average
        cavities = difference_cavities(solution, alpha, beta)
        return tilted_factors(solution, cavities, average, np.ones(alpha.size, np.int64))


_MOST, _LEAST = 0.1, 1e-6  # Largest and smallest label noise of the sequence of easier problems.


@dataclass(frozen=True)
class NoisyNestedEP(AcceleratedEP):
    """Nested EP with label noise ε: the factor of a point is (1 − ε) p + ε / c, with the multinomial probit p.

    Inner EP integrates p as in `"nested_ep"` (Riihimäki, Jylänki and Vehtari 2013). A step likelihood is a probit of
    scaled latent values. The moments of the factor follow in closed form, and sites match all means and covariances.
    Such a factor is not log-concave: a label that contradicts its neighbours gets a site of negative precision. The
    evidence is stationary in the sites, so its derivatives are exact, also with respect to ε. Time grows with (cn)³ for
    matrices.

    Parameters
    ----------
    ladder : bool
        Whether to continue with a fallback sequence if the residual no longer falls: plain steps, smaller steps, then
        label noise that decreases. The last scheme excludes negative site precisions; its derivatives are approximate.
    max_size : int
        Largest accepted number cn of latent values if prior covariances are matrices.
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
        *SCHEMES, "EP without sites of negative precision", "EP continued from larger label noise"
    )  # fmt: skip

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        if (result := refused(problem, self.max_size)) is not None:
            return result
        c, n = problem.mean.shape
        alpha, beta = np.zeros((2, n, c - 1))
        epsilon, slopes = problem.parameters, np.full_like(problem.parameters, np.nan)
        update = likelihood.computation(MixedDifferenceFactors).update

        def matched(
            noise: float, at: CoupledSitePosterior, sites: Array, target: Array, scale: Array
        ) -> tuple[bool, float, float]:
            given = at.mean, at.cov, problem.labels, np.maximum(epsilon, noise), float(at.least < 0.0), at.pi, at.nu
            return True, *update(*given, sites, alpha, beta, target, scale, slopes)

        levels = _MOST / 2.0 ** np.arange(0.0, np.log2(_MOST / _LEAST), 0.5)
        posterior = CoupledSitePosterior(problem, sites_of_differences, blocks=True, signed=True)
        ended = site_ep(
            posterior, start.reshape(2, n, -1), history, update=partial(matched, 0.0),
            easier=[partial(matched, noise) for noise in levels if (epsilon < noise).any()], last_least=-np.inf,
            largest_precision=likelihood.largest_precision, **self.iteration,
        )  # fmt: skip
        return posterior.found(ended, lambda: slopes)

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """Return the start with index `nearest`: a combination of site precisions may be improper."""
        return starts[nearest].copy()

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts: sites of differences of latent values."""
        return n_points * n_functions * (n_functions - 1)

    def too_large(self, n_functions: int, n_points: int) -> str:
        size = n_functions * n_points
        if size > self.max_size:
            return (
                f"{self.name} with label noise is slow for {n_functions} latent functions at {n_points} points: it "
                f'factorises a matrix of {size} rows. Use method="sparse_ep" with inducing inputs and epsilon as a '
                f"number, or allow the matrix with max_size={size} (now {self.max_size})."
            )
        return ""


_FEW_CLASSES, _ENOUGH_NODES = (
    3,
    600,
)  # Up to three classes need at most 600 nodes. Errors are 1e-5 for prior standard deviations of 5.


@dataclass(frozen=True)
class QEPSoftmax(AcceleratedEP):
    """EP for a softmax, at the cost of Laplace's method. Sites have precisions diag(π) − ππᵀ / 1ᵀπ with any vector π.

    Tilted moments are integrals over c − 2 dimensions; the other dimensions have closed forms. Sites match the tilted
    means, and approximate the tilted covariances by constrained projection (Seeger and Jordan 2004, section 4.3). With
    two and three classes the match is exact, unless a coupling has the wrong sign. With more classes it is the best
    match by sites of this form. Reported derivatives treat sites as constants. With two and three classes they are
    derivatives of the evidence; with four classes or more they are approximate. With eight classes or more the
    quadrature adds an error of one or two percent with 2000 nodes, and half a percent with 20 000.

    Parameters
    ----------
    nodes : int
        Largest number of nodes of the quadrature for each point and sweep. Three classes use at most 161, or 600 for
        votes.
    """

    nodes: int = field(default=2000, metadata=at_least(1))

    name: ClassVar[str] = "qep"
    site_form: ClassVar[SiteForm] = SiteForm.COUPLED
    needs: ClassVar[tuple[type, ...]] = (CoupledQuadrature,)
    matches_moments: ClassVar[bool] = True
    whole_factors: ClassVar[str] = "for a softmax"
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        c, n = problem.mean.shape
        update, conditioned = likelihood.computation(CoupledQuadrature)
        classes = c - conditioned
        few = classes <= _FEW_CLASSES and not conditioned
        nodes = class_nodes(classes, min(self.nodes, _ENOUGH_NODES) if few else self.nodes)

        def read(_: Array, sites: Array, pi: Array, nu: Array) -> float:
            softmax_sites(sites, pi, nu)
            return 0.5 * float(np.log(pi.sum(0)).sum())

        def matched(at: CoupledSitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
            return True, *update(*nodes, at.mean, at.cov, problem.labels, at.precision, sites, target, scale)

        posterior, options = CoupledSitePosterior(problem, read), self.iteration | {"largest_precision": np.inf}
        return posterior.found(site_ep(posterior, start.reshape(2, n, c), history, update=matched, **options))
