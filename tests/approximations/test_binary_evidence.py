"""Evidence of binary classifiers: published values, exact cases, and inequalities between methods."""

from math import lgamma

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import dblquad
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from pymc_gpep.approximations import Laplace as LaplaceSoftmax
from pymc_gpep.approximations import LaplaceProbit, NestedEP, VariationalBayes
from tests.approximations.binary import KINDS, METHODS, BinaryProblem, random_binary, regimes
from tests.reference.binary_ep import binary_ep
from tests.reference.data import random_problem, squared_exponential

PROBIT, LOGIT = KINDS
kinds = pytest.mark.parametrize("kind", KINDS, ids=str)


def solve(method, problem, kind, **options):
    solution = METHODS[method](**options).solve(*problem, likelihood=kind.likelihood)
    assert solution.convergence.converged, str(solution.convergence)
    return solution


# Computed by dense versions of the methods for nine regimes. "exact" is a bivariate orthant probability, or a trapezoid
# rule of 1501² nodes.
COLUMNS = ("exact", "laplace", "ep", "kl", "vb", "jensen_vb", "fv")
FIGURES = {
    "probit": """
        −1.397464 −1.694999 −1.397464 −1.567759 −3.285514 −2.517912 −1.397490
        −1.854826 −2.085767 −1.853917 −1.979201 −3.266794 −2.591908 −1.874520
        −2.795476 −2.833288 −2.791910 −2.804639 −3.196373 −2.896391 −3.053076
        −1.392142 −1.407197 −1.392142 −1.395136 −1.685662 −1.438211 −1.392219
        −1.594506 −1.605630 −1.594351 −1.596279 −1.823620 −1.625836 −1.696022
        −1.777268 −1.782842 −1.776629 −1.777413 −1.927623 −1.797614 −2.875896
        −1.386848 −1.386916 −1.386848 −1.386848 −1.404701 −1.387009 −1.387005
        −1.404024 −1.404090 −1.404024 −1.404024 −1.421424 −1.404225 −1.600579
        −1.416135 −1.416198 −1.416134 −1.416135 −1.432973 −1.416410 −2.860808
    """,
    "logit": """
        −1.396419 −1.528028 −1.396419 −1.449324 −1.869887 −1.514859 −1.396452
        −1.795093 −1.944161 −1.794534 −1.826005 −2.096814 −1.864709 −1.828808
        −2.407155 −2.518835 −2.409010 −2.412486 −2.479790 −2.420704 −2.955775
        −1.389427 −1.404487 −1.389427 −1.389582 −1.403281 −1.389840 −1.389542
        −1.491547 −1.506300 −1.491551 −1.491644 −1.501703 −1.491827 −1.641658
        −1.571123 −1.583508 −1.571176 −1.571234 −1.578906 −1.571412 −2.866336
        −1.386517 −1.386591 −1.386517 −1.386517 −1.386567 −1.386517 −1.386681
        −1.393388 −1.393462 −1.393388 −1.393388 −1.393437 −1.393388 −1.596046
        −1.398189 −1.398262 −1.398189 −1.398189 −1.398237 −1.398189 −2.860311
    """,
}


def figures(name):
    """Table (9, 7) of a likelihood, one row for each regime."""
    return np.array([float(word.replace("−", "-")) for word in FIGURES[name].split()]).reshape(9, len(COLUMNS))


@kinds
@pytest.mark.parametrize("method", ["laplace", "ep", "kl", "vb", "fv"])
def test_evidence_equals_stored_values_in_nine_regimes(kind, method):
    expected = figures(str(kind))[:, COLUMNS.index(method)]
    for problem, figure in zip(regimes(), expected, strict=True):
        assert solve(method, problem, kind).evidence == pytest.approx(figure, abs=1e-6)


@kinds
def test_bounds_equal_stored_values_in_nine_regimes(kind):
    """`lower_bound` is Jensen's bound for variational Bayes. For KL `lower_bound` is the evidence."""
    for problem, row in zip(regimes(), figures(str(kind)), strict=True):
        assert solve("vb", problem, kind, tolerance=1e-9).lower_bound == pytest.approx(
            row[COLUMNS.index("jensen_vb")], abs=1e-6
        )
        assert solve("kl", problem, kind).lower_bound == pytest.approx(row[COLUMNS.index("kl")], abs=1e-6)


