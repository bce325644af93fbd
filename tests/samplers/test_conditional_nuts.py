"""Densities of hyperparameters given fixed values, against SciPy, the model's density, and differences."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from scipy.stats import multivariate_normal

import pymc_gpep as gpep
from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.reading import read_classifier, read_processes
from pymc_gpep.samplers.probit_gibbs import centred, collapsed, conditional_nuts, move_hyperparameters, whitened
from tests import models

DENSITIES = {"centred": centred, "collapsed": collapsed, "whitened": whitened}
BUILDS = {
    "shared": models.shared,
    "not rotated": lambda: models.shared(rotated=False),
    "per class": models.per_class,
}
every_density = pytest.mark.parametrize("kind", DENSITIES)
every_model = pytest.mark.parametrize(
    "latent_model",
    [pytest.param(name, marks=[] if name == "shared" else pytest.mark.slow) for name in BUILDS],
    indirect=True,
)


@pytest.fixture(scope="module")
def latent_model(request):
    model, _ = BUILDS[request.param]()
    return LatentModel(read_classifier(model))


def somewhere(latent_model, seed=1):
    """A point, the prior moments at this point, and an array (c, n)."""
    rng = np.random.default_rng(seed)
    model = latent_model.processes.model
    point = {name: value + 0.3 * rng.standard_normal(np.shape(value)) for name, value in model.initial_point(0).items()}
    k, mean = latent_model.function([latent_model.k, latent_model.mean])(point)
    return point, k, mean, rng.standard_normal(mean.shape)


def evaluated(latent_model, density, point, given, *others):
    return latent_model.function([density.log_density, *others], density.given)(point, given)


def log_normal(x, mean, k):
    return sum(multivariate_normal.logpdf(x[a], mean[a], k[a % len(k)]) for a in range(len(x)))


@every_model
def test_centred_and_collapsed_densities_match_scipy(latent_model):
    point, k, mean, x = somewhere(latent_model)
    (prior,) = latent_model.function([latent_model.log_prior])(point)
    noisy = k + np.eye(k.shape[-1])
    x = 3.0 * x
    (value,) = evaluated(latent_model, collapsed(latent_model), point, x)
    assert value == pytest.approx(prior + log_normal(x, mean, noisy), rel=1e-10)
    f = mean + (np.linalg.cholesky(k) @ x[..., None])[..., 0]
    (value,) = evaluated(latent_model, centred(latent_model), point, f)
    assert value == pytest.approx(prior + log_normal(f, mean, k), rel=1e-8)


@every_model
def test_centred_and_whitened_densities_match_the_joint_density(latent_model):
    # The density of the model is a density of z if the prior is declared as rotated, else of f.
    point, k, mean, z = somewhere(latent_model)
    roots = np.linalg.cholesky(k)
    f = mean + (roots @ z[..., None])[..., 0]
    model = latent_model.processes.model
    joint = model.compile_logp()({**point, **latent_model.values.to_point(point, f, DensePrior(k, mean))})
    of_rotated = sum(-0.5 * (z[a] ** 2 + np.log(2 * np.pi)).sum() for a in range(len(z)))
    of_latent = log_normal(f, mean, k)
    for latent in latent_model.processes.latents:
        own = list(latent.classes)
        if latent.rotated:
            joint -= sum(-0.5 * (z[a] ** 2 + np.log(2 * np.pi)).sum() for a in own)
        else:
            joint -= log_normal(f[own], mean[own], k[[a % len(k) for a in own]])
    # The remaining terms are the prior of hyperparameters and the likelihood.
    (value,) = evaluated(latent_model, whitened(latent_model), point, z)
    assert value == pytest.approx(joint, rel=1e-9)
    likelihood = latent_model.function([latent_model.log_likelihood(pt.as_tensor(f))])(point)[0]
    (value,) = evaluated(latent_model, centred(latent_model), point, f)
    assert value == pytest.approx(joint + of_latent - likelihood, rel=1e-8)
    assert of_latent != pytest.approx(of_rotated, rel=1e-3)


@every_density
@every_model
def test_gradient_matches_differences(latent_model, kind):
    density = DENSITIES[kind](latent_model)
    point, k, mean, x = somewhere(latent_model)
    latent_values = mean + (np.linalg.cholesky(k) @ x[..., None])[..., 0]
    given = {"centred": latent_values, "collapsed": mean + 2.0 * x, "whitened": x}[kind]
    compiled = latent_model.function(
        [density.log_density, *pt.grad(density.log_density, latent_model.value_vars)], density.given
    )
    gradients = dict(zip([v.name for v in latent_model.value_vars], compiled(point, given)[1:], strict=True))
    # With such a nearly singular covariance the density of latent values has eight digits. Extrapolated differences
    # over a long step give six digits of the derivative.
    step = 1e-3
    for name, gradient in gradients.items():
        for index in np.ndindex(np.shape(point[name])):
            sides = []
            for distance in (1.0, -1.0, 2.0, -2.0):
                moved = np.array(point[name])
                moved[index] += distance * step
                sides.append(compiled({**point, name: moved}, given)[0])
            near, far = (sides[0] - sides[1]) / (2 * step), (sides[2] - sides[3]) / (4 * step)
            assert gradient[index] == pytest.approx((4 * near - far) / 3, rel=1e-5, abs=3e-5)


@pytest.mark.variation(but=["centred"])
@every_density
def test_classes_that_share_a_covariance_need_one_cholesky_factor(kind):
    latent_model = LatentModel(read_classifier(models.shared()[0]))
    nuts = conditional_nuts(latent_model, latent_model.value_vars, DENSITIES[kind](latent_model), rng=1)
    nodes = nuts._logp_dlogp_func._pytensor_function.maker.fgraph.apply_nodes
    factorised = [node for node in nodes if isinstance(getattr(node.op, "core_op", node.op), Cholesky)]
    assert len(factorised) == 1
    assert factorised[0].inputs[0].ndim == 2


def test_likelihood_parameters_are_part_of_the_conditional_density():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        f = gp.prior("f", X=np.arange(3.0)[:, None])
        pm.Normal("y", f, sigma, observed=[0.5, 0.0, 1.0])
    latent_model = LatentModel(read_processes(model))
    f = np.array([[0.2, 0.3, -0.1]])
    point = model.initial_point(0)
    low, high = (
        evaluated(latent_model, centred(latent_model), {**point, "sigma_log__": np.array(s)}, f)[0] for s in (-1.0, 0.5)
    )

    def exact(s):
        sigma = np.exp(s)
        prior = -0.5 * sigma**2 + s  # with the Jacobian, up to a constant
        return prior + multivariate_normal.logpdf([0.5, 0.0, 1.0], f[0], sigma**2)

    assert high - low == pytest.approx(exact(0.5) - exact(-1.0), rel=1e-9)


def not_always_a_covariance(mean=0.5):
    """Model whose covariance has a scale that may be negative."""
    X, y = models.data(10)
    with pm.Model() as model:
        scale = pm.Normal("scale", mean, 0.5, initval=0.5)
        gp = pm.gp.Latent(cov_func=scale * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    return model


@pytest.mark.variation(but=["centred"])
@every_density
def test_density_is_nan_for_indefinite_covariance_and_nuts_rejects_it(kind):
    latent_model = LatentModel(read_classifier(not_always_a_covariance()))
    density = DENSITIES[kind](latent_model)
    point, _, _, x = somewhere(latent_model)
    (value,) = evaluated(latent_model, density, {**point, "scale": np.array(-3.0)}, x)
    assert np.isnan(value)
    nuts = conditional_nuts(latent_model, latent_model.value_vars, density, rng=1)
    nuts.adapt_step_size = False
    nuts.step_adapt._log_step = nuts.step_adapt._log_bar = np.log(20.0)  # makes leaps out of the support
    start = {**point, "scale": np.array(0.5)}
    moves = [move_hyperparameters(nuts, start, 0.1 * x) for _ in range(20)]
    assert any(stats["diverging"] for _, stats in moves)
    assert all(np.isfinite(moved["scale"]) for moved, _ in moves)


@pytest.mark.variation(but=["collapsed"])
@every_density
@models.interpreted_sampler
def test_step_moves_only_its_own_variables(kind):
    latent_model = LatentModel(read_classifier(models.shared()[0]))
    point, _, _, x = somewhere(latent_model)
    (chosen,) = [v for v in latent_model.value_vars if v.name.startswith("eta")]
    nuts = conditional_nuts(latent_model, [chosen], DENSITIES[kind](latent_model), rng=1)
    moved = point
    for _ in range(15):
        moved, stats = move_hyperparameters(nuts, moved, x)
    assert moved.keys() == point.keys()
    assert moved[chosen.name] != point[chosen.name]
    assert all(np.array_equal(moved[name], point[name]) for name in point if name != chosen.name)
    assert stats["tree_size"] >= 1


@pytest.mark.variation
def test_step_samples_the_conditional_density():
    # With one hyperparameter the density on a grid is the exact result.
    latent_model = LatentModel(read_classifier(models.probit()[0]))
    density = collapsed(latent_model)
    point, _, mean, x = somewhere(latent_model)
    v = mean + 3.0 * x.cumsum(axis=1) / 5.0
    (name,) = [v.name for v in latent_model.value_vars]
    compiled = latent_model.function([density.log_density], density.given)
    grid = np.linspace(-4.0, 4.0, 401)
    heights = np.array([compiled({**point, name: np.array(g)}, v)[0] for g in grid])
    weights = np.exp(heights - heights.max())
    weights /= weights.sum()
    nuts = conditional_nuts(latent_model, latent_model.value_vars, density, rng=2)
    nuts = cloudpickle.loads(cloudpickle.dumps(nuts))
    drawn = []
    for i in range(500):
        if i == 100:
            nuts.stop_tuning()
        point, _ = move_hyperparameters(nuts, point, v)
        drawn.append(point[name])
    kept = np.array(drawn[100:]).reshape(20, -1)
    expected = weights @ grid
    assert abs(kept.mean() - expected) < 4.5 * kept.mean(axis=1).std(ddof=1) / np.sqrt(20)
    spread = weights @ (grid - expected) ** 2
    squares = (kept - expected) ** 2
    assert abs(squares.mean() - spread) < 4.5 * squares.mean(axis=1).std(ddof=1) / np.sqrt(20)
    assert_allclose(weights[[0, -1]], 0.0, atol=1e-6)
