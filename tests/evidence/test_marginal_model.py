"""Models with the latent values integrated out, and draws of the latent values given their hyperparameters."""

from functools import partial

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier
from tests import models
from tests.likelihoods.with_parameters import CASES, model_of

BUILD = {
    "shared": models.shared,
    "centred": lambda: models.shared(rotated=False),
    "per_class": models.per_class,
}
WITH_PARAMETERS = {name: partial(model_of, case.observe) for name, case in CASES.items()}
builds = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
QUICK = {"tune": 2, "draws": 5, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
copies = pytest.mark.filterwarnings("ignore:Detected variables likely created by GP objects")


@pytest.fixture(scope="module")
def model():
    return models.shared()[0]


@pytest.fixture(scope="module")
def marginal(model):
    return gpep.marginalize(model)


def means(model):
    """Names of the means of processes, to be kept as hyperparameters."""
    return [name for name in models.MEANS if name in model.named_vars]


def at(values, chains=2, draws=10):
    """Draws that all equal the given values of the hyperparameters."""
    repeated = {name: np.broadcast_to(value, (chains, draws, *np.shape(value))) for name, value in values.items()}
    return az.from_dict({"posterior": repeated}, coords={"petal": ["length", "width"]}, dims={"ls": ["petal"]})


@pytest.mark.variation(but=["centred"])
@pytest.mark.parametrize("build", [BUILD["centred"], BUILD["per_class"]], ids=["centred", "per_class"])
def test_log_density_equals_the_log_posterior_of_hyperparameters(build):
    model, _ = build()
    expected = DenseLogPosterior(read_classifier(model), NestedEP(tolerance=1e-11))
    marginal = gpep.marginalize(model, hyperparameters=means(model), tolerance=1e-11)
    assert marginal.value_vars == expected.space.value_vars
    function = marginal.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    start = expected.space.initial_point()
    for theta in start + np.random.default_rng(0).normal(scale=0.5, size=(3, start.size)):
        value, gradient = function(theta)
        evaluation = expected(theta)
        assert value == pytest.approx(evaluation.log_posterior, abs=1e-8)
        assert_allclose(gradient, evaluation.gradient, atol=1e-6)


def test_marginal_model_has_all_variables_and_data_except_latent_values():
    X, y = models.data()
    coords = {"flower": np.arange(y.size), "petal": ["length", "width"]}
    with pm.Model(coords=coords) as model:
        labels = pm.Data("labels", y, dims="flower")
        scale = pm.HalfNormal("scale", pm.Data("width", 2.0), initval=0.7)
        ls = pm.InverseGamma("ls", 3, scale, dims="petal")
        eta = pm.TruncatedNormal("eta", 2, 1, lower=0.5, upper=9, initval="prior")
        pm.Deterministic("eta_squared", eta**2)
        pm.Normal("measured", eta, 0.1, observed=2.5)
        pm.Potential("penalty", -2 * ls, dims="petal")
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=X, n_outputs=3)
        pm.Deterministic("f_squared", f**2)
        gpep.MultinomialProbit("y", f.T, observed=labels, dims="flower")
    marginal = gpep.marginalize(model)

    kept = set(model.named_vars) - {"f", "f_rotated_", "f_squared", "y"}
    assert set(marginal.named_vars) == kept | {"y_evidence"}
    assert [rv.name for rv in marginal.free_RVs] == ["scale", "ls", "eta"]
    assert [rv.name for rv in marginal.observed_RVs] == ["measured"]
    assert [v.name for v in marginal.deterministics] == ["eta_squared"]
    assert [v.name for v in marginal.potentials] == ["penalty", "y_evidence"]
    assert [v.name for v in marginal.data_vars] == ["labels", "width"]
    assert marginal.coords == model.coords
    assert marginal.dim_lengths.keys() == model.dim_lengths.keys()
    assert marginal.named_vars_to_dims == {name: model.named_vars_to_dims[name] for name in ("labels", "ls", "penalty")}
    for rv in marginal.free_RVs:
        assert marginal.rvs_to_transforms[rv] is model.rvs_to_transforms[rv] is not None
        assert marginal.rvs_to_initial_values[rv] is model.rvs_to_initial_values[rv]
    point = marginal.initial_point(random_seed=3)
    assert point["scale_log__"] == pytest.approx(np.log(0.7))

    logp, expected = marginal.compile_logp(), DenseLogPosterior(read_classifier(model), NestedEP())
    theta = expected.space.initial_point({"eta": 1.0})
    before = logp(expected.point(theta))
    assert before == pytest.approx(expected(theta).log_posterior, abs=1e-9)
    with model:
        pm.set_data({"width": 0.5})
    wide, narrow = (pm.logp(pm.HalfNormal.dist(width), 0.7).eval() for width in (2.0, 0.5))
    assert logp(expected.point(theta)) - before == pytest.approx(narrow - wide, abs=1e-7)


