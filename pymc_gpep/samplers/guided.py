"""Sites that guide a sampler, as a function of the hyperparameters, and a step with a random walk that uses them.

An approximation is solved at the mode of its posterior of the hyperparameters. It is solved as well to either side of
the mode, along each principal axis of this posterior's curvature there. Parabolas interpolate the logarithms of the
precisions and the locations of the sites; far out they are held constant. So the function is cheap enough for every
proposal. The sampler is exact for any sites, and fast if they resemble the likelihood.

As θ moves with z held, the latent values follow the posterior that the sites describe. If they describe it well, θ and
z are nearly independent, and a random walk in θ crosses its whole posterior. With f held, or the utilities of a Gibbs
sampler, it would move within the little that these leave open. The random walk learns its scale and directions in the
tuning phase, and then keeps them.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.blocking import PointType
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations import APPROXIMATIONS, Approximator, Solution, approximator
from pymc_gpep.approximations.limits import documented
from pymc_gpep.argument_types import check_whole, did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.memory import check_memory
from pymc_gpep.gaussians.posteriors import whitening_of, whitens
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.gaussians.whitening import PriorWhitening, Sampled, Whitening
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

_WIDEST = 2.0  # largest standard deviation of an unconstrained hyperparameter that is believed
_DIFFERENCE = 0.05  # for the curvature of the log posterior
_SIDE = 1.5  # standard deviations from the mode to the solutions on either side
_REACH = 2.5  # and to where the parabolas end
_SMALLEST = 1e-12  # precision of a site
_MAX_ITERATIONS = 200


@dataclass(frozen=True)
class SiteModel:
    """Precisions and locations of sites near a centre, a sum of parabolas along principal axes.

    Attributes
    ----------
    centre : array (d,)
        Unconstrained hyperparameters.
    axes : array (d, d)
        Principal axes of the posterior of the hyperparameters there, in the columns, each as long as its standard
        deviation.
    sites : Sites
        Sites at the centre.
    slopes, bends : array (d, 2, c, n)
        Changes of log π and ν, for one standard deviation along each axis and for its square.
    largest_precision : float
        Limit that no π exceeds, however far the parabolas go.
    """

    centre: Array
    axes: Array
    sites: Sites
    slopes: Array
    bends: Array
    largest_precision: float

    @property
    def covariance(self) -> Array:
        """Return the covariance of the Gaussian with the curvature of the log posterior at the centre, (d, d)."""
        return np.asarray(self.axes @ self.axes.T)

    @cached_property
    def _parabolas(self) -> tuple[Array, Array, Array]:
        """Inverse of the axes, log π and ν at the centre, and the coefficients (2d, ·) of u and of u²."""
        middle, curves = _coordinates(self.sites), np.concatenate([self.slopes, self.bends])
        return np.linalg.inv(self.axes), middle, curves.reshape(len(curves), middle.size)

    def at(self, theta: Array) -> Sites:
        """The sites at given hyperparameters."""
        inverse, middle, curves = self._parabolas
        u = np.clip(inverse @ (theta - self.centre), -_REACH, _REACH)
        log_pi, nu = middle + (np.concatenate([u, u * u]) @ curves).reshape(middle.shape)
        return replace(self.sites, precision=np.exp(np.minimum(log_pi, np.log(self.largest_precision))), location=nu)


def fit_sites(
    classifier: GPClassifier, approximator: Approximator, compile_kwargs: dict[str, Any] | None = None
) -> SiteModel:
    """Solve an approximation around the mode of the hyperparameters.

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
        raise ValueError(f"{approximator.name} does not converge at the mode of its hyperparameters; guide by another.")
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
    """The sites of an approximation whose posterior has a map from standard normals; None if it did not converge."""
    if not solution.convergence.converged:
        return None
    sites = solution.posterior.sites
    return replace(sites, precision=np.maximum(sites.precision, _SMALLEST))


def _coordinates(sites: Sites) -> Array:
    """Return the values that parabolas go through, log π and ν (2, c, n)."""
    return np.stack([np.log(sites.precision), sites.location])


