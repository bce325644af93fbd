"""The multinomial probit of a point as it is: one factor, and a site for each function."""

from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.approximations.site_rules.whole_point import WholePoint
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.multinomial_probit.likelihood import MultinomialProbitLikelihood
from pymc_gpep.solvers.batch_sites import PointKernel, whole_point_kernel
from pymc_gpep.streaming.graph_functions import hazard, log_ndtr
from pymc_gpep.streaming.rules.log_concave import window
from pymc_gpep.streaming.rules.rule import PointTerms, Rule

__all__ = ["WholePointNormaliser", "log_largest"]

_NODES = 64


class WholePointNormaliser(Rule):
    """∫ N(t | m_y, 1 + v_y) ∏_k Φ((t − m_k) / √(1 + v_k)) dt, k ≠ y, by a fixed number of nodes.

    Villacampa-Calvo and Hernández-Lobato (2017), equation 3, of which they take a product over k apart.
    """

    expresses: ClassVar[type[SiteRule]] = WholePoint
    functional: ClassVar[str] = "log normaliser"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        return isinstance(likelihood, MultinomialProbitLikelihood) and not likelihood.has_parameters

    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        return pt.zeros_like(labels)[:, None] + pt.arange(c)[None, :]

    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        return log_largest(mean, 1.0 + variance, labels)

    def kernel(self) -> PointKernel:
        return whole_point_kernel(1.0)


def log_largest(mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
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

    x, step = window(integrand, own_mean[:, 0], _NODES)
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
