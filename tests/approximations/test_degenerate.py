"""Degenerate input: the result is right or a status or an error reports the failure. No silent NaN."""

import mpmath
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_DIGITS
from tests import models
from tests.approximations.every import FUNCTION_PER_CLASS, approximations, of_functions_per_class, with_one_of
from tests.reference.data import iris, random_problem, squared_exponential
from tests.reference.flat_ep import flat_ep, flat_model

LINE = np.linspace(-1.0, 2.0, 6)
EPS = np.finfo(float).eps

PROBLEM = random_problem(1, 6, 3, variance=4.0, with_mean=True)
LABELS = np.array([0, 0, 1, 2, 0, 1])
SINGULAR = {
    "duplicated": np.kron(PROBLEM.K[:3, :3], np.ones((2, 2))),
    "constant": np.ones((6, 6)),
    "rank one": np.outer(LINE, LINE),
    "zero": np.zeros((6, 6)),
}


def given(approximation):
    """Prior mean and labels of `PROBLEM`, for the numbers of functions and classes of the approximation."""
    return PROBLEM.m[: approximation.n_functions], np.minimum(LABELS, approximation.n_classes - 1)


def refuse_if_it_cannot(approximation, k, c):
    """End the test, after checking the refusal, if the approximation needs full rank, an inverse or fewer classes."""
    if approximation.needs_inverse:
        solution = approximation().solve(k, np.zeros((c, len(k))), np.zeros(len(k), int))
        assert not solution.convergence.converged
        assert np.isnan(solution.evidence)
        pytest.skip("refused: a covariance without an inverse")
    if approximation.by_quadrature and c > 20:
        with pytest.raises(ValueError, match="quadrature nodes"):
            approximation().solve(k, np.zeros((c, len(k))), np.zeros(len(k), int))
        pytest.skip("refused: too many classes for a quadrature")
    if approximation.by_quadrature and not k.any():
        solution = approximation().solve(k, np.zeros((c, len(k))), np.zeros(len(k), int))
        assert solution.convergence.status == NOT_FINITE
        assert np.isnan(solution.evidence)
        pytest.skip("refused: no prior variance")


def solve(approximation, k, mean, labels, **options):
    solution = approximation(**{"tolerance": 1e-10} | options).solve(k, mean, labels)
    assert solution.convergence.converged, str(solution.convergence)
    for values in (solution.evidence, solution.mean, solution.cov, solution.start):
        assert np.isfinite(values).all()
    return solution


def assert_equals_flat_ep(k, mean, labels, scale=1.0, **options):
    """Compare nested EP with a dense implementation of the same fixed point, which uses other algebra."""
    c, n = mean.shape
    expected = flat_ep(k, labels, mean)
    solution = solve(NestedEP, k, mean, labels, **options)
    assert solution.evidence == pytest.approx(expected.evidence, abs=1e-9)
    assert_allclose(solution.mean, expected.mean, atol=1e-8 * np.sqrt(scale))
    cov = np.einsum("aibi->iab", expected.covariance.reshape(c, n, c, n))
    assert_allclose(solution.cov, cov, atol=1e-8 * scale)
    return solution


# Singular and indefinite covariances


@pytest.mark.parametrize("k", SINGULAR.values(), ids=SINGULAR)
def test_solution_for_a_singular_covariance_equals_flat_ep(k):
    assert_equals_flat_ep(k, PROBLEM.m, LABELS)


@with_one_of("k", list(SINGULAR.values()), SINGULAR)
def test_solution_for_singular_covariance_is_the_limit_for_small_jitter(approximation, k):
    refuse_if_it_cannot(approximation, k, approximation.n_functions)
    mean, labels = given(approximation)
    solution = solve(approximation, k, mean, labels)
    near = solve(approximation, k + 1e-9 * np.eye(6), mean, labels)
    assert solution.evidence == pytest.approx(near.evidence, abs=1e-7)
    assert_allclose(solution.mean, near.mean, atol=1e-7)
    assert_allclose(solution.cov, near.cov, atol=1e-7)


