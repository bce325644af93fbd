"""Fits of sums of effects, against dense formulas in NumPy.

Latent values are f = A v with effects v = μ + B z and standard normals z. Given the sites exp(νᵀf − ½ fᵀΠf) of a fit,
the posterior of v is Gaussian, and the precision of z is I + BᵀAᵀΠAB.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from pytensor.graph.replace import graph_replace

import pymc_gpep as gpep
from pymc_gpep.approximations import EP
from pymc_gpep.approximations.methods import approximator
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import StructureError, read_classifier
from tests.sum_models import BINARY, COUNTS, GROUP, HOURS, MODELS, PLACES, SUMS, XY, J, N, X, made

pytestmark = pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")


def fitted(model, method="ep", hyper="map", **kwargs):
    with model:
        return pm.fit(method=method, hyper=hyper, progressbar=False, random_seed=1, **kwargs)


@pytest.fixture(scope="module")
def intercepts():
    model = MODELS["varying_intercepts"]()
    return model, fitted(model)


class Dense:
    """The posterior of `varying_intercepts`: v = (level, gamma, alpha, beta) = B z, and f = A v."""

    def __init__(self, fit):
        sigma = fit.hyperparameters["sigma"].item()
        self.b = np.zeros((J + 3, J + 3))
        self.b[0, 0], self.b[1, 1], self.b[-1, -1] = 2.0, 1.0, 1.0
        self.b[2:-1, 0], self.b[2:-1, 1] = 2.0, PLACES[:, 0]
        self.b[2:-1, 2:-1] = sigma * np.eye(J)
        posterior = fit.solution.posterior
        self.pi, self.nu = (np.ravel(each) for each in precision_and_force(posterior))
        slopes = self.rows(GROUP, X) @ self.b
        inner = np.linalg.inv(np.eye(J + 3) + slopes.T @ (self.pi[:, None] * slopes))
        self.mean = self.b @ inner @ slopes.T @ self.nu
        self.cov = self.b @ inner @ self.b.T

    def rows(self, where, floor):
        a = np.zeros((len(where), J + 3))
        a[np.arange(len(where)), 2 + np.asarray(where)] = 1.0
        a[:, -1] = floor
        return a

    def by_name(self, values):
        return {"level": values[0], "gamma": values[1], "alpha": values[2:-1], "beta": values[-1]}


def precision_and_force(posterior):
    """Site precisions π and site locations ν, from marginals and weights b = ν − Π f̂."""
    mean, _ = posterior.marginals()
    return posterior.precision, posterior.weights + posterior.precision * mean


def test_moments_match_the_dense_formula(intercepts):
    _, fit = intercepts
    dense = Dense(fit)
    means, sds = dense.by_name(dense.mean), dense.by_name(np.sqrt(dense.cov.diagonal()))
    effects, table = fit.effects(), fit.summary(list(means))
    assert set(effects.data_vars) == set(means)
    for name, mean in means.items():
        assert_allclose(fit.mean_data[name], mean, atol=1e-8)
        assert_allclose(fit.std_data[name], sds[name], atol=1e-8)
        # Marginals far from normal have the moments of the summary.
        rows = [label for label in table.index if label.split("[")[0] == name]
        marginal = table.loc[rows, ["mean", "sd"]].to_numpy().T.reshape(2, *np.shape(mean))
        gaussian = np.array([mean, sds[name]])
        same = [np.isclose(effects[name], own, rtol=0.0, atol=1e-8).all(axis=0) for own in (gaussian, marginal)]
        assert np.logical_or(*same).all()
        assert_allclose(effects[name], gaussian, atol=0.05 * np.max(sds[name]))
    assert effects["alpha"].dims == ("moment", "group")
    assert list(effects.coords["group"]) == list(range(J))


def test_contrasts_match_the_dense_formula(intercepts):
    _, fit = intercepts
    dense = Dense(fit)
    found = fit.contrast({"pair": {"alpha": {1: 1, 4: -1}}, "at one": {"level": 1.0, "beta": 2.0}})
    weights = np.zeros((2, J + 3))
    weights[0, [3, 6]] = 1.0, -1.0
    weights[1, [0, -1]] = 1.0, 2.0
    mean, cov = weights @ dense.mean, weights @ dense.cov @ weights.T
    sd = np.sqrt(cov.diagonal())
    assert found["mean"][0] == pytest.approx(mean[0], abs=1e-8)
    assert found["sd"][0] == pytest.approx(sd[0], abs=1e-8)
    assert_allclose(found["cov"] / np.outer(found["sd"], found["sd"]), cov / np.outer(sd, sd), atol=1e-8)
    # The marginal of the second contrast is far from normal.
    assert found["mean"][1] == pytest.approx(mean[1], abs=0.02 * sd[1])
    assert found["sd"][1] == pytest.approx(sd[1], rel=0.05)
    assert_allclose(found["sd"] ** 2, found["cov"].values.diagonal(), atol=1e-12)
    with pytest.raises(ValueError, match="'alpha' has no entry 99"):
        fit.contrast({"pair": {"alpha": {99: 1}}})
    with pytest.raises(ValueError, match=r"Weights of 'alpha' must have the shape \(8,\)"):
        fit.contrast({"pair": {"alpha": [1.0]}})


@pytest.mark.parametrize(
    ("name", "message"),
    [("sigma", "is a hyperparameter"), ("nothing", "no variable 'nothing'"), ("y", "'y'")],
)
def test_unknown_effects_are_refused(name, message, intercepts):
    with pytest.raises(ValueError, match=message):
        intercepts[1].effects(name)


def test_predictions_match_the_dense_formula(intercepts):
    """The last row is in a group with few rows. The first row is a new combination of levels."""
    _, fit = intercepts
    dense = Dense(fit)
    where, floor = np.array([3, 7, 0]), np.array([0.0, 1.0, -5.0])
    found = fit.predict(data={"where": where, "floor": floor})
    rows = dense.rows(where, floor)
    mean, variance = rows @ dense.mean, (rows @ dense.cov @ rows.T).diagonal()
    assert_allclose(found["mean"], mean, atol=1e-8)
    assert_allclose(found["variance"], variance, atol=1e-8)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    f = mean[:, None] + np.sqrt(variance)[:, None] * nodes
    assert_allclose(found["p"][:, 1], (1 / (1 + np.exp(-f))) @ weights / weights.sum(), atol=1e-6)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"where": [3, 7, 1], "floor": [0.0, 1.0]}, ValueError),
        ({"where": [J], "floor": [0.0]}, (ValueError, IndexError)),
        ({"where": [0.5], "floor": [0.0]}, (ValueError, TypeError)),
        ({"where": [0], "floor": [np.nan]}, ValueError),
        ({"nothing": [0]}, (ValueError, TypeError)),
        ({"where": [0], "floor": [0.0], "nothing": [0]}, ValueError),
    ],
    ids=["unequal lengths", "unknown group", "fraction", "missing data", "unknown data", "additional data"],
)
def test_invalid_data_of_predictions_are_refused(data, error, intercepts):
    with pytest.raises(error):
        intercepts[1].predict(data=data)


def test_draws_have_the_moments_of_the_fit(intercepts):
    model, fit = intercepts
    draws = fit.sample(4000, random_seed=3)["posterior"]
    dense = Dense(fit)
    sds = dense.by_name(np.sqrt(dense.cov.diagonal()))
    for name, mean in dense.by_name(dense.mean).items():
        values = draws[name].values.reshape(-1, *np.shape(mean))
        assert_allclose(values.mean(axis=0), mean, atol=5 * np.max(sds[name]) / np.sqrt(len(values)))
        assert_allclose(values.std(axis=0), sds[name], rtol=0.08)
    assert draws["alpha"].dims[2:] == ("group",)
    assert set(draws.data_vars) == {rv.name for rv in model.free_RVs}


def test_saved_fit_equals_the_fit(intercepts, tmp_path):
    model, fit = intercepts
    path = tmp_path / "fit.nc"
    fit.to_datatree().to_netcdf(path, engine="h5netcdf")
    with xr.open_datatree(path, engine="h5netcdf") as stored:
        again = gpep.from_datatree(stored.load(), model)
    assert again.log_evidence == pytest.approx(fit.log_evidence, abs=1e-9)
    assert_allclose(again.effects()["alpha"], fit.effects()["alpha"], atol=1e-7)


def test_importance_sampling_confirms_the_fit(intercepts):
    found = intercepts[1].importance(400, random_seed=1)
    assert found.pareto_k < 0.7
    assert found.log_evidence == pytest.approx(intercepts[1].log_evidence, abs=0.1)


def test_left_out_rows_match_fits_without_these_rows(intercepts):
    """Fits with and without the rows have equal hyperparameters, since sigma is given."""
    sigma = intercepts[1].hyperparameters["sigma"].item()

    def model_of(keep):
        with pm.Model() as model:
            level, gamma, beta = pm.Normal("level", 0, 2), pm.Normal("gamma", 0, 1), pm.Normal("beta", 0, 1)
            alpha = pm.Normal("alpha", level + gamma * PLACES[:, 0], sigma, shape=J)
            where, floor = pm.Data("where", GROUP[keep]), pm.Data("floor", X[keep])
            pm.Bernoulli("y", logit_p=alpha[where] + beta * floor, observed=BINARY[keep])
        return model

    loo = intercepts[1].loo()
    for i in (2, 11, 20):
        fit = fitted(model_of(np.arange(N) != i))
        p = fit.predict(data={"where": GROUP[[i]], "floor": X[[i]]})["p"].values[0, BINARY[i]]
        assert loo.elpd_i.values[i] == pytest.approx(np.log(p), abs=0.03)


# ---- one model in many forms ----


def evidence(declare, **values):
    """EP's log evidence at hyperparameters on their natural scale."""
    classifier = read_classifier(made(declare), means=True)
    given = {rv: pt.constant(values[rv.name]) for rv in classifier.hyperparameters}
    moments = graph_replace([classifier.prior.covariances(), classifier.prior.mean()], given, strict=False)
    k, mean = (each.eval() for each in moments)
    likelihood = classifier.likelihood_model.given(
        graph_replace([classifier.parameters], given, strict=False)[0].eval()
    )
    solver = approximator("ep", likelihood, {"tolerance": 1e-11})
    found = solver.solve(k, mean, classifier.labels.eval().astype(np.int64), likelihood=likelihood)
    assert found.convergence.converged
    return found.evidence


