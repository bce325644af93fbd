"""Predictions at new rows: latent moments, class probabilities with intervals, and quantiles of observations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy.optimize.elementwise import bracket_root, find_root
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_gpep.approximations import APPROXIMATIONS
from pymc_gpep.approximations.approximator import Correction
from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits.datasets import of_functions
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.mixture import Prediction, assembled, average_predictions, warn_of_moments
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.log_posteriors.latent_functions import LatentFunctions
from pymc_gpep.progress import RowProgress
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.likelihood_elsewhere import LikelihoodElsewhere, rows_of_parameters
from pymc_gpep.solvers.inducing import row_blocks
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.sums.levels import repeated
from pymc_gpep.user_warnings import warn

_ALONE = 4096  # draws at each node of a single function, a grid
_DRAWS = 1024  # of several; a power of 2, for which points of Sobol are balanced
_HELD = 500_000  # latent values that are held at once


class Part(NamedTuple):
    """The predictions at one node of the hyperparameters, a part of a mixture."""

    weight: float
    likelihood: Likelihood
    mean: Array
    """Means of the latent values (m, c)."""
    cov: Array
    """Covariances of the latent values (m, c, c)."""


def checked_interval(level: float, likelihood: Likelihood, n_functions: int) -> Array:
    """Return the two levels (2,) between which the share `level` of a posterior lies.

    Raises
    ------
    ValueError
        If the share is not between 0 and 1.
    TypeError
        If observations are not classes.
    """
    if isinstance(level, bool) or np.ndim(level) or not 0.0 < float(level) < 1.0:
        raise ValueError(f"intervals must be a number between 0 and 1, such as 0.9, but is {level!r}.")
    if not likelihood.n_classes(n_functions):
        raise TypeError(
            f"intervals= gives ranges of class probabilities, but observations of a {likelihood.name} likelihood are "
            f"numbers: ask for quantiles=[{0.5 - level / 2:g}, {0.5 + level / 2:g}] of them."
        )
    return np.array([0.5 - level / 2, 0.5 + level / 2])


def probability_intervals(parts: Sequence[Part], levels: Array) -> Array:
    """Quantiles (m, classes, k) of each class probability over latent values and nodes.

    A probability at a row is a function of the latent values there. These are drawn by the same standard normal numbers
    at every row, so that neighbours have similar ranges.

    Parameters
    ----------
    parts : sequence of Part
        Predictions at the nodes.
    levels : array (k,)
    """
    m, c = parts[0].mean.shape
    z = _standard_normals(c)
    weights = np.repeat([part.weight / len(z) for part in parts], len(z))
    found = [np.empty((0, parts[0].likelihood.n_classes(c), len(levels)))]
    for rows in _blocks(m, len(weights) * c):
        p = np.concatenate([_drawn(part, rows, z) for part in parts])
        found.append(np.moveaxis(_weighted_quantiles(p, weights, levels), 0, -1))
    return np.concatenate(found)


def _standard_normals(c: int) -> Array:
    """Standard normal numbers (draws, c), spread evenly."""
    if c == 1:
        return ndtri((np.arange(_ALONE) + 0.5) / _ALONE)[:, None]
    normals: Array = ndtri(qmc.Sobol(c, rng=np.random.default_rng(0)).random(_DRAWS))
    return normals


def _blocks(m: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Positions of rows, as many at a time as may be held where a row takes `size` numbers."""
    step = max(1, _HELD // size)
    for first in range(0, m, step):
        yield np.arange(first, min(first + step, m))


def _drawn(part: Part, rows: NDArray[np.int64], z: Array) -> Array:
    """Probabilities (draws, rows, classes) of a node, given latent values that are drawn."""
    values, vectors = np.linalg.eigh(part.cov[rows])
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    f = part.mean[rows] + np.einsum("mij,dj->dmi", root, z)
    draws, m, c = f.shape
    likelihood = part.likelihood.at(np.tile(rows, draws))
    p, _ = likelihood.probabilities(f.reshape(-1, c), np.zeros((draws * m, c, c)))
    return p.reshape(draws, m, -1)


def _weighted_quantiles(p: Array, weights: Array, levels: Array) -> Array:
    """Quantiles (k, ...) of weighted numbers (draws, ...), between neighbours by straight lines.

    NumPy's have no lines where there are weights, and an error of a draw's weight.
    """
    order = np.argsort(p, axis=0)
    ascending, own = np.take_along_axis(p, order, axis=0), weights[order]
    below = np.cumsum(own, axis=0) - 0.5 * own
    after = np.clip((below < levels[:, None, None, None]).sum(axis=1), 1, len(p) - 1)
    left, right = (np.take_along_axis(below, each, axis=0) for each in (after - 1, after))
    low, high = (np.take_along_axis(ascending, each, axis=0) for each in (after - 1, after))
    share = np.clip((levels[:, None, None] - left) / (right - left), 0.0, 1.0)
    found: Array = low + share * (high - low)
    return found


type _Distribution = Callable[[Array, Any], Array]
"""Probabilities that observations at some rows do not exceed numbers."""

_LONGEST = 1100  # doublings, over the range of floating-point numbers


def checked_levels(quantiles: float | Sequence[float], likelihood: Likelihood) -> Array:
    """Return the levels of quantiles (k,).

    Raises
    ------
    ValueError
        If they are not between 0 and 1.
    TypeError
        If observations are classes.
    """
    levels = np.atleast_1d(np.asarray(quantiles, np.float64))
    if levels.ndim != 1 or not ((levels > 0.0) & (levels < 1.0)).all():
        raise ValueError(f"quantiles must be numbers between 0 and 1, such as [0.05, 0.95], but are {quantiles!r}.")
    if likelihood.n_classes(1):
        raise TypeError(
            f"Observations of a {likelihood.name} likelihood are classes, which have no quantiles: leave quantiles out."
        )
    return levels


def outcome_quantiles(parts: Sequence[Part], levels: Array) -> Array:
    """Smallest numbers (m, k) that an observation does not exceed with each of k probabilities."""
    first = parts[0].likelihood
    moments = sum(part.weight * part.likelihood.outcome_moments(part.mean, part.cov) for part in parts)
    assert not isinstance(moments, int)
    centre, square = moments
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.sqrt(np.maximum(square - centre**2, 0.0))
    usable = np.isfinite(centre) & (centre > first.least)
    centre = np.where(usable, centre, 1.0)
    # Where the spread is lost in the square of the centre, it is at most about so large.
    lost = np.where(usable & (centre != 0.0), 1e-8 * np.abs(centre), 1.0)
    spread = np.where(usable & np.isfinite(spread) & (spread > 0.0), spread, lost)

    def distribution(y: Array, rows: Any) -> Array:
        each = (part.weight * part.likelihood.at(rows).cumulative(y, part.mean[rows], part.cov[rows]) for part in parts)
        return np.asarray(sum(each))

    find = _smallest_count if first.observed_dtype == "int64" else _root
    return np.stack([find(distribution, level, centre, spread, first.least) for level in levels], axis=1)


def _smallest_count(distribution: _Distribution, level: float, centre: Array, spread: Array, least: float) -> Array:
    """By halving: counts up to `low` are too few, those from `high` on suffice."""
    every = slice(None)
    low, high = np.full(len(centre), -1.0), np.maximum(np.ceil(centre + spread), 1.0)
    for _ in range(_LONGEST):
        short = distribution(high, every) < level
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2.0 * high, high)
    while True:
        middle = np.floor(0.5 * low + 0.5 * high)
        if not ((middle > low) & (middle < high)).any():  # beyond 2⁵³ neighbours differ by more than one
            return high
        enough = distribution(middle, every) >= level
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)


