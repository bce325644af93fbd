"""Read a fit from a DataTree or a file."""

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from pymc_gpep.approximations.methods import (
    APPROXIMATIONS,
    FURTHER_METHODS,
    SPARSE_APPROXIMATIONS,
    takes_bounds,
    takes_predictors,
)
from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.saving import FORMAT, named_classes, read_tree
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.weights import Estimate, Weighing
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.log_posteriors.dense_log_posterior import (
    DenseLogPosterior,
    InducingRowsLogPosterior,
    NeighbourLogPosterior,
)
from pymc_gpep.log_posteriors.evaluation import Evaluation, evaluations_of
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import LogPosterior, StoredFit
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.reading import GPClassifier, StructureError, read_classifier
from pymc_gpep.reading.rewritten_models import with_bambi_intercept
from pymc_gpep.registry import Names, Registry
from pymc_gpep.rows.fingerprint import FormerRows
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.streaming.batch_log_posterior import BatchLogPosterior
from pymc_gpep.streaming.memories import STREAMING_METHODS
from pymc_gpep.univariate.likelihood import UnivariateLikelihood
from pymc_gpep.univariate.predictors import PredictorsLikelihood
from pymc_gpep.univariate.prior_factor import PriorFactor

# A smaller relative difference of a density or covariance can be due to rounding on another machine.
_REFIT_TOLERANCE = 1e-6
_OTHER = "The model differs from the fitted model"


@one_blas_thread()
def from_datatree(tree: xr.DataTree, model: pm.Model | None = None, *, gp: Any = None) -> Fit:
    """Return the fit that `Fit.to_datatree` stored in a DataTree.

    Parameters
    ----------
    tree : DataTree
        DataTree, for example from `arviz.from_netcdf` or `arviz.from_zarr`.
    model : pm.Model, optional
        The model that was fitted, declared again. The default is the model of the context.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values. They are needed if the call of `pm.fit` had them, and the fit uses inducing
        inputs, batches or active rows.

    Returns
    -------
    Fit
        Fit with hyperparameters, history, and the approximate posterior at each node.

    Raises
    ------
    TypeError
        If `tree` is not a DataTree.
    StructureError
        If the model cannot be read, or if `gp` is needed and missing.
    ValueError
        If the tree is not a fit, or has another file format. If its method or its likelihood is not registered. If the
        model differs from the fitted model in labels, names of classes or points, hyperparameters, priors, or the prior
        of the latent functions.

    Examples
    --------
    >>> tree = ep.to_datatree()  # xarray can write it to a file
    >>> gpep.from_datatree(tree, model).predict(gp, Xnew)["p"]
    """
    _check_tree(tree)
    attrs = tree.attrs
    check_name("the kind of the fit", attrs["kind"], FILES.names)
    kind = FILES[attrs["kind"]]
    _check_registered(attrs)
    space = Hyperparameters(_classifier(kind, pm.modelcontext(model), attrs))
    _check_hyperparameters(space, json.loads(attrs["parameters"]))
    (best,) = evaluations_of(tree["best"].to_dataset(), "at")
    best = best._replace(start=np.asarray(tree["best"].to_dataset()["start"].values))
    observed = tree["observed_data"].to_dataset()
    rows = _former_rows(observed)
    labels = np.concatenate([observed[name].values for name in _responses(attrs)]) if rows is None else None
    _check_model(space, best.theta[: space.size], attrs, labels)
    posterior = tree["posterior"].to_dataset()
    log_posterior = kind.of_file(StoredFit(tree, space, best, rows, as_gps(gp)))
    trace = log_posterior.own_trace or _optimum(tree, best)
    solution = log_posterior.restored(best.theta, posterior) if posterior.data_vars else None
    log_posterior = log_posterior.ending_with(best.theta, solution)
    _check_prior(log_posterior, best.theta, posterior)
    fit = Fit(
        log_posterior,
        trace,
        _hyper_posterior(tree, log_posterior, best, solution),
        float(attrs["seconds"]),
        float(attrs["compile_seconds"]),
        solution=solution,
        why_maximum=attrs.get("why_maximum", ""),
    )
    if "latent" in tree.children:
        _check_latent(fit, tree["latent"].to_dataset(), best.evidence)
    return fit


def load(path: str | os.PathLike[str], model: pm.Model | None = None, *, gp: Any = None) -> Fit:
    """Read a fit from a file that `Fit.save` has written.

    Parameters
    ----------
    path : path
        A netCDF file or a Zarr store.
    model : pm.Model, optional
        The model that was fitted, declared again. The default is the model of the context.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values, if the call of `pm.fit` had them; see `from_datatree`.

    Returns
    -------
    Fit

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    StructureError, ValueError
        If the model or the file does not match the fit; see `from_datatree`.

    Examples
    --------
    >>> ep.save("fit.nc")
    >>> ep = gpep.load("fit.nc", model)
    """
    try:
        return from_datatree(read_tree(path), model, gp=gp)
    except Exception as error:
        error.add_note(f"The fit was read from the file {str(path)!r}.")
        raise


