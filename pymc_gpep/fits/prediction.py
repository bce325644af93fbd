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
from pymc_gpep.approximations.solution import Correction
from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits.datasets import of_functions
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.fits.marginals import Conditional, finite_moments, over_priors
from pymc_gpep.fits.mixture import Prediction, assembled, average_predictions, warn_of_moments
from pymc_gpep.gaussians.prior_form import covariance_root
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.log_posteriors.latent_functions import LatentFunctions
from pymc_gpep.progress import RowProgress
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.classifier import at_new_rows
from pymc_gpep.reading.likelihood_search import array_at_new_rows
from pymc_gpep.solvers.inducing import row_blocks
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.sums.new_data import RowsOfData, by_name
from pymc_gpep.user_warnings import warn

_ALONE = 4096  # Number of latent values at a node for one function: quantiles at equidistant levels.
_DRAWS = 1024  # Number of draws at a node for several functions. Sobol points need a power of 2.
_HELD = 500_000  # At most this number of drawn latent values is in memory.


class Part(NamedTuple):
    """Prediction at one node of the hyperparameters, with the weight of the node."""

    weight: float
    likelihood: Likelihood
    mean: Array
    """Means of the latent values (m, c)."""
    cov: Array
    """Covariances of the latent values (m, c, c)."""


def checked_interval(level: float, likelihood: Likelihood, n_functions: int) -> Array:
    """Return the quantile levels (2,) of the ends of an interval with probability `level`.

    Raises
    ------
    ValueError
        If `level` is not between 0 and 1.
    TypeError
        If observations are not classes.
    """
    if isinstance(level, bool) or np.ndim(level) or not 0.0 < float(level) < 1.0:
        raise ValueError(f"intervals must be a number between 0 and 1, such as 0.9, but is {level!r}.")
    if not likelihood.n_classes(n_functions):
        raise TypeError(
            f"intervals= is for class probabilities, but observations of a {likelihood.name} likelihood are numbers. "
            f"Use quantiles=[{0.5 - level / 2:g}, {0.5 + level / 2:g}]."
        )
    return np.array([0.5 - level / 2, 0.5 + level / 2])


def probability_intervals(parts: Sequence[Part], levels: Array) -> Array:
    """Return posterior quantiles (m, classes, k) of each class probability over latent values and nodes.

    A class probability at a row is a function of the latent values of the row. The draws of all rows use the same
    standard normal numbers, so neighbouring rows have similar intervals.

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
    """Return standard normal numbers (draws, c) for c functions, from equidistant levels or Sobol points."""
    if c == 1:
        return ndtri((np.arange(_ALONE) + 0.5) / _ALONE)[:, None]
    normals: Array = ndtri(qmc.Sobol(c, rng=np.random.default_rng(0)).random(_DRAWS))
    return normals


def _blocks(m: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Yield positions of m rows in blocks that fit into memory. A row needs `size` numbers."""
    step = max(1, _HELD // size)
    for first in range(0, m, step):
        yield np.arange(first, min(first + step, m))


def _drawn(part: Part, rows: NDArray[np.int64], z: Array) -> Array:
    """Return class probabilities (draws, rows, classes) at a node, for latent values from standard normals z."""
    f = part.mean[rows] + np.einsum("mij,dj->dmi", covariance_root(part.cov[rows]), z)
    draws, m, c = f.shape
    likelihood = part.likelihood.at(np.tile(rows, draws))
    p, _ = likelihood.probabilities(f.reshape(-1, c), np.zeros((draws * m, c, c)))
    return p.reshape(draws, m, -1)


def _weighted_quantiles(p: Array, weights: Array, levels: Array) -> Array:
    """Return quantiles (k, ...) of weighted numbers (draws, ...) by linear interpolation.

    NumPy does not interpolate weighted quantiles. Their error would be the weight of a draw.
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
"""Function of numbers and selected rows. It returns the probabilities that observations do not exceed the numbers."""

_LONGEST = 1100  # This number of doublings covers the range of floating-point numbers.


def checked_levels(quantiles: float | Sequence[float], likelihood: Likelihood) -> Array:
    """Check the levels of quantiles of an observation, and return them as an array (k,).

    Raises
    ------
    ValueError
        If a level is not between 0 and 1.
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
    """Return predictive quantiles (m, k) of an observation at m points, for levels (k,)."""
    first = parts[0].likelihood
    moments = sum(part.weight * part.likelihood.outcome_moments(part.mean, part.cov) for part in parts)
    assert not isinstance(moments, int)
    centre, square = moments
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.sqrt(np.maximum(square - centre**2, 0.0))
    usable = np.isfinite(centre) & (centre > first.least)
    centre = np.where(usable, centre, 1.0)
    # `lost` replaces a standard deviation if `square - centre**2` is only a rounding error.
    lost = np.where(usable & (centre != 0.0), 1e-8 * np.abs(centre), 1.0)
    spread = np.where(usable & np.isfinite(spread) & (spread > 0.0), spread, lost)

    def distribution(y: Array, rows: Any) -> Array:
        each = (part.weight * part.likelihood.at(rows).cumulative(y, part.mean[rows], part.cov[rows]) for part in parts)
        return np.asarray(sum(each))

    find = _smallest_count if first.observed_dtype == "int64" else _root
    return np.stack([find(distribution, level, centre, spread, first.least) for level in levels], axis=1)


def _smallest_count(distribution: _Distribution, level: float, centre: Array, spread: Array, least: float) -> Array:
    """Return the smallest count (m,) with a distribution function of at least `level`, by bisection."""
    every = slice(None)
    low, high = np.full(len(centre), -1.0), np.maximum(np.ceil(centre + spread), 1.0)
    for _ in range(_LONGEST):
        short = distribution(high, every) < level
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2.0 * high, high)
    while True:
        middle = np.floor(0.5 * low + 0.5 * high)
        if not ((middle > low) & (middle < high)).any():  # No number is left between the ends.
            return high
        enough = distribution(middle, every) >= level
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)


