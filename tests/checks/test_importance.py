"""Fits against the exact posterior by importance sampling: weights, verdicts, and resampled draws."""

from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from arviz_stats.base import array_stats
from scipy.stats import multivariate_normal

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.checks.importance import importance_check, log_importance_weights, resample
from pymc_gpep.hyper.weights import smooth
from tests.likelihoods.with_parameters import CASES, model_of
from tests.reference.data import random_problem, squared_exponential
from tests.reference.elliptical_slices import slices
from tests.reference.exact import importance_evidence, quadrature_posterior
from tests.reference.prior_sampling import LIKELIHOODS
from tests.reference.stored import stored

# Two or three points are hardly informative, and the fits warn.
pytestmark = pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")

X = np.array([[0.0], [0.6], [2.0]])
Y = np.array([0, 2, 1])


def classifier(eta, X=X, y=Y, softmax=False, per_class=False, rotated=True):
    """Model of three classes at fixed hyperparameters, and covariances (3, n, n) with PyMC's jitter."""
    scales = np.array([1.0, 1.4, 0.7]) if per_class else np.ones(3)
    with pm.Model() as model:
        if per_class:
            rows = []
            for k, scale in enumerate(scales):
                gp = pm.gp.Latent(cov_func=(scale * eta) ** 2 * pm.gp.cov.ExpQuad(X.shape[1], ls=1.0))
                rows.append(gp.prior(f"f_{k}", X=X, reparameterize=rotated and k != 1))
            f = pm.math.stack(rows)
        else:
            gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=1.0))
            f = gp.prior("f", X=X, n_outputs=3, reparameterize=rotated)
        if softmax:
            pm.Categorical("y", logit_p=f.T, observed=y)
        else:
            gpep.MultinomialProbit("y", f.T, observed=y)
    k = np.stack([squared_exponential(X, variance=(s * eta) ** 2, lengthscale=1.0) for s in scales])
    return model, k + 1e-6 * np.eye(len(X))


def fitted(model, method):
    with model:
        return pm.fit(method=method, progressbar=False, random_seed=1)


METHODS = [
    ("nested_ep", False, False),
    ("nested_ep", True, False),
    ("qep", False, False),
    ("iep", True, False),
    ("vb", False, False),
    ("laplace", False, False),
    ("laplace", True, True),
]


@pytest.mark.parametrize(
    ("method", "per_class", "softmax", "rotated"),
    [*((*each, True) for each in METHODS), *((*METHODS[i], False) for i in (0, 1, -1))],
)
def test_weights_are_ratios_of_the_densities(method, per_class, softmax, rotated):
    model, k = classifier(2.0, softmax=softmax, per_class=per_class, rotated=rotated)
    fit = fitted(model, method)
    drawn = fit.sample(5, chains=1, random_seed=2)["posterior"].sel(chain=0)
    values = {name: value.to_numpy() for name, value in drawn.data_vars.items()}
    names = [f"f_{i}" for i in range(3)] if per_class else ["f"]
    f = np.stack([values[name] for name in names], axis=1) if per_class else values["f"]

    prior = np.zeros((3, 3, 3, 3))
    prior[range(3), :, range(3), :] = k
    posterior = fit.solution.posterior
    q = posterior.joint_covariance(np.broadcast_to(posterior.prior.k, k.shape), posterior.prior.k).reshape(9, 9)
    likelihood = LIKELIHOODS["softmax" if softmax else "multinomial_probit"](f.swapaxes(1, 2), Y).sum(axis=1)
    flat = f.reshape(5, 9)
    expected = multivariate_normal(np.zeros(9), prior.reshape(9, 9)).logpdf(flat) + likelihood
    expected -= multivariate_normal(fit.solution.mean.ravel(), q).logpdf(flat)
    found, x = log_importance_weights(fit.solution, f)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(x, f - fit.solution.mean, atol=1e-12)


@pytest.mark.variation(but=["ordered_probit", "poisson"])
@pytest.mark.parametrize("name", CASES)
def test_log_weights_use_the_likelihood_of_each_point(name):
    model, _ = model_of(CASES[name].observe)
    fit = fitted(model, "ep")
    f = fit.sample(4, chains=1, random_seed=2)["posterior"]["f"].sel(chain=0).to_numpy()
    solution = fit.solution
    x = f[:, None] - solution.mean
    points = zip(solution.labels, f.T, solution.likelihood.parameters.T, strict=True)
    likelihood = sum(CASES[name].log_probability(y, values, given) for y, values, given in points)
    ratio = solution.posterior.relative_log_normaliser - solution.posterior.relative_site_log_density(x)
    found, _ = log_importance_weights(fit.solution, f[:, None])
    np.testing.assert_allclose(found, likelihood + ratio, rtol=0, atol=1e-8)


