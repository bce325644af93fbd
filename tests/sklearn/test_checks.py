"""scikit-learn's checks of estimators, and its tools."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import PartialDependenceDisplay, permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.utils.estimator_checks import parametrize_with_checks

from pymc_gpep.sklearn import GaussianProcessClassifier, GaussianProcessCounts, GaussianProcessRegressor
from tests.sklearn.data import frame

pytestmark = [
    pytest.mark.extra,
    # Labels of the checks are mostly random, which causes this warning.
    pytest.mark.filterwarnings("ignore:The fit learned next to nothing"),
]


# Without a linear part many fits take half the time. The checks test properties that every estimator has.
@parametrize_with_checks(
    [GaussianProcessClassifier(), GaussianProcessRegressor(linear=False), GaussianProcessCounts(linear=False)]
)
def test_estimators_pass_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = frame()
    return GaussianProcessClassifier(linear=False).fit(X, y)


def test_grid_search_runs_in_several_processes():
    X, y, _ = frame(24)
    grid = {"kernel": ["rbf", "matern52"]}
    search = GridSearchCV(GaussianProcessClassifier(linear=False), grid, cv=2, n_jobs=2, scoring="neg_log_loss")
    search.fit(X, y)
    alone = GridSearchCV(GaussianProcessClassifier(linear=False), grid, cv=2, scoring="neg_log_loss").fit(X, y)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], atol=1e-5)


def test_calibration_and_cross_validation_run():
    X, y, _ = frame()
    calibrated = CalibratedClassifierCV(GaussianProcessClassifier(linear=False), cv=2).fit(X, y)
    assert calibrated.predict_proba(X).shape == (40, 2)
    p = cross_val_predict(GaussianProcessClassifier(linear=False), X, y, cv=2, method="predict_proba")
    assert np.mean(np.array(["ill", "well"])[p.argmax(axis=1)] == y) > 0.6


def test_permutation_importance_finds_the_relevant_columns(fitted):
    X, y, _ = frame()
    importance = permutation_importance(fitted, X, y, n_repeats=5, random_state=0, scoring="neg_log_loss")
    assert (importance.importances_mean > 0).all()


def test_partial_dependence_is_drawn(fitted):
    X, _, _ = frame()
    axes = Figure().subplots(1, 2)
    display = PartialDependenceDisplay.from_estimator(
        fitted, X, ["age", "city"], categorical_features=["city"], ax=axes, grid_resolution=5
    )
    assert len(display.pd_results) == 2
