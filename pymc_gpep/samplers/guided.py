"""Sites as functions of hyperparameters, and steps by random walk and Hamiltonian dynamics that use these sites.

A site is a Gaussian factor in place of the likelihood of a point. An approximation gives sites at the mode of the
hyperparameters, and on both sides of the mode along each principal axis. Parabolas interpolate the log precisions and
the locations of these sites, so sites at any proposal are cheap. Far from the mode the sites are constant. The sampler
is exact for any sites, and fast if the sites resemble the likelihood.

Whitened values z are a linear function of latent values f. They are standard normal under the posterior with these
sites. If the sites are accurate, hyperparameters θ and z are nearly independent. Then a random walk in θ at fixed z
crosses the whole posterior of θ. At fixed f the posterior of θ is much narrower. `GuidedHMC` moves z by Hamiltonian
Monte Carlo.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.blocking import PointType
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state
from pymc.step_methods.step_sizes import DualAverageAdaptation, StepSizeState
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations import APPROXIMATIONS, Approximator, Solution, approximator
from pymc_gpep.approximations.limits import documented
from pymc_gpep.argument_types import check_whole, did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.memory_check import check_memory
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.gaussians.whitening import PriorWhitening, Sampled, Whitening, whitening_of, whitens
from pymc_gpep.graphs.interpreted import initial_point
from pymc_gpep.hyper.curvature import second_derivatives
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.processes.processes import processes_or
from pymc_gpep.reading import GPClassifier, StructureError, read_classifier
from pymc_gpep.reading.classifier import ReadModel
from pymc_gpep.samplers.step import LatentStep, sampled_model
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError

_WIDEST = 2.0  # A longer principal axis is shortened to this length, in unconstrained hyperparameters.
_DIFFERENCE = 0.05  # Step in each hyperparameter for second derivatives by differences of gradients.
_SIDE = 1.5  # Sites are computed at this distance on both sides of the mode, in standard deviations.
_REACH = 2.5  # Beyond this distance from the mode, in standard deviations, the sites are constant.
_SMALLEST = 1e-12  # Smaller precisions of sites are replaced by this one, since their logarithm is used.
_MAX_ITERATIONS = 200


@dataclass(frozen=True)
class SiteModel:
    """Sites as functions of hyperparameters: sums of parabolas along principal axes through a centre.

    Attributes
    ----------
    centre : array (d,)
        Unconstrained hyperparameters.
    axes : array (d, d)
        Principal axes of the posterior of the hyperparameters at the centre, in columns. The length of an axis is the
        standard deviation along it.
    sites : Sites
        Sites at the centre.
    slopes, bends : array (d, 2, c, n)
        Linear and quadratic coefficients of log precisions and locations of sites, per standard deviation along each
        axis.
    largest_precision : float
        Upper limit of the precisions of sites.
    """

    centre: Array
    axes: Array
    sites: Sites
    slopes: Array
    bends: Array
    largest_precision: float

    @property
    def covariance(self) -> Array:
        """Return the approximate posterior covariance of the hyperparameters, (d, d)."""
        return np.asarray(self.axes @ self.axes.T)

    @cached_property
    def _parabolas(self) -> tuple[Array, Array, Array]:
        """Inverse of the axes; coordinates of the sites at the centre; coefficients of the parabolas, (2d, ·)."""
        middle, curves = _coordinates(self.sites), np.concatenate([self.slopes, self.bends])
        return np.linalg.inv(self.axes), middle, curves.reshape(len(curves), middle.size)

    def at(self, theta: Array) -> Sites:
        """Return the sites at given hyperparameters."""
        inverse, middle, curves = self._parabolas
        u = np.clip(inverse @ (theta - self.centre), -_REACH, _REACH)
        log_pi, nu = middle + (np.concatenate([u, u * u]) @ curves).reshape(middle.shape)
        return replace(self.sites, precision=np.exp(np.minimum(log_pi, np.log(self.largest_precision))), location=nu)


def fit_sites(
    classifier: GPClassifier, approximator: Approximator, compile_kwargs: dict[str, Any] | None = None
) -> SiteModel:
    """Return the sites of an approximation as functions of the hyperparameters, from solves around the mode.

    Raises
    ------
    ValueError
        If the approximation fails at the model's initial point, or at the mode.
    """
    log_posterior = DenseLogPosterior(classifier, approximator, compile_kwargs, grouped=False)
    best = maximise(log_posterior, log_posterior.space.initial_point(), _MAX_ITERATIONS).best
    centre, axes = best.theta, _principal_axes(log_posterior, best)

    def solved(theta: Array) -> Sites | None:
        return solution_sites(log_posterior.solve(theta, best.start))

    sites = solved(centre)
    if sites is None:
        raise ValueError(f"{approximator.name} fails at the mode of the hyperparameters. Give another guide=...")
    middle = _coordinates(sites)
    slopes, bends = np.zeros((2, centre.size, *middle.shape))
    for j, axis in enumerate(axes.T):
        below, above = solved(centre - _SIDE * axis), solved(centre + _SIDE * axis)
        if below is not None and above is not None:
            low, high = _coordinates(below), _coordinates(above)
            slopes[j] = (high - low) / (2.0 * _SIDE)
            bends[j] = (high + low - 2.0 * middle) / (2.0 * _SIDE**2)
    return SiteModel(centre, axes, sites, slopes, bends, classifier.likelihood_model.largest_precision)


def solution_sites(solution: Solution) -> Sites | None:
    """Return the sites of a solution, with positive precisions; None if the solve did not converge."""
    if not solution.convergence.converged:
        return None
    sites = solution.posterior.sites
    return replace(sites, precision=np.maximum(sites.precision, _SMALLEST))


def _coordinates(sites: Sites) -> Array:
    """Return log precisions and locations of sites, (2, c, n): the quantities that parabolas interpolate."""
    return np.stack([np.log(sites.precision), sites.location])


def _principal_axes(log_posterior: LogPosterior, best: Evaluation) -> Array:
    """Return the principal axes (d, d) of a Gaussian with the curvature of the log posterior at its mode."""
    hessian = second_derivatives(log_posterior, best, np.full(best.theta.size, _DIFFERENCE))
    # The approximation may fail beside the mode. Its curvature then counts as 0.
    values, vectors = np.linalg.eigh(-np.where(np.isfinite(hessian), hessian, 0.0))
    return np.asarray(vectors / np.sqrt(np.maximum(values, _WIDEST**-2)))


_TARGET = 0.3  # Target acceptance probability. The best value is 0.44 in one dimension, and 0.23 in many dimensions.
_GAIN = 3.0  # Draw j changes the covariance by a share of about 3/j. So the first draws count little in the end.
_DELAY = 30.0  # The initial covariance counts like this number of draws.
_KEPT = 0.01  # Share of the initial covariance that is always added, so that every direction is proposed.


@dataclass_state
class RandomWalkState(DataClassState):
    """Adapted quantities of the random walk."""

    log_scale: float
    proposals: int
    draws: int
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


class RandomWalk(WithSamplingState):
    """Gaussian proposals with the covariance of earlier draws, and a scale for a target acceptance probability.

    The covariance adapts only while tuning (Andrieu and Thoms 2008, algorithm 4).

    Parameters
    ----------
    covariance : array (d, d)
        Initial value of the posterior covariance.
    """

    _state_class = RandomWalkState

    def __init__(self, covariance: Array) -> None:
        self._guess = covariance
        self.reset()

    def reset(self) -> None:
        """Reset the adaptation."""
        self.log_scale = float(np.log(2.4 / np.sqrt(max(len(self._guess), 1))))
        self.proposals = 0
        self.draws = 0
        self.mean = np.zeros(len(self._guess))
        self.covariance = self._guess.copy()

    def step(self, rng: np.random.Generator) -> Array:
        """Return a proposed change (d,)."""
        root = np.linalg.cholesky(self.covariance + _KEPT * self._guess)
        return np.asarray(np.exp(self.log_scale) * (root @ rng.standard_normal(len(root))))

    def learn_scale(self, acceptance: float) -> None:
        """Adapt the scale to the acceptance probability of a proposal."""
        self.proposals += 1
        self.log_scale += (acceptance - _TARGET) / self.proposals**0.6

    def learn_directions(self, theta: Array) -> None:
        """Adapt the covariance to a draw (d,)."""
        if self.draws == 0:
            self.mean = theta.copy()
        self.draws += 1
        gain = _GAIN / (self.draws + _DELAY)
        difference = theta - self.mean
        self.mean = self.mean + gain * difference
        self.covariance = self.covariance + gain * (np.outer(difference, difference) - self.covariance)


_log = logging.getLogger("pymc")  # PyMC's logger. A user who silences `pm.sample` silences these messages too.


@dataclass_state
class GuidedStepState(StepMethodState):
    """Adapted quantities of the random walk in the hyperparameters."""

    tune: bool
    walk: RandomWalkState


class GuidedStep(LatentStep):
    """Step for latent values, and for hyperparameters by a random walk while whitened latent values are fixed.

    If latent functions are sums of effects, the step moves the standard normal variables of all effects.

    Parameters
    ----------
    vars : sequence of TensorVariable, optional
        Variables of latent values, or the free variables on which they depend, and hyperparameters. The default is all
        latent values and all hyperparameters.
    guide : str, optional
        Name of an approximation, or "prior". Latent values are whitened by the sites of this approximation, or by the
        prior. The default is nested EP for the multinomial probit, and Laplace's method for a softmax. It is the prior
        if no method approximates the likelihood.
    hyper_moves : int
        Number of proposals of the hyperparameters in each draw.
    likelihood : str, optional
        Name of the likelihood, if the model has several.
    model : pm.Model, optional
    rng : int, Generator or None
    compile_kwargs : dict, optional
        Arguments of PyTensor's compilation.

    Raises
    ------
    StructureError
        If the model has no Gaussian process and no sum of effects, or if the guide cannot approximate it.
    TypeError
        If `hyper_moves` is not an integer.
    ValueError
        If an option has an invalid value.
    """

    _state_class = GuidedStepState

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = documented(cls)

    def __init__(
        self,
        vars: Sequence[TensorVariable] | TensorVariable | None = None,
        *,
        guide: str | None = None,
        hyper_moves: int = 6,
        likelihood: str | None = None,
        model: pm.Model | None = None,
        rng: Any = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        check_whole("hyper_moves", hyper_moves, 1)
        model = sampled_model(model)
        processes, guide = guided(self.read, model, guide, likelihood)
        super().__init__(vars, processes, rng, compile_kwargs)
        self.guide = guide
        self.hyper_moves = hyper_moves
        self.site_model: SiteModel | None = None
        if isinstance(processes, GPClassifier) and guide != "prior":
            solver = approximator(guide, processes.likelihood_model, {})
            _log.info(f"Fitting {solver.name} to guide {type(self).__name__}")
            self.site_model = fit_sites(processes, solver, compile_kwargs)
        self._log_likelihood = self.latent_model.likelihood()
        self._log_prior = self.latent_model.function([self.latent_model.log_prior])
        start = initial_point(model)
        self._moved = self.latent_model.theta(
            {v.name: np.full_like(start[v.name], v in self.hyperparameters) for v in self.latent_model.value_vars}
        ).astype(bool)
        moved = self._moved
        self.walk = RandomWalk(
            np.eye(moved.sum()) if self.site_model is None else self.site_model.covariance[moved][:, moved]
        )
        self._whitened: Whitening | None = None

    def read(self, model: pm.Model, likelihood: str | None) -> GPClassifier:
        """Read the model."""
        return read_classifier(model, likelihood)

    def whitening(self, prior: Sampled, point: PointType) -> Whitening | None:
        """Return the map between whitened and latent values. None if a covariance matrix is not positive definite."""
        if self._whitened is not None and self._whitened.prior is prior:
            return self._whitened
        if self.site_model is None:
            return PriorWhitening(prior)
        try:
            return whitening_of(prior, self.sites(self.site_model, prior, point))
        except NotPositiveDefiniteError:
            return None

    def sites(self, fitted: SiteModel, prior: Sampled, point: PointType) -> Sites:
        """Return the sites at the hyperparameters of a point."""
        return fitted.at(self.latent_model.theta(point))

    def log_ratio(self, point: PointType, whitening: Whitening, f: Array) -> tuple[float, Array]:
        """Return log likelihood minus log sites at latent values f (c, n), and the gradient of this difference in f."""
        value, slope = self._log_likelihood(point, f, whitening.prior)
        log_sites, sites_slope = whitening.log_sites(f)
        return value - log_sites, slope - sites_slope

    def advance(self, point: PointType) -> tuple[PointType, dict[str, Any]]:
        prior, f = self.current(point)
        whitening = self.whitening(prior, point)
        if whitening is None:
            raise ValueError(f"The sites of {self.guide} fail at the current point. Pass another guide=...")
        f, statistics = self.move_latent_values(point, whitening, f)
        point, whitening, f, of_move = self.move_hyperparameters(point, whitening, f)
        statistics |= of_move | {"hyper_scale": float(np.exp(self.walk.log_scale)), "tune": self.tune}
        self.remember(point, whitening.prior)
        self._whitened = whitening
        return self.moved(point, f, whitening.prior), statistics

    @abstractmethod
    def move_latent_values(self, point: PointType, whitening: Whitening, f: Array) -> tuple[Array, dict[str, Any]]:
        """Move latent values (c, n) at fixed hyperparameters. Return the new values and statistics."""

    def move_hyperparameters(
        self, point: PointType, whitening: Whitening, f: Array
    ) -> tuple[PointType, Whitening, Array, dict[str, Any]]:
        """Move hyperparameters. Return the new point, the whitening there, the new latent values, and statistics."""
        if not self.hyperparameters:
            return point, whitening, f, {"hyper_acceptance": np.nan}
        z = whitening.whitened(f, self.rng)
        current = self._log_density(point, whitening, f)
        total = 0.0
        for _ in range(self.hyper_moves):
            acceptance = 0.0
            proposed, there = self.propose(point)
            if there is not None:
                f_there = there.latent(z)
                density = self._log_density(proposed, there, f_there)
                acceptance = float(np.exp(min(0.0, density - current))) if np.isfinite(density) else 0.0
                if self.rng.random() < acceptance:
                    point, whitening, f, current = proposed, there, f_there, density
            total += acceptance
            if self.tune:
                self.walk.learn_scale(acceptance)
        self.learn_directions(point)
        return point, whitening, f, {"hyper_acceptance": total / self.hyper_moves}

    def propose(self, point: PointType) -> tuple[PointType, Whitening | None]:
        """Return a proposed point and the whitening there. It is None if a covariance is not positive definite."""
        theta = self.latent_model.theta(point)
        theta[self._moved] += self.walk.step(self.rng)
        proposed = self.latent_model.with_theta(point, theta)
        prior = self.prior(proposed)
        return proposed, None if prior is None else self.whitening(prior, proposed)

    def learn_directions(self, point: PointType) -> None:
        """Adapt the directions of the random walk to a draw, if the sampler tunes."""
        if self.tune:
            self.walk.learn_directions(self.latent_model.theta(point)[self._moved])

    def log_prior(self, point: PointType) -> float:
        """Return the log density of the terms that do not depend on latent values."""
        (value,) = self._log_prior(point)
        return float(value)

    def _log_density(self, point: PointType, whitening: Whitening, f: Array) -> float:
        """Return the log density of hyperparameters given fixed whitened values, up to a constant."""
        return self.log_prior(point) + whitening.log_evidence + self.log_ratio(point, whitening, f)[0]

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        super().setup_chain(rng, tune, draws)
        self.walk.reset()
        self._whitened = None


def guided(
    read: Callable[[pm.Model, str | None], GPClassifier], model: pm.Model, guide: str | None, name: str | None
) -> tuple[ReadModel, str]:
    """Return the model as read by `read`, and the name of the approximation that whitens latent values, or "prior"."""
    try:
        classifier = read(model, name)
    except StructureError as error:
        if guide == "prior" or (guide is None and name is None):
            return processes_or(error, model), "prior"
        raise
    likelihood = classifier.likelihood_model
    guide = guide or likelihood.guide
    if guide == "prior":
        return classifier, "prior"
    check_memory(classifier, "The guide of a sampler", prior_type=next(iter(classifier.prior.arrays)))
    guides = [
        kind.name
        for kind in APPROXIMATIONS
        if kind.approximates(likelihood) and whitens(approximator(kind.name, likelihood, {}).site_form)
    ]
    if guide not in guides:
        raise ValueError(
            f"guide is {guide!r}, but the guides for a {classifier.kind} likelihood are "
            f"{', '.join(map(repr, [*guides, 'prior']))}.{did_you_mean([guide], [*guides, 'prior'])}"
        )
    return classifier, guide


def offer_step(model: pm.Model | None) -> None:
    """Log which step method suits the Gaussian processes of a model, when `pm.sample` is called without a step.

    Nothing is logged for a model without Gaussian processes, or if no approximation supports its likelihood.

    Parameters
    ----------
    model : pm.Model, optional
        Model of the call; by default the model of the context.
    """
    classifier, guide = guided(read_classifier, sampled_model(model), None, None)
    if guide != "prior" and not classifier.prior.effects:
        _log.info(
            "pm.sample without step= assigns PyMC's steps. step=gpep.samplers.GuidedHMC() is made for the Gaussian "
            "processes of this model. step=pm.NUTS() samples without this line."
        )


_FIRST_STEP = 0.3  # Initial step size.
_SPREAD = 0.2  # Step sizes vary at random by up to this share. This prevents periodic orbits.
_WORST = 1000.0  # If the energy error of a trajectory exceeds this value, the trajectory counts as divergent.


@dataclass_state
class GuidedHMCState(GuidedStepState):
    """Adapted quantities of the random walk, and the adapted step size."""

    step_size: StepSizeState


class GuidedHMC(GuidedStep):
    """Sample whitened latent values by Hamiltonian Monte Carlo, and hyperparameters by a random walk.

    Under the Gaussian of EP or of Laplace's method, latent values are a linear function of independent standard normals
    z. Under the exact posterior, z is close to standard normal. So a short trajectory with a unit mass matrix ends at a
    nearly independent draw, for any prior covariance. Hyperparameters move while z is fixed. The sampler is exact:
    the approximation affects only the coordinates z.

    Parameters
    ----------
    path_length : float
        Length of a trajectory in z. If z is standard normal, a trajectory of length π/2 is a quarter of an orbit, and
        ends at an independent state.
    target_accept : float
        Acceptance probability to which the step size is adapted.
    max_leapfrog : int
        Largest number of leapfrog steps in a trajectory.

    Notes
    -----
    Sampler statistics are `step_size`, `n_leapfrog`, `acceptance_rate` and `diverging`, and, for models with
    hyperparameters, `hyper_acceptance` and `hyper_scale`.

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
