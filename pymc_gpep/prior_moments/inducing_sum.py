"""A sum of effects and of a Gaussian process with inducing inputs, with a residual at each place.

Values of the process at its inputs are W v + r e. The standard normals v of inducing values are common to all rows. The
residual e of a place is common to the rows at this place (FITC: Snelson and Ghahramani 2006). Sites act on latent
values, or on latent values without residuals, as in the variational bound of Titsias (2009).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.place_prior import PlacePrior, PlaceRows, PlaceStructure
from pymc_gpep.gaussians.prior_form import BoundForm
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import SEED, ModelFunctions, evaluate
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import Joint, PosteriorFunctions, PriorAtNewRows, RowsOfNormals
from pymc_gpep.prior_moments.prior_functions import frozen_data
from pymc_gpep.processes.inducing_rows import InducedProcess, inducing_rows
from pymc_gpep.processes.process_functions import ProcessFunctions
from pymc_gpep.processes.processes import GPModel, functions_of
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.solvers.coefficients import coefficients
from pymc_gpep.sums.affine_map import AffineMap, cells_by_probes, probes
from pymc_gpep.sums.latent_sum import EffectsAtNewRows, LatentSum, SumInForm
from pymc_gpep.sums.new_data import NewData, RowsOfData
from pymc_gpep.sums.row_groups import equal_rows
from pymc_gpep.sums.row_parts import MovedProcess, ProcessTerm
from pymc_gpep.sums.sum_at_new_rows import SumAtNewRows
from pymc_gpep.sums.sum_values import SumVariables

_SAME = 1e-10  # Relative difference of variance and covariance at equal inputs that counts as rounding.


def as_sum(classifier: GPClassifier, option: str = "inducing") -> GPClassifier:
    """Return a classifier whose prior is a sum with one process. A process alone becomes a sum without effects.

    Raises
    ------
    StructureError
        If the prior does not support this option: inducing inputs or neighbours.
    """
    prior, called = classifier.prior, {"inducing": "Inducing inputs", "neighbours": "Nearest neighbours"}[option]
    all_rows = f"Leave {option} out for an exact prior"
    if prior.n_functions > 1:
        raise StructureError(
            f"{option} with this method is for one latent function, and the model has {prior.n_functions}. "
            'Classes take method="sparse_ep", inducing=....'
        )
    if isinstance(prior, GPModel):
        prior = _sum_of(prior, classifier)
    if not isinstance(prior, LatentSum) or not prior.processes:
        raise StructureError(
            f"{called} need a Gaussian process, and the latent function is a sum of effects without a process. "
            f"Leave {option} out: method={classifier.likelihood_model.method!r} fits the sum."
        )
    if len(prior.processes) > 1:
        names = ", ".join(repr(each.f.name) for each in prior.processes)
        raise StructureError(
            f"{called} are for one Gaussian process, and the model has {names}. {all_rows}, or write a process "
            "as pm.gp.HSGP, with its inputs as data: hsgp.prior('g', X=pm.Data('x', X))."
        )
    (term,) = prior.terms
    if not term.selected or int(np.prod(term.shape[:-1])) > 1:
        raise StructureError(
            f"{called} need a process of which each row uses one value, times a coefficient. Rows combine several "
            f"values of {term.latent.f.name!r}. {all_rows}."
        )
    return replace(classifier, prior=replace(prior, alone=()))


def _sum_of(processes: GPModel, classifier: GPClassifier) -> LatentSum:
    """Return a sum whose only term is a process."""
    (latent,) = processes.latents
    n = processes.n_points
    argument = latent.f if latent.f.ndim == 1 else latent.f[0]
    shape = (n,) if latent.f.ndim == 1 else (1, n)
    found = LatentSum(
        processes.model, n, 1, argument, False, {}, (latent,), (shape,), dict(processes.kept), np.zeros(n, np.int64)
    )
    linear = partial(found.of_process, 0)
    term = ProcessTerm(latent, shape, linear, np.zeros(1, np.int64), selected=True, whole=len(shape) == 1)
    return replace(found, terms=(term,))


@dataclass(frozen=True, eq=False)
class OneProcessInForm(SumInForm):
    """A sum of effects and a process in some form. Coefficients of the process follow the coefficients of effects."""

    @property
    def latents(self) -> tuple[LatentGP, ...]:  # type: ignore[override]  # a field of other priors
        return super().latents if self.recipes else self.processes

    @property
    def implicit(self) -> tuple[TensorVariable, ...]:
        """See `LatentPrior`: standard normals from which the model computes values of the process."""
        return tuple(latent.free for latent in self.processes if latent.rotated)

    @cached_property
    def places(self) -> dict[TensorVariable, slice]:
        """See `EffectSum`. Coefficients of the process come last."""
        ends = np.cumsum([0, *(each.size for each in self.recipes.values())]).tolist()
        found = {v: slice(*own) for v, own in zip(self.recipes, pairwise(ends), strict=True)}
        return found | {self.processes[0].f: slice(self.n_plain, self.n_normals)}


@dataclass(frozen=True, eq=False)
class InducingSum(OneProcessInForm):
    """A sum whose process is W v + r e, with inducing inputs.

    The order of standard normals is: effects, then v (M,), then e (p,) of the places.

    Attributes
    ----------
    inducing : array (M, d)
        Inducing inputs.
    keeps_residuals : bool
        Whether residuals have their prior distribution in the posterior, as in a variational bound.
    point_places : array (points,)
        Index of the place of each point of the process. Points with equal inputs are at the same place.
    structure : PlaceStructure
        Place of each row.
    data : mapping
        Data of the model → constants.
    """

    point_places: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    inducing: Array = field(default_factory=lambda: np.empty((0, 0)))
    keeps_residuals: bool = False
    structure: PlaceStructure | None = None
    data: Mapping[Variable, Variable] = field(default_factory=dict)

    @classmethod
    def of(
        cls, plain: LatentSum, inducing: Array, keeps_residuals: bool, data: Mapping[Variable, Variable]
    ) -> "InducingSum":
        """Return the sum with inducing inputs (M, d), for the given data of the model."""
        made = cls.made_of(plain, inducing=inducing, keeps_residuals=keeps_residuals, data=data)
        (term,) = plain.terms
        places = equal_inputs(made, data)
        count = int(places.max()) + 1
        structure = PlaceStructure(places[made._cells(term, data)], count, made.flat, not keeps_residuals)
        return replace(made, point_places=places, structure=structure)

    def _cells(self, term: ProcessTerm, data: Mapping[Variable, Variable]) -> NDArray[np.int64]:
        """Return for each row the index of the point of the process that it selects."""
        if term.whole:
            return np.arange(self.n_points)
        functions = ModelFunctions(self.model, self.hyperparameters, data)
        changed = functions([term.linear(pt.constant(each))[0] for each in probes(term.shape)])
        changes = changed(functions.nearby(np.random.default_rng(SEED)))
        cells, _ = cells_by_probes(changes, term.shape)
        return np.where(changes[0] == 0.0, 0, cells)

    @property
    def n_common(self) -> int:
        """Number of standard normals that all rows share, for effects and inducing values."""
        return self.n_plain + len(self.inducing)

    @property
    def n_normals(self) -> int:
        return self.n_common + int(self.point_places.max(initial=-1)) + 1

    @property
    def n_probed(self) -> int:
        """Length of the vector that `by_normals` takes: common standard normals, and three `probes` of e."""
        return self.n_common + 3

    def along_units(self, slopes: Array) -> PlaceRows | None:
        """Return rows (m, q), given slopes (n_probed, m) along unit vectors; None if a row has several residuals."""
        count = self.n_normals - self.n_common
        changes = list(slopes[self.n_common :])
        cells, alone = cells_by_probes(changes, (count,))
        if not alone.all():
            return None
        cells = np.where(changes[0] == 0.0, 0, cells)
        rows = np.ascontiguousarray(slopes[: self.n_common].T)
        return PlaceRows(coefficients(rows), changes[0], cells, count, self.n_common)

    def _process_by_normals(
        self, latent: LatentGP, shape: tuple[int, ...], z: TensorVariable
    ) -> tuple[TensorVariable, None]:
        rows, own, rest = self._process_rows, z[self.n_plain : self.n_common], z[self.n_common :]
        if z.type.shape == (self.n_probed,):
            rest = pt.constant(probes((self.n_normals - self.n_common,))).T @ rest
        values = rows[:, :-1] @ own + rows[:, -1] * rest[pt.constant(self.point_places)]
        return values if len(shape) == 1 else values[None], None

    @cached_property
    def _process_rows(self) -> TensorVariable:
        """Coefficients (W | r) of the process at its inputs, in terms of the model's random variables."""
        own = process_functions_of(self)
        return inducing_rows(self, own, self.inducing, own.inputs, self.data)

    @cached_property
    def arrays(self) -> Mapping[Any, Callable[[], TensorVariable]]:
        assert self.structure is not None
        return {BoundForm(PlacePrior, self.structure): self.array}

    def bound(self, prior_type: Any, data: Mapping[Variable, Variable]) -> None:
        return None

    def array(self) -> TensorVariable:
        """Return the matrix (J | r), (1, n, n_common + 1), in terms of the model's random variables."""
        assert self.structure is not None
        (term,), rows = self.terms, self._process_rows
        if not term.whole:
            coefficient = term.linear(pt.ones(term.shape))[0]
            first = np.unique(self.point_places, return_index=True)[1]
            rows = coefficient[:, None] * rows[pt.constant(first[self.structure.places])]
        parts = [self.plain_roots()[0], rows] if self.n_plain else [rows]
        return (pt.concatenate(parts, axis=1) if self.n_plain else rows)[None]

    def roots(self) -> None:
        """See `LatentPrior`: None, since the form of the prior contains the coefficients."""

    def process(
        self, latent: Any, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]
    ) -> MovedProcess:
        makers = [gp for gp in gps or () if getattr(gp, "f", None) is latent.f] or None
        moments = InducedProcess(self.without_effects(latent), makers, data, self.inducing)
        return MovedProcess(moments.where, moments)

    def parts(self, argument: TensorVariable, data: Mapping[Variable, Variable]) -> None:
        """See `EffectSum`: None, since coefficients are not split into parts."""

    def variables(self, data: Mapping[Variable, Variable]) -> "InducingVariables":
        return InducingVariables(self, data)

    def variables_at_new_rows(
        self, names: Sequence[str], data: Mapping[Variable, Variable], x: ArrayLike | None, new: Mapping[str, ArrayLike]
    ) -> "InducingEffects":
        return InducingEffects(self, names, data, x, new)

    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> PriorAtNewRows:
        return InducingAtNewRows(self, gps, data)


