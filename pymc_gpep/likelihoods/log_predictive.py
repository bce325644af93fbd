"""Log probability of the class that was observed, the latent values integrated out: far into the tails as well.

Class probabilities are computed to an absolute error. Only the logarithm says anything about a label that nothing made
likely. Small probabilities are therefore computed again more precisely, and tiny ones by other means.
"""

import numpy as np
from numpy.typing import ArrayLike

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood

_RELATIVE = 1e-2  # error of a probability to accept
_TINY = 1e-7  # below this, absolute errors of 1e-10 would be felt


def log_predictive(
    likelihood: Likelihood, mean: ArrayLike, cov: ArrayLike, labels: ArrayLike, *, tolerance: float = 5e-5
) -> Array:
    """log ∫ p(y_i | f_i) N(f_i | mean_i, cov_i) df_i at m points.

    Parameters
    ----------
    likelihood : Likelihood
    mean : array_like (m, c)
        Means of the latent values.
    cov : array_like (m, c, c)
        Their covariances, which may be singular.
    labels : array_like of int (m,)
        Observed classes, counted from 0.
    tolerance : float
        Absolute error of the probabilities to begin with. Where it is more than a hundredth of the one of the observed
        class, they are computed again, with a tolerance that makes it less.

    Returns
    -------
    array (m,)
        Log probabilities. Where the probability is below 1e-7, or still not known to a hundredth, the likelihood's own
        computation for tails is good to about 0.01. NaN where the input is.
    """
    mean, cov = np.ascontiguousarray(mean, np.float64), np.ascontiguousarray(cov, np.float64)
    y = np.asarray(labels, likelihood.observed_dtype)
    if not likelihood.observes_classes(mean.shape[1]):
        return likelihood.log_tail(mean, cov, y)
    every, error = likelihood.probabilities(mean, cov, tolerance=tolerance)
    p = every[range(len(y)), y]
    for i in np.flatnonzero((error > _RELATIVE * p) & (p > _TINY)):
        finer, error[[i]] = likelihood.at([i]).probabilities(mean[[i]], cov[[i]], tolerance=_RELATIVE * p[i])
        p[i] = finer[0, y[i]]
    tail = (p <= _TINY) | (error > _RELATIVE * p)
    log_p: Array = np.log(np.where(tail, 1.0, p))
    log_p[tail] = likelihood.at(tail).log_tail(mean[tail], cov[tail], y[tail])
    return log_p
