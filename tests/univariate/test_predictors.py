"""Likelihoods of several linear predictors, against Laplace's method on PyMC's log density, and against sums."""

import warnings
from functools import cache

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pymc.exceptions import ImputationWarning
from scipy import stats

import pymc_gpep as gpep
from pymc_gpep.approximations.several_predictors import EPPredictors, LaplacePredictors
from pymc_gpep.gaussians.precision_prior import PrecisionPrior
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.log_posteriors import dense_log_posterior
from pymc_gpep.prior_moments import precision_sum
from pymc_gpep.reading import read_classifier
from pymc_gpep.univariate.predictors import SEVERAL_PREDICTORS
from tests.reference.laplace_of_model import laplace_of_model

RNG = np.random.default_rng(5)
N, J = 48, 8
GROUP = np.repeat(np.arange(J), N // J)
X = RNG.normal(size=N)
U, V = RNG.normal(size=(2, J)) * [[0.6], [0.5]]
MU, SCALE = 1.0 + 0.5 * X + U[GROUP], np.exp(-0.5 + V[GROUP])
FIVE = np.array([0.3, 1.2, -0.4, 2.1, 0.9])
LATENT = ("level", "slope", "spread", "u", "v")


def rng():
    """Return a generator with a fixed seed, so that data of a model do not depend on other models."""
    return np.random.default_rng(11)


def predictors():
    """Two linear predictors with groups."""
    sd = pm.HalfNormal("sd", 1.0, shape=2)
    level, slope, spread = pm.Normal("level", 0.0, 2.0), pm.Normal("slope", 0.0, 1.0), pm.Normal("spread", 0.0, 1.0)
    u, v = pm.Normal("u", 0.0, sd[0], shape=J), pm.Normal("v", 0.0, sd[1], shape=J)
    group, x = pm.Data("group", GROUP), pm.Data("x", X)
    return level + slope * x + u[group], spread + v[group]


def normal(f, g):
    pm.Normal("y", pm.Deterministic("mu", f), pm.math.exp(g), observed=MU + SCALE * rng().normal(size=N))


def student(f, g):
    tail = pm.Gamma("tail", 2.0, 0.2)
    pm.StudentT("y", nu=tail, mu=f, sigma=pm.math.exp(g), observed=MU + SCALE * rng().normal(size=N))


def negative_binomial(f, g):
    pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=pm.math.exp(g), observed=rng().poisson(np.exp(MU)))


def zero_inflated(f, g):
    counts = rng().poisson(np.exp(MU)) * (rng().random(N) < 0.7)
    pm.ZeroInflatedPoisson("y", psi=pm.math.invlogit(g), mu=pm.math.exp(f), observed=counts)


def beta(f, g):
    pm.Beta("y", mu=pm.math.invlogit(f), nu=pm.math.exp(2.0 + g), observed=stats.norm.cdf(rng().normal(size=N)))


def gamma(f, g):
    shape = pm.math.exp(g)
    pm.Gamma("y", alpha=shape, beta=shape / pm.math.exp(f), observed=rng().gamma(2.0, np.exp(MU) / 2.0))


def censored(f, g):
    seen = np.minimum(MU + SCALE * rng().normal(size=N), 1.5)
    pm.Censored("y", pm.Normal.dist(f, pm.math.exp(g)), lower=None, upper=1.5, observed=seen)


EVERY = (normal, student, negative_binomial, zero_inflated, beta, gamma, censored)


def items():
    """A 2PL model: the argument is a product of predictors."""
    person, item = (each.ravel() for each in np.meshgrid(range(12), range(7), indexing="ij"))
    easy = np.linspace(-2.0, 2.0, 12)[person] - np.linspace(-1.0, 1.0, 7)[item]
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        steep, hard = pm.Normal("steep", 0.0, 0.5, shape=7), pm.Normal("hard", 0.0, sd, shape=7)
        able = pm.Normal("able", 0.0, 1.0, shape=12)
        eta = pm.math.exp(steep)[item] * (able[person] - hard[item])
        pm.Bernoulli("y", logit_p=eta, observed=(rng().logistic(size=84) < easy).astype(int))
    return model, ("steep", "hard", "able")


