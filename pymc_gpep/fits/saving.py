"""A fit as a DataTree. xarray and ArviZ can write a DataTree to netCDF and Zarr files.

A covariance function cannot be stored, so reading a fit needs the model. For fits of all rows together, the file
contains hyperparameters and starts. From these starts a solve converges in one or two iterations. For other fits the
file contains the posterior itself, since rows may be absent when the file is read. Hyperparameters on their natural
scale, and latent moments of dense fits, can be read without the model.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
"""Version of the file format. Files of another version cannot be read."""


def to_datatree(fit: Fitted) -> xr.DataTree:
    """Return the fit as a DataTree. xarray can write it to a file, and `gpep.from_datatree` reads it.

    Returns
    -------
    DataTree
        The group `hyperparameters` has the nodes on their natural scale. Other groups are `history`, `best` and
        `observed_data`, and for a dense fit `latent`. `nodes` and `posterior` have the values from which the fit is
        restored. A fit by batches continues from `state`; `chains` has the nodes drawn by NUTS. Draws are not included.
        Rows of `data=...` are represented by their location and a checksum of a few rows.

    Raises
    ------
    ValueError
        If the approximation failed and has no posterior.

    Examples
    --------
    >>> tree = fit.to_datatree()
    >>> with model:  # declared as when it was fitted
    ...     fit = gpep.from_datatree(tree)
    """
    log_posterior, trace, hyper = fit.log_posterior, fit.trace, fit.hyper_posterior
    classifier, best = log_posterior.classifier, trace.best
    posterior = log_posterior.stored(best.theta, fit.solution)
    # Starts are as long as the data. If the posterior is stored, starts are not needed.
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
            "hyper_doubt": hyper.doubt,
            "seconds": fit.seconds,
            "compile_seconds": fit.compile_seconds,
        }
    )
    return tree


def named_classes(classifier: GPClassifier) -> str:
    """Return the names of the classes, joined to one string."""
    return ", ".join(map(str, classifier.class_names))


def _weighing(hyper: HyperPosterior) -> dict[str, float]:
    """Return measures of reliability of importance weights by name; empty without importance sampling."""
    if hyper.weighing is None:
        return {}
    columns = hyper.weighing._asdict()
    return columns | {"estimate": hyper.weighing.estimate.value, "standard_error": hyper.weighing.estimate.error}


def _observed(log_posterior: LogPosterior) -> xr.Dataset:
    """Return the observations by name of observed variable, or the record of the rows of `data=...`."""
    classifier, rows = log_posterior.classifier, log_posterior.rows
    if rows is not None:
        return xr.Dataset(attrs=FormerRows.of(rows)._asdict())
    labels, found = log_posterior.observed(), {}
    for part in classifier.each:
        name = part.response
        if classifier.parts:  # Responses on the same dim may be missing at different rows.
            own = labels[part.rows].astype(part.likelihood_model.observed_dtype)
            found[name] = xr.DataArray(own, dims=[f"{name}_dim_0"])
            continue
        dims = [part.point_dim or f"{name}_dim_0", part.class_dim or f"{name}_dim_1"][: labels.ndim]
        found[name] = xr.DataArray(labels, dims=dims)
    return xr.Dataset(found)


def save(fit: Fitted, path: str | os.PathLike[str]) -> None:
    """Write the fit to a file. `gpep.load` reads the file.

    The file is written under a temporary name and then renamed, so the path always holds a complete file.

    Parameters
    ----------
    path : path
        A netCDF file (`"fit.nc"`) or a Zarr store (`"fit.zarr"`). Both need the optional packages of
        `pymc-gpep[files]`.

    Raises
    ------
    ImportError
        If these packages are not installed.
    ValueError
        If the path has another ending, or if the approximation failed and has no posterior.

    Examples
    --------
    >>> fit.save("fit.nc")
    >>> fit = gpep.load("fit.nc", model)  # the model declared again
    """
    checked = checked_path(path)
    write_tree(to_datatree(fit), checked)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path if its ending is .nc or .zarr, and the libraries of these files are installed."""
    checked = Path(path)
    if checked.suffix not in {".zarr", ".nc"}:
        raise ValueError(f"path must end in .zarr or .nc, but is {str(path)!r}.")
    _check_installed(checked)
    return checked


