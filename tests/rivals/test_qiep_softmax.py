"""Class-independent EP of a softmax, against a dense fixed point, differences, and coupled EP."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import QEPSoftmax
from pymc_gpep.rivals.class_independent_ep import QIEPSoftmax
from tests.reference.active_rows import MATCHES
from tests.reference.data import random_problem
from tests.reference.softmax_ep import softmax_tilted
from tests.reference.tilted import directions

MATCH = MATCHES["softmax", "independent"]


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("variance", [1.0, 20.0])
def test_qiep_of_a_softmax_reaches_the_fixed_point_of_dense_ep(per_class, variance):
    """The reference combines dense algebra with brute-force tilted moments. Sites and evidence agree."""
    n, c = 5, 3
    problem = random_problem(2, n, c, variance=variance, per_class=per_class, with_mean=True)
    solution = QIEPSoftmax(tolerance=1e-10).solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    sites = solution.posterior.sites
    evidence, mean, variances = 0.0, np.empty((c, n)), np.empty((c, n))
    for k in range(c):
        prior = problem.K[k] if per_class else problem.K
        cov = np.linalg.inv(np.linalg.inv(prior) + np.diag(sites.precision[k]))
        shift = sites.location[k] - sites.precision[k] * problem.m[k]
        mean[k], variances[k] = problem.m[k] + cov @ shift, cov.diagonal()
        evidence += 0.5 * shift @ cov @ shift - 0.5 * np.linalg.slogdet(np.eye(n) + prior * sites.precision[k])[1]
        evidence += problem.m[k] @ (sites.location[k] - 0.5 * sites.precision[k] * problem.m[k])
    assert_allclose(solution.mean, mean, atol=1e-7)
    for i, y in enumerate(problem.y):
        v, m, pi, nu = variances[:, i], mean[:, i], sites.precision[:, i], sites.location[:, i]
        cavity = 1.0 / (1.0 / v - pi)
        cavity_mean = cavity * (m / v - nu)
        precision, location = MATCH(cavity_mean, np.diag(cavity), int(y))
        assert_allclose(precision.diagonal(), pi, atol=1e-6)
        assert_allclose(location, nu, atol=1e-6)
        away = directions(int(y), c).T
        evidence += softmax_tilted(away @ cavity_mean, away @ np.diag(cavity) @ away.T).log_normaliser
        evidence -= 0.5 * (np.log(v / cavity) + m**2 / v - cavity_mean**2 / cavity).sum()
    assert solution.evidence == pytest.approx(evidence, abs=1e-6)


def test_linear_response_of_means_is_close_to_the_covariance_of_qep():
    problem = random_problem(6, 6, 3, variance=4.0, with_mean=True)
    method = QIEPSoftmax(tolerance=1e-9)
    solution = method.solve(problem.K, problem.m, problem.y)
    coupled = QEPSoftmax().solve(problem.K, problem.m, problem.y)
    assert_allclose(method.response(solution).marginals()[1], coupled.cov, rtol=0.1, atol=0.1)
    assert_allclose(solution.mean, coupled.mean, atol=0.3)


def test_evidence_correction_for_scalar_factors_is_refused():
    problem = random_problem(0, 4, 3)
    method = QIEPSoftmax()
    with pytest.raises(TypeError, match="evidence of qiep for a softmax has no correction"):
        method.tilted_factors(method.solve(problem.K, problem.m, problem.y))
