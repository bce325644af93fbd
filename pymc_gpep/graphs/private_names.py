"""Private names of PyMC and PyTensor without public counterparts, under names of this package.

Private names of numba are in `pymc_gpep.kernels.compile`, and names of PyMC's groups in `pymc_gpep.fits.fit`.
"""

import pymc as pm
from pymc.distributions.distribution import _support_point as support_point
from pymc.logprob.abstract import _logprob as log_density
from pytensor.tensor.elemwise import Elemwise

__all__ = ["check_broadcast", "log_density", "share_dims", "support_point"]

check_broadcast = Elemwise._check_runtime_broadcast
"""Raise a ValueError where an operation on arrays would stretch an axis that is not known to have length 1."""


def share_dims(model: pm.Model, other: pm.Model) -> None:
    """Let two models share their dims, so that coordinates set in either are set in both."""
    model._coords, model._dim_lengths = other._coords, other._dim_lengths
