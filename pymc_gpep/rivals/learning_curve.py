"""Scores of predictions against the number of active rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.argument_types import check_whole
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.prediction import held_out, predict_given
from pymc_gpep.processes.cross_covariance import as_gps
from pymc_gpep.reading.likelihood_elsewhere import LikelihoodElsewhere
from pymc_gpep.rivals.ivm import ActivePosterior
from pymc_gpep.solvers.inducing import row_blocks


def check_active(fit: Any) -> None:
    """Raise a TypeError unless this is a fit by active rows."""
    if not hasattr(fit, "active"):
        what = f"a fit by {fit.log_posterior.by}" if isinstance(fit, Fit) else f"a {type(fit).__name__}"
        raise TypeError(f'fit must be what pm.fit(method="ivm") returned, but is {what}.')


def learning_curve(
    fit: Fit,
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
    fit : Fit
        Fit that `pm.fit(method="ivm")` returned.
    Xnew : array (m, d)
        New inputs.
    ynew : array (m,) of int
        Observations at the new inputs.
    every : int
        Active rows from one score to the next; the last is for all of them.
    gp : pm.gp.Latent or sequence of them, optional
        Processes that made the latent values of the model. Without it the covariance is read from the graph of the
        model.
    probabilities : str, optional
        How class probabilities are computed, as in `fit.predict`.

    Returns
    -------
    Dataset
        `mlpd`, the mean log predictive density, and `accuracy`, by `active`, the number of active rows.

    Raises
    ------
    TypeError
        If `every` is not a whole number, or `fit` something else.
    ValueError
        If inputs or labels do not fit the model, or `every` is not positive.

    Examples
    --------
    >>> with model:
    ...     fit = pm.fit(method="ivm", active=10, rounds=0)
    >>> gpep.diagnostics.learning_curve(fit, Xnew, ynew, every=5).to_dataframe()
    """
    check_whole("every", every, 1)
    check_active(fit)
    classifier, solution, approximator = fit.classifier, fit.solution, fit.log_posterior.approximator
    functions = fit.log_posterior.latent(fit.theta, solution, as_gps(gp))
    inputs = functions.new_rows(Xnew, {})
    observed = held_out(classifier, ynew, len(inputs), "ynew")
    how = classifier.likelihood_model.check_way(probabilities, "probabilities")
    space = fit.log_posterior.space
    likelihood = LikelihoodElsewhere(classifier, len(inputs), space.data)(space.point(fit.theta))
    d = len(solution.selection.rows)
    counts = [*range(every, d, every), d]
    posteriors = [ActivePosterior(approximator.posterior_of_first(solution, count)) for count in counts]
    density, right = np.zeros((2, len(counts)))
    for rows in row_blocks(len(inputs), classifier.n_functions * d):
        block = functions.at(inputs[rows]).prior
        for i, (count, posterior) in enumerate(zip(counts, posteriors, strict=True)):
            mean, cov = posterior.predict(block._replace(cross=block.cross[:, :count]))
            found = predict_given(likelihood.at(rows), mean.T, cov, observed=observed[rows], how=how)
            density[i] += 0.0 if found.log_density is None else found.log_density.sum()
            right[i] += (found.p.argmax(axis=1) == observed[rows]).sum()
    n = len(inputs)
    return xr.Dataset({"mlpd": ("active", density / n), "accuracy": ("active", right / n)}, coords={"active": counts})
