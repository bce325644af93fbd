"""Fits and draws of samplers, from a dict by name, with the same functions to read both."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.blocking import PointType

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.memory import check_memory
from pymc_gpep.fits.datasets import natural
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.mixture import Prediction, assembled, average_predictions
from pymc_gpep.fits.prediction import blocks_of_rows, held_out, labelled, predict_given, process_and_inputs
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.prior_moments.drawn_sums import DrawnSum, drawn_sum
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.processes.cross_covariance import CrossCovariance, as_gps
from pymc_gpep.progress import RowProgress
from pymc_gpep.reading import GPClassifier, read_classifier
from pymc_gpep.reading.likelihood_elsewhere import LikelihoodElsewhere, rows_of_parameters
from pymc_gpep.reading.natural_scale import unconstrain
from pymc_gpep.sums.levels import repeated

Result = Fit | xr.DataTree


def by_name(results: Any, single: str = "fit") -> dict[str, Result]:
    """Check that `results` are fits or DataTrees of draws, by name; a single one gets the name given.

    Raises
    ------
    TypeError
        If one is neither.
    ValueError
        If there are no results, or if a DataTree has no posterior draws.
    """
    # A DataTree is itself a mapping.
    named = dict(results) if isinstance(results, Mapping) and not isinstance(results, Result) else {single: results}
    if not named:
        raise ValueError("results is empty. Give it fits or draws by name.")
    for name, result in named.items():
        if isinstance(result, xr.DataTree):
            if "posterior" not in result.children:
                groups = ", ".join(result.children) or "none"
                raise ValueError(f"{name!r} has no posterior draws; the groups of the DataTree are: {groups}.")
        elif not isinstance(result, Result):
            raise TypeError(
                f"{name!r} must be what pm.fit returned for a Gaussian process, or a DataTree of draws, not a "
                f"{type(result).__name__}. Give several by name, such as {{'EP': fit}}."
            )
    return named


def classifier_of(results: Mapping[str, Result], model: pm.Model | None) -> GPClassifier:
    """Return what was read from the model: from the one given, else from that of the first fit.

    Raises
    ------
    ValueError
        If there is neither.
    """
    if model is not None:
        return read_classifier(model)
    for result in results.values():
        if not isinstance(result, xr.DataTree):
            return result.classifier
    raise ValueError("No fit is among the results, so the model that was sampled must be given: model=...")


def reference_among(results: Mapping[str, Result], reference: str | None) -> str:
    """Return the name of what others are compared with: the one given, else the first draws, else the first fit.

    Raises
    ------
    ValueError
        If there is no result of that name.
    """
    if reference is None:
        return next((name for name, result in results.items() if isinstance(result, xr.DataTree)), next(iter(results)))
    if reference not in results:
        raise ValueError(
            f"reference is {reference!r}, but the results are {list(results)}.{did_you_mean([reference], results)}"
        )
    return reference


def latent_draws(idata: xr.DataTree, classifier: GPClassifier) -> Array:
    """Draws of the latent values, (s, c, n), those of all chains one after another.

    Raises
    ------
    ValueError
        If the latent values are not among the draws, or do not have the size that the model says.
    """
    posterior = idata["posterior"]
    c, n = classifier.n_functions, classifier.n_points
    if (drawn := drawn_sum(classifier)) is not None:
        f_of, each = drawn.at_own_rows(), draws_of(idata, [str(v.name) for v in drawn.variables])
        return np.array([f_of(given) for given in zip(*each, strict=True)])
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    f = np.empty((draws, c, n))
    for latent in classifier.latents:
        name = latent.f.name
        if name not in posterior:
            known = ", ".join(map(repr, posterior.data_vars)) or "none"
            raise ValueError(
                f"The draws have no latent values {name!r}, only {known}. Draws from a marginal model need "
                "gpep.recover_latent first."
            )
        values = posterior[name].transpose("chain", "draw", ...).values
        if values.size != draws * len(latent.classes) * n:
            wanted = (len(latent.classes), n) if latent.f.ndim == 2 else (n,)
            raise ValueError(f"Draws of {name!r} have the shape {values.shape[2:]}, but in the model it is {wanted}.")
        f[:, list(latent.classes)] = values.reshape(draws, len(latent.classes), n)
    return f


def draws_of(idata: xr.DataTree, names: Sequence[str]) -> list[Array]:
    """Draws of variables (s, ...), those of all chains one after another.

    Raises
    ------
    ValueError
        If a variable has no draws.
    """
    posterior = idata["posterior"].to_dataset()
    if missing := [name for name in names if name not in posterior]:
        raise ValueError(
            f"There are no posterior draws of {', '.join(map(repr, missing))}. Draws from a marginal model need "
            "gpep.recover_latent first."
        )
    stacked = posterior[list(names)].stack(sample=("chain", "draw"), create_index=False)
    return [stacked[name].transpose("sample", ...).values for name in names]


def latent_moments(result: Result, classifier: GPClassifier) -> tuple[Array, Array]:
    """Mean (c, n) of the latent values and the covariance (n, c, c) of those of each point."""
    if not isinstance(result, xr.DataTree):
        mean, cov = result.latent_moments()
        return mean.T, cov
    f = latent_draws(result, classifier)
    mean = f.mean(axis=0)
    return mean, np.einsum("sai,sbi->iab", f - mean, f - mean) / (len(f) - 1)


def hyperparameter_draws(result: Result, name: str) -> xr.DataArray:
    """Draws of one hyperparameter, of a density or the nodes of a fit, with a leading dim `sample` and a `weight`.

    Raises
    ------
    ValueError
        If there is no such variable.
    """
    if not isinstance(result, xr.DataTree):
        points, weights = result.hyper_posterior.continuous
        known = natural(result.log_posterior.space, points, "sample")
        if name in known:
            return known[name].assign_coords(weight=("sample", weights))
    else:
        known = result["posterior"].to_dataset()
        if name in known:
            draws = known[name].stack(sample=("chain", "draw"), create_index=False).transpose("sample", ...)
            return draws.assign_coords(weight=("sample", np.ones(draws.sizes["sample"])))
    names = ", ".join(map(repr, known.data_vars)) or "none"
    raise ValueError(
        f"There is no hyperparameter {name!r}; the names are: {names}.{did_you_mean([name], known.data_vars)}"
    )


def predict_draws(
    idata: xr.DataTree,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | ArrayLike | None = None,
    Xnew: ArrayLike | None = None,
    *,
    data: Mapping[str, ArrayLike] | None = None,
    observed: ArrayLike | None = None,
    model: pm.Model | None = None,
    likelihood: str | None = None,
    response: str | None = None,
    draws: int = 500,
    tolerance: float = 1e-3,
    dim: str = "new_point",
    progressbar: bool = True,
) -> xr.Dataset:
    """Predict from draws at new inputs, exactly up to Monte Carlo error: `predict_draws(idata, Xnew)`, or with `gp`.

    Given a draw of hyperparameters and latent values, the latent functions at a new input are Gaussian and independent
    between classes. Probabilities are averages over draws of those under these Gaussians, not of indicators of
    drawn labels, so that few draws do.

    Parameters
    ----------
    idata : DataTree
        Draws of the latent values and of all hyperparameters, as `pm.sample` and `gpep.recover_latent` return them.
    gp : pm.gp.Latent or sequence of them, optional
        The processes of the model; a list where classes have their own. Without it the covariance at new
        inputs is read from the graph of the model.
    Xnew : array (m, d)
        New inputs; a DataArray gives its first dim and coords to the result.
    data : dict of str to array, optional
        Values at the new points of data that sums of effects are made of, as for `Fit.predict`. Data that the
        likelihood is given, an exposure for example, are among them.
    observed : array (m,), optional
        Observations at the new points, for `log_density`.
    model : pm.Model, optional
        Model that was sampled; that of the context if not given.
    likelihood : str, optional
        Name of the likelihood, if the model has several of which one is read.
    response : str, optional
        Name of the observed variable that is predicted, where several are read together.
    draws : int
        Use at most so many draws, evenly spaced over all chains. Each costs a factorisation of the prior covariance.
    tolerance : float
        Error allowed in the probabilities of one draw, where they are computed by quasi-Monte Carlo integration.
    dim : str
        Name of the new dimension.
    progressbar : bool

    Returns
    -------
    xarray.Dataset
        The same variables as of `Fit.predict`. They are `p` (new point, class), and `mean` (new point, class) and `cov`
        (new point, class, class) of the latent functions. Where observations are not classes, their mean and variance
        take the place of `p`.

    Raises
    ------
    StructureError
        If the model is not a Gaussian process classifier.
    ValueError
        If `gp` is not of this model, or if `Xnew` has a wrong shape or values that are not finite. If `data` does not
        say what the likelihood is given at new points, or if variables are missing in `idata`.

    Examples
    --------
    >>> gpep.predict_draws(mcmc, gp, Xnew, model=model)["p"]
    """
    gp, Xnew = process_and_inputs(gp, Xnew)
    classifier = read_classifier(pm.modelcontext(model), likelihood).part(response, "A prediction")
    check_memory(classifier, "predict_draws")
    by_name(idata, "idata")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, but is {draws}.")
    drawn = drawn_sum(classifier)
    if drawn is None:
        m, given = _processes(classifier, idata, gp, Xnew, data)
    else:
        m, given = _sum(classifier, drawn, idata, gp, Xnew, data)
    names = [rv.name for rv in classifier.hyperparameters]
    values = dict(zip(names, draws_of(idata, names), strict=True))
    size = idata["posterior"].sizes["chain"] * idata["posterior"].sizes["draw"]
    chosen = np.unique(np.linspace(0, size - 1, min(draws, size)).astype(int))
    point_of = unconstrain(classifier.prior)
    elsewhere = LikelihoodElsewhere(classifier, m, {}, data, classifier.prior.inputs)
    y = None if observed is None else held_out(classifier, observed, m, "observed")

    def prediction(s: int, done: Callable[[int], None]) -> Prediction:
        """Return predictions given a draw, block of rows by block."""
        point = point_of({name: values[name][s] for name in names})
        moments, there = given(s, point), elsewhere(point, y)

        def predicted(rows: slice) -> Prediction:
            mean, variance = (each.T for each in moments(rows))
            cov = variance[:, :, None] * np.eye(classifier.n_functions)
            own = None if y is None else y[rows]
            part = predict_given(there.at(rows), mean, cov, observed=own, tolerance=tolerance)
            done(len(mean))
            return part

        return assembled(m, blocks_of_rows(m, classifier.n_functions, classifier.n_points), predicted)

    with RowProgress("Predicting", len(chosen) * m, progressbar) as progress:
        each = (prediction(s, progress.advance) for s in chosen)
        averaged = average_predictions(np.full(len(chosen), 1.0 / len(chosen)), each)
    predicted = labelled(classifier, Xnew, dim, averaged)
    return predicted.drop_vars("error", errors="ignore")


type _Moments = Callable[[slice], tuple[Array, Array]]
"""Means and variances (c, k) of latent functions at some of the new rows."""


def _processes(
    classifier: GPClassifier, idata: xr.DataTree, gp: Any, x: ArrayLike | None, data: Mapping[str, ArrayLike] | None
) -> tuple[int, Callable[[int, PointType], _Moments]]:
    """The number of new rows, and the moments there given a draw, of Gaussian processes."""
    cross_covariance = CrossCovariance(classifier.prior, as_gps(gp), {})
    inputs = repeated(cross_covariance.rows(x, data or {}), rows_of_parameters(classifier, data))
    f, prior_at = latent_draws(idata, classifier), prior_moments(classifier)

    def given(s: int, point: PointType) -> _Moments:
        k, prior_mean, *_ = prior_at(point)
        prior = DensePrior(k, prior_mean)

        def moments(rows: slice) -> tuple[Array, Array]:
            try:
                return prior.conditional(f[s], *cross_covariance(point, inputs[rows]))
            except NotPositiveDefiniteError as error:
                raise NotPositiveDefiniteError(f"At draw {s} of idata, {error}") from None

        return moments

    return len(inputs), given


def _sum(
    classifier: GPClassifier,
    drawn: DrawnSum,
    idata: xr.DataTree,
    gp: Any,
    x: ArrayLike | None,
    data: Mapping[str, ArrayLike] | None,
) -> tuple[int, Callable[[int, PointType], _Moments]]:
    """The same of sums of effects, which a draw says all of."""
    if gp is not None or x is not None:
        raise TypeError("Latent functions that are sums are predicted from draws at other data: data={...}, not Xnew.")
    m, at = drawn.at_new_rows(data, rows_of_parameters(classifier, data))
    values = draws_of(idata, [str(v.name) for v in drawn.variables])

    def given(s: int, point: PointType) -> _Moments:
        f = at([each[s] for each in values])
        return lambda rows: (f[:, rows], np.zeros_like(f[:, rows]))

    return m, given