@stored
def of_two_points(k, y):
    """Evidence, means (3, 2) and covariances (6, 6), flattened and concatenated."""
    found = quadrature_posterior(k, y, tolerance=1e-7)
    return np.concatenate([[found.evidence], found.mean.ravel(), found.covariance.ravel()])


@pytest.fixture(scope="module")
def exact():
    """Evidence and moments for two points and η = 2."""
    evidence, *moments = of_two_points(classifier(2.0, X=X[:2], y=Y[:2])[1], Y[:2])
    mean, covariance = np.reshape(moments[:6], (3, 2)), np.reshape(moments[6:], (6, 6))
    return SimpleNamespace(evidence=evidence, mean=mean, covariance=covariance)


def test_evidence_and_means_match_quadrature(exact):
    fit = fitted(classifier(2.0, X=X[:2], y=Y[:2])[0], "laplace")
    check = fit.importance(20_000, random_seed=4)
    assert abs(check.log_evidence - exact.evidence) < 4 * check.standard_error < 0.1
    assert abs(fit.log_evidence - exact.evidence) > 4 * check.standard_error
    # Moments of differences from the mean over functions. The common part has its prior as posterior.
    to = np.eye(3) - 1 / 3
    std = np.sqrt(np.einsum("ka,iab,kb->ki", to, fit.solution.cov, to))
    shift = to @ (exact.mean - fit.solution.mean) / std
    assert np.abs(shift).max() > 10 * check.standard_error
    np.testing.assert_allclose(check.mean_shift.T, shift, rtol=0, atol=5 * check.standard_error)


@pytest.mark.variation
def test_evidence_matches_another_sampler():
    problem = random_problem(3, 20, 3, variance=4.0)
    model, k = classifier(2.0, X=problem.X, y=problem.y)
    fit = fitted(model, "nested_ep")
    check = fit.importance(4000, random_seed=5)
    posterior = fit.solution.posterior
    cov = posterior.joint_covariance(k[:1], k[:1]).reshape(60, 60)
    other = importance_evidence(k, problem.y, fit.solution.mean, 1.1 * cov, draws=5_000, seed=6)
    assert abs(check.log_evidence - other.evidence) < 4 * np.hypot(check.standard_error, other.error) < 0.2
    assert check.fitted_log_evidence == fit.log_evidence


def test_verdict_on_draws_is_good_only_for_an_easy_posterior():
    easy = fitted(classifier(0.5)[0], "nested_ep").importance(random_seed=7)
    assert easy.usable
    assert easy.draws_verdict == "good"
    assert easy.effective_size > 990
    assert easy.standard_error < 0.01
    worth = f"effective size {easy.effective_size:.0f} of 1000 (Pareto k {easy.pareto_k:.2f})"
    assert str(easy).startswith(f"nested_ep: weighted draws, {worth}, good: ")
    assert f"({easy.fitted_log_evidence:.3f} by the fit)" in easy.about_draws
    assert easy.fit_verdict == "close"
    assert easy.known == 1.0
    assert easy.about_fit.startswith("The fit, close: by importance weights of blocks of 3 points, usable at 3 of 3, ")

    hard = fitted(classifier(30.0)[0], "vb").importance(random_seed=7)
    assert hard.pareto_k > 1
    assert not hard.usable
    assert hard.draws_verdict == "do not use"
    assert hard.effective_size < 100
    assert "do not represent the exact joint posterior of 9 latent values" in repr(hard)
    assert hard.fit_verdict == "unknown"
    assert hard.about_fit.endswith("use a sampler.")


def changed(check, **fields):
    return type(check)(**{**vars(check), **fields})


VERDICTS = {
    -np.inf: "good",
    0.49: "good",
    0.5: "look closer",
    0.69: "look closer",
    0.7: "do not use",
    np.inf: "do not use",
}


@pytest.mark.parametrize(("pareto_k", "verdict"), VERDICTS.items())
def test_pareto_k_determines_the_verdict_on_draws(pareto_k, verdict, shared):
    check = changed(shared.fit.importance(100, random_seed=1), pareto_k=pareto_k, effective_size=89.0)
    assert check.draws_verdict == verdict
    assert f"(Pareto k {pareto_k:.2f}), {verdict}: " in str(check)


@pytest.mark.parametrize(("pareto_k", "effective_size", "verdict"), [(0.99, 91.0, "good"), (1.0, 91.0, "do not use")])
def test_heavy_tail_of_negligible_weight_is_ignored(pareto_k, effective_size, verdict, shared):
    check = shared.fit.importance(100, random_seed=1)
    assert changed(check, pareto_k=pareto_k, effective_size=effective_size).draws_verdict == verdict


