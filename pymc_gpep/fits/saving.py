"""A fit as a DataTree, which xarray and ArviZ write to netCDF and Zarr files, and back.

What is stored are hyperparameters and where solves start. A covariance function cannot be stored, so that reading needs
the model; from there a solve takes an iteration or two. Latent moments and hyperparameters on their
natural scale are there for those who read a file without the model.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pymc_gpep.approximations import Approximator, approximator
from pymc_gpep.approximations.ivm import IVM
from pymc_gpep.approximations.sparse import SparseApproximation
from pymc_gpep.array_types import Array
from pymc_gpep.fits import datasets
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.same_model import KIND
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import Evaluation, LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.weights import Estimate, Weighing
from pymc_gpep.structure import GPClassifier, read_classifier
from pymc_gpep.structure.assembly import evaluate

__all__ = [
    "check_hyperparameters",
    "check_model",
    "check_tree",
    "described",
    "evaluation_table",
    "evaluations_of",
    "observed_data",
    "read_fit",
    "to_datatree",
]

_GROUPS = ("history", "latent", "nodes", "observed_data")
_COLUMNS = tuple(name for name in Evaluation._fields if name != "start")
_SAME = 1e-6  # relative difference of a log density that rounding on another machine may make


def to_datatree(fit: Fit) -> xr.DataTree:
    """See `GPApproximation.to_datatree`."""
    log_posterior, optimum = fit.log_posterior, fit.optimum
    hyper, classifier = fit.hyper_posterior, fit.classifier
    parameters = log_posterior.parameters
    nodes = evaluation_table(hyper.nodes, "node", parameters).assign(
        start=(("node", "site"), np.array([node.start for node in hyper.nodes])),
        weight=("node", hyper.weights),
        log_evidence=hyper.log_evidence,
    )
    history = evaluation_table(optimum.history, "iteration", parameters)
    tree = xr.DataTree.from_dict(
        {
            "hyperparameters": datasets.nodes(fit),
            "latent": datasets.latent(fit),
            "history": history.assign(
                best=_place(optimum.best, optimum.history),
                start=("site", optimum.best.start),
                seconds=fit.seconds,
                compile_seconds=fit.compile_seconds,
            ),
            "starts": evaluation_table(optimum.ends, "start", parameters),
            "nodes": nodes.assign(_weighing_columns(hyper)),
            "observed_data": observed_data(classifier, fit.solution.labels),
        }
    )
    tree.attrs = described(log_posterior.approximator, classifier, fit.converged, optimum) | {
        "message": fit.message,
        "hyper": hyper.name,
        "hyper_converged": int(hyper.converged),
        "hyper_message": hyper.message,
    }
    if hyper.draws is not None:
        tree["chains"] = hyper.draws
    return tree


def _weighing_columns(hyper: HyperPosterior) -> dict[str, float]:
    """What the weights say of themselves, where they say anything; the estimate itself is the log evidence."""
    if hyper.weighing is None:
        return {}
    columns = hyper.weighing._asdict()
    return columns | {"estimate": hyper.weighing.estimate.value, "standard_error": hyper.weighing.estimate.error}


def _weighing_of(nodes: xr.Dataset) -> Weighing | None:
    if "pareto_k" not in nodes:
        return None
    value, error, size, pareto_k = (
        float(nodes[name]) for name in ("estimate", "standard_error", "effective_size", "pareto_k")
    )
    return Weighing(Estimate(value, error), size, pareto_k, int(nodes["draws"]))


def observed_data(classifier: GPClassifier, labels: NDArray[np.int64]) -> xr.Dataset:
    """What was observed, by the model's names."""
    name = classifier.likelihood.name
    return xr.DataArray(labels, dims=[classifier.point_dim or f"{name}_dim_0"], name=name).to_dataset()


def described(
    approximator: Approximator | SparseApproximation | IVM, classifier: GPClassifier, converged: bool, optimum: Optimum
) -> dict[str, Any]:
    """Attributes that every fit has in a file."""
    return {
        "pymc_gpep_version": version("pymc_gpep"),
        "approximation": approximator.name,
        "options": json.dumps(asdict(approximator)),
        "likelihood": classifier.likelihood.name,
        KIND: classifier.likelihood_model.name,
        "converged": int(converged),
        "optimum_converged": int(optimum.converged),
        "optimum_message": optimum.message,
        "optimum_remark": optimum.remark,
    }


def check_tree(tree: object) -> None:
    """Raise a TypeError unless this is a DataTree."""
    if not isinstance(tree, xr.DataTree):
        raise TypeError(f"tree must be a DataTree, for example arviz.from_netcdf(file), not a {type(tree).__name__}.")


