"""Common properties of guided samplers: variables, guides, reproducibility, state."""

import logging
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier
from pymc_gpep.registration import advise
from pymc_gpep.samplers.guided import guided, offer_step
from tests import models
from tests.samplers import small
from tests.samplers.exactness import PROBLEMS, build

STEPS = [gpep.samplers.GuidedHMC, gpep.samplers.EllipticalSlice, gpep.samplers.PseudoMarginal]


def draw(model, step, draws=5, tune=3, **options):
    with model:
        return pm.sample(
            draws, tune=tune, step=step, random_seed=3, progressbar=False, compute_convergence_checks=False, **options
        )


@pytest.fixture(scope="module")
def model():
    return models.shared()[0]


@pytest.fixture(scope="module", params=STEPS)
def step(request, model):
    with model:
        return request.param()


@pytest.mark.variation(but=["PseudoMarginal"])
def test_step_without_vars_moves_all_variables(model, step):
    assert {v.name for v in step.vars} == {"f_rotated_", "ls_log__", "eta_log__"}
    posterior = draw(model, step, chains=1, cores=1).posterior
    for name in ("f", "ls", "eta", "eta_squared"):
        assert np.ptp(posterior[name].values, axis=1).min() > 0


@pytest.mark.variation(but=["GuidedHMC"])
def test_draws_depend_only_on_the_seed(model, step):
    one = draw(model, step, chains=2, cores=1)
    two = draw(model, step, chains=2, cores=2, mp_ctx="fork")
    for name in ("f", "ls", "eta"):
        np.testing.assert_array_equal(one.posterior[name].values, two.posterior[name].values)


def test_chain_resumes_from_its_state(model, step):
    step.setup_chain(np.random.default_rng(0), 100, 100)
    point = model.initial_point()
    for _ in range(5):
        point, _ = step.step(point)
    state = step.sampling_state
    first, _ = step.step(point)
    step.setup_chain(np.random.default_rng(1), 0, 100)
    step.sampling_state = state
    second, _ = step.step(point)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_step_can_be_pickled(model, step):
    copy = pickle.loads(cloudpickle.dumps(step))
    results = []
    for each in (step, copy):
        each.setup_chain(np.random.default_rng(0), 10, 10)
        results.append(each.step(model.initial_point())[0])
    np.testing.assert_array_equal(results[0]["f_rotated_"], results[1]["f_rotated_"])


def test_adaptation_ends_after_tuning(model, step):
    statistics = draw(model, step, draws=5, tune=5, chains=1, cores=1).sample_stats
    assert np.ptp(statistics["hyper_scale"].values) == 0
    step.setup_chain(np.random.default_rng(0), 2, 10)
    point = model.initial_point()
    for _ in range(2):
        point, _ = step.step(point)
    step.stop_tuning()
    before = step.sampling_state
    step.step(point)
    after = step.sampling_state
    np.testing.assert_array_equal(before.walk.covariance, after.walk.covariance)
    assert before.walk.log_scale == after.walk.log_scale