@pytest.mark.parametrize("pareto_k", [0.3, 0.6])
def test_verdict_on_draws_with_a_small_effective_size_is_few(pareto_k, shared):
    check = shared.fit.importance(1000, random_seed=1)
    few = changed(check, pareto_k=pareto_k, effective_size=42.0)
    assert few.draws_verdict == "few"
    assert few.usable
    assert few.fit_verdict == check.fit_verdict


@pytest.mark.parametrize(
    ("shift", "known", "verdict"),
    [(0.029, 8, "close"), (0.031, 8, "off"), (0.029, 6, "close"), (0.001, 5, "unknown"), (0.5, 0, "unknown")],
)
def test_shifts_of_point_probabilities_determine_the_verdict_on_the_fit(shift, known, verdict, shared):
    rows = np.arange(8) < known
    points = {"shift": np.where(rows, shift, np.nan), "standard_error": np.where(rows, 0.001, np.nan)}
    points = xr.Dataset({name: ("flower", array) for name, array in (points | {"size": 4 * rows}).items()})
    check = changed(shared.fit.importance(100, random_seed=1), points=points)
    assert check.fit_verdict == verdict
    assert check.about_fit.startswith(f"The fit, {verdict}: ")
    assert ("use a sampler" in check.about_fit) == (verdict == "unknown")


def test_verdict_on_sites_over_several_points_is_unknown(shared, monkeypatch):
    monkeypatch.setattr(type(shared.fit.solution.posterior.sites), "pointwise", False)
    check = shared.fit.importance(100, random_seed=1)
    assert check.known == 0.0
    assert check.fit_verdict == "unknown"
    assert check.about_fit == "The fit, unknown: importance weights of blocks of points are unusable; use a sampler."


def probabilities(likelihood, y, f):
    """Averages (n,) over draws (s, c, n) of the probabilities of the labels."""
    return np.exp([likelihood.log_density(f[..., [i]], y[[i]]) for i in range(len(y))]).mean(axis=1)


@stored
def sampled_probabilities(k, y):
    """Averages (n,) over the exact posterior, by long elliptical slice sampling."""
    solution = NestedEP().solve(k, np.zeros((3, len(y))), y)
    return probabilities(solution.likelihood, y, slices(solution.posterior, solution.likelihood, y, steps=180, burn=30))


@pytest.mark.variation
def test_point_moments_match_another_sampler():
    """Errors of class-independent EP and Laplace's method at each point, against another sampler."""
    problem = random_problem(3, 20, 3, variance=10.0)
    model, k = classifier(np.sqrt(10.0), X=problem.X, y=problem.y)
    exact = sampled_probabilities(k[0], problem.y)
    for method, least in (("nested_ep", -1.0), ("iep", 0.5), ("laplace", 0.8)):
        fit = fitted(model, method)
        posterior, likelihood = fit.solution.posterior, fit.solution.likelihood
        shift = exact - probabilities(likelihood, problem.y, posterior.draw(np.random.default_rng(1), 4000))
        points = fit.importance(2000, random_seed=2).points
        known = points["size"].values > 0
        assert known.mean() > 0.7
        shift, found = shift[known], points["shift"].values[known]
        assert np.sqrt((found**2).mean()) == pytest.approx(np.sqrt((shift**2).mean()), rel=0.5, abs=0.01)
        assert np.corrcoef(found, shift)[0, 1] > least


def test_results_have_dims_and_depend_on_the_seed(shared):
    check = shared.fit.importance(200, random_seed=8)
    assert check.log_weights.shape == (200,)
    assert check.mean_shift.dims == ("flower", "species")
    for labelled in (check.mean_shift, check.points):
        np.testing.assert_array_equal(labelled["flower"], np.arange(len(shared.y)) + 100)
    assert check.points["shift"].dims == ("flower",)
    np.testing.assert_array_equal(check.log_weights, shared.fit.importance(200, random_seed=8).log_weights)
    assert not np.array_equal(check.log_weights, shared.fit.importance(200, random_seed=9).log_weights)
    assert check.log_evidence == pytest.approx(np.log(np.exp(check.log_weights).mean()))


def test_importance_sampling_after_set_data_uses_the_labels_of_the_fit():
    with pm.Model():
        y = pm.Data("labels", Y)
        gp = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(1, ls=1.0))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, observed=y)
        fit = pm.fit(method="nested_ep", progressbar=False)
        before = fit.importance(random_seed=1).log_evidence
        pm.set_data({"labels": Y[::-1].copy()})
    assert fit.importance(random_seed=1).log_evidence == before


def test_unsupported_fits_are_refused_with_reasons(shared):
    with pytest.raises(
        ValueError, match="draws must be at least 100, so that the tail of the weights can be fitted, but is 99"
    ):
        shared.fit.importance(99)
    values = {"f": np.full((100, 3, len(shared.y)), np.nan)}
    with pytest.raises(ValueError, match="nested_ep has draws without a finite density: converged"):
        importance_check("nested_ep", shared.fit.solution, values["f"], shared.fit.latent["mean"])


