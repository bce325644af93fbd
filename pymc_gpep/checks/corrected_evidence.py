"""EP's evidence corrected by the higher cumulants of its tilted distributions, which EP neglects.

With tilted distributions q̂_s(g_s), whose means and variances equal the moments of the posterior q(g), the evidence is

    log Z = log Z_EP + log E_q ∏_s q̂_s(g_s) / q(g_s)

exactly. Opper, Paquet and Winther (2013, section 3) write the ratios by their Fourier transforms and expand in the
cumulants κ_l, l ≥ 3. A term is a graph. Each factor in it carries a cumulant κ_l, and l lines leave the factor. A line
between s and t is their posterior correlation ρ_st. No line returns to its own factor: EP includes these terms. With
cumulants in units of standard deviations the single term with two independent loops is

    Σ_st κ₃(s) κ₃(t) ρ_st³ / 12,

the correction. There are four terms with three loops, see `three_loops`. The series is ordered by loops, and not by the
number of factors as in the paper. Terms of one order are large where neighbours are strongly correlated, of either
sign, and cancel for the most part. In the paper's order they do not. The remainder of the three loops is the first part
of the reported error. The second part stands for terms of higher order. Let l_s be the part of the correction that
belongs to factor s. Then Σ_s l_s² grows where few factors make a large correction, as copies of a point do under a wide
prior. Its weight is chosen so that the error covers the truth for 2 to 60 of these and prior variances from 1 to 10⁴.
"""

import contextlib
from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import ArpackError, eigsh

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.array_types import Array

_RANK = 24  # number of eigenvectors for terms between four factors
_LATER = 30.0  # factor of Σ_s l_s² in the error
_RELIABLE = 0.1


@dataclass(frozen=True)
class CorrectedEvidence:
    """EP's log evidence with its second-order correction, at the hyperparameters of a fit.

    Attributes
    ----------
    method : str
        Name of the approximation.
    evidence : float
        Corrected log evidence; NaN if the fit has none.
    correction : float
        Correction that was added to the log evidence of the fit.
    error : float
        Estimated error of `evidence`, from the next order.
    converged : bool
        Whether the approximation is at its fixed point. Only a fixed point can be corrected.

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
        """Return one sentence on the corrected evidence."""
        start = (
            f"{self.method}: log evidence {self.evidence:.3f} ± {self.error:.3f}, {self.correction:+.3f} from its own"
        )
        if not self.converged:
            return f"{start}, but that is of no use: the approximation has not converged."
        if not self.reliable:
            return f"{start}; the next order is not small, so that neither is to be relied on: anneal or sample."
        return f"{start}."


def corrected_evidence(approximator: Approximator, solution: Solution, *, max_size: int = 3000) -> CorrectedEvidence:
    """Correct the evidence of an EP's solution, see `Fit.corrected_evidence`."""
    size = solution.mean.size
    if size > max_size:
        raise ValueError(
            f"There are {size} latent values, and the correction takes matrices of about that size: allow it with "
            f"max_size={size} (now {max_size})."
        )
    factors = approximator.tilted_factors(solution)
    parts = factors.two_loops
    value = factors.evidence + float(parts.sum())
    error = abs(three_loops(factors).sum()) + _LATER * parts @ parts
    converged = factors.converged and solution.convergence.converged
    return CorrectedEvidence(approximator.name, value, value - solution.evidence, float(error), converged)


def three_loops(factors: TiltedFactors) -> Array:
    """The four terms of the next order, (4,).

    The terms are graphs whose factors are joined by lines. Two factors and four lines, Σ κ₄ κ₄ ρ⁴ / 48. A triangle of
    which two sides are double, Σ κ₄(s) κ₃(t) κ₃(u) ρ_st² ρ_su² ρ_tu / 8. A square of which two opposite sides are
    double, Σ κ₃(s) κ₃(t) κ₃(u) κ₃(v) ρ_st² ρ_tu ρ_uv² ρ_vs / 16. Four factors, each joined to the other three, Σ κ₃(s)
    κ₃(t) κ₃(u) κ₃(v) ρ_st ρ_su ρ_sv ρ_tu ρ_tv ρ_uv / 24. Two factors of a term may be equal if no line joins them.
    """
    lines, third, fourth = factors.lines, factors.third, factors.fourth
    double = 0.5 * lines**2
    path = (double * third) @ (lines * third)  # path over a double line, then a single line
    return np.array(
        [
            fourth @ double**2 @ fourth / 12.0,
            0.5 * fourth @ (path * double).sum(axis=1),
            0.25 * (path * path.T).sum(),
            _complete(lines, third),
        ]
    )


def _complete(lines: Array, third: Array) -> float:
    """The term of four factors that all have lines to each other.

    One line, between u and v, is replaced by eigenvectors, |κ₃|^½ ρ |κ₃|^½ = Σ_a λ_a e_a e_aᵀ. The sums over u and over
    v are then the same matrix product, one for each a. The largest |λ_a| give the term to a few percent.
    """
    root = np.sqrt(np.abs(third))
    weighted = root[:, None] * lines * root
    if not (np.isfinite(weighted).all() and weighted.any()):
        return float(weighted.sum())  # zero or NaN
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
        with contextlib.suppress(ArpackError):  # may fail if most eigenvalues are equal (equal rows)
            found: tuple[Array, Array] = eigsh(matrix, k=_RANK, v0=start)
            return found
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(values), np.asarray(vectors)