def _root(distribution: _Distribution, level: float, centre: Array, spread: Array, least: float) -> Array:
    """By a search in the number, in units of the spread, or in its logarithm where numbers are positive."""
    positive = least == 0.0
    start, unit = (np.log(centre), np.ones(len(centre))) if positive else (centre, spread)

    def number(x: Array, rows: Any) -> Array:
        y = start[rows] + unit[rows] * x
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(y) if positive else y)

    def excess(x: Array, given: Array) -> Array:
        rows = given.astype(np.int64)
        return distribution(number(x, rows).ravel(), rows.ravel()).reshape(x.shape) - level

    every = np.arange(len(centre), dtype=np.float64)  # rows, which the search leaves out where it is done
    ends = bracket_root(excess, -np.ones(len(every)), np.ones(len(every)), args=(every,), maxiter=_LONGEST).bracket
    found = find_root(excess, ends, args=(every,), tolerances={"xrtol": 1e-10, "xatol": 1e-12}).x
    return number(found, slice(None))


_NOTHING = 1e-3  # of a correlation, below which a posterior is the prior to three digits
_MOST = 0.5
_NEW = "new_point"
_TWO = 2  # rows at least that can be near or far from each other
_ALL = "all rows"
_SEVERAL = 5  # from so many rows on it is no chance that all are equally far