def test_given_model_is_not_changed(model):
    before, logp = dict(model.named_vars), model.compile_logp()
    point = model.initial_point()
    value = logp(point)
    with model:
        marginal = gpep.marginalize(model)
    assert marginal.parent is None
    assert dict(model.named_vars) == before
    assert model.compile_logp()(point) == value


def test_chosen_likelihood_of_two_is_marginalised():
    X, y = models.data()
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 3)
        for name in ("a", "b"):
            f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior(f"f_{name}", X=X, n_outputs=3)
            gpep.MultinomialProbit(f"y_{name}", f.T, observed=y)
    with pytest.raises(gpep.StructureError, match="likelihood="):
        gpep.marginalize(model)
    marginal = gpep.marginalize(model, likelihood="y_b")
    assert [v.name for v in marginal.potentials] == ["y_b_evidence"]
    assert [v.name for v in marginal.observed_RVs] == ["y_a"]
    assert [v.name for v in marginal.free_RVs] == ["eta", "f_a_rotated_"]
    assert [v.name for v in marginal.deterministics] == ["f_a"]


@pytest.mark.parametrize(
    "term",
    [
        lambda f: pm.StudentT("other", nu=4, mu=f[0], observed=np.zeros(30)),
        lambda f: pm.Potential("other", -f.sum()),
    ],
    ids=["second likelihood", "potential"],
)
def test_models_with_a_second_term_of_latent_values_are_refused(term):
    model, _ = models.shared()
    with model:
        term(model["f"])
    with pytest.raises(gpep.StructureError, match=r"'other'.* depends on the latent values 'f'"):
        gpep.marginalize(model)


def test_unobserved_outcomes_are_not_sampled():
    model, _ = models.shared()
    with model:
        pm.Normal("other", model["f"][0, 0], 1)
    assert [v.name for v in gpep.marginalize(model).free_RVs] == ["ls", "eta"]


def test_unknown_methods_and_options_are_refused(model):
    with pytest.raises(ValueError, match=r"method is 'advi'.*'nested_ep'"):
        gpep.marginalize(model, method="advi")
    with pytest.raises(TypeError, match="steps"):
        gpep.marginalize(model, steps=3)


def test_log_density_is_nan_if_the_approximation_fails(model):
    marginal = gpep.marginalize(model, max_iterations=2)
    point = marginal.initial_point()
    assert np.isnan(marginal.compile_logp()(point))
    assert np.isnan(marginal.compile_dlogp()(point)).all()


@pytest.mark.variation(but=["shared"])
@pytest.mark.parametrize("build", [BUILD["shared"], BUILD["centred"]], ids=["shared", "centred"])
@pytest.mark.filterwarnings(r"ignore:np\.dot.. is faster on contiguous arrays")  # in code that PyMC compiles
@models.interpreted_sampler
def test_recovered_draws_have_the_groups_and_shapes_of_the_model(build):
    model, _ = build()
    marginal = gpep.marginalize(model)
    with marginal:  # the cheapest step of PyMC: only the format of draws is compared
        sampled = pm.sample(chains=2, random_seed=1, step=pm.DEMetropolisZ(), **QUICK)
    recovered = gpep.recover_latent(sampled, marginal, random_seed=2, progressbar=False)
    with model:
        expected = pm.sample(chains=2, random_seed=1, step=pm.DEMetropolisZ(), **QUICK)
    assert set(recovered.children) == set(expected.children)
    for group in ("posterior", "observed_data"):
        assert set(recovered[group].data_vars) == set(expected[group].data_vars)
        for name, variable in expected[group].data_vars.items():
            assert recovered[group][name].dims == variable.dims
            assert recovered[group][name].shape == variable.shape
            assert recovered[group][name].dtype == variable.dtype
        for name, coordinate in expected[group].coords.items():
            xr.testing.assert_equal(recovered[group][name].drop_attrs(), coordinate.drop_attrs())
    xr.testing.assert_equal(recovered["observed_data"].to_dataset(), expected["observed_data"].to_dataset())
    for name in sampled.posterior.data_vars:
        xr.testing.assert_identical(recovered.posterior[name], sampled.posterior[name])
    assert "f" not in sampled.posterior


