"""Latent values, hyperparameters and predictions at new rows, from fits or from draws of samplers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.evidence.memory_check import check_memory
from pymc_gpep.fits.datasets import natural
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.mixture import Prediction, assembled, average_predictions
from pymc_gpep.fits.prediction import blocks_of_rows, held_out, labelled, predict_given, process_and_inputs
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import GraphFunction, interpreted
from pymc_gpep.graphs.rows_apart import check_rows_apart
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.hyperparameters import unconstrain
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.processes.processes import CrossCovariance
from pymc_gpep.progress import RowProgress
from pymc_gpep.reading import read_classifier
from pymc_gpep.reading.classifier import GPClassifier, LikelihoodAtNewRows, rows_of_parameters
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from pymc_gpep.sums import new_data
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.sums.new_data import NewData, repeated
from pymc_gpep.sums.sum_at_new_rows import SumAtNewRows


def drawn_sum(classifier: GPClassifier) -> "DrawnSum | None":
    """Return the latent functions of a model as a function of drawn variables; None if all functions are processes."""
    return DrawnSum(classifier.prior) if isinstance(classifier.prior, LatentSum) else None


class DrawnSum:
    """Latent functions of a sum of effects, computed from draws of the variables of the sum."""

    def __init__(self, prior: LatentSum) -> None:
        self._prior = prior

    @property
    def variables(self) -> list[Variable]:
        """Variables on which latent functions depend: free variables of the model, and values of Gaussian processes."""
        prior = self._prior
        own: set[Variable] = {latent.f for latent in prior.processes}
        behind = set(ancestors([prior.argument], blockers=own))
        return [v for v in (*prior.model.free_RVs, *own) if v in behind]

    def at_own_rows(self) -> Callable[[Sequence[Array]], Array]:
        """Return a function of values of `variables` that computes latent functions (c, n) at the fitted rows."""
        function = _function(self.variables, self._prior.argument)
        return lambda values: self._by_function(function(*values), self._prior.n_points)

    def at_new_rows(
        self, data: Mapping[str, ArrayLike] | None, count: int = 1
    ) -> tuple[int, Callable[[Sequence[Array]], Array]]:
        """Return the number m of new rows, and a function from values of `variables` to latent functions (c, m).

        A single row is repeated `count` times.

        Raises
        ------
        StructureError
            If Gaussian processes are among the terms, since their draws have no values at new inputs.
        """
        prior = self._prior
        if prior.processes:
            raise StructureError(
                f"Draws have the values of {listing([latent.f for latent in prior.processes])} only at the rows of "
                "the model. Predict by a fit, fit.predict, or by pm.sample_posterior_predictive."
            )
        new_rows = prior.at_new_rows(None, {})
        assert isinstance(new_rows, SumAtNewRows)
        new: NewData = repeated(new_rows.rows(None, data or {}), count)
        there = new_rows.behind.symbols(new.names)
        argument = prior.argument if prior.everywhere is None else prior.everywhere
        (moved,) = graph_replace([argument], new_rows.behind.replaced(there), strict=False)
        function, m = _function([*self.variables, *there.values()], moved), len(new)
        unchecked = [new_rows.behind.apart(there, new)]

        def check(values: Sequence[Array]) -> None:
            """Raise a StructureError if latent functions of a row depend on other rows, for values of `variables`."""
            rows, others = unchecked[0]

            def partly(inputs: Sequence[Variable]) -> Callable[..., Any]:
                own = others | {there[name]: value for name, value in new.by_row.items() if there[name] not in inputs}
                made = _function([*self.variables, *own, *inputs], moved)
                return partial(made, *values, *own.values())

            axis = moved.ndim - 1 - prior.by_class
            check_rows_apart(
                "Latent functions", moved, axis if axis >= 0 else None, rows, partly, stop=prior.model.basic_RVs
            )
            unchecked.clear()

        def at(values: Sequence[Array]) -> Array:
            if unchecked:
                check(values)
            try:
                return self._by_function(function(*values, *new.values(m)), m)
            except (ValueError, IndexError) as error:
                behind = [v.name for v in prior.model.data_vars if v in ancestors([argument]) and v.name not in there]
                more = f" Give {', '.join(map(repr, behind))} as well." if behind else ""
                raise ValueError(
                    f"The argument of the likelihood cannot be computed at {m} new rows from the data given.{more}"
                ) from error

        return m, at

    def _by_function(self, found: Any, n: int) -> Array:
        """Return values of the latent functions in the shape (c, n)."""
        prior = self._prior
        spread = np.broadcast_to(found, (n, prior.n_functions)[: 1 + prior.by_class])
        return np.asarray(spread.T if prior.by_class else spread[None], np.float64)


def _function(inputs: Sequence[Variable], output: Variable) -> Callable[..., Any]:
    made = GraphFunction(interpreted(inputs, [output]))
    return lambda *values: made(*values)[0]


Result = Fit | xr.DataTree


def by_name(results: Any, single: str = "fit") -> dict[str, Result]:
    """Check that results are fits or DataTrees of draws, and return them by name.

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree.
    ValueError
        If results are empty, or if a DataTree has no posterior draws.
    """
    # A DataTree is a Mapping as well, so check for a single result first.
    named = dict(results) if isinstance(results, Mapping) and not isinstance(results, Result) else {single: results}
    if not named:
        raise ValueError("results is empty. Pass fits or draws by name.")
    for name, result in named.items():
        if isinstance(result, xr.DataTree):
            if "posterior" not in result.children:
                groups = ", ".join(result.children) or "none"
                raise ValueError(f"{name!r} has no posterior draws; the groups of the DataTree are: {groups}.")
        elif not isinstance(result, Result):
            raise TypeError(
                f"{name!r} must be a fit, as returned by pm.fit for a Gaussian process, or a DataTree of draws, not a "
                f"{type(result).__name__}. Give several results by name, such as {{'EP': fit}}."
            )
    return named


def classifier_of(results: Mapping[str, Result], model: pm.Model | None) -> GPClassifier:
    """Return the classifier of `model`, or of the first fit if `model` is None.

    Raises
    ------
    ValueError
        If neither a model nor a fit is given.
    """
    if model is not None:
        return read_classifier(model)
    for result in results.values():
        if not isinstance(result, xr.DataTree):
            return result.classifier
    raise ValueError("No fit is among the results, so the model that was sampled must be given: model=...")


def reference_among(results: Mapping[str, Result], reference: str | None) -> str:
    """Return the name of the reference result. None selects the first DataTree, or else the first fit.

    Raises
    ------
    ValueError
        If no result has this name.
    """
    if reference is None:
        return next((name for name, result in results.items() if isinstance(result, xr.DataTree)), next(iter(results)))
    if reference not in results:
        raise ValueError(
            f"reference is {reference!r}, but the results are {list(results)}.{did_you_mean([reference], results)}"
        )
    return reference


def latent_draws(idata: xr.DataTree, classifier: GPClassifier) -> Array:
    """Return draws of the latent values, (s, c, n), with concatenated chains.

    Raises
    ------
    ValueError
        If draws have no latent values, or latent values of another size than in the model.
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
            raise ValueError(f"Draws of {name!r} must have the shape {wanted}, but have {values.shape[2:]}.")
        f[:, list(latent.classes)] = values.reshape(draws, len(latent.classes), n)
    return f