@pytest.mark.parametrize(("regime", "figure"), list(enumerate([-2.883028, -2.812429, -2.893893])))
def test_label_regression_with_unit_noise_equals_stored_values(regime, figure):
    problem = list(regimes())[regime]
    assert solve("lr", problem, PROBIT, least=1.0, most=1.0).evidence == pytest.approx(figure, abs=1e-6)


def test_label_regression_finds_the_noise_of_highest_evidence():
    for problem in regimes():
        found = solve("lr", problem, PROBIT)
        noises = [0.5, 0.7, 1.0, 1.4, 2.0, float(np.exp(found.start[0])) * 1.01, float(np.exp(found.start[0])) / 1.01]
        for noise in noises:
            if 0.5 <= noise <= 2.0:
                assert solve("lr", problem, PROBIT, least=noise, most=noise).evidence < found.evidence + 1e-12
        assert found.evidence == pytest.approx(found.lower_bound, abs=1e-10)


SLACK = 1e-8


@kinds
@pytest.mark.parametrize("log_magnitude", [-1.5, 0.0, 1.5, 4.25])
@pytest.mark.parametrize("seed", range(3))
def test_lower_bounds_lie_below_the_bound_of_kl(kind, seed, log_magnitude):
    """The evidence of KL is the largest lower bound by a Gaussian. The evidence of EP is not a bound."""
    problem = random_binary(seed, 12, variance=float(np.exp(2 * log_magnitude)), jitter=1e-4)
    found = {method: solve(method, problem, kind) for method in METHODS}
    evidence = {method: solution.evidence for method, solution in found.items()}
    bound = {method: solution.lower_bound for method, solution in found.items()}
    assert evidence["vb"] <= bound["vb"] + SLACK
    assert max(bound.values()) <= bound["kl"] + SLACK
    assert evidence["kl"] == pytest.approx(bound["kl"], abs=SLACK)
    assert evidence["lr"] == pytest.approx(bound["lr"], abs=SLACK)
    assert evidence["kl"] <= evidence["ep"] + SLACK
    if kind is PROBIT:
        assert evidence["vb"] <= evidence["laplace"] + SLACK
    for solution in found.values():
        if solution is not found["fv"]:
            assert (solution.posterior.precision >= 0.0).all()
            if solution is not found["lr"]:
                assert (solution.posterior.precision <= kind.link.largest_curvature * (1 + 1e-9)).all()
    # The variances of EP's cavities lie between the prior variance given all other latent values, and the prior
    # variance.
    _, cavity = found["ep"].posterior.cavities(found["ep"].mean, found["ep"].cov)
    conditional = 1.0 / np.linalg.inv(problem.k).diagonal()
    assert (conditional <= cavity[:, 0, 0] * (1 + 1e-6)).all()
    assert (cavity[:, 0, 0] <= problem.k.diagonal() * (1 + 1e-9)).all()


# Exact cases


@kinds
@pytest.mark.parametrize("method", ["ep", "fv", "tap_naive"])
def test_methods_are_exact_for_independent_points(kind, method):
    rng = np.random.default_rng(0)
    problem = BinaryProblem(np.diag(rng.gamma(1.0, 5.0, 6)), rng.normal(size=(1, 6)), np.array([0, 1, 0, 1, 1, 0]))
    solution = solve(method, problem, kind)
    expected = np.array(
        [kind.link.moments(*each) for each in zip(problem.signs, problem.mean[0], problem.k.diagonal(), strict=True)]
    ).T
    assert solution.evidence == pytest.approx(expected[0].sum(), abs=1e-10)
    assert_allclose(solution.mean[0], expected[1], atol=1e-8)
    assert_allclose(solution.cov[:, 0, 0], expected[2], atol=1e-7)
    assert solve("kl", problem, kind).evidence < solution.evidence
    centred = problem._replace(mean=np.zeros((1, 6)))
    assert solve(method, centred, kind).evidence == pytest.approx(-6 * np.log(2), abs=1e-10)