def _root(distribution: _Distribution, level: float, centre: Array, spread: Array, least: float) -> Array:
    """Return the quantiles (m,) at a level by a root search. Positive observations are searched on the log scale."""
    positive = least == 0.0
    start, unit = (np.log(centre), np.ones(len(centre))) if positive else (centre, spread)

    def number(x: Array, rows: Any) -> Array:
        y = start[rows] + unit[rows] * x
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(y) if positive else y)

    def excess(x: Array, given: Array) -> Array:
        rows = given.astype(np.int64)
        return distribution(number(x, rows).ravel(), rows.ravel()).reshape(x.shape) - level

    every = np.arange(len(centre), dtype=np.float64)  # Positions of rows, since `find_root` drops converged rows.
    ends = bracket_root(excess, -np.ones(len(every)), np.ones(len(every)), args=(every,), maxiter=_LONGEST).bracket
    found = find_root(excess, ends, args=(every,), tolerances={"xrtol": 1e-10, "xatol": 1e-12}).x
    return number(found, slice(None))


_NOTHING = 1e-3  # For smaller correlations with fitted points, the posterior equals the prior to three digits.
_MOST = 0.5  # A new row is far if nodes of a larger weight agree. No warning if a larger share of fitted rows is far.
_NEW = "new_point"
_ROWS = "new_row"  # Dim of the entries of an array, before the result is reshaped to the axes of the array.
_TWO = 2  # With fewer fitted rows, `warn_of_far_rows` does not warn.
_ALL = "all rows"
_SEVERAL = 5  # A common correlation is subtracted if there are at least this many fitted points.


def unreached(cross: Array, variance: Array, own: Array) -> Array:
    """Return 1 for each of m points that is nearly uncorrelated with all fitted points, else 0.

    A correlation that all points share, as with `pm.gp.cov.Constant`, is subtracted.

    Parameters
    ----------
    cross : array (q, m, n)
        Prior covariance with the n fitted points, or with inducing values; NaN entries are ignored.
    variance : array (q, m)
        Prior variance of the m points.
    own : array (q, n)
        Prior variance of the n fitted points or inducing values.
    """
    q, m, n = cross.shape
    if not m or not n:
        return np.zeros(m)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = cross / np.sqrt(variance[:, :, None] * own[:, None, :])
    # Points without prior variance have a NaN correlation and never count as far.
    highest = np.fmax.reduce(correlation, axis=2)
    lowest = np.fmin.reduce(correlation, axis=2)
    level = np.where(np.abs(lowest) < 1.0 - _NOTHING, lowest, 0.0) if n >= _SEVERAL else np.zeros((q, m))
    spread = np.maximum(highest - level, level - lowest)
    far: Array = (spread < _NOTHING * (1.0 - np.abs(level))).all(axis=0).astype(np.float64)
    return far


