"""Fits of rows that share a latent value, against quadrature of the ungrouped model."""

from functools import cache

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.special import expit, gammaln, log_ndtr, logsumexp, ndtr

import pymc_gpep as gpep

RNG = np.random.default_rng(7)
TANKS = 12
SIZES = RNG.integers(1, 30, TANKS)
SURVIVED = RNG.binomial(SIZES, expit(1.4 + 1.6 * RNG.standard_normal(TANKS)))
TANK = np.repeat(np.arange(TANKS), SIZES)
ALIVE = np.concatenate([np.arange(n) < k for n, k in zip(SIZES, SURVIVED, strict=True)]).astype(int)
SD = 1.7
Z = np.linspace(-9.0, 9.0, 4001)
WEIGHTS = -0.5 * Z**2 - logsumexp(-0.5 * Z**2)


def of_rows(log_p):
    """Log densities (rows, nodes) of rows at the nodes of the prior of their tanks."""
    return log_p(SD * Z, ALIVE[:, None])


def logistic(f, y):
    return np.where(y == 1, -np.logaddexp(0.0, -f), -np.logaddexp(0.0, f))


def normal(f, y):
    return log_ndtr(np.where(y == 1, f, -f))


def by_quadrature(log_p):
    """Evidence, means of effects, and leave-one-out log densities."""
    rows = of_rows(log_p)
    tanks = np.stack([rows[t == TANK].sum(axis=0) for t in range(TANKS)]) + WEIGHTS
    evidences = logsumexp(tanks, axis=1)
    means = np.exp(tanks - evidences[:, None]) @ (SD * Z)
    without = logsumexp(tanks[TANK] - rows, axis=1)
    return evidences.sum(), means, evidences[TANK] - without


def tanks(link="logit", **kwargs):
    with pm.Model(coords={"tank": range(TANKS), "row": range(len(TANK))}) as model:
        tank = pm.Data("tank_of", TANK, dims="row")
        u = pm.Normal("u", 0.0, SD, dims="tank")
        eta = pm.Deterministic("eta", u[tank], dims="row")
        if link == "logit":
            pm.Bernoulli("alive", logit_p=eta, observed=ALIVE, dims="row")
        else:
            gpep.Probit("alive", eta, observed=ALIVE, dims="row")
    return model


@cache
def fit_of(link="logit", method="ep"):
    with tanks(link):
        return pm.fit(method=method, progressbar=False)


@pytest.mark.parametrize(("link", "log_p"), [("logit", logistic), ("probit", normal)])
def test_ep_of_grouped_rows_of_independent_effects_is_exact(link, log_p):
    fit = fit_of(link)
    evidence, means, without = by_quadrature(log_p)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-6)
    np.testing.assert_allclose(fit.mean_data["u"], means, atol=1e-5)
    np.testing.assert_allclose(fit.effects("u")["u"].sel(moment="mean").values, means, atol=1e-3)
    found = fit.loo()
    assert found.elpd_i.dims == ("row",)
    np.testing.assert_allclose(found.elpd_i, without, atol=1e-6)


