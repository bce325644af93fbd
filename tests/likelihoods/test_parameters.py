"""Likelihoods with parameters in addition to latent values: counts with an exposure, ordered classes with cutpoints."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import pymc_gpep as gpep
from pymc_gpep.approximations import APPROXIMATIONS
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import log_predictive
from pymc_gpep.likelihoods.local_computations import ScalarDensity
from pymc_gpep.reading import StructureError, read_classifier
from tests.likelihoods.with_parameters import CASES, COUNTS, CUTS, EVERY, EXPOSURE, ORDERED, X, model_of

cases = pytest.mark.parametrize("name", CASES)
WITH_LABEL_NOISE = {"noisy_multinomial_probit", "robust_max"}  # tested in test_label_noise.py
DENSE = [each for each in LIKELIHOODS if each.has_parameters and each.name not in WITH_LABEL_NOISE]


@pytest.fixture(scope="module")
def fits():
    made = {}

    def fit(name, method="ep"):
        if (name, method) not in made:
            model, gp = model_of(CASES[name].observe)
            with model:
                made[name, method] = model, gp, pm.fit(method=method, progressbar=False, random_seed=1)
        return made[name, method]

    return fit


def test_test_cases_cover_all_likelihoods_with_parameters():
    assert set(EVERY) == {each.name for each in DENSE}


@cases
def test_parameters_are_recognised(name):
    model, _ = model_of(CASES[name].observe)
    found = read_classifier(model)
    assert (found.kind, found.n_functions) == (name, 1)
    assert found.n_classes == (0 if name == "poisson" else 3)
    values = {model[each]: value for each, value in (("slope", 0.1), ("cut", CUTS)) if each in model.named_vars}
    assert_allclose(found.parameters.eval(values), CASES[name].parameters, atol=1e-12)


@cases
def test_density_equals_the_density_of_the_model(name):
    case, parameters = CASES[name], CASES[name].parameters
    likelihood = next(each for each in LIKELIHOODS if each.name == name).given(parameters)
    y = COUNTS if name == "poisson" else ORDERED
    f = np.random.default_rng(1).normal(size=(3, 1, 12))
    expected = [sum(case.log_probability(y[i], g[0, i], parameters[:, i]) for i in range(12)) for g in f]
    assert_allclose(likelihood.log_density(f, y), expected, rtol=1e-12)
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    mean, cov = f[0].T, np.linspace(0.1, 1.5, 12)[:, None, None]
    at = [mean[i] + np.sqrt(cov[i, 0]) * nodes for i in range(12)]
    average = [np.log(weights @ case.probability(y[i], at[i], parameters[:, i]) / weights.sum()) for i in range(12)]
    assert_allclose(log_predictive(likelihood, mean, cov, y), average, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "ep") for name in CASES), *zip(CASES, ("laplace", "kl", "laplace", "laplace", "kl"), strict=True)],
)
def test_gradient_in_hyperparameters_matches_differences(name, method, fits):
    _, _, fit = fits(name, method)
    assert fit.converged
    log_posterior = fit.log_posterior
    theta = fit.trace.best.theta + 0.2
    step = 1e-4 * np.random.default_rng(2).normal(size=theta.size)
    difference = log_posterior(theta + step).log_posterior - log_posterior(theta - step).log_posterior
    assert log_posterior(theta).gradient @ step == pytest.approx(difference / 2, abs=2e-8)


def test_methods_without_slopes_in_parameters_are_not_offered():
    for likelihood in DENSE:
        smooth = {"laplace"} if likelihood.offers(ScalarDensity) else set()
        assert {kind.name for kind in APPROXIMATIONS if kind.approximates(likelihood)} == {"ep", "kl", "fv"} | smooth


def test_label_noise_is_supported_by_two_methods():
    found = {each.name: [kind.name for kind in APPROXIMATIONS if kind.approximates(each)] for each in LIKELIHOODS}
    assert all(found[name] == ["nested_ep", "qiep"] for name in WITH_LABEL_NOISE)


def test_moments_of_predicted_counts_match_closed_forms(fits):
    """New rows have exposures of their own. The slope in the exposure is a hyperparameter."""
    _, gp, fit = fits("poisson")
    new, hours, y = X[:4] + 0.1, np.array([0.5, 1.0, 20.0, 3.0]), np.array([0, 2, 30, 5])
    predicted = fit.predict(gp, new, data={"place": new[:, 0], "hours": hours}, observed=y)
    mean, variance = predicted["mean"].values, predicted["variance"].values
    offset = fit.hyperparameters["slope"].item() * new[:, 0] + np.log(hours)
    expected = np.exp(mean + offset + variance / 2)
    assert_allclose(predicted["y_mean"], expected, rtol=1e-12)
    assert_allclose(predicted["y_variance"], expected + expected**2 * np.expm1(variance), rtol=1e-9)
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    rates = np.exp(mean + offset + np.sqrt(variance) * nodes[:, None])
    density = np.log(weights @ stats.poisson.pmf(y, rates) / weights.sum())
    assert_allclose(predicted["log_density"], density, atol=1e-9)
    assert "p" not in predicted


def test_data_at_new_points_can_be_a_scalar_or_an_array(fits):
    _, gp, fit = fits("poisson")
    each = fit.predict(gp, X, data={"place": X[:, 0], "hours": np.full(12, 2)})
    every = fit.predict(gp, X, data={"place": X[:, 0], "hours": 2})
    assert_allclose(each["y_mean"], every["y_mean"], rtol=1e-14)
    hours = np.linspace(0.5, 6.0, 12)
    all_of_them = fit.predict(gp, X, data={"place": X[:, 0], "hours": hours})
    without_last = fit.predict(gp, X[:11], data={"place": X[:11, 0], "hours": hours[:11]})
    assert_allclose(all_of_them["y_mean"][:11], without_last["y_mean"], rtol=1e-12)


def test_predictions_need_no_data_for_constant_parameters():
    model, gp = model_of(lambda f: pm.Poisson("y", mu=3.0 * pm.math.exp(f), observed=COUNTS))
    with model:
        predicted = pm.fit(method="laplace", progressbar=False).predict(gp, X[:2])
    mean, variance = predicted["mean"], predicted["variance"]
    assert_allclose(predicted["y_mean"], 3 * np.exp(mean + variance / 2), rtol=1e-12)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"Parameters of the likelihood of 'y' differ .* data=\{'place': ...\}"),
        ({"place": 0.0}, r"differ between points.*data=\{'hours': ...\}"),
        (
            {"place": 0.0, "hours": [1.0, 2.0]},
            r"data\['hours'\] must have one entry for each of the 12 new rows, but has 2",
        ),
        ({"place": 0.0, "hours": ["a"] * 12}, r"data\['hours'\] must be numbers of shape \(rows\), but has type <U1"),
        ({"place": 0.0, "hours": np.nan}, r"data\['hours'\] must be numbers, like the data of the model"),
        ({"place": 0.0, "hours": -1.0}, "'y' at new points must be numbers of at least 0"),
        ({"weight": 1.0}, "data names 'weight', but 'y' depends on the data 'place', 'hours'"),
    ],
)
def test_invalid_data_are_refused(data, message, fits):
    """The numbers of new points and of fitted rows are equal, so data of the fit would have a valid shape."""
    _, gp, fit = fits("poisson")
    with pytest.raises(ValueError, match=message):
        fit.predict(gp, X + 0.1, data=data)


def test_parameters_that_differ_between_rows_need_data_at_new_rows():
    model, gp = model_of(lambda f: pm.Poisson("y", mu=EXPOSURE * pm.math.exp(f), observed=COUNTS))
    with model:
        fit = pm.fit(method="laplace", progressbar=False)
    with pytest.raises(ValueError, match=r"differ between points.*pm\.Data"):
        fit.predict(gp, X)
    with pytest.raises(ValueError, match="data names 'y', but 'y' depends on no data except through latent values"):
        fit.predict(gp, X, data={"y": 1.0})


@pytest.mark.parametrize("name", ["ordered_probit", "ordered_logit"])
def test_predictions_of_ordered_classes_are_probabilities(name, fits):
    _, gp, fit = fits(name)
    predicted = fit.predict(gp, X[:4] + 0.1)
    cut = fit.hyperparameters["cut"].values
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    for i in range(4):
        f = predicted["mean"].values[i] + np.sqrt(predicted["variance"].values[i]) * nodes
        expected = [weights @ CASES[name].probability(y, f, cut) / weights.sum() for y in range(3)]
        assert_allclose(predicted["p"][i], expected, atol=1e-8)


@cases
def test_fit_with_parameters_supports_draws_files_and_predictions(name, fits):
    """Leave-one-out, importance sampling, files and draws use the parameters."""
    model, _, fit = fits(name)
    loo = fit.loo(refit_above=0.2)
    assert np.isfinite(loo.elpd_i).all()
    assert np.isfinite(fit.importance(200, random_seed=1).log_evidence)
    with model:
        again = gpep.from_datatree(fit.to_datatree())
    assert again.log_evidence == pytest.approx(fit.log_evidence, abs=1e-6)
    theta = fit.trace.best.theta
    marginal = gpep.marginalize(model)
    point = fit.log_posterior.point(theta)
    assert marginal.compile_logp(mode="FAST_COMPILE")(point) == pytest.approx(fit.trace.best.log_posterior, abs=1e-6)


RATES = {
    "exposure in front": lambda f: EXPOSURE * pm.math.exp(f),
    "divided": lambda f: pm.math.exp(f) / (1 / EXPOSURE),
    "named": lambda f: pm.Deterministic("rate", pt.exp(np.log(EXPOSURE) + f)),
    "less": lambda f: pt.exp(f - np.log(1 / EXPOSURE)),
}


@pytest.mark.parametrize("rate", RATES)
def test_every_spelling_of_a_rate_is_recognised(rate):
    model, _ = model_of(lambda f: pm.Poisson("y", mu=RATES[rate](f), observed=COUNTS))
    found = read_classifier(model)
    assert_allclose(found.parameters.eval(), np.log(EXPOSURE)[None], atol=1e-12)


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32", "list"])
@pytest.mark.parametrize(
    "declared", [np.array([-1, 1]), np.tile([-1, 1], (12, 1))], ids=["common to all rows", "by row"]
)
@pytest.mark.parametrize("distribution", [pm.OrderedProbit, pm.OrderedLogistic])
def test_cutpoints_of_any_type_are_accepted(distribution, declared, dtype):
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1)).prior("f", X=X)
        cutpoints = declared.tolist() if dtype == "list" else declared.astype(dtype)
        distribution("y", eta=f, cutpoints=cutpoints, observed=COUNTS % 3)
    found = read_classifier(model)
    assert found.kind in ("ordered_probit", "ordered_logit")
    parameters = found.parameters.eval()
    assert parameters.dtype == np.float64
    assert_allclose(np.broadcast_to(parameters, (2, 12)), np.tile([[-1.0], [1.0]], 12))


@pytest.mark.parametrize("name", ["ordered_probit", "ordered_logit"])
def test_crossing_cutpoints_give_nan_for_all_classes(name):
    """PyMC's log density of crossing cutpoints is −∞, also if the class between the cutpoints does not occur."""
    likelihood = next(each for each in LIKELIHOODS if each.name == name).given(np.array([[0.5], [-0.5], [1.0]]))
    for observed in range(4):
        assert np.isnan(likelihood.log_density(np.zeros((1, 1)), np.array([observed])))
        assert np.isnan(log_predictive(likelihood, np.zeros((1, 1)), np.ones((1, 1, 1)), np.array([observed])))
    with pytest.raises(ValueError, match=r"must ascend, but are 0\.5, -0\.5, 1\. Declare them"):
        likelihood.check_parameters(None, "y")


