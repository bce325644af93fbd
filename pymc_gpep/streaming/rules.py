"""Log normalisers and expected log likelihoods of the points of a batch, as graphs: a rule for each kind of factors.

A label is the class with the largest utility: latent values with independent normal noise. With label noise the
likelihood of a point is (1 − ε) p + ε / c, where p is the probability of that class. It averages to Ẑ₀ over normal
latent values.

The integrals are trapezoid rules on a window of their own. The log integrand falls by at least half the squared
distance from its mode, in its own units. Newton's method finds the mode, and from there both ends, where the integrand
is negligible. A fixed number of nodes between them converges geometrically, as for any smooth function that is flat at
both ends.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.site_rules import OneFunctionSite, Pairs, SiteRule, WholePoint
from pymc_gpep.approximations.sparse_vi import check_label_noise
from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import LargestUtility, LogisticResponse, NormalResponse
from pymc_gpep.likelihoods.log_probabilities import log_ndtr, scaled_erfc
from pymc_gpep.solvers.batch_sites import (
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

_FURTHEST = 37.0  # beyond it φ(z) is next to 0, and exp(x²) erfc(x) overflows
_HALF, _ROOT = np.sqrt(0.5), np.sqrt(2.0 / np.pi)


def hazard(z: TensorVariable) -> TensorVariable:
    """φ(z) / Φ(z)."""
    return _ROOT / scaled_erfc(-_HALF * pt.minimum(z, _FURTHEST))


type LogIntegrand = Callable[[TensorVariable], tuple[TensorVariable, TensorVariable, TensorVariable]]
"""Value, first derivative and minus second derivative at points (r, B) of the B integrands."""

_FALL = 36.0  # of the log integrand, at the ends
_TO_MODE, _TO_ENDS = 8, 4


def window(integrand: LogIntegrand, like: TensorVariable, nodes: int) -> tuple[TensorVariable, TensorVariable]:
    """Points (B, nodes), and the distance (B,) between two of them.

    Parameters
    ----------
    integrand : function
        With a curvature of 1 or more everywhere.
    like : TensorVariable (B,)
        Finite numbers, by whose shape and type that of the result goes.
    nodes : int
    """

    def uphill(x: TensorVariable) -> TensorVariable:
        _, slope, curvature = integrand(x)
        return x + slope / curvature

    mode = pt.zeros_like(like)[None, :]
    for _ in range(_TO_MODE):
        mode = uphill(mode)
    top, _, _ = integrand(mode)
    sides = np.array([[-1.0], [1.0]])

    def inwards(distance: TensorVariable) -> TensorVariable:
        # What is fallen is convex in the distance, so that steps from beyond the end stay beyond it.
        value, slope, _ = integrand(mode + sides * distance)
        return distance - pt.maximum(top - value - _FALL, 0.0) / pt.maximum(-sides * slope, 1.0)

    furthest = np.sqrt(2.0 * _FALL) + np.zeros((2, 1))
    distance = furthest + pt.zeros_like(like)[None, :]
    for _ in range(_TO_ENDS):
        distance = inwards(distance)
    step = distance.sum(axis=0) / (nodes - 1)
    return (mode[0] - distance[0])[:, None] + step[:, None] * np.arange(nodes), step


class PointTerms(NamedTuple):
    """Terms of B points whose factors see d normal latent values each."""

    value: TensorVariable
    """Sum over factors of a functional of the factor and of means and variances, (B,)."""
    in_mean: TensorVariable
    """Derivatives of `value` in the means, (B, d)."""
    in_variance: TensorVariable
    """Derivatives of `value` in the variances, (B, d)."""


class Rule(ABC):
    """Factors of the likelihood of a point, each with a scalar site for every function that it depends on.

    The same factors as those of a `SiteRule`, in graphs that any backend compiles.
    """

    expresses: ClassVar[type[SiteRule]]
    """The factors."""
    functional: ClassVar[str]
    """Which functional: "log normaliser", log ∫ t(f) N(f) df, or "expected log", ∫ log t(f) N(f) df."""
    log_concave: bool = True
    """Whether factors are log-concave, so that no site has a precision below zero."""

    @classmethod
    @abstractmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """Whether it is written for this likelihood."""

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        """The rule for a likelihood that it fits, with the numbers that are the same for all points."""
        return cls()

    @abstractmethod
    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        """Which of the c functions each site acts on, (B, d)."""

    @abstractmethod
    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        """The functional, for means and variances (B, d) of the latent values and labels (B,)."""

    def kernel(self) -> PointKernel | None:
        """The same for arrays; None where there is no loop of machine code for it."""
        return None

    def counts(self, labels: Array, c: int) -> Array:
        """How many sites act on each of the c functions, of points of which `labels` (c,) have each label."""
        return np.full(c, labels.sum())


_NODES, _HERMITE_NODES = 100, 64


class _OfOneFunction(Rule):
    """p(y | f) = r((2y − 1) f), r(f) = Φ(f) or 1 / (1 + exp(−f))."""

    expresses: ClassVar[type[SiteRule]] = OneFunctionSite

    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        return pt.zeros_like(labels)[:, None]


class ProbitNormaliser(_OfOneFunction):
    """Φ(±m / √(1 + v))."""

    functional: ClassVar[str] = "log normaliser"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(NormalResponse)

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        scale = _sign(labels) / pt.sqrt(1.0 + variance[:, 0])
        z = scale * mean[:, 0]
        rate = hazard(z)
        return PointTerms(log_ndtr(z), (scale * rate)[:, None], (-0.5 * scale * scale * rate * z)[:, None])

    def kernel(self) -> PointKernel:
        return probit_kernel()


class LogitNormaliser(_OfOneFunction):
    """∫ N(f | ±m, v) / (1 + exp(−f)) df by a fixed number of nodes."""

    functional: ClassVar[str] = "log normaliser"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(LogisticResponse)

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        sign, m, deviation = _sign(labels), mean[:, 0], pt.sqrt(variance[:, 0])

        def integrand(x: TensorVariable) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
            f = sign * m + deviation * x
            miss = pt.sigmoid(-f)
            return (
                -pt.softplus(-f) - 0.5 * x * x,
                deviation * miss - x,
                deviation * deviation * miss * (1.0 - miss) + 1.0,
            )

        x, step = window(integrand, m, _NODES)
        f = (sign * m)[:, None] + deviation[:, None] * x
        log_terms = -pt.softplus(-f) - 0.5 * x * x
        top = log_terms.max(axis=1, keepdims=True)
        weights = pt.exp(log_terms - top)
        total = weights.sum(axis=1)
        weights = weights / total[:, None]
        miss = pt.sigmoid(-f)
        first = (weights * miss).sum(axis=1)
        # The average of σ″ / σ = (1 − σ)(1 − 2σ) is twice the derivative in the variance.
        second = (weights * miss * (2.0 * miss - 1.0)).sum(axis=1)
        log_z = top[:, 0] + pt.log(total * step) - 0.5 * np.log(2.0 * np.pi)
        return PointTerms(log_z, (sign * first)[:, None], 0.5 * second[:, None])

    def kernel(self) -> PointKernel:
        return logit_kernel()


class _ExpectedLog(_OfOneFunction, ABC):
    """By a fixed rule of quadrature, and its own derivatives."""

    functional: ClassVar[str] = "expected log"

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        nodes, weights = np.polynomial.hermite_e.hermegauss(_HERMITE_NODES)
        weights = weights / weights.sum()
        sign, deviation = _sign(labels), pt.sqrt(variance[:, 0])
        value, slope = self.log_response((sign * mean[:, 0])[:, None] + deviation[:, None] * nodes)
        return PointTerms(
            (value * weights).sum(axis=1),
            (sign * (slope * weights).sum(axis=1))[:, None],
            (0.5 * (slope * weights * nodes).sum(axis=1) / deviation)[:, None],
        )

    @abstractmethod
    def log_response(self, f: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        """log r, and its derivative."""


class ExpectedLogProbit(_ExpectedLog):
    """r = Φ."""

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(NormalResponse)

    def log_response(self, f: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        return log_ndtr(f), hazard(f)

    def kernel(self) -> PointKernel:
        return expected_probit_kernel()


class ExpectedLogLogit(_ExpectedLog):
    """r = 1 / (1 + exp(−f))."""

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(LogisticResponse)

    def log_response(self, f: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        return -pt.softplus(-f), pt.sigmoid(-f)

    def kernel(self) -> PointKernel:
        return expected_logit_kernel()


def _sign(labels: TensorVariable) -> TensorVariable:
    """1 for label 1, −1 for label 0."""
    return 2.0 * labels - 1.0


@dataclass(frozen=True)
class _OfPairs(Rule):
    """∏_k Φ((f_y − f_k) / √2), k ≠ y; the sites on f_y come first, then those on the f_k.

    The factors are Θ(f_y − f_k) where utilities have no noise. Label noise is left out, as in the paper.

    Attributes
    ----------
    noise : float
        Variance of the noise of a difference that is no part of latent values.
    """

    noise: float

    expresses: ClassVar[type[SiteRule]] = Pairs

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(LargestUtility) and Pairs.fits(likelihood)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        return cls(2.0 * likelihood.computation(LargestUtility).noise)

    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        others = np.arange(c - 1)[None, :]
        return pt.concatenate([labels[:, None] + 0 * others, others + (others >= labels[:, None])], axis=1)

    def counts(self, labels: Array, c: int) -> Array:
        return labels * (c - 1) + labels.sum() - labels


class PairNormalisers(_OfPairs):
    """Villacampa-Calvo and Hernández-Lobato (2017), equations 6 to 8."""

    functional: ClassVar[str] = "log normaliser"

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        of_mean, of_variance = _differences(mean, variance)
        scale = 1.0 / pt.sqrt(self.noise + of_variance)
        z = scale * of_mean
        rate = hazard(z)
        rho, delta = scale * rate, -0.5 * scale * scale * rate * z
        return PointTerms(log_ndtr(z).sum(axis=1), *_of_both(rho, delta))

    def kernel(self) -> PointKernel:
        return pair_kernel(self.noise)


class ExpectedLogPairs(_OfPairs):
    """By a fixed rule of quadrature in each difference, and its own derivatives.

    The sum is a lower bound of the expectation of the whole likelihood's logarithm, since the product is one.
    """

    functional: ClassVar[str] = "expected log"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        # The logarithm of a step has no average.
        return super().fits(likelihood) and likelihood.computation(LargestUtility).noise > 0.0

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        of_mean, of_variance = _differences(mean, variance)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_HERMITE_NODES)
        weights = weights / weights.sum()
        deviation = pt.sqrt(of_variance)
        z = np.sqrt(0.5) * (of_mean[..., None] + deviation[..., None] * nodes)
        rate = np.sqrt(0.5) * weights * hazard(z)
        value = (log_ndtr(z) * weights).sum(axis=(1, 2))
        return PointTerms(value, *_of_both(rate.sum(axis=-1), 0.5 * (rate * nodes).sum(axis=-1) / deviation))

    def kernel(self) -> PointKernel:
        return expected_pair_kernel(self.noise)


def _differences(mean: TensorVariable, variance: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Means and variances of f_y − f_k, (B, c − 1)."""
    half = mean.type.shape[1] // 2
    return mean[:, :half] - mean[:, half:], variance[:, :half] + variance[:, half:]


