"""Every pair of a form of prior and a form of sites, against dense algebra from the definitions.

The oracle uses the prior covariance of all latent values, at the data and at new points, and Π. It does not depend on
the form of the prior.
"""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import block_diag

import pymc_gpep as gpep
from pymc_gpep.gaussians.place_prior import PlacePrior, PlaceRows, PlaceStructure
from pymc_gpep.gaussians.posterior import make_posterior, posterior_of
from pymc_gpep.gaussians.precision_prior import PrecisionPrior, PrecisionStructure
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.row_prior import RowPrior, RowStructure
from pymc_gpep.gaussians.sites import BlockSites, CoupledSites, IndependentSites, SignedSites
from pymc_gpep.solvers.coefficients import Entries, coefficients, rows_of_functions
from tests.reference.data import squared_exponential
from tests.reference.dense_posterior import site_blocks
from tests.reference.rank_one import RANK_ONE, RankOnePrior
from tests.registered import restore_tables

N, NEW = 6, 3
ALL = N + NEW
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ALL, 2))
OLD, THERE = slice(0, N), slice(N, ALL)


class Form(NamedTuple):
    """Form of a prior, defined by an array, and functions from which its oracle is computed."""

    make: object
    """Function of the array and a mean (c, n) that returns the prior."""
    array: np.ndarray
    functions: int
    roots: object
    """Function of the array that returns J (c, n + new, q). The covariance of all latent values is J S Jᵀ."""
    s: object
    """Function of the array that returns S (q, q), see `roots`."""
    points: object = None
    """Function of the mean at new points that returns the new points in the format of the form."""
    symmetric: bool = False

    def covariance(self, array=None):
        """Covariance of all latent values, (c (n + new), c (n + new))."""
        array = self.array if array is None else array
        j = self.roots(array).reshape(self.functions * ALL, -1)
        return j @ self.s(array) @ j.T


def dense(scales, functions):
    """Covariance matrices. The blocks at new points are fixed: the array is K at the data."""
    whole = np.stack([squared_exponential(X, X, variance=3.0, lengthscale=scale) for scale in scales])
    whole += 1e-2 * np.eye(ALL)

    def roots(array):
        full = whole.copy()
        full[:, OLD, OLD] = array
        lower = np.linalg.cholesky(full)
        return np.stack([np.kron(unit, lower[a % len(lower)]) for a, unit in enumerate(np.eye(functions))])

    def points(mean):
        variance = whole[:, THERE, THERE].diagonal(axis1=1, axis2=2)
        return np.ascontiguousarray(whole[:, THERE, OLD]), variance, mean

    k = np.ascontiguousarray(whole[:, OLD, OLD])
    return Form(DensePrior, k, functions, roots, lambda array: np.eye(functions * ALL), points, symmetric=True)


def residual_roots(functions):
    """Root L (new, c, c) of a residual covariance at each new point."""
    return np.tril(RNG.normal(size=(NEW, functions, functions))) + np.eye(functions)


def with_residuals(full, roots):
    """Write the roots into the last columns of J (c, n + new, q + c new), and return J."""
    new, functions, _ = roots.shape
    full[:, THERE, full.shape[2] - new * functions :] = block_diag(*roots).reshape(new, functions, -1).swapaxes(0, 1)
    return full


def covariances_of(roots):
    """Residual covariances L Lᵀ."""
    return roots @ roots.swapaxes(1, 2)


def by_rows(whole):
    """Rows J (c, n + new, q), and a residual covariance of the functions at each new point."""
    functions, _, q = whole.shape
    beside = residual_roots(functions)

    def roots(array):
        full = np.zeros((functions, ALL, q + functions * NEW))
        full[:, :, :q] = whole
        full[:, OLD, :q] = array
        return with_residuals(full, beside)

    def points(mean):
        return rows_of_functions(whole[:, THERE]), covariances_of(beside), mean

    unit = np.eye(q + functions * NEW)
    return Form(RowPrior, np.ascontiguousarray(whole[:, OLD]), functions, roots, lambda array: unit, points)


def full_rows(functions):
    """Functions that share standard normal variables."""
    return by_rows(RNG.normal(size=(functions, ALL, 4)) / 2)


