"""Likelihoods with label noise: distributions, densities, predictive probabilities and refusals."""

import copy
import pickle

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr

import pymc_gpep as gpep
from pymc_gpep.approximations import NoisyNestedEP
from pymc_gpep.approximations.methods import approximator
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.label_noise import NoisyMultinomialProbitLikelihood, RobustMaxLikelihood
from pymc_gpep.likelihoods.likelihood import log_predictive
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier

EPSILON, C, N = 0.1, 3, 5
RNG = np.random.default_rng(1)
F, Y = RNG.normal(size=(N, C)), np.array([0, 2, 1, 1, 0])
STEP = (np.arange(C) == F.argmax(axis=1)[:, None]).astype(float)
PROBIT = np.exp(np.stack([pm.logp(gpep.MultinomialProbit.dist(F), k).eval() for k in range(C)], axis=1))


STEPS, PROBITS = RobustMaxLikelihood(), NoisyMultinomialProbitLikelihood()


def noisy_probit(f, epsilon=EPSILON, **options):
    return gpep.MultinomialProbit.dist(f, epsilon=epsilon, **options)


def robust_max(f, epsilon=EPSILON, **options):
    return gpep.RobustMax.dist(f, epsilon, **options)


both = pytest.mark.parametrize(
    ("make", "likelihood", "without"),
    [(noisy_probit, NoisyMultinomialProbitLikelihood(), PROBIT), (robust_max, RobustMaxLikelihood(), STEP)],
    ids=["noisy_multinomial_probit", "robust_max"],
)


def bound(likelihood, n=N, epsilon=EPSILON):
    return likelihood.given(np.full((1, n), epsilon))


def model_of(likelihood, epsilon=EPSILON, f=None):
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=2 * pm.gp.cov.ExpQuad(1, ls=1.0) + pm.gp.cov.WhiteNoise(0.1))
        f = gp.prior("f", X=np.arange(float(N))[:, None], n_outputs=C).T
        if likelihood.name == "robust_max":
            gpep.RobustMax("y", f, epsilon, observed=Y)
        else:
            gpep.MultinomialProbit("y", f, epsilon=epsilon, observed=Y)
    return model, gp


@both
def test_log_probabilities_with_label_noise_match_the_formula(make, likelihood, without):
    log_p = pm.logp(make(F[:, None]), np.arange(-1, C + 1)).eval()
    expected = (1 - EPSILON) * without + EPSILON / C
    assert_allclose(np.exp(log_p[:, 1:-1]), expected, rtol=1e-12)
    assert np.isneginf(log_p[:, [0, -1]]).all()
    for y in range(C):
        found = [bound(likelihood, 1).log_density(F[i][:, None], np.array([y])) for i in range(N)]
        assert_allclose(np.exp(found), expected[:, y], rtol=1e-12)
    every = bound(likelihood).log_density(np.stack([F.T, F.T + 1.0]), Y)
    assert_allclose(every, np.log(expected[np.arange(N), Y]).sum(), rtol=1e-12)


