"""Precisions of sites over the functions of a point, by blocks: what sums over rows are weighted with."""

from abc import ABC, abstractmethod

import numpy as np

from pymc_gpep.array_types import Array


class SitePrecisions(ABC):
    """Π_i (c, c) of n points, from an array in the shape of its form."""

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    @abstractmethod
    def legal(self) -> bool:
        """Whether every Π_i is positive semi-definite, as far as signs tell."""

    @abstractmethod
    def block(self, k: int, other: int) -> Array | None:
        """Return the entries (n,) of two functions, None where they are 0."""

    @abstractmethod
    def times(self, f: Array) -> Array:
        """Return Π f (c, n), of f (c, n)."""


class IndependentPrecisions(SitePrecisions):
    """Π_i = diag(π_i), from π (c, n)."""

    @property
    def legal(self) -> bool:
        return bool((self.array >= 0.0).all())

    def block(self, k: int, other: int) -> Array | None:
        return np.asarray(self.array[k]) if k == other else None

    def times(self, f: Array) -> Array:
        return np.asarray(self.array * f)


class CoupledPrecisions(SitePrecisions):
    """Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i, from π (c, n)."""

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self._total = array.sum(axis=0)

    @property
    def legal(self) -> bool:
        return bool((self.array >= 0.0).all() and (self._total > 0.0).all())

    def block(self, k: int, other: int) -> Array:
        """See `SitePrecisions`; nothing is subtracted."""
        pi = self.array
        if k == other:
            others = np.add(pi[:k].sum(axis=0), pi[k + 1 :].sum(axis=0))
            return np.asarray(pi[k] * (others / self._total))
        return np.asarray(-pi[k] * (pi[other] / self._total))

    def times(self, f: Array) -> Array:
        level = (self.array * f).sum(axis=0) / self._total
        return np.asarray(self.array * (f - level))


class BlockPrecisions(SitePrecisions):
    """Any semi-definite Π_i, (n, c, c)."""

    @property
    def legal(self) -> bool:
        return True  # what rounding takes below zero is taken for zero

    def block(self, k: int, other: int) -> Array:
        return np.ascontiguousarray(self.array[:, k, other])

    def times(self, f: Array) -> Array:
        return np.asarray(np.einsum("iab,bi->ai", self.array, f))