@pytest.mark.variation
def test_other_steps_can_sample_hyperparameters(model):
    with model:
        step = gpep.samplers.GuidedHMC([model["f"], model["eta"]])
        assert {v.name for v in step.vars} == {"f_rotated_", "eta_log__"}
        idata = pm.sample(
            10, tune=5, chains=1, step=[step, pm.Slice([model["ls"]])], random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert np.ptp(idata.posterior["ls"].values) > 0
    assert np.ptp(idata.posterior["eta"].values) > 0


def test_short_leapfrog_steps_keep_the_energy(monkeypatch):
    """The energy error is of the order of the squared step length, so that nearly all proposals are accepted."""
    model, _ = models.fixed()
    with model:
        step = gpep.samplers.GuidedHMC(rng=1)
    monkeypatch.setattr(step.step_size, "current", lambda tune: 0.05)
    point, rates = model.initial_point(0), []
    for _ in range(10):
        point, (statistics,) = step.step(point)
        assert statistics["n_leapfrog"] > 20
        rates.append(statistics["acceptance_rate"])
    assert min(rates) > 0.95


def test_long_leapfrog_steps_leave_the_posterior_invariant(monkeypatch):
    """Half of the proposals are far out and must be refused. The reference for two points is quadrature."""

    def moments(f):
        return small.bernoulli_likelihood(f)[:, None] * np.column_stack([np.ones(len(f)), f, f**2])

    total, *expected = small.integrate(moments, np.full(2, small.MEAN), small.covariance(2.0))
    model = small.bernoulli(2.0)
    with model:
        step = gpep.samplers.GuidedHMC(guide="prior", path_length=4.0, rng=1)
    monkeypatch.setattr(step.step_size, "current", lambda tune: 1.25)
    point, drawn = model.initial_point(0), []
    for _ in range(1000):
        point, _ = step.step(point)
        drawn.append(step.current(point)[1][0])
    f = np.array(drawn)
    means = np.concatenate([f, f**2], axis=1).reshape(20, -1, 4).mean(axis=1)
    error = means.std(axis=0, ddof=1) / np.sqrt(20)
    assert (error < 0.3).all()
    assert (np.abs(means.mean(axis=0) - np.array(expected) / total) < 4.0 * error).all()


def test_directions_of_ellipses_have_the_covariance_of_the_guide_and_mean_zero(monkeypatch):
    """The directions are draws from the Gaussian of the guide, minus its mean."""
    model, _ = models.fixed()
    with model:
        step = gpep.samplers.EllipticalSlice(rng=1)
    point = model.initial_point(0)
    directions = []

    def kept(x, direction, log_ratio, current, rng):
        directions.append(direction)
        return x, current, 1

    monkeypatch.setattr("pymc_gpep.samplers.elliptical_slice.elliptical_slice", kept)
    for _ in range(300):
        step.step(point)
    whitening = step.whitening(step.prior(point), point)
    assert np.abs(whitening.centre).max() > 1.0
    scale = np.std(directions, axis=0) / np.sqrt(len(directions))
    assert (np.abs(np.mean(directions, axis=0)) < 4.5 * scale).all()


def test_density_ratio_times_gaussian_of_the_guide_is_the_posterior():
    """The test compares two states, since a few hundred draws would not reveal a neglected tenth of a site."""
    with build(PROBLEMS["bernoulli"]) as problem:
        step = gpep.samplers.GuidedHMC(rng=1)
    point, logp = problem.initial_point(0), problem.compile_logp()
    prior = step.prior(point)
    whitening = step.whitening(prior, point)
    normals = np.random.default_rng(2).normal(scale=2.0, size=(2, *whitening.shape))
    states = [whitening.latent(z) for z in normals]
    units = np.eye(normals[0].size).reshape(-1, *whitening.shape)
    root = np.array([(whitening.latent(unit) - whitening.centre)[0] for unit in units])  # (normals, points)
    ratios = [step.log_ratio(point, whitening, f)[0] for f in states]
    away = [(f - whitening.centre)[0] for f in states]
    found = [ratio - 0.5 * x @ np.linalg.solve(root.T @ root, x) for ratio, x in zip(ratios, away, strict=True)]
    expected = [float(logp(step.moved(point, f, prior))) for f in states]
    assert abs(ratios[1] - ratios[0]) > 0.1
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0], rel=1e-6)
    slope, direction = step.log_ratio(point, whitening, states[0])[1], np.array([[0.3, -1.0, 0.6, 0.2]])
    ends = [step.log_ratio(point, whitening, states[0] + h * direction)[0] for h in (1e-5, -1e-5)]
    assert np.vdot(slope, direction) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


def test_model_without_hyperparameters_is_sampled(model):
    fixed, _ = models.fixed()
    with fixed:
        step = gpep.samplers.EllipticalSlice(guide="prior")
    idata = draw(fixed, step, chains=1, cores=1)
    assert np.isnan(idata.sample_stats["hyper_acceptance"].values).all()
    assert np.ptp(idata.posterior["f"].values, axis=1).min() > 0


def test_guide_is_chosen_by_the_likelihood():
    for name, guide in (("probit", "nested_ep"), ("softmax", "laplace"), ("bernoulli", "ep")):
        _, chosen = guided(read_classifier, build(PROBLEMS[name]), None, None)
        assert chosen == guide
    model, _ = models.fixed()
    with model:
        assert gpep.samplers.EllipticalSlice().guide == "nested_ep"


