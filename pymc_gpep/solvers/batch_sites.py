"""Sites of a batch on arrays: terms of the factors of its points, and new sites for each kind of memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods import step_loops as loops
from pymc_gpep.kernels.methods.factors import (
    FLAT,
    average_labels,
    expected_logit,
    expected_pairs,
    expected_probit,
    mix_labels,
    one_logit,
    one_probit,
    pairs,
    whole_points,
)
from pymc_gpep.kernels.methods.step_loops import bounded_sites, cavities, matching_sites, without_sites
from pymc_gpep.solvers.step_algebra import StepPosterior

_LOG_ERROR = float(np.log(1e-6))  # of the integral of a point
_TINY = 1e-300


class ArrayTerms(NamedTuple):
    """As `PointTerms`, of arrays."""

    value: Array
    """(B,)."""
    in_mean: Array
    """(B, d)."""
    in_variance: Array
    """(B, d)."""


class PointKernel:
    """Terms of points whose factors see d normal latent values each.

    Parameters
    ----------
    compute : function
        A function of means and variances (B, d), labels (B,), places of integrals (B,), and the arrays of
        `ArrayTerms`. It overwrites all but the first three.
    """

    def __init__(self, compute: Callable[..., None]) -> None:
        self._compute = compute

    def of(self, labels: NDArray[np.int64]) -> Callable[[Array, Array], ArrayTerms]:
        """The terms of points with these labels (B,), from means and variances (B, d), again and again."""
        places = np.zeros(len(labels))

        def terms(mean: Array, variance: Array) -> ArrayTerms:
            found = ArrayTerms(np.empty(len(mean)), np.empty_like(mean), np.empty_like(mean))
            self._compute(mean, variance, labels, places, *found)
            return found

        return terms


def pair_kernel(noise: float) -> PointKernel:
    """Return ∏_k Φ((f_y − f_k) / √noise): sites on f_y come first, then those on the f_k."""
    return PointKernel(lambda mean, variance, labels, places, *found: pairs(mean, variance, noise, *found))


def probit_kernel() -> PointKernel:
    """Return Φ(±f) of one function."""
    return PointKernel(lambda mean, variance, labels, places, *found: one_probit(mean, variance, labels, 1.0, *found))


def logit_kernel() -> PointKernel:
    """Return the average of σ(±f) of one function."""
    return PointKernel(lambda mean, variance, labels, places, *found: one_logit(mean, variance, labels, *found))


def whole_point_kernel(noise: float, epsilon: float = 0.0) -> PointKernel:
    """Return the probability that the utility of the label is the largest; of labels that are noise in a part ε."""

    def compute(mean: Array, variance: Array, labels: NDArray[np.int64], places: Array, *found: Array) -> None:
        whole_points(mean, variance, labels, noise, FLAT, _LOG_ERROR, places, *found)
        if epsilon:
            mix_labels(epsilon, mean.shape[1], *found)

    return PointKernel(compute)


def expected_pair_kernel(noise: float) -> PointKernel:
    """Return Σ_k E log Φ((f_y − f_k) / √noise), with sites as `pair_kernel` has them."""
    return PointKernel(lambda mean, variance, labels, places, *found: expected_pairs(mean, variance, noise, *found))


def expected_probit_kernel() -> PointKernel:
    """Return E log Φ(±f) of one function."""
    return PointKernel(lambda mean, variance, labels, places, *found: expected_probit(mean, variance, labels, *found))


def expected_logit_kernel() -> PointKernel:
    """Return E log σ(±f) of one function."""
    return PointKernel(lambda mean, variance, labels, places, *found: expected_logit(mean, variance, labels, *found))


def expected_labels_kernel(noise: float, epsilon: float) -> PointKernel:
    """Return the expected log probability of a label that is noise in a part ε; see `noisy_step_average`."""

    def compute(mean: Array, variance: Array, labels: NDArray[np.int64], places: Array, *found: Array) -> None:
        whole_points(mean, variance, labels, noise, FLAT, _LOG_ERROR, places, *found)
        average_labels(np.full(len(mean), epsilon), mean.shape[1], *found)

    return PointKernel(compute)


class ArrayMarginals(NamedTuple):
    """As `Marginals`, of arrays (B, d)."""

    mean: Array
    variance: Array
    prior_mean: Array
    rest: Array


class ArraySites(NamedTuple):
    """Sites of a batch, as `BatchSites` of `pymc_gpep.streaming.memories`, of arrays."""

    precision: Array
    location: Array
    value: Array
    in_mean: Array
    in_variance: Array
    in_rest: Array
    floored: Array


class ArrayMemory(ABC):
    """A memory that keeps averages over batches, on arrays: see `AveragesMemory` there."""

    single: ClassVar[bool] = True
    """Whether products of matrices may have 32 bits a number."""

    def share(self, counts: Array) -> Array:
        """Which part of S and h is in the Gaussian that a batch is taken with, (c,)."""
        return np.ones_like(counts)

    @abstractmethod
    def sites(self, terms: Callable[[Array, Array], ArrayTerms], at: ArrayMarginals) -> ArraySites:
        """Sites of a batch."""

    def bounded(
        self,
        sites: ArraySites,
        at: ArrayMarginals,
        functions: NDArray[np.int64],
        summed: Callable[[Array], Array],
        beta: float,
    ) -> ArraySites:
        """The same sites where a step of size β leaves I + S positive definite; their precisions may be below zero.

        Sites act on functions (B, d). `summed` makes values (B, c) of those of sites, as all rows have them.
        """
        return sites

    @abstractmethod
    def constant(self, seen: StepPosterior, whole: Callable[[], Array], counts: Array) -> float:
        """Return the objective without any points, from the Gaussian that was seen; `whole` is of all of q.

        That function returns log normalisers (c,).
        """


class StatelessSites(ArrayMemory):
    """EP that remembers no site: see `pymc_gpep.streaming.memories`.

    Parameters
    ----------
    iterations : int
    least : float
        Part of the precision of a marginal that a cavity keeps.
    """

    def __init__(self, iterations: int, least: float) -> None:
        self._iterations, self._largest = iterations, 1.0 - least

    def sites(self, terms: Callable[[Array, Array], ArrayTerms], at: ArrayMarginals) -> ArraySites:
        t, nu = np.zeros_like(at.mean), np.zeros_like(at.mean)
        cavity_mean, cavity_variance, latent_mean, latent_variance = np.empty((4, *t.shape))

        def of_cavities() -> ArrayTerms:
            cavities(
                at.mean, at.variance, t, nu, at.prior_mean, at.rest,
                cavity_mean, cavity_variance, latent_mean, latent_variance,
            )  # fmt: skip
            return terms(latent_mean, latent_variance)

        for _ in range(self._iterations):
            found = of_cavities()
            matching_sites(found.in_mean, found.in_variance, cavity_mean, cavity_variance, t, nu)
            bounded_sites(at.variance, self._largest, t, nu)
        found = of_cavities()
        values, of_variance, floored = np.empty(len(t)), np.empty_like(t), np.empty(len(t))
        without_sites(
            at.mean, at.variance, t, nu, cavity_mean, cavity_variance, *found, self._largest * (1.0 - 1e-12),
            values, of_variance, floored,
        )  # fmt: skip
        return ArraySites(t, nu, values, found.in_mean, of_variance, found.in_variance, floored)

    def constant(self, seen: StepPosterior, whole: Callable[[], Array], counts: Array) -> float:
        return float(seen.log_normalisers.sum())


class StochasticSites(ArrayMemory):
    """Stochastic EP: see `pymc_gpep.streaming.memories`."""

    def share(self, counts: Array) -> Array:
        found: Array = 1.0 - 1.0 / counts
        return found

    def sites(self, terms: Callable[[Array, Array], ArrayTerms], at: ArrayMarginals) -> ArraySites:
        found = terms(at.prior_mean + at.mean, at.rest + at.variance)
        t, nu = np.empty_like(at.mean), np.empty_like(at.mean)
        matching_sites(found.in_mean, found.in_variance, at.mean, at.variance, t, nu)
        return ArraySites(
            t, nu, found.value, found.in_mean, found.in_variance, found.in_variance, np.zeros(len(found.value))
        )

    def constant(self, seen: StepPosterior, whole: Callable[[], Array], counts: Array) -> float:
        of_all = whole()
        return float((of_all + counts * (seen.log_normalisers - of_all)).sum())


class VariationalSites(ArrayMemory):
    """Variational inference by natural gradients: see `pymc_gpep.streaming.memories`.

    Parameters
    ----------
    most : float
        Part of what a step keeps of a precision, that sites may take away.
    """

    # With magnitudes of a hundred and more rounding of 32 bits grows from step to step.
    single = False

    def __init__(self, most: float) -> None:
        self._most = most

    def sites(self, terms: Callable[[Array, Array], ArrayTerms], at: ArrayMarginals) -> ArraySites:
        found = terms(at.prior_mean + at.mean, at.rest + at.variance)
        t = -2.0 * found.in_variance
        nothing = np.zeros(len(found.value))
        nu = found.in_mean + t * at.mean
        return ArraySites(t, nu, found.value, found.in_mean, found.in_variance, found.in_variance, nothing)

    def bounded(
        self,
        sites: ArraySites,
        at: ArrayMarginals,
        functions: NDArray[np.int64],
        summed: Callable[[Array], Array],
        beta: float,
    ) -> ArraySites:
        below = np.minimum(sites.precision, 0.0)
        if not below.any():
            return sites
        taken = -beta * summed(below * at.variance).sum(axis=0)
        kept = np.minimum(1.0, self._most * (1.0 - beta) / np.maximum(taken, _TINY))
        less = below * (1.0 - kept[functions])
        return sites._replace(
            precision=sites.precision - less,
            location=sites.location - less * at.mean,
            floored=(less < 0.0).any(axis=1).astype(np.float64),
        )

    def constant(self, seen: StepPosterior, whole: Callable[[], Array], counts: Array) -> float:
        return -float(seen.divergences.sum())


def at_sites(values: Array, functions: NDArray[np.int64]) -> Array:
    """Return values (B, c) of the functions (B, d) that sites act on, (B, d)."""
    found = np.empty(functions.shape)
    loops.at_sites(values, functions, found)
    return found


def summed_by_function(values: Array, functions: NDArray[np.int64], weights: Array, count: int) -> Array:
    """Return sums (B, c) of values (B, d) of the sites on each of c functions, times the weight (B,) of the row."""
    found = np.empty((len(values), count))
    loops.by_function(values, functions, weights, found)
    return found
