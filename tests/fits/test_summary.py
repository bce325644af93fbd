"""Summaries of fits, against sums over grids and quantiles of SciPy's skew normal distribution."""

from itertools import permutations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import log_softmax

import pymc_gpep as gpep
from pymc_gpep.approximations.cumulants import second_order
from pymc_gpep.fits import effects as effects_module
from pymc_gpep.fits import marginals as marginals_module
from pymc_gpep.fits import summary as summary_module
from pymc_gpep.fits.marginals import SkewNormals
from pymc_gpep.sums import effect_sum

GROUP = np.repeat(np.arange(6), 2)
X = np.linspace(-1.0, 1.5, 30)
COUNTS = np.tile([0, 0, 1, 0, 0, 0, 1, 0, 0, 1], 3)


@pytest.fixture(scope="module")
def fit():
    with pm.Model(coords={"term": ["level", "slope"]}):
        b = pm.Normal("b", 0, 2, dims="term")
        pm.Poisson("y", mu=pm.math.exp(b[0] + b[1] * X), observed=COUNTS)
        return pm.fit(method="ep", progressbar=False)


def quantiles(values, weights, p):
    order = np.argsort(values)
    return np.interp(p, np.cumsum(weights[order]) / weights.sum(), values[order])


@pytest.fixture(scope="module")
def exact():
    """Mean, standard deviation and quantiles 2.5 % and 97.5 % of both coefficients, by sums over a grid, (2, 4)."""
    b = np.stack(np.meshgrid(np.linspace(-3.5, 1, 301), np.linspace(-2, 3, 301), indexing="ij")).reshape(2, -1)
    eta = b[0][:, None] + b[1][:, None] * X
    log_p = stats.norm.logpdf(b, 0, 2).sum(axis=0) + (COUNTS * eta - np.exp(eta)).sum(axis=1)
    weights = np.exp(log_p - log_p.max())
    mean = b @ weights / weights.sum()
    sd = np.sqrt((b - mean[:, None]) ** 2 @ weights / weights.sum())
    return np.column_stack([mean, sd, [[quantiles(each, weights, p) for p in (0.025, 0.975)] for each in b]])


def test_intervals_match_sums_over_a_grid(fit, exact):
    """Gaussian intervals have errors of 0.15 or more, and Gaussian standard deviations have errors of 4 %."""
    found = fit.summary(ci_prob=0.95)
    assert list(found.columns) == ["mean", "sd", "eti95_lb", "eti95_ub"]
    assert list(found.index) == ["b[level]", "b[slope]"]
    mean, sd = exact.T[:2]
    errors = np.abs(found.to_numpy() - exact) / sd[:, None]
    assert (errors <= [0.01, 0.01, 0.05, 0.05]).all()
    gaussian = mean + sd * stats.norm.ppf([[0.025], [0.975]])
    assert (np.abs(gaussian - exact.T[2:]) / sd).max() > 0.15


def test_draws_match_sums_over_a_grid(fit, exact):
    """The Monte Carlo error of a standard deviation is 0.5 %, and of an outer quantile 0.02 standard deviations."""
    drawn = fit.sample(20_000, random_seed=1)["posterior"]["b"].values[0]
    found = np.column_stack([drawn.mean(axis=0), drawn.std(axis=0), *np.quantile(drawn, [0.025, 0.975], axis=0)])
    errors = np.abs(found - exact) / exact[:, 1:2]
    assert (errors <= [0.03, 0.02, 0.09, 0.09]).all()


KINDS = np.zeros(30, int)
KINDS[[3, 7, 12, 18]], KINDS[[8, 15, 20, 24, 25, 29]] = 1, 2


def test_intervals_of_classes_match_weighted_draws():
    """Gaussian intervals would have errors of 0.2."""
    with pm.Model():
        b = pm.Normal("b", 0, 1.5, shape=(2, 2))
        others = b[0] + X[:, None] * b[1]
        pm.Categorical("y", logit_p=pt.concatenate([pt.zeros((30, 1)), others], axis=1), observed=KINDS)
        fit = pm.fit(method="qep", progressbar=False)
    own = fit.summary("b", ci_prob=0.95).to_numpy()
    mean, sd = (np.ravel(each["b"]) for each in (fit.mean_data, fit.std_data))
    z = stats.norm.ppf(stats.qmc.Sobol(4, rng=1).random_base2(14))
    draws = mean + 1.3 * sd * z
    drawn = draws.reshape(-1, 2, 2)
    f = np.zeros((len(draws), 3, 30))
    f[:, 1:] = drawn[:, 0, :, None] + drawn[:, 1, :, None] * X
    log_p = log_softmax(f, axis=1)[:, KINDS, np.arange(30)].sum(axis=1) + stats.norm.logpdf(draws, 0, 1.5).sum(axis=1)
    log_weights = log_p + 0.5 * (z**2).sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    assert weights.sum() ** 2 / (weights**2).sum() > 5000
    gaussian = []
    for j, values in enumerate(draws.T):
        exact = weights @ values / weights.sum()
        width = np.sqrt(weights @ (values - exact) ** 2 / weights.sum())
        assert_allclose(own[j, :2], [exact, width], atol=0.02 * width)
        ends = np.array([quantiles(values, weights, p) for p in (0.025, 0.975)])
        assert_allclose(own[j, 2:], ends, atol=0.06 * width)
        gaussian.append(np.abs(mean[j] + sd[j] * stats.norm.ppf([0.025, 0.975]) - ends) / width)
    assert np.max(gaussian) > 0.15


