"""The scaled Metropolis-Hastings sampler: exact posteriors, adaptation, state and refusals."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_gpep as gpep
from tests import models
from tests.samplers import small

ETA = 2.0


def sample(model, draws=1500, tune=500, chains=2, cores=1, step=None, **options):
    with model:
        return pm.sample(
            draws, tune=tune, chains=chains, cores=cores, random_seed=7, progressbar=False,
            step=gpep.samplers.ScaledMetropolis() if step is None else step,
            compute_convergence_checks=False, **options,
        )  # fmt: skip


def check_mean(draws, expected):
    """Compare the mean of draws (chains, draws, ...) with its exact value, by means of 20 batches."""
    chains, length = draws.shape[:2]
    batches = draws.reshape(20, chains * length // 20, *draws.shape[2:]).mean(axis=1)
    error = batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
    np.testing.assert_array_less(np.abs(batches.mean(axis=0) - expected), 4 * error)
    assert (error < 0.3).all()


def test_chain_of_a_bernoulli_model_matches_quadrature():
    def moments(f):
        return small.bernoulli_likelihood(f)[:, None] * np.column_stack([np.ones(len(f)), f, f**2])

    total, *expected = small.integrate(moments, np.full(2, small.MEAN), small.covariance(ETA))
    f = sample(small.bernoulli(ETA), draws=400, tune=100).posterior["f"].values
    check_mean(np.concatenate([f, f**2], axis=-1), np.array(expected) / total)


def test_chain_of_a_softmax_model_matches_quadrature():
    k, mean = np.zeros((3, 2, 3, 2)), np.zeros((3, 2))
    for a in range(3):
        k[a, :, a, :] = small.covariance(ETA + a)
        mean[a] = 0.3 * a

    def moments(f):
        p = np.exp(f.reshape(-1, 3, 2))
        p /= p.sum(axis=1, keepdims=True)
        likelihood = p[:, small.Y, [0, 1]].prod(axis=1)
        return likelihood[:, None] * np.column_stack([np.ones(len(f)), f])

    total, *expected = small.integrate(moments, mean.ravel(), k.reshape(6, 6))
    posterior = sample(small.fixed_softmax(ETA), draws=300, tune=100).posterior
    f = np.concatenate([posterior[f"f_{a}"].values for a in range(3)], axis=-1)
    check_mean(f, np.array(expected) / total)


@pytest.mark.variation
def test_scale_is_adapted_during_tuning_and_fixed_afterwards():
    model, _ = models.fixed()
    with model:
        step = gpep.samplers.ScaledMetropolis(scale=1.0, updates=5, target_accept=0.4)
    stats = sample(model, draws=200, tune=300, step=step).sample_stats
    scale, acceptance = stats["metropolis_scale"].values, stats["metropolis_acceptance"].values
    assert (scale == scale[:, :1]).all()
    assert (scale < 0.9).all()
    assert scale[0, 0] != scale[1, 0]
    assert np.abs(acceptance.mean(axis=1) - 0.4).max() < 0.12


def test_scale_is_constant_without_tuning():
    stats = sample(small.bernoulli(ETA), draws=20, tune=0, step=None).sample_stats
    assert (stats["metropolis_scale"] == 0.2).all()


def test_scale_is_at_most_one_for_weak_likelihoods():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=small.X)
        pm.Normal("y", f, 100.0, observed=[0.0, 1.0])
    posterior = sample(model, draws=50, tune=50)
    assert (posterior.sample_stats["metropolis_scale"] == 1).all()
    assert (posterior.sample_stats["metropolis_acceptance"] > 0.9).all()


def test_proposals_leave_the_prior_invariant():
    """The likelihood is nearly flat. Steps have any length."""
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(1, ls=0.1)).prior("f", X=small.X)
        pm.Normal("y", f, 1e4, observed=[0.0, 1.0])
        step = gpep.samplers.ScaledMetropolis(scale=0.6, updates=5, rng=1)
    step.stop_tuning()
    point, drawn = model.initial_point(), []
    for _ in range(400):
        point, _ = step.step(point)
        drawn.append(step.current(point)[1][0])
    assert np.var(drawn) == pytest.approx(4.0, rel=0.2)


class Given:
    """Random generator that returns given normal and exponential variables for one proposal."""

    def __init__(self, normals, exponential=1.0):
        self.normals, self.exponential = normals, exponential

    def standard_normal(self, shape):
        return np.broadcast_to(self.normals, shape)

    def standard_exponential(self, count):
        return np.full(count, self.exponential)


def proposed(step, point, normals, **options):
    """Deviation from the prior mean after one proposal."""
    step.rng = Given(normals, **options)
    moved, [stats] = step.step(point)
    prior, f = step.current(moved)
    return f - prior.mean, stats["metropolis_acceptance"]


def test_proposals_are_reversible_in_the_prior():
    """The proposal from x is √(1 − ε²) x + ε L n. If x ~ N(0, K), so is the proposal."""
    model = small.bernoulli(ETA)
    with model:
        step = gpep.samplers.ScaledMetropolis(scale=0.6, updates=1)
    step.stop_tuning()
    point = {"f_rotated_": np.array([0.7, -0.4])}
    prior, f = step.current(point)
    x = f - prior.mean
    always = {"exponential": np.inf}
    moved, _ = proposed(step, point, 0.0, **always)
    np.testing.assert_allclose(moved, 0.8 * x, rtol=1e-7)
    noise = np.array([proposed(step, point, unit, **always)[0][0] - moved[0] for unit in np.eye(2)])
    shrink = float((moved * x).sum() / (x**2).sum())
    kept = shrink**2 * small.covariance(ETA) + noise.T @ noise
    np.testing.assert_allclose(kept, small.covariance(ETA), rtol=1e-6)


@pytest.mark.parametrize("accepted", [True, False])
def test_acceptance_uses_the_likelihood_ratio(accepted):
    model = small.bernoulli(ETA)
    with model:
        step = gpep.samplers.ScaledMetropolis(scale=0.6, updates=1)
    point = {"f_rotated_": np.array([-0.9, 0.8])}
    prior, f = step.current(point)
    normals = np.array([2.5, -2.0])
    there = prior.mean + 0.8 * (f - prior.mean) + 0.6 * np.linalg.cholesky(small.covariance(ETA)) @ normals
    loss = float(np.log(small.bernoulli_likelihood(f) / small.bernoulli_likelihood(there))[0])
    assert loss > 0.5
    moved, acceptance = proposed(step, point, normals, exponential=loss * (1.01 if accepted else 0.99))
    assert acceptance == accepted
    np.testing.assert_allclose(moved, (there if accepted else f) - prior.mean, rtol=1e-6)


def test_step_updates_latent_values_only_and_nuts_updates_hyperparameters():
    model = small.bernoulli()
    with model:
        step, named = gpep.samplers.ScaledMetropolis(), gpep.samplers.ScaledMetropolis([model["f"]])
        assert [v.name for v in step.vars] == [v.name for v in named.vars] == ["f_rotated_"]
        data = sample(model, draws=20, tune=20, chains=1, step=step)
    assert {"metropolis_scale", "metropolis_acceptance", "step_size"} < set(data.sample_stats)
    assert np.unique(data.posterior["eta"]).size > 5


@pytest.mark.parametrize("rotated", [True, False])
def test_step_moves_latent_values_equally_in_both_parametrisations(rotated):
    model = small.classifier("softmax", rotated)
    with model:
        step = gpep.samplers.ScaledMetropolis(updates=50, rng=3)
    point = model.initial_point()
    moved, [stats] = step.step(point)
    assert moved["eta_log__"] == point["eta_log__"]
    assert stats["metropolis_scale"] == 0.2
    assert 0 < stats["metropolis_acceptance"] <= 1
    _, f = step.current(moved)
    assert (f != step.current(point)[1]).all()
    twin = small.classifier("softmax", not rotated)
    with twin:
        other = gpep.samplers.ScaledMetropolis(updates=50, rng=3)
    np.testing.assert_allclose(other.current(other.step(twin.initial_point())[0])[1], f, rtol=1e-8)


@pytest.mark.parametrize("nowhere", [-np.inf, np.nan])
def test_draws_stay_where_the_likelihood_is_positive(nowhere):
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=small.X, reparameterize=False)
        pm.Potential("positive", pt.switch(f.sum() > 0, 0.0, nowhere))
        step = gpep.samplers.ScaledMetropolis(scale=0.9, updates=30, rng=1)
    point = {"f": np.array([0.1, 0.1])}
    sums, acceptance = [], []
    for _ in range(30):
        point, [stats] = step.step(point)
        sums.append(point["f"].sum())
        acceptance.append(stats["metropolis_acceptance"])
    assert min(sums) > 0
    assert np.unique(sums).size > 20
    assert 0 < np.mean(acceptance) < 1


@pytest.mark.parametrize("rotated", [True, False])
def test_small_proposals_stay_close_for_any_mean(rotated):
    model = small.bernoulli(ETA, rotated)
    with model:
        step = gpep.samplers.ScaledMetropolis(scale=1e-8, rng=1)
    point = model.initial_point()
    moved, [stats] = step.step(point)
    before, after = step.current(point)[1], step.current(moved)[1]
    assert 0 < np.abs(after - before).max() < 1e-6
    assert stats["metropolis_acceptance"] == 1


def test_chain_resumed_from_the_saved_state_equals_the_original_chain():
    model = small.bernoulli(ETA)
    with model:
        first, second = gpep.samplers.ScaledMetropolis(rng=1), gpep.samplers.ScaledMetropolis(rng=2, scale=0.7)
    point = model.initial_point()
    for _ in range(5):
        point, _ = first.step(point)
    second.sampling_state = first.sampling_state
    for _ in range(3):
        (point, [stats]), (twin, [same]) = first.step(point), second.step(point)
        np.testing.assert_array_equal(twin["f_rotated_"], point["f_rotated_"])
        assert same == stats
    assert first.scale == second.scale != 0.2
    first.stop_tuning()
    scale = first.scale
    first.step(point)
    assert first.scale == scale
    first.setup_chain(np.random.default_rng(1), tune=10, draws=10)
    assert (first.scale, first.tuned, first.tune) == (0.2, 0, True)


def test_draws_do_not_depend_on_cores():
    model = small.bernoulli(ETA)
    one, two = (sample(model, draws=10, tune=10, cores=cores, mp_ctx="fork").posterior["f"].values for cores in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert (one[0] != one[1]).any()


def test_pickled_step_continues_like_the_step():
    """New processes receive the step as a pickle."""
    model = small.bernoulli(ETA)
    with model:
        step = gpep.samplers.ScaledMetropolis(rng=3)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    one, other = (each.step(model.initial_point())[0] for each in (step, copy))
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])


def test_statistics_contain_acceptance_and_scale(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with small.bernoulli(ETA):
        pm.sample(
            100, tune=5, chains=1, cores=1, step=gpep.samplers.ScaledMetropolis(), random_seed=1, progressbar=True,
            compute_convergence_checks=False,
        )  # fmt: skip
    shown = capsys.readouterr().out
    assert "Acceptance" in shown
    assert "Scale" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, r"scale must be in \(0, 1\], but is 0.0"),
        ({"scale": 1.5}, r"scale must be in \(0, 1\], but is 1.5"),
        ({"updates": 0}, "updates must be at least 1"),
        ({"target_accept": 1.0}, r"target_accept must be in \(0, 1\)"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with small.bernoulli(ETA), pytest.raises(ValueError, match=message):
        gpep.samplers.ScaledMetropolis(**options)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["f", "eta"], "vars names 'eta', but ScaledMetropolis updates latent values only. Leave out"),
        (["eta"], "vars leaves out latent values, 'f'"),
    ],
)
def test_vars_with_hyperparameters_are_refused(names, message):
    with small.bernoulli() as model, pytest.raises(ValueError, match=message):
        gpep.samplers.ScaledMetropolis([model[name] for name in names])


def test_model_without_latent_values_is_refused():
    with pm.Model():
        x = pm.HalfNormal("x")
        pm.Normal("y", x, 1, observed=0.0)
        with pytest.raises(gpep.StructureError, match="must depend on Gaussian variables"):
            gpep.samplers.ScaledMetropolis()


@pytest.mark.slow
def test_joint_chain_with_nuts_matches_quadrature():
    grid = np.linspace(0.005, 12, 600)
    prior = np.exp(-0.5 * (grid / 2) ** 2)
    weights = prior * np.exp([small.bernoulli_evidence(eta) for eta in grid])
    expected = (weights * grid).sum() / weights.sum()
    data = sample(small.bernoulli(), draws=1000, tune=300)
    check_mean(data.posterior["eta"].values, expected)
