"""Expressions of a model as t + T z + Σ A g: standard normals z, and values g of processes that are kept separate."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

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
from pymc_gpep.graphs.interpreted import SEED, ModelFunctions, graph_function
from pymc_gpep.graphs.rows_apart import at_point, check_rows_apart
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import IntegratedVariables, Joint, PosteriorFunctions
from pymc_gpep.processes.process_functions import MovedSum

# Largest relative difference that counts as rounding, between coefficients of standard normals.
COEFFICIENT_TOLERANCE = 1e-9
# Seed of the noise of probes: not that of the point at which they are evaluated.
_PROBE_SEED = 2


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
    ) -> "Callable[[PointType], AffineValues]":
        """Return variables at other inputs x, and other data, as a function of hyperparameters."""


class AffineValues(NamedTuple):
    """Variables as t + T z + ε at other data, with standard normals z and noise ε of each."""

    centres: dict[str, Array]
    slopes: dict[str, Array]
    """(q, ...)."""
    noise: dict[str, Array]
    """Variances of ε: of a process at new inputs, given its values at its own."""
    axes: dict[str, int]
    """The axis of each variable that runs over new rows."""


def _replaced(value: TensorVariable, by: Mapping[Variable, Variable]) -> TensorVariable:
    """Return a value as a number of double precision, with other variables in place of some."""
    return graph_replace([value.astype("float64")], {**kept_random([value]), **by}, strict=False)[0]


def at_zero(value: TensorVariable, z: TensorVariable) -> TensorVariable:
    """Return t of a value that is t + T z."""
    return _replaced(value, {z: pt.zeros(z.type.shape)})


def slopes_of(value: TensorVariable, z: TensorVariable, count: int) -> TensorVariable:
    """Return T (q, ...) of a value that is t + T z."""
    return slopes_along(value, z, pt.eye(count))


def slopes_along(
    value: TensorVariable, z: TensorVariable, units: TensorVariable, centre: TensorVariable | None = None
) -> TensorVariable:
    """Return T u (s, ...) of a value that is t + T z, for each u of `units` (s, ...); t is computed if not given."""
    value = value.astype("float64")
    if z not in ancestors([value]):
        return pt.zeros((shape_tuple(units)[0], *shape_tuple(value)))
    centre = at_zero(value, z) if centre is None else centre
    return vectorize_graph(value, {**kept_random([value]), z: units}) - centre


@lru_cache(maxsize=8)
def probes(shape: tuple[int, ...]) -> Array:
    """Values of a process, in its shape, that show which of them a row takes: ones, numbers from 1 on, and noise."""
    coded = np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)
    found = np.stack([np.ones(shape), coded, np.random.default_rng(_PROBE_SEED).standard_normal(shape)])
    found.flags.writeable = False  # the same array is returned again
    return found


def cells_by_probes(changes: Sequence[Array], shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which of some values each row takes, and whether each takes one, times a coefficient, at the most.

    Parameters
    ----------
    changes : sequence of array
        Changes that `probes` of that shape make, in one shape.
    shape : tuple of int
        Shape of the values.
    """
    coefficient, coded, noise = changes
    none = coefficient == 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        cells = np.where(none, 1.0, coded / coefficient).round().astype(np.int64) - 1
    values = probes(shape)[2].ravel()
    inside = (cells >= 0) & (cells < values.size)
    again = np.where(inside, coefficient * values[np.where(inside, cells, 0)], np.nan)
    return cells, np.isclose(again, noise, rtol=COEFFICIENT_TOLERANCE, atol=COEFFICIENT_TOLERANCE)


class ValueTaken(NamedTuple):
    """The value of an output of a process that each entry of an expression takes, and its coefficient."""

    coefficients: Array
    cells: NDArray[np.int64]
    """Positions among the points of the process."""
    alone: bool
    """Whether no entry takes several values."""


class Affine(NamedTuple):
    """Expressions by name as t + T z + Σ A g."""

    centres: dict[str, Array]
    slopes: dict[str, Array]
    """T along some directions, (s, ...)."""
    taken: dict[str, list[list[ValueTaken]]]
    """A, for each output of each process that is separate."""
    inputs: list[Array]
    """Inputs of each process that is separate, (m, d)."""


