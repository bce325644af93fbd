"""Leave-one-out cross-validation from one fit: the predictive density of every label given the others.

The distribution of the latent values of point i given the other labels is approximated by the cavity, the posterior
with the site of that point left out (EP-LOO and LA-LOO of Vehtari, Mononen, Tolvanen, Sivula and Winther 2016, the
most accurate of the fast ways they compare). `Posterior.cavities` has it for sites of any form. Of an approximation
whose means do not follow its own covariance, the mean of the cavity is taken from its linear response instead.
"""

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.likelihoods.log_predictive import log_predictive
from pymc_gpep.progress import RowProgress

if TYPE_CHECKING:
    from pymc_gpep.fits.left_out import CavityELPD

__all__ = ["leave_one_out", "leave_one_out_moments"]

_ROWS = 500  # after which progress is told, and an interrupt is heeded


def leave_one_out_moments(approximator: Approximator, solution: Solution) -> tuple[Array, Array]:
    """Mean (n, c) and covariance (n, c, c) of the latent values of each point given the labels of the others."""
    mean, cov = solution.posterior.cavities(solution.mean, solution.cov)
    response = approximator.response(solution)
    if response is not solution.posterior:
        mean, _ = response.cavities(*response.marginals())
    return mean, cov


def _refitted_moments(approximator: Approximator, solution: Solution, i: np.intp) -> tuple[Array, Array, bool]:
    """The same for one point, (1, c) and (1, c, c), by an approximation to the others; and whether that converged."""
    k, prior_mean = solution.posterior.prior.k, solution.posterior.prior.mean
    others = np.delete(np.arange(len(solution.labels)), i)
    again = approximator.solve(
        k[:, others][:, :, others], prior_mean[:, others], solution.labels[others],
        likelihood=solution.likelihood.at(others),
    )  # fmt: skip
    mean, cov = again.posterior.predict(k[:, [i]][:, :, others], k[:, [i], [i]], prior_mean[:, [i]])
    return mean.T, cov, again.convergence.converged


def _harmonic(log_weights: Array, log_densities: Array) -> Array:
    """log p(y_i | y_-i) (n,) from log p(y_i | y_-i, θ_s) (s, n) and weights that stand for p(θ | y).

    As p(θ | y_-i) ∝ p(θ | y) / p(y_i | y_-i, θ), the label that is left out has no part in the hyperparameters either.
    """
    return -logsumexp(log_weights - log_densities, axis=0)


def leave_one_out(
    fit: Fit, *, refit_above: float = np.inf, tolerance: float = 5e-5, progressbar: bool = True
) -> "CavityELPD":
    """See `GPApproximation.loo`."""
    from pymc_gpep.fits.left_out import summed_up  # with it comes ArviZ

    classifier, hyper = fit.classifier, fit.hyper_posterior
    approximator = fit.approximator
    y = fit.solution.labels
    # Log densities (node, point) given the hyperparameters of each node.
    within, without = np.empty((2, len(hyper), len(y)))
    with RowProgress("Leaving out", len(hyper) * len(y), progressbar) as progress:
        for s, (_, solution) in enumerate(hyper.solutions()):
            without_own, whole = leave_one_out_moments(approximator, solution), (solution.mean.T, solution.cov)
            for start in range(0, len(y), _ROWS):
                rows = slice(start, start + _ROWS)
                likelihood = solution.likelihood.at(rows)
                for into, (mean, cov) in ((within, whole), (without, without_own)):
                    into[s, rows] = log_predictive(likelihood, mean[rows], cov[rows], y[rows], tolerance=tolerance)
                progress.advance(len(y[rows]))
    log_weights = np.log(hyper.weights)[:, None]
    lpd = logsumexp(log_weights + within, axis=0)
    elpd = _harmonic(log_weights, without)
    converged = fit.converged
    refitted = np.flatnonzero(lpd - elpd > refit_above) if len(y) > 1 else np.arange(0)
    # Solutions that are not kept in memory are solved again; without points to refit that would be for nothing.
    with RowProgress("Refitting without", len(hyper) * refitted.size, progressbar) as progress:
        for s, (_, solution) in enumerate(hyper.solutions() if refitted.size else ()):
            for i in refitted:
                mean, cov, succeeded = _refitted_moments(approximator, solution, i)
                likelihood = solution.likelihood.at([i])
                without[s, [i]] = log_predictive(likelihood, mean, cov, y[[i]], tolerance=tolerance)
                converged = converged and succeeded
                progress.advance(1)
    elpd = _harmonic(log_weights, without)
    return summed_up(classifier, approximator.name, lpd, elpd, converged, len(refitted))