def test_smoothed_log_weights_equal_arviz_up_to_the_normaliser():
    raw = 3.0 + 2.0 * np.random.default_rng(10).standard_normal(1000)
    smoothed, pareto_k = smooth(raw)
    by_arviz, its_k = array_stats.psislw(-raw)
    assert pareto_k == its_k
    np.testing.assert_allclose(smoothed - smoothed.max(), by_arviz - by_arviz.max(), rtol=0, atol=1e-12)
    body = np.argsort(raw)[:900]
    np.testing.assert_allclose(smoothed[body], raw[body], rtol=1e-12)
    assert not np.allclose(smoothed, raw)
    assert smooth(raw + 1e3)[1] == pytest.approx(pareto_k)


def test_constant_weights_are_not_smoothed():
    raw = np.where(np.arange(1000) < 500, -2.0, -1.0)
    smoothed, pareto_k = smooth(raw)
    np.testing.assert_array_equal(smoothed, raw)
    assert pareto_k == -np.inf


def test_underflowing_tails_have_infinite_pareto_k():
    assert smooth(1000.0 * np.arange(1000.0))[1] == np.inf


def test_each_draw_is_resampled_in_proportion_to_its_weight():
    log_weights = np.log(np.random.default_rng(11).exponential(size=50))
    share = np.exp(log_weights) / np.exp(log_weights).sum()
    chosen = resample(log_weights, 400, np.random.default_rng(12))
    assert (np.abs(np.bincount(chosen, minlength=50) - 400 * share) < 1).all()
    assert np.abs(np.corrcoef(chosen[1:], chosen[:-1])[0, 1]) < 0.2
    alone = resample(np.array([-np.inf, 0.0, -np.inf]), 4, np.random.default_rng(13))
    np.testing.assert_array_equal(alone, [1, 1, 1, 1])


@pytest.mark.parametrize("rotated", [True, False], ids=["rotated", "centred"])
def test_resampled_draws_have_the_exact_mean(rotated, exact):
    model, k = classifier(2.0, X=X[:2], y=Y[:2], rotated=rotated)
    fit = fitted(model, "laplace")
    resampled = fit.sample(5000, chains=2, importance=True, random_seed=14)
    plain = fit.sample(5000, chains=2, random_seed=14)
    std = np.sqrt(exact.covariance.diagonal()).reshape(3, 2)
    error = std / np.sqrt(resampled["sample_stats"].attrs["effective_size"])
    off = np.abs(resampled["posterior"]["f"].mean(("chain", "draw")) - exact.mean)
    assert (off < 4.5 * error).all()
    plain_off = np.abs(plain["posterior"]["f"].mean(("chain", "draw")) - exact.mean)
    assert (plain_off > 6 * error).any()
    assert float((off**2).sum()) < 0.1 * float((plain_off**2).sum())
    if rotated:  # the rotated values follow the rotated prior
        root = np.linalg.cholesky(k[0])
        f = np.einsum("ij,sdkj->sdki", root, resampled["posterior"]["f_rotated_"])
        np.testing.assert_allclose(f, resampled["posterior"]["f"], atol=1e-8)


def test_resampled_draws_have_the_groups_and_dims_of_plain_draws(shared):
    plain = shared.fit.sample(30, chains=2, random_seed=15)
    data = shared.fit.sample(30, chains=2, importance=True, random_seed=15)
    assert set(data["posterior"].data_vars) == set(plain["posterior"].data_vars)
    assert data["posterior"].sizes == plain["posterior"].sizes
    assert data["posterior"].attrs["log_evidence"] == shared.fit.log_evidence
    statistics = data["sample_stats"]
    assert statistics["log_weight"].dims == ("chain", "draw")
    assert statistics["log_weight"].shape == (2, 30)
    assert statistics.attrs["pareto_k"] < 0.7
    assert 60 < statistics.attrs["effective_size"] <= 1000
    assert not plain["sample_stats"].data_vars
    az.summary(data, var_names=["f"])

    again = shared.fit.sample(30, chains=2, importance=True, random_seed=15)
    np.testing.assert_array_equal(again["posterior"]["f"], data["posterior"]["f"])
    trace = shared.fit.sample(30, chains=2, importance=True, random_seed=15, return_inferencedata=False)
    np.testing.assert_array_equal(trace.get_values("f", combine=False)[1], data["posterior"]["f"][1])


def test_useless_resampling_causes_a_warning():
    fit = fitted(classifier(30.0)[0], "vb")
    with pytest.warns(
        UserWarning, match=r"vb: weighted draws, effective size .*, do not use: they do not represent the exact"
    ) as seen:
        fit.sample(10, importance=True, random_seed=16)
    assert seen[0].filename == __file__
