"""Draws of utilities from the cone, against rejection sampling, the reference sampler and exact distributions."""

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import ks_2samp, kstest

from pymc_gpep.kernels.sampling import draw_in_cone
from tests.reference.gibbs import draw_utilities

DRAWS = 4000
LEAST = 1e-3  # limit for p values; with these seeds the smallest is well above

MODERATE = [
    ((0.0, 0.0), 1),
    ((1.0, -0.5), 0),
    ((-1.0, 0.5), 0),
    ((0.3, 0.3, 0.3), 2),
    ((0.0, 1.5, -1.0), 0),
    ((2.0, -1.0, 0.5), 0),
    ((0.0, 0.2, -0.4, 1.0, -2.0), 1),
    ((0.0, 0.0, 0.5, 0.5, -1.0), 4),
]
FAR = [
    ((-30.0, 0.0), 0),
    ((30.0, 0.0), 0),
    ((0.0, 0.0, 30.0), 0),
    ((0.0, 30.0, 30.0, 29.0, 30.0), 0),
    ((30.0, 0.0, 29.5, 10.0, -30.0), 0),
    ((-1000.0, 0.0, 0.0), 0),
]


def draws(f, label, count=DRAWS, seed=1):
    """Independent draws at one point, (c, count)."""
    columns = np.repeat(np.array(f)[:, None], count, axis=1)
    v = np.full_like(columns, np.nan)
    draw_in_cone(np.random.default_rng(seed), columns, np.full(count, label), v)
    return v


def statistics(v, label):
    """All coordinates, and their distances from the largest, whose joint distribution is compared."""
    others = np.delete(v, label, axis=0)
    return np.concatenate([v, v[label] - others, v.sum(axis=0, keepdims=True)])


def by_rejection(f, label):
    rng = np.random.default_rng(2)
    kept = np.empty((len(f), 0))
    while kept.shape[1] < DRAWS:
        v = np.array(f)[:, None] + rng.standard_normal((len(f), 50_000))
        kept = np.concatenate([kept, v[:, v.argmax(axis=0) == label]], axis=1)
    return kept[:, :DRAWS]


def distribution_functions(f, label):
    """Distribution functions of all coordinates, by quadrature over the largest."""
    f = np.array(f)
    others = np.delete(f, label)
    low, high = f.min() - 10.0, f.max() + 10.0
    coarse = np.linspace(low, high, 20_001)

    def log_density(t):
        return -0.5 * (t - f[label]) ** 2 + log_ndtr(t[:, None] - others).sum(axis=1)

    mode = coarse[log_density(coarse).argmax()]
    t = np.linspace(mode - 9.0, mode + 9.0, 1001)
    weights = np.exp(log_density(t) - log_density(t).max())
    weights /= weights.sum()
    functions = []
    for j, mean in enumerate(f):
        if j == label:
            values, x = np.cumsum(weights) - 0.5 * weights, t
        else:
            x = np.linspace(max(low, min(mean, mode) - 9.0), mode + 9.0, 1001)
            x = np.unique(np.concatenate([x, np.linspace(mode - 9.0, mode + 9.0, 1001)]))
            log_share = np.minimum(log_ndtr(x[:, None] - mean) - log_ndtr(t - mean), 0.0)
            values = np.exp(log_share) @ weights
        functions.append((x, values))
    return functions


@pytest.mark.parametrize(("f", "label"), MODERATE)
def test_draws_match_rejection_sampling(f, label):
    ours, theirs = (statistics(v, label) for v in (draws(f, label), by_rejection(f, label)))
    assert min(ks_2samp(a, b).pvalue for a, b in zip(ours, theirs, strict=True)) > LEAST


@pytest.mark.parametrize(("f", "label"), MODERATE + FAR)
def test_draws_match_the_reference(f, label):
    columns = np.repeat(np.array(f)[:, None], DRAWS, axis=1)
    theirs = draw_utilities(np.random.default_rng(3), columns[None], np.full(DRAWS, label))[0]
    ours = draws(f, label)
    pairs = zip(statistics(ours, label), statistics(theirs, label), strict=True)
    assert min(ks_2samp(a, b).pvalue for a, b in pairs) > LEAST


@pytest.mark.parametrize(("f", "label"), MODERATE + FAR)
def test_draws_match_distribution_functions(f, label):
    for sample, (x, values) in zip(draws(f, label), distribution_functions(f, label), strict=True):
        assert kstest(sample, lambda s, x=x, values=values: np.interp(s, x, values)).pvalue > LEAST


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("c", [2, 3, 5, 20])
def test_observed_class_has_the_largest_utility(c, spread):
    rng = np.random.default_rng(4)
    f = spread * rng.standard_normal((c, 500))
    labels = rng.integers(0, c, 500)
    v = np.full_like(f, np.nan)
    draw_in_cone(rng, f, labels, v)
    assert np.isfinite(v).all()
    assert (v.argmax(axis=0) == labels).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_infinite_or_distant_arguments_return_nan(value):
    f = np.zeros((3, 2))
    f[1, 0] = value
    v = np.zeros_like(f)
    draw_in_cone(np.random.default_rng(5), f, np.array([0, 2]), v)
    assert np.isnan(v[:, 0]).all()
    assert np.isfinite(v[:, 1]).all()


def test_draws_are_reproducible():
    first, again, other = (draws((0.0, 1.0, 2.0), 1, 5, seed) for seed in (6, 6, 7))
    np.testing.assert_array_equal(first, again)
    assert not np.isin(first, other).any()
    assert np.unique(first).size == first.size
