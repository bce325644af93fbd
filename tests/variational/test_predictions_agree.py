"""`predict(Xnew)` and `predict(gp, Xnew)` agree for all kinds of fits, and copies of fits have equal results."""

import copy
from itertools import cycle

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

import pymc_gpep as gpep

cov = pm.gp.cov
RNG = np.random.default_rng(5)
X = RNG.normal(size=(30, 2))
Y = (X[:, 0] + 0.5 * RNG.normal(size=30) > 0).astype(int)
NEW = RNG.normal(size=(4, 2))
FITS = {
    "ep": {"method": "ep"},
    "sparse_ep": {"method": "sparse_ep", "inducing": 5, "learn_inducing": False},
    "batches": {"n": 3, "method": "sparse_ep", "inducing": 5, "batch_size": 15},
    "ivm": {"method": "ivm", "active": 12},
}
TABLE = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(axis=-1))


class Table(cov.Covariance):
    """Covariance matrix in a table, indexed by row numbers."""

    def full(self, X, Xs=None):
        X, Xs = map(pt.as_tensor_variable, self._slice(X, X if Xs is None else Xs))
        return pt.constant(TABLE)[X[:, 0]][:, Xs[:, 0]]

    def diag(self, X):
        return pt.ones(X.shape[0])


COVARIANCES = {
    "a number that is learned comes first": (lambda c: cov.Constant(c) * cov.ExpQuad(2, ls=1.0), X, NEW),
    "noise that is learned comes first": (lambda c: cov.WhiteNoise(c) + cov.ExpQuad(2, ls=1.0), X, NEW),
    "other columns": (lambda c: c * cov.ExpQuad(2, ls=[1.0, 3.0], active_dims=[1, 0]), X, NEW),
    "integers": (lambda c: c * cov.ExpQuad(2, ls=2.0), (2 * X).astype(np.int8), 2 * NEW),
    "single precision": (lambda c: c * cov.ExpQuad(2, ls=1.0), X.astype(np.float32), NEW),
    "a table": (lambda c: c * Table(1), np.arange(30), np.arange(4)[:, None]),
}  # fmt: skip


def model_of(covariance, x):
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=covariance(pm.HalfNormal("c", 2.0)))
        gpep.Probit("y", gp.prior("f", X=x.reshape(30, -1)), observed=Y)
    return model, gp


@pytest.mark.variation(but=["other columns-batches", "a table-sparse_ep"])
@pytest.mark.parametrize(("name", "kind"), list(zip(COVARIANCES, cycle(FITS), strict=False)))
def test_predictions_with_and_without_gp_agree(name, kind):
    covariance, x, new = COVARIANCES[name]
    model, gp = model_of(covariance, x)
    with model:
        fit = pm.fit(**FITS[kind], random_seed=1, progressbar=False)
    with_gp, without = fit.predict(gp, new), fit.predict(new)
    for name in ("p", "mean", "variance"):
        assert_allclose(without[name], with_gp[name], rtol=1e-6, atol=1e-9)
        assert_allclose(fit.predict(new)[name], without[name], rtol=1e-12)
        assert_allclose(copy.deepcopy(fit).predict(new)[name], without[name], rtol=1e-12)


SMALL = np.array([[0.0, 0.0], [0.3, 1.0], [-0.5, 0.2]])
SIGNS = np.array([1, -1, 1])
FORMS = {
    "permuted": (cov.ExpQuad(2, ls=[1.0, 3.0], active_dims=[1, 0]), lambda x: x[:, ::-1] / [1.0, 3.0]),
    "one of two": (cov.ExpQuad(2, ls=0.7, active_dims=[1]), lambda x: x[:, 1:] / 0.7),
    "each in a factor": (
        cov.ExpQuad(2, ls=0.7, active_dims=[1]) * cov.ExpQuad(2, ls=2.0, active_dims=[0]),
        lambda x: x / [2.0, 0.7],
    ),
}


@pytest.mark.variation(but=["permuted-True"])
@pytest.mark.filterwarnings("ignore:Only . column:UserWarning", "ignore:The fit learned next to nothing:UserWarning")
@pytest.mark.parametrize(("form", "inner"), [("permuted", True), ("one of two", False), ("each in a factor", True)])
def test_probabilities_are_ratios_of_orthants(form, inner):
    """The probability of a fourth sign given three signs is a ratio of orthant probabilities.

    EP's error is below 0.01. Wrong columns would cause larger errors.

    With `inner` the model scales its inputs.
    """
    covariance, scaled = FORMS[form]
    given = SMALL * 10 if inner else SMALL
    new = np.array([[1.5, 0.4]])
    with pm.Model():
        x = pm.Data("X", given) / 10 if inner else given
        f = pm.gp.Latent(cov_func=3 * covariance).prior("f", X=x)
        gpep.Probit("y", f, observed=(SIGNS > 0).astype(int))
        found = pm.fit(method="ep", progressbar=False).predict(new * 10 if inner else new)["p"].values[0, 1]
    points = scaled(np.vstack([SMALL, new]))
    k = 3 * np.exp(-0.5 * ((points[:, None] - points) ** 2).sum(axis=-1)) + np.eye(4)
    signs = np.append(SIGNS, 1)
    right = _orthant(k * np.outer(signs, signs)) / _orthant((k * np.outer(signs, signs))[:3, :3])
    assert_allclose(found, right, atol=4e-3)


def _orthant(k):
    """Probability that normal variables with covariance k are all positive."""

    return multivariate_normal.cdf(np.zeros(len(k)), cov=k, abseps=1e-7, maxpts=10**6, rng=np.random.default_rng(0))


def test_deep_copy_of_a_fit_has_equal_results():
    model, gp = model_of(lambda c: c * cov.ExpQuad(2, ls=1.0), X)
    with model:
        fit = pm.fit(method="ep", progressbar=False, random_seed=1)
    other = copy.deepcopy(fit)
    assert_allclose(other.predict(gp, NEW)["p"], fit.predict(gp, NEW)["p"])
    for draws in (3, 5):
        first, second = (each.sample(draws, random_seed=2).posterior for each in (fit, other))
        assert_allclose(second["f"], first["f"])
        assert_allclose(second["c"], first["c"])
    assert_allclose(other.log_evidence, fit.log_evidence)
    assert_allclose(other.loo().elpd, fit.loo().elpd)
    assert str(other) == str(fit)
    assert list(other.hist) == list(fit.hist)


def test_covariance_matrix_as_an_array_is_fitted_and_refused_at_new_inputs():
    with pm.Model() as model:
        f = pm.MvNormal("f", mu=np.zeros(30), cov=TABLE + 1e-6 * np.eye(30))
        gpep.Probit("y", f, observed=Y)
        array = pm.fit(method="ep", progressbar=False)
        refused = pytest.raises(gpep.StructureError, match=r"shape \(30, 30\).*covariance function of inputs")
        for arguments in ((NEW,), (None, NEW)):
            with refused:
                array.predict(*arguments)
        for method in ("sparse_ep", "ivm"):
            with refused:
                pm.fit(method=method, progressbar=False)
    model, _ = model_of(lambda c: Table(1), np.arange(30))
    with model:
        table = pm.fit(method="ep", progressbar=False, start={"c": 1.0})
    assert_allclose(array.log_evidence, table.log_evidence, rtol=1e-6)