def test_left_out_groups_of_rows_match_quadrature_or_report_their_error():
    fit = fit_of()
    rows = of_rows(logistic)
    every = np.stack([rows[t == TANK].sum(axis=0) for t in range(TANKS)]) + WEIGHTS
    whole = fit.loo(groups="tank_of")
    np.testing.assert_allclose(whole.elpd_i, logsumexp(every, axis=1), atol=1e-6)
    assert not whole.error_i.any()
    # Half of the rows of two tanks: the other half stays.
    halves = np.where(np.arange(len(TANK)) % 2 == 0, TANK // 2, 100 + TANK // 2)
    found = fit.loo(groups=halves, draws=4000)
    expected = []
    for label in np.unique(halves):
        parts = []
        for t in np.unique(TANK[halves == label]):
            left = every[t] - rows[(t == TANK) & (halves == label)].sum(axis=0)
            parts.append(logsumexp(every[t]) - logsumexp(left))
        expected.append(sum(parts))
    off = np.abs(found.elpd_i - expected)
    assert (off < 4.0 * found.error_i + 1e-6).all()
    assert found.error_i.max() < 0.1


def test_refitted_rows_match_left_out_rows():
    fit = fit_of()
    np.testing.assert_allclose(fit.loo(refit_above=-np.inf).elpd_i, by_quadrature(logistic)[2], atol=1e-6)


def test_latent_values_and_draws_have_an_entry_for_each_row():
    fit = fit_of()
    _, means, _ = by_quadrature(logistic)
    assert fit.latent["mean"].dims == ("row",)
    np.testing.assert_allclose(fit.latent["mean"], means[TANK], atol=1e-5)
    np.testing.assert_allclose(fit.labels(), ALIVE)
    _, cov = fit.joint_latent_moments([0, 1, int(SIZES[0])])
    np.testing.assert_allclose(cov[0, 0, 1, 0], fit.latent["variance"][0])
    assert cov[0, 0, 2, 0] == pytest.approx(0.0, abs=1e-9)
    drawn = fit.sample(50, random_seed=1)["posterior"]
    assert drawn["eta"].shape == (1, 50, len(TANK))
    np.testing.assert_allclose(drawn["eta"], drawn["u"][..., TANK])
    check = fit.importance(200, random_seed=1)
    assert check.mean_shift.dims == ("row",)
    np.testing.assert_allclose(check.mean_shift, check.mean_shift[np.flatnonzero(np.diff(TANK, prepend=-1))][TANK])


def test_prediction_of_a_row_is_the_effect_of_its_tank():
    fit = fit_of()
    found = fit.predict(data={"tank_of": [3, 3, 0]})
    np.testing.assert_allclose(found["mean"], fit.effects("u")["u"].sel(moment="mean").values[[3, 3, 0]], atol=1e-9)


def test_saved_fit_of_grouped_rows_equals_the_fit(tmp_path):
    fit = fit_of()
    fit.to_datatree().to_netcdf(tmp_path / "fit.nc")
    again = gpep.from_datatree(xr.open_datatree(tmp_path / "fit.nc"), tanks())
    assert again.log_evidence == pytest.approx(fit.log_evidence, abs=1e-9)
    np.testing.assert_allclose(again.loo().elpd_i, fit.loo().elpd_i, atol=1e-9)


def test_marginal_model_has_the_evidence_of_the_fit():
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, pm.HalfNormal("s"), shape=TANKS)
        pm.Bernoulli("alive", logit_p=u[TANK], observed=ALIVE)
        fit = pm.fit(method="ep", hyper="map", progressbar=False)
    marginal = gpep.marginalize(model)
    (evidence,) = marginal.potentials
    point = fit.log_posterior.point(fit.theta)
    found = marginal.compile_fn(marginal.replace_rvs_by_values([evidence]), inputs=marginal.value_vars, point_fn=False)
    assert found(*(point[v.name] for v in marginal.value_vars))[0] == pytest.approx(fit.log_evidence, abs=1e-5)
    grid = gpep.diagnostics.evidence_grid(model, {"s": [float(fit.hyperparameters["s"])]})
    assert grid["evidence"].item() == pytest.approx(fit.log_evidence, abs=1e-5)


def test_ep_of_48_tanks_with_a_common_level_matches_quadrature():
    """Without grouping, EP's log evidence is 0.4 lower."""
    rng = np.random.default_rng(3)
    sizes = rng.choice([10, 25, 35], 48)
    alive = rng.binomial(sizes, expit(1.4 + 1.6 * rng.standard_normal(48)))
    tank = np.repeat(np.arange(48), sizes)
    y = np.concatenate([np.arange(n) < k for n, k in zip(sizes, alive, strict=True)]).astype(int)
    with pm.Model():
        level = pm.Normal("level", 0.0, 1.5)
        u = pm.Normal("u", 0.0, 1.6, shape=48)
        pm.Bernoulli("y", logit_p=level + u[tank], observed=y)
        fit = pm.fit(method="ep", progressbar=False)
    z = np.linspace(-7.0, 7.0, 401)
    weights = -0.5 * z**2 - logsumexp(-0.5 * z**2)
    levels = 1.5 * z
    f = levels[:, None] + 1.6 * z
    each = [
        logsumexp(k * logistic(f, 1) + (n - k) * logistic(f, 0) + weights, axis=1)
        for n, k in zip(sizes, alive, strict=True)
    ]
    joint = np.sum(each, axis=0) + weights
    evidence = logsumexp(joint)
    mean = np.exp(joint - evidence) @ levels
    assert fit.log_evidence == pytest.approx(evidence, abs=3e-4)
    assert fit.effects("level")["level"].sel(moment="mean").item() == pytest.approx(mean, abs=3e-4)