def test_data_groups_of_recovered_draws_equal_the_data_groups_of_the_model():
    X, y = models.data()
    with pm.Model() as model:
        labels = pm.Data("labels", y)
        inputs = pm.Data("inputs", X)
        eta = pm.HalfNormal("eta", 3)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=inputs, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=labels)
    marginal = gpep.marginalize(model)
    sampled = pm.sample(model=marginal, chains=1, random_seed=1, step=pm.DEMetropolisZ(model=marginal), **QUICK)
    recovered = gpep.recover_latent(sampled, marginal, random_seed=2, progressbar=False)
    expected = pm.sample_prior_predictive(1, model=model, random_seed=1)
    for group in ("constant_data", "observed_data"):
        xr.testing.assert_equal(recovered[group].to_dataset(), expected[group].to_dataset())


@pytest.mark.variation(but=["per_class"])
@pytest.mark.parametrize("build", [BUILD["shared"], BUILD["per_class"]], ids=["shared", "per_class"])
def test_recovered_latent_values_have_the_moments_of_the_fit(build):
    model, _ = build()
    marginal = gpep.marginalize(model, hyperparameters=means(model))
    classifier = read_classifier(model)
    rng = np.random.default_rng(3)
    values = {rv.name: rng.uniform(0.8, 2.0, size=rv.eval().shape) for rv in classifier.hyperparameters}
    posterior = gpep.recover_latent(at(values, 2, 100), marginal, random_seed=4, progressbar=False).posterior
    f = [posterior[latent.f.name].stack(s=("chain", "draw")).values for latent in classifier.latents]
    f = np.stack(f) if len(f) > 1 else f[0]  # axes: class, point, draw
    given = {model[name]: value for name, value in values.items()}
    k, mean = (
        x.eval(given, on_unused_input="ignore") for x in (classifier.prior.covariance(), classifier.prior.mean())
    )
    solution = NestedEP().solve(k, mean, models.data()[1])
    spread = np.sqrt(solution.cov.diagonal(axis1=1, axis2=2)).T
    f = (f - solution.mean[..., None]) / spread[..., None]
    assert_allclose(f.mean(-1), 0, atol=4.5 / np.sqrt(200))
    correlation = solution.cov / (spread.T[:, :, None] * spread.T[:, None, :])
    assert_allclose(np.einsum("ais,bis->iab", f, f) / 200, correlation, atol=5 * np.sqrt(2 / 200))


def test_deterministics_are_computed_from_recovered_draws(marginal):
    sampled = at({"ls": [1.0, 2.0], "eta": 2.0}, 2, 6)["posterior"].to_dataset()
    sampled["eta"] = ("chain", "draw"), np.random.default_rng(5).uniform(1, 4, (2, 6))
    thinned = xr.DataTree.from_dict({"posterior": sampled.isel(draw=slice(1, None, 2))})
    posterior = gpep.recover_latent(thinned, marginal, random_seed=1, progressbar=False).posterior
    assert list(posterior["draw"].values) == [1, 3, 5]
    assert_allclose(posterior["f_of_virginica"], posterior["f"].sel(species="virginica"))
    X, _ = models.data()
    for chain, draw in np.ndindex(2, 3):
        eta = posterior["eta"].values[chain, draw]
        k = (eta**2 * pm.gp.cov.ExpQuad(2, ls=[1.0, 2.0]))(X).eval() + 1e-6 * np.eye(30)
        expected = posterior["f_rotated_"].values[chain, draw] @ np.linalg.cholesky(k).T
        assert_allclose(posterior["f"].values[chain, draw], expected, atol=1e-8)


