"""Gaussian processes of a model as prior of latent values, at the data, at new inputs and for samplers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.linalg.decomposition.cholesky import cholesky
from pytensor.tensor.shape import shape_tuple
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.alike_graphs import in_double_precision
from pymc_gpep.graphs.errors import StructureError, describe, listing
from pymc_gpep.graphs.interpreted import ModelFunctions, evaluate, initial_point
from pymc_gpep.graphs.rows_apart import at_point, check_rows_apart
from pymc_gpep.latent.gp_latent import (
    LatentGP,
    is_process,
    latents_among,
    refuse_common_variables,
    refuse_what_was_made,
)
from pymc_gpep.latent.latent_prior import (
    IntegratedVariables,
    Joint,
    LatentPrior,
    PosteriorFunctions,
    PriorAtNewRows,
    SampledValues,
)
from pymc_gpep.latent.lowered_dims import lower_dims
from pymc_gpep.processes.process_functions import AS_THEY_ARE, ProcessFunctions, process_functions
from pymc_gpep.recipes import Recipe


def new_inputs(x: ArrayLike | None, columns: int) -> Array:
    """Return new inputs as (m, columns). Raise an error if their number of columns differs from the model's inputs."""
    if x is None:
        raise TypeError("predict needs new inputs: predict(Xnew), or predict(gp, Xnew).")
    try:
        values = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Xnew must be numbers, as the model's inputs are: {error}. Encode new rows of a table with the columns "
            "of the model: columns.encode(table)."
        ) from None
    if values.ndim != 2:
        advice = ""
        if values.ndim == 1 and columns == 1:
            advice = "; one input is a column, Xnew[:, None]"
        elif values.ndim == 1 and len(values) == columns:
            advice = "; one point is a row, Xnew[None]"
        raise ValueError(
            f"Xnew must be (points, inputs), here (points, {columns}), but has shape {values.shape}{advice}."
        )
    if values.shape[1] != columns:
        raise ValueError(f"Xnew has {values.shape[1]} columns, but the model's inputs have {columns}.")
    if not np.isfinite(values).all():
        raise ValueError(f"Xnew must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not.")
    return values


def named_inputs(inputs: Variable, model: pm.Model) -> SharedVariable | None:
    """Return the data that are the inputs of a process, apart from dtype and axes; None for computed inputs."""
    while inputs.owner is not None and (isinstance(inputs.owner.op, AS_THEY_ARE) or is_elementwise(inputs, Cast)):
        inputs = inputs.owner.inputs[0]
    return inputs if isinstance(inputs, SharedVariable) and inputs in model.data_vars else None


def inputs_by_name(
    x: ArrayLike | None, new: Mapping[str, ArrayLike], variable: SharedVariable | None, columns: int
) -> Array:
    """Return new inputs (m, columns), from an array or from new values of their data in the model."""
    if variable is None or variable.name not in new:
        return new_inputs(x, columns)
    if x is not None:
        raise TypeError(f"Xnew and data[{variable.name!r}] are the same inputs. Leave out one.")
    given = np.asarray(new[variable.name])
    if variable.ndim == 1 and given.ndim <= 1:
        return new_inputs(given.reshape(-1, 1), columns)
    return new_inputs(given[None] if given.shape == (columns,) else given, columns)


def match_priors(prior: LatentPrior, gps: Sequence[pm.gp.Latent]) -> list[tuple[LatentGP, pm.gp.Latent]]:
    """Return each prior of the model with the `pm.gp.Latent` that made it."""
    matched = []
    for latent in prior.latents:
        makers = [gp for gp in gps if getattr(gp, "f", None) is latent.f]
        if not makers:
            wanted = ", ".join(repr(latent.f.name) for latent in prior.latents)
            raise ValueError(
                f"gp: none of the {len(gps)} processes made the latent values {latent.f.name!r}. Pass the pm.gp.Latent "
                f"whose .prior made the values (a list for {wanted}). If PyMC made the model from another model "
                "(pm.do, model.copy()), leave gp out."
            )
        if len(makers) > 1:
            raise ValueError(f"gp: {latent.f.name!r} was given {len(makers)} times. Pass every pm.gp.Latent once.")
        matched.append((latent, makers[0]))
    if len(gps) > len(matched):
        raise ValueError(f"gp has {len(gps)} processes, but the latent values of the likelihood have {len(matched)}.")
    return matched


