"""Coefficients with a flat prior (`pm.Flat`) are integrated exactly, with density 1 in their units."""

import re
from contextlib import nullcontext

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy import special, stats
from scipy.optimize import minimize

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier
from pymc_gpep.variational import inference

RNG = np.random.default_rng(11)
N, Q, NOISE, SCALE = 90, 12, 0.9, 0.7
X = RNG.normal(3.0, 1.0, size=N)
GROUP = RNG.integers(Q, size=N)
LEVELS = np.eye(Q)[GROUP]
COLUMNS = np.column_stack([np.ones(N), X])
EFFECT = SCALE * RNG.normal(size=Q)[GROUP]
Y = 2.0 - 0.5 * X + EFFECT + NOISE * RNG.normal(size=N)
COUNTS = RNG.poisson(np.exp(0.4 + 0.3 * X + EFFECT))
BINARY = (RNG.random(N) < special.expit(X - 3.0 + EFFECT)).astype(int)


@pytest.fixture(params=["rows", "precision"])
def form(request, monkeypatch):
    """Run with the prior by rows, or by a sparse precision matrix."""
    if request.param == "precision":
        monkeypatch.setattr("pymc_gpep.log_posteriors.dense_log_posterior._MANY", 1)
    return {"rows": "By rows", "precision": "By a sparse precision"}[request.param]


def restricted(columns, covariance, y):
    """Return the restricted log likelihood, and mean and covariance of the coefficients, by dense matrices."""
    n, p = columns.shape
    information = columns.T @ np.linalg.solve(covariance, columns)
    best = np.linalg.solve(information, columns.T @ np.linalg.solve(covariance, y))
    rest = y - columns @ best
    terms = (n - p) * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(information)[1]
    return -0.5 * (terms + rest @ np.linalg.solve(covariance, rest)), best, np.linalg.inv(information)


def fitted(model, method, **options):
    with model:
        return pm.fit(method=method, progressbar=False, random_seed=1, **options)


def regression(kind="normal", scale=SCALE, noise=NOISE, unit=1.0, x=X):
    with pm.Model() as model:
        a, b = pm.Flat("a"), pm.Flat("b")
        scale, noise = (each("log" + str(i)) if callable(each) else each for i, each in enumerate([scale, noise]))
        u = pm.Normal("u", 0, scale, shape=Q)
        f = a + b * (x * unit) + u[GROUP]
        if kind == "normal":
            pm.Normal("y", f, noise, observed=Y)
        elif kind == "poisson":
            pm.Poisson("y", pm.math.exp(f), observed=COUNTS)
        else:
            pm.Bernoulli("y", logit_p=f, observed=BINARY)
    return model


def log_scale(name):
    return pm.math.exp(pm.Flat(name))


@pytest.mark.parametrize(("method", "unit"), [("laplace", 1.0), ("ep", 1e5), ("kl", 1e-5)])
def test_evidence_of_normal_rows_is_the_restricted_likelihood(form, method, unit):
    fit = fitted(regression(unit=unit), method)
    covariance = NOISE**2 * np.eye(N) + SCALE**2 * LEVELS @ LEVELS.T
    expected, mean, cov = restricted(COLUMNS * [1.0, unit], covariance, Y)
    assert form in str(fit)
    assert fit.converged
    assert fit.log_evidence == pytest.approx(expected, abs=1e-8)
    found = fit.summary(["a", "b"])
    assert_allclose(found["mean"], mean, rtol=1e-8)
    assert_allclose(found["sd"], np.sqrt(cov.diagonal()), rtol=1e-8)


def test_scales_at_the_maximum_match_restricted_maximum_likelihood(form):
    fit = fitted(regression(scale=log_scale, noise=log_scale), "laplace", hyper="map")

    def criterion(logs):
        scale, noise = np.exp(logs)
        return -restricted(COLUMNS, noise**2 * np.eye(N) + scale**2 * LEVELS @ LEVELS.T, Y)[0]

    best = minimize(criterion, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert form in str(fit)
    assert fit.log_evidence == pytest.approx(-best.fun, abs=1e-9)
    assert_allclose([fit.hyperparameters["log0"], fit.hyperparameters["log1"]], best.x, atol=1e-5)


def test_coefficients_named_as_hyperparameters_maximise_the_likelihood():
    fit = fitted(regression(), "laplace", hyper="map", hyperparameters=["a", "b"])
    covariance = NOISE**2 * np.eye(N) + SCALE**2 * LEVELS @ LEVELS.T
    _, mean, _ = restricted(COLUMNS, covariance, Y)
    assert_allclose([fit.hyperparameters["a"], fit.hyperparameters["b"]], mean, rtol=1e-6)
    rest = Y - COLUMNS @ mean
    likelihood = -0.5 * (N * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1])
    assert fit.log_evidence == pytest.approx(likelihood - 0.5 * rest @ np.linalg.solve(covariance, rest), abs=1e-8)


def laplace_of_counts():
    """Mode, inverse curvature and log evidence of Laplace's method for coefficients and effects, with SciPy."""
    design = np.column_stack([COLUMNS, LEVELS])
    precision = np.r_[0.0, 0.0, np.full(Q, SCALE**-2)]

    def negative(beta):
        f = design @ beta
        density = COUNTS @ f - np.exp(f).sum() - special.gammaln(COUNTS + 1.0).sum()
        return 0.5 * precision @ beta**2 - density, precision * beta - design.T @ (COUNTS - np.exp(f))

    def curvature(beta):
        return design.T @ (np.exp(design @ beta)[:, None] * design) + np.diag(precision)

    best = minimize(negative, np.zeros(2 + Q), jac=True, hess=curvature, method="Newton-CG", options={"xtol": 1e-12})
    at_mode = curvature(best.x)
    constant = np.log(2 * np.pi) - Q * np.log(SCALE)
    return best.x, np.linalg.inv(at_mode), constant - best.fun - 0.5 * np.linalg.slogdet(at_mode)[1]


