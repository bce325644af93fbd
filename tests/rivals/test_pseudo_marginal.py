"""The pseudo-marginal estimate of the evidence, and its chains, for models with and without latent values."""

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.gaussians.sites import CoupledSites
from pymc_gpep.gaussians.whitening import PriorWhitening, whitening_of
from pymc_gpep.rivals.pseudo_marginal import EvidenceEstimate
from tests import models
from tests.reference.exact import orthant_evidence
from tests.samplers.exactness import PROBLEMS, assert_exact, build

QUICK = {"progressbar": False, "compute_convergence_checks": False}


def draw(model, step, draws=6, tune=3, **options):
    return pm.sample(draws, tune=tune, model=model, step=step, random_seed=3, **QUICK, **options)


@pytest.fixture(scope="module")
def three_points():
    """A model of three points, a step for it, a point away from the mode, and the prior moments there."""
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=0.7))
        f = gp.prior("f", X=np.array([[-1.0], [0.2], [0.9]]), n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=[2, 0, 1])
        step = gpep.samplers.PseudoMarginal()
    point = model.initial_point() | {"eta_log__": np.array(np.log(2.5))}
    return step, point, step.prior(point)


@pytest.fixture(scope="module")
def model():
    return models.shared()[0]


@pytest.fixture(scope="module")
def marginal(model):
    return gpep.marginalize(model)


@pytest.fixture(scope="module")
def step(marginal):
    return gpep.samplers.PseudoMarginal(model=marginal)


def whitenings(step, point, prior):
    """Guides by the approximation, by arbitrary other sites, and by the prior."""
    solved = step.sites(step.site_model, prior, point)
    other = CoupledSites(0.3 * solved.precision + 0.05, 0.5 * solved.location + np.array([[0.1], [-0.2], [0.1]]))
    return {
        "solved": whitening_of(prior, solved),
        "other": whitening_of(prior, other),
        "prior": PriorWhitening(prior),
    }


@pytest.mark.parametrize("guide", ["solved", "other", "prior"])
def test_pseudo_marginal_estimate_of_the_evidence_is_unbiased(three_points, guide):
    step, point, prior = three_points
    whitening = whitenings(*three_points)[guide]
    estimate = step.estimate(point, whitening, np.random.default_rng(0).standard_normal((4000, *whitening.shape)))
    exact = orthant_evidence(prior.k[0], [2, 0, 1], maxpts=200_000)
    assert 0.0 < estimate.standard_error < 0.12
    assert abs(np.expm1(estimate.log_evidence - exact)) < 4.0 * estimate.standard_error


def test_standard_error_of_the_estimate_matches_repeated_estimates(three_points):
    step, point, _ = three_points
    whitening = whitenings(*three_points)["prior"]
    z = np.random.default_rng(1).standard_normal((200, 50, *whitening.shape))
    estimates = [step.estimate(point, whitening, each) for each in z]
    spread = np.std([estimate.log_evidence for estimate in estimates])
    assert np.mean([estimate.standard_error for estimate in estimates]) == pytest.approx(spread, rel=0.25)


def test_estimate_by_the_approximation_is_more_accurate_than_by_the_prior(three_points):
    step, point, _ = three_points
    z = np.random.default_rng(2).standard_normal((2000, 7, 3))
    errors = {
        name: step.estimate(point, whitening, z[:, : whitening.shape[0]]).standard_error
        for name, whitening in whitenings(*three_points).items()
    }
    assert errors["solved"] < 0.5 * errors["other"]
    assert errors["solved"] < 0.2 * errors["prior"]


def test_estimate_does_not_depend_on_earlier_calls(three_points):
    step, point, _ = three_points
    z = np.random.default_rng(3).standard_normal((4, 7, 3))

    def estimate(log_eta):
        there = point | {"eta_log__": np.array(log_eta)}
        return step.estimate(there, step.whitening(step.prior(there), there), z)

    first = estimate(0.4)
    estimate(2.0)
    again = estimate(0.4)
    assert again.log_evidence == first.log_evidence
    np.testing.assert_array_equal(again.f, first.f)


def test_extrapolated_sites_replace_sites_without_convergence(three_points, monkeypatch):
    step, point, prior = three_points
    monkeypatch.setattr(step, "approximator", NestedEP(max_iterations=1))
    extrapolated = step.site_model.at(step.latent_model.theta(point))
    found = step.sites(step.site_model, prior, point)
    np.testing.assert_array_equal(found.precision, extrapolated.precision)
    np.testing.assert_array_equal(found.location, extrapolated.location)


def test_second_move_starts_at_the_end_of_the_first_move(three_points, monkeypatch):
    """The first move is accepted with density 1.

    The second move halves the density, and is accepted half of the time.
    """
    step, _, prior = three_points
    whitening = PriorWhitening(prior)
    log_priors = {0.0: 0.0, 1.0: 5.0, 2.0: 5.0 - np.log(2.0)}
    proposals = iter([1.0, 2.0])
    z = np.zeros((step.particles, *whitening.shape))
    monkeypatch.setattr(step, "tune", False)
    monkeypatch.setattr(step, "estimate", lambda *_: EvidenceEstimate(0.0, np.zeros(len(z)), z))
    monkeypatch.setattr(step, "log_prior", lambda at: log_priors[float(at["eta_log__"])])
    monkeypatch.setattr(step, "propose", lambda _: ({"eta_log__": np.array(next(proposals))}, whitening))
    f = whitening.latent(z[0])
    *_, statistics = step.move_hyperparameters({"eta_log__": np.array(0.0)}, whitening, f)
    assert statistics["pseudo_marginal_acceptance"] == pytest.approx(0.75)