CHOL = np.array([[0.8, 0.0], [0.3, 0.5]])


def slopes_by(form):
    def declare():
        if form == "chol":
            u = pm.MvNormal("u", np.zeros(2), chol=CHOL, shape=(J, 2))
        elif form == "cov":
            u = pm.MvNormal("u", np.zeros(2), cov=CHOL @ CHOL.T, shape=(J, 2))
        elif form == "tau":
            u = pm.MvNormal("u", np.zeros(2), tau=np.linalg.inv(CHOL @ CHOL.T), shape=(J, 2))
        else:
            u = pm.Normal("z", shape=(J, 2)) @ CHOL.T
        pm.Poisson("y", mu=HOURS * pm.math.exp(u[GROUP, 0] + u[GROUP, 1] * X), observed=COUNTS)

    return declare


def processes_by(form):
    def declare():
        cov = pm.gp.cov.ExpQuad(2, ls=1.3)
        if form == "added":
            f = pm.gp.Latent(cov_func=cov).prior("f", X=XY) + XY @ pm.Normal("b", 0, 0.7, shape=2)
        elif form == "two processes":
            linear = pm.gp.Latent(cov_func=0.7**2 * pm.gp.cov.Linear(2, c=np.zeros(2)))
            f = pm.gp.Latent(cov_func=cov).prior("f", X=XY, jitter=1e-9) + linear.prior("g", X=XY, jitter=1e-9)
        elif form == "in the mean":
            mean = pm.gp.mean.Linear(coeffs=pm.Normal("b", 0, 0.7, shape=2))
            f = pm.gp.Latent(mean_func=mean, cov_func=cov).prior("f", X=XY)
        else:
            cov = cov + 0.7**2 * pm.gp.cov.Linear(2, c=np.zeros(2))
            f = pm.gp.Latent(cov_func=cov).prior("f", X=XY)
        pm.Bernoulli("y", logit_p=f, observed=BINARY)

    return declare


