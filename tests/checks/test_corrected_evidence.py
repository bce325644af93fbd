"""The corrected evidence against counting, brute force, and exact evidences of tiny problems."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse.linalg import ArpackError
from scipy.special import log_ndtr
from scipy.stats import norm

from pymc_gpep.approximations import EP, NestedEP
from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.checks.corrected_evidence import corrected_evidence, three_loops
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.bernoulli import ProbitLikelihood
from pymc_gpep.rivals.class_independent_ep import IEP, QIEP
from pymc_gpep.rivals.qep import QEP
from tests.approximations.every import EVERY
from tests.reference.cumulant_expansion import log_ratio_by_loops
from tests.reference.data import random_problem
from tests.reference.exact import orthant_evidence
from tests.reference.flat_ep import flat_ep, flat_model, gaussian

TIGHT = NestedEP(tolerance=1e-11)
_ROOT_2PI = np.sqrt(2.0 * np.pi)


def random_factors(size, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size + 1))
    covariance = root @ root.T
    scale = np.sqrt(covariance.diagonal())
    return TiltedFactors(0.0, True, covariance / np.outer(scale, scale), *rng.standard_normal((2, size)))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_second_and_third_order_terms_match_the_power_series(size):
    factors = random_factors(size)
    two, three = log_ratio_by_loops(factors.correlation, factors.third, factors.fourth)
    assert factors.two_loops.sum() == pytest.approx(two, rel=1e-10)
    assert three_loops(factors).sum() == pytest.approx(three, rel=1e-10)


def complete(factors):
    """The term of four factors with edges between all pairs, as a sum over the four factors."""
    third, lines = factors.third, factors.correlation - np.diag(factors.correlation.diagonal())
    legs = np.einsum("sv,tv,uv,v->stu", lines, lines, lines, third, optimize=True)
    return np.einsum("st,su,tu,s,t,u,stu->", lines, lines, lines, third, third, third, legs, optimize=True) / 24.0


def test_few_eigenvectors_give_the_term_of_four_factors():
    problem = random_problem(1, 30, 3, variance=30.0)
    factors = TIGHT.tilted_factors(TIGHT.solve(problem.K, problem.m, problem.y))
    assert three_loops(factors)[3] == pytest.approx(complete(factors), rel=0.05)


def test_term_of_four_factors_is_exact_if_arpack_fails(monkeypatch):
    """ARPACK may fail for equal rows, whose eigenvalues are equal."""

    def fail(matrix, **options):
        raise ArpackError(3)

    monkeypatch.setattr("pymc_gpep.checks.corrected_evidence.eigsh", fail)
    factors = random_factors(60)
    assert three_loops(factors)[3] == pytest.approx(complete(factors), rel=1e-8)


@pytest.mark.parametrize("c", [2, 3, 4])
def test_tilted_factors_match_flat_ep_and_sums_over_a_grid(c):
    """Correlations come from dense algebra, and cumulants from sums over a grid."""
    problem = random_problem(3, 6, c, variance=10.0, per_class=True, with_mean=True)
    factors = TIGHT.tilted_factors(TIGHT.solve(problem.K, problem.m, problem.y))
    flat, model = flat_ep(problem.K, problem.y, problem.m, c=c), flat_model(problem.K, problem.y, problem.m, c=c)
    alpha, beta = flat.alpha.ravel(), flat.beta.ravel()
    mean, cov, _ = gaussian(model, alpha, beta)
    mean, cov = model.functionals @ mean, model.functionals @ cov @ model.functionals.T
    sd = np.sqrt(cov.diagonal())
    assert factors.evidence == pytest.approx(flat.evidence, abs=1e-8)
    assert_allclose(factors.correlation, cov / np.outer(sd, sd), atol=1e-7)
    x = np.linspace(-12.0, 12.0, 4001)
    g = mean + sd * x[:, None]
    weight = np.exp(-0.5 * x[:, None] ** 2 - beta * g + 0.5 * alpha * g**2 + log_ndtr(g))
    weight /= weight.sum(axis=0)
    third, fourth = (x**3 @ weight, x**4 @ weight - 3.0)
    assert_allclose(x @ weight, 0.0, atol=1e-6)
    assert_allclose(x**2 @ weight, 1.0, atol=1e-6)
    assert_allclose(factors.third, third, atol=1e-5)
    assert_allclose(factors.fourth, fourth, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "c", "seed", "per_class"),
    [(4, 2, 0, True), (4, 2, 1, False), (3, 3, 0, False), (3, 3, 1, True), (2, 4, 0, True)],
)
def test_correction_reduces_the_error_of_the_evidence(seed, n, c, per_class):
    problem = random_problem(seed, n, c, variance=8.0, per_class=per_class, with_mean=True)
    solution = TIGHT.solve(problem.K, problem.m, problem.y)
    result = corrected_evidence(TIGHT, solution)
    exact = orthant_evidence(problem.K, problem.y, problem.m, c=c)
    assert result.evidence == solution.evidence + result.correction
    assert abs(result.evidence - exact) < 0.35 * abs(solution.evidence - exact) + 1e-4
    assert abs(result.evidence - exact) < result.error + 2e-3
    assert result.reliable


@pytest.mark.parametrize("method", [IEP(), QIEP(), QEP(), QEP(full=True)], ids=lambda method: method.name)
def test_all_variants_of_ep_have_equal_corrected_evidence(method):
    problem = random_problem(2, 8, 3, variance=5.0)
    solution = method.solve(problem.K, problem.m, problem.y)
    expected = corrected_evidence(TIGHT, TIGHT.solve(problem.K, problem.m, problem.y))
    result = corrected_evidence(method, solution)
    assert result.evidence == pytest.approx(expected.evidence, abs=1e-6)
    assert result.correction == result.evidence - solution.evidence


@pytest.mark.parametrize(
    "likelihood",
    [one for one in LIKELIHOODS if EP.approximates(one) and not one.has_parameters],
    ids=lambda one: one.name,
)
def test_correction_of_one_latent_function_matches_quadrature(likelihood):
    """The trapezoid rule in whitened coordinates is the reference."""
    problem = random_problem(4, 3, 2, variance=8.0)
    mean, method = np.array([[0.4, -0.3, 0.1]]), EP(tolerance=1e-11)
    solution = method.solve(problem.K, mean, problem.y, likelihood=likelihood)
    result = corrected_evidence(method, solution)
    axis = np.linspace(-8.0, 8.0, 65)
    z = np.stack(np.meshgrid(axis, axis, axis), axis=-1).reshape(-1, 3)
    f = mean + z @ np.linalg.cholesky(problem.K).T
    log_p = likelihood.log_density(f[:, None, :], problem.y)
    exact = np.log((np.exp(log_p - 0.5 * (z**2).sum(axis=1))).sum()) + 3.0 * np.log((axis[1] - axis[0]) / _ROOT_2PI)
    assert abs(result.evidence - exact) < 0.35 * abs(solution.evidence - exact)
    assert abs(result.evidence - exact) < result.error + 2e-3


def test_correction_of_two_classes_equals_one_latent_function():
    problem = random_problem(5, 12, 2, variance=20.0, per_class=True, with_mean=True)
    method, likelihood = EP(tolerance=1e-11), ProbitLikelihood()
    mean = (problem.m[1:] - problem.m[:1]) / np.sqrt(2.0)
    one = corrected_evidence(method, method.solve(problem.K.mean(axis=0), mean, problem.y, likelihood=likelihood))
    two = corrected_evidence(TIGHT, TIGHT.solve(problem.K, problem.m, problem.y))
    assert one.evidence == pytest.approx(two.evidence, abs=1e-8)
    assert one.error == pytest.approx(two.error, rel=1e-5)


CORRECTED = (NestedEP, IEP, QIEP, QEP, EP)


@pytest.mark.parametrize("case", [each for each in EVERY if not isinstance(each.approximator, CORRECTED)], ids=str)
def test_methods_other_than_ep_raise_type_error(case):
    with pytest.raises(TypeError, match=f"evidence of {case.approximator.name} (for a softmax )?has no correction"):
        corrected_evidence(case.approximator, TIGHT.solve(np.eye(2), np.zeros((2, 2)), np.array([0, 1])))


@pytest.mark.parametrize("variance", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("copies", [2, 5, 30])
def test_error_estimate_covers_the_error_for_copies_of_a_point(copies, variance):
    """All labels of one latent value agree, so that the terms of higher order add up."""
    y = np.zeros(copies, dtype=np.int64)
    solution = TIGHT.solve(np.full((copies, copies), variance) + 1e-8 * np.eye(copies), np.zeros((2, copies)), y)
    result = corrected_evidence(TIGHT, solution)
    x = np.linspace(-9.0, 9.0, 100_001)  # over this range the integrand is smooth, and 0 at both ends
    exact = np.log((x[1] - x[0]) * (norm.pdf(x) * np.exp(copies * log_ndtr(x * np.sqrt(variance)))).sum())
    assert abs(result.evidence - exact) < result.error
    assert result.reliable == (result.error <= 0.1)
    assert result.reliable == (variance == 1.0 or copies == 2)


def test_correction_without_convergence_is_unreliable():
    problem = random_problem(2, 8, 3, variance=5.0)
    solution = NestedEP(max_iterations=2).solve(problem.K, problem.m, problem.y)
    result = corrected_evidence(NestedEP(), solution)
    assert not result.reliable
    assert "did not converge" in str(result)
    nothing = replace(solution, mean=np.full((3, 8), np.nan), evidence=np.nan)
    assert np.isnan(corrected_evidence(NestedEP(), nothing).evidence)


def test_correction_of_a_fit_equals_correction_of_its_solution(shared):
    result = shared.fit.corrected_evidence()
    assert result.evidence == shared.fit.log_evidence + result.correction
    assert 0 < result.correction < 1
    assert f"{result.evidence:.3f} ±" in str(result)
    with pytest.raises(ValueError, match="matrices of about 90 rows"):
        shared.fit.corrected_evidence(max_size=89)
