"""Samplers that are compared with exact results and with each other."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pymc as pm

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier


class Sampler(NamedTuple):
    """Function that makes steps in the context of a model, and the kinds of models that it supports."""

    make: Callable[[], Any]
    kinds: tuple[str, ...] = ("multinomial_probit", "softmax", "bernoulli", "bernoulli_probit")


def _scaled_metropolis() -> list[Any]:
    """The step does not move hyperparameters. Slice samplers move them, one at a time."""
    return [gpep.samplers.ScaledMetropolis(), pm.Slice(list(read_classifier(pm.modelcontext(None)).hyperparameters))]


PROBITS = ("multinomial_probit", "bernoulli_probit")
SAMPLERS = {
    "guided_hmc": Sampler(lambda: gpep.samplers.GuidedHMC()),
    "guided_hmc-prior": Sampler(lambda: gpep.samplers.GuidedHMC(guide="prior")),
    "guided_hmc-iep": Sampler(lambda: gpep.samplers.GuidedHMC(guide="iep"), ("multinomial_probit",)),
    "elliptical_slice": Sampler(lambda: gpep.samplers.EllipticalSlice()),
    "elliptical_slice-prior": Sampler(lambda: gpep.samplers.EllipticalSlice(guide="prior")),
    "probit_gibbs-collapsed": Sampler(lambda: gpep.samplers.ProbitGibbs(hyper="collapsed"), PROBITS),
    "probit_gibbs-whitened": Sampler(lambda: gpep.samplers.ProbitGibbs(hyper="whitened"), PROBITS),
    "probit_gibbs-centred": Sampler(lambda: gpep.samplers.ProbitGibbs(hyper="centred"), PROBITS),
    "pseudo_marginal": Sampler(lambda: gpep.samplers.PseudoMarginal()),
    "scaled_metropolis": Sampler(_scaled_metropolis),
}
