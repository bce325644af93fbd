"""Likelihoods that are computed from their log density alone, against kernels and against sums over grids."""

import pickle
from functools import cache

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import pymc_gpep as gpep
from pymc_gpep.approximations.ep import EP
from pymc_gpep.approximations.kl import KL
from pymc_gpep.approximations.laplace import ScalarLaplace
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.kernels.status import MESSAGES, NOT_CONCAVE
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    ParameterSlopes,
    PlainDensity,
    ScalarDensity,
)
from pymc_gpep.reading import StructureError, read_classifier
from pymc_gpep.univariate.likelihood import ANY_UNIVARIATE
from tests.graph_modes import rewritten
from tests.likelihoods.with_parameters import EVERY, NUMBERS, model_of

N = 12
F = np.random.default_rng(3).normal(size=N)
VARIANCE = np.geomspace(0.01, 4.0, N)
WITH_KERNELS = [each for each in LIKELIHOODS if each.name in ("negative_binomial", "asymmetric_laplace", "normal")]


def written(kernel, *shape, moments, y, parameters):
    out = np.empty((*shape, len(y)))
    kernel(*moments, y, parameters, out)
    return out


@cache
def read(name):
    """Likelihood by its log density, with parameters at the initial point of its model."""
    model, _ = model_of(EVERY[name].observe)
    found = ANY_UNIVARIATE.read(model["y"], {model["f"]})
    parts = model.replace_rvs_by_values([found.parameters])
    point = model.initial_point()
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    function = model.compile_fn(parts, inputs=values, on_unused_input="ignore", point_fn=False, mode="FAST_COMPILE")
    (parameters,) = function(*(point[v.name] for v in values))
    return found.likelihood.given(np.broadcast_to(parameters, (len(parameters), N)))


@pytest.mark.variation(but=["negative_binomial", "asymmetric_laplace"])
@pytest.mark.parametrize("likelihood", WITH_KERNELS, ids=lambda likelihood: likelihood.name)
def test_averages_match_kernels(likelihood):
    case = EVERY[likelihood.name]
    ours = read(likelihood.name)
    assert ours.observed_dtype == likelihood.observed_dtype
    theirs = likelihood.given(case.parameters)
    arrays = {"y": np.asarray(case.y), "parameters": ours.parameters}
    own = {"y": np.asarray(case.y), "parameters": theirs.parameters}
    kind = ScalarDensity if likelihood.offers(ScalarDensity) else PlainDensity
    density = written(theirs.computation(kind).derivatives, 4, moments=(F,), **own)
    assert_allclose(ours.log_densities(F[None], arrays["y"]), density[0], rtol=1e-6, atol=1e-7)
    moments = F, VARIANCE
    for each, rows in ((GaussianAverage, 5), (AverageLogDensity, 3)):
        found = written(ours.computation(each).terms, rows, moments=moments, **arrays)
        expected = written(theirs.computation(each).terms, rows, moments=moments, **own)
        assert_allclose(found[:3], expected[:3], rtol=1e-6, atol=1e-6)


def test_slopes_in_parameters_match_differences_of_averages():
    """Slopes in the scale, which depends on a hyperparameter. The degrees of freedom are data without slopes."""
    with pm.Model() as model:
        f, scale = pm.Normal("f", 0, 1, shape=N), pm.HalfNormal("scale", 1.0)
        pm.StudentT("y", nu=4.0, mu=f, sigma=scale, observed=NUMBERS)
    found = ANY_UNIVARIATE.read(model["y"], {model["f"]}).likelihood
    learned = np.array(found.density.learned)
    assert learned.sum() == 1
    parameters = np.where(learned[:, None], np.linspace(0.5, 1.5, N), 4.0)
    moments, step = (F, VARIANCE), 1e-5
    slopes = found.computation(ParameterSlopes)
    kinds = found.computation(GaussianAverage), found.computation(AverageLogDensity), found.computation(ScalarDensity)
    average, average_log, density = kinds[0].terms, kinds[1].terms, kinds[2].derivatives
    for kernel, of, rows, at in (
        (slopes.average, average, 5, moments),
        (slopes.average_log, average_log, 3, moments),
        (slopes.derivatives, density, 4, (F,)),
    ):
        shape = (len(parameters), 3) if len(at) == 1 else (len(parameters),)
        ours = written(kernel, *shape, moments=at, y=NUMBERS, parameters=parameters)
        up, down = (
            written(of, rows, moments=at, y=NUMBERS, parameters=parameters + t * step * learned[:, None])
            for t in (1.0, -1.0)
        )
        expected = (up - down) / (2.0 * step)
        assert_allclose(ours[learned][0], expected[:3] if len(at) == 1 else expected[0], rtol=1e-6, atol=1e-7)
        assert not ours[~learned].any()