def areas_by(form):
    def declare():
        sigma = 0.7
        phi, theta = pm.ICAR("phi", W=path()), pm.Normal("theta", shape=J)
        if form == "inside":
            eta = (sigma * (0.6 * theta + 0.8 * phi))[GROUP]
        else:
            eta = sigma * 0.6 * theta[GROUP] + sigma * 0.8 * phi[GROUP]
        pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS)

    return declare


class Known(pm.gp.mean.Mean):
    """A mean with given values at the rows."""

    def __call__(self, X):
        return pt.as_tensor(HOURS)


def offset_by(form):
    def declare():
        mean = Known() if form == "in the mean" else pm.gp.mean.Zero()
        gp = pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.ExpQuad(2, ls=1.3))
        f = gp.prior("f", X=XY, reparameterize=form != "centred")
        eta = f if form == "in the mean" else f + HOURS
        pm.Poisson("y", mu=pm.math.exp(eta) if form != "factor" else np.exp(HOURS) * pm.math.exp(f), observed=COUNTS)

    return declare


def process_by(form):
    """A process at places. Rows select its values."""

    def declare():
        cov = 0.8**2 * pm.gp.cov.Matern32(1, ls=0.5)
        k = cov(PLACES) + 1e-6 * np.eye(J)
        if form == "MvNormal":
            f = pm.MvNormal("f", np.zeros(J), cov=k)
        elif form == "Cholesky":
            f = pt.linalg.cholesky(k) @ pm.Normal("z", shape=J)
        else:
            f = pm.gp.Latent(cov_func=cov).prior("f", X=PLACES, reparameterize=form == "rotated")
        pm.Bernoulli("y", logit_p=f[GROUP] + X * pm.Normal("b"), observed=BINARY)

    return declare