def test_evidence_and_leave_one_out_of_normal_rows_match_dense_algebra():
    rng = np.random.default_rng(5)
    group, x = rng.integers(0, 4, 40), rng.integers(0, 2, 40).astype(float)
    sigma = np.where(np.arange(40) % 3 == 0, 1.5, 0.7)
    y = rng.normal(size=40) + group
    with pm.Model():
        eta = pm.Normal("u", 0.0, 1.3, shape=4)[group] + pm.Normal("b") * x
        pm.Normal("y", eta, sigma, observed=y)
        fit = pm.fit(method="ep", progressbar=False)
    assert fit.classifier.prior.n_points == 8
    k = 1.3**2 * (group[:, None] == group) + np.outer(x, x) + np.diag(sigma**2)
    inverse = np.linalg.inv(k)
    evidence = -0.5 * (y @ inverse @ y + np.linalg.slogdet(2 * np.pi * k)[1])
    variance = 1.0 / np.diagonal(inverse)
    residual = variance * (inverse @ y)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-5)
    found = fit.loo(pit=True)
    np.testing.assert_allclose(found.elpd_i, -0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance), atol=1e-5)
    np.testing.assert_allclose(found.pit_i, ndtr(residual / np.sqrt(variance)), atol=1e-5)


PLACES = np.array([-1.5, -0.2, 0.4, 2.0])
TRIALS, HITS = np.array([9, 5, 1, 12]), np.array([9, 3, 0, 1])
PLACE = np.random.default_rng(2).permutation(np.repeat(np.arange(4), TRIALS))
HIT = (np.array([np.count_nonzero(PLACE[:i] == at) for i, at in enumerate(PLACE)]) < HITS[PLACE]).astype(int)


def covariance(a, b):
    """Prior covariance of a process with a given magnitude and length scale 1.2."""
    return 1.2**2 * np.exp(-0.5 * ((a[:, None] - b) / 1.2) ** 2)


@cache
def process_alone(rows=True, reparameterize=True):
    with pm.Model() as model:
        x = pm.Data("x", PLACES[PLACE][:, None] if rows else PLACES[:, None])
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.4), cov_func=1.2**2 * pm.gp.cov.ExpQuad(1, ls=1.2))
        f = gp.prior("f", X=x, reparameterize=reparameterize)
        if rows:
            pm.Bernoulli("hit", logit_p=f, observed=HIT)
        else:
            pm.Binomial("hits", n=TRIALS, logit_p=f, observed=HITS)
        return gp, pm.fit(method="ep", progressbar=False), model


