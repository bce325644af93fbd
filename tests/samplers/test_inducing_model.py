"""Models of inducing values for classifiers: density, variables, and EP against their posterior."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pymc.blocking import DictToArrayBijection, RaveledVars
from scipy.linalg import solve_triangular

import pymc_gpep as gpep
from pymc_gpep.checks.annealed_evidence import Base, anneal, importance_weights
from pymc_gpep.graphs.interpreted import INTERPRETED, evaluate
from pymc_gpep.likelihoods.multinomial_probit import log_averages_and_gradients
from tests import models
from tests.likelihoods.with_parameters import CASES, model_of

RNG = np.random.default_rng(7)
X, Y = models.data()
OBSERVED = {
    "multinomial_probit": (3, lambda f: gpep.MultinomialProbit("y", f.T, observed=Y)),
    "softmax": (3, lambda f: pm.Categorical("y", logit_p=f.T, observed=Y)),
    "probit": (1, lambda f: gpep.Probit("y", f, observed=Y == 2)),
    "bernoulli": (1, lambda f: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=Y == 2)),
    "logit": (1, lambda f: pm.Bernoulli("y", logit_p=f, observed=Y == 2)),
}


def rough(observe, outputs):
    """A covariance far from singular, so that jitter and residual variances are negligible."""
    with pm.Model() as model:
        ls = pm.LogNormal("ls", -1.5, 0.3)
        mean = pm.gp.mean.Constant(pm.Normal("mean"))
        gp = pm.gp.Latent(mean_func=mean, cov_func=2.0 * pm.gp.cov.Matern12(2, ls=ls))
        observe(gp.prior("f", X=inputs(), **({"n_outputs": outputs} if outputs > 1 else {})))
    return model, gp


def inputs():
    """Distinct inputs."""
    return X + 0.05 * np.random.default_rng(1).normal(size=X.shape)


def log_density(model):
    function = model.logp_dlogp_function(ravel_inputs=True, mode=INTERPRETED)
    function.set_extra_values({})
    return function


@pytest.mark.variation(but=["multinomial_probit"])
@pytest.mark.parametrize("name", OBSERVED)
def test_density_with_all_rows_as_inducing_inputs_equals_the_density_of_the_model(name):
    outputs, observe = OBSERVED[name]
    model, gp = rough(observe, outputs)
    sparse = gpep.inducing_model(model, gp, inputs(), shared_inducing=True, jitter=1e-10)
    dense, other = model.compile_logp(mode=INTERPRETED), sparse.compile_logp(mode=INTERPRETED)
    for _ in range(3):
        point = {k: v + 0.5 * RNG.normal(size=np.shape(v)) for k, v in model.initial_point().items()}
        given = {k: v for k, v in point.items() if k != "f_rotated_"} | {"u_rotated_": point["f_rotated_"]}
        extra = 0.0
        if "u_residual_" in sparse.named_vars:
            given["u_residual_"] = np.zeros((outputs, len(Y)))
            extra = -0.5 * np.log(2 * np.pi) * given["u_residual_"].size
        assert_allclose(other(given), dense(point) + extra, atol=2e-4)


def small(observe, outputs):
    model, _ = rough(observe, outputs)
    places = np.random.default_rng(5).normal(size=(5, 2))
    return gpep.inducing_model(model, inducing=places)  # distances at the rows are zero up to rounding


def per_class():
    return gpep.inducing_model(
        *models.per_class(), inducing=X[None, :4].repeat(3, axis=0) + np.random.default_rng(5).normal(size=(3, 4, 2))
    )


CASES_OF_DERIVATIVES = {
    **{name: lambda pair=OBSERVED[name]: small(pair[1], pair[0]) for name in ("multinomial_probit", "probit")},
    "poisson": lambda: gpep.inducing_model(model_of(CASES["poisson"].observe)[0], inducing=4),
    "per_class": per_class,
}


@pytest.mark.variation(but=["poisson"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "per_class")) for name in CASES_OF_DERIVATIVES]
)
def test_derivatives_match_differences(name):
    sparse = CASES_OF_DERIVATIVES[name]()
    function = log_density(sparse)
    start = DictToArrayBijection.map(sparse.initial_point())
    rng = np.random.default_rng(3)
    x = start.data + 0.3 * rng.normal(size=start.data.size)
    value, gradient = function(RaveledVars(x, start.point_map_info))
    assert np.isfinite(value)
    step = 1e-4  # rounding errors of the ill-conditioned covariance exclude shorter steps
    for i in rng.choice(x.size, 6, replace=False):
        moved = np.eye(x.size)[i] * step
        ends = [function(RaveledVars(x + sign * moved, start.point_map_info))[0] for sign in (1, -1)]
        assert_allclose(gradient[i], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


def test_posterior_of_the_residuals_is_integrated_out():
    """Free variables of the model for each likelihood."""
    names = {name: [v.name for v in small(pair[1], pair[0]).free_RVs] for name, pair in OBSERVED.items()}
    assert names["multinomial_probit"] == names["probit"] == names["bernoulli"] == ["ls", "mean", "u_rotated_"]
    assert names["softmax"] == names["logit"] == ["ls", "mean", "u_rotated_", "u_residual_"]
    ordered = gpep.inducing_model(model_of(CASES["ordered_probit"].observe)[0], inducing=4)
    assert [v.name for v in ordered.free_RVs] == ["eta", "cut", "u_rotated_", "u_residual_"]


def named(rotated=True):
    coords = {"species": models.SPECIES, "flower": np.arange(Y.size) + 100}
    with pm.Model(coords=coords) as model:
        labels = pm.Data("labels", Y, dims="flower")
        eta = pm.HalfNormal("eta", 3)
        pm.Deterministic("eta_squared", eta**2)
        pm.Normal("measured", eta, 1.0, observed=2.0)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=pm.Data("X", X), n_outputs=3, dims=("species", "flower"), reparameterize=rotated)
        pm.Deterministic("f_squared", f**2)
        gpep.MultinomialProbit("y", f.T, observed=labels, dims="flower")
    return model, gp


@pytest.mark.parametrize("rotated", [True, False])
def test_inducing_model_has_all_variables_and_data_except_latent_values(rotated):
    model, _ = named(rotated)
    sparse = gpep.inducing_model(model, inducing=6, name="at")
    kept = set(model.named_vars) - {"f", "f_rotated_", "f_squared", "y"}
    assert set(sparse.named_vars) == kept | {"at", "at_rotated_", "y"}
    assert sparse.named_vars_to_dims["at"] == ("species", "inducing")
    assert sparse.named_vars_to_dims["y"] == ("flower",)
    assert list(sparse.coords["species"]) == list(models.SPECIES)
    assert sparse.inducing_inputs.shape == (3, 6, 2)
    assert [v.name for v in sparse.observed_RVs] == ["measured", "y"]
    rows = {tuple(row) for row in X}
    assert {tuple(row) for row in sparse.inducing_inputs.reshape(-1, 2)} <= rows


def test_inducing_values_belong_to_functions_in_the_order_of_the_prior():
    with pm.Model(coords={"species": models.SPECIES, "flower": np.arange(Y.size)}) as model:
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=X, n_outputs=3, dims=("species", "flower"))
        gpep.MultinomialProbit("y", f[[2, 0, 1]].T, observed=Y)
    sparse = gpep.inducing_model(model, inducing=np.arange(24.0).reshape(3, 4, 2))
    v = np.zeros((3, 4))
    v[2] = 1.0  # row of virginica, the first class of the model
    u, mean = evaluate([sparse["u"], sparse["y"].owner.inputs[2]], {sparse["u_rotated_"]: v})
    assert not u[:2].any()
    assert u[2].all()
    assert not mean[:, 1:].any()
    assert mean[:, 0].any()


def test_unsupported_models_are_refused():
    model, gp = named()
    with pytest.raises(ValueError, match="The model has a variable 'eta' already"):
        gpep.inducing_model(model, gp, 5, name="eta")
    with pytest.raises(ValueError, match="inducing must be from 1 to 30"):
        gpep.inducing_model(model, gp, 31)
    with pytest.raises(TypeError, match=r"gp must be the pm\.gp\.Latent"):
        gpep.inducing_model(model, 3, 5)
    with model:
        model.add_coord("inducing", ["a", "b"])
    with pytest.raises(ValueError, match="The model already has a dim 'inducing'"):
        gpep.inducing_model(model, gp, 5)


@pytest.mark.variation
@models.interpreted_sampler
def test_samplers_of_pymc_run_on_an_inducing_model():
    sparse = gpep.inducing_model(*named(), inducing=3, shared_inducing=True)
    quick = {"tune": 5, "draws": 5, "chains": 1, "progressbar": False, "compute_convergence_checks": False}
    idata = pm.sample(model=sparse, random_seed=1, **quick)
    assert idata.posterior["u"].dims == ("chain", "draw", "species", "inducing")
    assert (idata.posterior["u"].std("draw") > 0).all()
    predicted = pm.sample_posterior_predictive(idata, model=sparse, progressbar=False, random_seed=2)
    assert set(np.unique(predicted.posterior_predictive["y"])) <= {0, 1, 2}
    assert predicted.posterior_predictive["y"].dims == ("chain", "draw", "flower")
    with sparse:
        fit = pm.fit(5, method="advi", progressbar=False, random_seed=1)
    assert np.isfinite(fit.hist).all()


@pytest.fixture(scope="module")
def drawn():
    """150 rows drawn from the model, known hyperparameters, 20 inducing inputs of each class, and EP's posterior."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-2, 2, size=(150, 2))
    k = 4.0 * np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1)) + 1e-8 * np.eye(150)
    y = (np.linalg.cholesky(k) @ rng.normal(size=(150, 3)) + rng.normal(size=(150, 3))).argmax(axis=1)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(2, ls=1.0))
        gpep.MultinomialProbit("y", gp.prior("f", X=x, n_outputs=3).T, observed=y)
        sparse = gpep.inducing_model(model, gp, 20, random_seed=5)
        fit = pm.fit(method="sparse_ep", inducing=sparse.inducing_inputs, learn_inducing=False, progressbar=False)
    return sparse, fit, x, y


