"""Private names of PyMC and PyTensor without public counterparts, under public names of this package.

`pymc_gpep.kernels.compile` has the private names of numba. `pymc_gpep.fits.fit` has the names of PyMC's groups.
"""

import pymc as pm
from pymc.distributions.distribution import _support_point as support_point
from pymc.logprob.abstract import _logprob as log_density
from pytensor.tensor.elemwise import Elemwise

__all__ = ["check_broadcast", "log_density", "share_dims", "support_point"]

check_broadcast = Elemwise._check_runtime_broadcast
"""Raise a ValueError if an elementwise operation would broadcast an axis without the static length 1."""


def share_dims(model: pm.Model, other: pm.Model) -> None:
    """Let two models share their dims, so that setting coordinates of either model sets them in both."""
    model._coords, model._dim_lengths = other._coords, other._dim_lengths
