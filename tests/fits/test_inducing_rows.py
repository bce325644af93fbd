"""Fits with inducing inputs as rows with residuals, against dense algebra on the FITC covariance Q + diag(K − Q)."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pymc.exceptions import ImputationWarning

import pymc_gpep as gpep
from pymc_gpep.approximations import EP
from pymc_gpep.approximations.laplace import ScalarLaplace
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from tests.reference.data import squared_exponential

JITTER = 1e-6
RNG = np.random.default_rng(8)
N, M, GROUPS = 24, 5, 4
X = RNG.uniform(-2.0, 2.0, size=(12, 2))
Z = RNG.uniform(-2.0, 2.0, size=(M, 2))
PLACE = RNG.permutation(np.repeat(np.arange(12), 2))
GROUP = np.empty(N, np.int64)  # each place has two different groups, so that rows are not grouped
for place in range(12):
    GROUP[place == PLACE] = RNG.permutation(GROUPS)[:2]
COUNTS = RNG.poisson(np.exp(np.sin(X[PLACE, 0]) + 0.3 * GROUP / GROUPS))


def kernel(a, b):
    return squared_exponential(a, b, variance=1.44, lengthscale=0.9)


def fitc(a, b, same):
    """FITC covariance of places a and b. `same` marks pairs of equal places."""
    k = kernel(Z, Z)
    k += JITTER * np.trace(k) / M * np.eye(M)
    q = kernel(a, Z) @ np.linalg.solve(k, kernel(Z, b))
    return np.where(same, kernel(a, b), q)


def process(x, **kernels):
    return pm.gp.Latent(cov_func=1.44 * pm.gp.cov.ExpQuad(2, ls=0.9), **kernels).prior("f", X=x)


@pytest.fixture(scope="module")
def effects():
    """A process at places of two rows each, plus group effects of rows."""
    with pm.Model() as model:
        place, group = pm.Data("place", PLACE), pm.Data("group", GROUP)
        f = process(X)
        u = pm.Normal("u", 0.0, 0.7, shape=GROUPS)
        pm.Poisson("y", mu=pm.math.exp(u[group] + f[place]), observed=COUNTS)
        fit = pm.fit(method="ep", inducing=Z, progressbar=False, tolerance=1e-10)
    j = np.eye(GROUPS)[GROUP] * 0.7
    same = PLACE[:, None] == PLACE
    k = fitc(X[PLACE], X[PLACE], same) + j @ j.T
    likelihood = LIKELIHOODS["poisson"].given(np.zeros((1, N)))
    exact = EP(tolerance=1e-10).solve(k, np.zeros((1, N)), COUNTS, likelihood=likelihood)
    return SimpleNamespace(model=model, fit=fit, exact=exact, j=j)


def test_evidence_matches_dense_ep_with_the_fitc_covariance(effects):
    assert effects.fit.log_evidence == pytest.approx(effects.exact.evidence, abs=1e-8)
    latent = effects.fit.latent_moments()
    assert_allclose(latent[0].ravel(), effects.exact.mean.ravel(), atol=1e-7)


def test_rows_of_a_place_share_its_residual_at_new_rows(effects):
    """A new row at a fitted place has the residual of the process at the place, also for another group."""
    place, group = np.array([3, 3, 7]), np.array([0, 1, 2])
    predicted = effects.fit.predict(data={"place": place, "group": group})
    same = place[:, None] == PLACE
    across = fitc(X[place], X[PLACE], same) + 0.49 * (group[:, None] == GROUP)
    own = np.full(3, 1.44 + 0.49)
    mean, cov = effects.exact.posterior.predict(across[None], own[None], np.zeros((1, 3)))
    assert_allclose(predicted["mean"], mean[0], atol=1e-7)
    assert_allclose(predicted["variance"], cov[:, 0, 0], atol=1e-7)


def test_rows_with_equal_inputs_share_a_residual():
    """A process with a value for each row, with pairs of equal inputs."""
    likelihood = LIKELIHOODS["poisson"].given(np.zeros((1, N)))
    with pm.Model():
        f = process(pm.Data("x", X[PLACE]))
        u = pm.Normal("u", 0.0, 0.7, shape=GROUPS)
        pm.Poisson("y", mu=pm.math.exp(u[GROUP] + f), observed=COUNTS)
        fit = pm.fit(method="ep", inducing=Z, progressbar=False, tolerance=1e-10)
    k = fitc(X[PLACE], X[PLACE], PLACE[:, None] == PLACE) + 0.49 * (GROUP[:, None] == GROUP)
    exact = EP(tolerance=1e-10).solve(k, np.zeros((1, N)), COUNTS, likelihood=likelihood)
    assert fit.log_evidence == pytest.approx(exact.evidence, abs=1e-8)
    f = fit.sample(2, random_seed=1).posterior["f"].values[0, :, PLACE == 3]
    assert_allclose(f[0], f[1], rtol=1e-12)


def test_rows_with_equal_inputs_have_separate_noise():
    likelihood = LIKELIHOODS["poisson"].given(np.zeros((1, N)))
    with pm.Model():
        cov = 1.44 * pm.gp.cov.ExpQuad(2, ls=0.9) + pm.gp.cov.WhiteNoise(0.5)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X[PLACE])
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        fit = pm.fit(method="laplace", inducing=Z, progressbar=False, tolerance=1e-10)
    k = kernel(Z, Z)
    q = kernel(X, Z)[PLACE] @ np.linalg.solve(k + JITTER * np.trace(k) / M * np.eye(M), kernel(Z, X)[:, PLACE])
    covariance = np.where(np.eye(N, dtype=bool), 1.69, q)
    exact = ScalarLaplace().solve(covariance, np.zeros((1, N)), COUNTS, likelihood=likelihood)
    assert fit.log_evidence == pytest.approx(exact.evidence, abs=1e-8)


def test_new_inputs_have_separate_residuals():
    """A process with an input for each row, plus an effect."""
    x, new = RNG.normal(size=(15, 2)), RNG.normal(size=(3, 2))
    group, y = RNG.integers(0, GROUPS, 15), RNG.poisson(2.0, 15)
    with pm.Model():
        f = process(pm.Data("x", x))
        u = pm.Normal("u", 0.0, 0.7, shape=GROUPS)
        pm.Poisson("y", mu=pm.math.exp(f + u[pm.Data("group", group)]), observed=y)
        fit = pm.fit(method="laplace", inducing=Z, progressbar=False, tolerance=1e-10)
    across_groups = 0.49 * (group[:, None] == group)
    likelihood = LIKELIHOODS["poisson"].given(np.zeros((1, 15)))
    k = fitc(x, x, np.eye(15, dtype=bool)) + across_groups
    exact = ScalarLaplace().solve(k, np.zeros((1, 15)), y, likelihood=likelihood)
    assert fit.log_evidence == pytest.approx(exact.evidence, abs=1e-8)
    across = fitc(new, x, np.zeros((3, 15), bool)) + 0.49 * (np.array([[0], [2], [1]]) == group)
    own = kernel(new, new).diagonal() + 0.49
    mean, cov = exact.posterior.predict(across[None], own[None], np.zeros((1, 3)))
    predicted = fit.predict(new, data={"group": np.array([0, 2, 1])})
    assert_allclose(predicted["mean"], mean[0], atol=1e-7)
    assert_allclose(predicted["variance"], cov[:, 0, 0], atol=1e-7)
    alone = fit.effects("f", Xnew=new)["f"]
    across, own = fitc(new, x, np.zeros((3, 15), bool)), kernel(new, new).diagonal()
    mean, cov = exact.posterior.predict(across[None], own[None], np.zeros((1, 3)))
    assert_allclose(alone.sel(moment="mean"), mean[0], atol=1e-7)
    assert_allclose(alone.sel(moment="sd"), np.sqrt(cov[:, 0, 0]), atol=1e-7)
    strange = fit.predict(new, data={"group": np.full(3, GROUPS)}, new_levels=True)
    mean, cov = exact.posterior.predict(across[None], own[None] + 0.49, np.zeros((1, 3)))
    assert_allclose(strange["mean"], mean[0], atol=1e-7)
    assert_allclose(strange["variance"], cov[:, 0, 0], atol=1e-7)


@pytest.mark.parametrize(("method", "other"), [("ep", "sparse_ep"), ("kl", "sparse_vi")])
def test_binary_fit_with_rows_and_residuals_equals_sparse_ep(method, other):
    x = RNG.normal(size=(20, 2))
    y = (x[:, 0] + 0.3 * RNG.normal(size=20) > 0.0).astype(int)
    with pm.Model():
        f = process(x)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y)
        one = pm.fit(method=method, inducing=Z, progressbar=False, tolerance=1e-11)
        two = pm.fit(method=other, inducing=Z, progressbar=False, tolerance=1e-11)
    assert one.trace.best.evidence == pytest.approx(two.trace.best.evidence, abs=1e-8)
    assert_allclose(one.predict(Z)["p"], two.predict(Z)["p"], atol=1e-8)


@pytest.fixture(scope="module")
def places_of_counts():
    """Model of counts at distinct places, and its fit by EP with inducing inputs."""
    with pm.Model() as model:
        f = process(RNG.normal(size=(N, 2)))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        fit = pm.fit(method="ep", inducing=Z, progressbar=False, tolerance=1e-11)
    return model, fit


@pytest.mark.parametrize(("method", "other"), [("ep", "sparse_ep"), ("kl", "sparse_vi")])
def test_fit_of_counts_with_rows_and_residuals_equals_sparse_ep(places_of_counts, method, other):
    with places_of_counts[0]:
        one = pm.fit(method=method, inducing=Z, progressbar=False, tolerance=1e-11)
        two = pm.fit(method=other, inducing=Z, progressbar=False, tolerance=1e-11)
    assert one.trace.best.evidence == pytest.approx(two.trace.best.evidence, abs=1e-8)
    assert_allclose(one.predict(Z)["mean"], two.predict(Z)["mean"], atol=1e-8)
    assert_allclose(one.predict(Z)["variance"], two.predict(Z)["variance"], atol=1e-8)


@pytest.mark.parametrize(("memory", "tolerance"), [("sites", 1e-6), ("stateless", 0.1)])
def test_batch_fit_of_counts_converges_to_the_fit_of_all_rows(places_of_counts, memory, tolerance):
    """With stored sites the fixed point is EP's. Without stored sites, batches add noise."""
    model, one = places_of_counts
    given = {"memory": memory, "inducing": Z, "batch_size": 12, "learn_inducing": False, "random_seed": 1}
    with model:
        two = pm.fit(60, method="sparse_ep", progressbar=False, **given)
    assert_allclose(two.predict(Z)["mean"], one.predict(Z)["mean"], atol=tolerance)
    assert_allclose(two.predict(Z)["variance"], one.predict(Z)["variance"], atol=tolerance)