def test_second_order_term_equals_the_sum_over_pairs():
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(3, 2, 2, 2))
    weights = sum(weights.transpose(0, *order) for order in permutations((1, 2, 3)))
    root = rng.normal(size=(6, 6))
    cov, along = (root @ root.T).reshape(2, 3, 2, 3), rng.normal(size=(3, 2))
    expected = 0.0
    for i in range(3):
        for j in set(range(3)) - {i}:
            own, other = weights[i] @ along[i], weights[j] @ along[j]
            expected += 0.5 * np.trace(own @ cov[:, i, :, j] @ other @ cov[:, i, :, j].T)
    assert along.ravel() @ second_order(weights, cov) @ along.ravel() == pytest.approx(expected)


@pytest.mark.parametrize("way", ["rows", "matrices"])
def test_second_order_term_of_selected_effects_equals_second_order_term_of_all_effects(way, monkeypatch):
    """For a few effects the term is a trace over standard normals, and for all effects a sum over pairs of rows."""
    rows = np.arange(45) % 30
    monkeypatch.setattr(effect_sum, "_MANY", 1 if way == "rows" else 1000)
    with pm.Model():
        b, s = pm.Normal("b", 0, 2), pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, 1, shape=20)
        pm.Bernoulli("y", logit_p=b + s * u[rows % 20], observed=rows % 3 == 0)
        fit = pm.fit(method="ep", progressbar=False)
    few, every = fit.summary(["b", "s"]), fit.summary(["b", "u", "s"])
    assert_allclose(few, every.loc[few.index], atol=1e-12)
    space, points = fit.log_posterior.space, fit.hyper_posterior.continuous[0]
    values = [space.natural(point[None])["s"][0] for point in points[:5]]
    assert_allclose(space.natural(points)["s"][:5], values, rtol=1e-14)
    assert abs(few.loc["b", "sd"] / float(fit.std_data["b"]) - 1.0) > 1e-4


def test_quantiles_of_mixtures_match_scipy():
    alpha, weights = np.array([-3.0, 1.0, 8.0]), np.array([0.2, 0.5, 0.3])
    parts = [stats.skewnorm(a, loc, 1.5) for a, loc in zip(alpha, (0.0, 1.0, 3.0), strict=True)]
    moments = np.array([part.stats(moments="mvs") for part in parts])[:, :, None]
    mixture = SkewNormals(weights, moments[:, 0], np.sqrt(moments[:, 1]), moments[:, 2])
    for p in (0.025, 0.5, 0.975):
        (found,) = mixture.quantiles(p)
        assert sum(w * part.cdf(found) for w, part in zip(weights, parts, strict=True)) == pytest.approx(p, abs=1e-9)
    point = SkewNormals(np.ones(1), np.ones((1, 1)), np.zeros((1, 1)), np.zeros((1, 1)))
    assert point.quantiles(0.1) == pytest.approx(1.0)


Y = np.random.default_rng(4).normal(size=6)[GROUP] + 0.5 * np.random.default_rng(5).normal(size=12)
GRID = np.linspace(0.01, 5.0, 500)


@pytest.fixture(scope="module")
def groups():
    """A model of groups with a learned standard deviation, and its likelihood on a grid."""
    with pm.Model():
        s = pm.HalfNormal("s", 1)
        z = pm.Normal("z", 0, 1, shape=6)
        pm.Deterministic("u", s * z)
        pm.Normal("y", mu=s * z[GROUP], sigma=0.5, observed=Y)
        fit = pm.fit(method="ep", hyper="grid", progressbar=False)
    same = (GROUP[:, None] == GROUP).astype(float)
    covs = [t**2 * same + 0.25 * np.eye(12) for t in GRID]
    return fit, np.exp([stats.multivariate_normal.logpdf(Y, cov=cov) for cov in covs])


