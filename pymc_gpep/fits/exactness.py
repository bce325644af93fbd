"""Comparisons of a fit with the exact posterior of the latent values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pymc_gpep.array_types import Array
from pymc_gpep.checks.corrected_evidence import CorrectedEvidence
from pymc_gpep.checks.corrected_evidence import corrected_evidence as evidence_corrected
from pymc_gpep.checks.importance import ImportanceCheck, importance_check
from pymc_gpep.fits.draws import draw_at_maximum
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.solvers.team import one_blas_thread


@one_blas_thread()
def importance(fit: Fitted, draws: int = 1000, *, random_seed: Any = None) -> ImportanceCheck:
    """Hold the fit against the exact posterior of the latent values, by Pareto-smoothed importance sampling.

    Draws from the Gaussian are weighted by the exact joint density over their own, and the tail of the weights is
    smoothed (Vehtari, Simpson, Gelman, Yao and Gabry 2024). Its Pareto k says whether weighted draws stand for the
    posterior. If they do, the evidence and means that come with them can be held against the fit's own (Yao,
    Vehtari, Simpson and Gelman 2018). Hyperparameters are held at the fit's values: nothing is said about these.

    All latent values are weighted together. The more there are, the more easily that fails, for fits that are fair
    for each of them. The check describes the fit apart from this, by weights on blocks of points that move
    together. These show how much the probability of each point's label changes.

    Parameters
    ----------
    draws : int
        At least 100. The weights of 1000 draws take about as long as 1000 evaluations of the likelihood.
    random_seed : int, Generator or None

    Returns
    -------
    ImportanceCheck
        It prints as two sentences, one on weighted draws and one on the fit.

    Raises
    ------
    NotImplementedError
        If the fit has no joint posterior of all latent values.
    ValueError
        If there are too few draws, or if the approximation failed, so that its draws have no density.
    """
    fit.log_posterior.check_joint("importance")
    return checked(fit, draw_at_maximum(fit, draws, fit._generator(random_seed)))


def checked(fit: Fitted, values: Mapping[str, Array]) -> ImportanceCheck:
    """Hold draws of a fit at its maximum, by name, against the exact posterior."""
    mean, groups = fit.latent["mean"], fit.classifier.groups
    f = fit.log_posterior.space.variables.latent_values(values)
    if groups is None:
        return importance_check(fit.name, fit.solution, f, mean)
    # One latent value of each group, whose result is that of all its rows.
    found = importance_check(fit.name, fit.solution, f, mean[groups.first])
    shift = mean.copy(data=found.mean_shift.values[groups.of]).rename("mean_shift")
    points = found.points.drop_vars(list(found.points.coords)).isel({mean.dims[0]: groups.of})
    return replace(found, mean_shift=shift, points=points.assign_coords(mean.coords))


@one_blas_thread()
def corrected_evidence(fit: Fitted, *, max_size: int = 3000) -> CorrectedEvidence:
    """Correct the log evidence of an EP by what that neglects (Opper, Paquet and Winther 2013), at the maximum.

    The correction is of second order in the third cumulants of the tilted distributions, and what the next order
    has to add is its error. Class-independent EP and EP by quadrature are corrected by way of nested EP, from which
    they differ by more than a small correction.

    Parameters
    ----------
    max_size : int
        Largest number of latent values to accept: time grows with its cube, memory with its square.

    Returns
    -------
    CorrectedEvidence
        `evidence`, the `correction` in it, its estimated `error`, and whether it is `reliable`. It prints as one
        sentence.

    Raises
    ------
    NotImplementedError
        If the fit has no joint posterior of all latent values.
    TypeError
        If the approximation is not an EP.
    ValueError
        If there are more latent values than `max_size`.
    """
    fit.log_posterior.check_joint("corrected_evidence")
    return evidence_corrected(fit.log_posterior.approximator, fit.solution, max_size=max_size)
