"""A fit read back from a DataTree, as `pm.fit` returned it."""

import pymc as pm
import xarray as xr

from pymc_gpep.fits.active_fit import ActiveFit
from pymc_gpep.fits.active_reading import holds_active_fit, read_active_fit
from pymc_gpep.fits.saving import check_tree, read_fit
from pymc_gpep.fits.sparse_fit import SparseFit
from pymc_gpep.fits.sparse_reading import holds_sparse_fit, read_sparse_fit
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.streaming.fit import StreamedFit
from pymc_gpep.streaming.reading import holds_streamed_fit, read_streamed_fit
from pymc_gpep.variational.approximation import GPApproximation

__all__ = ["from_datatree"]


@one_blas_thread()
def from_datatree(
    tree: xr.DataTree, model: pm.Model | None = None
) -> GPApproximation | SparseFit | StreamedFit | ActiveFit:
    """Make a fit again from what its `to_datatree` made of it.

    Parameters
    ----------
    tree : DataTree
        For example as `arviz.from_netcdf` or `arviz.from_zarr` reads it.
    model : pm.Model, optional
        The model that was fitted, declared again; that of the context if not given.

    Returns
    -------
    GPApproximation, SparseFit, StreamedFit or ActiveFit
        With hyperparameters, their history, and the approximate posterior at each node to the tolerance of the
        approximation.

    Raises
    ------
    TypeError
        If `tree` is no DataTree.
    StructureError
        If the model is no Gaussian process classifier.
    ValueError
        If the tree is not that of a fit, or if the model is another one: other labels, names of classes or points,
        hyperparameters or priors, or another prior of the latent functions, by which the log evidence is not what it
        was.
    """
    check_tree(tree)
    if holds_streamed_fit(tree):
        return read_streamed_fit(tree, model)
    if holds_active_fit(tree):
        return read_active_fit(tree, model)
    if holds_sparse_fit(tree):
        return read_sparse_fit(tree, model)
    fit = read_fit(tree, model)
    approximation = GPApproximation(model=fit.classifier.model, random_seed=0)
    approximation.show(fit)
    return approximation
