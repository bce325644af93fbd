"""A fit with inducing inputs from the DataTree that was made of it. Nothing is solved."""

import json

import numpy as np
import pymc as pm
import xarray as xr

from pymc_gpep.approximations.registry import SPARSE_APPROXIMATIONS
from pymc_gpep.approximations.solution import Convergence
from pymc_gpep.approximations.sparse import SparseSolution
from pymc_gpep.fits.fitted_rows import former_rows
from pymc_gpep.fits.same_model import check_classes, check_kind, check_prior
from pymc_gpep.fits.saving import check_hyperparameters, check_model, evaluations_of
from pymc_gpep.fits.sparse_fit import SparseFit
from pymc_gpep.fits.sparse_saving import INDUCING
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.solvers.coupled_whitened import CoupledWhitened
from pymc_gpep.solvers.inducing import Whitening
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior
from pymc_gpep.structure import read_classifier

__all__ = ["holds_sparse_fit", "read_sparse_fit"]


def holds_sparse_fit(tree: xr.DataTree) -> bool:
    """Whether a tree is what `SparseFit.to_datatree` made."""
    return INDUCING in tree.children


def read_sparse_fit(tree: xr.DataTree, model: pm.Model | None = None) -> SparseFit:
    """See `pymc_gpep.variational.reading.from_datatree`."""
    attrs, stored = tree.attrs, tree[INDUCING].to_dataset()
    space = Hyperparameters(read_classifier(pm.modelcontext(model), attrs["likelihood"]))
    found = tree["best"].to_dataset()
    (best,) = evaluations_of(found, "iteration")
    parameters = [str(name) for name in found["parameter"].values]
    hyperparameters = [name for name in parameters if not name.startswith(f"{INDUCING}[")]
    check_hyperparameters(space, hyperparameters)
    theta = best.theta[: len(hyperparameters)]
    observed = tree["observed_data"].to_dataset()
    rows = former_rows(observed)
    labels = observed[attrs["likelihood"]].values if rows is None else np.empty(0, np.int64)
    check_kind(space.classifier, attrs)
    check_model(space, theta, best.log_posterior - best.evidence, None if rows else labels)
    check_prior(space, theta, stored["inputs"].values, stored["factor"].values)
    check_classes(space.classifier, attrs)
    kind = next(kind for kind in SPARSE_APPROXIMATIONS if kind.name == attrs["approximation"])
    approximator = kind(**json.loads(attrs["options"]))
    sweeps = tree["sweeps"].to_dataset()
    likelihood = space.classifier.likelihood_model
    whitened = WhitenedPosterior if stored["root"].ndim == 3 else CoupledWhitened
    solution = SparseSolution(
        evidence=float(sweeps.attrs["value"]),
        number=approximator.number(likelihood, *stored["mean"].shape),
        posterior=InducingPosterior(
            Whitening(stored["factor"].values, float(stored.attrs["jitter"])),
            whitened(stored["mean"].values, stored["root"].values, float(stored.attrs["log_normaliser"])),
        ),
        labels=labels,
        likelihood=likelihood,
        start=np.empty(0),
        convergence=Convergence(
            int(sweeps.attrs["status"]),
            sweeps.sizes["sweep"],
            sweeps["evidence"].values,
            sweeps["residual"].values,
            approximator.tolerance,
            sweeps.attrs["scheme"],
        ),
        inducing_slope=np.empty(0),
        floored=int(sweeps.attrs["floored"]),
    )
    history = evaluations_of(tree["history"].to_dataset(), "iteration")
    optimum = Optimum(
        best,
        bool(attrs["optimum_converged"]),
        attrs["optimum_message"],
        history,
        remark=attrs.get("optimum_remark", ""),
    )
    return SparseFit(
        space,
        approximator,
        theta,
        stored["inputs"].values,
        optimum,
        lambda: solution,
        float(attrs["seconds"]),
        float(attrs["compile_seconds"]),
        rows,
    )
