"""The warning about fits that learned nothing, with its reason, and no warning for informative fits."""

import warnings

import numpy as np
import pymc as pm
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

import pymc_gpep as gpep
from tests import models
from tests.reference.data import iris, wine


def fit(X, y, ls, eta, data=False):
    """Warnings of a fit. `ls` and `eta` declare hyperparameters, or are constants."""
    with pm.Model() as model:
        scale = ls("ls") if callable(ls) else ls
        magnitude = eta("eta") if callable(eta) else eta
        gp = pm.gp.Latent(cov_func=magnitude**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=scale))
        f = gp.prior("f", X=pm.Data("petals", X) if data else X, n_outputs=max(2, y.max() + 1))
        gpep.MultinomialProbit("y", f.T, observed=y)
    with model, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pm.fit(method="nested_ep", progressbar=False)
    return [str(each.message) for each in caught]


def inverse_gamma(name):
    return pm.InverseGamma(name, 5, 5)


def one_each(name):
    return pm.InverseGamma(name, 5, 5, shape=2)


def thirteen(name):
    return pm.InverseGamma(name, 5, 5, shape=13)


def half_normal(name):
    return pm.HalfNormal(name, 5)


def wide(name):
    return pm.LogNormal(name, 1.5, 1.5)


def tiny(name):
    return pm.HalfNormal(name, 0.02)


def long(name):
    return pm.LogNormal(name, np.log(1e4), 0.1)


def short(name):
    return pm.LogNormal(name, np.log(1e-4), 0.1)


UNITS = 1e4
CASES = {
    "inputs of large numbers": (
        UNITS, inverse_gamma, half_normal, True,
        ["learned next to nothing", "median prior correlation of 0.00", "'ls' is far below the distances",
         "Standardise the inputs ('petals')", "prior of 'ls'"],
    ),
    "the same, a length scale for each": (
        UNITS, one_each, half_normal, False, ["'ls' is far below", "Standardise the inputs, or allow longer"],
    ),
    "inputs of small numbers": (
        1 / UNITS, inverse_gamma, half_normal, False, ["nearly constant: 'ls' is far above the range", "shorter"],
    ),
    "short length scales": (1, short, 3.0, False, ["'ls' is far below"]),
    "long length scales": (1, long, 3.0, False, ["'ls' is far above"]),
    "fixed length scales": (1, 1e-4, 3.0, False, ["the length scale is far below"]),
    "a small magnitude": (1, inverse_gamma, tiny, False, ["labels are mostly noise", "the prior of 'eta'"]),
}  # fmt: skip


def petals():
    X, y = models.data()
    return X + 0.01 * np.random.default_rng(0).standard_normal(X.shape), y  # inputs in millimetres


def some(X, y, count=60):
    """A subset of the points, standardised."""
    chosen = np.random.default_rng(0).permutation(len(y))[:count]
    X = X[chosen][:, X[chosen].std(0) > 0]
    return (X - X.mean(0)) / X.std(0), y[chosen]


def some_wine():
    return some(*wine())


WITH_WINE = ("the same, a length scale for each", "long length scales", "a small magnitude")


@pytest.mark.variation(but=["a small magnitude-some_wine", "long length scales-petals", "a small magnitude-petals"])
@pytest.mark.parametrize(
    ("case", "data"), [*((case, petals) for case in CASES), *((case, some_wine) for case in WITH_WINE)]
)
def test_reason_for_a_fit_at_the_prior_is_named(case, data):
    units, ls, eta, named, expected = CASES[case]
    if data is some_wine and ls is one_each:  # one for each of thirteen columns
        ls = thirteen
    X, y = data()
    messages = fit(units * X, y, ls, eta, named)
    assert len(messages) == 1
    for part in expected:
        assert part in messages[0]


@pytest.mark.parametrize("seed", range(2))
def test_random_labels_cause_a_warning(seed):
    X, y = models.data(75)
    (message,) = fit(X, np.random.default_rng(seed).permutation(y), inverse_gamma, half_normal)
    assert "learned next to nothing" in message
    assert "the inputs do not predict the labels" in message


def test_informative_fits_cause_no_warning():
    X, y = models.data()
    assert fit(X, y, inverse_gamma, half_normal) == []
    assert fit(X[:, :1], y, inverse_gamma, 1.0) == []
    few = slice(None, None, 5)
    assert fit(X[few], y[few], inverse_gamma, half_normal) == []


@pytest.mark.parametrize(
    ("load", "options"), [(load_wine, {}), (load_breast_cancer, {}), (load_digits, {"n_class": 5})]
)
def test_informative_fits_of_other_data_cause_no_warning(load, options):
    X, y = some(*load(return_X_y=True, **options))
    assert fit(X, y, wide, half_normal) == []
    few = slice(None, 25)
    assert fit(X[few], y[few], wide, half_normal) == []


def test_learning_from_duplicates_only_causes_a_warning():
    """Iris contains three flowers twice. Without standardising, only these duplicates are informative."""
    X, y = iris()
    (message,) = fit(1e4 * X, y, inverse_gamma, half_normal)
    assert "'ls' is far below" in message


def test_labels_of_one_class_cause_a_warning():
    X, y = models.data()
    (message,) = fit(X, np.zeros_like(y), inverse_gamma, half_normal)
    assert "All 30 labels of 'y' are of the class 0" in message


def test_half_wrong_labels_cause_no_warning():
    """Weak signals do not cause a warning."""
    X, y = models.data(150)
    rng = np.random.default_rng(0)
    mixed = np.where(rng.random(y.size) < 0.5, rng.permutation(y), y)
    assert fit(X, mixed, inverse_gamma, half_normal) == []


def test_loose_bound_does_not_cause_a_warning():
    """The factorial bound is below the log evidence of class frequencies here, and the probabilities are good."""
    X, y = models.data()
    with pm.Model():
        gp = pm.gp.Latent(cov_func=25 * pm.gp.cov.ExpQuad(2, ls=2.0))
        gpep.Probit("y", gp.prior("f", X=X), observed=y > 0)
        loose = pm.fit(method="fv", progressbar=False)
    assert loose.log_evidence < 10 * np.log(1 / 3) + 20 * np.log(2 / 3)
    assert (loose.predict(gp, X)["p"].values.argmax(axis=1) == (y > 0)).all()
