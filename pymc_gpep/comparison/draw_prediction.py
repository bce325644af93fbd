"""Predictions at new inputs from draws of the latent values, as MCMC gives them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.blocking import PointType

from pymc_gpep.array_types import Array
from pymc_gpep.comparison.fits_and_draws import by_name, draws_of, latent_draws
from pymc_gpep.fits.mixture import Prediction, assembled, average_predictions
from pymc_gpep.fits.prediction import (
    blocks_of_rows,
    held_out,
    labelled,
    predict_given,
    process_and_inputs,
)
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.graph.memory import check_memory
from pymc_gpep.prior_moments.drawn_sums import DrawnSum, drawn_sum
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.processes.cross_covariance import CrossCovariance, as_gps
from pymc_gpep.progress import RowProgress
from pymc_gpep.reading import GPClassifier, read_classifier
from pymc_gpep.reading.hierarchy import unconstrain
from pymc_gpep.reading.likelihood_elsewhere import LikelihoodElsewhere, rows_of_parameters
from pymc_gpep.sums.levels import repeated


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
    point_of = unconstrain(classifier)
    elsewhere = LikelihoodElsewhere(classifier, m, {}, data, classifier.inputs)
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
    cross_covariance = CrossCovariance(classifier, as_gps(gp), {})
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