def unreached(cross: Array, variance: Array, own: Array) -> Array:
    """Which of m points are correlated with no fitted point more than with any other, as with none: 1 or 0, (m,).

    A level that all points share, as of `pm.gp.cov.Constant`, says nothing of a point, and so is left out.

    Parameters
    ----------
    cross : array (q, m, n)
        Prior covariance with the n points that were fitted, or with inducing values; NaN for what is to be left out.
    variance : array (q, m)
        Prior variance.
    own : array (q, n)
        Prior variance of the fitted points.
    """
    q, m, n = cross.shape
    if not m or not n:
        return np.zeros(m)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = cross / np.sqrt(variance[:, :, None] * own[:, None, :])
    # What does not vary is neither near nor far: NaN, which compares as False.
    highest = np.fmax.reduce(correlation, axis=2)
    lowest = np.fmin.reduce(correlation, axis=2)
    level = np.where(np.abs(lowest) < 1.0 - _NOTHING, lowest, 0.0) if n >= _SEVERAL else np.zeros((q, m))
    spread = np.maximum(highest - level, level - lowest)
    far: Array = (spread < _NOTHING * (1.0 - np.abs(level))).all(axis=0).astype(np.float64)
    return far


def warn_of_far_rows(far: Array | None, among_fitted: Callable[[], Array], by: str) -> None:
    """Warn of new rows that are `far`, (m,), as of `unreached`, unless most of the fitted rows are.

    A fit goes by all rows, or by what `by` calls it, such as inducing inputs; rows that were fitted may then be near.
    """
    if far is None or not (count := int(np.count_nonzero(far > _MOST))):
        return
    among = among_fitted()
    if len(among) < _TWO or among.mean() > _MOST:
        return
    of, nothing, more = "rows that were fitted", "there are no labels near by to predict them from", ""
    if by != _ALL:
        of, nothing = by, "the fit has nothing to predict them from"
        more = f" Where rows that were fitted are near them, the fit needs more {by}."
    warn(
        f"{count} of {len(far)} rows of Xnew {'is' if count == 1 else 'are'} further from all {of} than the length "
        f"scales of the covariance reach, and {nothing}. Xnew must be scaled as the inputs of the model are.{more}"
    )


_ENTRIES = 4_000  # that a row counts for at least, so that an interrupt is soon heeded


def process_and_inputs(
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | ArrayLike | None, Xnew: ArrayLike | None
) -> tuple[Any, Any]:
    """Return the makers of latent values, or None, and new inputs, of `predict(gp, Xnew)` and `predict(Xnew)`.

    Inputs are None where a user gave data alone.
    """
    listed = gp if isinstance(gp, Sequence) else (gp,)
    if Xnew is not None or gp is None or any(isinstance(each, pm.gp.Latent) for each in listed):
        return gp, Xnew
    return None, gp


def _correction(name: str, approximator: Any, classifier: GPClassifier) -> Correction:
    """The correction of a name, if it belongs to the approximation."""
    known = {each: correction for kind in APPROXIMATIONS for each, correction in kind.corrections.items()}
    check_name("correction", name, known, " or None")
    own: Mapping[str, Correction] = getattr(approximator, "corrections", {})
    if name not in own:
        raise ValueError(
            f"correction={name!r} corrects {known[name].corrects}; this is {approximator.name} of a "
            f"{classifier.kind} likelihood."
        )
    return own[name]