@pytest.mark.slow
def test_rows_of_a_process_at_the_same_inputs_match_quadrature():
    """The reference is a sum over 24⁴ nodes for the values at four places."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    root = np.linalg.cholesky(covariance(PLACES, PLACES) + 1e-6 * np.eye(4))
    z = np.stack(np.meshgrid(*[nodes] * 4, indexing="ij")).reshape(4, -1)
    log_weight = np.sum(np.log(weights / weights.sum())[np.indices([24] * 4).reshape(4, -1)], axis=0)
    f = 0.4 + root @ z
    each = HITS[:, None] * logistic(f, 1) + (TRIALS - HITS)[:, None] * logistic(f, 0)
    joint = each.sum(axis=0) + log_weight
    evidence = logsumexp(joint)
    _, fit, _ = process_alone()
    assert fit.log_posterior.n_points == 4
    assert fit.log_evidence == pytest.approx(evidence, abs=2e-3)
    found = fit.latent["mean"].values
    assert found.shape == PLACE.shape
    np.testing.assert_allclose(found, (f @ np.exp(joint - evidence))[PLACE], atol=6e-3)
    left = fit.loo()
    without = [evidence - logsumexp(joint - logistic(f[at], y)) for at, y in zip(PLACE, HIT, strict=True)]
    np.testing.assert_allclose(left.elpd_i, without, atol=6e-3)


@pytest.mark.parametrize("reparameterize", [True, False])
def test_fit_at_repeated_inputs_equals_the_fit_of_binomial_counts(reparameterize):
    gp, fit, _ = process_alone(reparameterize=reparameterize)
    _, other, _ = process_alone(rows=False)
    constant = gammaln(TRIALS + 1) - gammaln(HITS + 1) - gammaln(TRIALS - HITS + 1)
    assert fit.log_evidence == pytest.approx(other.log_evidence - constant.sum(), abs=1e-9)
    new = np.linspace(-2.0, 3.0, 4)[:, None]
    np.testing.assert_allclose(fit.latent["variance"], other.latent["variance"].values[PLACE], atol=1e-9)
    by_maker, by_graph, by_data = fit.predict(gp, new), fit.predict(new), fit.predict(data={"x": new})
    cross, k = covariance(new[:, 0], PLACES), covariance(PLACES, PLACES) + 1e-6 * np.eye(4)
    weights = np.linalg.solve(k, cross.T).T
    mean = 0.4 + weights @ (other.latent["mean"].values - 0.4)
    for each in (by_maker, by_graph, by_data):
        np.testing.assert_allclose(each["mean"], mean, atol=1e-6)


@pytest.mark.parametrize("reparameterize", [True, False])
def test_draws_at_repeated_inputs_are_equal(reparameterize):
    _, fit, _ = process_alone(reparameterize=reparameterize)
    draws = fit.sample(400, random_seed=1)["posterior"]
    f = draws["f"].values[0]
    assert np.abs(f - f[:, [np.flatnonzero(at == PLACE)[0] for at in PLACE]]).max() < 1e-9
    moments = fit.latent
    np.testing.assert_allclose(f.mean(axis=0), moments["mean"], atol=4 * np.sqrt(moments["variance"].max() / 400))
    np.testing.assert_allclose(f.var(axis=0), moments["variance"], rtol=0.35)
    if reparameterize:
        x = PLACES[PLACE]
        root = np.linalg.cholesky(covariance(x, x) + 1e-6 * np.eye(len(x)))
        again = 0.4 + draws["f_rotated_"].values[0] @ root.T
        assert np.abs(again - f).max() < 6e-3  # six times the root of the jitter
    check = fit.importance(200, random_seed=1)
    assert check.mean_shift.shape == PLACE.shape
    _, cov = fit.joint_latent_moments([0, 1])
    assert np.isfinite(cov).all()


def test_saved_fit_at_repeated_inputs_equals_the_fit(tmp_path):
    _, fit, model = process_alone()
    fit.to_datatree().to_netcdf(tmp_path / "fit.nc")
    again = gpep.from_datatree(xr.open_datatree(tmp_path / "fit.nc"), model)
    np.testing.assert_allclose(again.latent["mean"], fit.latent["mean"], atol=1e-9)
    np.testing.assert_allclose(again.predict([[0.3]])["mean"], fit.predict([[0.3]])["mean"], atol=1e-9)


def test_rows_of_a_process_with_white_noise_are_not_grouped():
    """Each row has its own noise, also at equal inputs, so that each row is a factor."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(6, 2)), 3, axis=0)
    counts = rng.poisson(2.0, 18)
    with pm.Model():
        cov = 1.44 * pm.gp.cov.ExpQuad(2, ls=0.9) + pm.gp.cov.WhiteNoise(0.5)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=x)
        pm.Poisson("y", mu=pm.math.exp(f), observed=counts)
        fit = pm.fit(method="laplace", progressbar=False)
    square = ((x[:, None] - x) ** 2).sum(axis=-1)
    covariance = 1.44 * np.exp(-0.5 * square / 0.81) + (0.25 + 1e-6) * np.eye(18)
    exact = gpep.methods.laplace(covariance, np.zeros(18), counts, "poisson", parameters=np.zeros((1, 18)))
    assert fit.log_evidence == pytest.approx(exact.evidence, abs=1e-8)
