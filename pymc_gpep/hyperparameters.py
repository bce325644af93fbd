"""The log posterior of the hyperparameters with the latent values integrated out, and its maximum.

Everything happens in the unconstrained space of the model's value variables: evidence, the model's own priors and any
other terms it has, and the Jacobians of its transforms.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import DictToArrayBijection, PointType, RaveledVars
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from scipy.optimize import minimize

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.kernels.status import CONVERGED, MESSAGES, NOT_POSITIVE_DEFINITE, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.ops import Evidence
from pymc_gpep.prior import check_prior
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.arrays import arrays_as_shared
from pymc_gpep.structure.interpreted import graph_function

__all__ = [
    "Evaluation",
    "LogPosterior",
    "Optimum",
    "check_moments",
    "frozen_data",
    "maximise",
    "prior_moments",
    "second_derivatives",
]

Array = NDArray[np.float64]


class Evaluation(NamedTuple):
    """The log posterior at one point of the unconstrained space."""

    theta: Array
    """Hyperparameters, flat."""
    log_posterior: float
    """Evidence, log priors, log Jacobians and the model's other terms."""
    gradient: Array
    evidence: float
    iterations: int
    """Iterations that the approximation took."""
    status: int
    """One of `pymc_gpep.kernels.status`."""


class LogPosterior:
    """log p(θ | y) up to a constant, with gradient, as an approximation has it.

    Parameters
    ----------
    classifier : GPClassifier
    approximator : Approximator
    compile_kwargs : dict, optional
        For PyTensor's compilation. Without a `mode` the graph is interpreted.

    Notes
    -----
    Each solve starts from the sites of the last one. Its fixed point, and so the value, does not depend on them beyond
    the tolerance of the approximation.
    """

    def __init__(
        self, classifier: GPClassifier, approximator: Approximator, compile_kwargs: dict[str, Any] | None = None
    ) -> None:
        self.classifier = classifier
        self.approximator = approximator
        self._cold = np.zeros(approximator.sites_size(classifier.n_classes, classifier.n_points))
        self._sites = self._cold
        model = classifier.model
        covariance = classifier.covariance()
        moments = [pt.atleast_3d(covariance, left=True), classifier.mean()]
        k, mean = model.replace_rvs_by_values(moments)
        labels = classifier.labels
        self.value_vars = [model.rvs_to_values[rv] for rv in classifier.hyperparameters]
        others = [rv for rv in model.observed_RVs if rv is not classifier.likelihood]
        terms = [*classifier.hyperparameters, *others, *model.potentials]
        prior = model.logp(vars=terms) if terms else pt.constant(0.0)

        start = pt.dvector("start")
        evidence, _, _, sites, status, iterations = Evidence(approximator).make_node(k, mean, labels, start).outputs
        log_posterior = evidence + prior
        gradient = (
            pt.concatenate([g.ravel() for g in pytensor.grad(log_posterior, self.value_vars)])
            if self.value_vars
            else pt.zeros(0)
        )
        self._outputs = [log_posterior, gradient, evidence, sites, status, iterations]
        self._inputs = [*self.value_vars, start]
        self._prior = prior
        self._kwargs = compile_kwargs or {}
        self._moments = prior_moments(classifier)
        self._layout: RaveledVars | None = None

    def prepare(self) -> None:
        """Make ready for the first evaluation, which it takes time to compile."""
        _ = self._evaluate

    @cached_property
    def _evaluate(self) -> Callable[..., list[Any]]:
        # A fit that is read from a file never evaluates, and need not wait for this.
        outputs = arrays_as_shared(self._outputs)
        return graph_function(self.classifier.model, self._inputs, outputs, **self._kwargs)

    def initial_point(self, start: Mapping[str, Any] | None = None, random_seed: int = 0) -> Array:
        """Where to begin: the model's initial point, overridden by `start` (names of variables → values)."""
        model = self.classifier.model
        names = {name for v in self.value_vars for name in (v.name, model.values_to_rvs[v].name)}
        if unknown := sorted(set(start or {}) - names):
            known = ", ".join(rv.name for rv in self.classifier.hyperparameters) or "none"
            raise ValueError(f"start names {', '.join(unknown)}, but the hyperparameters of the model are: {known}.")
        point = make_initial_point_fn(
            model=model, overrides=dict(start or {}), jitter_rvs=set(), return_transformed=True
        )(random_seed)
        if outside := [model.values_to_rvs[v].name for v in self.value_vars if not np.isfinite(point[v.name]).all()]:
            raise ValueError(
                f"The initial value of {', '.join(outside)} is outside of the support of its prior"
                + (f": start is {dict(start)}." if start else ".")
            )
        self._layout = DictToArrayBijection.map({v.name: point[v.name] for v in self.value_vars})
        return np.asarray(self._layout.data, dtype=np.float64)

    @property
    def sites(self) -> Array:
        """Sites of the last solve that converged, where a solve at these hyperparameters starts and at once ends."""
        return self._sites

    def point(self, theta: Array) -> PointType:
        """The values of the model's value variables that a flat vector stands for."""
        return DictToArrayBijection.rmap(RaveledVars(np.asarray(theta, np.float64), self._point_map))

    @property
    def _point_map(self) -> Any:
        if self._layout is None:
            self.initial_point()
        assert self._layout is not None
        return self._layout.point_map_info

    @property
    def parameters(self) -> list[str]:
        """Name of each element of a flat vector: that of the value variable, with its place where there are several."""
        return [
            name + (f"[{', '.join(map(str, place))}]" if place else "")
            for name, shape, *_ in self._point_map
            for place in np.ndindex(*shape)
        ]

    def log_prior(self, theta: Array) -> float:
        """Log priors, log Jacobians and the model's other terms at one point: the log posterior less the evidence."""
        model, point = self.classifier.model, self.point(theta)
        function = graph_function(model, self.value_vars, self._prior)
        return float(function(*(point[v.name] for v in self.value_vars)))

    def __call__(self, theta: Array) -> Evaluation:
        """Evaluate; NaN with a status where the approximation fails."""
        point = self.point(theta)
        values = [point[v.name] for v in self.value_vars]
        value, gradient, evidence, sites, status, iterations = self._evaluate(*values, self._sites)
        if status != CONVERGED and self._sites is not self._cold:
            value, gradient, evidence, sites, status, iterations = self._evaluate(*values, self._cold)
        if status == CONVERGED:
            self._sites = sites
        return Evaluation(
            np.array(theta), float(value), np.asarray(gradient), float(evidence), int(iterations), int(status)
        )

    def natural(self, thetas: Array) -> dict[str, Array]:
        """Hyperparameters on their natural scale, (s, ...) by name, for flat vectors (s, d)."""
        model = self.classifier.model
        rvs = list(self.classifier.hyperparameters)
        function = graph_function(model, self.value_vars, model.replace_rvs_by_values(rvs))
        values = []
        for theta in thetas:
            point = self.point(theta)
            values.append(function(*(point[v.name] for v in self.value_vars)))
        return {rv.name: np.array(column) for rv, column in zip(rvs, zip(*values, strict=True), strict=True)}

    def check_moments(self, theta: Array) -> None:
        """Raise a ValueError if prior covariance or mean at one point cannot be those of a Gaussian process."""
        check_moments(*self._moments(self.point(theta)))

    def solve(self, theta: Array, sites: Array | None = None) -> Solution:
        """The approximate posterior of the latent values at one point, from given sites or those of the last solve."""
        point = self.point(theta)
        return self.approximator.solve(*self._moments(point), self._sites if sites is None else sites)