def test_fit_of_the_guide_is_logged_once(caplog):
    """The message is logged once, before the guide is fitted, and not if `pm.sample` is silenced."""
    with models.fixed()[0]:
        with caplog.at_level("INFO", logger="pymc"):
            gpep.samplers.EllipticalSlice()
            gpep.samplers.EllipticalSlice(guide="prior")
        with caplog.at_level("WARNING", logger="pymc"):
            gpep.samplers.EllipticalSlice()
    assert caplog.messages == ["Fitting nested_ep to guide EllipticalSlice"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"guide": "laplace"},
            "guide is 'laplace', but the guides .* are 'nested_ep', 'vb', 'qep', 'iep', 'qiep', 'prior'",
        ),
        ({"guide": "nobody"}, "guide is 'nobody'"),
        ({"hyper_moves": 0}, "hyper_moves must be at least 1"),
        ({"path_length": 0.0}, "path_length must be positive"),
        ({"target_accept": 1.0}, "target_accept must be between 0 and 1"),
        ({"max_leapfrog": 0}, "max_leapfrog must be at least 1"),
    ],
)
def test_invalid_options_raise_value_error(model, options, message):
    with model, pytest.raises(ValueError, match=message):
        gpep.samplers.GuidedHMC(**options)


def test_invalid_sweeps_are_refused(model):
    with model, pytest.raises(ValueError, match="sweeps must be at least 1"):
        gpep.samplers.EllipticalSlice(sweeps=0)


@pytest.mark.parametrize("guide", ["qep", "vb"])
def test_methods_with_a_site_for_each_latent_function_can_guide(guide):
    with build(PROBLEMS["probit"]) as model:
        step = gpep.samplers.EllipticalSlice(guide=guide, rng=1)
        point, _ = step.step(model.initial_point(0))
    assert step.guide == guide
    assert all(np.isfinite(value).all() for value in point.values())


def test_guide_without_a_classifier_is_refused():
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=np.arange(4.0)[:, None])
        pm.MvNormal("y", mu=f, cov=np.eye(4), observed=np.zeros(4))
        assert gpep.samplers.EllipticalSlice().guide == "prior"
        with pytest.raises(gpep.StructureError, match="read this model in another form"):
            gpep.samplers.GuidedHMC(guide="nested_ep")
    with build(PROBLEMS["bernoulli"]), pytest.raises(ValueError, match="for a logit likelihood are 'ep'"):
        gpep.samplers.GuidedHMC(guide="nested_ep")


def test_a_model_without_processes_is_refused():
    with pm.Model():
        pm.Normal("x")
        with pytest.raises(gpep.StructureError, match=r"The model has no likelihood to read"):
            gpep.samplers.GuidedHMC()


def test_unknown_variables_are_refused(model):
    with pm.Model():
        other = pm.Normal("other")
    with model, pytest.raises(ValueError, match="'other', which are not free variables of this model"):
        gpep.samplers.EllipticalSlice([model["f"], other])
    with model, pytest.raises(ValueError, match=r"variables, not names: model\['f'\]"):
        gpep.samplers.EllipticalSlice("f")
    with model, pytest.raises(ValueError, match="leaves out latent values, 'f'"):
        gpep.samplers.EllipticalSlice([model["eta"]])


def test_sample_without_step_logs_a_step_of_the_package_and_runs_nuts(model, caplog):
    with caplog.at_level(logging.INFO, "pymc"):
        idata = draw_without_step(model)
    assert "step_size" in idata["sample_stats"]  # statistics of NUTS
    (line,) = offers(caplog)
    assert "step=gpep.samplers.GuidedHMC()" in line


def test_sample_with_step_logs_no_advice(model, caplog):
    with caplog.at_level(logging.INFO, "pymc"), model:
        step = pm.DEMetropolisZ()
        pm.sample(1, tune=1, chains=1, step=step, progressbar=False, compute_convergence_checks=False)
    assert offers(caplog) == []


def test_sample_without_processes_or_guide_logs_no_advice(caplog):
    with pm.Model() as regression:
        b = pm.Normal("b", shape=2)
        pm.Bernoulli("y", logit_p=np.ones((4, 2)) @ b, observed=[0, 1, 1, 0])
    with caplog.at_level(logging.INFO, "pymc"):
        for each in (regression, gpep.marginalize(models.probit()[0]), pm.Model()):
            advise(offer_step, each)
        assert offers(caplog) == []
        offer_step(models.probit()[0])
    assert len(offers(caplog)) == 1


def draw_without_step(model):
    with model:
        return pm.sample(2, tune=2, chains=1, random_seed=1, progressbar=False, compute_convergence_checks=False)


def offers(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if "pm.sample without step=" in record.getMessage()]
