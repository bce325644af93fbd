"""The lower bound of the log evidence that any Gaussian of the active latent values has over all rows.

Σ_i E log p(y_i | f_i) − KL(q ‖ p) over the active latent values f_I, with the exact prior of all others given these
(Seeger and Jordan 2004, equation 15). With the sites exp(νᵀf − ½ fᵀΠf) held, q = N(m + K b, K − K M K), and a row with
prior covariances C_k with the active ones has moments

    h_k = m_k + C_k b_k,   A_kl = δ_kl (κ_k − C_k B_k C_kᵀ) + C_k T_k (C_l T_l)ᵀ,   M = blockdiag(B) − T Tᵀ.

Derivatives follow from dM = −M dK M and db = −M (dK b + dm), in O(c d²) for a row (there appendix A, by another way).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.selection.average_log_density import average_log_density
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.problem import own_matrix


class BoundSlopes(NamedTuple):
    """Derivatives of the bound in the prior moments of the active rows."""

    covariance: Array
    """(q, d, d), symmetric."""
    mean: Array
    """(c, d)."""


class _Rows(NamedTuple):
    """Moments of B rows under the posterior."""

    cross: list[Array]
    """C_k (d, B)."""
    smoothed: list[Array]
    """B_k C_k."""
    shared: Array | None
    """T_k C_k (c, d, B), of coupled sites."""
    moments: tuple[Array, Array]
    """Means (c, B) and covariances (B, c, c) of their latent values."""


class ActiveBound:
    """The bound, gathered from blocks of rows.

    Parameters
    ----------
    posterior : DensePosterior
        Posterior of the active latent values.
    """

    def __init__(self, posterior: DensePosterior) -> None:
        self._posterior = posterior
        self._b, self._t = posterior.smoothing()
        self.value: float = -posterior.divergence
        c, d = posterior.weights.shape
        self._pull = np.zeros((c, d))  # Σ C_kᵀ slope_k
        self._inner = np.zeros((c, d, d))  # what M gets by the covariances of rows
        self._common = np.zeros((d, d))

    def value_of(self, block: Block, labels: NDArray[np.int64], likelihood: Likelihood, weight: float) -> None:
        """Add rows to the value alone, arguments as of `add`."""
        self.value += weight * average_log_density(likelihood, labels, *self._seen(block).moments).value

    def _seen(self, block: Block) -> _Rows:
        b, t, weights = self._b, self._t, self._posterior.weights
        c, q = len(weights), len(block.cross)
        cross = [own_matrix(block.cross, k) for k in range(c)]
        smoothed = [own_matrix(b, k) @ cross[k] for k in range(c)] if len(b) > 1 or q > 1 else [b[0] @ cross[0]] * c
        mean = block.mean + np.stack([weights[k] @ cross[k] for k in range(c)])
        cov = np.zeros((mean.shape[1], c, c))
        shared = None if t is None else np.stack([t[k].T @ cross[k] for k in range(c)])
        if shared is not None:
            cov = np.einsum("kdj,ldj->jkl", shared, shared, optimize=True)
        for k in range(c):
            left = block.variance[min(k, q - 1)] - np.einsum("dj,dj->j", cross[k], smoothed[k])
            cov[:, k, k] += np.maximum(left, 0.0)
        return _Rows(cross, smoothed, shared, (mean, cov))

    def add(self, block: Block, labels: NDArray[np.int64], likelihood: Likelihood, weight: float) -> Block:
        """Add rows, each `weight` times; returns derivatives in their prior moments, in the shape of these.

        Parameters
        ----------
        block : Block
            Prior moments of B rows: covariances with the active ones (q, d, B), variances (q, B), means (c, B).
        labels : array (B,)
        likelihood : Likelihood
            With the parameters of these rows.
        weight : float
        """
        t, weights = self._t, self._posterior.weights
        c, q = len(weights), len(block.cross)
        cross, smoothed, shared, moments = self._seen(block)
        found = average_log_density(likelihood, labels, *moments)
        self.value += weight * found.value
        slope, curvature = weight * found.slope, weight * found.curvature
        of_cross, of_variance = np.zeros_like(block.cross), np.zeros_like(block.variance)
        turned = None if shared is None else np.einsum("jke,edj->kdj", curvature, shared, optimize=True)
        for k in range(c):
            own = curvature[:, k, k]
            bar = weights[k][:, None] * slope[k] - 2.0 * own * smoothed[k]
            self._pull[k] += cross[k] @ slope[k]
            self._inner[k] += (own * smoothed[k]) @ smoothed[k].T
            if shared is not None and turned is not None and t is not None:
                bar += 2.0 * t[k] @ turned[k]
                both = smoothed[k] @ turned[k].T @ t[k].T
                self._inner[k] -= both + both.T
                self._common += shared[k] @ turned[k].T
            of_cross[min(k, q - 1)] += bar
            of_variance[min(k, q - 1)] += own
        return Block(of_cross, of_variance, slope)

    def slopes(self) -> BoundSlopes:
        """Derivatives in the prior moments of the active rows, by way of the posterior of all rows that were added."""
        posterior, b, t = self._posterior, self._b, self._t
        k_prior, weights = posterior.prior.k, posterior.weights
        c, d = weights.shape
        # Through b: −(M r) bᵀ of what pulls at the means, less K b of the divergence.
        pulled = self._m_times(self._pull - np.stack([own_matrix(k_prior, k) @ weights[k] for k in range(c)]))
        common = self._common
        if t is not None:
            within = sum(t[k].T @ own_matrix(k_prior, k) @ t[k] for k in range(c))
            common = common - 0.5 * within
        found = np.zeros((len(k_prior), d, d))
        for k in range(c):
            own_b, own_k = own_matrix(b, k), own_matrix(k_prior, k)
            bar = self._inner[k] - pulled[k][:, None] * weights[k] - 0.5 * np.outer(weights[k], weights[k])
            smoothed = own_k @ own_b
            bar -= 0.5 * own_b @ smoothed
            if t is not None:
                both = t[k] @ (t[k].T @ smoothed)
                bar += 0.5 * (both + both.T) + t[k] @ common @ t[k].T
            found[min(k, len(k_prior) - 1)] += 0.5 * (bar + bar.T)
        return BoundSlopes(found, -pulled)

    def _m_times(self, r: Array) -> Array:
        """M r (c, d)."""
        product = np.stack([own_matrix(self._b, k) @ own for k, own in enumerate(r)])
        if self._t is None:
            return product
        total = sum(t.T @ own for t, own in zip(self._t, r, strict=True))
        return np.asarray(product - np.stack([t @ total for t in self._t]))
