"""Standard normals of a sum as samplers move them, and the model's variables as functions of these."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.tensor.linalg.decomposition.cholesky import cholesky
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import lstsq, solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.row_prior import NormalsPrior
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.graphs.interpreted import SEED, AtPoint, ModelFunctions
from pymc_gpep.latent.latent_prior import SampledValues
from pymc_gpep.recipes import Recipe
from pymc_gpep.solvers.coefficients import Composed, coefficients
from pymc_gpep.sums.affine_map import COEFFICIENT_TOLERANCE, at_zero, slopes_of
from pymc_gpep.sums.effect_sum import EffectSum

# Singular values below this fraction of the largest count as zero.
_SINGULAR = 1e-10

_Undo = Callable[[Array, Array, np.random.Generator], Array]
"""Returns z, given r and T (size, d) of r = Tᵀz."""


class SumValues(SampledValues):
    """x is the standard normals z (1, q) of a sum.

    Coefficients of rows without hyperparameters are computed once, so that data are those of the time when this was
    made.

    Parameters
    ----------
    prior : EffectSum
    data : mapping
        Data of the model → constants that take their place.
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

    # Parts are z, and besides the values of each Gaussian process less its mean.

    def parts(self) -> list[TensorVariable]:
        z = pt.vector("normals", shape=(self.shape[1],), dtype="float64")
        shapes = zip(self._sum.processes, self._sum.sizes, strict=True)
        return [z, *(pt.tensor(f"{each.f.name} less its mean", shape=size, dtype="float64") for each, size in shapes)]

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

    # The variables of the model.

    def to_point(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        made, function = self._made
        return dict(zip(made, function(point, *self.parts_of(x, prior)), strict=True))

    @cached_property
    def _made(self) -> tuple[list[str], AtPoint]:
        """Names of value variables, and the function that computes them from hyperparameters and parts."""
        prior, model, parts = self._sum, self._sum.model, self.parts()
        transforms = {rv: model.rvs_to_transforms[rv] for rv in prior.integrated}
        outputs = [rv if (t := transforms[rv]) is None else t.forward(rv, *rv.owner.inputs) for rv in transforms]
        # The processes' own normals stand for free variables that are rotated.
        found = [out.astype(model.rvs_to_values[rv].dtype) for rv, out in zip(transforms, outputs, strict=True)]
        function = ModelFunctions(model, prior.hyperparameters, self.data)(self.in_parts(found, parts), parts)
        return [str(model.rvs_to_values[rv].name) for rv in transforms], function

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
        """Inverses of recipes, and the function that computes residuals and coefficients of normals.

        Each variable is one of its own normals, given the variables that its mean depends on.
        """
        prior, rng = self._sum, np.random.default_rng(SEED)
        functions = ModelFunctions(prior.model, [*prior.hyperparameters, *prior.integrated], self.data)
        nearby = functions.nearby(rng)
        outputs: list[TensorVariable] = []
        undo: list[_Undo] = []
        for variable, recipe in prior.recipes.items():
            z = pt.vector("normals", shape=(recipe.size,), dtype="float64")
            made = recipe.make(z, recipe.means, recipe.scales)
            centre = at_zero(made, z)
            residual = (variable.astype("float64") - centre).ravel()
            signs = rng.uniform(0.5, 1.5, recipe.size)
            probes = [_made_of(recipe, noise) - centre for noise in (np.ones(recipe.size), signs)]
            whole, scaled = map(np.ravel, functions(probes)(nearby))
            if whole.size == recipe.size and np.allclose(scaled, signs * whole, COEFFICIENT_TOLERANCE, 0.0):
                outputs += [residual, (_made_of(recipe, np.ones(recipe.size)) - centre).ravel()]
                undo.append(_by_diagonal)
                continue
            slopes = slopes_of(made, z, recipe.size).reshape((recipe.size, -1))
            outputs += [residual, slopes]
            undo.append(_by_least_squares)
        for latent in prior.processes:
            outputs.append(latent.free if latent.rotated else latent.f - latent.mean)
        return undo, functions([out.astype("float64") for out in outputs])


def _roots(prior: Sampled) -> tuple[Array, ...]:
    return cast(NormalsPrior, prior).process_roots


def _made_of(recipe: Recipe, normals: Array) -> TensorVariable:
    return recipe.make(pt.constant(normals), recipe.means, recipe.scales).astype("float64")


def _by_diagonal(residual: Array, diagonal: Array, rng: np.random.Generator) -> Array:
    return residual / diagonal


def _by_least_squares(residual: Array, slopes: Array, rng: np.random.Generator) -> Array:
    """Least squares, and a draw of what the residual leaves open."""
    drawn = rng.standard_normal(len(slopes))
    found: Array = drawn + lstsq(slopes.T, residual - drawn @ slopes, cond=_SINGULAR, check_finite=False)[0]
    return found
