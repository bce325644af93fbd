"""The Gaussian processes of a model: their prior, their variables, and their values for samplers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Self, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.blocking import PointType
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg.decomposition.cholesky import cholesky
from pytensor.tensor.shape import shape_tuple
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.graphs.double_precision import in_double_precision
from pymc_gpep.graphs.errors import StructureError, describe, listing
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.latent.gp_latent import LatentGP, is_process, latents_among, refuse_common_variables
from pymc_gpep.latent.latent_prior import IntegratedVariables, Joint, LatentPrior, PosteriorFunctions, SampledValues
from pymc_gpep.latent.lowered_dims import lower_dims
from pymc_gpep.processes.cross_covariance import CrossCovariance
from pymc_gpep.recipes import Recipe


class ProcessVariables(IntegratedVariables):
    """Each is the latent values of a Gaussian process, or the standard normals that these are made of.

    Parameters
    ----------
    latents : sequence of LatentGP
    shape : tuple of int
        Numbers of functions and points, (c, n).
    """

    def __init__(self, latents: Sequence[LatentGP], shape: tuple[int, int]) -> None:
        self._latents, self._shape = latents, shape

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
                f"{wrong[0]!r} is not affine in latent values, or not a variable of the model. There are "
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

    def elsewhere(
        self, names: Sequence[str], x: ArrayLike | None, data: Mapping[str, ArrayLike]
    ) -> Callable[[PointType, PosteriorFunctions], tuple[Joint, Mapping[str, int]]]:
        self.affine(names)
        raise ValueError(f"Values of {', '.join(map(repr, names))} depend on inputs alone: give Xnew, and no data.")

    def latent_values(self, values: Mapping[str, Array]) -> Array:
        f = np.empty((len(values[self._latents[0].f.name]), *self._shape))
        for latent in self._latents:
            f[:, latent.rows] = values[latent.f.name]
        return f


class ProcessValues(SampledValues):
    """x is the latent values f (c, n), whether the model has them or what they are rotated to.

    Parameters
    ----------
    processes : LatentPrior
        The prior of latent functions that are Gaussian processes.
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
                    f"{latent.free.name!r} is used besides {latent.f.name!r}. Use the latent values themselves."
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

    Besides what any `LatentPrior` has.

    Attributes
    ----------
    latents : tuple of LatentGP
        The priors, each with the functions that its outputs are.
    kept : dict of TensorVariable to str
        Gaussian variables of means that stay hyperparameters, and why.
    """

    model: pm.Model
    latents: tuple[LatentGP, ...]
    n_points: int
    kept: Mapping[TensorVariable, str] = field(default_factory=dict, kw_only=True)

    @property
    def prior(self) -> Self:
        """The prior of the latent functions, which is all that was read of the model."""
        return self

    @property
    def recipes(self) -> Mapping[TensorVariable, Recipe]:  # type: ignore[override]
        """See `LatentPrior`: processes alone have none."""
        return {}

    @property
    def predictor(self) -> tuple[TensorVariable, ...]:
        return tuple(latent.mean for latent in self.latents)

    @property
    def sources(self) -> frozenset[Variable]:
        return frozenset(latent.f for latent in self.latents)

    @property
    def n_functions(self) -> int:  # type: ignore[override]  # it is counted
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

    def elsewhere(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> CrossCovariance:
        return CrossCovariance(self, gps, data)

    @property
    def inputs(self) -> list[str]:
        behind = set(ancestors([latent.cov for latent in self.latents]))
        return [variable.name for variable in self.model.data_vars if variable in behind]

    @cached_property
    def shared(self) -> bool:
        """Whether all functions have the same prior covariance, as a computation and not by chance of values."""
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
        """Put what is listed by output of each prior into the order of the functions."""
        by_function = {
            k: row
            for latent, of_outputs in zip(self.latents, listed, strict=True)
            for k, row in zip(latent.classes, of_outputs, strict=True)
        }
        return [by_function[k] for k in range(self.n_functions)]


def rows(latent: LatentGP, variable: TensorVariable) -> list[TensorVariable]:
    """A variable that has the shape of a prior's latent values, one output at a time."""
    return [variable[i] for i in range(len(latent.classes))] if latent.f.ndim == 2 else [variable]


def refuse_what_was_made(model: pm.Model) -> None:
    """Raise a StructureError if a model is known to be made from a classifier, and none itself: it says what it is."""
    made: str | None = getattr(model, "made_from_a_classifier", None)
    if made is not None:
        raise StructureError(made)


def read_processes(model: pm.Model) -> GPModel:
    """Read which variables of a model are latent values with `pm.gp.Latent` priors.

    Raises
    ------
    StructureError
        If there are no such priors, or if they differ in their number of points, share a variable or depend on each
        other.
    """
    refuse_what_was_made(model)
    model = lower_dims(model)
    found = latents_among([*model.free_RVs, *model.deterministics], model)
    latents = list({latent.free: latent for latent in found if is_process(latent)}.values())
    if not latents:
        raise StructureError(
            f"This works on pm.gp.Latent priors alone, of which the model has none. Its free variables are "
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
    """Read the latent values of Gaussian processes of a model that cannot be read in another way, as an error says.

    Raises
    ------
    StructureError
        The given one, if there is no such process, since it knows of sums as well.
    """
    try:
        return read_processes(model)
    except StructureError:
        raise error from None


def check_priors(latents: Sequence[LatentGP], model: pm.Model) -> None:
    """Refuse priors that depend on latent values, are not Gaussian, or share their free variable."""
    own = {latent.free for latent in latents}
    refuse_common_variables(latents)
    for latent in latents:
        if (transform := model.rvs_to_transforms[latent.free]) is not None:
            raise StructureError(
                f"{describe(latent.free)} has the transform {type(transform).__name__}, so its prior is no longer the "
                "Gaussian process. Declare the prior without `transform`."
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
    """Complete a prior by the functions that its outputs are; its mean gets the shape of its latent values.

    Mean and covariance are then in double precision, down to random variables and to those of `stop`.
    """
    mean, cov = in_double_precision([latent.mean, latent.cov], [*model.basic_RVs, *stop])
    n = shape_tuple(cov)[0]
    shape = (len(classes), n) if latent.f.ndim == 2 else (n,)
    return replace(latent, classes=classes, mean=pt.broadcast_to(mean, shape), cov=cov)
