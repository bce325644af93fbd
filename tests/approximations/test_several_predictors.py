"""EP and KL of rows with several linear predictors, against quadrature on fine grids."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import special, stats
from scipy.special import logsumexp

from pymc_gpep.approximations.several_predictors import EPPredictors, KLPredictors
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.likelihoods.factor_averages import normal_rule
from pymc_gpep.likelihoods.tilted_rows import TiltedRows
from pymc_gpep.univariate.predictors import SEVERAL_PREDICTORS

LOG_DENSITIES = {
    "normal": lambda y, f, g: stats.norm.logpdf(y, f, np.exp(g)),
    "student": lambda y, f, g: stats.t.logpdf(y, 4.0, f, np.exp(g)),
    "counts": lambda y, f, g: stats.nbinom.logpmf(y, np.exp(g), 1.0 / (1.0 + np.exp(f - g))),
    "zeros": lambda y, f, g: np.logaddexp(
        np.where(y == 0, -np.logaddexp(0.0, g), -np.inf), special.log_expit(g) + stats.poisson.logpmf(y, np.exp(f))
    ),
    "share": lambda y, f, g: stats.beta.logpdf(y, special.expit(f) * np.exp(g), special.expit(-f) * np.exp(g)),
    "product": lambda y, f, g: stats.norm.logpdf(y, f * g, 0.5),
    "item": lambda y, f, g: special.log_expit((2 * y - 1) * np.exp(g) * f),
    "curve": lambda y, f, g, h: stats.norm.logpdf(y, f * special.expit(g), np.exp(h)),
    "tail": lambda y, f, g, h: stats.t.logpdf(y, 1.0 + np.exp(h), f, np.exp(g)),
}
DISTRIBUTIONS = {
    "normal": lambda f, g: pm.Normal.dist(f, pm.math.exp(g)),
    "student": lambda f, g: pm.StudentT.dist(nu=4.0, mu=f, sigma=pm.math.exp(g)),
    "counts": lambda f, g: pm.NegativeBinomial.dist(mu=pm.math.exp(f), alpha=pm.math.exp(g)),
    "zeros": lambda f, g: pm.ZeroInflatedPoisson.dist(psi=pm.math.invlogit(g), mu=pm.math.exp(f)),
    "share": lambda f, g: pm.Beta.dist(mu=pm.math.invlogit(f), nu=pm.math.exp(g)),
    "product": lambda f, g: pm.Normal.dist(f * g, 0.5),
    "item": lambda f, g: pm.Bernoulli.dist(logit_p=pm.math.exp(g) * f),
    "curve": lambda f, g, h: pm.Normal.dist(f * pm.math.invlogit(g), pm.math.exp(h)),
    "tail": lambda f, g, h: pm.StudentT.dist(nu=1.0 + pm.math.exp(h), mu=f, sigma=pm.math.exp(g)),
}
OBSERVED = {
    "normal": [0.3, 2.2, -1.0],
    "student": [0.3, 7.2, -1.0],
    "counts": [0, 3, 12],
    "zeros": [0, 0, 4],
    "share": [0.2, 0.9, 0.03],
    "product": [0.9, 2.5, -0.2],
    "item": [1, 0, 1],
    "curve": [0.9, 2.5, -0.2],
    "tail": [0.3, 5.0, -1.0],
}


def likelihood_of(name, n):
    """Return the likelihood of n rows, and the functions of the model in the order of its predictors."""
    k = 3 if name in ("curve", "tail") else 2
    with pm.Model() as model:
        functions = [pm.Normal(f"f{i}", shape=n) for i in range(k)]
        model.register_rv(DISTRIBUTIONS[name](*functions), "y", observed=np.array(OBSERVED[name][:n]))
    reading = SEVERAL_PREDICTORS.read(model["y"], set(functions))
    parameters = np.asarray(reading.parameters.eval()).reshape(-1, 1)
    return reading.likelihood.given(np.tile(parameters, n)), [int(each[1:]) for each in reading.names]


def on_grid(name, y, mean, root, *counts):
    """Return log Z, mean and covariance of p(y | f) N(f | mean, R Rᵀ) by sums over a grid."""
    k = len(mean)
    axes = [np.linspace(-7.0, 7.0, count) for count in counts]
    z = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, k)
    f = mean + z @ root.T
    log_terms = LOG_DENSITIES[name](y, *f.T) - 0.5 * (z**2).sum(axis=1)
    steps = [(axis[1] - axis[0]) / np.sqrt(2.0 * np.pi) for axis in axes]
    log_z = logsumexp(log_terms) + np.log(steps).sum()
    weights = special.softmax(log_terms)
    centre = weights @ f
    return log_z, centre, np.einsum("s,sa,sb->ab", weights, f - centre, f - centre)


PRIOR = {2: np.array([[1.0, 0.0], [0.3, 0.6]]), 3: np.array([[1.0, 0.0, 0.0], [0.3, 0.6, 0.0], [-0.1, 0.2, 0.4]])}
MEAN = np.array([0.4, -0.2, 0.1])


@pytest.mark.variation(but=["normal", "student", "zeros", "product"])
@pytest.mark.parametrize("name", LOG_DENSITIES)
def test_one_row_has_the_moments_of_its_posterior(name):
    for y in OBSERVED[name]:
        likelihood, order = likelihood_of(name, 1)
        k = len(order)
        found = EPPredictors().solve(
            PRIOR[k][order][:, None], MEAN[order][:, None], np.array([y]), likelihood=likelihood, prior_type=RowPrior
        )
        assert found.convergence.converged
        log_z, mean, cov = on_grid(name, y, MEAN[:k], PRIOR[k], *((401, 401) if k == 2 else (401, 41, 41)))
        atol = 5e-4 if name == "tail" else 2e-5
        assert_allclose(found.evidence, log_z, rtol=0.0, atol=atol)
        assert_allclose(found.mean[:, 0], mean[order], rtol=0.0, atol=2.0 * atol)
        assert_allclose(found.cov[0], cov[order][:, order], rtol=0.0, atol=4.0 * atol)


def three_rows(name):
    """Return EP's solution of three rows. Each predictor has an effect of its own, and all share one effect."""
    likelihood, order = likelihood_of(name, 3)
    k = len(order)
    roots = np.zeros((k, 3, 4 * k))
    for i in range(3):
        roots[:, i, i * k : (i + 1) * k] = 0.6 * PRIOR[k]
    for a in range(k):
        roots[a, :, 3 * k + a] = 0.5
    seen, mean = np.array(OBSERVED[name]), np.tile(MEAN[order][:, None], 3)
    solve = EPPredictors(tolerance=1e-9).solve
    return solve(roots[order], mean, seen, likelihood=likelihood, prior_type=RowPrior), np.argsort(order)


