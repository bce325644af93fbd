"""The two links of binary classification, with averages under a Gaussian by adaptive quadrature.

Labels are −1 and +1, and p(y | f) = sig(y f), with sig the standard normal distribution function Φ (probit) or σ(t) = 1
/ (1 + e^−t) (logit). Source: Nickisch and Rasmussen, *Approximations for Binary Gaussian Process Classification* (JMLR
9, 2008), section 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, log_ndtr

__all__ = ["LINKS", "LOGIT", "PROBIT", "Link"]

Array = NDArray[np.float64]

_PIECES = np.array([-40.0, -12.0, -6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 12.0, 40.0])


class Link(ABC):
    """A sigmoid, and its averages over a Gaussian."""

    name: str
    largest_curvature: float
    """Largest second derivative of −log sig."""

    @abstractmethod
    def log_sig(self, t: Array) -> Array:
        """log sig(t)."""

    @abstractmethod
    def derivatives(self, t: Array) -> tuple[Array, Array, Array]:
        """First three derivatives of log sig(t)."""

    def moments(self, y: float, mean: float, variance: float) -> tuple[float, float, float]:
        """Log normaliser, mean and variance of sig(y f) N(f | mean, variance).

        The integrand is divided by its largest value, and integrated in pieces around its mode.
        """
        if variance == 0.0:
            return float(self.log_sig(np.float64(y * mean))), mean, 0.0
        deviation = np.sqrt(variance)

        def log_integrand(f: float) -> float:
            return float(self.log_sig(np.float64(y * f))) - 0.5 * (f - mean) ** 2 / variance

        width = deviation * (10.0 + abs(mean) / deviation)
        mode = minimize_scalar(
            lambda f: -log_integrand(f), bounds=(mean - width, mean + width), method="bounded", options={"xatol": 1e-10}
        ).x
        top = log_integrand(mode)
        curvature = 1.0 / variance - self.derivatives(np.float64(y * mode))[1]
        narrow = mode + _PIECES / np.sqrt(curvature)
        edges = np.unique(np.concatenate([narrow, mean + _PIECES * deviation, _PIECES]))
        edges = edges[(edges > mode - 45.0 * deviation) & (edges < mode + 45.0 * deviation)]

        def integral(power: int) -> float:
            def integrand(f: float) -> float:
                return float((f - mode) ** power * np.exp(log_integrand(f) - top))

            return sum(
                quad(integrand, low, high, epsabs=1e-15, epsrel=1e-12, limit=200)[0] for low, high in pairwise(edges)
            )

        zeroth, first, second = (integral(power) for power in range(3))
        shift = first / zeroth
        log_z = top + np.log(zeroth) - 0.5 * np.log(2.0 * np.pi * variance)
        return float(log_z), float(mode + shift), float(second / zeroth - shift**2)

    def average_log(self, y: float, mean: float, variance: float) -> tuple[float, float, float]:
        """E log sig(y f) over N(f | mean, variance), its derivatives in the mean and in the variance (appendix A.2.1).

        By the heat equation these are averages of the first derivative of log sig(y f) in f and of half the second.
        """
        if variance == 0.0:
            first, second, _ = self.derivatives(np.float64(y * mean))
            return float(self.log_sig(np.float64(y * mean))), float(y * first), 0.5 * float(second)
        deviation = np.sqrt(variance)
        near = _PIECES[(np.abs(_PIECES - mean) < 40.0 * deviation)]
        edges = np.unique(np.concatenate([mean + deviation * np.clip(_PIECES, -38.0, 38.0), near]))

        def average(function) -> float:
            def integrand(f: float) -> float:
                density = np.exp(-0.5 * (f - mean) ** 2 / variance) / np.sqrt(2.0 * np.pi * variance)
                return float(function(np.float64(y * f)) * density)

            return sum(
                quad(integrand, low, high, epsabs=1e-14, epsrel=1e-12, limit=200)[0] for low, high in pairwise(edges)
            )

        return (
            average(self.log_sig),
            y * average(lambda t: self.derivatives(t)[0]),
            0.5 * average(lambda t: self.derivatives(t)[1]),
        )

    @abstractmethod
    def bound(self, y: Array, site: Array) -> tuple[Array, Array, Array]:
        """a, b and c of the quadratic bound log sig(y f) ≥ a f² + b f + c that a parameter ς selects (section 6)."""


class Probit(Link):
    """sig = Φ."""

    name = "probit"
    largest_curvature = 1.0

    def log_sig(self, t: Array) -> Array:
        return np.asarray(log_ndtr(t))

    def derivatives(self, t: Array) -> tuple[Array, Array, Array]:
        hazard = np.exp(-0.5 * t * t - 0.5 * np.log(2.0 * np.pi) - log_ndtr(t))
        second = -hazard * (hazard + t)
        return hazard, second, -second * (2.0 * hazard + t) - hazard

    def moments(self, y: float, mean: float, variance: float) -> tuple[float, float, float]:
        """Closed forms (appendix B.1): equations 3.58, 3.85 and 3.87 of Rasmussen and Williams (2006)."""
        scale = np.sqrt(1.0 + variance)
        z = y * mean / scale
        hazard = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_ndtr(z))
        tilted = mean + y * variance * hazard / scale
        return float(log_ndtr(z)), float(tilted), float(variance - variance**2 * hazard / (1 + variance) * (z + hazard))

    def bound(self, y: Array, site: Array) -> tuple[Array, Array, Array]:
        """Section 6.2: a = −½, b = ς + N(ς) / Φ(ς). The bound is tight where y f = ς."""
        first, _, _ = self.derivatives(site)
        b = site + first
        return np.full_like(site, -0.5), y * b, log_ndtr(site) + 0.5 * site**2 - b * site


class Logit(Link):
    """sig = σ."""

    name = "logit"
    largest_curvature = 0.25

    def log_sig(self, t: Array) -> Array:
        return np.asarray(log_expit(t))

    def derivatives(self, t: Array) -> tuple[Array, Array, Array]:
        p, q = expit(t), expit(-t)
        return q, -p * q, -p * q * (q - p)

    def bound(self, y: Array, site: Array) -> tuple[Array, Array, Array]:
        """Section 6.1 (Jaakkola and Jordan): a = −λ(ς), b = ½. The bound is tight where |f| = ς, and λ(0) = 1/8."""
        small = np.abs(site) < 1e-4
        safe = np.where(small, 1.0, site)
        rate = np.where(small, 0.125 - site**2 / 96.0, np.tanh(0.5 * safe) / (4.0 * safe))
        return -rate, 0.5 * y, log_expit(site) - 0.5 * site + rate * site**2


PROBIT, LOGIT = Probit(), Logit()
LINKS = {link.name: link for link in (PROBIT, LOGIT)}