def correlated():
    """Effects of a group on location and scale, with a correlation."""
    with pm.Model() as model:
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        z, level, spread = pm.Normal("z", shape=(J, 2)), pm.Normal("level", 0.0, 2.0), pm.Normal("spread", 0.0, 1.0)
        u = pm.Deterministic("u", z @ chol.T)
        group, seen = pm.Data("group", GROUP), MU + SCALE * rng().normal(size=N)
        pm.Normal("y", level + u[group, 0], pm.math.exp(spread + u[group, 1]), observed=seen)
    return model, ("z", "level", "spread")


def processes():
    """One process for the location, and another process for the scale."""
    x = np.linspace(0.0, 4.0, 20)[:, None]
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 3.0, 3.0, shape=2)
        f, g = (pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls[i])).prior("fg"[i], x) for i in range(2))
        pm.Normal("y", f, pm.math.exp(g - 1.0), observed=np.sin(x[:, 0]) + 0.2 * rng().normal(size=20))
    return model, ("f_rotated_", "g_rotated_")


@cache
def model_of(name):
    if name in ("items", "correlated", "processes"):
        return globals()[name]()
    with pm.Model() as model:
        globals()[name](*predictors())
    return model, LATENT


@cache
def fit_of(name, method="laplace", *steps):
    with model_of(name)[0]:
        return pm.fit(*steps, method=method, hyper="map", progressbar=False)


@pytest.mark.variation(but=["normal", "items", "processes"])
@pytest.mark.parametrize("name", [*(each.__name__ for each in EVERY), "items", "correlated", "processes"])
def test_evidence_matches_the_log_density_of_the_model(name):
    model, latents = model_of(name)
    fit = fit_of(name)
    if name == "processes":
        exact = laplace_of_model(model, latents, fit.hyperparameters)
        assert_allclose(fit.solution.evidence, exact.evidence, rtol=0.0, atol=1e-5)
        return
    found = fit.effects(list(latents))
    mean, sd = (np.concatenate([np.ravel(found[v].sel(moment=each)) for v in latents]) for each in ("mean", "sd"))
    # The search starts at the means of the fit, since the posterior of a product has several modes.
    exact = laplace_of_model(model, latents, fit.hyperparameters, mean)
    assert_allclose(fit.solution.evidence, exact.evidence, rtol=0.0, atol=1e-5)
    assert_allclose(mean, exact.mode, rtol=0.0, atol=1e-5)
    assert_allclose(sd, exact.sd, rtol=0.0, atol=1e-5)


GRADIENTS = ("laplace-student", "laplace-items", "laplace-processes", "ep-student", "kl-items")


@pytest.mark.variation(but=list(GRADIENTS))
@pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning")
@pytest.mark.parametrize(
    "which",
    [
        f"{method}-{name}"
        for method in ("laplace", "ep", "kl")
        for name in (*(each.__name__ for each in EVERY), "items", "correlated", "processes")
    ],
)
def test_gradient_matches_differences(which):
    method, name = which.split("-")
    # The gradient holds anywhere. Another test uses the whole search by Laplace's method.
    fit = fit_of(name) if method == "laplace" else fit_of(name, method, 1)
    log_posterior, theta = fit.log_posterior, fit.theta
    direction = np.random.default_rng(1).normal(size=theta.size)
    theta, step = theta + 0.2 * direction, 1e-4 if method == "laplace" else 1e-3
    low, high = (log_posterior(log_posterior.theta(theta + h * direction)).log_posterior for h in (-step, step))
    found = log_posterior(log_posterior.theta(theta)).gradient @ direction
    atol = 1e-6 if method == "laplace" else 5e-5  # EP's energy is stationary up to the error of quadrature
    assert_allclose(found, (high - low) / (2.0 * step), rtol=1e-5, atol=atol)


def test_predictors_with_shared_effects_use_the_form_by_rows():
    fit = fit_of("correlated")
    assert isinstance(fit.solution.posterior.prior, RowPrior)
    assert isinstance(fit.log_posterior.approximator, LaplacePredictors)


