"""A problem of four points, as a model and as draws from its prior, for tests of samplers."""

from functools import cache
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

import pymc_gpep as gpep
from tests.reference.prior_sampling import posterior_moments
from tests.reference.stored import stored

X = np.array([[-1.0], [-0.2], [0.5], [1.4]])
JITTER = 1e-6


class Problem(NamedTuple):
    """A likelihood and a parametrisation of the prior."""

    kind: str
    rotated: bool
    per_class: bool

    @property
    def labels(self) -> np.ndarray:
        return np.array([0, 1, 1, 0]) if self.n_functions == 1 else np.array([2, 0, 0, 1])

    @property
    def n_functions(self) -> int:
        return 1 if self.kind in ("bernoulli", "bernoulli_probit") else 3


PROBLEMS = {
    "probit": Problem("multinomial_probit", rotated=True, per_class=False),
    "probit-per-class": Problem("multinomial_probit", rotated=False, per_class=True),
    "softmax": Problem("softmax", rotated=False, per_class=False),
    "softmax-per-class": Problem("softmax", rotated=True, per_class=True),
    "bernoulli": Problem("bernoulli", rotated=True, per_class=False),
    "bernoulli-probit": Problem("bernoulli_probit", rotated=True, per_class=False),
}


def build(problem: Problem) -> pm.Model:
    """The model. With a prior for each class, the second class has a mean and twice the length scale."""
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 2)
        ls = pm.LogNormal("ls", 0, 0.5)
        if problem.per_class:
            rows = []
            for k in range(3):
                gp = pm.gp.Latent(
                    mean_func=pm.gp.mean.Constant(0.5 if k == 1 else 0.0),
                    cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls * (2 if k == 1 else 1)),
                )
                rows.append(gp.prior(f"f_{k}", X=X, reparameterize=problem.rotated if k else not problem.rotated))
            f = pm.Deterministic("f", pt.stack(rows))
        else:
            gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
            outputs: dict[str, Any] = {} if problem.n_functions == 1 else {"n_outputs": problem.n_functions}
            f = gp.prior("f", X=X, reparameterize=problem.rotated, **outputs)
        if problem.kind == "bernoulli":
            pm.Bernoulli("y", logit_p=f, observed=problem.labels)
        elif problem.kind == "bernoulli_probit":
            pm.Bernoulli("y", p=pm.math.invprobit(f), observed=problem.labels)
        elif problem.kind == "softmax":
            pm.Categorical("y", logit_p=f.T, observed=problem.labels)
        else:
            gpep.MultinomialProbit("y", f.T, observed=problem.labels)
    return model


@cache
def expected(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means of log η, log ℓ, f and f², and their standard errors."""
    mean, error, effective = moments(problem.kind, problem.labels, problem.per_class, X, JITTER)
    assert effective[0] > 2000
    return mean, error


@stored
def moments(kind: str, labels: np.ndarray, per_class: bool, inputs: np.ndarray, jitter: float) -> np.ndarray:
    """Return means and errors by weighted draws from the prior. A third row has the effective number of draws."""
    draws, n_functions = 100_000, 1 if labels.max() < 2 else 3
    rng = np.random.default_rng(0)
    eta, ls = np.abs(2.0 * rng.standard_normal(draws)), np.exp(0.5 * rng.standard_normal(draws))
    squared = (inputs - inputs.T) ** 2
    f = np.empty((draws, n_functions, len(inputs)))
    for k in range(n_functions):
        second = per_class and k == 1
        scale = ls * (2.0 if second else 1.0)
        K = eta[:, None, None] ** 2 * np.exp(-0.5 * squared / scale[:, None, None] ** 2) + jitter * np.eye(len(inputs))
        noise = rng.standard_normal((draws, len(inputs), 1))
        f[:, k] = (np.linalg.cholesky(K) @ noise)[..., 0] + (0.5 if second else 0.0)
    logs = np.log(np.column_stack([eta, ls]))
    mean, error, effective = posterior_moments(kind, labels, logs, f)
    return np.array([mean, error, np.full_like(mean, effective)])


def found(idata: xr.DataTree) -> tuple[np.ndarray, np.ndarray]:
    """Means and Monte Carlo errors of the draws of a sampler."""
    posterior = idata["posterior"].to_dataset()
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    f = posterior["f"].values.reshape(chains, draws, -1)
    logs = np.log(np.stack([posterior["eta"].values, posterior["ls"].values], axis=-1))
    values = np.concatenate([logs, f, f**2], axis=-1)
    return values.mean(axis=(0, 1)), standard_errors(values)


def standard_errors(values: np.ndarray) -> np.ndarray:
    """Monte Carlo errors of the means of draws (chains, draws, columns)."""
    return np.array([float(az.mcse(values[..., j])) for j in range(values.shape[-1])])


def assert_exact(idata: xr.DataTree, problem: Problem, least_effective: float = 100.0) -> None:
    """Compare sampled with exact means in each of 30 or more coordinates, within 4.5 standard errors."""
    mean, error = expected(problem)
    sampled, monte_carlo = found(idata)
    assert np.isfinite(monte_carlo).all()
    z = (sampled - mean) / np.hypot(error, monte_carlo)
    assert np.abs(z).max() < 4.5, z
    # Errors must be small for an informative test, here of log η and log ℓ with standard deviations near 1 and 0.5.
    assert (monte_carlo[:2] < 1.5 / np.sqrt(least_effective)).all(), monte_carlo[:2]