THREE = np.array([-1.0, 0.0, 1.0])
PRIOR = 1.5 * np.exp(-0.5 * (THREE[:, None] - THREE) ** 2) + 0.1 * np.eye(3)
CASES = {
    "student_t": (
        np.array([0.3, 6.0, -0.4]),
        lambda f, y: pm.StudentT("y", nu=3.0, mu=f, sigma=0.5, observed=y),
        lambda y, f: stats.t.logpdf((y - f) / 0.5, 3.0) - np.log(0.5),
    ),
    "zero_inflated": (
        np.array([0, 2, 0]),
        lambda f, y: pm.ZeroInflatedPoisson("y", psi=0.7, mu=pm.math.exp(f), observed=y),
        lambda y, f: np.log(np.maximum(0.3 * (y == 0) + 0.7 * stats.poisson.pmf(y, np.exp(f)), 1e-300)),
    ),
    "censored_gamma": (
        np.array([0.4, 1.5, 0.7]),
        lambda f, y: pm.Censored(
            "y",
            pm.Gamma.dist(alpha=2.0, beta=2.0 * pm.math.exp(-f)),
            lower=None,
            upper=np.array([np.inf, 1.5, np.inf]),
            observed=y,
        ),
        lambda y, f: (stats.gamma.logsf if y == 1.5 else stats.gamma.logpdf)(y, 2.0, scale=0.5 * np.exp(f)),
    ),
    "own": (
        np.array([0.3, 1.5, -0.4]),
        lambda f, y: pm.CustomDist(
            "y", f, logp=lambda y, f: -pm.math.log(pm.math.cosh(y - f)) - np.log(np.pi), observed=y
        ),
        lambda y, f: stats.hypsecant.logpdf(y - f),
    ),
}


@cache
def of_case(name):
    """Likelihood of a model of three latent values, its observations, and the exact result."""
    y, observe, log_p = CASES[name]
    with pm.Model() as model:
        observe(pm.MvNormal("f", np.zeros(3), PRIOR), y)
    found = read_classifier(model)
    parameters, labels = evaluate([found.parameters, found.labels])
    return found.likelihood_model.given(parameters), labels, log_p


def exact(labels, log_p):
    """Log evidence, means and standard deviations by sums over a grid."""
    z = np.linspace(-6.5, 6.5, 49)
    w = stats.norm.pdf(z) * (z[1] - z[0])
    f = np.linalg.cholesky(PRIOR) @ np.stack(np.meshgrid(z, z, z, indexing="ij")).reshape(3, -1)
    weights = (w[:, None, None] * w[:, None] * w).ravel() * np.exp(
        sum(log_p(y, x) for y, x in zip(labels, f, strict=True))
    )
    total = weights.sum()
    mean = f @ weights / total
    return np.log(total), mean, np.sqrt(f**2 @ weights / total - mean**2)


@pytest.mark.variation(but=["student_t"])
@pytest.mark.parametrize("name", CASES)
@rewritten()
def test_evidence_and_moments_match_sums_over_a_grid(name):
    likelihood, labels, log_p = of_case(name)
    evidence, mean, sd = exact(labels, log_p)
    solution = EP().solve(PRIOR, np.zeros((1, 3)), labels, likelihood=likelihood)
    assert solution.convergence.converged
    assert solution.evidence == pytest.approx(evidence, abs=0.002)
    assert_allclose(solution.mean[0], mean, atol=0.002 * sd.max())
    assert_allclose(np.sqrt(solution.cov[:, 0, 0]), sd, rtol=0.01)
    bound = KL().solve(PRIOR, np.zeros((1, 3)), labels, likelihood=likelihood)
    assert bound.convergence.converged
    assert evidence - 0.2 < bound.evidence < evidence + 1e-6


