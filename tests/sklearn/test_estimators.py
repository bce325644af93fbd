"""Estimators against models written by hand, and against scikit-learn's Gaussian process."""

import copy
import importlib
import io
import pickle
import sys
from types import SimpleNamespace

import joblib
import numpy as np
import pymc as pm
import pytest
from scipy.special import ndtr
from scipy.stats import poisson
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor as ExactRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel
from sklearn.metrics import d2_tweedie_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import pymc_gpep as gpep
from pymc_gpep.sklearn import GaussianProcessClassifier, GaussianProcessCounts, GaussianProcessRegressor, estimators
from pymc_gpep.variational import method_choice
from tests.sklearn.data import frame, ratio


@pytest.fixture(scope="module")
def two_classes():
    X, y, _ = frame()
    return GaussianProcessClassifier(random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def three_classes():
    X, _, f = frame()
    return GaussianProcessClassifier(linear=False, random_state=0).fit(X[["age"]], np.digitize(f, [-0.3, 0.8]))


def test_error_without_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "pymc_gpep.sklearn")
    with pytest.raises(ModuleNotFoundError, match=r'needs scikit-learn: pip install "pymc-gpep\[scikit-learn\]"'):
        importlib.import_module("pymc_gpep.sklearn")


def test_classifier_equals_the_model_written_by_hand(two_classes):
    X, y, _ = frame()
    table = gpep.columns(X)
    with pm.Model(coords=table.coords):
        f = pm.gp.Latent(cov_func=table.covariance()).prior("f", X=table.X)
        gpep.Probit("y", f, observed=(y == "well").to_numpy(dtype=int))
        fit = pm.fit(method="ep", starts=2, random_seed=1, progressbar=False)
    new = X.iloc[:7].assign(age=33.0)
    expected = fit.predict(table.encode(new))["p"].values
    np.testing.assert_allclose(two_classes.predict_proba(new), expected, atol=1e-6)
    assert two_classes.classes_.tolist() == ["ill", "well"]
    np.testing.assert_array_equal(two_classes.predict(new), np.array(["ill", "well"])[expected.argmax(axis=1)])
    assert two_classes.score(X, y) == np.mean(two_classes.predict(X) == y)
    assert two_classes.fit_method_ == two_classes.fit_.name == "ep"
    assert two_classes.fit_.hyperparameters["ls"].ndim == 0


def test_text_of_a_fit_gives_the_reason_for_hyperparameters_at_the_maximum(two_classes):
    X, y, _ = frame()
    assert "(the default of estimators is hyper='map')" in str(two_classes.fit_)
    for asked in ({"hyper": "map"}, {"fit_options": {"hyper": "map"}}):
        assert "(hyper='map' was asked for)" in str(clone(two_classes).set_params(**asked).fit(X, y).fit_)


def test_regressor_equals_exact_gaussian_process_regression():
    X = np.random.default_rng(0).uniform(-2, 2, (25, 2)) * [1.0, 100.0] + [0.0, 30.0]
    y = 50 + 7 * np.sin(X[:, 0]) + X[:, 1] / 50 + np.random.default_rng(1).standard_normal(25)
    ours = GaussianProcessRegressor().fit(X, y)
    eta, ls, slope, noise = (float(ours.fit_.hyperparameters[name]) for name in ("eta", "ls", "slope", "noise"))
    linear = ConstantKernel(slope**2) * DotProduct(0.0)
    kernel = ConstantKernel(eta**2) * Matern(ls, nu=2.5) + linear + WhiteKernel(noise**2)
    exact = ExactRegressor(kernel, optimizer=None)
    with np.errstate(divide="ignore"):  # scikit-learn takes the logarithm of DotProduct's bound 0
        exact.fit((X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std())
    new = X[:6] + np.array([0.2, 5.0])
    mean, deviation = exact.predict((new - X.mean(axis=0)) / X.std(axis=0), return_std=True)
    found = ours.predict(new, return_std=True)
    np.testing.assert_allclose(found[0], y.mean() + y.std() * mean, rtol=1e-6)
    np.testing.assert_allclose(found[1], y.std() * deviation, rtol=1e-5)
    np.testing.assert_array_equal(ours.predict(new), found[0])
    ends = ours.predict_interval(new, 0.5)
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 2 * 0.674489750196 * found[1], rtol=1e-5)
    assert ours.score(X, y) > 0.9


