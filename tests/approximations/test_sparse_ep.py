"""EP with inducing inputs, on arrays: against the dense form of the paper, dense EP, and differences."""

from itertools import cycle

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import EP, SparseEP
from pymc_gpep.approximations.sparse_ep import InducedArrays
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.likelihoods.bernoulli import LogitLikelihood, ProbitLikelihood
from pymc_gpep.likelihoods.label_noise import NoisyMultinomialProbitLikelihood, RobustMaxLikelihood
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.rivals.class_independent_ep import QIEP
from pymc_gpep.solvers import inducing as inducing_module
from pymc_gpep.solvers import sparse_sweeps as sparse_contract_module
from pymc_gpep.solvers import whitened_posterior as coupled_whitened_module
from pymc_gpep.solvers.team import Team
from tests.approximations.sparse import random_sparse, solved
from tests.reference.data import random_problem
from tests.reference.sparse_ep import sparse_ep
from tests.reference.stored import stored

EXACT = {"sites": "quadrature", "tolerance": 1e-11, "jitter": 1e-14}
both_sites = pytest.mark.parametrize("sites", ["quadrature", "pairwise"])
SITES_IN_TURN = [("quadrature", True), ("pairwise", False), ("nested", True)]
"""Site rules, each with one covariance for all classes or with a covariance for each class."""
whose = pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])


def exact(problem, likelihood=None, **options):
    """The solution, and the derivatives with respect to all moments."""
    solution, slope, bars = solved(SparseEP(**EXACT | options), problem.prior, problem.y, likelihood)
    return solution, (slope, *bars[:3])


@stored
def papers_numbers(sites, own):
    """Evidence, mean (3, 3) and covariance (3, 3, 3) of the inducing values, flattened and concatenated."""
    problem = random_sparse(1, 6, 3, 3, own=own)
    moments = [np.broadcast_to(each, (3, *each.shape[1:])) for each in problem.moments[:3]]
    found = sparse_ep(*moments, problem.mean, problem.y, sites)
    assert found.change < 1e-10
    return np.concatenate([[found.evidence], np.ravel(found.mean), np.ravel(found.cov)])


@both_sites
@whose
def test_sparse_ep_equals_the_algorithm_of_the_paper(sites, own):
    solution, _ = exact(random_sparse(1, 6, 3, 3, own=own), sites=sites)
    evidence, *others = papers_numbers(sites, own)
    assert_allclose(solution.evidence, evidence, rtol=1e-9)
    assert_allclose(solution.posterior.inducing_mean, np.reshape(others[:9], (3, 3)), atol=1e-8)
    factor, root = solution.posterior.whitening.factor, solution.posterior.whitened.root
    half = root @ np.broadcast_to(factor, root.shape).swapaxes(1, 2)
    assert_allclose(half.swapaxes(1, 2) @ half, np.reshape(others[9:], (3, 3, 3)), atol=1e-8)


@pytest.mark.parametrize(
    ("likelihood", "c", "dense"),
    [(MultinomialProbitLikelihood(), 3, QIEP), (ProbitLikelihood(), 1, EP), (LogitLikelihood(), 1, EP)],
    ids=lambda each: getattr(each, "name", None),
)
@whose
def test_sparse_ep_equals_dense_ep_of_the_sparse_prior(likelihood, c, dense, own):
    problem = random_sparse(2, 20, c, 5, own=own, classes=max(c, 2))
    solution, _ = exact(problem, likelihood)
    expected = dense(tolerance=1e-11).solve(problem.fitc(), problem.mean, problem.y, likelihood=likelihood)
    assert_allclose(solution.evidence, expected.evidence, rtol=1e-9)
    new = np.random.default_rng(3).normal(size=(4, 2))
    own_moments = problem._replace(x=new, mean=np.zeros((c, 4)))
    mean, cov = solution.posterior.predict(own_moments.prior.block(slice(None)))
    dense_mean, dense_cov = expected.posterior.predict(
        np.ascontiguousarray(problem.fitc(new)), own_moments.moments[2], np.zeros((c, 4))
    )
    assert_allclose(mean, dense_mean, atol=1e-7)
    assert_allclose(cov, dense_cov, atol=1e-7)


