"""A jitter that is meant as noise: fits with inducing inputs have none of it at their rows."""

from pymc.gp.util import JITTER_DEFAULT

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.structure.latent import jitter_of
from pymc_gpep.user_warnings import warn

__all__ = ["warn_of_jitter"]

_MUCH = 1e-3  # of the prior variance


def warn_of_jitter(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> None:
    """Warn where the jitter of a prior is more than PyMC's own, and than rounding needs at the first row.

    Raises
    ------
    StructureError
        If a jitter is no number.
    """
    latents = space.classifier.latents
    jitters = {latent.f.name: jitter_of(latent) for latent in latents}
    x = blocks.rows.inputs(slice(0, 1))
    least = float(blocks.block(space.point(theta), x[None], x).variance.min())
    for name, jitter in jitters.items():
        if jitter > max(JITTER_DEFAULT, _MUCH * least):
            warn(
                f"The prior of {name!r} has a jitter of {jitter:.3g}, which fits with inducing inputs leave out. Where "
                f"it is meant as noise, give the covariance a term + pm.gp.cov.WhiteNoise({jitter**0.5:.3g}) in its "
                "place."
            )
