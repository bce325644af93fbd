"""Variational Bayes of latent values, hyperparameters and their parents, against q(φ) on a grid."""

from itertools import islice

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from scipy.stats import expon, halfnorm

import pymc_gpep as gpep
from pymc_gpep.approximations import VariationalBayes
from pymc_gpep.gaussians.posterior import make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.hyper import hyper_method
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.hierarchy import Hierarchy
from pymc_gpep.rivals.mean_field import covariance_roots, expected_log_density, mean_field_steps, most_probable_parents
from tests import models
from tests.reference.data import random_problem
from tests.reference.exact import log_likelihood
from tests.reference.mean_field import authors_steps, authors_weight, expected_log_prior, grid_posterior
from tests.reference.variational_bayes import bound, variational_bayes

SIGMA, TAU = 0.5, 0.8
VARIANCE, JITTER = 2.0, 1e-2
PRIOR_MEAN = 0.3


def inputs(d):
    X, y = models.data(10)
    return X[:, :d], y


def conjugate(d):
    """Model with φ_d ~ Exponential(ψ_d), ψ_d ~ Gamma, and the paper's covariance σ² exp{−Σ_d φ_d (x_d − x'_d)²}."""
    X, y = inputs(d)
    with pm.Model() as model:
        psi = pm.Gamma("psi", SIGMA, TAU, shape=d)
        phi = pm.Exponential("phi", psi, shape=d)
        covariance = VARIANCE * pm.gp.cov.ExpQuad(d, ls=1 / pm.math.sqrt(2 * phi))
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(PRIOR_MEAN), cov_func=covariance)
        f = gp.prior("f", X=X, n_outputs=3, jitter=JITTER)
        gpep.MultinomialProbit("y", f.T, observed=y)
    return model


def covariance(phi):
    X, _ = inputs(phi.size)
    squared = (X[:, None] - X) ** 2 @ phi
    return VARIANCE * np.exp(-squared) + JITTER * np.eye(len(X))


@pytest.fixture(scope="module", params=[1, 2])
def log_posterior(request):
    return DenseLogPosterior(read_classifier(conjugate(request.param)), VariationalBayes())