def test_laplace_of_counts_matches_a_dense_computation(form):
    fit = fitted(regression("poisson"), "laplace")
    mode, cov, evidence = laplace_of_counts()
    assert form in str(fit)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-8)
    found = fit.summary(["a", "b", "u"])
    assert_allclose(found["mean"], mode, atol=1e-7)
    assert_allclose(found["sd"], np.sqrt(cov.diagonal()), rtol=1e-7)


@pytest.mark.parametrize(("kind", "method"), [("poisson", "laplace"), ("bernoulli", "ep"), ("normal", "kl")])
def test_gradient_of_the_evidence_matches_differences(form, kind, method):
    """A hyperparameter multiplies the slope. The evidence depends on this hyperparameter only by the Jacobian."""
    scaled = regression(kind, scale=lambda name: pm.HalfNormal(name, 1.0))
    with scaled:
        fit = pm.fit(method=method, hyper="map", tolerance=1e-10, progressbar=False)
    assert form in str(fit)
    at, step = fit.theta + 0.3, 1e-4
    high, low = (fit.log_posterior(at + sign * step).log_posterior for sign in (1.0, -1.0))
    assert_allclose(fit.log_posterior(at).gradient, (high - low) / (2.0 * step), rtol=1e-5)


def of_binary(f):
    return (f * BINARY - np.logaddexp(0.0, f)).sum(axis=-1)


def of_kinks(f):
    return -np.abs(Y - f).sum(axis=-1) - N * np.log(2.0)


@pytest.mark.parametrize("kind", ["binary", "kinks"])
def test_ep_of_two_coefficients_matches_quadrature(kind):
    """The reference sums the likelihood over a grid. A Laplace density has no curvature at its mode."""
    with pm.Model() as model:
        f = pm.Flat("a") + pm.Flat("b") * (X - 3.0)
        if kind == "binary":
            pm.Bernoulli("y", logit_p=f, observed=BINARY)
        else:
            pm.Laplace("y", f, 1.0, observed=Y)
    fit = fitted(model, "ep")
    a, b = np.meshgrid(np.linspace(-4.0, 4.0, 401), np.linspace(-3.0, 6.0, 401), indexing="ij")
    density = {"binary": of_binary, "kinks": of_kinks}[kind]
    log_density = density(a[..., None] + b[..., None] * (X - 3.0))
    weight = np.exp(log_density - log_density.max())
    cell = (a[1, 0] - a[0, 0]) * (b[0, 1] - b[0, 0])
    assert fit.converged
    assert fit.log_evidence == pytest.approx(np.log(weight.sum() * cell) + log_density.max(), abs=0.01)
    weight /= weight.sum()
    for name, grid in (("a", a), ("b", b)):
        mean = (weight * grid).sum()
        sd = np.sqrt((weight * (grid - mean) ** 2).sum())
        found = fit.effects(name)[name]
        assert found.sel(moment="mean") == pytest.approx(mean, abs=0.02 * sd)
        assert found.sel(moment="sd") == pytest.approx(sd, rel=0.03)


T, STEP = 40, 0.3
WALK = 50.0 + np.cumsum(STEP * RNG.normal(size=T)) + 0.5 * RNG.normal(size=T)


def test_walk_with_a_flat_start_matches_the_restricted_likelihood(form):
    with pm.Model() as model:
        u = pm.GaussianRandomWalk("u", sigma=STEP, init_dist=pm.Flat.dist(), shape=T)
        pm.Normal("y", u, 0.5, observed=WALK)
    fit = fitted(model, "ep")
    time = np.arange(T)
    evidence, mean, cov = restricted(np.ones((T, 1)), 0.25 * np.eye(T) + STEP**2 * np.minimum.outer(time, time), WALK)
    assert form in str(fit) or form == "By a sparse precision"
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-8)
    assert_allclose(fit.summary(["u"]).to_numpy()[0, :2], [mean[0], np.sqrt(cov[0, 0])], rtol=1e-8)


def test_process_with_a_flat_linear_trend_matches_the_restricted_likelihood():
    """Rasmussen and Williams (2006), section 2.7: explicit basis functions with a vague prior."""
    inputs = np.sort(RNG.uniform(0.0, 10.0, size=30))
    y = 3.0 + 0.4 * inputs + np.sin(inputs) + 0.2 * RNG.normal(size=30)
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.5)).prior("f", X=inputs[:, None], jitter=1e-8)
        pm.Normal("y", pm.Flat("a") + pm.Flat("b") * inputs + f, 0.2, observed=y)
    fit = fitted(model, "ep")
    k = np.exp(-0.5 * np.subtract.outer(inputs, inputs) ** 2 / 1.5**2) + (1e-8 + 0.04) * np.eye(30)
    evidence, mean, cov = restricted(np.column_stack([np.ones(30), inputs]), k, y)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-6)
    found = fit.summary(["a", "b"])
    assert_allclose(found["mean"], mean, rtol=1e-5)
    assert_allclose(found["sd"], np.sqrt(cov.diagonal()), rtol=1e-5)


def binary(argument, observed=BINARY):
    return lambda: pm.Bernoulli("y", logit_p=argument(), observed=observed)


def counted(argument, observed):
    return lambda: pm.Poisson("y", pm.math.exp(argument()), observed=observed)


def line():
    return pm.Flat("a") + pm.Flat("b") * X