@kinds
@pytest.mark.parametrize("method", [method for method in METHODS if method != "fv"])
def test_zero_prior_variance_returns_the_likelihood_at_the_mean(kind, method):
    problem = BinaryProblem(np.zeros((5, 5)), np.zeros((1, 5)), np.array([0, 1, 1, 0, 1]))
    solution = solve(method, problem, kind)
    assert solution.evidence == pytest.approx(-5 * np.log(2), abs=1e-10)
    assert not solution.mean.any()
    assert not solution.cov.any()


@pytest.mark.parametrize(
    ("positive", "negative", "ep", "kl", "laplace"),
    [
        (1, 1, -1.791072, -1.791784, -1.796897),
        (3, 2, -4.094180, -4.094487, -4.098586),
        (10, 5, -10.780141, -10.780211, -10.782451),
        (3, 0, -1.389951, -1.391703, -1.400699),
    ],
)
def test_evidence_of_copies_of_a_point_is_close_to_its_closed_form(positive, negative, ep, kl, laplace):
    """K = 11ᵀ is singular. With n₊ and n₋ labels of one f ~ N(0, 1), the probit evidence is n₊! n₋! / (n + 1)!."""
    n = positive + negative
    problem = BinaryProblem(np.ones((n, n)), np.zeros((1, n)), np.repeat([1, 0], [positive, negative]))
    exact = lgamma(positive + 1) + lgamma(negative + 1) - lgamma(n + 2)
    for method, figure in {"ep": ep, "kl": kl, "laplace": laplace}.items():
        solution = solve(method, problem, PROBIT)
        assert solution.evidence == pytest.approx(figure, abs=1e-6)
        assert solution.evidence == pytest.approx(exact, abs=0.015)
        assert_allclose(solution.mean, solution.mean[0, 0], atol=1e-8)
    fv = METHODS["fv"]().solve(*problem, likelihood=PROBIT.likelihood)
    assert not fv.convergence.converged
    assert np.isnan(fv.evidence)
    assert "singular prior covariance" in str(fv.convergence)


EP_BIAS = (-0.0029, -0.0283, -0.0043, -0.0341)
"""Bias of EP's log evidence in the problems of `test_ep_evidence_is_close_to_orthant_probabilities`."""


@pytest.mark.parametrize("seed", range(4))
def test_ep_evidence_is_close_to_orthant_probabilities(seed):
    """The evidence of a probit is the probability of an orthant under N(m, K + I)."""
    problem = random_binary(seed, 10, variance=4.0)
    sign = problem.signs
    covariance = np.outer(sign, sign) * (problem.k + np.eye(10))
    p = multivariate_normal(-sign * problem.mean[0], covariance).cdf(np.zeros(10), rng=np.random.default_rng(seed))
    dense = binary_ep(problem.k, sign, problem.mean[0])
    found = solve("ep", problem, PROBIT, tolerance=1e-9)
    assert found.evidence == pytest.approx(dense.evidence, abs=1e-8)
    assert_allclose(found.mean[0], dense.mean, atol=1e-7)
    # The bias of EP's fixed point, computed by dense algebra.
    assert dense.evidence - np.log(p) == pytest.approx(EP_BIAS[seed], abs=3e-4)
    for method in ("kl", "vb", "fv", "lr"):
        assert solve(method, problem, PROBIT).evidence < np.log(p) + 1e-3


@kinds
def test_evidence_of_two_points_matches_quadrature(kind):
    k = np.array([[3.0, 1.0], [1.0, 2.0]])
    problem = BinaryProblem(k, np.array([[0.5, -1.0]]), np.array([1, 1]))
    inverse, scale = np.linalg.inv(k), 2.0 * np.pi * np.sqrt(np.linalg.det(k))

    def density(b, a):
        shift = np.array([a, b]) - problem.mean[0]
        return np.exp(kind.link.log_sig(np.array([a, b])).sum() - 0.5 * shift @ inverse @ shift) / scale

    exact = dblquad(density, -12, 14, -12, 12, epsabs=1e-8)[0]
    assert solve("ep", problem, kind).evidence == pytest.approx(np.log(exact), abs=2e-3)
    for method in ("kl", "vb", "fv", "lr"):
        assert solve(method, problem, kind).evidence < np.log(exact)


