"""Nested expectation propagation for the multinomial probit and the step likelihood with label noise."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.accelerated_ep import AcceleratedEP
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.approximations.tilted_factors import TiltedFactors
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import MixedDifferenceFactors
from pymc_gpep.solvers.accelerated_ep import SCHEMES
from pymc_gpep.solvers.nested_label_noise import nested_label_noise
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["NoisyNestedEP"]


@dataclass(frozen=True)
class NoisyNestedEP(AcceleratedEP):
    """Nested EP where labels may be noise: the factor of a point is (1 − ε) P + ε / c.

    Inner EP integrates the multinomial probit P as in `NestedEP` (Riihimäki, Jylänki and Vehtari 2013). A step is the
    probit of latent values that are many times as large. The moments of the whole factor follow in closed form, and
    sites match them all. Such a factor is not log-concave: a label that contradicts its neighbours gets a site of
    negative precision. The evidence is stationary in the sites, and has exact derivatives with respect to ε as well.
    Time grows with (cn)³ where prior covariances are matrices.

    Parameters
    ----------
    ladder : bool
        Whether to go on where the iteration does not get closer any more. Plain steps come first, then smaller ones,
        then more label noise that becomes less. Last come sites without negative precisions, whose derivatives are
        approximate.
    max_size : int
        Largest number cn of latent values to accept where prior covariances are matrices.

    Examples
    --------
    >>> from pymc_gpep.likelihoods.multinomial_probit.noisy_likelihood import NoisyMultinomialProbitLikelihood
    >>> noisy = NoisyMultinomialProbitLikelihood().given(np.full((1, len(y)), 0.05))
    >>> solution = gpep.NoisyNestedEP().solve(K, mean, y, likelihood=noisy)  # (n, n), (3, n), (n,)
    >>> solution.log_evidence
    """

    max_size: int = field(default=1500, metadata=at_least(1))

    name: ClassVar[str] = "nested_ep"
    needs: ClassVar[tuple[type, ...]] = (MixedDifferenceFactors,)
    matches_moments: ClassVar[bool] = True
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    follows_parameters: ClassVar[bool] = True
    schemes: ClassVar[tuple[str, ...]] = (
        *SCHEMES, "EP without sites of negative precision", "EP that came down from more label noise"
    )  # fmt: skip

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.SIGNED

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        return nested_label_noise(
            problem,
            start,
            history,
            update=likelihood.computation(MixedDifferenceFactors).update,
            largest_precision=likelihood.largest_precision,
            **self.settings,
        )

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """The nearest start: between matrices some combinations leave no posterior."""
        return starts[nearest].copy()

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: sites of the differences of latent values."""
        return n_points * n_functions * (n_functions - 1)

    def too_large(self, n_functions: int, n_points: int) -> str:
        """See `Approximator`."""
        size = n_functions * n_points
        if size > self.max_size:
            return (
                f"{self.name} with label noise is slow for {n_functions} latent functions at {n_points} points: they "
                f'are {size} latent values. Use method="sparse_ep", which takes inducing inputs and '
                f"epsilon as a number, or allow it with max_size={size} (now {self.max_size})."
            )
        return ""

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """None: the likelihood of a point is one factor, of several numbers.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(
            f"The evidence of {self.name} with label noise has no correction. Its factors depend on several numbers, "
            "and the correction is for factors of a single one."
        )