def warn_of_far_rows(far: Array | None, among_fitted: Callable[[], Array], by: str) -> None:
    """Warn of far new rows, unless most fitted rows are far as well.

    `far` (m,) and `among_fitted()` are results of `unreached`. `by` names the points of the fit: "inducing inputs".
    """
    if far is None or not (count := int(np.count_nonzero(far > _MOST))):
        return
    among = among_fitted()
    if len(among) < _TWO or among.mean() > _MOST:
        return
    of, nothing, more = "rows that were fitted", "there are no labels near them", ""
    if by != _ALL:
        of, nothing = by, "their prediction is the prior"
        more = f" If fitted rows are near them, the fit needs more {by}."
    warn(
        f"{count} of {len(far)} rows of Xnew {'is' if count == 1 else 'are'} further from all {of} than the length "
        f"scales of the covariance: {nothing}. Scale Xnew like the inputs of the model.{more}"
    )


_ENTRIES = 4_000  # A row counts as at least this many numbers. Blocks are then short, and an interrupt is noticed soon.


def process_and_inputs(
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | ArrayLike | None, Xnew: ArrayLike | None
) -> tuple[Any, Any]:
    """Return the processes and the new inputs of `predict(gp, Xnew)`.

    For `predict(Xnew)` the processes are None. If only data were given, the inputs are None.
    """
    listed = gp if isinstance(gp, Sequence) else (gp,)
    if Xnew is not None or gp is None or any(isinstance(each, pm.gp.Latent) for each in listed):
        return gp, Xnew
    return None, gp