def entry_rows(functions):
    """A level and groups for each function."""
    j = np.zeros((functions, ALL, 17 * functions))
    for k in range(functions):
        j[k, :, 17 * k] = 0.5
        j[k, np.arange(ALL), 17 * k + 1 + RNG.integers(0, 4, ALL)] = RNG.normal(size=ALL)
    return by_rows(j)


def composed_rows():
    """J = A B. The array of the prior is B."""
    a, b = RNG.normal(size=(ALL, 4)), RNG.normal(size=(4, 3))
    plain = by_rows((a @ b)[None])
    return plain._replace(
        make=lambda array, mean: RowPrior(array, mean, RowStructure(coefficients(np.ascontiguousarray(a[OLD])))),
        array=b[None],
        roots=lambda array: np.concatenate(
            [plain.roots((a[OLD] @ array[0])[None])[:, OLD], plain.roots((a[OLD] @ b)[None])[:, THERE]], axis=1
        ),
    )


def sparse_precision(c):
    """A level and a random walk that sums to zero. Each of c functions uses another value of the walk."""
    walk = 5
    q = 1 + walk
    steps = np.arange(2, q)
    first, second = np.r_[np.arange(q), steps], np.r_[np.arange(q), steps - 1]
    columns = np.r_[0.0, np.ones(walk)][None]
    at = (RNG.integers(0, walk, size=ALL)[:, None] + np.arange(c)) % walk
    cells = np.column_stack([np.zeros(ALL, int), 1 + at])
    values = np.zeros((c, ALL, 1 + c))
    values[:, :, 0] = 0.7 * (1 + np.arange(c))[:, None]
    values[range(c), :, 1 + np.arange(c)] = RNG.normal(size=(c, ALL))
    entries = np.r_[1.0, 2.2 + RNG.random(walk), -np.ones(walk - 1)]
    structure = PrecisionStructure(cells[OLD], first, second, columns, np.array([0.1]), functions=c)
    beside = residual_roots(c)

    def split(array):
        size = c * N * (1 + c)
        return array.ravel()[:size].reshape(c, N, 1 + c), array.ravel()[size:]

    def roots(array):
        full = np.zeros((c, ALL, q + c * NEW))
        own = np.concatenate([split(array)[0], values[:, THERE]], axis=1)
        for k in range(c):
            np.add.at(full[k], (np.arange(ALL)[:, None], cells), own[k])
        return with_residuals(full, beside)

    def s(array):
        precision = np.zeros((q, q))
        np.add.at(precision, (first, second), split(array)[1])
        precision = precision + np.tril(precision, -1).T + columns.T @ columns / 0.1
        return block_diag(np.linalg.inv(precision), np.eye(c * NEW))

    def points(mean):
        there = Entries(np.tile(cells[THERE], (c, 1)), values[:, THERE].reshape(c * NEW, -1), q)
        return there, covariances_of(beside), mean

    array = np.concatenate([values[:, OLD].ravel(), entries])[None, None]
    return Form(lambda array, mean: PrecisionPrior(array, mean, structure), array, c, roots, s, points)


def with_places(places):
    """Rows of three normals, with a residual at each place. The first new row is at a place of the data."""
    q, count = 3, int(places.max()) + 1
    j, r = RNG.normal(size=(ALL, q)) / 2, RNG.normal(size=ALL)
    r[N + 1 :] = 0.0
    every = np.concatenate([places, np.full(NEW, places[1])])
    beside = residual_roots(1)

    def roots(array):
        full = np.zeros((1, ALL, q + count + NEW))
        full[0, :, :q] = np.concatenate([array[0, :, :q], j[THERE]])
        full[0, np.arange(ALL), q + every] = np.concatenate([array[0, :, q], r[THERE]])
        return with_residuals(full, beside)

    def points(mean):
        return PlaceRows(coefficients(j[THERE]), r[THERE], every[THERE], count, q), covariances_of(beside), mean

    structure = PlaceStructure(places, count)
    array = np.column_stack([j, r])[None, OLD]
    unit = np.eye(q + count + NEW)
    return Form(lambda array, mean: PlacePrior(array, mean, structure), array, 1, roots, lambda array: unit, points)


