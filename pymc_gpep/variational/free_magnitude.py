"""A magnitude that nothing fixes: the likelihood sees only which latent value is largest, and there is no noise."""

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.user_warnings import warn

__all__ = ["warn_of_free_magnitude"]

_MOVE = 0.1  # of a hyperparameter, unconstrained
_NOTHING = 1e-5  # of a variance, more than a jitter


def warn_of_free_magnitude(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> None:
    """Warn where hyperparameters scale latent functions whose scale neither likelihood nor noise fixes.

    Looked at is the prior variance at the first row: whether it has a part that other points at the same inputs do not
    share, and whether it changes with the hyperparameters.
    """
    likelihood = space.classifier.likelihood_model
    if likelihood.fixes_scale or not theta.size:
        return
    x = blocks.rows.inputs(slice(0, 1))

    def variance(at: Array) -> Array:
        return blocks.block(space.point(at), x[None], x).variance

    own = variance(theta)
    noise = own - blocks.inducing(space.point(theta), x[None])[:, :, 0]
    moved = [variance(theta + _MOVE * step) for step in np.eye(theta.size)]
    if (noise > _NOTHING * own).any() or all(np.allclose(each, own, rtol=_NOTHING, atol=0.0) for each in moved):
        return
    warn(
        f"Nothing fixes the magnitude of the latent functions: a {likelihood.name} likelihood sees only which of them "
        "is largest, and they have no noise. It will end where its prior is largest. Add noise to the covariance, "
        "+ pm.gp.cov.WhiteNoise(1.0), or let the magnitude be a number."
    )