def draws_of(idata: xr.DataTree, names: Sequence[str]) -> list[Array]:
    """Return draws (s, ...) of each variable, with concatenated chains.

    Raises
    ------
    ValueError
        If a variable has no draws.
    """
    posterior = idata["posterior"].to_dataset()
    if missing := [name for name in names if name not in posterior]:
        raise ValueError(
            f"The posterior lacks draws of {', '.join(map(repr, missing))}. If it was sampled from a marginal model, "
            "add these draws by gpep.recover_latent(idata, marginal)."
        )
    stacked = posterior[list(names)].stack(sample=("chain", "draw"), create_index=False)
    return [stacked[name].transpose("sample", ...).values for name in names]


def latent_moments(result: Result, classifier: GPClassifier) -> tuple[Array, Array]:
    """Return means (c, n) and covariances (n, c, c) of the latent values at each point."""
    if not isinstance(result, xr.DataTree):
        mean, cov = result.latent_moments()
        return mean.T, cov
    f = latent_draws(result, classifier)
    mean = f.mean(axis=0)
    return mean, np.einsum("sai,sbi->iab", f - mean, f - mean) / (len(f) - 1)


def hyperparameter_draws(result: Result, name: str) -> xr.DataArray:
    """Return draws of a hyperparameter, or its nodes of a fit. The first dim is `sample`, with a coordinate `weight`.

    Raises
    ------
    ValueError
        If the variable does not exist.
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
        f"{name!r} is not a hyperparameter. The hyperparameters are: {names}.{did_you_mean([name], known.data_vars)}"
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
    """Predict at new inputs from posterior draws, exactly up to Monte Carlo error.

    Call `predict_draws(idata, Xnew)`, or `predict_draws(idata, gp, Xnew)`. Given a draw of hyperparameters and latent
    values, the latent functions at a new input are Gaussian and independent between classes. Class probabilities under
    these Gaussians are averaged over draws. This needs fewer draws than averages of drawn labels.

    Parameters
    ----------
    idata : DataTree
        Draws of the latent values and of all hyperparameters, such as results of `pm.sample` and `gpep.recover_latent`.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values, as a list if classes have separate processes. By default the covariance at new
        inputs is read from the graph of the model.
    Xnew : array (m, d)
        New inputs. The first dim and coords of a DataArray become dim and coords of the result.
    data : dict of str to array, or data frame, optional
        Data of effects and of the likelihood at the new points, as for `Fit.predict`.
    observed : array (m,), optional
        Observations at the new points, for `log_density`.
    model : pm.Model, optional
        Model that was sampled. The default is the model of the context.
    likelihood : str, optional
        Name of the likelihood to read, if the model has several.
    response : str, optional
        Name of the predicted observed variable, if several are read together.
    draws : int
        Largest number of draws. They are evenly spaced over all chains. Each draw factorises the prior covariance.
    tolerance : float
        Allowed error of probabilities given a draw, for quasi-Monte Carlo integration.
    dim : str
        Name of the new dimension.
    progressbar : bool

    Returns
    -------
    xarray.Dataset
        The variables of `Fit.predict`: `p` (new point, class), and `mean` (new point, class) and `cov` (new point,
        class, class) of the latent functions. If observations are not classes, their mean and variance replace `p`.

    Raises
    ------
    StructureError
        If the model is not a Gaussian process classifier.
    ValueError
        If `gp` is not of this model, or if `Xnew` has a wrong shape or values that are not finite. If `data` lacks
        arguments of the likelihood at new points, or if variables are missing in `idata`.

    Examples
    --------
    >>> gpep.predict_draws(mcmc, gp, Xnew, model=model)["p"]
    """
    gp, Xnew = process_and_inputs(gp, Xnew)
    classifier = read_classifier(pm.modelcontext(model), likelihood).part(response, "A prediction")
    check_memory(classifier, "predict_draws")
    by_name(idata, "idata")
    data = None if data is None else new_data.by_name(data, classifier.model)
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
    new_likelihood = LikelihoodAtNewRows(classifier, m, {}, data, classifier.prior.inputs)
    y = None if observed is None else held_out(classifier, observed, m, "observed")

    def prediction(s: int, done: Callable[[int], None]) -> Prediction:
        """Return predictions given draw s, computed in blocks of rows. `done` is called after each block."""
        point = point_of({name: values[name][s] for name in names})
        moments, there = given(s, point), new_likelihood(point, y)

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
"""Function of a slice of k new rows that returns means and variances (c, k) of latent functions."""


def _processes(
    classifier: GPClassifier, idata: xr.DataTree, gp: Any, x: ArrayLike | None, data: Mapping[str, ArrayLike] | None
) -> tuple[int, Callable[[int, PointType], _Moments]]:
    """Return the number of new rows, and a function of a draw that computes moments of processes at these rows."""
    cross_covariance = CrossCovariance(classifier.prior, as_gps(gp), {})
    inputs = repeated(cross_covariance.rows(x, data or {}), rows_of_parameters(classifier, data))
    f, prior_at = latent_draws(idata, classifier), prior_moments(classifier)

    def given(s: int, point: PointType) -> _Moments:
        prior = DensePrior(*prior_at(point)[:2])

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
    """Return the number of new rows, and a function of a draw that computes moments of sums at these rows."""
    if gp is not None or x is not None:
        raise TypeError(
            "For latent functions that are sums, predict_draws needs new data: data={...} in place of Xnew."
        )
    m, at = drawn.at_new_rows(data, rows_of_parameters(classifier, data))
    values = draws_of(idata, [str(v.name) for v in drawn.variables])

    def given(s: int, point: PointType) -> _Moments:
        f = at([each[s] for each in values])
        return lambda rows: (f[:, rows], np.zeros_like(f[:, rows]))

    return m, given