def test_variables_added_after_marginalising_are_not_recovered():
    model, gp = models.shared()
    marginal = gpep.marginalize(model)
    with model:
        new = gp.conditional("f_new", np.zeros((2, 2)))
        pm.Deterministic("new_squared", new**2)
    posterior = gpep.recover_latent(
        at({"ls": [1.0, 2.0], "eta": 2.0}), marginal, random_seed=1, progressbar=False
    ).posterior
    assert set(posterior.data_vars) == {"ls", "eta", "f_rotated_", "f", "f_of_virginica"}


def test_recovering_is_reproducible_and_does_not_change_its_input(marginal):
    idata = at({"ls": [1.0, 2.0], "eta": 2.0})
    one, again, other = (
        gpep.recover_latent(idata, marginal, random_seed=s, progressbar=False).posterior["f"] for s in (1, 1, 2)
    )
    assert_allclose(one, again)
    assert np.abs(one - other).min() > 0
    assert set(idata.posterior.data_vars) == {"ls", "eta"}


def test_draws_that_cannot_be_recovered_are_refused(model, marginal):
    good = {"ls": [1.0, 2.0], "eta": 2.0}
    with pytest.raises(TypeError, match=r"the model that gpep\.marginalize returned, not a Model"):
        gpep.recover_latent(at(good), model)
    with pytest.raises(ValueError, match="no draws of 'ls'"):
        gpep.recover_latent(at({"eta": 2.0}), marginal)
    with pytest.raises(ValueError, match="no draws of 'ls', 'eta'"):
        gpep.recover_latent(xr.DataTree(), marginal)
    with pytest.raises(ValueError, match="chain 0, draw 0 of idata, nested_ep ran out of iterations"):
        gpep.recover_latent(at(good), gpep.marginalize(model, max_iterations=2), progressbar=False)


def test_prior_covariance_that_cannot_be_factorised_is_refused():
    X, y = models.data()
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 3)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Linear(2, c=0)).prior("f", X=X, n_outputs=3, jitter=0.0)
        gpep.MultinomialProbit("y", f.T, observed=y)
    marginal = gpep.marginalize(model)
    assert np.isfinite(marginal.compile_logp()(marginal.initial_point()))
    with pytest.raises(ValueError, match=r"draw 0 of idata, the prior covariance is not positive definite.*jitter"):
        gpep.recover_latent(at({"eta": 1.0}), marginal, progressbar=False)


@copies
def test_pymc_predicts_from_recovered_draws(model, marginal):
    idata = gpep.recover_latent(at({"ls": [1.0, 2.0], "eta": 2.0}, 2, 60), marginal, random_seed=1, progressbar=False)
    predicted = pm.sample_posterior_predictive(idata, model=model, random_seed=2, progressbar=False)
    frequency = np.stack([(predicted.posterior_predictive["y"] == k).mean(("chain", "draw")) for k in range(3)])
    expected = pm.compute_log_likelihood(idata, model=model, progressbar=False).log_likelihood["y"]
    assert expected.dims == ("chain", "draw", "flower")
    right = frequency[models.data()[1], np.arange(30)]
    assert_allclose(np.exp(expected).mean(("chain", "draw")), right, atol=5 * np.sqrt(0.25 / 120))


def test_marginal_model_can_be_pickled(marginal):
    copy = cloudpickle.loads(cloudpickle.dumps(marginal))
    point = marginal.initial_point()
    assert copy.compile_logp()(point) == pytest.approx(marginal.compile_logp()(point), abs=1e-10)
    idata = at({"ls": [1.0, 2.0], "eta": 2.0})
    here, there = (
        gpep.recover_latent(idata, m, random_seed=1, progressbar=False).posterior["f"] for m in (marginal, copy)
    )
    assert_allclose(here, there)


