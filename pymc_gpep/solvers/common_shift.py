"""The common shift of all functions, which a likelihood of differences does not depend on, solved for in every sweep.

A function δ(x) added to all latent functions moves the sites with it, ν_k + t_k δ. The prior decides which δ is best:
at a fixed point Σ_k b_k = 0 at every point, b_k = ν_k − t_k m_k. Without this EP drifts there in steps that are no
progress if the prior variance is large; see `pymc_gpep.rivals.class_independent_ep`.

`CommonShift` is for sweeps over all rows, and `CommonMemory` in `pymc_gpep.streaming.features` for a step as a graph.
`CommonSites` is for a step on arrays, with test functions as there. Functions that share their features have these as
test functions, so that R and Q follow from S. Otherwise some features of each function are test functions.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from scipy.linalg.blas import dgemm, dsyrk

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import mirror
from pymc_gpep.solvers.inducing import Features
from pymc_gpep.solvers.step_algebra import RIDGE, StepFeatures, StepPosterior, solved
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior, lower_product

type _Sums = tuple[Array, Array]


class SiteSums(NamedTuple):
    """Sums over the sites of B points on each function, and the features of the functions."""

    features: Features
    precision: Array
    """Σ t, (c, B)."""
    location: Array
    """Σ ν, (c, B)."""


class CommonShift(Protocol):
    """δ at the points of a block, (B,)."""

    def __call__(self, block: SiteSums) -> Array: ...


def shared_features_shift(
    posterior: WhitenedPosterior, precision: Array, location: Array
) -> tuple[WhitenedPosterior, CommonShift]:
    """For functions that have their features w in common: δ = wᵀa with which Σ_k μ_k = 0.

    `precision` S (c, M, M) and `location` (c, M) are those of the `posterior`. Returns what it becomes, and δ.
    """
    size = posterior.mean.shape[1]
    stacked = posterior.root.reshape(-1, size)
    pull = len(posterior.root) * np.eye(size) - stacked.T @ stacked
    ridge = RIDGE * pull.trace() / size
    if not ridge > 0.0:
        return posterior, lambda block: np.zeros(block.features.w.shape[-1])
    weights = -np.linalg.solve(pull + ridge * np.eye(size), posterior.mean.sum(axis=0))
    moved = location + precision @ weights
    # With Σ S = I − Σ the means move by a − Σ a, and ½ log |Σ| stays.
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
    """Solve for any δ with which Σ_k b_k = 0 at each point, for functions with features of their own.

    The shift changes the b by P δ with

        P = Σ_k (T_k − T_k W_kᵀ Σ_k W_k T_k) = T − U Uᵀ.

    The diagonal T = Σ_k T_k holds site precisions, and U has cM columns. A system of that size thus has to be solved
    (Woodbury). `each` yields the results of a function on every block.
    """
    c, size = posterior.mean.shape
    gram, pulled = np.zeros((c * size, c * size)), np.zeros(c * size)

    def sums(block: SiteSums) -> _Sums:
        root_total = np.sqrt(_total(block))
        scaled = np.empty((len(root_total), c, size))
        for k, (w, weights) in enumerate(zip(block.features.w, block.precision / root_total, strict=True)):
            scaled[:, k] = lower_product(posterior.root[k], w).T * weights[:, None]
        u = scaled.reshape(-1, c * size)
        return (_pull(posterior, block) / root_total) @ u, u.T @ u  # which BLAS does by halves

    for of_pulled, of_gram in each(sums):
        pulled += of_pulled
        gram += of_gram
    try:
        z = cho_solve(cho_factor(np.eye(c * size) - gram, lower=True), pulled).reshape(c, size)
    except (LinAlgError, ValueError):
        z = np.zeros((c, size))
    # The location changes by −R⁻¹ z, and with μ = Rᵀ R (Σ ν w) its norm is that of R (Σ ν w).
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
    """Return Σ_k t_k (B,), infinite where it is not positive."""
    total = block.precision.sum(axis=0)
    return np.where(total > 0.0, total, np.inf)


def _pull(posterior: WhitenedPosterior, block: SiteSums) -> Array:
    """Σ_k b_k, (B,)."""
    means = np.array([mean @ w for mean, w in zip(posterior.mean, block.features.w, strict=True)])
    total: Array = (block.location - block.precision * means).sum(axis=0)
    return total


class CommonSites(Protocol):
    """Sums over all sites that say which function common to all is missing: averages of batches, as S and h are."""

    def shift(self, q: StepPosterior) -> Array:
        """Move sites with that function, and return what becomes of g (r,). Nothing that is remembered changes."""

    def average(self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float) -> None:
        """Remember a batch in the part β, by Σ t (B, c) and the means (B, c) that sites saw."""


class SameFeatures:
    """Functions that have their features in common.

    Parameters
    ----------
    location : array (M,)
        g, which is overwritten.
    """

    def __init__(self, location: Array) -> None:
        self._location = location

    def shift(self, q: StepPosterior) -> Array:
        return q.shift(self._location)

    def average(self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float) -> None:
        (only,) = features
        self._location[:] = shifted + beta * (only.w.T @ (t * mean).sum(axis=1) - shifted)


class OwnFeatures:
    """Functions in several groups.

    Parameters
    ----------
    location : array (r,)
        g.
    cross : array (c, r, M)
        R.
    precision : array (r, r)
        Q. All three are overwritten.
    """

    def __init__(self, location: Array, cross: Array, precision: Array) -> None:
        self._location, self._cross, self._precision = location, cross, precision

    def shift(self, q: StepPosterior) -> Array:
        system = self._precision.copy()
        for half in q.halves(self._cross):
            dsyrk(-1.0, half, beta=1.0, c=system.T, trans=1, lower=0, overwrite_c=1)
        missing = sum(own @ mean for own, mean in zip(self._cross, q.mean, strict=True)) - self._location
        weights = solved(system, missing)
        if weights is None:
            return self._location.copy()
        q.move(weights @ self._cross)
        moved: Array = self._location + self._precision @ weights
        return moved

    def average(self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float) -> None:
        tests = self._tests(features)
        self._location[:] = shifted + beta * (tests.T @ (t * mean).sum(axis=1) - shifted)
        weighted = tests * t.sum(axis=1)[:, None]
        dgemm(beta, weighted.T, tests.T, trans_b=1, beta=1.0 - beta, c=self._precision.T, overwrite_c=1)
        mirror(self._precision)
        for each in features:
            for k in each.group.functions:
                weighted = each.w * t[:, k, None]
                dgemm(beta, weighted.T, tests.T, trans_b=1, beta=1.0 - beta, c=self._cross[k].T, overwrite_c=1)

    def _tests(self, features: Sequence[StepFeatures]) -> Array:
        """Test functions φ (B, r): some features of each function, about as many in all as one has."""
        c, size = len(self._cross), self._cross.shape[2]
        part = self._cross.shape[1] // c
        of = {k: each.w for each in features for k in each.group.functions}
        starts = [min(k * part, size - part) for k in range(c)]
        return np.concatenate([of[k][:, start : start + part] for k, start in enumerate(starts)], axis=1)
