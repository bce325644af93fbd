"""Where a fit batch by batch stands, in a file, from which it goes on to the last digit as if it had not stopped."""

import os
import shutil
import time
from pathlib import Path

import xarray as xr

from pymc_gpep.argument_types import check_number
from pymc_gpep.array_types import Array
from pymc_gpep.fits.callback import Callback
from pymc_gpep.fits.fit import Fit
from pymc_gpep.streaming.memories import STREAMING_METHODS
from pymc_gpep.streaming.state import LeftOff


class Checkpoint(Callback):
    """A callback of `pm.fit` that writes where a fit with batches stands, every few minutes and when it has ended.

    `pm.fit(n, ..., start=path)` goes on from there, with n steps more. It is the file that `fit.to_datatree()` makes,
    so that `gpep.from_datatree` reads it too.

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
        If the path has another ending, or `minutes` is negative.
    TypeError
        If `minutes` is no number.

    Examples
    --------
    >>> options = {"method": "sparse_ep", "batch_size": 10, "inducing": 5}
    >>> with model:
    ...     fit = pm.fit(20, callbacks=[gpep.Checkpoint("run.zarr")], **options)
    ...     fit = pm.fit(10, start="run.zarr", **options)  # ten more steps
    """

    def __init__(self, path: str | os.PathLike[str], minutes: float = 10.0) -> None:
        check_number("minutes", minutes)
        if not minutes >= 0.0:
            raise ValueError(f"minutes must be at least 0, but is {minutes}.")
        self._path = Path(path)
        if self._path.suffix not in {".zarr", ".nc"}:
            raise ValueError(f"path must end in .zarr or .nc, but is {str(path)!r}.")
        self._minutes = minutes
        self._written = time.monotonic()

    def begin(self, method: str, batches: bool) -> None:
        if not batches:
            advice = "Give batch_size, or leave it out" if method in STREAMING_METHODS else "Leave it out"
            raise TypeError(
                f"callbacks has a Checkpoint, which is for fits by batches. {advice}: a fit of all rows is saved with "
                "fit.to_datatree() when it has ended."
            )

    def __call__(self, fit: Fit, losses: Array, iteration: int) -> None:
        """Write if it is time to."""
        if time.monotonic() - self._written >= 60.0 * self._minutes:
            self.write(fit)

    def finish(self, fit: Fit) -> None:
        """Write, unless nothing has been done."""
        if len(fit.hist):
            self.write(fit)

    def write(self, fit: Fit) -> None:
        """Write."""
        tree = fit.to_datatree()
        beside, old = _in_place(self._path)
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


def _in_place(path: Path) -> tuple[Path, Path]:
    """Where a new file is written, and where an old folder goes; what was broken off between the two is ended."""
    beside, old = (path.with_name(f".{path.name}.{which}") for which in ("new", "old"))
    if old.exists() and beside.exists() and not path.exists():
        beside.rename(path)
    return beside, old


def read_checkpoint(path: str | os.PathLike[str]) -> LeftOff:
    """Return the content of a file.

    Raises
    ------
    ValueError
        If there is no such file, or if it is something else.
    """
    where = Path(path)
    _in_place(where)
    if not where.exists():
        raise ValueError(f"start is {str(path)!r}, but there is no such file; it may be initial values, by name.")
    zarr = where.suffix == ".zarr"
    with xr.open_datatree(where, engine="zarr", consolidated=False) if zarr else xr.open_datatree(where) as opened:
        tree = opened.load()
    try:
        return LeftOff.of(tree)
    except ValueError as error:
        raise ValueError(
            f"start is {str(path)!r}, but that is not a file that gpep.Checkpoint wrote: {error}."
        ) from None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