def test_batch_fit_of_the_bound_converges_to_its_maximum(places_of_counts):
    with places_of_counts[0]:
        given = {"inducing": Z, "progressbar": False}
        one = pm.fit(method="kl", tolerance=1e-11, **given)
        two = pm.fit(100, method="sparse_vi", batch_size=N, learn_inducing=False, random_seed=1, **given)
    assert_allclose(two.predict(Z)["mean"], one.predict(Z)["mean"], atol=1e-8)


def test_batches_with_unequal_exposures_are_refused():
    with pm.Model():
        mu = np.linspace(1.0, 2.0, 12) * pm.math.exp(process(X))
        pm.Poisson("y", mu=mu, observed=COUNTS[:12])
        with pytest.raises(gpep.StructureError, match='Take method="ep" with inducing='):
            pm.fit(5, method="sparse_ep", inducing=Z, batch_size=6, progressbar=False)
        assert np.isfinite(pm.fit(method="ep", inducing=Z, progressbar=False).log_evidence)


@pytest.fixture(scope="module")
def learned():
    """A process and an effect with learned magnitudes. Rows share places."""
    with pm.Model() as model:
        ls, eta, s = pm.InverseGamma("ls", 3, 3), pm.HalfNormal("eta", 1), pm.HalfNormal("s", 1)
        cov = eta**2 * pm.gp.cov.Matern52(2, ls=ls)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X, reparameterize=False)
        u = pm.Normal("u", 0.0, s, shape=GROUPS)
        pm.Deterministic("both", u[GROUP] + f[PLACE])
        pm.NegativeBinomial("y", mu=pm.math.exp(u[GROUP] + f[PLACE]), alpha=3.0, observed=COUNTS)
    return model


