"""Integration over hyperparameters by each method, against the posterior on a dense grid."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from scipy.special import logsumexp

import pymc_gpep as gpep
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.mixture import total_covariance, total_variance
from pymc_gpep.fits.prediction import predict_at
from pymc_gpep.hyper import HYPER, HyperPosterior, hyper_method
from pymc_gpep.hyper.curvature import gaussian_at, hessian
from pymc_gpep.hyper.hyper_posterior import _stratified
from pymc_gpep.hyper.nodes import sphere_design, standard_normal_nodes
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.likelihoods.likelihood import log_predictive
from tests import models

POINTS = np.random.default_rng(0).uniform(-2, 2, size=(20, 2))
OPTIONS = {
    "map": {},
    "adaptive": {},
    "laplace": {"nodes": 64},
    "grid": {},
    "ccd": {},
    "importance": {"draws": 150},
    "nuts": {"draws": 250, "tune": 60, "chains": 2, "cores": 1, "nodes": 100},
}
kinds = pytest.mark.parametrize(
    "kind", ["adaptive", "laplace", "grid", "ccd", "importance", pytest.param("nuts", marks=pytest.mark.slow)]
)


def two():
    """Model with a length scale, a magnitude, and inputs as `pm.Data`."""
    X, y = models.data()
    coords = {"species": models.SPECIES, "flower": np.arange(y.size) + 100}
    with pm.Model(coords=coords) as model:
        inputs = pm.Data("X", X)
        ls = pm.InverseGamma("ls", 3, 3)
        eta = pm.HalfNormal("eta", 3)
        pm.Deterministic("eta_squared", eta**2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=inputs, n_outputs=3, dims=("species", "flower"))
        gpep.MultinomialProbit("y", f.T, observed=y, dims="flower")
    return model, gp


class Case:
    """Fits of a model by all methods and on a dense grid, from the log posterior of the fit at the maximum."""

    def __init__(self, build):
        self.model, self.gp = build()
        with self.model:
            fit = pm.fit(method="nested_ep", progressbar=False, random_seed=1)
        self.log_posterior, self.optimum = fit.log_posterior, fit.trace
        self._fits = {"map": fit}
        self.gaussian = gaussian_at(self.log_posterior, self.optimum)
        d = self.optimum.best.theta.size
        axis = np.linspace(-5, 7, 31 if d == 1 else 16)
        z = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), axis=-1).reshape(-1, d)
        nodes = []
        for theta in self.gaussian.at(z):
            evaluation = self.log_posterior(theta, self.optimum.best.start)
            if evaluation.log_posterior > self.optimum.best.log_posterior - 12:
                nodes.append(evaluation)
        logs = np.array([node.log_posterior for node in nodes])
        cell = d * np.log(axis[1] - axis[0]) + np.linalg.slogdet(self.gaussian.root)[1]
        evidence = np.log(np.exp(logs - logs.max()).sum()) + logs.max() + cell
        grid = HyperPosterior("dense", self.log_posterior, nodes, np.exp(logs - logs.max()), log_evidence=evidence)
        self._fits["dense"] = self._updated(grid)

    def _updated(self, hyper_posterior):
        return Fit(self.log_posterior, self.optimum, hyper_posterior, seed=1)

    def fit(self, kind):
        if kind not in self._fits:
            method = hyper_method(kind, OPTIONS[kind])
            self._fits[kind] = self._updated(method.integrate(self.log_posterior, self.optimum, random_seed=1))
        return self._fits[kind]

    @cache  # noqa: B019  # a case is there to the end of the file
    def probabilities(self, kind):
        return self.fit(kind).predict(self.gp, POINTS)["p"].values


@pytest.fixture(scope="module")
def pair():
    return Case(two)


@pytest.fixture(scope="module")
def single():
    return Case(models.probit)


@pytest.fixture(params=["single", "pair"])
def case(request):
    return request.getfixturevalue(request.param)


def theta_moments(fit):
    """Means, standard deviations and covariance of the unconstrained hyperparameters."""
    posterior = fit.hyper_posterior
    mean, cov = (
        np.average(posterior.theta, axis=0, weights=posterior.weights),
        np.cov(posterior.theta.T, aweights=posterior.weights, ddof=0).reshape(posterior.theta.shape[1], -1),
    )
    return mean, np.sqrt(cov.diagonal()), cov


# Largest errors of a mean (in standard deviations), of a standard deviation (relative) and of a class probability. The
# errors of NUTS are Monte Carlo errors of 500 draws.
CLOSE = {
    "adaptive": (0.04, 0.03, 0.002),
    "laplace": (0.15, 0.12, 0.008),
    "grid": (0.015, 0.02, 0.001),
    "ccd": (0.08, 0.05, 0.006),
    "importance": (0.05, 0.05, 0.004),
    "nuts": (0.2, 0.2, 0.012),
}


# NUTS takes longest, and tests the same code for one hyperparameter as for two.
@pytest.mark.variation(but=["pair-adaptive", "pair-grid", "pair-ccd", "single-adaptive"])
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        *((case, kind) for case in ("single", "pair") for kind in ("adaptive", "laplace", "grid", "ccd", "importance")),
        pytest.param("pair", "nuts", marks=pytest.mark.slow),
    ],
    indirect=["case"],
)
def test_moments_match_a_grid(case, kind):
    mean, sd, probability = CLOSE[kind]
    expected_mean, expected_sd, _ = theta_moments(case.fit("dense"))
    found_mean, found_sd, _ = theta_moments(case.fit(kind))
    assert_allclose((found_mean - expected_mean) / expected_sd, 0, atol=mean)
    assert_allclose(found_sd / expected_sd, 1, atol=sd)
    p = {name: case.probabilities(name) for name in ("map", "dense", kind)}
    error = np.abs(p[kind] - p["dense"]).max()
    assert error < probability
    assert error < 0.5 * np.abs(p["map"] - p["dense"]).max()


@pytest.mark.parametrize(
    ("kind", "error"), [("adaptive", 0.02), ("laplace", 0.12), ("grid", 0.01), ("ccd", 0.02), ("importance", 0.02)]
)
def test_evidence_matches_a_grid(case, kind, error):
    expected = case.fit("dense").hyper_posterior.log_evidence
    assert case.fit(kind).hyper_posterior.log_evidence == pytest.approx(expected, abs=error)
    assert np.isnan(case.fit("map").hyper_posterior.log_evidence)


def test_laplace_nodes_have_the_moments_of_the_gaussian(pair):
    mean, _, cov = theta_moments(pair.fit("laplace"))
    assert_allclose(mean, pair.optimum.best.theta, atol=1e-12)
    assert_allclose(cov, pair.gaussian.root @ pair.gaussian.root.T, atol=1e-12)


@kinds
def test_weights_sum_to_one_and_nodes_have_their_shape(pair, kind):
    fit = pair.fit(kind)
    posterior = fit.hyper_posterior
    assert posterior.weights.sum() == pytest.approx(1, abs=1e-12)
    assert (posterior.weights > 0).all()
    if kind == "importance":  # draws of negligible weight are left out
        assert 0.9 * 150 < len(posterior) < 150
    else:
        assert len(posterior) == {"laplace": 64, "grid": 16, "ccd": 9, "nuts": 100}.get(kind, len(posterior)) > 5
    nodes = fit.nodes
    assert_allclose(
        np.log(nodes["eta"]),
        posterior.theta[:, [v.name for v in pair.log_posterior.space.value_vars].index("eta_log__")],
    )
    assert_allclose(nodes["weight"], posterior.weights)
    s = 3
    assert pair.log_posterior(posterior.theta[s]).evidence == pytest.approx(float(nodes["evidence"][s]), abs=1e-6)
    assert posterior.solution(s).evidence == pytest.approx(float(nodes["evidence"][s]), abs=1e-6)
    assert fit.converged
    assert "NOT" not in str(fit)


def test_hessian_matches_finite_differences(pair):
    """References are differences of the value, which is more accurate than the gradient."""
    theta = pair.optimum.best.theta + 0.2
    step = 0.02
    steps = step * np.eye(theta.size)

    def value(x):
        return pair.log_posterior(x).log_posterior

    expected = [
        [
            (value(theta + a + b) - value(theta + a - b) - value(theta - a + b) + value(theta - a - b)) / (4 * step**2)
            for b in steps
        ]
        for a in steps
    ]
    found, _ = hessian(pair.log_posterior, pair.log_posterior(theta))
    assert_allclose(found, found.T)
    assert_allclose(found, expected, atol=5e-3 * np.abs(found).max())


def test_hessian_does_not_depend_on_the_units():
    class Quadratic:
        def __init__(self, scale):
            self.precision = np.array([[2.0, 0.9], [0.9, 1.0]]) / np.outer(scale, scale)

        evaluations = 0

        def each(self, function, items):
            return [function(item) for item in items]

        def __call__(self, theta, start=None):
            self.evaluations += 1
            return SimpleNamespace(theta=theta, gradient=-self.precision @ theta, start=None)

    for scale, evaluations in (([0.3, 0.3], 4), ([100.0, 0.01], 6)):
        quadratic = Quadratic(np.array(scale))
        found, around = hessian(quadratic, quadratic(np.zeros(2)))
        assert_allclose(found, -quadratic.precision, rtol=1e-9)
        assert len(around) == 4
        assert quadratic.evaluations == evaluations + 1


@pytest.mark.parametrize("resolution", [4, 5])
@pytest.mark.parametrize("d", range(1, 17, 2))
def test_sphere_design_integrates_polynomials_of_degree_three(d, resolution):
    """The nodes lie on a sphere, integrate polynomials of degree 3, and have corners of the given resolution."""
    points = sphere_design(d, resolution)
    assert_allclose((points**2).sum(axis=1), d)
    assert len(np.unique(points.round(9), axis=0)) == len(points)
    assert_allclose(points.mean(axis=0), 0, atol=1e-12)
    assert_allclose(points.T @ points / len(points), np.eye(d), atol=1e-12)
    assert_allclose(np.einsum("ka,kb,kc->abc", points, points, points), 0, atol=1e-9)
    corners = points[: -2 * d]
    pairs = np.array([corners[:, a] * corners[:, b] for a in range(d) for b in range(a)])
    if d > 1 and resolution == 5:
        assert_allclose(pairs @ pairs.T / len(corners), np.eye(len(pairs)), atol=1e-12)


class Known:
    """Log posterior that is −3 at its centre, and falls like a normal density or a t density."""

    root = np.array([[0.5, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.2, 0.1, 1.5]])
    centre = np.array([1.0, -2.0, 0.5])
    value_vars = ()

    def __init__(self, pair, dof=np.inf):
        self.classifier, self._best, self._dof = pair.log_posterior.classifier, pair.optimum.best, dof

    entries, kept, joint = 1, 1, True

    def loosely(self, gradients=True):
        return self

    weighing = loosely

    def each(self, function, items):
        return [function(item) for item in items]

    def __call__(self, theta, start=None):
        away = theta - self.centre
        pull = np.linalg.solve(self.root @ self.root.T, away)
        value, factor = -3.0 - 0.5 * away @ pull, 1.0
        if np.isfinite(self._dof):
            power = 0.5 * (self._dof + theta.size)
            value, factor = -3.0 - power * np.log1p(away @ pull / self._dof), 2 * power / (self._dof + away @ pull)
        return self._best._replace(theta=theta, log_posterior=value, gradient=-factor * pull)

    @property
    def optimum(self):
        return Optimum(self(self.centre), True, "", ())


def test_ccd_is_exact_for_a_gaussian(pair):
    """Mean, covariance, integral, and fourth moment of the radius have their exact values."""
    gaussian = Known(pair)
    root, centre, optimum = gaussian.root, gaussian.centre, gaussian.optimum
    for options, fourth in (({}, 15.0), ({"f0": 1.1}, 1.1**2 * 9)):
        posterior = hyper_method("ccd", options).integrate(gaussian, optimum)
        z = np.linalg.solve(root, (posterior.theta - centre).T)
        assert_allclose(z @ posterior.weights, 0, atol=1e-9)
        assert_allclose(z * posterior.weights @ z.T, np.eye(3), atol=1e-9)
        expected = -3.0 + 1.5 * np.log(2 * np.pi) + np.log(np.linalg.det(root))
        assert posterior.log_evidence == pytest.approx(expected, abs=1e-9)
        assert (z**2).sum(axis=0) ** 2 @ posterior.weights == pytest.approx(fourth, abs=1e-8)


@pytest.mark.parametrize("dof", [3.0, 1e6])
def test_importance_sampling_has_the_integral_of_a_gaussian(pair, dof):
    gaussian = Known(pair)
    posterior = hyper_method("importance", {"draws": 1000, "dof": dof}).integrate(gaussian, gaussian.optimum)
    expected = -3.0 + 1.5 * np.log(2 * np.pi) + np.log(np.linalg.det(gaussian.root))
    weighing = posterior.weighing
    assert posterior.log_evidence == weighing.estimate.value
    assert posterior.log_evidence == pytest.approx(expected, abs=0.02)
    assert weighing.estimate.error == pytest.approx(
        np.sqrt((1 / weighing.effective_size - 1e-3) * 1000 / 999), rel=1e-6
    )
    assert weighing.draws == 1000
    assert weighing.pareto_k < 0.5
    z = np.linalg.solve(gaussian.root, (posterior.theta - gaussian.centre).T)
    assert_allclose(z @ posterior.weights, 0, atol=0.05)
    assert_allclose(z * posterior.weights @ z.T, np.eye(3), atol=0.1)
    if dof == 1e6:  # practically a Gaussian
        assert weighing.effective_size > 999
        assert posterior.log_evidence == pytest.approx(expected, abs=1e-4)


def test_message_names_hyperparameters_with_tails_heavier_than_the_proposal(pair):
    heavy = Known(pair, dof=0.3)
    posterior = hyper_method("importance", {"dof": 30}).integrate(heavy, heavy.optimum)
    assert posterior.weighing.pareto_k > 0.7
    assert not posterior.converged
    assert "heavier tails than the proposal" in posterior.message
    assert "hyper='nuts'" in posterior.message
    fine = hyper_method("importance", {"dof": 0.3}).integrate(heavy, heavy.optimum)
    assert fine.converged


def test_message_of_importance_sampling_has_effective_size_and_error(single):
    fit = single.fit("importance")
    weighing = fit.hyper_posterior.weighing
    assert fit.converged
    assert (
        f"In hyper='importance', 150 draws have the effective size {weighing.effective_size:.0f} (Pareto k -"
        in fit.message
    )
    assert fit.message.endswith(f"the standard error of log p(y) is {weighing.estimate.error:.3f}.")


@pytest.mark.parametrize(("build", "method"), [(models.bernoulli_logit, "ep"), (models.probit, "vb")])
def test_importance_sampling_works_for_every_method(build, method):
    model, _ = build()
    with model:
        fit = pm.fit(method=method, hyper="importance", hyper_options={"draws": 150}, progressbar=False, random_seed=1)
    assert fit.converged
    posterior = fit.hyper_posterior
    expected = hyper_method("ccd").integrate(fit.log_posterior, fit.trace).log_evidence
    assert posterior.log_evidence == pytest.approx(expected, abs=0.03)


@pytest.mark.variation
def test_seed_determines_importance_sampling(single):
    one, again, other = (
        hyper_method("importance", {"draws": 100}).integrate(single.log_posterior, single.optimum, random_seed=seed)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.theta, again.theta)
    np.testing.assert_array_equal(one.weights, again.weights)
    assert np.abs(one.theta[:50] - other.theta[:50]).max() > 1e-3


@pytest.mark.parametrize("d", [1, 2, 5])
def test_nodes_of_a_standard_normal_have_its_moments(d):
    z = standard_normal_nodes(40, d, 3)
    assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    assert_allclose(z.T @ z / 40, np.eye(d), atol=1e-12)
    assert_allclose(z, standard_normal_nodes(40, d, 3))
    assert np.abs(z - standard_normal_nodes(40, d, 4)).max() > 0.01


@kinds
def test_prediction_is_a_mixture(pair, kind):
    fit = pair.fit(kind)
    x = POINTS[:6]
    likelihood = fit.classifier.likelihood_model
    parts = [predict_at(functions, x, likelihood=likelihood) for functions in fit.functions(pair.gp)]
    weights = fit.hyper_posterior.weights
    found = fit.predict(pair.gp, x)
    assert_allclose(found["p"], sum(w * part.p for w, part in zip(weights, parts, strict=True)), atol=1e-12)
    mean = sum(w * part.mean for w, part in zip(weights, parts, strict=True))
    second = sum(
        w * (part.cov + np.einsum("ma,mb->mab", part.mean, part.mean)) for w, part in zip(weights, parts, strict=True)
    )
    assert_allclose(found["mean"], mean, atol=1e-12)
    assert_allclose(found["cov"], second - np.einsum("ma,mb->mab", mean, mean), atol=1e-10)
    assert found["p"].dims == ("new_point", "species")
    assert found.attrs == {"probabilities": "orthant"}


def test_total_moments_combine_within_and_between_nodes():
    rng = np.random.default_rng(0)
    weights, means = rng.dirichlet(np.ones(5)), 3 + rng.normal(size=(5, 4, 3))
    roots = rng.normal(size=(5, 4, 3, 3))
    covs = roots @ roots.swapaxes(-1, -2)
    mean, cov = total_covariance(weights, zip(means, covs, strict=True))
    expected_mean, variance = total_variance(weights, means, covs.diagonal(axis1=-2, axis2=-1))
    assert_allclose(mean, expected_mean)
    assert_allclose(cov.diagonal(axis1=-2, axis2=-1), variance)
    own = np.einsum("s,sia->ia", weights, means)
    second = np.einsum("s,siab->iab", weights, covs + np.einsum("sia,sib->siab", means, means))
    assert_allclose(cov, second - np.einsum("ia,ib->iab", own, own), atol=1e-12)


@kinds
def test_draws_have_the_moments_of_the_mixture(pair, kind):
    fit = pair.fit(kind)
    draws = 500
    data = fit.sample(draws, chains=2, random_seed=3)
    posterior = data.posterior
    assert posterior["f"].dims == ("chain", "draw", "species", "flower")
    assert posterior["ls"].shape == (2, draws)
    assert posterior.attrs["hyper"] == kind
    assert_allclose(posterior["eta_squared"], posterior["eta"] ** 2)
    nodes = fit.nodes
    for name in ("ls", "eta"):
        different = len(np.unique(posterior[name].values.round(9)))
        assert different > {"nuts": 150, "importance": 130}.get(kind, 250)
        mean, sd = (
            np.average(nodes[name], weights=nodes["weight"]),
            np.sqrt(np.cov(nodes[name], aweights=nodes["weight"])),
        )
        assert abs(posterior[name].mean() - mean) < 4.5 * sd / np.sqrt(2 * draws)
    spread = np.sqrt(fit.latent["cov"].values.diagonal(axis1=1, axis2=2)).T
    f = posterior["f"].values.reshape(-1, 3, 30)
    assert_allclose((f.mean(0) - fit.latent["mean"].values.T) / spread, 0, atol=4.5 / np.sqrt(2 * draws))
    assert_allclose(f.std(0) / spread, 1, atol=0.12)


@kinds
def test_flat_vector_has_the_moments_of_its_variables(pair, kind):
    fit = pair.fit(kind)
    mean, std, cov = fit.mean.eval(), fit.std.eval(), fit.cov.eval()
    assert_allclose(std, np.sqrt(cov.diagonal()), atol=1e-6)
    order = [fit.ordering[v.name][1].start for v in pair.log_posterior.space.value_vars]
    expected_mean, expected_std, expected_cov = theta_moments(fit)
    assert_allclose(mean[order], expected_mean)
    assert_allclose(std[order], expected_std)
    assert_allclose(cov[np.ix_(order, order)], expected_cov, atol=1e-12)
    draws = 1000
    values = fit.sample_dict_fn(draws, random_seed=3)
    flat = np.concatenate([values[name].reshape(draws, -1) for name in fit.ordering], axis=1)
    assert_allclose((flat.mean(0) - mean) / std, 0, atol=5 / np.sqrt(draws))
    scaled = (flat - mean) / std
    # The tails of the latent values are those of a mixture, heavier than normal tails.
    assert_allclose(scaled.T @ scaled / draws, cov / np.outer(std, std), atol=10 * np.sqrt(2 / draws))


def test_draws_are_reproducible(pair):
    one, two, other = (pair.fit("ccd").sample(20, chains=2, random_seed=seed).posterior for seed in (1, 1, 2))
    xr.testing.assert_identical(one.to_dataset()["f"], two.to_dataset()["f"])
    assert np.abs(one["f"] - other["f"]).max() > 0


@kinds
def test_arviz_summarises_without_warnings(pair, kind):
    """Warnings are errors in tests: constant draws of hyperparameters would fail here."""
    data = pair.fit(kind).sample(100, chains=4, random_seed=1)
    summary = az.summary(data, var_names=["ls", "eta"], round_to="none")
    nodes = pair.fit(kind).nodes
    expected = np.sqrt(np.cov(nodes["eta"], aweights=nodes["weight"]))
    assert float(summary.loc["eta", "sd"]) == pytest.approx(float(expected), rel=0.25)
    assert float(summary.loc["eta", "r_hat"]) < 1.05
    assert az.plot_forest({kind: data, "again": data}, var_names=["ls", "eta"], backend="none") is not None


def test_discarded_solutions_are_recomputed(pair, monkeypatch):
    """The data of the fit are used, even after the data of the model have changed. The results are the same."""
    whole = pair.fit("ccd")
    monkeypatch.setattr("pymc_gpep.hyper.hyper_posterior._ENTRIES", 2 * (90**2 + 12 * 90))
    few = pair._updated(hyper_method("ccd").integrate(pair.log_posterior, pair.optimum))
    assert len(list(few.hyper_posterior.solutions())) > 2 == len(few.hyper_posterior._kept)
    X, _ = models.data()
    try:
        pm.set_data({"X": 3 * X}, model=pair.model)
        assert_allclose(few.latent["mean"], whole.latent["mean"], atol=1e-4)
        assert_allclose(few.predict(pair.gp, POINTS)["p"], whole.predict(pair.gp, POINTS)["p"], atol=1e-4)
    finally:
        pm.set_data({"X": X}, model=pair.model)


def test_fit_accepts_an_instance_as_hyper(pair):
    with pair.model:
        fit = pm.fit(method="nested_ep", hyper="laplace", hyper_options={"nodes": 10}, progressbar=False, random_seed=1)
    assert fit.hyper_posterior.name == "laplace"
    assert len(fit.hyper_posterior) == 10
    assert_allclose(fit.hyperparameters["ls"], pair.fit("map").hyperparameters["ls"], rtol=1e-4)
    evidence = pair.fit("laplace").hyper_posterior.log_evidence
    assert fit.hyper_posterior.log_evidence == pytest.approx(evidence, abs=1e-3)


@pytest.mark.parametrize("kind", sorted(set(HYPER.names) - {"map", "mean_field"}))
def test_all_methods_agree_without_hyperparameters(kind, fixed):
    with fixed.model:
        fit = pm.fit(method="nested_ep", hyper=kind, progressbar=False, random_seed=1)
    assert len(fit.hyper_posterior) == 1
    assert_allclose(fit.latent["mean"], fixed.fit.latent["mean"])
    assert fit.converged


def test_nodes_where_the_approximation_fails_are_left_out(pair):
    class Walled:
        classifier, value_vars, approximator = (
            pair.log_posterior.classifier, pair.log_posterior.space.value_vars, pair.log_posterior.approximator,
        )  # fmt: skip

        def __init__(self, wall):
            self.wall = wall

        def __getattr__(self, name):
            return getattr(pair.log_posterior, name)

        def loosely(self, gradients=True):
            return self

        weighing = loosely

        def each(self, function, items):
            return [function(item) for item in items]

        def __call__(self, theta, start=None):
            result = pair.log_posterior(theta, start)
            return result._replace(status=1, log_posterior=np.nan) if theta[-1] > self.wall else result

    top, sd = pair.optimum.best.theta[-1], theta_moments(pair.fit("laplace"))[1][-1]
    for kind in ("laplace", "ccd", "importance"):
        fit = pair._updated(hyper_method(kind, OPTIONS[kind]).integrate(Walled(top + sd), pair.optimum))
        assert 1 < len(fit.hyper_posterior) < len(pair.fit(kind).hyper_posterior)
        assert fit.hyper_posterior.weights.sum() == pytest.approx(1)
        assert not fit.converged
        assert f"In hyper='{kind}', " in fit.message
        assert "the approximation failed at" in fit.message


def test_invalid_options_are_named(pair):
    with pytest.raises(
        ValueError,
        match="hyper is 'gaussian', but must be one of 'map', 'adaptive', 'laplace', 'grid', 'ccd', 'importance', ",
    ):
        hyper_method("gaussian")
    with pytest.raises(TypeError, match=r"hyper='laplace' has no option draws\. Options: nodes"):
        hyper_method("laplace", {"draws": 3})
    with pytest.raises(ValueError, match=r"f0 must be at least 1, but is 0\.5"):
        hyper_method("ccd", {"f0": 0.5})
    with pytest.raises(ValueError, match="nodes must be at least 4 for 2 hyperparameters, but is 3"):
        hyper_method("laplace", {"nodes": 3}).integrate(pair.log_posterior, pair.optimum)
    with pair.model, pytest.raises(ValueError, match="hyper is 'mcmc'"):
        pm.fit(method="nested_ep", hyper="mcmc", progressbar=False)


def test_saddle_of_a_log_posterior_raises_value_error():
    class Saddle:
        joint = True

        def loosely(self):
            return self

        def each(self, function, items):
            return [function(item) for item in items]

        def __call__(self, theta, start=None):
            return SimpleNamespace(theta=theta, gradient=theta * [1.0, -1.0], start=None)

        def point(self, theta):
            return {"eta_log__": theta}

    saddle = Saddle()
    optimum = Optimum(saddle(np.zeros(2)), False, "Stopped.", ())
    with pytest.raises(ValueError, match=r"no curved maximum at .*eta_log__.*did not converge: Stopped"):
        gaussian_at(saddle, optimum)


@pytest.mark.slow
def test_nuts_returns_its_chains_and_is_reproducible(pair):
    posterior = pair.fit("nuts").hyper_posterior
    assert posterior.draws["posterior"].sizes == {"chain": 2, "draw": 250}
    short = OPTIONS["nuts"] | {"draws": 10, "tune": 10, "nodes": 5}
    one, again = (
        hyper_method("nuts", short).integrate(pair.log_posterior, pair.optimum, random_seed=1) for _ in range(2)
    )
    assert_allclose(again.theta, one.theta)


def test_repr_shows_name_and_number_of_nodes(single):
    assert repr(single.fit("map").hyper_posterior) == "HyperPosterior('map', 1 node)"
    assert repr(single.fit("ccd").hyper_posterior).startswith("HyperPosterior('ccd', 3 nodes, log evidence -")


@pytest.mark.variation
def test_leave_one_out_excludes_the_label_from_the_posterior_of_hyperparameters(single):
    """Reference by refits on the grid: the log of Σ p(θ) Z₋ᵢ(θ) p(yᵢ | y₋ᵢ, θ) / Σ p(θ) Z₋ᵢ(θ)."""
    grid = single.fit("dense")
    wanted, chosen = [], np.arange(0, grid.solution.labels.size, 8)
    for i in chosen:
        logs = []
        for node, (_, solution) in zip(grid.hyper_posterior.nodes, grid.hyper_posterior.solutions(), strict=True):
            others = np.delete(np.arange(solution.labels.size), i)
            k, prior_mean = solution.posterior.prior.k, solution.posterior.prior.mean
            approximator = single.log_posterior.approximator
            rest = approximator.solve(k[:, others][:, :, others], prior_mean[:, others], solution.labels[others])
            mean, cov = rest.posterior.predict(k[:, [i]][:, :, others], k[:, [i], [i]], prior_mean[:, [i]])
            (density,) = log_predictive(solution.likelihood, mean.T, cov, solution.labels[[i]])
            prior = node.log_posterior - node.evidence
            logs.append((prior + rest.evidence + density, prior + rest.evidence))
        wanted.append(np.subtract(*logsumexp(logs, axis=0)))
    refitted = grid.loo(refit_above=-np.inf)
    assert refitted.n_refitted == grid.solution.labels.size
    # The ratio of EP's evidences with and without a label differs slightly from EP's predictive density of the label.
    assert_allclose(refitted.elpd_i[chosen], wanted, atol=0.03)
    assert_allclose(single.fit("ccd").loo(refit_above=-np.inf).elpd_i, refitted.elpd_i, atol=0.01)
    at_maximum = single.fit("map").loo(refit_above=-np.inf)
    off, error = (np.abs(each.elpd_i.values[chosen] - wanted).max() for each in (at_maximum, refitted))
    assert off > 2 * error


def test_number_of_stored_solutions_is_limited_by_memory(pair, monkeypatch):
    monkeypatch.setattr("pymc_gpep.hyper.hyper_posterior._ENTRIES", 1)
    nodes = HYPER["laplace"](nodes=8).integrate(pair.log_posterior, pair.optimum, random_seed=1)
    nodes.solution(0)
    nodes.solution_at(pair.optimum.best)
    assert len(list(nodes.solutions())) == 8
    assert len(nodes._kept) == 2


def test_subset_of_draws_of_four_hyperparameters_has_the_quantiles_of_all_draws():
    density = np.exp(0.6 * np.random.default_rng(3).normal(size=(4096, 4)))
    draws = _stratified(density, 1000, np.random.default_rng(4))
    levels = [0.025, 0.25, 0.5, 0.75, 0.975]
    expected = np.quantile(density, levels, axis=0)
    assert_allclose((np.quantile(draws, levels, axis=0) - expected) / density.std(axis=0), 0, atol=0.02)
    assert_allclose(np.corrcoef(np.log(draws).T), np.eye(4), atol=0.1)


def test_density_of_a_grid_has_the_moments_of_its_nodes():
    """Interpolation between nodes of the grid has a false mode far from the grid, with most of the mass."""
    rng = np.random.default_rng(1)
    x, g, h = rng.normal(size=1000), rng.integers(0, 200, 1000), rng.integers(0, 100, 1000)
    eta = -0.4 + 0.4 * x + (0.8 * rng.normal(size=200))[g] + (0.6 * rng.normal(size=100))[h]
    y = (rng.random(1000) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    with pm.Model():
        su, sv = pm.HalfNormal("su", 1), pm.HalfNormal("sv", 1)
        u, v = pm.Normal("u", 0, su, shape=200), pm.Normal("v", 0, sv, shape=100)
        b0, b1 = pm.Normal("b0", 0, 2), pm.Normal("b1", 0, 1)
        pm.Bernoulli("y", logit_p=b0 + b1 * x + u[g] + v[h], observed=y)
        posterior = pm.fit(method="ep", hyper="grid", progressbar=False).hyper_posterior
    theta, weights = np.exp(posterior.theta), posterior.weights
    mean = weights @ theta
    sd = np.sqrt(weights @ (theta - mean) ** 2)
    found = np.exp(posterior.density)
    assert_allclose((found.mean(axis=0) - mean) / sd, 0.0, atol=0.05)
    assert_allclose(found.std(axis=0) / sd, 1.0, atol=0.05)


def test_summary_reports_rough_marginals(pair):
    found = pair.fit("ccd").hyper_posterior
    doubtful = pair._updated(replace(found, doubt="rough. Take hyper='adaptive'", solved=None)).summary(["eta"])
    assert list(doubtful["note"]) == ["rough: see print(fit)"]
    assert_allclose(
        doubtful[["mean", "sd"]], pair._updated(replace(found, doubt="", solved=None)).summary(["eta"])[["mean", "sd"]]
    )