def _correction(name: str, approximator: Any, classifier: GPClassifier) -> Correction:
    """Return the correction with this name, or raise a ValueError if it does not suit the approximation."""
    known = {each: correction for kind in APPROXIMATIONS for each, correction in kind.corrections.items()}
    check_name("correction", name, known, " or None")
    own: Mapping[str, Correction] = getattr(approximator, "corrections", {})
    if name not in own:
        raise ValueError(
            f"correction={name!r} corrects {known[name].corrects}, and this fit is {approximator.name} of a "
            f"{classifier.kind} likelihood. Leave correction out."
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
    """Predict latent functions and class probabilities at new rows.

    Use `predict(Xnew)` for new inputs, `predict(data={...})` for new data, and `predict(missing=True)` for rows of the
    model without a response.

    Predictions are averages over the nodes of the hyperparameters.

    Parameters
    ----------
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values, as a list if classes have separate processes. By default the covariance at new
        inputs is read from the graph of the model.
    Xnew : array (m, d)
        New inputs with the columns of the model. The first dim and coords of a DataArray become dim and coords of the
        result. If the model computes inputs from `pm.Data`, `Xnew` has the form of these data.
    response : str, optional
        Name of the predicted observed variable, if the model has several.
    data : dict of str to array, or data frame, optional
        Data of the model (`pm.Data`) at the new points, such as covariates, indices of groups, exposures, or the inputs
        of a single process. A number, or a single row, is used for all points. Data that are equal for all fitted
        points are optional. Data of an observed array may have other lengths than in the fit. Columns of a frame that
        are not data of the model are ignored.
    new_levels : bool
        Whether data may contain unseen levels of a group. The prediction of an unseen level uses the prior of the
        levels given their common parameters. By default an unseen level is an error.
    observed : array (m,), optional
        Observations at the new points, for `log_density`.
    probabilities : {"orthant", "inner_ep", "average"}, optional
        Method that computes class probabilities from the Gaussian latent values. For a multinomial probit, `"orthant"`
        (default) integrates accurately, and `"inner_ep"` is the fast approximation of the paper, normalised to sum to
        1. For a softmax, and for two classes by one latent function, `"average"` is the posterior mean.
    correction : {"tk"}, optional
        Tierney and Kadane's correction of the class probabilities (the nested EP paper's LA-TKP), for the Laplace
        approximation of a softmax. It computes a Laplace approximation for each new point and class. Moments of the
        latent functions are not corrected.
    tolerance : float
        Allowed absolute error of probabilities by `"orthant"` with five classes or more, and by `"average"` with four
        or more. If the latent functions are independent given the data, `"orthant"` is exact.
    covariances : bool
        Whether to return `cov`. For a million points with ten classes it takes 800 MB.
    dim : str, optional
        Name of the new dimension; `new_point` by default. Rows of the model keep their dim.
    missing : bool
        Whether to predict the rows of the model without a response. Coordinates come from the model, or are positions
        in the data.
    quantiles : float or sequence of k floats, optional
        Levels between 0 and 1 of quantiles of an observation. Nine of ten new observations fall between the quantiles
        0.05 and 0.95. Classes have no quantiles.
    intervals : float, optional
        Posterior probability of the interval of each class probability, such as 0.9. Intervals and quantiles need the
        moments at all nodes in memory.
    progressbar : bool
        Whether to show progress if the computation takes more than a second.

    Returns
    -------
    xarray.Dataset
        `p` (new point, class), `mean` (new point, class) and `cov` (new point, class, class) of the latent functions,
        `mean` and `variance` (new point) for one function, and `error` (new point). The error is estimated for
        `"orthant"` and `"average"`. For `"inner_ep"` it is the distance of the sum of probabilities from 1. With a
        correction it is NaN.

        If observations are not classes, mean and variance of an observation replace `p` and `error`: `y_mean` and
        `y_variance` for a response `y`. An infinite moment is ∞, and an undefined moment is NaN. `quantiles` adds
        `y_quantile` (new point, quantile). `observed` adds `log_density` (new point), the log predictive probability of
        the observation. `intervals` adds `p_interval` (new point, class, ci_bound), the ends of the intervals.

    Raises
    ------
    TypeError
        If `Xnew` is missing, or `gp` is not a process.
    StructureError
        If `gp` is missing, and the prior at new inputs cannot be read from the graph of the model. If `gp` is given,
        and the model computes its inputs from data.
    ValueError
        If `gp` is not of this model, or `Xnew` has a wrong shape or values that are not finite. If `probabilities` does
        not fit the likelihood. If `data` lacks data that differ between points. If latent values of a new row depend on
        other new rows.

    Warns
    -----
    UserWarning
        If rows of `Xnew` are farther from all data than the length scales. If a mean or variance does not exist. If the
        mean of an observation is above nearly all of its predictive distribution.

    Examples
    --------
    >>> fit.predict(gp, Xnew)["p"]
    >>> fit.predict(data={"where": [0, 1]}, response="visits")  # of several observed variables
    """
    gp, Xnew = process_and_inputs(gp, Xnew)
    data = by_name(data, fit.classifier.model)
    classifier = fit.classifier.part(response, "A prediction")
    hyper, log_posterior = fit.hyper_posterior, fit.log_posterior
    each: Iterator[LatentFunctions] = (functions.of(classifier.response) for functions in fit.functions(gp))
    whole = classifier.axes is not None and not missing
    if whole:
        each, classifier = _of_array(fit, classifier, each, Xnew, data, new_levels)
    first = next(each)  # This raises the error of a wrong gp, or of a fit without a posterior.
    if missing and (Xnew is not None or data):
        raise TypeError("missing=True predicts the rows of the model without a response. Leave out Xnew and data.")
    if missing and classifier.missing is None:
        raise ValueError(f"All rows of {classifier.response!r} have a response. Leave out missing=True.")
    if whole:
        inputs, data = RowsOfData(np.arange(classifier.n_rows)), {}
    else:
        inputs = first.missing_rows() if missing else first.new_rows(Xnew, data, new_levels)
    how = classifier.likelihood_model.check_way(probabilities, "probabilities")
    own = classifier.missing.rows if missing and classifier.missing is not None else None
    at = inputs.positions if whole else own
    inputs, new_likelihood = at_new_rows(classifier, inputs, log_posterior.space.data, data, first.takes, at)
    y = None if observed is None else held_out(classifier, observed, len(inputs), "observed")
    model = classifier.likelihood_model
    levels = None if quantiles is None else checked_levels(quantiles, model)
    ends = None if intervals is None else checked_interval(intervals, model, classifier.n_functions)
    kept = levels is not None or ends is not None
    parts: list[Part] = []
    notes: dict[str, None] = {}
    corrected = None if correction is None else _correction(correction, log_posterior.approximator, classifier)
    with RowProgress("Predicting", len(inputs) * len(hyper), progressbar) as progress:

        def predictions() -> Iterator[Prediction]:
            for s, functions in enumerate(chain([first], each)):
                likelihood = new_likelihood(hyper.point(s), y)
                found = predict_at(
                    functions,
                    inputs,
                    likelihood=likelihood,
                    observed=y,
                    probabilities=how,
                    corrected=None if corrected is None else partial(corrected.probabilities, hyper.solution(s)),
                    tolerance=tolerance,
                    covariances=covariances or kept or bool(fit.classifier.effects_by_factors),
                    done=progress.advance,
                )
                weight, evaluation = float(hyper.weights[s]), hyper.nodes[s]
                if fit.classifier.effects_by_factors:
                    conditional = Conditional(log_posterior, evaluation.theta, hyper.solution(s))
                    given = partial(_predicted, likelihood, y, how, tolerance)
                    found, shifted, lacking = over_priors(found, functions, inputs, conditional, given)
                    notes.update(dict.fromkeys([lacking] * bool(lacking)))
                    if kept and shifted:
                        parts.extend(Part(weight / len(shifted), likelihood, *each) for each in shifted)
                        yield found
                        continue
                if kept and found.cov is not None:
                    parts.append(Part(weight, likelihood, found.mean, found.cov))
                yield found

        averaged = average_predictions(hyper.weights, predictions())
        if hyper.tails and gp is None and not whole:
            averaged, lacking = _existing(fit, averaged, classifier.response, inputs, new_likelihood)
            if lacking:
                notes[lacking] = None
        for note in list(notes)[:1]:
            warn(note)
        if averaged.outcome is not None and not notes:
            heaviest = hyper.point(int(np.argmax(hyper.weights)))
            warn_of_moments(averaged, new_likelihood(heaviest, y), classifier.response)
        if levels is not None:
            averaged = averaged._replace(quantiles=outcome_quantiles(parts, levels))
        if ends is not None:
            averaged = averaged._replace(intervals=probability_intervals(parts, ends))
        if not covariances:
            averaged = averaged._replace(cov=None)
    attrs = {"probabilities": how} | ({"correction": correction} if correction else {})
    if whole:
        found = labelled(classifier, None, _ROWS, averaged, levels).assign_attrs(attrs)
        return classifier.in_axes(found, _ROWS)
    if Xnew is not None or isinstance(inputs, np.ndarray):
        warn_of_far_rows(averaged.far, lambda: unreached(*first.among_fitted()), log_posterior.by)
    if own is None:
        return labelled(classifier, Xnew, dim or _NEW, averaged, levels).assign_attrs(attrs)
    dim = dim or classifier.point_dim or f"{classifier.response}_{'dim_0' if classifier.axes is None else 'row'}"
    names = classifier.coords.get(classifier.point_dim) if classifier.point_dim else None
    coords: dict[str, Any] = {dim: own if names is None else np.asarray(names)[own]}
    coords |= {each: (dim, labels[own]) for each, labels in classifier.labels_of_rows().items()}
    return labelled(classifier, None, dim, averaged, levels).assign_coords(coords).assign_attrs(attrs)


def _of_array(
    fit: Fitted,
    classifier: GPClassifier,
    functions: Iterator[LatentFunctions],
    inputs: ArrayLike | None,
    data: Mapping[str, ArrayLike] | None,
    new_levels: bool,
) -> tuple[Iterator[LatentFunctions], GPClassifier]:
    """Return latent functions at the entries of an observed array with new data, and its classifier."""
    assert classifier.axes is not None
    named = f"{classifier.response!r} is an array with the dims {', '.join(classifier.axes.dims)}"
    if inputs is not None or new_levels or not classifier.prior.effects:
        raise ValueError(
            f"{named}, and predict accepts only new data for such arrays: predict(data={{...}}). For new levels or "
            "inputs write the model with a row for each entry, b[item]."
        )
    if not data:
        raise TypeError(f"{named}: predict needs new data, fit.predict(data={{...}}).")
    constants = fit.log_posterior.space.data
    own = array_at_new_rows(classifier, data, constants)
    new_rows = own.prior.at_new_rows(None, constants)
    return (each.at_rows_of(new_rows) for each in functions), own


def _existing(
    fit: Fitted, found: Prediction, response: str, inputs: Any, new_likelihood: Callable[..., Likelihood]
) -> tuple[Prediction, str]:
    """Return a prediction with NaN for undefined moments, due to heavy tails of scales, and the text of a warning."""
    hyper = fit.hyper_posterior
    names = ["latent", *(["mean", "variance"] * (found.outcome is not None))]

    def variances(each: Conditional) -> dict[str, Array]:
        own = predict_at(each.functions.of(response), inputs, likelihood=new_likelihood(each.point, None))
        assert own.cov is not None
        latent = np.diagonal(own.cov, axis1=1, axis2=2)
        return {"latent": latent} | ({} if own.moments is None else dict(zip(names[1:], own.moments, strict=True)))

    counts = finite_moments(hyper, names, variances)
    latent = counts["latent"].reshape(found.mean.shape)
    changed: dict[str, Array] = {"mean": np.where(latent < 1, np.nan, found.mean)}
    if found.cov is not None:
        undefined = (latent < 2)[:, :, None]
        changed["cov"] = np.where(undefined | undefined.swapaxes(1, 2), np.nan, found.cov)
    if found.outcome is not None:  # A mean that grows with the scales is infinite, for example the mean of a count.
        undefined = np.stack([(counts["variance"] < 1) | (counts["mean"] < 2), counts["variance"] < 2], axis=1)
        changed["outcome"] = np.where(undefined, np.nan, found.outcome)
    rows = int(np.any([count.reshape(len(found.mean), -1).min(axis=1) < 2 for count in counts.values()], axis=0).sum())
    if not rows:
        return found, ""
    scales = " and ".join(dict.fromkeys(repr(name) for tail in hyper.tails for name in tail.names))
    return found._replace(**changed), (
        f"Moments of {rows} of {len(found.mean)} rows are NaN, since they do not exist: the posterior of {scales} has "
        "a heavy tail. Give it a density, such as pm.HalfNormal. Quantiles exist: fit.predict(..., quantiles=[0.5])."
    )


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
    """Predict at given hyperparameters, in chunks of bounded memory; `likelihood` is the likelihood at the new rows.

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
    """Yield slices of m new rows, at least one slice. Predictions of a slice need bounded memory.

    `functions` is the number of latent functions, and `size` the number of values that represent the posterior of each.
    """
    # Blocks of several functions have fewer rows, since probabilities of several classes take long.
    least = _ENTRIES if functions > 1 else _ENTRIES // 8
    return row_blocks(max(m, 1), max(functions * max(size, functions), least))


def _predicted(
    likelihood: Likelihood,
    observed: Observed | None,
    how: str | None,
    tolerance: float,
    rows: NDArray[np.intp],
    mean: Array,
    cov: Array,
) -> Prediction:
    """Return predictions of the rows at positions `rows`, given moments of their latent values."""
    observed = None if observed is None else observed[rows]
    return predict_given(likelihood.at(rows), mean, cov, observed=observed, how=how, tolerance=tolerance)


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
    """Predict from Gaussian latent values with means (m, c) and covariances (m, c, c)."""
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
    """Return checked observations (m,) at new points or at entries of an array; `name` is for messages.

    Raises
    ------
    ValueError
        If the likelihood does not allow the observations, or their number is not the number of points.
    """
    if classifier.axes is not None and np.shape(observed)[: len(classifier.axes.shape)] == classifier.axes.shape:
        observed = np.reshape(observed, (n_points, *np.shape(observed)[len(classifier.axes.shape) :]))
    return classifier.likelihood_model.check(observed, classifier.n_functions, n_points, name)


def labelled(
    classifier: GPClassifier, x: ArrayLike | None, dim: str, prediction: Prediction, levels: Array | None = None
) -> xr.Dataset:
    """Return predictions at new inputs `x` as a Dataset; `levels` are the levels of its quantiles."""
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
    """Return class probabilities (m, classes) of a predicted dataset, and moments (2, m) if it has no classes."""
    if "p" in predicted:
        return predicted["p"].values, None
    moments = np.stack([predicted[f"{classifier.response}_{moment}"].values for moment in ("mean", "variance")])
    return np.empty((moments.shape[1], 0)), moments
