"""Predictions at given hyperparameters, s exp{−Σ_d φ_d (x_d − x'_d)²}, by approximations and by Gibbs sampling."""

import logging
from typing import NamedTuple

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from benchmarks.active_sets.toy import covariance
from benchmarks.paper.data import Split
from benchmarks.paper.fixed import JITTER, Prior, at_held_out, of_labels, probabilities
from pymc_gpep.approximations import Laplace, LaplaceProbit, NestedEP, VariationalBayes
from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS

Array = np.ndarray


class Method(NamedTuple):
    """An approximation with a likelihood."""

    approximator: Approximator
    likelihood: str


METHODS = {
    "Laplace, softmax": Method(Laplace(), "softmax"),
    "Laplace, probit": Method(LaplaceProbit(), "multinomial_probit"),
    "VB": Method(VariationalBayes(), "multinomial_probit"),
    "nested EP": Method(NestedEP(), "multinomial_probit"),
}
GIBBS = "Gibbs"


def prior_of(split: Split, phi: Array, s: float = 1.0) -> Prior:
    """Covariances with relevances φ (d,) and magnitude s."""
    k = s * covariance(split.X, split.X, phi)
    k.flat[:: len(k) + 1] += JITTER
    return Prior(k, s * covariance(split.Xnew, split.X, phi), s)


def approximated(method: str, prior: Prior, y: Array, classes: int) -> Array:
    """Class probabilities (m, classes) of held-out points, NaN if the approximation does not converge."""
    approximator, name = METHODS[method]
    likelihood = next(each for each in LIKELIHOODS if each.name == name)
    with threadpool_limits(1):
        solution = approximator.solve(prior.k, np.zeros((classes, len(y))), y, likelihood=likelihood)
        p = probabilities(name, *at_held_out(solution, prior))
    return p if solution.convergence.converged else np.full_like(p, np.nan)


def sampled(split: Split, phi: Array, s: float, *, burn: int, draws: int, used: int, seed: int) -> Array:
    """Class probabilities by Gibbs sampling, averaged over `used` of `draws` sweeps after `burn` sweeps."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    d = split.X.shape[1]
    # The relevances are scaled into the inputs, since a relevance of 0 has no finite length scale.
    scaled, new = (np.ascontiguousarray(x * np.sqrt(2.0 * phi)) for x in (split.X, split.Xnew))
    with threadpool_limits(1), pm.Model():
        gp = pm.gp.Latent(cov_func=s * pm.gp.cov.ExpQuad(d, ls=1.0))
        gpep.MultinomialProbit("y", gp.prior("f", X=scaled, n_outputs=split.classes).T, observed=split.y)
        idata = pm.sample(
            draws, tune=burn, chains=1, cores=1, step=gpep.samplers.ProbitGibbs(sweeps=1), random_seed=seed,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
        return np.asarray(gpep.predict_draws(idata, gp, new, draws=used, progressbar=False)["p"].values)


def scores(p: Array, y: Array) -> tuple[float, float]:
    """Fraction of errors, and the sum of log probabilities of labels, NaN without probabilities."""
    if not np.isfinite(p).all():
        return np.nan, np.nan
    return float((p.argmax(axis=1) != y).mean()), float(np.log(of_labels(p, y)).sum())