@one_blas_thread()
def predict(
    fit: Fitted,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | ArrayLike | None = None,
    Xnew: ArrayLike | None = None,
    *,
    response: str | None = None,
    data: Mapping[str, ArrayLike] | None = None,
    new_levels: bool = False,
    observed: ArrayLike | None = None,
    probabilities: str | None = None,
    correction: str | None = None,
    tolerance: float = 5e-5,
    covariances: bool = True,
    dim: str | None = None,
    missing: bool = False,
    quantiles: float | Sequence[float] | None = None,
    intervals: float | None = None,
    progressbar: bool = True,
) -> xr.Dataset:
    """Predict latent functions and class probabilities at new rows: `predict(Xnew)`, or `predict(data={...})`.

    `predict(missing=True)` predicts the rows of the model whose responses are missing.

    Predictions are averages over the nodes that stand for the hyperparameters.

    Parameters
    ----------
    gp : pm.gp.Latent or sequence of them, optional
        Processes that made the latent values of the model; a list where classes have their own. Without it the
        covariance at new inputs is read from the graph of the model.
    Xnew : array (m, d)
        New inputs, with the columns that the model's have; a DataArray gives its first dim and coords to the
        result. Where the model computes inputs from its data, they are as the data.
    response : str, optional
        Name of the observed variable that is predicted, where the model has several.
    data : dict of str to array, optional
        Data of the model (`pm.Data`) at the new points. A sum of effects is made of such data, and a likelihood
        may be given some besides latent values, such as an exposure of counts. A single process takes its inputs
        by name as well. A number, or a single row, stands for all points. A value that all points of the fit share
        is kept, and need not be given.
    new_levels : bool
        Whether data that select levels of a group may name levels that the model does not have. Such a level has
        the prior of all others, given what they have in common.
    observed : array (m,), optional
        Observations at the new points, for `log_density`.
    probabilities : {"orthant", "inner_ep", "average"}, optional
        How class probabilities are computed from the Gaussian at a new point. For a multinomial probit
        `"orthant"`, the default, integrates accurately: a class is observed where its function plus unit noise is
        the largest. `"inner_ep"`, the paper's own way, is a fast approximation, normalised to sum to 1. For a
        softmax, and for two classes by one latent function, `"average"` is the expectation.
    correction : {"tk"}, optional
        Tierney and Kadane's correction of the class probabilities (the nested EP paper's LA-TKP), for the Laplace
        approximation of a softmax. It takes a Laplace approximation for every new point with every class. Moments
        of the latent functions are not corrected.
    tolerance : float
        Error allowed in the probabilities of `"orthant"` where there are five classes or more, of `"average"` with
        four or more. Where classes are independent given the data `"orthant"` is exact with any number of them.
    covariances : bool
        Whether to return `cov`. For a million points with ten classes `cov` takes 800 MB, all else 170 MB. The
        memory held on the way is the same for any number of points.
    dim : str, optional
        Name of the new dimension, `new_point` if not given. Rows of the model have their own.
    missing : bool
        Whether to predict the rows of the model without a response, which a fit leaves out. They have the
        coordinates of the model, or their positions in the data.
    quantiles : float or sequence of k floats, optional
        Levels between 0 and 1 of quantiles of an observation. Nine of ten new observations fall between those of
        `[0.05, 0.95]`. Classes have no quantiles.
    intervals : float, optional
        Posterior probability, such as 0.9, with which each class probability lies in its range. Moments of the
        latent values at all nodes are held meanwhile.
    progressbar : bool
        Whether to show how many rows are done and the time that is left, where that takes more than a second.

    Returns
    -------
    xarray.Dataset
        `p` (new point, class), `mean` (new point, class) and `cov` (new point, class, class) of the latent
        functions, `mean` and `variance` (new point) where there is one, and `error` (new point). For `"orthant"`
        and `"average"` that is the estimated error of the probabilities, for `"inner_ep"` how far their sum was
        from 1 before it was normalised. It is NaN with a correction. Where observations are not classes, the mean
        and the variance of an observation take the place of `p` and `error`. They are `y_mean` and `y_variance` if
        its name is `y`. An infinite moment is ∞; one that does not exist is NaN. With `quantiles` there is also
        `y_quantile` (new point, quantile). With `observed`, `log_density` (new point), the log of its predictive
        probability. With `intervals`, `p_interval` (new point, class, ci_bound), the ends of the ranges.

    Raises
    ------
    TypeError
        If `Xnew` is missing, or `gp` is something else.
    StructureError
        If `gp` is missing, and the graph of the model does not say what the prior is at other inputs. If there is a
        `gp`, and inputs that the model computes from its data would be others with it than without.
    ValueError
        If `gp` is not of this model, or `Xnew` has a wrong shape or values that are not finite. If the way to
        compute the probabilities does not fit the likelihood. If the likelihood is given other numbers at other
        points, and `data` does not have those of new ones. If values of a row depend on other new rows.

    Warns
    -----
    UserWarning
        If rows of `Xnew` are further from all data than the length scales reach; it says how many. If a mean or
        variance of an observation does not exist. If a mean is above nearly all of the predicted values.

    Examples
    --------
    >>> fit.predict(gp, Xnew)["p"]
    >>> fit.predict(data={"where": [0, 1]}, response="visits")  # of several observed variables
    """
    gp, Xnew = process_and_inputs(gp, Xnew)
    classifier = fit.classifier.part(response, "A prediction")
    hyper, log_posterior = fit.hyper_posterior, fit.log_posterior
    each = (functions.of(classifier.response) for functions in fit.functions(gp))
    first = next(each)  # which a wrong gp, or a fit without a posterior, does not have
    if missing and (Xnew is not None or data):
        raise TypeError("missing=True predicts the rows of the model without a response: give no other rows with it.")
    if missing and classifier.missing is None:
        raise ValueError(f"All rows of {classifier.response!r} have a response: there are no missing ones to predict.")
    inputs = first.missing_rows() if missing else first.new_rows(Xnew, data or {}, new_levels)
    inputs = repeated(inputs, rows_of_parameters(classifier, data))
    how = classifier.likelihood_model.check_way(probabilities, "probabilities")
    own = classifier.missing.rows if missing and classifier.missing is not None else None
    elsewhere = LikelihoodElsewhere(classifier, len(inputs), log_posterior.space.data, data, first.takes, own)
    y = None if observed is None else held_out(classifier, observed, len(inputs), "observed")
    model = classifier.likelihood_model
    levels = None if quantiles is None else checked_levels(quantiles, model)
    ends = None if intervals is None else checked_interval(intervals, model, classifier.n_functions)
    kept = levels is not None or ends is not None
    parts: list[Part] = []
    corrected = None if correction is None else _correction(correction, log_posterior.approximator, classifier)
    with RowProgress("Predicting", len(inputs) * len(hyper), progressbar) as progress:

        def predictions() -> Iterator[Prediction]:
            for s, functions in enumerate(chain([first], each)):
                likelihood = elsewhere(hyper.point(s), y)
                found = predict_at(
                    functions,
                    inputs,
                    likelihood=likelihood,
                    observed=y,
                    probabilities=how,
                    corrected=None if corrected is None else partial(corrected.probabilities, hyper.solution(s)),
                    tolerance=tolerance,
                    covariances=covariances or kept,
                    done=progress.advance,
                )
                if kept and found.cov is not None:
                    parts.append(Part(float(hyper.weights[s]), likelihood, found.mean, found.cov))
                yield found

        averaged = average_predictions(hyper.weights, predictions())
        if averaged.outcome is not None:
            heaviest = hyper.point(int(np.argmax(hyper.weights)))
            warn_of_moments(averaged, elsewhere(heaviest, y), classifier.response)
        if levels is not None:
            averaged = averaged._replace(quantiles=outcome_quantiles(parts, levels))
        if ends is not None:
            averaged = averaged._replace(intervals=probability_intervals(parts, ends))
        if not covariances:
            averaged = averaged._replace(cov=None)
    attrs = {"probabilities": how} | ({"correction": correction} if correction else {})
    if Xnew is not None or isinstance(inputs, np.ndarray):
        warn_of_far_rows(averaged.far, lambda: unreached(*first.among_fitted()), log_posterior.by)
    if own is None:
        return labelled(classifier, Xnew, dim or _NEW, averaged, levels).assign_attrs(attrs)
    dim = dim or classifier.point_dim or f"{classifier.response}_dim_0"
    names = classifier.coords.get(classifier.point_dim) if classifier.point_dim else None
    coords = {dim: own if names is None else np.asarray(names)[own]}
    return labelled(classifier, None, dim, averaged, levels).assign_coords(coords).assign_attrs(attrs)


