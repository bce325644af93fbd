"""Importance weights: verdict on their effective size, and smoothing of their tails."""

import arviz  # noqa: F401  # for the accessor `azstats`
import numpy as np
import pytest
import xarray as xr

from pymc_gpep.hyper.weights import smooth, smooth_each, stand_for_posterior

FEW = 25  # with fewer draws the Pareto fit of the tail is skipped
ROUNDING = 1e-7  # log weights with a smaller range are not smoothed


@pytest.mark.parametrize(
    ("pareto_k", "worth", "trusted"),
    [(0.6, 0.1, True), (0.8, 0.95, True), (0.8, 0.85, False), (1.5, 0.95, False), (1.5, 0.995, True)],
)
def test_weights_with_a_heavy_tail_are_trusted_only_if_they_are_nearly_equal(pareto_k, worth, trusted):
    assert stand_for_posterior(pareto_k, worth * 4000, 4000) is trusted


@pytest.mark.parametrize("draws", [1, 2, 3, 5, 10, 19, 24, 30])
def test_tail_of_few_draws_has_infinite_pareto_k(draws):
    log_weights = np.random.default_rng(draws).normal(size=draws)
    smoothed, pareto_k = smooth(log_weights)
    assert np.isfinite(smoothed).all()
    assert np.isfinite(pareto_k) == (draws == 30)
    assert np.array_equal(smoothed, log_weights) == (draws != 30)


@pytest.mark.parametrize("draws", [20, 30, 100, 1000])
def test_many_tails_are_smoothed_like_single_tails(draws):
    """ArviZ smooths one set of weights and normalises them. ArviZ refuses tails of few draws."""
    rng = np.random.default_rng(draws)
    spread = np.geomspace(1e-12, 30.0, 12)
    log_weights = np.column_stack([scale * rng.standard_normal(draws) for scale in spread])
    log_weights[:, 5] = 0.0
    smoothed, pareto_k = smooth_each(log_weights)
    for column, own, k in zip(log_weights.T, smoothed.T, pareto_k, strict=True):
        alone, alone_k = smooth(column)
        assert alone_k == pytest.approx(k, rel=1e-10)
        np.testing.assert_allclose(alone, own, rtol=1e-10)
        if np.isinf(k):
            assert draws < FEW if k > 0.0 else np.ptp(column) < ROUNDING
            np.testing.assert_allclose(own, column, rtol=1e-12)
            continue
        ratios = xr.DataArray(-column, dims=["draw"])
        expected, expected_k = (found.to_numpy() for found in ratios.azstats.psislw(dim="draw"))
        assert k == pytest.approx(float(expected_k), rel=1e-8)
        lowest = np.argmin(column)  # the smallest weight is not in the tail, so that smoothing does not change it
        np.testing.assert_allclose(own - own[lowest], expected - expected[lowest], rtol=1e-8, atol=1e-10)