@approximations
def test_posterior_without_prior_variance_is_the_prior(approximation):
    refuse_if_it_cannot(approximation, np.zeros((6, 6)), approximation.n_functions)
    mean, labels = given(approximation)
    solution = solve(approximation, np.zeros((6, 6)), mean, labels)
    assert_allclose(solution.mean, mean, atol=1e-14)
    assert not solution.cov.any()


@approximations
def test_copies_of_a_point_have_equal_latent_means(approximation):
    twice = np.repeat(np.arange(6), 2)
    mean, labels = given(approximation)
    k = PROBLEM.K[twice[:, None], twice]
    if approximation.needs_inverse:
        refuse_if_it_cannot(approximation, k, approximation.n_functions)
    # The two copies of a point have contradicting labels.
    labels = np.ravel([labels, (labels + 1) % approximation.n_classes], "F")
    solution = solve(approximation, k, mean[:, twice], labels)
    assert_allclose(solution.mean[:, ::2], solution.mean[:, 1::2], atol=1e-8)
    assert_allclose(solution.cov[::2], solution.cov[1::2], atol=1e-8)


INDEFINITE = {
    "correlations above 1": 1.5 * np.ones((6, 6)) - 0.5 * np.eye(6),
    "one eigenvalue of −0.001": np.eye(6) - 1.001 / 6,
    "one class of three": np.stack([np.eye(6), np.eye(6), np.eye(6) - 0.5 * np.ones((6, 6))]),
}


@with_one_of("scaled", [(scale, name) for scale in (1e-8, 1.0, 1e8) for name in INDEFINITE])
def test_indefinite_covariance_is_refused(approximation, scaled):
    """The covariance K is refused even if I + D^½ K D^½, which a solver factorises, is positive definite."""
    scale, k = scaled[0], INDEFINITE[scaled[1]]
    mean, labels = given(approximation)
    solution = approximation().solve(scale * (k if k.ndim == 2 else k[-len(mean) :]), mean, labels)
    assert solution.convergence.status == NOT_POSITIVE_DEFINITE
    assert "not symmetric and positive semi-definite" in str(solution.convergence)
    assert np.isnan(solution.evidence)
    assert np.isnan(solution.mean).all()
    assert np.isnan(solution.cov).all()


@with_one_of("scale", [1e-8, 1.0, 1e4])
def test_covariance_that_is_indefinite_by_rounding_is_accepted(approximation, scale):
    k = scale * SINGULAR["constant"]
    if approximation.needs_inverse:
        refuse_if_it_cannot(approximation, k, approximation.n_functions)
    mean, labels = given(approximation)
    unbounded = not np.isfinite(approximation.likelihood.largest_precision)
    if unbounded and scale > 1.0 and approximation.approximator.name == "kl":
        # The average of a rate under a wide normal can overflow. The status then reports the failure.
        solution = approximation.solve(k, mean, labels)
        if solution.convergence.converged:
            assert approximation.likelihood.name == "complementary_log_log"
            # value of the best normal distribution of one variable
            assert solution.evidence == pytest.approx(-9.05458836, abs=1e-6)
        return
    expected = solve(approximation, k, mean, labels, tolerance=1e-8)
    solution = solve(approximation, k - scale * 1e-12 * (np.eye(6) - 1 / 6), mean, labels, tolerance=1e-8)
    assert solution.evidence == pytest.approx(expected.evidence, abs=1e-7)


@approximations
def test_asymmetric_covariance_is_refused(approximation):
    k = PROBLEM.K.copy()
    k[0, 1] += 1e-3
    mean, labels = given(approximation)
    with pytest.raises(ValueError, match="k must be symmetric"):
        approximation().solve(k, mean, labels)
    outcome = approximation().run(k[None], mean, labels, np.zeros(approximation().start_size(len(mean), 6)))
    assert outcome.status == NOT_POSITIVE_DEFINITE
    k[0, 1] = k[1, 0] + 1e-12
    expected = solve(approximation, PROBLEM.K, mean, labels)
    assert solve(approximation, k, mean, labels).evidence == pytest.approx(expected.evidence, abs=1e-9)


