"""Sites that couple the functions of a point, with prior covariances that are matrices: c + 1 factorisations."""

from copy import copy
from typing import Self

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import latent_weights
from pymc_gpep.kernels.gaussians.implicit_gradient import add_implicit_gradient
from pymc_gpep.solvers.coupled import Matrices, evidence_gradient, factorise, marginal_moments
from pymc_gpep.solvers.prior_form import SiteAlgebra
from pymc_gpep.solvers.team import Team

__all__ = ["DenseCoupled"]

_TINY = 1e-20  # a floor for π that changes no digit of 32 bits, and whose root and its inverse they hold


class DenseCoupled(SiteAlgebra):
    """The algebra of `pymc_gpep.kernels.gaussians.coupled`.

    Parameters
    ----------
    k : array (1 or c, n, n)
    n_functions : int
    team : Team

    Attributes
    ----------
    inverses, p, work : array (c, n, n), (n, n), (c, n, n)
        A_k⁻¹, the Cholesky factor of P, and room.
    """

    inverses: Matrices
    p: Matrices
    work: Matrices

    def __init__(self, k: Array, n_functions: int, team: Team) -> None:
        n = k.shape[-1]
        self._k, self._team = k, team
        self._pi = np.full((n_functions, n), np.nan)
        self.inverses, self.work = np.empty((2, n_functions, n, n))
        self.p = np.empty((n, n))

    def factorise(self, precision: Array) -> tuple[bool, float]:
        """See `SiteAlgebra`."""
        np.maximum(precision, _TINY if self.p.dtype == np.float32 else -np.inf, out=self._pi)
        return factorise(self._k, self._pi, self.inverses, self.p, self._team)

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`."""
        latent_weights(self.inverses, self.p, self._pi, force, out)

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        """See `SiteAlgebra`."""
        marginal_moments(self._k, self.inverses, self.p, self._pi, b, self.work, mean, cov, self._team)

    def gradient(self, b: Array, moved: Array | None = None) -> Array:
        """See `SiteAlgebra`; (1 or c, n, n)."""
        gradient = np.empty_like(self._k)
        room = np.asarray(self.work[0], dtype=np.float64)
        evidence_gradient(self.inverses, self.p, self._pi, b, room, gradient)
        if moved is not None:
            add_implicit_gradient(b, moved, gradient)
        return gradient

    @property
    def in_single_precision(self) -> Self:
        """See `SiteAlgebra`."""
        other = copy(self)
        other.inverses, other.p, other.work = (_halved(each) for each in (self.inverses, self.p, self.work))
        return other


def _halved(matrices: Matrices) -> Matrices:
    return matrices.reshape(-1).view(np.float32)[: matrices.size].reshape(matrices.shape)