@pytest.mark.parametrize("per_class", [False, True])
def test_sparse_ep_with_all_points_as_inducing_inputs_equals_qiep(per_class):
    problem = random_problem(4, 20, 3, per_class=per_class)
    k, mean = DensePrior.checked(problem.K, problem.m).k, problem.m
    prior = InducedArrays(k, k, k.diagonal(axis1=1, axis2=2), mean)
    solution, slope, bars = solved(SparseEP(**EXACT), prior, problem.y)
    qiep = QIEP(tolerance=1e-11)
    dense = qiep.run(k, mean, problem.y, np.zeros(qiep.start_size(3, 20)), True)
    every = np.arange(20)
    total = slope + 0.5 * (bars.cross + bars.cross.swapaxes(1, 2))
    total[:, every, every] += bars.variance
    assert_allclose(solution.evidence, dense.evidence, rtol=1e-10)
    assert_allclose(solution.posterior.predict(prior.block(slice(None)))[0], dense.mean, atol=1e-8)
    assert_allclose(total, dense.gradient, atol=1e-5)
    assert_allclose(bars.mean, dense.weights, atol=1e-8)


@pytest.mark.parametrize(("sites", "own"), SITES_IN_TURN)
def test_derivatives_match_differences_of_the_evidence(sites, own):
    problem = random_sparse(5, 15, 3, 4, own=own)
    _, slopes = exact(problem, sites=sites)
    step = 1e-5
    for name in ("z", "log_scales", "mean"):
        values = getattr(problem, name)
        for place in list(np.ndindex(values.shape))[:: max(1, values.size // 3)]:
            ends = []
            for sign in (1, -1):
                moved = values.copy()
                moved[place] += sign * step
                there = problem._replace(**{name: moved})
                ends.append((exact(there, sites=sites)[0].evidence, there.moments))
            (up, moments_up), (down, moments_down) = ends
            expected = sum(
                float((slope * (a - b)).sum()) for slope, a, b in zip(slopes, moments_up, moments_down, strict=True)
            )
            assert_allclose(up - down, expected, rtol=1e-5, atol=1e-9)


def with_unit_noise(problem):
    """The problem with unit noise added to the prior variances."""
    inducing, cross, variance, mean = problem.moments
    return InducedArrays(inducing, cross, variance + 1.0, mean)


@both_sites
@whose
@pytest.mark.parametrize("epsilon", [0.0, 0.05])
def test_step_likelihood_of_utilities_with_unit_noise_equals_the_probit(sites, own, epsilon):
    """Unit noise of the utilities can be part of the likelihood or of the prior."""
    problem = random_sparse(14, 25, 3, 5, own=own)
    noise = np.full((1, 25), epsilon)
    step = SparseEP(**EXACT | {"sites": sites}).solve(
        with_unit_noise(problem), problem.y, likelihood=RobustMaxLikelihood().given(noise)
    )
    noisy = NoisyMultinomialProbitLikelihood().given(noise)
    probit = noisy if epsilon and sites == "quadrature" else MultinomialProbitLikelihood()
    expected = SparseEP(**EXACT | {"sites": sites}).solve(problem.prior, problem.y, likelihood=probit)
    assert step.convergence.converged
    assert_allclose(step.evidence, expected.evidence, rtol=1e-10)
    assert_allclose(step.posterior.inducing_mean, expected.posterior.inducing_mean, atol=1e-8)
    assert step.floored == expected.floored


def outliers(problem):
    """Every fifth label is wrong and functions are large, so that some sites have negative precisions."""
    x = problem.x
    y = np.where(x[:, 0] > 0, 0, np.where(x[:, 1] > 0, 1, 2))
    return problem._replace(x=x, y=np.where(np.arange(len(y)) % 5 == 0, (y + 1) % 3, y), mean=0.0 * problem.mean)


@pytest.mark.variation(but=["noisy_multinomial_probit"])
@pytest.mark.parametrize(
    "likelihood", [NoisyMultinomialProbitLikelihood(), RobustMaxLikelihood()], ids=lambda x: x.name
)
def test_derivatives_with_label_noise_match_differences_of_the_evidence(likelihood):
    problem = outliers(random_sparse(5, 40, 3, 6))
    problem = problem._replace(log_scales=np.log([[9.0, 2.0]]))
    likelihood = likelihood.given(np.full((1, 40), 0.1))
    solution, slopes = exact(problem, likelihood)
    assert solution.floored == 0
    assert (solution.start.reshape(2, -1)[0] < -0.01).any()
    step = 1e-5
    for name, place in (("z", (0, 1, 0)), ("log_scales", (0, 0)), ("log_scales", (0, 1)), ("mean", (1, 3))):
        ends = []
        for sign in (1, -1):
            moved = getattr(problem, name).copy()
            moved[place] += sign * step
            there = problem._replace(**{name: moved})
            ends.append((exact(there, likelihood)[0].evidence, there.moments))
        (up, moments_up), (down, moments_down) = ends
        expected = sum(
            float((slope * (a - b)).sum()) for slope, a, b in zip(slopes, moments_up, moments_down, strict=True)
        )
        assert_allclose(up - down, expected, rtol=1e-5, atol=1e-9)


def test_sites_match_the_mean_if_negative_precisions_fail(monkeypatch):
    problem = outliers(random_sparse(5, 40, 3, 6))._replace(log_scales=np.log([[9.0, 2.0]]))
    likelihood = NoisyMultinomialProbitLikelihood().given(np.full((1, 40), 0.1))
    exact = SparseEP().solve(problem.prior, problem.y, likelihood=likelihood)
    monkeypatch.setattr("pymc_gpep.approximations.sparse_ep.PATIENCE", 0)
    floored = SparseEP().solve(problem.prior, problem.y, likelihood=likelihood)
    assert floored.convergence.converged
    assert floored.floored > 0
    assert (floored.start.reshape(2, -1)[0] >= 0.0).all()
    assert_allclose(floored.evidence, exact.evidence, atol=0.5)


@pytest.mark.parametrize(("variance", "epsilon"), [(1.0, 1e-3), (25.0, 0.02), (25.0, 0.5)])
def test_sparse_ep_with_label_noise_converges(variance, epsilon):
    problem = outliers(random_sparse(3, 60, 3, 10))._replace(log_scales=np.log([[variance, 1.5]]))
    for likelihood in (RobustMaxLikelihood(), NoisyMultinomialProbitLikelihood()):
        given = likelihood.given(np.full((1, 60), epsilon))
        solution = SparseEP().solve(problem.prior, problem.y, likelihood=given)
        assert solution.convergence.converged
        again = SparseEP().solve(problem.prior, problem.y, solution.start, likelihood=given)
        assert_allclose(again.evidence, solution.evidence, atol=1e-4)
        assert again.convergence.iterations < (60 if solution.floored else 5)


@pytest.mark.parametrize("sites", ["quadrature", "nested"])
@whose
def test_blocks_and_threads_do_not_change_results(sites, own, monkeypatch):
    problem = random_sparse(6, 23, 3, 4, own=own)
    whole, slopes = exact(problem, sites=sites)
    monkeypatch.setattr(inducing_module, "_ENTRIES", 120)
    monkeypatch.setattr(inducing_module, "_KEPT", 0)
    monkeypatch.setattr(sparse_contract_module, "_PART", 3)
    monkeypatch.setattr(sparse_contract_module, "_PARTS", 2)
    monkeypatch.setattr(coupled_whitened_module, "_ENTRIES", 80)
    monkeypatch.setattr("pymc_gpep.approximations.sparse_ep.gather", lambda n: Team(2))
    solution, in_blocks = exact(problem, sites=sites)
    assert_allclose(solution.evidence, whole.evidence, rtol=1e-12)
    for a, b in zip(in_blocks, slopes, strict=True):
        assert_allclose(a, b, atol=1e-8)


@pytest.mark.parametrize(("sites", "own"), SITES_IN_TURN)
def test_common_shift_of_all_classes_converges_in_few_sweeps(sites, own):
    """Without a step for the common shift, EP takes hundreds of sweeps, and more for larger prior variances."""
    problem = random_sparse(7, 300, 3, 12, own=own)
    large = problem._replace(log_scales=problem.log_scales * [0.0, 1.0] + [np.log(3e3), 0.0])
    solution = SparseEP(sites=sites).solve(large.prior, large.y)
    assert solution.convergence.converged
    assert solution.convergence.iterations < 40


def test_warm_start_saves_iterations():
    problem = random_sparse(8, 40, 3, 6)
    solution = SparseEP(sites="quadrature").solve(problem.prior, problem.y)
    near = problem._replace(log_scales=problem.log_scales + 1e-3)
    again = SparseEP(sites="quadrature").solve(near.prior, near.y, solution.start)
    assert again.convergence.iterations < solution.convergence.iterations
    with pytest.raises(ValueError, match="start must be 240 finite numbers"):
        SparseEP(sites="quadrature").solve(near.prior, near.y, solution.start[1:])


DEGENERATE = {
    "inducing inputs that coincide": lambda p: p._replace(z=np.repeat(p.z[:, :1], 6, axis=1)),
    "inducing inputs far away": lambda p: p._replace(z=p.z + 1e3),
    "one inducing input": lambda p: p._replace(z=p.z[:, :1]),
    "more inducing inputs than points": lambda p: p._replace(z=np.random.default_rng(0).normal(size=(1, 50, 2))),
    "an absent class": lambda p: p._replace(y=np.minimum(p.y, 1)),
    "two classes": lambda p: p._replace(mean=p.mean[:2], y=p.y % 2),
    "a constant column": lambda p: p._replace(x=p.x * [1.0, 0.0], z=p.z * [1.0, 0.0]),
    "points that coincide": lambda p: p._replace(x=np.zeros_like(p.x)),
    "a tiny magnitude": lambda p: p._replace(log_scales=np.log([[1e-8, 1.0]])),
    "a long scale": lambda p: p._replace(log_scales=np.log([[3.0, 1e6]])),
    "a short scale": lambda p: p._replace(log_scales=np.log([[3.0, 1e-3]])),
}


@pytest.mark.parametrize(
    ("sites", "change"), list(zip(cycle(["quadrature", "pairwise", "nested"]), DEGENERATE, strict=False))
)
def test_degenerate_problems_are_solved(sites, change):
    problem = DEGENERATE[change](random_sparse(9, 30, 3, 6))
    solution, slope, bars = solved(SparseEP(sites=sites), problem.prior, problem.y)
    assert all(np.isfinite(each).all() for each in (slope, *bars))
    mean, cov = solution.posterior.predict(problem.prior.block(slice(None)))
    assert np.isfinite(mean).all()
    assert (np.linalg.eigvalsh(cov) > 0.0).all()


def test_indefinite_covariance_returns_a_status():
    problem = random_sparse(10, 10, 3, 4)
    inducing, *others = problem.moments
    inducing[0, 0, 0] = -5.0
    solution = SparseEP().solve(InducedArrays(inducing, *others), problem.y)
    assert np.isnan(solution.evidence)
    assert solution.posterior is None
    assert "not symmetric and positive semi-definite" in str(solution.convergence)


def test_convergence_text_reports_too_few_iterations():
    problem = random_sparse(11, 20, 3, 4)
    solution = SparseEP(max_iterations=2).solve(problem.prior, problem.y)
    assert not solution.convergence.converged
    assert "ran out of iterations" in str(solution.convergence)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: (m[0][:, 1:], *m[1:]), r"inducing must have the shape \(1, 4, 4\)"),
        (lambda m: (np.repeat(m[0], 2, axis=0), *m[1:]), "inducing must have 1 or 3 matrices, but has 2"),
        (lambda m: (m[0], m[1][..., 1:], *m[2:]), r"cross must have the shape \(1, 4, 10\)"),
        (lambda m: (*m[:2], m[2][:, 1:], m[3]), r"variance must have the shape \(1, 10\)"),
        (lambda m: (*m[:3], m[3][None]), "mean must be"),
        (lambda m: (m[0] * np.nan, *m[1:]), "inducing must be finite, but has 16 values"),
        (lambda m: (m[0], m[1], -m[2], m[3]), "variance must not be negative, but .* of its values are"),
        (lambda m: (*m[:3], m[3] * np.inf), "mean must be finite"),
    ],
)
def test_arrays_of_inconsistent_shapes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        InducedArrays(*change(random_sparse(12, 10, 3, 4).moments))


@pytest.mark.parametrize(
    ("name", "meant"), [("coupled", "nested"), ("independent", "quadrature"), ("pairwize", "pairwise")]
)
def test_misspelt_name_of_sites_gets_a_suggestion(name, meant):
    with pytest.raises(ValueError, match=rf"but is '{name}'\. Did you mean '{meant}'\?$"):
        SparseEP(sites=name)


def test_invalid_options_raise_value_error():
    with pytest.raises(ValueError, match=r"sites must be one of 'nested', 'quadrature', 'pairwise', but is 'none'\.$"):
        SparseEP(sites="none")
    with pytest.raises(ValueError, match="jitter must be positive"):
        SparseEP(jitter=0.0)
    problem = random_sparse(13, 6, 1, 2, classes=2)
    with pytest.raises(ValueError, match=r"sites is 'pairwise', but .* a probit likelihood .* supports 'quadrature'"):
        SparseEP(sites="pairwise").solve(problem.prior, problem.y, likelihood=ProbitLikelihood())
