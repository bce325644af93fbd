"""Pseudo-marginal Metropolis–Hastings: hyperparameters move as if the latent values were integrated out exactly.

An approximation at hyperparameters θ has Gaussian sites, with the evidence Z̃(θ). Its posterior maps standard normals
z_s to latent values f_s, the particles. With weights w_s = p(y | f_s, θ) / sites(f_s), the estimate

    Ẑ(θ, z) = Z̃(θ) (w_1 + … + w_S) / S

has the mean p(y | θ). So p(θ) N(z; 0, I) Ẑ(θ, z) is proportional to a joint density of θ and z. Its marginal of θ is
the posterior (Andrieu and Roberts 2009). A particle that is chosen with probability w_s / Σ w is a draw from the
posterior of f given θ. A chain has three moves:

1. The f of the last draw becomes the first particle. Its z_1 is drawn given f, and all other z from N(0, I). This is
the distribution of z given θ, f and the choice of the first particle. So the chain is never stuck at a large estimate.

2. Hyperparameters and all z move together: θ by a random walk, z to ρ z + √(1 − ρ²) ε (Deligiannidis, Doucet and Pitt
   2018).

3. A particle is chosen, which becomes the next f.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.blocking import PointType
from pymc.model import modelcontext
from pymc.step_methods.state import dataclass_state
from scipy.special import logsumexp, softmax

from pymc_gpep.approximations import Solution, approximator
from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.marginal_model import MarginalModel
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.gaussians.whitening import Sampled, Whitening
from pymc_gpep.graphs.interpreted import initial_point
from pymc_gpep.prior_moments.prior_functions import observed
from pymc_gpep.reading import GPClassifier
from pymc_gpep.samplers.elliptical_slice import EllipticalSlice
from pymc_gpep.samplers.guided import GuidedStepState, SiteModel, solution_sites


class EvidenceEstimate(NamedTuple):
    """Unbiased estimate of the evidence by importance sampling."""

    log_evidence: float
    log_weights: Array
    """Log likelihood minus log sites of each particle, (particles,)."""
    f: Array
    """Latent values of the particles, (particles, c, n)."""

    @property
    def weights(self) -> Array:
        """Return the share of each particle in the estimate, (particles,)."""
        return np.asarray(softmax(self.log_weights))

    @property
    def standard_error(self) -> float:
        """Return the standard error of the log evidence, from the variation of the weights (delta method)."""
        weights = self.weights
        return float(weights.std() * np.sqrt(weights.size))


@dataclass_state
class PseudoMarginalState(GuidedStepState):
    """State of a chain: adapted quantities, and latent values if the model is a marginal model."""

    latent: dict[str, NDArray[np.float64]]


class PseudoMarginal(EllipticalSlice):
    """Sample hyperparameters by unbiased estimates of the evidence, and latent values with them.

    For each proposal of the hyperparameters, an approximation is solved, and the evidence is estimated by importance
    sampling from its Gaussian (Filippone and Girolami 2014). Metropolis–Hastings with such an estimate samples from the
    exact posterior (Andrieu and Roberts 2009). A particle of the estimate becomes the draw of the latent values. This
    draw then moves by elliptical slice sampling at fixed hyperparameters.

    Each proposal takes a solve. Interpolated sites of `EllipticalSlice` and `GuidedHMC` take almost no time, but
    hyperparameters move less.

    For a model from `gpep.marginalize`, the step samples the hyperparameters exactly: it ignores the evidence in the
    model's Potential. Latent values are not stored, and `gpep.recover_latent` draws new values from the approximation.
    For exact latent values sample the original model.

    Parameters
    ----------
    vars : sequence of TensorVariable, optional
        Latent values and hyperparameters; the default is all. For a marginal model all hyperparameters.
    particles : int
        Number S of particles, draws of the latent values for an estimate. With one particle, hyperparameters and latent
        values move jointly. With many particles and a good approximation, hyperparameters move as if latent values were
        integrated out. If log weights have the standard deviation σ, about exp(σ²) particles are needed.
    correlation : float
        Correlation ρ between the normals z at the current point and at a proposal: 0 for independent estimates, 1 for
        equal normals. A smaller correlation adds noise to the ratio of two estimates. Then the acceptance may be low
        for any step size. All normals are drawn again in every draw, for any ρ.
    sweeps : int
        Number of ellipses for each draw.
    model : pm.Model, optional
        Model with latent values, or a model from `gpep.marginalize`.

    Raises
    ------
    StructureError
        If the model has no Gaussian process and no sum of effects, or if the guide cannot approximate it.
    TypeError
        If `particles` is not a whole number.
    ValueError
        If an option is invalid, or if `vars` omits hyperparameters of a marginal model.

    Notes
    -----
    The sampler statistics `pseudo_marginal_acceptance` and `hyper_scale` describe the proposals of hyperparameters.
    `log_evidence` is the log of the last accepted estimate. Its mean exceeds the log evidence, since high estimates are
    accepted more often. `log_evidence_sd` is its standard error, from the particles. `ellipse_evaluations` is the mean
    number of likelihood evaluations for an ellipse.

    If the approximation does not converge, the estimate uses sites interpolated around the mode: it is unbiased for any
    sites. Sites depend only on the hyperparameters, and not on the history of the chain.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=gpep.samplers.PseudoMarginal())

    Draws of hyperparameters alone:

    >>> marginal = gpep.marginalize(model)
    >>> idata = pm.sample(model=marginal, step=gpep.samplers.PseudoMarginal(model=marginal))
    """

    name = "pseudo_marginal"
    default_tune_steps = 500
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = {
        "pseudo_marginal_acceptance": (np.float64, []),
        "log_evidence": (np.float64, []),
        "log_evidence_sd": (np.float64, []),
        "hyper_scale": (np.float64, []),
        "ellipse_evaluations": (np.float64, []),
        "tune": (bool, []),
    }
    progress: ClassVar[dict[str, tuple[str, str]]] = {
        "log_evidence": ("Log evidence", ".1f"),
        "pseudo_marginal_acceptance": ("Hyper", ".2f"),
    }
    _state_class = PseudoMarginalState

    def __init__(
        self, vars: Any = None, *, particles: int = 10, correlation: float = 1.0, hyper_moves: int = 2,
        likelihood: str | None = None, model: pm.Model | None = None, **options: Any,
    ) -> None:  # fmt: skip
        check_whole("particles", particles, 1)
        if not 0 <= correlation <= 1:
            raise ValueError(f"correlation must be between 0 and 1, but is {correlation}.")
        model = modelcontext(model)
        self._marginal = model.classifier if isinstance(model, MarginalModel) else None
        if (marginal := self._marginal) is not None:
            model = marginal.model
            if vars is not None:
                given = [vars] if not isinstance(vars, list | tuple) else vars
                vars = [*given, *marginal.prior.integrated]
        super().__init__(vars, hyper_moves=hyper_moves, likelihood=likelihood, model=model, **options)
        self.particles = particles
        self.correlation = correlation
        self._initial_latent: dict[str, Array] = {}
        if marginal is not None:
            start = initial_point(model)
            self._initial_latent = {v.name: start[v.name] for v in self.latent_model.latent_value_vars()}
            self.vars = self.hyperparameters
            if len(self.vars) < len(self.latent_model.value_vars):
                left = [v.name for v in self.latent_model.value_vars if v not in self.vars]
                raise ValueError(
                    f"vars leaves out {', '.join(map(repr, left))}. In a marginal model this step must update all "
                    "hyperparameters: other steps would sample from the approximation."
                )
        self.latent = self._initial_latent
        if isinstance(self.processes, GPClassifier) and self.site_model is not None:
            self.approximator = approximator(self.guide, self.processes.likelihood_model, {})
            self._observed = observed(self.processes, self.latent_model.values.data)
            centre = self.latent_model.with_theta(initial_point(model), self.site_model.centre)
            self._start = self._solved(self._prior_at(centre), centre, None).start

    def read(self, model: pm.Model, likelihood: str | None) -> GPClassifier:
        return super().read(model, likelihood) if self._marginal is None else self._marginal

    def sites(self, fitted: SiteModel, prior: Sampled, point: PointType) -> Sites:
        # All solves begin from the same sites, so that the estimate depends on hyperparameters and normals alone.
        solved = solution_sites(self._solved(prior, point, self._start))
        return super().sites(fitted, prior, point) if solved is None else solved

    def _solved(self, prior: Sampled, point: PointType, start: Array | None) -> Solution:
        labels, likelihood = self._observed(point)
        array, prior_type = prior.for_solver(self.approximator.takes)
        return self.approximator.solve(
            array, prior.function_mean, labels, start, likelihood=likelihood, prior_type=prior_type
        )

    def estimate(self, point: PointType, whitening: Whitening, z: Array) -> EvidenceEstimate:
        """Return the estimate of the evidence at a point, for standard normals z of each particle, (particles, ...)."""
        f = np.stack([whitening.latent(each) for each in z])
        log_weights = np.array([self.log_ratio(point, whitening, each)[0] for each in f])
        log_weights[np.isnan(log_weights)] = -np.inf
        log_evidence = whitening.log_evidence + float(logsumexp(log_weights)) - float(np.log(len(z)))
        return EvidenceEstimate(log_evidence, log_weights, f)

    def advance(self, point: PointType) -> tuple[PointType, dict[str, Any]]:
        after, statistics = super().advance({**point, **self.latent})
        self.latent = {name: after[name] for name in self.latent}
        return {name: after[name] for name in point}, statistics

    def move_hyperparameters(
        self, point: PointType, whitening: Whitening, f: Array
    ) -> tuple[PointType, Whitening, Array, dict[str, Any]]:
        z = self.rng.standard_normal((self.particles, *whitening.shape))
        z[0] = whitening.whitened(f, self.rng)
        here, log_prior = self.estimate(point, whitening, z), self.log_prior(point)
        acceptances = []
        for _ in range(self.hyper_moves if self.hyperparameters else 0):
            acceptance = 0.0
            proposed, whitening_there = self.propose(point)
            if whitening_there is not None:
                z_there = self._correlated(z)
                there, log_prior_there = self.estimate(proposed, whitening_there, z_there), self.log_prior(proposed)
                density = there.log_evidence + log_prior_there
                if np.isfinite(density):
                    acceptance = float(np.exp(min(0.0, density - here.log_evidence - log_prior)))
                if self.rng.random() < acceptance:
                    point, whitening, z = proposed, whitening_there, z_there
                    here, log_prior = there, log_prior_there
            acceptances.append(acceptance)
            if self.tune:
                self.walk.learn_scale(acceptance)
        self.learn_directions(point)
        chosen = self.rng.choice(self.particles, p=here.weights)
        return point, whitening, here.f[chosen], {
            "pseudo_marginal_acceptance": float(np.mean(acceptances)) if acceptances else np.nan,
            "log_evidence": here.log_evidence,
            "log_evidence_sd": here.standard_error,
        }  # fmt: skip

    def _correlated(self, z: Array) -> Array:
        """Return standard normals with the correlation ρ to z."""
        if self.correlation == 1.0:
            return z
        return self.correlation * z + np.sqrt(1.0 - self.correlation**2) * self.rng.standard_normal(z.shape)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        super().setup_chain(rng, tune, draws)
        self.latent = self._initial_latent