def frozen_data(model: pm.Model) -> dict[Variable, Variable]:
    """Data and lengths of dims of a model → constants with their present values."""
    shared = [v for v in (*model.data_vars, *model.dim_lengths.values()) if isinstance(v, SharedVariable)]
    return {v: pt.constant(v.get_value(), name=v.name) for v in shared}


def prior_moments(
    classifier: GPClassifier, data: Mapping[Variable, Variable] | None = None
) -> Callable[[PointType], tuple[Array, Array, NDArray[np.int64]]]:
    """Prior covariance (1 or c, n, n), prior mean (c, n) and labels (n,) as a function of a point of the model.

    With the data given, as of `frozen_data`, else with those that the model has when the function is called.
    """
    model = classifier.model
    moments = [pt.atleast_3d(classifier.covariance(), left=True), classifier.mean()]
    outputs = [*model.replace_rvs_by_values(moments), classifier.labels]
    value_vars = [model.rvs_to_values[rv] for rv in classifier.hyperparameters]
    function = graph_function(model, value_vars, graph_replace(outputs, data or {}, strict=False))
    return lambda point: tuple(function(*(point[v.name] for v in value_vars)))


def check_moments(k: Array, mean: Array, labels: NDArray[np.int64]) -> None:
    """Raise a ValueError if prior covariance or mean cannot be those of a Gaussian process."""
    for name, values in (("covariance", k), ("mean", mean)):
        if bad := np.count_nonzero(~np.isfinite(values)):
            raise ValueError(
                f"The prior {name} must be finite, but has {bad} values that are not. Look for missing values in the "
                "inputs of the model, and at the hyperparameters it starts from."
            )
    check_prior(k, mean, labels)