def _principal_axes(log_posterior: LogPosterior, best: Evaluation) -> Array:
    """Principal axes of the Gaussian with the curvature of the log posterior at a mode, by differences of gradients."""
    hessian = second_derivatives(log_posterior, best, np.full(best.theta.size, _DIFFERENCE))
    # A direction in which the approximation fails counts as flat.
    values, vectors = np.linalg.eigh(-np.where(np.isfinite(hessian), hessian, 0.0))
    return np.asarray(vectors / np.sqrt(np.maximum(values, _WIDEST**-2)))


_TARGET = 0.3  # acceptance; 0.44 is best in one dimension and 0.23 in many
_GAIN = 3.0  # a draw is forgotten as the cube of how far back it is
_DELAY = 30.0  # draws that the first guess counts for
_KEPT = 0.01  # of the first guess, so that no direction is ever given up


@dataclass_state
class RandomWalkState(DataClassState):
    """What is learned."""

    log_scale: float
    proposals: int
    draws: int
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


class RandomWalk(WithSamplingState):
    """Gaussian proposals with the covariance of the draws seen so far, scaled to be accepted often enough.

    It is learned while tuning only (Andrieu and Thoms 2008, algorithm 4).

    Parameters
    ----------
    covariance : array (d, d)
        A first guess of the posterior covariance.
    """

    _state_class = RandomWalkState

    def __init__(self, covariance: Array) -> None:
        self._guess = covariance
        self.reset()

    def reset(self) -> None:
        """Forget what was learned."""
        self.log_scale = float(np.log(2.4 / np.sqrt(max(len(self._guess), 1))))
        self.proposals = 0
        self.draws = 0
        self.mean = np.zeros(len(self._guess))
        self.covariance = self._guess.copy()

    def step(self, rng: np.random.Generator) -> Array:
        """A proposed change (d,)."""
        root = np.linalg.cholesky(self.covariance + _KEPT * self._guess)
        return np.asarray(np.exp(self.log_scale) * (root @ rng.standard_normal(len(root))))

    def learn_scale(self, acceptance: float) -> None:
        """Take account of the acceptance probability of a proposal."""
        self.proposals += 1
        self.log_scale += (acceptance - _TARGET) / self.proposals**0.6

    def learn_directions(self, theta: Array) -> None:
        """Take account of a draw (d,)."""
        if self.draws == 0:
            self.mean = theta.copy()
        self.draws += 1
        gain = _GAIN / (self.draws + _DELAY)
        difference = theta - self.mean
        self.mean = self.mean + gain * difference
        self.covariance = self.covariance + gain * (np.outer(difference, difference) - self.covariance)


_log = logging.getLogger("pymc")  # where pm.sample says what it does; what silences that silences this


@dataclass_state
class GuidedStepState(StepMethodState):
    """What is learned of the hyperparameters."""

    tune: bool
    walk: RandomWalkState