@pytest.mark.parametrize(("method", "written"), [("ep", True), ("laplace", True), ("kl", False)])
def test_gradient_matches_differences_of_the_log_posterior(learned, method, written, monkeypatch):
    """Prior moments come from closed formulas, or from the model's graph where no formula exists."""
    if not written:
        monkeypatch.setattr("pymc_gpep.processes.inducing_rows.stationary", lambda *given: None)
    with learned:
        fit = pm.fit(method=method, inducing=Z, hyper="map", progressbar=False, tolerance=1e-10)
    log_posterior, theta = fit.log_posterior, np.array([0.1, -0.2, -0.5])
    change = np.array([0.6, -0.3, 0.5])
    step = 1e-4
    above, below = (log_posterior(theta + sign * step * change) for sign in (1.0, -1.0))
    slope = (above.log_posterior - below.log_posterior) / (2.0 * step)
    assert log_posterior(theta).gradient @ change == pytest.approx(slope, rel=1e-5)


def test_draws_and_moments_of_variables_agree(learned):
    """Moments of the process, of effects and of their sum, against many draws."""
    with learned:
        fit = pm.fit(method="laplace", inducing=Z, hyper="map", progressbar=False)
    found = fit.effects(["f", "u", "both"])
    drawn = fit.sample(4000, random_seed=1).posterior
    for name in found:
        values = drawn[name].values[0]
        assert_allclose(found[name].sel(moment="mean"), values.mean(axis=0), atol=5.0 * values.std() / 60.0)
        assert_allclose(found[name].sel(moment="sd"), values.std(axis=0), rtol=0.08)


