"""Effects with non-normal priors: evidence and moments against sums over a grid, and results at rows."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import pymc_gpep as gpep
from pymc_gpep.log_posteriors import dense_log_posterior
from pymc_gpep.prior_moments import precision_sum
from pymc_gpep.reading import prior_rows, read_classifier

G, N, SIGMA = 4, 24, 0.7
RNG = np.random.default_rng(3)
GROUP = np.arange(N) % (G - 1)  # the last group has no rows
TRUTH = np.array([0.3, -0.5, 4.0, 0.0])
Y = TRUTH[GROUP] + SIGMA * RNG.normal(size=N)
BINARY = (np.arange(N) // 3 < np.array([2, 4, 6])[GROUP]).astype(int)

PRIORS = {
    "StudentT": (lambda s: pm.StudentT("u", 4, mu=0, sigma=s, dims="g"), lambda s: stats.t(4, 0, s)),
    "Laplace": (lambda s: pm.Laplace("u", 0, s, dims="g"), lambda s: stats.laplace(0, s)),
    "HalfNormal": (lambda s: pm.HalfNormal("u", s, dims="g"), lambda s: stats.halfnorm(0, s)),
    "Exponential": (lambda s: pm.Exponential("u", scale=s, dims="g"), lambda s: stats.expon(0, s)),
}


def model(make, binary=False, learned=False):
    with pm.Model(coords={"g": list("abcd")}) as made:
        group = pm.Data("group", GROUP)
        eta = pm.Deterministic("eta", pm.Normal("a", 0, 1) + make(pm.HalfNormal("s", 1) if learned else 0.8)[group])
        if binary:
            pm.Bernoulli("y", logit_p=eta, observed=BINARY)
        else:
            pm.Normal("y", eta, SIGMA, observed=Y)
    return made


def fitted(*args, **options):
    return pm.fit(method="ep", model=model(*args, **options), progressbar=False, random_seed=1)


def by_grid(prior, binary, kept=slice(None)):
    """Return the log evidence, means and deviations of effects, by sums over level and effects."""
    a = np.linspace(-5.0, 5.0, 201)
    low = -25.0 if prior.support()[0] < 0.0 else 0.0
    width = (25.0 - low) / 6000
    u = low + (np.arange(6000) + 0.5) * width
    log_prior = prior.logpdf(u) + np.log(width)
    eta = a[:, None] + u
    total, means, squares = stats.norm.logpdf(a) + np.log(a[1] - a[0]), [], []
    for k in range(G):
        y = (BINARY if binary else Y)[kept][k == GROUP[kept]]
        n = y.size
        if binary:
            log_p = y.sum() * eta - n * np.logaddexp(0.0, eta) + log_prior
        else:
            square = (y**2).sum() - 2.0 * y.sum() * eta + n * eta**2
            log_p = log_prior - 0.5 * square / SIGMA**2 - n * np.log(SIGMA * np.sqrt(2.0 * np.pi))
        top = log_p.max(axis=1, keepdims=True)
        p = np.exp(log_p - top)
        total = total + top[:, 0] + np.log(p.sum(axis=1))
        means.append(p @ u / p.sum(axis=1))
        squares.append(p @ u**2 / p.sum(axis=1))
    p = np.exp(total - total.max())
    mean, square = (np.array(each) @ p / p.sum() for each in (means, squares))
    return total.max() + np.log(p.sum()), mean, np.sqrt(square - mean**2)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", PRIORS)
def test_evidence_and_moments_match_sums_over_a_grid(name, binary):
    make, prior = PRIORS[name]
    fit = fitted(make, binary)
    evidence, mean, sd = by_grid(prior(0.8), binary)
    found = fit.effects("u")["u"]
    assert fit.converged
    assert_allclose(fit.log_evidence, evidence, atol=0.06 if binary else 0.03)
    if binary:  # correction of the next order, which EP neglects
        assert abs(fit.corrected_evidence().evidence - evidence) < 0.6 * abs(fit.log_evidence - evidence)
    assert_allclose(found.sel(moment="mean"), mean, atol=0.05 * sd.max())
    assert_allclose(found.sel(moment="sd"), sd, rtol=0.08)
    # The posterior of a group without rows is its prior.
    assert_allclose(found.sel(moment="sd", g="d"), prior(0.8).std(), rtol=1e-4)


@pytest.mark.parametrize("name", ["StudentT", "Exponential"])
def test_evidence_does_not_depend_on_the_normal_base_of_a_prior(name, monkeypatch):
    evidences = []
    for width in (1.5, 12.0):
        monkeypatch.setattr(prior_rows, "WIDTH", width)
        evidences.append(fitted(PRIORS[name][0]).log_evidence)
    assert_allclose(*evidences, atol=1e-6)


@pytest.mark.parametrize("name", ["StudentT", "HalfNormal"])
def test_gradient_in_the_scale_of_a_prior_matches_differences(name):
    log_posterior = fitted(PRIORS[name][0], binary=True, learned=True).log_posterior

    def at(theta):
        return log_posterior(log_posterior.theta(np.array([theta])))

    step = 1e-3
    difference = (at(0.2 + step).log_posterior - at(0.2 - step).log_posterior) / (2.0 * step)
    assert_allclose(at(0.2).gradient, difference, rtol=1e-4)


@pytest.mark.slow
def test_results_have_no_rows_for_prior_factors(tmp_path):
    made = model(PRIORS["HalfNormal"][0], learned=True)
    options = {"hyper": "laplace", "hyper_options": {"nodes": 3}}
    fit = pm.fit(method="ep", model=made, progressbar=False, random_seed=1, **options)
    assert fit.latent["mean"].shape == (N,)
    assert fit.loo().n_data_points == N
    assert fit.loo(groups="group").n_data_points == G - 1
    assert fit.importance(200, random_seed=1).points["shift"].shape == (N,)
    assert fit.predict(data={"group": [0, 2]})["y_mean"].shape == (2,)
    fit.save(tmp_path / "fit.nc")
    again = gpep.load(tmp_path / "fit.nc", made)
    assert_allclose(again.effects("u")["u"], fit.effects("u")["u"])


def test_draws_have_the_support_and_the_moments_of_marginals():
    fit = fitted(PRIORS["Exponential"][0])
    drawn = fit.sample(2000, random_seed=1).posterior["u"]
    _, mean, sd = by_grid(PRIORS["Exponential"][1](0.8), False)
    assert drawn.min() > 0.0
    assert_allclose(drawn.mean(("chain", "draw")), mean, atol=0.08 * sd.max())
    assert_allclose(drawn.std(("chain", "draw")), sd, rtol=0.1)
    assert_allclose((drawn.sel(g="d") < 0.8 * np.log(2.0)).mean(), 0.5, atol=0.04)


@pytest.mark.parametrize("name", ["LogitNormal", "Interpolated"])
def test_priors_without_a_density_of_rows_stay_hyperparameters(name):
    x = np.linspace(-3.0, 3.0, 20)
    made = {
        "LogitNormal": lambda s: pm.LogitNormal("u", 0, s, dims="g"),
        "Interpolated": lambda s: pm.Interpolated("u", x, np.exp(-(x**2)), dims="g"),
    }
    found = read_classifier(model(made[name], learned=True), starts=True, priors=True)
    assert "u" in [rv.name for rv in found.hyperparameters]


def test_named_effects_stay_hyperparameters():
    fit = pm.fit(method="ep", model=model(PRIORS["Laplace"][0]), hyperparameters=["u"], progressbar=False, hyper="map")
    assert [rv.name for rv in fit.classifier.hyperparameters] == ["u"]
    assert fit.latent["mean"].shape == (N,)


def test_slopes_with_an_intercept_are_integrated_although_a_rate_could_be_an_exposure():
    x = RNG.normal(size=(N, 3))
    with pm.Model() as made:
        eta = pm.Normal("a", 0, 1) + x @ pm.Laplace("u", 0, 0.5, shape=3)
        pm.Poisson("y", pm.math.exp(eta), observed=RNG.poisson(np.exp(0.5 * x[:, 0])))
    fit = pm.fit(method="ep", model=made, progressbar=False)
    assert fit.converged
    assert fit.classifier.hyperparameters == ()


@pytest.mark.variation(but=["1"])
@pytest.mark.parametrize("nu", [1, 2])
def test_effects_without_moments_have_quantiles_and_a_note(nu):
    fit = fitted(lambda s: pm.StudentT("u", nu, mu=0, sigma=s, dims="g"))
    found = fit.effects("u")["u"]
    assert fit.converged
    assert np.isnan(found.sel(g="d")).all()
    assert np.isfinite(found.sel(g=["a", "b", "c"])).all()
    table = fit.summary("u", ci_prob=0.9)
    assert table["note"].map(bool).tolist() == [False, False, False, True]
    assert table.loc["u[d]", ["mean", "sd"]].isna().all()
    assert_allclose(
        table.loc["u[d]", ["eti90_lb", "eti90_ub"]].astype(float), stats.t(nu, 0, 0.8).ppf([0.05, 0.95]), rtol=0.02
    )


@pytest.mark.variation(but=["False"])
@pytest.mark.parametrize("binary", [True, False])
def test_predictions_of_a_level_without_rows_average_over_a_prior_without_moments(binary, monkeypatch):
    if binary:
        by_precision(monkeypatch)
    fit = fitted(lambda s: pm.Cauchy("u", 0, s, dims="g"), binary)
    with pytest.warns(UserWarning, match="1 of 2 new rows depend on levels of 'u' without data|y_mean is NaN"):
        found = fit.predict(data={"group": [0, 3]}, **({} if binary else {"quantiles": [0.1, 0.5, 0.9]}))
    assert np.isnan(found["mean"].values).tolist() == [False, True]
    # Level and effect are independent in this posterior.
    a = stats.norm.rvs(*fit.effects("a")["a"].values, 100_000, random_state=1)
    eta = a + stats.cauchy.rvs(0, 0.8, 100_000, random_state=2)
    if binary:
        with np.errstate(over="ignore"):
            assert_allclose(found["p"][1, 1], (1.0 / (1.0 + np.exp(-eta))).mean(), atol=0.02)
    else:
        y = eta + SIGMA * RNG.normal(size=eta.size)
        assert_allclose(found["y_quantile"][1], np.quantile(y, [0.1, 0.5, 0.9]), atol=0.15)
    assert np.isnan(fit.contrast({"d": {"u": {"a": 1, "d": -1}}, "b": {"u": {"b": 1}}})["sd"]).values.tolist() == [
        True,
        False,
    ]
    moments = fit.effects("eta", data={"group": [0, 3]})["eta"]
    assert np.isnan(moments).values.tolist() == [[False, True]] * 2


def by_precision(patch):
    """Use the form by a sparse precision for all fits."""
    patch.setattr(dense_log_posterior, "_MANY", 1)
    patch.setattr(precision_sum, "_DENSE", np.inf)


@pytest.mark.parametrize(("binary", "sparse"), [(True, False), (False, False), (True, True)])
def test_new_level_has_the_prior_of_the_effect(binary, sparse, monkeypatch):
    if sparse:
        by_precision(monkeypatch)
    fit = fitted(PRIORS["Exponential"][0], binary)
    assert ("By a sparse precision" in str(fit)) == sparse
    found = fit.predict(data={"group": [0, 9]}, new_levels=True, **({} if binary else {"quantiles": [0.1, 0.9]}))
    level = np.array([fit.mean_data["a"], fit.std_data["a"]])  # Moments of the Gaussian posterior, as in predictions.
    eta = stats.norm.rvs(*level, 200_000, random_state=1) + stats.expon.rvs(0, 0.8, 200_000, random_state=2)
    assert_allclose([found["mean"][1], found["variance"][1]], [level[0] + 0.8, level[1] ** 2 + 0.64], rtol=1e-6)
    if binary:
        assert_allclose(found["p"][1, 1], (1.0 / (1.0 + np.exp(-eta))).mean(), atol=0.005)
    else:
        y = eta + SIGMA * np.random.default_rng(1).normal(size=eta.size)
        assert_allclose(found["y_quantile"][1], np.quantile(y, [0.1, 0.9]), atol=0.03)
        assert_allclose(found["y_variance"][1], level[1] ** 2 + 0.64 + SIGMA**2, rtol=1e-6)
    old = fit.predict(data={"group": [0]})
    assert_allclose(found["mean"][0], old["mean"][0])


def test_intervals_respect_the_support():
    table = fitted(PRIORS["HalfNormal"][0]).summary("u", ci_prob=0.9)
    assert (table["eti90_lb"] > 0.0).all()
    assert_allclose(table.loc["u[d]", ["eti90_lb", "eti90_ub"]], stats.halfnorm(0, 0.8).ppf([0.05, 0.95]), rtol=0.02)


@pytest.mark.slow
def test_improper_tilted_density_causes_nonconvergence():
    """Under heavy tails a distant row is less informative on an effect near 0."""
    with pm.Model() as made:
        u = pm.StudentT("u", 3, mu=0, sigma=0.5, shape=2)
        pm.StudentT("y", 3, mu=pm.Normal("a", 0, 0.3) + u[[0, 1, 1, 1]], sigma=0.5, observed=[20.0, 0.1, -0.2, 0.0])
    with pytest.warns(RuntimeWarning, match="a prior factor without a finite integral"):
        fit = pm.fit(method="ep", model=made, progressbar=False, max_iterations=40)
    assert not fit.converged


@pytest.mark.parametrize(("name", "method"), [("Laplace", "laplace"), ("HalfNormal", "kl")])
def test_error_of_methods_without_prior_factors_names_the_effects_to_keep(name, method):
    with pytest.raises(ValueError, match=r"likelihood are 'ep'.*hyperparameters=\['u'\]"):
        pm.fit(method=method, model=model(PRIORS[name][0]), progressbar=False)


@pytest.mark.slow
def test_rows_of_an_outlying_group_are_left_out_one_by_one():
    """The group has no cavity without all its rows: the site of a heavy-tailed row has a negative precision."""
    fit = fitted(lambda s: pm.StudentT("u", 2.5, mu=0, sigma=0.2, dims="g"))
    assert fit.solution.posterior.cavities(fit.solution.mean, fit.solution.cov)[1].min() < 0.0
    found = fit.loo().elpd_i.values
    prior = stats.t(2.5, 0, 0.2)
    whole = by_grid(prior, False)[0]
    for row in (0, 2, 5):
        assert_allclose(found[row], whole - by_grid(prior, False, np.arange(N) != row)[0], atol=0.15)
    # If all groups have a cavity and the sites of priors stay fixed, division by sites gives the same densities.
    functions = next(iter(fit.functions(None)))
    functions.__dict__["_priors"] = None
    rows = np.flatnonzero(GROUP < 2)
    left_out = next(iter(functions.left_out()))
    expected = left_out.log_density[rows], left_out.mean[rows, 0], left_out.cov[rows, 0, 0]
    assert_allclose(functions._divided(rows), expected, rtol=1e-5)


SIZES = np.array([1, 2, 3, 1, 4])
FEW = np.repeat(np.arange(5), SIZES)
SEEN = np.array([2.5, -1.0, -0.2, 0.3, 0.1, 0.4, 0.2, 3.0, 2.0, 2.2, 1.9])
OF_FEW = {
    "Laplace": (lambda: pm.Laplace("u", 0, 0.7, shape=5), stats.laplace(0, 0.7)),
    "StudentT": (lambda: pm.StudentT("u", nu=2.5, mu=0, sigma=0.5, shape=5), stats.t(2.5, 0, 0.5)),
    "Gamma": (lambda: pm.Gamma("u", 2, 1.5, shape=5), stats.gamma(2, scale=1 / 1.5)),
}


@pytest.mark.parametrize("name", OF_FEW)
def test_left_out_rows_of_small_groups_update_the_prior_factor(name):
    """The site of a prior factor is fitted to a posterior with all rows, and is wrong without the row."""
    make, prior = OF_FEW[name]
    with pm.Model():
        pm.Normal("y", make()[FEW], 1.0, observed=SEEN)
        fit = pm.fit(method="ep", progressbar=False)
    u = -30.0 + (np.arange(60_000) + 0.5) * 1e-3
    rows = stats.norm.logpdf(SEEN[:, None], u)

    def log_evidence(kept):
        return np.log(np.sum(np.exp(prior.logpdf(u) + rows[kept].sum(axis=0)) * 1e-3))

    rest = [(k == FEW) & (np.arange(len(SEEN)) != i) for i, k in enumerate(FEW)]
    exact = [log_evidence(k == FEW) - log_evidence(own) for k, own in zip(FEW, rest, strict=True)]
    found = fit.loo(pit=True)
    assert_allclose(found.elpd_i, exact, atol=2e-3)
    whole = fit.loo(groups=FEW)
    off = np.abs(whole.elpd_i - [log_evidence(k == FEW) for k in range(5)])
    assert (off < 4.0 * whole.error_i + 1e-3).all()
    assert whole.error_i.max() < 0.1


@pytest.mark.parametrize("binary", [False, True])
def test_left_out_row_updates_the_prior_factors_of_its_two_effects(binary):
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(4), [1, 2, 4, 3])
    x = rng.normal(size=10)
    y = (rng.random(10) < 0.5).astype(int) if binary else rng.normal(np.array([3.0, 0.0, -1.0, 0.5])[group] + x, 0.7)
    with pm.Model():
        eta = pm.StudentT("u", nu=3, mu=0, sigma=0.8, shape=4)[group] + pm.Laplace("b", 0, 0.5) * x
        if binary:
            pm.Bernoulli("y", logit_p=eta, observed=y)
        else:
            pm.Normal("y", eta, 0.7, observed=y)
        fit = pm.fit(method="ep", progressbar=False)
    b, u = np.linspace(-6.0, 6.0, 241), np.linspace(-14.0, 14.0, 1401)
    eta = u + b[:, None, None] * x[:, None]  # (b, row, u)
    rows = (
        -np.logaddexp(0.0, np.where(y[:, None] == 1, -eta, eta)) if binary else stats.norm.logpdf(y[:, None], eta, 0.7)
    )

    def log_evidence(kept):
        total = stats.laplace.logpdf(b, 0, 0.5)
        for k in range(4):
            each = stats.t.logpdf(u, 3, 0, 0.8) + rows[:, kept & (group == k)].sum(axis=1)
            total = total + np.log(np.exp(each).sum(axis=1))
        return np.log(np.exp(total).sum())

    every = np.ones(10, bool)
    exact = [log_evidence(every) - log_evidence(np.arange(10) != i) for i in range(10)]
    assert_allclose(fit.loo().elpd_i, exact, atol=0.06 if binary else 3e-3)
    found = fit.loo(groups=group)
    off = np.abs(found.elpd_i - [log_evidence(every) - log_evidence(group != k) for k in range(4)])
    assert (off < 4.0 * found.error_i + (0.03 if binary else 0.003)).all()


@pytest.mark.parametrize(
    "prior",
    [
        lambda **size: pm.StudentT("a", nu=4, mu=0, sigma=1, **size),
        pytest.param(lambda **size: pm.Laplace("a", 0.0, 0.7, **size), marks=pytest.mark.slow),
        pytest.param(lambda **size: pm.HalfNormal("a", 1.0, **size), marks=pytest.mark.slow),
    ],
    ids=["student_t", "laplace", "half_normal"],
)
def test_fit_of_a_prior_with_two_axes_equals_fit_of_separate_entries(prior):
    rng = np.random.default_rng(1)
    first, second, y = rng.integers(0, 4, 30), rng.integers(0, 3, 30), rng.normal(size=30)
    fits = []
    for shape, index in (((4, 3), (first, second)), (12, 3 * first + second)):
        with pm.Model():
            pm.Normal("y", prior(shape=shape)[index], 1.0, observed=y)
            fits.append(pm.fit(method="ep", progressbar=False))
    table, entries = fits
    assert table.log_evidence == pytest.approx(entries.log_evidence, abs=1e-9)
    assert_allclose(np.ravel(table.mean_data["a"]), entries.mean_data["a"], atol=1e-7)