OPTIONS = {
    "probit": {"particles": 5},
    "probit-per-class": {"particles": 3, "correlation": 0.9},
    "softmax": {"particles": 8, "correlation": 0.0},
    "softmax-per-class": {"particles": 1},
    "bernoulli": {"particles": 10},
    "bernoulli-probit": {"particles": 10},
}


@pytest.mark.parametrize(
    ("problem", "draws"),
    [
        pytest.param("bernoulli", 400, marks=pytest.mark.slow),
        *(pytest.param(name, 1500, marks=pytest.mark.calibration) for name in PROBLEMS),
    ],
)
def test_pseudo_marginal_draws_match_exact_moments(problem, draws):
    model = build(PROBLEMS[problem])
    with model:
        step = gpep.samplers.PseudoMarginal(**OPTIONS[problem], hyper_moves=2)
    idata = pm.sample(draws, tune=draws // 5, chains=2, cores=1, model=model, step=step, random_seed=4, **QUICK)
    assert_exact(idata, PROBLEMS[problem])


@pytest.mark.variation
def test_marginal_model_has_the_hyperparameters_of_the_original(model, marginal, step):
    """The step does not evaluate the potential of the marginal model.

    Latent values take the same path as in the original.
    """
    assert {v.name for v in step.vars} == {"ls_log__", "eta_log__"}
    with model:
        original = draw(model, gpep.samplers.PseudoMarginal(), chains=2, cores=1)
    hidden = draw(marginal, step, chains=2, cores=1)
    assert "f" not in hidden.posterior
    for name in ("ls", "eta", "eta_squared"):
        np.testing.assert_array_equal(hidden.posterior[name].values, original.posterior[name].values)
    for name in ("log_evidence", "log_evidence_sd", "pseudo_marginal_acceptance"):
        np.testing.assert_array_equal(hidden.sample_stats[name].values, original.sample_stats[name].values)


def test_draws_from_a_marginal_model_depend_only_on_the_seed(marginal, step):
    one = draw(marginal, step, chains=2, cores=1)
    two = draw(marginal, step, chains=2, cores=2, mp_ctx="fork")
    for name in ("ls", "eta"):
        np.testing.assert_array_equal(one.posterior[name].values, two.posterior[name].values)


def test_step_of_a_marginal_model_can_be_pickled(marginal, step):
    """New processes receive the step as a pickle."""
    copy = pickle.loads(cloudpickle.dumps(step))
    results = []
    for each in (step, copy):
        each.setup_chain(np.random.default_rng(0), 10, 10)
        results.append(each.step(marginal.initial_point())[0])
    for name in ("ls_log__", "eta_log__"):
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_saved_state_of_a_marginal_step_contains_the_latent_values(marginal, step):
    step.setup_chain(np.random.default_rng(0), 100, 100)
    point = marginal.initial_point()
    for _ in range(5):
        point, _ = step.step(point)
    state = step.sampling_state
    assert np.ptp(state.latent["f_rotated_"]) > 0
    first, _ = step.step(point)
    step.setup_chain(np.random.default_rng(1), 0, 100)
    step.sampling_state = state
    second, _ = step.step(point)
    assert first.keys() == second.keys() == point.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_draws_from_a_marginal_model_can_be_recovered(marginal, step):
    idata = gpep.recover_latent(draw(marginal, step, chains=1, cores=1), marginal, random_seed=0, progressbar=False)
    assert idata.posterior["f"].shape == (1, 6, 3, 30)


def test_hyperparameters_of_a_marginal_model_are_moved_together(marginal):
    step = gpep.samplers.PseudoMarginal([marginal["eta"], marginal["ls"]], model=marginal)
    assert {v.name for v in step.vars} == {"ls_log__", "eta_log__"}
    with pytest.raises(ValueError, match="vars leaves out 'ls_log__'"):
        gpep.samplers.PseudoMarginal([marginal["eta"]], model=marginal)


def test_other_steps_may_sample_hyperparameters(model):
    with model:
        steps = [gpep.samplers.PseudoMarginal([model["f"]]), pm.Slice([model["ls"], model["eta"]])]
    idata = draw(model, steps, chains=1, cores=1)
    assert np.isnan(idata.sample_stats["pseudo_marginal_acceptance"].values).all()
    for name in ("f", "ls", "eta"):
        assert np.ptp(idata.posterior[name].values, axis=1).min() > 0


def test_progress_bar_shows_sampled_statistics(marginal, step):
    columns, initial = step._progressbar_config(2)
    (update,) = step._make_progressbar_update_functions()
    step.setup_chain(np.random.default_rng(0), 1, 1)
    _, (statistics,) = step.step(marginal.initial_point())
    assert set(update(statistics)) == set(initial)
    assert len(columns) == len(initial)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"particles": 0}, "particles must be at least 1, but is 0"),
        ({"correlation": 1.5}, r"correlation must be between 0 and 1, but is 1\.5"),
        ({"hyper_moves": 0}, "hyper_moves must be at least 1"),
        ({"guide": "laplace"}, "guide is 'laplace'"),
    ],
)
def test_invalid_options_raise_value_error(model, options, message):
    with model, pytest.raises(ValueError, match=message):
        gpep.samplers.PseudoMarginal(**options)