def predict_at(
    functions: LatentFunctions,
    inputs: Any,
    *,
    likelihood: Likelihood,
    observed: Observed | None = None,
    probabilities: str | None = None,
    corrected: Callable[[Array, Array, Array], Array] | None = None,
    tolerance: float = 5e-5,
    covariances: bool = True,
    done: Callable[[int], None] = lambda rows: None,
) -> Prediction:
    """The same at given hyperparameters and new rows, in chunks of bounded memory; `likelihood` is that there.

    After each chunk `done` is called with its number of rows.
    """
    m, own = len(inputs), functions.own

    def predicted(rows: slice) -> Prediction:
        mean, cov, prior = functions.at(inputs[rows])
        cross = prior.cross.swapaxes(1, 2)
        part = predict_given(
            likelihood.at(rows),
            mean.T,
            cov,
            p=None if corrected is None else corrected(*functions.prior_at(inputs[rows])),
            observed=None if observed is None else observed[rows],
            how=probabilities,
            tolerance=tolerance,
        )
        part = part._replace(far=unreached(cross, prior.variance, own), cov=part.cov if covariances else None)
        done(len(part.mean))
        return part

    return assembled(m, blocks_of_rows(m, functions.n_functions, functions.size), predicted)


def blocks_of_rows(m: int, functions: int, size: int) -> Iterator[slice]:
    """Blocks of m new rows, at least one, with which what is computed at a time fits into bounded memory.

    Posteriors of so many functions are known by `size` values of each.
    """
    least = _ENTRIES if functions > 1 else _ENTRIES // 8  # probabilities of several classes take long
    return row_blocks(max(m, 1), max(functions * max(size, functions), least))


