"""GFITC as dense EP over latent values: the FITC prior as n × n matrices, and a factor for each pair of classes.

The model is from Villacampa-Calvo and Hernández-Lobato (2017), section 3. The prior of f_k is N(m_k, Q_k + diag(K_k −
Q_k)), where Q_k is the covariance explained by the inducing values. The factors are Φ((f_y − f_k) / √noise), k ≠ y.
Each factor has a Gaussian site for f_y and a Gaussian site for f_k (Kim and Ghahramani 2006). The difference of the two
latent values of a factor has tilted moments by equation 3.58 of Rasmussen and Williams (2006). All factors are updated
at once, with damping. The evidence is computed from its definition, with one Gaussian normaliser for each factor.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

__all__ = ["DenseEP", "dense_gfitc"]

Array = NDArray[np.float64]


class DenseEP(NamedTuple):
    """A fixed point."""

    evidence: float
    mean: Array
    """Means of the latent values, (c, n)."""
    variance: Array
    """Variances of the latent values, (c, n)."""
    change: float
    """Largest change of a site in the last sweep."""


def _log_normaliser(precision: float, location: float) -> float:
    """log ∫ exp(hx − ½ p x²) dx."""
    return 0.5 * (location**2 / precision - np.log(precision) + np.log(2 * np.pi))


def dense_gfitc(k: Array, m: Array, y: Array, noise: float = 2.0, sweeps: int = 1000) -> DenseEP:
    """Iterate EP with prior covariances (c, n, n), prior means (c, n) and labels (n,)."""
    c, n = m.shape
    factors = [(i, int(y[i]), other) for i in range(n) for other in range(c) if other != y[i]]
    sites = np.zeros((len(factors), 2, 2))  # precision and location, of f_y and f_k
    prior = np.linalg.inv(k)
    for _ in range(sweeps):
        precision, location = np.zeros((c, n)), np.zeros((c, n))
        for f, (i, label, other) in enumerate(factors):
            for side, a in enumerate((label, other)):
                precision[a, i] += sites[f, side, 0]
                location[a, i] += sites[f, side, 1]
        evidence, mean, cov = 0.0, np.empty((c, n)), np.empty((c, n, n))
        for a in range(c):
            total = prior[a] + np.diag(precision[a])
            pulled = prior[a] @ m[a] + location[a]
            cov[a] = np.linalg.inv(total)
            mean[a] = cov[a] @ pulled
            evidence += 0.5 * (pulled @ mean[a] - m[a] @ prior[a] @ m[a])
            evidence += 0.5 * (np.linalg.slogdet(prior[a])[1] - np.linalg.slogdet(total)[1])
        new = np.empty_like(sites)
        for f, (i, label, other) in enumerate(factors):
            cavities = []
            for side, a in enumerate((label, other)):
                of_all = 1.0 / cov[a, i, i], mean[a, i] / cov[a, i, i]
                cavity = of_all[0] - sites[f, side, 0], of_all[1] - sites[f, side, 1]
                evidence -= _log_normaliser(*of_all) - _log_normaliser(*cavity)
                cavities.append((cavity[1] / cavity[0], 1.0 / cavity[0]))
            (mean_y, var_y), (mean_k, var_k) = cavities
            width = np.sqrt(noise + var_y + var_k)
            z = (mean_y - mean_k) / width
            log_z = log_ndtr(z)
            evidence += log_z
            ratio = np.exp(-0.5 * z * z - log_z) / np.sqrt(2 * np.pi)
            for side, (at, var) in enumerate(cavities):
                tilted_mean = at + (1 - 2 * side) * var * ratio / width
                tilted_var = var - var**2 * ratio * (z + ratio) / width**2
                new[f, side] = 1 / tilted_var - 1 / var, tilted_mean / tilted_var - at / var
        change = np.abs(new - sites).max()
        if change < 1e-11:
            break
        sites += 0.6 * (new - sites)
    return DenseEP(float(evidence), mean, cov.diagonal(axis1=1, axis2=2), float(change))
