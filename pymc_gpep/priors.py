"""Default priors of hyperparameters, as variables of PyMC."""

from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pytensor.tensor.variable import TensorVariable

# Standard deviation of the log length scale. Nine tenths of the prior mass are within a factor of 12 of the median.
_SPREAD_OF_SCALE = 1.5
# Mean and standard deviation of the log magnitude, where the probit noise has the standard deviation 1.
_MAGNITUDE = 1.0, 1.5


def default_priors(
    X: ArrayLike, *, ard: bool = False, names: tuple[str, str] = ("ls", "eta"), **kwargs: Any
) -> tuple[TensorVariable, TensorVariable]:
    """Add weakly informative priors of length scale and magnitude to the current model, scaled by the inputs.

    Both priors are `pm.LogNormal`. The median of a length scale is the root mean square distance between points,
    divided by √2. For d standardised inputs it is √d. With `ard` it is the standard deviation of each input, times √d.
    The median of the magnitude is e, where the probit noise has the standard deviation 1. Nine tenths of the prior mass
    are within a factor of 12 of the medians. The page on priors shows results.

    Parameters
    ----------
    X : array (n, d)
        Training inputs, standardised or not; also a data frame.
    ard : bool
        Whether each input has a separate length scale. If not, standardise the inputs, or use a common unit.
    names : (str, str)
        Names of the length scale and of the magnitude. A model with several processes needs different names.
    **kwargs
        Arguments of the prior of the length scale, such as `dims`.

    Returns
    -------
    (TensorVariable, TensorVariable)
        Length scale, a scalar or (d,), and magnitude: the standard deviation of the latent functions.

    Raises
    ------
    TypeError
        If no model is current.
    ValueError
        If `X` is not (points, inputs), has values that are not finite, or does not vary.

    Examples
    --------
    >>> with pm.Model():
    ...     ls, eta = gpep.default_priors(X, ard=True)
    ...     gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
    """
    inputs = np.asarray(X, dtype=np.float64)
    if inputs.ndim != 2:
        raise ValueError(
            f"X must be (points, inputs), but has shape {inputs.shape}; one input is a column, X[:, None]."
        )
    if not np.isfinite(inputs).all():
        raise ValueError(f"X must be finite, but has {np.count_nonzero(~np.isfinite(inputs))} values that are not.")
    spread = inputs.std(axis=0)
    if not spread.any():
        raise ValueError("All rows of X are equal, so X suggests no length scale.")
    d = spread.size
    overall = np.sqrt((spread**2).sum())
    # The length scale of a constant input has no effect.
    median = np.where(spread > 0, spread * np.sqrt(d), overall) if ard else overall
    shape = {} if "dims" in kwargs or "shape" in kwargs or not ard else {"shape": d}
    ls = pm.LogNormal(names[0], np.log(median), _SPREAD_OF_SCALE, **shape, **kwargs)
    return ls, pm.LogNormal(names[1], *_MAGNITUDE)