def exact_summary(weights):
    mean = weights @ GRID / weights.sum()
    sd = np.sqrt(weights @ (GRID - mean) ** 2 / weights.sum())
    return np.array([mean, sd, *(quantiles(GRID, weights, p) for p in (0.05, 0.95))])


def test_hyperparameters_have_intervals_of_their_exact_posterior(groups):
    fit, likelihood = groups
    exact = exact_summary(likelihood * stats.halfnorm.pdf(GRID))
    assert_allclose(fit.summary("s", ci_prob=0.9).loc["s"], exact, atol=0.1 * exact[1])


def test_reweighting_by_other_priors_matches_refits(groups):
    fit, likelihood = groups
    priors = {"narrow": pm.HalfNormal.dist(0.4), "exponential": pm.Exponential.dist(1.0)}
    found = fit.sensitivity("s", priors, ci_prob=0.9)
    assert set(found.index.levels[0]) == {"as fitted", *priors}
    exact = exact_summary(likelihood * stats.halfnorm.pdf(GRID))
    for name, density in (("narrow", stats.halfnorm(scale=0.4).pdf), ("exponential", stats.expon.pdf)):
        moved = exact_summary(likelihood * density(GRID))
        own = found.loc[(name, "s")]
        assert_allclose(own.iloc[:4], moved, atol=0.15 * exact[1])
        assert own["shift"] == pytest.approx((moved[0] - exact[0]) / exact[1], abs=0.1)
    assert found.loc["as fitted", "shift"].abs().max() == 0.0
    assert (found["effective_nodes"] > 2.0).all()
    # A smaller standard deviation pulls the groups together.
    assert found.loc["narrow", "mean"]["u[0]"] / found.loc["as fitted", "mean"]["u[0]"] < 1.0


def test_priors_without_density_and_fits_with_one_node_are_refused(groups, fit):
    with pytest.raises(ValueError, match="'far' has zero density"):
        groups[0].sensitivity("s", {"far": pm.Uniform.dist(50, 60)})
    with pytest.raises(ValueError, match=r"'u' is not a hyperparameter\. The hyperparameters are: "):
        groups[0].sensitivity("u", {"far": pm.Uniform.dist(50, 60)})
    with pytest.raises(ValueError, match="a single value of the hyperparameters"):
        fit.sensitivity("s", {"wide": pm.HalfNormal.dist(5)})


@pytest.mark.parametrize(
    ("priors", "error", "message"),
    [
        ([pm.HalfNormal.dist(1)], TypeError, "priors is a list. Give a dict"),
        ({"e": 1.5}, TypeError, "'e' has the type float. Give a distribution of PyMC"),
        ({"e": stats.expon()}, TypeError, "'e' has the type rv_continuous_frozen"),
        ({"as fitted": pm.HalfNormal.dist(1)}, ValueError, "Choose another name"),
        ({"p": pm.Poisson.dist(1.5)}, ValueError, "'p' is discrete, but 's' is continuous"),
        ({"e": pm.Exponential.dist(1.5, shape=3)}, ValueError, r"'e' has shape \(3,\), but 's' has \(\)"),
    ],
)
def test_invalid_priors_of_a_hyperparameter_are_refused(groups, priors, error, message):
    with pytest.raises(error, match=message):
        groups[0].sensitivity("s", priors)


def test_prior_with_one_effective_node_causes_a_warning(groups):
    hyper = groups[0].hyper_posterior
    nodes = np.sort([float(np.exp(hyper.point(s)["s_log__"])) for s in range(len(hyper))])
    own = pm.Uniform.dist(nodes[:2].mean(), nodes[1:3].mean())
    with pytest.warns(UserWarning, match="The prior 'one' has its mass at too few nodes"):
        found = groups[0].sensitivity("s", {"one": own}, names="s")
    assert found.loc[("one", "s"), "effective_nodes"] == pytest.approx(1.0)


def test_invalid_names_and_probabilities_raise_value_error(fit):
    with pytest.raises(ValueError, match="names is empty"):
        fit.summary([])
    assert fit.summary("b").columns[2] == f"eti{round(100 * az.rcParams['stats.ci_prob'])}_lb"
    with pytest.raises(ValueError, match="ci_prob is 95, but"):
        fit.summary(ci_prob=95)
    with pytest.raises(ValueError, match="no variable 'a'"):
        fit.summary("a")


@pytest.fixture(scope="module")
def at_maximum():
    """A model of groups whose standard deviation and shift are at their maximum."""
    with pm.Model():
        s, shift = pm.HalfNormal("s", 1, shape=2), pm.Normal("shift", 0, 1)
        u = pm.Normal("u", 0, s[0], shape=6)
        pm.Deterministic("mean", shift + 0.0 * u)
        pm.Deterministic("total", shift + u)
        pm.Deterministic("nothing", 0.0 * u)
        pm.Normal("y", mu=shift + u[GROUP], sigma=s[1], observed=Y)
        return pm.fit(method="ep", hyper="map", hyperparameters=["shift"], progressbar=False)


