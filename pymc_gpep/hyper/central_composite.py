"""Integration over the hyperparameters by a central composite design."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.curvature import GaussianAtMaximum, drawn_between, gaussian_at
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.hyper_method import HyperMethod, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.kernels.status import CONVERGED

_REACH = 2.0  # standard deviations from the mode at which the spread to either side is measured
_FEW = 8  # hyperparameters; for more, the corners of resolution V are too many
_NEGLIGIBLE = 1e-6  # weight of a node that is not worth keeping
_SPREAD = 1 / 3, 3.0  # limits to it, relative to that of the Gaussian


@dataclass(frozen=True)
class CentralComposite(HyperMethod):
    """Centre and points on a sphere, weighted to integrate the posterior (Rue, Martino and Chopin 2009, section 6.5).

    The sphere is one in standardised coordinates along the principal axes of the Gaussian at the maximum. Each of the
    two sides of an axis has units of its own, by how fast the density falls on it. A point's weight is the posterior
    density relative to the standard normal one, times the stretch of the volume (which Rue et al. leave out), times a
    design weight. The design weight makes mean and covariance of a standard normal distribution come out.

    Parameters
    ----------
    f0 : float, optional
        Radius of the sphere over the square root of the number d of hyperparameters. If not given, it is √(1 + 2 / d),
        so that the fourth moment of a normal distribution's radius comes out as well. Rue et al. and Vanhatalo,
        Pietiläinen and Vehtari (2010) have 1.1, which is that for d = 10.
    resolution : int, optional
        Resolution of the fraction of a cube's corners that are among the points: no product of fewer different
        coordinates has a mean over them. If not given, it is 5, and 4 for more than 8 hyperparameters: 14 of them take
        32 corners, not 256.
    """

    f0: float | None = field(default=None, metadata=at_least(1))
    resolution: int | None = field(default=None, metadata=at_least(3))

    name: ClassVar[str] = "ccd"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """The nodes of the design where the approximation succeeds, and the integral as log evidence."""
        best = optimum.best
        d = best.theta.size
        f0 = np.sqrt(1 + 2 / d) if self.f0 is None else self.f0
        gaussian = gaussian_at(log_posterior, optimum)
        spread, near = _spread(log_posterior, gaussian, best)
        sphere = f0 * sphere_design(d, self.resolution or (5 if d <= _FEW else 4))
        u = np.concatenate([np.zeros((1, d)), sphere])
        normal_weights = np.full(len(u), 1 / (len(sphere) * f0**2))
        normal_weights[0] = 1 - 1 / f0**2
        side = np.where(u == 0, spread.mean(axis=0), np.where(u > 0, spread[1], spread[0]))
        thetas = gaussian.at(side * u)
        nodes = evaluate_nodes(log_posterior, thetas, near, progressbar)
        kept = np.array([node is not None for node in nodes]) & (normal_weights > 0)
        good = [node for node, keep in zip(nodes, kept, strict=True) if node is not None and keep]
        if not good:
            raise ValueError(f"hyper='ccd': {failures(nodes)}. Use hyper='map', or other priors.")
        drop = np.array([node.log_posterior for node in good]) - best.log_posterior
        logs = drop + 0.5 * (u[kept] ** 2).sum(axis=1) + np.log(side[kept]).sum(axis=1) + np.log(normal_weights[kept])
        weights = np.exp(logs - logs.max())
        wanted = weights > _NEGLIGIBLE * weights.sum()
        heavy = [node for node, want in zip(good, wanted, strict=True) if want]
        evidence = best.log_posterior + gaussian.log_volume + float(logs.max() + np.log(weights.sum()))
        z = np.concatenate([np.zeros((1, d)), (side * u)[kept]])
        density = gaussian.at(drawn_between(z, [best, *good], gaussian, random_seed))
        return self.posterior(
            log_posterior, heavy, weights[wanted], [failures(nodes)], log_evidence=evidence, density=density
        )


def _spread(log_posterior: LogPosterior, gaussian: GaussianAtMaximum, best: Evaluation) -> tuple[Array, Neighbours]:
    """Standard deviation to the left and to the right along each axis, relative to the Gaussian's, (2, d).

    Each is that of a normal density that falls by as much as the posterior does over two of the Gaussian's standard
    deviations. It is 1 where the posterior cannot be computed, or does not fall. Starts for nodes are returned as well.
    """
    log_posterior = log_posterior.loosely(gradients=False)
    d = gaussian.mean.size
    near = gaussian.neighbours
    known = Neighbours((best.theta,), (best.start,), gaussian.root)
    spread = np.ones((2, d))
    ends = gaussian.at(_REACH * np.concatenate([-np.eye(d), np.eye(d)]))
    for place, found in enumerate(log_posterior.each(lambda theta: log_posterior(theta, near), ends)):
        fall = best.log_posterior - found.log_posterior
        if fall > 0:
            spread[divmod(place, d)] = np.clip(_REACH / np.sqrt(2 * fall), *_SPREAD)
        if found.status == CONVERGED:
            known = known.joined(found.theta, found.start, 2 * d + 1)
    return spread, known


def sphere_design(d: int, resolution: int = 5) -> Array:
    """Points (k, d) on the sphere of radius √d: the axes, and for d > 1 corners of the cube.

    The corners are a fraction of some resolution, so that no product of fewer different coordinates has a mean other
    than 0. Columns are Walsh functions, as of Sanchez and Sanchez (2005) for resolution V. Each column is the first
    that is not a product of so many of those before it.
    """
    axes = np.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])
    if d == 1:
        return axes
    columns: list[int] = []
    products = [{0}, *(set[int]() for _ in range(resolution - 2))]  # of so many columns
    while len(columns) < d:
        column = 1 + max(columns, default=0)
        while any(column in found for found in products):
            column += 1
        for many in range(resolution - 2, 0, -1):
            products[many] |= {column ^ other for other in products[many - 1]}
        columns.append(column)
    runs = np.arange(2 ** max(columns).bit_length())
    corners = 1.0 - 2.0 * (np.bitwise_count(runs[:, None] & np.array(columns)) % 2)
    return np.concatenate([corners, axes])
