"""The Gibbs sampler as a step method: exact posteriors, other steps, states, messages."""

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.kernels.sampling import draw_by_sign, draw_in_cone, draw_latent_values, utility_precisions
from tests import models
from tests.reference.exact import quadrature_posterior
from tests.reference.gibbs import gibbs

WAYS = ("centred", "collapsed", "whitened")
every_way = pytest.mark.parametrize("hyper", WAYS)


def step_of(model, *args, seed=1, **options):
    with model:
        return gpep.samplers.ProbitGibbs(*args, rng=seed, **options)


def chain(step, model, draws, tune=300):
    """Points of the model's value variables, stacked by name."""
    point = model.initial_point(0)
    step.setup_chain(np.random.default_rng(2), tune, draws)
    kept = []
    for i in range(tune + draws):
        if i == tune:
            step.stop_tuning()
        point, stats = step.step(point)
        if i >= tune:
            kept.append({**point, "f": step.current(point)[1], **stats[0]})
    return {name: np.array([p[name] for p in kept]) for name in kept[0] if name != "warning"}


def average(values, batches=20):
    """Mean over the first axis and its Monte Carlo standard error."""
    means = values.reshape(batches, -1, *values.shape[1:]).mean(axis=1)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(batches)


def tiny(rotated=True, correlation=None):
    """Two classes, two points, one hyperparameter."""
    correlation = correlation or pm.gp.cov.ExpQuad(1, ls=1.0)
    X = np.array([[-0.7], [0.7]])
    with pm.Model() as model:
        eta = pm.LogNormal("eta", 0.5, 0.7)
        gp = pm.gp.Latent(cov_func=eta**2 * correlation)
        f = gp.prior("f", X=X, n_outputs=2, reparameterize=rotated)
        gpep.MultinomialProbit("y", f.T, observed=[0, 1])
    return model


def exact_of_tiny():
    """Posterior mean and variance of log eta, and mean of f, by a grid of eta."""
    X = np.array([-0.7, 0.7])
    gaussian = np.exp(-0.5 * (X[:, None] - X) ** 2)
    log_eta = np.linspace(0.5 - 3.0, 0.5 + 3.0, 31)
    found = [quadrature_posterior(np.exp(2 * g) * gaussian + 1e-6 * np.eye(2), [0, 1], c=2) for g in log_eta]
    log_weights = np.array([p.evidence for p in found]) - 0.5 * ((log_eta - 0.5) / 0.7) ** 2
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    mean = weights @ log_eta
    return mean, weights @ (log_eta - mean) ** 2, sum(w * p.mean for w, p in zip(weights, found, strict=True))


@pytest.fixture(scope="module")
def exact():
    return exact_of_tiny()


@pytest.mark.parametrize(
    ("hyper", "rotated", "draws"),
    [
        # The density that moves the hyperparameters does not depend on the parametrisation of the prior.
        pytest.param("collapsed", True, 1200, marks=pytest.mark.slow),
        # Given latent values, hyperparameters move slowly.
        *(pytest.param("centred", rotated, 15_000, marks=pytest.mark.calibration) for rotated in (True, False)),
        pytest.param("collapsed", False, 4000, marks=pytest.mark.calibration),
        *(pytest.param("whitened", rotated, 4000, marks=pytest.mark.calibration) for rotated in (True, False)),
    ],
)
def test_chain_of_a_tiny_model_matches_quadrature(hyper, rotated, draws, exact):
    model = tiny(rotated)
    drawn = chain(step_of(model, hyper=hyper, sweeps=1), model, draws)
    mean, variance, f = exact
    log_eta = drawn["eta_log__"]
    for values, expected in ((log_eta, mean), ((log_eta - mean) ** 2, variance), (drawn["f"], f)):
        estimate, error = average(values)
        assert (abs(estimate - expected) < 4.5 * error).all()
        assert (error < 0.2 * values.std(axis=0)).all()


@pytest.mark.variation(but=["shared"])
@pytest.mark.parametrize("build", [models.fixed, models.per_class], ids=["shared", "per class"])
def test_latent_values_match_quadrature_at_fixed_hyperparameters(build):
    model, _ = build()
    latents = [v for v in model.deterministics + model.free_RVs if v.name in ("f", *(f"f_{s}" for s in models.SPECIES))]
    step = step_of(model, latents, sweeps=3)
    assert step.hyperparameters == []
    drawn = chain(step, model, 1000, tune=50)
    prior = step.prior(model.initial_point(0))
    labels = models.data()[1]
    reference = gibbs(prior.k if len(prior.k) > 1 else prior.k[0], labels, prior.mean, sweeps=400, burn=100)
    estimate, error = average(drawn["f"])
    assert (abs(estimate - reference.mean) < 4.5 * np.hypot(error, reference.mean_error)).all()
    assert drawn.keys() == {*model.initial_point(0), "f", "draw_time"}
    assert (drawn["draw_time"] > 0).all()


