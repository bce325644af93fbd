"""The posterior that active rows imply, as it grows: moments of many candidates, inclusion by inclusion.

Each candidate j has a stub m_k = L_k⁻¹ D_k^½ K_k,j, one number for each active row and each function. Here
A_k = I + D_k^½ K_k D_k^½ = L_k L_kᵀ over the active rows. A candidate that comes later gets all stubs at once, from the
prior covariance with the active rows.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from scipy.linalg import solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import FLOOR, CoupledSites, IndependentSites
from pymc_gpep.rivals.kernels.active_rows import append_coupled
from pymc_gpep.rivals.selection.row_site_rules import Places


class Growth(ABC):
    """Moments of p candidates given the active rows; at first no row is active.

    Parameters
    ----------
    n_functions : int
        Number c of functions.
    n_stubs : int
        1 where all functions have the same covariance and every site the same precision for all, else c.
    capacity : int
        Most active rows.
    candidates : int
        Number p of candidates.

    Attributes
    ----------
    size : int
        Number of active rows.
    mean : array (c, p)
    held : array (·,) of int
        Candidates that must stay where they are: none.
    """

    sites_class: ClassVar[type[CoupledSites | IndependentSites]]
    """Class of the sites that a row gets."""
    held: Places = np.empty(0, np.int64)

    def __init__(self, n_functions: int, n_stubs: int, capacity: int, candidates: int) -> None:
        self.size = 0
        self.n_functions = n_functions
        self._rows = np.zeros((n_stubs, capacity, capacity))  # B = L⁻¹ D^½
        self._stubs = np.zeros((n_stubs, capacity, candidates))
        self._weights = np.zeros((n_functions, capacity))  # β = L⁻¹ D^{-½} ν
        self._sites = np.zeros((2, n_functions, capacity))
        self.mean = np.zeros((n_functions, candidates))

    @property
    def sites(self) -> tuple[Array, Array]:
        """π and ν of the active rows, (c, size) each."""
        precision, location = self._sites[:, :, : self.size]
        return precision, location

    def finish(self) -> None:  # noqa: B027  # there is nothing to do
        """Let all active rows say what they say, as they do here from the first."""

    @abstractmethod
    def covariance(self, places: Places | slice = slice(None)) -> Array:
        """Return the covariance of the functions of some candidates, (·, c, c)."""

    def between(self, place: int, column: Array, places: Places | slice = slice(None)) -> Array:
        """Covariances (c, ·, c) of the functions of one candidate with those of some.

        Parameters
        ----------
        place : int
        column : array (q, ·)
            Prior covariance of some candidates with it.
        places : array of int
            These; all if not given.
        """
        size, every = self.size, np.arange(self.n_functions)
        known = np.matmul(self._stubs[:, None, :size, place], self._stubs[:, :size, places])[:, 0]
        found = np.zeros((len(every), column.shape[1], len(every)))
        found[every, :, every] = column - known
        return found

    def fill(self, places: Places, cross: Array, variance: Array, mean: Array) -> None:
        """Put new candidates where others were.

        Parameters
        ----------
        places : array (f,) of int
            Places of the new candidates.
        cross : array (q, size, f)
            Prior covariance with the active rows, in their order.
        variance : array (q, f)
            Prior variance.
        mean : array (c, f)
            Prior mean.
        """
        size, n_stubs = self.size, len(self._stubs)
        stubs = np.matmul(self._rows[:, :size, :size], np.broadcast_to(cross, (n_stubs, *cross.shape[1:])))
        self._stubs[:, :size, places] = stubs
        weights = self._weights[:, None, :size]
        self.mean[:, places] = mean + np.matmul(weights, np.broadcast_to(stubs, (len(weights), *stubs.shape[1:])))[:, 0]
        self._fill(places, stubs, variance - (stubs * stubs).sum(axis=1))

    @abstractmethod
    def _fill(self, places: Places, stubs: Array, variance: Array) -> None:
        """The rest, from the stubs (·, size, f) and the variances without what couples functions (·, f)."""

    def include(self, place: int, column: Array, precision: Array, location: Array, prior_mean: Array) -> None:
        """Make a candidate active; it stays among the candidates, and says what it is like there.

        Parameters
        ----------
        place : int
            Which.
        column : array (q, p)
            Prior covariance of all candidates with it.
        precision, location : array (c,)
            π and ν of its site.
        prior_mean : array (c,)
        """
        size, n_stubs = self.size, len(self._stubs)
        self._sites[:, :, size] = precision, location
        site = self.sites_class(precision[:, None], location[:, None])
        pull = site.slope(prior_mean[:, None])[:, 0]
        root = np.sqrt(np.maximum(precision[:n_stubs], FLOOR))
        own = self._stubs[:, :size, place]
        column = np.broadcast_to(column, (n_stubs, column.shape[1]))
        known = np.matmul(own[:, None], self._stubs[:, :size])[:, 0]
        corner = np.sqrt(1.0 + root**2 * (column[:, place] - known[:, place]))
        stretch = root / corner
        new = stretch[:, None] * (column - known)
        rows = -stretch[:, None] * np.matmul(own[:, None], self._rows[:, :size, :size])[:, 0]
        seen = (np.broadcast_to(own, (self.n_functions, size)) * self._weights[:, :size]).sum(axis=1)
        new_weights = (pull / root - root * seen) / corner
        self._rows[:, size, :size], self._rows[:, size, size] = rows, stretch
        self._stubs[:, size] = new
        self._weights[:, size] = new_weights
        self._include(new, rows, stretch, new_weights)
        self.size += 1

    @abstractmethod
    def _include(self, new: Array, rows: Array, stretch: Array, new_weights: Array) -> None:
        """Moments with what stubs, B and β get by a new active row."""


class IndependentGrowth(Growth):
    """Sites that leave functions independent (Seeger and Jordan 2004, appendix B)."""

    sites_class = IndependentSites

    def __init__(self, n_functions: int, n_stubs: int, capacity: int, candidates: int) -> None:
        super().__init__(n_functions, n_stubs, capacity, candidates)
        self._variance = np.zeros((n_stubs, candidates))

    def covariance(self, places: Places | slice = slice(None)) -> Array:
        variance, every = np.broadcast_to(self._variance, self.mean.shape)[:, places].T, np.arange(self.n_functions)
        found = np.zeros((*variance.shape, self.n_functions))
        found[:, every, every] = variance
        return found

    def _fill(self, places: Places, stubs: Array, variance: Array) -> None:
        self._variance[:, places] = np.maximum(variance, 0.0)

    def _include(self, new: Array, rows: Array, stretch: Array, new_weights: Array) -> None:
        self.mean += new_weights[:, None] * new
        self._variance = np.maximum(self._variance - new * new, 0.0)


class CoupledGrowth(Growth):
    """Sites that couple the functions of a row (Seeger and Jordan 2004, section 4.2)."""

    sites_class = CoupledSites

    def __init__(self, n_functions: int, n_stubs: int, capacity: int, candidates: int) -> None:
        super().__init__(n_functions, n_functions, capacity, candidates)
        self._lower = np.zeros((capacity, capacity))
        self._shared = np.zeros((n_functions, capacity, candidates))
        self._common = np.zeros(capacity)
        self._covariance = np.zeros((candidates, n_functions, n_functions))

    def between(self, place: int, column: Array, places: Places | slice = slice(None)) -> Array:
        own = self._shared[:, : self.size, place]
        return super().between(place, column, places) + np.einsum(
            "al,elj->aje", own, self._shared[:, : self.size, places], optimize=True
        )

    def covariance(self, places: Places | slice = slice(None)) -> Array:
        return self._covariance[places]

    def _fill(self, places: Places, stubs: Array, variance: Array) -> None:
        size, c = self.size, self.n_functions
        every = range(c)
        cov = np.zeros((len(places), c, c))
        if size:
            back = np.matmul(self._rows[:, :size, :size].swapaxes(1, 2), stubs)
            flat = back.swapaxes(0, 1).reshape(size, -1)
            lower = self._lower[:size, :size]
            shared = solve_triangular(lower, flat, lower=True, check_finite=False).reshape(size, c, -1).swapaxes(0, 1)
            self._shared[:, :size, places] = shared
            self.mean[:, places] -= np.matmul(self._common[:size], shared)
            cov = np.einsum("alj,elj->jae", shared, shared, optimize=True)
        cov[:, every, every] += variance.T
        self._covariance[places] = cov

    def _include(self, new: Array, rows: Array, stretch: Array, new_weights: Array) -> None:
        # What m takes from a variance the first rotation gives back, so that neither is there.
        append_coupled(
            self.size, self._lower, self._common, self._shared, new, rows.copy(), stretch, new_weights, self.mean,
            self._covariance,
        )  # fmt: skip
