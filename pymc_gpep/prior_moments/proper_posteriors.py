"""Errors for improper posteriors, if the data do not determine coefficients with a flat prior.

Let A (n, p) be the columns of the coefficients with a flat prior, with rows aᵀ. The likelihood of a row may fall to 0
for large and for small latent values, on one of these sides, or on neither side. The posterior is improper if columns
of A are dependent. It is also improper if there is a direction δ along which no row's likelihood falls. Then aᵀδ is 0
for rows that fall on both sides, and has one sign for rows that fall on one side. Such binary data are called separated
(Albert and Anderson 1984). Effects with a proper prior have no influence. The direction is found by linear programmes
with few rows at a time.

A fit keeps hyperparameters with a flat prior at their maximum. If they shift prior means, they are checked as well:
along such a direction the likelihood has no maximum, or no unique maximum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pymc.blocking import PointType
from pymc.distributions.continuous import FlatRV
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.optimize import linprog

from pymc_gpep.argument_types import few_of
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior_form import PriorForm
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import PlainDensity, ScalarDensity
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.recipes.recipe import Recipe, shape_of

# Latent values at which a density that falls to 0 is small. The first value with a finite density is used.
_FAR = 10.0 ** np.r_[80.0:2.0:-10.0, 2.0, 1.5]
# A log density counts as constant if it falls by less than this between half of a value in `_FAR` and the value.
_FALL = 1e-3
# Number of rows in the first linear programme, and largest number of rows added to each later programme.
_ROWS = 500
# A slope below this fraction of the largest in its row counts as 0.
_SLOPE = 1e-9
# Largest relative difference between moments that counts as rounding.
_LINEAR = 1e-6
# Smallest singular value of columns, relative to the largest, at which flat coefficients are accurate.
_NEAR = 1e-6
# Columns are clearly independent if all eigenvalues of their inner products exceed this fraction of the largest.
_CLEAR = 1e-6


class _Rows(NamedTuple):
    """Conditions of rows in a linear programme."""

    held: Array
    """Rows with aᵀδ = 0, (m, p)."""
    rising: Array
    """Rows with aᵀδ ≥ 0, (m, p)."""


def check_proper(
    classifier: GPClassifier,
    prior_type: Callable[[Array, Array], PriorForm],
    moments: Callable[[PointType], Any],
    point: PointType,
) -> None:
    """Raise a StructureError if the data do not determine the coefficients with a flat prior.

    Parameters
    ----------
    classifier : GPClassifier
    prior_type : callable
        Function that makes the prior from an array and a mean.
    moments : callable
        Function that returns array, mean, labels and likelihood at a point of the model.
    point : dict
    """
    held = _held_coefficients(classifier, moments, point)
    if classifier.prior.flat or held:
        k, mean, labels, likelihood = moments(point)
        check_columns(prior_type(k, mean).flat_columns, labels, likelihood, dict(classifier.prior.recipes), held)


def _held_coefficients(
    classifier: GPClassifier, moments: Callable[[PointType], Any], point: PointType
) -> list[tuple["_Name", Array]]:
    """Return names and columns (c, n) of hyperparameters with a flat prior that shift prior means linearly."""
    model = classifier.model
    behind = set(ancestors([classifier.prior.mean()]))
    others = [rv for rv in model.observed_RVs if rv not in classifier.observed]
    others += [each for rv in classifier.hyperparameters for each in rv.owner.inputs]
    with_density = set(ancestors([*model.potentials, *others]))
    values = {
        rv: model.rvs_to_values[rv].name
        for rv in classifier.hyperparameters
        if isinstance(rv.owner.op, FlatRV) and model.rvs_to_transforms[rv] is None and rv in behind - with_density
    }
    rng, found = np.random.default_rng(0), []
    here = point | {name: np.zeros_like(point[name]) for name in values.values()}
    there = point | {name: rng.normal(size=np.shape(point[name])) for name in values.values()}
    with np.errstate(all="ignore"):
        begin = [moments(at) for at in (here, there)] if values else []
        for rv, name in values.items():
            for place in np.ndindex(np.shape(point[name])):
                unit = np.zeros(np.shape(point[name]))
                unit[place] = 1.0
                moved = [moments(at | {name: at[name] + unit}) for at in (here, there)]
                columns = [new.mean - old.mean for new, old in zip(moved, begin, strict=True)]
                still = [[each.k for each in at] for at in zip(moved, begin, strict=True)]
                still += [[each.likelihood.parameters for each in at] for at in zip(moved, begin, strict=True)]
                # Parameters of unequal sizes, such as a scale and a bound of 1e300, allow no common absolute tolerance.
                if _alike(*columns) and all(np.allclose(a, b, _LINEAR, 0.0, equal_nan=True) for a, b in still):
                    found.append((_Name(repr(_entry(rv, place)), _advice(str(rv.name)), held=True), columns[0]))
    return found


def _alike(one: Array, other: Array) -> bool:
    """Return whether two arrays are equal up to rounding."""
    size = np.abs(other[np.isfinite(other)]).max(initial=0.0)
    return bool(np.allclose(one, other, rtol=_LINEAR, atol=_LINEAR * size))


def check_columns(
    columns: Array,
    labels: Any,
    likelihood: Likelihood,
    recipes: Mapping[TensorVariable, Recipe],
    held: Sequence[tuple["_Name", Array]] = (),
) -> None:
    """Raise a StructureError if the data do not determine the coefficients of these columns.

    Parameters
    ----------
    columns : array (c, n, p)
        Columns of the flat coefficients.
    labels : array (n,)
    likelihood : Likelihood
        Likelihood with its parameters.
    recipes : dict of TensorVariable to Recipe
        Integrated variables, in the order of their columns → their recipes.
    held : sequence of (_Name, array)
        Names and columns (c, n) of coefficients that are hyperparameters.
    """
    columns = np.concatenate([columns, *(own[:, :, None] for _, own in held)], axis=2)
    if not columns.shape[2] or not np.isfinite(columns).all():
        return
    norms = np.sqrt((columns**2).sum(axis=(0, 1)))
    names = _names(recipes, likelihood) + [name for name, _ in held]
    if not norms.all():
        raise _improper(names, norms == 0.0, "No row depends on")
    seen = columns / norms if likelihood.sees_common else (columns - columns.mean(axis=0)) / norms
    _check_independent(seen.reshape(-1, norms.size), names)
    rows = _rows_of(columns / norms, labels, likelihood)
    if rows is not None and (direction := _separating(rows)) is not None:
        raise _improper(names, np.abs(direction) > _SLOPE, "The data are separated by the columns of")


def _check_independent(seen: Array, names: Sequence["_Name"]) -> None:
    """Raise a StructureError if columns (m, p) of norm 1 are linearly dependent, exactly or nearly."""
    if _are_clearly_independent(seen):
        return
    if (dependent := _null_space(seen)).size:
        raise _improper(names, np.abs(dependent[:, 0]) > _SLOPE, "The columns of", " are linearly dependent")
    _, values, vectors = np.linalg.svd(seen, full_matrices=False)
    if values[-1] > _NEAR * values[0]:
        return
    shown = _shown(names, np.abs(vectors[-1]) > _SLOPE)
    raise StructureError(
        f"The columns of {shown} are nearly linearly dependent (singular value ratio {values[-1] / values[0]:.0e}). "
        "Subtract the mean of a covariate, x - x.mean(), or leave a column out."
    )


def _rows_of(columns: Array, labels: Any, likelihood: Likelihood) -> _Rows | None:
    """Return rows by the sides on which their likelihood falls; None if these sides are unknown."""
    c, n, p = columns.shape
    if c == 1 and (likelihood.offers(ScalarDensity) or likelihood.offers(PlainDensity)):
        left, right = (_stays(likelihood, labels, sign, n) for sign in (-1.0, 1.0))
        own = columns[0]
        one_sided = np.concatenate([own[right & ~left], -own[left & ~right]])
        return _Rows(own[~(left | right)], one_sided)
    if c > 1 and not likelihood.sees_common and np.issubdtype(np.asarray(labels).dtype, np.integer):
        there = np.arange(c)[:, None] == labels if np.ndim(labels) == 1 else np.asarray(labels).T > 0
        differences = [columns[k, there[k]] - own[there[k]] for k in range(c) for own in np.delete(columns, k, axis=0)]
        return _Rows(np.zeros((0, p)), np.concatenate(differences))
    return None


def _stays(likelihood: Likelihood, labels: Any, sign: float, n: int) -> NDArray[np.bool_]:
    """Return a mask of rows whose likelihood does not fall to 0 at large latent values of this sign."""
    found, open_ = np.zeros(n, bool), np.ones(n, bool)
    for far in _FAR:
        with np.errstate(all="ignore"):
            near, farther = (_log_density(likelihood, np.full(n, sign * f), labels) for f in (0.5 * far, far))
        finite = open_ & np.isfinite(near) & np.isfinite(farther)
        found[finite] = (near < farther + _FALL)[finite]
        open_ &= ~finite
        if not open_.any():
            break
    return found


def _log_density(likelihood: Likelihood, f: Array, labels: Any) -> Array:
    """Return log p(y | f) of each row (n,), with −∞ in place of values that are not finite."""
    density: ScalarDensity | PlainDensity = (
        likelihood.computation(ScalarDensity)
        if likelihood.offers(ScalarDensity)
        else likelihood.computation(PlainDensity)
    )
    out = np.empty((4, f.size))
    density.derivatives(f, labels, likelihood.parameters, out)
    return np.where(np.isfinite(out[0]), out[0], -np.inf)


def _null_space(rows: Array) -> Array:
    """Return directions (p, k) that are orthogonal to all rows (m, p) up to rounding."""
    if _are_clearly_independent(rows):
        return np.zeros((rows.shape[1], 0))
    _, values, vectors = np.linalg.svd(rows, full_matrices=len(rows) < rows.shape[1])
    size = np.zeros(len(vectors))
    size[: len(values)] = values
    return np.asarray(vectors[size <= 10.0 * max(rows.shape) * np.finfo(np.float64).eps * size.max(initial=0.0)].T)


def _are_clearly_independent(rows: Array) -> bool:
    """Return whether the columns (m, p) are far from linearly dependent, by their inner products."""
    values = np.linalg.eigvalsh(rows.T @ rows)
    return bool(values[0] > _CLEAR * values[-1])


def _separating(rows: _Rows) -> Array | None:
    """Return a direction (p,) along which no row's likelihood falls; None without such a direction."""
    held = rows.held if len(rows.held) else np.zeros((1, rows.rising.shape[1]))
    basis = _null_space(held)
    if not basis.shape[1]:
        return None
    every = rows.rising @ basis
    every = every[np.abs(every).max(axis=1) > _SLOPE * np.abs(every).max(initial=0.0)]
    if (open_ := _null_space(np.concatenate([every, np.zeros((1, basis.shape[1]))]))).size:
        return np.asarray(basis @ open_[:, 0])
    rng, taken = np.random.default_rng(0), np.zeros(len(every), bool)
    taken[rng.permutation(len(every))[:_ROWS]] = True
    while True:
        own = every[taken] / np.abs(every[taken]).max(axis=1, keepdims=True)
        found = linprog(-own.sum(axis=0), A_ub=-own, b_ub=np.zeros(len(own)), bounds=(-1.0, 1.0))
        if found.status != 0 or not -found.fun > _SLOPE * len(own):
            return None
        slopes = every @ found.x
        falling = np.flatnonzero((slopes < -_SLOPE * np.abs(every).max(axis=1)) & ~taken)
        if not falling.size:
            return np.asarray(basis @ found.x)
        taken[falling[np.argsort(slopes[falling])[:_ROWS]]] = True


