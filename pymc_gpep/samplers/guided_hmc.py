"""Hamiltonian Monte Carlo on whitened latent values."""

from typing import Any, ClassVar

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state
from pymc.step_methods.step_sizes import DualAverageAdaptation, StepSizeState

from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.whitening import Whitening
from pymc_gpep.samplers.guided import GuidedStep, GuidedStepState

_FIRST_STEP = 0.3
_SPREAD = 0.2  # relative, of step sizes about the one that was tuned, against periodic orbits
_WORST = 1000.0  # error of the energy that counts as a divergence


@dataclass_state
class GuidedHMCState(GuidedStepState):
    """What is learned of the step size besides."""

    step_size: StepSizeState


class GuidedHMC(GuidedStep):
    """Sample latent values by Hamiltonian Monte Carlo, whitened by an approximation, and the hyperparameters with them.

    Under the Gaussian of EP or of Laplace's method the latent values are a linear function of independent standard
    normals z. Their exact posterior is not far from that in z. A short trajectory with a unit mass matrix thus gives a
    nearly independent draw, whatever the prior covariance is. Then the hyperparameters move with z held. The result is
    exact: the approximation decides on the coordinates only.

    Parameters
    ----------
    path_length : float
        Length of a trajectory in z; a quarter of a standard normal's orbit, π/2, takes it to an independent state.
    target_accept : float
        Acceptance probability that the step size is tuned for.
    max_leapfrog : int
        Limit on leapfrog steps in one trajectory.

    Notes
    -----
    Sampler statistics are `step_size`, `n_leapfrog`, `acceptance_rate`, `diverging`, and where hyperparameters are
    moved `hyper_acceptance` and `hyper_scale`.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=gpep.samplers.GuidedHMC())
    """

    name = "guided_hmc"
    default_tune_steps = 500
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = {
        "step_size": (np.float64, []),
        "n_leapfrog": (np.int64, []),
        "acceptance_rate": (np.float64, []),
        "diverging": (bool, []),
        "hyper_acceptance": (np.float64, []),
        "hyper_scale": (np.float64, []),
        "tune": (bool, []),
    }
    progress: ClassVar[dict[str, tuple[str, str]]] = {
        "step_size": ("Step size", ".3f"),
        "acceptance_rate": ("Acceptance", ".2f"),
        "hyper_acceptance": ("Hyper", ".2f"),
    }
    _state_class = GuidedHMCState

    def __init__(
        self, vars: Any = None, *, path_length: float = np.pi / 2, target_accept: float = 0.8, max_leapfrog: int = 100,
        **options: Any,
    ) -> None:  # fmt: skip
        if not path_length > 0:
            raise ValueError(f"path_length must be positive, but is {path_length}.")
        if not 0 < target_accept < 1:
            raise ValueError(f"target_accept must be between 0 and 1, but is {target_accept}.")
        check_whole("max_leapfrog", max_leapfrog, 1)
        super().__init__(vars, **options)
        self.path_length = path_length
        self.max_leapfrog = max_leapfrog
        self.step_size = DualAverageAdaptation(_FIRST_STEP, target_accept, 0.05, 0.75, 10)

    def move_latent_values(self, point: PointType, whitening: Whitening, f: Array) -> tuple[Array, dict[str, Any]]:
        def density(z: Array) -> tuple[float, Array, Array]:
            f = whitening.latent(z)
            value, slope = self.log_ratio(point, whitening, f)
            return value - 0.5 * float(np.vdot(z, z)), whitening.slope(slope) - z, f

        tuned = float(self.step_size.current(self.tune))
        step = tuned * (1.0 + _SPREAD * (2.0 * self.rng.random() - 1.0))
        n_leapfrog = int(np.clip(np.ceil(self.path_length / step), 1, self.max_leapfrog))
        z = whitening.whitened(f, self.rng)
        momentum = self.rng.standard_normal(z.shape)
        value, slope, _ = density(z)
        energy = value - 0.5 * float(np.vdot(momentum, momentum))
        proposed = f
        for _ in range(n_leapfrog):
            momentum = momentum + 0.5 * step * slope
            z = z + step * momentum
            value, slope, proposed = density(z)
            momentum = momentum + 0.5 * step * slope
        change = value - 0.5 * float(np.vdot(momentum, momentum)) - energy
        diverging = not (np.isfinite(change) and change > -_WORST)
        acceptance = 0.0 if diverging else float(np.exp(min(0.0, change)))
        self.step_size.update(acceptance, self.tune)
        if self.rng.random() < acceptance:
            f = proposed
        return f, {
            "step_size": tuned,
            "n_leapfrog": n_leapfrog,
            "acceptance_rate": acceptance,
            "diverging": diverging,
        }

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        super().setup_chain(rng, tune, draws)
        self.step_size.reset()
