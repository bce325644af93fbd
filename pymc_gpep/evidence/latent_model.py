"""A model for samplers: its densities as functions of the point that PyMC passes from step to step.

A point is a dict of unconstrained values by name of value variable. It contains latent values, or rotated values
(`reparameterize=True`), or effects whose sums are latent values. In all cases samplers move a single array x.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.evidence.memory_check import check_memory
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.graphs.interpreted import AtPoint, check_installed, graph_function
from pymc_gpep.latent.latent_prior import SampledValues
from pymc_gpep.latent.lowered_dims import MissingResponses, missing_responses
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood, LogDensity, log_density_with_slope
from pymc_gpep.likelihoods.log_probabilities import log_probability
from pymc_gpep.prior_moments.prior_functions import frozen_data, observed
from pymc_gpep.reading import StructureError
from pymc_gpep.reading.classifier import GPClassifier, ReadModel


def drawn_value(
    model: pm.Model, missing: MissingResponses, in_parts: Callable[[Sequence[Variable]], Sequence[Variable]]
) -> TensorVariable:
    """Return a draw of a missing response in the form of its value variable.

    Parameters
    ----------
    model : pm.Model
    missing : MissingResponses
    in_parts : callable
        Function that replaces random variables of the model in expressions by the values that samplers move.
    """
    node = missing.unobserved.owner
    random = [isinstance(v.type, RandomType) for v in node.inputs]
    moved = iter(in_parts([v for v, is_random in zip(node.inputs, random, strict=True) if not is_random]))
    inputs = [pytensor.shared(np.random.default_rng()) if is_random else next(moved) for is_random in random]
    drawn: TensorVariable = node.clone_with_new_inputs(inputs).outputs[node.outputs.index(missing.unobserved)]
    transform = model.rvs_to_transforms[missing.unobserved]
    return drawn if transform is None else transform.forward(drawn, *inputs)


class MissingValues:
    """Function that draws the value variables of missing responses, as a class that can be pickled.

    Parameters
    ----------
    values : SampledValues
    names : sequence of str
        Names of the value variables.
    function : AtPoint
        Function of a point and the parts of x that returns draws.
    """

    def __init__(self, values: SampledValues, names: Sequence[str], function: AtPoint) -> None:
        self._values, self._names, self._function = values, names, function

    def seed(self, rng: np.random.Generator) -> None:
        """Seed the draws of a chain."""
        self._function.seed(int(rng.integers(2**63)))

    def __call__(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        """Return draws by name of value variable."""
        return dict(zip(self._names, self._function(point, *self._values.parts_of(x, prior)), strict=True))


class LatentModel:
    """Factors of the joint density: prior of hyperparameters, prior of latent values given them, and all other terms.

    Samplers move an array x. It is latent values f (c, n), or standard normals (1, q) that determine f if f has no
    density.

    Parameters
    ----------
    read : GPClassifier or GPModel
    compile_kwargs : dict, optional
        Options of PyTensor's compilation. Without a `mode` graphs are interpreted.

    Attributes
    ----------
    values : SampledValues
        Representation of latent values by the array x.
    value_vars : list of TensorVariable
        Value variables of the hyperparameters, in the order of the model.
    missing : list of MissingResponses
        Missing responses: free variables of the model on which no other term depends.
    log_prior : TensorVariable
        Log density of all terms that do not depend on latent values, as a function of value variables. These terms are
        priors of hyperparameters, with the Jacobians of transforms, and other terms of the model.

    Raises
    ------
    StructureError
        If a free variable depends on latent values, or a term depends on the rotated values.
    ModuleNotFoundError
        If the mode needs a package that is not installed.
    """

    def __init__(self, read: ReadModel, compile_kwargs: dict[str, Any] | None = None) -> None:
        processes = read.prior
        check_memory(read, "The prior of all latent values", prior_type=next(iter(processes.arrays)))
        self.read, self.processes = read, processes
        self._compile_kwargs = compile_kwargs or {}
        check_installed(self._compile_kwargs)
        model = processes.model
        self.values = processes.sampled(frozen_data(model))
        self.value_vars = [model.rvs_to_values[rv] for rv in processes.hyperparameters]
        self._moments = model.replace_rvs_by_values(self.values.moments)
        self.missing = list(missing_responses(model).values())
        for each in self.missing:
            each.check(model)
        free = set(processes.integrated)
        apart = free | {each.unobserved for each in self.missing}
        terms = [*(rv for rv in model.basic_RVs if rv not in apart), *model.potentials]
        self._dependent = [term for term in terms if not free.isdisjoint(ancestors([term]))]
        if hierarchical := [term.name for term in self._dependent if term in model.free_RVs]:
            raise StructureError(
                f"The free variables {', '.join(map(repr, hierarchical))} depend on latent values. Only observed "
                "variables and potentials may."
            )
        independent = [term for term in terms if term not in set(self._dependent)]
        log_prior = model.logp(vars=independent) if independent else pt.constant(0.0)
        if (supported := processes.supported()) is not None:
            log_prior = pt.switch(*model.replace_rvs_by_values([supported]), log_prior, -np.inf)
        self.log_prior = log_prior

    @cached_property
    def k(self) -> TensorVariable:
        """Prior covariance of the latent values, (1 or c, n, n)."""
        return self.processes.model.replace_rvs_by_values([self.processes.covariances()])[0]

    @cached_property
    def mean(self) -> TensorVariable:
        """Prior mean of the latent values, (c, n)."""
        return self.processes.model.replace_rvs_by_values([self.processes.mean().astype("float64")])[0]

    def _by_variables(self) -> TensorVariable:
        """Return the log density of terms that depend on latent values, as a function of random variables."""
        values = self.processes.model.rvs_to_values
        by_term = [
            _log_probability(term, values[term]).sum() if term in self.processes.model.basic_RVs else term.sum()
            for term in self._dependent
        ]
        return pt.add(*by_term) if len(by_term) > 1 else by_term[0]

    def log_likelihood(self, *parts: TensorVariable) -> TensorVariable:
        """Return the log density of terms that depend on latent values, given parts of x and value variables."""
        found = self.values.in_parts([self._by_variables()], parts)
        return self.processes.model.replace_rvs_by_values(found)[0]

    def log_likelihood_of_white(self, z: TensorVariable) -> TensorVariable:
        """Return the log likelihood as a function of whitened values z, with the shape of x."""
        found = self.values.by_white([self._by_variables()], z)
        return self.processes.model.replace_rvs_by_values(found)[0]

    def likelihood(self, slope: bool = True) -> "LogLikelihood":
        """Return the log likelihood as a function of a point and x; with its derivative in x if `slope`.

        If no other term of the model depends on latent values, kernels of the likelihood compute it, else a graph.
        """
        read = self.read
        if (
            isinstance(read, GPClassifier)
            and set(self._dependent) == set(read.observed)
            and log_density_with_slope(read.likelihood_model) is not None
        ):
            given = graph_replace([read.labels, read.parameters], dict(self.values.data), strict=False)
            data = [v for v in ancestors(given) if v in read.model.data_vars]
            by_point = read.likelihood_model.has_parameters
            return _LikelihoodByKernels(observed(read, self.values.data), by_point, data)
        parts = self.values.parts()
        value = self.log_likelihood(*parts)
        slopes = pytensor.grad(value, parts, disconnected_inputs="ignore") if slope else []
        return _LikelihoodByGraph(self.values, self.function([value, *slopes], *parts))

    def missing_values(self) -> MissingValues | None:
        """Return the function that draws the missing responses; None if all responses are observed."""
        if not self.missing:
            return None
        model, parts = self.processes.model, self.values.parts()

        def in_parts(outputs: Sequence[TensorVariable]) -> list[TensorVariable]:
            found: list[TensorVariable] = model.replace_rvs_by_values(self.values.in_parts(outputs, parts))
            return found

        drawn = [drawn_value(model, each, in_parts) for each in self.missing]
        function = self.function(drawn, *parts, draws=True)
        names = [str(model.rvs_to_values[each.unobserved].name) for each in self.missing]
        return MissingValues(self.values, names, function)

    def prior_function(self) -> Callable[[PointType], Sampled]:
        """Return a function of a point that computes the prior of x, the array that samplers move."""
        return _PriorAt(self.values, self.function(self._moments))

    def function(self, outputs: Sequence[TensorVariable], *inputs: TensorVariable, draws: bool = False) -> AtPoint:
        """Compile expressions into a function of a point and of the values of further inputs.

        With `draws` the expressions may contain random variables, which are drawn.
        """
        names = [v.name for v in self.value_vars]
        data = dict(self.values.data)
        compiled = graph_function(
            self.processes.model,
            [*self.value_vars, *inputs],
            graph_replace(list(outputs), data, strict=False) if data else list(outputs),
            trust_input=True,
            draws=draws,
            **self._compile_kwargs,
        )
        return AtPoint(compiled, names)

    def theta(self, point: PointType) -> Array:
        """Return all hyperparameters of a point as a flat unconstrained vector."""
        return np.concatenate([np.zeros(0), *(np.ravel(point[v.name]) for v in self.value_vars)])

    def with_theta(self, point: PointType, theta: Array) -> PointType:
        """Return a point with replaced hyperparameters."""
        values, begin = {}, 0
        for v in self.value_vars:
            size = np.size(point[v.name])
            values[v.name] = theta[begin : begin + size].reshape(np.shape(point[v.name]))
            begin += size
        return {**point, **values}

    def latent_value_vars(self) -> list[TensorVariable]:
        """Return value variables of integrated variables, and of missing responses."""
        own = [*self.processes.integrated, *(each.unobserved for each in self.missing)]
        return [self.processes.model.rvs_to_values[rv] for rv in own]


def _log_probability(variable: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Return the log probability of a random variable, by this package's likelihood if PyMC's is less accurate."""
    for likelihood in LIKELIHOODS:
        reading = likelihood.read(variable)
        if reading is not None and (stable := likelihood.log_probability(value, reading)) is not None:
            return stable
    return log_probability(variable, value)