class _Name(NamedTuple):
    """A coefficient with a flat prior."""

    shown: str
    advice: str
    """Remedy if the data do not determine the coefficient."""
    held: bool = False
    """Whether the coefficient is a hyperparameter."""


def _entry(variable: TensorVariable, place: Sequence[Any]) -> str:
    """Return the name of an entry of a variable, for messages."""
    return f"{variable.name}[{', '.join(map(str, place))}]" if len(place) else str(variable.name)


def _advice(name: str) -> str:
    """Return the remedy for a flat coefficient that the data do not determine."""
    return f"Leave a column out, or give its coefficient a density: pm.Normal({name!r}, 0, s)."


def _names(recipes: Mapping[TensorVariable, Recipe], likelihood: Likelihood) -> list[_Name]:
    """Return the name of each flat coefficient, and its remedy."""
    found = []
    with_bounds = "pm.sample() draws" if likelihood.function_axis else "method='ep' integrates"
    for variable, recipe in recipes.items():
        shape, name = shape_of(variable), str(variable.name)
        advice = _advice(name)
        if recipe.bounded:
            advice = f"The bounds of {name!r} matter, but this method ignores them: {with_bounds} within them."
        for place in recipe.flat:
            if int(np.prod(shape)) != len(recipe.flat):
                begin = f"Declare {name!r} without it, or give it a density: init_dist=pm.Normal.dist(0, s)."
                found.append(_Name(f"the start of {name!r}", begin))
            else:
                found.append(_Name(repr(_entry(variable, np.unravel_index(place, shape))), advice))
    return found


def _improper(names: Sequence[_Name], which: NDArray[np.bool_], before: str, after: str = "") -> StructureError:
    """Return the error for coefficients that the data do not determine together, named by the mask `which`."""
    advice = [own.advice for own, there in zip(names, which, strict=True) if there]
    first = min(advice, key=lambda text: not text.startswith("The bounds"))
    held = all(own.held for own, there in zip(names, which, strict=True) if there)
    so = "the likelihood has no single maximum" if held else "the posterior is improper under flat priors"
    return StructureError(f"{before} {_shown(names, which)}{after}, so that {so}. {first}")


def _shown(names: Sequence[_Name], which: NDArray[np.bool_]) -> str:
    """Return the names of the selected columns, for a message."""
    return few_of(own.shown for own, there in zip(names, which, strict=True) if there)
