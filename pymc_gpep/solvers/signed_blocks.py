"""Sites whose precisions over the functions of a point may have negative eigenvalues, in O((cn)³).

Let W be any symmetric precision for which there is a posterior. With a root L of the prior covariance K of all latent
values and Λ = I + LᵀWL = C Cᵀ

    G = L C⁻ᵀ,   Cov f = G Gᵀ,   log|I + WK| = log|Λ|,   F = W G,   M = W − F Fᵀ.

Roots of W, by which other algebras go, do not exist here.
"""

import numpy as np
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import add_implicit_gradient
from pymc_gpep.solvers.prior_form import SiteAlgebra
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.signed_posterior import covariance_root

_ROUNDING = 1e-8  # relative, as of what else is taken for a covariance


class SignedBlocks(SiteAlgebra):
    """The algebra by Λ.

    Attributes
    ----------
    half : array (c, n, cn)
        G, after `factorise`.
    """

    half: Array
    _precision: Array

    def __init__(self, k: Array, n_functions: int) -> None:
        self._k, self._c = k, n_functions
        self._roots = np.stack([_root(own) for own in k])

    def factorise(self, precision: Array) -> tuple[bool, float]:
        """See `SiteAlgebra`; W (n, c, c)."""
        self._precision = precision
        c, n = self._c, self._k.shape[-1]
        matrix = np.empty((c, n, c, n))
        for a in range(c):
            root = own_matrix(self._roots, a)
            for e in range(a + 1):
                product = root.T @ (precision[:, a, e, None] * own_matrix(self._roots, e))
                matrix[a, :, e], matrix[e, :, a] = product, product.T
        whole = matrix.reshape(c * n, c * n)
        whole[np.diag_indices(c * n)] += 1.0
        if not np.isfinite(whole).all():
            return False, np.nan
        try:
            lower = cholesky(whole, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            return False, np.nan
        inverse, _ = dtrtri(lower, lower=1)
        by_function = inverse.T.reshape(c, n, c * n)
        self.half = np.stack([own_matrix(self._roots, a) @ by_function[a] for a in range(c)])
        return True, 2.0 * float(np.log(lower.diagonal()).sum())

    @property
    def weighted(self) -> Array:
        """F, (c, n, cn)."""
        return np.einsum("iae,eiq->aiq", self._precision, self.half)

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`: r − W G Gᵀ r, corrected once by what is left of r − (I + WK) b."""
        out[:] = self._smoothed(force)
        out += self._smoothed(force - self._times(self._image(out)) - out)

    def _smoothed(self, force: Array) -> Array:
        pulled = np.einsum("aiq,ai->q", self.half, force)
        return force - self._times(self.half @ pulled)

    def _times(self, f: Array) -> Array:
        """W f (c, n)."""
        return np.einsum("iae,ei->ai", self._precision, f)

    def _image(self, b: Array) -> Array:
        """K b (c, n)."""
        return np.stack([own_matrix(self._k, a) @ own for a, own in enumerate(b)])

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        mean[:] = self._image(b)
        cov[:] = np.einsum("aiq,eiq->iae", self.half, self.half, optimize=True)

    def gradient(self, b: Array, moved: Array | None = None) -> Array:
        """See `SiteAlgebra`; (1 or c, n, n)."""
        weighted, gradient = self.weighted, np.zeros_like(self._k)
        for a, own in enumerate(b):
            of_function = np.outer(own, own) + weighted[a] @ weighted[a].T
            of_function[np.diag_indices(len(own))] -= self._precision[:, a, a]
            own_matrix(gradient, a)[:] += 0.5 * of_function
        if moved is not None:
            add_implicit_gradient(b, moved, gradient)
        return gradient


def _root(k: Array) -> Array:
    """A root of a covariance that may be singular; NaN where it has negative eigenvalues."""
    try:
        return np.asarray(np.linalg.cholesky(k))
    except np.linalg.LinAlgError:
        root = covariance_root(k)
    missing = np.abs(root @ root.T - k).max()
    return root if missing <= _ROUNDING * np.abs(k).max() else np.full_like(k, np.nan)
