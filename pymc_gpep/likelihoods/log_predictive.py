"""Log probability of the class that was observed, the latent values integrated out: far into the tails as well.

Class probabilities are computed to an absolute error. Of a label that nothing made likely only the logarithm says
anything, so that small probabilities are asked for again more precisely, and tiny ones computed by other means.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, log_softmax, logsumexp

from pymc_gpep.kernels.moments.inner_ep import tilted_log_normaliser
from pymc_gpep.likelihoods.multinomial_probit.predictive import class_probabilities
from pymc_gpep.likelihoods.softmax.predictive import softmax_probabilities

__all__ = ["log_observed_probability"]

Array = NDArray[np.float64]

_RELATIVE = 1e-2  # error of a probability to accept
_TINY = 1e-7  # below this, absolute errors of 1e-10 would be felt
_INNER_SWEEPS, _INNER_TOLERANCE = 200, 1e-10
_DRAWS, _DEGREES, _SEED = 8192, 5.0, 20_160_601  # the same input has the same answer
_NEWTON_STEPS = 100


def log_observed_probability(
    kind: str, mean: ArrayLike, cov: ArrayLike, labels: ArrayLike, *, tolerance: float = 5e-5
) -> Array:
    """log ∫ p(y_i | f_i) N(f_i | mean_i, cov_i) df_i at m points.

    Parameters
    ----------
    kind : {"multinomial_probit", "softmax"}
        The likelihood.
    mean : array_like (m, c)
        Means of the latent values.
    cov : array_like (m, c, c)
        Their covariances, which may be singular.
    labels : array_like of int (m,)
        Observed classes, 0…c−1.
    tolerance : float
        Absolute error of the probabilities to begin with. Where it is more than a hundredth of the one of the observed
        class, they are computed again, with a tolerance that makes it less.

    Returns
    -------
    array (m,)
        Where the probability is below 1e-7, or not known to a hundredth still: the multinomial probit's by inner EP,
        the normaliser of the tilted distribution, and a softmax's by importance sampling about the mode. Both are good
        to about 0.01. NaN where the input is.
    """
    probabilities, tails = _WAYS[kind]
    mean, cov = np.ascontiguousarray(mean, np.float64), np.ascontiguousarray(cov, np.float64)
    y = np.asarray(labels, np.int64)
    every, error = probabilities(mean, cov, tolerance=tolerance)
    p = every[range(len(y)), y]
    for i in np.flatnonzero((error > _RELATIVE * p) & (p > _TINY)):
        finer, error[[i]] = probabilities(mean[[i]], cov[[i]], tolerance=_RELATIVE * p[i])
        p[i] = finer[0, y[i]]
    tail = (p <= _TINY) | (error > _RELATIVE * p)
    log_p: Array = np.log(np.where(tail, 1.0, p))
    log_p[tail] = tails(mean[tail], cov[tail], y[tail])
    return log_p


def _probit_tail(mean: Array, cov: Array, y: NDArray[np.int64]) -> Array:
    """By inner EP; with two classes there is one factor and nothing is approximate."""
    log_z: Array = tilted_log_normaliser(mean, cov, _INNER_SWEEPS, _INNER_TOLERANCE)
    return log_z[range(len(y)), y]


def _softmax_tail(mean: Array, cov: Array, y: NDArray[np.int64]) -> Array:
    """By importance sampling from a Student t distribution about the mode, in coordinates of unit prior covariance."""
    return np.array([_softmax_tail_at(*point) for point in zip(mean, cov, y, strict=True)])


def _softmax_tail_at(mean: Array, cov: Array, y: int) -> float:
    c = len(mean)
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))

    def log_joint(z: Array) -> Array:
        joint: Array = log_softmax(mean + z @ root.T, axis=-1)[..., y] - 0.5 * (z**2).sum(-1)
        return joint

    z = np.zeros(c)
    height = log_joint(z)
    for _ in range(_NEWTON_STEPS):
        p = np.exp(log_softmax(mean + root @ z))
        slope = root[y] - p @ root - z
        precision = np.eye(c) + root.T @ (p[:, None] * root) - np.outer(p @ root, p @ root)
        step = np.linalg.solve(precision, slope)
        while (higher := log_joint(z + step)) < height and np.abs(step).max() > 1e-12:
            step /= 2
        if not higher > height:
            break
        z, height = z + step, higher
    rng = np.random.default_rng(_SEED)
    scale = np.linalg.inv(np.linalg.cholesky(precision))  # the covariance at the mode is scaleᵀ scale
    noise = rng.standard_normal((_DRAWS, c)) / np.sqrt(rng.chisquare(_DEGREES, (_DRAWS, 1)) / _DEGREES)
    half = 0.5 * (_DEGREES + c)
    log_density = gammaln(half) - gammaln(0.5 * _DEGREES) - 0.5 * c * np.log(0.5 * _DEGREES)
    log_density -= half * np.log1p((noise**2).sum(-1) / _DEGREES) + np.log(np.abs(scale.diagonal())).sum()
    # Factors 2π of both densities are left out.
    return float(logsumexp(log_joint(z + noise @ scale) - log_density) - np.log(_DRAWS))


_WAYS: dict[str, tuple[Callable[..., tuple[Array, Array]], Callable[[Array, Array, NDArray[np.int64]], Array]]] = {
    "multinomial_probit": (class_probabilities, _probit_tail),
    "softmax": (softmax_probabilities, _softmax_tail),
}
"""Kind of likelihood → class probabilities to an absolute error; log probabilities of the observed class in tails."""
