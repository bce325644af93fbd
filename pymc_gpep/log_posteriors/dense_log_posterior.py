"""Log posterior of the hyperparameters from the covariance of all latent values.

The log posterior is a function of the unconstrained value variables of the model. Its terms are the evidence, the
priors and other terms of the model, and the Jacobians of transforms.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_gpep.approximations import Approximator, Solution, approximator
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.gaussians.prior_form import TakesForms
from pymc_gpep.graphs.alike_graphs import arrays_as_shared
from pymc_gpep.graphs.interpreted import GraphFunction, graph_function
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.latent.latent_prior import PriorAtNewRows
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import ParameterSlopes, ScalarDensity
from pymc_gpep.log_posteriors.evaluation import Evaluation, Trace
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.latent_functions import DenseFunctions, GroupedFunctions
from pymc_gpep.log_posteriors.log_posterior import Gps, LogPosterior, StoredFit
from pymc_gpep.log_posteriors.quasi_newton import Curvature
from pymc_gpep.prior_moments.inducing_sum import as_sum, by_inducing_rows
from pymc_gpep.prior_moments.neighbour_sum import NeighbourSum, by_neighbours
from pymc_gpep.prior_moments.precision_sum import PrecisionSum
from pymc_gpep.prior_moments.prior_functions import (
    Moments,
    by_groups,
    check_densities,
    check_moments,
    frozen_data,
    observed,
    prior_array_of,
    prior_moments,
    prior_roots,
)
from pymc_gpep.prior_moments.proper_posteriors import check_proper
from pymc_gpep.reading import GPClassifier
from pymc_gpep.solvers.problem import from_start_or_cold
from pymc_gpep.solvers.team import ALONE, Team, gather_for_solves, one_blas_thread
from pymc_gpep.sums.latent_sum import LatentSum

_FEW, _ROUGHER = 200, 20.0  # Number of rows from which `roughly` widens the tolerance, and the factor.
_SOME = 2000  # Number of rows whose prior covariance represents the effect of hyperparameters.
_MANY = 60  # Number of standard normals up to which dense matrices are as fast.
_DIFFERENCE = 1e-4  # Step of finite differences of prior means, which depend linearly on the hyperparameter.
# A parameter shifts the latent value if its slope is a multiple of the latent value's slope, up to this error.
_NO_SHIFT = 1e-3
_CLEARLY = 1e-3  # A smaller difference of log evidences is not reported.

_one_at_a_time = Lock()  # Only one thread may call a compiled function, since it stores the values of an evaluation.


def suited(classifier: GPClassifier, approximator: TakesForms) -> GPClassifier:
    """Return a classifier with the best form of its prior for an approximation and the size of the model.

    For example, a sum of many effects gets a sparse precision if the approximation supports it.
    """
    prior = classifier.prior
    plain = prior.plain if isinstance(prior, PrecisionSum) else prior
    if not isinstance(plain, LatentSum):
        return classifier
    if not approximator.takes(PrecisionSum.form):
        return classifier if plain is prior else replace(classifier, prior=plain)
    if plain is not prior or plain.processes or plain.n_normals < _MANY or plain.seen:
        return classifier
    if "by precision" not in plain.made:
        plain.made["by precision"] = PrecisionSum.of(plain, frozen_data(plain.model))
    found = plain.made["by precision"]
    return classifier if found is None else replace(classifier, prior=found)


class DenseLogPosterior(LogPosterior):
    """Log posterior from an approximation of the joint posterior of all latent values.

    Parameters
    ----------
    classifier : GPClassifier
    approximator : Approximator
    compile_kwargs : dict, optional
        Options of PyTensor's compilation. Without a `mode` the graph is interpreted.
    grouped : bool
        Whether rows with equal latent values form one point with one factor.
    """

    def __init__(
        self,
        classifier: GPClassifier,
        approximator: Approximator,
        compile_kwargs: dict[str, Any] | None = None,
        grouped: bool = True,
    ) -> None:
        self._kwargs = compile_kwargs or {}
        if grouped:
            classifier = by_groups(classifier, approximator)
        classifier = self._suited(classifier, approximator)
        self.space = Hyperparameters(classifier)
        self.approximator = approximator
        model = classifier.model
        self._prior_type, array = prior_array_of(classifier, approximator, self.space.data, not self.compiled)
        labels, parameters, likelihood = classifier.at_points
        self.n_points = classifier.prior.n_points
        self._cold = approximator.cold(classifier.n_functions, self.n_points, self._prior_type)
        k, mean, parameters = model.replace_rvs_by_values([array, classifier.prior.mean(), parameters])
        start, looseness = pt.dvector("start"), pt.dscalar("looseness")
        slopes = not set(self.space.value_vars).isdisjoint(ancestors([parameters]))
        op = Evidence(approximator, likelihood, form=self._prior_type, slopes=slopes)
        node = op.make_node(k, mean, labels, start, looseness, parameters)
        evidence, _, _, end, status, iterations, _ = node.outputs
        log_posterior = evidence + self.space.prior
        self._outputs = graph_replace([log_posterior, evidence, end, status, iterations], self.space.data, strict=False)
        self._inputs = [*self.space.value_vars, start, looseness]
        self._looseness = 1.0
        self._moments = prior_moments(classifier, self.space.data, array)
        self._at_new_rows: dict[tuple[Gps, str | None], PriorAtNewRows] = {}

    kind: ClassVar[str] = "dense"
    by: ClassVar[str] = "all rows"
    joint: ClassVar[bool] = True
    takes_means: ClassVar[bool] = True

    @classmethod
    def of_file(cls, file: StoredFit) -> Self:
        classifier = file.space.classifier
        made = approximator(file.attrs["approximation"], classifier.likelihood_model, file.options)
        return cls(classifier, made, **cls._stored(file.attrs))

    @classmethod
    def _stored(cls, attrs: Mapping[Any, Any]) -> dict[str, Any]:
        """Return arguments of the constructor that `described` stored in the attributes of a file."""
        return {}

    def _suited(self, classifier: GPClassifier, approximator: Approximator) -> GPClassifier:
        """Return the classifier with a prior in the form that `suited` selects. Compiled code keeps its form."""
        return classifier if self.compiled else suited(classifier, approximator)

    @property
    def compiled(self) -> bool:
        """Whether compiled code evaluates the log posterior."""
        return "mode" in self._kwargs

    @property
    def entries(self) -> int:
        classifier = self.classifier
        return int(self._prior_type.entries(classifier.n_functions, self.n_points, classifier.prior.n_normals))

    @property
    def kept(self) -> int:
        classifier = self.classifier
        return int(self._prior_type.kept(classifier.n_functions, self.n_points, classifier.prior.n_normals))

    def _prior_at_new_rows(self, gps: Gps, response: str | None = None) -> PriorAtNewRows:
        if (gps, response) not in self._at_new_rows:
            own = self.classifier.part(response, "The prediction")
            self._at_new_rows[gps, response] = own.prior.at_new_rows(gps, self.space.data)
        return self._at_new_rows[gps, response]

    def latent(self, x: Array, solution: Solution, gps: Gps = None) -> DenseFunctions:
        names = ", ".join(repr(rv.name) for rv in self.classifier.prior.held or self.classifier.prior.integrated)
        point = self.point(x)
        roots = None if self._roots is None else partial(self._roots, point)
        given = self.approximator, solution, point, partial(self._prior_at_new_rows, gps), names, roots
        groups = self.classifier.groups
        if groups is None:
            return DenseFunctions(*given)
        return GroupedFunctions(*given, groups=groups, rows=partial(self._at_rows, point))

    @cached_property
    def _at_rows(self) -> Callable[[PointType], tuple[Observed, Likelihood]]:
        """Function that returns observations and likelihood of the rows of the model, before grouping."""
        return observed(self.classifier, self.space.data)

    @cached_property
    def _roots(self) -> Callable[[PointType], Array] | None:
        return prior_roots(self.classifier, self.space.data, self._prior_type)

    def covariance(self, x: Array) -> tuple[Array, NDArray[np.int64]]:
        moments = self.moments(x)
        some = np.arange(0, len(moments.labels), -(-len(moments.labels) // _SOME))
        return self._prior_type(moments.k, moments.mean).among(some, some), np.asarray(self._labels[some])

    @cached_property
    def _labels(self) -> Observed:
        """Observations of all rows, or of the first row of each group."""
        observed, groups = self.observed(), self.classifier.groups
        return observed if groups is None else observed[groups.first]

    def inputs(self, gps: Gps = None) -> Array:
        return self._prior_at_new_rows(gps).inputs

    def observed(self, gps: Gps = None) -> Observed:
        start = self.space.initial_point()
        if self.classifier.groups is None:
            return np.asarray(self.moments(start).labels)
        return self._at_rows(self.point(start))[0]

    @property
    def algebra(self) -> str:
        found = str(self._prior_type.algebra(self.n_points, self.classifier.prior.n_normals))
        if self.classifier.groups is None:
            return found
        shared = f"{self.classifier.n_points} rows have {self.n_points} different latent values."
        return f"{found} {shared}" if found else shared

    def heading(self, trace: Trace, solution: Solution, converged: bool) -> str:
        lower, evidence = solution.lower_bound, solution.log_evidence
        bound = "" if np.isnan(lower) else f", lower bound {lower:.4f} by Jensen's inequality"
        if lower - evidence > _CLEARLY:  # The computed evidence is too low: a bound or an approximation.
            bound += " (the exact log evidence is above both)"
        return f"{self.name}: log evidence {evidence:.4f}{bound}, {self.state(converged)}."

    def ending(self, trace: Trace, solution: Callable[[], Solution]) -> str:
        if not self.space.value_vars:
            return f"No hyperparameters; {self.name} {solution().convergence}."
        agreed = f"; {trace.agreement}" if trace.agreement else ""
        ended = f"{self.learns} {trace.outcome}{agreed}"
        # After an interrupt the user waits, so do not solve again.
        return ended + (
            "." if trace.interrupted else f"; {self.name}, started near its solution, {solution().convergence}."
        )

    def prepare(self, threads: int = 1) -> None:
        """Compile the graph before the first evaluation. Make a copy for each of `threads` parallel evaluations."""
        while len(self._idle) < threads:
            self._idle.append(self._function.copy())

    def each[T, R](self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return `function(item)` of each item in order, computed in parallel.

        The number of threads is the limit of threads for BLAS. It does not change results.
        """
        # Compiled functions run in one thread. To compile a copy for each thread would take too long.
        with one_blas_thread(), ALONE if self.compiled else self._team() as team:
            self.prepare(team.size)
            return team.each(function, items)

    def _team(self) -> Team:
        return gather_for_solves(self.classifier.n_functions, self.n_points)

    def loosely(self, gradients: bool = True) -> Self:
        """Return the log posterior with a wider tolerance.

        The tolerance is sufficient for a search. Without `gradients` it is even wider, sufficient for weights of nodes.
        """
        return self._loosened(self.approximator.looseness ** (1 if gradients else 2))

    def roughly(self) -> Self:
        """Return a copy with a wide tolerance, see `LogPosterior`. It is even wider for many rows."""
        return self if self.n_points < _FEW else self._loosened(_ROUGHER * self._looseness)

    def _loosened(self, looseness: float) -> Self:
        if self.approximator.looseness == 1.0:
            return self
        self.prepare()
        other = copy(self)
        other._looseness = looseness
        return other

    @cached_property
    def _idle(self) -> deque[GraphFunction]:
        # A compiled function stores the values of an evaluation. Each thread therefore uses a function of this queue.
        return deque([self._function])

    @cached_property
    def _function(self) -> GraphFunction:
        # Compile at the first evaluation: a fit from a file may never need this function.
        outputs = arrays_as_shared(self._outputs)
        value_vars = self.space.value_vars

        def gradient() -> list[Any]:
            slopes = pytensor.grad(outputs[0], value_vars) if value_vars else []
            return [pt.concatenate([slope.ravel() for slope in slopes]) if slopes else pt.zeros(0)]

        made = graph_function(self.classifier.model, self._inputs, outputs, further=gradient, **self._kwargs)
        return made if self.compiled else made.settled()

    def __call__(self, theta: Array, start: Array | Neighbours | None = None) -> Evaluation:
        if isinstance(start, Neighbours):
            start = start.predict(self.approximator, theta)
        point = self.point(theta)
        values = [point[v.name] for v in self.space.value_vars]
        self.prepare()
        evaluate = self._idle.pop()
        try:
            value, evidence, end, status, iterations, gradient = from_start_or_cold(
                lambda begin: evaluate(*values, self._cold if begin is None else begin, self._looseness),
                start,
                lambda found: found[3] == CONVERGED,
            )
        finally:
            self._idle.append(evaluate)
        return Evaluation(
            np.array(theta), float(value), np.asarray(gradient), float(evidence), int(iterations), int(status),
            np.asarray(end),
        )  # fmt: skip

    def moments(self, theta: Array) -> Moments:
        """Return prior moments, labels and likelihood at one point. They are the input of the approximation."""
        with _one_at_a_time:
            return self._moments(self.point(theta))

    def curvature(self, here: Evaluation) -> Curvature | None:
        """Return the curvature in untransformed hyperparameters, such as coefficients; see `LogPosterior`."""
        which = self.space.in_graphs([self.classifier.prior.mean(), self.classifier.parameters])
        if not which.any():
            return None
        theta = self.theta(here.theta)
        solution = self.loosely().solve(theta, here.start)
        if not solution.convergence.converged:
            return None
        shifts, begin = _shifts(solution), self.moments(theta)
        columns = np.zeros((*begin.mean.shape, theta.size))
        for i in np.flatnonzero(which):
            step = _DIFFERENCE * max(1.0, abs(theta[i]))
            there = self.moments(theta + step * np.eye(theta.size)[i])
            columns[:, :, i] = (there.mean - begin.mean) / step
            if shifts is not None:
                moved = there.likelihood.parameters - begin.likelihood.parameters
                columns[0, :, i] += np.where(moved != 0.0, shifts * moved / step, 0.0).sum(axis=0)
        which &= columns.any(axis=(0, 1)) & np.isfinite(columns).all(axis=(0, 1))
        if not which.any():
            return None
        nothing = np.zeros((len(columns), which.sum(), which.sum()))
        explained = solution.posterior.joint_covariance(columns[:, :, which], nothing).sum(axis=(0, 2))
        return Curvature(which, self.space.prior_curvature(theta, which) - explained)

    def check_moments(self, theta: Array) -> None:
        """Raise a ValueError if prior covariance or mean at one point are invalid for a Gaussian process."""
        moments = self.moments(theta)
        check_moments(moments, self._prior_type)
        check_densities(moments)
        if self.classifier.groups is not None:
            labels, likelihood = self._at_rows(self.point(theta))
            likelihood.check_parameters(labels, "the labels")

    def check_proper(self, theta: Array) -> None:
        """Raise a StructureError if the data do not determine all coefficients with a flat prior."""
        if self.classifier.prior.flat or self.space.without_density.any():
            check_proper(self.classifier, self._prior_type, self._moments, self.point(theta))

    @one_blas_thread()
    def solve(self, theta: Array, start: Array | None = None) -> Solution:
        """Return the approximate posterior of the latent values at one point; `start` as for an evaluation."""
        return self._solve(self.moments(theta), start)

    @one_blas_thread()
    def solve_each(self, evaluated: Iterable[Evaluation]) -> list[Solution]:
        """Return solutions at several points, computed in parallel. Each solve starts from `Evaluation.start`."""
        problems = [(self.moments(evaluation.theta), evaluation.start) for evaluation in evaluated]
        with self._team() as team:
            return team.each(lambda problem: self._solve(*problem), problems)

    def _solve(self, moments: Moments, start: Array | None) -> Solution:
        k, mean, labels, likelihood = moments
        if start is not None and start.size != self._cold.size:  # A start in a file may belong to rows without groups.
            start = None
        return self.approximator.solve_near(k, mean, labels, start, likelihood=likelihood, prior_type=self._prior_type)