HIGH = (X > 3.0).astype(int)
IMPROPER = {
    "dependent columns": (
        lambda: pm.Normal("y", pm.Flat("a") + np.column_stack([X, 2 * X - 1]) @ pm.Flat("b", shape=2), 1, observed=Y),
        "columns of 'a', 'b[0]', 'b[1]' are linearly dependent",
    ),
    "a column of zeros": (lambda: pm.Normal("y", line() + pm.Flat("c") * (0 * X), 1, observed=Y), "depends on 'c'"),
    "separated classes": (binary(line, HIGH), "separated by the columns of 'a', 'b'"),
    "classes that are separated in a group": (
        binary(lambda: line() + pm.Flat("c") * HIGH, np.where(HIGH, 1, BINARY)),
        "separated by the columns of 'c'",
    ),
    "one class": (binary(lambda: pm.Flat("a") + 0 * X, np.ones(N, int)), "separated by the columns of 'a'"),
    "no counts": (counted(lambda: pm.Flat("a") + 0 * X, np.zeros(N, int)), "separated by the columns of 'a'"),
    "no counts in a group": (
        counted(lambda: pm.Flat("a") + pm.Flat("b") * HIGH, np.where(HIGH, 0, 1 + COUNTS)),
        "separated by the columns of 'b'",
    ),
    "votes for no candidate of three": (
        lambda: pm.Multinomial(
            "y",
            3,
            pm.math.softmax(np.ones((N, 1)) * pt.concatenate([[0.0], pm.Flat("b", shape=2)]), axis=1),
            observed=np.tile([2, 1, 0], (N, 1)),
        ),
        "separated by the columns of 'b[1]'",
    ),
    "successes alone in a group, overdispersed": (
        lambda: pm.BetaBinomial(
            "y",
            alpha=5 * pm.math.sigmoid(f := pm.Flat("b", shape=Q)[GROUP]),
            beta=5 * pm.math.sigmoid(-f),
            n=4,
            observed=np.where(GROUP == 2, 4, 2),
        ),
        "separated by the columns of 'b[2]'",
    ),
    "a walk that no row sees": (
        lambda: pm.Normal(
            "y", pm.GaussianRandomWalk("u", sigma=1, init_dist=pm.Flat.dist(), shape=(2, N))[0], 1, observed=Y
        ),
        "No row depends on the start of 'u', so that the posterior is improper under flat priors. Declare 'u' without",
    ),
    "an ordered response": (
        lambda: pm.OrderedLogistic(
            "y", eta=pm.Flat("b") * (X - 3.0), cutpoints=np.array([-1.0, 1.0]), compute_p=False, observed=2 * HIGH
        ),
        "separated by the columns of 'b'",
    ),
    "a level that all classes share": (
        lambda: pm.Categorical("y", logit_p=X[:, None] @ pm.Flat("b", shape=(1, 3)), observed=GROUP % 3),
        "are linearly dependent",
    ),
}


@pytest.mark.parametrize("case", IMPROPER)
def test_error_for_an_improper_posterior_names_its_columns(case):
    build, message = IMPROPER[case]
    with pm.Model() as model:
        build()
    with pytest.raises(gpep.StructureError, match=re.escape(message)):
        fitted(model, "laplace")


def test_separation_is_found_by_linear_programmes_of_few_rows(monkeypatch):
    """The label of the largest input decides about separation. Each linear programme adds three rows."""
    monkeypatch.setattr("pymc_gpep.prior_moments.proper_posteriors._ROWS", 3)
    for label, separated in ((1, True), (0, False)):
        labels = HIGH.copy()
        labels[X.argmax()] = label
        with pm.Model() as model:
            binary(line, labels)()
        if separated:
            with pytest.raises(gpep.StructureError, match="separated"):
                fitted(model, "ep")
        else:
            assert fitted(model, "ep").converged


@pytest.mark.parametrize("method", ["ep", "laplace"])
def test_separation_of_flat_coefficients_is_found_next_to_effects_with_a_density(method):
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=Q)
        binary(lambda: line() + u[GROUP], HIGH)()
    with pytest.raises(gpep.StructureError, match="separated by the columns of 'a', 'b'"):
        gpep.marginalize(model, method)


def test_ep_is_exact_for_coefficients_of_a_single_row():
    """The evidence is a product of gamma functions. Cavities of the first row and of all other rows are improper."""
    counts, first = 1 + COUNTS, np.arange(N) == 0
    with pm.Model() as model:
        counted(lambda: pm.Flat("a") + pm.Flat("b") * first, counts)()
    rest = counts[1:].sum()
    expected = special.gammaln(counts[0]) + special.gammaln(rest) - rest * np.log(N - 1)
    fit = fitted(model, "ep")
    assert fit.converged
    assert fit.log_evidence == pytest.approx(expected - special.gammaln(counts + 1.0).sum(), abs=1e-6)


@pytest.mark.parametrize("case", ["separated", "collinear", "collinear with an integrated one"])
def test_coefficients_at_their_maximum_are_refused_without_a_single_maximum(case):
    held, message = ["a", "b"], "data are separated by the columns of 'a', 'b', so that the likelihood has no single"
    with pm.Model() as model:
        f = line() + pm.Normal("u", 0, 1, shape=Q)[GROUP]
        if case == "separated":
            pm.Bernoulli("y", logit_p=f, observed=HIGH)
        else:
            pm.Normal("y", f + pm.Flat("c") * (2 * X - 1), 1, observed=Y)
            held = ["a", "b", "c"] if case == "collinear" else ["c"]
            so = "the likelihood has no single" if case == "collinear" else "the posterior is improper"
            message = f"'b', 'c' are linearly dependent, so that {so}"
    with pytest.raises(gpep.StructureError, match=message):
        fitted(model, "laplace", hyper="map", hyperparameters=held)


