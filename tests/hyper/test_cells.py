"""Integration by cells that cover the region of the prior, against fine grids of closed forms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.hyper.cells import Cells, extent
from tests.hyper.given_density import Given

LEVELS = np.array([0.025, 0.25, 0.5, 0.75, 0.975])


def log_normal(covariance, y):
    """Log density of y (n,) under N(0, covariance) for covariances (..., n, n)."""
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, np.broadcast_to(y, root.shape[:-1])[..., None])[..., 0]
    return -0.5 * (white**2).sum(axis=-1) - np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)


def half_normal(t, scale):
    """Log density of t = log s if s is half-normal."""
    return -0.5 * (np.exp(t) / scale) ** 2 + t


class Process:
    """Twelve normal rows of a Gaussian process. The hyperparameters are log length scale, log scale and log noise."""

    names = "ls", "s", "noise"
    box = (-6.0, 9.0), (-8.0, 2.5), (-7.0, 1.5)
    natural = (np.exp,) * 3

    def __init__(self):
        rng, x = np.random.default_rng(4), np.linspace(0, 5, 12)
        self.y = np.sin(2.2 * x) * 0.7 + 0.35 * rng.normal(size=12) + 0.3 * x
        self.square = (x[:, None] - x) ** 2

    def prior(self, t):
        return -0.5 * (t[..., 0] / 1.5) ** 2 + half_normal(t[..., 1], 2.0) + half_normal(t[..., 2], 1.0)

    def __call__(self, t):
        ls, s, noise = np.moveaxis(np.exp(t)[..., None, None], -3, 0)
        k = s**2 * (np.exp(-0.5 * self.square / ls**2) + 1e-9 * np.eye(12)) + noise**2 * np.eye(12)
        return log_normal(k, self.y) + self.prior(t)


class Autoregression(Process):
    """Twelve normal rows of an autoregression.

    The hyperparameters are the logit of (1 + ρ) / 2, log scale and log noise.
    """

    names = "rho", "s", "noise"
    box = (-9.0, 9.0), (-8.0, 1.5), (-8.0, 1.5)
    natural = lambda t: np.tanh(0.5 * t), np.exp, np.exp

    def __init__(self):
        rng, f = np.random.default_rng(0), [0.1257]
        while len(f) < 12:
            f.append(0.7 * f[-1] + 0.7 * rng.normal())
        self.y = np.array(f) + 0.4 * rng.normal(size=12)
        self.lag = np.abs(np.arange(12)[:, None] - np.arange(12))

    def prior(self, t):
        uniform = -np.logaddexp(0.0, t[..., 0]) - np.logaddexp(0.0, -t[..., 0])
        return uniform + half_normal(t[..., 1], 1.0) + half_normal(t[..., 2], 1.0)

    def __call__(self, t):
        rho = np.tanh(0.5 * t[..., 0])[..., None, None]
        s, noise = np.moveaxis(np.exp(t[..., 1:])[..., None, None], -3, 0)
        k = np.sign(rho) ** self.lag * np.abs(rho) ** self.lag / (1.0 - rho**2)
        return log_normal(s**2 * k + noise**2 * np.eye(12), self.y) + self.prior(t)


def quantiles_on_a_grid(density, count):
    """Quantiles (d, 5) and standard deviations (d,) of natural values, on a grid of unconstrained values."""
    axes = [np.linspace(*ends, count) for ends in density.box]
    logs = density(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1))
    weights = np.exp(logs - logs.max())
    quantiles, sds = [], []
    for j, (axis, natural) in enumerate(zip(axes, density.natural, strict=True)):
        fine = np.linspace(axis[0], axis[-1], 4001)
        own = np.interp(fine, axis, np.log(weights.sum(axis=tuple(k for k in range(len(axes)) if k != j))))
        own = np.exp(own - own.max())
        own /= own.sum()
        quantiles.append(natural(np.interp(LEVELS, np.cumsum(own) - 0.5 * own, fine)))
        sds.append(np.sqrt(own @ natural(fine) ** 2 - (own @ natural(fine)) ** 2))
    return np.array(quantiles), np.array(sds)


@pytest.mark.variation(but=["Process"])
@pytest.mark.parametrize("kind", [Process, Autoregression])
def test_quantiles_of_densities_with_branches_match_a_fine_grid(kind):
    """The density has two branches, because signal and noise can exchange their roles."""
    density = kind()
    exact, sd = quantiles_on_a_grid(density, 48)
    found = Given(density, density.names, density.prior).integrated()
    assert found.converged, found.message
    for j, natural in enumerate(density.natural):
        assert_allclose((np.quantile(natural(found.density[:, j]), LEVELS) - exact[j]) / sd[j], 0, atol=0.06)


def two_hills(x):
    """Log density of two normal hills of standard deviations 0.5 and 0.35, centred at 3 and −3 in each coordinate."""
    left, right = ((x - 3.0) ** 2).sum(axis=-1) / 0.5**2, ((x + 3.0) ** 2).sum(axis=-1) / 0.35**2
    return np.logaddexp(-0.5 * left, -0.5 * right)


def wide(x):
    return -0.5 * ((np.asarray(x) / 3.0) ** 2).sum(axis=-1)


@pytest.mark.parametrize("seed", [1, 2])
def test_separate_mode_has_the_share_of_draws_that_equals_its_mass(seed):
    """In two dimensions the share of a hill is its variance divided by the sum of both variances."""
    found = Given(two_hills, ["a", "b"], wide).integrated(at=[3.0, 3.0], random_seed=seed)
    assert (found.density[:, 0] < 0.0).mean() == pytest.approx(0.35**2 / (0.35**2 + 0.5**2), abs=0.01)
    assert found.log_evidence == pytest.approx(np.log(2.0 * np.pi * (0.35**2 + 0.5**2)), abs=0.02)


def test_quantiles_do_not_depend_on_the_seed():
    found = [Given(two_hills, ["a", "b"], wide).integrated(at=[3.0, 3.0], random_seed=seed) for seed in (1, 2)]
    one, other = (np.quantile(each.density, LEVELS, axis=0) for each in found)
    assert_allclose(one, other, atol=0.02)


def test_too_few_cells_are_reported():
    found = Given(two_hills, ["a", "b"], wide).integrated(at=[3.0, 3.0], evaluations=60)
    assert not found.converged
    assert "the masses of cells" in found.message


def test_mass_at_the_border_of_the_region_is_reported():
    found = Given(lambda x: np.asarray(x[..., 0]) * 0.0, ["a"], lambda x: 0.0).integrated
    with pytest.raises(ValueError, match="does not fall along any hyperparameter"):
        found(at=[0.0])
    tail = Given(lambda x: -0.55 * np.log1p(x[..., 0] ** 2), ["a"], lambda x: 0.0).integrated(at=[0.0])
    assert "not negligible at the border" in tail.message


def test_region_ends_where_the_log_prior_has_fallen_by_a_constant():
    low, high = extent(lambda x: float(wide(x)), np.array([1.0, 0.0]), np.array([0, 1]))
    assert_allclose([low[1], high[1]], np.array([-1, 1]) * 3.0 * np.sqrt(18.0), atol=1.5)


def test_failed_evaluations_within_the_mass_are_reported():
    found = Given(lambda x: np.nan if x[0] > 1.3 else -0.5 * float(x @ x), ["a", "b"], wide).integrated(at=[0.0, 0.0])
    assert "the approximation failed at" in found.message
    assert found.density[:, 0].max() < 1.6


def test_lost_mass_of_a_tail_is_near_its_integral():
    """Evaluations fail beyond 6. The density 1 / (π cosh) has the mass 2 atan(exp(−6)) / π there."""

    def evaluate(z, near):
        return np.where(z[:, 0] < 6.0, -np.log(np.cosh(z[:, 0])), -np.inf), -np.tanh(z)

    cells = Cells(np.array([-20.0]), np.array([20.0]), evaluate)
    cells.refine(3e-3, 100)
    exact = 2.0 * np.arctan(np.exp(-6.0)) / np.pi
    assert exact / 4.0 < cells.share_lost < 4.0 * exact


def test_mode_that_the_surrogate_density_misses_is_reported():
    """The first of four hyperparameters has a second hill, as high as the first and wider."""

    def hills(x):
        rest = -0.5 * (x[..., 1:] ** 2).sum(axis=-1)
        return rest + np.logaddexp(-0.5 * (x[..., 0] / 0.5) ** 2, -0.5 * (x[..., 0] - 8.0) ** 2)

    found = Given(hills, list("abcd"), wide).integrated(at=np.zeros(4))
    assert not found.converged
    assert "higher than its interpolation at points of about" in found.message
    one = Given(lambda x: -0.5 * (x**2).sum(axis=-1), list("abcd"), wide).integrated(at=np.zeros(4))
    assert one.converged
