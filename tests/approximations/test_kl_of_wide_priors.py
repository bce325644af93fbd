"""KL for averages of exponentials that overflow, under the prior or under wide cavities."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import gammaln

from pymc_gpep.approximations.kl import KL
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import UNBOUNDED

COUNTS = np.array([0, 2, 40])
TIMES = np.array([1e-3, 0.7, 200.0])
# Parameters, observations, and the average of the log density under N(m, v).
CASES = {
    "poisson": ([0.0], COUNTS, lambda y, m, v: y * m - np.exp(m + 0.5 * v) - gammaln(y + 1.0)),
    "gamma": (
        [0.0, 2.0],
        TIMES,
        lambda y, m, v: np.log(y) - 2.0 * m - y * np.exp(-m + 0.5 * v),  # Γ(2) = 1
    ),
    "weibull": (
        [0.0, 4.0, -UNBOUNDED, UNBOUNDED],
        TIMES,
        lambda y, m, v: np.log(4.0) + 3.0 * np.log(y) - 4.0 * m - y**4 * np.exp(-4.0 * m + 8.0 * v),
    ),
}


@pytest.mark.parametrize("sd", [10.0, 50.0, 300.0])
@pytest.mark.parametrize("name", CASES)
def test_kl_of_independent_points_maximises_the_bound_of_each_point(name, sd):
    parameters, y, average = CASES[name]
    likelihood = next(each for each in LIKELIHOODS if each.name == name)
    given = np.repeat(np.array(parameters)[:, None], len(y), axis=1)
    found = KL(tolerance=1e-8).solve(sd**2 * np.eye(3), np.zeros((1, 3)), y, likelihood=likelihood, parameters=given)
    assert found.convergence.converged

    def bound(place, i):
        m, log_v = place
        v = np.exp(log_v)
        divergence = 0.5 * ((m**2 + v) / sd**2 - 1.0 - np.log(v / sd**2))
        return average(y[i], m, v) - divergence

    best = []
    for i in range(3):
        starts = [(m, s) for m in (np.log(y[i] + 0.1), -5.0, -30.0) for s in (-3.0, 2.0)]
        with np.errstate(over="ignore"):
            each = [
                minimize(
                    lambda p, i=i: -bound(p, i),
                    start,
                    method="Nelder-Mead",
                    options={"xatol": 1e-9, "fatol": 1e-11, "maxiter": 4000},
                )
                for start in starts
            ]
        best.append(min(each, key=lambda one: one.fun))
    assert found.evidence == pytest.approx(-sum(one.fun for one in best), abs=1e-6)
    assert_allclose(found.mean[0], [one.x[0] for one in best], atol=1e-3)
