"""Sums of independent outputs of one process, against dense algebra."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

N, NOISE = 12, 0.5
RNG = np.random.default_rng(0)
X = np.linspace(0.0, 3.0, N)[:, None]
GROUP, Y = RNG.integers(0, 3, N), RNG.normal(size=N)
BACK = np.arange(N)[::-1]


def kernel(a, b):
    return np.exp(-0.5 * (a - b.T) ** 2)


def alike(a, b):
    return a[:, None] == b


# linear predictor of the rows, and its covariance
SUMS = {
    "own place": (lambda f, g: f[g, np.arange(N)], kernel(X, X) * alike(GROUP, GROUP)),
    "another place": (lambda f, g: f[g, BACK], kernel(X, X)[BACK][:, BACK] * alike(GROUP, GROUP)),
    "times a covariate": (
        lambda f, g: (1.0 + X[:, 0]) * f[g, np.arange(N)],
        kernel(X, X) * alike(GROUP, GROUP) * np.outer(1.0 + X[:, 0], 1.0 + X[:, 0]),
    ),
    "first output": (lambda f, g: f[0], kernel(X, X)),
    "sum of two outputs": (lambda f, g: f[0] + f[1], 2.0 * kernel(X, X)),
}


def fitted(argument):
    with pm.Model() as model:
        group = pm.Data("group", GROUP)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=pm.Data("x", X), n_outputs=3, jitter=1e-10)
        pm.Normal("y", argument(f, group), NOISE, observed=Y)
    return pm.fit(model=model, method="ep", progressbar=False)


@pytest.mark.filterwarnings("ignore:The fit learned next to nothing")
@pytest.mark.parametrize("name", SUMS)
def test_evidence_of_outputs_equals_evidence_of_independent_functions(name):
    argument, covariance = SUMS[name]
    exact = multivariate_normal(cov=covariance + NOISE**2 * np.eye(N)).logpdf(Y)
    assert fitted(argument).log_evidence == pytest.approx(exact, abs=1e-6)


@pytest.mark.filterwarnings("ignore:The fit learned next to nothing")
def test_new_rows_depend_on_rows_of_their_own_output():
    with pm.Model():
        group, place = pm.Data("group", GROUP), pm.Data("place", BACK)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X, n_outputs=3, jitter=1e-10)
        pm.Normal("y", f[group, place], NOISE, observed=Y)
        fit = pm.fit(method="ep", progressbar=False)
    new_group, new_place = np.array([2, 0, 1]), np.array([3, 7, 7])
    found = fit.predict(data={"group": new_group, "place": new_place}, progressbar=False)
    whole = kernel(X, X)
    covariance = whole[BACK][:, BACK] * alike(GROUP, GROUP) + NOISE**2 * np.eye(N)
    cross = whole[new_place][:, BACK] * alike(new_group, GROUP)
    assert_allclose(found["mean"].values.ravel(), cross @ np.linalg.solve(covariance, Y), atol=1e-6)
    left = whole[new_place][:, new_place] * alike(new_group, new_group) - cross @ np.linalg.solve(covariance, cross.T)
    assert_allclose(found["variance"].values.ravel(), left.diagonal(), atol=1e-6)
