"""A fit batch by batch from the DataTree that was made of it. Nothing is computed again."""

import json

import numpy as np
import pymc as pm
import xarray as xr

from pymc_gpep.fits.fitted_rows import former_rows
from pymc_gpep.fits.same_model import check_classes, check_kind, check_prior
from pymc_gpep.fits.saving import check_hyperparameters, check_model
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.solvers.inducing import Whitening
from pymc_gpep.streaming.fit import StreamedFit
from pymc_gpep.streaming.methods import STREAMING_METHODS
from pymc_gpep.streaming.rules.registry import rule_for
from pymc_gpep.streaming.saving import STATE, saved
from pymc_gpep.structure import read_classifier
from pymc_gpep.structure.likelihood_elsewhere import LikelihoodElsewhere

__all__ = ["holds_streamed_fit", "read_streamed_fit"]


def holds_streamed_fit(tree: xr.DataTree) -> bool:
    """Whether a tree is what `StreamedFit.to_datatree` made."""
    return STATE in tree.children


def read_streamed_fit(tree: xr.DataTree, model: pm.Model | None = None) -> StreamedFit:
    """See `pymc_gpep.variational.reading.from_datatree`."""
    attrs = tree.attrs
    space = Hyperparameters(read_classifier(pm.modelcontext(model), attrs["likelihood"]))
    check_hyperparameters(space, json.loads(attrs["parameters"]))
    found = saved(tree)
    observed = tree["observed_data"].to_dataset()
    rows = former_rows(observed)
    labels = observed[attrs["likelihood"]].values if rows is None else None
    check_kind(space.classifier, attrs)
    check_model(space, found.values["theta"], float(attrs["log_prior"]), labels)
    check_classes(space.classifier, attrs)
    kinds = {kind.name: kind for kind in STREAMING_METHODS[attrs["approximation"]]}
    memory = kinds[attrs["memory"]](**json.loads(attrs["options"]))
    at_a_row = LikelihoodElsewhere(space.classifier, 1, space.data)(space.point(found.values["theta"]))
    rule = rule_for(memory.functional, found.settings["sites"], at_a_row)
    whitening = None
    if "inducing_values" in tree.children:
        factor = np.asarray(tree["inducing_values"]["factor"].values)
        check_prior(space, found.values["theta"], found.values["inducing"] * found.values["units"], factor)
        whitening = Whitening(factor, float(found.values["jitter"]))
    return StreamedFit(
        space,
        attrs["approximation"],
        memory,
        rule,
        None,
        found.settings,
        found.losses,
        found.floored,
        attrs["ended"],
        lambda: found.values,
        float(attrs["seconds"]),
        float(attrs["compile_seconds"]),
        rows,
        whitening,
    )