# Magnitudes


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("scale", [1e-300, 1e-8, 1e4, 1e8])
def test_solution_for_a_covariance_of_any_magnitude_equals_flat_ep(scale, per_class):
    problem = random_problem(3, 6, 3, variance=1.0, per_class=per_class, with_mean=True)
    assert_equals_flat_ep(scale * problem.K, problem.m, LABELS, max(1.0, 10 * scale))


def precise_evidence(k, mean, labels, sites):
    """EP's evidence and residual at given sites, from the joint Gaussian of all g, in arithmetic of 40 digits."""
    model = flat_model(k, labels, mean)
    with mpmath.workdps(40):
        alpha, beta = (mpmath.matrix(x.tolist()) for x in sites.reshape(2, -1))
        rows, size = mpmath.matrix(model.functionals.tolist()), len(alpha)
        prior = rows * mpmath.matrix(model.covariance.tolist()) * rows.T
        g0 = rows * mpmath.matrix(model.mean.tolist())
        inner = mpmath.eye(size) + prior * mpmath.diag(list(alpha))
        cov = mpmath.inverse(inner) * prior
        shift = mpmath.matrix([beta[s] - alpha[s] * g0[s] for s in range(size)])
        g = g0 + cov * shift
        evidence = (shift.T * (g - g0))[0] / 2 - mpmath.log(mpmath.det(inner)) / 2
        residual = mpmath.mpf(0)
        for s in range(size):
            evidence += beta[s] * g0[s] - alpha[s] * g0[s] ** 2 / 2
            keep = 1 - alpha[s] * cov[s, s]
            v, m = cov[s, s] / keep, (g[s] - beta[s] * cov[s, s]) / keep
            z, root = m / mpmath.sqrt(1 + v), mpmath.sqrt(1 + v)
            hazard = mpmath.npdf(z) / mpmath.ncdf(z)
            curvature = hazard * (hazard + z)
            precision = curvature / (1 + v * (1 - curvature))
            location = precision * (m + v * hazard / root) + hazard / root
            stretch = 1 + alpha[s] * v
            site = (beta[s] ** 2 * v + 2 * beta[s] * m - alpha[s] * m**2) / (2 * stretch) - mpmath.log(stretch) / 2
            evidence += mpmath.log(mpmath.ncdf(z)) - site
            changes = abs(precision - alpha[s]) * cov[s, s], abs(location - beta[s]) * mpmath.sqrt(cov[s, s])
            residual = max(residual, *changes)
        return float(evidence), float(residual)


@pytest.mark.parametrize(
    ("variance", "lengthscale", "jitter"),
    [(1.0, 10.0, 0.0), (1e8, 0.1, 0.0), (1e8, 1000.0, 1e-8), (1e16, 1.0, 1e-8), (1e16, 10.0, 0.0)],
)
def test_evidence_under_a_large_prior_variance_keeps_its_digits(variance, lengthscale, jitter):
    """Differences of latent functions keep their digits, although single functions lose nearly all digits."""
    X, y = (x[::15] for x in iris())
    k = squared_exponential(X, variance=variance, lengthscale=lengthscale) + jitter * np.eye(y.size)
    mean = np.zeros((3, y.size))
    solution = solve(NestedEP, k, mean, y, tolerance=1e-6)
    evidence, residual = precise_evidence(k, mean, y, solution.start)
    assert residual < 2e-5
    assert solution.evidence == pytest.approx(evidence, abs=1e-6)


@pytest.mark.parametrize("lengthscale", [10.0, 100.0])
def test_status_reports_that_rounding_limits_the_solution(lengthscale):
    X, y = iris()
    k = squared_exponential(X, variance=1e10, lengthscale=lengthscale)
    convergence = NestedEP().solve(k, np.zeros((3, y.size)), y).convergence
    assert convergence.status == OUT_OF_DIGITS
    assert "reached the limit of rounding at a very large prior variance" in str(convergence)
    assert convergence.scheme == NestedEP.schemes[1]


