"""Full sites of g: sites of f, cavities, and the restriction to positive semi-definite precisions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from pymc_gpep.kernels.moments.full_sites import packed_size, read_precision, write_precision
from pymc_gpep.rivals.kernels.quadrature_ep import difference_sites, shrink_to_semidefinite, utility_cavity
from tests.reference.tilted import cavity_of_g, directions


def random_site(seed, d):
    """Λ (d, d) with eigenvalues in (0, 1), and ξ (d,)."""
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return vectors * rng.uniform(0.05, 0.95, size=d) @ vectors.T, rng.normal(size=d)


def with_u_integrated_out(precision, location):
    """Natural parameters of ∫ N(u | 0, 1) site(x + u 1) du as a function of x."""
    d = location.size
    both = np.column_stack([np.eye(d), np.ones(d)])
    joint = both.T @ precision @ both
    joint[d, d] += 1.0
    pull = both.T @ location
    return (
        joint[:d, :d] - np.outer(joint[:d, d], joint[d, :d]) / joint[d, d],
        pull[:d] - joint[:d, d] * pull[d] / joint[d, d],
    )


@pytest.mark.parametrize("c", [2, 3, 6])
def test_sites_of_differences_equal_sites_of_latent_values(c):
    d = c - 1
    y = np.arange(c)
    parameters = [random_site(i, d) for i in range(c)]
    sites = np.zeros((2, c, packed_size(c)))
    for i, (precision, pull) in enumerate(parameters):
        write_precision(precision, sites, i)
        sites[1, i, :d] = pull
    before = sites.copy()
    pi, nu = np.full((c, d, d), np.nan), np.full((c, d), np.nan)
    w, location = np.full((c, c, c), np.nan), np.full((c, c), np.nan)
    difference_sites(y, sites, pi, nu, w, location)
    assert_array_equal(sites, before)
    for i, (precision, pull) in enumerate(parameters):
        found = np.empty((d, d))
        read_precision(sites, i, found)
        assert_array_equal(found, np.tril(precision) + np.tril(precision, -1).T)
        expected_pi, expected_nu = with_u_integrated_out(precision, pull)
        assert_allclose(pi[i], expected_pi, atol=1e-14)
        assert_allclose(nu[i], expected_nu, atol=1e-14)
        B = directions(y[i], c)
        assert_allclose(w[i], B @ expected_pi @ B.T, atol=1e-14)
        assert_allclose(location[:, i], B @ expected_nu, atol=1e-14)


@pytest.mark.parametrize("variance", [0.1, 10.0, 1e4])
@pytest.mark.parametrize("c", [2, 3, 6])
def test_cavity_equals_dense_algebra(c, variance):
    rng = np.random.default_rng(c)
    y = c // 2
    root = rng.normal(size=(c, c))
    own, own_mean = variance * (root @ root.T / c + 0.1 * np.eye(c)), np.sqrt(variance) * rng.normal(size=c)
    pi, nu = with_u_integrated_out(*random_site(c, c - 1))
    B = directions(y, c)
    precision = np.linalg.inv(own)
    posterior = np.linalg.inv(precision + B @ pi @ B.T)
    mean = posterior @ (precision @ own_mean + B @ nu)
    log_z = 0.5 * (np.linalg.slogdet(posterior)[1] - np.linalg.slogdet(own)[1])
    log_z += 0.5 * (mean @ np.linalg.solve(posterior, mean) - own_mean @ precision @ own_mean)
    m, s = np.empty(c - 1), np.empty((c - 1, c - 1))
    found = utility_cavity(mean, posterior, y, pi, nu, m, s)
    expected_m, expected_s = cavity_of_g(own_mean, own, y)
    assert found == pytest.approx(log_z, rel=1e-9, abs=1e-9)
    assert_allclose(m, expected_m, atol=1e-8 * np.sqrt(variance))
    assert_allclose(s, expected_s, atol=1e-8 * variance)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 5), st.floats(0.1, 3.0))
def test_indefinite_matrix_is_shrunk_to_semidefinite(seed, d, excess):
    rng = np.random.default_rng(seed)
    diagonal = rng.uniform(0.01, 0.9, size=d)
    scale = np.sqrt(np.outer(diagonal, diagonal))
    off = np.tril(rng.uniform(-excess, excess, size=(d, d)), -1)
    a = scale * (np.eye(d) + off + off.T)
    shrunk = a.copy()
    shrink_to_semidefinite(shrunk, np.empty((d, d)))
    assert_array_equal(shrunk.diagonal(), a.diagonal())
    lowest = np.linalg.eigvalsh(shrunk / scale).min()
    assert lowest > -1e-12
    if np.linalg.eigvalsh(a / scale).min() > 1e-12:
        assert_array_equal(shrunk, a)
    else:
        assert lowest < 1e-6  # shrunk as little as possible


def test_row_with_zero_variance_has_zero_covariance():
    a = np.diag([0.5, 0.0, 0.3])
    a[1, 0] = a[0, 1] = 1e-9
    shrink_to_semidefinite(a, np.empty((3, 3)))
    assert_allclose(a, np.diag([0.5, 0.0, 0.3]), atol=1e-17)
