"""Every sampler, on every likelihood that it takes, against draws from the prior that are weighted."""

import pymc as pm
import pytest

import pymc_gpep as gpep
from tests.sampling.exactness import PROBLEMS, assert_exact, build

CLASSIFIERS = ("probit", "probit-per-class", "softmax", "softmax-per-class")
PROBIT = CLASSIFIERS[:2]
SAMPLERS = {
    "guided_hmc": (lambda: gpep.GuidedHMC(), CLASSIFIERS),
    "guided_hmc-prior": (lambda: gpep.GuidedHMC(guide="prior"), tuple(PROBLEMS)),
    "elliptical_slice": (lambda: gpep.EllipticalSlice(), CLASSIFIERS),
    "elliptical_slice-prior": (lambda: gpep.EllipticalSlice(guide="prior"), tuple(PROBLEMS)),
    "probit_gibbs-whitened": (lambda: gpep.ProbitGibbs(hyper="whitened"), PROBIT),
    "probit_gibbs-collapsed": (lambda: gpep.ProbitGibbs(hyper="collapsed"), PROBIT),
    "probit_gibbs-centred": (lambda: gpep.ProbitGibbs(hyper="centred"), PROBIT),
}
"""Name → what makes the step, and the problems that it takes."""

QUICK = {
    ("guided_hmc", "probit"),
    ("guided_hmc", "softmax-per-class"),
    ("elliptical_slice-prior", "bernoulli"),
    ("probit_gibbs-whitened", "probit"),
}
"""The rest are slow only because each model is compiled anew."""


@pytest.mark.parametrize(
    ("sampler", "problem"),
    [
        pytest.param(sampler, problem, marks=[] if (sampler, problem) in QUICK else pytest.mark.slow)
        for sampler, (_, problems) in SAMPLERS.items()
        for problem in problems
    ],
)
def test_sampler_is_exact(sampler, problem):
    make, _ = SAMPLERS[sampler]
    with build(PROBLEMS[problem]):
        idata = pm.sample(
            1500, tune=400, chains=2, cores=1, step=make(), random_seed=4, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    # Latent values held fixed leave the hyperparameters little room.
    assert_exact(idata, PROBLEMS[problem], least_effective=20.0 if "centred" in sampler else 100.0)
