"""A fit with inducing inputs as a DataTree: all that predictions need, but for the covariance function."""

from typing import TYPE_CHECKING

import xarray as xr

from pymc_gpep.fits.fitted_rows import rows_of_fit
from pymc_gpep.fits.same_model import named_classes
from pymc_gpep.fits.saving import described, evaluation_table

if TYPE_CHECKING:
    from pymc_gpep.fits.sparse_fit import SparseFit

__all__ = ["INDUCING", "sparse_datatree"]

INDUCING = "inducing"
"""The group that no other fit has."""


def sparse_datatree(fit: "SparseFit") -> xr.DataTree:
    """See `SparseFit.to_datatree`."""
    solution, optimum = fit.solution, fit.optimum
    if solution.posterior is None:
        raise ValueError(f"There is no posterior to store: {fit.approximator.title} {fit.convergence}.")
    whitening, whitened = solution.posterior.whitening, solution.posterior.whitened
    square = "inducing", "inducing_other"
    coupled = "function_and_inducing", "function_and_inducing_other"
    learned = optimum.best.theta.size - fit.theta.size
    names = [*fit.space.parameters, *(f"inducing[{i}]" for i in range(learned))]
    tree = xr.DataTree.from_dict(
        {
            "hyperparameters": fit.hyperparameters,
            INDUCING: xr.Dataset(
                {
                    "inputs": (("set_of_inputs", "inducing", "column"), fit.inducing_inputs),
                    "factor": (("set", *square), whitening.factor),
                    "mean": (("function", "inducing"), whitened.mean),
                    "root": (("function", *square) if whitened.root.ndim == 3 else coupled, whitened.root),
                },
                attrs={"jitter": whitening.jitter, "log_normaliser": whitened.log_normaliser},
            ),
            "history": evaluation_table(optimum.history, "iteration", names),
            "best": evaluation_table([optimum.best], "iteration", names),
            "sweeps": xr.Dataset(
                {name: ("sweep", getattr(fit.convergence, name)) for name in ("evidence", "residual")},
                attrs={
                    "status": fit.convergence.status,
                    "scheme": fit.convergence.scheme,
                    "value": solution.evidence,
                    "floored": solution.floored,
                },
            ),
            "observed_data": rows_of_fit(fit.classifier, fit.rows, solution.labels),
        }
    )
    tree.attrs = described(fit.approximator, fit.classifier, fit.converged, optimum) | {
        "classes": named_classes(fit.classifier),
        "seconds": fit.seconds,
        "compile_seconds": fit.compile_seconds,
    }
    return tree