type ByValues = Callable[[TensorVariable, Mapping[TensorVariable, TensorVariable]], list[TensorVariable]]
"""From z, and from values less their means by the latent values of a process, to expressions."""


def at_inputs(
    prior: InNormals,
    sums: MovedSum,
    expressions: Sequence[TensorVariable],
    axis: Callable[[TensorVariable], int],
    moved: Sequence[LatentGP],
    makers: Mapping[TensorVariable, pm.gp.Latent] | None = None,
    *,
    seen: bool = False,
) -> ByValues:
    """Return expressions at new inputs of `sums` in place of an array, whose rows run over an `axis` of each.

    Raises
    ------
    CannotSplitError
        If an expression cannot be computed there.
    """
    own = [sums.values[v] if v in sums.values else sums.moved(v, axis(v)) for v in expressions]
    means = [sums.mean(latent, (makers or {}).get(latent.f)) for latent in moved]
    nothing = {latent.f: pt.zeros(()) for latent in moved}

    def by(z: TensorVariable, g: Mapping[TensorVariable, TensorVariable]) -> list[TensorVariable]:
        made = prior.by_normals([*own, *means], z, nothing, seen=seen)
        values = {latent.f: mean + g[latent.f] for latent, mean in zip(moved, made[len(own) :], strict=True)}
        return [sums.with_values(each, values) for each in made[: len(own)]]

    return by


class AffineMap:
    """Expressions of a model as t + T z + Σ A g, as a function of the hyperparameters and of data.

    Parameters
    ----------
    prior : InNormals
    expressions : dict of str to TensorVariable
        Expressions by name.
    data : mapping
        Data of the model → what takes their place.
    moved : sequence of LatentGP
        Processes that are separate. Their values are g plus their means.
    given : sequence of TensorVariable
        Variables among what takes the place of data, with values in each call.
    inputs : sequence of TensorVariable
        Inputs of the separate processes.
    by : callable, optional
        Function of z and of g by the latent values of a process that returns the expressions in their order.
        `prior.by_normals` if not given.
    seen : bool
        Whether expressions may differ by what the likelihood does not see.
    """

    def __init__(
        self,
        prior: InNormals,
        expressions: Mapping[str, TensorVariable],
        data: Mapping[Variable, Variable],
        moved: Sequence[LatentGP] = (),
        given: Sequence[TensorVariable] = (),
        inputs: Sequence[TensorVariable] = (),
        by: ByValues | None = None,
        *,
        seen: bool = False,
    ) -> None:
        outputs = list(expressions.values())
        self._by = by or (lambda z, g: prior.by_normals(outputs, z, g, seen=seen))
        self.names, self.moved, self.n_normals = list(expressions), list(moved), prior.n_normals
        self.functions = ModelFunctions(prior.model, prior.hyperparameters, data)
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        units = pt.matrix("units", shape=(None, prior.n_normals), dtype="float64")
        shapes = [(*latent.f.type.shape[:-1], None) for latent in moved]
        of = [str(latent.f.name) for latent in moved]
        g = [pt.tensor(f"{name}_there", dtype="float64", shape=shape) for name, shape in zip(of, shapes, strict=True)]
        along = [units, *(pt.tensor(dtype="float64", shape=(None, *shape)) for shape in shapes)]
        zeros = {z: pt.zeros(z.type.shape), **{v: pt.zeros_like(each[0]) for v, each in zip(g, along[1:], strict=True)}}
        made = self._by(z, {latent.f: value for latent, value in zip(moved, g, strict=True)})
        graphs = []
        for each in made:
            graphs.append(centre := _replaced(each, zeros))
            for v, units_of in zip(zeros, along, strict=True):
                alone = _replaced(each, {other: zero for other, zero in zeros.items() if other is not v})
                graphs.append(slopes_along(alone, v, units_of, centre))
        self.given, self.inputs = list(given), self.functions.known(inputs)
        self._function = self.functions([*graphs, *inputs], [*given, *along])

    def __call__(
        self, point: PointType, given: Sequence[Any] = (), lengths: Sequence[int] = (), units: Array | None = None
    ) -> Affine:
        """Return the expressions, given values of the value variables and of `given` variables.

        `lengths` are the numbers of points of the separate processes. T is that along `units` (s, q), or all of it.
        """
        shapes = [(*latent.f.type.shape[:-1], n) for latent, n in zip(self.moved, lengths, strict=True)]
        every = np.eye(self.n_normals) if units is None else units
        found = self._function(point, *given, every, *map(_of_each_output, shapes))
        size = 2 + len(shapes)
        result = Affine({}, {}, {}, [np.asarray(x, np.float64) for x in found[size * len(self.names) :]])
        for i, name in enumerate(self.names):
            centre, slopes, *changes = found[size * i : size * (i + 1)]
            result.centres[name], result.slopes[name] = np.asarray(centre), slopes
            result.taken[name] = [_value_taken(each, shape) for each, shape in zip(changes, shapes, strict=True)]
        return result

    def check_apart(
        self,
        what: str,
        name: str | int,
        axis: int | None,
        point: PointType,
        rows: Mapping[TensorVariable, NDArray[Any]],
        others: Mapping[TensorVariable, Any],
        n: int,
    ) -> None:
        """Refuse an expression of which an entry along an axis depends on other rows than its own.

        Parameters
        ----------
        what : str
            Name of the values in messages, in the plural.
        name : str or int
            Name of the expression, or the number of the process whose inputs are checked in its place.
        axis : int or None
            Its axis over rows; None if all rows have the same values.
        point : dict
            Values of the value variables.
        rows : mapping
            Given data over rows, with their values at fitted rows, (n, ...).
        others : mapping
            Other given data, with their values.
        n : int
            Number of fitted rows.
        """
        noise = np.random.default_rng(SEED).standard_normal
        of = {v.f: pt.tensor(v.f.name, dtype="float64", shape=(None,) * v.f.ndim) for v in self.moved}
        if isinstance(name, int):
            output = self.inputs[name]
        else:
            z = pt.constant(noise(self.n_normals))
            made = self._by(z, {f: value.T for f, value in of.items()})[self.names.index(name)]
            (output,) = self.functions.known([made])
        values = {of[v.f]: noise((n, *[len(v.classes)] * (v.f.ndim - 1))) for v in self.moved}
        check_rows_apart(
            what,
            output,
            axis,
            {**rows, **values},
            at_point(self.functions, point, output, others),
            processes=[str(v.name) for v in of.values()],
        )