def _check_installed(path: Path) -> None:
    libraries = ["zarr"] if path.suffix == ".zarr" else ["h5netcdf", "netCDF4"]
    if not any(map(find_spec, libraries)):
        raise ImportError(f'The file {str(path)!r} needs {libraries[0]}: pip install "pymc-gpep[files]".')


def write_tree(tree: xr.DataTree, path: Path) -> None:
    """Write a DataTree to a netCDF file or a Zarr store, and replace an older file.

    A checksum follows the content of a netCDF file; readers of netCDF ignore it. In a Zarr store the checksum is an
    attribute of the root.
    """
    new, old = _finished(path)
    try:
        for each in (new, old):
            _remove(each)
        if path.suffix == ".zarr":
            _in_a_thread(lambda: tree.to_zarr(new, consolidated=False))
            root = json.loads((new / _ROOT).read_text())
            root["attributes"][_CHECKSUM] = _checksums(new)[0]
            (new / _ROOT).write_text(json.dumps(root))
        else:
            # Written by Python, since HDF5 can crash the process if the disk is full.
            content = bytes(_in_a_thread(tree.to_netcdf))
            new.write_bytes(content + _MARK + hashlib.sha256(content).hexdigest().encode())
    except BaseException as error:
        with contextlib.suppress(OSError):
            _remove(new)
        if isinstance(error, OSError):
            why = f"{error.strerror or error}. The fit was not saved, and an earlier file of this name was not changed"
            raise OSError(error.errno, why, str(path)) from error
        raise
    if path.is_dir():  # A folder cannot be renamed to the name of an existing folder.
        path.rename(old)
    new.rename(path)
    _remove(old)


def read_tree(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read a file of `write_tree` into memory.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    ImportError
        If the library that reads the file is not installed.
    ValueError
        If the content of the file differs from its checksum, or if xarray cannot read the file. A file without a
        checksum is not checked.
    """
    where = Path(path)
    _finished(where)
    if not where.exists():
        raise FileNotFoundError(f"The file {str(path)!r} does not exist.")
    options: dict[str, Any] = {"engine": "zarr", "consolidated": False} if where.suffix == ".zarr" else {}
    try:
        checksum, stored = _checksums(where)
        if stored not in {"", checksum}:
            raise ValueError("its checksum differs from the stored checksum")
        _check_installed(where)
        return _in_a_thread(lambda: _loaded(where, options))
    except ImportError:
        raise
    except Exception as error:  # Each library that xarray uses raises different errors for damaged files.
        raise ValueError(
            f"The file {str(path)!r} is damaged, or is not a fit: {str(error).rstrip('.')}. Take an earlier copy, or "
            "save the fit again."
        ) from error


def _loaded(path: Path, options: dict[str, Any]) -> xr.DataTree:
    with xr.open_datatree(path, **options) as opened:
        return opened.load()


def _in_a_thread[T](work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result. An interrupt is raised after the end of `work`.

    Interrupts are raised in the main thread, so `work` can release its locks. Other locks would block later files.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(bool).result()  # The thread starts here: an interrupt at its start must not lose `work`.
        return thread.submit(work).result()


_MARK, _CHECKSUM, _ROOT = b"pymc_gpep sha256 ", "sha256", "zarr.json"


def _checksums(path: Path) -> tuple[str, str]:
    """Return the SHA-256 checksum of the content of a file or store, and the stored checksum (empty if absent)."""
    found, stored = hashlib.sha256(), ""
    if path.is_dir():
        for each in sorted(each for each in path.rglob("*") if each.is_file()):
            content = each.read_bytes()
            if each == path / _ROOT:
                root = json.loads(content)
                stored = root["attributes"].pop(_CHECKSUM, "")
                content = json.dumps(root, sort_keys=True).encode()
            found.update(f"{each.relative_to(path).as_posix()} {len(content)} ".encode() + content)
        return found.hexdigest(), stored
    content = path.read_bytes()
    length = len(_MARK) + 2 * found.digest_size
    ending = content[-length:]
    if ending.startswith(_MARK):
        content, stored = content[:-length], ending[len(_MARK) :].decode("ascii", "replace")
    found.update(content)
    return found.hexdigest(), stored


def _finished(path: Path) -> tuple[Path, Path]:
    """Finish an interrupted replacement. Return the temporary paths for the new file and for the old folder."""
    new, old = (path.with_name(f".{path.name}.{which}") for which in ("new", "old"))
    if old.exists() and new.exists() and not path.exists():
        new.rename(path)
    return new, old


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