@pytest.mark.variation(but=["negative_binomial"])
@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_counts_have_the_mean_of_a_log_normal_rate(likelihood):
    X, _, f = frame()
    y = np.random.default_rng(2).poisson(np.exp(1 + f))
    counts = GaussianProcessCounts(likelihood=likelihood).fit(X, y)
    moments = counts.fit_.predict(counts.columns_.encode(X.iloc[:9]))
    mean = np.exp(moments["mean"].values + moments["variance"].values / 2)
    np.testing.assert_allclose(counts.predict(X.iloc[:9]), mean, rtol=1e-6)
    ends = counts.predict_interval(X.iloc[:9], 0.8)
    assert (ends[:, 0] <= mean).all()
    assert (ends[:, 1] >= poisson.ppf(0.9, np.exp(moments["mean"].values))).all()
    assert counts.score(X, y) == pytest.approx(d2_tweedie_score(y, counts.predict(X), power=1))
    # observations are equal, so that there is no deviance to explain
    assert counts.score(X.iloc[:9], np.full(9, 2)) == 0.0


@pytest.mark.variation
def test_interval_of_two_classes_follows_the_latent_function(two_classes):
    X, _, _ = frame()
    moments = two_classes.fit_.predict(two_classes.columns_.encode(X.iloc[:5]))
    f, deviation = moments["mean"].values, np.sqrt(moments["variance"].values)
    ends = two_classes.predict_interval(X.iloc[:5], 0.9)
    np.testing.assert_allclose(ends[:, 1, 0], ndtr(f - 1.6448536 * deviation), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ends[:, 0, 0] + ends[:, 1, 1], 1.0)
    p = two_classes.predict_proba(X.iloc[:5])
    assert ((ends[:, :, 0] < p) & (p < ends[:, :, 1])).all()


@pytest.mark.parametrize("dump", ["pickle", "joblib"])
def test_pickled_estimator_returns_equal_predictions(two_classes, dump):
    X, _, _ = frame()
    if dump == "pickle":
        again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(two_classes))))
    else:
        file = io.BytesIO()
        joblib.dump(two_classes, file)
        again = joblib.load(file)
    with pm.Model() as around:
        pm.Normal("ls")
        np.testing.assert_allclose(again.predict_proba(X), two_classes.predict_proba(X), atol=1e-8)
    assert list(around.named_vars) == ["ls"]
    assert again.fit_.log_evidence == pytest.approx(two_classes.fit_.log_evidence)
    assert [rv.name for rv in again.model_.free_RVs] == [rv.name for rv in two_classes.model_.free_RVs]


def test_deep_copy_has_the_same_fit_and_clone_has_none(two_classes):
    assert copy.deepcopy(two_classes).fit_ is two_classes.fit_
    with pytest.raises(NotFittedError):
        clone(two_classes).fit_  # noqa: B018


def test_relevance_is_the_inverse_length_scale_of_each_column(two_classes):
    found = two_classes.relevance_
    assert found.index.tolist() == two_classes.feature_names_in_.tolist() == ["age", "smokes", "city"]
    scales = two_classes.fit_.hyperparameters
    expected = [1 / scales["ls"], 1 / scales["ls"], 1 / scales["ls_category"].item()]
    np.testing.assert_allclose(found, expected)


def test_covariance_functions_of_users_are_accepted_and_pickled():
    X, y, _ = frame()
    fitted = GaussianProcessClassifier(kernel=ratio).fit(X, y)
    assert [rv.name for rv in fitted.model_.free_RVs if "f" not in rv.name] == ["size"]
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(X), fitted.predict_proba(X), atol=1e-8)
    with pytest.raises(ValueError, match="lack the length scales of"):
        fitted.relevance_  # noqa: B018


@pytest.mark.variation
def test_data_of_some_thousand_rows_are_fitted_by_inducing_inputs():
    X, y, _ = frame()
    fitted = GaussianProcessClassifier(max_dense_rows=30, fit_options={"inducing": 15}, random_state=0).fit(X, y)
    assert fitted.fit_method_ == "sparse_ep, 15 inducing inputs"
    assert fitted.fit_.inducing_inputs.shape[1] == 15
    assert fitted.score(X, y) > 0.8
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(X), fitted.predict_proba(X), atol=1e-8)