@pytest.mark.parametrize("build", [*BUILD.values(), *WITH_PARAMETERS.values()], ids=[*BUILD, *WITH_PARAMETERS])
def test_marginal_model_runs_under_jax(build):
    jax = pytest.importorskip("jax")
    marginal = gpep.marginalize(build()[0])
    point = marginal.initial_point()
    value, gradient = marginal.compile_logp()(point), marginal.compile_dlogp()(point)
    compiled = marginal.compile_logp(mode="JAX")
    assert compiled(point) == pytest.approx(value, rel=1e-12)
    assert_allclose(marginal.compile_dlogp(mode="JAX")(point), gradient, rtol=1e-10)
    arguments = [point[v.name] for v in marginal.value_vars]
    function = pytest.importorskip("pymc.sampling.jax").get_jaxified_logp(marginal)
    assert_allclose(np.hstack(jax.jit(jax.grad(function))(arguments)), gradient, rtol=1e-10)
    batch = [np.stack([x, x + 0.1]) for x in arguments]
    both = jax.vmap(function)(batch)
    assert both[0] == pytest.approx(value, rel=1e-12)
    assert both[1] == pytest.approx(float(function([x[1] for x in batch])), rel=1e-12)


def test_jax_evaluates_evidence_and_gradient_together():
    jax = pytest.importorskip("jax")
    marginal = gpep.marginalize(models.per_class()[0])
    function = pytest.importorskip("pymc.sampling.jax").get_jaxified_logp(marginal)
    point = marginal.initial_point()
    with pytest.raises(NotImplementedError, match="only once"):
        jax.jacrev(jax.grad(function))([point[v.name] for v in marginal.value_vars])


@pytest.mark.slow
def test_nutpie_calls_the_solver_from_its_threads():
    """nutpie calls the solver through machine code. The graph includes one of PyMC's covariances."""
    X, y = models.data()
    with pm.Model() as model:
        # numba compiles a covariance without matrix products fastest.
        cov = 9.0 * pm.gp.cov.Periodic(1, period=20.0, ls=pm.InverseGamma("ls", 3, 3))
        gpep.MultinomialProbit("y", pm.gp.Latent(cov_func=cov).prior("f", X=X[:, :1], n_outputs=3).T, observed=y)
    marginal = gpep.marginalize(model)
    options = {"chains": 2, "cores": 2, "progressbar": False, "random_seed": 1, "compute_convergence_checks": False}
    idata = pm.sample(120, tune=120, model=marginal, nuts_sampler="nutpie", **options)
    fit = pm.fit(model=model, method="nested_ep", hyper="ccd", progressbar=False)
    log_ls, weights = np.log(fit.nodes["ls"].values), fit.nodes["weight"].values
    mean = weights @ log_ls
    spread = np.sqrt(weights @ (log_ls - mean) ** 2)
    assert (np.log(idata.posterior["ls"]).mean() - mean) / spread == pytest.approx(0, abs=0.5)
    assert np.log(idata.posterior["ls"]).std() / spread == pytest.approx(1, abs=0.4)


@pytest.mark.calibration
@copies
def test_nuts_over_hyperparameters_agrees_with_nuts_over_all_variables():
    model, _ = models.shared()
    marginal = gpep.marginalize(model)
    options = {"chains": 4, "cores": 2, "nuts_sampler": "nutpie", "progressbar": False, "random_seed": 1}
    idata = pm.sample(1500, tune=500, model=marginal, **options)
    names = ["ls", "eta"]
    assert not idata.sample_stats["diverging"].any()
    assert az.rhat(idata, var_names=names).dataset.to_array().max() < 1.01
    full = pm.sample(1500, tune=1000, model=model, target_accept=0.95, **options)
    idata = gpep.recover_latent(idata, marginal, random_seed=1, progressbar=False)
    for name in ["ls", "eta"]:
        ours, theirs = (np.log(x.posterior[name]) for x in (idata, full))
        spread = theirs.std(("chain", "draw"))
        assert_allclose((ours.mean(("chain", "draw")) - theirs.mean(("chain", "draw"))) / spread, 0, atol=0.25)
        assert_allclose(ours.std(("chain", "draw")) / spread, 1, atol=0.25)
    ours, theirs = (x.posterior["f"] for x in (idata, full))
    difference = ours.mean(("chain", "draw")) - theirs.mean(("chain", "draw"))
    assert_allclose(difference / theirs.std(("chain", "draw")), 0, atol=0.25)


def test_missing_inputs_are_refused_before_sampling():
    X, y = models.data()
    X[3, 0] = np.nan
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=pm.LogNormal("ls", 0, 1)))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, observed=y)
    with pytest.raises(ValueError, match=r"prior covariance must be finite.*missing values in the inputs"):
        gpep.marginalize(model)
