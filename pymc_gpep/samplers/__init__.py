"""Step methods for `pm.sample`.

step: base class of the step methods
guided: sites as functions of hyperparameters; steps that move whitened latent values
elliptical_slice: elliptical slice sampling
probit_gibbs: Gibbs sampling of the multinomial probit
inducing_model: a model of inducing values, for any sampler of PyMC
"""

from pymc.step_methods.compound import BlockedStep

from pymc_gpep.latent.lowered_dims import lower_dims
from pymc_gpep.registry import Registry
from pymc_gpep.samplers.elliptical_slice import EllipticalSlice
from pymc_gpep.samplers.guided import GuidedHMC
from pymc_gpep.samplers.probit_gibbs import ProbitGibbs

__all__ = ["EllipticalSlice", "GuidedHMC", "ProbitGibbs", "lower_dims"]

SAMPLERS = Registry("sampler", (EllipticalSlice, GuidedHMC, ProbitGibbs), of=BlockedStep, named="__name__")
__getattr__, __dir__ = SAMPLERS.face(__name__)
