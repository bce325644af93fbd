"""Evidence and moments of EP for every likelihood of one latent function, against annealing and NUTS.

EP has no error bound. The tolerances come from long runs for points as strongly correlated as these.
"""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import approximator
from pymc_gpep.checks.annealed_evidence import anneal, importance_weights, posterior_base
from pymc_gpep.hyper.weights import importance_estimate
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import UNBOUNDED
from pymc_gpep.likelihoods.local_computations import ScalarDensity
from tests.likelihoods.with_parameters import COUNTS, CUTS, EXPOSURE, ORDERED, model_of
from tests.models import interpreted_sampler
from tests.reference.elliptical_slices import slices
from tests.reference.stored import stored

# One likelihood of each standard density suffices.
LEFT_OUT = {"binomial", "normal", "log_normal", "logistic", "gamma"}
LEFT_OUT |= {"stopping_probit", "stopping_logit", "binomial_probit", "binomial_log_log"}
ONE_FUNCTION = {each.name: each for each in LIKELIHOODS if not each.function_axis and each.name not in LEFT_OUT}


def drawn(name, n, d, variance, lengthscale):
    """A prior covariance at standard normal inputs, and observations of latent values drawn from this prior."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n, d))
    squared = ((X[:, None] - X) ** 2).sum(axis=-1)
    k = variance * np.exp(-0.5 * squared / lengthscale**2) + 1e-6 * np.eye(n)
    f = np.linalg.cholesky(k) @ rng.standard_normal(n)
    match name:
        case "poisson":
            offset = rng.normal(scale=0.5, size=n)
            return k, rng.poisson(np.exp(f + offset)), offset[None]
        case "ordered_probit" | "ordered_logit":
            noise = rng.standard_normal(n) if name == "ordered_probit" else rng.logistic(size=n)
            return k, np.digitize(f + noise, [-0.7, 0.9]), np.repeat([[-0.7], [0.9]], n, axis=1)
        case "negative_binomial":
            return k, rng.poisson(np.exp(f) * rng.gamma(2.0, 0.5, n)), np.repeat([[-np.log(2.0)], [2.0]], n, axis=1)
        case "weibull":
            t = np.minimum(np.exp(f) * rng.weibull(1.4, n), 3.0)
            return k, t, np.repeat([[0.0], [1.4], [-UNBOUNDED], [3.0]], n, axis=1)
        case "asymmetric_laplace":
            return k, f + rng.laplace(size=n), np.ones((2, n))
        case "complementary_log_log":
            return k, (rng.exponential(size=n) < np.exp(f)).astype(np.int64), np.empty((0, n))
    noise = rng.standard_normal(n) if name == "probit" else rng.logistic(size=n)
    return k, (f + noise > 0).astype(np.int64), np.empty((0, n))


# Numbers of points and inputs, prior variance and length scale: like Sonar, like USPS 3 vs. 5, and one input.
SHAPES = {"sonar": (60, 60, 4.0, 8.0), "usps": (80, 256, 8.0, 25.0), "line": (40, 1, 2.0, 0.7)}


def solved(method, name, shape):
    """Observations for one entry of `SHAPES`, and the result of a method."""
    k, y, parameters = drawn(name, *SHAPES[shape])
    likelihood = ONE_FUNCTION[name].given(parameters)
    found = approximator(method, likelihood, {}).solve(k, np.zeros((1, len(y))), y, likelihood=likelihood)
    return found, likelihood, y


@stored
def annealed_from_ep(name, shape):
    """Log evidence, its error, and the effective number of runs, by importance weights.

    The weights are valid for any result of EP.
    """
    ep, likelihood, y = solved("ep", name, shape)
    base, path = posterior_base(ep.posterior), np.linspace(0.0, 1.0, 48)
    u, _ = anneal(base, lambda f: float(likelihood.log_density(f, y)), path, 120, 2, np.random.default_rng(1))
    estimate, effective = importance_estimate(base.log_normaliser + importance_weights(u, path))
    return [*estimate, effective]


@stored
def by_long_sampling(name, shape):
    """Posterior means, standard deviations, and errors of the means, each (n,)."""
    ep, likelihood, y = solved("ep", name, shape)
    f = slices(ep.posterior, likelihood, y, chains=100, steps=400)[:, 0].reshape(-1, 100, len(y))
    return [f.mean(axis=(0, 1)), f.std(axis=(0, 1)), f.mean(axis=0).std(axis=0, ddof=1) / np.sqrt(100)]


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, list(SHAPES)[i % 3]) for i, name in enumerate(ONE_FUNCTION)],
)
def test_evidence_of_ep_matches_annealing(name, shape):
    ep, *_ = solved("ep", name, shape)
    assert ep.convergence.converged
    annealed, error, effective = annealed_from_ep(name, shape)
    assert effective > 60
    assert error < 0.1
    assert abs(ep.evidence - annealed) < 3.0 * error + 0.03


KNOWN = {"ep": 0.005, "kl": 0.005, "laplace": 0.3}
"""Errors of posterior means in standard deviations. Laplace's means are modes."""


@pytest.mark.parametrize("name", ONE_FUNCTION)
def test_means_match_long_sampling(name):
    methods = [each for each in KNOWN if each != "laplace" or ONE_FUNCTION[name].offers(ScalarDensity)]
    found = {method: solved(method, name, "line")[0] for method in methods}
    mean, sd, error = by_long_sampling(name, "line")
    assert (error < 0.02 * sd).all()
    for method in found:
        off = np.abs(found[method].mean[0] - mean)
        assert (off < 4.0 * error + KNOWN[method] * sd).all(), (method, (off / sd).max())
    assert_allclose(np.sqrt(found["ep"].cov[:, 0, 0]), sd, rtol=0.05)


FIXED = {
    "poisson": lambda f: pm.Poisson("y", mu=EXPOSURE * pm.math.exp(f), observed=COUNTS),
    "ordered_probit": lambda f: pm.OrderedProbit("y", eta=f, cutpoints=CUTS, observed=ORDERED),
    "ordered_logit": lambda f: pm.OrderedLogistic("y", eta=f, cutpoints=CUTS, observed=ORDERED),
}


@interpreted_sampler
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "poisson" else pytest.mark.calibration) for name in FIXED],
)
def test_means_match_nuts(name):
    """The tolerance is 4 Monte Carlo errors plus `KNOWN`, the errors of the approximations in long runs."""
    model, _ = model_of(FIXED[name], eta=1.2)
    with model:
        fits = {method: pm.fit(method=method, progressbar=False) for method in ("ep", "kl", "laplace")}
        idata = pm.sample(
            200, tune=100, chains=2, cores=1, random_seed=3, progressbar=False, compute_convergence_checks=False
        )
    f = idata["posterior"]["f"]
    error = np.sqrt([float(az.mcse(f[:, :, i])) ** 2 for i in range(f.shape[2])])
    assert error.max() < 0.1
    mean = f.mean(("chain", "draw")).values
    for method, known in KNOWN.items():
        assert (np.abs(fits[method].latent["mean"].values - mean) < 4.0 * error + known).all(), method
    annealed = gpep.diagnostics.annealed_evidence(
        model, start="ep", temperatures=20, runs=60, random_seed=1, progressbar=False
    )
    assert abs(annealed.log_evidence - fits["ep"].log_evidence) < 4.0 * annealed.standard_error + 0.01
