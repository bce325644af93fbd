"""Sums of effects with extreme designs and scales: solves agree for all starts, row orders and forms of the prior."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import approximator
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.likelihoods.bernoulli import LogitLikelihood
from pymc_gpep.likelihoods.counts import PoissonLikelihood

N, J = 24, 8
RNG = np.random.default_rng(8)
GROUPS = np.eye(J)[np.arange(N) % J]
X = RNG.normal(size=(N, 2))
ORDER = RNG.permutation(N)


def design(level=2.0, slope=1.0, groups=1.0, x=X, levels=GROUPS):
    """Coefficients of standard normals for a level, slopes and groups, scaled by their standard deviations."""
    return np.column_stack([np.full(len(x), level), slope * x, groups * levels])


DESIGNS = {
    "groups of negligible variance": design(groups=1e-6),
    "groups of huge variance": design(groups=1e3),
    "wide priors": design(level=1e4, slope=1e4),
    "empty levels": design(levels=np.eye(3 * J)[np.arange(N) % J]),
    "one level": design(levels=np.ones((N, 1))),
    "equal columns": design(x=X[:, [0, 0]]),
    "equal rows": design(x=np.repeat(X[:3], 8, axis=0), levels=np.ones((N, 1))),
    "zero rows": design(level=0.0, x=np.where(np.arange(N)[:, None] < 4, 0.0, X), groups=0.0),
    "one row": design(x=X[:1], levels=GROUPS[:1]),
}
FLAT = {("kl", "poisson", "groups of huge variance", "mixed")}
"""Cases whose bound is nearly flat at its maximum: a group without counts, and a nearly flat prior."""


@pytest.mark.parametrize(
    ("i", "method", "name"),
    [(i, method, name) for i, name in enumerate(DESIGNS) for method in ("ep", "laplace", "kl")],
)
def test_solves_of_extreme_sums_end_and_agree_for_all_starts_orders_and_forms(i, method, name):
    """Labels and likelihoods alternate, so that each method meets all four combinations."""
    labels = ["all the same", "mixed"][i // 2 % 2]
    likelihood = [LogitLikelihood(), PoissonLikelihood()][i % 2]
    j = DESIGNS[name]
    n = len(j)
    y = np.ones(n, np.int64) if labels == "all the same" else np.arange(n) % 2
    likelihood = likelihood.given(np.zeros((1, n))) if likelihood.has_parameters else likelihood
    solver, mean = approximator(method, likelihood, {"tolerance": 1e-8}), np.zeros((1, n))

    def solve(rows=slice(None), start=None, by_rows=False):
        own = j[rows]
        prior = {"k": own[None], "prior_type": RowPrior} if by_rows else {"k": own @ own.T}
        return solver.solve(mean=mean[:, rows], labels=y[rows], start=start, likelihood=likelihood, **prior)

    cold = solve()
    if (method, likelihood.name, name, labels) in FLAT:
        assert not cold.convergence.converged
        assert np.isfinite(cold.evidence)
        assert cold.convergence.residual[-1] < 1e-6
        return
    if name == "wide priors" and not cold.convergence.converged:
        assert "reached the limit of rounding" in str(cold.convergence)
        return
    assert cold.convergence.converged, str(cold.convergence)
    assert np.isfinite([cold.evidence, *cold.mean.ravel(), *cold.cov.ravel()]).all()
    scale = 1.0 + abs(cold.evidence)
    warm, by_rows = solve(start=cold.start), solve(by_rows=True)
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-7 * scale)
    if n == N:
        permuted = solve(rows=ORDER)
        assert permuted.evidence == pytest.approx(cold.evidence, abs=1e-7 * scale)
    assert by_rows.convergence.converged
    assert by_rows.evidence == pytest.approx(cold.evidence, abs=1e-6 * scale)
    assert_allclose(by_rows.mean, cold.mean, atol=1e-4 * (1.0 + np.abs(cold.mean).max()))