def test_functions_have_the_names_of_their_predictors():
    classifier = fit_of("normal").classifier
    assert (classifier.class_dim, classifier.class_labels) == ("predictor", ("mu", "spread + v"))


def test_few_coefficients_in_the_predictor_of_a_scale_stay_hyperparameters():
    with pm.Model() as model:
        f, _ = predictors()
        slopes = pm.Normal("slopes", 0.0, 1.0, shape=2)
        normal(f, slopes[0] + slopes[1] * X)
    classifier = read_classifier(model, predictors=True)
    assert classifier.n_functions == 1
    assert "slopes" in {rv.name for rv in classifier.hyperparameters}


def test_single_predictor_is_one_function():
    with pm.Model() as model:
        f, g = predictors()
        pm.Poisson("y", pm.math.exp(f) * pm.math.exp(g), observed=rng().poisson(np.exp(MU)))
    assert read_classifier(model, predictors=True).likelihood_model.name == "poisson"


def test_search_of_a_product_of_predictors_leaves_a_saddle():
    a, b = rng().normal(size=(2, 12))
    row, column = (each.ravel() for each in np.meshgrid(range(12), range(12), indexing="ij"))
    seen = a[row] * b[column] + 0.1 * rng().normal(size=144)
    with pm.Model() as model:
        loading, factor = pm.Normal("loading", shape=12), pm.Normal("factor", shape=12)
        pm.Normal("y", loading[row] * factor[column], 0.1, observed=seen)
        with pytest.warns(UserWarning, match="signs of 'loading' and 'factor' are exchangeable"):
            fit = pm.fit(method="laplace", progressbar=False)
    start = np.concatenate([fit.mean_data[name] for name in ("loading", "factor")])
    exact = laplace_of_model(model, ("loading", "factor"), {}, start)
    assert_allclose(fit.solution.evidence, exact.evidence, rtol=0.0, atol=1e-6)
    assert abs(np.corrcoef(fit.mean_data["factor"], b)[0, 1]) > 0.99


def test_predictions_of_new_rows_match_draws():
    fit = fit_of("normal")
    new = {"group": [0, 5], "x": [0.3, -1.0]}
    found = fit.predict(data=new, quantiles=[0.1, 0.9])
    normals = np.random.default_rng(2)
    moments = zip(found["mean"].data, found["cov"].data, strict=True)
    f = np.stack([normals.multivariate_normal(*each, size=200_000) for each in moments])
    y = f[..., 0] + np.exp(f[..., 1]) * normals.normal(size=f.shape[:2])
    assert_allclose(found["y_mean"], y.mean(axis=1), atol=0.01)
    assert_allclose(found["y_variance"], y.var(axis=1), rtol=0.03)
    assert_allclose(found["y_quantile"], np.quantile(y, [0.1, 0.9], axis=1).T, atol=0.02)


def test_predictive_density_matches_draws():
    fit = fit_of("normal")
    likelihood = fit.solution.likelihood
    mean, cov = np.array([[1.0, -0.5], [3.0, -0.5]]), np.array([[[0.3, 0.2], [0.2, 0.4]]] * 2)
    y = np.array([1.5, -4.0])
    grid = np.linspace(-9.0, 9.0, 1801)
    wanted = []
    for m, c, each in zip(mean, cov, y, strict=True):
        f, g = np.meshgrid(m[0] + grid, m[1] + grid, indexing="ij")
        joint = stats.multivariate_normal(m, c).pdf(np.stack([f, g], axis=-1)) * stats.norm.pdf(each, f, np.exp(g))
        wanted.append(np.log(joint.sum() * 0.01**2))
    assert_allclose(likelihood.at([0, 1]).log_tail(mean, cov, y), wanted, atol=1e-4)


def test_saved_fit_equals_the_fit():
    fit = fit_of("normal")
    again = gpep.from_datatree(fit.to_datatree(), fit.classifier.model)
    data = {"group": [1], "x": [0.0]}
    assert_allclose(again.predict(data=data)["mean"], fit.predict(data=data)["mean"], rtol=1e-8)


