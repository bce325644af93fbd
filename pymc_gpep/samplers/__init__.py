"""Steps for `pm.sample`, one file each."""

from pymc_gpep.latent.lowered_dims import lower_dims
from pymc_gpep.samplers.elliptical_slice import EllipticalSlice
from pymc_gpep.samplers.guided_hmc import GuidedHMC
from pymc_gpep.samplers.probit_gibbs import ProbitGibbs
from pymc_gpep.samplers.pseudo_marginal import PseudoMarginal
from pymc_gpep.samplers.scaled_metropolis import ScaledMetropolis

__all__ = ["EllipticalSlice", "GuidedHMC", "ProbitGibbs", "PseudoMarginal", "ScaledMetropolis", "lower_dims"]
