"""A fit batch by batch as a DataTree: all that predictions and further steps need, but for the covariance function."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fitted_rows import rows_of_fit
from pymc_gpep.fits.same_model import KIND, named_classes

if TYPE_CHECKING:
    from pymc_gpep.streaming.fit import StreamedFit

__all__ = ["STATE", "Saved", "saved", "streamed_datatree"]

STATE = "state"
"""The group that no other fit has."""


class Saved(NamedTuple):
    """Where a fit stands, for another one to go on from."""

    settings: Mapping[str, Any]
    values: Mapping[str, Array]
    """Of the state, by name."""
    losses: Array
    floored: Array

    def check(self, settings: Mapping[str, Any], inducing: Array) -> None:
        """Raise a ValueError if a fit with these settings and inducing inputs (1 or c, M, d) cannot go on from here."""
        pairs = {name: (was, settings.get(name)) for name, was in self.settings.items()}
        if "inducing" in self.values:
            (sets, size, _), (own_sets, own_size, _) = self.values["inducing"].shape, inducing.shape
            pairs["inducing"] = size, own_size
            if sets != own_sets:
                pairs["shared_inducing"] = sets == 1, own_sets == 1
        if differ := {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}:
            each = ", ".join(
                "random_seed is another one" if name == "seed" else f"{name} was {was!r} and is {now!r}"
                for name, (was, now) in differ.items()
            )
            raise ValueError(
                f"start is of another fit: {each}. Give pm.fit the arguments that it was given then, or begin anew."
            )


def streamed_datatree(fit: "StreamedFit") -> xr.DataTree:
    """See `StreamedFit.to_datatree`."""
    state = {name: ([f"{name}_{i}" for i in range(each.ndim)], each) for name, each in fit.values.items()}
    groups = {"hyperparameters": fit.hyperparameters, STATE: xr.Dataset(state), "history": fit.history}
    if fit.posterior is not None:
        factor = fit.posterior.whitening.factor
        groups["inducing_values"] = xr.Dataset({"factor": (("set", "inducing", "inducing_other"), factor)})
    labels = fit.labels() if fit.rows is None else np.empty(0, np.int64)
    groups["observed_data"] = rows_of_fit(fit.classifier, fit.rows, labels)
    tree = xr.DataTree.from_dict(groups)
    tree.attrs = {
        "pymc_gpep_version": version("pymc_gpep"),
        "approximation": fit.method,
        "memory": fit.memory.name,
        "options": json.dumps(asdict(fit.memory)),
        "settings": json.dumps(dict(fit.settings)),
        "likelihood": fit.classifier.likelihood.name,
        KIND: fit.classifier.likelihood_model.name,
        "classes": named_classes(fit.classifier),
        "parameters": json.dumps(fit.space.parameters),
        "log_prior": fit.space.log_prior(fit.theta),
        "ended": fit.ended,
        "seconds": fit.seconds,
        "compile_seconds": fit.compile_seconds,
    }
    return tree


def saved(tree: xr.DataTree) -> Saved:
    """Where the fit of a tree stood."""
    history, state = tree["history"].to_dataset(), tree[STATE].to_dataset()
    values = {str(name): np.asarray(state[name].values) for name in state.data_vars}
    settings = json.loads(tree.attrs["settings"])
    return Saved(settings, values, -history["log_posterior"].values, history["floored"].values)