@pytest.mark.parametrize(
    ("build", "draw", "shifted"), [(models.fixed, draw_in_cone, True), (models.bernoulli_probit, draw_by_sign, False)]
)
def test_sweep_updates_utilities_then_latent_values(build, draw, shifted):
    model, _ = build()
    step = step_of(model, [model["f"]], sweeps=2, seed=7)
    point = model.initial_point(0)
    prior, f = step.current(point)
    labels = model.rvs_to_values[model["y"]].eval()
    rng, v = np.random.default_rng(7), np.empty_like(f)
    precisions, total = np.empty_like(prior.k), np.empty(prior.k.shape[1:])
    assert utility_precisions(prior.k, precisions, total)
    for _ in range(2):
        draw(rng, f, labels, v)
        draw_latent_values(rng, prior.mean, prior.roots, precisions, total, shifted, f, v)
    assert_allclose(step.current(step.step(point)[0])[1], f, rtol=1e-6, atol=1e-6)


@pytest.mark.variation(but=["whitened-one function"])
@pytest.mark.parametrize("build", [models.per_class, models.bernoulli_probit], ids=["per class", "one function"])
@pytest.mark.parametrize(
    "hyper", [pytest.param(way, marks=[] if way == "whitened" else pytest.mark.slow) for way in WAYS]
)
def test_gibbs_step_moves_all_variables_for_separate_covariances_and_single_functions(hyper, build):
    model, _ = build()
    step = step_of(model, hyper=hyper)
    point = model.initial_point(0)
    for _ in range(3):  # the first move can be refused, before NUTS has adapted its step size
        point, (stats,) = step.step(point)
    assert all(np.isfinite(value).all() for value in point.values())
    assert all(not np.array_equal(value, point[name]) for name, value in model.initial_point(0).items())
    assert stats.keys() == step.stats_dtypes_shapes.keys()
    # The point contains the latent values that the step has drawn.
    prior, f = step.current(point)
    again = step.moved(point, f, prior)
    assert all(np.allclose(again[name], value, rtol=1e-6, atol=1e-6) for name, value in point.items())


def sampled(model, step, cores, **options):
    with model:
        return pm.sample(
            5, tune=5, chains=2, cores=cores, step=step, random_seed=3, progressbar=False,
            compute_convergence_checks=False, **options,
        )  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return models.shared()[0]


@pytest.mark.variation
def test_draws_do_not_depend_on_cores(model):
    with model:
        one, two = (sampled(model, gpep.samplers.ProbitGibbs(), cores) for cores in (1, 2))
    for name in ("eta", "ls", "f", "f_of_virginica"):
        assert_array_equal(one["posterior"][name], two["posterior"][name])
    first, second = one["posterior"]["f"].values
    assert not np.isin(first, second).any()
    stats = one["sample_stats"]
    assert {"diverging", "step_size", "n_steps", "acceptance_rate", "tree_depth", "draw_time"} <= set(stats.data_vars)
    assert not {"lp", "energy"} & set(stats.data_vars)
    assert stats["diverging"].shape == (2, 5)
    assert np.ptp(stats["step_size"].values, axis=1).max() == 0.0  # adapted during tuning only


@pytest.mark.variation
def test_step_can_be_combined_with_other_steps(model):
    with model:
        idata = sampled(model, gpep.samplers.ProbitGibbs([model["f"], model["eta"]]), 1)
    for name in ("eta", "ls", "f"):
        values = idata["posterior"][name].values
        assert np.isfinite(values).all()
        assert np.ptp(values, axis=1).min() > 0.0


@pytest.mark.variation
def test_progress_bar_shows_statistics(model):
    headers = [
        [column.get_table_column().header for column in step_of(model, *vars)._progressbar_config(2)[0]]
        for vars in ((), ([model["f"]],))
    ]
    assert headers == [["Divergences", "Step size", "Grad evals"], []]
    with model:  # with a progress bar
        pm.sample(
            3, tune=3, chains=1, step=gpep.samplers.ProbitGibbs(), random_seed=1, compute_convergence_checks=False
        )
        pm.sample(
            3, tune=3, chains=1, step=[gpep.samplers.ProbitGibbs([model["f"]]), pm.Slice([model["eta"], model["ls"]])],
            random_seed=1, compute_convergence_checks=False,
        )  # fmt: skip


@pytest.mark.variation(but=["whitened"])
@every_way
def test_state_and_pickle_resume_a_chain(hyper):
    assert_resumes(tiny(), hyper, rtol=1e-9)  # a copy of an interpreted graph has other rounding errors


