"""Fits of several observed variables that share Gaussian variables, against fits of one variable and exact formulas."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import pymc_gpep as gpep
from pymc_gpep.approximations.methods import approximator
from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import StructureError, read_classifier
from tests.models import interpreted_sampler
from tests.reference.stored import stored

pytestmark = pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")

J, N, CUT = 5, 24, 10
_rng = np.random.default_rng(5)
GROUP = np.concatenate([np.arange(J), _rng.integers(0, J, N - J)])
X = _rng.normal(size=N)
HOURS = _rng.uniform(0.5, 2.0, N)
COUNTS = _rng.poisson(np.exp(0.3 * X))
PATIENT = _rng.integers(0, J, 15)
CENSORED = np.array([0.9] * 8 + [np.inf] * 7)
TIMES = np.minimum(_rng.weibull(1.5, 15), CENSORED)


def effects(n_groups=J):
    s = pm.HalfNormal("s", 1)
    return pm.Normal("u", 0, s, shape=n_groups), pm.Normal("b", 0, 1)


def counts(name, u, b, rows):
    where, x = pm.Data(f"where_{name}", GROUP[rows]), pm.Data(f"x_{name}", X[rows])
    hours = pm.Data(f"hours_{name}", HOURS[rows])
    pm.Poisson(name, mu=hours * pm.math.exp(b * x + u[where]), observed=COUNTS[rows])


def whole():
    with pm.Model() as model:
        counts("y", *effects(), slice(None))
    return model


def split():
    with pm.Model() as model:
        u, b = effects()
        counts("first", u, b, slice(0, CUT))
        counts("second", u, b, slice(CUT, None))
    return model


def frailty(missing=()):
    """Counts and censored times of patients with a common frailty. Some counts may be missing."""
    y = np.ma.masked_array(COUNTS, np.isin(np.arange(N), missing)) if len(missing) else COUNTS
    with pm.Model(coords={"patient": range(J), "visit": np.arange(N) + 100}) as model:
        s = pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, s, dims="patient")
        a, c = pm.Normal("a", 0, 1), pm.Normal("c", 0, 1)
        alpha = pm.Gamma("alpha", 4, 3)
        where, patient = pm.Data("where", GROUP), pm.Data("patient_of_time", PATIENT)
        pm.Poisson("visits", mu=pm.math.exp(a + u[where]), observed=y, dims=None if len(missing) else "visit")
        life = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(c - 0.5 * u[patient]))
        pm.Censored("time", life, lower=None, upper=CENSORED, observed=TIMES)
    return model


def fitted(model, method="ep", hyper="map", **kwargs):
    with model:
        return pm.fit(method=method, hyper=hyper, progressbar=False, random_seed=1, **kwargs)


@pytest.fixture(scope="module")
def pair():
    return fitted(whole()), fitted(split())


@pytest.fixture(scope="module")
def joint():
    model = frailty()
    return model, fitted(model)


# One variable that is split into two variables.


@pytest.mark.variation
def test_variable_split_in_two_has_the_fit_of_one_variable(pair):
    one, two = pair
    assert two.log_evidence == pytest.approx(one.log_evidence, abs=1e-10)
    assert_allclose(two.theta, one.theta, atol=1e-9)
    assert_allclose(two.latent["mean"], one.latent["mean"], atol=1e-9)
    assert list(two.latent["response"].values) == ["first"] * CUT + ["second"] * (N - CUT)
    assert_allclose(two.mean_data["u"], one.mean_data["u"], atol=1e-9)
    assert_allclose(two.std_data["u"], one.std_data["u"], atol=1e-9)


def test_variable_split_in_two_has_the_predictions_of_one_variable(pair):
    one, two = pair
    new = {"where": [0, 4], "x": [0.5, -1.0], "hours": [1.0, 2.0]}
    for name in ("first", "second"):
        found = two.predict(response=name, data={f"{key}_{name}": values for key, values in new.items()})
        wanted = one.predict(data={f"{key}_y": values for key, values in new.items()})
        for variable in ("mean", "variance"):
            assert_allclose(found[variable], wanted[variable], atol=1e-9)
            assert_allclose(found[f"{name}_{variable}"], wanted[f"y_{variable}"], atol=1e-9)


def test_leave_one_out_selects_rows_of_one_variable_or_of_all_variables(pair):
    one, two = pair
    alone, together = one.loo(pit=True), two.loo(pit=True)
    assert_allclose(together.elpd_i, alone.elpd_i, atol=1e-9)
    assert_allclose(together.pit_i, alone.pit_i, atol=1e-9)
    for name, rows in (("first", slice(0, CUT)), ("second", slice(CUT, None))):
        own = two.loo(response=name, refit_above=0.5)
        assert_allclose(own.elpd_i, one.loo(refit_above=0.5).elpd_i[rows], atol=1e-7)
        assert own.elpd_i.name == name
    groups = {"first": "where_first", "second": GROUP[CUT:]}
    assert_allclose(two.loo(groups=groups).elpd_i, one.loo(groups=GROUP).elpd_i, atol=1e-9)


@pytest.mark.parametrize("form", ["by rows", "by precision"])
def test_every_form_of_the_prior_fits_a_variable_split_in_parts(form):
    n, levels = (900, 600) if form == "by precision" else (400, 8)
    rng = np.random.default_rng(2)
    group, x = rng.integers(0, levels, n), rng.normal(size=n)
    y, cut = rng.poisson(np.exp(0.2 * x)), n // 3

    def model(parts):
        with pm.Model() as made:
            u, b = effects(levels)
            for i, rows in enumerate(parts):
                pm.Poisson(f"y{i}", mu=pm.math.exp(b * x[rows] + u[group[rows]]), observed=y[rows])
        return made

    found = []
    for parts in ([slice(None)], [slice(0, cut), slice(cut, None)]):
        classifier = read_classifier(model(parts), means=True)
        log_posterior = DenseLogPosterior(classifier, approximator("laplace", classifier.likelihood_model, {}))
        found.append(log_posterior(np.array([-0.7])))
        assert ("sparse precision" if form == "by precision" else "normals") in log_posterior.algebra
    one, two = found
    assert two.log_posterior == pytest.approx(one.log_posterior, abs=1e-9)
    assert_allclose(two.gradient, one.gradient, atol=1e-8)


def test_likelihood_for_samplers_is_the_joint_density_of_all_variables():
    values = []
    for model in (whole(), split()):
        latent = LatentModel(read_classifier(model, means=True))
        point = model.initial_point()
        prior = latent.prior_function()(point)
        values.append(latent.likelihood()(point, np.linspace(-1, 1, J + 1)[None], prior))
    (one, slope), (two, other) = values
    assert two == pytest.approx(one, abs=1e-10)
    assert_allclose(other, slope, atol=1e-10)


def test_marginal_model_has_the_evidence_of_all_variables():
    logs = [gpep.marginalize(model, "ep").compile_logp()({"s_log__": np.array(-0.3)}) for model in (whole(), split())]
    assert logs[1] == pytest.approx(logs[0], abs=1e-9)


# Exact values


def test_fit_of_two_normal_variables_matches_one_normal_vector():
    rng = np.random.default_rng(3)
    x = [rng.normal(size=8), rng.normal(size=5)]
    with pm.Model() as model:
        b, a = pm.Normal("b", 0, 2), pm.Normal("a", 1, 1)
        xs = [pm.Data(f"x{i}", each) for i, each in enumerate(x)]
        y = [0.5 * x[0] + 1, -x[1]]
        pm.Normal("y0", mu=a + b * xs[0], sigma=0.7, observed=y[0])
        pm.Normal("y1", mu=-b * xs[1], sigma=1.3, observed=y[1])
    fit = fitted(model)
    rows = np.column_stack([np.concatenate([x[0], -x[1]]), np.repeat([1.0, 0.0], [8, 5])])
    prior, noise = np.diag([4.0, 1.0]), np.repeat([0.7, 1.3], [8, 5]) ** 2
    observed, mean = np.concatenate(y), rows @ [0.0, 1.0]
    cov = rows @ prior @ rows.T + np.diag(noise)
    assert fit.log_evidence == pytest.approx(stats.multivariate_normal(mean, cov).logpdf(observed), abs=1e-9)
    gain = prior @ rows.T @ np.linalg.inv(cov)
    effects_mean = np.array([0.0, 1.0]) + gain @ (observed - mean)
    effects_cov = prior - gain @ rows @ prior
    for name, row in (("y0", [2.0, 1.0]), ("y1", [-2.0, 0.0])):
        found = fit.predict(response=name, data={f"x{name[1]}": [2.0]})
        assert_allclose(found["mean"], np.dot(row, effects_mean), atol=1e-9)
        assert_allclose(found["variance"], np.array(row) @ effects_cov @ row, atol=1e-9)


def test_fit_of_a_count_and_a_time_with_one_frailty_matches_quadrature():
    y, t, alpha = np.array([3, 1, 2]), np.array([0.4, 0.7]), 1.3
    with pm.Model() as model:
        u, a = pm.Normal("u", 0, 0.8), pm.Normal("a", 0, 1)
        pm.Poisson("y", mu=pm.math.exp(a + u * np.ones(3)), observed=y)
        pm.Weibull("t", alpha=alpha, beta=pm.math.exp(-0.5 * u * np.ones(2)), observed=t)
    fit = fitted(model)
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    values = np.meshgrid(0.8 * z, z, indexing="ij")
    log_p = stats.poisson.logpmf(y[:, None, None], np.exp(values[0] + values[1])).sum(axis=0)
    log_p += stats.weibull_min.logpdf(t[:, None, None], alpha, scale=np.exp(-0.5 * values[0])).sum(axis=0)
    tilted = weights * np.exp(log_p)
    assert fit.log_evidence == pytest.approx(np.log(tilted.sum()), abs=0.01)
    for name, value in zip(("u", "a"), values, strict=True):
        assert fit.mean_data[name] == pytest.approx((tilted * value).sum() / tilted.sum(), abs=0.01)


@pytest.mark.variation(but=["constant"])
@pytest.mark.parametrize("inputs", [lambda name, x: pm.Data(name, x), lambda name, x: x], ids=["data", "constant"])
def test_process_of_two_variables_is_predicted_at_new_inputs(inputs):
    x, new = np.linspace(-2, 2, 9)[:, None], np.array([[0.3], [2.5]])
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=1.5 * pm.gp.cov.Matern52(1, 1.0))
        f = gp.prior("f", X=inputs("X", x))
        a = pm.Normal("a", 0, 1)
        pm.Poisson("y", mu=pm.math.exp(a + f), observed=rng.poisson(1.5, 9))
        pm.Bernoulli("z", logit_p=2.0 * f, observed=rng.integers(0, 2, 9))
    fit = fitted(model)
    both, at = np.concatenate([x, x]), gp.cov_func(new, x).eval()
    k = gp.cov_func(x).eval() + 1e-6 * np.eye(9)
    scale, shared = np.repeat([1.0, 2.0], 9), np.repeat([1.0, 0.0], 9)
    prior = np.tile(k, (2, 2)) * np.outer(scale, scale) + np.outer(shared, shared)
    sites = fit.solution.posterior.sites
    precision, location = np.ravel(sites.precision), np.ravel(sites.location)
    inner = np.linalg.inv(prior + np.diag(1.0 / precision))
    assert len(both) == 18
    for name, factor, level in (("y", 1.0, 1.0), ("z", 2.0, 0.0)):
        cross = factor * np.tile(at, (1, 2)) * scale + level * shared
        found = fit.predict(new, response=name)
        assert_allclose(found["mean"], cross @ inner @ (location / precision), atol=1e-6)
        own = factor**2 * 1.5 + level
        assert_allclose(found["variance"], own - np.einsum("ij,jk,ik->i", cross, inner, cross), atol=1e-5)


# Results that fits of one variable also have


@pytest.mark.variation
def test_responses_of_one_variable_may_be_missing():
    missing = [3, 7]
    keep = np.setdiff1d(np.arange(N), missing)
    with pytest.warns(UserWarning, match="missing"):
        model = frailty(missing)
    fit = fitted(model)
    with pm.Model() as without:
        s, alpha = pm.HalfNormal("s", 1), pm.Gamma("alpha", 4, 3)
        u, a, c = pm.Normal("u", 0, s, shape=J), pm.Normal("a", 0, 1), pm.Normal("c", 0, 1)
        pm.Poisson("visits", mu=pm.math.exp(a + u[GROUP[keep]]), observed=COUNTS[keep])
        life = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(c - 0.5 * u[PATIENT]))
        pm.Censored("time", life, lower=None, upper=CENSORED, observed=TIMES)
    assert fit.log_evidence == pytest.approx(fitted(without).log_evidence, abs=1e-7)
    found = fit.predict(response="visits", missing=True)
    assert_allclose(found["mean"], fit.predict(response="visits", data={"where": GROUP[missing]})["mean"], atol=1e-9)
    with pytest.raises(StructureError, match="the model has 'visits' and 'time'"):
        read_classifier(model).check_one()
    with pytest.raises(ValueError, match="All rows of 'time' have a response"):
        fit.predict(response="time", missing=True)
    draws = fit.sample(5, random_seed=1)["posterior"]
    assert draws["visits_unobserved"].shape == (1, 5, 2)
    assert draws["visits"].shape == (1, 5, N)
    restored = gpep.from_datatree(fit.to_datatree(), model)
    assert restored.log_evidence == pytest.approx(fit.log_evidence, abs=1e-9)


def test_loaded_fit_has_the_names_of_all_variables(joint):
    model, fit = joint
    tree = fit.to_datatree()
    assert_allclose(tree["observed_data"]["time"], TIMES)
    assert tree["observed_data"]["visits"].dtype == np.int64
    restored = gpep.from_datatree(tree, model)
    new = {"where": [1]}
    mean = restored.predict(response="visits", data=new)["visits_mean"]
    assert_allclose(mean, fit.predict(response="visits", data=new)["visits_mean"], atol=1e-9)
    with pytest.raises(ValueError, match="likelihood is poisson, not poisson and weibull"):
        gpep.from_datatree(tree, whole_of_frailty())


def whole_of_frailty():
    """The model of `frailty` without times."""
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        u, a = pm.Normal("u", 0, s, shape=J), pm.Normal("a", 0, 1)
        pm.Gamma("alpha", 4, 3)
        pm.Poisson("visits", mu=pm.math.exp(a + u[GROUP]), observed=COUNTS)
    return model


def test_rows_have_the_coords_of_their_variable(joint):
    _, fit = joint
    assert list(fit.loo(response="visits").elpd_i["visit"].values) == list(np.arange(N) + 100)
    assert fit.loo(response="time").elpd_i.dims == ("time_dim_0",)


def test_observed_variable_that_depends_on_a_hyperparameter_stays_a_term():
    with pm.Model() as model:
        log_s, b = pm.Normal("log_s", 0, 1), pm.Normal("b", 0, 1)
        u = pm.Normal("u", 0, pm.math.exp(log_s), shape=J)
        counts("y", u, b, slice(None))
        pm.Normal("known", mu=log_s, sigma=0.3, observed=[0.1, 0.2])
    found = read_classifier(model)
    assert found.response == "y"
    assert not found.parts
    assert [rv.name for rv in found.hyperparameters] == ["log_s"]


def test_variable_with_a_custom_log_density_is_fitted_with_a_poisson_variable():
    with pm.Model() as model:
        u, b = effects()
        pm.StudentT("heavy", nu=4, mu=u[GROUP] + b, sigma=1.0, observed=X)
        counts("y", u, b, slice(None))
    found = read_classifier(model)
    assert [(part.response, part.kind) for part in found.parts] == [("heavy", "univariate"), ("y", "poisson")]
    assert not found.likelihood_model.log_concave


def test_name_of_a_response_selects_it_for_the_fit():
    with pm.Model() as model:
        u, b = effects()
        counts("first", u, b, slice(0, CUT))
        pm.Normal("second", mu=u, sigma=1.0, observed=np.zeros(J))
    found = read_classifier(model, "first")
    assert (found.response, found.parts) == ("first", ())
    assert [rv.name for rv in found.hyperparameters] == ["s", "u"]
    assert [part.response for part in read_classifier(model).parts] == ["first", "second"]


# Unsupported calls


def test_prediction_without_a_response_name_is_refused(joint):
    _, fit = joint
    for given in ({}, {"response": "weight"}):
        with pytest.raises(ValueError, match=r"response=\.\.\. from 'visits', 'time'"):
            fit.predict(data={"where": [0]}, **given)
    with pytest.raises(ValueError, match="each observed variable"):
        fit.loo(groups=GROUP)


def test_methods_are_compared_at_new_rows_of_the_named_variable(joint):
    model, fit = joint
    fits = {"ep": fit, "laplace": fitted(model, "laplace"), "draws": fit.sample(100, random_seed=1)}
    held_out = {"ynew": np.array([1, 0]), "data": {"where": [0, 3]}}
    table = gpep.compare_methods(fits, "ep", model=model, response="visits", random_seed=1, **held_out)
    found = fit.predict(response="visits", data=held_out["data"], observed=held_out["ynew"])
    assert table.loc["ep", "mlpd"] == pytest.approx(found["log_density"].mean().item())
    assert table["mlpd"].values == pytest.approx(table.loc["ep", "mlpd"], abs=0.1)
    with pytest.raises(ValueError, match=r"response=... from 'visits', 'time'"):
        gpep.compare_methods(fits, "ep", model=model, **held_out)


def test_variable_with_a_function_for_each_class_is_refused_with_other_variables():
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=(J, 3))
        pm.Categorical("kind", logit_p=u[GROUP], observed=COUNTS % 3)
        pm.Poisson("y", mu=pm.math.exp(u[GROUP, 0]), observed=COUNTS)
    with pytest.raises(StructureError, match=r"'kind' \(Categorical\) has several"):
        read_classifier(model)


def test_inducing_inputs_are_refused_for_several_variables():
    x = np.linspace(-2, 2, N)[:, None]
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior("f", X=x)
        pm.Bernoulli("y", logit_p=f, observed=COUNTS > 0)
        pm.Bernoulli("z", logit_p=f, observed=X > 0)
    for options in ({"method": "sparse_ep", "inducing": 5}, {"method": "ivm", "active": 5}):
        with pytest.raises(StructureError, match="a single observed variable, but the model has 'y' and 'z'"), model:
            pm.fit(**options, progressbar=False)


@stored
def moments_by_nuts(counts, times, censored, group, patient):
    """Return posterior means and standard deviations (2, J + 2) of `u`, `a` and `c`. The arguments are the data."""
    with frailty():
        posterior = pm.sample(2000, tune=1000, chains=2, cores=1, random_seed=1, progressbar=False)["posterior"]
    drawn = np.concatenate([posterior[name].values.reshape(4000, -1) for name in ("u", "a", "c")], axis=1)
    return np.array([drawn.mean(axis=0), drawn.std(axis=0)])


@pytest.mark.slow("evaluates each graph a few times")
@interpreted_sampler
def test_joint_fit_agrees_with_nuts(joint):
    fit = fitted(joint[0], hyper="ccd")
    mean, sd = moments_by_nuts(COUNTS, TIMES, CENSORED, GROUP, PATIENT)
    found = [np.concatenate([np.atleast_1d(each[name]) for name in ("u", "a", "c")])
             for each in (fit.mean_data, fit.std_data)]  # fmt: skip
    assert_allclose((found[0] - mean) / sd, 0.0, atol=0.2)
    assert_allclose(found[1] / sd, 1.0, atol=0.2)
