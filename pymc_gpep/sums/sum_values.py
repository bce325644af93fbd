"""Variables of a model as functions of the standard normals of a sum, for fits and samplers."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.linalg.decomposition.cholesky import cholesky
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import lstsq, solve_triangular

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.whitening import NormalsPrior, Sampled
from pymc_gpep.graphs.affine import Affinity, NotAffineError
from pymc_gpep.graphs.interpreted import SEED, AtPoint, ModelFunctions, graph_function
from pymc_gpep.latent.latent_prior import IntegratedVariables, Joint, PosteriorFunctions, SampledValues
from pymc_gpep.recipes import Recipe
from pymc_gpep.solvers.coefficients import Composed, coefficients
from pymc_gpep.sums.affine_map import (
    COEFFICIENT_TOLERANCE,
    AffineMap,
)
from pymc_gpep.sums.effect_sum import EffectSum

# A smaller singular value, relative to the largest singular value, counts as zero.
_SINGULAR = 1e-10

_Undo = Callable[[Array, Array, np.random.Generator], Array]
"""Function that solves r = Tᵀz for z, given r and T (size, d). It draws parts of z that r does not determine."""


class SumVariables(IntegratedVariables):
    """Variables of a model as affine functions of standard normals, with their posterior.

    Parameters
    ----------
    prior : EffectSum
    data : mapping
        Data of the model → constants that replace them.
    """

    def __init__(self, prior: EffectSum, data: Mapping[Variable, Variable]) -> None:
        self._prior, self._data = prior, data
        self._integrated = [rv for rv in prior.integrated if rv not in prior.implicit]
        self._values = [prior.model.rvs_to_values[rv].name for rv in self._integrated]

    @cached_property
    def _variables(self) -> dict[str, TensorVariable]:
        """Value variables and free variables, by name."""
        prior, model = self._prior, self._prior.model
        unconstrained = {
            str(model.rvs_to_values[rv].name): transform.forward(rv, *rv.owner.inputs)
            for rv in self._integrated
            if (transform := model.rvs_to_transforms[rv]) is not None
        }
        return unconstrained | {str(v.name): v for v in [*self._integrated, *prior.held]}

    @cached_property
    def _own(self) -> AffineMap:
        return self._map(self._variables)

    def _map(self, variables: Mapping[str, TensorVariable]) -> AffineMap:
        return AffineMap(self._prior, variables, self._data)

    def flat(self, z: Array) -> Array:
        """Return standard normals (..., q), given z of each function (..., c, q), or of all functions (..., 1, q)."""
        owner = self._prior.owner
        if z.shape[-2] == 1:
            return z[..., 0, :]
        return z[..., owner, np.arange(owner.size)]

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        flat, own = self.flat(z), self._own(point)
        return {name: centre + np.tensordot(flat, own.slopes[name], 1) for name, centre in own.centres.items()}

    def posterior(self, functions: PosteriorFunctions) -> tuple[Array, Array]:
        """Return the posterior mean (q,) and covariance (q, q) of the standard normals."""
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
        found = variables(point)
        return self._joint_of(found.centres, found.slopes, names, functions)

    def _joint_of(
        self,
        centres: Mapping[str, Array],
        slopes: Mapping[str, Array],
        names: Sequence[str],
        functions: PosteriorFunctions,
        noise: Mapping[str, Array] | None = None,
    ) -> Joint:
        """Return the joint posterior of variables `centres` + `slopes` z + noise, for standard normals z."""
        centre, cov = self.posterior(functions)
        means = {name: centres[name] + np.tensordot(centre, slopes[name], 1) for name in names}
        return Joint(means, {name: slopes[name] for name in names}, cov, noise)

    def _check(self, names: Sequence[str]) -> None:
        """Raise an error if a variable is not affine in integrated variables."""
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
                    f"{name!r} is not affine in integrated variables, because of {error.node.op}. fit.sample() "
                    f"returns draws of {name!r}."
                ) from None
            if not behind and model[name] not in self._integrated:
                raise ValueError(f"{name!r} depends on no integrated variable.")

    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        self._check(names)
        variables = self._map({name: self._prior.model[name] for name in names})
        return lambda point, functions: self._joint(variables, names, point, functions)

    def at_new_rows(
        self, names: Sequence[str], x: ArrayLike | None, data: Mapping[str, ArrayLike]
    ) -> Callable[[PointType, PosteriorFunctions], tuple[Joint, Mapping[str, int]]]:
        self._check(names)
        there = self._prior.variables_at_new_rows(names, self._data, x, data)

        def joint(point: PointType, functions: PosteriorFunctions) -> tuple[Joint, Mapping[str, int]]:
            found = there(point)
            return self._joint_of(found.centres, found.slopes, names, functions, found.noise), found.axes

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


class SumValues(SampledValues):
    """Values of a sum for samplers. The sampled x is the vector z (1, q) of standard normals.

    Coefficients of rows that do not depend on hyperparameters are computed once, for the data at construction.

    Parameters
    ----------
    prior : EffectSum
    data : mapping
        Data of the model → constants that replace them.
    """

    def __init__(self, prior: EffectSum, data: Mapping[Variable, Variable]) -> None:
        self._sum, self.data = prior, data
        self.shape = 1, prior.n_normals
        self._apart = prior.row_parts(data)

    @property
    def names(self) -> Mapping[TensorVariable, TensorVariable]:
        values = self._sum.model.rvs_to_values
        named = {each.free: each.f for each in self._sum.processes}
        found = {v: named.get(rv, rv) for rv in self._sum.integrated for v in (rv, values[rv])}
        return found | {f: f for f in named.values()}

    @property
    def moments(self) -> list[TensorVariable]:
        prior = self._sum
        supported = prior.supported()
        return [
            prior.mean().astype("float64"),
            prior.roots() if self._apart is None else self._apart.root,
            pt.constant(True) if supported is None else supported,
            *(cholesky(each.cov) for each in prior.processes),
        ]

    def prior(self, *moments: Array) -> NormalsPrior:
        mean, root, supported, *factors = moments
        apart = self._apart
        rows = coefficients(root.reshape(-1, root.shape[-1])) if apart is None else Composed(apart.rows, root)
        return NormalsPrior(mean, rows, factors, bool(supported))

    # `parts` are z, and the centred values of each Gaussian process.

    def parts(self) -> list[TensorVariable]:
        z = pt.vector("normals", shape=(self.shape[1],), dtype="float64")
        shapes = zip(self._sum.processes, self._sum.sizes, strict=True)
        return [z, *(pt.tensor(f"{each.f.name} minus its mean", shape=size, dtype="float64") for each, size in shapes)]

    def in_parts(self, outputs: Sequence[TensorVariable], parts: Sequence[TensorVariable]) -> list[TensorVariable]:
        z, *values = parts
        own = zip(self._sum.processes, self._sum.sizes, strict=True)
        free = {each.free: z[self._sum.places[each.f]].reshape(size) for each, size in own if each.rotated}
        return self._sum.by_parts(outputs, z, values, free)

    def parts_of(self, x: Array, prior: Sampled) -> list[Array]:
        values = [self._of_process(x[0], i) @ root.T for i, root in enumerate(_roots(prior))]
        return [np.ascontiguousarray(x[0]), *map(np.ascontiguousarray, values)]

    def slope_of(self, slopes: Sequence[Array], prior: Sampled) -> Array:
        slope = np.array(slopes[0])
        for i, (root, own) in enumerate(zip(_roots(prior), slopes[1:], strict=True)):
            slope[self._places(i)] += (own @ root).ravel()
        return slope[None]

    def by_white(self, outputs: Sequence[TensorVariable], z: TensorVariable) -> list[TensorVariable]:
        return self._sum.by_normals(outputs, pt.specify_shape(z[0], self.shape[1]))

    def _places(self, process: int) -> slice:
        return self._sum.places[self._sum.processes[process].f]

    def _of_process(self, z: Array, process: int) -> Array:
        return z[self._places(process)].reshape(self._sum.sizes[process])

    # Conversion between x and the variables of the model.

    def to_point(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        z, *values = self.parts_of(x, prior)
        return dict(zip(self._made.names, self._made.at(point, z, values), strict=True))

    @cached_property
    def _made(self) -> AffineMap:
        """The value variables as affine functions of z and of centred process values."""
        prior, model = self._sum, self._sum.model
        transforms = {rv: model.rvs_to_transforms[rv] for rv in prior.integrated}
        outputs = [rv if (t := transforms[rv]) is None else t.forward(rv, *rv.owner.inputs) for rv in transforms]
        # Free variables of processes with `reparameterize=True` are replaced by standard normals.
        values = [model.rvs_to_values[rv] for rv in transforms]
        found = {str(v.name): out.astype(v.dtype) for v, out in zip(values, outputs, strict=True)}

        def by(z: TensorVariable, g: Mapping[TensorVariable, TensorVariable]) -> list[TensorVariable]:
            return self.in_parts(list(found.values()), [z, *g.values()])

        return AffineMap(prior, found, self.data, prior.processes, by=by)

    def from_point(self, point: PointType, prior: Sampled, rng: np.random.Generator) -> Array:
        undo, function = self._undone
        found = function(point)
        z = np.empty(self.shape[1])
        for i, (variable, each) in enumerate(zip(self._sum.recipes, undo, strict=True)):
            z[self._sum.places[variable]] = each(found[2 * i], found[2 * i + 1], rng)
        rest = found[2 * len(undo) :]
        for i, (root, value) in enumerate(zip(_roots(prior), rest, strict=True)):
            rotated = self._sum.processes[i].rotated
            flat = value.reshape(-1, len(root))
            z[self._places(i)] = (flat if rotated else solve_triangular(root, flat.T, lower=True).T).ravel()
        return z[None]

    @cached_property
    def _undone(self) -> tuple[list[_Undo], AtPoint]:
        """Inverses of all recipes, and a function that computes the residual and the coefficients of each recipe.

        The standard normals of a variable follow from its value, and from the variables that its mean depends on.
        """
        prior, rng = self._sum, np.random.default_rng(SEED)
        functions = ModelFunctions(prior.model, [*prior.hyperparameters, *prior.integrated], self.data)
        nearby = functions.nearby(rng)
        outputs: list[TensorVariable] = []
        undo: list[_Undo] = []
        for variable, recipe in prior.recipes.items():
            made = AffineMap(prior, {"made": variable}, self.data, by=partial(_made_by, recipe), size=recipe.size)
            ones, signs = np.ones(recipe.size), rng.uniform(0.5, 1.5, recipe.size)
            centre, along = made.graphs("made", [pt.constant(np.stack([ones, signs]))])
            residual = (variable.astype("float64") - centre).ravel()
            whole, scaled = functions([along])(nearby)[0].reshape(2, -1)
            if whole.size == recipe.size and np.allclose(scaled, signs * whole, COEFFICIENT_TOLERANCE, 0.0):
                outputs += [residual, along[0].ravel()]
                undo.append(_by_diagonal)
                continue
            slopes = made.graphs("made", [pt.eye(recipe.size)])[1].reshape((recipe.size, -1))
            outputs += [residual, slopes]
            undo.append(_by_least_squares)
        for latent in prior.processes:
            outputs.append(latent.free if latent.rotated else latent.f - latent.mean)
        return undo, functions([out.astype("float64") for out in outputs])


def _roots(prior: Sampled) -> tuple[Array, ...]:
    return cast(NormalsPrior, prior).process_roots


def _made_by(recipe: Recipe, z: TensorVariable, g: object) -> list[TensorVariable]:
    return [recipe.make(z, recipe.means, recipe.scales)]


def _by_diagonal(residual: Array, diagonal: Array, rng: np.random.Generator) -> Array:
    return residual / diagonal


def _by_least_squares(residual: Array, slopes: Array, rng: np.random.Generator) -> Array:
    """Return z that solves residual = slopesᵀ z by least squares, plus a random draw in the null space."""
    drawn = rng.standard_normal(len(slopes))
    found: Array = drawn + lstsq(slopes.T, residual - drawn @ slopes, cond=_SINGULAR, check_finite=False)[0]
    return found