class InducingRowsLogPosterior(DenseLogPosterior):
    """Log posterior with a process given fixed inducing inputs, plus independent residuals at its inputs.

    Parameters
    ----------
    classifier : GPClassifier
        Classifier with a sum as prior. The sum has one process, see `pymc_gpep.prior_moments.inducing_sum.as_sum`.
    approximator : Approximator
    compile_kwargs : dict, optional
    inducing : array (M, d)
        Inducing inputs.
    """

    kind: ClassVar[str] = "inducing_rows"
    by: ClassVar[str] = "inducing inputs"

    def __init__(
        self,
        classifier: GPClassifier,
        approximator: Approximator,
        compile_kwargs: dict[str, Any] | None = None,
        *,
        inducing: Array,
    ) -> None:
        self._inducing = np.array(inducing, dtype=np.float64)
        super().__init__(classifier, approximator, compile_kwargs)

    def _suited(self, classifier: GPClassifier, approximator: Approximator) -> GPClassifier:
        return by_inducing_rows(classifier, self._inducing, approximator)

    @classmethod
    def in_form(cls, classifier: GPClassifier) -> GPClassifier:
        return as_sum(classifier)

    @classmethod
    def _stored(cls, attrs: Mapping[Any, Any]) -> dict[str, Any]:
        return {"inducing": json.loads(attrs["inducing_inputs"])}

    def described(self) -> dict[str, Any]:
        return super().described() | {"inducing_inputs": json.dumps(self._inducing.tolist())}

    def anchors(self, x: Array, solution: Any = None) -> Array:
        return self._inducing[None]