class GuidedStep(LatentStep):
    """A step for latent values, and for hyperparameters by a random walk with the whitened latent values held.

    Where latent functions are sums of effects, the step moves the standard normals that all effects are made of. Draws
    are those of the variables that the model has.

    Parameters
    ----------
    vars : sequence of TensorVariable, optional
        Latent values, by the variable of the model that holds them or by the free one behind it, and hyperparameters.
        All latent values and all hyperparameters if not given.
    guide : str, optional
        Name of the approximation whose sites whiten the latent values, or "prior" to whiten by the prior alone. The
        likelihood decides if it is not given. The multinomial probit has nested EP and a softmax Laplace's method. A
        likelihood that no method approximates has the prior.
    hyper_moves : int
        Proposals for the hyperparameters in each draw.
    likelihood : str, optional
        Name of the likelihood, if the model has several that an approximation could be of.
    model : pm.Model, optional
    rng : int, Generator or None
    compile_kwargs : dict, optional
        For PyTensor's compilation.

    Raises
    ------
    StructureError
        If the model has no latent values, of Gaussian processes or sums of effects, or if the guide cannot approximate
        it.
    TypeError
        If `hyper_moves` is no whole number.
    ValueError
        If an option makes no sense.
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
        """Read the model that there is to approximate."""
        return read_classifier(model, likelihood)

    def whitening(self, prior: Sampled, point: PointType) -> Whitening | None:
        """The map between whitened and latent values, None where a matrix is not positive definite."""
        if self._whitened is not None and self._whitened.prior is prior:
            return self._whitened
        if self.site_model is None:
            return PriorWhitening(prior)
        try:
            return whitening_of(prior, self.sites(self.site_model, prior, point))
        except NotPositiveDefiniteError:
            return None

    def sites(self, fitted: SiteModel, prior: Sampled, point: PointType) -> Sites:
        """The sites that guide at a point."""
        return fitted.at(self.latent_model.theta(point))

    def log_ratio(self, point: PointType, whitening: Whitening, f: Array) -> tuple[float, Array]:
        """Log likelihood less log sites, and its derivative with respect to f (c, n)."""
        value, slope = self._log_likelihood(point, f, whitening.prior)
        log_sites, sites_slope = whitening.log_sites(f)
        return value - log_sites, slope - sites_slope

    def advance(self, point: PointType) -> tuple[PointType, dict[str, Any]]:
        prior, f = self.current(point)
        whitening = self.whitening(prior, point)
        if whitening is None:
            raise ValueError(f"The sites of {self.guide} fail at the current point; guide by another approximation.")
        f, statistics = self.move_latent_values(point, whitening, f)
        point, whitening, f, of_move = self.move_hyperparameters(point, whitening, f)
        statistics |= of_move | {"hyper_scale": float(np.exp(self.walk.log_scale)), "tune": self.tune}
        self.remember(point, whitening.prior)
        self._whitened = whitening
        return self.moved(point, f, whitening.prior), statistics

    @abstractmethod
    def move_latent_values(self, point: PointType, whitening: Whitening, f: Array) -> tuple[Array, dict[str, Any]]:
        """Latent values (c, n) moved at fixed hyperparameters, and the statistics of it."""

    def move_hyperparameters(
        self, point: PointType, whitening: Whitening, f: Array
    ) -> tuple[PointType, Whitening, Array, dict[str, Any]]:
        """Hyperparameters moved, the map and the latent values there, and the statistics of it."""
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
        """A step of the random walk, and the map there, None where a matrix is not positive definite."""
        theta = self.latent_model.theta(point)
        theta[self._moved] += self.walk.step(self.rng)
        proposed = self.latent_model.with_theta(point, theta)
        prior = self.prior(proposed)
        return proposed, None if prior is None else self.whitening(prior, proposed)

    def learn_directions(self, point: PointType) -> None:
        """Let the random walk take account of a draw, while it is tuned."""
        if self.tune:
            self.walk.learn_directions(self.latent_model.theta(point)[self._moved])

    def log_prior(self, point: PointType) -> float:
        """Log density of what does not depend on latent values."""
        (value,) = self._log_prior(point)
        return float(value)

    def _log_density(self, point: PointType, whitening: Whitening, f: Array) -> float:
        """Log density of the hyperparameters and of whitened latent values, less that of the latter's normal."""
        return self.log_prior(point) + whitening.log_evidence + self.log_ratio(point, whitening, f)[0]

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        super().setup_chain(rng, tune, draws)
        self.walk.reset()
        self._whitened = None


def guided(
    read: Callable[[pm.Model, str | None], GPClassifier], model: pm.Model, guide: str | None, name: str | None
) -> tuple[ReadModel, str]:
    """Return the prior that `read` finds in a model, and the name of its guide: "prior" where the prior is to guide."""
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
    prior_type = classifier.prior.sampled_type
    guides = [
        kind.name
        for kind in APPROXIMATIONS
        if kind.approximates(likelihood) and whitens(prior_type, approximator(kind.name, likelihood, {}).site_form)
    ]
    if guide not in guides:
        raise ValueError(
            f"guide is {guide!r}, but for a {classifier.kind} likelihood it must be one of "
            f"{', '.join(map(repr, [*guides, 'prior']))}.{did_you_mean([guide], [*guides, 'prior'])}"
        )
    return classifier, guide
