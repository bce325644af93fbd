"""A fit as a DataTree, which xarray and ArviZ write to netCDF and Zarr files.

A covariance function cannot be stored, so that reading needs the model. All else that predictions need is stored. Where
all rows are known together, these are hyperparameters and where solves start, from which a solve takes an iteration or
two. Elsewhere it is the posterior itself, whose rows may be gone. Hyperparameters on their natural scale, and latent
moments of dense fits, are there for users who read a file without the model.
"""

import json
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr

from pymc_gpep.fits import datasets
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.hyper.evaluation import evaluation_table
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.trace import Trace
from pymc_gpep.rows.fingerprint import FormerRows
from pymc_gpep.structure import GPClassifier

__all__ = ["FORMAT", "named_classes", "to_datatree"]

FORMAT = 2
"""Of the files: a reader refuses those of another."""


def to_datatree(
    log_posterior: LogPosterior,
    trace: Trace,
    hyper: HyperPosterior,
    solution: Any,
    latent: xr.Dataset | None,
    *,
    converged: bool,
    message: str,
    seconds: tuple[float, float],
) -> xr.DataTree:
    """Make the DataTree that `Fit.to_datatree` returns.

    Parameters
    ----------
    log_posterior : LogPosterior
    trace : Trace
    hyper : HyperPosterior
    solution : Solution, SparseSolution, ActiveSolution or BatchSolution
        Where the search ended.
    latent : Dataset or None
        Moments of the latent values, where they are to be in the file.
    converged : bool
    message : str
    seconds : pair of float
        Time that the fit took, and that compiling took.
    """
    classifier, best = log_posterior.classifier, trace.best
    posterior = log_posterior.stored(best.theta, solution)
    # Starts are as long as the data: a posterior that is in the file need not be solved again.
    kept = [np.empty(0) if posterior.data_vars else node.start for node in (best, *hyper.nodes)]
    nodes = evaluation_table(hyper.nodes, "node").assign(
        start=(("node", "site"), np.array(kept[1:]).reshape(len(hyper), -1)),
        weight=("node", hyper.weights),
        log_evidence=hyper.log_evidence,
    )
    natural = datasets.evaluated(log_posterior.space, hyper.nodes, "node").assign_coords(weight=("node", hyper.weights))
    groups = {
        "hyperparameters": natural,
        "history": trace.stored(),
        "best": evaluation_table([best], "at").assign(start=("site", kept[0])),
        "starts": evaluation_table(trace.ends, "start"),
        "nodes": nodes.assign(_weighing(hyper)),
        "observed_data": _observed(log_posterior),
        "posterior": posterior,
    }
    if latent is not None:
        groups["latent"] = latent
    tree = xr.DataTree.from_dict(groups)
    if len(hyper) > 1 or hyper.log_posterior is not log_posterior:
        for s, (node, solution) in enumerate(hyper.solutions()):
            tree[f"node_posteriors/{s}"] = hyper.log_posterior.stored(node.theta, solution)
    if hyper.draws is not None:
        tree["chains"] = hyper.draws
    tree.attrs = (
        trace.described()
        | log_posterior.described()
        | {
            "format": FORMAT,
            "kind": log_posterior.kind,
            "pymc_gpep_version": version("pymc_gpep"),
            "likelihood": classifier.response,
            "responses": json.dumps([part.response for part in classifier.each]),
            "asked": json.dumps(classifier.asked),
            "kind_of_likelihood": classifier.likelihood_model.name,
            "classes": named_classes(classifier),
            "parameters": json.dumps(log_posterior.space.parameters),
            "log_prior": log_posterior.space.log_prior(log_posterior.theta(best.theta)),
            "converged": int(converged),
            "message": message,
            "hyper": hyper.name,
            "hyper_converged": int(hyper.converged),
            "hyper_message": hyper.message,
            "seconds": seconds[0],
            "compile_seconds": seconds[1],
        }
    )
    return tree


def named_classes(classifier: GPClassifier) -> str:
    """Names of the classes, in one string."""
    return ", ".join(map(str, classifier.class_names))


def _weighing(hyper: HyperPosterior) -> dict[str, float]:
    """Reliability of the weights, empty where there is no weighing; the estimate itself is the log evidence."""
    if hyper.weighing is None:
        return {}
    columns = hyper.weighing._asdict()
    return columns | {"estimate": hyper.weighing.estimate.value, "standard_error": hyper.weighing.estimate.error}


def _observed(log_posterior: LogPosterior) -> xr.Dataset:
    """Observations, by the model's names; the record of rows that took the place of the model's."""
    classifier, rows = log_posterior.classifier, log_posterior.rows
    if rows is not None:
        return xr.Dataset(attrs=FormerRows.of(rows)._asdict())
    labels, found = log_posterior.observed(), {}
    for part in classifier.each:
        name = part.response
        if classifier.parts:  # of which responses may be missing at different rows of the same dim
            own = labels[part.rows].astype(part.likelihood_model.observed_dtype)
            found[name] = xr.DataArray(own, dims=[f"{name}_dim_0"])
            continue
        dims = [part.point_dim or f"{name}_dim_0", part.class_dim or f"{name}_dim_1"][: labels.ndim]
        found[name] = xr.DataArray(labels, dims=dims)
    return xr.Dataset(found)
