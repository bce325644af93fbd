"""Local computations: compiled kernels that treat each point by itself, one type for each thing that a method asks for.

A likelihood offers some of these, an approximation names the types that it needs, and so they find each other. Arrays:
latent values `f` (c, n), labels `y` (n,), covariances between the latent values of a point `cov` (n, c, c).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = [
    "BlockCurvature",
    "CoupledCurvature",
    "DifferenceFactors",
    "DifferenceQuadrature",
    "IndependentQuadrature",
    "UtilityBound",
]

type Kernel = Callable[..., Any]


class CoupledCurvature(NamedTuple):
    """Log-concave density with a curvature of the form diag(π) − ππᵀ, 1ᵀπ = 1."""

    log_density: Kernel
    """`(f, y, pi, gradient)`: Σ log p(y_i | f_i), returned; π and the gradient, written (c, n)."""
    along_line: Kernel
    """`(f, y, direction, t)`: first and minus second derivative of Σ log p(y_i | f_i + t d_i) in t."""
    curvature_slope: Kernel
    """`(pi, cov, slope)`: −½ Σ_kl S_kl ∂W_kl / ∂f for S = `cov` and the curvature W, written (c, n)."""


class BlockCurvature(NamedTuple):
    """Log-concave density with a curvature W of any positive semi-definite blocks whose rows sum to zero.

    What is not log-concave must not offer this: solvers take a semi-definite W for granted.
    """

    log_density: Kernel
    """`(f, y, gradient)`: Σ log p(y_i | f_i), returned; the gradient, written (c, n)."""
    curvature: Kernel
    """`(f, y, w)`: W = −∇∇ log p(y_i | f_i), written (n, c, c)."""
    curvature_slope: Kernel
    """`(f, y, cov, slope)`: −½ Σ_kl S_kl ∂W_kl / ∂f for S = `cov`, written (c, n)."""


class UtilityBound(NamedTuple):
    """Lower bound on the log density by utilities, latent values with unit noise."""

    terms: Kernel
    """See `pymc_gpep.kernels.methods.variational_bayes.bound_terms`."""


class DifferenceFactors(NamedTuple):
    """The density as an integral over u ~ N(0, 1) of a product of factors of g_j = f_y − f_j + u, treated by EP."""

    coupled_update: Kernel
    """New scalar sites of all g, see `pymc_gpep.kernels.moments.inner_ep.inner_ep_update`."""
    independent_update: Kernel
    """New sites of independent latent values, see `pymc_gpep.kernels.methods.iep.iep_update`."""
    energies: Kernel
    """What the sites of the g add to EP's energy, see `pymc_gpep.kernels.schemes.energy_descent.site_energies`."""


class IndependentQuadrature(NamedTuple):
    """Tilted moments under independent cavities by quadrature."""

    update: Kernel
    """New sites of independent latent values, see `pymc_gpep.kernels.methods.qiep.qiep_update`."""


class DifferenceQuadrature(NamedTuple):
    """Tilted moments of the g_j of `DifferenceFactors` by quadrature."""

    diagonal_update: Kernel
    """New scalar sites, see `pymc_gpep.kernels.methods.qep.qep_update`."""
    full_update: Kernel
    """New full sites, see `pymc_gpep.kernels.methods.full_qep.full_qep_update`."""
