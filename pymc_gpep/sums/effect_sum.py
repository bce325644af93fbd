"""Sums of effects at the rows of the data: f = m + J z with means m, coefficients J and standard normals z.

Each integrated variable in the graph is replaced by its recipe, a function of standard normals. A Gaussian process
among the terms is represented by its covariance. So the evidence needs no matrix root of this covariance.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pymc.pytensorf import constant_fold
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg.decomposition.cholesky import cholesky
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.shape import shape_tuple
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import few_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import BoundForm
from pymc_gpep.gaussians.row_prior import RowPrior, RowStructure
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.latent.gp_latent import Dims, LatentGP
from pymc_gpep.latent.latent_prior import LatentPrior, known_data
from pymc_gpep.processes.processes import CrossCovariance, GPModel, with_functions
from pymc_gpep.recipes import Recipe
from pymc_gpep.sums.affine_map import AffineMap, AffineValues, kept_random
from pymc_gpep.sums.row_parts import MovedProcess, PartsMap, ProcessTerm, RowParts
from pymc_gpep.univariate.prior_factor import is_factor

_MANY = 300  # With fewer rows a dense covariance matrix is cheap.
_WIDE = 100.0  # A larger prior standard deviation makes a dense covariance matrix inaccurate.


@dataclass(frozen=True, eq=False)
class _Alone(GPModel):
    """Prior of a single process of a sum. It has the hyperparameters of the sum."""

    whole: LatentPrior

    @property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        return self.whole.hyperparameters


@dataclass(frozen=True, eq=False)
class EffectSum(LatentPrior):
    """Latent functions that are sums of effects of Gaussian variables.

    It has all attributes of `LatentPrior`, in addition to:

    Attributes
    ----------
    argument : TensorVariable, shape (n, c), (n,) of one function, or a shape that broadcasts to it
        Argument of the likelihood.
    by_class : bool
        Whether the argument has an axis for functions.
    recipes : dict of TensorVariable to Recipe
        Integrated variables that are not processes → their recipes, in the order of the model.
    processes : tuple of LatentGP
        Gaussian processes among the terms.
    sizes : tuple of tuple of int
        Shapes of the processes, (points,) or (outputs, points).
    kept : dict of TensorVariable to str
        Gaussian variables that stay hyperparameters → the reason.
    owner : array (q,)
        Index of the latent function to which each standard normal contributes.
    terms : tuple of ProcessTerm
        Gaussian processes as terms of the latent functions.
    seen : dict of TensorVariable to Recipe
        Recipes that replace entries of `recipes` in the argument. They leave out a common shift of all functions of a
        point, because the likelihood ignores this shift. Without the shift the functions are independent.
    alone : tuple of LatentGP
        The processes, if latent functions are processes and all other effects are in the means; else empty.
    everywhere : TensorVariable or None
        Argument at all rows of the data, if some rows have no response.
    fitted : array (n,) or None
        Indices of the rows with a response among all rows.
    n_rows : int
        Number of rows of the data, if some rows have no response; else 0.
    shared : bool
        Whether several latent functions depend on one standard normal, so that they are dependent a priori.
    many : int
        Smallest number of points at which rows of coefficients are preferred to a dense covariance matrix.
    """

    model: pm.Model
    n_points: int
    n_functions: int
    argument: TensorVariable
    by_class: bool
    recipes: dict[TensorVariable, Recipe]
    processes: tuple[LatentGP, ...]
    sizes: tuple[tuple[int, ...], ...]
    kept: dict[TensorVariable, str]
    owner: NDArray[np.int64]
    terms: tuple[ProcessTerm, ...] = ()
    seen: Mapping[TensorVariable, Recipe] = field(default_factory=dict)
    alone: tuple[LatentGP, ...] = ()
    samples_values: ClassVar[bool] = False
    everywhere: TensorVariable | None = None
    fitted: NDArray[np.int64] | None = None
    n_rows: int = 0
    shared: bool = False
    many: int = field(default_factory=lambda: _MANY)

    @property
    def latents(self) -> tuple[LatentGP, ...]:  # type: ignore[override]
        if self.alone:
            return self.alone
        if self.fitted is not None and not self.recipes:
            raise StructureError(
                "All rows of the model must have a response. Leave out the rows without a response, also in the X of "
                "the prior: X[keep] and y[keep] with keep = pd.notna(y). Methods on all rows together leave out such "
                'rows by themselves: "ep", "laplace", "kl", "nested_ep" and similar methods.'
            )
        names = [str(variable.name) for variable in self.recipes]
        named = few_of(map(repr, names))
        held = f" unless hyperparameters={names} leaves them out" if self.processes and " more" not in named else ""
        sums = f"sums with {named}, which are integrated{held}" if names else "sums"
        raise StructureError(
            f"Each latent function must be a Gaussian process without further terms, but this model has {sums}. "
            'Methods on all rows together fit sums: "ep", "laplace", "kl", "nested_ep" and similar methods. With '
            'inducing inputs "sparse_ep" fits the sum of effects and one process. pm.sample() draws from the model, '
            "and from gpep.marginalize(model)."
        )

    @cached_property
    def integrated(self) -> tuple[TensorVariable, ...]:
        own = {*self.recipes, *(latent.free for latent in self.processes)}
        return tuple(rv for rv in self.model.free_RVs if rv in own)

    @property
    def held(self) -> tuple[TensorVariable, ...]:
        return tuple(latent.f for latent in self.processes if latent.rotated)

    @property
    def inputs(self) -> list[str]:
        behind = set(ancestors([self.argument, *(latent.cov for latent in self.processes)]))
        return [variable.name for variable in self.model.data_vars if variable in behind]

    @property
    def singular(self) -> bool:
        return not self.alone

    @property
    def described(self) -> str:
        integrated = f"Integrated: {', '.join(str(rv.name) for rv in self.integrated)}."
        names = ", ".join(str(v.name) for v in self.flat_variables if v not in self.bounded_variables)
        flat = f"Flat: {names}. Their prior density is 1, so the evidence is a restricted likelihood (REML)."
        wide = {str(v.name): each.wide for v, each in self.recipes.items() if each.wide}
        deviations = np.concatenate([*wide.values(), ()])
        more = np.log(deviations).sum() + 0.5 * deviations.size * np.log(2.0 * np.pi)
        instead = (
            f"Flat: {', '.join(wide)}. Wide normal priors replace flat priors. With density 1 the log evidence is "
            f"{more:.4f} larger."
        )
        return " ".join([integrated, *([flat] if names else []), *([instead] if wide else []), *self.reasons.values()])

    @property
    def predictor(self) -> tuple[TensorVariable, ...]:
        return (self.argument, *self.recipe_means, *(latent.mean for latent in self.processes))

    @property
    def sources(self) -> frozenset[Variable]:
        return frozenset([*self.recipes, *(latent.f for latent in self.processes)])

    @property
    def recipe_means(self) -> list[TensorVariable]:
        """Means of integrated variables that are not processes."""
        return [mean for each in self.recipes.values() for mean in each.means]

    # Standard normals of recipes come first, then standard normals of processes.

    @property
    def n_plain(self) -> int:
        """Number of standard normals of the recipes."""
        return sum(each.size for each in self.recipes.values())

    @property
    def n_normals(self) -> int:
        """Number of standard normals, q."""
        return self.n_plain + sum(map(_count, self.sizes))

    @cached_property
    def places(self) -> dict[TensorVariable, slice]:
        """Slices of the vector of standard normals, by integrated variable and by latent values of a process."""
        variables = [*self.recipes, *(latent.f for latent in self.processes)]
        ends = np.cumsum([0, *(each.size for each in self.recipes.values()), *map(_count, self.sizes)]).tolist()
        return {v: slice(*ends_of) for v, ends_of in zip(variables, pairwise(ends), strict=True)}

    @cached_property
    def flat(self) -> tuple[int, ...]:
        """Positions of entries that have a flat prior in place of a standard normal prior."""
        return tuple(self.places[v].start + place for v, each in self.recipes.items() for place in each.flat)

    @property
    def flat_variables(self) -> tuple[TensorVariable, ...]:
        """Integrated variables with a flat prior, or with a flat prior of their start."""
        return tuple(v for v, each in self.recipes.items() if each.flat)

    @property
    def bounded_variables(self) -> tuple[TensorVariable, ...]:
        """Uniform variables that are integrated out without their bounds."""
        return tuple(v for v, each in self.recipes.items() if each.bounded)

    @cached_property
    def _flat_rows(self) -> BoundForm:
        """Function that makes a `RowPrior` with the positions of flat priors."""
        return BoundForm(RowPrior, RowStructure(flat=self.flat))

    def by_normals(
        self,
        outputs: Sequence[TensorVariable],
        z: TensorVariable,
        moved: Mapping[TensorVariable, TensorVariable] | None = None,
        *,
        seen: bool = False,
    ) -> list[TensorVariable]:
        """Return expressions with integrated variables replaced by functions of standard normals z (q,).

        If `seen`, expressions may differ by a shift that the likelihood ignores. A process in `moved` is replaced by
        the given centred values at new inputs, instead of standard normals.
        """
        values, free = [], {}
        for latent, shape in zip(self.processes, self.sizes, strict=True):
            if moved and latent.f in moved:
                values.append(moved[latent.f])
                continue
            own, normals = self._process_by_normals(latent, shape, z)
            values.append(own)
            if latent.rotated and normals is not None:
                free[latent.free] = normals
        return self.by_parts(outputs, z, values, free, seen=seen)

    def _process_by_normals(
        self, latent: LatentGP, shape: tuple[int, ...], z: TensorVariable
    ) -> tuple[TensorVariable, TensorVariable | None]:
        """Return centred values of a process as a function of z, and the standard normals of the process, if any."""
        own = z[self.places[latent.f]].reshape(shape)
        return own @ cholesky(latent.cov).T, own  # Rows are outputs, so L z becomes zᵀ Lᵀ.

    def by_parts(
        self,
        outputs: Sequence[TensorVariable],
        z: TensorVariable,
        values: Sequence[TensorVariable],
        free: Mapping[TensorVariable, TensorVariable] | None = None,
        *,
        seen: bool = False,
    ) -> list[TensorVariable]:
        """Return `outputs` as functions of standard normals z of the effects, and of centred `values` of all processes.

        `free` maps free variables of processes to their values. With `seen`, recipes in `self.seen` are used.
        """
        processes = {latent.f: (latent, own) for latent, own in zip(self.processes, values, strict=True)}
        place = {rv: i for i, rv in enumerate(self.model.free_RVs)}
        of_free = {f: latent.free for f, (latent, _) in processes.items()}
        made: dict[Variable, Variable] = {}
        for variable in sorted([*self.recipes, *processes], key=lambda v: place[of_free.get(v, v)]):
            if variable in processes:
                latent, own = processes[variable]
                value = _replaced([latent.mean], made)[0] + own
            else:
                recipe = self.recipes[variable]
                recipe = self.seen.get(variable, recipe) if seen else recipe
                value = recipe.make(z[self.places[variable]], _replaced(recipe.means, made), recipe.scales)
            made[variable] = value.astype(variable.dtype)
        return _replaced(outputs, {**made, **(free or {})})

    def processes_behind(self, outputs: Sequence[TensorVariable]) -> list[LatentGP]:
        """Return the processes on which expressions depend, also through means."""
        behind = set(ancestors(outputs))
        return [latent for latent in self.processes if latent.f in behind]

    def data_behind(self, outputs: Sequence[TensorVariable]) -> dict[str, SharedVariable]:
        """Return the data of the model on which expressions depend, by name."""
        return known_data(self.model, self.by_normals(outputs, pt.zeros(self.n_normals)))

    def of_process(self, i: int, values: TensorVariable) -> TensorVariable:
        """Return the contribution (c, n) of centred values of process i to the latent values."""
        zeros = [pt.zeros(shape) for shape in self.sizes]
        parts = [*zeros[:i], values, *zeros[i + 1 :]]
        normals = pt.zeros(self.n_plain)
        moved, still = (self.by_parts([self.argument], normals, each, seen=True)[0] for each in (parts, zeros))
        return self.shaped(moved - still, self.n_points)

    def shaped(self, values: TensorVariable, n_points: int, batched: bool = False) -> TensorVariable:
        """Return values of the argument at n points, as a graph (c, n).

        If `batched`, the first axis is an axis of directions. It becomes the last axis.
        """
        wanted = 1 + self.by_class
        own = values.ndim - batched
        shape = (n_points, self.n_functions)[:wanted]
        if batched:
            axes = [0, *["x"] * (wanted - own), *range(1, own + 1)]
            spread = pt.broadcast_to(values.dimshuffle(*axes), (shape_tuple(values)[0], *shape))
            return spread.transpose(2, 1, 0) if self.by_class else spread.T[None]
        spread = pt.broadcast_to(values, shape)
        return spread.T if self.by_class else spread[None]

    def by_function(self, values: NDArray[Any], n_points: int, batched: bool = False) -> NDArray[Any]:
        """Return values of the argument at n points, as an array (c, n).

        If `batched`, the first axis is an axis of s directions, and the result is (s, c, n).
        """
        first, own = np.shape(values)[:batched], np.shape(values)[batched:]
        shape = (n_points, self.n_functions)[: 1 + self.by_class]
        spread = np.broadcast_to(np.reshape(values, (*first, *[1] * (len(shape) - len(own)), *own)), (*first, *shape))
        return spread.swapaxes(-1, -2) if self.by_class else spread[..., None, :]

    def dims(self) -> Dims:
        """Return the dim of functions, from an integrated variable with one entry for each function."""
        if not self.by_class:
            return Dims()
        for variable, own in self.places.items():
            dims = self.model.named_vars_to_dims.get(variable.name) or ()
            shape = tuple(len(self.model.coords[dim] or ()) if dim in self.model.coords else 0 for dim in dims)
            if _count(shape) != own.stop - own.start or not shape:
                continue
            owner = self.owner[own].reshape(shape)
            for axis, dim in enumerate(dims):
                if shape[axis] == self.n_functions and (owner == _along(axis, shape)).all():
                    labels = self.model.coords[dim]
                    return Dims(dim, None, None if labels is None else tuple(labels))
        return Dims()

    # Methods of the prior.

    def mean(self) -> TensorVariable:
        return self.shaped(self.plain_map.graphs("argument", [])[0], self.n_points)

    def covariance(self) -> TensorVariable:
        functions = self.covariances()
        return functions[0] if self.n_functions == 1 else functions

    def covariances(self) -> TensorVariable:
        if self.flat:
            raise StructureError(
                f"{listing(self.flat_variables)} has a flat prior. Latent functions then have no prior covariance, but "
                f"the method needs it. {self.proper}"
            )
        if self.shared:
            raise StructureError(
                "Latent functions of the model share effects, so separate prior covariances do not "
                'suffice. Use a method for shared effects, such as "laplace".'
            )
        plain = self.plain_roots()
        found = []
        for k in range(self.n_functions):
            own = np.flatnonzero(self.owner[: self.n_plain] == k)
            parts = [each for term in self.terms for each in term.covariance(k)]
            if own.size:
                root = plain[k] if own.size == self.n_plain else plain[k][:, own]
                parts.append(root @ root.T)
            found.append(pt.add(*parts) if len(parts) > 1 else [*parts, pt.zeros((self.n_points, self.n_points))][0])
        return pt.stack(found)

    @cached_property
    def plain_map(self) -> AffineMap:
        """Argument as a function of the standard normals of effects. Each process is equal to its mean."""

        def by(z: TensorVariable, g: Any) -> list[TensorVariable]:
            return self.by_parts([self.argument], z, [pt.zeros(shape) for shape in self.sizes], seen=True)

        return AffineMap(self, {"argument": self.argument}, {}, by=by, size=self.n_plain)

    def plain_roots(self) -> TensorVariable:
        """Return the coefficients J (c, n, q) of the standard normals of recipes."""
        slopes = self.plain_map.graphs("argument", [pt.eye(self.n_plain)])[1]
        return self.shaped(slopes, self.n_points, batched=True)

    @cached_property
    def _is_wide(self) -> bool:
        """Whether an integrated normal variable has a large and constant prior standard deviation."""
        nodes = [v.owner for v in self.sources if v.owner is not None and isinstance(v.owner.op, NormalRV)]
        widths = [node.op.dist_params(node)[1] for node in nodes]
        numbers = [each for each in widths if all(v.owner or isinstance(v, Constant) for v in ancestors([each]))]
        return bool(numbers) and any(np.max(each, initial=0.0) >= _WIDE for each in constant_fold(numbers, False))

    @property
    def proper(self) -> str:
        """Advice to replace a flat prior by a prior with a density."""
        name = str(self.flat_variables[0].name)
        return f"Give it a density, pm.Normal({name!r}, 0, s), or keep it a hyperparameter: hyperparameters=[{name!r}]."

    @property
    def _few(self) -> bool:
        """Whether coefficients of rows are preferred to a dense prior covariance."""
        n, q = self.n_points, self.n_normals
        if n < 2 * q and not (n >= q and any(map(is_factor, self.model.observed_RVs))):
            return False
        return n >= self.many or self._is_wide or bool(self.flat)

    @property
    def arrays(self) -> Mapping[Any, Callable[[], TensorVariable]]:
        if self.flat:
            return {self._flat_rows: self.roots}
        if self.shared:
            return {RowPrior: self.roots}
        return ({RowPrior: self.roots} if self._few else {}) | {DensePrior: self.covariances}

    def bound(self, prior_type: Any, data: Mapping[Variable, Variable]) -> tuple[Any, TensorVariable] | None:
        parts = self.row_parts(data) if prior_type.by_normals else None
        return None if parts is None else (BoundForm(RowPrior, RowStructure(parts.rows, self.flat)), parts.root[None])

    def parts(self, argument: TensorVariable, data: Mapping[Variable, Variable]) -> PartsMap | None:
        """Return the argument in the form of parts, for these data; None if a dense covariance is preferred."""
        return PartsMap(self, argument, partial(self.by_function, batched=True), data) if self._few else None

    def row_parts(self, data: Mapping[Variable, Variable]) -> RowParts | None:
        """Return the coefficients of fitted rows in parts; None if a dense matrix is better, or parts are large."""
        found = self.parts(self.argument, data)
        return None if found is None else found.of_fit(self.n_points, self.n_points // 2)

    def roots(self) -> TensorVariable:
        every = AffineMap(self, {"argument": self.argument}, {}, seen=True)
        return self.shaped(every.graphs("argument", [pt.eye(self.n_normals)])[1], self.n_points, batched=True)

    def supported(self) -> TensorVariable | None:
        hyperparameters = set(self.hyperparameters)
        positive = dict.fromkeys(each for recipe in self.recipes.values() for each in recipe.positive)
        conditions = [pt.all(pt.ge(v, 0.0)) for v in positive if not hyperparameters.isdisjoint(ancestors([v]))]
        return pt.all(pt.stack(conditions)) if conditions else None

    def latent_values(self) -> TensorVariable:
        return self.shaped(self.argument, self.n_points)

    @abstractmethod
    def variables_at_new_rows(
        self, names: Sequence[str], data: Mapping[Variable, Variable], x: ArrayLike | None, new: Mapping[str, ArrayLike]
    ) -> Callable[[PointType], AffineValues]:
        """Return a function that computes variables at new inputs x of the processes and at new data."""

    def without_means(self) -> GPModel:
        """Return the Gaussian processes of the latent functions with mean 0."""
        latents = [replace(each, mean=pt.constant(0.0)) for each in self.alone]
        return _Alone(
            self.model, tuple(with_functions(each, each.classes, self.model) for each in latents), self.n_points, self
        )

    def process(
        self, latent: LatentGP, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]
    ) -> MovedProcess:
        """Return a process of the sum at new inputs, with mean 0."""
        makers = [gp for gp in gps or () if getattr(gp, "f", None) is latent.f] or None
        moments = CrossCovariance(self.without_effects(latent), makers, data, means=False)
        return MovedProcess(moments.where, moments)

    def without_effects(self, latent: LatentGP) -> GPModel:
        """Return the prior of one process of the sum, with mean 0."""
        own = with_functions(replace(latent, mean=pt.constant(0.0)), latent.classes, self.model)
        return _Alone(self.model, (own,), self.sizes[self.processes.index(latent)][-1], self)


def _replaced(outputs: Iterable[TensorVariable], made: Mapping[Variable, Variable]) -> list[TensorVariable]:
    outputs = list(outputs)
    return graph_replace(outputs, kept_random(outputs) | dict(made), strict=False) if made and outputs else outputs


def _along(axis: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return positions 0, 1, … along an axis, in a shape that broadcasts to `shape`."""
    return np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))