def functions_of(prior: LatentPrior, gps: Sequence[pm.gp.Latent] | None) -> list[tuple[LatentGP, ProcessFunctions]]:
    """Return each prior of the model with its covariance and mean functions, from `gps` or from the graph.

    Raises
    ------
    ValueError
        If `gps` are not the processes of the latent values.
    StructureError
        If the graph does not determine the functions at new inputs.
    """
    makers = None if gps is None else dict(match_priors(prior, gps))
    found = list(zip(prior.latents, process_functions(prior, makers), strict=True))
    if makers is not None:  # Functions of a `pm.gp.Latent` may combine rows.
        for _, functions in found:
            _check_apart(prior.model, functions)
    return found


def _check_apart(model: pm.Model, functions: ProcessFunctions) -> None:
    """Raise an error if moments at an input depend on other inputs."""
    x, inputs = pt.dmatrix("X"), functions.inputs
    moments = functions.covariance(x, inputs), functions.covariance(inputs, x), functions.variance(x), functions.mean(x)
    axes = 0, 1, 0, moments[3].ndim - 1
    rows = {x: np.asarray(evaluate([inputs])[0], dtype=np.float64)}
    for moment, axis in zip(moments, axes, strict=True):

        def by_rows(given: Sequence[TensorVariable], moment: TensorVariable = moment) -> Callable[..., Any]:
            functions = ModelFunctions(model, model.free_RVs)
            return at_point(functions, initial_point(model), *functions.known([moment]))(given)

        check_rows_apart("Prior moments", moment, axis, rows, by_rows, stop=model.basic_RVs)


class CrossCovariance(PriorAtNewRows):
    """Prior moments of Gaussian processes at new inputs, compiled once.

    Covariance functions are from `gps`, or from the graph of the model if `gps` is None. Data have the values of the
    fit. A call takes values of the hyperparameters and inputs (m, d). It returns the prior covariance with the inputs
    of the model (1 or c, m, n), the prior variance (1 or c, m) and the prior mean (c, m). The mean is 0 unless `means`
    is True. If `first` is given, the n inputs are the model's inputs at these rows.

    Attributes
    ----------
    where : TensorVariable
        Inputs of the model, (n, d).
    """

    def __init__(
        self,
        prior: LatentPrior,
        gps: Sequence[pm.gp.Latent] | None,
        data: Mapping[Variable, Variable],
        means: bool = True,
        first: NDArray[np.int64] | None = None,
    ) -> None:
        matched = functions_of(prior, gps)
        model = prior.model
        self.where = matched[0][1].inputs
        self._named = named_inputs(self.where, model)
        self.takes = [] if self._named is None else [str(self._named.name)]
        (self._inputs,) = graph_replace([self.where], data, strict=False)
        known = self._inputs.type.shape[1]
        self.columns = int(evaluate([self._inputs.shape[1]])[0]) if known is None else known
        x = pt.dmatrix("Xnew")
        rows: dict[int, tuple[Any, Any, Any]] = {}
        for latent, functions in matched:
            inputs = functions.inputs if first is None else functions.inputs[first]
            cross = functions.covariance(inputs, x).T
            variance = functions.variance(x)
            mean = pt.broadcast_to(functions.mean(x) if means else 0.0, (len(latent.classes), x.shape[0]))
            for output, k in enumerate(latent.classes):
                rows[k] = cross, variance, mean[output]
        ordered = [rows[k] for k in range(prior.n_functions)]
        distinct = ordered[:1] if len(matched) == 1 else ordered
        outputs = [
            pt.stack([cross for cross, _, _ in distinct]),
            pt.stack([variance for _, variance, _ in distinct]),
            pt.stack([mean for _, _, mean in ordered]),
        ]
        self._function = ModelFunctions(model, prior.hyperparameters, data)(outputs, [x], shared=True)

    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> Array:
        return inputs_by_name(x, new, self._named, self.columns)

    @property
    def inputs(self) -> Array:
        return np.asarray(evaluate([self._inputs])[0], dtype=np.float64)

    def __call__(self, point: PointType, x: Array) -> tuple[Array, Array, Array]:
        """Return moments at the inputs `x` (m, d)."""
        return tuple(np.asarray(out) for out in self._function(point, x))  # type: ignore[return-value]  # three of them


