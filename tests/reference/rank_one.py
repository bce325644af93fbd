"""A form of prior that the package does not know: the covariance K = diag(d) + u uᵀ of one function, by d and u.

With a site precision π, e = 1 + π d and s = 1 + Σ π u² / e, all is O(n): log|I + πK| = Σ log e + log s,

    Σ = diag(d / e) + (u / e)(u / e)ᵀ / s,   (I + πK)⁻¹ r = r / e − (πu / e) (uᵀ(r / e)) / s.

A matrix with two axes of rows is made by the few methods that return one, and K itself is refused.
"""

from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np

from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import IndependentSites
from pymc_gpep.solvers.prior_form import Algebra, FunctionPosterior, PriorForm

__all__ = ["RankOneForm", "RankOnePosterior", "RankOnePrior"]


class Split(NamedTuple):
    """The algebra of d, u and a precision, each (n,)."""

    d: np.ndarray
    u: np.ndarray
    pi: np.ndarray

    @property
    def e(self):
        return 1.0 + self.pi * self.d

    @property
    def s(self):
        return 1.0 + float((self.pi * self.u**2 / self.e).sum())

    @property
    def log_det(self):
        return float(np.log(self.e).sum() + np.log(self.s))

    @property
    def variance(self):
        return self.d / self.e + (self.u / self.e) ** 2 / self.s

    @property
    def kept(self):
        return 1.0 / self.e - self.pi * (self.u / self.e) ** 2 / self.s

    def times(self, b):
        """K b of b (..., n)."""
        return self.d * b + (b @ self.u)[..., None] * self.u

    def smooth(self, r):
        """(I + πK)⁻¹ r of r (..., n)."""
        part = r / self.e
        return part - (part @ self.u)[..., None] / self.s * self.pi * self.u / self.e

    def among(self, points):
        """Covariance of the posterior at some points."""
        half = (self.u / self.e)[points]
        return np.diag((self.d / self.e)[points]) + np.outer(half, half) / self.s

    def gradient(self, b, moved=0.0, of_variance=0.0):
        """The derivative of the log normaliser in d and u, (1, 2, n)."""
        moved = moved + np.zeros_like(b)
        removed = self.pi * self.kept
        of_d = 0.5 * (b**2 - removed) + b * moved + of_variance
        of_u = b * (b @ self.u) - self.smooth(self.pi * self.u)
        of_u += moved * (b @ self.u) + b * (moved @ self.u) + 2.0 * of_variance * self.u
        return np.stack([of_d, of_u])[None]


class RankOneFunction(FunctionPosterior):
    """The posterior of the one function."""

    def __init__(self, d, u, prior_mean):
        super().__init__(prior_mean)
        self._split = Split(d, u, np.zeros_like(d))

    def decompose(self, precision):
        self.precision[:] = precision
        self._split = self._split._replace(pi=self.precision.copy())
        exists = bool((self._split.e > 0).all() and self._split.s > 0)
        self.log_det = self._split.log_det if exists else np.nan
        return exists

    def invert(self):
        pass

    def times(self, weights):
        return self._split.times(weights)

    def spread(self):
        self.variance[:] = self._split.variance

    @property
    def kept(self):
        return self._split.kept

    def smooth(self, force):
        return self._split.smooth(force)

    def gradient(self, moved=None, of_variance=None):
        given = {"moved": moved, "of_variance": of_variance}
        return self._split.gradient(self.weights, **{name: own for name, own in given.items() if own is not None})


class RankOneForm(PriorForm):
    """d and u, (1, 2, n)."""

    square = False
    algebras = frozenset({Algebra.FUNCTION, Algebra.VARIANCES})

    def _split(self, precision=0.0):
        d, u = self.array[0]
        return Split(d, u, precision + np.zeros_like(d))

    def among(self, points):
        return self._split().among(points)[None]

    @property
    def variances(self):
        return self._split().variance[None]

    def is_covariance(self, team):
        return bool((self.array[0, 0] >= 0).all())

    def multiply(self, b, out):
        out[:] = self._split().times(b)

    def rounding(self, b):
        return 1e-15 * float(self.variances.max() * np.abs(b).sum())

    def newton_direction(self, curvature, slope, reduction, limit, image, pull):
        pull[:] = self._split(curvature).smooth(slope)
        self.multiply(pull, image)

    def posterior(self, prior_mean, *, signed=False):
        return RankOneFunction(*self.array[0], prior_mean)

    def coupled(self, n_functions, team) -> NoReturn:
        raise TypeError("This is a prior of one function.")

    def blocks(self, n_functions) -> NoReturn:
        raise TypeError("This is a prior of one function.")


