"""Fits of sums by a sparse precision matrix equal fits by covariance matrices."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import EP
from pymc_gpep.gaussians.precision_prior import PrecisionPrior
from pymc_gpep.gaussians.prior_form import BoundForm
from pymc_gpep.gaussians.row_prior import RowPrior, RowStructure
from pymc_gpep.log_posteriors import dense_log_posterior
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.prior_moments import precision_sum
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.naive_tap import NaiveTAP
from pymc_gpep.solvers.coefficients import Entries
from tests.graph_modes import rewritten

N, J, T = 40, 6, 9
RNG = np.random.default_rng(5)
GROUP, X, WEEK = RNG.integers(0, J, size=N), RNG.normal(size=N), RNG.integers(0, T - 1, size=N)
BINARY = (RNG.random(N) < 1 / (1 + np.exp(-0.5 - X))).astype(int)
COUNTS = RNG.poisson(np.exp(0.3 * X + 0.1 * WEEK))
NUMBERS = 0.5 * X + 0.2 * WEEK + RNG.normal(size=N)
LATTICE = np.kron(np.eye(3), np.eye(3, k=1)) + np.kron(np.eye(3, k=1), np.eye(3))
W = (LATTICE + LATTICE.T).astype(int)


def groups_and_a_walk():
    where, x, week = pm.Data("where", GROUP), pm.Data("x", X), pm.Data("week", WEEK)
    level, beta, s = pm.Normal("level", 0, 2), pm.Normal("beta", 0, 1), pm.HalfNormal("s", 1)
    u = pm.Normal("u", level, s, dims="group")
    walk = pm.GaussianRandomWalk("walk", sigma=0.5, init_dist=pm.Normal.dist(0, 1), dims="time")
    pm.Binomial("y", n=3, logit_p=u[where] + beta * x + walk[week], observed=BINARY + 1)


def areas_and_noise():
    where, x = pm.Data("where", WEEK), pm.Data("x", X)
    level, s = pm.Normal("level", 0, 2), pm.HalfNormal("s", 1)
    phi, theta = pm.ICAR("phi", W=W), pm.Normal("theta", shape=T)
    b = pm.Deterministic("b", s * (0.8 * phi + 0.6 * theta))
    pm.Poisson("y", mu=pm.math.exp(level + 0.3 * x + b[where]), observed=COUNTS)


def some_missing():
    where, x = pm.Data("where", GROUP), pm.Data("x", X)
    s, u = pm.HalfNormal("s", 1), pm.ZeroSumNormal("u", 1, dims="group")
    y = np.ma.masked_array(COUNTS, np.arange(N) % 9 == 4)
    with pytest.warns(pm.exceptions.ImputationWarning):
        pm.Poisson("y", mu=pm.math.exp(s * u[where] + 0.5 * x), observed=y)


def location_and_scale():
    where, x, week = pm.Data("where", WEEK), pm.Data("x", X), pm.Data("week", WEEK)
    level, spread, s = pm.Normal("level", 0, 2), pm.Normal("spread", 0, 1), pm.HalfNormal("s", 1)
    phi = pm.ICAR("phi", W=W)
    walk = pm.GaussianRandomWalk("walk", sigma=0.3, init_dist=pm.Normal.dist(0, 1), dims="time")
    pm.Normal("y", level + 0.5 * x + s * phi[where], pm.math.exp(spread + walk[week]), observed=NUMBERS)


class Case:
    """Fits of a model in both forms."""

    def __init__(self, build, method, hyper="map"):
        self.model = pm.Model(coords={"group": range(J), "time": range(T)})
        with pytest.MonkeyPatch.context() as patch, self.model:
            build()
            options = {"method": method, "hyper": hyper, "progressbar": False, "random_seed": 1}
            self.dense = pm.fit(**options)
            patch.setattr(dense_log_posterior, "_MANY", 1)
            patch.setattr(precision_sum, "_DENSE", np.inf)
            self.sparse = pm.fit(**options)
            self.file = self.sparse.to_datatree()
            self.again = gpep.from_datatree(self.file, self.model)


CASES = {
    "groups and a walk, EP": (groups_and_a_walk, "ep"),
    "areas and noise, Laplace": (areas_and_noise, "laplace", "grid"),
    "some missing, Laplace": (some_missing, "laplace"),
    "location and scale, Laplace": (location_and_scale, "laplace"),
}
FEW = ["groups and a walk, EP", "areas and noise, Laplace"]


@pytest.fixture(
    scope="module", params=[name if name in FEW else pytest.param(name, marks=pytest.mark.variation) for name in CASES]
)
def case(request):
    return Case(*CASES[request.param])


def test_text_of_the_fit_names_the_sparse_precision(case):
    n = case.sparse.classifier.prior.n_points
    assert f"By a sparse precision: {n} rows of {case.sparse.classifier.prior.n_normals} numbers" in str(case.sparse)
    assert "precision" not in str(case.dense)


def test_evidence_nodes_and_moments_by_precision_equal_the_dense_form(case):
    assert case.sparse.log_evidence == pytest.approx(case.dense.log_evidence, abs=1e-5)
    assert_allclose(case.sparse.nodes["weight"], case.dense.nodes["weight"], atol=1e-5)
    for moments in ("mean_data", "std_data"):
        found, expected = getattr(case.sparse, moments), getattr(case.dense, moments)
        for name in expected:
            assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)
    found, expected = case.sparse.effects(), case.dense.effects()
    assert_allclose(found.to_array(), expected.to_array(), atol=1e-5)
    assert_allclose(case.again.effects().to_array(), expected.to_array(), atol=1e-5)
    assert_allclose(case.sparse.cov.eval(), case.dense.cov.eval(), atol=1e-5)


def test_summaries_by_precision_equal_the_dense_form(case):
    found, expected = (fit.summary().select_dtypes("number") for fit in (case.sparse, case.dense))
    assert_allclose(found, expected, atol=1e-5)


def test_log_posterior_and_gradient_by_precision_equal_the_dense_form(case):
    theta = case.dense.theta + 0.1
    found, expected = case.sparse.log_posterior(theta), case.dense.log_posterior(theta)
    assert found.log_posterior == pytest.approx(expected.log_posterior, abs=1e-8)
    assert_allclose(found.gradient, expected.gradient, atol=1e-6)


def test_sparse_precision_keeps_digits_for_small_steps(monkeypatch):
    monkeypatch.setattr(dense_log_posterior, "_MANY", 1)
    monkeypatch.setattr(precision_sum, "_DENSE", np.inf)
    with pm.Model() as model:
        s = pm.math.exp(pm.Flat("log_s", shape=3))
        walk = pm.GaussianRandomWalk("walk", sigma=s[0], init_dist=pm.Normal.dist(0, 100), shape=T)
        series = pm.AR("series", [pm.Flat("rho")], sigma=s[1], init_dist=pm.Normal.dist(0, 10), shape=T)
        u = pm.ZeroSumNormal("u", s[2], shape=T)
        pm.Poisson("y", mu=pt.exp(walk + series + u), observed=np.arange(T) % 4)
    classifier, method = read_classifier(model), EP(tolerance=1e-9)
    sparse = DenseLogPosterior(classifier, method)
    monkeypatch.setattr("pymc_gpep.log_posteriors.dense_log_posterior.suited", lambda own, _: own)
    dense = DenseLogPosterior(classifier, method)
    assert sparse.algebra
    assert not dense.algebra
    for theta in ([-14.0, -5.0, -14.0, 0.9], [-14.0, 2.0, 2.0, 0.9], [3.0, -5.0, -14.0, 0.5]):
        found, expected = sparse(np.array(theta)), dense(np.array(theta))
        assert found.log_posterior == pytest.approx(expected.log_posterior, abs=1e-7)
        assert_allclose(found.gradient, expected.gradient, atol=1e-6)


def data(case, rows=(0, 5, 2)):
    given = {"where": list(rows), "x": [0.1, 2.0, -1.0], "week": [0, T - 1, 3]}
    return {name: value for name, value in given.items() if name in case.model.named_vars}


def test_predictions_by_precision_equal_the_dense_form(case):
    found, expected = (fit.predict(data=data(case), progressbar=False) for fit in (case.sparse, case.dense))
    for name in expected:
        assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", ["groups and a walk, EP"], indirect=True)
def test_predictions_of_a_new_level_equal_the_dense_form(case):
    arguments = {"data": data(case, (0, J + 2, 2)), "new_levels": True, "progressbar": False}
    found, expected = case.sparse.predict(**arguments), case.dense.predict(**arguments)
    for name in expected:
        assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_new_levels_of_several_groups_equal_the_dense_form(monkeypatch):
    monkeypatch.setattr(dense_log_posterior, "_MANY", 1)
    monkeypatch.setattr(precision_sum, "_DENSE", np.inf)
    with pm.Model():
        u, v, w = pm.Normal("u", 0.5, 0.6, shape=J), pm.Normal("v", 0, 0.8, shape=T), pm.Normal("w", 1, 0.3, shape=1)
        where, week, clinic = pm.Data("where", GROUP), pm.Data("week", WEEK), pm.Data("clinic", np.zeros(N, int))
        pm.Normal("y", u[where] + v[week] + w[clinic], 1.0, observed=NUMBERS)
        fit = pm.fit(method="ep", progressbar=False)
    assert "By a sparse precision" in str(fit)
    levels = {"where": [J, J, 0], "week": [T, 0, T], "clinic": [4, 4, 4]}
    found = fit.predict(data=levels, new_levels=True, progressbar=False)
    (first, sd), (other, other_sd) = (fit.effects(name)[name].values[:, 0] for name in ("u", "v"))
    assert_allclose(found["mean"], [1.5, 1.5 + other, 1.0 + first], atol=1e-8)
    assert_allclose(found["variance"] - 0.3**2, [1.0, 0.6**2 + other_sd**2, sd**2 + 0.8**2], atol=1e-8)


@pytest.mark.parametrize("case", ["areas and noise, Laplace"], indirect=True)
def test_predictions_of_new_areas_are_refused(case):
    with pytest.raises(ValueError, match="have different priors"):
        case.sparse.predict(data={"where": [T + 1], "x": [0.0]}, new_levels=True, progressbar=False)


@pytest.mark.parametrize("case", ["groups and a walk, EP"], indirect=True)
def test_error_names_missing_data(case):
    with pytest.raises(ValueError, match="depend on further data"):
        case.sparse.predict(data={"where": [0, 1]}, progressbar=False)


@pytest.mark.parametrize("case", ["some missing, Laplace"], indirect=True)
def test_predictions_of_missing_rows_match_the_dense_form(case):
    found, expected = (fit.predict(missing=True, progressbar=False) for fit in (case.sparse, case.dense))
    assert_allclose(found["mean"], expected["mean"], rtol=1e-5)


@pytest.mark.parametrize("case", ["areas and noise, Laplace"], indirect=True)
def test_effects_at_new_data_and_contrasts_equal_the_dense_form(case):
    for ask in (
        lambda fit: fit.effects(["b", "phi"]).to_array(),
        lambda fit: fit.contrast({"a": {"phi": np.eye(T)[0] - np.eye(T)[4]}, "b": {"theta": np.ones(T)}})["cov"],
    ):
        assert_allclose(ask(case.sparse), ask(case.dense), atol=1e-5)


def test_scores_of_left_out_rows_match_the_dense_form(case):
    found, expected = case.sparse.loo(progressbar=False), case.dense.loo(progressbar=False)
    assert_allclose(found.elpd_i, expected.elpd_i, atol=1e-5)
    functions = [next(iter(each.functions())) for each in (case.sparse, case.dense)]
    for one, other in zip(*(each.refitted(3)[0][1:3] for each in functions), strict=True):
        assert_allclose(one, other, atol=1e-6)
    for one, other in zip(*(fit.joint_latent_moments([5, 0, 2]) for fit in (case.sparse, case.dense)), strict=True):
        assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("case", ["groups and a walk, EP"], indirect=True)
def test_scores_of_left_out_groups_match_the_dense_form(case):
    found, expected = (fit.loo(groups="where", progressbar=False) for fit in (case.sparse, case.dense))
    assert (abs(found.elpd_i - expected.elpd_i) < 4 * np.hypot(found.error_i, expected.error_i)).all()


def test_draws_have_the_moments_of_the_fit(case):
    drawn = case.sparse.sample(1000, random_seed=2)["posterior"]
    for name in case.dense.mean_data:
        if name in drawn:
            mean, sd = case.dense.mean_data[name], case.dense.std_data[name]
            assert (abs(drawn[name].mean(("chain", "draw")) - mean) < 0.2 * sd).all(), name
            assert_allclose(drawn[name].std(("chain", "draw")), sd, rtol=0.2, err_msg=name)


def test_importance_sampling_equals_the_dense_form(case):
    found, expected = case.sparse.importance(100, random_seed=3), case.dense.importance(100, random_seed=3)
    error = np.hypot(found.standard_error, expected.standard_error)
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=4 * error + 1e-5)


def test_small_models_use_no_sparse_precision():
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=J)
        pm.Poisson("y", mu=pt.exp(u[GROUP]), observed=COUNTS)
    classifier = read_classifier(model)
    assert dense_log_posterior.suited(classifier, EP()) is classifier


def test_sparse_precision_is_used_for_many_levels_but_not_many_columns():
    rng = np.random.default_rng(6)
    where, columns = rng.integers(0, 600, size=700), rng.normal(size=(700, 600))
    with pm.Model() as model:
        s, u, v = pm.HalfNormal("s", 1), pm.Normal("u", 0, 1, shape=600), pm.Normal("v", 0, 1, shape=600)
        pm.Poisson("few", mu=pt.exp(s * u[where]), observed=np.ones(700, int))
        pm.Poisson("all", mu=pt.exp(columns @ v), observed=np.ones(700, int))
    few, every = (read_classifier(model, name) for name in ("few", "all"))
    suited = dense_log_posterior.suited(few, EP())
    assert PrecisionPrior in suited.prior.arrays
    assert suited.prior.structure.posterior.entries == 600
    assert dense_log_posterior.suited(every, EP()) is every


def test_methods_without_sparse_precision_use_dense_matrices(monkeypatch):
    monkeypatch.setattr(dense_log_posterior, "_MANY", 1)
    monkeypatch.setattr(precision_sum, "_DENSE", np.inf)
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=J)
        pm.Bernoulli("y", logit_p=u[GROUP], observed=BINARY)
    classifier = read_classifier(model)
    suited = dense_log_posterior.suited(classifier, EP())
    assert suited is not classifier
    assert dense_log_posterior.suited(suited, EP()) is suited
    assert dense_log_posterior.suited(suited, NaiveTAP()).prior is classifier.prior


def test_cumulative_sums_have_dense_coefficients(monkeypatch):
    levels = 90
    with pm.Model():
        where = pm.Data("where", RNG.integers(0, levels, 200))
        u = pm.Normal("u", 0, pm.HalfNormal("s", 1), shape=levels)
        pm.Deterministic("total", pt.cumsum(u) + 0.3)
        pm.Bernoulli("y", logit_p=u[where], observed=np.arange(200) % 3 == 0)
        dense = pm.fit(method="laplace", hyper="map", progressbar=False)
        monkeypatch.setattr(dense_log_posterior, "_MANY", 1)
        monkeypatch.setattr(precision_sum, "_DENSE", np.inf)
        fit = pm.fit(method="laplace", hyper="map", progressbar=False)
    assert "By a sparse precision" in str(fit)
    assert_allclose(fit.effects(["total"])["total"], dense.effects(["total"])["total"], atol=1e-6)


def sum_of_a_walk():
    walk = pm.GaussianRandomWalk("walk", sigma=pm.HalfNormal("s", 1), init_dist=pm.Normal.dist(0, 0.1), shape=LONG)
    return pm.Normal("level", 0, 2) + pm.math.cumsum(walk)


def walk_about_a_walk():
    s, r = pm.HalfNormal("s", 1), pm.HalfNormal("r", 1)
    slope = pm.GaussianRandomWalk("slope", sigma=s, init_dist=pm.Normal.dist(0, 0.1), shape=LONG - 1)
    return pm.GaussianRandomWalk("walk", mu=slope, sigma=r, init_dist=pm.Normal.dist(0, 2), shape=LONG)


def sum_of_sums():
    return pm.HalfNormal("s", 1) * pm.math.cumsum(pm.math.cumsum(pm.Normal("z", 0, 1, shape=LONG)))


def sum_of_zero_sum():
    return 0.5 + pm.math.cumsum(pm.ZeroSumNormal("z", pm.HalfNormal("s", 1), shape=LONG))


def sum_of_an_autoregression():
    start = pm.Normal.dist(0, 1)
    return pm.math.cumsum(pm.AR("z", [pm.Uniform("rho", 0, 1)], pm.HalfNormal("s", 1), init_dist=start, shape=LONG))


def triangle_of_ones():
    return pt.dot(np.tril(np.ones((LONG, LONG))), pm.Normal("z", 0, pm.HalfNormal("s", 1), shape=LONG))


LONG = 80
SUMMED = [
    sum_of_a_walk, walk_about_a_walk, sum_of_sums, sum_of_zero_sum, sum_of_an_autoregression, triangle_of_ones
]  # fmt: skip


@pytest.mark.parametrize("build", SUMMED, ids=lambda build: build.__name__)
def test_running_sums_have_a_sparse_precision(build, monkeypatch):
    monkeypatch.setattr(precision_sum, "_DENSE", np.inf)
    when = np.sort(np.arange(LONG + 5) % LONG)
    with pm.Model() as model:
        eta = pm.Deterministic("eta", build())
        y = np.random.default_rng(3).poisson(np.exp(1 + np.sin(when / 8)))
        pm.Poisson("y", mu=pm.math.exp(eta[pm.Data("when", when)]), observed=y)
    classifier, method = read_classifier(model), EP(tolerance=1e-10)
    assert dense_log_posterior.suited(classifier, method).prior.structure.shape[1] <= 4
    sparse = DenseLogPosterior(classifier, method)
    monkeypatch.setattr("pymc_gpep.log_posteriors.dense_log_posterior.suited", lambda own, _: own)
    dense = DenseLogPosterior(classifier, method)
    assert "By a sparse precision" in sparse.algebra
    assert "precision" not in dense.algebra
    for at in (-2.0, 0.1):
        theta = np.full(len(model.free_RVs) - len(classifier.prior.integrated), at)
        found, expected = sparse(theta), dense(theta)
        assert found.log_posterior == pytest.approx(expected.log_posterior, abs=1e-7)
        assert_allclose(found.gradient, expected.gradient, atol=1e-6)


def test_fit_by_running_sums_matches_matrices(monkeypatch):
    with pm.Model():
        eta = pm.Deterministic("eta", sum_of_a_walk())
        pm.Poisson("y", mu=pm.math.exp(eta[pm.Data("when", np.arange(LONG))]), observed=np.arange(LONG) // 9 % 4)
        sparse = pm.fit(method="ep", hyper="map", progressbar=False)
        monkeypatch.setattr(precision_sum, "_DENSE", 0.0)
        monkeypatch.setattr("pymc_gpep.log_posteriors.dense_log_posterior.suited", lambda own, _: own)
        dense = pm.fit(method="ep", hyper="map", progressbar=False)
    assert "By a sparse precision" in str(sparse)
    assert "precision" not in str(dense)
    assert sparse.log_evidence == pytest.approx(dense.log_evidence, abs=1e-6)
    for name in ("level", "walk", "eta"):
        assert_allclose(sparse.effects([name])[name], dense.effects([name])[name], atol=1e-5, err_msg=name)
    assert_allclose(*(fit.summary().select_dtypes("number") for fit in (sparse, dense)), atol=1e-5)
    new = {"when": [0, 3, LONG - 1]}
    assert_allclose(sparse.predict(data=new)["mean"], dense.predict(data=new)["mean"], rtol=1e-5)


def test_second_model_of_a_shape_rewrites_no_graph(monkeypatch):
    """The second model has other data with another sparsity pattern.

    Both models have equal graphs of the log posterior and of the coefficients.
    """

    def fitted(seed):
        rng = np.random.default_rng(seed)
        with pm.Model():
            s, level = pm.HalfNormal("s", 1), pm.Normal("level", 0, 1)
            u, v = pm.Normal("u", 0, s, shape=70), pm.Normal("v", shape=30)
            g, h = pm.Data("g", rng.integers(0, 70, 120)), pm.Data("h", rng.integers(0, 30, 120))
            x = pm.Normal("slope", 0, 1) * pm.Data("x", rng.normal(size=120))
            pm.Poisson("y", mu=pm.math.exp(level + x + u[g] + v[h]), observed=rng.poisson(2.0, 120))
            return pm.fit(method="ep", hyper="map", progressbar=False)

    made = []
    make = pm.Model.compile_fn
    with rewritten():
        assert "By a sparse precision" in fitted(1).log_posterior.algebra
        monkeypatch.setattr(pm.Model, "compile_fn", lambda *args, **kwargs: made.append(1) or make(*args, **kwargs))
        assert fitted(2).converged
    assert not made


def test_stored_solutions_by_rows_take_little_memory():
    """A solution by rows of 302 normals at 10⁵ rows stores a few vectors and matrices of the normals."""
    base = Entries(np.zeros((5, 1), np.int64), np.ones((5, 1)), 302)
    assert BoundForm(RowPrior, RowStructure(base)).kept(1, 100_000, 302) < 2_000_000
    assert RowPrior.kept(1, 100_000, 302) > 30_000_000
