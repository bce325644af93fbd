"""Leave-one-out cross-validation without draws: what it returns, and how it is had from fits that work in parts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from arviz import ELPDDataLOO
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.log_predictive import log_predictive
from pymc_gpep.progress import RowProgress
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.structure import GPClassifier

if TYPE_CHECKING:
    from pymc_gpep.fits.inducing_fit import InducingFit

__all__ = ["CavityELPD", "leave_one_out_by_parts", "summed_up"]


@dataclass(kw_only=True, repr=False)
class CavityELPD(ELPDDataLOO):
    """Leave-one-out cross-validation by cavities of an approximation: what ArviZ has for PSIS-LOO, without draws.

    Attributes
    ----------
    method : str
        Name of the approximation.
    n_refitted : int
        Number of points that were left out by fitting again.
    """

    method: str
    n_refitted: int = 0

    def _header(self) -> str:
        again = f", {self.n_refitted} of which were left out by fitting again" if self.n_refitted else ""
        return f"Computed from the cavities of {self.method} at {self.n_data_points} observations{again}."


def leave_one_out_by_parts(
    fit: "InducingFit",
    labels: NDArray[np.int64],
    likelihood: Likelihood,
    whole: Callable[[slice], tuple[Array, Array]],
    left_out: Iterable[LeftOut],
    *,
    tolerance: float = 5e-5,
    progressbar: bool = True,
) -> CavityELPD:
    """See `InducingFit.loo`.

    Parameters
    ----------
    fit : InducingFit
    labels : array (n,)
    likelihood : Likelihood
        At all points.
    whole : function of a slice
        Means (c, B) and covariances (B, c, c) of some of the latent values under the posterior.
    left_out : iterable of LeftOut
        All of them, each without its own label.
    tolerance : float
    progressbar : bool
    """
    lpd, elpd = np.empty((2, len(labels)))
    with RowProgress("Leaving out", len(labels), progressbar) as progress:
        for rows, mean, cov in left_out:
            y, own = labels[rows], likelihood.at(rows)
            elpd[rows] = log_predictive(own, mean, cov, y, tolerance=tolerance)
            own_mean, own_cov = whole(rows)
            lpd[rows] = log_predictive(own, own_mean.T, own_cov, y, tolerance=tolerance)
            progress.advance(len(y))
    return summed_up(fit.classifier, fit.name, lpd, elpd, fit.converged, named=fit.rows is None)


def summed_up(
    classifier: GPClassifier,
    method: str,
    lpd: Array,
    elpd: Array,
    converged: bool,
    n_refitted: int = 0,
    named: bool = True,
) -> CavityELPD:
    """For log densities (n,) of labels under the whole posterior, and without themselves.

    Points have the coords of the model if they are `named` there.
    """
    name = classifier.likelihood.name
    dim = classifier.point_dim or f"{name}_dim_0"
    labels = classifier.model.coords.get(dim) if named else None
    coords = {dim: np.arange(len(elpd)) if labels is None else np.asarray(labels)}
    return CavityELPD(
        elpd=float(elpd.sum()),
        se=float(np.sqrt(len(elpd) * elpd.var())),
        p=float((lpd - elpd).sum()),
        n_samples=0,
        n_data_points=len(elpd),
        scale="log",
        warning=not converged,
        good_k=None,
        elpd_i=xr.DataArray(elpd, dims=[dim], coords=coords, name=name),
        p_loo_i=xr.DataArray(lpd - elpd, dims=[dim], coords=coords, name=name),
        method=method,
        n_refitted=n_refitted,
    )