@both
@pytest.mark.parametrize("mode", ["FAST_COMPILE", pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_draws_have_the_given_share_of_noise(make, likelihood, without, mode):
    draws = pm.draw(make(F, size=(20_000, N)), random_seed=1, mode=mode)
    frequencies = np.stack([(draws == k).mean(axis=0) for k in range(C)], axis=1)
    assert_allclose(frequencies, (1 - EPSILON) * without + EPSILON / C, atol=4 * np.sqrt(0.25 / 20_000))


@both
def test_gradients_match_differences(make, likelihood, without):
    f = pt.dmatrix("f")
    slope = pytensor.grad(pm.logp(make(f), Y).sum(), f).eval({f: F})
    if likelihood.name == "robust_max":
        assert_allclose(slope, 0.0)
    else:
        value = pm.logp(make(f), Y).sum()
        for i, k in ((0, 0), (1, 2), (4, 1)):
            h = np.zeros_like(F)
            h[i, k] = 1e-5
            expected = (value.eval({f: F + h}) - value.eval({f: F - h})) / 2e-5
            assert_allclose(slope[i, k], expected, rtol=1e-7, atol=1e-9)


def test_zero_epsilon_equals_no_label_noise():
    plain = gpep.MultinomialProbit.dist(F, epsilon=0.0)
    assert type(plain.owner.op) is type(gpep.MultinomialProbit.dist(F).owner.op)
    log_p = pm.logp(robust_max(F, 0.0), F.argmax(axis=1)).eval()
    assert_allclose(log_p, 0.0)
    assert np.isneginf(pm.logp(robust_max(F, 0.0), F.argmin(axis=1)).eval()).all()


@both
def test_model_with_label_noise_is_recognised(make, likelihood, without):
    model, _ = model_of(likelihood)
    assert [each for each in LIKELIHOODS if each.read(model["y"]) is not None] == [likelihood]
    classifier = read_classifier(model)
    assert classifier.likelihood_model == likelihood
    assert_allclose(classifier.parameters.eval(), np.full((1, N), EPSILON))
    given = bound(likelihood)
    assert pickle.loads(pickle.dumps(given)) == copy.deepcopy(given) == likelihood


@both
@pytest.mark.parametrize("coupled", [False, True])
def test_predicted_probabilities_match_averages(make, likelihood, without, coupled):
    rng = np.random.default_rng(2)
    root = rng.normal(size=(N, C, C))
    cov = root @ root.swapaxes(1, 2) if coupled else np.stack([np.diag(each) for each in rng.uniform(0.1, 2, (N, C))])
    mean = rng.normal(size=(N, C))
    p, error = bound(likelihood).probabilities(mean, cov)
    assert (error < 1e-9).all()
    assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    noise = float(likelihood.name != "robust_max")
    draws = rng.normal(size=(100_000, 2, C))
    for i in range(N):
        utilities = mean[i] + draws[:, 0] @ np.linalg.cholesky(cov[i]).T + noise * draws[:, 1]
        expected = np.bincount(utilities.argmax(axis=1), minlength=C) / len(draws)
        assert_allclose(p[i], (1 - EPSILON) * expected + EPSILON / C, atol=4 * np.sqrt(0.25 / len(draws)))
    for y in range(C):
        labels = np.full(N, y)
        assert_allclose(log_predictive(bound(likelihood), mean, cov, labels), np.log(p[:, y]), atol=1e-12)
        assert_allclose(bound(likelihood).log_tail(mean, cov, labels), np.log(p[:, y]), atol=0.05)


def test_step_likelihood_without_latent_variance_has_exact_probabilities():
    likelihood = bound(RobustMaxLikelihood(), 2)
    p, _ = likelihood.probabilities(np.array([[1.0, 2.0, 0.0], [0.0, -1e3, 1e3]]), np.zeros((2, 3, 3)))
    rest = EPSILON / C
    assert_allclose(p, [[rest, 1 - 2 * rest, rest], [rest, rest, 1 - 2 * rest]], rtol=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "kind", "message"),
    [
        (-0.1, ValueError, "y: epsilon must be from 0 to below 1, but is -0.1"),
        (1.0, ValueError, "y: epsilon must be from 0 to below 1, but is 1.0"),
        (np.nan, ValueError, "y: epsilon must be from 0 to below 1, but is nan"),
        ("a", TypeError, "y: epsilon must be a number, but is 'a'"),
        ([0.1, 0.2], TypeError, "y: epsilon must be a number"),
    ],
)
def test_unsupported_epsilons_are_refused(epsilon, kind, message):
    for make in (gpep.RobustMax, gpep.MultinomialProbit):
        with pm.Model() as model, pytest.raises(kind, match=message):
            make("y", F, epsilon=epsilon, observed=Y)
        assert not model.basic_RVs


def test_invalid_epsilon_raises_value_error():
    for make in (gpep.RobustMax, gpep.MultinomialProbit):
        with pytest.raises(ValueError, match="y: epsilon must be one number for all labels, but e has 1 axes"):
            make("y", F, epsilon=pt.dvector("e"), observed=Y)
    with pytest.raises(ValueError, match=r"epsilon of 'y' must be from 0 to below 1, but is 1.2. .* pm.Beta"):
        bound(NoisyMultinomialProbitLikelihood(), epsilon=1.2).check_parameters(None, "'y'")


def test_error_of_other_methods_names_methods_with_label_noise():
    for each in (STEPS, PROBITS):
        likelihood = read_classifier(model_of(each)[0]).likelihood_model
        assert type(approximator(None, likelihood, {})) is NoisyNestedEP
        with pytest.raises(ValueError, match=r"'vb' supports .* Methods for this likelihood are 'nested_ep'"):
            approximator("vb", likelihood, {})


def with_prior(make=gpep.MultinomialProbit):
    with pm.Model() as model:
        epsilon = pm.Beta("epsilon", 2, 10)
        gp = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(1, ls=2.0))
        f = gp.prior("f", X=np.arange(12.0)[:, None], n_outputs=2)
        y = np.repeat([0, 1], 6)
        y[2] = 1
        make("y", f.T, epsilon=epsilon, observed=y)
    return model, gp


