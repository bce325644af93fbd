"""Leave-one-out cross-validation from one fit: the predictive density of every label given the others.

The distribution of the latent values of point i given the other labels is approximated by the cavity, the posterior
with the site of that point left out (EP-LOO and LA-LOO of Vehtari, Mononen, Tolvanen, Sivula and Winther 2016, the
most accurate of the fast ways they compare). `Posterior.cavities` has it for sites of any form. Of an approximation
whose means do not follow its own covariance, the mean of the cavity is taken from its linear response instead.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import xarray as xr
from arviz import ELPDDataLOO
from numpy.typing import NDArray
from scipy.special import logsumexp

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.inducing_fit import InducingFit
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.log_predictive import log_predictive
from pymc_gpep.solvers.sparse_contract import LeftOut
from pymc_gpep.structure import GPClassifier

__all__ = ["CavityELPD", "leave_one_out", "leave_one_out_by_parts", "leave_one_out_moments"]


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


def leave_one_out(fit: Fit, *, refit_above: float = np.inf, tolerance: float = 5e-5) -> CavityELPD:
    """See `GPApproximation.loo`."""
    classifier, hyper = fit.classifier, fit.hyper_posterior
    approximator = fit.approximator
    y = fit.solution.labels
    # Log densities (node, point) given the hyperparameters of each node.
    within, without = np.empty((2, len(hyper), len(y)))
    for s, (_, solution) in enumerate(hyper.solutions()):
        left_out = leave_one_out_moments(approximator, solution)
        within[s] = log_predictive(solution.likelihood, solution.mean.T, solution.cov, y, tolerance=tolerance)
        without[s] = log_predictive(solution.likelihood, *left_out, y, tolerance=tolerance)
    log_weights = np.log(hyper.weights)[:, None]
    lpd = logsumexp(log_weights + within, axis=0)
    elpd = _harmonic(log_weights, without)
    converged = fit.converged
    refitted = np.flatnonzero(lpd - elpd > refit_above) if len(y) > 1 else np.arange(0)
    # Solutions that are not kept in memory are solved again; without points to refit that would be for nothing.
    for s, (_, solution) in enumerate(hyper.solutions() if refitted.size else ()):
        for i in refitted:
            mean, cov, succeeded = _refitted_moments(approximator, solution, i)
            likelihood = solution.likelihood.at([i])
            without[s, [i]] = log_predictive(likelihood, mean, cov, y[[i]], tolerance=tolerance)
            converged = converged and succeeded
    elpd = _harmonic(log_weights, without)
    return _summary(classifier, approximator.name, lpd, elpd, converged, len(refitted))


def leave_one_out_by_parts(
    fit: InducingFit,
    labels: NDArray[np.int64],
    likelihood: Likelihood,
    whole: Callable[[slice], tuple[Array, Array]],
    left_out: Iterable[LeftOut],
    *,
    tolerance: float = 5e-5,
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
    """
    lpd, elpd = np.empty((2, len(labels)))
    for rows, mean, cov in left_out:
        y, own = labels[rows], likelihood.at(rows)
        elpd[rows] = log_predictive(own, mean, cov, y, tolerance=tolerance)
        own_mean, own_cov = whole(rows)
        lpd[rows] = log_predictive(own, own_mean.T, own_cov, y, tolerance=tolerance)
    return _summary(fit.classifier, fit.name, lpd, elpd, fit.converged, named=fit.rows is None)


def _summary(
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
