"""Potentials that are log densities of rows, against models without potentials."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier
from pymc_gpep.reading.rewritten_models import with_observed_potentials

N = 30
_rng = np.random.default_rng(5)
X = _rng.normal(size=N)
TIMES = np.exp(0.4 + 0.5 * X) * _rng.weibull(1.5, N)
CENSORED = TIMES > 2.0
SEEN = np.minimum(TIMES, 2.0)
Y = 0.3 + 0.5 * X + _rng.normal(size=N)
WEIGHTS = _rng.uniform(0.2, 2.0, N)
MATRIX = _rng.normal(size=(5, 4))


def scale_of_rows():
    return pm.HalfNormal("alpha", 2), pm.math.exp(pm.Normal("mu", 0, 2) + pm.Normal("b", 0, 2) * X)


def survival(alpha, beta):
    pm.Weibull("y", alpha=alpha, beta=beta[~CENSORED], observed=TIMES[~CENSORED])
    pm.Potential("censored", -((SEEN[CENSORED] / beta[CENSORED]) ** alpha))


def survival_in_one_sum(alpha, beta):
    pm.Weibull("y", alpha=alpha, beta=beta[~CENSORED], observed=TIMES[~CENSORED])
    pm.Potential("censored", -pt.sum((SEEN[CENSORED] / beta[CENSORED]) ** alpha))


def survival_by_distribution_function(alpha, beta):
    pm.Weibull("y", alpha=alpha, beta=beta[~CENSORED], observed=TIMES[~CENSORED])
    beyond = pt.log1mexp(pm.logcdf(pm.Weibull.dist(alpha, beta[CENSORED]), SEEN[CENSORED]))
    pm.Potential("censored", beyond)


def all_rows(alpha, beta):
    density = pm.logp(pm.Weibull.dist(alpha, beta), SEEN)
    pm.Potential("y", pt.switch(CENSORED, -((SEEN / beta) ** alpha), density).sum())


def observed(alpha, beta):
    bound = np.where(CENSORED, 2.0, np.inf)
    pm.Censored("y", pm.Weibull.dist(alpha, beta), lower=None, upper=bound, observed=SEEN)


def declared(declare):
    with pm.Model() as model:
        declare(*scale_of_rows())
    return model


@pytest.fixture(scope="module")
def censored():
    return pm.fit(method="ep", model=declared(observed), hyper="map", progressbar=False)


SPELLINGS = {
    "log1mexp": lambda log: pt.log1mexp(log),
    "log(1 - exp)": lambda log: pt.log(1.0 - pt.exp(log)),
    "log1p(-exp)": lambda log: pt.log1p(-pt.exp(log)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_complement_of_a_distribution_function_keeps_its_digits_in_the_tail(spelling):
    def by_function(alpha, beta):
        pm.Weibull("y", alpha=alpha, beta=beta[~CENSORED], observed=TIMES[~CENSORED])
        below = pm.logcdf(pm.Weibull.dist(alpha, beta[CENSORED]), SEEN[CENSORED])
        pm.Potential("censored", SPELLINGS[spelling](below))

    likelihood = read_classifier(declared(by_function), starts=True).likelihood_model
    density = next(each.density for each in likelihood.parts if hasattr(each, "density"))
    f, time, alpha = np.linspace(-5.0, 3.0, 9), 2.0, 1.7
    columns = {"row_0": alpha, "part_0": time}
    rows = np.stack([np.full(9, columns.get(row.name, 0.0)) for row in density.graph.rows])
    value = -((time / np.exp(f)) ** alpha)
    assert_allclose(density.orders(f[None], np.zeros(9), rows), [value, -alpha * value, alpha**2 * value], rtol=1e-9)


@pytest.mark.parametrize("declare", [survival, survival_in_one_sum, survival_by_distribution_function, all_rows])
def test_log_density_of_observed_rows_equals_the_model_with_the_potential(declare):
    model = declared(declare)
    made = with_observed_potentials(model)
    assert not made.potentials
    rng = np.random.default_rng(1)
    point = {key: value + 0.3 * rng.normal(size=value.shape) for key, value in model.initial_point().items()}
    assert_allclose(made.compile_logp()(point), model.compile_logp()(point), rtol=1e-12)


@pytest.mark.parametrize("declare", [survival, all_rows])
def test_fit_of_censored_potential_equals_fit_of_censored_variable(declare, censored):
    model = declared(declare)
    fit = pm.fit(method="ep", model=model, hyper="map", progressbar=False)
    assert_allclose(fit.log_evidence, censored.log_evidence, rtol=1e-8)
    assert_allclose(fit.summary()[["mean", "sd"]], censored.summary()[["mean", "sd"]], rtol=1e-4)
    assert_allclose(fit.loo().elpd, censored.loo().elpd, rtol=1e-6)
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert_allclose(again.latent["mean"], fit.latent["mean"], rtol=1e-6)


def test_weighted_rows_equal_weighted_least_squares():
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s")
        pm.Potential("y", (WEIGHTS * pm.logp(pm.Normal.dist(b[0] + b[1] * X, s), Y)).sum())
    fit = pm.fit(method="ep", model=model, hyper="map", progressbar=False)
    design, precision = np.column_stack([np.ones(N), X]), WEIGHTS / float(fit.hyperparameters["s"]) ** 2
    inverse = np.linalg.inv(np.eye(2) / 4 + design.T @ (design * precision[:, None]))
    rows = fit.summary().loc[["b[0]", "b[1]"]]
    assert_allclose(rows["mean"], inverse @ design.T @ (precision * Y), rtol=1e-5)
    assert_allclose(rows["sd"], np.sqrt(np.diag(inverse)), rtol=1e-5)


def normal_rows_by_hand(b, s):
    squares = (Y - b[0] - b[1] * X) ** 2
    pm.Potential("y", -N * pt.log(s) - pt.sum(squares) / (2.0 * s**2) - 0.5 * N * np.log(2.0 * np.pi))


def test_fit_of_a_normal_potential_written_by_hand_equals_fit_of_normal_rows():
    fits = []
    for declare in (normal_rows_by_hand, lambda b, s: pm.Normal("y", b[0] + b[1] * X, s, observed=Y)):
        with pm.Model() as model:
            declare(pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s"))
        fits.append(pm.fit(method="ep", model=model, hyper="map", progressbar=False))
    assert_allclose(*(fit.log_evidence for fit in fits), rtol=1e-6)
    assert_allclose(*(fit.summary().loc[["b[0]", "b[1]"], "mean"] for fit in fits), rtol=1e-4)


def log_density(value, mu, log_scale):
    return -0.5 * ((value - mu) / pt.exp(log_scale)) ** 2 - log_scale


def test_potential_of_two_functions_is_refused_and_the_advice_works():
    with pm.Model() as model:
        b, c = pm.Normal("b", shape=2), pm.Normal("c")
        pm.Potential("y", log_density(Y, b[0] + b[1] * X, c).sum())
    with pytest.raises(gpep.StructureError, match=r"The Potential 'y' is not a sum of terms .* pm\.CustomDist\('y'"):
        read_classifier(model)
    with pm.Model() as model:
        b, c = pm.Normal("b", shape=2), pm.Normal("c")
        pm.CustomDist("y", b[0] + b[1] * X, c, logp=log_density, observed=Y)
    assert pm.fit(method="laplace", model=model, hyperparameters=["c"], hyper="map", progressbar=False).converged


WEIGHED = {
    "number": lambda rows: 2.0 * rows.sum(),
    "mean": lambda rows: N * rows.mean() * 2.0,
    "parts": lambda rows: -(-rows.sum() - 3.0 * pt.mean(rows) * N) / 2.0,
    "difference": lambda rows: pt.sum(rows) - pt.sum(-rows),
    "product": lambda rows: pt.dot(np.full(N, 2.0), rows),
}


@pytest.mark.parametrize("name", WEIGHED)
def test_factor_of_a_sum_of_log_densities_is_the_weight_of_its_rows(name):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Potential("w", WEIGHED[name](pm.logp(pm.Bernoulli.dist(logit_p=b[0] + b[1] * X), (Y > 0).astype(int))))
    with pm.Model() as twice:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Bernoulli("w", logit_p=pt.tile(b[0] + b[1] * X, 2), observed=np.tile(Y > 0, 2).astype(int))
    both = [pm.fit(method="laplace", model=each, progressbar=False) for each in (model, twice)]
    assert_allclose(*(fit.log_evidence for fit in both), rtol=1e-8)
    assert_allclose(*(fit.effects("b")["b"].values for fit in both), rtol=1e-5)


def test_error_for_a_walk_by_a_scan_advises_cumsum():
    with pm.Model() as model:
        steps = pm.Normal("steps", shape=5)
        walk = pytensor.scan(lambda step, before: before + step, [steps], [pt.zeros(())], return_updates=False)
        pm.Normal("y", walk, 1.0, observed=np.arange(5.0))
    with pytest.raises(gpep.StructureError, match=r"'Scan' \(a walk in closed form is pt.cumsum\(steps\)"):
        read_classifier(model, starts=True)


def test_potential_of_an_array_has_a_row_for_each_entry():
    with pm.Model() as model:
        a, s = pm.Normal("a", shape=5), pm.HalfNormal("s")
        pm.Potential("y", pm.logp(pm.Normal.dist(a[:, None], s), MATRIX))
    with pm.Model() as rows:
        a, s = pm.Normal("a", shape=5), pm.HalfNormal("s")
        pm.Normal("y", a[:, None], s, observed=MATRIX)
    both = [pm.fit(method="ep", model=each, hyper="map", progressbar=False).log_evidence for each in (model, rows)]
    assert_allclose(*both, rtol=1e-8)


def constrained():
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=4)
        pm.Poisson("y", pm.math.exp(u[pm.Data("group", np.arange(8) % 4)]), observed=np.arange(8))
        pm.Potential("zero", pm.logp(pm.Normal.dist(0, 0.01), pt.sum(u)))
    return model


def test_potential_limits_the_sum_of_draws_and_predictions_have_only_the_response():
    fit = pm.fit(method="ep", model=constrained(), progressbar=False)
    drawn = fit.sample(500, random_seed=1).posterior["u"].values.sum(-1)
    assert 0.008 < drawn.std() < 0.012
    assert fit.predict(data={"group": [1, 2]})["y_mean"].sizes == {"new_point": 2}


def test_variables_in_a_potential_of_two_arguments_are_not_integrated():
    with pm.Model() as model:
        u, v = pm.Normal("u", shape=3), pm.Normal("v", shape=3)
        pm.Normal("y", v, 1.0, observed=np.ones(3))
        pm.Potential("other", -(u**2) * pt.exp(u * v)[0])
    with pytest.raises(gpep.StructureError, match="the Potential 'other' depends on it"):
        read_classifier(model, starts=True)


def test_potential_in_a_model_of_classes_is_not_read_as_rows():
    with pm.Model() as model:
        level = pm.Normal("level")
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior("f", X[:6, None], n_outputs=3)
        pm.Categorical("y", logit_p=f.T, observed=np.arange(6) % 3)
        pm.Potential("soft", -(level**2))
    assert with_observed_potentials(model) is model
    assert read_classifier(model, starts=True).n_functions == 3