def second_derivatives(log_posterior: LogPosterior, theta: Array, steps: Array) -> Array:
    """Hessian (d, d) of the log posterior by central differences of its gradient; NaN where the approximation fails."""
    rows = np.empty((theta.size, theta.size))
    for i, step in enumerate(np.diag(steps)):
        rows[i] = (log_posterior(theta + step).gradient - log_posterior(theta - step).gradient) / (2 * steps[i])
    return 0.5 * (rows + rows.T)


@dataclass(frozen=True)
class Optimum:
    """Where an optimisation ended: the best point seen, whether it is a maximum, and how it went."""

    best: Evaluation
    converged: bool
    message: str
    history: tuple[Evaluation, ...]
    """One for every iteration of the optimiser, the initial point first."""
    sites: Array
    """Where a solve at the best point starts."""
    interrupted: bool = False
    """Whether it was by Ctrl-C."""


def maximise(
    log_posterior: LogPosterior,
    theta: Array,
    max_iterations: int,
    callback: Callable[[tuple[Evaluation, ...]], None] = lambda history: None,
) -> Optimum:
    """Find the maximum of the log posterior by L-BFGS, with exact gradients (type-II maximum a posteriori).

    Parameters
    ----------
    log_posterior : LogPosterior
    theta : array
        Where to begin, unconstrained.
    max_iterations : int
    callback : callable
        Called with the history after each iteration; StopIteration or KeyboardInterrupt from it ends the search, and
        the best point so far is kept.

    Raises
    ------
    ValueError
        If the approximation fails at the initial point.
    """
    best = log_posterior(theta)
    if not theta.size and best.status in (OUT_OF_ITERATIONS, OUT_OF_DIGITS):
        return Optimum(best, True, _NOTHING, (best,), log_posterior.sites)  # and the solution says how far it got
    if not np.isfinite(best.log_posterior):
        log_posterior.check_moments(theta)
        name = log_posterior.approximator.name
        point = {key: value.tolist() for key, value in log_posterior.point(theta).items()}
        advice = "Give another start=..."
        if best.status == NOT_POSITIVE_DEFINITE:
            advice = (
                "Check that the covariance function is one, which no start can mend; where rounding is to blame, add a "
                "small pm.gp.cov.WhiteNoise to it."
            )
        if best.status == OUT_OF_ITERATIONS:
            advice = "Raise max_iterations, or a tolerance that rounding does not allow; or give another start=..."
        raise ValueError(
            f"{name} cannot start: it {MESSAGES[best.status]} at the initial hyperparameters, unconstrained "
            f"{point}, where the log posterior is {best.log_posterior}. {advice}"
        )
    history = [best]
    evaluated: dict[bytes, Evaluation] = {}

    def negative(x: Array) -> tuple[float, Array]:
        result = log_posterior(x)
        evaluated[x.tobytes()] = result
        if not (np.isfinite(result.log_posterior) and np.isfinite(result.gradient).all()):
            # A wall, low enough for the line search to interpolate to the near side of it.
            return -history[-1].log_posterior + _WALL * (1.0 + abs(history[-1].log_posterior)), np.zeros_like(x)
        return -result.log_posterior, -result.gradient

    def record(x: Array) -> None:
        history.append(evaluated.get(x.tobytes()) or log_posterior(x))
        evaluated.clear()
        callback(tuple(history))

    if not theta.size or max_iterations < 1:
        return Optimum(
            best,
            not theta.size,
            "No iteration was allowed" if theta.size else _NOTHING,
            tuple(history),
            log_posterior.sites,
        )
    try:
        result = minimize(
            negative, theta, jac=True, method="L-BFGS-B", callback=record,
            options={"maxiter": max_iterations, "maxfun": 20 * max_iterations, "ftol": _FLAT, "gtol": _SLOPE},
        )  # fmt: skip
        converged, message, interrupted = bool(result.success), str(result.message), False
    except (KeyboardInterrupt, StopIteration) as stopped:
        converged, message = False, str(stopped) or "Interrupted."
        interrupted = isinstance(stopped, KeyboardInterrupt)
    best = max(history, key=lambda evaluation: evaluation.log_posterior)
    return Optimum(best, converged, message, tuple(history), log_posterior.sites, interrupted)


_NOTHING = "There is nothing to optimise."
_WALL = 10.0
_FLAT = 1e-8  # relative change of the log posterior that counts as none
_SLOPE = 1e-3  # largest slope, per unit of the unconstrained space, that counts as none