@pytest.mark.parametrize("held", [[], ["b"]])
def test_log_scales_of_one_flat_vector_match_separate_variables(held):
    """A normal density has parameters of unequal sizes: a scale, and bounds of ±1e300."""
    evidence = []
    for together in (True, False):
        with pm.Model() as model:
            own = pm.Flat("log_sd", shape=2) if together else [pm.Flat("log_s"), pm.Flat("log_noise")]
            u = pm.Normal("u", 0, pm.math.exp(own[0]), shape=Q)
            pm.Normal("y", pm.Flat("b") * X + u[GROUP], pm.math.exp(own[1]), observed=Y)
        evidence.append(fitted(model, "laplace", hyper="map", hyperparameters=held).log_evidence)
    assert_allclose(*evidence, atol=1e-6)


def test_factor_of_an_effect_with_a_flat_prior_stays_a_hyperparameter():
    with pm.Model() as model:
        theta, lam = pm.Normal("theta", shape=Q), pm.Flat("lam", shape=Q, initval=np.ones(Q))
        pm.Normal("y", lam[GROUP] * theta[GROUP], NOISE, observed=Y)
    classifier = read_classifier(model)
    assert [rv.name for rv in classifier.hyperparameters] == ["lam"]
    assert classifier.prior.flat == ()


def test_new_level_of_a_flat_coefficient_is_refused():
    with pm.Model() as model:
        group = pm.Data("group", GROUP)
        f = pm.Flat("level", shape=Q)[group]
        pm.Normal("y", f, NOISE, observed=Y, shape=f.shape)
    fit = fitted(model, "laplace")
    assert_allclose(fit.predict(data={"group": [0]})["mean"], Y[GROUP == 0].mean(), rtol=1e-10)
    with pytest.raises(ValueError, match="coefficients of levels have a flat prior"):
        fit.predict(data={"group": [Q]}, new_levels=True)


def test_methods_without_flat_priors_are_refused_by_name():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X[:, None])
        gpep.Probit("y", f + pm.Flat("a"), observed=BINARY)
    with pytest.raises(gpep.StructureError, match="needs prior covariances, but 'a' has a flat prior"):
        fitted(model, "tap_naive")


def test_text_of_a_fit_names_flat_coefficients_and_the_call_for_maximum_likelihood(caplog):
    inference._tell_of_flat.cache_clear()
    with caplog.at_level("INFO", "pymc"):
        first = fitted(regression(), "laplace")
        fitted(regression(), "laplace")
    assert "Flat: a, b. Their prior density is 1" in str(first)
    assert [each.getMessage() for each in caplog.records if "Flat" in each.getMessage()] == [
        "Flat coefficients 'a', 'b' are integrated, as by restricted maximum likelihood (REML). Maximum likelihood "
        "keeps them at their maximum: pm.fit(..., hyperparameters=['a', 'b'])."
    ]


def test_draws_file_and_leave_one_out_of_flat_coefficients_match_closed_forms(tmp_path):
    """The posterior is that of a linear regression with effects, whose moments have closed forms."""
    fit = fitted(regression(), "ep")
    covariance = NOISE**2 * np.eye(N) + SCALE**2 * LEVELS @ LEVELS.T
    _, mean, cov = restricted(COLUMNS, covariance, Y)
    draws = fit.sample(4000, random_seed=1)["posterior"]
    assert_allclose(draws["b"].mean(), mean[1], atol=5 * np.sqrt(cov[1, 1] / 4000))
    assert_allclose(draws["b"].std(), np.sqrt(cov[1, 1]), rtol=0.05)
    fit.save(tmp_path / "fit.nc")
    again = gpep.load(tmp_path / "fit.nc", regression())
    assert_allclose(again.summary(["a", "b"]), fit.summary(["a", "b"]))
    # Without a row the restricted likelihood is lower, by the log density of the row given the remaining rows.
    keep = np.arange(N) != 7
    without = restricted(COLUMNS[keep], covariance[np.ix_(keep, keep)], Y[keep])[0]
    assert_allclose(fit.loo().elpd_i.to_numpy()[7], fit.log_evidence - without, rtol=1e-8)
    assert fit.importance(200, random_seed=1).log_evidence == pytest.approx(fit.log_evidence, abs=1e-8)


def test_row_that_alone_determines_a_flat_coefficient_cannot_be_left_out():
    with pm.Model() as model:
        pm.Normal("y", line() + pm.Flat("c") * (np.arange(N) == 4), NOISE, observed=Y)
    with pytest.raises(ValueError, match="Row 4 alone determines a coefficient with a flat prior"):
        fitted(model, "ep").loo()


def test_warning_names_left_out_groups_that_alone_determine_a_flat_coefficient():
    where, covariance = GROUP % 3, NOISE**2 * np.eye(N)
    columns = np.column_stack([np.ones(N), where == 2, X])
    with pm.Model() as model:
        pm.Normal("y", line() + pm.Flat("c") * (where == 2), NOISE, observed=Y)
    with pytest.warns(UserWarning, match="elpd_i is NaN for the groups 2: .* flat prior are undetermined"):
        found = fitted(model, "ep").loo(groups=where)
    assert np.isnan(found.elpd_i[2])
    assert found.pareto_k[2] == np.inf
    whole = restricted(columns, covariance, Y)[0]
    for group in (0, 1):
        keep = where != group
        rest = restricted(columns[keep], covariance[np.ix_(keep, keep)], Y[keep])[0]
        assert float(found.elpd_i[group]) == pytest.approx(whole - rest, abs=1e-6)