def rank_one():
    """Form of prior that is defined in the tests only."""
    d, u = RNG.gamma(2.0, size=ALL), RNG.normal(size=ALL)

    def roots(array):
        own = np.concatenate([array[0], np.stack([d, u])[:, THERE]], axis=1)
        return np.column_stack([np.diag(np.sqrt(own[0])), own[1]])[None]

    def points(mean):
        return np.outer(u[THERE], u[OLD])[None], (d + u**2)[None, THERE], mean

    return Form(RankOnePrior, np.stack([d, u])[None, :, OLD], 1, roots, lambda array: np.eye(ALL + 1), points)


FORMS = {
    "dense": dense([1.2], 3),
    "dense, one function": dense([1.2], 1),
    "dense, per class": dense([0.6, 1.2, 2.0], 3),
    "rows": full_rows(3),
    "rows, one function": full_rows(1),
    "rows by entries": entry_rows(3),
    "rows by entries, one function": entry_rows(1),
    "rows, composed": composed_rows(),
    "precision": sparse_precision(1),
    "precision, three functions": sparse_precision(3),
    "places": with_places(np.array([3, 1, 0, 5, 2, 4])),
    "places, shared": with_places(np.array([1, 0, 1, 2, 0, 1])),
    "rank one": rank_one(),
}


def semidefinite(rng, c):
    """Blocks (n, c, c) whose rows sum to zero. One block has rank one and one is zero."""
    a = rng.normal(size=(N, c, c - 1))
    a[1, :, 0] = 0.0
    a[2] = 0.0
    a -= a.mean(axis=1, keepdims=True)
    return a @ a.swapaxes(1, 2)


def independent(rng, c):
    """Precisions of several magnitudes. One is zero."""
    pi = rng.gamma(1.0, size=(c, N))
    pi[0, 1], pi[0, 2] = 0.0, 1e-9
    return pi


SITES = {
    "coupled": (CoupledSites, lambda rng, c: rng.gamma(1.0, size=(c, N))),
    "block": (BlockSites, semidefinite),
    "signed": (SignedSites, lambda rng, c: semidefinite(rng, c) - 0.01 * (np.eye(c) - 1.0 / c)),
    "independent": (IndependentSites, independent),
    "independent, signed": (IndependentSites, lambda rng, c: independent(rng, c) - 0.02),
}
ONE_FUNCTION = {"independent", "independent, signed"}
PAIRS = [
    (form, sites) for form, made in FORMS.items() for sites in SITES if made.functions > 1 or sites in ONE_FUNCTION
]


class Case(NamedTuple):
    """A pair of forms, and its oracle."""

    form: Form
    mean: np.ndarray
    sites: object
    precision: np.ndarray
    k: np.ndarray
    """Covariance of all latent values at the data and at new points."""
    m: np.ndarray
    """M = (I + ΠK)⁻¹ Π, with site precisions Π and the prior covariance K at the data."""
    weights: np.ndarray

    @property
    def old(self):
        """Indices (cn,) of the latent values at the data."""
        return (ALL * np.arange(self.form.functions)[:, None] + np.arange(N)).ravel()

    def shaped(self, covariance, size):
        """The covariance reshaped to (c, size, c, size)."""
        c = self.form.functions
        return covariance.reshape(c, size, c, size)

    @property
    def posterior_covariance(self):
        """Posterior covariance of all latent values, (c (n + new), c (n + new))."""
        across = self.k[:, self.old]
        return self.k - across @ self.m @ across.T


def log_normaliser(k, mean, precision, location):
    """Log ∫ N(f | m, K) exp(νᵀf − ½ fᵀΠf) df, and log|I + KΠ|."""
    force = location - precision @ mean
    inner = np.eye(len(k)) + precision @ k
    log_det = np.linalg.slogdet(inner)[1]
    at_mean = location @ mean - 0.5 * mean @ precision @ mean
    return at_mean + 0.5 * force @ k @ np.linalg.solve(inner, force) - 0.5 * log_det, log_det