def read_fit(tree: xr.DataTree, model: pm.Model | None = None) -> Fit:
    """See `pymc_gpep.variational.reading.from_datatree`."""
    if missing := [group for group in _GROUPS if group not in tree.children]:
        raise ValueError(
            f"This DataTree is no fit: it has the groups {', '.join(tree.children) or 'none'} and lacks "
            f"{', '.join(missing)}. GPApproximation.to_datatree makes one; draws alone cannot be turned into a fit."
        )
    model = pm.modelcontext(model)
    attrs = tree.attrs
    # Earlier versions called a start "sites".
    nodes, history = (
        group.rename(sites="start") if "sites" in group else group
        for group in (tree["nodes"].to_dataset(), tree["history"].to_dataset())
    )
    classifier = read_classifier(model, attrs["likelihood"])
    method = approximator(attrs["approximation"], classifier.likelihood_model, json.loads(attrs["options"]))
    log_posterior = LogPosterior(classifier, method)
    stored = [str(name) for name in nodes["parameter"].values]
    check_hyperparameters(log_posterior, stored)
    evaluations = evaluations_of(history, "iteration")
    optimum = Optimum(
        evaluations[int(history["best"])]._replace(start=history["start"].values),
        bool(attrs["optimum_converged"]),
        attrs["optimum_message"],
        evaluations,
        # Earlier versions had one start.
        ends=evaluations_of(tree["starts"].to_dataset(), "start") if "starts" in tree else (),
        remark=attrs.get("optimum_remark", ""),
    )
    best = optimum.best
    labels = tree["observed_data"].to_dataset()[attrs["likelihood"]].values
    check_model(log_posterior, best.theta, best.log_posterior - best.evidence, labels)
    expected = method.start_size(classifier.n_functions, classifier.n_points)
    if nodes.sizes["site"] != expected:
        raise ValueError(
            f"The model is not the one that was fitted: with {classifier.n_functions} latent functions {method.name} "
            f"has {expected} numbers for its sites, and the fit has {nodes.sizes['site']}."
        )
    hyper = HyperPosterior(
        attrs["hyper"],
        log_posterior,
        [
            evaluation._replace(start=start)
            for evaluation, start in zip(evaluations_of(nodes, "node"), nodes["start"].values, strict=True)
        ],
        nodes["weight"].values,
        log_evidence=float(nodes["log_evidence"]),
        converged=bool(attrs["hyper_converged"]),
        message=attrs["hyper_message"],
        weighing=_weighing_of(nodes),
        draws=tree.children["chains"].load() if "chains" in tree.children else None,
    )
    fit = Fit(log_posterior, optimum, hyper, float(history["seconds"]), float(history.get("compile_seconds", np.nan)))
    _check_names(datasets.latent(fit), tree["latent"].to_dataset())
    evidence = optimum.best.evidence
    if fit.convergence.converged and not _close(fit.log_evidence, evidence, method.tolerance):
        raise ValueError(
            f"The model is not the one that was fitted: with the hyperparameters of the fit its log evidence is "
            f"{fit.log_evidence:.6g}, and was {evidence:.6g}. Compare inputs, covariance function and mean function."
        )
    return fit


def check_hyperparameters(space: Hyperparameters, stored: list[str]) -> None:
    """Raise a ValueError if the hyperparameters of a model are not those that a fit had, by name."""
    if stored != space.parameters:
        raise ValueError(
            f"The fit has the hyperparameters {', '.join(stored) or 'none'}, but the model has "
            f"{', '.join(space.parameters) or 'none'} (unconstrained). Declare the model as it was fitted."
        )


def check_model(space: Hyperparameters, theta: Array, log_prior: float, labels: NDArray[np.int64] | None) -> None:
    """Raise a ValueError if labels, where given, or priors by their log density at θ, are not those that a fit had."""
    (observed,) = evaluate([space.classifier.labels])
    if labels is None:
        labels = observed
    if observed.shape != labels.shape or (differ := np.count_nonzero(observed != labels)):
        what = f"{differ} labels differ" if observed.shape == labels.shape else f"the model has {observed.size} points"
        raise ValueError(f"The model is not the one that was fitted to {labels.size} points: {what}.")
    prior = space.log_prior(theta)
    if np.isfinite(log_prior) and not _close(prior, log_prior):
        raise ValueError(
            f"The priors of the hyperparameters are not those that were fitted: their log density at the maximum is "
            f"{prior:.6g}, and was {log_prior:.6g}."
        )


def _check_names(latent: xr.Dataset, stored: xr.Dataset) -> None:
    """Raise a ValueError if classes or points have other names, in which predictions would be labelled wrongly."""
    for dim in latent["mean"].dims:
        own, was = (list(x[dim].values) if dim in x.coords else None for x in (latent, stored))
        if dim not in stored.dims or own != was:
            dims = ", ".join(map(repr, stored["mean"].dims))
            raise ValueError(
                f"The model is not the one that was fitted: its latent values have the dim {dim!r} with the coords "
                f"{own}; those of the fit have the dims {dims}" + (f", with {was}." if was else ".")
            )


def _close(value: float, other: float, tolerance: float = 0.0) -> bool:
    return bool(abs(value - other) <= max(_SAME, 10 * tolerance) * (1 + abs(other)))


def evaluation_table(evaluations: Sequence[Evaluation], dim: str, parameters: list[str]) -> xr.Dataset:
    """Evaluations without their starts, one for each place along `dim`."""
    columns = {name: np.array([getattr(each, name) for each in evaluations]) for name in _COLUMNS}
    return xr.Dataset(
        {name: ((dim, "parameter")[: values.ndim], values) for name, values in columns.items()},
        coords={"parameter": np.array(parameters, dtype=np.str_)},
    )


def evaluations_of(table: xr.Dataset, dim: str) -> tuple[Evaluation, ...]:
    """The evaluations in a table."""
    kinds = {name: kind for name, kind in Evaluation.__annotations__.items() if kind in (int, float)}
    rows = (table.isel({dim: i}) for i in range(table.sizes[dim]))
    of_rows = ([kinds.get(name, np.asarray)(row[name].values) for name in _COLUMNS] for row in rows)
    return tuple(Evaluation._make([*values, np.empty(0)]) for values in of_rows)


def _place(best: Evaluation, history: Sequence[Evaluation]) -> int:
    return next(i for i, evaluation in enumerate(history) if np.array_equal(evaluation.theta, best.theta))