@pytest.mark.parametrize("make", [gpep.MultinomialProbit, gpep.RobustMax])
def test_learned_label_noise_is_used_in_predictions_and_saved(make):
    model, gp = with_prior(make)
    log_posterior = DenseLogPosterior(read_classifier(model), NoisyNestedEP(tolerance=1e-9))
    theta = np.array([-1.0])
    slope = log_posterior(theta).gradient[0]
    up, down = (log_posterior(theta + h).log_posterior for h in (1e-4, -1e-4))
    assert slope == pytest.approx((up - down) / 2e-4, rel=1e-6)
    with model:
        fit = pm.fit(method="nested_ep", progressbar=False)
    epsilon = float(fit.hyperparameters["epsilon"])
    assert 0.05 < epsilon < 0.4
    p = fit.predict(gp, np.array([[2.0], [9.0]]))["p"].values
    assert (p.argmax(axis=1) == [0, 1]).all()  # the label at 2 is the wrong class, by noise
    assert (p > epsilon / 2).all()
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert_allclose(again.predict(gp, np.array([[2.0], [9.0]]))["p"].values, p, atol=1e-10)
    with pytest.raises(
        NotImplementedError, match=r"'sparse_ep' needs constant parameters .* depend on 'epsilon'. .*nested_ep"
    ):
        pm.fit(model=model, method="sparse_ep", inducing=3, gp=gp, progressbar=False)


@both
def test_samplers_without_guide_accept_label_noise(make, likelihood, without):
    model, _ = model_of(likelihood)
    with model:
        draws = pm.sample(
            10, tune=5, chains=1, step=gpep.samplers.EllipticalSlice(), random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    f = draws.posterior["f"].values[0]
    assert np.isfinite(f).all()
    assert len(np.unique(f[:, 0, 0])) > 7


def test_gibbs_sampling_finds_the_posterior_with_label_noise():
    """Two rows of two classes: the mean difference equals the mean difference by quadrature."""
    k, epsilon, y = np.array([[9.0, 8.0], [8.0, 9.0]]), 0.1, np.array([0, 1])
    with pm.Model():
        f = pt.stack([pm.MvNormal(f"f_{a}", [1.0 - a, 1.0 - a], k) for a in range(2)])
        gpep.MultinomialProbit("y", f.T, epsilon=epsilon, observed=y)
        draws = pm.sample(
            800, tune=0, chains=1, step=gpep.samplers.ProbitGibbs(sweeps=5), random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    found = draws.posterior["f_0"].values[0] - draws.posterior["f_1"].values[0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    z = np.stack(np.meshgrid(nodes, nodes)).reshape(2, -1)
    x = 1.0 + np.linalg.cholesky(2.0 * k) @ z  # f_0 − f_1
    weight = np.outer(weights, weights).ravel()
    for row, sign in enumerate((1.0, -1.0)):
        weight = weight * ((1 - epsilon) * ndtr(sign * x[row] / np.sqrt(2)) + epsilon / 2)
    expected = x @ weight / weight.sum()
    error = found.std(axis=0) / np.sqrt(300)  # successive draws are correlated: 300 is their effective number
    assert (np.abs(found.mean(axis=0) - expected) < 4 * error).all()
    assert (np.abs(expected) > 5 * error).any()


def test_gibbs_sampling_with_fixed_utilities_refuses_to_learn_label_noise():
    model, _ = with_prior()
    with model, pytest.raises(ValueError, match=r"hyper='collapsed' fixes the utilities, .* make epsilon a number"):
        gpep.samplers.ProbitGibbs(hyper="collapsed")
    with model:
        draws = pm.sample(
            3, tune=2, chains=1, step=gpep.samplers.ProbitGibbs(sweeps=2), random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert ((draws.posterior["epsilon"] > 0) & (draws.posterior["epsilon"] < 1)).all()