def test_sites_of_two_strongly_correlated_points_equal_published_values():
    """Nickisch and Rasmussen (2008, footnote 2). By exact moments, precisions would be 0.1416, coupled by −0.0168."""
    problem = BinaryProblem(np.array([[7.0, 6.0], [6.0, 7.0]]), np.zeros((1, 2)), np.ones(2, np.int64))
    solution = solve("ep", problem, PROBIT, tolerance=1e-11)
    assert_allclose(solution.posterior.precision, 0.138336580, atol=1e-8)
    assert_allclose(solution.mean, 2.375753917, atol=1e-8)
    assert solution.evidence == pytest.approx(-0.964916614, abs=1e-8)


# Equivalent models


@pytest.mark.parametrize("per_class", [False, True])
def test_probit_matches_multinomial_probit_of_two_classes(per_class):
    """The function is (f₁ − f₀) / √2. Its covariance is the mean of both covariances."""
    problem = random_problem(4, 14, 2, variance=5.0, per_class=per_class, with_mean=True)
    k = problem.K.mean(0) if per_class else problem.K
    binary = BinaryProblem(k, (problem.m[1:] - problem.m[:1]) / np.sqrt(2.0), problem.y)
    for method, multinomial, less in (
        ("ep", NestedEP(tolerance=1e-10), 0.0),
        ("laplace", LaplaceProbit(tolerance=1e-12), 0.0),
        ("vb", VariationalBayes(tolerance=1e-11), 0.5 * np.linalg.slogdet(np.eye(14) + k)[1]),
    ):
        if less and per_class:
            continue  # for different covariances this approximation does not factorise over one function
        several = multinomial.solve(*problem[1:])
        one = solve(method, binary, PROBIT, tolerance=1e-10)
        assert several.evidence == pytest.approx(one.evidence - less, abs=1e-8)
        assert_allclose((several.mean[1] - several.mean[0]) / np.sqrt(2.0), one.mean[0], atol=1e-8)
        if not less:
            across = np.array([-1.0, 1.0]) / np.sqrt(2.0)
            assert_allclose(np.einsum("iab,a,b->i", several.cov, across, across), one.cov[:, 0, 0], atol=1e-8)


def test_logit_matches_softmax_of_two_classes():
    """The function is f₁ − f₀. Its covariance is the sum of both covariances."""
    problem = random_problem(4, 14, 2, variance=5.0, per_class=True, with_mean=True)
    binary = BinaryProblem(problem.K.sum(0), problem.m[1:] - problem.m[:1], problem.y)
    several = LaplaceSoftmax(tolerance=1e-12).solve(*problem[1:])
    one = solve("laplace", binary, LOGIT, tolerance=1e-12)
    assert several.evidence == pytest.approx(one.evidence, abs=1e-8)
    assert_allclose(several.mean[1] - several.mean[0], one.mean[0], atol=1e-8)


@pytest.mark.parametrize("seed", range(2))
def test_variational_bayes_of_a_probit_has_the_mode_of_laplace_and_unit_precisions(seed):
    problem = random_binary(seed, 12, variance=30.0)
    vb, laplace = (solve(method, problem, PROBIT, tolerance=1e-10) for method in ("vb", "laplace"))
    assert_allclose(vb.mean, laplace.mean, atol=1e-7)
    assert_allclose(vb.posterior.precision, 1.0, atol=1e-12)


def test_laplace_matches_scikit_learn():
    """scikit-learn's gradient is with respect to log σ² and log ℓ."""
    rng = np.random.default_rng(1)
    X = rng.uniform(0.0, 5.0, size=(50, 1))
    y = (np.sin((X[:, 0] - 2.5) ** 2) > 0).astype(np.int64)
    theta = np.log([2.0, 1.3])
    other = GaussianProcessClassifier(ConstantKernel(2.0) * RBF(1.3), optimizer=None, max_iter_predict=500).fit(X, y)
    value, slope = other.log_marginal_likelihood(theta, eval_gradient=True)
    k = squared_exponential(X, variance=2.0, lengthscale=1.3)
    scaled = ((X - X.T) / 1.3) ** 2
    solver = METHODS["laplace"](tolerance=1e-12)
    outcome = solver.run(k[None], np.zeros((1, 50)), y, np.zeros(50), gradient=True, likelihood=LOGIT.likelihood)
    assert outcome.evidence == pytest.approx(value, abs=1e-8)
    assert_allclose([(outcome.gradient[0] * k).sum(), (outcome.gradient[0] * k * scaled).sum()], slope, atol=1e-6)