def test_data_of_many_rows_are_fitted_by_batches(monkeypatch):
    for name, value in {"_SWEPT": 30, "_BATCH": 10, "_FEWEST": 20, "_PASSES": 1}.items():
        monkeypatch.setattr(method_choice, name, value)
    X, y, _ = frame()
    fitted = GaussianProcessClassifier(max_dense_rows=0, linear=False, fit_options={"inducing": 8}, random_state=0)
    fitted.fit(X, y)
    assert fitted.fit_method_ == "sparse_ep, 8 inducing inputs, 20 steps of 10 rows"
    assert fitted.fit_.hyperparameters["ls"].ndim == 1  # one length scale for each numeric column
    assert len(fitted.fit_.hist) == 20
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(X), fitted.predict_proba(X), atol=1e-8)


@pytest.mark.variation
def test_label_noise_keeps_probabilities_away_from_0_and_1():
    X, y, _ = frame()
    fitted = GaussianProcessClassifier(label_noise=0.1, fit_options={"inducing": 10}, random_state=0).fit(X, y)
    p = fitted.predict_proba(X)
    assert p.min() > 0.05
    ends = fitted.predict_interval(X.iloc[:4])
    assert (ends[..., 0] > 0.05 - 1e-12).all()
    assert (ends[..., 0] < ends[..., 1]).all()


def test_columns_are_selected_from_frames_in_a_pipeline():
    X, y, _ = frame()
    numbers = make_pipeline(MinMaxScaler(), GaussianProcessClassifier(linear=False)).fit(X[["age", "smokes"]], y)
    whole = GaussianProcessClassifier(linear=False).fit(X[["age", "smokes"]], y)
    np.testing.assert_allclose(
        numbers.predict_proba(X[["age", "smokes"]]), whole.predict_proba(X[["age", "smokes"]]), atol=1e-6
    )


def test_error_for_invalid_rows_names_the_reason(two_classes):
    X, y, _ = frame()
    with pytest.raises(ValueError, match="'city' has a category that training rows did not have: 'Lima'"):
        two_classes.predict(X.assign(city="Lima"))
    with pytest.raises(ValueError, match="'age' has a missing value, NaN, in row 0"):
        GaussianProcessClassifier().fit(X.assign(age=np.where(X.index == 0, np.nan, X["age"])), y)
    with pytest.raises(ValueError, match="feature names should match"):
        two_classes.predict(X[["smokes", "age", "city"]])
    with pytest.raises(ValueError, match="there is one class"):
        GaussianProcessClassifier().fit(X, np.ones(len(X)))
    with pytest.raises(ValueError, match=r"whole numbers of at least 0, but a count is 1\.5"):
        GaussianProcessCounts().fit(X, np.full(len(X), 1.5))
    with pytest.raises(ValueError, match="at most 2147483647, PyMC's largest, but a count is 4294967303"):
        GaussianProcessCounts().fit(X, np.full(len(X), 2**32 + 7))
    with pytest.raises(ValueError, match="Labels y have a missing value in row 2"):
        GaussianProcessClassifier().fit(X, [None if k == 2 else "yes" for k in range(len(X))])
    for estimator_of_rows in (GaussianProcessCounts(), GaussianProcessRegressor()):
        with pytest.raises(ValueError, match="A fit needs two rows or more, but there is 1 sample"):
            estimator_of_rows.fit(X.iloc[:1], [4])


@pytest.mark.variation(but=["0.1"])
@pytest.mark.parametrize("value", [3.0, 0.1])
def test_intervals_of_constant_observations_shift_with_their_value(value):
    X = frame()[0][["age"]].iloc[:7]
    intervals = [
        GaussianProcessRegressor().fit(X, np.full(7, level)).predict_interval(X) - level for level in (0, value)
    ]
    np.testing.assert_allclose(*intervals, atol=1e-12)


@pytest.mark.variation
def test_predictions_scale_with_observations_of_any_magnitude():
    X, _, f = frame()
    here, *there = (GaussianProcessRegressor().fit(X, size * f).predict(X[:3]) / size for size in (1.0, 1e-200, 1e200))
    for each in there:
        np.testing.assert_allclose(each, here, rtol=1e-7)  # the search rounds its steps


