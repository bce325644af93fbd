"""When weighted draws can be trusted."""

import pytest

from pymc_gpep.hyper.weights import stand_for_posterior


@pytest.mark.parametrize(
    ("pareto_k", "worth", "trusted"),
    [(0.6, 0.1, True), (0.8, 0.95, True), (0.8, 0.85, False), (1.5, 0.95, False), (1.5, 0.995, True)],
)
def test_a_heavy_tail_does_no_harm_where_weights_are_alike(pareto_k, worth, trusted):
    assert stand_for_posterior(pareto_k, worth * 4000, 4000) is trusted