@with_one_of("size", [-(2.0**27), 2.0**40], among=FUNCTION_PER_CLASS)
def test_large_common_prior_mean_does_not_change_evidence(approximation, size):
    mean = np.round(PROBLEM.m * 1024) / 1024  # sums with `size` are exact
    expected = solve(approximation, PROBLEM.K, mean, LABELS)
    solution = solve(approximation, PROBLEM.K, mean + size, LABELS)
    assert solution.evidence == pytest.approx(expected.evidence, abs=1e-8)
    assert_allclose(solution.mean, size + expected.mean, rtol=2 * EPS, atol=1e-7)
    assert_allclose(solution.cov, expected.cov, atol=1e-8)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("size", [1e-8, 1e3, 1e8])
def test_evidence_under_a_large_prior_mean_of_one_class_matches_the_tail_formula(size, label):
    """One point of two classes: log Φ((m_y − m_j) / √(2 + 2 v)). The tail formula is for unlikely labels."""
    mean = np.array([[size], [0.0]])
    solution = solve(NestedEP, np.array([[4.0]]), mean, np.array([label]))
    z = (1 - 2 * label) * size / mpmath.sqrt(10)
    expected = mpmath.log1p(-mpmath.ncdf(-z)) if z > 0 else -z * z / 2 - mpmath.log(-z * mpmath.sqrt(2 * mpmath.pi))
    if 0 > z > -1:
        expected = mpmath.log(mpmath.ncdf(z))
    assert solution.evidence == pytest.approx(float(expected), rel=1e-6, abs=1e-12)


@with_one_of("mean", [0.0, 1e300])
def test_prior_variances_whose_squares_overflow_are_refused(approximation, mean):
    means, labels = given(approximation)
    solution = approximation().solve(1e300 * PROBLEM.K, mean + 0.0 * means, labels)
    assert solution.convergence.status == NOT_FINITE
    assert np.isnan(solution.evidence)


BEYOND_REASON = [(1.0, 1e160), (1.0, 1e300), (1e8, 1e100)]


@with_one_of("magnitudes", BEYOND_REASON)
def test_extreme_magnitudes_give_a_result_or_a_status(approximation, magnitudes):
    """Where squares overflow, there may be no result. Graphs then return NaN with a status."""
    (k, mean), c, (_, labels) = magnitudes, approximation.n_functions, given(approximation)
    means = mean * np.array([[1.0], [-1.0], [0.3]])[:c] + np.zeros(6)
    approximation = approximation(max_iterations=200)
    start = np.zeros(approximation.start_size(c, 6))
    *numbers, _, status, iterations, _ = Evidence(*approximation).evaluate(
        k * PROBLEM.K[None] / 4, means, labels, start
    )
    for values in numbers:
        assert np.isfinite(values).all() if status == CONVERGED else np.isnan(values).all()
    assert iterations <= 200


@pytest.mark.parametrize(("k", "mean"), BEYOND_REASON)
def test_extreme_magnitudes_in_nested_ep_return_a_status(k, mean):
    means = mean * np.array([[1.0], [-1.0], [0.3]]) + np.zeros(6)
    convergence = NestedEP(max_iterations=200).solve(k * PROBLEM.K / 4, means, LABELS).convergence
    assert not convergence.converged


# Sizes, classes and types


@pytest.mark.parametrize(
    ("scale", "n", "c"), [(1.0, 1, 26), (1e8, 1, 2), (1.0, 2, 3), (1e8, 2, 26), (1.0, 5, 2), (1e8, 5, 3)]
)
def test_solution_of_few_points_of_few_or_many_classes_equals_flat_ep(n, c, scale):
    problem = random_problem(5, n, c, variance=1.0, with_mean=True)
    assert_equals_flat_ep(scale * problem.K, problem.m, problem.y, scale)


def test_evidence_of_one_point_of_two_classes_is_exact():
    solution = solve(NestedEP, np.array([[3.0]]), np.array([[0.5], [0.0]]), np.array([0]))
    assert solution.evidence == pytest.approx(float(mpmath.log(mpmath.ncdf(0.5 / mpmath.sqrt(8)))), abs=1e-12)