def test_hyperparameters_at_their_maximum_have_a_note_and_no_interval(at_maximum):
    table = at_maximum.summary(ci_prob=0.9)
    held = ["s[0]", "s[1]", "shift"]
    assert set(table.index[table["note"] == "at its maximum"]) == set(held)
    assert table.loc[held, ["sd", "eti90_lb", "eti90_ub"]].isna().all(axis=None)
    found = at_maximum.hyperparameters
    assert_allclose(table.loc[held, "mean"], np.append(found["s"], found["shift"]))
    assert (table.loc[[f"u[{i}]" for i in range(6)], "sd"] > 0.0).all()
    assert list(table.select_dtypes("number")) == list(table.columns[:-1])


def test_functions_of_maximised_hyperparameters_have_a_note_and_no_interval(at_maximum):
    table = at_maximum.summary(["mean", "total", "nothing"])
    assert table["note"].value_counts().to_dict() == {"": 12, "function of maxima": 6}
    assert table["sd"].isna().sum() == 6
    assert (table.loc[[f"nothing[{i}]" for i in range(6)], "sd"] == 0.0).all()


def test_table_with_notes_fits_into_80_columns(at_maximum):
    printed = at_maximum.summary().to_string()
    assert printed.splitlines()[0].split() == ["mean", "sd", "eti89_lb", "eti89_ub", "note"]
    assert max(map(len, printed.splitlines())) <= 80
    assert all(len(note) <= 25 for note in (summary_module._NO_MOMENTS, summary_module._OF_TAILS))


def test_summary_of_integrated_hyperparameters_has_no_note(groups):
    assert "note" not in groups[0].summary()


def test_text_of_a_fit_names_hyperparameters_at_their_maximum(at_maximum, groups):
    assert "At the maximum: 's', 'shift' (hyper='map' was asked for)." in str(at_maximum)
    assert "At the maximum" not in str(groups[0])
    again = gpep.from_datatree(at_maximum.to_datatree(), at_maximum.model)
    assert str(again) == str(at_maximum)


@pytest.fixture(scope="module")
def grouped():
    """A model of counts in groups, with two integrated hyperparameters."""
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 8, 60), rng.integers(0, 5, 60)
    with pm.Model():
        u = pm.Normal("u", 0, pm.HalfNormal("s", 1), shape=8)
        v = pm.Normal("v", 0, pm.HalfNormal("t", 1), shape=5)
        pm.Poisson("y", mu=pm.math.exp(u[first] + v[second]), observed=rng.poisson(0.3, 60))
        return pm.fit(method="ep", hyper="grid", progressbar=False)


def test_summary_with_skewness_from_the_heaviest_nodes_is_close_to_summary_with_skewness_from_all_nodes(
    grouped, monkeypatch
):
    exact = grouped.summary(["u", "v"], ci_prob=0.95).to_numpy()
    monkeypatch.setattr(marginals_module, "_COVARIANCES", 1)
    some = grouped.summary(["u", "v"], ci_prob=0.95).to_numpy()
    assert_allclose(some, exact, atol=0.06 * exact[:, 1].max())
    monkeypatch.setattr(marginals_module, "_MOST_COVARIANCES", 1)
    normal = grouped.summary(["u", "v"], ci_prob=0.95).to_numpy()
    assert np.abs(normal - exact)[:, 2:].max() > 0.15 * exact[:, 1].max()


def test_summary_does_not_depend_on_batch_size(grouped, monkeypatch):
    exact = grouped.summary(["v", "u"]).to_numpy()
    monkeypatch.setattr(marginals_module, "_COLUMNS", 3)
    assert_allclose(grouped.summary(["v", "u"]).to_numpy(), exact, rtol=1e-9)


def test_warning_about_correlated_effects_names_variables_with_few_entries(monkeypatch):
    level = np.arange(30) % 15
    with pm.Model():
        a, b = pm.Normal("a", 0, 30), pm.Normal("b", 0, 30)
        u = pm.Normal("u", 0, 0.1, shape=15)
        pm.Poisson("y", mu=pm.math.exp(a + b * 1.001 + u[level]), observed=COUNTS)
        fit = pm.fit(method="ep", progressbar=False)
    monkeypatch.setattr(effects_module, "_WORK", 40)
    with pytest.warns(UserWarning, match="The posterior correlation of a and b"):
        fit.effects()
    monkeypatch.setattr(effects_module, "_WORK", 1)
    fit.effects()
