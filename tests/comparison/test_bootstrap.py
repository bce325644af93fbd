"""Bayesian bootstrap."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.comparison import held_out_scores as bootstrap

VALUES = np.random.default_rng(1).normal(size=25)


def test_bootstrap_moments_match_dirichlet_weights():
    """For w ~ Dirichlet(1, ..., 1), Σ w x has the mean of x, and the variance of x divided by n + 1."""
    draws = gpep.diagnostics.bayesian_bootstrap(VALUES, draws=40_000, random_seed=2)
    assert draws.shape == (40_000,)
    variance = VALUES.var() / (VALUES.size + 1)
    assert draws.mean() == pytest.approx(VALUES.mean(), abs=4 * np.sqrt(variance / 40_000))
    assert draws.var() == pytest.approx(variance, rel=0.05)


def test_all_columns_of_scores_have_the_same_bootstrap_weights():
    draws = gpep.diagnostics.bayesian_bootstrap(np.stack([VALUES, VALUES + 1, 2 * VALUES], axis=1), random_seed=3)
    assert draws.shape == (4000, 3)
    assert_allclose(draws[:, 1] - draws[:, 0], 1)
    assert_allclose(draws[:, 2], 2 * draws[:, 0])


def test_draws_depend_on_the_seed_but_not_on_chunks(monkeypatch):
    one = gpep.diagnostics.bayesian_bootstrap(VALUES, draws=10, random_seed=4)
    monkeypatch.setattr(bootstrap, "_NUMBERS", 3 * VALUES.size)
    assert_allclose(gpep.diagnostics.bayesian_bootstrap(VALUES, draws=10, random_seed=4), one)
    assert not np.allclose(gpep.diagnostics.bayesian_bootstrap(VALUES, draws=10, random_seed=5), one)


def test_invalid_arguments_raise_errors():
    with pytest.raises(ValueError, match="at least 1 point"):
        gpep.diagnostics.bayesian_bootstrap([])
    with pytest.raises(ValueError, match="draws must be at least 1"):
        gpep.diagnostics.bayesian_bootstrap(VALUES, draws=0)