def start(log_posterior):
    """Initial φ and ψ, flattened, on the natural scale."""
    theta = log_posterior.space.initial_point({"phi": np.full(len(log_posterior.space.parameters) // 2, 0.4)})
    values = log_posterior.space.natural(theta[None])
    return theta, values["phi"][0], values["psi"][0]


def latent_values(phi):
    """q(f) at φ, and the prior mean."""
    _, y = inputs(phi.size)
    prior_mean = np.full((3, y.size), PRIOR_MEAN)
    return variational_bayes(covariance(phi), y, prior_mean), prior_mean, y


# Weights with and without a bound, with one scale and with two scales.
@pytest.mark.variation(but=["1-utilities"])
@pytest.mark.parametrize(
    ("log_posterior", "weights"),
    [(1, "authors"), (2, "printed"), (1, "utilities"), (2, "latent")],
    indirect=["log_posterior"],
)
def test_step_matches_the_weighted_posterior_on_a_grid(log_posterior, weights):
    theta, phi, psi = start(log_posterior)
    step = next(mean_field_steps(log_posterior, theta, draws=1500, weights=weights, inner=None, random_seed=2))
    found, prior_mean, y = latent_values(phi)
    # Without a bound there is one update, which the next test covers.
    mean = step.latent.mean if weights in ("authors", "printed") else found.mean

    def log_weight(phi):
        K = covariance(phi)
        if weights == "authors":
            return authors_weight(K, mean - prior_mean)
        if weights == "utilities":
            return expected_log_prior(K + np.eye(y.size), found.utilities - prior_mean)
        return expected_log_prior(K, mean - prior_mean, found.covariance if weights == "latent" else None)

    grid = grid_posterior(log_weight, psi, np.linspace(-10, 3, 81 if phi.size == 1 else 21))
    shares, drawn = softmax(step.log_weights[0]), log_posterior.space.natural(step.draws)["phi"]
    mean_of_phi = log_posterior.space.natural(step.theta[None])["phi"][0]
    error = np.sqrt(shares**2 @ (drawn - mean_of_phi) ** 2)
    error_of_log = 3 * np.sqrt((shares**2).sum())
    assert (error < 0.2 * grid.mean).all()
    assert_allclose((mean_of_phi - grid.mean) / error, 0, atol=3)
    if weights == "latent":
        assert_allclose(step.latent.bound, found.bound, atol=1e-7)
        by_terms = bound(covariance(phi), y, prior_mean, found.mean, found.covariance)
        expected = by_terms - log_weight(phi) + grid.log_normaliser
        assert step.joint_bound == pytest.approx(expected, abs=error_of_log)
    elif weights == "utilities":
        noise = 0.5 * ((found.utilities - found.mean) ** 2).sum() + 0.5 * found.mean.size * np.log(2 * np.pi)
        expected = log_likelihood(found.mean.T, y).sum() + noise + grid.log_normaliser
        assert step.joint_bound == pytest.approx(expected, abs=error_of_log)
    else:
        assert np.isnan(step.joint_bound)


@pytest.mark.parametrize(("log_posterior", "at_random"), [(1, True), (2, False)], indirect=["log_posterior"])
def test_updates_match_the_authors_loop(log_posterior, at_random):
    """Three steps with the package's draws and start, against plain algebra."""
    theta, phi, _ = start(log_posterior)
    _, y = inputs(phi.size)
    begin = np.random.default_rng(5).normal(size=(3, y.size)) if at_random else None
    steps = list(islice(mean_field_steps(log_posterior, theta, draws=100, weights="authors", utilities=begin), 3))
    prior_mean = np.full((3, y.size), PRIOR_MEAN)
    draws = [log_posterior.space.natural(step.draws)["phi"][:, None] for step in steps]
    found = authors_steps(covariance, y, prior_mean, phi[None], draws, SIGMA, TAU, begin)
    for step, expected in zip(steps, found, strict=True):
        assert_allclose(step.latent.mean, expected.mean, atol=1e-8)
        assert_allclose(step.log_weights, expected.log_weights, atol=1e-8)
        values = log_posterior.space.natural(step.theta[None])
        assert_allclose(values["phi"], expected.phi, rtol=1e-8)
        assert_allclose(values["psi"], expected.psi, rtol=1e-8)


def of_each_class(d):
    """Model with φ_kd ~ Exponential(ψ_kd) and a covariance for each class."""
    X, y = inputs(d)
    with pm.Model() as model:
        psi = pm.Gamma("psi", SIGMA, TAU, shape=(3, d))
        phi = pm.Exponential("phi", psi, shape=(3, d))
        rows = []
        for k in range(3):
            own = VARIANCE * pm.gp.cov.ExpQuad(d, ls=1 / pm.math.sqrt(2 * phi[k]))
            gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(PRIOR_MEAN), cov_func=own)
            rows.append(gp.prior(f"f_{k}", X=X, jitter=JITTER))
        gpep.MultinomialProbit("y", pt.stack(rows).T, observed=y)
    return model


@pytest.fixture(scope="module")
def by_class():
    return DenseLogPosterior(read_classifier(of_each_class(1)), VariationalBayes())


@pytest.mark.variation
def test_classes_with_separate_covariances_have_separate_weights(by_class):
    """Section 4.5 of the paper: the draws of a class are weighted by the latent means of that class alone."""
    phi = np.array([[0.2], [1.0], [2.0]])
    theta = by_class.space.initial_point({"phi": phi})
    steps = list(islice(mean_field_steps(by_class, theta, draws=100, weights="authors"), 2))
    _, y = inputs(1)
    draws = [by_class.space.natural(step.draws)["phi"] for step in steps]
    prior_mean = np.full((3, y.size), PRIOR_MEAN)
    for step, expected in zip(steps, authors_steps(covariance, y, prior_mean, phi, draws, SIGMA, TAU), strict=True):
        assert step.log_weights.shape == (3, 100)
        assert_allclose(step.latent.mean, expected.mean, atol=1e-8)
        assert_allclose(step.log_weights, expected.log_weights, atol=1e-8)
        values = by_class.space.natural(step.theta[None])
        assert_allclose(values["phi"][0], expected.phi, rtol=1e-8)
        assert_allclose(values["psi"][0], expected.psi, rtol=1e-8)


def test_bound_of_several_blocks_matches_direct_computation(by_class):
    """The log of an integral over independent blocks of hyperparameters is a sum over the blocks."""
    theta = by_class.space.initial_point({"phi": np.full((3, 1), 0.4)})
    step = next(mean_field_steps(by_class, theta, draws=500, weights="utilities", random_seed=1))
    psi = by_class.space.natural(theta[None])["psi"][0]
    found, prior_mean, y = latent_values(np.full(1, 0.4))
    axis = np.linspace(-10, 3, 131)
    noise = 0.5 * ((found.utilities - found.mean) ** 2).sum() + 0.5 * found.mean.size * np.log(2 * np.pi)
    expected = log_likelihood(found.mean.T, y).sum() + noise
    for k in range(3):
        own = (found.utilities - prior_mean)[k : k + 1]
        grid = grid_posterior(
            lambda phi, own=own: expected_log_prior(covariance(phi) + np.eye(y.size), own), psi[k], axis
        )
        expected += grid.log_normaliser
    error = np.sqrt((softmax(step.log_weights, axis=1) ** 2).sum())
    assert step.joint_bound == pytest.approx(expected, abs=3 * error)


def test_draws_of_separate_blocks_are_combined_as_independent(by_class):
    theta = by_class.space.initial_point({"phi": np.full((3, 1), 0.4)})
    step = next(mean_field_steps(by_class, theta, draws=1000, weights="authors", random_seed=1))
    thetas, log_weights = step.joint_draws(random_seed=3)
    assert (log_weights == 0).all()
    joint = by_class.space.natural(thetas)["phi"]
    drawn, shares = by_class.space.natural(step.draws)["phi"], softmax(step.log_weights, axis=1)
    expected = np.einsum("ks,skd->kd", shares, drawn)
    spread = np.sqrt(np.einsum("ks,skd->kd", shares, (drawn - expected) ** 2))
    assert_allclose((joint.mean(axis=0) - expected) / spread, 0, atol=4 / np.sqrt(1000))
    correlation = np.corrcoef(joint[..., 0].T)
    assert np.abs(correlation[~np.eye(3, dtype=bool)]).max() < 4 / np.sqrt(1000)


def blocks_of(model):
    """Names and positions of the hyperparameters in each block."""
    posterior = DenseLogPosterior(read_classifier(model), VariationalBayes())
    step = next(mean_field_steps(posterior, posterior.space.initial_point(), draws=2, weights="authors"))
    names = np.array([name.replace("_log__", "") for name in posterior.space.parameters])
    return sorted(sorted(names[step.blocks == block]) for block in range(len(step.log_weights)))


def stacked(covariances, X, y):
    rows = [pm.gp.Latent(cov_func=own).prior(f"f_{k}", X=X) for k, own in enumerate(covariances)]
    gpep.MultinomialProbit("y", pt.stack(rows).T, observed=y)


def quadratic(ls, scale=1.0):
    return scale * pm.gp.cov.ExpQuad(2, ls=ls)


@pytest.mark.variation(but=["dependent entries-expected4"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("own", [["ls[0]"], ["ls[1]"], ["ls[2]"]]),
        ("one that two have", [["ls[0]", "ls[2]"], ["ls[1]"]]),
        ("common magnitude", [["eta", "ls[0]", "ls[1]", "ls[2]"]]),
        ("one in the prior of the other", [["eta", "ls"], ["other"]]),
        ("dependent entries", [["ls[0]", "ls[1]", "ls[2]"]]),
        ("one of no effect", [["idle"], ["ls[0]"], ["ls[1]"], ["ls[2]"]]),
    ],
)
def test_dependent_hyperparameters_form_a_block(kind, expected):
    X, y = models.data(10)
    with pm.Model() as model:
        if kind == "one in the prior of the other":
            eta = pm.HalfNormal("eta", 2.0)
            ls, other = pm.HalfNormal("ls", eta), pm.HalfNormal("other", 2.0)
            stacked([quadratic(1.0, eta), quadratic(ls), quadratic(other)], X, y)
        elif kind == "dependent entries":
            ls = pm.MvNormal("ls", np.zeros(3), cov=np.eye(3) + 0.5)
            stacked([quadratic(pm.math.exp(ls[k])) for k in range(3)], X, y)
        else:
            ls = pm.HalfNormal("ls", 2.0, shape=3)
            eta = pm.HalfNormal("eta", 2.0) if kind == "common magnitude" else 1.0
            idle = 1e-300 * pm.HalfNormal("idle", 1.0) if kind == "one of no effect" else 0.0
            third = ls[0] + ls[2] if kind == "one that two have" else ls[2]
            stacked([quadratic(own + idle, eta) for own in (ls[0], ls[1], third)], X, y)
    assert blocks_of(model) == expected


def test_average_log_density_equals_dense_algebra():
    rng = np.random.default_rng(3)
    problem = random_problem(4, 5, 3, per_class=True, with_mean=True)
    k, prior_mean = problem.K, problem.m
    for own in (k[:1], k):
        prior = DensePrior(own, prior_mean)
        mean, roots = rng.normal(size=(3, 5)), rng.normal(size=(3, 5, 5))
        for given in (None, roots[:1], roots):
            spread = np.zeros((3, 5, 5)) if given is None else np.broadcast_to(given @ given.swapaxes(1, 2), (3, 5, 5))
            expected = np.zeros(3)
            for a, (f, s) in enumerate(zip(mean - prior_mean, spread, strict=True)):
                precision = np.linalg.inv(own[a % len(own)])
                expected[a] -= 0.5 * (f @ precision @ f + np.trace(precision @ s) + 5 * np.log(2 * np.pi))
                expected[a] += 0.5 * np.linalg.slogdet(precision)[1]
            assert_allclose(expected_log_density(prior, mean, given), expected, rtol=1e-10)


@pytest.mark.parametrize("alike", [True, False])
def test_roots_of_the_posterior_covariance_reproduce_the_covariance(alike):
    problem = random_problem(4, 5, 3, with_mean=True)
    k, prior_mean = problem.K.reshape(-1, 5, 5)[:1], problem.m
    precision = np.full((3, 5), 0.7) if alike else np.random.default_rng(1).uniform(0.1, 3, size=(3, 5))
    posterior = make_posterior(DensePrior(k, prior_mean), SiteForm.INDEPENDENT, precision, np.zeros((3, 5)))
    roots = covariance_roots(posterior)
    assert len(roots) == (1 if alike else 3)
    joint = posterior.joint_covariance(k, k)
    for a in range(3):
        root = roots[a % len(roots)]
        assert_allclose(root @ root.T, joint[a, :, a], atol=1e-10)


@pytest.mark.variation(but=["1"])
def test_parents_of_a_conjugate_pair_match_the_closed_form(log_posterior):
    hierarchy = Hierarchy(log_posterior.classifier, log_posterior.space.data)
    assert (hierarchy.children, hierarchy.parents) == (["phi"], ["psi"])
    theta, phi, _ = start(log_posterior)
    for children in (phi, 1e-7 * phi, 300 * phi + 1):
        found = most_probable_parents(hierarchy, log_posterior.point(theta), {"phi": children})
        assert_allclose(np.exp(found["psi_log__"]), (SIGMA + 1) / (TAU + children), rtol=1e-12)
    step = next(mean_field_steps(log_posterior, theta, draws=100))
    values = log_posterior.space.natural(step.theta[None])
    assert_allclose(values["psi"], (SIGMA + 1) / (TAU + values["phi"]), rtol=1e-12)


def test_parents_of_any_prior_are_maximised():
    """Two length scales with a common scale, whose prior has a parameter. The reference searches along each."""
    X, y = inputs(2)
    with pm.Model() as model:
        rate = pm.Exponential("rate", 2.0)
        scale = pm.Exponential("scale", rate)
        ls = pm.HalfNormal("ls", scale, shape=2)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    posterior = DenseLogPosterior(read_classifier(model), VariationalBayes())
    hierarchy = Hierarchy(posterior.classifier, posterior.space.data)
    assert set(hierarchy.parents) == {"rate", "scale"}
    children = np.array([0.7, 1.9])
    found = most_probable_parents(hierarchy, posterior.point(posterior.space.initial_point()), {"ls": children})

    def negative(log_rate, log_scale):
        rate, scale = np.exp(log_rate), np.exp(log_scale)
        own = expon(scale=0.5).logpdf(rate) + expon(scale=1 / rate).logpdf(scale) + log_rate + log_scale
        return -own - halfnorm(scale=scale).logpdf(children).sum()

    at = {name: float(value) for name, value in found.items()}
    by_rate = minimize_scalar(lambda u: negative(u, at["scale_log__"]), bracket=(-1, 1), tol=1e-10).x
    by_scale = minimize_scalar(lambda u: negative(at["rate_log__"], u), bracket=(-1, 1), tol=1e-10).x
    assert at["rate_log__"] == pytest.approx(by_rate, abs=1e-6)
    assert at["scale_log__"] == pytest.approx(by_scale, abs=1e-6)


def fitted(log_posterior, seed=1, **options):
    optimum = maximise(log_posterior, log_posterior.space.initial_point(), 100)
    return hyper_method("mean_field", options).integrate(log_posterior, optimum, random_seed=seed)


@pytest.mark.variation
def test_seed_determines_the_draws():
    log_posterior = DenseLogPosterior(read_classifier(conjugate(1)), VariationalBayes())
    one, again, other = (fitted(log_posterior, seed, draws=100, steps=2, weights="utilities") for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.theta, again.theta)
    np.testing.assert_array_equal(one.weights, again.weights)
    assert one.log_evidence == again.log_evidence
    assert one.log_evidence != other.log_evidence


def test_fit_has_weights_and_a_message():
    options = {"draws": 150, "tolerance": 0.05, "weights": "latent"}
    with conjugate(1):
        fit = pm.fit(method="vb", hyper="mean_field", hyper_options=options, progressbar=False, random_seed=1)
    posterior = fit.hyper_posterior
    assert fit.converged
    assert posterior.weighing.draws == 150
    assert f"150 draws have the effective size {posterior.weighing.effective_size:.0f} (Pareto k" in fit.message
    assert "the standard error of the lower bound is" in fit.message
    assert posterior.log_evidence == posterior.weighing.estimate.value
    nodes = fit.nodes
    assert np.ptp(nodes["psi"].values) < 1e-12  # drawn for these parents
    assert np.ptp(nodes["phi"].values) > 0.01
    s = int(posterior.weights.argmax())
    assert posterior.solution(s).evidence == pytest.approx(float(nodes["evidence"][s]), abs=1e-6)
    # The average over hyperparameters is below the value at the best hyperparameters.
    assert posterior.log_evidence < fit.log_evidence


def test_default_weights_equal_weights_of_the_authors_and_start_at_the_priors():
    """The fit makes all steps from the prior means, and computes no bound."""
    log_posterior = DenseLogPosterior(read_classifier(conjugate(1)), VariationalBayes())
    found = fitted(log_posterior, draws=100, steps=7, tolerance=0.5)
    begin = log_posterior.space.initial_point()
    values = log_posterior.space.natural(begin[None])
    assert values["psi"][0] == pytest.approx([SIGMA / TAU])
    assert values["phi"][0] == pytest.approx([TAU / SIGMA])
    *_, last = islice(mean_field_steps(log_posterior, begin, draws=100, weights="authors", random_seed=1), 7)
    kept = np.isin(last.draws, found.theta).all(axis=1)
    assert len(found) == kept.sum() > 50
    assert_allclose(found.weights, softmax(last.log_weights[0][kept]), rtol=1e-10)
    assert found.converged
    assert np.isnan(found.log_evidence)
    assert "the standard error of their log mean weight is" in found.message


@pytest.mark.variation
def test_fit_with_a_posterior_for_each_class_reports_its_effective_draws():
    with of_each_class(1):
        fit = pm.fit(
            method="vb",
            hyper="mean_field",
            hyper_options={"draws": 100, "steps": 8, "tolerance": 0.5},
            progressbar=False,
            random_seed=1,
        )
    posterior, nodes = fit.hyper_posterior, fit.nodes["phi"].values[..., 0]
    # Draws of different classes are exchangeable.
    assert len(posterior) == 100
    assert_allclose(posterior.weights, 1 / 100)
    assert f"100 draws have the effective size {posterior.weighing.effective_size:.0f} (Pareto k" in fit.message
    assert posterior.weighing.effective_size < 100
    # The weights of a class depend on its own latent values alone.
    assert len(set(map(tuple, np.sort(nodes, axis=0).T))) == 3
    assert fit.converged


def test_message_names_too_few_effective_draws():
    X, y = models.data()
    with pm.Model() as model:
        phi = pm.Exponential("phi", 1e-4, shape=2)  # most draws are far too large
        f = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=1 / pm.math.sqrt(phi))).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    posterior = DenseLogPosterior(read_classifier(model), VariationalBayes())
    found = fitted(posterior, draws=100, steps=1, weights="printed")
    assert not found.converged
    assert "too few: use more draws, or take hyper='importance'" in found.message
    assert "after 1 step it is unknown whether the bound still rises: increase steps" in found.message
    assert np.isnan(found.log_evidence)