def walk_by(form):
    def declare():
        s = 0.4
        if form == "walk":
            walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=J)
        else:
            d = np.diff(np.eye(J), axis=0)
            precision = d.T @ d / s**2
            precision[0, 0] += 1.0
            walk = pm.MvNormal("walk", np.zeros(J), **precision_or_covariance(form, precision))
        pm.Poisson("y", mu=pm.math.exp(walk[GROUP]), observed=COUNTS)

    return declare


def precision_or_covariance(form, precision):
    return {"tau": precision} if form == "tau" else {"cov": np.linalg.inv(precision)}


def autoregression_by(form):
    def declare():
        rho, s = 0.6, 0.5
        if form == "AR":
            u = pm.AR("u", [rho], sigma=s, init_dist=pm.Normal.dist(0, 1), steps=J - 1)
        else:
            inverse = np.linalg.inv(np.eye(J) - rho * np.eye(J, k=-1))
            u = pt.as_tensor(inverse) @ (np.r_[1.0, np.full(J - 1, s)] * pm.Normal("z", shape=J))
        pm.Poisson("y", mu=pm.math.exp(u[GROUP]), observed=COUNTS)

    return declare


def hierarchy_by(form):
    def declare():
        if form == "one covariance":
            cov = 4.0 + np.outer(PLACES, PLACES) + 0.6**2 * np.eye(J)
            u = pm.MvNormal("u", np.ones(J), cov=cov)[GROUP]
        else:
            mean = pm.Normal("level", 1.0, 2) + pm.Normal("gamma", 0, 1) * PLACES[:, 0]
            outside = form == "outside"
            u = pm.Normal("u", 0 if outside else mean, 0.6, shape=J)[GROUP] + (mean[GROUP] if outside else 0)
        pm.Bernoulli("y", logit_p=u, observed=BINARY)

    return declare