def _check_tree(tree: object) -> None:
    if not isinstance(tree, xr.DataTree):
        raise TypeError(f"tree must be a DataTree, for example arviz.from_netcdf(file), not a {type(tree).__name__}.")
    if "approximation" not in tree.attrs:
        raise ValueError(
            f"This DataTree is not a fit: it has the groups {', '.join(tree.children) or 'none'}. Load the "
            "result of fit.to_datatree(). Draws alone do not contain a fit."
        )
    if (was := tree.attrs.get("format", 1)) != FORMAT:
        raise ValueError(
            f"This fit was written in format {was}, by version {tree.attrs.get('pymc_gpep_version', 'unknown')}, and "
            f"this version reads format {FORMAT} only. Fit the model again, or load the file with the former version."
        )


def _check_registered(attrs: Mapping[Any, Any]) -> None:
    methods = {*Names(APPROXIMATIONS, SPARSE_APPROXIMATIONS, FURTHER_METHODS), *STREAMING_METHODS}
    own = UnivariateLikelihood.name, PredictorsLikelihood.name, PriorFactor.name
    likelihoods = {*LIKELIHOODS.names, *own}
    used = [("method", attrs["approximation"], methods)]
    used += [("likelihood", name, likelihoods) for name in attrs["kind_of_likelihood"].split(" and ")]
    for what, name, known in used:
        if name not in known:
            raise ValueError(
                f"This fit used the {what} {name!r}, which is not registered. Call gpep.register before from_datatree."
            )


def _classifier(kind: type[LogPosterior], model: pm.Model, attrs: Mapping[Any, Any]) -> GPClassifier:
    """Read the model with the options of the stored fit. They may make means of processes hyperparameters."""
    asked = json.loads(attrs.get("asked", "[]"))
    means = kind.takes_means
    name = attrs["likelihood"] if len(_responses(attrs)) == 1 else None
    model = with_bambi_intercept(model)
    method = attrs["approximation"]
    read = partial(read_classifier, model, name, asked, starts=True, predictors=takes_predictors(method))
    read = partial(read, priors=means, bounds=takes_bounds(method))
    classifier = kind.in_form(read(means=means))
    if not means or Hyperparameters(classifier).parameters == json.loads(attrs["parameters"]):
        return classifier
    return read()


def _responses(attrs: Mapping[Any, Any]) -> list[str]:
    """Return the names of the observed variables of a fit."""
    found: list[str] = json.loads(attrs.get("responses", json.dumps([attrs["likelihood"]])))
    return found


FILES: Registry[type[LogPosterior]] = Registry(
    "file",
    (DenseLogPosterior, InducingRowsLogPosterior, NeighbourLogPosterior, SparseLogPosterior, BatchLogPosterior),
    of=LogPosterior,
    named="kind",
)
"""Classes of log posteriors by their names in files."""


def _optimum(tree: xr.DataTree, best: Evaluation) -> Optimum:
    attrs = tree.attrs
    return Optimum(
        best,
        bool(attrs["trace_converged"]),
        attrs["trace_message"],
        evaluations_of(tree["history"].to_dataset(), "iteration"),
        interrupted=bool(attrs["trace_interrupted"]),
        ends=evaluations_of(tree["starts"].to_dataset(), "start"),
        remark=attrs["trace_remark"],
    )


def _hyper_posterior(tree: xr.DataTree, log_posterior: LogPosterior, best: Evaluation, solution: Any) -> HyperPosterior:
    attrs, nodes = tree.attrs, tree["nodes"].to_dataset()
    own = "node_posteriors" in tree.children
    of_nodes = log_posterior.held(best) if own else log_posterior
    known = {best.theta.tobytes(): solution} if of_nodes is log_posterior and solution is not None else {}
    evaluations = [
        evaluation._replace(start=start)
        for evaluation, start in zip(evaluations_of(nodes, "node"), nodes["start"].values, strict=True)
    ]
    for s, evaluation in enumerate(evaluations if own else ()):
        stored = tree[f"node_posteriors/{s}"].to_dataset()
        if stored.data_vars:
            known[evaluation.theta.tobytes()] = of_nodes.restored(evaluation.theta, stored)
    return HyperPosterior(
        attrs["hyper"],
        of_nodes,
        evaluations,
        nodes["weight"].values,
        log_evidence=float(nodes["log_evidence"]),
        converged=bool(attrs["hyper_converged"]),
        message=attrs["hyper_message"],
        doubt=attrs.get("hyper_doubt", ""),
        weighing=_weighing(nodes),
        draws=tree.children["chains"].load() if "chains" in tree.children else None,
        density=np.asarray(tree["density"].to_dataset()["theta"]) if "density" in tree.children else None,
        solved=known,
    )


