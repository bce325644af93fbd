"""The coupled Gaussian posterior of c latent functions in O((c + 1) n³), its classes side by side.

The algebra is that of `pymc_gpep.kernels.gaussians.coupled`.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import add_gradient, factorise_sum, function_moments, mirror, shared_moments
from pymc_gpep.kernels.gaussians.independent import factorise_function
from pymc_gpep.kernels.linalg.lapack import solve_right_transposed
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.team import ALONE, Team

type Matrices = NDArray[np.float64] | NDArray[np.float32]
"""Those that take the time of a sweep, with 64 or 32 bits a number."""

_FEW = 200  # points; below, a triangular system less is not worth its digits
_DIGITS = 1e-9  # of what classes differ by, that may be lost for it
_LONG = 2000  # points; above, all is shared out that can be
_GAIN = 1.6  # up to there, as many factorisations as make a sweep this much faster by the count of operations


@cache
def _shared_out(c: int) -> int:
    """Return the number of classes whose factorisations are shared out on two processors.

    With all of them one fit would be nearly twice as fast as on one thread. Two fits at once would then take twice as
    long as one alone. With these a fit is as fast as with two threads of BLAS, and two at once take about 1.5 times as
    long. In units of n³ operations a class has one in its factorisation and inverse, one in its moments, and P a third.
    """
    alone = 2 * c + 1 / 3
    return max(
        count for count in range(c + 1) if alone / (-(-count // 2) + c - count + 1 / 3 - (-c // 2)) < _GAIN or not count
    )


def factorise(k: Array, pi: Array, inverses: Matrices, p: Matrices, team: Team = ALONE) -> tuple[bool, float]:
    """A_k⁻¹ into `inverses` (c, n, n) and the Cholesky factor of P into `p` (n, n), lower triangles.

    Returns whether every matrix was positive definite, and Σ_k log|A_k| + log|P| = log|I + KΠ| + Σ_i log 1ᵀπ_i.
    """

    def one(a: int) -> tuple[bool, float]:
        return factorise_function(own_matrix(k, a), pi[a], inverses[a])

    c, n = pi.shape
    count = c if n > _LONG else _shared_out(c)
    of_classes = team.each(one, range(count)) + [one(a) for a in range(count, c)]
    if not all(ok for ok, _ in of_classes):
        return False, np.nan
    ok, log_det = factorise_sum(pi, inverses, p)
    return ok, log_det + sum(own for _, own in of_classes)


def marginal_moments(
    k: Array,
    inverses: Matrices,
    p: Matrices,
    pi: Array,
    b: Array,
    work: Matrices,
    mean: Array,
    cov: Array,
    team: Team = ALONE,
) -> None:
    """Posterior means K b into `mean` (c, n), marginal covariances of each f_i into `cov` (n, c, c).

    `work` (c, n, n) is overwritten.
    """
    c, n = pi.shape
    needed = c - 1 if _last_follows(k) else c

    def one(a: int) -> None:
        function_moments(own_matrix(k, a), inverses[a], pi[a], b[a], work[a], mean[a], cov, a)
        if a < needed:
            solve_right_transposed(p, work[a])

    team.each(one, range(c))
    half = (n + 1) // 2
    team.each(lambda low: shared_moments(k, work[:needed], cov, low, min(low + half, n)), range(0, n, half))


def _last_follows(k: Array) -> bool:
    """Whether what the last class has is taken from the others, as it can be where all have one prior covariance.

    It is a difference of numbers as large as the prior variance then, so that this must not be too large.
    """
    n = k.shape[-1]
    return len(k) == 1 and n >= _FEW and float(np.finfo(np.float64).eps * k[0].trace()) < _DIGITS


def evidence_gradient(inverses: Matrices, p: Matrices, pi: Array, b: Array, work: Array, gradient: Array) -> None:
    """½ (b_k b_kᵀ − M_kk) into `gradient` (1 or c, n, n), summed over classes where there is one prior covariance.

    This is d log Z / d K_k at a fixed point of EP, where the sites may be taken as constants. `work` is (n, n).
    """
    gradient[:] = 0.0
    for a in range(len(pi)):
        add_gradient(inverses[a], p, pi[a], b[a], work, own_matrix(gradient, a))
    for matrix in gradient:
        mirror(matrix)
