"""The Gaussian nearest to the posterior in KL(q ‖ posterior) (Nickisch and Rasmussen 2008, section 5, appendix A.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tests.reference.binary_gaussian import BinaryGaussian, jensen_bound
from tests.reference.binary_links import Link

__all__ = ["binary_kl"]

Array = NDArray[np.float64]


def binary_kl(K: Array, y: Array, m: Array, link: Link) -> BinaryGaussian:
    """Maximise (9) over its 2n parameters α and Λ = −½ W, without using the conditions at the maximum.

    The search is over log W. It is slow, and meant for a few points.
    """
    n = y.size

    def loss(x: Array) -> tuple[float, Array]:
        alpha, w = x[:n], np.exp(x[n:])
        smooth = np.linalg.inv(np.eye(n) + K * w)
        v = smooth @ K
        mean = m + K @ alpha
        g, slope, spread = np.array([link.average_log(*each) for each in zip(y, mean, v.diagonal(), strict=True)]).T
        value = g.sum() - 0.5 * (alpha @ K @ alpha + np.trace(smooth) - n - np.linalg.slogdet(smooth)[1])
        # dV = −V dW V, tr(I + KW)⁻¹ = n − tr W V.
        of_w = -(v**2) @ spread - 0.5 * (v**2) @ w
        return -float(value), -np.concatenate([K @ (slope - alpha), of_w * w])

    start = np.concatenate([np.zeros(n), np.full(n, np.log(0.1 * link.largest_curvature))])
    found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    alpha, w = found.x[:n], np.exp(found.x[n:])
    return BinaryGaussian.of(K, m, alpha, w, jensen_bound(K, y, m, alpha, w, link))
