"""The mode of a softmax with linear effects equals scikit-learn's penalised logistic regression."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_iris, load_wine
from sklearn.linear_model import LogisticRegression

import pymc_gpep  # noqa: F401  registers the methods of pm.fit


@pytest.mark.parametrize(("load", "sd"), [(load_iris, 1.0), (load_wine, 0.5)])
def test_mode_of_linear_classes_matches_scikit_learn(load, sd):
    x, y = load(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    with pm.Model():
        b = pm.Normal("b", 0, sd, shape=(x.shape[1], 3))
        pm.Categorical("y", logit_p=x @ b, observed=y)
        fit = pm.fit(method="laplace", progressbar=False)
    clf = LogisticRegression(C=sd**2, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    expected = clf.fit(x, y).coef_.T
    assert_allclose(fit.effects("b")["b"].sel(moment="mean"), expected, atol=1e-6)
    assert_allclose(fit.latent["mean"], x @ expected, atol=1e-5)
    assert np.isfinite(fit.log_evidence)
