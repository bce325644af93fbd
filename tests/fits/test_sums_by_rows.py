"""Fits of sums by rows of coefficients equal fits by covariance matrices."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import EP, NestedEP
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier
from pymc_gpep.sums import effect_sum

N, J = 45, 6
RNG = np.random.default_rng(5)
GROUP, X = RNG.integers(0, J, size=N), RNG.normal(size=N)
BINARY = (RNG.random(N) < 1 / (1 + np.exp(-0.5 - X))).astype(int)
KINDS = (0.4 * X + GROUP / J + RNG.random(N) > 0.5).astype(int) + (RNG.random(N) > 0.6)


def binary():
    where, x = pm.Data("where", GROUP), pm.Data("x", X)
    level, beta, s = pm.Normal("level", 0, 2), pm.Normal("beta", 0, 1), pm.HalfNormal("s", 1)
    u = pm.Normal("u", 0, s, dims="group")
    pm.Bernoulli("y", logit_p=level + beta * x + u[where], observed=BINARY)


def some_missing():
    where, x = pm.Data("where", GROUP), pm.Data("x", X)
    level, s = pm.Normal("level", 0, 2), pm.HalfNormal("s", 1)
    u = pm.Normal("u", level, s, dims="group")
    y = np.ma.masked_array(BINARY, np.arange(N) % 9 == 4)
    with pytest.warns(pm.exceptions.ImputationWarning):
        pm.Bernoulli("y", logit_p=u[where] + 0.5 * x, observed=y)


def classes():
    where, x = pm.Data("where", GROUP), pm.Data("x", X)
    b, s = pm.Normal("b", 0, 1, dims="kind"), pm.HalfNormal("s", 1)
    u = pm.Normal("u", 0, s, dims=("group", "kind"))
    gpep.MultinomialProbit("y", x[:, None] * b + u[where], observed=KINDS)


def softmax_of_zero_sums():
    where, x = pm.Data("where", GROUP), pm.Data("x", X)
    b, s = pm.ZeroSumNormal("b", 1, dims="kind"), pm.HalfNormal("s", 1)
    z = pm.Normal("z", dims=("group", "kind"))
    pm.Categorical("y", logit_p=x[:, None] * b + s * z[where], observed=KINDS)


def process_at_places():
    where, x = pm.Data("where", GROUP), pm.Data("x", X)
    ls, beta = pm.InverseGamma("ls", 3, 1), pm.Normal("beta", 0, 1)
    places = pm.Data("places", np.linspace(0.0, 1.0, J)[:, None])
    f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=places)
    gpep.Probit("y", f[where] + beta * x, observed=BINARY)


class Case:
    """Fits of a model in both forms."""

    def __init__(self, build, method, **options):
        self.model = pm.Model(coords={"group": range(J), "kind": ["r", "s", "t"]})
        with pytest.MonkeyPatch.context() as patch, self.model:
            build()
            options |= {"method": method, "progressbar": False, "random_seed": 1}
            self.dense = pm.fit(**options)
            patch.setattr(effect_sum, "_MANY", 1)
            self.rows = pm.fit(**options)
            # Predictions also use rows of coefficients, in the order of the first request.
            self.rows.predict(data={"where": [0, 1], "x": [0.0, 1.0]}, progressbar=False)
            assert self.rows.log_posterior._prior_at_new_rows(None)._parts is not None


CASES = {
    "binary, EP": (binary, "ep"),
    "some missing, KL": (some_missing, "kl", "map"),
    "process at places, EP": (process_at_places, "ep", "map"),
    "classes, nested EP": (classes, "nested_ep"),
    "softmax of zero sums, Laplace": (softmax_of_zero_sums, "laplace", "map"),
}
FEW = ["binary, EP", "classes, nested EP"]


@pytest.fixture(
    scope="module", params=[name if name in FEW else pytest.param(name, marks=pytest.mark.variation) for name in CASES]
)
def case(request):
    build, method, *hyper = CASES[request.param]
    return Case(build, method, **({"hyper": hyper[0]} if hyper else {}))


def test_text_of_the_fit_names_the_form_by_rows(case):
    n = case.rows.classifier.n_points
    assert f"By rows: {n} rows of {case.rows.classifier.prior.n_normals} standard normals." in str(case.rows)
    assert "By rows" not in str(case.dense)


def test_evidence_nodes_and_moments_by_rows_equal_the_dense_form(case):
    assert case.rows.log_evidence == pytest.approx(case.dense.log_evidence, abs=1e-7)
    assert_allclose(case.rows.nodes["weight"], case.dense.nodes["weight"], atol=1e-5)
    for moments in ("mean_data", "std_data"):
        found, expected = getattr(case.rows, moments), getattr(case.dense, moments)
        for name in expected:
            assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)
    found, expected = case.rows.effects(), case.dense.effects()
    assert_allclose(found.to_array(), expected.to_array(), atol=1e-5)
    assert_allclose(case.rows.cov.eval(), case.dense.cov.eval(), atol=1e-5)


@pytest.mark.parametrize("levels", [[0, 5, 2], [0, J + 2, 2]], ids=["levels of the model", "a new level"])
def test_predictions_by_rows_equal_the_dense_form(case, levels):
    arguments = {"data": {"where": levels, "x": [0.1, 2.0, -1.0]}, "new_levels": J + 2 in levels, "progressbar": False}
    if case.rows.classifier.prior.processes and arguments["new_levels"]:
        for fit in (case.rows, case.dense):
            with pytest.raises(ValueError, match="have different priors"):
                fit.predict(**arguments)
        return
    found, expected = case.rows.predict(**arguments), case.dense.predict(**arguments)
    for name in expected:
        assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_joint_covariance_of_some_points_equals_the_dense_form(case):
    points = [5, 0, 2]
    (mean, cov), (expected_mean, expected_cov) = (fit.joint_latent_moments(points) for fit in (case.rows, case.dense))
    assert_allclose(mean, expected_mean, atol=1e-5)
    assert_allclose(cov, expected_cov, atol=1e-5)


def test_joint_covariance_of_some_points_needs_no_full_matrix(case, monkeypatch):
    monkeypatch.setattr(Posterior, "joint_covariance", None)
    c = case.rows.classifier.n_functions
    assert case.rows.joint_latent_moments([1, 3])[1].shape == (2, c, 2, c)


@pytest.mark.parametrize("count", [3, N])
def test_error_names_missing_data_in_each_call(case, count):
    for _ in range(2):
        with pytest.raises(ValueError, match=r"depend on further data: data=\{..., 'x': ...\}"):
            case.rows.predict(data={"where": np.zeros(count, int)}, progressbar=False)


def test_scores_of_left_out_rows_match_the_dense_form(case):
    found, expected = case.rows.loo(progressbar=False), case.dense.loo(progressbar=False)
    assert_allclose(found.elpd_i, expected.elpd_i, atol=1e-5)
    functions = [next(iter(each.functions())) for each in (case.rows, case.dense)]
    for one, other in zip(*(each.refitted(3)[0][1:3] for each in functions), strict=True):
        assert_allclose(one, other, atol=1e-6)


ZERO_SUMS = pytest.param("softmax of zero sums, Laplace", marks=pytest.mark.variation)
some = pytest.mark.parametrize("case", ["binary, EP", ZERO_SUMS], indirect=True)


@some
def test_scores_of_left_out_groups_match_the_dense_form(case):
    found, expected = (fit.loo(groups="where", draws=400, progressbar=False) for fit in (case.rows, case.dense))
    error = np.hypot(found.error_i, expected.error_i)
    assert (abs(found.elpd_i - expected.elpd_i) < 4 * error).all()
    assert (error < 0.1).all()


@some
def test_draws_of_samplers_by_rows_equal_draws_in_the_dense_form(case):
    """Row form and dense form have standard normals in the same order, so equal seeds give equal draws."""
    chains = []
    for many in (10**9, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(effect_sum, "_MANY", many)
            step = gpep.samplers.GuidedHMC(guide="prior", model=case.model)
        step.setup_chain(np.random.default_rng(1), 3, 3)
        point = case.model.initial_point()
        for _ in range(3):
            point, _statistics = step.step(point)
        chains.append(point)
    for name, value in chains[0].items():
        assert_allclose(chains[1][name], value, atol=1e-6, err_msg=name)


@pytest.mark.variation
@pytest.mark.parametrize("case", ["process at places, EP"], indirect=True)
def test_indexed_process_keeps_its_inputs(case):
    data = {"where": [0, 1], "x": [0.0, 1.0], "places": np.linspace(0.1, 1.1, J)[:, None]}
    for fit in (case.rows, case.dense):
        with pytest.raises(ValueError, match="has 6 values for 45 rows, and cannot be predicted at new inputs"):
            fit.predict(data=data, progressbar=False)


def test_draws_have_the_moments_of_the_fit(case):
    if case.rows.classifier.n_functions > 1:  # the order of normals differs, and so do the draws
        drawn = case.rows.sample(400, random_seed=2)["posterior"]
        for name in {"b", "u", "z"}.intersection(case.dense.mean_data):
            mean, sd = case.dense.mean_data[name], case.dense.std_data[name]
            assert (abs(drawn[name].mean(("chain", "draw")) - mean) < 0.25 * sd).all(), name
            assert_allclose(drawn[name].std(("chain", "draw")), sd, rtol=0.2, err_msg=name)
        return
    for found, expected in zip(
        *(fit.sample(50, random_seed=2)["posterior"].data_vars.values() for fit in (case.rows, case.dense)), strict=True
    ):
        assert_allclose(found, expected, atol=1e-4)


def test_importance_sampling_and_files_by_rows_equal_the_dense_form(case):
    found, expected = case.rows.importance(100, random_seed=3), case.dense.importance(100, random_seed=3)
    if case.rows.classifier.n_functions == 1:
        assert found.pareto_k == pytest.approx(expected.pareto_k, abs=1e-3)
    error = np.hypot(found.standard_error, expected.standard_error)
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=4 * error)
    again = gpep.from_datatree(case.rows.to_datatree(), case.model)
    assert_allclose(again.effects().to_array(), case.rows.effects().to_array(), atol=1e-6)


@some
def test_marginal_model_by_rows_equals_the_dense_form(case, monkeypatch):
    logps = []
    for many in (10**9, 1):
        monkeypatch.setattr(effect_sum, "_MANY", many)
        marginal = gpep.marginalize(case.model, case.rows.name)
        point = marginal.initial_point()
        logps.append([marginal.compile_logp()(point), marginal.compile_dlogp()(point)])
    assert_allclose(*[each[0] for each in logps], atol=1e-7)
    assert_allclose(*[each[1] for each in logps], atol=1e-6)


@pytest.mark.parametrize("case", [ZERO_SUMS], indirect=True)
def test_corrected_probabilities_of_grouped_rows_equal_the_dense_form(case):
    arguments = {"data": {"where": [0, 5], "x": [0.1, 2.0]}, "correction": "tk", "progressbar": False}
    assert_allclose(case.rows.predict(**arguments)["p"], case.dense.predict(**arguments)["p"], atol=1e-6)


@pytest.mark.variation
def test_draws_contain_variables_of_classes(monkeypatch):
    """For given s, recovered draws have the moments of a fit with the same s."""
    monkeypatch.setattr(effect_sum, "_MANY", 1)
    with pm.Model(coords={"group": range(J), "kind": ["r", "s", "t"]}) as model:
        classes()
        fit = pm.fit(method="nested_ep", hyper="map", progressbar=False)
    s = np.full((1, 200), fit.hyperparameters["s"].item())
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"s": (("chain", "draw"), s)})})
    marginal = gpep.marginalize(model, "nested_ep")
    draws = gpep.recover_latent(idata, marginal, random_seed=2, progressbar=False)["posterior"]
    for name in ("b", "u"):
        mean, sd = draws[name].mean(("chain", "draw")), draws[name].std(("chain", "draw"))
        assert (abs(mean - fit.mean_data[name]) < 0.3 * fit.std_data[name]).all()
        assert_allclose(sd, fit.std_data[name], rtol=0.16)


@pytest.mark.parametrize(("build", "method"), [(binary, EP()), (classes, NestedEP())], ids=["binary", "classes"])
def test_compiled_log_posterior_from_all_coefficients_equals_the_interpreted_log_posterior(monkeypatch, build, method):
    """`FAST_COMPILE` counts as a compiled mode: machine code for such graphs would take ten seconds and more."""
    monkeypatch.setattr(effect_sum, "_MANY", 1)
    with pm.Model(coords={"group": range(J), "kind": ["r", "s", "t"]}) as model:
        build()
    classifier = read_classifier(model)
    interpreted, compiled = (DenseLogPosterior(classifier, method, kwargs) for kwargs in ({}, {"mode": "FAST_COMPILE"}))
    assert [each._prior_type in classifier.prior.arrays for each in (interpreted, compiled)] == [False, True]
    theta = interpreted.space.initial_point() + 0.3
    found, expected = compiled(theta), interpreted(theta)
    assert found.log_posterior == pytest.approx(expected.log_posterior, abs=1e-7)
    assert_allclose(found.gradient, expected.gradient, atol=1e-6)
