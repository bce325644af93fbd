"""Every sampler with every likelihood that it supports, against weighted draws from the prior."""

import pymc as pm
import pytest

from tests.samplers.exactness import PROBLEMS, assert_exact, build
from tests.samplers.samplers import SAMPLERS

FEW = {
    ("guided_hmc", "softmax-per-class"): 140,
    ("guided_hmc-iep", "probit-per-class"): 300,
    ("elliptical_slice-prior", "bernoulli"): 200,
    ("probit_gibbs-whitened", "probit"): 240,
    ("probit_gibbs-collapsed", "bernoulli-probit"): 190,
}
"""Lengths of short chains with an effective sample size of 50. Each sampler and each problem occurs.

Chains of all pairs take long and belong to the calibration.
"""

ALL = [
    (name, problem)
    for name, sampler in SAMPLERS.items()
    for problem in PROBLEMS
    # This pair mixes too slowly for reliable Monte Carlo errors. The calibration tests cover it.
    if PROBLEMS[problem].kind in sampler.kinds and name != "probit_gibbs-centred"
]


@pytest.mark.parametrize(
    ("sampler", "problem", "draws"),
    [
        *(pytest.param(*each, draws, marks=pytest.mark.slow) for each, draws in FEW.items()),
        *(pytest.param(*each, 1500, marks=pytest.mark.calibration) for each in ALL),
    ],
)
def test_sampler_of_a_single_process_matches_weighted_prior_draws(sampler, problem, draws):
    with build(PROBLEMS[problem]):
        idata = pm.sample(
            draws, tune=draws // 3, chains=2, cores=1, step=SAMPLERS[sampler].make(), random_seed=4, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    # Hyperparameters given latent values hardly move if another step updates them.
    least = 20.0 if sampler == "scaled_metropolis" else 100.0 if draws >= 1500 else 50.0
    assert_exact(idata, PROBLEMS[problem], least_effective=least)