class _Solved:
    """Posterior covariance (q, q) of all standard normals, as an operator on columns."""

    def __init__(self, algebra: Any, size: int) -> None:
        self._algebra, self._size = algebra, size

    def __len__(self) -> int:
        return self._size

    def __matmul__(self, columns: Array) -> Array:
        return np.stack([self._algebra.covariance_times(each) for each in columns.T], axis=1)


class _RowsJoint(Joint):
    """Joint Gaussian of several variables, each entry of which depends on common standard normals and a residual."""

    def __init__(
        self,
        means: dict[str, Array],
        rows: Mapping[str, PlaceRows],
        algebra: Any,
        size: int,
        noise: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(means, {}, _Solved(algebra, size), noise)
        self._rows, self._algebra = rows, algebra

    def variances(self) -> dict[str, Array]:
        found = {}
        for name, rows in self._rows.items():
            noise = np.zeros(len(rows.entries)) if self._noise is None else self._noise[name].ravel()
            variance = self._algebra.covariance_at(rows, noise[:, None, None])[:, 0, 0]
            found[name] = variance.reshape(np.shape(self.means[name]))
        return found

    def columns(self, name: str, some: slice = slice(None)) -> Array:
        rows = self._rows[name]
        return rows.some(np.arange(len(rows.entries))[some]).T

    def combined(self, name: str, weights: Array) -> Array:
        return self._rows[name].sums(weights.ravel())


class InducingVariables(SumVariables):
    """Integrated variables as affine functions t + T z of the standard normals z of an `InducingSum`."""

    _prior: InducingSum

    def _rows_of(self, variables: AffineMap, point: PointType) -> dict[str, tuple[Array, PlaceRows]]:
        """Return t (...) and rows of T, by name."""
        found = variables(point)
        return self._placed(found.centres, found.slopes)

    def _map(self, variables: Mapping[str, TensorVariable]) -> AffineMap:
        return AffineMap(self._prior, variables, self._data, size=self._prior.n_probed)

    def _placed(
        self, centres: Mapping[str, Array], slopes_of: Mapping[str, Array]
    ) -> dict[str, tuple[Array, PlaceRows]]:
        """Return t (...) and rows of T by name, given slopes (n_probed, ...)."""
        made = {}
        for name, centre in centres.items():
            slopes = slopes_of[name].reshape(self._prior.n_probed, -1)
            rows = self._prior.along_units(slopes)
            if rows is None:
                raise ValueError(
                    f"{name!r} combines values of {self._prior.processes[0].f.name!r} at several places, which a fit "
                    "by inducing inputs does not compute. fit.sample() draws these values."
                )
            made[name] = centre, rows
        return made

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        flat = self.flat(z)
        return {
            name: np.stack([centre + rows.products(each).reshape(np.shape(centre)) for each in flat])
            for name, (centre, rows) in self._rows_of(self._own, point).items()
        }

    def posterior(self, functions: PosteriorFunctions) -> tuple[Array, Any]:
        own = functions.posterior  # type: ignore[attr-defined]  # `DenseFunctions` has a posterior.
        return own.coordinates[0], _Solved(own.algebra, own.coordinates.shape[1])

    def _joint_of(
        self,
        centres: Mapping[str, Array],
        slopes: Mapping[str, Array],
        names: Sequence[str],
        functions: PosteriorFunctions,
        noise: Mapping[str, Array] | None = None,
    ) -> Joint:
        found = self._placed(centres, slopes)
        centre, solved = self.posterior(functions)
        means = {n: found[n][0] + found[n][1].products(centre).reshape(np.shape(found[n][0])) for n in names}
        algebra = functions.posterior.algebra  # type: ignore[attr-defined]  # `DenseFunctions` has a posterior.
        return _RowsJoint(means, {name: found[name][1] for name in names}, algebra, len(solved), noise)

    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        _, solved = self.posterior(functions)
        slopes = np.zeros((len(solved), size))
        for name, (_, rows) in self._rows_of(self._own, point).items():
            if name in places:
                slopes[:, places[name]] = rows.some(np.arange(len(rows.entries))).T
        return np.asarray(slopes.T @ (solved @ slopes))


class InducingEffects(EffectsAtNewRows):
    """Variables at new data, with slopes along common normals of an `InducingSum` and along probes of its residuals."""

    _prior: InducingSum

    @property
    def _size(self) -> int:
        return self._prior.n_probed

    def _process_at(self, i: int, point: PointType, x: Array) -> tuple[Array, Array, NDArray[np.int64]]:
        process = self._processes[i].moments
        assert isinstance(process, InducedProcess)
        w, r = process.at_inputs(point, x)
        return w, r * r, np.arange(self._prior.n_plain, self._prior.n_common)[None]


class InducingAtNewRows(SumAtNewRows):
    """Coefficients of new rows by the standard normals of an `InducingSum`.

    For a process at new inputs, each new row has a separate residual. New rows at fitted places have the residuals of
    these places.
    """

    _prior: InducingSum

    @property
    def _size(self) -> int:
        return self._prior.n_probed

    def _owned(self, point: PointType, x: NewData) -> list[NDArray[np.bool_]]:
        common = self._prior.n_common
        found = self._levels.owned_cells(point, x, np.arange(common)[None])
        return [np.concatenate([each, np.zeros((len(each), 3), bool)], axis=1) for each in found]

    def by_normals(self, point: PointType, x: NewData | RowsOfData) -> RowsOfNormals:
        """See `PriorAtNewRows`."""
        prior = self._prior
        if isinstance(x, RowsOfData):
            mean, roots = self._own(point, x)
            return RowsOfNormals.exact(self._placed(roots[0]), mean)
        processes, new, known = self._at(point, self._resolved(point, x))
        m, common = len(x), prior.n_common
        rows = self._placed(np.ascontiguousarray(known[0, :m]))
        beside = (new.roots[0, :m, :common] ** 2).sum(axis=1) - (known[0, :m, :common] ** 2).sum(axis=1)
        for process, taken, inputs in zip(processes, new.taken, new.inputs, strict=True):
            assert isinstance(process, InducedProcess)
            w, r = process.at_inputs(point, inputs)
            (own,) = taken
            coefficient, cells = own.coefficients[0, :m], own.cells[0, :m]
            j = np.asarray(rows.rows.some(np.arange(m)))
            j[:, prior.n_plain :] += coefficient[:, None] * w[cells]
            beside = beside + (coefficient * r[cells]) ** 2
            rows = PlaceRows(coefficients(np.ascontiguousarray(j)), rows.entries, rows.places, rows.count, common)
        return RowsOfNormals(rows, np.maximum(beside, 0.0)[:, None, None], new.mean[:, :m])

    def _placed(self, roots: Array) -> PlaceRows:
        """Return the coefficients of rows, given slopes (m, n_common + 3)."""
        found = self._prior.along_units(np.ascontiguousarray(roots.T))
        if found is None:
            raise ValueError(
                f"A new row combines values of {self._prior.processes[0].f.name!r} at several places, which a fit by "
                "inducing inputs cannot predict. A fit without inducing=... can."
            )
        return found


def by_inducing_rows(classifier: GPClassifier, inducing: Array, approximator: Any) -> GPClassifier:
    """Return a classifier whose prior represents its process by inducing inputs (M, d).

    If the approximation `bounds` the evidence, residuals have their prior distribution in the posterior.
    """
    prior = classifier.prior
    assert isinstance(prior, LatentSum)
    if isinstance(prior, InducingSum):
        return classifier
    made = InducingSum.of(prior, inducing, approximator.bounds, frozen_data(prior.model))
    return replace(classifier, prior=made)


def process_functions_of(prior: LatentSum) -> ProcessFunctions:
    """Return the mean and covariance functions of the process of a sum."""
    ((_, functions),) = functions_of(prior.without_effects(prior.processes[0]), None)
    return functions


def equal_inputs(prior: LatentSum, data: Mapping[Variable, Variable]) -> NDArray[np.int64]:
    """Return the index of the place of each point of a sum's process. Points with equal inputs are at the same place.

    If the covariance has noise, which points with equal inputs do not share, each point has a separate place.
    """
    functions = process_functions_of(prior)
    at = ModelFunctions(prior.model, prior.hyperparameters, data)
    first = functions.inputs[:1]
    inputs, between, own = at([functions.inputs, functions.covariance(first, first), functions.variance(first)])(
        at.nearby(np.random.default_rng(SEED))
    )
    if not np.allclose(between[0], own, rtol=_SAME):
        return np.arange(len(inputs))
    return equal_rows(np.asarray(inputs, dtype=np.float64))


def process_inputs(prior: LatentSum, data: Mapping[Variable, Variable]) -> Array:
    """Return the inputs (p, d) of the process of a sum."""
    found = evaluate(graph_replace([process_functions_of(prior).inputs], data, strict=False))[0]
    return np.asarray(found, dtype=np.float64)
