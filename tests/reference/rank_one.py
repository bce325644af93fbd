"""A form of prior outside of the package: the covariance K = diag(d) + u uᵀ of one function, stored as d and u.

With a site precision π, e = 1 + π d and s = 1 + Σ π u² / e, all operations are O(n): log|I + πK| = Σ log e + log s,

Σ = diag(d / e) + (u / e)(u / e)ᵀ / s,   (I + πK)⁻¹ r = r / e − (πu / e) (uᵀ(r / e)) / s.

f = m + d^½ z′ + u z₀ for standard normals z = (z′, z₀), (1, n + 1). K itself is never computed.
"""

import numpy as np

from pymc_gpep.gaussians.posterior import PosteriorOf
from pymc_gpep.gaussians.prior_form import PosteriorAlgebra, PosteriorByAlgebra, PriorForm
from pymc_gpep.gaussians.sites import IndependentSites
from pymc_gpep.solvers.problem import Algebra

__all__ = ["RANK_ONE", "RankOnePrior"]


class RankOneAlgebra(PosteriorAlgebra):
    """Linear algebra of sites with precisions π (1, n)."""

    def __init__(self, prior, n_functions=1, team=None):
        self.prior, (self.d, self.u) = prior, prior.array[0]

    def factorise(self, precision):
        self.pi, self.e = precision[0], 1.0 + precision[0] * self.d
        self.s = 1.0 + float((self.pi * self.u**2 / self.e).sum())
        exists = bool((self.e > 0).all() and self.s > 0)
        return exists, float(np.log(self.e).sum() + np.log(self.s)) if exists else np.nan

    def smooth(self, r):
        part = r / self.e
        return part - (part @ self.u)[..., None] / self.s * self.pi * self.u / self.e

    def weights(self, force, out):
        out[:] = self.smooth(force)

    def marginal_covariances(self):
        return (self.d / self.e + (self.u / self.e) ** 2 / self.s)[:, None, None]

    def kept(self):
        return (1.0 / self.e - self.pi * (self.u / self.e) ** 2 / self.s)[:, None, None]

    def gradient(self, b, moved=None, x=None):
        b, u = b[0], np.zeros(b.size) if moved is None else moved.weights[0]
        of_d = 0.5 * (b**2 - self.pi * self.kept()[:, 0, 0]) + b * u
        of_u = (b + u) * (b @ self.u) + b * (u @ self.u) - self.smooth(self.pi * self.u)
        return np.stack([of_d, of_u])[None]


class RankOnePrior(PriorForm):
    """Prior with d and u, (1, 2, n)."""

    square = False
    algebras = frozenset({Algebra.FUNCTION, Algebra.VARIANCES})

    @classmethod
    def matrices(cls, c, n, q, learned):
        return 1, 2

    @classmethod
    def entries(cls, c, n, q, known=None):
        return 2 * n

    @classmethod
    def algebra(cls, n, q, known=None):
        return f"By a diagonal and one column of {n} rows."

    def among(self, points, others):
        d, u = self.array[0]
        return (np.outer(u[points], u[others]) + np.where(points[:, None] == others, d[points][:, None], 0.0))[None]

    @property
    def variances(self):
        return self.array[:, 0] + self.array[:, 1] ** 2

    def is_covariance(self, team):
        return bool((self.array[0, 0] >= 0).all())

    def some(self, points):
        return RankOnePrior(self.array[:, :, points], self.mean[:, points])

    def multiply(self, x, out):
        d, u = self.array[0]
        out[:] = d * x + (x @ u)[..., None] * u

    def variance_gradient(self, of_variance):
        return np.stack([of_variance, 2.0 * of_variance * self.array[0, 1]])[None]

    def posterior(self, prior_mean, *, signed=False):
        return PosteriorByAlgebra(self, RankOneAlgebra(self), prior_mean, signed=True)

    @property
    def roots(self):
        d, u = self.array[0]
        return np.column_stack([np.diag(np.sqrt(d)), u])[None]

    def latent(self, z):
        d, u = self.array[0]
        return self.mean + np.sqrt(d) * z[..., :-1] + u * z[..., -1:]

    def whitened_slope(self, slope):
        d, u = self.array[0]
        return np.concatenate([np.sqrt(d) * slope, slope @ u[:, None]], axis=-1)

    def draw_normals(self, rng, count):
        return rng.standard_normal((count, 1, self.mean.size + 1))

    def conditional(self, f, k_cross, k_new, new_mean):
        algebra = RankOneAlgebra(RankOnePrior(self.array * [[[0.0], [1.0]]], self.mean))
        algebra.factorise(1.0 / self.array[:, 0])  # K⁻¹ r = (I + π u uᵀ)⁻¹ π r, with π = 1 / d
        solved = algebra.smooth(algebra.pi * np.concatenate([f - self.mean, k_cross[0]]))
        explained = (k_cross[0] * solved[1:]).sum(axis=1)
        return new_mean + solved[:1] @ k_cross[0].T, np.maximum(k_new - explained, 0.0)


RANK_ONE = PosteriorOf(RankOnePrior, IndependentSites, RankOneAlgebra)