def test_laplace_reports_a_non_concave_density():
    likelihood, labels, _ = of_case("student_t")
    solution = ScalarLaplace().solve(PRIOR, np.zeros((1, 3)), labels, likelihood=likelihood)
    assert not solution.convergence.converged
    assert MESSAGES[NOT_CONCAVE] in str(solution.convergence)
    near = np.array([0.3, 0.6, -0.4])
    assert ScalarLaplace().solve(PRIOR, np.zeros((1, 3)), near, likelihood=likelihood).convergence.converged


def test_moments_of_observations_match_distributions():
    mean, cov = np.array([[0.2], [-0.5], [1.0]]), np.zeros((3, 1, 1))
    for name, first, variance in (
        ("student_t", lambda f: f, lambda f: 0.75 + 0.0 * f),
        ("zero_inflated", lambda f: 0.7 * np.exp(f), lambda f: 0.7 * np.exp(f) + 0.21 * np.exp(2.0 * f)),
        ("own", lambda f: f, lambda f: np.pi**2 / 4.0 + 0.0 * f),
        # computed by quadrature although a closed form exists
        ("censored_gamma", np.exp, lambda f: 0.5 * np.exp(2.0 * f)),
    ):
        likelihood, *_ = of_case(name)
        found = likelihood.outcome_moments(mean, cov)
        assert_allclose(found[0], first(mean[:, 0]), rtol=1e-4, atol=1e-6)
        assert_allclose(found[1] - found[0] ** 2, variance(mean[:, 0]), rtol=1e-3)


def test_distribution_functions_match_pymc():
    likelihood, *_ = of_case("student_t")
    mean, cov = np.zeros((3, 1)), np.zeros((3, 1, 1))
    found = likelihood.cumulative(np.array([-1.0, 0.0, 2.0]), mean, cov)
    assert_allclose(found, stats.t.cdf(np.array([-2.0, 0.0, 4.0]), 3.0), rtol=1e-6)
    likelihood, labels, _ = of_case("censored_gamma")
    at = stats.gamma.cdf(labels, 2.0, scale=0.5)
    assert_allclose(likelihood.ends(labels, mean, cov), [at, [at[0], 1.0, at[2]]], rtol=1e-6)
    with pytest.raises(TypeError, match="no distribution function"):
        of_case("own")[0].cumulative(np.zeros(3), mean, cov)


def test_likelihood_read_again_or_pickled_equals_the_first():
    first, again, other = of_case("student_t")[0], of_case.__wrapped__("student_t")[0], of_case("own")[0]
    assert first == again
    assert hash(first) == hash(again)
    assert first != other
    assert repr(first) == repr(again) != repr(other)
    pickled = pickle.loads(pickle.dumps(first))
    assert pickled == first
    assert_allclose(pickled.log_densities(np.zeros((1, 3)), THREE), first.log_densities(np.zeros((1, 3)), THREE))


def test_observations_outside_the_support_are_named():
    with pm.Model() as model:
        f = pm.Normal("f", 0, 1, shape=3)
        pm.ZeroInflatedPoisson("y", psi=0.7, mu=pm.math.exp(f), observed=[0, -2, 1])
    with pytest.raises(StructureError, match="no log density in row 1"):
        read_classifier(model)


def refused(declare):
    with pm.Model() as model:
        declare(pm.Normal("f", 0, 1, shape=4), pm.Normal("g", 0, 1, shape=4), pm.Normal("s", 0, 1))
    with pytest.raises(StructureError) as error:
        read_classifier(model)
    return str(error.value)


Y = np.array([0.3, 1.0, -0.2, 0.8])
COUNTS = np.array([0, 2, 1, 4])