def test_numbers_in_a_list_with_strings_remain_numbers():
    X = [[1.0, "a"], [2.0, "b"], [3.0, "a"], [4.0, "b"]] * 3
    fitted = GaussianProcessClassifier().fit(X, ["u", "v", "v", "u"] * 3)
    assert fitted.columns_.X.shape == (12, 4)
    assert fitted.predict([[2.5, "a"]]).shape == (1,)


def test_fit_of_few_rows_has_two_starts(monkeypatch):
    X, y, _ = frame()
    given = []
    monkeypatch.setattr(pm, "fit", lambda **arguments: given.append(arguments) or SimpleNamespace())
    for rows in (40, 39):
        monkeypatch.setattr(estimators, "_AGAIN", rows)
        GaussianProcessClassifier().fit(X, y)
    assert [arguments.get("starts", 1) for arguments in given] == [2, 1]


def test_search_of_many_rows_starts_from_a_fit_of_a_subset(monkeypatch):
    X, y, _ = frame()
    alone = GaussianProcessClassifier(fit_options={"starts": 1}).fit(X, y)
    monkeypatch.setattr(estimators, "_SOME", 20)
    begun = []
    fit = pm.fit
    monkeypatch.setattr(pm, "fit", lambda **given: begun.append(given) or fit(**given))
    both = GaussianProcessClassifier(fit_options={"starts": 1}).fit(X, y)
    some, all_rows = (given.get("model").initial_point() for given in begun)
    assert some.keys() == all_rows.keys()
    assert begun[1]["start"].latent.sizes["row"] == 20
    np.testing.assert_allclose(both.fit_.trace.first.theta, begun[1]["start"].trace.best.theta, rtol=1e-9)
    assert both.fit_.trace.best.log_posterior == pytest.approx(alone.fit_.trace.best.log_posterior, abs=1e-5)
    np.testing.assert_allclose(both.predict_proba(X), alone.predict_proba(X), atol=1e-3)
    own = GaussianProcessClassifier(ratio).fit(X, y)
    assert "start" not in begun[-1]
    assert own.fit_.trace.converged


def test_too_many_numbers_for_dense_fits_use_inducing_inputs():
    """The function of two columns is smooth: 200 inducing inputs suffice for 260 rows."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, size=(260, 2))
    y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=260)
    few, all_rows = (GaussianProcessRegressor("rbf", max_dense_rows=most).fit(X, y) for most in (250, 300))
    assert few.fit_method_ == f"{all_rows.fit_method_}, 200 inducing inputs"
    assert few.fit_.inducing_inputs.shape[1] == 200
    new = rng.uniform(-1.5, 1.5, size=(20, 2))
    (mean, deviation), (exact, exact_deviation) = (each.predict(new, return_std=True) for each in (few, all_rows))
    np.testing.assert_allclose(mean, exact, atol=0.02)
    np.testing.assert_allclose(deviation, exact_deviation, rtol=0.02)


def test_too_many_numbers_for_dense_fits_are_refused():
    X, _, f = frame()
    with pytest.raises(ValueError, match=r"There are 40 rows, and max_dense_rows is 30\."):
        GaussianProcessRegressor(max_dense_rows=30).fit(X, f)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"kernel": "cosine"}, ValueError, "kernel is .*, but must be one of 'rbf'"),
        ({"ard": "yes"}, TypeError, "ard must be True or False"),
        ({"max_dense_rows": 10.5}, TypeError, "max_dense_rows must be a whole number"),
        ({"label_noise": "some"}, TypeError, "label_noise must be a number"),
        ({"label_noise": 1.0}, ValueError, "label_noise must be at least 0 and below 1, but is 1.0"),
        ({"fit_options": ["starts"]}, TypeError, "fit_options must be a dictionary"),
        ({"fit_options": {"method": "laplace"}}, ValueError, "fit_options has 'method', which the estimator passes"),
        ({"kernel": lambda columns: 3}, TypeError, "kernel must return a covariance function of PyMC.* returned 3"),
        ({"missing": "drop"}, ValueError, "missing is .*, but must be 'error' or 'impute'"),
        ({"method": "nested_epp"}, KeyError, "Did you mean 'nested_ep'"),
    ],
)
def test_invalid_parameters_raise_errors_in_fit(wrong, error, message):
    X, y, _ = frame()
    with pytest.raises(error, match=message):
        GaussianProcessClassifier(**wrong).fit(X, y)


def test_interval_levels_must_be_probabilities(two_classes):
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        two_classes.predict_interval(frame()[0], 1.0)
