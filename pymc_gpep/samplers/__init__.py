"""Steps for `pm.sample`, one file each."""

from pymc_gpep.latent.lowered_dims import lower_dims
from pymc_gpep.registry import Registry
from pymc_gpep.samplers.elliptical_slice import EllipticalSlice
from pymc_gpep.samplers.guided_hmc import GuidedHMC
from pymc_gpep.samplers.probit_gibbs import ProbitGibbs

__all__ = ["EllipticalSlice", "GuidedHMC", "ProbitGibbs", "lower_dims"]

SAMPLERS = Registry("sampler", (EllipticalSlice, GuidedHMC, ProbitGibbs), name_of=lambda sampler: sampler.__name__)
__getattr__, __dir__ = SAMPLERS.face(__name__)