@pytest.mark.variation(but=["normal", "student"])
@pytest.mark.parametrize("name", [each for each in LOG_DENSITIES if each not in ("curve", "tail", "product")])
def test_fixed_point_has_the_moments_of_tilted_distributions(name):
    found, order = three_rows(name)
    assert found.convergence.converged
    means, covs = found.posterior.cavities(found.mean, found.cov)
    for i, y in enumerate(OBSERVED[name]):
        root = np.linalg.cholesky(covs[i][order][:, order])
        _, mean, cov = on_grid(name, y, means[i, order], root, 401, 401)
        assert_allclose(found.mean[order, i], mean, rtol=0.0, atol=1e-5)
        assert_allclose(found.cov[i][order][:, order], cov, rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("name", ["normal", "student", "tail"])
def test_sites_may_have_negative_eigenvalues(name):
    found, _ = three_rows(name)
    assert np.linalg.eigvalsh(found.posterior.precision).min() < 0.0


def test_dense_prior_and_row_prior_have_equal_posteriors():
    likelihood, _ = likelihood_of("student", 3)
    roots = np.zeros((2, 3, 6))
    roots[0, :, :3] = np.linalg.cholesky(0.6 * np.eye(3) + 0.4)
    roots[1, :, 3:] = np.linalg.cholesky(0.3 * np.eye(3) + 0.1)
    seen, mean = np.array(OBSERVED["student"]), np.tile(MEAN[:2, None], 3)
    dense = np.einsum("kiq,kjq->kij", roots, roots)
    one = EPPredictors(tolerance=1e-9).solve(dense, mean, seen, likelihood=likelihood)
    other = EPPredictors(tolerance=1e-9).solve(roots, mean, seen, likelihood=likelihood, prior_type=RowPrior)
    assert_allclose(one.evidence, other.evidence, rtol=0.0, atol=1e-8)
    assert_allclose(one.mean, other.mean, rtol=0.0, atol=1e-7)
    assert_allclose(one.cov, other.cov, rtol=0.0, atol=1e-7)


def test_quadrature_of_normal_rows_has_the_location_as_inner_predictor():
    likelihood, _ = likelihood_of("normal", 3)
    density = likelihood.density
    split = density.split(np.array(OBSERVED["normal"]), likelihood.parameters)
    assert split.normal
    assert_allclose(split.order, [1, 0])


def test_averages_of_a_funnel_match_a_grid():
    likelihood, _ = likelihood_of("normal", 3)
    at, wide = np.array([[0.0, -1.0]] * 3), np.array([[[9.0, 0.5], [0.5, 4.0]]] * 3)
    rows = TiltedRows(likelihood.density.nodes, np.array(OBSERVED["normal"]), likelihood.parameters, 2)
    root = rows.cavities(at, wide)
    rows.moments(at, root)
    rows.refine(at, root)
    found = rows.moments(at, root)
    # Given the log scale, the location is normal.
    g = np.linspace(-17.0, 15.0, 20_001)
    for i, y in enumerate(OBSERVED["normal"]):
        centre, variance = 0.5 / 4.0 * (g + 1.0), 9.0 - 0.25 / 4.0
        terms = stats.norm.logpdf(g, -1.0, 2.0) + stats.norm.logpdf(y, centre, np.sqrt(variance + np.exp(2.0 * g)))
        assert_allclose(found.log_z[i], logsumexp(terms) + np.log(g[1] - g[0]), rtol=0.0, atol=1e-6)
        weights = special.softmax(terms)
        assert_allclose(at[i, 1] + root[i, 1] @ found.mean[i], weights @ g, rtol=0.0, atol=1e-5)


def test_evidence_of_a_row_with_one_constant_predictor_is_the_average_over_the_second_predictor():
    likelihood, _ = likelihood_of("student", 1)
    roots = np.array([[[1.0]], [[0.0]]])
    found = EPPredictors().solve(roots, MEAN[:2, None], np.array([0.3]), likelihood=likelihood, prior_type=RowPrior)
    f = np.linspace(-8.0, 8.0, 4001)
    terms = stats.norm.logpdf(f, MEAN[0], 1.0) + stats.t.logpdf(0.3, 4.0, f, np.exp(MEAN[1]))
    assert_allclose(found.evidence, logsumexp(terms) + np.log(f[1] - f[0]), rtol=0.0, atol=1e-6)


def test_warm_start_keeps_the_quadrature_rules_of_rows():
    likelihood, _ = likelihood_of("zeros", 3)
    roots = np.zeros((2, 3, 4))
    roots[0, :, :2], roots[1, :, 2:] = [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], [[1.5, 0.0], [0.2, 0.3], [0.0, 0.6]]
    seen, mean, method = np.array(OBSERVED["zeros"]), np.zeros((2, 3)), EPPredictors(tolerance=1e-9)
    start = np.zeros(method.start_size(2, 3))
    cold = method.run(0.9 * roots, mean, seen, start, likelihood=likelihood, form=RowPrior)
    assert (cold.start[-3:] >= 1.0).all()
    assert cold.start[-3:].max() > 1.0
    warm = method.run(roots, mean, seen, cold.start.copy(), likelihood=likelihood, form=RowPrior)
    expected = method.run(roots, mean, seen, np.zeros(start.size), likelihood=likelihood, form=RowPrior)
    assert_allclose(warm.evidence, expected.evidence, rtol=0.0, atol=1e-6)
    assert_allclose(warm.cov, expected.cov, rtol=0.0, atol=1e-5)
    assert_allclose(warm.start[-3:], cold.start[-3:])


def test_slopes_in_parameters_match_differences():
    with pm.Model() as model:
        f, g = (pm.Normal(each, shape=3) for each in "fg")
        nu = pm.Gamma("nu", 2.0, 0.1)
        pm.StudentT("y", nu=nu, mu=f, sigma=pm.math.exp(g), observed=OBSERVED["student"])
    reading = SEVERAL_PREDICTORS.read(model["y"], {f, g})
    roots = np.zeros((2, 3, 4))
    roots[0, :, :2], roots[1, :, 2:] = [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], [[0.5, 0.0], [0.2, 0.3], [0.0, 0.6]]

    def evidence(nu, gradient=False):
        return EPPredictors(tolerance=1e-10).run(
            roots,
            np.zeros((2, 3)),
            np.array(OBSERVED["student"]),
            np.zeros(EPPredictors().start_size(2, 3)),
            gradient,
            likelihood=reading.likelihood,
            parameters=np.full((1, 3), nu),
            form=RowPrior,
        )

    found = evidence(4.0, True)
    step = 1e-4
    slope = (evidence(4.0 + step).evidence - evidence(4.0 - step).evidence) / (2.0 * step)
    assert_allclose(found.gradient_parameters.sum(), slope, rtol=1e-5)


@pytest.mark.variation(but=["student", "item"])
@pytest.mark.parametrize("name", ["normal", "student", "counts", "zeros", "share", "item"])
def test_kl_maximises_the_bound(name):
    likelihood, order = likelihood_of(name, 1)
    y, prior = OBSERVED[name][1], PRIOR[2] @ PRIOR[2].T
    found = KLPredictors(tolerance=1e-9, order=20).solve(
        PRIOR[2][order][:, None], MEAN[order][:, None], np.array([y]), likelihood=likelihood, prior_type=RowPrior
    )
    assert found.convergence.converged
    z, weights = normal_rule(40, 2)

    def bound(mean, root):
        f = mean + z @ root.T
        cov = root @ root.T
        shift = mean - MEAN[:2]
        distance = np.trace(np.linalg.solve(prior, cov)) + shift @ np.linalg.solve(prior, shift) - 2.0
        distance += np.linalg.slogdet(prior)[1] - np.linalg.slogdet(cov)[1]
        return weights @ LOG_DENSITIES[name](y, *f.T) - 0.5 * distance

    back = np.argsort(order)
    mean, root = found.mean[back, 0], np.linalg.cholesky(found.cov[0][back][:, back])
    best = bound(mean, root)
    assert_allclose(found.evidence, best, rtol=0.0, atol=1e-5)
    rng = np.random.default_rng(0)
    for _ in range(20):
        step, turn = 0.05 * rng.normal(size=2), np.eye(2) + 0.05 * np.tril(rng.normal(size=(2, 2)))
        assert bound(mean + step, root @ turn) < best
