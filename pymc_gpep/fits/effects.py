"""Moments and draws of the variables of a model, and contrasts of effects."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp, ndtr

from pymc_gpep.argument_types import did_you_mean, few_of
from pymc_gpep.array_types import Array
from pymc_gpep.fits.datasets import axes_that_fit, coords_of, dims_that_fit
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.mixture import Prediction, total_covariance, total_variance
from pymc_gpep.graphs.affine import Affinity, NotAffineError
from pymc_gpep.graphs.interpreted import ModelFunctions, initial_point
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.latent.latent_prior import Joint
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.log_posteriors.latent_functions import LatentFunctions
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.integrated import columns_by_row
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.sums.new_data import by_name
from pymc_gpep.user_warnings import warn


class Conditional:
    """Gaussian posterior of the integrated variables given hyperparameters, in the unconstrained space.

    Parameters
    ----------
    log_posterior : LogPosterior
    theta : array (d,)
        Flat vector of the hyperparameters.
    solution
        Approximate posterior at these hyperparameters.

    Attributes
    ----------
    point : dict
        Values of the value variables of the model, except integrated variables.
    functions : LatentFunctions
        Latent functions at this point.
    """

    def __init__(self, log_posterior: LogPosterior, theta: Array, solution: Any) -> None:
        self.variables = log_posterior.space.variables
        self.point = log_posterior.point(theta)
        self.solution = solution
        self.functions = log_posterior.latent(theta, solution)
        self._effects = log_posterior.classifier.effects_by_factors

    def moments(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return means and variances by name of value variable; the variances of hyperparameters are 0."""
        mean, variance = self.variables.moments(self.point, self.functions)
        return self.point | mean, {name: np.zeros_like(value) for name, value in self.point.items()} | variance

    def covariance(self, places: Mapping[str, slice], size: int) -> Array:
        """Return the covariance (size, size) of a flat vector, given the slice `places` of each value variable."""
        return self.variables.covariance(self.point, self.functions, places, size)

    def draw(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return draws (draws, ...) of value variables and of deterministic latent values, by name."""
        values = {name: np.broadcast_to(value, (draws, *np.shape(value))) for name, value in self.point.items()}
        f, z = self.functions.draw(rng, draws)
        return values | self.variables.draws(self.point, f, z)

    def with_quantiles_of_priors(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Transform draws (draws, ...) of effects with non-normal priors to the quantiles of their tilted marginals.

        Parameters
        ----------
        values : mapping of str to array
            Draws from the Gaussian. The results have the same ranks.
        """
        found, solution = {}, self.solution
        for name, at, factor, mean, variance in self._factors():
            drawn = values[name].reshape(len(values[name]), -1)
            levels = ndtr((drawn - solution.mean[0, at]) / np.sqrt(solution.cov[at, 0, 0]))
            found[name] = factor.quantiles(mean, variance, levels).reshape(values[name].shape)
        return found

    def factors(self) -> Iterator[tuple[str, tuple[NDArray[np.intp], Any]]]:
        """Yield name, rows and factors of each effect whose prior is a set of factors."""
        yield from zip(self._effects, self.solution.likelihood.priors(), strict=True)

    def _factors(self) -> Iterator[tuple[str, NDArray[np.intp], Any, Array, Array]]:
        """Yield name, rows, factors, and cavity means and variances of each effect, if sites have cavities."""
        solution = self.solution
        if not self._effects or not solution.posterior.sites.pointwise:
            return
        size = solution.mean.size
        mean, variance = (each.reshape(size) for each in solution.posterior.cavities(solution.mean, solution.cov))
        for name, (at, factor) in self.factors():
            yield name, at, factor, mean[at], variance[at]

    def quantiles_of_priors(self, levels: Array) -> dict[str, Array]:
        """Return quantiles (k, entries) of effects with non-normal priors, at levels (k,), by name."""
        return {
            name: factor.quantiles(mean, variance, np.tile(levels[:, None], mean.size))
            for name, _, factor, mean, variance in self._factors()
        }

    def without_moments(self, names: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
        """Return masks (size,) of the entries without mean and variance, by name of variable.

        Such entries depend on an effect without data whose prior has no variance.
        """
        return self.sharing(names, lambda: self.variables.affine(names)(self.point, self.functions))

    def sharing(self, names: Sequence[str], of: Callable[[], Joint]) -> dict[str, NDArray[np.bool_]]:
        """Return masks as in `without_moments`; the function `of` returns the joint Gaussian of the variables."""
        effects = {name: unknown for name, _, _, unknown, _ in self.factors_without_moments()}
        if not effects:
            return {}
        joint = of()
        own = self.variables.affine(list(effects))(self.point, self.functions)
        found = {}
        for name in names:
            columns, variance = joint.columns(name), np.ravel(joint.variances()[name])
            found[name] = np.zeros(variance.size, bool)
            for effect, unknown in effects.items():
                along = own.columns(effect)[:, unknown]
                moved = own.moved(along)
                both = np.outer(variance, (along * moved).sum(axis=0))
                found[name] |= ((columns.T @ moved) ** 2 > _SHARED * both).any(axis=1)
        return found

    def factors_without_moments(self) -> Iterator[tuple[str, NDArray[np.intp], Any, NDArray[np.bool_], Array]]:
        """Yield name, rows, factors, mask of entries without moments, and quantiles at `_LEVELS` of such effects."""
        for name, at, factor, mean, variance in self._factors():
            if (unknown := factor.without_moments(mean, variance)).any():
                places = np.tile(_LEVELS[:, None], mean.size)
                yield name, at, factor, unknown, factor.quantiles(mean, variance, places)


def conditionals(hyper: HyperPosterior) -> Iterator[Conditional]:
    """Yield the Gaussian posterior given each node of the hyperparameters."""
    return (Conditional(hyper.log_posterior, node.theta, solution) for node, solution in hyper.solutions())


def draw(fit: Fitted, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return draws (draws, ...) of all value variables and of deterministic latent values, by name."""
    hyper = fit.hyper_posterior
    values: dict[str, Array] = {}
    for rows, theta, solution, own in hyper.drawn(draws, rng):
        conditional = Conditional(hyper.log_posterior, theta, solution)
        found = conditional.draw(rows.size, rng)
        found |= conditional.with_quantiles_of_priors(found)
        points = [hyper.log_posterior.point(each) for each in own]
        found |= {name: np.array([point[name] for point in points]) for name in points[0]}
        for name, drawn in found.items():
            values.setdefault(name, np.empty((draws, *drawn.shape[1:])))[rows] = drawn
    return values


def draw_at_maximum(fit: Fitted, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return draws like `draw`, with the hyperparameters at their maximum."""
    return Conditional(fit.log_posterior, fit.trace.best.theta, fit.solution).draw(draws, rng)


_LEVELS = (np.arange(64) + 0.5) / 64.0  # Levels of the quantiles that replace a prior without moments.
# Growth of a variance while scales grow by e³, above which the variable counts as growing with the scales.
_GROWTH = 20.0
_MOMENTS = 2  # Number of moments: mean and variance.
_SHARED = 1e-6  # Squared correlation above which a variable depends on an effect.
_ALIKE = 0.999  # Posterior correlation above which a fit warns of two effects.
_FAR = 20.0  # Distance of the mean of a covariate from 0, in standard deviations, above which it is uncentred.
_NEW = "new_point"
_MOST = 3000  # Largest number of entries whose correlations are computed.
_WORK = 6_000_000  # Largest number of coefficients of the entries in the integrated variables.

type Weights = Mapping[str, ArrayLike | Mapping[Any, Any]]


@one_blas_thread()
def effects(
    fit: Fitted,
    names: str | Sequence[str] | None = None,
    *,
    Xnew: ArrayLike | None = None,
    data: Mapping[str, ArrayLike] | None = None,
) -> xr.Dataset:
    """Return means and standard deviations of effects: variables that are affine in the integrated variables.

    Effects are integrated variables, and Deterministics that are sums, selections or multiples of them. Moments are
    averages of the moments of the Gaussian posterior at each node of the hyperparameters. `summary` adds a correction
    of second order to standard deviations, which matters in skewed posteriors.

    Parameters
    ----------
    names : str or sequence of str, optional
        Names of variables of the model. The default is all integrated variables, and Deterministics with the shape of
        an integrated variable on which they depend. In `pm.Deterministic("u", sigma * z)`, u replaces z unless other
        variables use z.
    Xnew : array (m, d), optional
        New inputs of the Gaussian processes on which the variables depend. The terms of a sum are returned separately,
        as in mgcv's `plot.gam`.
    data : dict of str to array, optional
        New data of the model (`pm.Data`) on which the variables depend, by name.

    Returns
    -------
    Dataset
        Each variable with the dim `moment` ("mean", "sd"), then its dims in the model. With `Xnew` or `data` the axis
        of rows is `new_point`. Moments that do not exist are NaN: with a `pm.HalfFlat` prior of their scale, effects of
        few groups have no variance.

    Raises
    ------
    ValueError
        If a variable is a hyperparameter, not affine, or not in the model, or cannot be computed at `Xnew` or `data`.

    Warns
    -----
    UserWarning
        If the posterior correlation of two effects is above 0.999.

    Examples
    --------
    >>> fit.effects("u").sel(moment="mean")
    >>> fit.effects("f", Xnew=grid)
    >>> fit.effects("field", data={"at": grid})
    """
    classifier, hyper = fit.classifier, fit.hyper_posterior
    data = by_name(data, classifier.model)
    if names is None and (Xnew is not None or data):
        raise ValueError("effects with Xnew or data needs names of variables, such as fit.effects('f', Xnew=grid).")
    if names is None:
        names = names_of_effects(classifier)
    fit.log_posterior.check_effects("effects")
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise ValueError("effects needs the name of a variable of the model; without names it returns all effects.")
    if Xnew is None and not data:
        joints = list(_joints(hyper, names))
        _warn_of_likes(classifier, joints[int(np.argmax(hyper.weights))], sources_of_effects(classifier, names))
        found = _averaged(hyper, names, [joint.means for joint in joints], [joint.variances() for joint in joints], {})
        for name, unknown in without_moments(hyper, names).items():
            found[name] = found[name].where(~unknown.reshape(found[name].shape[1:]))
        return _existing(found, finite_moments(hyper, names))
    means, variances, axes = zip(*_at_new_rows(hyper, conditionals(hyper), names, Xnew, data), strict=True)

    def there(each: Conditional) -> Mapping[str, Array]:
        return next(_at_new_rows(hyper, iter([each]), names, Xnew, data))[1]

    return _existing(_averaged(hyper, names, means, variances, axes[0]), finite_moments(hyper, names, there))


def _existing(found: xr.Dataset, moments: Mapping[str, NDArray[np.int64]]) -> xr.Dataset:
    """Replace means and standard deviations that do not exist by NaN."""
    for name, count in moments.items():
        own = found[name]
        # The mean needs one moment, the standard deviation two.
        lowest = np.array([1, 2]).reshape(-1, *[1] * (own.ndim - 1))
        found[name] = own.where(count.reshape(own.shape[1:]) >= lowest)
    return found


type Variances = Callable[[Conditional], Mapping[str, Array]]


def finite_moments(
    hyper: HyperPosterior, names: Sequence[str], variances: Variances | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return how many moments each entry has (0, 1 or 2), (size,), by name; an empty dict without heavy tails.

    An entry has as many moments as the scales (`HyperPosterior.tails`) with which its standard deviation grows.
    """
    affine = None if variances or not hyper.tails else hyper.log_posterior.space.variables.affine(names)
    of = variances or (lambda each: affine(each.point, each.functions).variances())  # type: ignore[misc]
    found: dict[str, NDArray[np.int64]] = {}
    for tail in hyper.tails:
        places = [(e.theta, hyper.log_posterior.solve(e.theta, e.start)) for e in tail.far]
        near, far = (of(Conditional(hyper.log_posterior, *place)) for place in places)
        for name in names:
            grows = ~(np.ravel(far[name]) <= _GROWTH * np.ravel(near[name])) | np.isinf(np.ravel(far[name]))
            found[name] = np.minimum(found.get(name, _MOMENTS), np.where(grows, tail.moments, _MOMENTS))
    return found


def without_moments(hyper: HyperPosterior, names: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Return masks (size,) of the entries that lack mean and variance at some node, by name of variable."""
    if not hyper.log_posterior.classifier.effects_by_factors:
        return {}
    found: dict[str, NDArray[np.bool_]] = {}
    for each in conditionals(hyper):
        for name, unknown in each.without_moments(names).items():
            found[name] = found.get(name, unknown) | unknown
    return {name: unknown for name, unknown in found.items() if unknown.any()}


def _averaged(
    hyper: HyperPosterior,
    names: Sequence[str],
    means: Sequence[Mapping[str, Array]],
    variances: Sequence[Mapping[str, Array]],
    axes: Mapping[str, int],
) -> xr.Dataset:
    """Average moments of variables over the nodes. `axes` are the axes of new rows, by name."""
    classifier = hyper.log_posterior.classifier
    found = {}
    for name in names:
        of_nodes = (np.array([each[name] for each in of]) for of in (means, variances))
        mean, variance = total_variance(hyper.weights, *of_nodes)
        dims = dims_that_fit(classifier.model, name, np.shape(mean), classifier.coords)
        if name in axes:
            dims[axes[name]] = _NEW
        found[name] = (("moment", *map(str, dims)), np.stack([mean, np.sqrt(variance)]))
    coords = coords_of(classifier, [dim for dims, _ in found.values() for dim in dims])
    return xr.Dataset(found, coords={"moment": ["mean", "sd"], **coords})


def _at_new_rows(
    hyper: HyperPosterior,
    each_node: Iterator[Conditional],
    names: Sequence[str],
    x: ArrayLike | None,
    data: Mapping[str, ArrayLike],
) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array], Mapping[str, int]]]:
    """Yield means, variances and axes of new rows of variables at new inputs, given each node."""
    prior = hyper.log_posterior.classifier.prior
    alone = {} if prior.singular else {str(latent.f.name): latent for latent in prior.latents}
    if alone.keys() >= set(names) and not data:  # The variables are latent functions, without new data.
        for each in each_node:
            new = each.functions.at(each.functions.new_rows(x, {}))
            variance = np.maximum(new.cov.diagonal(axis1=1, axis2=2).T, 0.0)
            rows = {name: alone[name].rows for name in names}
            axes = {name: alone[name].f.ndim - 1 for name in names}
            yield {k: new.mean[r] for k, r in rows.items()}, {k: variance[r] for k, r in rows.items()}, axes
        return
    joint = hyper.log_posterior.space.variables.at_new_rows(names, x, data)
    for each in each_node:
        found, along = joint(each.point, each.functions)
        moments = found.means, found.variances()
        for name, unknown in each.sharing(names, lambda found=found: found).items():  # type: ignore[misc]
            for of in moments:
                of[name] = np.where(unknown.reshape(np.shape(of[name])), np.nan, of[name])
        yield *moments, along


@one_blas_thread()
def contrast(fit: Fitted, contrasts: Mapping[str, Mapping[str, Any]]) -> xr.Dataset:
    """Return moments of linear combinations of effects, and their joint covariance.

    Parameters
    ----------
    contrasts : dict of str to dict
        Weights of variables by name, for each combination by a name of your choice. Weights are an array in the shape
        of the variable, or a dict of labels to numbers. For a variable with two axes, labels of the first axis map to
        dicts by labels of the second axis, or to arrays. Missing labels have the weight 0.

    Returns
    -------
    Dataset
        `mean` and `sd` (contrast), and `cov` (contrast, contrast_other). They are NaN if an effect has no moments.

    Raises
    ------
    ValueError
        As in `effects`. If weights differ from the variable in shape, or have a label that the variable lacks.

    Examples
    --------
    >>> fit.contrast({"north - south": {"u": {"north": 1, "south": -1}}})
    >>> fit.contrast({"red - blue, north": {"v": {"north": {"red": 1, "blue": -1}}}})
    """
    fit.log_posterior.check_effects("contrast")
    coords, hyper = fit.classifier.coords, fit.hyper_posterior
    given: Any = contrasts
    if not isinstance(given, Mapping) or not given or not all(isinstance(own, Mapping) for own in given.values()):
        raise TypeError(
            "contrasts must be a dict of names to weights of variables, as in "
            "contrast({'a - b': {'u': {'a': 1, 'b': -1}}})."
        )
    names = list(dict.fromkeys(name for weights in contrasts.values() for name in weights))
    known = fit.model.named_vars
    if forgotten := [each for each, own in contrasts.items() if each in known and not any(v in known for v in own)]:
        each = forgotten[0]
        raise ValueError(
            f"contrasts must have a name for each combination: "
            f"contrast({{'my name': {{{each!r}: {dict(contrasts[each])!r}}}}})."
        )

    affine = hyper.log_posterior.space.variables.affine(names)
    first = next(conditionals(hyper))
    shapes = {name: np.shape(each) for name, each in affine(first.point, first.functions).means.items()}
    axes = {name: axes_that_fit(fit.model, name, shapes[name], coords) for name in names}
    arrays = [{name: _by_labels(name, own, axes[name]) for name, own in each.items()} for each in contrasts.values()]

    def of(conditional: Conditional) -> tuple[Array, Array]:
        joint = affine(conditional.point, conditional.functions)
        centres = [sum(float((w * joint.means[name]).sum()) for name, w in each.items()) for each in arrays]
        slopes = [sum(joint.combined(name, w) for name, w in each.items()) for each in arrays]
        return np.array(centres), joint.covariance(np.array(slopes).T)

    mean, cov = total_covariance(hyper.weights, map(of, conditionals(hyper)))
    lacking = without_moments(hyper, names)
    unknown = [any(np.ravel(each[name])[own].any() for name, own in lacking.items() if name in each) for each in arrays]
    mean[unknown] = cov[unknown] = cov[:, unknown] = np.nan
    labels = list(contrasts)
    for moments in finite_moments(hyper, [""], lambda each: {"": of(each)[1].diagonal()}).values():
        mean[moments < 1] = np.nan
        cov[moments < _MOMENTS] = cov[:, moments < _MOMENTS] = np.nan
    sd = np.sqrt(np.maximum(cov.diagonal(), 0.0))
    return xr.Dataset(
        {"mean": ("contrast", mean), "sd": ("contrast", sd), "cov": (("contrast", "contrast_other"), cov)},
        coords={"contrast": labels, "contrast_other": labels},
    )


def _joints(hyper: HyperPosterior, names: Sequence[str]) -> Iterator[Joint]:
    """Return the joint Gaussian of variables at each node."""
    joint = hyper.log_posterior.space.variables.affine(names)
    return (joint(each.point, each.functions) for each in conditionals(hyper))


def _by_labels(
    name: str, given: ArrayLike | Mapping[Any, Any], axes: Sequence[tuple[str, list[Any]]], above: tuple[Any, ...] = ()
) -> Array:
    """Return an array of weights along `axes`, pairs of a dim and its labels.

    `given` is an array, or a dict by the labels of the first axis, whose values have the form of `given` for the other
    axes.
    """
    called = repr(name) + (f" at {_listed(above)}" if above else "")
    if not isinstance(given, Mapping):
        weights = np.asarray(given, dtype=np.float64)
        shape = tuple(len(labels) for _, labels in axes)
        if weights.shape != shape:
            advice = ""
            if above and axes:
                dim, labels = axes[0]
                advice = f" Or give labels along {dim!r}: {_listed(labels)}."
            elif len(axes) > 1 and np.prod(shape):
                advice = f" Or give labels of each axis, as in {_example(name, axes)}."
            raise ValueError(f"Weights of {called} must have the shape {shape}, but have {weights.shape}.{advice}")
        return weights
    if not axes:
        raise ValueError(f"{called} is one number and has no labels, but weights of {_listed(list(given))} were given.")
    (dim, labels), *rest = axes
    weights = np.zeros([len(own) for _, own in axes])
    for label, own in given.items():
        if label not in labels:
            along = f" along {dim!r}" * bool(rest)
            raise ValueError(
                f"{called} has no entry {label!r}{along}, only {_listed(labels)}.{did_you_mean([label], labels)}"
            )
        weights[labels.index(label)] = _by_labels(name, own, rest, (*above, label))
    return weights


def _example(name: str, axes: Sequence[tuple[str, list[Any]]]) -> str:
    weights: Any = 1
    for _, labels in reversed(axes):
        weights = {labels[0]: weights}
    return repr({name: weights})


def _listed(labels: Sequence[Any]) -> str:
    return few_of(repr(label.item() if isinstance(label, np.generic) else label) for label in labels)


def _warn_of_likes(classifier: GPClassifier, joint: Joint, sources: Mapping[str, frozenset[Any]]) -> None:
    """Warn of entries of variables with a posterior correlation near 1, unless one is computed from the other.

    If there are too many entries, only variables with few entries are compared.
    """
    sizes = sorted((np.size(mean), place, name) for place, (name, mean) in enumerate(joint.means.items()))
    counts = np.cumsum([size for size, *_ in sizes])
    few = {name for (*_, name), n in zip(sizes, counts, strict=True) if n <= _MOST and n * joint.size <= _WORK}
    looked_at = [name for name in joint.means if name in few]
    if not looked_at:
        return
    names = [(name, place) for name in looked_at for place in np.ndindex(np.shape(joint.means[name]))]
    cov = joint.covariance(np.concatenate([joint.columns(name) for name in looked_at], axis=1))
    size = np.sqrt(cov.diagonal())
    with np.errstate(divide="ignore", invalid="ignore"):
        signed = cov / size / size[:, None]
    correlation = np.triu(np.abs(signed), 1)
    pairs = [
        (a, b)
        for a, b in np.argwhere(correlation > _ALIKE)
        if sources[names[a][0]].isdisjoint(sources[names[b][0]]) and np.isfinite(correlation[a, b])
    ]
    if pairs:
        a, b = pairs[0]
        first, second = (
            name + (f"[{', '.join(map(str, place))}]" if place else "") for name, place in (names[a], names[b])
        )
        others = f" (and {len(pairs) - 1} more pairs are correlated as much)" * (len(pairs) > 1)
        warn(
            f"The posterior correlation of {first} and {second} is {signed[a, b]:.6g}{others}: the data do not "
            f"separate the two effects. {_uncentred(classifier) or _LEAVE_OUT}"
        )


_LEAVE_OUT = "Leave one effect out, give it a tighter prior, or let effects sum to zero, pm.ZeroSumNormal."


def _uncentred(classifier: GPClassifier) -> str:
    """Return the advice to centre a covariate whose mean is far larger than its spread, or an empty text."""
    for part in classifier.each:
        for name, columns in columns_by_row(part.argument, part.n_rows) if part.argument is not None else ():
            spread, mean = columns.std(axis=0), columns.mean(axis=0)
            far = (np.abs(mean) > _FAR * spread) & (spread > 0.0)
            if far.any():
                j, called = int(far.argmax()), name or "x"
                what = f"The covariate {name!r}" if name else "A covariate"
                wide = columns.shape[1] > 1
                column, axis = (f" in column {j}", "axis=0") if wide else ("", "")
                return (
                    f"{what} is {mean[j]:.5g} ± {spread[j]:.2g}{column}, far from 0 for its spread. Centre it, and "
                    f"subtract the same mean from new rows: {called} - {called}.mean({axis})."
                )
    return ""


def names_of_effects(classifier: GPClassifier) -> list[str]:
    """Return names of integrated variables, and of Deterministics that are affine in them, in the order of the model.

    A Deterministic is an effect if it has the shape of an integrated variable z on which it depends, such as
    `pm.Deterministic("u", sigma * z)`. It replaces z if z is its only integrated variable, and the rest of the model
    depends on z only through it.
    """
    own = _own(classifier)
    if not classifier.prior.singular:
        return [str(v.name) for v in own]
    model = classifier.model
    affinity = Affinity(frozenset(own))
    made: dict[TensorVariable, frozenset[Variable]] = {}
    for variable in model.deterministics:
        if variable not in own and (behind := _behind(affinity, variable)):
            made[variable] = behind
    shapes = _shapes(model, [*own, *made])
    alike = {v: [each for each in behind if shapes[each] == shapes[v]] for v, behind in made.items()}
    replaced = {
        z: v for v, same in alike.items() if len(made[v]) == 1 for z in same if not _reaches_beside(model, z, v)
    }
    names: dict[str, None] = {}
    for z in own:
        names[str(replaced.get(z, z).name)] = None
    return list(names | {str(v.name): None for v, same in alike.items() if same})


def sources_of_effects(classifier: GPClassifier, names: list[str]) -> dict[str, frozenset[Variable]]:
    """Return the integrated variables on which each effect depends."""
    affinity = Affinity(frozenset(_own(classifier)))
    return {name: _behind(affinity, classifier.model[name]) for name in names}


def _own(classifier: GPClassifier) -> list[TensorVariable]:
    """Return the integrated variables. Latent values replace the standard normals from which they are computed."""
    held = {latent.free: latent.f for latent in classifier.prior.processes}
    return [held.get(rv, rv) for rv in classifier.prior.integrated if rv not in classifier.prior.implicit]


def _behind(affinity: Affinity, variable: Variable) -> frozenset[Variable]:
    try:
        return affinity.behind(variable)
    except NotAffineError:
        return frozenset()


def _shapes(model: pm.Model, variables: list[TensorVariable]) -> Mapping[Variable, tuple[int, ...]]:
    """Return shapes of variables, evaluated if their types have unknown lengths."""
    shapes = {v: v.type.shape for v in variables}
    unknown = [v for v, shape in shapes.items() if None in shape]
    if unknown:
        found = ModelFunctions(model, model.free_RVs)([v.shape for v in unknown])(initial_point(model))
        shapes |= {v: tuple(np.asarray(shape).tolist()) for v, shape in zip(unknown, found, strict=True)}
    return shapes


def _reaches_beside(model: pm.Model, z: TensorVariable, by: TensorVariable) -> bool:
    """Return whether the model depends on `z` along a path that does not contain the variable `by`."""
    others = [v for v in [*model.basic_RVs, *model.potentials, *model.deterministics] if v not in (z, by)]
    return z in set(ancestors(others, blockers=[by]))


_NO_SLOPE = 1e-9  # Coefficient of an effect below which it counts as rounding.


class _Alone(NamedTuple):
    """Entries of an effect that keep their prior, since their Gaussian posterior has no meaning."""

    name: str
    rows: NDArray[np.intp]
    """Rows of the prior factors of all n entries, (n,)."""
    places: NDArray[np.intp]
    """Positions of entries that keep their prior, (k,)."""
    cross: Array
    """Prior covariances with new rows, (k, m)."""
    mean: Array
    """Means of the entries in the prediction of new rows, (n,). `variance` has their variances."""
    variance: Array
    quantiles: Array
    """Quantiles of the prior at `_LEVELS`, (64, n)."""
    moments: Array
    """Mean and variance of the prior, (2, n); NaN if they do not exist."""


def _alone(functions: Any, inputs: Any, conditional: Conditional) -> Iterator[_Alone]:
    """Yield effects of which some entries have neither moments nor rows, and effects with new levels."""
    solution = conditional.solution
    for name, at, _, unknown, quantiles in conditional.factors_without_moments():
        places, own = np.flatnonzero(unknown), (solution.mean[0, at], solution.cov[at, 0, 0])
        cross = functions.between(inputs, at[places])[0].T
        yield _Alone(name, at, places, cross, *own, quantiles, np.full((2, at.size), np.nan))
    for name, (at, factor) in conditional.factors():
        if (new := functions.of_new_levels(inputs, at)) is None:
            return
        cross = new[0]
        if not (places := np.flatnonzero(cross.any(axis=0))).size:
            continue
        if ((given := factor.parameters) != given[:, :1]).any():
            raise ValueError(
                f"A new level of {name!r} has no prior, since the priors of the levels differ. Add a level without "
                "rows to the model, fit it again, and predict that level."
            )
        mean, variance, terms = given[0], given[1] ** 2, np.empty((5, at.size))
        factor.computation(GaussianAverage).terms(mean, variance, np.zeros(at.size), given, terms)
        moments = np.stack([mean + variance * terms[1], variance + variance**2 * terms[2]])
        moments[:, factor.without_moments(mean, variance)] = np.nan
        quantiles = factor.quantiles(mean, variance, np.tile(_LEVELS[:, None], at.size))
        yield _Alone(name, at, places, cross[:, places].T, mean, variance, quantiles, moments)


def over_priors(
    found: Prediction,
    functions: LatentFunctions,
    inputs: Any,
    conditional: Conditional,
    predicted: Callable[[NDArray[np.intp], Array, Array], Prediction],
) -> tuple[Prediction, list[tuple[Array, Array]], str]:
    """Average predictions over the priors of effects that have no moments and no rows, and of new levels.

    The posterior contains a normal base in place of such a prior. Quantiles of the prior, in random order for each
    effect, replace its contribution to latent values. Without moments of the prior, latent values have no moments.

    Returns
    -------
    Prediction
    list of (array, array)
        Means (m, 1) and covariances (m, 1, 1) of latent values at the quantiles. Empty without such effects.
    str
        Text of the warning for the user. Empty without such effects.
    """
    m, own = len(found.mean), conditional.solution.posterior.prior.variances[0]
    assert found.cov is not None
    rng, rest, shifts = np.random.default_rng(0), found.cov.copy(), np.zeros((_LEVELS.size, m))
    names: dict[str, None] = {}
    changed, (mean, variance, shift, lacking) = np.zeros(m, bool), np.zeros((4, m))
    for each in _alone(functions, inputs, conditional):
        for i, cross in zip(each.places, each.cross, strict=True):
            slope = np.where(np.abs(ratio := cross / own[each.rows[i]]) > _NO_SLOPE, ratio, 0.0)
            if not slope.any():
                continue
            changed |= slope != 0.0
            rest[:, 0, 0] -= slope**2 * each.variance[i]
            quantiles, (centre, square) = each.quantiles[:, i], each.moments[:, i]
            shifts += rng.permutation(quantiles - each.mean[i])[:, None] * slope
            if np.isnan(centre):
                names[each.name] = None
            # A moment that does not exist is NaN, and so is 0 times the moment.
            mean += np.where(slope == 0.0, 0.0, slope * (centre - each.mean[i]))
            variance += np.where(slope == 0.0, 0.0, slope**2 * (square - each.variance[i]))
            shift += np.where(slope == 0.0, 0.0, slope * (centre - quantiles.mean()))
            lacking += np.where(slope == 0.0, 0.0, slope**2 * np.maximum(square - quantiles.var(), 0.0))
    if not changed.any():
        return found, [], ""
    rows, count = np.flatnonzero(changed), int(np.isnan(mean).sum())
    note = (
        f"{count} of {m} new rows depend on levels of {', '.join(map(repr, names))} without data, whose "
        "prior has no variance. Latent values and observations of these rows have no mean. Their probabilities and "
        "quantiles are averages over the prior."
    ) * bool(count)
    shifted = [(found.mean + own[:, None], np.maximum(rest, 0.0)) for own in shifts]
    nodes = [predicted(rows, at[rows], cov[rows]) for at, cov in shifted]
    nothing = {name: np.array(value) for name, value in found._asdict().items() if value is not None}
    nothing["mean"] = found.mean + mean[:, None]
    nothing["cov"] = np.maximum(found.cov + variance[:, None, None], 0.0)
    nothing["error"][rows] = np.nan
    if "outcome" in nothing:
        by, more = shift[:, None], lacking[:, None, None]
        moved = [predicted(rows, (at + by)[rows], (cov + more)[rows]) for at, cov in shifted]
        nothing["outcome"][rows] = np.mean([each.outcome for each in moved], axis=0)
    nothing["p"][rows] = np.mean([each.p for each in nodes], axis=0)
    if "log_density" in nothing:
        nothing["log_density"][rows] = logsumexp([each.log_density for each in nodes], axis=0) - np.log(len(nodes))
    return found._replace(**nothing), shifted, note
