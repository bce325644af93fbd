"""Every sampler, on every likelihood that it takes, against draws from the prior that are weighted."""

import pymc as pm
import pytest

import pymc_gpep as gpep
from tests.sampling.exactness import PROBLEMS, assert_exact, build

SAMPLERS = {
    "guided_hmc": lambda: gpep.GuidedHMC(),
    "guided_hmc-prior": lambda: gpep.GuidedHMC(guide="prior"),
    "elliptical_slice": lambda: gpep.EllipticalSlice(),
    "elliptical_slice-prior": lambda: gpep.EllipticalSlice(guide="prior"),
}
CASES = [
    (sampler, problem)
    for sampler in SAMPLERS
    for problem in PROBLEMS
    if not (problem == "bernoulli" and not sampler.endswith("-prior"))
]


@pytest.mark.parametrize(("sampler", "problem"), CASES)
def test_sampler_is_exact(sampler, problem):
    with build(PROBLEMS[problem]):
        idata = pm.sample(
            2000, tune=500, chains=2, cores=1, step=SAMPLERS[sampler](), random_seed=4, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert_exact(idata, PROBLEMS[problem])
