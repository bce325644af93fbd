"""Where annealing starts: the prior of the latent values, or a Gaussian approximation to their posterior."""

from collections.abc import Callable
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations import Solution
from pymc_gpep.checks.annealing import Base
from pymc_gpep.gaussians.block import BlockPosterior
from pymc_gpep.gaussians.coupled import CoupledPosterior
from pymc_gpep.gaussians.independent import IndependentPosterior
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.kernels.gaussians.block_sites import block_roots, factorise_blocks
from pymc_gpep.kernels.gaussians.independent import factorise_class
from pymc_gpep.solvers.coupled import factorise

__all__ = ["approximation_base", "prior_base"]

Array = NDArray[np.float64]


def prior_base(mean: Array, roots: Array) -> Base:
    """Start from the prior.

    Parameters
    ----------
    mean : array (c, n)
    roots : array (1 or c, n, n)
        Lower Cholesky factors of the prior covariance.
    """
    return Base(
        mean=mean,
        draw=lambda rng, count: _correlate(roots, rng.standard_normal((count, *mean.shape))),
        log_sites=lambda x: 0.0,
        log_normaliser=0.0,
    )


def approximation_base(solution: Solution, roots: Array) -> Base:
    """Start from an approximation q(f) = N(μ, (K⁻¹ + Π)⁻¹), whether or not it has converged.

    With x = f − μ and b = K⁻¹ (μ − m), log_sites is bᵀx − xᵀΠx / 2, and the log of its integral with the prior
    −½ log|I + KΠ| − ½ bᵀ(μ − m): sites that are scaled to be 1 at μ leave no large terms to cancel.

    Parameters
    ----------
    solution : Solution
    roots : array (1 or c, n, n)
        Lower Cholesky factors of the prior covariance.
    """
    posterior = solution.posterior
    weights, mean = posterior.weights, solution.mean
    centre = roots.swapaxes(1, 2) @ weights[..., None]
    quadratic, log_det = _site_precision(posterior)
    shift = float((weights * (mean - posterior.prior_mean)).sum())
    return Base(
        mean=mean,
        draw=lambda rng, count: _correlate(roots, posterior.draw_whitened(rng, count, roots) - centre[..., 0]),
        log_sites=lambda x: float((weights * x).sum()) - 0.5 * quadratic(x),
        log_normaliser=-0.5 * (log_det + shift),
    )


def _correlate(roots: Array, z: Array) -> Array:
    """L z, (count, c, n) for z of that shape."""
    return np.matmul(roots, z.transpose(1, 2, 0)).transpose(2, 0, 1).copy()


@singledispatch
def _site_precision(posterior: Posterior) -> tuple[Callable[[Array], float], float]:
    """The quadratic form xᵀΠx of the sites, and log|I + KΠ|."""
    raise TypeError(f"The sites of a {type(posterior).__name__} are not known.")


@_site_precision.register
def _(posterior: CoupledPosterior) -> tuple[Callable[[Array], float], float]:
    pi = posterior.precision
    total = pi.sum(axis=0)
    c, n = pi.shape
    _, log_det = factorise(posterior.k, pi, np.empty((c, n, n)), np.empty((n, n)))

    def quadratic(x: Array) -> float:
        return float((pi * (x - (pi * x).sum(axis=0) / total) ** 2).sum())

    return quadratic, float(log_det - np.log(total).sum())


@_site_precision.register
def _(posterior: BlockPosterior) -> tuple[Callable[[Array], float], float]:
    n, c, _ = posterior.precision.shape
    roots = np.empty((n, c, c - 1))
    block_roots(posterior.precision, roots)
    _, log_det = factorise_blocks(posterior.k, roots, np.zeros((n * (c - 1), n * (c - 1))))
    transposed = roots.swapaxes(1, 2).copy()
    return lambda x: float(((transposed @ x.T[..., None]) ** 2).sum()), float(log_det)


@_site_precision.register
def _(posterior: IndependentPosterior) -> tuple[Callable[[Array], float], float]:
    pi = posterior.precision
    c, n = pi.shape
    log_det = sum(
        factorise_class(prior, own, np.empty((n, n)))[1]
        for prior, own in zip(np.broadcast_to(posterior.k, (c, n, n)), pi, strict=True)
    )
    return lambda x: float((pi * x**2).sum()), float(log_det)
