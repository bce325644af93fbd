"""A fit by active rows as a DataTree: rows and sites are kept, so that nothing has to be chosen again."""

from typing import TYPE_CHECKING

import xarray as xr

from pymc_gpep.fits.fitted_rows import rows_of_fit
from pymc_gpep.fits.same_model import FEW, named_classes
from pymc_gpep.fits.saving import described, evaluation_table

if TYPE_CHECKING:
    from pymc_gpep.fits.active_fit import ActiveFit

__all__ = ["ACTIVE", "active_datatree"]

ACTIVE = "active"
"""The group that no other fit has."""


def active_datatree(fit: "ActiveFit") -> xr.DataTree:
    """See `ActiveFit.to_datatree`."""
    solution, optimum, names = fit.solution, fit.optimum, fit.space.parameters
    sites, chosen = solution.posterior.sites, solution.selection
    found = solution.convergence
    active = fit.active.drop_vars(str(fit.classifier.point_dim), errors="ignore").assign(
        precision=(("function", "inclusion"), sites.precision),
        location=(("function", "inclusion"), sites.location),
        first_precision=(("function", "inclusion"), chosen.precision),
        first_location=(("function", "inclusion"), chosen.location),
    )
    active.attrs = {
        "bound": solution.bound,
        "weight": solution.sample.weight,
        "evidence": fit.active_evidence,
    }
    tree = xr.DataTree.from_dict(
        {
            "hyperparameters": fit.hyperparameters,
            ACTIVE: active,
            "prior": xr.Dataset({"covariance": (("set", "some", "others"), solution.posterior.prior.k[:, :FEW, :FEW])}),
            "others": xr.Dataset({"row": ("other", solution.sample.others)}),
            "history": evaluation_table(optimum.history, "iteration", names),
            "best": evaluation_table([optimum.best], "iteration", names),
            "observed_data": rows_of_fit(fit.classifier, fit.rows, solution.labels),
        }
    )
    if found is not None:
        tree["sweeps"] = xr.Dataset(
            {name: ("sweep", getattr(found, name)) for name in ("evidence", "residual")},
            attrs={"status": found.status, "scheme": found.scheme, "tolerance": found.tolerance},
        )
    tree.attrs = described(fit.approximator, fit.classifier, fit.converged, optimum) | {
        "classes": named_classes(fit.classifier),
        "seconds": fit.seconds,
        "compile_seconds": fit.compile_seconds,
    }
    return tree
