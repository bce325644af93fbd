"""Variational bounds of single observations (Nickisch and Rasmussen 2008, section 6 and appendix A.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tests.reference.binary_gaussian import BinaryGaussian
from tests.reference.binary_links import Link

__all__ = ["binary_vb"]

Array = NDArray[np.float64]


def binary_vb(K: Array, y: Array, m: Array, link: Link) -> BinaryGaussian:
    """Maximise the log evidence (13) of the bound exp(a f² + b f + c) over the n parameters ς.

    Each ς may have either sign: for a probit it is negative if the point is misclassified. With W = −2a the Gaussian
    integral is log ∫ N(f | m, K) exp(−½ fᵀWf + bᵀf + c) df.
    """
    n = y.size

    def integral(site: Array) -> tuple[float, Array, Array]:
        a, b, c = link.bound(y, site)
        w = -2.0 * a
        alpha = np.linalg.solve(np.eye(n) + w[:, None] * K, b - w * m)
        value = c.sum() + m @ b - 0.5 * m @ (w * m) + 0.5 * (b - w * m) @ K @ alpha
        return float(value - 0.5 * np.linalg.slogdet(np.eye(n) + K * w)[1]), alpha, w

    best = None
    for first in (0.5, 3.0):
        found = minimize(
            lambda site: -integral(site)[0], np.full(n, first), method="BFGS", options={"gtol": 1e-10, "maxiter": 5000}
        )
        # The gradient is computed by differences, so that the last steps need a simplex search.
        found = minimize(
            lambda site: -integral(site)[0],
            found.x,
            method="Nelder-Mead",
            options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20000, "maxfev": 20000},
        )
        if best is None or found.fun < best.fun:
            best = found
    value, alpha, w = integral(best.x)
    return BinaryGaussian.of(K, m, alpha, w, value)
