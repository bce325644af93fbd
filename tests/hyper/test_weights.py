"""When weighted draws can be trusted."""

import numpy as np
import pytest

from pymc_gpep.hyper.weights import smooth, stand_for_posterior


@pytest.mark.parametrize(
    ("pareto_k", "worth", "trusted"),
    [(0.6, 0.1, True), (0.8, 0.95, True), (0.8, 0.85, False), (1.5, 0.95, False), (1.5, 0.995, True)],
)
def test_a_heavy_tail_does_no_harm_where_weights_are_alike(pareto_k, worth, trusted):
    assert stand_for_posterior(pareto_k, worth * 4000, 4000) is trusted


@pytest.mark.parametrize("draws", [1, 2, 3, 5, 10, 19, 24, 30])
def test_a_tail_of_few_draws_says_nothing(draws):
    log_weights = np.random.default_rng(draws).normal(size=draws)
    smoothed, pareto_k = smooth(log_weights)
    assert np.isfinite(smoothed).all()
    assert np.isfinite(pareto_k) == (draws == 30)
    assert np.array_equal(smoothed, log_weights) == (draws != 30)
