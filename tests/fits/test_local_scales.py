"""Effects with local scales, against sums over all models, conjugate draws and other spellings; frailties."""

from itertools import product

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import gammaln, logsumexp

import pymc_gpep as gpep
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.reading import read_classifier
from pymc_gpep.univariate.local_scales import LocalVariables

P, N = 6, 40
RNG = np.random.default_rng(4)
X = RNG.normal(size=(N, P)) + 0.6 * RNG.normal(size=(N, 1))
Y = X @ [0.9, -0.4, 0.25, 0.0, 0.0, 0.0] + RNG.normal(size=N)
SHARE, SLAB = 0.3, 1.2


def by_enumeration():
    """Return the log evidence and the inclusion probabilities by sums over all 2^P models."""
    models = np.array(list(product([0, 1], repeat=P)))
    heights = []
    for chosen in models:
        own = X[:, chosen == 1]
        heights.append(
            stats.multivariate_normal(np.zeros(N), np.eye(N) + SLAB**2 * own @ own.T).logpdf(Y)
            + chosen.sum() * np.log(SHARE)
            + (P - chosen.sum()) * np.log1p(-SHARE)
        )
    return logsumexp(heights), np.exp(heights - logsumexp(heights)) @ models


def horseshoe(spelling, tau=0.3):
    with pm.Model() as made:
        if spelling == "centred":
            beta = pm.Normal("beta", 0, tau * pm.HalfCauchy("lam", 1, shape=P), shape=P)
        elif spelling == "variances":
            beta = pm.Normal("beta", 0, tau=1 / (tau * pm.HalfCauchy("lam", 1, shape=P)) ** 2, shape=P)
        elif spelling == "one name":
            z, lam = pm.Normal("z", 0, 1, shape=P), pm.HalfCauchy("lam", 1, shape=P)
            beta = pm.Deterministic("beta", z * lam * tau)
        elif spelling == "two names":
            z, lam = pm.Normal("z", 0, 1, shape=P), pm.HalfCauchy("lam", 1, shape=P)
            pm.Deterministic("shrinkage", 1 / (1 + lam**2))
            beta = tau * (lam * z)
        elif spelling == "moved":
            beta = pm.Normal("beta", pm.Normal("level", 0, 1e-4), tau * pm.HalfCauchy("lam", 1, shape=P), shape=P)
        else:
            half = pm.HalfNormal("half", 1, shape=P)
            beta = pm.Normal("beta", 0, tau * half * pm.math.sqrt(pm.InverseGamma("w", 0.5, 0.5, shape=P)), shape=P)
        pm.Normal("y", X @ beta, 1.0, observed=Y)
    return made


def fitted(model, method="ep", **options):
    return pm.fit(method=method, model=model, progressbar=False, random_seed=1, **options)


@pytest.mark.parametrize("spelling", ["product", "switch"])
def test_spike_and_slab_matches_the_sum_over_all_models(spelling):
    with pm.Model() as made:
        shown, slab = pm.Bernoulli("shown", SHARE, shape=P), pm.Normal("slab", 0, SLAB, shape=P)
        beta = pm.Deterministic("beta", shown * slab if spelling == "product" else pm.math.switch(shown, slab, 0.0))
        pm.Normal("y", X @ beta, 1.0, observed=Y)
    fit = fitted(made)
    evidence, inclusion = by_enumeration()
    assert fit.converged
    assert_allclose(fit.log_evidence, evidence, atol=0.05)
    drawn = {name: each.values[0] for name, each in fit.sample(4000, random_seed=1).posterior.data_vars.items()}
    assert_allclose(drawn["shown"].mean(axis=0), inclusion, atol=0.03)
    assert ((drawn["beta"] != 0.0) == (drawn["shown"] == 1)).all()
    assert_allclose((drawn["slab"] * drawn["shown"]), drawn["beta"], atol=1e-12)
    assert_allclose(drawn["slab"][drawn["shown"] == 0].std(), SLAB, rtol=0.05)
    # More than half of the mass of an effect is the spike at 0.
    table = fit.summary("beta", ci_prob=0.5)
    spikes = inclusion < 0.2
    assert_allclose(table[["eti50_lb", "eti50_ub"]].astype(float)[spikes], 0.0, atol=1e-12)


@pytest.mark.slow
def test_all_spellings_of_a_horseshoe_prior_have_equal_fits(tmp_path):
    spellings = ["centred", "variances", "one name", "two names", "moved", "two variables"]
    fits = {name: fitted(horseshoe(name)) for name in spellings}
    first = fits["centred"]
    assert all(fit.classifier.hyperparameters == () for fit in fits.values())
    for name, fit in fits.items():
        assert fit.converged
        assert_allclose(fit.log_evidence, first.log_evidence, atol=1e-4, err_msg=name)
    names = {name: set(fit.sample(20, random_seed=1).posterior.data_vars) for name, fit in fits.items()}
    assert names["centred"] == {"beta", "lam"}
    assert names["one name"] == {"beta", "lam", "z"}
    assert {"lam", "z", "shrinkage"} < names["two names"]
    assert {"beta", "half", "w"} == names["two variables"]
    effects = (fits[name].effects("beta")["beta"] for name in ("variances", "one name", "two variables"))
    for found in effects:
        assert_allclose(found, first.effects("beta")["beta"], atol=1e-4)
    first.save(tmp_path / "fit.nc")
    again = gpep.load(tmp_path / "fit.nc", horseshoe("centred"))
    assert_allclose(again.effects("beta")["beta"], first.effects("beta")["beta"])