type LogLikelihood = Callable[[PointType, Array, Sampled], tuple[float, Array]]
"""Function of a point, x and the prior of x at this point. It returns the log likelihood and its derivative in x."""


class _LikelihoodByKernels:
    """Log likelihood by compiled kernels, as a class that can be pickled.

    Labels and parameters are recomputed if data of the model change, or if the point changes and they depend on it.
    """

    def __init__(
        self,
        observed_at: Callable[[PointType], tuple[Observed, Likelihood]],
        by_point: bool,
        data: Sequence[SharedVariable],
    ) -> None:
        self._observed_at, self._by_point, self._data = observed_at, by_point, data
        self._known: tuple[list[Any], Observed, LogDensity] | None = None

    def __call__(self, point: PointType, x: Array, prior: Sampled) -> tuple[float, Array]:
        """Return the value, and its derivative in the shape of x."""
        behind: list[Any] = [point] * self._by_point + [v.get_value(borrow=True) for v in self._data]
        if self._known is None or any(one is not other for one, other in zip(behind, self._known[0], strict=True)):
            labels, likelihood = self._observed_at(point)
            own = np.ascontiguousarray(labels, likelihood.observed_dtype)
            self._known = behind, own, cast(LogDensity, log_density_with_slope(likelihood))
        _, labels, log_density = self._known
        slope = np.empty_like(prior.function_mean)
        with np.errstate(all="ignore"):  # Divergent trajectories overflow.
            value = log_density(prior.functions(x), labels, slope)
            return float(value), prior.pulled(slope)


class _LikelihoodByGraph:
    """Log likelihood by the graph of a model, as a class that can be pickled."""

    def __init__(self, values: SampledValues, function: Callable[..., list[Any]]) -> None:
        self._values = values
        self._function = function

    def __call__(self, point: PointType, x: Array, prior: Sampled) -> tuple[float, Array]:
        """Return the value, and its derivative in the shape of x (x as a placeholder if none is compiled)."""
        value, *slopes = self._function(point, *self._values.parts_of(x, prior))
        return float(value), self._values.slope_of(slopes, prior) if slopes else x


class _PriorAt:
    """Prior of x as a function of a point, as a class that can be pickled."""

    def __init__(self, values: SampledValues, function: Callable[..., list[Any]]) -> None:
        self._values = values
        self._function = function

    def __call__(self, point: PointType) -> Sampled:
        return self._values.prior(*self._function(point))