class ProcessVariables(IntegratedVariables):
    """Latent values of Gaussian processes, and their standard normals, as variables of a model.

    Parameters
    ----------
    latents : sequence of LatentGP
    shape : tuple of int
        Numbers of functions and rows, (c, n).
    first : array (g,), optional
        First row of each point of the prior. By default each row is a point.
    """

    def __init__(
        self, latents: Sequence[LatentGP], shape: tuple[int, int], first: NDArray[np.int64] | None = None
    ) -> None:
        self._latents, self._shape, self._first = latents, shape, first

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        values = {latent.f.name: f[:, latent.rows] for latent in self._latents}
        return values | {latent.free.name: z[:, latent.rows] for latent in self._latents if latent.rotated}

    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        mean, variance = {}, {}
        for latent in self._latents:
            centre, spread = functions.whitened() if latent.rotated else functions.marginals()
            mean[latent.free.name], variance[latent.free.name] = centre[latent.rows], spread[latent.rows]
        return mean, variance

    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        c, n = self._shape
        rotated = np.array([False] * c)
        where = {}
        for latent in self._latents:
            rotated[list(latent.classes)] = latent.rotated
            start = places[latent.free.name].start
            for row, k in enumerate(latent.classes):
                where[k] = slice(start + row * n, start + (row + 1) * n)
        joint = functions.joint_covariance(rotated)
        cov = np.zeros((size, size))
        for a in range(c):
            for b in range(c):
                cov[where[a], where[b]] = joint[a, :, b, :]
        return cov

    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        known = {str(latent.f.name): latent for latent in self._latents}
        if wrong := [name for name in names if name not in known]:
            raise ValueError(
                f"{wrong[0]!r} is not affine in latent values, or not a variable of the model. The variables are "
                f"{', '.join(map(repr, known))}.{did_you_mean(wrong[:1], known)}"
            )
        c, n = self._shape

        def joint(point: PointType, functions: PosteriorFunctions) -> Joint:
            mean, _ = functions.marginals()
            cov = functions.joint_covariance(np.zeros(c, bool)).reshape(c * n, c * n)
            unit = np.eye(c * n).reshape(c * n, c, n)
            rows = {name: known[name].rows for name in names}
            return Joint({k: mean[r] for k, r in rows.items()}, {k: unit[:, r] for k, r in rows.items()}, cov)

        return joint

    def at_new_rows(
        self, names: Sequence[str], x: ArrayLike | None, data: Mapping[str, ArrayLike]
    ) -> Callable[[PointType, PosteriorFunctions], tuple[Joint, Mapping[str, int]]]:
        self.affine(names)
        raise ValueError(f"Values of {', '.join(map(repr, names))} depend only on inputs: give Xnew, and no data.")

    def latent_values(self, values: Mapping[str, Array]) -> Array:
        f = np.empty((len(values[self._latents[0].f.name]), *self._shape))
        for latent in self._latents:
            f[:, latent.rows] = values[latent.f.name]
        return f if self._first is None else f[..., self._first]


