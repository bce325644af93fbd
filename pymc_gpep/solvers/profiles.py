"""Functions φ(r²) of scaled squared distances that stationary covariances are made of, with derivatives."""

from typing import NamedTuple, Protocol

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.sparse_step.loops import log_squared_exponential, squared_distances

_LEAST = 1e-12  # what PyMC adds to squared distances before it takes their root


class ProfileValues(NamedTuple):
    """A covariance v φ(r²) at many distances."""

    values: Array
    """v φ(r²)."""
    slopes: Array
    """−2 v φ′(r²): the same array where it is the same function."""


class Profile(Protocol):
    """A function φ(r²), and what follows from v φ(0), which is what a point has."""

    name: str

    def at(self, squares: Array, variance: float) -> ProfileValues:
        """Return values at squared distances, from v φ(0)."""

    def between(self, products: Array, left: Array, right: Array, variance: float) -> ProfileValues:
        """The same in place of inner products (B, M), from squared norms (B,) and (M,)."""


class _SquaredExponential:
    """φ = exp(−r² / 2), which is its own derivative."""

    name = "squared exponential"

    def at(self, squares: Array, variance: float) -> ProfileValues:
        values = variance * np.exp(-0.5 * squares)
        return ProfileValues(values, values)

    def between(self, products: Array, left: Array, right: Array, variance: float) -> ProfileValues:
        log_squared_exponential(products, left, right, np.log(variance))
        np.exp(products, out=products)
        return ProfileValues(products, products)


class _OfDistance:
    """φ = p(a r) exp(−a r), with a polynomial p."""

    name: str
    rate: float

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        """p(t), and −2 φ′ exp(t) as a function of t = a r."""
        raise NotImplementedError

    def at(self, squares: Array, variance: float) -> ProfileValues:
        t = squares + _LEAST
        np.sqrt(t, out=t)
        t *= self.rate
        value, slope = self.polynomials(t)
        np.negative(t, out=t)
        np.exp(t, out=t)
        t *= variance
        return ProfileValues(value * t, slope * t)

    def between(self, products: Array, left: Array, right: Array, variance: float) -> ProfileValues:
        squared_distances(products, left, right)
        return self.at(products, variance)


class _Matern52(_OfDistance):
    name = "Matérn 5/2"
    rate = np.sqrt(5.0)

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        return 1.0 + t * (1.0 + t / 3.0), 5.0 / 3.0 * (1.0 + t)


class _Matern32(_OfDistance):
    name = "Matérn 3/2"
    rate = np.sqrt(3.0)

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        return 1.0 + t, np.full_like(t, 3.0)


class _Matern12(_OfDistance):
    name = "Matérn 1/2"
    rate = 1.0

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        return np.ones_like(t), 1.0 / t


class _Exponential(_OfDistance):
    name = "exponential"
    rate = 0.5

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        return np.ones_like(t), 0.25 / t


PROFILES: tuple[Profile, ...] = (_SquaredExponential(), _Matern52(), _Matern32(), _Matern12(), _Exponential())
"""All there are; another one is a class and its place here."""
