"""Refused labels of invalid shapes: every likelihood gives the same advice, and the advised labels are fitted.

Missing labels are left out.
"""

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_gpep as gpep
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.reading import StructureError, read_classifier

N = 6
X = np.linspace(0.0, 1.0, N)[:, None]
CUTPOINTS = np.array([-1.0, 1.0])


def stopping(link, f, y):
    """Declare three classes by stopping ratios."""
    stops = link(pt.as_tensor(CUTPOINTS) - f[:, None])
    passed = pt.cumprod(1.0 - stops, axis=1)
    p = pt.concatenate([stops[:, :1], stops[:, 1:] * passed[:, :1], passed[:, 1:]], axis=1)
    pm.Categorical("y", p=p, observed=y)


# Declaration and labels of each likelihood.
DECLARED = {
    "multinomial_probit": (lambda f, y: gpep.MultinomialProbit("y", f.T, observed=y), 3),
    "noisy_multinomial_probit": (lambda f, y: gpep.MultinomialProbit("y", f.T, epsilon=0.1, observed=y), 3),
    "robust_max": (lambda f, y: gpep.RobustMax("y", f.T, epsilon=0.1, observed=y), 3),
    "softmax": (lambda f, y: pm.Categorical("y", logit_p=f.T, observed=y), 3),
    "probit": (lambda f, y: gpep.Probit("y", f, observed=y), 2),
    "logit": (lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y), 2),
    "ordered_probit": (lambda f, y: pm.OrderedProbit("y", eta=f, cutpoints=CUTPOINTS, observed=y), 3),
    "ordered_logit": (lambda f, y: pm.OrderedLogistic("y", eta=f, cutpoints=CUTPOINTS, observed=y), 3),
    "stopping_probit": (lambda f, y: stopping(pm.math.invprobit, f, y), 3),
    "stopping_logit": (lambda f, y: stopping(pm.math.sigmoid, f, y), 3),
    "poisson": (lambda f, y: pm.Poisson("y", mu=pm.math.exp(f), observed=y), 3),
    "complementary_log_log": (lambda f, y: pm.Bernoulli("y", p=1 - pm.math.exp(-pm.math.exp(f)), observed=y), 2),
    "binomial": (lambda f, y: pm.Binomial("y", n=5, logit_p=f, observed=y), 3),
    "binomial_probit": (lambda f, y: pm.Binomial("y", n=5, p=pm.math.invprobit(f), observed=y), 3),
    "binomial_log_log": (lambda f, y: pm.Binomial("y", n=5, p=1 - pm.math.exp(-pm.math.exp(f)), observed=y), 3),
    "negative_binomial": (lambda f, y: pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=2.0, observed=y), 3),
    "normal": (lambda f, y: pm.Normal("y", f, 1.0, observed=y), 3),
    "log_normal": (lambda f, y: pm.LogNormal("y", f, 1.0, observed=y), 3),
    "logistic": (lambda f, y: pm.Logistic("y", f, 1.0, observed=y), 3),
    "asymmetric_laplace": (lambda f, y: pm.Laplace("y", f, 1.0, observed=y), 3),
    "gamma": (lambda f, y: pm.Gamma("y", alpha=2.0, beta=pm.math.exp(-f), observed=y), 3),
    "weibull": (lambda f, y: pm.Exponential("y", scale=pm.math.exp(f), observed=y), 3),
}
VOTES = {"multinomial": (lambda f, y: pm.Multinomial("y", n=1, p=pm.math.softmax(f.T, axis=-1), observed=y), 3)}
POSITIVE = {"log_normal", "gamma", "weibull"}
NUMBERS = {"normal", "logistic", "asymmetric_laplace"}
TRIALS = {"binomial", "binomial_probit", "binomial_log_log"}
CLASSES = DECLARED.keys() - {"poisson", "negative_binomial", *POSITIVE, *NUMBERS, *TRIALS}
every = pytest.mark.parametrize("likelihood", DECLARED)


def labels(likelihood):
    if likelihood in VOTES:
        return np.eye(3, dtype=int)[np.arange(N) % 3]
    return np.arange(N) % DECLARED[likelihood][1] + (likelihood in POSITIVE)


def declared(likelihood, y, X=X):
    """A model of a likelihood, with several functions if it needs them."""
    declare, c = (DECLARED | VOTES)[likelihood]
    one = not next(each for each in LIKELIHOODS if each.name == likelihood).function_axis
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
        warnings.filterwarnings("ignore", "invalid value encountered in cast", RuntimeWarning)
        prior = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3)).prior
        declare(prior("f", X=X) if one else prior("f", X=X, n_outputs=c), y() if callable(y) else y)
    return model


def refusal_of(likelihood, y):
    """Message of the error, at the declaration or at the reading of the model."""
    with pytest.raises(ValueError, match="y") as raised:
        read_classifier(declared(likelihood, y))
    return str(raised.value)


def test_test_cases_cover_every_likelihood():
    assert {*DECLARED, *VOTES} == {likelihood.name for likelihood in LIKELIHOODS}
    for likelihood in (*DECLARED, *VOTES):
        assert read_classifier(declared(likelihood, labels(likelihood))).kind == likelihood


SHAPED = {
    "column": lambda y: y[:, None],
    "frame": lambda y: pd.DataFrame({"y": y}),
    "three axes": lambda y: y[:, None, None],
}


