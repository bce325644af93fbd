"""Class-independent EP as in the nested EP paper (sections 3.2 and 5.4): parallel damped updates only."""

from collections.abc import Iterator

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from pymc_gpep.approximations.solution import Convergence, Solution
from pymc_gpep.gaussians.posterior import make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.status import OUT_OF_ITERATIONS
from pymc_gpep.rivals.class_independent_ep import IEP
from pymc_gpep.rivals.kernels.class_independent import inner_tilted

Array = np.ndarray

_TOLERANCE = 1e-9  # tolerance of inner loops that are run to convergence


def plain_iep(k: Array, y: Array, c: int, damping: float, max_inner: int) -> Iterator[Solution]:
    """The posterior before each iteration, from the prior on. Damping acts on the site parameters ν and π.

    It differs from `IEP` in two points: only the updates of the sites move the common level of all classes, and inner
    sites are not damped. It ends after a posterior without proper cavities.
    """
    n = y.size
    sites, target = np.zeros((2, 2, n, 2 * c - 1))
    settings = (max_inner, _TOLERANCE, np.empty(c - 1), np.empty((c - 1, c - 1)), np.empty(c - 1))
    scale = np.empty(2 * c - 1)
    while True:
        pi, nu = np.moveaxis(sites[..., :c], 2, 1).copy()
        mean, variance, weights, evidence = _posterior(k, pi, nu)
        keep = 1.0 - pi * variance
        sound = bool((keep > 0.0).all() and (variance > 0.0).all())
        if sound:
            cavity_mean, cavity_variance = (mean - nu * variance) / keep, variance / keep
            for i in range(n):
                point = np.ascontiguousarray(cavity_mean[:, i]), np.ascontiguousarray(cavity_variance[:, i])
                log_z, _ = inner_tilted(settings, *point, y[i], sites[:, i], target[:, i], scale)
                evidence += log_z
            evidence += 0.5 * (cavity_mean**2 / cavity_variance + np.log(cavity_variance)).sum()
            evidence -= 0.5 * (mean**2 / variance + np.log(variance)).sum()
        else:
            evidence = np.nan
        yield Solution(
            evidence=float(evidence),
            mean=mean,
            cov=variance.T[:, :, None] * np.eye(c),
            labels=y,
            likelihood=IEP.first_likelihood(),
            posterior=make_posterior(DensePrior(k[None], np.zeros((c, n))), SiteForm.INDEPENDENT, pi, weights, mean),
            start=sites.copy(),
            convergence=Convergence(OUT_OF_ITERATIONS, np.empty((0, 2)), _TOLERANCE, "damped EP"),
        )
        if not np.isfinite(evidence):
            return
        sites[..., :c] += damping * (target[..., :c] - sites[..., :c])
        sites[..., c:] = target[..., c:]


def _posterior(k: Array, pi: Array, nu: Array) -> tuple[Array, Array, Array, float]:
    """Means, variances and weights K⁻¹ mean (c, n), and log ∫ p(f) ∏ sites."""
    mean, variance, weights = np.empty((3, *pi.shape))
    total = 0.0
    for a, (precision, location) in enumerate(zip(pi, nu, strict=True)):
        root = np.sqrt(np.maximum(precision, 0.0))
        factor = cho_factor(np.eye(len(k)) + root[:, None] * k * root, lower=True)
        half = cho_solve(factor, root[:, None] * k) * root[:, None]  # B K
        weights[a] = location - half @ location
        mean[a] = k @ weights[a]
        variance[a] = k.diagonal() - np.einsum("ij,ji->i", k, half)
        total += 0.5 * location @ mean[a] - np.log(np.diagonal(factor[0])).sum()
    return mean, variance, weights, float(total)