def _of_both(slope: TensorVariable, in_variance: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Derivatives in both sides of differences from those in the differences."""
    return pt.concatenate([slope, -slope], axis=1), pt.concatenate([in_variance, in_variance], axis=1)


_NODES_OF_POINT = 64
_LEAST_NOISE = 1e-12  # variance of utilities that have none


@dataclass(frozen=True)
class _OfWholePoint(Rule, ABC):
    """(1 − ε) p + ε / c.

    Attributes
    ----------
    epsilon : float
        ε, 0 where labels have no noise.
    noise : float
        Variance of the noise of utilities.
    """

    epsilon: float
    noise: float
    log_concave: bool

    expresses: ClassVar[type[SiteRule]] = WholePoint

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return likelihood.offers(LargestUtility)

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        epsilon = float(likelihood.parameters[0, 0]) if likelihood.has_parameters else 0.0
        noise = max(likelihood.computation(LargestUtility).noise, _LEAST_NOISE)
        return cls(epsilon, noise, likelihood.log_concave)

    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        return pt.zeros_like(labels)[:, None] + pt.arange(c)[None, :]


class WholePointNormaliser(_OfWholePoint):
    """log((1 − ε) Ẑ₀ + ε / c), Ẑ₀ = ∫ N(t | m_y, 1 + v_y) ∏_k Φ((t − m_k) / √(1 + v_k)) dt, k ≠ y.

    Villacampa-Calvo and Hernández-Lobato (2017), equation 3, of which they take a product over k apart. Ẑ₀ is computed
    by a fixed number of nodes. With label noise tilted distributions may be wider than their cavities: see `site_of`.
    """

    functional: ClassVar[str] = "log normaliser"

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        found = _log_largest(mean, variance + self.noise, labels)
        if not self.epsilon:
            return found
        right = np.log1p(-self.epsilon) + found.value
        value = pt.logaddexp(right, np.log(self.epsilon / mean.type.shape[1]))
        share = pt.exp(right - value)[:, None]
        return PointTerms(value, share * found.in_mean, share * found.in_variance)

    def kernel(self) -> PointKernel:
        return whole_point_kernel(self.noise, self.epsilon)


class ExpectedLogLabelNoise(_OfWholePoint):
    """Ẑ₀ log(1 − ε + ε / c) + (1 − Ẑ₀) log(ε / c) (Villacampa-Calvo and Hernández-Lobato 2017, equations 14 to 17).

    It is the expected logarithm where utilities have no noise of their own, and a lower bound of it where they have.
    """

    functional: ClassVar[str] = "expected log"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return super().fits(likelihood) and likelihood.has_parameters

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        check_label_noise(likelihood)
        return super().of(likelihood)

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        found = _log_largest(mean, variance + self.noise, labels)
        c = mean.type.shape[1]
        lowest = np.log(self.epsilon / c)
        gain = (np.log1p(-self.epsilon * (1.0 - 1.0 / c)) - lowest) * pt.exp(found.value)
        return PointTerms(lowest + gain, gain[:, None] * found.in_mean, gain[:, None] * found.in_variance)

    def kernel(self) -> PointKernel:
        return expected_labels_kernel(self.noise, self.epsilon)


def _log_largest(mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
    """Log probability that of independent normal numbers, means and variances (B, c), that of the label is largest."""
    # x is the utility of the observed class in its own units; the other classes' factors are Φ(a x + d).
    observed = pt.eq(pt.arange(mean.type.shape[1])[None, :], labels[:, None])
    inverse = 1.0 / pt.sqrt(variance)
    own_mean = (mean * observed).sum(axis=1, keepdims=True)
    own_scale = 1.0 / (inverse * observed).sum(axis=1, keepdims=True)
    a, d = own_scale * inverse, (own_mean - mean) * inverse
    others = 1.0 - observed

    def integrand(x: TensorVariable) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        z = a * x[..., None] + d
        rate = hazard(z) * others
        return (
            (log_ndtr(z) * others).sum(axis=-1) - 0.5 * x * x,
            (a * rate).sum(axis=-1) - x,
            (a * a * rate * (rate + z)).sum(axis=-1) + 1.0,
        )

    x, step = window(integrand, own_mean[:, 0], _NODES_OF_POINT)
    z = a[:, :, None] * x[:, None, :] + d[:, :, None]
    log_terms = (log_ndtr(z) * others[:, :, None]).sum(axis=1) - 0.5 * x * x
    top = log_terms.max(axis=1, keepdims=True)
    weights = pt.exp(log_terms - top)
    total = weights.sum(axis=1)
    log_z = top[:, 0] + pt.log(total * step) - 0.5 * np.log(2.0 * np.pi)
    weights = weights / total[:, None]
    rate = hazard(z) * weights[:, None, :]
    of_others = -inverse * rate.sum(axis=2)
    in_variance = -0.5 * inverse * inverse * (rate * z).sum(axis=2)
    own = 0.5 * inverse * inverse * ((weights * x * x).sum(axis=1, keepdims=True) - 1.0)
    of_own = inverse * (weights * x).sum(axis=1, keepdims=True)
    return PointTerms(log_z, pt.switch(observed, of_own, of_others), pt.switch(observed, own, in_variance))


RULES: tuple[type[Rule], ...] = (
    WholePointNormaliser,
    PairNormalisers,
    ProbitNormaliser,
    LogitNormaliser,
    ExpectedLogPairs,
    ExpectedLogProbit,
    ExpectedLogLogit,
    ExpectedLogLabelNoise,
)
"""All there are; a new one is a line here."""

_TITLES = {"log normaliser": "expectation propagation", "expected log": "a variational bound"}


def rule_for(functional: str, sites: str | None, likelihood: Likelihood) -> Rule:
    """Return the rule for a functional, a name of factors and a likelihood; the first that fits without a name.

    Raises
    ------
    ValueError
        If there is no such rule.
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