def zero_sum_by(form):
    def declare():
        centring = np.eye(J) - 1.0 / J
        if form == "ZeroSumNormal":
            u = pm.ZeroSumNormal("u", 0.8, shape=J)
        else:
            u = pt.as_tensor(0.8 * centring) @ pm.Normal("z", shape=J)
        pm.Bernoulli("y", logit_p=pm.Normal("level") + u[GROUP], observed=BINARY)

    return declare


def path():
    w = np.zeros((J, J), int)
    w[range(J - 1), range(1, J)] = 1
    return w + w.T


FORMS = {
    "intercepts": ([SUMS[name] for name in ("varying_intercepts", "non_centred_intercepts")], {"sigma": 0.6}),
    "slopes": ([slopes_by(form) for form in ("chol", "cov", "tau", "non-centred")], {}),
    "walks": ([SUMS[name] for name in ("random_walk", "summed_walk")], {"s": 0.4}),
    "areas": ([areas_by(form) for form in ("inside", "outside")], {}),
    "offsets": ([offset_by(form) for form in ("in the mean", "beside", "centred", "factor")], {}),
    "a process at places": ([process_by(form) for form in ("rotated", "centred", "MvNormal", "Cholesky")], {}),
    "walks by their precision": ([walk_by(form) for form in ("walk", "tau", "cov")], {}),
    "autoregressions": ([autoregression_by(form) for form in ("AR", "by hand")], {}),
    "hierarchies": ([hierarchy_by(form) for form in ("centred", "outside", "one covariance")], {}),
    "sums to zero": ([zero_sum_by(form) for form in ("ZeroSumNormal", "centred by hand")], {}),
}


@pytest.mark.variation(but=["sums to zero", "intercepts", "walks by their precision"])
@pytest.mark.parametrize("case", FORMS)
def test_spellings_of_one_model_have_equal_evidence(case):
    forms, values = FORMS[case]
    found = [evidence(declare, **values) for declare in forms]
    assert_allclose(found, found[0], atol=1e-8)


@pytest.mark.parametrize(("form", "atol"), [("added", 1e-8), ("in the mean", 1e-8), ("two processes", 2e-5)])
def test_evidence_of_a_linear_term_equals_evidence_of_a_linear_covariance(form, atol):
    assert evidence(processes_by(form)) == pytest.approx(evidence(processes_by("one covariance")), abs=atol)


SHARED = {
    "varying_intercepts": (
        [SUMS[name] for name in ("varying_intercepts", "non_centred_intercepts")],
        ["level", "gamma", "alpha", "beta"], 1e-5,
    ),
    "walks": ([walk_by(form) for form in ("walk", "tau", "cov")], ["walk"], 1e-7),
    "hierarchies": ([hierarchy_by(form) for form in ("centred", "outside")], ["level", "gamma"], 1e-7),
    "areas": ([areas_by(form) for form in ("inside", "outside")], ["phi", "theta"], 1e-7),
    "trends": ([processes_by(form) for form in ("added", "in the mean")], ["b"], 1e-7),
}  # fmt: skip


@pytest.mark.variation(but=["walks"])
@pytest.mark.parametrize("case", SHARED)
def test_spellings_of_one_model_have_equal_moments(case):
    forms, names, atol = SHARED[case]
    first, *others = (fitted(made(declare)).effects(names) for declare in forms)
    for moments in others:
        for name in names:
            assert_allclose(moments[name], first[name], atol=atol)


# ---- hyperparameters ----


@pytest.mark.variation(but=["correlated_slopes"])
@pytest.mark.parametrize("name", ["correlated_slopes", "areas", "process_and_trend"])
def test_gradient_matches_differences_of_the_log_posterior(name):
    log_posterior = DenseLogPosterior(read_classifier(MODELS[name]()), EP(tolerance=1e-10))
    theta = initial(log_posterior) + 0.1
    step = 1e-4 * np.random.default_rng(1).normal(size=theta.size)
    difference = log_posterior(theta + step).log_posterior - log_posterior(theta - step).log_posterior
    assert log_posterior(theta).gradient @ step == pytest.approx(0.5 * difference, abs=2e-9)