class RankOnePrior(DensePrior):
    """f = m + d^½ z′ + u z₀ for standard normals z = (z′, z₀), (1, n + 1)."""

    form = RankOneForm
    takes_signs = True

    def __init__(self, array, mean):
        self.mean = np.require(mean, np.float64, ["C", "W"])
        self.given = np.require(array, np.float64, ["C", "W"])

    @classmethod
    def checked(cls, k, mean):
        return cls(np.asarray(k, np.float64), np.atleast_2d(np.asarray(mean, np.float64)))

    @property
    def k(self) -> NoReturn:
        raise AssertionError("All rows of K were asked for.")

    roots = k

    @classmethod
    def matrices(cls, c, n, q, learned):
        return 1, 2

    @classmethod
    def entries(cls, c, n, q, known=None):
        return 2 * n

    @classmethod
    def algebra(cls, n, q, known=None):
        return f"By a diagonal and one column of {n} rows."

    @property
    def array(self):
        return self.given

    def split(self, precision=0.0):
        d, u = self.given[0]
        return Split(d, u, precision + np.zeros_like(d))

    def check(self):
        pass

    @property
    def variances(self):
        return self.split().variance[None]

    def among(self, points, others):
        d, u, _ = self.split()
        return (np.outer(u[points], u[others]) + np.where(points[:, None] == others, d[points][:, None], 0.0))[None]

    def some(self, points):
        return RankOnePrior(self.given[:, :, points], self.mean[:, points])

    def latent(self, z):
        d, u, _ = self.split()
        return self.mean + np.sqrt(d) * z[..., :-1] + u * z[..., -1:]

    def whitened_slope(self, slope):
        d, u, _ = self.split()
        return np.concatenate([np.sqrt(d) * slope, slope @ u[:, None]], axis=1)

    def conditional(self, f, k_cross, k_new, new_mean):
        d, u, _ = self.split()
        rows = Split(np.zeros_like(d), u, 1.0 / d)  # K⁻¹ r = (I + π u uᵀ)⁻¹ π r
        solved = rows.smooth((f - self.mean) / d)
        explained = (k_cross[0] * rows.smooth(k_cross[0] / d)).sum(axis=1)
        return new_mean + solved @ k_cross[0].T, np.maximum(k_new - explained, 0.0)


class RankOnePosterior(DensePosterior):
    """Sites of precision π (1, n)."""

    sites_class = IndependentSites

    @classmethod
    def of(cls, prior, sites):
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        posterior.weights = posterior._split.smooth(sites.slope(prior.mean))
        return posterior

    @property
    def _split(self):
        return self.prior.split(self.precision[0])

    @cached_property
    def mean(self):
        return self.prior.mean + self._split.times(self.weights)

    @property
    def log_determinant(self):
        return self._split.log_det

    def marginals(self):
        return self.mean, self._split.variance[:, None, None]

    def derivatives(self):
        return self._split.gradient(self.weights[0]), self.weights.copy()

    def site_blocks(self):
        return np.sqrt(self.precision[0])[:, None, None], self._split.kept[:, None, None]

    def covariance_among(self, points):
        return self._split.among(points)[None, :, None]

    def _explained(self, rows):
        return rows @ self._split.smooth(self.precision[0] * rows).T

    def _covariance_at(self, k_cross, k_new):
        explained = [float(self._explained(row[None])[0, 0]) for row in k_cross[0]]
        return np.maximum(k_new[0] - explained, 0.0)[:, None, None]

    def joint_covariance(self, left, prior):
        return np.asarray(prior - self._explained(left[0].T))[:, :, None]

    def marginal_variance(self, left, prior):
        return np.diagonal(self.joint_covariance(left, prior)[0, :, 0])[None]

    def whitened(self):
        d, u, pi = split = self._split
        root = np.concatenate([np.diag(np.sqrt(d)), u[None]])
        taken = (root * split.smooth(pi * root)).sum(axis=1)
        return self.prior.whitened_slope(self.weights), (1.0 - taken)[None]

    def draw_whitened(self, rng, draws):
        d, _, pi = self._split
        z = rng.standard_normal((draws, 1, d.size + 1))
        noise = np.sqrt(pi) * rng.standard_normal((draws, d.size))
        f = self.prior.latent(z)[:, 0] - self.prior.mean[0]
        # By perturbation: z + Rᵀ (b + ε − M (f + Kε)).
        force = self.weights[0] + noise - self._split.smooth(pi * (f + self._split.times(noise)))
        return z + self.prior.whitened_slope(force)[:, None]