class NeighbourLogPosterior(DenseLogPosterior):
    """Log posterior with a nearest-neighbour process. The neighbours of each input are fixed.

    Parameters
    ----------
    classifier : GPClassifier
        Classifier with a sum as prior. The sum has one process, see `pymc_gpep.prior_moments.inducing_sum.as_sum`.
    approximator : Approximator
    compile_kwargs : dict, optional
    neighbours : int
        Number of neighbours of each input.
    at : array (d,)
        Unconstrained hyperparameters at which the neighbours are chosen.
    """

    kind: ClassVar[str] = "neighbours"
    by: ClassVar[str] = "nearest neighbours"

    def __init__(
        self,
        classifier: GPClassifier,
        approximator: Approximator,
        compile_kwargs: dict[str, Any] | None = None,
        *,
        neighbours: int,
        at: Array,
    ) -> None:
        self._given, self._neighbours, self._at = classifier, neighbours, np.array(at, dtype=np.float64)
        super().__init__(classifier, approximator, compile_kwargs)

    def _suited(self, classifier: GPClassifier, approximator: Approximator) -> GPClassifier:
        return by_neighbours(classifier, self._neighbours, Hyperparameters(classifier).point(self._at))

    def chosen_at(self, theta: Array) -> Self:
        """Return the log posterior with neighbours chosen at θ. If they are the same, return this object."""
        prior = self.classifier.prior
        assert isinstance(prior, NeighbourSum)
        if prior.keeps(self.point(theta)):
            return self
        return type(self)(self._given, self.approximator, self._kwargs, neighbours=self._neighbours, at=theta)

    @classmethod
    def in_form(cls, classifier: GPClassifier) -> GPClassifier:
        return as_sum(classifier, "neighbours")

    @classmethod
    def _stored(cls, attrs: Mapping[Any, Any]) -> dict[str, Any]:
        return {"neighbours": int(attrs["neighbours"]), "at": json.loads(attrs["neighbours_at"])}

    def described(self) -> dict[str, Any]:
        return super().described() | {"neighbours": self._neighbours, "neighbours_at": json.dumps(self._at.tolist())}