def initial(log_posterior):
    classifier = log_posterior.classifier
    model, point = classifier.model, classifier.model.initial_point()
    return np.concatenate([np.ravel(point[model.rvs_to_values[rv].name]) for rv in classifier.hyperparameters])


def many_scales(count):
    def declare():
        s = pm.HalfNormal("s", 1, shape=count)
        b = pm.Normal("b", 0, s, shape=count)
        design = np.random.default_rng(5).normal(size=(N, count))
        pm.Bernoulli("y", logit_p=design @ b, observed=BINARY)

    return declare


def test_few_hyperparameters_are_integrated():
    fit = fitted(MODELS["splines"](), method="laplace", hyper=None)
    assert fit.nodes.sizes["node"] > 1
    assert fitted(MODELS["splines"](), method="laplace").nodes.sizes["node"] == 1


def test_seven_hyperparameters_are_integrated():
    fit = fitted(made(many_scales(7)), method="laplace", hyper=None)
    assert fit.hyper_posterior.name == "adaptive"
    assert (fit.summary("s")["sd"] > 0.05).all()


def test_many_hyperparameters_cause_a_warning():
    with pytest.warns(UserWarning, match=r"16 hyperparameters, s, stay at their maximum.*gpep\.marginalize"):
        fitted(made(many_scales(16)), method="laplace", hyper=None)


@pytest.mark.variation
def test_variable_that_a_user_keeps_stays_a_hyperparameter():
    fit = fitted(MODELS["varying_intercepts"](), method="laplace", hyperparameters=["beta"])
    assert set(fit.hyperparameters.data_vars) == {"sigma", "beta"}
    assert "beta" not in fit.effects()
    assert "'beta' stays a hyperparameter: hyperparameters=[...] names it." in str(fit)


@pytest.mark.parametrize("method", ["sparse_ep", "ivm"])
def test_error_of_methods_with_inducing_inputs_names_another_method(method):
    kwargs = {"inducing": 5} if method == "sparse_ep" else {}
    with pytest.raises((StructureError, ValueError), match='"ep"'):
        fitted(MODELS["varying_intercepts"](), method=method, **kwargs)


# ---- classes, and draws given hyperparameters ----


@pytest.mark.variation(but=["softmax_with_reference-laplace"])
@pytest.mark.parametrize(
    ("name", "method"), [("classes_with_trend", "nested_ep"), ("softmax_with_reference", "laplace")]
)
def test_sums_of_classes_are_fitted(name, method):
    model = MODELS[name]()
    fit = fitted(model, method=method)
    assert fit.converged
    draws = fit.sample(300, random_seed=1)["posterior"]
    values = draws["b"].values.reshape(-1, *fit.mean_data["b"].shape)
    assert_allclose(values.mean(axis=0), fit.mean_data["b"], atol=0.4 * float(fit.std_data["b"].max()))
    assert_allclose(values.std(axis=0), fit.std_data["b"], rtol=0.25)


def test_draws_contain_integrated_variables():
    """For given sigma, recovered draws have the moments of a fit with the same sigma."""
    model = MODELS["varying_intercepts"]()
    marginal = gpep.marginalize(model)
    assert [rv.name for rv in marginal.free_RVs] == ["sigma"]
    fit = fitted(model)
    sigma = np.full((1, 150), fit.hyperparameters["sigma"].item())
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"sigma": (("chain", "draw"), sigma)})})
    draws = gpep.recover_latent(idata, marginal, random_seed=2)["posterior"]
    assert_allclose(draws["alpha"].values[0].mean(axis=0), fit.mean_data["alpha"], atol=0.2)
    assert_allclose(draws["alpha"].values[0].std(axis=0), fit.std_data["alpha"], rtol=0.2)