@pytest.fixture(scope="module", params=PAIRS, ids=[" with ".join(pair) for pair in PAIRS])
def case(request):
    form = FORMS[request.param[0]]
    c = form.functions
    kind, precisions = SITES[request.param[1]]
    rng = np.random.default_rng(11)
    mean, location = rng.normal(size=(c, N)), rng.normal(size=(c, N))
    if kind is not IndependentSites:
        location -= location.mean(axis=0)
    sites = kind(precisions(rng, c), location)
    whole = np.zeros((c, N, c, N))
    whole[:, range(N), :, range(N)] = site_blocks(sites.form, sites.precision)
    precision = whole.reshape(c * N, c * N)
    k = form.covariance()
    old = (ALL * np.arange(c)[:, None] + np.arange(N)).ravel()
    force = location.ravel() - precision @ mean.ravel()
    solved = np.linalg.solve(np.eye(c * N) + precision @ k[np.ix_(old, old)], np.column_stack([precision, force]))
    return Case(form, mean, sites, precision, k, solved[:, :-1], solved[:, -1])


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Register the form of the tests in the table of forms."""
    restore_tables(monkeypatch)
    gpep.register("posterior", RANK_ONE)


@pytest.fixture
def posterior(case):
    return posterior_of(case.form.make(case.form.array, case.mean), case.sites)


def test_mean_and_marginals_equal_dense_algebra(case, posterior):
    c, old = case.form.functions, case.old
    expected = case.mean.ravel() + case.k[np.ix_(old, old)] @ case.weights
    mean, cov = posterior.marginals()
    assert_allclose(posterior.weights.ravel(), case.weights, atol=1e-9)
    assert_allclose(mean.ravel(), expected, atol=1e-9)
    joint = case.shaped(case.posterior_covariance[np.ix_(old, old)], N)
    assert_allclose(cov, joint[:, range(N), :, range(N)], atol=1e-9)
    again = make_posterior(posterior.prior, case.sites.form, case.sites.precision, posterior.weights, posterior.mean)
    assert_allclose(again.sites.location, case.sites.location, atol=1e-9)
    assert_allclose(again.marginals()[1], cov, atol=1e-12)
    assert again.marginals()[0].shape == (c, N)


def test_normaliser_and_divergence_equal_dense_algebra(case, posterior):
    old = case.old
    k = case.k[np.ix_(old, old)]
    value, log_det = log_normaliser(k, case.mean.ravel(), case.precision, case.sites.location.ravel())
    assert posterior.log_determinant == pytest.approx(log_det, abs=1e-9)
    assert posterior.log_normaliser == pytest.approx(value, abs=1e-9)
    shift = k @ case.weights
    taken = np.trace(case.precision @ case.posterior_covariance[np.ix_(old, old)])
    assert posterior.divergence == pytest.approx(0.5 * (case.weights @ shift + log_det - taken), abs=1e-9)
    x = np.random.default_rng(1).normal(size=(2, *case.mean.shape))
    flat = x.reshape(2, -1)
    expected = flat @ case.weights - 0.5 * np.einsum("si,ij,sj->s", flat, case.precision, flat)
    assert_allclose(posterior.relative_site_log_density(x), expected, atol=1e-9)


def test_derivatives_are_slopes_of_the_normaliser(case, posterior):
    form, old = case.form, case.old
    rng = np.random.default_rng(2)
    change, shift = rng.normal(size=form.array.shape), rng.normal(size=case.mean.shape)
    if form.symmetric:
        change += change.swapaxes(1, 2)

    def value(step):
        k = form.covariance(form.array + step * change)[np.ix_(old, old)]
        mean = (case.mean + step * shift).ravel()
        return log_normaliser(k, mean, case.precision, case.sites.location.ravel())[0]

    step = 1e-5
    slope = (value(step) - value(-step)) / (2.0 * step)
    gradient, of_mean = posterior.derivatives()
    assert gradient.shape == form.array.shape
    assert (gradient * change).sum() + (of_mean * shift).sum() == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_cavity_equals_posterior_without_the_site(case, posterior):
    c, old = case.form.functions, case.old
    k = case.k[np.ix_(old, old)]
    mean, cov = posterior.cavities(*posterior.marginals())
    for i in range(N):
        own = np.arange(i, c * N, N)
        others, location = case.precision.copy(), case.sites.location.ravel().copy()
        others[np.ix_(own, own)], location[own] = 0.0, 0.0
        left = np.linalg.solve(np.eye(c * N) + k @ others, k)
        expected = case.mean.ravel() + left @ (location - others @ case.mean.ravel())
        assert_allclose(mean[i], expected[own], atol=1e-8)
        assert_allclose(cov[i], left[np.ix_(own, own)], atol=1e-8)


def test_moments_at_new_points_equal_dense_algebra(case, posterior):
    c, joint = case.form.functions, case.shaped(case.posterior_covariance, ALL)
    mean_there = np.random.default_rng(3).normal(size=(c, NEW))
    mean, cov, block = posterior.at(case.form.points(mean_there))
    across = case.k[:, case.old].reshape(c, ALL, -1)[:, THERE]
    assert_allclose(mean, mean_there + across @ case.weights, atol=1e-9)
    expected = joint[:, THERE, :, THERE]
    assert_allclose(cov, expected[:, range(NEW), :, range(NEW)], atol=1e-9)
    prior = case.shaped(case.k, ALL)[:, THERE, :, THERE]
    variance = np.stack([prior[k, :, k].diagonal() for k in range(c)])
    assert_allclose(np.broadcast_to(block.variance, variance.shape), variance, atol=1e-9)


def test_covariance_of_some_points_equals_dense_algebra(case, posterior):
    some = np.array([4, 0, 3])
    expected = case.shaped(case.posterior_covariance, ALL)[:, some][..., some]
    assert_allclose(posterior.covariance_among(some), expected, atol=1e-9)
    root = posterior.root_among(some)
    assert_allclose(np.einsum("kiq,ljq->kilj", root, root), expected, atol=1e-9)


class Noise:
    """Generator that returns a unit vector with 1 at `place`, or zeros."""

    def __init__(self, place=-1):
        self.place, self.taken = place, 0

    def standard_normal(self, size):
        found = np.zeros(int(np.prod(size)))
        if 0 <= self.place - self.taken < found.size:
            found[self.place - self.taken] = 1.0
        self.taken += found.size
        return found.reshape(size)


def law(draw):
    """Exact mean and covariance of a draw that is an affine function of normal noise."""
    nothing = Noise()
    mean = draw(nothing)
    columns = np.array([(draw(Noise(i)) - mean).ravel() for i in range(nothing.taken)])
    return mean, columns.T @ columns


def test_draws_have_the_moments_of_the_posterior(case, posterior):
    old = case.old
    mean, cov = law(lambda rng: posterior.draw(rng, 1)[0])
    assert_allclose(mean.ravel(), case.mean.ravel() + case.k[np.ix_(old, old)] @ case.weights, atol=1e-9)
    assert_allclose(cov, case.posterior_covariance[np.ix_(old, old)], atol=1e-8)
    again = [posterior.draw(np.random.default_rng(7), 3) for _ in range(2)]
    assert (again[0] == again[1]).all()
    assert np.ptp(again[0], axis=0).min() > 0.0


def test_whitened_values_have_the_moments_of_their_draws(case, posterior):
    mean, cov = law(lambda rng: posterior.draw_whitened(rng, 1)[0])
    centre, variance = posterior.whitened()
    assert_allclose(mean, centre, atol=1e-9)
    assert_allclose(cov.diagonal(), variance.ravel(), atol=1e-8)
    assert_allclose(posterior.prior.latent(centre), posterior.mean, atol=1e-9)
    assert_allclose(posterior.whitened_covariance().reshape(cov.shape), cov, atol=1e-8)


def test_draws_at_new_points_have_the_moments_of_the_prediction(case, posterior):
    """The joint distribution of draws at the data and draws at new points is the joint posterior."""
    c = case.form.functions
    mean_there = np.random.default_rng(4).normal(size=(c, NEW))
    points = case.form.points(mean_there)

    def draw(rng):
        z = posterior.draw_whitened(rng, 1)
        return posterior.prior.draw_at(rng, posterior.prior.latent(z), z, *points)[0]

    mean, cov = law(draw)
    expected, blocks, _ = posterior.at(points)
    assert_allclose(mean, expected, atol=1e-8)
    assert_allclose(cov.reshape(c, NEW, c, NEW)[:, range(NEW), :, range(NEW)], blocks, atol=1e-7)
