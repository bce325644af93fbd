"""Moments of effects, and contrasts of effects."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.argument_types import did_you_mean, few_of
from pymc_gpep.array_types import Array
from pymc_gpep.fits.datasets import axes_that_fit, coords_of, dims_that_fit
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.marginals import (
    MOMENTS,
    AffineEntries,
    Conditional,
    conditionals,
    entries_of,
    finite_moments,
    mixture_of,
    without_moments,
)
from pymc_gpep.fits.mixture import total_covariance, total_variance
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.latent.latent_prior import Joint
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.classifier import names_of_effects, sources_of_effects
from pymc_gpep.reading.integrated import columns_by_row
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.sums.new_data import by_name
from pymc_gpep.user_warnings import warn

_ALIKE = 0.999  # A fit warns of two effects with a larger posterior correlation.
_FAR = 20.0  # A covariate needs centring if mean / standard deviation is larger.
_NEW = "new_point"
_MOST = 3000  # Correlations are computed for at most this number of entries.
_WORK = 6_000_000  # Largest product of the number of compared entries and the number of integrated variables.

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
    averages of the moments of the Gaussian posterior at each node of the hyperparameters. If a marginal is far from
    normal, for example of separated data, its moments are the moments of `summary`. At new rows all moments are moments
    of the Gaussian posterior, as in `predict`.

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
        raise ValueError("effects needs the name of a variable of the model. effects() returns all variables.")
    if Xnew is None and not data:
        mixture, heaviest = mixture_of(hyper, entries_of(hyper, names), only_far=True)
        _warn_of_likes(classifier, heaviest.joint, sources_of_effects(classifier, names))
        shapes = [np.shape(heaviest.joint.means[name]) for name in names]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        mean, sd = (
            [a.reshape(s) for a, s in zip(np.split(each, ends), shapes, strict=True)] for each in mixture.moments()
        )
        found = _dataset(classifier, dict(zip(names, zip(mean, sd, strict=True), strict=True)), {})
        for name, unknown in without_moments(hyper, names).items():
            found[name] = found[name].where(~unknown.reshape(found[name].shape[1:]))
        return _existing(found, finite_moments(hyper, names))
    means, variances, axes = zip(*_at_new_rows(hyper, conditionals(hyper), names, Xnew, data), strict=True)

    def there(each: Conditional) -> Mapping[str, Array]:
        return next(_at_new_rows(hyper, iter([each]), names, Xnew, data))[1]

    moments: dict[str, tuple[Array, Array]] = {}
    for name in names:
        own = (np.array([each[name] for each in of]) for of in (means, variances))
        centre, variance = total_variance(hyper.weights, *own)
        moments[name] = centre, np.sqrt(variance)
    return _existing(_dataset(classifier, moments, axes[0]), finite_moments(hyper, names, there))


def _existing(found: xr.Dataset, moments: Mapping[str, NDArray[np.int64]]) -> xr.Dataset:
    """Replace means and standard deviations by NaN if they do not exist. `moments` are numbers of finite moments."""
    for name, count in moments.items():
        own = found[name]
        # A mean exists if one moment is finite, a standard deviation if two moments are finite.
        lowest = np.array([1, 2]).reshape(-1, *[1] * (own.ndim - 1))
        found[name] = own.where(count.reshape(own.shape[1:]) >= lowest)
    return found


def _dataset(classifier: GPClassifier, moments: Mapping[str, Sequence[Array]], axes: Mapping[str, int]) -> xr.Dataset:
    """Return means and standard deviations by name as a Dataset. `axes` are the axes of new rows, by name."""
    found = {}
    for name, own in moments.items():
        dims = dims_that_fit(classifier.model, name, np.shape(own[0]), classifier.coords)
        if name in axes:
            dims[axes[name]] = _NEW
        found[name] = (("moment", *map(str, dims)), np.stack(own))
    coords = coords_of(classifier, [dim for dims, _ in found.values() for dim in dims])
    return xr.Dataset(found, coords={"moment": ["mean", "sd"], **coords})


def _at_new_rows(
    hyper: HyperPosterior,
    each_node: Iterator[Conditional],
    names: Sequence[str],
    x: ArrayLike | None,
    data: Mapping[str, ArrayLike],
) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array], Mapping[str, int]]]:
    """Yield three dicts for each node, by name of variable: means, variances, and the axis of new rows."""
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

    Moments are as in `effects`. If a marginal is far from normal, `cov` has the correlations of the Gaussian posterior.

    Parameters
    ----------
    contrasts : dict of str to dict
        For each linear combination, by a name of your choice: a dict of names of variables to weights. Weights are an
        array in the shape of the variable, or a dict of labels to numbers. For a variable with two axes, labels of the
        first axis map to dicts by labels of the second axis, or to arrays. Missing labels have the weight 0.

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

    def of(conditional: Conditional) -> tuple[AffineEntries, Array]:
        joint = affine(conditional.point, conditional.functions)
        centres = [sum(float((w * joint.means[name]).sum()) for name, w in each.items()) for each in arrays]
        slopes = np.array([sum(joint.combined(name, w) for name, w in each.items()) for each in arrays]).T
        cov = joint.covariance(slopes)
        return AffineEntries(joint, np.array(centres), np.maximum(cov.diagonal(), 0.0), [lambda: slopes]), cov

    parts = []

    def entries(conditional: Conditional) -> AffineEntries:
        own, cov = of(conditional)
        parts.append((own.mean, cov))
        return own

    mean, sd = mixture_of(hyper, entries, only_far=True)[0].moments()
    _, cov = total_covariance(hyper.weights, parts)
    before = np.sqrt(np.maximum(cov.diagonal(), 0.0))
    scale = np.divide(sd, before, out=np.ones_like(sd), where=before > 0.0)
    cov = cov * scale[:, None] * scale
    lacking = without_moments(hyper, names)
    unknown = [any(np.ravel(each[name])[own].any() for name, own in lacking.items() if name in each) for each in arrays]
    mean[unknown] = cov[unknown] = cov[:, unknown] = np.nan
    labels = list(contrasts)
    for moments in finite_moments(hyper, [""], lambda each: {"": of(each)[0].variance}).values():
        mean[moments < 1] = np.nan
        cov[moments < MOMENTS] = cov[:, moments < MOMENTS] = np.nan
    sd = np.sqrt(np.maximum(cov.diagonal(), 0.0))
    return xr.Dataset(
        {"mean": ("contrast", mean), "sd": ("contrast", sd), "cov": (("contrast", "contrast_other"), cov)},
        coords={"contrast": labels, "contrast_other": labels},
    )


def _by_labels(
    name: str, given: ArrayLike | Mapping[Any, Any], axes: Sequence[tuple[str, list[Any]]], above: tuple[Any, ...] = ()
) -> Array:
    """Return an array of weights along `axes`, pairs of a dim and its labels.

    `given` is an array, or a dict by labels of the first axis. A value of the dict is again an array or such a dict,
    for the other axes.
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
    """Warn of two entries of variables with a posterior correlation near 1.

    A variable and its function are not compared. If there are too many entries, only small variables are compared.
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
    """Return the advice to centre a covariate if its mean is far larger than its spread; else an empty text."""
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
