"""The function that a likelihood of differences does not see, solved for at each step of a fit batch by batch.

A function δ(x) added to all latent functions moves their sites with it, ν_k + t_k δ. The prior decides which δ is best.
Steps move it by a small part of what is missing, while the noise of batches moves it as much as anything else. Without
the shift of this module it wanders. All rows at once solve for it as well (`pymc_gpep.solvers.common_shift`).

The sites of a batch are made where its latent functions have the means m. For test functions φ(x) a fit remembers

    R_k = Σ t_k φ wᵀ,   Q = Σ φ φᵀ Σ_k t_k,   g = Σ φ Σ_k t_k m_k

over all sites, averages of batches as S and h are. Some sites are still right up to a function δ = φᵀa. They have
Σ_k R_k μ_k = g + Q a for the means μ_k that they imply, those of h_k + R_kᵀ a. This is a linear system for a. At a
fixed point μ_k is where sites were made, and a = 0, whatever φ is.

Functions with common features have φ = w, R_k = S_k and Q = Σ_k S_k. Otherwise φ takes some features of each function,
about as many in all as one function has. It takes other features of each function, since inducing inputs may be the
same.
"""

from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.streaming.gaussian import Gaussian

_RIDGE = 1e-10
_LEAST = 1e-100  # where there is nothing to solve


class CommonTerms(NamedTuple):
    """What is known of sites and test functions."""

    location: TensorVariable
    """g, (r,)."""
    cross: TensorVariable
    """R, (c, r, M)."""
    precision: TensorVariable
    """Q, (r, r)."""


class CommonMemory:
    """Averages over batches, as variables that a compiled step changes.

    Parameters
    ----------
    functions, size : int
        c and M.
    own : bool
        Whether functions have features of their own.
    """

    def __init__(self, functions: int, size: int, own: bool) -> None:
        tests = _count(functions, size) * functions if own else size
        shapes: dict[str, tuple[int, ...]] = {"common_location": (tests,)}
        if own:
            shapes |= {"common_cross": (functions, tests, size), "common_precision": (tests, tests)}
        self.variables: list[SharedVariable] = [
            pytensor.shared(np.zeros(shape), name, shape=shape) for name, shape in shapes.items()
        ]

    def terms(self, precision: TensorVariable) -> CommonTerms:
        """As remembered, where S is `precision` (c, M, M)."""
        location, *own = self.variables
        return CommonTerms(location, *own) if own else CommonTerms(location, precision, precision.sum(axis=0))

    def estimates(self, terms: CommonTerms) -> list[TensorVariable]:
        """Return the terms that are remembered, in the order of the variables."""
        return list(terms[: len(self.variables)])


def common_features(w: TensorVariable) -> TensorVariable:
    """φ (r, B), for features w (q, M, B)."""
    sets, size, _ = w.type.shape
    part = _count(sets, size)
    first = [min(k * part, size - part) for k in range(sets)]
    return pt.concatenate([w[k, start : start + part] for k, start in enumerate(first)], axis=0)


def common_terms(w: TensorVariable, t: TensorVariable, mean: TensorVariable) -> CommonTerms:
    """Sums over a batch, for features w (q, M, B), Σ t (c, B) and the means of the wᵀv (c, B) that sites saw."""
    phi = common_features(w)
    weighted = phi[None] * t[:, None, :]
    return CommonTerms(
        pt.dot(phi, (t * mean).sum(axis=0)),
        pt.matmul(weighted, w.transpose(0, 2, 1)),
        pt.dot(phi * t.sum(axis=0), phi.T),
    )


def shifted(
    location: TensorVariable, terms: CommonTerms, seen: Gaussian, share: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """h (c, M) and g (r,) of sites that have moved with the best function common to all.

    Parameters
    ----------
    location : TensorVariable (c, M)
        h.
    terms : CommonTerms
    seen : Gaussian
        The one that batches are taken with, of S and h times `share` (c,).
    """
    half = pt.linalg.solve_triangular(seen.factor, terms.cross.transpose(0, 2, 1), lower=True, b_ndim=2)
    follows = (share[:, None, None] * pt.matmul(half.transpose(0, 2, 1), half)).sum(axis=0)
    system = terms.precision - follows
    tests = system.type.shape[0]
    ridge = _RIDGE * pt.maximum(pt.diagonal(system).sum(), 0.0) / tests + _LEAST
    missing = pt.matmul(terms.cross, seen.mean[:, :, None])[:, :, 0].sum(axis=0) - terms.location
    factor = pt.linalg.cholesky(system + ridge * pt.eye(tests))
    solved = pt.linalg.solve_triangular(factor, missing, lower=True, b_ndim=1)
    solved = pt.linalg.solve_triangular(factor, solved, lower=True, trans=1, b_ndim=1)
    weights = pt.switch(pt.isfinite(solved.sum()), solved, 0.0)
    moved = pt.matmul(weights[None, None, :], terms.cross)[:, 0]
    return location + moved, terms.location + pt.dot(terms.precision, weights)


def _count(functions: int, size: int) -> int:
    """How many of the features of each function are test functions."""
    return -(-size // functions)
