"""Annealed evidence of models, against quadrature and other paths; warnings and refusals."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_gpep as gpep
from tests import models
from tests.reference.data import wine
from tests.reference.exact import importance_evidence
from tests.samplers import small

ETA = 1.5

STARTS = [
    ("multinomial_probit", "nested_ep", 200),
    ("softmax", "prior", 250),
    *(
        pytest.param(kind, start, 400, marks=pytest.mark.slow)
        for kind, start in (
            ("multinomial_probit", "prior"),
            ("multinomial_probit", "laplace"),
            ("multinomial_probit", "iep"),
            ("softmax", "laplace"),
        )
    ),
]


@pytest.fixture(scope="module")
def bernoulli():
    return small.bernoulli()


def estimate(model, point=None, **options):
    return gpep.diagnostics.annealed_evidence(model, point, progressbar=False, **{"random_seed": 1, **options})


@pytest.mark.parametrize(("kind", "start", "runs"), STARTS)
def test_annealed_evidence_matches_quadrature(kind, start, runs):
    result = estimate(small.classifier(kind), {"eta": ETA}, start=start, runs=runs, temperatures=15)
    exact = small.classifier_evidence(kind, ETA)
    assert abs(result.log_evidence - exact) < 4 * result.standard_error
    assert abs(result.thermodynamic - exact) < 4 * result.thermodynamic_error
    assert 0 < result.standard_error < 0.475 / np.sqrt(runs)
    assert 0 < result.thermodynamic_error < 0.475 / np.sqrt(runs)
    assert result.start == start
    assert len(result.temperatures) == 15
    assert result.log_weights.shape == (runs,)
    assert result.evaluations > runs * 14


@pytest.mark.parametrize("rotated", [True, False])
def test_annealing_from_the_prior_works_for_any_likelihood(rotated):
    result = estimate(small.bernoulli(rotated=rotated), {"eta": ETA}, runs=150, temperatures=15)
    exact = small.bernoulli_evidence(ETA)
    assert abs(result.log_evidence - exact) < 4 * result.standard_error < 0.1
    assert abs(result.thermodynamic - exact) < 4 * result.thermodynamic_error < 0.1


def test_an_approximation_needs_fewer_temperatures_than_the_prior():
    model = small.classifier("multinomial_probit")
    errors = [estimate(model, start=start, runs=50, temperatures=6).standard_error for start in ("prior", "nested_ep")]
    assert errors[1] < 0.3 * errors[0]


def test_hyperparameters_of_a_fit_are_accepted_as_a_point(shared):
    values = shared.fit.hyperparameters
    at_fit = estimate(shared.model, values, start="nested_ep", runs=20)
    by_name = estimate(shared.model, {name: values[name].values for name in values}, start="nested_ep", runs=20)
    np.testing.assert_array_equal(at_fit.log_weights, by_name.log_weights)
    # For the large magnitude of these 30 points, nested EP's log evidence is 0.7 too low.
    assert abs(at_fit.log_evidence - shared.fit.log_evidence) < 1.2
    elsewhere = estimate(shared.model, {"eta": 0.3}, start="nested_ep", runs=20)
    assert elsewhere.log_evidence < at_fit.log_evidence - 5


def test_scalar_for_a_vector_equals_the_initial_point_of_the_model():
    model, _ = models.shared()
    ls = np.exp(model.initial_point()["ls_log__"])
    assert np.unique(ls).size == 1
    default = estimate(model, start="nested_ep", runs=5)
    same = estimate(model, {"ls": ls[0]}, start="nested_ep", runs=5)
    assert same.log_evidence == pytest.approx(default.log_evidence, rel=1e-8)
    assert np.isfinite(default.log_evidence)


def test_seed_determines_the_result(bernoulli):
    first, again, other = (estimate(bernoulli, random_seed=seed, runs=10) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.log_weights, again.log_weights)
    assert (first.log_weights != other.log_weights).all()


@pytest.mark.parametrize(
    ("given", "start", "expected"),
    [
        (4, "prior", np.array([0, 1, 16, 81]) / 81),
        (3, "nested_ep", [0, 0.5, 1]),
        ([0, 0.2, 1], "prior", [0, 0.2, 1]),
    ],
)
def test_temperatures_rise_from_0_to_1(given, start, expected):
    model = small.classifier("multinomial_probit")
    result = estimate(model, start=start, temperatures=given, runs=10)
    np.testing.assert_allclose(result.temperatures, expected)


def test_text_contains_the_evidence_and_the_settings(bernoulli):
    result = estimate(bernoulli, runs=10)
    text = repr(result)
    assert f"log_evidence={result.log_evidence:.4f} ± {result.standard_error:.4f}" in text
    assert f"thermodynamic={result.thermodynamic:.4f}" in text
    assert "10 runs" in text
    assert "100 temperatures from start='prior'" in text


@pytest.mark.parametrize(
    ("start", "options", "advice"),
    [("prior", {"temperatures": 2}, r"sweeps\.$"), ("vb", {}, r"or another start, since 'vb' may be too narrow")],
)
def test_few_effective_runs_cause_a_warning(start, options, advice):
    model, _ = models.probit()
    with pytest.warns(UserWarning, match=f"is not reliable: a few runs have nearly all the weight.*{advice}"):
        result = estimate(model, start=start, runs=40, **options)
    assert result.effective_runs < 5


def test_contradicting_estimates_cause_a_warning():
    model = small.classifier("multinomial_probit")
    with pytest.warns(
        UserWarning, match="is not reliable: its two estimates differ by far more than their standard errors"
    ):
        result = estimate(model, {"eta": 2.5}, runs=1000, temperatures=5, sweeps=1)
    assert result.effective_runs > 100
    exact = small.classifier_evidence("multinomial_probit", 2.5)
    assert abs(result.log_evidence - exact) < 4 * result.standard_error
    assert result.thermodynamic < exact - 4 * result.thermodynamic_error


def test_annealing_shows_progress(bernoulli, capsys):
    gpep.diagnostics.annealed_evidence(bernoulli, runs=3, temperatures=4, progressbar=True, random_seed=1)
    shown = capsys.readouterr().out
    assert "Annealing 3 runs" in shown
    assert "100%" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "posterior"}, "start is 'posterior', but must be one of 'prior', 'nested_ep'"),
        ({"runs": 1}, "runs must be at least 2"),
        ({"sweeps": 0}, "sweeps must be at least 1"),
        ({"temperatures": 1}, "temperatures must be at least 2"),
        ({"temperatures": 2.5}, "temperatures must be at least 2 .*, but is 2.5"),
        ({"temperatures": [0, 0.5, 0.9]}, "temperatures must increase from 0 to 1"),
        ({"temperatures": [0, 0.5, 0.5, 1]}, "temperatures must increase from 0 to 1"),
        ({"point": {"ls": 1.0}}, "point names ls, but the hyperparameters of the model are: eta"),
        ({"point": {"eta": [1.0, 2.0]}}, r"point\['eta'\] must have shape \(\), but has shape \(2,\)"),
        ({"point": {"eta": -1.0}}, "point has 'eta' at -1.0, which is outside its support"),
        ({"point": {"eta": 1e200}}, "The prior of the latent values is undefined"),
        (
            {"start": "nested_ep"},
            "'nested_ep' supports these likelihoods: multinomial_probit, .* of the model is logit",
        ),
    ],
)
def test_unsupported_models_are_refused_with_reasons(bernoulli, options, message):
    with pytest.raises(ValueError, match=message):
        estimate(bernoulli, **options)


def test_approximation_of_another_likelihood_is_refused():
    with pytest.raises(ValueError, match=r"supports these likelihoods: multinomial_probit, .* of the model is softmax"):
        estimate(small.classifier("softmax"), start="nested_ep")


def test_annealed_evidence_includes_potentials_of_latent_values_and_excludes_potentials_of_hyperparameters():
    model = small.bernoulli()
    before = estimate(model, runs=5).log_evidence
    with model:
        pm.Potential("of_a_hyperparameter", -7.0 * model["eta"])
    assert estimate(model, runs=5).log_evidence == before
    with model:
        pm.Potential("of_latent_values", pt.constant(-7.0) + 0.0 * model["f"].sum())
    assert estimate(model, runs=5).log_evidence == pytest.approx(before - 7)


@pytest.mark.slow
def test_annealed_evidence_of_wine_does_not_depend_on_the_path():
    X, y = (each[::6] for each in wine())
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=np.e * pm.gp.cov.ExpQuad(X.shape[1], ls=np.e))
        f = gp.prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
        nested_ep = pm.fit(method="nested_ep", progressbar=False)
    results = {start: estimate(model, start=start, runs=60, sweeps=5) for start in ("nested_ep", "qep")}
    for result in results.values():
        assert abs(result.log_evidence - results["nested_ep"].log_evidence) < 4 * result.standard_error
    assert results["nested_ep"].standard_error < 0.06

    # The same integral by plain importance sampling, with a likelihood by other quadrature.
    k = np.e * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1) / np.e**2) + 1e-6 * np.eye(len(y))
    posterior = nested_ep.solution.posterior
    cov = posterior.joint_covariance(k[None], k[None]).reshape(3 * len(y), -1)
    plain = importance_evidence(k, y, nested_ep.solution.mean, cov + 1e-10 * np.eye(len(cov)), draws=2000, seed=1)
    error = np.hypot(plain.error, results["nested_ep"].standard_error)
    assert abs(plain.evidence - results["nested_ep"].log_evidence) < 4 * error < 0.4
    # The error of nested EP is smaller: 0.3 for all 178 points.
    assert abs(nested_ep.log_evidence - results["nested_ep"].log_evidence) < 0.5


@pytest.mark.parametrize("start", ["prior", "ep"])
def test_annealed_evidence_of_effects_matches_quadrature(start):
    """Two effects with variances 1 and s² in four rows. The evidence is an integral over a plane."""
    x, y, s = np.array([-1.0, 0.4, 1.1, 2.0]), np.array([0, 1, 0, 1]), 1.7
    with pm.Model() as model:
        scale = pm.HalfNormal("s", 1)
        level, slope = pm.Normal("level", 0.2, 1), pm.Normal("slope", 0, scale)
        pm.Bernoulli("y", logit_p=level + slope * x, observed=y)
    root = np.array([[1.0, 0.0], [0.0, s]])
    signs = 2.0 * y - 1.0

    def likelihood(effects):
        return np.prod(1.0 / (1.0 + np.exp(-signs * (effects[:, :1] + effects[:, 1:] * x))), axis=1)

    exact = float(np.log(small.integrate(likelihood, np.array([0.2, 0.0]), root @ root.T)))
    result = estimate(model, {"s": s}, start=start, runs=100, temperatures=15)
    assert abs(result.log_evidence - exact) < 4 * result.standard_error < 0.3
    assert abs(result.thermodynamic - exact) < 4 * result.thermodynamic_error < 0.3