def test_two_latent_arguments_are_refused():
    message = refused(lambda f, g, s: pm.StudentT("y", nu=4, mu=f, sigma=pm.math.exp(g), observed=Y))
    assert "'y' has no single argument" in message


@pytest.mark.parametrize(
    ("observe", "density"),
    [
        (
            lambda f: pm.Normal("y", f, pm.math.exp(0.5 * f), observed=[1.3]),
            lambda f: stats.norm.pdf(1.3, f, np.exp(0.5 * f)),
        ),
        (
            lambda f: pm.Normal("y", 2.0 * f + 1.0, pm.math.exp(2.0 * f + 1.0), observed=[0.4]),
            lambda f: stats.norm.pdf(0.4, 2.0 * f + 1.0, np.exp(2.0 * f + 1.0)),
        ),
        pytest.param(
            lambda f: pm.NegativeBinomial("y", pm.math.exp(f), pm.math.exp(1.0 - 0.3 * f), observed=[4]),
            lambda f: stats.nbinom.pmf(4, np.exp(1.0 - 0.3 * f), 1.0 / (1.0 + np.exp(1.3 * f - 1.0))),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["scale", "computed twice", "dispersion"],
)
def test_argument_that_determines_all_parameters_is_integrated(observe, density):
    with pm.Model() as model:
        observe(pm.Normal("f", 0.3, 0.8, shape=1))
    fit = pm.fit(method="ep", model=model, progressbar=False)
    f = np.linspace(-6.0, 6.0, 4001)
    expected = np.log(np.trapezoid(density(f) * stats.norm.pdf(f, 0.3, 0.8), f))
    assert fit.log_evidence == pytest.approx(expected, abs=1e-6)


def test_gaussian_variable_in_the_scale_stays_a_hyperparameter():
    with pm.Model() as model:
        f, s = pm.Normal("f", 0, 1, shape=4), pm.Normal("s", 0, 1)
        pm.StudentT("y", nu=4, mu=f, sigma=pm.math.exp(s), observed=Y)
    found = read_classifier(model)
    assert [v.name for v in found.hyperparameters] == ["s"]
    assert [v.name for v in found.prior.integrated] == ["f"]


@pytest.mark.variation(
    but=["censored", "censored where PyTensor has no fast derivative", "censored by data in some rows", "beta"]
)
@pytest.mark.parametrize(
    "declare",
    [
        lambda f: pm.Poisson("y", mu=pm.math.log1pexp(f), observed=COUNTS),
        lambda f: pm.Beta("y", mu=pm.math.sigmoid(f), nu=5.0, observed=(COUNTS + 0.5) / 5.0),
        lambda f: pm.HurdlePoisson("y", psi=0.8, mu=pm.math.exp(f), observed=COUNTS),
        lambda f: pm.NormalMixture("y", w=[0.2, 0.8], mu=f[:, None] + np.array([0.0, 3.0]), sigma=1.0, observed=Y),
        lambda f: pm.Censored("y", pm.Gumbel.dist(f, 0.5), lower=None, upper=1.0, observed=Y),
        lambda f: pm.Censored("y", pm.Gamma.dist(pm.math.exp(f), 1.0), lower=None, upper=1.0, observed=Y**2),
        lambda f: pm.Truncated("y", pm.Poisson.dist(pm.math.exp(f)), lower=1, observed=COUNTS + 1),
        lambda f: pm.Truncated(
            "y", pm.Logistic.dist(f, 1.0), lower=np.array([-1.5, -np.inf, -0.5, -np.inf]), observed=Y
        ),
        lambda f: pm.Censored(
            "y", pm.Gumbel.dist(f, 0.5), lower=None, upper=pm.Data("end", [np.inf, 9.0, np.inf, 9.0]), observed=Y
        ),
    ],
    ids=[
        "softplus",
        "beta",
        "hurdle",
        "two means",
        "censored",
        "censored where PyTensor has no fast derivative",
        "truncated counts",
        "truncated in some rows",
        "censored by data in some rows",
    ],
)
def test_log_density_equals_the_log_density_of_the_model(declare):
    with pm.Model() as model:
        declare(pm.Normal("f", 0, 1, shape=4))
    found = read_classifier(model)
    parameters, labels = evaluate([found.parameters, found.labels])
    assert np.isfinite(parameters).all()
    likelihood = found.likelihood_model.given(parameters)
    f = np.array([0.3, -0.2, 0.9, -1.0])
    (expected,) = model.compile_fn(model.logp([model["y"]], sum=False), mode="FAST_COMPILE")({"f": f})
    density, step = likelihood.density, 1e-5
    columns = density.columns(labels, parameters)
    ours, up, down = (density.two_derivatives(f + t * step, columns) for t in (0.0, 1.0, -1.0))
    assert_allclose(ours[0], expected, rtol=1e-9)
    assert_allclose(ours[1:], (up - down)[:2] / (2.0 * step), rtol=1e-6, atol=1e-6)


def test_densities_that_mix_rows_are_refused():
    def mixed(f, g, s):
        pm.CustomDist("y", f, logp=lambda y, f: -((y - f - f.mean()) ** 2), observed=Y)

    assert "is not computed row by row" in refused(mixed)


@pytest.mark.variation
@rewritten()
def test_fits_of_a_sum_predict_and_are_saved():
    rng = np.random.default_rng(0)
    group, x = np.arange(24) % 4, np.linspace(-1.0, 1.0, 24)
    y = 0.5 + x + 0.2 * rng.standard_t(3, size=24)

    def declared():
        with pm.Model() as model:
            where = pm.Data("x", x)
            level, slope = pm.Normal("level", 0, 2), pm.Normal("slope", 0, 2)
            u = pm.Normal("u", 0, 0.3, shape=4)
            pm.StudentT("y", nu=3.0, mu=level + slope * where + u[pm.Data("group", group)], sigma=0.2, observed=y)
        return model

    model = declared()
    with model:
        fit = pm.fit(method="ep", progressbar=False)
    new = {"x": [0.0, 0.5], "group": [0, 1]}
    predicted = fit.predict(data=new, quantiles=[0.5], observed=[0.5, 1.0])
    assert_allclose(predicted["y_mean"], predicted["mean"], rtol=1e-3)
    assert_allclose(predicted["y_quantile"][:, 0], predicted["mean"], rtol=1e-3)
    assert_allclose(predicted["y_variance"], predicted["variance"] + 0.12, rtol=1e-3)
    assert np.isfinite(predicted["log_density"]).all()
    again = gpep.from_datatree(fit.to_datatree(), declared())
    assert again.log_evidence == fit.log_evidence
    assert_allclose(again.predict(data=new)["y_mean"], predicted["y_mean"])


@pytest.mark.variation
@pytest.mark.parametrize(("lower", "upper"), [(0.0, None), (None, 0.5)], ids=["below", "above"])
@rewritten()
def test_derivatives_of_truncated_densities_are_finite(lower, upper):
    """PyMC's graph depends on whether a bound is a constant.

    With an infinite bound, derivatives are finite only if the bound is a constant of the graph.
    """
    y, f = np.array([0.1, 0.2, 0.3, 0.4]), np.array([-8.0, 0.3, -0.2, 7.0])
    with pm.Model() as model:
        pm.TruncatedNormal("y", mu=pm.Normal("f", 0, 1, shape=4), sigma=0.8, lower=lower, upper=upper, observed=y)
    found = read_classifier(model)
    parameters, _ = evaluate([found.parameters, found.labels])
    density = found.likelihood_model.density
    out = density.two_derivatives(f, density.columns(y, parameters))
    low, high = -np.inf if lower is None else lower, np.inf if upper is None else upper

    def moments(at):
        return stats.truncnorm.stats((low - at) / 0.8, (high - at) / 0.8, at, 0.8, moments="mv")

    # The derivatives of the log mass between bounds are moments of the truncated distribution.
    mean, variance = moments(f)
    assert_allclose(out[1], (y - mean) / 0.64, rtol=1e-4)
    assert_allclose(out[2], -variance / 0.64**2, rtol=1e-4)