def test_model_with_a_positive_factor_causes_no_warning_about_exchangeable_signs(recwarn):
    fit_of("items")
    assert not [each for each in recwarn if "exchangeable" in str(each.message)]


def five_predictors(scale):
    """A distribution with five linear predictors, none of which can be integrated analytically."""

    def log_density(value, a, b, c, d, e):
        x = (value - a) / (1.0 + pm.math.exp(b))
        return -pm.math.log(1.0 + pm.math.exp(b)) - pm.math.sqrt(1.0 + x**2 + pm.math.exp(c - d) + pm.math.exp(d * e))

    with pm.Model() as model:
        effects = [pm.Normal(each, 0.0, scale, shape=J) for each in "abcde"]
        pm.CustomDist("y", *[each[GROUP] for each in effects], logp=log_density, observed=MU)
    return model


def test_error_of_ep_lists_predictors_if_there_are_too_many():
    with pytest.raises(ValueError, match=r"5 linear predictors, 'a', 'b', 'c', 'd', 'e'.*method='laplace'"):
        pm.fit(method="ep", model=five_predictors(0.3), progressbar=False)
    fit = pm.fit(method="laplace", model=five_predictors(0.3), progressbar=False)
    assert fit.converged


def test_error_of_other_methods_names_a_valid_method():
    with pm.Model():
        f, g = predictors()
        pm.ZeroInflatedPoisson("y", psi=pm.math.invlogit(g), mu=pm.math.exp(f), observed=rng().poisson(np.exp(MU)))
        with pytest.raises(gpep.StructureError, match=r"method='ep'.* fits several linear predictors"):
            pm.fit(method="vb", progressbar=False)


def test_automatic_choice_of_method_is_ep():
    fit = pm.fit(method="auto", hyper="map", model=model_of("normal")[0], progressbar=False)
    assert isinstance(fit.log_posterior.approximator, EPPredictors)


def test_leave_one_out_is_close_to_refits():
    fit = fit_of("normal", "ep")
    quick, exact = (fit.loo(refit_above=above) for above in (np.inf, 0.3))
    again = exact.elpd_i != quick.elpd_i
    assert 0 < np.count_nonzero(again) < N // 2
    assert_allclose(quick.elpd_i, exact.elpd_i, atol=0.25)
    assert_allclose(quick.elpd_i.mean(), exact.elpd_i.mean(), atol=0.05)


def test_draws_of_ep_have_the_covariance_between_predictors():
    fit = fit_of("correlated", "ep")
    found = fit.sample(4000, random_seed=1).posterior
    level, scale = (np.asarray(found[each])[0] for each in ("level", "spread"))
    z, chol = np.asarray(found["z"])[0], np.asarray(found["chol"])[0]
    lower = np.zeros((len(chol), 2, 2))
    lower[:, 0, 0], lower[:, 1, 0], lower[:, 1, 1] = chol.T
    u = np.einsum("sjq,spq->sjp", z, lower)
    draws = np.stack([level[:, None] + u[..., 0], scale[:, None] + u[..., 1]])[:, :, GROUP]
    for i in (0, 17, 40):
        assert_allclose(np.cov(draws[:, :, i]), fit.solution.cov[i], rtol=0.15, atol=0.01)


@pytest.mark.variation(but=["RowPrior"])
@pytest.mark.parametrize("form", [RowPrior, PrecisionPrior])
def test_new_level_keeps_the_covariance_between_predictors(form, monkeypatch):
    fit = fit_of("correlated")
    if form is PrecisionPrior:
        monkeypatch.setattr(dense_log_posterior, "_MANY", 1)
        monkeypatch.setattr(precision_sum, "_DENSE", np.inf)
        fit = pm.fit(method="laplace", model=fit.classifier.model, hyper="map", progressbar=False)
    assert isinstance(fit.solution.posterior.prior, form)
    lower = np.zeros((2, 2))
    lower[np.tril_indices(2)] = fit.hyperparameters["chol"]
    wanted = fit.contrast({each: {each: 1.0} for each in ("level", "spread")})["cov"].values + lower @ lower.T
    found = fit.predict(data={"group": [J]}, new_levels=True)["cov"][0]
    assert_allclose(found, wanted, rtol=1e-6)
    functions = fit.log_posterior.latent(fit.theta, fit.solution, None)
    rows = functions.new_rows(None, {"group": [J]}, new_levels=True)
    ((_, draws),) = functions.draw_at(np.random.default_rng(1), 20_000, rows)
    assert_allclose(np.cov(draws[:, :, 0].T), wanted, atol=0.03 * wanted.max())


