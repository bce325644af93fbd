"""Common shift of all functions, on which a likelihood of differences does not depend, solved for in every sweep.

If a function δ(x) is added to all latent functions, cavities move by δ, and site locations become ν_k + t_k δ. The
prior determines the best δ: at a fixed point Σ_k b_k = 0 at every point, with b_k = ν_k − t_k m_k. This sum is the
derivative of the evidence with respect to a common mean of all functions. EP updates each function given the other
functions, and removes a fraction 1/(1 + tK) of the distance to this point in a sweep. For a large prior variance K this
is negligible. A shift δ changes Σ_k b_k by P δ, with the matrix P of `own_features_shift`. `matrix_shift` computes δ
for dense covariances.

`CommonShift` is for sweeps over all rows, and `CommonSites` for steps over batches. Without a shift, steps move
the common function by a small part of the distance, while batches add their full noise. The sites of a batch are
computed at means m of its latent functions. For test functions φ(x) a fit stores

    R_k = Σ t_k φ wᵀ,   Q = Σ φ φᵀ Σ_k t_k,   g = Σ φ Σ_k t_k m_k

over all sites. Like S and h, they are averages over batches. Suppose that sites are correct up to a function δ = φᵀa,
and let μ_k be the means implied by h_k + R_kᵀ a. Then Σ_k R_k μ_k = g + Q a, a linear system for a. At a fixed point
μ_k are the means at which sites were computed, and a = 0 for any φ. If functions share their features, φ = w, R_k = S_k
and Q = Σ_k S_k. Otherwise φ contains some features of each function.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.linalg.lapack import solve_with_cholesky
from pymc_gpep.solvers.inducing import Features
from pymc_gpep.solvers.step_algebra import StepFeatures, StepPosterior
from pymc_gpep.solvers.step_arrays import RIDGE, StepArrays
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior, lower_product

type _Sums = tuple[Array, Array]


class SiteSums(NamedTuple):
    """Sums over the sites of each function at B points, and features of the functions."""

    features: Features
    precision: Array
    """Sum Σ t of the precisions of the sites of each function, (c, B)."""
    location: Array
    """Sum Σ ν of the locations of the sites of each function, (c, B)."""
    rows: slice = slice(None)


def matrix_shift(p: Array, pull: Array, *, factored: bool) -> Array:
    """Solve P δ = −Σ_k b_k for δ (n,), from P (n, n) and Σ_k b_k (n,), for functions with dense covariances.

    If P is `factored`, the lower triangle of `p` is its Cholesky factor. Otherwise P may be indefinite, and δ is the
    shortest solution.
    """
    return -np.asarray(solve_with_cholesky(p, pull) if factored else np.linalg.lstsq(p, pull, rcond=1e-12)[0])


class CommonShift(Protocol):
    """Function that evaluates the common shift δ at the points of a block, (B,)."""

    def __call__(self, block: SiteSums) -> Array: ...


def shared_features_shift(
    posterior: WhitenedPosterior, precision: Array, location: Array
) -> tuple[WhitenedPosterior, CommonShift]:
    """Return the posterior after the shift δ = wᵀa with Σ_k μ_k = 0, and δ. All functions have the features w.

    `precision` S (c, M, M) and `location` h (c, M) are the sums of the `posterior`.
    """
    size = posterior.mean.shape[1]
    stacked = posterior.root.reshape(-1, size)
    pull = len(posterior.root) * np.eye(size) - stacked.T @ stacked
    ridge = RIDGE * pull.trace() / size
    if not ridge > 0.0:
        return posterior, lambda block: np.zeros(block.features.w.shape[-1])
    weights = -np.linalg.solve(pull + ridge * np.eye(size), posterior.mean.sum(axis=0))
    moved = location + precision @ weights
    # With Σ S = I − Σ the means move by a − Σ a, and ½ log |Σ| does not change.
    mean = (
        posterior.mean
        + weights
        - np.array([posterior.covariances(k, weights[:, None])[:, 0] for k in range(len(moved))])
    )
    number = posterior.log_normaliser + 0.5 * float((moved * mean).sum() - (location * posterior.mean).sum())
    return WhitenedPosterior(mean, posterior.root, number), lambda block: weights @ block.features.w[0]


def own_features_shift(
    posterior: WhitenedPosterior, each: Callable[[Callable[[SiteSums], _Sums]], Iterable[_Sums]]
) -> tuple[WhitenedPosterior, CommonShift]:
    """Return the posterior after the shift δ with Σ_k b_k = 0 at each point, and δ. Functions have different features.

    The shift changes Σ_k b_k by P δ with

        P = Σ_k (T_k − T_k W_kᵀ Σ_k W_k T_k) = T − U Uᵀ.

    T_k has the site precisions on its diagonal, T = Σ_k T_k, W_k (M, n) are features and Σ_k posterior covariances. U
    has cM columns, so a system of size cM is solved (Woodbury). `each(f)` yields f(block) for every block.
    """
    c, size = posterior.mean.shape
    gram, pulled = np.zeros((c * size, c * size)), np.zeros(c * size)

    def sums(block: SiteSums) -> _Sums:
        root_total = np.sqrt(_total(block))
        scaled = np.empty((len(root_total), c, size))
        for k, (w, weights) in enumerate(zip(block.features.w, block.precision / root_total, strict=True)):
            scaled[:, k] = lower_product(posterior.root[k], w).T * weights[:, None]
        u = scaled.reshape(-1, c * size)
        return (_pull(posterior, block) / root_total) @ u, u.T @ u  # NumPy uses `syrk` for uᵀu.

    for of_pulled, of_gram in each(sums):
        pulled += of_pulled
        gram += of_gram
    try:
        z = cho_solve(cho_factor(np.eye(c * size) - gram, lower=True), pulled).reshape(c, size)
    except (LinAlgError, ValueError):
        z = np.zeros((c, size))
    # h = Σ ν w changes by −R⁻¹ z. With μ = Rᵀ R h, the quadratic form hᵀμ is the squared norm of R h.
    before = np.array([
        solve_triangular(root, mean, lower=True, trans="T")
        for root, mean in zip(posterior.root, posterior.mean, strict=True)
    ])  # fmt: skip
    of_mean = np.einsum("kji,kj->ki", posterior.root, z)
    shifted = WhitenedPosterior(
        posterior.mean - of_mean,
        posterior.root,
        posterior.log_normaliser + float((0.5 * z * z - before * z).sum()),
    )

    def at(block: SiteSums) -> Array:
        drawn = sum(block.precision[k] * (of_mean[k] @ block.features.w[k]) for k in range(c))
        return -(_pull(posterior, block) + drawn) / _total(block) if z.any() else np.zeros(block.precision.shape[1])

    return shifted, at


def _total(block: SiteSums) -> Array:
    """Return total site precisions Σ_k t_k of points (B,); a sum that is not positive becomes infinite."""
    total = block.precision.sum(axis=0)
    return np.where(total > 0.0, total, np.inf)


def _pull(posterior: WhitenedPosterior, block: SiteSums) -> Array:
    """Return the sums Σ_k b_k over functions at the points of a block, (B,)."""
    means = np.array([mean @ w for mean, w in zip(posterior.mean, block.features.w, strict=True)])
    total: Array = (block.location - block.precision * means).sum(axis=0)
    return total


class CommonSites(Protocol):
    """Averages over batches that determine the common shift of all latent functions."""

    def shift(self, q: StepPosterior) -> Array:
        """Move the sites of q by the common shift. Return g (r,) after the move."""

    def averaged(
        self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float
    ) -> tuple[Array, ...]:
        """Return the averages after a batch of weight β, from Σ t and means, (B, c) each, and the result of `shift`."""


class SameFeatures:
    """Averages for functions that share their features.

    Parameters
    ----------
    location : array (M,)
        The average g, see the module.
    """

    def __init__(self, location: Array) -> None:
        self._location = location

    def shift(self, q: StepPosterior) -> Array:
        return q.shift(self._location)

    def averaged(
        self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float
    ) -> tuple[Array, ...]:
        (only,) = features
        return (shifted + beta * (only.w.T @ (t * mean).sum(axis=1) - shifted),)


class OwnFeatures:
    """Averages for functions in several groups, whose features differ.

    Test functions φ are features of the functions, about M in total. Functions contribute features at different
    positions, since they may have the same inducing inputs.

    Parameters
    ----------
    arrays : StepArrays
    location : array (r,)
        The average g, see the module.
    cross : array (c, r, M)
        The average R, which `averaged` overwrites.
    precision : array (r, r)
        The average Q.
    """

    def __init__(self, arrays: StepArrays, location: Array, cross: Array, precision: Array) -> None:
        self._arrays, self._location, self._cross, self._precision = arrays, location, cross, precision

    def shift(self, q: StepPosterior) -> Array:
        return q.shift_by_tests(self._location, self._cross, self._precision, RIDGE)

    def averaged(
        self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float
    ) -> tuple[Array, ...]:
        c, tests, size = self._cross.shape
        by_function = {k: each.w for each in features for k in each.group.functions}
        w = [by_function[k] for k in range(c)]
        part = tests // c
        starts = [min(k * part, size - part) for k in range(c)]
        phi = self._arrays.xp.concatenate(
            [own[:, start : start + part] for own, start in zip(w, starts, strict=True)], axis=1
        )
        weighted = phi * t.sum(axis=1)[:, None]
        return (
            shifted + beta * (phi.T @ (t * mean).sum(axis=1) - shifted),
            self._arrays.with_tests(self._cross, phi, w, t, beta),
            self._precision + beta * (weighted.T @ phi - self._precision),
        )


def common_tests(functions: int, size: int) -> int:
    """Return the number r of test functions, for c functions with M features each."""
    return functions * -(-size // functions)
