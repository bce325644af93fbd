"""Expectation propagation of a binary classifier and the TAP equations (Nickisch and Rasmussen 2008, section 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root

from tests.reference.binary_gaussian import BinaryGaussian
from tests.reference.binary_links import Link

__all__ = ["binary_naive_tap", "binary_tap", "tap_residual"]

Array = NDArray[np.float64]


def binary_tap(K: Array, y: Array, m: Array, link: Link) -> BinaryGaussian:
    """EP by sweeps over the points, with a new posterior after each update. The evidence is that of section 4.2.

    log Z = Σ log Ẑ_i − Σ log ∫ N(f | cavity) site_i + log ∫ p(f) ∏ sites, the sites exp(ν_i f − ½ W_i f²).
    """
    n = y.size
    w, nu = np.zeros(n), np.zeros(n)

    def posterior() -> tuple[Array, Array]:
        covariance = np.linalg.solve(np.eye(n) + K * w, K)
        return m + covariance @ (nu - w * m), covariance

    for _ in range(2000):
        change = 0.0
        for i in range(n):
            mean, covariance = posterior()
            v = covariance[i, i]
            wide = v / (1.0 - w[i] * v)
            cavity = wide * (mean[i] / v - nu[i])
            _, tilted, narrow = link.moments(y[i], cavity, wide)
            new_w = 1.0 / narrow - 1.0 / wide
            new_nu = tilted / narrow - cavity / wide
            change = max(change, abs(new_w - w[i]) * v, abs(new_nu - nu[i]) * np.sqrt(v))
            w[i], nu[i] = new_w, new_nu
        if change < 1e-11:
            break
    mean, covariance = posterior()
    v = covariance.diagonal()
    wide = v / (1.0 - w * v)
    cavity = wide * (mean / v - nu)
    evidence = sum(link.moments(*each)[0] for each in zip(y, cavity, wide, strict=True))
    stretch = 1.0 + w * wide
    evidence -= 0.5 * ((nu**2 * wide + 2.0 * nu * cavity - w * cavity**2) / stretch - np.log(stretch)).sum()
    evidence += 0.5 * (m @ nu + (nu - w * m) @ mean) - 0.5 * np.linalg.slogdet(np.eye(n) + K * w)[1]
    return BinaryGaussian.of(K, m, nu - w * mean, w, float(evidence))


def tap_residual(K: Array, y: Array, m: Array, alpha: Array, w: Array, link: Link) -> float:
    """Residuals of the TAP equations (11) and (12), with a correction of the second line of (11).

    α_i is the slope of log Ẑ_i at the cavity mean m_i − σ_i² α_i, and 1/W_i = 1/γ_i − σ_i² with γ = −∂α/∂mean. The
    cavity variance is 1/[K + W⁻¹]⁻¹_ii − 1/W_i.
    """
    n = y.size
    mean = m + K @ alpha
    wide = 1.0 / np.linalg.inv(K + np.diag(1.0 / w)).diagonal() - 1.0 / w
    residual = 0.0
    for i in range(n):
        cavity = mean[i] - wide[i] * alpha[i]
        _, tilted, narrow = link.moments(y[i], cavity, wide[i])
        slope = (tilted - cavity) / wide[i]
        gamma = (1.0 - narrow / wide[i]) / wide[i]
        residual = max(residual, abs(slope - alpha[i]), abs(1.0 / (1.0 / gamma - wide[i]) - w[i]))
    return float(residual)


def binary_naive_tap(K: Array, y: Array, m: Array, link: Link) -> BinaryGaussian:
    """Section 4.3, with cavity variance K_ii: α_i is the slope of log ∫ N(f | m_i − K_ii α_i, K_ii) sig(y_i f) df.

    The paper defines no evidence. It is NaN here.
    """
    wide = K.diagonal()

    def tilted(alpha: Array) -> tuple[Array, Array]:
        cavity = m + K @ alpha - wide * alpha
        moments = np.array([link.moments(*each) for each in zip(y, cavity, wide, strict=True)])
        return (moments[:, 1] - cavity) / wide, (1.0 - moments[:, 2] / wide) / wide

    found = root(lambda alpha: tilted(alpha)[0] - alpha, np.zeros(y.size), tol=1e-13)
    if not found.success and np.abs(found.fun).max() > 1e-9:
        raise ArithmeticError(found.message)
    gamma = tilted(found.x)[1]
    return BinaryGaussian.of(K, m, found.x, gamma / (1.0 - wide * gamma), np.nan)