@with_one_of("size", [(1, 26), (6, 2)], among=FUNCTION_PER_CLASS)
def test_problems_with_labels_of_one_class_are_solved(approximation, size):
    n, c = size
    refuse_if_it_cannot(approximation, PROBLEM.K[:n, :n], c)
    solution = solve(approximation, PROBLEM.K[:n, :n], np.zeros((c, n)), np.full(n, c - 1))
    # the evidence of VB is a bound
    assert -n * (np.log(c) + 0.5 * c * np.log1p(PROBLEM.K.max())) < solution.evidence < 0
    assert (solution.mean[-1] > 0).all()
    assert_allclose(solution.mean[:-1], np.broadcast_to(solution.mean[0], (c - 1, n)), atol=1e-7)
    assert (solution.mean[:-1] < solution.mean[-1]).all()


@of_functions_per_class
def test_problems_with_unobserved_classes_are_solved(approximation):
    """The means of unobserved classes are equal and negative where other classes occur. The evidence decreases."""
    labels = np.array([0, 1, 0, 0, 1, 1])
    observed = solve(approximation, PROBLEM.K, np.zeros((2, 6)), labels)
    solution = solve(approximation, PROBLEM.K, np.zeros((5, 6)), labels)
    assert solution.evidence < observed.evidence
    error = 2e-4 if approximation.by_quadrature else 1e-7  # the quadrature depends on the order of the classes
    assert_allclose(solution.mean[2:], np.broadcast_to(solution.mean[2], (3, 6)), atol=error)
    assert (solution.mean[2] < 0).all()
    assert_allclose(solution.cov[:, 2:, 0], np.broadcast_to(solution.cov[:, 2:3, 0], (6, 3)), atol=error)


def test_nested_ep_with_unobserved_classes_equals_flat_ep():
    assert_equals_flat_ep(PROBLEM.K, np.zeros((5, 6)), np.array([0, 1, 0, 0, 1, 1]))


@approximations
def test_zero_points_are_refused(approximation):
    with pytest.raises(ValueError, match="n ≥ 1 points"):
        approximation().solve(np.zeros((0, 0)), np.zeros((approximation.n_functions, 0)), np.zeros(0, int))


@with_one_of("dtype", ["int8", "uint8", "int64", "uint64", "float32", "float64", "bool", list])
def test_labels_of_any_integer_type_are_accepted(approximation, dtype):
    labels = np.array([0, 1, 0, 0, 1, 1])
    mean = PROBLEM.m[: min(2, approximation.n_functions)]
    expected = solve(approximation, PROBLEM.K, mean, labels)
    of_type = labels.tolist() if dtype is list else labels.astype(dtype)
    assert solve(approximation, PROBLEM.K, mean, of_type).evidence == expected.evidence


@with_one_of("kind", ["integers", "float32", "Fortran", "strided", "reversed"])
def test_prior_of_any_type_and_layout_is_accepted(approximation, kind):
    mean, labels = given(approximation)
    k, mean = np.round(8 * PROBLEM.K) + 8 * np.eye(6), np.round(mean)
    k = np.stack([k, 2 * k, 3 * k])[: len(mean)]
    expected = solve(approximation, k, mean, labels)
    change = {
        "integers": lambda x: x.astype(np.int32),
        "float32": lambda x: x.astype(np.float32),
        "Fortran": np.asfortranarray,
        "strided": lambda x: np.repeat(x, 2, -1)[..., ::2],
        "reversed": lambda x: x[..., ::-1].copy()[..., ::-1],
    }[kind]
    solution = solve(approximation, change(k), change(mean), labels)
    assert solution.evidence == expected.evidence
    assert_array_equal(solution.mean, expected.mean)


@with_one_of("wrong", [0.5, -1, 3, np.nan, np.inf, 1e300, "a", None])
def test_labels_outside_the_classes_raise_value_error(approximation, wrong):
    mean, labels = given(approximation)
    missing = wrong is None or wrong is np.nan
    message = "labels are missing at 1 of 6 points" if missing else r"labels must be (integers 0…2|0 or 1), but"
    with pytest.raises(ValueError, match=message):
        approximation().solve(PROBLEM.K, mean, [*labels[:-1].tolist(), wrong])