def _of_each_output(shape: tuple[int, ...]) -> Array:
    """Return `probes` of each output of a process, with 0 for its other outputs, (3 outputs, ...)."""
    every = probes(shape)
    if len(shape) == 1:
        return every
    return (np.eye(shape[0])[:, None, :, None] * every).reshape(-1, *shape)


def _value_taken(changes: Array, shape: tuple[int, ...]) -> list[ValueTaken]:
    """Return what each output of a process adds, by the changes that its probes make."""
    found = []
    for own in np.asarray(changes).reshape(-1, 3, *np.shape(changes)[1:]):
        cells, alone = cells_by_probes(own, shape)
        found.append(ValueTaken(own[0], cells % shape[-1], bool(alone.all())))
    return found


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
    def _own(self) -> AffineMap:
        return AffineMap(self._prior, self._variables, self._data)

    def flat(self, z: Array) -> Array:
        """Standard normals (..., q) of z (..., c, q), in which each function has its own, or (..., 1, q) of all."""
        owner = self._prior.owner
        if z.shape[-2] == 1:
            return z[..., 0, :]
        return z[..., owner, np.arange(owner.size)]

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        flat, own = self.flat(z), self._own(point)
        return {name: centre + np.tensordot(flat, own.slopes[name], 1) for name, centre in own.centres.items()}

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
        self, variables: AffineMap, names: Sequence[str], point: PointType, functions: PosteriorFunctions
    ) -> Joint:
        centre, cov = self.posterior(functions)
        found = variables(point)
        means = {name: found.centres[name] + np.tensordot(centre, found.slopes[name], 1) for name in names}
        return Joint(means, {name: found.slopes[name] for name in names}, cov)

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
        variables = AffineMap(self._prior, {name: self._prior.model[name] for name in names}, self._data)
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
            return Joint(means, found.slopes, cov, found.noise), found.axes

        return joint

    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        _, cov = self.posterior(functions)
        slopes = np.zeros((len(cov), size))
        own = self._own(point)
        for name in self._values:
            slopes[:, places[name]] = own.slopes[name].reshape(len(cov), -1)
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
