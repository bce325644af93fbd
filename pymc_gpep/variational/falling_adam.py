"""Adam with a rate that rises, then falls to nothing, so that a fit by batches does not end in the noise of them."""

import numpy as np

from pymc_gpep.argument_types import check_number, check_whole
from pymc_gpep.streaming.falling import FallingAdam

__all__ = ["falling_adam"]


def falling_adam(steps: int, learning_rate: float = 1e-2, rise: int = 0) -> FallingAdam:
    """Adam whose rate falls along half a cosine to 0, for `pm.fit(obj_optimizer=...)` of a fit by batches.

    Parameters
    ----------
    steps : int
        Number of steps after which the rate is 0, of those in which hyperparameters move: without the first epochs of
        the `warmup`.
    learning_rate : float
        The largest rate. Inducing inputs move by about so many standard deviations of their column a step, the
        logarithms of hyperparameters by about so much.
    rise : int
        Number of steps at the beginning in which the rate goes up in a line. The full rate might undo there what the
        warm-up came to.

    Returns
    -------
    function of (gradients, parameters)
        Optimiser that makes the updates, as `pm.adam(learning_rate=...)` does.

    Raises
    ------
    TypeError
        If a number of steps is not a whole one, or the rate is no number.
    ValueError
        If there are not more steps than those of the rise, or if the rate is not positive.

    Notes
    -----
    The number of steps taken is one of the updates. A fit that goes on from a checkpoint thus has the rate that it left
    off with. The fall is that of Loshchilov and Hutter (2017, equation 5), without restarts.

    Examples
    --------
    >>> with model:
    ...     pm.fit(20, method="sparse_ep", batch_size=10, inducing=5, obj_optimizer=gpep.falling_adam(20, 0.03))
    """
    check_whole("rise", rise)
    check_whole("steps", steps, rise + 1)
    check_number("learning_rate", learning_rate)
    if not 0.0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate must be positive, but is {learning_rate}.")

    return FallingAdam(steps, learning_rate, rise)