def test_ordered_classes_with_a_scale_have_divided_argument_and_cutpoints():
    def observe(f):
        pm.OrderedProbit("y", eta=f, cutpoints=CUTS, sigma=pm.HalfNormal("sigma"), observed=ORDERED)

    model, _ = model_of(observe)
    found = read_classifier(model)
    assert found.kind == "ordered_probit"
    assert_allclose(found.parameters.eval({model["sigma"]: 2.0})[:, 0], CUTS / 2.0, rtol=1e-12)


@pytest.mark.parametrize("sigma", [2.0, np.linspace(1.0, 2.0, 12)], ids=["constant scale", "scale of each row"])
def test_error_for_ordered_classes_with_constant_scales_does_not_mention_softmax(sigma):
    model, _ = model_of(lambda f: pm.OrderedProbit("y", eta=f, cutpoints=CUTS, sigma=sigma, observed=ORDERED))
    with pytest.raises(StructureError, match=r"pm\.OrderedProbit\('y', eta=f, cutpoints=\.\.\.\) without sigma") as why:
        read_classifier(model)
    assert "not of a softmax" not in str(why.value)


@pytest.mark.parametrize("rate", [pt.softplus, lambda f: 1 + pt.exp(f)], ids=["softplus", "one plus exp"])
def test_counts_with_another_link_use_their_log_density(rate):
    model, _ = model_of(lambda f: pm.Poisson("y", mu=rate(f), observed=COUNTS))
    assert read_classifier(model).kind == "univariate"


def test_labels_outside_the_classes_raise_structure_error():
    model, _ = model_of(lambda f: pm.OrderedProbit("y", eta=f, cutpoints=CUTS, observed=ORDERED + 1))
    with pytest.raises(StructureError, match="must be integers 0…2"):
        read_classifier(model)
