"""The log posterior of the hyperparameters with the latent values integrated out.

Everything happens in the unconstrained space of the model's value variables: evidence, the model's own priors and any
other terms it has, and the Jacobians of its transforms.
"""

from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.approximations.neighbours import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.graph.evidence import Evidence
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.solvers.run import from_start_or_cold
from pymc_gpep.solvers.team import ALONE, Team, gather_for_solves, one_blas_thread
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.arrays_as_shared import arrays_as_shared
from pymc_gpep.structure.interpreted import GraphFunction, graph_function
from pymc_gpep.structure.prior_functions import CrossCovariance, Moments, check_moments, prior_moments

__all__ = ["Evaluation", "LogPosterior"]

_one_at_a_time = Lock()  # calls a function of a graph, which keeps the values of one evaluation


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
    start: Array
    """Where a solve at this point or near by starts; empty in what was read from a file, but for the best point."""

    @property
    def usable(self) -> bool:
        """Whether the approximation converged and the log posterior is finite."""
        return self.status == CONVERGED and bool(np.isfinite(self.log_posterior))


class LogPosterior(Hyperparameters):
    """log p(θ | y) up to a constant, with gradient, as an approximation has it.

    Parameters
    ----------
    classifier : GPClassifier
    approximator : Approximator
    compile_kwargs : dict, optional
        For PyTensor's compilation. Without a `mode` the graph is interpreted.

    Attributes
    ----------
    data : dict
        The data of the model when this was made, as constants that take their place. Later `pm.set_data` changes
        neither the log posterior nor a fit that is made of it.
    """

    def __init__(
        self, classifier: GPClassifier, approximator: Approximator, compile_kwargs: dict[str, Any] | None = None
    ) -> None:
        super().__init__(classifier)
        self.approximator = approximator
        self._cold = np.zeros(approximator.start_size(classifier.n_functions, classifier.n_points))
        model = classifier.model
        moments = [classifier.covariances(), classifier.mean(), classifier.parameters]
        k, mean, parameters = model.replace_rvs_by_values(moments)
        labels = classifier.labels
        start, looseness = pt.dvector("start"), pt.dscalar("looseness")
        op = Evidence(approximator, classifier.likelihood_model)
        node = op.make_node(k, mean, labels, start, looseness, parameters)
        evidence, _, _, end, status, iterations, _ = node.outputs
        log_posterior = evidence + self.prior
        gradient = (
            pt.concatenate([g.ravel() for g in pytensor.grad(log_posterior, self.value_vars)])
            if self.value_vars
            else pt.zeros(0)
        )
        self._outputs = graph_replace(
            [log_posterior, gradient, evidence, end, status, iterations], self.data, strict=False
        )
        self._inputs = [*self.value_vars, start, looseness]
        self._looseness = 1.0
        self._kwargs = compile_kwargs or {}
        self._moments = prior_moments(classifier, self.data)
        self._crossings: dict[tuple[pm.gp.Latent, ...] | None, CrossCovariance] = {}

    @property
    def name(self) -> str:
        """Of the approximation."""
        return self.approximator.name

    @property
    def compiled(self) -> bool:
        """Whether it is evaluated by compiled code, and not interpreted."""
        return "mode" in self._kwargs

    def cross_covariance(self, gps: tuple[pm.gp.Latent, ...] | None) -> CrossCovariance:
        """Prior moments at new inputs, made once for all fits of this log posterior; see `Fit.cross_covariance`."""
        if gps not in self._crossings:
            self._crossings[gps] = CrossCovariance(self.classifier, gps, self.data)
        return self._crossings[gps]

    def prepare(self, threads: int = 1) -> None:
        """Make ready for the first evaluation, which it takes time to compile, and for so many at a time."""
        while len(self._idle) < threads:
            self._idle.append(self._function.copy())

    def each[T, R](self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function(item)` of each item, in their order: evaluations that need not wait for each other.

        They are shared out over as many threads as BLAS was allowed. Results are the same for any number of them.
        """
        # What is compiled takes too long to have it twice.
        with one_blas_thread(), ALONE if self.compiled else self._team() as team:
            self.prepare(team.size)
            return team.each(function, items)

    def _team(self) -> Team:
        return gather_for_solves(self.classifier.n_functions, self.classifier.n_points)

    def loosely(self, gradients: bool = True) -> Self:
        """The same log posterior, evaluated with a wider tolerance.

        It is enough to search for a maximum, and without accurate `gradients` to weigh points against each other.
        """
        if self.approximator.looseness == 1.0:
            return self
        self.prepare()
        other = copy(self)
        other._looseness = self.approximator.looseness ** (1 if gradients else 2)
        return other

    @cached_property
    def _idle(self) -> deque[GraphFunction]:
        # Functions keep the values of an evaluation: a thread takes one and puts it back.
        return deque([self._function])

    @cached_property
    def _function(self) -> GraphFunction:
        # A fit that is read from a file never evaluates, and need not wait for this.
        outputs = arrays_as_shared(self._outputs)
        return graph_function(self.classifier.model, self._inputs, outputs, **self._kwargs)

    def __call__(self, theta: Array, start: Array | Neighbours | None = None) -> Evaluation:
        """Evaluate; NaN with a status where the approximation fails.

        Parameters
        ----------
        theta : array (d,)
            Hyperparameters, unconstrained.
        start : array or Neighbours, optional
            `Evaluation.start` of a neighbouring point, or of several. It saves iterations; where the solve fails from
            there, it is tried once more from cold, as without one.
        """
        if isinstance(start, Neighbours):
            start = start.predict(self.approximator, theta)
        point = self.point(theta)
        values = [point[v.name] for v in self.value_vars]
        self.prepare()
        evaluate = self._idle.pop()
        try:
            value, gradient, evidence, end, status, iterations = from_start_or_cold(
                lambda begin: evaluate(*values, self._cold if begin is None else begin, self._looseness),
                start,
                lambda found: found[4] == CONVERGED,
            )
        finally:
            self._idle.append(evaluate)
        return Evaluation(
            np.array(theta), float(value), np.asarray(gradient), float(evidence), int(iterations), int(status),
            np.asarray(end),
        )  # fmt: skip

    def moments(self, theta: Array) -> Moments:
        """What the approximation is of at one point."""
        with _one_at_a_time:
            return self._moments(self.point(theta))

    def check_moments(self, theta: Array) -> None:
        """Raise a ValueError if prior covariance or mean at one point cannot be those of a Gaussian process."""
        check_moments(self.moments(theta))

    @one_blas_thread()
    def solve(self, theta: Array, start: Array | None = None) -> Solution:
        """The approximate posterior of the latent values at one point; `start` as for an evaluation."""
        return self._solve(self.moments(theta), start)

    @one_blas_thread()
    def solve_each(self, evaluated: Iterable[Evaluation]) -> list[Solution]:
        """Those at several points, from where their evaluations ended, shared out like these."""
        problems = [(self.moments(evaluation.theta), evaluation.start) for evaluation in evaluated]
        with self._team() as team:
            return team.each(lambda problem: self._solve(*problem), problems)

    def _solve(self, moments: Moments, start: Array | None) -> Solution:
        k, mean, labels, likelihood = moments
        return self.approximator.solve_near(k, mean, labels, start, likelihood=likelihood)
