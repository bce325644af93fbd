"""The q(v) of whitened inducing values as a graph: N(μ, Σ) for each function, by natural parameters.

Here q(v_k) = N(μ, Σ), Σ = (I + S)⁻¹, μ = Σ h. The sums S = Σ t w wᵀ and h = Σ ν w are over all sites
exp(ν x − ½ t x²), x = wᵀv.
"""

from typing import NamedTuple

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable


class Gaussian(NamedTuple):
    """N(μ_k, Σ_k) for c functions."""

    factor: TensorVariable
    """Cholesky factor of I + S, (c, M, M)."""
    mean: TensorVariable
    """μ, (c, M)."""
    log_normalisers: TensorVariable
    """log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv, (c,)."""

    def half(self, w: TensorVariable) -> TensorVariable:
        """R w (c, M, B) for features w (q, M, B), where Σ = Rᵀ R."""
        return pt.linalg.solve_triangular(self.factor, w, lower=True, b_ndim=2)

    def means(self, w: TensorVariable) -> TensorVariable:
        """Return the means of the wᵀv, (c, B)."""
        return pt.matmul(self.mean[:, None, :], w)[:, 0]


def gaussian(precision: TensorVariable, location: TensorVariable) -> Gaussian:
    """The Gaussian of S (c, M, M) and h (c, M); NaN where I + S has no Cholesky factor."""
    factor = pt.linalg.cholesky(precision + pt.eye(precision.type.shape[1])[None])
    half = pt.linalg.solve_triangular(factor, location, lower=True, b_ndim=1)
    mean = pt.linalg.solve_triangular(factor, half, lower=True, trans=1, b_ndim=1)
    log_det = pt.log(pt.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    return Gaussian(factor, mean, 0.5 * (half * half).sum(axis=1) - log_det)
