"""Samplers on data from their own model: simulation-based calibration, and Geweke's joint distribution test.

Each test is a family of comparisons with fixed seeds. All p values must exceed 1e-3 divided by their number, so that an
exact sampler fails a test with probability below 1e-3 (Bonferroni).
"""

import numpy as np
import pytest

import pymc_gpep as gpep
from tests.reference.rank_uniformity import ecdf_p_value, histogram_p_value
from tests.samplers.calibration import ETA, LIKELIHOODS, QUANTITIES, Chain, build, joint_p_values, rank_p_values
from tests.samplers.samplers import SAMPLERS

FALSE_ALARM = 1e-3
REPLICATIONS, DRAWS, FORGET = 200, 15, 3
CHAINS, LENGTH = 200, 5  # LENGTH is multiplied by the numbers below
# Transitions between ranked draws, from measured autocorrelations.
THIN = {
    "guided_hmc": 10,
    "guided_hmc-prior": 6,
    "elliptical_slice": 8,
    "elliptical_slice-prior": 5,
    "probit_gibbs-collapsed": 7,
    "probit_gibbs-whitened": 5,
    "probit_gibbs-centred": 30,
    "pseudo_marginal": 8,
    "scaled_metropolis": 4,
}


def ranks_of(chain: Chain, thin: int) -> tuple[np.ndarray, np.ndarray]:
    """p values and autocorrelations of simulation-based calibration."""
    ranks, correlations = chain.ranks(np.random.default_rng(11), REPLICATIONS, DRAWS, thin, FORGET)
    return rank_p_values(ranks, DRAWS), correlations


def joint_of(chain: Chain, thin: int) -> np.ndarray:
    """p values of the joint distribution test."""
    visited = chain.successive(np.random.default_rng(12), CHAINS, LENGTH * thin)
    return np.concatenate(joint_p_values(visited, chain.likelihood, np.random.default_rng(13)))


ALL = [(name, kind) for name in THIN for kind in SAMPLERS[name].kinds if kind in LIKELIHOODS]


@pytest.fixture(scope="module", params=ALL, ids="-".join)
def sampler(request):
    name, kind = request.param
    return name, Chain(SAMPLERS[name].make, seed=1, likelihood=kind)


@pytest.mark.calibration
def test_ranks_of_draws_from_a_single_process_are_uniform(sampler):
    name, chain = sampler
    p, correlations = ranks_of(chain, THIN[name])
    # Correlated draws widen the distribution of ranks, and a chain that hardly moves does not test anything.
    assert correlations.max() < 0.6, dict(zip(QUANTITIES, correlations, strict=True))
    assert p.min() > FALSE_ALARM / p.size, dict(zip(QUANTITIES, p.T, strict=True))


@pytest.mark.calibration
def test_sampler_leaves_the_joint_distribution_invariant(sampler):
    name, chain = sampler
    p = joint_of(chain, THIN[name])
    assert p.min() > FALSE_ALARM / p.size, p


class ForgetsNormaliser(gpep.samplers.GuidedHMC):
    """A mistaken sampler: it treats the evidence of the sites as constant in the hyperparameters."""

    def whitening(self, prior, point):
        whitening = super().whitening(prior, point)
        if whitening is not None:
            whitening.log_evidence = 0.0
        return whitening


MISTAKES = {
    "normaliser": lambda: Chain(ForgetsNormaliser, seed=1),
    "prior": lambda: Chain(
        lambda: gpep.samplers.GuidedHMC(guide="prior"), seed=1, model=build(LIKELIHOODS["multinomial_probit"], 2 * ETA)
    ),
}


@pytest.fixture(scope="module", params=MISTAKES)
def mistaken(request):
    return MISTAKES[request.param]()


@pytest.mark.calibration
def test_ranks_detect_a_mistaken_sampler(mistaken):
    p, _ = ranks_of(mistaken, 6)
    assert p.min() < FALSE_ALARM / p.size


@pytest.mark.calibration
def test_joint_distribution_test_detects_a_mistaken_sampler(mistaken):
    p = joint_of(mistaken, 6)
    assert p.min() < FALSE_ALARM / p.size


@pytest.mark.variation(but=["histogram"])
@pytest.mark.parametrize(
    "p_value", [lambda r: histogram_p_value(r, 15, 16), lambda r: ecdf_p_value(r, 15)], ids=["histogram", "ecdf"]
)
def test_p_values_of_uniform_ranks_are_uniform(p_value):
    rng = np.random.default_rng(0)
    p = np.array([p_value(rng.integers(0, 16, 100)) for _ in range(120)])
    # Ranks are integers, so that p values are discrete. The tolerance is 4 standard errors of the fraction below a
    # level.
    for level in (0.05, 0.2, 0.5):
        assert abs((p <= level).mean() - level) < 4.0 * np.sqrt(level * (1.0 - level) / p.size)
    skewed = rng.binomial(15, rng.beta(1.0, 2.5, size=100))
    assert p_value(skewed) < 1e-4
