"""Rules that compute log normalisers or expected log likelihoods of the points in a batch, for each kind of factors.

In models of c classes the label is the class with the largest utility. Utilities are latent values plus independent
normal noise. With label noise ε, a point has the likelihood (1 − ε) p + ε / c, where p is the probability of its class.
The symbol Ẑ₀ is the average of p over normal latent values.

Each rule has a compiled kernel, and a second form for JAX in `jax_step`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.site_rules import OneFunctionSite, Pairs, ScalarSites, WholePoint
from pymc_gpep.approximations.sparse_vi import check_label_noise
from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    LargestUtility,
    LogisticResponse,
    NormalResponse,
)
from pymc_gpep.solvers.step_arrays import (
    PointKernel,
    expected_labels_kernel,
    expected_logit_kernel,
    expected_pair_kernel,
    expected_probit_kernel,
    logit_kernel,
    pair_kernel,
    probit_kernel,
    whole_point_kernel,
)


class Rule(ABC):
    """Factors of the likelihood of a point. Each factor has a scalar site on every function that it depends on."""

    expresses: ClassVar[type[ScalarSites]]
    """Kind of the factors of the likelihood."""
    functional: ClassVar[str]
    """Result for a factor t: "log normaliser", log ∫ t(f) N(f) df, or "expected log", ∫ log t(f) N(f) df."""

    @classmethod
    @abstractmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """Return whether the rule applies to a likelihood."""

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        """Return the rule for a likelihood. Constants of the likelihood are the same at all points."""
        return cls()

    @abstractmethod
    def kernel(self) -> PointKernel:
        """Return the compiled loop that computes the functional at all points."""

    def counts(self, labels: Array, c: int) -> Array:
        """Return the number of sites on each of c functions, from the number of points with each label, (c,)."""
        return np.full(c, labels.sum())


class _OfTwoClasses(Rule):
    """Rule for a likelihood of two classes and one function, with a specialised loop."""

    expresses: ClassVar[type[ScalarSites]] = OneFunctionSite
    response: ClassVar[type[NormalResponse | LogisticResponse]]
    """Response p(y | f)."""
    made: ClassVar[Callable[[], PointKernel]]
    """Function that returns the compiled loop of the functional over points."""

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(cls.response)

    def kernel(self) -> PointKernel:
        return type(self).made()


class ProbitNormaliser(_OfTwoClasses):
    """Log normaliser log Φ(±m / √(1 + v)) of a probit, for latent values N(m, v)."""

    functional: ClassVar[str] = "log normaliser"
    response = NormalResponse
    made = staticmethod(probit_kernel)


class LogitNormaliser(_OfTwoClasses):
    """Log normaliser log ∫ N(f | ±m, v) / (1 + exp(−f)) df of a logit, for latent values N(m, v)."""

    functional: ClassVar[str] = "log normaliser"
    response = LogisticResponse
    made = staticmethod(logit_kernel)


@dataclass(frozen=True)
class _OfOneFunction(Rule):
    """Rule for a likelihood of one function with integer observations, by its local computations.

    Attributes
    ----------
    likelihood : Likelihood
        Likelihood with its parameters. They are the same in all rows.
    """

    likelihood: Likelihood

    expresses: ClassVar[type[ScalarSites]] = OneFunctionSite
    average: ClassVar[type[GaussianAverage | AverageLogDensity]]

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return OneFunctionSite.fits(likelihood) and likelihood.offers(cls.average)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        return cls(likelihood)

    def kernel(self) -> PointKernel:
        terms, parameters = self.likelihood.computation(self.average).terms, self.likelihood.parameters

        def compute(mean: Array, variance: Array, labels: NDArray[np.int64], places: Array, *found: Array) -> None:
            value, in_mean, in_variance = found
            out, n = np.empty((5, len(mean))), len(mean)
            given = np.tile(parameters[:, :1], n) if parameters.size else np.empty((0, n))
            terms(mean[:, 0].copy(), variance[:, 0].copy(), labels, given, out[: self.rows])
            value[:], in_mean[:, 0], in_variance[:, 0] = out[0], out[1], self.of_variance(out)

        return PointKernel(compute)

    rows: ClassVar[int]
    """Number of results that the average returns."""

    @staticmethod
    @abstractmethod
    def of_variance(terms: Array) -> Array:
        """Return the derivative in the variance, from the results (rows, B) of `average`."""


class OneFunctionNormaliser(_OfOneFunction):
    """Log normaliser h = log ∫ p(y | f) N(f | m, v) df, with the derivative ½ (h″ + h′²) in the variance v."""

    functional: ClassVar[str] = "log normaliser"
    average: ClassVar[type[GaussianAverage | AverageLogDensity]] = GaussianAverage
    rows: ClassVar[int] = 5

    @staticmethod
    def of_variance(terms: Array) -> Array:
        return np.asarray(0.5 * (terms[2] + terms[1] ** 2))


class ExpectedLogOneFunction(_OfOneFunction):
    """Expected log likelihood E log p(y | f) over f ~ N(m, v)."""

    functional: ClassVar[str] = "expected log"
    average: ClassVar[type[GaussianAverage | AverageLogDensity]] = AverageLogDensity
    rows: ClassVar[int] = 3

    @staticmethod
    def of_variance(terms: Array) -> Array:
        return terms[2]


class ExpectedLogProbit(_OfTwoClasses):
    """Expected log likelihood E log Φ(±f) of a probit, and its derivatives, by a fixed quadrature rule."""

    functional: ClassVar[str] = "expected log"
    response = NormalResponse
    made = staticmethod(expected_probit_kernel)


class ExpectedLogLogit(_OfTwoClasses):
    """Expected log likelihood E log 1 / (1 + exp(∓f)) of a logit, and its derivatives, by a fixed quadrature rule."""

    functional: ClassVar[str] = "expected log"
    response = LogisticResponse
    made = staticmethod(expected_logit_kernel)


@dataclass(frozen=True)
class _OfPairs(Rule):
    """Rule for factors Φ((f_y − f_k) / √2), k ≠ y. The sites on f_y come first, then the sites on the f_k.

    If utilities have no noise, the factors are step functions Θ(f_y − f_k). Label noise is ignored, as in the paper.

    Attributes
    ----------
    noise : float
        Variance of the noise in a difference of two utilities.
    """

    noise: float

    expresses: ClassVar[type[ScalarSites]] = Pairs

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(LargestUtility) and Pairs.fits(likelihood)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        return cls(2.0 * likelihood.computation(LargestUtility).noise)

    def counts(self, labels: Array, c: int) -> Array:
        return labels * (c - 1) + labels.sum() - labels


class PairNormalisers(_OfPairs):
    """Log normalisers of the pairs: Villacampa-Calvo and Hernández-Lobato (2017), equations 6 to 8."""

    functional: ClassVar[str] = "log normaliser"

    def kernel(self) -> PointKernel:
        return pair_kernel(self.noise)


class ExpectedLogPairs(_OfPairs):
    """Sum Σ_k E log Φ((f_y − f_k) / √2) over pairs, and its derivatives, by a fixed quadrature rule.

    It is a lower bound of E log p(y | f), as the product of the factors is a lower bound of the likelihood.
    """

    functional: ClassVar[str] = "expected log"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        # The average log of a step function is −∞.
        return super().fits(likelihood) and likelihood.computation(LargestUtility).noise > 0.0

    def kernel(self) -> PointKernel:
        return expected_pair_kernel(self.noise)


_LEAST_NOISE = 1e-12  # A noise variance of 0 is replaced by this number.


@dataclass(frozen=True)
class _OfWholePoint(Rule):
    """Rule for a single factor (1 − ε) p + ε / c.

    Attributes
    ----------
    epsilon : float
        Label noise ε; 0 without label noise.
    noise : float
        Noise variance of utilities.
    """

    epsilon: float
    noise: float

    expresses: ClassVar[type[ScalarSites]] = WholePoint

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(LargestUtility)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        epsilon = float(likelihood.parameters[0, 0]) if likelihood.has_parameters else 0.0
        return cls(epsilon, max(likelihood.computation(LargestUtility).noise, _LEAST_NOISE))


class WholePointNormaliser(_OfWholePoint):
    """Log normaliser log((1 − ε) Ẑ₀ + ε / c) of a point, for latent values with means m and variances v.

    Ẑ₀ is ∫ N(t | m_y, 1 + v_y) ∏_{k≠y} Φ((t − m_k) / √(1 + v_k)) dt (Villacampa-Calvo and Hernández-Lobato 2017,
    equation 3). The paper uses a product over k instead. With label noise, a tilted distribution may be wider than its
    cavity: see `StepArrays.matching_sites`.
    """

    functional: ClassVar[str] = "log normaliser"

    def kernel(self) -> PointKernel:
        return whole_point_kernel(self.noise, self.epsilon)


class ExpectedLogLabelNoise(_OfWholePoint):
    """Expected log likelihood with label noise ε, Ẑ₀ log(1 − ε + ε / c) + (1 − Ẑ₀) log(ε / c).

    Ẑ₀ is the average probability of the label (Villacampa-Calvo and Hernández-Lobato 2017, equations 14 to 17). If
    utilities have noise, it is a lower bound.
    """

    functional: ClassVar[str] = "expected log"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return super().fits(likelihood) and likelihood.has_parameters

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        check_label_noise(likelihood)
        return super().of(likelihood)

    def kernel(self) -> PointKernel:
        return expected_labels_kernel(self.noise, self.epsilon)


RULES: tuple[type[Rule], ...] = (
    WholePointNormaliser,
    PairNormalisers,
    ProbitNormaliser,
    LogitNormaliser,
    ExpectedLogPairs,
    ExpectedLogProbit,
    ExpectedLogLogit,
    ExpectedLogLabelNoise,
    OneFunctionNormaliser,
    ExpectedLogOneFunction,
)
"""All rules, from which `rule_for` selects."""

_TITLES = {"log normaliser": "expectation propagation", "expected log": "a variational bound"}


def rule_for(functional: str, sites: str | None, likelihood: Likelihood) -> Rule:
    """Return the rule for a functional and a likelihood. `sites` names the factors; None selects the first rule.

    Raises
    ------
    ValueError
        If no such rule exists.
    """
    fitting = {
        rule.expresses.name: rule
        for rule in reversed(RULES)
        if rule.functional == functional and rule.fits(likelihood) and rule.expresses.fits(likelihood)
    }
    names = list(reversed(fitting))
    if not names:
        raise ValueError(
            f"Batches of a {likelihood.name} likelihood cannot be fitted by {_TITLES[functional]}. Take another "
            "method, or leave batch_size out."
        )
    if sites is not None:
        check_name("sites", sites, names, f" for batches of a {likelihood.name} likelihood by {_TITLES[functional]}")
    return fitting[sites or names[0]].of(likelihood)
