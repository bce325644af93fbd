"""Marginalised processes become processes with normal noise: same evidence, predictions and density."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal, norm

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier

N = 12
_rng = np.random.default_rng(2)
X = np.sort(_rng.uniform(0, 3, N))[:, None]
Y = np.sin(2 * X[:, 0]) + 0.2 * _rng.normal(size=N)
AXES = [np.linspace(0, 1, 4)[:, None], np.linspace(0, 1, 3)[:, None]]


def parts():
    cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 2, 1))
    return pm.gp.mean.Constant(pm.Normal("level", 0, 1)), cov, pm.HalfNormal("sd", 1)


def latent(mean, cov, sd):
    pm.Normal("y", pm.gp.Latent(mean_func=mean, cov_func=cov).prior("f", pm.Data("X", X)), sd, observed=Y)


def marginal(mean, cov, sd):
    pm.gp.Marginal(mean_func=mean, cov_func=cov).marginal_likelihood("y", X=pm.Data("X", X), y=Y, sigma=sd)


def written_out(mean, cov, sd):
    pm.MvNormal("y", mean(X), cov(X) + sd**2 * pt.eye(N), observed=Y)


def noise_of_rows(mean, cov, sd):
    pm.gp.Marginal(mean_func=mean, cov_func=cov).marginal_likelihood("y", X=X, y=Y, sigma=sd * (1 + X[:, 0]))


def coloured_noise(mean, cov, sd):
    noise = pm.gp.cov.WhiteNoise(sd) + pm.gp.cov.Matern32(1, ls=0.1)
    pm.gp.Marginal(mean_func=mean, cov_func=cov).marginal_likelihood("y", X=X, y=Y, sigma=noise)


def grid(mean, cov, sd):
    process = pm.gp.MarginalKron(cov_funcs=[cov, pm.gp.cov.ExpQuad(1, ls=0.7)])
    process.marginal_likelihood("y", AXES, Y, sigma=sd)


def declared(declare):
    with pm.Model() as model:
        declare(*parts())
    return model


@pytest.mark.parametrize("declare", [marginal, written_out, noise_of_rows, coloured_noise, grid])
def test_evidence_of_a_marginal_process_equals_the_density_in_pymc(declare):
    model = declared(declare)
    fit = pm.fit(
        method="ep", model=model, hyper="map", hyperparameters=["level"] * (declare is not grid), progressbar=False
    )
    values = {model[name]: fit.hyperparameters[name].values for name in fit.hyperparameters}
    rv = model["y"]
    given = {**values, **{v: v.get_value() for v in model.data_vars}}
    density = pt.as_tensor(pm.logp(rv, model.rvs_to_values[rv])).eval(
        {k: v for k, v in given.items() if k in values}, on_unused_input="ignore"
    )
    assert_allclose(fit.log_evidence, density, atol=1e-3 if declare in (grid, written_out) else 1e-6)


@pytest.mark.parametrize("approx", ["VFE", "FITC", "DTC"])
def test_evidence_with_inducing_points_equals_the_potential_in_pymc(approx):
    with pm.Model() as model:
        _, cov, sd = parts()
        process = pm.gp.MarginalApprox(mean_func=pm.gp.mean.Constant(0.2), cov_func=cov, approx=approx)
        process.marginal_likelihood("y", X=X, Xu=X[::3], y=Y, sigma=sd)
    fit = pm.fit(method="ep", model=model, hyper="map", progressbar=False)
    values = {name: fit.hyperparameters[name].values for name in fit.hyperparameters}
    made = fit.classifier.model

    def value(of, name):
        inputs = [of[each] for each in values]
        return of.compile_fn(of[name], inputs=inputs, point_fn=True, on_unused_input="ignore")(values)

    trace = value(made, "y_trace") if approx == "VFE" else 0.0
    assert_allclose(fit.log_evidence + trace, value(model, "marginalapprox_loglik_y"), rtol=1e-8)


def autoregression():
    rho, sigma = pm.Normal("rho", 0, 1, shape=3), pm.HalfNormal("s", 1)
    pm.AR("y", rho=rho, sigma=sigma, constant=True, init_dist=pm.Normal.dist(0, 2), observed=Y)


def walk():
    start = pm.Normal.dist(0, 2)
    pm.GaussianRandomWalk("y", mu=pm.Normal("mu"), sigma=pm.HalfNormal("s", 1), init_dist=start, observed=Y)


@pytest.mark.parametrize("declare", [autoregression, walk])
def test_regression_of_an_observed_series_has_the_log_density_of_the_series(declare):
    with pm.Model() as model:
        declare()
    found = read_classifier(model, starts=True)
    point = {key: value + 0.2 for key, value in model.initial_point().items()}
    assert_allclose(found.model.compile_logp()(point), model.compile_logp()(point), rtol=1e-12)
    assert {rv.name for rv in found.hyperparameters} == {"s"}


def test_fit_and_predictions_of_a_marginal_process_equal_a_latent_process():
    made = [declared(declare) for declare in (marginal, latent)]
    fits = [pm.fit(method="ep", model=model, hyper="map", progressbar=False) for model in made]
    first, second = (fit.predict(np.array([[0.5], [3.2]])) for fit in fits)
    for name in ("mean", "variance", "y_variance"):
        assert_allclose(first[name], second[name], rtol=1e-6)
    assert_allclose(fits[0].loo().elpd, fits[1].loo().elpd, rtol=1e-7)
    assert "y_process" in fits[0].sample(5).posterior
    again = gpep.from_datatree(fits[0].to_datatree(), declared(marginal))
    assert_allclose(again.latent["mean"], fits[0].latent["mean"], rtol=1e-6)


def test_marginal_model_has_only_the_hyperparameters():
    made = gpep.marginalize(declared(marginal))
    assert {rv.name for rv in made.free_RVs} == {"eta", "ls", "sd"}


ROWS, OUT = 7, 3
DESIGN = _rng.normal(size=(ROWS, 2))
VECTORS = _rng.normal(size=(ROWS, OUT))
ROOTS = np.tril(0.4 * _rng.normal(size=(ROWS, OUT, OUT))) + np.eye(OUT)
COVS = ROOTS @ ROOTS.swapaxes(-1, -2)
OF_ROWS = 0.3 * np.ones((ROWS, ROWS)) + 0.7 * np.eye(ROWS)


def lkj():
    return pm.LKJCholeskyCov("chol", n=OUT, eta=2, sd_dist=pm.Exponential.dist(1.0))[0]


def walk(mu, **kwargs):
    start = pm.MvNormal.dist(np.zeros(OUT), np.eye(OUT))
    return pm.MvGaussianRandomWalk("y", mu=mu, init_dist=start, observed=VECTORS, **kwargs)


# Each case declares an observed variable with means `mu`. The second function returns the covariance of all entries.
NOISES = {
    "learned factor": (
        lambda mu, s: pm.MvNormal("y", mu, chol=lkj(), observed=VECTORS, dims=("row", "out")),
        lambda h: np.kron(np.eye(ROWS), _square(h["chol"])),
    ),
    "known covariance": (
        lambda mu, s: pm.MvNormal("y", mu, cov=s**2 * COVS[0], observed=VECTORS),
        lambda h: np.kron(np.eye(ROWS), h["s"] ** 2 * COVS[0]),
    ),
    "precision": (
        lambda mu, s: pm.MvNormal("y", mu, tau=s * COVS[1], observed=VECTORS),
        lambda h: np.kron(np.eye(ROWS), np.linalg.inv(h["s"] * COVS[1])),
    ),
    "covariances of rows": (
        lambda mu, s: pm.MvNormal("y", mu, cov=COVS, observed=VECTORS),
        lambda h: block_diag(*COVS),
    ),
    "one vector": (
        lambda mu, s: pm.MvNormal("y", mu[:, 0], cov=s**2 * OF_ROWS, observed=VECTORS[:, 0]),
        lambda h: h["s"] ** 2 * OF_ROWS,
    ),
    "matrix": (
        lambda mu, s: pm.MatrixNormal(
            "y", mu, rowcov=pt.as_tensor(OF_ROWS), colcov=s**2 * pt.as_tensor(COVS[2]), observed=VECTORS
        ),
        lambda h: np.kron(OF_ROWS, h["s"] ** 2 * COVS[2]),
    ),
    "matrix of rows": (
        lambda mu, s: pm.MatrixNormal("y", mu, rowcov=pt.eye(ROWS), colchol=lkj(), observed=VECTORS),
        lambda h: np.kron(np.eye(ROWS), _square(h["chol"])),
    ),
    "walk": (
        lambda mu, s: walk(mu[1:], chol=lkj()),
        lambda h: np.kron(np.eye(ROWS - 1), _square(h["chol"])),
    ),
}


def _square(packed):
    root = np.zeros((OUT, OUT))
    root[np.tril_indices(OUT)] = packed
    return root @ root.T


def vectors(noise, design=DESIGN):
    with pm.Model(coords={"out": list("bca")}) as model:
        x = pm.Data("x", design, dims=("row", "input"))
        effects = pm.Normal("b", shape=(2, OUT)), pm.Normal("level")
        NOISES[noise][0](pt.dot(x, effects[0]) + effects[1], pm.HalfNormal("s", 1))
    return model


def dense(noise, fit, design):
    """Means, coefficients of effects and noise covariance at the rows of a design. Fitted rows come first."""
    outputs = 1 if noise == "one vector" else OUT
    whole = np.stack([np.kron(row, np.eye(OUT)) for row in design])[:, :outputs]
    coefficients = np.concatenate([whole, np.ones((*whole.shape[:2], 1))], axis=-1).reshape(-1, 2 * OUT + 1)
    return coefficients, NOISES[noise][1]({name: value.values for name, value in fit.hyperparameters.items()})


@pytest.mark.filterwarnings("ignore:pytensor.tensor.linalg.trace:FutureWarning")  # from PyMC's density
@pytest.mark.parametrize("noise", NOISES)
def test_evidence_with_correlated_noise_is_exact(noise):
    model = vectors(noise)
    found = read_classifier(model, starts=True)
    point = {key: value + 0.2 for key, value in model.initial_point().items()}
    assert_allclose(found.model.compile_logp()(point), model.compile_logp()(point), rtol=1e-12)
    fit = pm.fit(method="ep", model=model, hyper="map", progressbar=False)
    design, y = (DESIGN[1:], np.diff(VECTORS, axis=0)) if noise == "walk" else (DESIGN, VECTORS)
    y = y[:, 0] if noise == "one vector" else y.ravel()
    coefficients, cov = dense(noise, fit, design)
    whole = coefficients @ coefficients.T + cov
    assert_allclose(fit.log_evidence, multivariate_normal(np.zeros(len(y)), whole).logpdf(y), rtol=1e-10)
    gain = np.linalg.solve(whole, coefficients @ coefficients.T).T
    lag = VECTORS[:-1].ravel() if noise == "walk" else 0.0
    assert_allclose(fit.latent["mean"].values.ravel(), gain @ y + lag, rtol=1e-5, atol=1e-6)
    left = coefficients @ coefficients.T - gain @ (coefficients @ coefficients.T)
    assert_allclose(fit.latent["variance"].values.ravel(), left.diagonal(), rtol=1e-5)
    if noise in ("one vector", "matrix"):
        with pytest.raises(ValueError, match=r"The noise of all entries of 'y' is correlated.*loo\(groups=np.arange\("):
            fit.loo()
        return
    own = fit.loo()
    n = len(y) // OUT
    assert own.elpd_i.shape == (n,)
    last, others = slice(len(y) - OUT, len(y)), slice(0, len(y) - OUT)
    moved = whole[last, others] @ np.linalg.inv(whole[others, others])
    expected = multivariate_normal(moved @ y[others], whole[last, last] - moved @ whole[others, last])
    assert_allclose(own.elpd_i.values[-1], expected.logpdf(y[last]), rtol=1e-5)
    now = multivariate_normal((gain @ y)[last], left[last, last] + cov[last, last]).logpdf(y[last])
    assert_allclose(own.p_loo_i.values[-1], now - expected.logpdf(y[last]), rtol=1e-5)


def test_predictions_of_new_vectors_have_one_moment_for_each_entry():
    fit = pm.fit(method="ep", model=vectors("learned factor"), hyper="map", progressbar=False)
    new = np.array([[0.5, -1.0], [2.0, 0.0]])
    found = fit.predict(data={"x": new}, observed=VECTORS[:2])
    assert found["y_mean"].dims == ("row", "out")
    assert list(found["out"].values) == list("bca")
    coefficients, cov = dense("learned factor", fit, np.concatenate([DESIGN, new]))
    n = ROWS * OUT
    seen, ahead = coefficients[:n], coefficients[n:]
    gain = np.linalg.solve(seen @ seen.T + cov, seen @ ahead.T).T
    variance = (ahead @ ahead.T - gain @ seen @ ahead.T).diagonal() + np.tile(cov.diagonal()[:OUT], 2)
    assert_allclose(found["y_mean"].values.ravel(), gain @ VECTORS.ravel(), rtol=1e-9)
    assert_allclose(found["y_variance"].values.ravel(), variance, rtol=1e-9)
    density = norm.logpdf(VECTORS[:2].ravel(), gain @ VECTORS.ravel(), np.sqrt(variance))
    assert_allclose(found["log_density"].values.ravel(), density, rtol=1e-8)


def test_loaded_fit_of_vectors_equals_the_fit():
    fit = pm.fit(method="ep", model=vectors("learned factor"), hyper="map", progressbar=False)
    again = gpep.from_datatree(fit.to_datatree(), vectors("learned factor"))
    assert_allclose(again.latent["variance"], fit.latent["variance"], rtol=1e-8)
    assert fit.sample(4, random_seed=1).observed_data["y"].dims == ("row", "out")


def test_error_for_vectors_with_another_response_names_the_response():
    model = vectors("known covariance")
    with model:
        pm.Poisson("count", pm.math.exp(model["level"] + pm.Normal("w") * DESIGN[:, 0]), observed=np.arange(ROWS))
    fit = pm.fit(method="ep", model=model, hyper="map", progressbar=False)
    with pytest.raises(ValueError, match=r"Leave vectors out whole: loo\(groups=\{'y': 'y_dim_0', ...\}\)"):
        fit.loo()
    own = fit.loo(groups={"y": "y_dim_0", "count": np.arange(ROWS)})
    assert own.elpd_i.shape == (ROWS,)
    assert_allclose(
        fit.predict(data={"x": DESIGN}, response="y")["mean"].values.ravel(), fit.latent["mean"][: ROWS * OUT]
    )


@pytest.mark.parametrize("declare", [lambda: vectors("known covariance"), lambda: declared(marginal)])
def test_error_of_samplers_for_rewritten_models_names_the_marginal_model(declare):
    with declare(), pytest.raises(gpep.StructureError, match=r"Sample gpep.marginalize\(model\) by pm.sample\(\)"):
        pm.sample(step=gpep.samplers.GuidedHMC(), progressbar=False)


def test_error_for_vectors_with_a_constant_mean_names_the_distribution():
    def declare(mean, cov, sd):
        pm.MvNormal("y", np.zeros(N), pm.gp.util.stabilize(cov(X)), observed=Y)

    with pytest.raises(gpep.StructureError, match="MultivariateNormal"):
        read_classifier(declared(declare), starts=True)
