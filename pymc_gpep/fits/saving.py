"""A fit as a DataTree, which xarray and ArviZ write to netCDF and Zarr files.

A covariance function cannot be stored, so that reading needs the model. All else that predictions need is stored. Where
all rows are known together, these are hyperparameters and where solves start, from which a solve takes an iteration or
two. Elsewhere it is the posterior itself, whose rows may be gone. Hyperparameters on their natural scale, and latent
moments of dense fits, are there for users who read a file without the model.
"""

import json
from importlib.metadata import version

import numpy as np
import xarray as xr

from pymc_gpep.fits import datasets
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.log_posteriors.evaluation import evaluation_table
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.reading import GPClassifier
from pymc_gpep.rows.fingerprint import FormerRows

FORMAT = 2
"""Of the files: a reader refuses those of another."""


def to_datatree(fit: Fitted) -> xr.DataTree:
    """Make a DataTree of the fit, which xarray writes to a file; `gpep.from_datatree` makes a fit of it again.

    Returns
    -------
    DataTree
        The group `hyperparameters` has the nodes on their natural scale. Other groups are `history`, `best` and
        `observed_data`, and for a dense fit `latent`. `nodes` and `posterior` have the values that are needed to
        make the fit again. `state` is there where steps over batches can go on from it, and `chains` where the
        nodes were drawn by NUTS. Draws are not in it: `sample` returns a DataTree itself. Rows that came from
        `data=...` are not in it either: it says where they were, and what checksum a few of them have.

    Raises
    ------
    ValueError
        If there is no posterior, since the approximation failed.

    Examples
    --------
    >>> fit.to_datatree().to_netcdf("fit.nc")  # or to_zarr
    >>> with model:  # declared as when it was fitted
    ...     fit = gpep.from_datatree(arviz.from_netcdf("fit.nc"))
    """
    log_posterior, trace, hyper = fit.log_posterior, fit.trace, fit.hyper_posterior
    classifier, best = log_posterior.classifier, trace.best
    posterior = log_posterior.stored(best.theta, fit.solution)
    # Starts are as long as the data: a posterior that is in the file need not be solved again.
    kept = [np.empty(0) if posterior.data_vars else node.start for node in (best, *hyper.nodes)]
    nodes = evaluation_table(hyper.nodes, "node").assign(
        start=(("node", "site"), np.array(kept[1:]).reshape(len(hyper), -1)),
        weight=("node", hyper.weights),
        log_evidence=hyper.log_evidence,
    )
    natural = datasets.evaluated(log_posterior.space, hyper.nodes, "node")
    natural = datasets.with_numbers(natural, "node", {"weight": hyper.weights})
    groups = {
        "hyperparameters": natural,
        "history": trace.stored(),
        "best": evaluation_table([best], "at").assign(start=("site", kept[0])),
        "starts": evaluation_table(trace.ends, "start"),
        "nodes": nodes.assign(_weighing(hyper)),
        "observed_data": _observed(log_posterior),
        "posterior": posterior,
    }
    if log_posterior.joint:
        groups["latent"] = fit.latent
    tree = xr.DataTree.from_dict(groups)
    if len(hyper) > 1 or hyper.log_posterior is not log_posterior:
        for s, (node, solution) in enumerate(hyper.solutions()):
            tree[f"node_posteriors/{s}"] = hyper.log_posterior.stored(node.theta, solution)
    if hyper.draws is not None:
        tree["chains"] = hyper.draws
    if hyper.density is not None:
        tree["density"] = xr.Dataset({"theta": (("point", "parameter"), hyper.density)})
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
            "converged": int(fit.converged),
            "message": fit.message,
            "hyper": hyper.name,
            "why_maximum": fit.why_maximum,
            "hyper_converged": int(hyper.converged),
            "hyper_message": hyper.message,
            "seconds": fit.seconds,
            "compile_seconds": fit.compile_seconds,
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