def _shifts(solution: Solution) -> Array | None:
    """Return shifts (p, n): a unit change of a parameter of a row has the effect of this shift of the latent value.

    The shift is 1 for the logarithm of an exposure. It is NaN if the effect of a parameter is not a shift, for example
    for a scale. Return None without parameters, or if the likelihood has no derivatives.
    """
    likelihood, mean = solution.likelihood, solution.mean
    known = likelihood.log_concave and likelihood.offers(ParameterSlopes) and likelihood.offers(ScalarDensity)
    if not (likelihood.has_parameters and known and len(mean) == 1):
        return None
    slopes, own = np.empty((len(likelihood.parameters), 3, mean.size)), np.empty((4, mean.size))
    f, parameters = np.ascontiguousarray(mean[0]), likelihood.parameters
    likelihood.computation(ParameterSlopes).derivatives(f, solution.labels, parameters, slopes)
    likelihood.computation(ScalarDensity).derivatives(f, solution.labels, parameters, own)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = slopes[:, 1] / own[2]
    found = np.where(np.isfinite(found), found, 0.0)
    size = np.abs(slopes[:, 0]) + np.abs(found) * (np.abs(own[1]) + np.sqrt(np.abs(own[2])))
    other = np.abs(slopes[:, 0] - found * own[1]) > _NO_SHIFT * size
    # A parameter that only adds a constant to the log density has the shift 0, for example in groups of counts.
    return np.where(other & (slopes[:, 1:] != 0.0).any(axis=1), np.nan, found)
