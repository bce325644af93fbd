"""Neal's scaled Metropolis-Hastings sampling of latent values, for any likelihood (Neal 1998)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.blocking import PointType
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import check_whole
from pymc_gpep.reading import read_classifier
from pymc_gpep.samplers.guided import guided
from pymc_gpep.samplers.step import LatentStep, sampled_model

_FORGETTING = 0.6  # Exponent of the adaptation: tuning draw k changes log ε by at most k^-0.6.


@dataclass_state
class ScaledMetropolisState(StepMethodState):
    """State from which a chain resumes."""

    tune: bool
    scale: float
    tuned: int


class ScaledMetropolis(LatentStep):
    """Sample latent values by Metropolis-Hastings steps that leave their Gaussian prior invariant.

    Latent functions are Gaussian processes, or sums of effects; for sums the step moves standard normals of effects.
    From f the step proposes m + √(1 − ε²) (f − m) + ε L n with n ~ N(0, I), for the prior N(m, L Lᵀ). Acceptance
    depends on the ratio of likelihoods only. A proposal takes O(c n²) operations and one evaluation of the likelihood.
    Other steps, by default NUTS, move hyperparameters.

    Parameters
    ----------
    vars : sequence of TensorVariable, optional
        Latent values of the model; all must be included.
    scale : float
        Initial ε, in (0, 1].
    updates : int
        Number of proposals for each draw.
    target_accept : float
        Target acceptance rate while tuning, in (0, 1). Without tuning ε is constant.
    model : pm.Model, optional
    rng : int, Generator or None
    compile_kwargs : dict, optional
        Arguments of PyTensor's compilation.
    blocked : bool
        Latent values are always moved together.

    Raises
    ------
    StructureError
        If latent functions are neither Gaussian processes nor sums of effects, or if other variables depend on them.
    TypeError
        If `updates` is not a whole number.
    ValueError
        If `vars` contains other variables or lacks latent values, or if an option is invalid.

    Notes
    -----
    Sampler statistics are `metropolis_acceptance`, the share of accepted proposals, and `metropolis_scale`, ε.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(
    ...         step=[gpep.samplers.ScaledMetropolis([model["f"]]), pm.Slice([model["ls"], model["eta"]])]
    ...     )
    """

    name = "scaled_metropolis"
    stats_dtypes_shapes: ClassVar[dict[str, tuple[Any, list[int]]]] = {
        "metropolis_acceptance": (np.float64, []),
        "metropolis_scale": (np.float64, []),
        "tune": (bool, []),
    }
    progress: ClassVar[dict[str, tuple[str, str]]] = {
        "metropolis_acceptance": ("Acceptance", ".2f"),
        "metropolis_scale": ("Scale", ".3f"),
    }
    _state_class = ScaledMetropolisState

    def __init__(
        self,
        vars: Sequence[TensorVariable] | TensorVariable | None = None,
        *,
        scale: float = 0.2,
        updates: int = 20,
        target_accept: float = 0.3,
        model: pm.Model | None = None,
        rng: Any = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        if not 0 < scale <= 1:
            raise ValueError(f"scale must be in (0, 1], but is {scale!r}.")
        check_whole("updates", updates, 1)
        if not 0 < target_accept < 1:
            raise ValueError(f"target_accept must be in (0, 1), but is {target_accept!r}.")
        processes, _ = guided(read_classifier, sampled_model(model), "prior", None)
        if vars is None:
            vars = list(processes.prior.integrated)
        super().__init__(vars, processes, rng, compile_kwargs)
        if self.hyperparameters:
            names = ", ".join(repr(processes.model.values_to_rvs[v].name) for v in self.hyperparameters)
            raise ValueError(
                f"vars names {names}, but ScaledMetropolis updates latent values only. Leave out the hyperparameters: "
                "pm.sample assigns NUTS to them, or another step method in step=[...]."
            )
        self._log_likelihood = self.latent_model.likelihood(slope=False)
        self.updates = updates
        self.target_accept = target_accept
        self._initial_scale = float(scale)
        self.scale = float(scale)
        self.tuned = 0

    def advance(self, point: PointType) -> tuple[PointType, dict[str, Any]]:
        prior, f = self.current(point)
        x = f - prior.mean
        noise = self.rng.standard_normal((self.updates, *x.shape))
        steps = self.scale * (prior.latent(noise) - prior.mean)
        levels = -self.rng.standard_exponential(self.updates)
        shrink = np.sqrt(1.0 - self.scale**2)
        height = self._log_likelihood(point, f, prior)[0]
        accepted = 0
        for step, level in zip(steps, levels, strict=True):
            proposal = shrink * x + step
            proposed = self._log_likelihood(point, prior.mean + proposal, prior)[0]
            if proposed > height + level:  # False if `proposed` is NaN.
                x, height = proposal, proposed
                accepted += 1
        acceptance = accepted / self.updates
        stats = {"metropolis_acceptance": acceptance, "metropolis_scale": self.scale, "tune": self.tune}
        if self.tune:
            self._adapt(acceptance)
        moves = accepted or self.latent_model.missing
        return (self.moved(point, prior.mean + x, prior) if moves else point), stats

    def _adapt(self, acceptance: float) -> None:
        """Make a Robbins–Monro step towards the scale with the target acceptance."""
        self.tuned += 1
        self.scale *= float(np.exp((acceptance - self.target_accept) * self.tuned**-_FORGETTING))
        self.scale = min(self.scale, 1.0)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        super().setup_chain(rng, tune, draws)
        self.scale = self._initial_scale
        self.tuned = 0