def test_loaded_fit_has_equal_predictions(learned, tmp_path):
    with learned:
        fit = pm.fit(method="ep", inducing=Z, hyper="map", progressbar=False)
        fit.save(tmp_path / "fit.nc")
        again = gpep.load(tmp_path / "fit.nc")
    assert_allclose(again.inducing_inputs, Z[None])
    assert again.log_evidence == fit.log_evidence
    assert_allclose(again.effects("both")["both"], fit.effects("both")["both"], rtol=1e-10)


def several():
    with pm.Model() as model:
        f = [
            pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior(name, X=X[:, [i]]) for i, name in enumerate("ab")
        ]
        pm.Poisson("y", mu=pm.math.exp(f[0] + f[1]), observed=COUNTS[:12])
    return model


def without_process():
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, 1.0, shape=GROUPS)
        pm.Poisson("y", mu=pm.math.exp(u[GROUP]), observed=COUNTS)
    return model


def sums_of_values():
    with pm.Model() as model:
        pm.Poisson("y", mu=pm.math.exp(np.ones((3, 12)) / 12 @ process(X)), observed=COUNTS[:3])
    return model


def classes():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        pm.Categorical("y", logit_p=gp.prior("f", X=X, n_outputs=3).T, observed=np.arange(12) % 3)
    return model


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (several, "one Gaussian process, and the model has 'a', 'b'"),
        (without_process, "effects without a process"),
        (sums_of_values, "combine several values of 'f'"),
    ],
)
def test_inducing_inputs_require_one_process_whose_values_rows_select(made, message):
    with made():
        with pytest.raises(gpep.StructureError, match=message):
            pm.fit(method="ep", inducing=3, progressbar=False)
        assert np.isfinite(pm.fit(method="ep", progressbar=False).log_evidence)


