"""Predictions of a row depend on its own data alone: models that mix rows are refused, and the advice works."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pymc.gp.cov import ExpQuad, WarpedInput

import pymc_gpep as gpep
from tests.sum_models import BINARY

N, SD = 16, 0.5
RNG = np.random.default_rng(8)
X = np.sort(RNG.uniform(0.0, 5.0, N))
Y = np.sin(X) + RNG.normal(scale=SD, size=N)
HOURS = RNG.uniform(0.5, 2.0, N)
COUNTS = RNG.poisson(HOURS)
NEW = np.array([0.3, 2.2, 6.0])


def kernel(a, b):
    return np.exp(-0.5 * (a[:, None] - b) ** 2)


def process(x):
    return pm.gp.Latent(cov_func=ExpQuad(1, ls=1.0)).prior("f", X=x, reparameterize=False)


def normal(mean, method="ep", y=Y):
    pm.Normal("y", mean, SD, observed=y)
    return pm.fit(method=method, progressbar=False)


MIXED = {
    "mean": lambda f: f - f.mean(),
    "first": lambda f: f - f[0],
    "cumulative": lambda f: pt.cumsum(f),
    "reversed": lambda f: f[::-1],
    "lag": lambda f: pt.concatenate([f[:1], f[:-1]]),
}


@pytest.mark.variation(but=["mean", "reversed"])
@pytest.mark.parametrize("mixed", MIXED.values(), ids=MIXED)
def test_process_whose_rows_depend_on_each_other_is_refused(mixed):
    with pm.Model():
        f = process(pm.Data("X", X[:, None]))
        pm.Deterministic("part", mixed(f))
        fit = normal(mixed(f) + pm.Normal("level", 0, 1))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"depend on other rows of 'f'.*select the values of rows by an index"):
            fit.predict(data={"X": NEW[:, None]}, progressbar=False)
    with pytest.raises(ValueError, match=r"combines several points of a|depend on other rows of 'f'"):
        fit.effects("part", data={"X": NEW[:, None]})


def test_process_of_an_array_whose_rows_depend_on_each_other_is_refused():
    with pm.Model():
        f = process(X[:, None])
        fit = normal(f - f.mean() + pm.Normal("level", 0, 1))
    with pytest.raises(ValueError, match=r"depend on other rows of 'f'.*select the values of rows by an index"):
        fit.predict(NEW[:, None], progressbar=False)


def test_advised_index_predicts_a_process_minus_its_mean():
    every = np.concatenate([X, NEW])
    with pm.Model():
        f = process(every[:, None])
        n = N
        fit = normal((f - f[:n].mean())[pm.Data("row", np.arange(n))])
    found = fit.predict(data={"row": np.arange(n, n + len(NEW))}, progressbar=False)
    centred = np.eye(len(every)) - np.repeat([np.arange(len(every)) < n], len(every), axis=0) / n
    k = centred @ kernel(every, every) @ centred.T
    weights = np.linalg.solve(k[:n, :n] + SD**2 * np.eye(n), k[:n, n:]).T
    assert_allclose(found["mean"], weights @ Y, atol=1e-5)
    assert_allclose(found["variance"], np.diag(k[n:, n:] - weights @ k[:n, n:]), atol=1e-5)


@pytest.mark.parametrize("method", ["ep", "laplace"])
def test_advised_constant_predicts_with_a_column_minus_its_mean(method):
    def fitted(column):
        with pm.Model():
            x = pm.Data("x", X)
            return normal(pm.Normal("slope", 0, 1) * column(x), method)

    with pytest.raises(ValueError, match=r"rows of 'x' \(a sum over rows\).* x_train\.mean\(\) in place"):
        fitted(lambda x: x - x.mean()).predict(data={"x": NEW}, progressbar=False)
    found = fitted(lambda x: x - X.mean()).predict(data={"x": NEW}, progressbar=False)
    centred, there = X - X.mean(), NEW - X.mean()
    variance = 1.0 / (1.0 + centred @ centred / SD**2)
    assert_allclose(found["mean"], there * variance * (centred @ Y) / SD**2, atol=1e-8)
    assert_allclose(found["variance"], there**2 * variance, atol=1e-8)


LARGEST = {
    "largest": lambda x: x / pt.max(x),
    "last": lambda x: x - x[-1],
    "place of the largest": lambda x: x + pt.argmax(x),
    "above half of the largest": lambda x: 1.0 * (x > x.max() / 2),
}


@pytest.mark.variation(but=["largest", "last"])
@pytest.mark.parametrize("mixed", LARGEST.values(), ids=LARGEST)
def test_statistics_of_all_rows_are_refused_for_sorted_rows(mixed):
    with pm.Model() as model:
        x = pm.Data("x", X)
        slope = pm.Normal("slope", 0, 1)
        pm.Deterministic("part", slope * mixed(x))
        fit = normal(slope * mixed(x))
    for one in (NEW, NEW[:1]):
        with pytest.raises(ValueError, match="Latent functions at a row depend on other rows of 'x'"):
            fit.predict(data={"x": one}, progressbar=False)
    with pytest.raises(ValueError, match="Values of 'part' at a row depend on other rows of 'x'"):
        fit.effects("part", data={"x": NEW})
    draws = fit.sample(3, random_seed=1)
    with pytest.raises(ValueError, match="Latent functions at a row depend on other rows of 'x'"):
        gpep.predict_draws(draws, data={"x": NEW}, model=model, progressbar=False)


@pytest.mark.parametrize(
    "mixed", [LARGEST["above half of the largest"], MIXED["cumulative"]], ids=["largest", "cumulative sum"]
)
def test_inducing_fit_refuses_effects_that_use_statistics_of_all_rows(mixed):
    with pm.Model() as model:
        x = pm.Data("x", np.sort(X))
        f = process(pm.Data("X", X[:, None]))
        pm.Bernoulli("y", logit_p=f + pm.Normal("slope", 0, 1) * mixed(x), observed=BINARY[:N])
    with pytest.raises(gpep.StructureError, match="must depend on the data of that row"):
        pm.fit(method="sparse_ep", inducing=3, progressbar=False, model=model)


def test_sparse_precision_fit_refuses_to_predict_with_statistics_of_all_rows():
    many = 600
    with pm.Model():
        g, x = pm.Data("g", np.arange(many)), pm.Data("x", np.linspace(0.0, 1.0, many))
        u = pm.Normal("u", 0, 1, shape=many)
        fit = normal(u[g] * x / x.max(), "laplace", np.zeros(many))
    with pytest.raises(ValueError, match=r"rows of 'x' \(a maximum over rows\)"):
        fit.predict(data={"g": [1, 2], "x": [0.5, 0.7]}, progressbar=False)


def exposure(f, hours):
    pm.Poisson("y", pt.exp(f) * hours, observed=COUNTS)


def noise(f, hours):
    pm.Normal("y", f, hours, observed=Y)


def size(f, hours):
    pm.NegativeBinomial("y", mu=pt.exp(f), alpha=hours, observed=COUNTS)


HOURS_MIXED = {
    "mean": lambda h: pt.exp(h - h.mean()),
    "share": lambda h: h / h.sum(),
    "cumulative": lambda h: pt.cumsum(h),
    "lag": lambda h: pt.concatenate([[1.0], h[:-1]]),
    "reversed": lambda h: h[::-1],
}


@pytest.mark.variation(but=["exposure", "noise"])
@pytest.mark.parametrize("likelihood", [exposure, noise, size])
def test_likelihood_parameters_that_depend_on_other_rows_are_refused(likelihood):
    for mixed in HOURS_MIXED.values():
        with pm.Model():
            hours = pm.Data("hours", HOURS)
            likelihood(pm.Normal("level", 0, 1) * np.ones(N), mixed(hours))
            fit = pm.fit(method="laplace", progressbar=False)
        for new in ([1.0], [1.0, 2.0]):
            with pytest.raises(ValueError, match=r"Parameters of the likelihood of 'y' at a row .* of 'hours'"):
                fit.predict(data={"hours": new}, progressbar=False)


def test_prediction_with_centred_exposure_does_not_depend_on_further_rows():
    with pm.Model():
        hours = pm.Data("hours", HOURS)
        exposure(pm.Normal("level", 0, 1), pt.exp(hours - HOURS.mean()))
        fit = pm.fit(method="ep", progressbar=False)
    found = fit.predict(data={"hours": [1.0, 7.0]}, progressbar=False)
    rate = np.exp(found["mean"] + found["variance"] / 2)
    assert_allclose(found["y_mean"], rate * np.exp(np.array([1.0, 7.0]) - HOURS.mean()), rtol=1e-8)
    assert_allclose(fit.predict(data={"hours": [1.0]}, progressbar=False)["y_mean"], found["y_mean"][:1], rtol=1e-12)


@pytest.mark.parametrize("effects", [0.0, 1.0], ids=["alone", "in a sum"])
def test_advised_constant_predicts_a_process_of_inputs_minus_their_mean(effects):
    def fitted(inputs):
        with pm.Model():
            gp = pm.gp.Latent(cov_func=ExpQuad(1, ls=1.0))
            f = gp.prior("f", X=inputs(pm.Data("X", X[:, None])))
            return normal(f + effects * pm.Normal("level", 0, 1) if effects else f), gp

    fit, gp = fitted(lambda x: x - x.mean(0))
    if effects:
        with pytest.raises(ValueError, match=r"Inputs of processes at a row depend on other .*'X'.* X_train\.mean\(\)"):
            fit.predict(gp, data={"X": NEW[:, None]}, progressbar=False)
    with pytest.raises(gpep.StructureError, match="a number that is computed from all points of 'X'"):
        fit.predict(data={"X": NEW[:, None]}, progressbar=False)
    fit, _ = fitted(lambda x: x - X.mean())
    k = kernel(np.concatenate([X, NEW]), np.concatenate([X, NEW])) + effects
    weights = np.linalg.solve(k[:N, :N] + SD**2 * np.eye(N), k[:N, N:]).T
    found = fit.predict(data={"X": NEW[:, None]}, progressbar=False)
    assert_allclose(found["mean"], weights @ Y, atol=1e-4)


def test_custom_covariance_function_is_refused_with_statistics_of_all_inputs():
    def fitted(warp):
        with pm.Model():
            gp = pm.gp.Latent(cov_func=WarpedInput(1, ExpQuad(1, ls=1.0), warp_func=warp))
            gp.prior("f", X=X[:, None])
            return normal(pm.modelcontext(None)["f"]), gp

    fit, gp = fitted(lambda x: x - x.mean(0))
    with pytest.raises(ValueError, match=r"Prior moments at a row depend on other rows of 'X'.* X_train\.mean\(\)"):
        fit.predict(gp, NEW[:, None], progressbar=False)
    fit, gp = fitted(lambda x: x - X.mean())
    found = fit.predict(gp, NEW[:, None], progressbar=False)
    weights = np.linalg.solve(kernel(X, X) + SD**2 * np.eye(N), kernel(X, NEW)).T
    assert_allclose(found["mean"], weights @ Y, atol=1e-4)


Z = RNG.normal(size=(N, 2))
OF_ARRAYS = {
    "share": lambda x, z, b, u, g: (x / x.sum())[:, None] * b,
    "lag": lambda x, z, b, u, g: pt.concatenate([x[:1], x[:-1]])[:, None] * b,
    "cumulative": lambda x, z, b, u, g: pt.cumsum(x)[:, None] * b,
    "share of a column": lambda x, z, b, u, g: z / z.sum(axis=0) * b,
}
APART_IN_ARRAYS = {
    "groups": lambda x, z, b, u, g: x[:, None] * b + u[g],
    "columns": lambda x, z, b, u, g: z * b + x[:, None] * u[g],
    "share in a row, with a coefficient of each column": lambda x, z, b, u, g: z / z.sum(axis=1, keepdims=True) * b,
}


def array_of(mean, vectors):
    with pm.Model():
        g = pm.Data("g", np.arange(N) % 3)
        b, u = pm.Normal("b", 0, 1, shape=2), pm.Normal("u", 0, 1, shape=(3, 2))
        mu = mean(pm.Data("x", X), pm.Data("z", Z), b, u, g)
        if vectors:
            pm.MvNormal("y", mu, np.array([[1.0, 0.4], [0.4, 2.0]]), observed=Z + 1.0)
        else:
            pm.Normal("y", mu, SD, observed=Z + 1.0)
        return pm.fit(method="laplace", hyper="map", progressbar=False)


@pytest.mark.variation(but=["share-False", "lag-True"])
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("name", OF_ARRAYS)
def test_arrays_whose_entries_depend_on_other_positions_are_refused(name, vectors):
    fit = array_of(OF_ARRAYS[name], vectors)
    new = {"z": Z[:3]} if "column" in name else {"x": NEW}
    with pytest.raises(ValueError, match=r"depend on other rows of '[xz]'.*Compute such numbers in NumPy"):
        fit.predict(data=new)


@pytest.mark.variation(but=["groups-False", "columns-True"])
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("name", APART_IN_ARRAYS)
def test_prediction_of_an_entry_does_not_depend_on_further_entries(name, vectors):
    fit = array_of(APART_IN_ARRAYS[name], vectors)
    new = {"x": NEW, "z": Z[4:7], "g": np.array([2, 0, 1])}
    own = {k: v for k, v in new.items() if k in {"groups": "xg", "columns": "xzg"}.get(name, "z")}
    together = fit.predict(data=own)["mean"].values
    alone = [fit.predict(data={k: v[i : i + 1] for k, v in own.items()})["mean"].values[0] for i in range(3)]
    assert_allclose(alone, together, atol=1e-12)