@pytest.mark.parametrize(
    ("likelihood", "shape"),
    [(name, shape) for i, name in enumerate(DECLARED) for j, shape in enumerate(SHAPED) if (i - j) % 3 == 0 or i == 0],
)
def test_labels_with_an_extra_axis_are_refused(likelihood, shape):
    y = SHAPED[shape](labels(likelihood))
    message = refusal_of(likelihood, y)
    assert f"shape {np.shape(y)}" in message
    assert "np.ravel(y)" in message
    assert "argmax" not in message
    assert read_classifier(declared(likelihood, np.ravel(y))).kind == likelihood


@every
def test_labels_in_data_with_an_extra_axis_are_refused(likelihood):
    message = refusal_of(likelihood, lambda: pm.Data("labels", labels(likelihood)[:, None]))
    assert "shape (6, 1)" in message
    assert "np.ravel(y)" in message


@pytest.mark.parametrize(("likelihood", "soft"), [(name, i % 3 == 0) for i, name in enumerate(DECLARED)])
def test_indicators_votes_and_probabilities_get_advice(likelihood, soft):
    y = labels(likelihood)
    rows = np.eye(4, dtype=int)[y, -3:] if not soft else np.full((N, 3), 1 / 3)
    message = refusal_of(likelihood, rows)
    assert "shape (6, 3)" in message
    assert "X=np.repeat(X, 3, axis=0), and np.ravel(y)" in message
    assert ("np.argmax(y, axis=1)" in message) == (likelihood in CLASSES)
    assert ("votes.sum(axis=1)" in message) == (likelihood in CLASSES)
    several = np.stack([y, y, y], axis=1)
    assert refusal_of(likelihood, several) == refusal_of(likelihood, np.eye(4, dtype=int)[y, -3:])
    repeated = declared(likelihood, np.ravel(several), X=np.repeat(X, 3, axis=0))
    assert read_classifier(repeated).n_points == 3 * N


MISSING = {
    "nan": lambda y: np.where(np.isin(np.arange(N), (2, 5)), np.nan, y),
    "masked": lambda y: np.ma.masked_array(y, np.isin(np.arange(N), (2, 5))),
    "Int64": lambda y: pd.Series(y, dtype="Int64").where(~np.isin(np.arange(N), (2, 5))),
    "None": lambda y: [None if i in (2, 5) else int(each) for i, each in enumerate(y)],
}


@pytest.mark.parametrize(
    ("likelihood", "kind"),
    [(name, kind) for i, name in enumerate(DECLARED) for j, kind in enumerate(MISSING) if (i - j) % 4 == 0 or i == 0],
)
def test_rows_with_missing_labels_are_left_out(likelihood, kind):
    y = MISSING[kind](labels(likelihood))
    found = read_classifier(declared(likelihood, y))
    assert found.kind == likelihood
    np.testing.assert_array_equal(found.labels.eval(), labels(likelihood)[[0, 1, 3, 4]])


@every
def test_message_lists_the_first_missing_labels(likelihood):
    assert "missing at 6 of 6 points (position 0; 1; 2; 3; 4; ...)" in refusal_of(likelihood, np.full(N, np.nan))


@pytest.mark.parametrize("likelihood", sorted(DECLARED.keys() - NUMBERS))
def test_labels_of_minus_one_get_advice_on_missing_labels(likelihood):
    y = labels(likelihood)
    y[2] = -1
    message = refusal_of(likelihood, y)
    assert "If -1 marks a missing label, remove these points: X[keep] and y[keep] with keep = y >= 0" in message
    keep = y >= 0
    assert read_classifier(declared(likelihood, y[keep], X=X[keep])).n_points == N - 1


@pytest.mark.parametrize("likelihood", ["logit", "softmax", "ordered_probit", "poisson"])
@pytest.mark.parametrize(("value", "said"), [(0.5, "0.5"), (np.nan, "missing at 1 of 6 points")])
def test_labels_that_pymc_would_round_are_refused(likelihood, value, said):
    model = declared(likelihood, lambda: pm.Data("labels", labels(likelihood).astype(float)))
    changed = labels(likelihood).astype(float)
    changed[3] = value
    with model:
        pm.set_data({"labels": changed})
    with pytest.raises(StructureError, match=said):
        read_classifier(model)


@every
def test_missing_observations_at_new_points_are_refused(likelihood):
    model = next(each for each in LIKELIHOODS if each.name == likelihood)
    model = model.given(np.ones((2, 3)) if likelihood.startswith("ordered") else np.ones((1, 3)))
    functions = 3 if model.function_axis else 1
    with pytest.raises(ValueError, match=r"ynew are missing at 1 of 3 points \(position 1\)"):
        model.check([0, None, 1], functions, 3, "ynew")


@pytest.mark.parametrize("likelihood", ["ordered_probit", "poisson"])
@pytest.mark.parametrize("wrong", [2.5, -7.0])
def test_error_lists_only_invalid_labels(likelihood, wrong):
    model = next(each for each in LIKELIHOODS if each.name == likelihood).given(np.ones((2, 9)))
    with pytest.raises(ValueError, match=rf"but among them are {wrong}\.") as raised:
        model.check([0, 1, 2, wrong, 0, 1, 2, 0, 1], 1, 9)
    assert "marks a missing label" not in str(raised.value)
