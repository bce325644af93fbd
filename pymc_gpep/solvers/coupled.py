"""The coupled Gaussian posterior of c latent functions in O((c + 1) n³), its classes side by side.

The algebra is that of `pymc_gpep.kernels.coupled`.
"""

import numpy as np

from pymc_gpep.kernels.coupled import add_gradient, class_moments, factorise_sum, mirror, shared_moments
from pymc_gpep.kernels.independent import factorise_class
from pymc_gpep.solvers.problem import Array, own_matrix
from pymc_gpep.solvers.team import ALONE, Team

__all__ = ["evidence_gradient", "factorise", "marginal_moments"]


def factorise(k: Array, pi: Array, inverses: Array, p: Array, team: Team = ALONE) -> tuple[bool, float]:
    """A_k⁻¹ into `inverses` (c, n, n) and the Cholesky factor of P into `p` (n, n), lower triangles.

    Returns whether every matrix was positive definite, and Σ_k log|A_k| + log|P| = log|I + KΠ| + Σ_i log 1ᵀπ_i.
    """
    of_classes = team.each(lambda a: factorise_class(own_matrix(k, a), pi[a], inverses[a]), range(len(pi)))
    if not all(ok for ok, _ in of_classes):
        return False, np.nan
    ok, log_det = factorise_sum(pi, inverses, p)
    return ok, log_det + sum(own for _, own in of_classes)


def marginal_moments(
    k: Array, inverses: Array, p: Array, pi: Array, b: Array, work: Array, mean: Array, cov: Array, team: Team = ALONE
) -> None:
    """Posterior means K b into `mean` (c, n), marginal covariances of each f_i into `cov` (n, c, c).

    `work` (c, n, n) is left holding K_k B_k L⁻ᵀ, P = LLᵀ.
    """
    c, n = pi.shape
    team.each(
        lambda a: class_moments(own_matrix(k, a), inverses[a], p, pi[a], b[a], work[a], mean[a], cov, a), range(c)
    )
    half = (n + 1) // 2
    team.each(lambda low: shared_moments(work, cov, low, min(low + half, n)), range(0, n, half))


def evidence_gradient(inverses: Array, p: Array, pi: Array, b: Array, work: Array, gradient: Array) -> None:
    """½ (b_k b_kᵀ − M_kk) into `gradient` (1 or c, n, n), summed over classes where there is one prior covariance.

    This is d log Z / d K_k at a fixed point of EP, where the sites may be taken as constants. `work` is (n, n).
    """
    gradient[:] = 0.0
    for a in range(len(pi)):
        add_gradient(inverses[a], p, pi[a], b[a], work, own_matrix(gradient, a))
    for matrix in gradient:
        mirror(matrix)
