"""Where a fit batch by batch stands, for another one to go on from."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array


class LeftOff(NamedTuple):
    """Where a fit stands, for another one to go on from."""

    settings: Mapping[str, Any]
    values: Mapping[str, Array]
    """Values of the state, by name."""
    losses: Array
    floored: Array

    @property
    def table(self) -> xr.Dataset:
        """The values as a Dataset, whose variables have the prefix `state_`."""
        return xr.Dataset(
            {f"state_{name}": ([f"{name}_{i}" for i in range(each.ndim)], each) for name, each in self.values.items()}
        )

    @classmethod
    def of(cls, tree: xr.DataTree) -> "LeftOff":
        """Where the fit of a file stood.

        Raises
        ------
        ValueError
            If the file is not of a fit by batches.
        """
        if "settings" not in tree.attrs or "posterior" not in tree.children:
            raise ValueError("it is not a fit by batches, of this version")
        history, state = tree["history"].to_dataset(), tree["posterior"].to_dataset()
        values = {
            str(name).removeprefix("state_"): np.asarray(state[name].values)
            for name in state.data_vars
            if str(name).startswith("state_")
        }
        settings = json.loads(tree.attrs["settings"])
        return cls(settings, values, -history["log_posterior"].values, history["floored"].values)

    def check(self, settings: Mapping[str, Any], inducing: Array) -> None:
        """Raise a ValueError if a fit with these settings and inducing inputs (1 or c, M, d) cannot go on from here."""
        pairs = {name: (was, settings.get(name)) for name, was in self.settings.items()}
        was, now = pairs.get("parameters", ("", ""))
        if was != now:
            raise ValueError(
                f"start is a fit of another model: its hyperparameters were {was}, and those of this one are {now}. "
                "Declare the model as it was then, or begin anew."
            )
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
