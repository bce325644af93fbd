"""How predictions of a fit by active rows get better with their number."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.argument_types import check_whole
from pymc_gpep.fits.active_fit import ActiveFit
from pymc_gpep.fits.prediction import held_out, new_inputs, predict_given
from pymc_gpep.gaussians.active_posterior import ActivePosterior
from pymc_gpep.solvers.inducing import row_blocks

__all__ = ["learning_curve"]


def learning_curve(
    fit: ActiveFit,
    Xnew: ArrayLike,
    ynew: ArrayLike,
    *,
    every: int = 50,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None,
    probabilities: str | None = None,
) -> xr.Dataset:
    """Score predictions by the first rows that a fit made active, and by more and more of them.

    Hyperparameters are those of the fit. Sites are those of a fixed point on the rows that count, if the fit has
    `polish`.

    Parameters
    ----------
    fit : ActiveFit
        What `pm.fit(method="ivm")` returned.
    Xnew : array (m, d)
        New inputs.
    ynew : array (m,) of int
        What was observed there.
    every : int
        Active rows from one score to the next; the last is for all of them.
    gp : pm.gp.Latent or sequence of them, optional
        What made the latent values of the model. Without it the covariance is read from the graph of the model.
    probabilities : str, optional
        How class probabilities are computed, as in `fit.predict`.

    Returns
    -------
    Dataset
        `mlpd`, the mean log predictive density, and `accuracy`, by `active`, the number of active rows.

    Raises
    ------
    TypeError
        If `every` is no whole number, or `fit` something else.
    ValueError
        If inputs or labels do not fit the model, or `every` is not positive.
    """
    check_whole("every", every, 1)
    if not isinstance(fit, ActiveFit):
        raise TypeError(f'fit must be what pm.fit(method="ivm") returned, but is a {type(fit).__name__}.')
    blocks, classifier, solution = fit.blocks(gp), fit.classifier, fit.solution
    inputs = new_inputs(Xnew, blocks.rows.n_inputs)
    observed = held_out(classifier, ynew, len(inputs), "ynew")
    how = classifier.likelihood_model.check_way(probabilities, "probabilities")
    point = fit.space.point(fit.theta)
    likelihood = fit.likelihood_at(len(inputs))
    d = len(solution.selection.rows)
    counts = [*range(every, d, every), d]
    posteriors = [ActivePosterior(fit.approximator.posterior_of_first(solution, count)) for count in counts]
    density, right = np.zeros((2, len(counts)))
    for rows in row_blocks(len(inputs), classifier.n_functions * d):
        block = blocks.block(point, fit.inducing_inputs, inputs[rows])
        for i, (count, posterior) in enumerate(zip(counts, posteriors, strict=True)):
            mean, cov = posterior.predict(block._replace(cross=block.cross[:, :count]))
            found = predict_given(likelihood.at(rows), mean.T, cov, observed=observed[rows], how=how)
            density[i] += 0.0 if found.log_density is None else found.log_density.sum()
            right[i] += (found.p.argmax(axis=1) == observed[rows]).sum()
    n = len(inputs)
    return xr.Dataset({"mlpd": ("active", density / n), "accuracy": ("active", right / n)}, coords={"active": counts})