def kriging(x, new, y, columns, there, noise):
    """Return mean and variance of universal kriging at new inputs, by dense matrices."""
    every = np.exp(-0.5 * np.subtract.outer(np.r_[new, x], np.r_[new, x]) ** 2 / 1.5**2)
    m = new.size
    k = every[m:, m:] + noise**2 * np.eye(x.size)
    _, best, cov = restricted(columns, k, y)
    weights = np.linalg.solve(k, every[m:, :m])
    left = there - weights.T @ columns
    variance = every[:m, :m].diagonal() - np.einsum("ij,ij->j", every[m:, :m], weights)
    return there @ best + weights.T @ (y - columns @ best), variance + np.einsum("ij,jk,ik->i", left, cov, left)


def test_predictions_of_a_process_with_a_flat_trend_are_universal_kriging():
    x = np.sort(RNG.uniform(0.0, 10.0, size=30))
    y, new = 3.0 + 0.4 * x + np.sin(x) + 0.2 * RNG.normal(size=30), np.array([0.5, 5.0, 12.0])
    with pm.Model() as model:
        at = pm.Data("x", x)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.5)).prior("f", X=at[:, None], jitter=1e-9)
        pm.Normal("y", pm.Flat("a") + pm.Flat("b") * at + f, 0.2, observed=y, shape=at.shape)
    found = fitted(model, "ep").predict(data={"x": new})
    mean, variance = kriging(x, new, y, np.column_stack([np.ones(30), x]), np.column_stack([np.ones(3), new]), 0.2)
    assert_allclose(found["mean"], mean, atol=1e-5)
    assert_allclose(found["variance"], variance, rtol=1e-4)


def beside_a_process(observed=BINARY):
    with pm.Model() as model:
        at = pm.Data("at", X)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X[:, None], jitter=1e-6)
        gpep.Probit("y", f + pm.Flat("a") + pm.Flat("b") * (1e4 + 1e3 * at), observed=observed)
    return model


def test_flat_coefficients_with_inducing_inputs_match_a_fit_of_all_rows():
    """With an inducing input at each row, the sparse model equals the model."""
    whole, sparse = fitted(beside_a_process(), "ep"), fitted(beside_a_process(), "sparse_ep", inducing=N)
    constant = float(re.search(r"log evidence is ([\d.]+) larger", str(sparse))[1])
    assert sparse.log_evidence + constant == pytest.approx(whole.log_evidence, abs=2e-4)
    for moment, tolerance in (("mean", 2e-3), ("sd", 1e-3)):
        for name in ("a", "b"):
            expected, sd = (float(whole.effects([name])[name].sel(moment=each)) for each in (moment, "sd"))
            assert sparse.effects([name])[name].sel(moment=moment) == pytest.approx(expected, abs=tolerance * sd)
    with pytest.raises(gpep.StructureError, match="separated by the columns of 'a', 'b'"):
        fitted(beside_a_process(HIGH), "sparse_ep", inducing=5)


def uniform(kind="normal", bounds=(-100, 100)):
    """Two coefficients with uniform priors. Integers have eight bits in PyMC's graphs."""
    with pm.Model() as model:
        f = pm.Uniform("a", -100, 100) + pm.Uniform("b", *bounds) * X + pm.Normal("u", 0, SCALE, shape=Q)[GROUP]
        if kind == "normal":
            pm.Normal("y", f, NOISE, observed=Y)
        else:
            pm.Bernoulli("y", logit_p=f, observed=BINARY if kind == "binary" else HIGH)
    return model


@pytest.mark.parametrize("method", ["laplace", "kl", "ep"])
def test_uniform_coefficients_with_far_bounds_have_a_flat_density(form, method, tmp_path):
    covariance = NOISE**2 * np.eye(N) + SCALE**2 * LEVELS @ LEVELS.T
    expected, mean, cov = restricted(COLUMNS, covariance, Y)
    fit = fitted(uniform(), method)
    assert fit.log_evidence == pytest.approx(expected - 2.0 * np.log(200.0), abs=1e-6)
    found = fit.summary(["a", "b"])
    assert_allclose(found["mean"], mean, rtol=1e-6)
    assert_allclose(found["sd"], np.sqrt(cov.diagonal()), rtol=1e-6)
    assert ("Bounds left out: a (probability 0 beyond), b" in str(fit)) == (method != "ep")
    fit.save(tmp_path / "fit.nc")
    assert_allclose(gpep.load(tmp_path / "fit.nc", uniform()).summary(["a", "b"]), found)


def test_message_names_bounds_that_change_the_posterior_and_ep_fits_them():
    covariance = NOISE**2 * np.eye(N) + SCALE**2 * LEVELS @ LEVELS.T
    _, mean, cov = restricted(COLUMNS, covariance, Y)
    sd = np.sqrt(cov[1, 1])
    with pytest.warns(UserWarning, match="ignores the bounds of 'b', .* 0.16 beyond them: method='ep' takes them"):
        fitted(uniform(bounds=(-100.0, mean[1] + sd)), "laplace")
    fit = fitted(uniform(bounds=(-100.0, mean[1] + sd)), "ep")
    cut = stats.truncnorm(-np.inf, 1.0, loc=mean[1], scale=sd)
    assert_allclose(fit.summary(["b"]).to_numpy()[0, :2], [cut.mean(), cut.std()], rtol=1e-5)