def test_local_variables_given_an_effect_have_their_conjugate_distribution():
    with pm.Model() as made:
        w = pm.InverseGamma("w", 2, 2, shape=P)
        pm.Normal("y", X @ pm.Normal("beta", 0, 0.5 * pm.math.sqrt(w), shape=P), 1.0, observed=Y)
    part = next(each for each in read_classifier(made, starts=True, priors=True).parts if each.is_prior)
    u = np.repeat([0.0, 0.3, -2.0], 4000)
    drawn = LocalVariables(part.likelihood_model.density).rng_fn(
        np.random.default_rng(1), u[None], np.zeros((0, u.size))
    )
    for value in np.unique(u):
        exact = stats.invgamma(2.5, scale=2.0 + 0.5 * (value / 0.5) ** 2)
        assert stats.kstest(np.exp(drawn[0, u == value]), exact.cdf).pvalue > 0.001


@pytest.mark.parametrize("options", [{"hyperparameters": ["lam"]}, {"bounds": False}], ids=["named", "other methods"])
def test_local_variables_stay_hyperparameters_if_named_or_if_the_method_is_not_ep(options):
    found = read_classifier(horseshoe("centred"), starts=True, priors=True, **options)
    assert [rv.name for rv in found.hyperparameters] == ["lam"]


def test_scales_that_are_not_local_stay_hyperparameters():
    """A scale of all effects, a scale with another use, and a scalar scale are not local."""
    with pm.Model() as made:
        tau, lam = pm.HalfNormal("tau", 1), pm.HalfNormal("lam", 1, shape=P)
        one = pm.Normal("one", 0, pm.HalfNormal("s", 1))
        pm.Normal("y", one + X @ pm.Normal("beta", 0, tau * lam, shape=P), pm.math.sum(lam), observed=Y)
    found = read_classifier(made, starts=True, priors=True)
    assert [rv.name for rv in found.hyperparameters] == ["tau", "lam", "s"]


def test_dirichlet_shares_of_a_variance_are_refused_by_name():
    def model(**options):
        with pm.Model() as made:
            phi = pm.Dirichlet("phi", np.ones(P))
            beta = pm.Normal("beta", 0, pm.HalfNormal("tau", 1) * pm.math.sqrt(phi), shape=P)
            pm.Normal("y", X @ beta, 1.0, observed=Y)
        return read_classifier(made, starts=True, priors=True, **options)

    with pytest.raises(StructureError, match=r"scales of 'beta' depend on 'phi'.*hyperparameters=\['phi'\]"):
        model()
    assert [rv.name for rv in model(hyperparameters=["phi"]).hyperparameters] == ["phi", "tau"]


def test_gamma_frailties_match_their_conjugate_posterior():
    groups, shape = 5, 2.0
    g = np.repeat(np.arange(groups), 8)
    exposure = np.exp(0.4 * RNG.normal(size=g.size))
    y = RNG.poisson(exposure * RNG.gamma(shape, 1 / shape, groups)[g])
    with pm.Model() as made:
        w = pm.Gamma("w", shape, shape, shape=groups)
        pm.Poisson("y", exposure * w[g], observed=y)
    fit = fitted(made)
    counts, total = np.bincount(g, y), np.bincount(g, exposure)
    terms = shape * np.log(shape) + gammaln(shape + counts) - gammaln(shape)
    evidence = (terms - (shape + counts) * np.log(shape + total)).sum() + (y * np.log(exposure) - gammaln(y + 1)).sum()
    assert_allclose(fit.log_evidence, evidence, atol=0.02)
    exact = stats.gamma(shape + counts, scale=1 / (shape + total))
    drawn = fit.sample(4000, random_seed=1).posterior["w"].values[0]
    assert_allclose(drawn.mean(axis=0), exact.mean(), atol=0.1 * exact.std().max())
    assert_allclose(drawn.std(axis=0), exact.std(), rtol=0.1)


@pytest.mark.parametrize("name", ["Laplace", "horseshoe"])
def test_new_level_averages_over_local_scales(name):
    group = np.repeat(np.arange(4), 5)
    y = np.array([0.5, -0.3, 2.0, 0.1])[group] + RNG.normal(size=20)
    with pm.Model() as made:
        at = pm.Data("at", group)
        if name == "Laplace":
            u = pm.Normal("u", 0, 0.7 * pm.math.sqrt(pm.Exponential("w", 0.5, shape=4)), shape=4)
        else:
            u = pm.Normal("u", 0, 0.7 * pm.HalfCauchy("w", 1, shape=4), shape=4)
        pm.Normal("y", u[at], 1.0, observed=y)
    fit = fitted(made)
    prior = stats.laplace(0, 0.7).rvs(400_000, random_state=1)
    if name == "horseshoe":
        prior = 0.7 * RNG.standard_cauchy(400_000) * RNG.normal(size=400_000)
        with pytest.warns(UserWarning, match="1 of 2 new rows depend on levels of 'u'|y_mean is NaN"):
            found = fit.predict(data={"at": [0, 7]}, new_levels=True, quantiles=[0.1, 0.5, 0.8])
        assert np.isnan(found["mean"]).values.tolist() == [False, True]
    else:
        found = fit.predict(data={"at": [0, 7]}, new_levels=True, quantiles=[0.1, 0.5, 0.8])
        assert_allclose(found["y_variance"][1], 2 * 0.49 + 1.0, rtol=1e-6)
    exact = np.quantile(prior + RNG.normal(size=prior.size), [0.1, 0.5, 0.8])
    assert_allclose(found["y_quantile"][1], exact, atol=0.03)
