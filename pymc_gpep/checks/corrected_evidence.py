"""Correction of EP's evidence by third and higher cumulants of tilted distributions, which EP neglects.

A factor s depends on a number g_s. Its tilted distribution q̂_s has the mean and variance of g_s under the posterior q.
The evidence is

    log Z = log Z_EP + log E_q ∏_s q̂_s(g_s) / q(g_s)

exactly. Opper, Paquet and Winther (2013, section 3) write the ratios by their Fourier transforms and expand in the
cumulants κ_l, l ≥ 3. Each term is a graph. A vertex is a factor with a cumulant κ_l and l lines. A line between factors
s and t is their posterior correlation ρ_st. Lines from a factor to itself do not occur, since EP includes these terms.
With cumulants in units of standard deviations, the only term with two independent loops is

    Σ_st κ₃(s) κ₃(t) ρ_st³ / 12,

which is the correction. There are four terms with three loops, see `three_loops`. The series is ordered by the number
of loops; in the paper it is ordered by the number of factors. If neighbours are strongly correlated, terms with equally
many loops are large, with both signs, and mostly cancel. Terms with equally many factors do not cancel. The sum of the
terms with three loops is the first part of the reported error. The second part covers terms of higher order. Let l_s be
the contribution of factor s to the correction. Then Σ_s l_s² is large if few factors have a large contribution, for
example copies of a point under a wide prior. The weight of this sum is such that the error covers the truth for 2 to 60
copies and prior variances from 1 to 10⁴.
"""

import contextlib
from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import ArpackError, eigsh

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.array_types import Array

_RANK = 24  # Largest number of eigenvectors for the term of four factors with lines between all pairs.
_LATER = 30.0  # Weight of Σ_s l_s² in the estimated error; l_s is the share of factor s in the correction.
_RELIABLE = 0.1


@dataclass(frozen=True)
class CorrectedEvidence:
    """EP's log evidence with its second-order correction, at the hyperparameters of a fit.

    Attributes
    ----------
    method : str
        Name of the approximation.
    evidence : float
        Corrected log evidence; NaN if the fit has no log evidence.
    correction : float
        Correction that was added to the log evidence of the fit.
    error : float
        Estimated error of `evidence`, from terms of the next order.
    converged : bool
        Whether the approximation converged to a fixed point. The correction is valid only at a fixed point.

    Examples
    --------
    >>> corrected = ep.corrected_evidence()
    >>> corrected.evidence, corrected.reliable
    """

    method: str
    evidence: float
    correction: float
    error: float
    converged: bool

    @property
    def reliable(self) -> bool:
        """Whether the approximation converged, and `error` is at most 0.1."""
        return self.converged and self.error <= _RELIABLE

    def __str__(self) -> str:
        """Return a sentence on the corrected evidence."""
        start = (
            f"{self.method}: log evidence {self.evidence:.3f} ± {self.error:.3f}, corrected by {self.correction:+.3f}"
        )
        if not self.converged:
            return f"{start}, which is not meaningful: the approximation did not converge."
        if not self.reliable:
            return f"{start}. This error is above {_RELIABLE}: use gpep.diagnostics.annealed_evidence or pm.sample."
        return f"{start}."


def corrected_evidence(approximator: Approximator, solution: Solution, *, max_size: int = 3000) -> CorrectedEvidence:
    """Correct the evidence of a solution of EP, see `Fit.corrected_evidence`."""
    size = solution.mean.size
    if size > max_size:
        raise ValueError(
            f"The correction needs matrices of about {size} rows, the number of latent values. Allow matrices of this "
            f"size with max_size={size} (now {max_size})."
        )
    factors = approximator.tilted_factors(solution)
    parts = factors.two_loops
    value = factors.evidence + float(parts.sum())
    error = abs(three_loops(factors).sum()) + _LATER * parts @ parts
    converged = factors.converged and solution.convergence.converged
    return CorrectedEvidence(approximator.name, value, value - solution.evidence, float(error), converged)


def three_loops(factors: TiltedFactors) -> Array:
    """Return the four terms of the correction with three loops, (4,).

    The terms are graphs of factors and lines. The first has two factors and four lines, Σ κ₄ κ₄ ρ⁴ / 48. The second is
    a triangle with two double sides, Σ κ₄(s) κ₃(t) κ₃(u) ρ_st² ρ_su² ρ_tu / 8. The third is a square with two opposite
    double sides, Σ κ₃(s) κ₃(t) κ₃(u) κ₃(v) ρ_st² ρ_tu ρ_uv² ρ_vs / 16. The fourth has four factors with lines between
    all pairs, Σ κ₃(s) κ₃(t) κ₃(u) κ₃(v) ρ_st ρ_su ρ_sv ρ_tu ρ_tv ρ_uv / 24. Factors may be equal if no line joins them.
    """
    lines, third, fourth = factors.lines, factors.third, factors.fourth
    double = 0.5 * lines**2
    path = (double * third) @ (lines * third)  # Path over a double line, then a single line.
    return np.array(
        [
            fourth @ double**2 @ fourth / 12.0,
            0.5 * fourth @ (path * double).sum(axis=1),
            0.25 * (path * path.T).sum(),
            _complete(lines, third),
        ]
    )


def _complete(lines: Array, third: Array) -> float:
    """Return the term of four factors with lines between all pairs.

    The line between factors u and v is replaced by a sum over eigenvectors, |κ₃|^½ ρ |κ₃|^½ = Σ_a λ_a e_a e_aᵀ. For
    each a, the sums over u and over v are then the same matrix product. The largest |λ_a| suffice for a few percent.
    """
    root = np.sqrt(np.abs(third))
    weighted = root[:, None] * lines * root
    if not (np.isfinite(weighted).all() and weighted.any()):
        return float(weighted.sum())  # The term is 0 or NaN.
    values, vectors = _largest_eigenvectors(weighted, root)
    legs = lines * (np.sign(third) * root)
    base = third[:, None] * lines * third
    total = 0.0
    for value, vector in zip(values, vectors.T, strict=True):
        total += value * float((base * ((legs * vector) @ lines) ** 2).sum())
    return total / 24.0


def _largest_eigenvectors(matrix: Array, start: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of largest absolute value and their eigenvectors."""
    if len(matrix) > 2 * _RANK:
        with contextlib.suppress(ArpackError):  # ARPACK may fail if most eigenvalues are equal (equal rows).
            found: tuple[Array, Array] = eigsh(matrix, k=_RANK, v0=start)
            return found
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(values), np.asarray(vectors)