def test_error_names_bounds_that_make_a_posterior_proper():
    with pytest.raises(gpep.StructureError, match=r"The bounds of 'a' matter, .* method='ep' integrates within them"):
        fitted(uniform("separated"), "laplace")
    with pm.Model() as model:
        pm.Categorical(
            "y", logit_p=X[:, None] * pt.concatenate([[0.0], pm.Uniform("b", -9, 9, shape=2)]), observed=GROUP % 3
        )
    assert "Bounds left out: b" in str(fitted(model, "laplace"))


def test_integer_bounds_with_an_overflowing_difference_become_floats():
    """PyMC computes 100 − (−100) in int8."""
    found = []
    for low, high in ((-100, 100), (-100.0, 100.0)):
        with pm.Model() as model:
            b, t = pm.Uniform("b", low, high), pm.TruncatedNormal("t", 0, 100, lower=low, upper=high)
            u = pm.Normal("u", 0, 1, shape=Q)
            pm.Poisson("y", pm.math.exp(b + t * (X - 3.0) + u[GROUP]), observed=COUNTS)
        found.append(fitted(model, "laplace", hyperparameters=["b", "t"], hyper="map"))
    first, second = found
    assert first.hyperparameters["b"] == pytest.approx(float(second.hyperparameters["b"]), rel=1e-6)
    assert first.log_evidence == pytest.approx(second.log_evidence, abs=1e-6)


def test_tiled_coefficients_with_a_reference_level_have_their_closed_form():
    """The shape of `pt.tile` is computed from the coefficients, but does not depend on their values."""
    counts = np.arange(30) % 4 + (np.arange(30) % 3 == 1)
    with pm.Model() as model:
        a, b = pm.Flat("a"), pm.Flat("b", shape=2)
        pm.Poisson("y", pm.math.exp(a + pt.tile(pt.concatenate([pt.zeros(1), b]), 10)), observed=counts)
    total = counts.reshape(10, 3).sum(axis=0)
    digamma, trigamma = special.digamma(total), special.polygamma(1, total)
    mean = [digamma[0] - np.log(10), *(digamma[1:] - digamma[0])]
    found = fitted(model, "ep").summary(["a", "b"])
    assert_allclose(found["mean"], mean, atol=1e-4)
    assert_allclose(found["sd"], np.sqrt([trigamma[0], *(trigamma[1:] + trigamma[0])]), rtol=1e-4)


def test_uniform_coefficient_with_a_learned_bound_stays_a_hyperparameter():
    with pm.Model() as model:
        s = pm.HalfNormal("s", 10)
        pm.Normal("y", pm.Normal("a", 0, 10) + pm.Uniform("b", -s, s) * X, NOISE, observed=Y)
    assert "b" in read_classifier(model, starts=True, priors=True, bounds=False).model.named_vars
    assert [rv.name for rv in read_classifier(model, starts=True, priors=True, bounds=False).hyperparameters] == [
        "s",
        "b",
    ]


def test_regression_of_a_scale_with_flat_coefficients_reaches_the_restricted_maximum():
    """Latent values do not depend on the coefficients of the scale. Newton's method does not update them."""
    x = X - 3.0
    y = 1.0 + np.exp(-0.3 + 0.5 * x) * np.random.default_rng(3).normal(size=N)
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("a"), pm.math.exp(pm.Flat("ls") + pm.Flat("b") * x), observed=y)
    fit = fitted(model, "laplace", hyper="map")

    def criterion(theta):
        return -restricted(np.ones((N, 1)), np.diag(np.exp(2.0 * (theta[0] + theta[1] * x))), y)[0]

    best = minimize(criterion, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert fit.converged
    assert fit.log_evidence == pytest.approx(-best.fun, abs=1e-8)
    assert_allclose([fit.hyperparameters["ls"], fit.hyperparameters["b"]], best.x, atol=1e-5)


def test_model_with_only_flat_priors_matches_the_restricted_likelihood(form):
    """No variable has a prior density: the prior precision has no entries."""
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("a", shape=Q)[GROUP], NOISE, observed=Y)
    fit = fitted(model, "laplace")
    assert form in str(fit)
    expected, mean, cov = restricted(LEVELS, NOISE**2 * np.eye(N), Y)
    assert fit.log_evidence == pytest.approx(expected, abs=1e-8)
    found = fit.summary(["a"])
    assert_allclose(found["mean"], mean, rtol=1e-10)
    assert_allclose(found["sd"], np.sqrt(cov.diagonal()), rtol=1e-10)


def test_error_names_columns_that_are_nearly_dependent_in_double_precision():
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("a") + pm.Flat("b") * (X + 1e8), NOISE, observed=Y)
    with pytest.raises(
        gpep.StructureError, match=r"columns of 'a', 'b' are nearly linearly dependent .* x - x.mean\(\)"
    ):
        fitted(model, "laplace")


@pytest.mark.parametrize("prior", ["half-flat", "flat logarithm"])
def test_improper_posterior_of_a_scale_is_refused(prior):
    """With a flat prior of the level, two groups do not bound the scale.

    A flat prior of log σ does not bound the scale from below.
    """
    with pm.Model() as model:
        scale = pm.HalfFlat("s") if prior == "half-flat" else pm.math.exp(pm.Flat("s"))
        u = pm.Normal("u", 0, scale, shape=2)
        pm.Normal("y", pm.Flat("a") + u[GROUP % 2], NOISE, observed=Y)
    towards = "larger" if prior == "half-flat" else "smaller"
    with pytest.raises(ValueError, match=f"posterior of 's' is improper: .* towards {towards} values") as error:
        fitted(model, "laplace")
    assert error.value.fit.at_maximum == ["s"]