@pytest.mark.slow
def test_evidence_of_ep_matches_annealing(drawn):
    _, fit, x, y = drawn
    blocks = fit.log_posterior.blocks().block({}, fit.inducing_inputs, x)
    features = fit.solution.posterior.whitening.features(blocks)

    def log_likelihood(v):
        mean = np.einsum("kmn,km->nk", features.w, v)
        return float(log_averages_and_gradients(y, mean, features.rest.T)[0].sum())

    q = fit.solution.posterior.whitened  # Σ = Rᵀ R

    def log_sites(x):
        """Log ratio of EP's posterior density to the prior density."""
        v, z = (q.mean + x).ravel(), solve_triangular(q.root, x.ravel(), lower=True, trans=1)
        return 0.5 * float(v @ v - z @ z) - float(np.log(q.root.diagonal()).sum())

    base = Base(q.mean, lambda rng, count: (rng.normal(size=(count, 60)) @ q.root).reshape(-1, 3, 20), log_sites, 0.0)
    temperatures = np.linspace(0.0, 1.0, 15)
    u, _ = anneal(base, log_likelihood, temperatures, 16, 1, np.random.default_rng(0))
    weights = importance_weights(u, temperatures)
    estimate = np.log(np.mean(np.exp(weights - weights.max()))) + weights.max()
    assert weights.std() < 1.0
    assert abs(estimate - fit.log_evidence) < 0.5


@pytest.mark.calibration
@models.interpreted_sampler
def test_means_of_ep_match_nuts(drawn, machine_code):
    sparse, fit, *_ = drawn
    idata = pm.sample(
        300, tune=200, chains=2, cores=1, model=sparse, random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    v = idata.posterior["u_rotated_"]
    posterior = fit.solution.posterior.whitened
    sd = np.sqrt((posterior.root**2).sum(axis=0)).reshape(3, 20)  # the functions are coupled
    shift = (v.mean(("chain", "draw")).values - posterior.mean) / sd
    assert np.sqrt((shift**2).mean()) < 0.12
    assert_allclose(v.std(("chain", "draw")).values / sd, 1.0, atol=0.25)


def test_classifier_functions_refuse_an_inducing_model():
    sparse = gpep.inducing_model(models.shared()[0], inducing=4)
    with (
        sparse,
        pytest.raises(gpep.StructureError, match=r"a result of gpep\.inducing_model.*classifier\.model of this model"),
    ):
        pm.fit(method="sparse_ep")
    with sparse, pytest.raises(gpep.StructureError, match=r"a result of gpep\.inducing_model"):
        gpep.samplers.GuidedHMC()