class ProcessValues(SampledValues):
    """Latent values f (c, n) of Gaussian processes for samplers, for both parametrisations of a prior in PyMC.

    Parameters
    ----------
    processes : LatentPrior
        Prior whose latent functions are Gaussian processes.
    """

    data: Mapping[Variable, Variable] = MappingProxyType({})

    def __init__(self, processes: LatentPrior) -> None:
        self._processes = processes
        self._latents = processes.latents
        self.shape = processes.n_functions, processes.n_points

    @property
    def names(self) -> Mapping[TensorVariable, TensorVariable]:
        values = self._processes.model.rvs_to_values
        return {v: each.f for each in self._latents for v in (each.f, each.free, values[each.free])}

    @property
    def moments(self) -> list[TensorVariable]:
        return [self._processes.covariances(), self._processes.mean().astype("float64")]

    def prior(self, *moments: Array) -> DensePrior:
        k, mean = moments
        return DensePrior(k, mean)

    def parts(self) -> list[TensorVariable]:
        return [pt.dmatrix("f")]

    def in_parts(self, outputs: Sequence[TensorVariable], parts: Sequence[TensorVariable]) -> list[TensorVariable]:
        (f,) = parts
        found = graph_replace(outputs, {each.f: f[each.rows] for each in self._latents}, strict=False)
        behind = set(ancestors(found))
        for latent in self._latents:
            if latent.rotated and latent.free in behind:
                raise StructureError(
                    f"The model uses both {latent.free.name!r} and {latent.f.name!r}. Use {latent.f.name!r} alone."
                )
        return found

    def parts_of(self, x: Array, prior: Sampled) -> list[Array]:
        return [x]

    def slope_of(self, slopes: Sequence[Array], prior: Sampled) -> Array:
        return slopes[0]

    def by_white(self, outputs: Sequence[TensorVariable], z: TensorVariable) -> list[TensorVariable]:
        k, mean = self.moments
        offset = (cholesky(k[0]) @ z.T).T if k.type.shape[0] == 1 else (cholesky(k) @ z[..., None])[..., 0]
        return self.in_parts(outputs, [mean + offset])

    def from_point(self, point: PointType, prior: Sampled, rng: np.random.Generator) -> Array:
        prior = cast(DensePrior, prior)
        f = np.empty_like(prior.mean)
        for latent in self._latents:
            value = point[self._name(latent)].reshape(len(latent.classes), -1)
            for k, own in zip(latent.classes, value, strict=True):
                f[k] = prior.mean[k] + prior.roots[k % len(prior.roots)] @ own if latent.rotated else own
        return f

    def to_point(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        values: dict[str, Array] = {}
        white = prior.whitened(x) if any(latent.rotated for latent in self._latents) else x
        for latent in self._latents:
            value = (white if latent.rotated else x)[list(latent.classes)]
            values[self._name(latent)] = value if latent.f.ndim == 2 else value[0]
        return values

    def _name(self, latent: LatentGP) -> str:
        return str(self._processes.model.rvs_to_values[latent.free].name)


@dataclass(frozen=True, eq=False)
class GPModel(LatentPrior):
    """Latent functions that are Gaussian processes, all at the same number of points.

    It has all attributes of `LatentPrior`, in addition to:

    Attributes
    ----------
    latents : tuple of LatentGP
        Priors of the model. The attribute `classes` of a prior has the indices of its latent functions.
    kept : dict of TensorVariable to str
        Gaussian variables in means that stay hyperparameters, and the reasons.
    """

    model: pm.Model
    latents: tuple[LatentGP, ...]
    n_points: int
    kept: Mapping[TensorVariable, str] = field(default_factory=dict, kw_only=True)

    @property
    def prior(self) -> Self:
        """The prior of the latent functions, which is this object."""
        return self

    @property
    def recipes(self) -> Mapping[TensorVariable, Recipe]:  # type: ignore[override]
        """Empty: processes have no recipes."""
        return {}

    @property
    def predictor(self) -> tuple[TensorVariable, ...]:
        return tuple(latent.mean for latent in self.latents)

    @property
    def sources(self) -> frozenset[Variable]:
        return frozenset(latent.f for latent in self.latents)

    @property
    def n_functions(self) -> int:  # type: ignore[override]  # computed here
        return sum(len(latent.classes) for latent in self.latents)

    @property
    def processes(self) -> tuple[LatentGP, ...]:  # type: ignore[override]
        return self.latents

    @property
    def integrated(self) -> tuple[TensorVariable, ...]:
        return tuple(latent.free for latent in self.latents)

    @property
    def held(self) -> tuple[TensorVariable, ...]:
        return tuple(latent.f for latent in self.latents if latent.rotated)

    def variables(self, data: Mapping[Variable, Variable]) -> ProcessVariables:
        return ProcessVariables(self.latents, (self.n_functions, self.n_points))

    def sampled(self, data: Mapping[Variable, Variable]) -> ProcessValues:
        return ProcessValues(self)

    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> CrossCovariance:
        return CrossCovariance(self, gps, data)

    @property
    def inputs(self) -> list[str]:
        behind = set(ancestors([latent.cov for latent in self.latents]))
        return [variable.name for variable in self.model.data_vars if variable in behind]

    @cached_property
    def shared(self) -> bool:
        """Whether the prior covariances of all functions are equal graphs. Equal values are not enough."""
        first, *others = (latent.cov for latent in self.latents)
        return all(equal_computations([first], [other]) for other in others)

    def covariance(self) -> TensorVariable:
        if self.shared:
            return self.latents[0].cov
        return pt.stack(self._by_function([[latent.cov] * len(latent.classes) for latent in self.latents]))

    def mean(self) -> TensorVariable:
        return pt.stack(self._by_function([rows(latent, latent.mean) for latent in self.latents]))

    def latent_values(self) -> TensorVariable:
        return pt.stack(self._by_function([rows(latent, latent.f) for latent in self.latents]))

    def _by_function(self, listed: Iterable[list[TensorVariable]]) -> list[TensorVariable]:
        """Return the outputs of all priors in the order of the functions, from a list of outputs for each prior."""
        by_function = {
            k: row
            for latent, of_outputs in zip(self.latents, listed, strict=True)
            for k, row in zip(latent.classes, of_outputs, strict=True)
        }
        return [by_function[k] for k in range(self.n_functions)]


@dataclass(frozen=True, eq=False)
class GroupedProcesses(GPModel):
    """Gaussian processes at groups of rows with the same inputs. A group is represented by its first row.

    Attributes
    ----------
    whole : GPModel
        The processes at all rows.
    first : array (g,)
        Index of the first row of each group.
    """

    whole: GPModel = field(kw_only=True)
    first: NDArray[np.int64] = field(kw_only=True)

    @property
    def n_normals(self) -> int:
        return self.whole.n_normals

    def roots(self) -> TensorVariable:
        return cast(TensorVariable, cholesky(self.whole.covariances())[:, self.first])

    def variables(self, data: Mapping[Variable, Variable]) -> ProcessVariables:
        return ProcessVariables(self.whole.latents, (self.n_functions, self.whole.n_points), self.first)

    def sampled(self, data: Mapping[Variable, Variable]) -> ProcessValues:
        return self.whole.sampled(data)

    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> CrossCovariance:
        return CrossCovariance(self.whole, gps, data, first=self.first)


def rows(latent: LatentGP, variable: TensorVariable) -> list[TensorVariable]:
    """Split a variable in the shape of a prior's latent values into a list of vectors (n,), one for each output."""
    return [variable[i] for i in range(len(latent.classes))] if latent.f.ndim == 2 else [variable]


def read_processes(model: pm.Model) -> GPModel:
    """Return the latent functions of a model with `pm.gp.Latent` priors.

    Raises
    ------
    StructureError
        If no prior is a Gaussian process. If priors differ in the number of points, share a variable or are dependent.
    """
    refuse_what_was_made(model)
    model = lower_dims(model)
    found = latents_among([*model.free_RVs, *model.deterministics], model)
    latents = list({latent.free: latent for latent in found if is_process(latent)}.values())
    if not latents:
        raise StructureError(
            f"The model must have a pm.gp.Latent prior, but has none. The free variables of the model are "
            f"{listing(model.free_RVs)}. pm.fit fits sums of effects of Gaussian variables; pm.sample() draws from any "
            "model."
        )
    check_priors(latents, model)
    shapes = evaluate(get_symbolic_rv_shapes([latent.free for latent in latents]))
    if len({int(shape[-1]) for shape in shapes}) > 1:
        sizes = ", ".join(f"{latent.f.name!r} {shape[-1]}" for latent, shape in zip(latents, shapes, strict=True))
        raise StructureError(f"Latent functions have different numbers of points: {sizes}. Give all priors the same X.")
    outputs = [int(shape[0]) if len(shape) == 2 else 1 for shape in shapes]
    ends = [sum(outputs[: i + 1]) for i in range(len(outputs))]
    return GPModel(
        model=model,
        latents=tuple(
            with_functions(latent, tuple(range(end - count, end)), model)
            for latent, count, end in zip(latents, outputs, ends, strict=True)
        ),
        n_points=int(shapes[0][-1]),
    )


def processes_or(error: StructureError, model: pm.Model) -> GPModel:
    """Return the latent functions of a model with Gaussian processes; raise `error` if it has no process.

    Raises
    ------
    StructureError
        The argument `error`.
    """
    try:
        return read_processes(model)
    except StructureError:
        raise error from None


def check_priors(latents: Sequence[LatentGP], model: pm.Model) -> None:
    """Raise a StructureError if priors depend on latent values, have a transform, or share their free variable."""
    own = {latent.free for latent in latents}
    refuse_common_variables(latents)
    for latent in latents:
        if (transform := model.rvs_to_transforms[latent.free]) is not None:
            raise StructureError(
                f"{describe(latent.free)} has the transform {type(transform).__name__}, so its prior is not a Gaussian "
                "process. Declare the prior without `transform`."
            )
        behind = list(ancestors([latent.mean, latent.cov]))
        others = [other for other in latents_among(behind, model) if other.free in own or is_process(other)]
        if others:
            raise StructureError(
                f"The prior of {latent.f.name!r} depends on latent values, {listing(other.f for other in others)}. Its "
                "mean and covariance may depend on hyperparameters only; a prior on top of another Gaussian process "
                "cannot be read."
            )


def with_functions(
    latent: LatentGP, classes: tuple[int, ...], model: pm.Model, stop: Collection[Variable] = ()
) -> LatentGP:
    """Return a prior with indices `classes` of its latent functions, and a mean in the shape of latent values.

    Mean and covariance are converted to double precision, except random variables and the variables in `stop`.
    """
    mean, cov = in_double_precision([latent.mean, latent.cov], [*model.basic_RVs, *stop])
    n = shape_tuple(cov)[0]
    shape = (len(classes), n) if latent.f.ndim == 2 else (n,)
    return replace(latent, classes=classes, mean=pt.broadcast_to(mean, shape), cov=cov)