def test_scale_of_rows_with_a_half_flat_prior_has_its_closed_form():
    """The squared scale has an inverse gamma distribution."""
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("a") + pm.Flat("b") * X, pm.HalfFlat("s"), observed=Y)
    found = fitted(model, "laplace").summary(["s", "b"])
    rest = Y - COLUMNS @ np.linalg.lstsq(COLUMNS, Y, rcond=None)[0]
    squared = stats.invgamma(0.5 * (N - 3), scale=0.5 * rest @ rest)  # n − 2 degrees of freedom, and the density of s
    mean = squared.expect(np.sqrt)
    assert_allclose(found.loc["s"].iloc[:2], [mean, np.sqrt(squared.mean() - mean**2)], rtol=0.02)
    sd = np.sqrt(squared.mean() * np.linalg.inv(COLUMNS.T @ COLUMNS)[1, 1])
    assert found.loc["b"].iloc[1] == pytest.approx(sd, rel=0.02)


@pytest.mark.variation(but=["4"])
@pytest.mark.parametrize("groups", [3, 4, 5])
def test_half_flat_scale_of_few_groups_lacks_moments(groups):
    """With J groups and a flat level, the density of the scale s falls as s^−(J − 1) for large s (Gelman 2006)."""
    mean, rest = 2.0 * np.arange(groups), np.random.default_rng(3).normal(size=(8, groups))
    with pm.Model() as model:
        where = pm.Data("where", np.arange(8 * groups) % groups)
        scale, level = pm.HalfFlat("s"), pm.Flat("a")
        u = pm.Normal("u", 0, scale, shape=groups)
        pm.Deterministic("of_group", level + u)
        f = level + u[where]
        pm.Normal("y", f, 1.0, observed=(mean + rest - rest.mean(axis=0)).ravel(), shape=f.shape)
    fit = fitted(model, "laplace")
    found = fit.summary(["s", "a", "u", "of_group"], ci_prob=0.5)
    undefined = np.isnan(found[["mean", "sd"]]).sum(axis=1)
    missing = {3: 2, 4: 1, 5: 0}[groups]
    assert undefined.tolist() == [missing] * (1 + groups) + [0] * groups + [missing]
    heading = {2: "No mean or variance of s and", 1: "No variance of s and", 0: ""}[missing]
    assert heading in str(fit)
    assert ("variance of s" in str(fit)) == (missing > 0)
    for own, name in ((fit.effects(["a", "u"]), "a"), (fit.contrast({"a": {"a": 1}}), "sd")):
        assert np.isnan(own[name]).any() == (missing > 0)
    assert np.isfinite(fit.contrast({"difference": {"u": [1, -1] + [0] * (groups - 2)}})["sd"]).all()
    assert np.isnan(fit.std_data).sum() == (missing > 0) * (1 + groups)
    heavy = pytest.warns(UserWarning, match="Moments of 1 of 2 rows are NaN.* 's' has a heavy tail")
    with heavy if missing else nullcontext():
        new = fit.predict(data={"where": [0, groups]}, new_levels=True)
    for name, least in (("mean", 2), ("variance", 1), ("y_mean", 2), ("y_variance", 1)):
        assert np.isnan(new[name]).values.tolist() == [False, missing >= least]
    # By quadrature: group means are a sufficient statistic.
    s = np.exp(np.linspace(-8.0, 20.0, 20001))
    spread = s**2 + 1.0 / 8.0
    density = s * spread ** (-0.5 * (groups - 1)) * np.exp(-0.5 * ((mean - mean.mean()) ** 2).sum() / spread)
    levels = np.cumsum(density) / density.sum()
    assert_allclose(found.loc["s"].iloc[2:4].astype(float), np.interp([0.25, 0.75], levels, s), rtol=0.03)


def test_scales_that_grow_together_without_bound_are_refused():
    """Given one scale, the posterior of the other scale is proper."""
    with pm.Model() as model:
        u, v = (pm.Normal(name, 0, pm.HalfFlat(f"scale_{name}"), shape=3) for name in "uv")
        pm.Normal("y", pm.Flat("a") + (u + v)[GROUP % 3], NOISE, observed=Y)
    with pytest.raises(ValueError, match="posterior of 'scale_u' and 'scale_v' is improper: its density falls too"):
        fitted(model, "laplace")


def test_unbounded_search_along_a_scale_reports_an_improper_posterior():
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfFlat("s"), shape=6)
        binary(lambda: u[GROUP % 6], GROUP % 2)()
    with pytest.raises(ValueError, match=r"'s' is improper: its log posterior rises .* pm.HalfNormal\('s', s\)\."):
        fitted(model, "laplace")


PLATES = (
    "272326232321 272326232321 252125242420 262325232320 252226222320 242225232219 242023212219 262226242421 "
    "242124222220 242124232219 262326242421 252226242420 262426242522 262326232320 262325242422 252225232320 "
    "252124232320 252224232319 242123212119 262326242421 252124222218 252225222220 242124222419 242124222118"
)
"""Diameters of six samples on each of 24 plates: lme4's data set Penicillin."""
YIELDS = [
    *(1545, 1440, 1440, 1520, 1580, 1540, 1555, 1490, 1560, 1495, 1595, 1550, 1605, 1510, 1560),
    *(1445, 1440, 1595, 1465, 1545, 1595, 1630, 1515, 1635, 1625, 1520, 1455, 1450, 1480, 1445),
]
"""Yields of five samples from each of six batches: lme4's data set Dyestuff."""
DIAMETERS = [int(each[i : i + 2]) for each in PLATES.split() for i in range(0, 12, 2)]
PUBLISHED = {
    "dyestuff": (YIELDS, [np.repeat(np.arange(6), 5)], 319.654276842, [41.99995]),
    "penicillin": (DIAMETERS, [np.repeat(np.arange(24), 6), np.tile(np.arange(6), 24)], 330.860589, [0.84669, 1.93162]),
}
"""Data, groups, REML criteria of lme4 and of the tests of MixedModels.jl, and standard deviations."""