def test_several_functions_are_refused_with_the_method_for_classes():
    with classes(), pytest.raises(gpep.StructureError, match='method="sparse_ep"'):
        pm.fit(method="laplace", inducing=3, progressbar=False)


def test_number_of_inducing_inputs_is_at_most_the_number_of_different_inputs():
    with pm.Model():
        pm.Poisson("y", mu=pm.math.exp(process(X[PLACE])), observed=COUNTS)
        whole = pm.fit(method="laplace", inducing=12, progressbar=False)
        assert_allclose(np.unique(whole.inducing_inputs[0], axis=0), np.unique(X, axis=0))
        assert pm.fit(method="laplace", inducing=4, progressbar=False).inducing_inputs.shape == (1, 4, 2)
        with pytest.raises(ValueError, match="from 1 to 12"):
            pm.fit(method="laplace", inducing=13, progressbar=False)


def test_inducing_inputs_are_refused_for_unsupported_methods():
    with pm.Model():
        pm.Bernoulli("y", p=pm.math.invprobit(process(X)), observed=np.arange(12) % 2)
        with pytest.raises(ValueError, match='Take method="ep", "laplace" or "kl", or leave inducing out'):
            pm.fit(method="fv", inducing=3, progressbar=False)
        with pytest.raises(NotImplementedError, match="Leave backend out"):
            pm.fit(method="laplace", inducing=3, backend="numba", progressbar=False)


def test_fit_of_all_rows_can_start_at_a_fit_by_inducing_inputs(learned):
    with learned:
        few = pm.fit(method="laplace", inducing=Z, hyper="map", progressbar=False)
        fit = pm.fit(method="laplace", start=few, hyper="map", progressbar=False)
    assert not hasattr(fit, "inducing_inputs")
    assert_allclose(fit.trace.first.theta, few.trace.best.theta)


def test_rows_without_a_response_are_left_out_and_predicted():
    """With all places as inducing inputs, the prior is the dense prior up to the jitter."""
    masked = np.ma.masked_array(COUNTS, np.isin(np.arange(N), [3, 11]))
    with pm.Model():
        f = process(X)
        u = pm.Normal("u", 0.0, 0.7, shape=GROUPS)
        with pytest.warns(ImputationWarning):
            pm.Poisson("y", mu=pm.math.exp(u[GROUP] + f[PLACE]), observed=masked)
        fits = [pm.fit(method="laplace", progressbar=False, **given) for given in ({"inducing": X}, {})]
    assert fits[0].log_evidence == pytest.approx(fits[1].log_evidence, abs=1e-3)
    one, other = (fit.predict(missing=True) for fit in fits)
    assert one.sizes == other.sizes
    assert_allclose(one["mean"], other["mean"], atol=1e-3)
    assert_allclose(one["variance"], other["variance"], atol=1e-3)


def test_flat_effect_is_the_limit_of_wide_priors():
    found = []
    for level in (lambda: pm.Flat("level"), lambda: pm.Normal("level", 0.0, 1e4)):
        with pm.Model():
            f = process(X)
            pm.Poisson("y", mu=pm.math.exp(level() + f[PLACE]), observed=COUNTS)
            found.append(pm.fit(method="laplace", inducing=Z, progressbar=False))
    flat, wide = (each.effects(["level", "f"]) for each in found)
    assert_allclose(flat["level"], wide["level"], rtol=1e-5)
    assert_allclose(flat["f"], wide["f"], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_hyperparameters_are_integrated(learned):
    with learned:
        fit = pm.fit(method="laplace", inducing=Z, hyper="adaptive", progressbar=False)
    assert len(fit.nodes) > 1
    assert fit.summary()["sd"].notna().all()
