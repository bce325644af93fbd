"""A softmax as the largest of utilities: latent values plus Gumbel noise, which is a mixture of normals here."""

from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from pymc_gpep.likelihoods.over_factors import UtilityNoise

__all__ = ["gumbel_noise"]

_COMPONENTS = 20
_NARROWEST, _WIDEST = 0.4, 1.0  # standard deviations of the components
_FIRST, _LAST, _DENSER = -1.6, 12.0, 1.8  # their means, denser where the distribution function rises
_ERROR = 1.2e-5  # of probabilities


@lru_cache(maxsize=1)
def gumbel_noise() -> UtilityNoise:
    """exp(−e⁻ˣ) ≈ Σ_j w_j Φ((x − m_j) / s_j) to 1.4e-6, weights by least squares.

    S. Frühwirth-Schnatter and R. Frühwirth (2007). Auxiliary mixture sampling with applications to logistic models.
    *Computational Statistics & Data Analysis* 51 (7), 3509–3528. The weights here may be negative.
    """
    x = np.linspace(-4.0, 24.0, 1401)
    along = np.linspace(0.0, 1.0, _COMPONENTS)
    means = _FIRST + (_LAST - _FIRST) * along**_DENSER
    sds = _NARROWEST + (_WIDEST - _NARROWEST) * along
    sum_to_one = 1e3
    basis = np.vstack([ndtr((x[:, None] - means) / sds), np.full(_COMPONENTS, sum_to_one)])
    weights = np.linalg.lstsq(basis, np.append(np.exp(-np.exp(-x)), sum_to_one), rcond=1e-13)[0]
    return UtilityNoise(_NARROWEST**2, weights, means, sds**2 - _NARROWEST**2, _ERROR)
