"""Every sampler, on every likelihood that it takes, against draws from the prior that are weighted."""

import pymc as pm
import pytest

from tests.sampling.exactness import PROBLEMS, assert_exact, build
from tests.sampling.samplers import SAMPLERS

FEW = {
    ("guided_hmc", "probit"),
    ("guided_hmc", "softmax-per-class"),
    ("guided_hmc-iep", "probit-per-class"),
    ("elliptical_slice-prior", "bernoulli"),
    ("guided_hmc", "bernoulli"),
    ("guided_hmc", "bernoulli-probit"),
    ("probit_gibbs-whitened", "probit"),
    ("probit_gibbs-whitened", "bernoulli-probit"),
    ("probit_gibbs-collapsed", "bernoulli-probit"),
}
"""With short chains these are slow; long chains of all are so many that they belong to the calibration."""

ALL = [
    (name, problem)
    for name, sampler in SAMPLERS.items()
    for problem in PROBLEMS
    # That one mixes too badly for its Monte Carlo errors to be believed; the tests of calibration have it.
    if PROBLEMS[problem].kind in sampler.kinds and name != "probit_gibbs-centred"
]


@pytest.mark.parametrize(
    ("sampler", "problem", "draws"),
    [
        *(pytest.param(*each, 600, marks=pytest.mark.slow) for each in ALL if each in FEW),
        *(pytest.param(*each, 1500, marks=pytest.mark.calibration) for each in ALL),
    ],
)
def test_sampler_is_exact(sampler, problem, draws):
    with build(PROBLEMS[problem]):
        idata = pm.sample(
            draws, tune=draws // 3, chains=2, cores=1, step=SAMPLERS[sampler].make(), random_seed=4, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    # Where other steps move the hyperparameters given the latent values, these leave them little room.
    assert_exact(idata, PROBLEMS[problem], least_effective=20.0 if sampler == "scaled_metropolis" else 100.0)
