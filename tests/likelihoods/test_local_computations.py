"""Every local computation of a likelihood, against differences and integrals of its log density."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit, log_ndtr
from scipy.stats import norm

from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    BlockCurvature,
    CoupledCurvature,
    CoupledQuadrature,
    DifferenceFactors,
    GaussianAverage,
    LargestUtility,
    LogisticResponse,
    NoisyDifferenceFactors,
    NormalResponse,
    PairFactors,
    PointAverage,
    PointFactor,
    PowersAverage,
    QuadraticBound,
    ScalarDensity,
    TabulatedFactor,
    Utilities,
    UtilityBound,
)
from pymc_gpep.likelihoods.local_likelihood import RowConstants
from pymc_gpep.likelihoods.softmax import class_nodes
from pymc_gpep.likelihoods.standard_density import StandardProduct
from pymc_gpep.rivals.computations import (
    DifferenceQuadrature,
    IndependentFactors,
    IndependentQuadrature,
    RoughDensity,
    RoughNormaliser,
    RoughSites,
    SiteInformation,
)
from pymc_gpep.rivals.qep import quadrature_rule
from tests.likelihoods.integrals import integral_and_derivatives

C, N = 3, 4
RNG = np.random.default_rng(6)
F, LABELS = 1.5 * RNG.normal(size=(C, N)), np.array([2, 0, 1, 1])
ROOT = RNG.normal(size=(N, C, C))
COV = ROOT @ ROOT.swapaxes(1, 2)
STEP = 1e-4


def difference(function, f, i, a, step=STEP):
    """Derivative of a function of all latent values with respect to one latent value."""
    up, down = f.copy(), f.copy()
    up[a, i] += step
    down[a, i] -= step
    return (function(up) - function(down)) / (2 * step)


def check_derivatives(likelihood, value, gradient, curvature, curvature_slope):
    """Check values, gradients (c, n), curvatures (n, c, c), and their slopes (c, n), as functions of f (c, n)."""
    assert value(F) == pytest.approx(likelihood.log_density(F, LABELS), rel=1e-13)
    w, slope = curvature(F), curvature_slope(F)
    assert np.linalg.eigvalsh(w).min() > -1e-12
    for i in range(N):
        for a in range(C):
            expected = difference(lambda f: likelihood.log_density(f, LABELS), F, i, a)
            assert gradient(F)[a, i] == pytest.approx(expected, abs=1e-8)
            assert_allclose(w[i, a], -difference(gradient, F, i, a)[:, i], atol=1e-8)
            bend = difference(curvature, F, i, a)[i]
            assert slope[a, i] == pytest.approx(-0.5 * (COV[i] * bend).sum(), abs=1e-7)


def coupled_curvature(likelihood, kernels):
    def evaluate(f):
        pi, gradient = np.empty((2, C, N))
        return kernels.log_density(f, LABELS, pi, gradient), pi, gradient

    def curvature(f):
        pi = evaluate(f)[1]
        return np.einsum("ki,kl->ikl", pi, np.eye(C)) - np.einsum("ki,li->ikl", pi, pi)

    def curvature_slope(f):
        slope = np.empty((C, N))
        kernels.curvature_slope(evaluate(f)[1], COV, slope)
        return slope

    check_derivatives(likelihood, lambda f: evaluate(f)[0], lambda f: evaluate(f)[2], curvature, curvature_slope)
    direction = np.random.default_rng(1).normal(size=(C, N))
    for t in (0.0, 0.7):
        slope, bend = kernels.along_line(F, LABELS, direction, t)
        low, middle, high = (likelihood.log_density(F + (t + h) * direction, LABELS) for h in (-STEP, 0.0, STEP))
        assert slope == pytest.approx((high - low) / (2 * STEP), abs=1e-7)
        assert bend == pytest.approx(-(high + low - 2 * middle) / STEP**2, abs=1e-5)


def block_curvature(likelihood, kernels):
    def evaluate(f):
        gradient = np.empty((C, N))
        return kernels.log_density(f, LABELS, gradient), gradient

    def filled(kernel, shape, *arguments):
        result = np.empty(shape)
        kernel(*arguments, result)
        return result

    check_derivatives(
        likelihood,
        lambda f: evaluate(f)[0],
        lambda f: evaluate(f)[1],
        lambda f: filled(kernels.curvature, (N, C, C), f, LABELS),
        lambda f: filled(kernels.curvature_slope, (C, N), f, LABELS, COV),
    )


def utility_bound(likelihood, kernels):
    b, mean = np.random.default_rng(1).normal(size=(2, C, N))

    def evaluate(f):
        r, w = np.empty((C, N)), np.empty((N, C, C))
        return kernels.terms(LABELS, f, b, mean, r, w), r, w

    value, r, w = evaluate(F)
    assert value == pytest.approx(likelihood.log_density(F, LABELS) - 0.5 * (b * (F - mean)).sum(), rel=1e-12)
    for i in range(N):
        for a in range(C):
            slope = difference(lambda f: likelihood.log_density(f, LABELS), F, i, a)
            assert r[a, i] == pytest.approx(slope - b[a, i], abs=1e-8)
            assert_allclose(w[i, a], -difference(lambda f: evaluate(f)[1], F, i, a)[:, i], atol=1e-8)


def matching_site(mean, variance, slope, bend):
    """Precision and location of the site with which N(mean, variance) has the moments of the tilted distribution.

    `slope` and `bend` are the first two derivatives of the log normaliser with respect to the mean.
    """
    precision = -bend / (1.0 + variance * bend)
    return precision, slope + precision * (mean + variance * slope)


def check_difference_site(likelihood, update):
    """Check the site of g = f_y − f_j + u, u ~ N(0, 1), for two latent values.

    `update(mean, cov, y)` returns the log normaliser, precision and location.
    """
    for y in (0, 1):
        mean, cov = np.array([0.4, -0.3]), np.array([[0.8, 0.2], [0.2, 0.5]])
        log_z, slope, bend = integral_and_derivatives(likelihood, mean, cov, y, np.eye(2)[y])
        contrast = 2.0 * np.eye(2)[y] - 1.0
        site = matching_site(contrast @ mean, contrast @ cov @ contrast + 1.0, slope, bend)
        terms, *found = update(mean, cov, y)
        assert terms == pytest.approx(log_z, abs=1e-9)
        assert_allclose(found, site, atol=1e-6)


def check_independent_sites(likelihood, update, c):
    """Check sites of c latent values. `update(mean, variance, y)` returns terms, precisions (c,) and locations (c,)."""
    for y in range(c):
        mean, variance = np.linspace(-0.6, 0.4, c), np.linspace(0.7, 0.3, c)
        terms, precisions, locations = update(mean, variance, y)
        for k in range(c):
            log_z, slope, bend = integral_and_derivatives(likelihood, mean, np.diag(variance), y, np.eye(c)[k])
            assert terms == pytest.approx(log_z, abs=1e-7)
            site = matching_site(mean[k], variance[k], slope, bend)
            assert_allclose((precisions[k], locations[k]), site, atol=1e-5)


def independent(kernel, extra, mean, variance, y):
    """Run a kernel for one point, starting without sites. It also iterates `extra` numbers for this point."""
    c = len(mean)
    sites, target = np.zeros((2, 2, 1, c + extra))
    nothing = np.zeros((c, 1))
    ok, terms, _ = kernel(
        mean[:, None], variance[:, None], nothing, nothing, np.array([y]), sites, target, np.empty((1, c + extra))
    )
    assert ok
    return terms, target[0, 0, :c], target[1, 0, :c]


def difference_factors(likelihood, kernels):
    def coupled(mean, cov, y):
        nothing, alpha, beta, scale = np.zeros((4, 1, 1))
        terms, _ = kernels.coupled_update(
            mean[:, None], cov[None], np.array([y]), nothing, nothing, 1, 1e-10, alpha, beta, scale
        )
        # At these sites the energy is stationary and equals the energy of EP.
        variance = 1.0 / (1.0 / scale + alpha)
        contrast = 2.0 * np.eye(2)[y] - 1.0
        moments = np.stack([variance * (contrast @ mean / scale + beta), variance])
        cavities, target = np.empty((2, 2, 1, 1))
        sites = np.stack([alpha, beta])
        energy, negative_evidence, residual = kernels.energies(sites, moments, cavities, target)
        assert energy == pytest.approx(negative_evidence, abs=1e-9)
        assert residual < 1e-9
        assert_allclose(target, sites, atol=1e-9)
        average = np.empty((5, 1))
        kernels.average(np.array([contrast @ mean]), scale[0], np.ones(1, np.int64), np.empty(0), average)
        assert average[0, 0] == pytest.approx(terms, abs=1e-12)  # with two classes the likelihood is one factor
        return terms, alpha[0, 0], beta[0, 0]

    check_difference_site(likelihood, coupled)


def independent_factors(likelihood, kernels):
    """With two classes the likelihood is one factor, for which inner EP is exact."""
    check_independent_sites(likelihood, partial(independent, partial(kernels.update, 1, 1e-10), 1), 2)


def noisy_difference_factors(likelihood, kernels):
    """With two latent values the likelihood is one factor. Noise of latent values adds to the noise of utilities."""
    mean, cov, rest = np.array([0.4, -0.3]), np.array([[0.8, 0.2], [0.2, 0.5]]), np.array([0.3, 0.1])
    for y in (0, 1):
        log_z, slope, bend = integral_and_derivatives(likelihood, mean, cov + np.diag(rest), y, np.eye(2)[y])
        contrast = 2.0 * np.eye(2)[y] - 1.0
        site = matching_site(contrast @ mean, contrast @ cov @ contrast + 1.0 + rest[y], slope, bend)
        nothing, alpha, beta, scale = np.zeros((4, 1, 1))
        terms, _ = kernels.update(
            mean[:, None], cov[None], np.array([y]), rest[:, None], nothing, nothing, 1, 1e-10, alpha, beta, scale
        )
        assert terms == pytest.approx(log_z, abs=1e-9)
        unit = 1.0 + rest[1 - y]  # the kernel divides g by the other utility's noise
        assert_allclose((alpha[0, 0] / unit, beta[0, 0] / np.sqrt(unit)), site, atol=1e-6)


def independent_quadrature(likelihood, kernels):
    for c in (2, 3):
        check_independent_sites(likelihood, partial(independent, kernels.update, 0), c)


def rough_sites(likelihood, kernels):
    """Sites that are not iterated to a fixed point agree with the sites of `IndependentQuadrature` to two digits."""
    variance = np.random.default_rng(8).uniform(0.2, 1.0, (N, C))
    log_z, sites = np.empty(N), np.empty((N, 2, C))
    kernels.terms(F.T.copy(), variance, LABELS, log_z, sites)
    update = likelihood.computation(IndependentQuadrature).update
    for i, y in enumerate(LABELS):
        terms, *exact = independent(update, 0, F[:, i].copy(), variance[i], y)
        assert log_z[i] == pytest.approx(terms, abs=2e-3)
        assert_allclose(sites[i], exact, atol=3e-3)


def coupled_quadrature(likelihood, kernels):
    """Sites of negligible precision leave the cavity as the posterior. With three classes all moments match."""
    axis = np.linspace(-7.0, 7.0, 61)
    t = np.stack(np.meshgrid(axis, axis, axis, indexing="ij")).reshape(C, -1)
    for i, y in enumerate(LABELS):
        f = F[:, i, None] + np.linalg.cholesky(COV[i]) @ t
        log_p = likelihood.log_density(f.T[..., None], np.array([y]))
        weight = np.exp(log_p - 0.5 * (t**2).sum(axis=0)) * ((axis[1] - axis[0]) / np.sqrt(2 * np.pi)) ** C
        total = weight.sum()
        mean = f @ weight / total
        tilted = (weight * (f - mean[:, None])) @ (f - mean[:, None]).T / total

        sites, target, scale = np.zeros((2, 1, C)), np.empty((2, 1, C)), np.empty((1, C))
        pi = np.full((C, 1), 1e-30)
        terms, _ = kernels.update(
            *class_nodes(C - 1, 500), F[:, i : i + 1].copy(), COV[i : i + 1], np.array([y]), pi, sites, target, scale
        )
        assert terms == pytest.approx(np.log(total), abs=1e-7)
        pi, nu = target[:, 0]
        assert nu.sum() == pytest.approx(0.0, abs=1e-12)
        cov = np.linalg.inv(np.linalg.inv(COV[i]) + np.diag(pi) - np.outer(pi, pi) / pi.sum())
        assert_allclose(cov @ (np.linalg.solve(COV[i], F[:, i]) + nu), mean, atol=1e-6)
        assert_allclose(cov, tilted, atol=1e-6)


def difference_quadrature(likelihood, kernels):
    rule, orders = quadrature_rule("truncated", 10), np.full((1, 1), -1)

    def diagonal(mean, cov, y):
        sites, target = np.zeros((2, 2, 1, 1))
        terms, _ = kernels.diagonal_update(
            False, rule, orders, mean[:, None], cov[None], np.array([y]), sites, target, np.empty((1, 1))
        )
        return terms, *target[:, 0, 0]

    def full(mean, cov, y):
        sites, target = np.zeros((2, 2, 1, 1))
        terms, _ = kernels.full_update(
            False, rule, orders, mean[:, None], cov[None], np.zeros((1, 1, 1)), np.zeros((1, 1)), np.array([y]),
            sites, target, np.empty((1, 1)),
        )  # fmt: skip
        return terms, *target[:, 0, 0]

    check_difference_site(likelihood, diagonal)
    check_difference_site(likelihood, full)


POINTS = np.array([-3.0, -0.4, 0.3, 2.0])
VARIANCE = np.array([0.5, 2.0, 1.0, 0.1])
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)


def of_each_class(likelihood, kernel, size):
    """For each class, a function of arrays (n,) that returns `size` rows, and the log density of one point."""
    parameters = np.empty((0, N))
    for label in range(likelihood.n_classes(1)):
        y = np.full(N, label)

        def evaluate(*numbers, y=y):
            out = np.full((size, N), np.nan)
            kernel(*numbers, y, parameters, out)
            return out

        def log_density(f, y=y):
            return np.array([likelihood.log_density(np.array([[each]]), y[:1]) for each in np.ravel(f)]).reshape(
                f.shape
            )

        yield evaluate, log_density


def slopes_by_differences(function, *numbers, which=0):
    """Derivatives of a function of arrays (n,) with respect to one argument, with errors of about 1e-8."""
    moved = [[x + t * STEP * (i == which) for i, x in enumerate(numbers)] for t in (-2, -1, 1, 2)]
    low2, low, high, high2 = (function(*each) for each in moved)
    return (8 * (high - low) - (high2 - low2)) / (12 * STEP)


def scalar_density(likelihood, kernels):
    for evaluate, log_density in of_each_class(likelihood, kernels.derivatives, 4):
        found = evaluate(POINTS)
        assert_allclose(found[0], log_density(POINTS), rtol=1e-13)
        assert_allclose(found[1:], slopes_by_differences(evaluate, POINTS)[:3], atol=1e-8)


def gaussian_average(likelihood, kernels):
    nodes = POINTS[:, None] + np.sqrt(VARIANCE)[:, None] * NODES
    for evaluate, log_density in of_each_class(likelihood, kernels.terms, 5):
        found = evaluate(POINTS, VARIANCE)
        expected = np.log(np.exp(log_density(nodes)) @ WEIGHTS / WEIGHTS.sum())
        assert_allclose(found[0], expected, atol=1e-9)
        assert_allclose(found[1:], slopes_by_differences(evaluate, POINTS, VARIANCE)[:4], atol=1e-8)
        by_variance = slopes_by_differences(evaluate, POINTS, VARIANCE, which=1)[0]
        assert_allclose(0.5 * (found[2] + found[1] ** 2), by_variance, atol=1e-8)
        assert_allclose(evaluate(POINTS, np.zeros(N))[0], log_density(POINTS), rtol=1e-12)


def powers_average(likelihood, kernels):
    """Check powers up to 300 of the densities of both classes, averaged under normals, against sums over a grid."""
    powers = np.array([[3.0, 0.0, 40.0, 300.0, 1.0, 0.0], [2.0, 5.0, 1.0, 200.0, 0.0, 7.0]])
    mean, variance = np.array([0.3, -1.0, 0.5, 1.0, -2.0, 1.5]), np.array([0.7, 2.0, 4.0, 30.0, 1.0, 9.0])
    terms = np.empty((5, 6))
    kernels.terms(mean, variance, powers, terms)
    z = np.linspace(-12.0, 12.0, 60_001)
    prior = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    for i in range(6):
        f = mean[i] + np.sqrt(variance[i]) * z
        each = [likelihood.log_densities(f[None], np.full(len(f), y)) for y in (1, 0)]
        log_p = sum(power * own for power, own in zip(powers[:, i], each, strict=True) if power)
        top = log_p.max()
        tilted = prior * np.exp(log_p - top)
        total = tilted.sum()
        moments = [tilted @ (f - mean[i]) ** k / total for k in (1, 2)]
        assert terms[0, i] == pytest.approx(top + np.log(total), rel=1e-9, abs=1e-9)
        assert terms[1, i] == pytest.approx(moments[0] / variance[i], rel=1e-6, abs=1e-7)
        second = (moments[1] - moments[0] ** 2) / variance[i] ** 2 - 1.0 / variance[i]
        assert terms[2, i] == pytest.approx(second, rel=1e-5, abs=1e-7)


def standard_product(likelihood, kernels):
    f, y = np.array([-2.0, 0.1, 1.5, -0.4]), np.array([0, 1, 1, 0])
    scale, offset, shapes, constant = kernels.form(y, np.empty((0, 4)))
    out = np.empty((4, 4))
    kernels.density.derivatives(scale * f + offset, shapes, out, np.empty((2, 3, 4)))
    np.testing.assert_allclose(out[0] + constant, likelihood.log_densities(f[None], y), rtol=1e-12)


def row_constants(likelihood, kernels):
    y, parameters, moments = LABELS[:2].clip(0, 1), np.empty((0, 2)), (POINTS[:2].copy(), VARIANCE[:2].copy())
    bound, expected = np.empty((2, 5, 2))
    (average,) = (each for each in kernels.bound_to(y, parameters) if isinstance(each, GaussianAverage))
    for given in (y, 1 - y):  # the constants were computed for the first array only
        average.terms(*moments, given, parameters, bound)
        likelihood.computation(GaussianAverage).terms(*moments, given, parameters, expected)
        np.testing.assert_array_equal(bound, expected)


def average_log_density(likelihood, kernels):
    nodes = POINTS[:, None] + np.sqrt(VARIANCE)[:, None] * NODES
    for evaluate, log_density in of_each_class(likelihood, kernels.terms, 3):
        found = evaluate(POINTS, VARIANCE)
        assert_allclose(found[0], log_density(nodes) @ WEIGHTS / WEIGHTS.sum(), atol=1e-9)
        for which in (0, 1):
            slope = slopes_by_differences(evaluate, POINTS, VARIANCE, which=which)
            assert_allclose(found[1 + which], slope[0], atol=1e-8)


def quadratic_bound(likelihood, kernels):
    exact = likelihood.computation(AverageLogDensity).terms
    both = zip(of_each_class(likelihood, kernels.terms, 3), of_each_class(likelihood, exact, 3), strict=True)
    for (evaluate, _), (average, _) in both:
        found = evaluate(POINTS, VARIANCE)
        assert (found[0] <= average(POINTS, VARIANCE)[0]).all()
        for which in (0, 1):
            slope = slopes_by_differences(evaluate, POINTS, VARIANCE, which=which)
            assert_allclose(found[1 + which], slope[0], atol=1e-8)


def utilities(likelihood, kernels):
    """If the label is a function of utilities, E[utility − f | y] is the gradient of log p(y | f)."""
    draws, c = 20_000, C if likelihood.function_axis else 1
    f, y = F[:c], LABELS % likelihood.n_classes(c)
    given = np.repeat(f, draws, axis=1)
    v = np.full_like(given, np.nan)
    kernels.draw(np.random.default_rng(7), given, np.repeat(y, draws), v)
    noise = (v - given).reshape(c, N, draws)
    error = noise.std(axis=-1) / np.sqrt(draws)
    slope = [[difference(lambda f: likelihood.log_density(f, y), f, i, a) for i in range(N)] for a in range(c)]
    assert (abs(noise.mean(axis=-1) - slope) < 4.5 * error).all()


def factor_derivatives(evaluate, mean, variance):
    """Check log normalisers, ρ and γ = −∂ρ/∂m by differences, and the heat equation 2 ∂ log Z/∂v = ρ² − γ."""
    log_z, rho, gamma = evaluate(mean, variance)
    for place in np.ndindex(mean.shape[1:]):
        step = np.zeros(mean.shape)
        step[(slice(None), *place)] = STEP
        (high, rho_high, _), (low, rho_low, _) = (evaluate(mean + s * step, variance) for s in (1, -1))
        assert_allclose(rho[(slice(None), *place)], (high - low) / (2 * STEP), atol=1e-7)
        slope = (rho_high - rho_low)[(slice(None), *place)] / (2 * STEP)
        assert_allclose(gamma[(slice(None), *place)], -slope, atol=1e-7)
        wide, narrow = (evaluate(mean, variance + s * step)[0] for s in (1, -1))
        expected = (rho**2 - gamma)[(slice(None), *place)]
        assert_allclose(expected, (wide - narrow) / STEP, atol=1e-6)
    return log_z


def point_factor(likelihood, kernels):
    def evaluate(mean, variance):
        log_z, rho, gamma = np.empty(N), np.empty((N, C)), np.empty((N, C))
        kernels.derivatives(mean, variance, LABELS, likelihood.parameters, log_z, rho, gamma)
        return log_z, rho, gamma

    variance = np.random.default_rng(8).uniform(0.2, 1.0, (N, C))
    found = factor_derivatives(evaluate, F.T.copy(), variance)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    grid = np.stack(np.meshgrid(*[nodes] * C, indexing="ij")).reshape(C, -1)
    weight = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * C, indexing="ij")).reshape(C, -1), axis=0)
    for i in range(N):
        f = F[:, [i]] + np.sqrt(variance[i])[:, None] * grid
        density = likelihood.log_density(f.T[:, :, None], LABELS[[i]])
        assert found[i] == pytest.approx(np.log(weight @ np.exp(density)), abs=1e-7)


def tabulated_factor(likelihood, kernels):
    variance = np.random.default_rng(8).uniform(0.2, 1.0, (N, C))
    exact, tabulated = ((np.empty(N), np.empty((N, C)), np.empty((N, C))) for _ in range(2))
    likelihood.computation(PointFactor).derivatives(F.T.copy(), variance, LABELS, likelihood.parameters, *exact)
    kernels.derivatives(F.T.copy(), variance, LABELS, *tabulated)
    for found, expected in zip(tabulated, exact, strict=True):
        assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


def rough_normaliser(likelihood, kernels):
    variance = np.random.default_rng(8).uniform(0.2, 1.0, (N, C))
    exact, rough, unused = np.empty(N), np.empty(N), np.empty((2, N, C))
    given = F.T.copy(), variance, LABELS, likelihood.parameters
    likelihood.computation(PointFactor).derivatives(*given, exact, *unused)
    kernels.log_normalisers(*given, rough)
    assert_allclose(rough, exact, atol=1e-6)


def rough_density(likelihood, kernels):
    # The scale is wide enough for probabilities from near 0 to near 1.
    f, y = np.random.default_rng(3).normal(scale=4.0, size=(C, 200)), np.arange(200) % C
    exact = np.empty((2, C, 1)), likelihood.computation(BlockCurvature).log_density
    for i in range(200):
        given = np.ascontiguousarray(f[:, [i]]), y[[i]]
        value = kernels.log_density(*given, exact[0][0])
        assert_allclose(value, exact[1](*given, exact[0][1]), rtol=1e-8, atol=1e-11)
        assert_allclose(*exact[0], rtol=1e-7, atol=1e-9)


def site_information(likelihood, kernels):
    # `tests/rivals/selection/test_scores.py` compares scores with brute force. This test checks invariance under
    # shifts.
    root = np.random.default_rng(9).normal(size=(N, C, C))
    cov = root @ root.swapaxes(1, 2)
    found = []
    for mean, shared in ((F, 0.0), (F + 3.0, 5.0)):
        terms = np.empty((2, N))
        kernels.terms(mean, cov + shared, LABELS, *terms)
        found.append(terms)
    assert_allclose(*found, rtol=1e-8)
    assert (found[0][0] < 0.0).all()
    assert (found[0][1] > 0.0).all()


def pair_factors(likelihood, kernels):
    def evaluate(mean, variance):
        log_z, rho, gamma = np.empty(N), np.empty(mean.shape), np.empty(mean.shape)
        kernels.derivatives(mean, variance, log_z, rho, gamma)
        return log_z, rho, gamma

    others = np.array([[k for k in range(C) if k != label] for label in LABELS])
    f = F.T
    mean = np.stack([np.repeat(f[range(N), LABELS][:, None], C - 1, axis=1), np.take_along_axis(f, others, 1)], axis=1)
    factor_derivatives(evaluate, mean, np.random.default_rng(8).uniform(0.2, 1.0, mean.shape))
    at_points = evaluate(mean, np.zeros(mean.shape))[0]
    assert_allclose(at_points, log_ndtr((mean[:, 0] - mean[:, 1]) / np.sqrt(2.0)).sum(axis=1), rtol=1e-12)
    exact = [likelihood.log_density(F[:, [i]], LABELS[[i]]) for i in range(N)]
    assert (at_points <= exact).all()


def point_average(likelihood, kernels):
    variance = np.random.default_rng(8).uniform(0.2, 1.0, (N, C))

    def evaluate(mean, variance):
        value, of_mean, of_variance = np.empty(N), np.empty((N, C)), np.empty((N, C))
        kernels.terms(mean, variance, LABELS, likelihood.parameters, value, of_mean, of_variance)
        return value, of_mean, of_variance

    mean = F.T.copy()
    value, of_mean, of_variance = evaluate(mean, variance)
    for k in range(C):
        h = STEP * (np.arange(C) == k)
        assert_allclose((evaluate(mean + h, variance)[0] - value) / STEP, of_mean[:, k], atol=1e-3)
        assert_allclose((evaluate(mean, variance + h)[0] - value) / STEP, of_variance[:, k], atol=1e-3)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    grid = np.stack(np.meshgrid(*[nodes] * C, indexing="ij")).reshape(C, -1)
    weight = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * C, indexing="ij")).reshape(C, -1), axis=0)
    for i in range(N):
        f = F[:, [i]] + np.sqrt(variance[i])[:, None] * grid
        assert value[i] < weight @ likelihood.log_density(f.T[:, :, None], LABELS[[i]])


def normal_response(likelihood, _):
    response(likelihood, norm.cdf)


def logistic_response(likelihood, _):
    response(likelihood, expit)


def response(likelihood, probability):
    y, f = LABELS > 0, F[:1]
    assert likelihood.log_density(f, likelihood.check(y, 1, N)) == pytest.approx(
        np.log(probability(np.where(y, f[0], -f[0]))).sum(), rel=1e-13
    )


def largest_utility(likelihood, kernels):
    utility = F[LABELS, np.arange(N)] + np.sqrt(kernels.noise) * np.linspace(-9.0, 9.0, 4001)[:, None]
    below = norm.cdf((utility[:, None] - F) / np.sqrt(kernels.noise))
    below[:, LABELS, np.arange(N)] = norm.pdf((utility - F[LABELS, np.arange(N)]) / np.sqrt(kernels.noise))
    expected = np.trapezoid(below.prod(axis=1), dx=18.0 / 4000, axis=0)
    assert likelihood.log_density(F, LABELS) == pytest.approx(np.log(expected).sum(), rel=1e-10)


CHECKS = {
    AverageLogDensity: average_log_density,
    GaussianAverage: gaussian_average,
    QuadraticBound: quadratic_bound,
    ScalarDensity: scalar_density,
    BlockCurvature: block_curvature,
    CoupledCurvature: coupled_curvature,
    DifferenceFactors: difference_factors,
    CoupledQuadrature: coupled_quadrature,
    DifferenceQuadrature: difference_quadrature,
    IndependentFactors: independent_factors,
    IndependentQuadrature: independent_quadrature,
    LargestUtility: largest_utility,
    LogisticResponse: logistic_response,
    NoisyDifferenceFactors: noisy_difference_factors,
    NormalResponse: normal_response,
    PowersAverage: powers_average,
    RowConstants: row_constants,
    StandardProduct: standard_product,
    PairFactors: pair_factors,
    PointAverage: point_average,
    PointFactor: point_factor,
    RoughDensity: rough_density,
    RoughNormaliser: rough_normaliser,
    RoughSites: rough_sites,
    SiteInformation: site_information,
    TabulatedFactor: tabulated_factor,
    Utilities: utilities,
    UtilityBound: utility_bound,
}


@pytest.mark.parametrize(
    ("likelihood", "computation"),
    [
        (likelihood, computation)
        for likelihood in LIKELIHOODS
        if not likelihood.has_parameters and likelihood.observed_axes == 1  # votes are tested in `test_votes`
        for computation in likelihood.computations
    ],
    ids=lambda value: getattr(value, "name", type(value).__name__),
)
def test_each_local_computation_has_its_type_and_matches_its_reference(likelihood, computation):
    assert likelihood.computation(type(computation)) is computation
    CHECKS[type(computation)](likelihood, computation)
