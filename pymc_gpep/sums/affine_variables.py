"""Variables of a model that are affine in standard normals: their coefficients, moments and draws."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import shape_tuple
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import Affinity, NotAffineError
from pymc_gpep.graphs.interpreted import ModelFunctions, graph_function
from pymc_gpep.latent.latent_prior import IntegratedVariables, Joint, PosteriorFunctions

# Largest relative difference that counts as rounding, between coefficients of standard normals.
COEFFICIENT_TOLERANCE = 1e-9


def kept_random(outputs: Sequence[Variable]) -> dict[Variable, Variable]:
    """Return the random variables behind some variables, each to be replaced by itself.

    PyTensor copies a random variable where it replaces others, if data that give its size are used beside it as well.
    A copy is no variable of the model, and would be drawn anew.
    """
    found = [v for v in ancestors(outputs) if v.owner is not None and isinstance(v.owner.op, RNGConsumerOp)]
    return {v: v for v in found if v.name is not None}


class InNormals(Protocol):
    """A prior whose variables are made of q standard normals."""

    @property
    def model(self) -> pm.Model:
        """The model."""

    @property
    def n_functions(self) -> int:
        """Number of latent functions, c."""

    @property
    def owner(self) -> NDArray[np.int64]:
        """The latent function in which each standard normal has a part, (q,)."""

    @property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        """Variables that are not integrated."""

    @property
    def integrated(self) -> tuple[TensorVariable, ...]:
        """Variables that are."""

    @property
    def held(self) -> tuple[TensorVariable, ...]:
        """Deterministics that hold values of Gaussian processes."""

    @property
    def n_normals(self) -> int:
        """Number of standard normals, q."""

    @property
    def sources(self) -> frozenset[Variable]:
        """Integrated variables, and the latent values of processes."""

    def by_normals(
        self,
        outputs: Sequence[TensorVariable],
        z: TensorVariable,
        moved: Mapping[TensorVariable, TensorVariable] | None = None,
        *,
        seen: bool = False,
    ) -> list[TensorVariable]:
        """Return expressions with standard normals z (q,) in place of integrated variables; see `LatentSum`."""

    def latent_values(self) -> TensorVariable:
        """Return the latent values, (c, n)."""

    def variables_there(
        self, names: Sequence[str], data: Mapping[Variable, Variable], x: ArrayLike | None, new: Mapping[str, ArrayLike]
    ) -> "VariablesThere":
        """Return variables at other inputs x, and other data."""


class VariablesThere(Protocol):
    """Variables as t + T z + ε at other data, with noise ε of their own."""

    axes: dict[str, int]
    """The axis of each that runs over new rows."""

    def __call__(self, point: PointType) -> "AffineValues":
        """Return them at given hyperparameters."""


class AffineValues(NamedTuple):
    """Variables as t + T z + ε at other data, with standard normals z and noise ε of each."""

    centres: dict[str, Array]
    slopes: dict[str, Array]
    """(q, ...)."""
    noise: dict[str, Array]
    """Variances of ε: of a process at new inputs, given its values at its own."""


def at_zero(value: TensorVariable, z: TensorVariable) -> TensorVariable:
    """Return t of a value that is t + T z."""
    kept = kept_random([value])
    return graph_replace([value.astype("float64")], {**kept, z: pt.zeros(z.type.shape)}, strict=False)[0]


def slopes_of(value: TensorVariable, z: TensorVariable, count: int) -> TensorVariable:
    """Return T (q, ...) of a value that is t + T z."""
    return slopes_along(value, z, pt.eye(count))


def slopes_along(value: TensorVariable, z: TensorVariable, units: TensorVariable) -> TensorVariable:
    """Return T u (s, ...) of a value that is t + T z, for each row u of `units` (s, q)."""
    value = value.astype("float64")
    if z not in ancestors([value]):
        return pt.zeros((shape_tuple(units)[0], *shape_tuple(value)))
    return vectorize_graph(value, {**kept_random([value]), z: units}) - at_zero(value, z)


class AffineVariables:
    """Variables as t + T z of the standard normals, as a function of the hyperparameters.

    Parameters
    ----------
    prior : InNormals
    variables : dict of str to TensorVariable
        Expressions by name.
    data : mapping
        Data of the model → what takes their place.
    """

    def __init__(
        self,
        prior: InNormals,
        variables: Mapping[str, TensorVariable],
        data: Mapping[Variable, Variable],
    ) -> None:
        self._names = list(variables)
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        made = prior.by_normals(list(variables.values()), z)
        outputs = [out for each in made for out in (at_zero(each, z), slopes_of(each, z, prior.n_normals))]
        self._function = ModelFunctions(prior.model, prior.hyperparameters, data)(outputs)

    def __call__(self, point: PointType) -> dict[str, tuple[Array, Array]]:
        """Return t (...) and T (q, ...) by name, given values of the value variables."""
        found = self._function(point)
        return {name: (found[2 * i], found[2 * i + 1]) for i, name in enumerate(self._names)}


class SumVariables(IntegratedVariables):
    """Integrated variables as affine functions of standard normals.

    Parameters
    ----------
    prior : InNormals
    data : mapping
        Data of the model → constants that take their place.
    """

    def __init__(self, prior: InNormals, data: Mapping[Variable, Variable]) -> None:
        self._prior, self._data = prior, data
        model = prior.model
        self._values = [model.rvs_to_values[rv].name for rv in prior.integrated]

    @cached_property
    def _variables(self) -> dict[str, TensorVariable]:
        """Value variables and free variables by name."""
        prior, model = self._prior, self._prior.model
        unconstrained = {
            str(model.rvs_to_values[rv].name): transform.forward(rv, *rv.owner.inputs)
            for rv in prior.integrated
            if (transform := model.rvs_to_transforms[rv]) is not None
        }
        return unconstrained | {str(v.name): v for v in [*prior.integrated, *prior.held]}

    @cached_property
    def _own(self) -> AffineVariables:
        return AffineVariables(self._prior, self._variables, self._data)

    def flat(self, z: Array) -> Array:
        """Standard normals (..., q) of z (..., c, q), in which each function has its own, or (..., 1, q) of all."""
        owner = self._prior.owner
        if z.shape[-2] == 1:
            return z[..., 0, :]
        return z[..., owner, np.arange(owner.size)]

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        flat = self.flat(z)
        return {name: centre + np.tensordot(flat, slopes, 1) for name, (centre, slopes) in self._own(point).items()}

    def posterior(self, functions: PosteriorFunctions) -> tuple[Array, Array]:
        """Return mean (q,) and covariance (q, q) of the standard normals."""
        owner = self._prior.owner
        every = np.arange(owner.size)
        joint = functions.joint_covariance(np.ones(self._prior.n_functions, bool))
        if len(joint) == 1:
            return self.flat(functions.whitened()[0]), joint[0, :, 0]
        return self.flat(functions.whitened()[0]), joint[owner, every][:, owner, every]

    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        joint = self._joint(self._own, self._values, point, functions)
        return joint.means, joint.variances()

    def _joint(
        self, variables: AffineVariables, names: Sequence[str], point: PointType, functions: PosteriorFunctions
    ) -> Joint:
        centre, cov = self.posterior(functions)
        found = variables(point)
        means = {name: found[name][0] + np.tensordot(centre, found[name][1], 1) for name in names}
        return Joint(means, {name: found[name][1] for name in names}, cov)

    def _check(self, names: Sequence[str]) -> None:
        """Refuse variables that are not affine in integrated ones."""
        prior, model = self._prior, self._prior.model
        affinity = Affinity(prior.sources)
        for name in names:
            if name not in model.named_vars:
                raise ValueError(f"The model has no variable {name!r}.{did_you_mean([name], model.named_vars)}")
            if model[name] in prior.hyperparameters:
                raise ValueError(f"{name!r} is a hyperparameter: see fit.summary([{name!r}]), or fit.nodes.")
            try:
                behind = affinity.behind(model[name])
            except NotAffineError as error:
                raise ValueError(
                    f"{name!r} is not affine in integrated variables, because of {error.node.op}. Draws of it are in "
                    "fit.sample()."
                ) from None
            if not behind and model[name] not in prior.integrated:
                raise ValueError(f"{name!r} depends on no integrated variable.")

    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        self._check(names)
        variables = AffineVariables(self._prior, {name: self._prior.model[name] for name in names}, self._data)
        return lambda point, functions: self._joint(variables, names, point, functions)

    def elsewhere(
        self, names: Sequence[str], x: ArrayLike | None, data: Mapping[str, ArrayLike]
    ) -> Callable[[PointType, PosteriorFunctions], tuple[Joint, Mapping[str, int]]]:
        self._check(names)
        there = self._prior.variables_there(names, self._data, x, data)

        def joint(point: PointType, functions: PosteriorFunctions) -> tuple[Joint, Mapping[str, int]]:
            centre, cov = self.posterior(functions)
            found = there(point)
            means = {name: found.centres[name] + np.tensordot(centre, found.slopes[name], 1) for name in names}
            return Joint(means, found.slopes, cov, found.noise), there.axes

        return joint

    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        _, cov = self.posterior(functions)
        slopes = np.zeros((len(cov), size))
        own = self._own(point)
        for name in self._values:
            slopes[:, places[name]] = own[name][1].reshape(len(cov), -1)
        found: Array = slopes.T @ cov @ slopes
        return found

    def latent_values(self, values: Mapping[str, Array]) -> Array:
        prior, model = self._prior, self._prior.model
        held = {f: f.type(f.name) for f in prior.held}
        outputs = graph_replace([prior.latent_values()], held, strict=False)
        functions = ModelFunctions(model, model.free_RVs, self._data)
        given = [v for v in (*functions.values, *held.values()) if v.name in values]
        function = graph_function(model, given, functions.known(outputs)[0])
        count = len(next(iter(values.values())))
        return np.array([function(*(values[v.name][i] for v in given)) for i in range(count)])