def predict_given(
    likelihood: Likelihood,
    mean: Array,
    cov: Array,
    *,
    p: Array | None = None,
    observed: Observed | None = None,
    how: str | None = None,
    tolerance: float = 5e-5,
) -> Prediction:
    """Predict by a likelihood from Gaussian latent values (m, c) with covariances (m, c, c), given `p` if known."""
    m, log_density, outcome = len(mean), None, None
    if likelihood.n_classes(mean.shape[1]):
        error = np.full(m, np.nan)
        if p is None:
            p, error = likelihood.probabilities(mean, cov, how=how, tolerance=tolerance)
        if observed is not None:
            if likelihood.observes_classes(mean.shape[1]):
                with np.errstate(divide="ignore"):
                    log_density = np.log(p[np.arange(m), observed])
            else:
                log_density = likelihood.log_tail(mean, cov, observed)
    else:
        p, error, outcome = np.empty((m, 0)), np.zeros(m), likelihood.outcome_moments(mean, cov).T
        log_density = None if observed is None else likelihood.log_tail(mean, cov, observed)
    return Prediction(p, error, mean, cov, outcome, log_density)


def held_out(classifier: GPClassifier, observed: ArrayLike, n_points: int, name: str) -> Observed:
    """Observations (m,) at new points, called by `name` in messages.

    Raises
    ------
    ValueError
        If the likelihood does not allow them, or if there is not one for each point.
    """
    return classifier.likelihood_model.check(observed, classifier.n_functions, n_points, name)


def labelled(
    classifier: GPClassifier, x: ArrayLike | None, dim: str, prediction: Prediction, levels: Array | None = None
) -> xr.Dataset:
    """What is predicted at new inputs `x`, with names of axes and coordinates; `levels` are those of quantiles."""
    coords: dict[str, Any] = {}
    if isinstance(x, xr.DataArray):
        dim = str(x.dims[0])
        if dim in x.coords:
            coords[dim] = x.coords[dim].values
    arrays, of_functions_coords = of_functions(classifier, dim, prediction.mean, prediction.cov)
    coords = of_functions_coords | coords
    if prediction.moments is None:
        class_dim = classifier.class_dim or "class"
        coords[class_dim] = classifier.class_names
        arrays = {"p": ((dim, class_dim), prediction.p), **arrays, "error": ((dim,), prediction.error)}
        if prediction.intervals is not None:
            arrays["p_interval"] = ((dim, class_dim, "ci_bound"), prediction.intervals)
            coords["ci_bound"] = ["lower", "upper"]
    else:
        name = classifier.response
        arrays |= {
            f"{name}_{moment}": ((dim,), values)
            for moment, values in zip(("mean", "variance"), prediction.moments, strict=True)
        }
    if prediction.quantiles is not None:
        arrays[f"{classifier.response}_quantile"] = ((dim, "quantile"), prediction.quantiles)
        coords["quantile"] = levels
    if prediction.log_density is not None:
        arrays["log_density"] = ((dim,), prediction.log_density)
    return xr.Dataset(arrays, coords=coords)


def probabilities_and_moments(classifier: GPClassifier, predicted: xr.Dataset) -> tuple[Array, Array | None]:
    """Class probabilities (m, classes) of a dataset by `labelled`, or moments (2, m) where there are no classes."""
    if "p" in predicted:
        return predicted["p"].values, None
    moments = np.stack([predicted[f"{classifier.response}_{moment}"].values for moment in ("mean", "variance")])
    return np.empty((moments.shape[1], 0)), moments