@pytest.mark.variation(but=["dyestuff"])
@pytest.mark.parametrize("data", PUBLISHED)
def test_published_restricted_maximum_likelihood_is_reached(data):
    y, factors, criterion, sds = PUBLISHED[data]
    with pm.Model() as model:
        f = pm.Flat("level")
        for i, where in enumerate(factors):
            f += pm.Normal(f"u{i}", 0, log_scale(f"log{i}"), shape=int(where.max()) + 1)[where]
        pm.Normal("y", f, log_scale("noise"), observed=np.array(y, float))
    fit = fitted(model, "laplace", hyper="map")
    assert -2.0 * fit.log_evidence == pytest.approx(criterion, abs=2e-6)
    assert_allclose([np.exp(float(fit.hyperparameters[f"log{i}"])) for i in range(len(sds))], sds, rtol=1e-4)


CHAINS = {
    "logistic": ([1.3676, 1.4227, -1.1687, 0.8283], [0.4733, 0.5256, 0.4569, 0.5322]),
    "poisson": ([-0.1243, 0.7339, -0.4411, 0.0291], [0.1671, 0.1343, 0.1706, 0.1503]),
}
"""Means and standard deviations of four coefficients by NUTS: 2 chains of 15,000 draws, at least 17,000 effective."""


@pytest.mark.parametrize("kind", CHAINS)
def test_regressions_of_few_rows_match_long_chains(kind):
    rng = np.random.default_rng(5)
    columns = np.column_stack([np.ones(50), rng.normal(size=(50, 3))])
    f = columns @ [0.4, 1.2, -0.8, 0.3]
    hits, counts = (rng.random(50) < special.expit(f)).astype(int), rng.poisson(np.exp(0.5 * f))
    with pm.Model() as model:
        f = columns @ pm.Flat("b", shape=4)
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=f, observed=hits)
        else:
            pm.Poisson("y", pm.math.exp(f), observed=counts)
    found, (mean, sd) = fitted(model, "ep").summary(["b"]), np.array(CHAINS[kind])
    assert_allclose((found["mean"] - mean) / sd, 0.0, atol=0.03)
    assert_allclose(found["sd"], sd, rtol=0.02)


@pytest.mark.variation(but=["binary"])
@pytest.mark.parametrize("kind", ["binary", "counts"])
def test_marginals_that_end_at_a_bound_of_the_prior_match_quadrature(kind):
    """For separated classes and counts of 0, the likelihood does not limit one side of the posterior."""
    x, (low, high) = np.linspace(-1.0, 1.0, 20), {"binary": (-100, 100), "counts": (-20, 5)}[kind]
    with pm.Model() as model:
        b = pm.Uniform("b", low, high)
        if kind == "binary":
            pm.Bernoulli("y", logit_p=b * x, observed=(x > 0.0).astype(int))
        else:
            pm.Poisson("y", pm.math.exp(b + 0.0 * x), observed=np.zeros(20, int))
    fit = fitted(model, "ep")
    grid = np.linspace(low, high, 20001)
    of_classes = -np.logaddexp(0.0, -np.outer(np.abs(x), grid)).sum(axis=0)
    weight = np.exp(of_classes if kind == "binary" else -20.0 * np.exp(grid))
    weight /= weight.sum()
    mean = weight @ grid
    moments, ends = [mean, np.sqrt(weight @ (grid - mean) ** 2)], np.interp([0.05, 0.95], np.cumsum(weight), grid)
    found = fit.summary("b", ci_prob=0.9).to_numpy()[0]
    assert_allclose(found, [*moments, *ends], rtol=3e-3)
    assert_allclose(fit.effects("b")["b"], moments, rtol=3e-3)
    half = fit.contrast({"half": {"b": 0.5}})
    assert_allclose(
        [half["mean"][0], half["sd"][0], np.sqrt(half["cov"][0, 0])], 0.5 * np.array([*moments, moments[1]]), rtol=3e-3
    )


def test_marginals_of_two_separated_coefficients_match_quadrature():
    """Averages of rows with the sites of the fit give standard deviations that are 6 % too small."""
    x = np.linspace(-1.0, 1.0, 20)
    columns, sign = np.column_stack([x, x**3]), np.sign(x)
    with pm.Model() as model:
        b = pm.Uniform("b", -100, 100, shape=2)
        pm.Bernoulli("y", logit_p=columns @ b, observed=(sign > 0).astype(int))
    fit = fitted(model, "ep")
    points = np.stack(np.meshgrid(*[np.linspace(-100, 100, 401)] * 2, indexing="ij")).reshape(2, -1)
    weight = np.exp(-np.logaddexp(0.0, -sign[:, None] * (columns @ points)).sum(axis=0))
    points, weight = np.vstack([points, points.sum(axis=0)]), weight / weight.sum()
    mean = points @ weight
    sd = np.sqrt((points - mean[:, None]) ** 2 @ weight)
    combined = fit.contrast({"first": {"b": [1, 0]}, "second": {"b": [0, 1]}, "sum": {"b": [1, 1]}})
    assert_allclose((combined["mean"] - mean) / sd, 0.0, atol=0.03)
    assert_allclose(combined["sd"], sd, rtol=0.02)
    found = fit.summary("b")[["mean", "sd"]].T
    assert_allclose(found, [combined["mean"][:2], combined["sd"][:2]])
    assert_allclose(fit.effects("b")["b"], found)
