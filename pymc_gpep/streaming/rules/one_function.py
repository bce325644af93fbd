"""Two classes by one latent function: one factor with one site."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.approximations.site_rules.whole_point import OneFunctionSite
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import LogisticResponse, NormalResponse
from pymc_gpep.likelihoods.log_probabilities import log_ndtr
from pymc_gpep.solvers.batch_sites import (
    PointKernel,
    expected_logit_kernel,
    expected_probit_kernel,
    logit_kernel,
    probit_kernel,
)
from pymc_gpep.streaming.graph_functions import hazard, window
from pymc_gpep.streaming.rules.rule import PointTerms, Rule

_NODES, _EXPECTED_NODES = 100, 64


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
        nodes, weights = np.polynomial.hermite_e.hermegauss(_EXPECTED_NODES)
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