def _weighing(nodes: xr.Dataset) -> Weighing | None:
    if "pareto_k" not in nodes:
        return None
    value, error, size, pareto_k = (
        float(nodes[name]) for name in ("estimate", "standard_error", "effective_size", "pareto_k")
    )
    return Weighing(Estimate(value, error), size, pareto_k, int(nodes["draws"]))


def _former_rows(observed: xr.Dataset) -> FormerRows | None:
    """Return the stored record of the rows of `data=...`; None if the rows of the model were fitted."""
    if "checksum" not in observed.attrs:
        return None
    n_rows, n_inputs, checksum, name = (observed.attrs[field] for field in FormerRows._fields)
    return FormerRows(int(n_rows), int(n_inputs), str(checksum), str(name))


# Checks that the model equals the fitted model.


def _check_hyperparameters(space: Hyperparameters, stored: list[str]) -> None:
    if stored != space.parameters:
        raise ValueError(
            f"The fit has the hyperparameters {', '.join(stored) or 'none'}, but the model has "
            f"{', '.join(space.parameters) or 'none'} (unconstrained). Declare the model as it was fitted."
        )


def _check_model(space: Hyperparameters, theta: Array, attrs: Mapping[Any, Any], labels: Observed | None) -> None:
    """Check likelihood, labels (if stored), log prior density at `theta` and names of classes against the file."""
    classifier = space.classifier
    if (own := classifier.likelihood_model.name) != (was := attrs["kind_of_likelihood"]):
        raise ValueError(f"{_OTHER}: its likelihood is {own}, not {was}.")
    if labels is not None:
        observed = evaluate([classifier.labels])[0][classifier.seen]
        if observed.shape != labels.shape or (differ := np.count_nonzero(observed != labels)):
            what = (
                f"{differ} labels differ" if observed.shape == labels.shape else f"the model has {len(observed)} points"
            )
            raise ValueError(f"{_OTHER}, which has {len(labels)} points: {what}.")
    prior, stored = space.log_prior(theta), float(attrs["log_prior"])
    if np.isfinite(stored) and not _close(prior, stored):
        raise ValueError(
            "The priors of the hyperparameters differ from the fitted model: their log density at the maximum is "
            f"{prior:.6g}, but {stored:.6g} in the file. Load the fit with the fitted model."
        )
    if (own := named_classes(classifier)) != (was := attrs["classes"]):
        raise ValueError(f"{_OTHER}: its classes are {own}, not {was}.")


def _check_prior(log_posterior: LogPosterior, x: Array, stored: xr.Dataset) -> None:
    """Check the prior covariance of a few inputs against the file, if it is stored.

    Nothing is checked if the graph of the model does not show the covariance of arbitrary inputs.
    """
    if "prior_covariance" not in stored:
        return
    was = np.asarray(stored["prior_covariance"].values)
    try:
        own = log_posterior.few_prior(x)
    except StructureError:
        return
    check_covariance(own, was)


def check_covariance(own: Array, was: Array) -> None:
    """Raise a ValueError if off-diagonal entries of two prior covariances (q, m, m) differ by more than rounding."""
    apart = ~np.eye(was.shape[-1], dtype=bool)
    if own.shape != was.shape or (np.abs(own - was) > _REFIT_TOLERANCE * np.abs(was).max())[:, apart].any():
        raise ValueError(
            f"{_OTHER}: at the hyperparameters of the fit the prior covariance of its inputs differs. Compare "
            "covariance functions."
        )


def _same_labels(own: list[Any] | None, was: list[Any] | None) -> bool:
    """Return whether labels of a dim are equal. Two missing labels, such as NaN, count as equal."""
    if own is None or was is None:
        return own is was
    return len(own) == len(was) and all(a == b or (pd.isna(a) and pd.isna(b)) for a, b in zip(own, was, strict=True))


def _check_latent(fit: Fit, stored: xr.Dataset, evidence: float) -> None:
    """Check names of classes and points, and the log evidence, against the file."""
    _ = fit.solution  # Solve at the maximum first. Its stored start is the result of this solve.
    latent = fit.latent
    for dim in latent["mean"].dims:
        own, was = (list(x[dim].values) if dim in x.coords else None for x in (latent, stored))
        if dim not in stored.dims or not _same_labels(own, was):
            dims = ", ".join(map(repr, stored["mean"].dims))
            raise ValueError(
                f"{_OTHER}: its latent values have the dim {dim!r} with the coords {own}; latent values of the fit "
                f"have the dims {dims}" + (f", with {was}." if was else ".")
            )
    tolerance = fit.log_posterior.approximator.tolerance
    if fit.solution.converged and not _close(fit.log_evidence, evidence, tolerance):
        raise ValueError(
            f"{_OTHER}: with the hyperparameters of the fit its log evidence is {fit.log_evidence:.6g}, not "
            f"{evidence:.6g}. Compare inputs, covariance function and mean function."
        )


def _close(value: float, other: float, tolerance: float = 0.0) -> bool:
    return bool(abs(value - other) <= max(_REFIT_TOLERANCE, 10 * tolerance) * (1 + abs(other)))