@cache
def location_and_scale_of_five():
    """Likelihood of five observations with a mean and a log scale."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 2.0), pm.Normal("b", 0.0, 1.0)
        pm.Normal("y", a + np.zeros(5), pm.math.exp(b), observed=FIVE)
    return SEVERAL_PREDICTORS.read(model["y"], {a, b}).likelihood.given(np.zeros((1, 5)))


def test_sites_of_proportional_predictors_match_sites_on_a_grid():
    roots = np.full((2, 5, 1), 2.0)
    roots[1] = 1.6
    given = {"likelihood": location_and_scale_of_five(), "prior_type": RowPrior}
    found = EPPredictors().solve(roots, np.array([[0.0], [-1.0]]) + np.zeros(5), FIVE, **given)
    a, (tau, nu) = np.linspace(-9.0, 9.0, 2001), np.zeros((2, 5))
    density = stats.norm.logpdf(FIVE[:, None], a, np.exp(0.8 * a - 1.0))
    for i in np.tile(np.arange(5), 60):
        precision, location = 0.25 + tau.sum() - tau[i], nu.sum() - nu[i]
        weights = np.exp(density[i] - 0.5 * precision * a**2 + location * a)
        mean = np.average(a, weights=weights)
        variance = np.average((a - mean) ** 2, weights=weights)
        tau[i], nu[i] = 1.0 / variance - precision, mean / variance - location
    variance = 1.0 / (0.25 + tau.sum())
    assert found.converged
    assert_allclose(found.mean[:, 0], [variance * nu.sum(), 0.8 * variance * nu.sum() - 1.0], atol=1e-5)
    assert_allclose(found.cov[0], variance * np.outer([1.0, 0.8], [1.0, 0.8]), atol=1e-5)


def test_smoothing_moves_laplace_means_to_quadrature():
    seen = FIVE
    f, g = np.meshgrid(np.linspace(-6.0, 7.0, 801), np.linspace(-3.5, 4.0, 801), indexing="ij")
    density = stats.norm.logpdf(seen, f[..., None], np.exp(g)[..., None]).sum(axis=-1) - f**2 / 8.0 - g**2 / 2.0
    weights = np.exp(density - density.max())
    exact = (weights * g).sum() / weights.sum()
    roots = np.zeros((2, 5, 2))
    roots[0, :, 0], roots[1, :, 1] = 2.0, 1.0
    given = {"likelihood": location_and_scale_of_five(), "prior_type": RowPrior}
    plain, smooth = (
        LaplacePredictors(smoothed_mean=each).solve(roots, np.zeros((2, 5)), seen, **given).mean[1, 0]
        for each in (False, True)
    )
    assert abs(smooth - exact) < 0.25 * abs(plain - exact)


def test_rows_without_a_response_are_excluded_and_predicted():
    seen = MU + SCALE * rng().normal(size=N)
    lacking = np.isin(np.arange(N), [3, 17])
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ImputationWarning)
        f, g = predictors()
        pm.Normal("y", f, pm.math.exp(g), observed=np.where(lacking, np.nan, seen))
        fit = pm.fit(method="laplace", hyper="map", progressbar=False)
    assert fit.classifier.class_labels[1] == "spread + v"
    found = fit.predict(missing=True)
    assert found["y_mean"].shape == (2,)
    others = {"group": GROUP[lacking], "x": X[lacking]}
    assert_allclose(found["mean"], fit.predict(data=others)["mean"], atol=1e-8)
