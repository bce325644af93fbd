"""Nested expectation propagation for the multinomial probit and the step likelihood with label noise.

Sites have any sign, or are without negative ones where these do not settle.

Little noise makes factors that are far from Gaussian. Where sites of any sign do not settle, EP comes down from more
noise, by whose sites the next iteration begins.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations.accelerated_ep import AcceleratedEP
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.methods.label_noise import sites_of_differences
from pymc_gpep.kernels.moments.full_sites import packed_size
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import MixedDifferenceFactors
from pymc_gpep.solvers.accelerated_ep import SCHEMES, signed_ladder
from pymc_gpep.solvers.block_ep import BlockEP, BlockSpace, refused
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

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


@dataclass(frozen=True)
class NoisyNestedEP(AcceleratedEP):
    """Nested EP where labels may be noise: the factor of a point is (1 − ε) p + ε / c.

    Inner EP integrates the multinomial probit p as in `"nested_ep"` (Riihimäki, Jylänki and Vehtari 2013). A step is
    the probit of latent values that are many times as large. The moments of the whole factor follow in closed form, and
    sites match them all. Such a factor is not log-concave: a label that contradicts its neighbours gets a site of
    negative precision. The evidence is stationary in the sites, and has exact derivatives with respect to ε as well.
    Time grows with (cn)³ where prior covariances are matrices.

    Parameters
    ----------
    ladder : bool
        Whether to go on where the iteration does not get closer any more. Plain steps come first, then smaller ones,
        then more label noise that becomes less. Last come sites without negative precisions, whose derivatives are
        approximate.
    max_size : int
        Largest number cn of latent values to accept where prior covariances are matrices.
    """

    max_size: int = field(default=1500, metadata=at_least(1))

    name: ClassVar[str] = "nested_ep"
    site_form: ClassVar[SiteForm] = SiteForm.SIGNED
    needs: ClassVar[tuple[type, ...]] = (MixedDifferenceFactors,)
    matches_moments: ClassVar[bool] = True
    whole_factors: ClassVar[str] = "with label noise"
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    follows_parameters: ClassVar[bool] = True
    schemes: ClassVar[tuple[str, ...]] = (
        *SCHEMES, "EP without sites of negative precision", "EP that came down from more label noise"
    )  # fmt: skip

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        return nested_label_noise(
            problem,
            start,
            history,
            update=likelihood.computation(MixedDifferenceFactors).update,
            largest_precision=likelihood.largest_precision,
            **self.settings,
        )

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """The nearest start: between matrices some combinations leave no posterior."""
        return starts[nearest].copy()

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: sites of the differences of latent values."""
        return n_points * n_functions * (n_functions - 1)

    def too_large(self, n_functions: int, n_points: int) -> str:
        size = n_functions * n_points
        if size > self.max_size:
            return (
                f"{self.name} with label noise is slow for {n_functions} latent functions at {n_points} points: they "
                f'are {size} latent values. Use method="sparse_ep", which takes inducing inputs and '
                f"epsilon as a number, or allow it with max_size={size} (now {self.max_size})."
            )
        return ""
