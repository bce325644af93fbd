"""EP that cannot cycle: descent on its free energy, with plain EP steps wherever they do no harm.

With sites exp(β g − α g²/2) for the n(c − 1) factors Φ(g), EP's fixed points are the stationary points of

    F = KL(q ‖ prior) + Σ E_r[log r − log Φ] + Σ ½ log(2πe z)

over Gaussians q with marginals N(μ, z) and densities r with the same two moments; there F = −log Z (Heskes and Zoeter
2002; Opper and Winther 2005). The best r given the moments is Φ(g) exp(b g − a g²/2) for one cavity (a, b). The cavity
is a scalar root, so F is a plain function of the sites, bounded below by zero. The step

    α ← α + t (1/z − a − α),   β ← β + t (μ/z − b − β)

is its natural gradient: downhill for small t, and α stays non-negative for t ≤ 1.

An ordinary damped EP step is taken where it brings the residual to a new low or the energy down. Elsewhere the safe
step is taken, halved until the energy falls. The energy and the best residual cannot fall for ever, so some limit point
of the iteration is a fixed point. Rounding takes over in the end: EP steps are then taken as they come, with ever more
damping.
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.inner_ep import flat_moments
from pymc_gpep.kernels.schemes.energy_descent import first_order, safe_step
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.solvers.problem import History, Problem
from pymc_gpep.solvers.site_posterior import SitePosterior, site_posterior

__all__ = ["energy_descent"]

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
