"""A fit by active rows from the DataTree that was made of it: no row is chosen, and nothing is iterated."""

import json

import numpy as np
import pymc as pm
import xarray as xr

from pymc_gpep.approximations.ivm import IVM, ActiveSolution, RowSample, active_prior, sites_of
from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.fits.active_fit import ActiveFit
from pymc_gpep.fits.active_saving import ACTIVE
from pymc_gpep.fits.fitted_rows import former_rows
from pymc_gpep.fits.same_model import check_classes, check_covariance, check_kind
from pymc_gpep.fits.saving import check_hyperparameters, check_model, evaluations_of
from pymc_gpep.gaussians.registry import posterior_of
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.selection.contract import Selection
from pymc_gpep.structure import read_classifier
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.structure.model_rows import ModelRows, RowInputs

__all__ = ["holds_active_fit", "read_active_fit"]


def holds_active_fit(tree: xr.DataTree) -> bool:
    """Whether a tree is what `ActiveFit.to_datatree` made."""
    return ACTIVE in tree.children


def read_active_fit(tree: xr.DataTree, model: pm.Model | None = None) -> ActiveFit:
    """See `pymc_gpep.variational.reading.from_datatree`."""
    attrs, stored = tree.attrs, tree[ACTIVE].to_dataset()
    space = Hyperparameters(read_classifier(pm.modelcontext(model), attrs["likelihood"]))
    found = tree["best"].to_dataset()
    (best,) = evaluations_of(found, "iteration")
    check_hyperparameters(space, [str(name) for name in found["parameter"].values])
    observed, rows = tree["observed_data"].to_dataset(), stored["row"].values
    former = former_rows(observed)
    if former is None:
        labels = observed[attrs["likelihood"]].values
    else:  # those of other rows are not known any more
        labels = np.full(former.n_rows, -1)
        labels[rows] = stored["label"].values
    check_kind(space.classifier, attrs)
    check_model(space, best.theta, best.log_posterior - best.evidence, None if former else labels)
    check_classes(space.classifier, attrs)
    approximator = IVM(**json.loads(attrs["options"]))
    likelihood = space.classifier.likelihood_model
    inputs = stored["input"].values
    blocks = InducingBlocks(space.classifier, None, space.data)
    if former is None and not np.allclose(blocks.rows.inputs(slice(None))[rows], inputs, rtol=1e-9, atol=0.0):
        raise ValueError("The model is not the one that was fitted: the inputs of its active rows are others.")
    active = RowInputs.of(space.classifier, blocks.on(InMemory(inputs, labels[rows])))
    dense = active_prior(ModelRows(active, space.point(best.theta)), np.arange(len(rows)))
    if "prior" in tree.children:
        was = np.asarray(tree["prior"]["covariance"].values)
        check_covariance(dense.k[:, : was.shape[1], : was.shape[1]], was)
    precision, location, first_precision, first_location = (
        stored[name].values for name in ("precision", "location", "first_precision", "first_location")
    )
    sites = sites_of(approximator.rule(likelihood), precision, location)
    solution = ActiveSolution(
        Selection(rows, stored["score"].values, first_precision, first_location),
        posterior_of(dense, sites),
        float(stored.attrs["bound"]),
        float(stored.attrs["evidence"]),
        _convergence(tree),
        labels,
        likelihood,
        RowSample(tree["others"].to_dataset()["row"].values, float(stored.attrs["weight"])),
    )
    history = evaluations_of(tree["history"].to_dataset(), "iteration")
    return ActiveFit(
        space,
        approximator,
        best.theta,
        inputs[None],
        Optimum(
            best,
            bool(attrs["optimum_converged"]),
            attrs["optimum_message"],
            history,
            remark=attrs.get("optimum_remark", ""),
        ),
        solution,
        float(attrs["seconds"]),
        float(attrs["compile_seconds"]),
        former,
    )


def _convergence(tree: xr.DataTree) -> Convergence | None:
    if "sweeps" not in tree.children:
        return None
    sweeps = tree["sweeps"].to_dataset()
    return Convergence(
        int(sweeps.attrs["status"]),
        sweeps.sizes["sweep"],
        sweeps["evidence"].values,
        sweeps["residual"].values,
        float(sweeps.attrs["tolerance"]),
        str(sweeps.attrs["scheme"]),
    )
