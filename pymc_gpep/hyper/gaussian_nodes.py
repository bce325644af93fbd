"""Laplace's method for the hyperparameters: the Gaussian at their maximum."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_gpep.approximations.limits import at_least
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.curvature import gaussian_at
from pymc_gpep.hyper.hyper_method import HyperMethod, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.resampling import DRAWS


@dataclass(frozen=True)
class LaplaceNodes(HyperMethod):
    """Equally weighted points that have mean and covariance of the Gaussian at the maximum.

    It is that of the unconstrained space, with mode and second derivatives of the log posterior.

    Parameters
    ----------
    nodes : int
        How many; at least two more than there are hyperparameters.
    """

    nodes: int = field(default=64, metadata=at_least(1))

    name: ClassVar[str] = "laplace"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Quasi-random nodes, and the log evidence of Laplace's method."""
        d = optimum.best.theta.size
        if self.nodes < d + 2:
            raise ValueError(f"nodes must be at least {d + 2} for {d} hyperparameters, but is {self.nodes}.")
        gaussian = gaussian_at(log_posterior, optimum)
        thetas = gaussian.at(standard_normal_nodes(self.nodes, d, random_seed))
        nodes = evaluate_nodes(log_posterior, thetas, gaussian.neighbours, progressbar)
        good = self.usable(nodes)
        evidence = optimum.best.log_posterior + gaussian.log_volume
        density = gaussian.at(standard_normal_nodes(DRAWS, d, random_seed))
        return self.posterior(
            log_posterior, good, np.ones(len(good)), [failures(nodes)], log_evidence=evidence, density=density
        )


def standard_normal_nodes(nodes: int, d: int, random_seed: int) -> Array:
    """Quasi-random points (nodes, d) whose mean is 0 and whose covariance is the identity, up to rounding."""
    z = ndtri(qmc.Halton(d, scramble=True, rng=np.random.default_rng(random_seed)).random(nodes))
    z -= z.mean(axis=0)
    root = np.linalg.cholesky(z.T @ z / nodes)
    return np.asarray(np.linalg.solve(root, z.T).T)