@pytest.mark.calibration
@pytest.mark.usefixtures("machine_code")
def test_state_and_pickle_resume_a_compiled_chain():
    # numba compiles a covariance without matrix products fastest
    assert_resumes(tiny(correlation=pm.gp.cov.Periodic(1, period=5.0, ls=1.0)), "collapsed", compiled=True)


def assert_resumes(model, hyper, rtol=0.0, compiled=False):
    """A copy of a step, and another step with its state, continue like the step.

    Each is compiled once more. For a `compiled` step only the copy is tested.
    """
    step = step_of(model, hyper=hyper, sweeps=2)
    point = model.initial_point(0)
    for _ in range(8):
        point, _ = step.step(point)
    state = step.sampling_state
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    those = [step, copy]
    if not compiled:
        those.append(step_of(model, hyper=hyper, sweeps=2, seed=9))
        those[-1].sampling_state = state
    futures = []
    for continued in those:
        at = point
        for _ in range(4):
            at, (stats,) = continued.step(at)
        futures.append({**at, "step_size": stats["step_size"]})
    for future in futures[1:]:
        for name, value in futures[0].items():
            assert_allclose(future[name], value, rtol=rtol)
    assert futures[0]["step_size"] > 0


def test_new_labels_in_data_are_used():
    X, y = models.data(10)
    with pm.Model() as model:
        labels = pm.Data("labels", y)
        gp = pm.gp.Latent(cov_func=25.0 * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=labels)
    step = step_of(model, sweeps=20)
    pm.set_data({"labels": np.zeros_like(y)}, model=model)
    drawn = chain(step, model, 200, tune=20)["f"].mean(axis=0)
    assert (drawn.argmax(axis=0) == 0).all()


def signed(mean):
    """Model whose covariance has a scale that may be negative, and is then invalid."""
    X, y = models.data(10)
    with pm.Model() as model:
        scale = pm.Normal("scale", mean, 0.2, initval=0.1)
        gp = pm.gp.Latent(cov_func=scale * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    return model


@pytest.mark.variation(but=["whitened"])
@every_way
def test_hyperparameters_with_an_invalid_covariance_are_rejected_without_a_warning(hyper):
    model = signed(-0.1)
    step = step_of(model, hyper=hyper)
    prior = step.prior
    refused = []

    def watched(point):
        found = prior(point)
        refused.append(found is None)
        return found

    step.prior = watched
    drawn = chain(step, model, 60, tune=60)
    assert (drawn["scale"] > -1e-6).all()
    assert np.isfinite(drawn["f"]).all()
    # If K is invalid, only the collapsed density with K + I can exist.
    assert any(refused) == (hyper == "collapsed")


def test_model_with_a_softmax_is_refused():
    model, _ = models.softmax()
    with pytest.raises(ValueError, match=r"'y' is a softmax.*gpep.MultinomialProbit, gpep.Probit, .*epsilon=.* only"):
        step_of(model)


@pytest.mark.parametrize("hyper", ["whiten", None, 1])
def test_unknown_hyper_raises_value_error(hyper):
    with pytest.raises(ValueError, match="'centred', 'collapsed', 'whitened'"):
        step_of(models.fixed()[0], hyper=hyper)


@pytest.mark.parametrize(
    ("sweeps", "error", "message"),
    [
        *((few, ValueError, f"sweeps must be at least 1, but is {few}") for few in (0, -1)),
        *(
            (other, TypeError, f"sweeps must be a whole number, but is {other!r}")
            for other in (2.0, "many", True, None)
        ),
    ],
)
def test_invalid_numbers_of_sweeps_are_refused(sweeps, error, message):
    with pytest.raises(error, match=message):
        step_of(models.fixed()[0], sweeps=sweeps)


def test_gibbs_step_is_a_public_name():
    assert gpep.samplers.ProbitGibbs.__module__ == "pymc_gpep.samplers.probit_gibbs"
    assert "ProbitGibbs" in gpep.samplers.__all__


@pytest.mark.calibration
def test_chain_matches_nuts():
    model, _ = models.probit()
    with model:
        nuts = pm.sample(
            2000, tune=1000, chains=2, cores=1, nuts_sampler="pymc", random_seed=4, progressbar=False,
            compute_convergence_checks=False, target_accept=0.95,
        )  # fmt: skip
    log_ls, f = np.log(nuts["posterior"]["ls"].values).ravel(), nuts["posterior"]["f"].values.reshape(4000, 3, -1)
    for hyper in WAYS:
        drawn = chain(step_of(model, hyper=hyper, sweeps=10), model, 10_000, tune=1000)
        for ours, theirs in ((drawn["ls_log__"], log_ls), (drawn["f"], f)):
            (estimate, error), (expected, their_error) = average(ours, 10), average(theirs, 10)
            assert (abs(estimate - expected) < 5.0 * np.hypot(error, their_error)).all()
