"""Nested EP where labels may be noise, whole: sites of any sign, or without negative ones where these do not settle.

Little noise makes factors that are far from Gaussian. Where sites of any sign do not settle, EP comes down from more
noise, by whose sites the next iteration begins.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods.nested_label_noise import sites_of_differences
from pymc_gpep.kernels.moments.full_sites import packed_size
from pymc_gpep.solvers.accelerated_ep import signed_ladder
from pymc_gpep.solvers.block_ep import BlockEP, BlockSpace, refused
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["nested_label_noise"]

_HALVINGS = 30  # of eigenvalues below zero, where there is no posterior
_MOST, _LEAST = 0.1, 1e-6  # noise that EP comes down from, and where it ends


def nested_label_noise(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    max_size: int,
    **options: Any,
) -> Found:
    """Iterate from sites of the differences in `start`, which is overwritten.

    `update` is the kernel of `pymc_gpep.likelihoods.local_computations.MixedDifferenceFactors`, in whose layout sites
    are. Where EP with negative eigenvalues does not converge, it comes down from more label noise. Where that fails as
    well, it begins again without them.
    `max_size` is the largest number cn of latent values whose covariance is a matrix. Other options are those of
    `pymc_gpep.solvers.accelerated_ep.ep_ladder`.
    """
    c, n = problem.mean.shape
    sites = start.reshape(2, n, packed_size(c))
    if (result := refused(problem, max_size)) is not None:
        return result
    alpha, beta = np.zeros((2, n, c - 1))
    slopes = np.full_like(problem.parameters, np.nan)
    widens, epsilon = 1.0, problem.parameters

    def tilted(space: BlockSpace, sites: Array, target: Array, scale: Array) -> tuple[float, float]:
        return update(
            space.mean, space.cov, problem.labels, epsilon, widens, space.pi, space.nu, sites, alpha, beta,
            target, scale, slopes,
        )  # fmt: skip

    ep = BlockEP(problem, problem.prior.blocks(c, signed=True), sites_of_differences, tilted)

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        for _ in range(_HALVINGS):
            found = ep.sweep(sites, target, scale)
            if found[0] or not _halved_below_zero(ep.space.pi, sites):
                break
        return found

    def easier(stage: int) -> bool:
        nonlocal epsilon
        noise = _MOST / 2.0 ** (stage / 2)
        epsilon = np.maximum(problem.parameters, noise if noise > _LEAST else 0.0)
        return bool((epsilon == problem.parameters).all())

    def without(_: Array) -> None:
        nonlocal widens, epsilon
        widens, epsilon = 0.0, problem.parameters

    ended = signed_ladder(
        sweep, sites, history, without, easier=easier, again=options["ladder"], least_again=-np.inf, **options
    )
    return ep.found(*ended, slopes)


def _halved_below_zero(precision: Array, sites: Array) -> bool:
    """Halve the eigenvalues below zero of `precision` (n, d, d), and write it into `sites`; False without any."""
    if not np.isfinite(precision).all():
        return False
    values, vectors = np.linalg.eigh(precision)
    if not (below := values < 0.0).any():
        return False
    less = (vectors * np.where(below, 0.5 * values, values)[:, None, :]) @ vectors.swapaxes(1, 2)
    d = precision.shape[1]
    rows, columns = np.tril_indices(d, -1)
    sites[0, :, :d] = less.diagonal(axis1=1, axis2=2)
    sites[1, :, d:] = less[:, rows, columns]
    return True
