"""Where a fit batch by batch stands, in a file, from which it goes on to the last digit as if it had not stopped."""

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.streaming.fit import StreamedFit

__all__ = ["Checkpoint", "Saved", "read_checkpoint"]

_KIND = "checkpoint of pymc_gpep"


class Saved(NamedTuple):
    """What a file holds."""

    settings: Mapping[str, Any]
    values: Mapping[str, Array]
    """Of the state, by name."""
    losses: Array
    floored: Array

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise a ValueError if a fit with these settings cannot go on from here."""
        differ = [name for name in self.settings if self.settings[name] != settings.get(name)]
        if differ:
            each = ", ".join(f"{name} was {self.settings[name]!r} and is {settings.get(name)!r}" for name in differ)
            raise ValueError(f"start is a checkpoint of another fit: {each}. Ask for the same, or begin anew.")


class Checkpoint:
    """A callback of `pm.fit` that writes where a fit with batches stands, every few minutes and at its end.

    `pm.fit(n, ..., start=path)` goes on from there, with n steps more.

    Parameters
    ----------
    path : path
        A Zarr store (`"run.zarr"`) or a netCDF file (`"run.nc"`). It is written beside and renamed, so that there is
        always a whole one.
    minutes : float
        How often.

    Raises
    ------
    ValueError
        If the path has another ending.
    """

    def __init__(self, path: str | os.PathLike[str], minutes: float = 10.0) -> None:
        self._path = Path(path)
        if self._path.suffix not in {".zarr", ".nc"}:
            raise ValueError(f"path must end in .zarr or .nc, but is {str(path)!r}.")
        self._minutes = minutes
        self._written = time.monotonic()

    def __call__(self, fit: StreamedFit, losses: Array, step: int) -> None:
        """Write if it is time to."""
        if time.monotonic() - self._written >= 60.0 * self._minutes:
            self.write(fit)

    def write(self, fit: StreamedFit) -> None:
        """Write."""
        state = {name: ([f"{name}_{i}" for i in range(each.ndim)], each) for name, each in fit.values.items()}
        tree = xr.DataTree.from_dict({"state": xr.Dataset(state), "history": fit.history})
        tree.attrs = dict(fit.settings) | {"kind": _KIND}
        beside = self._path.with_name(f".{self._path.name}.new")
        old = self._path.with_name(f".{self._path.name}.old")
        for each in (beside, old):
            _remove(each)
        if self._path.suffix == ".zarr":
            tree.to_zarr(beside, consolidated=False)
        else:
            tree.to_netcdf(beside)
        if self._path.is_dir():  # a folder cannot take the place of another one
            self._path.rename(old)
        beside.rename(self._path)
        _remove(old)
        self._written = time.monotonic()


def read_checkpoint(path: str | os.PathLike[str]) -> Saved:
    """What is in a file.

    Raises
    ------
    ValueError
        If there is none, or if it is something else.
    """
    where = Path(path)
    if not where.exists():
        raise ValueError(f"start is {str(path)!r}, but there is no such file; it may be initial values, by name.")
    zarr = where.suffix == ".zarr"
    with xr.open_datatree(where, engine="zarr", consolidated=False) if zarr else xr.open_datatree(where) as opened:
        tree = opened.load()
    if tree.attrs.get("kind") != _KIND:
        raise ValueError(f"start is {str(path)!r}, but that is no file that gpep.Checkpoint wrote.")
    settings = {str(name): _plain(value) for name, value in tree.attrs.items() if name != "kind"}
    history, state = tree["history"].to_dataset(), tree["state"].to_dataset()
    values = {str(name): np.asarray(state[name].values) for name in state.data_vars}
    return Saved(settings, values, -history["log_posterior"].values, history["floored"].values)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