def test_invalid_options_and_models_raise_value_error():
    with pytest.raises(
        ValueError, match="weights must be one of 'authors', 'utilities', 'latent', 'printed', but is 'u"
    ):
        hyper_method("mean_field", {"weights": "utility"})
    model = conjugate(1)
    wanted = r"hyper='mean_field' is only for method='vb' of a gpep.MultinomialProbit, not for method='nested_ep'"
    with model, pytest.raises(ValueError, match=wanted):
        pm.fit(method="nested_ep", hyper="mean_field", progressbar=False)
    with (
        models.bernoulli_probit()[0],
        pytest.raises(ValueError, match=r"mean_field' is only for.*method='vb' with these options"),
    ):
        pm.fit(method="vb", hyper="mean_field", progressbar=False)
    with model:
        pm.Potential("more", -model["phi"].sum())
    with pytest.raises(gpep.StructureError, match=r"terms in addition to the likelihood and the priors .*more"):
        fitted(DenseLogPosterior(read_classifier(model), VariationalBayes()))
    X, y = inputs(1)
    with pm.Model() as improper:
        ls = pm.HalfFlat("ls")
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    posterior = DenseLogPosterior(read_classifier(improper), VariationalBayes())
    with pytest.raises(gpep.StructureError, match=r"priors of ls cannot all be sampled\. Give these variables proper"):
        next(mean_field_steps(posterior, posterior.space.initial_point(), draws=100))


def test_models_without_hyperparameters_are_refused():
    with models.fixed()[0]:
        fit = pm.fit(method="vb", hyper="mean_field", progressbar=False)
    assert len(fit.hyper_posterior) == 1
    assert fit.converged
