"""Samplers against PyMC's NUTS for sixty flowers: three hyperparameters and 180 latent values."""

from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_gpep as gpep
from tests.reference.data import iris
from tests.samplers.samplers import SAMPLERS

FALSE_ALARM = 1e-3  # probability for a whole test, by Bonferroni
# Draws of each of two chains, enough for an effective sample size of 100. Samplers that need too many draws are tested
# on smaller problems: samplers guided by the prior, and Gibbs sampling of hyperparameters given latent values.
DRAWS = {
    "guided_hmc": 1000,
    "elliptical_slice": 1500,
    "probit_gibbs-collapsed": 2000,
    "probit_gibbs-whitened": 4000,
    "pseudo_marginal": 1500,
    "scaled_metropolis": 6000,
}


class Means(NamedTuple):
    """Posterior means of log hyperparameters, latent values, and the squares of both, with Monte Carlo errors."""

    values: np.ndarray
    errors: np.ndarray
    least_effective: float


def build() -> pm.Model:
    X, y = iris()
    chosen = np.linspace(0, len(y) - 1, 60).round().astype(int)
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 3)
        ls = pm.InverseGamma("ls", 3, 3, shape=2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=X[chosen][:, 2:], n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y[chosen])
    return model


def sample(step, draws: int, tune: int) -> Means:
    """Two chains, and their means."""
    with build():
        idata = pm.sample(
            draws, tune=tune, chains=2, cores=1, step=step(), random_seed=7, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    posterior = idata["posterior"].to_dataset()
    shape = (posterior.sizes["chain"], posterior.sizes["draw"], -1)
    parts = [np.log(posterior["eta"].values), np.log(posterior["ls"].values), posterior["f"].values]
    x = np.concatenate([part.reshape(shape) for part in parts], axis=-1)
    x = np.concatenate([x, x**2], axis=-1)
    errors = np.array([float(az.mcse(column)) for column in np.moveaxis(x, -1, 0)])
    effective = min(float(az.ess(column)) for column in np.moveaxis(x, -1, 0))
    return Means(x.mean(axis=(0, 1)), errors, effective)


@pytest.fixture(scope="module")
def nuts():
    return sample(pm.NUTS, 2000, 1000)


@pytest.mark.calibration
@pytest.mark.parametrize("name", DRAWS)
def test_means_agree_with_nuts(name, nuts):
    found = sample(SAMPLERS[name].make, DRAWS[name], 600)
    # Monte Carlo errors are not reliable for small effective sample sizes.
    assert min(nuts.least_effective, found.least_effective) > 100
    z = (found.values - nuts.values) / np.hypot(found.errors, nuts.errors)
    # 4.7 standard errors for 366 comparisons of strongly correlated unknowns
    assert np.abs(z).max() < norm.isf(0.5 * FALSE_ALARM / z.size), z