@with_one_of("wrong", [(name, value) for value in (np.nan, np.inf, -np.inf) for name in ("k", "mean", "start")])
def test_values_that_are_not_finite_are_refused(approximation, wrong):
    name, value = wrong
    mean, labels = given(approximation)
    start = np.zeros(approximation().start_size(len(mean), 6))
    arguments = {"k": PROBLEM.K[None].copy(), "mean": mean.copy(), "labels": labels, "start": start}
    arguments[name].flat[0] = value
    with pytest.raises(ValueError, match=f"{name} must be .*finite"):
        approximation().solve(**arguments)
    outcome = approximation().run(*arguments.values())
    assert outcome.status == NOT_FINITE
    assert np.isnan(outcome.evidence)


# Models


def classifier(X, labels, classes, cov_func):
    """Model with the covariance that a function returns within the model's context."""
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=cov_func())
        f = gp.prior("f", X=X, n_outputs=classes)
        gpep.MultinomialProbit("y", f.T, observed=labels)
    return model, gp


def fixed():
    return 9 * pm.gp.cov.ExpQuad(2, ls=1.0)


def test_fit_of_repeated_rows_constant_columns_and_an_unobserved_class_equals_its_solve():
    X, y = models.data()
    twice = np.repeat(np.arange(0, 30, 3), 2)
    X, y = np.column_stack([X, np.full(30, 7.0)])[twice], y[twice]
    model, gp = classifier(X, y, 4, lambda: pm.HalfNormal("eta", 3) ** 2 * pm.gp.cov.ExpQuad(3, ls=1.0))
    with model:
        fit = pm.fit(method="nested_ep", progressbar=False, random_seed=1)
    assert fit.converged
    k = fit.hyperparameters["eta"].item() ** 2 * squared_exponential(X, variance=1.0, lengthscale=1.0)
    expected = NestedEP().solve(k + 1e-6 * np.eye(20), np.zeros((4, 20)), y)
    assert fit.log_evidence == pytest.approx(expected.evidence, abs=1e-5)
    p = fit.predict(gp, X[:3])["p"].values
    assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert (p[np.arange(3), y[:3]] > p[:, 3]).all()
    assert np.isfinite(fit.sample(5, random_seed=1).posterior["f"]).all()


def test_model_with_labels_of_one_class_is_fitted():
    X, y = models.data()
    model, _ = classifier(X, 0 * y, 2, fixed)
    with model, pytest.warns(UserWarning, match="All 30 labels of 'y' are of the class 0"):
        fit = pm.fit(method="nested_ep", progressbar=False, random_seed=1)
    assert fit.converged
    k = squared_exponential(X, variance=9.0, lengthscale=1.0) + 1e-6 * np.eye(30)
    assert fit.log_evidence == pytest.approx(NestedEP().solve(k, np.zeros((2, 30)), 0 * y).evidence, abs=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_missing_inputs_are_refused(value):
    X, y = models.data()
    X[3, 1] = value
    model, _ = classifier(X, y, 3, fixed)
    with model, pytest.raises(ValueError, match=r"inputs of .* are not finite in row 3\. Remove these rows"):
        pm.fit(method="nested_ep", progressbar=False, random_seed=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (-1, "y: 1 of 30 observed labels"),
        (3, "y: 1 of 30 observed labels"),
        (0.5, "y: 1 of 30 observed labels"),
    ],
)
def test_labels_outside_the_range_are_refused(wrong, message):
    X, y = models.data()
    with pytest.raises(ValueError, match=message):
        classifier(X, np.append(y[:-1], wrong), 3, fixed)


@pytest.mark.variation
def test_nuts_rejects_points_with_indefinite_covariance():
    """The covariance has an additive constant. Where the constant is negative, the covariance is indefinite."""
    X, y = models.data()
    model, _ = classifier(
        X[::3], y[::3], 3, lambda: pm.gp.cov.ExpQuad(2, ls=1.0) + pm.gp.cov.Constant(pm.Normal("shift", initval=0.5))
    )
    marginal = gpep.marginalize(model)
    assert np.isnan(marginal.compile_logp()({"shift": np.array(-2.0)}))
    idata = pm.sample(
        30, tune=30, chains=2, cores=1, model=marginal, random_seed=1, nuts_sampler="pymc", progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    assert idata.sample_stats["diverging"].any()
    assert (idata.posterior["shift"] > -0.5).all()
    assert idata.posterior["shift"].std() > 0.1
