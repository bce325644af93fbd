"""The result of leave-one-out cross-validation without draws."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from arviz import ELPDDataLOO

from pymc_gpep.array_types import Array
from pymc_gpep.checks.left_out_groups import Groups
from pymc_gpep.hyper.weights import USABLE
from pymc_gpep.reading import GPClassifier


@dataclass(kw_only=True, repr=False)
class LeaveOneOut(ELPDDataLOO):
    """Leave-one-out cross-validation by cavities of an approximation: what ArviZ has for PSIS-LOO, without draws.

    Attributes
    ----------
    method : str
        Name of the approximation.
    n_refitted : int
        Number of points that were left out by fitting again.
    groups : str or None
        Name of the groups that were left out, of which each is a point of the result.
    error_i : xarray.DataArray or None
        Monte Carlo standard error of `elpd_i`, where that is sampled.
    pit_i : xarray.DataArray or None
        Probability integral transforms, where they were asked for.

    Examples
    --------
    >>> loo = ep.loo()
    >>> loo.elpd, loo.elpd_i
    """

    method: str
    n_refitted: int = 0
    groups: str | None = None
    error_i: xr.DataArray | None = None
    pit_i: xr.DataArray | None = None

    def _header(self) -> str:
        if self.groups is not None:
            return f"Computed from the sites of {self.method} outside of each of {self.n_data_points} groups."
        again = f", {self.n_refitted} of which were left out by fitting again" if self.n_refitted else ""
        return f"Computed from the cavities of {self.method} at {self.n_data_points} observations{again}."


def groups_summed_up(
    classifier: GPClassifier,
    method: str,
    groups: Groups,
    lpd: Array,
    elpd: Array,
    sampled: tuple[Array, Array],
    converged: bool,
    draws: int,
) -> LeaveOneOut:
    """For log densities (g,) of groups under the whole posterior and without themselves, with errors and Pareto k."""

    def by_group(values: Array) -> xr.DataArray:
        return xr.DataArray(values, dims=[groups.name], coords={groups.name: groups.labels}, name=classifier.response)

    found = _totals(by_group, lpd, elpd, converged)
    error, pareto_k = map(by_group, sampled)
    return LeaveOneOut(
        method=method, groups=groups.name, error_i=error, pareto_k=pareto_k, n_samples=draws, good_k=USABLE, **found
    )


def summed_up(
    classifier: GPClassifier,
    method: str,
    lpd: Array,
    elpd: Array,
    converged: bool,
    n_refitted: int = 0,
    named: bool = True,
    pit: Array | None = None,
) -> LeaveOneOut:
    """For log densities (n,) of labels under the whole posterior, and without themselves.

    Points have the coords of the model if they are `named` there.
    """
    name = classifier.response
    dim = classifier.point_dim or f"{name}_dim_0"
    labels = classifier.coords_of_points() if named else None
    coords: dict[str, Any] = {dim: np.arange(len(elpd)) if labels is None else labels}
    if (responses := classifier.responses_of_points()) is not None:
        coords["response"] = (dim, responses)

    def by_point(values: Array) -> xr.DataArray:
        return xr.DataArray(values, dims=[dim], coords=coords, name=name)

    found = _totals(by_point, lpd, elpd, converged)
    pit_i = None if pit is None else by_point(pit)
    return LeaveOneOut(method=method, n_refitted=n_refitted, pit_i=pit_i, n_samples=0, good_k=None, **found)


def _totals(of_each: Callable[[Array], xr.DataArray], lpd: Array, elpd: Array, converged: bool) -> dict[str, Any]:
    """Fields of a result that follow from log densities of all that was left out."""
    return {
        "elpd": float(elpd.sum()),
        "se": float(np.sqrt(len(elpd) * elpd.var())),
        "p": float((lpd - elpd).sum()),
        "n_data_points": len(elpd),
        "scale": "log",
        "warning": not converged,
        "elpd_i": of_each(elpd),
        "p_loo_i": of_each(lpd - elpd),
    }
