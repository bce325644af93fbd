"""Moments of distributions of PyMC by their formulas, in terms of the variables of a model."""

from typing import cast

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import (
    AsymmetricLaplaceRV,
    ExGaussianRV,
    HalfCauchyRV,
    HalfStudentTRV,
    KumaraswamyRV,
    MoyalRV,
    SkewNormalRV,
    WaldRV,
    WeibullBetaRV,
)
from pymc.distributions.discrete import DiscreteUniformRV
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.mixture import _BaseMixtureRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import (
    BetaBinomialRV,
    BetaRV,
    BinomialRV,
    CauchyRV,
    ExponentialRV,
    GammaRV,
    GeometricRV,
    GumbelRV,
    HalfNormalRV,
    InvGammaRV,
    LaplaceRV,
    LogisticRV,
    LogNormalRV,
    NegBinomialRV,
    NormalRV,
    ParetoRV,
    PoissonRV,
    StudentTRV,
    TriangularRV,
    UniformRV,
)
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_gpep.likelihoods.log_probabilities import distribution_parts, log_above

type _Pair = tuple[TensorVariable, TensorVariable]


def mean_and_square(variable: TensorVariable) -> _Pair:
    """Return the mean of a random variable, and of its square, given its parameters.

    An infinite moment is ∞, and a mean that does not exist is NaN.

    Raises
    ------
    NotImplementedError
        If there is no formula.
    """
    op, *given = distribution_parts(variable)
    if isinstance(op, _BaseMixtureRV):
        return _mixture(variable)
    if isinstance(op, TruncatedRV):
        return _positive_counts(*given)
    if isinstance(op, DiracDeltaRV):
        value = _number(variable.owner.inputs[-1])
        return value, value**2
    if isinstance(op, CensoredRV):
        raise NotImplementedError
    parameters = [_number(each) for each in given]
    if raw := _raw(op, *parameters):
        return raw
    mean, variance = _central(op, *parameters)
    return mean, cast(TensorVariable, variance + mean**2)


def _number(variable: TensorVariable) -> TensorVariable:
    return cast(TensorVariable, variable.astype("float64"))


def _mixture(variable: TensorVariable) -> _Pair:
    """Return the moments of a mixture: averages of those of its components, whose weights lie on the last axis."""
    _, weights, *components = variable.owner.inputs
    pairs = [mean_and_square(each) for each in components]
    if len(pairs) == 1:
        (pair,) = pairs
    else:
        pair = tuple(pt.stack(pt.broadcast_arrays(*each), axis=-1) for each in zip(*pairs, strict=True))
    first, second = (pt.sum(pt.switch(pt.eq(weights, 0.0), 0.0, weights * each), axis=-1) for each in pair)
    return first, second


def _positive_counts(base: TensorVariable, lower: TensorVariable, upper: TensorVariable) -> _Pair:
    """Return the moments of a count that is not 0, as in hurdle models."""
    ends = [each.data if isinstance(each, TensorConstant) else np.array(np.nan) for each in (lower, upper)]
    counts = isinstance(base.owner.op, PoissonRV | NegBinomialRV | BinomialRV)
    if not counts or not ((ends[0] > 0.0) & (ends[0] <= 1.0)).all() or not (ends[1] >= 1e300).all():
        raise NotImplementedError
    log_share = log_above(base, pt.constant(0.0))
    first, second = (pt.exp(pt.log(each) - log_share) for each in mean_and_square(base))
    return first, second


def _exists(condition: TensorVariable, value: TensorVariable, otherwise: float) -> TensorVariable:
    return cast(TensorVariable, pt.switch(condition, value, otherwise))


def _raw(op: Op, *p: TensorVariable) -> _Pair | None:
    """Return the mean and the mean square where these are simpler than the variance."""
    match op:
        case CauchyRV():
            return 0.0 * p[0] + np.nan, 0.0 * p[0] + np.inf
        case HalfCauchyRV():
            return 0.0 * p[-1] + np.inf, 0.0 * p[-1] + np.inf
        case LogNormalRV():
            mu, sigma = p
            return pt.exp(mu + 0.5 * sigma**2), pt.exp(2.0 * (mu + sigma**2))
        case WeibullBetaRV():
            alpha, beta = p
            log_beta = pt.log(beta)
            return pt.exp(log_beta + pt.gammaln(1.0 + 1.0 / alpha)), pt.exp(
                2.0 * log_beta + pt.gammaln(1.0 + 2.0 / alpha)
            )
        case KumaraswamyRV():
            a, b = p
            first, second = (
                pt.exp(pt.log(b) + pt.gammaln(1.0 + k / a) + pt.gammaln(b) - pt.gammaln(1.0 + k / a + b))
                for k in (1.0, 2.0)
            )
            return first, second
        case ParetoRV():
            alpha, m = p
            first, second = (_exists(pt.gt(alpha, k), m**k * alpha / (alpha - k), np.inf) for k in (1.0, 2.0))
            return first, second
        case InvGammaRV():
            alpha, beta = p
            return (
                _exists(pt.gt(alpha, 1.0), beta / (alpha - 1.0), np.inf),
                _exists(pt.gt(alpha, 2.0), beta**2 / ((alpha - 1.0) * (alpha - 2.0)), np.inf),
            )
        case StudentTRV():
            nu, mu, sigma = p
            spread = _exists(pt.gt(nu, 2.0), sigma**2 * nu / (nu - 2.0), np.inf)
            return _exists(pt.gt(nu, 1.0), mu + 0.0 * nu, np.nan), mu**2 + spread
        case HalfStudentTRV():
            nu, sigma = p
            log_ratio = pt.gammaln(0.5 * (nu + 1.0)) - pt.gammaln(0.5 * nu)
            mean = 2.0 * sigma * pt.sqrt(nu / np.pi) * pt.exp(log_ratio) / (nu - 1.0)
            return (
                _exists(pt.gt(nu, 1.0), mean, np.inf),
                _exists(pt.gt(nu, 2.0), sigma**2 * nu / (nu - 2.0), np.inf),
            )
    return None


def _central(op: Op, *p: TensorVariable) -> _Pair:
    """Return the mean and the variance."""
    match op:
        case NormalRV():
            mu, sigma = p
            return mu, sigma**2
        case LaplaceRV():
            mu, b = p
            return mu, 2.0 * b**2
        case LogisticRV():
            mu, s = p
            return mu, (np.pi * s) ** 2 / 3.0
        case AsymmetricLaplaceRV():
            b, kappa, mu = p
            return mu - (kappa - 1.0 / kappa) / b, (1.0 + kappa**4) / (kappa * b) ** 2
        case ExGaussianRV():
            mu, sigma, nu = p
            return mu + nu, sigma**2 + nu**2
        case GumbelRV():
            mu, beta = p
            return mu + np.euler_gamma * beta, (np.pi * beta) ** 2 / 6.0
        case MoyalRV():
            mu, sigma = p
            return mu + (np.euler_gamma + np.log(2.0)) * sigma, (np.pi * sigma) ** 2 / 2.0
        case SkewNormalRV():
            mu, sigma, alpha = p
            shift = alpha / pt.sqrt(1.0 + alpha**2) * np.sqrt(2.0 / np.pi)
            return mu + sigma * shift, sigma**2 * (1.0 - shift**2)
        case HalfNormalRV():
            loc, sigma = p
            return loc + np.sqrt(2.0 / np.pi) * sigma, (1.0 - 2.0 / np.pi) * sigma**2
        case ExponentialRV():
            (scale,) = p
            return scale, scale**2
        case GammaRV():
            alpha, scale = p
            return alpha * scale, alpha * scale**2
        case WaldRV():
            mu, lam, alpha = p
            return mu + alpha, mu**3 / lam
        case BetaRV():
            alpha, beta = p
            total = alpha + beta
            return alpha / total, alpha / total * (beta / total) / (total + 1.0)
        case UniformRV():
            lower, upper = p
            return 0.5 * (lower + upper), (upper - lower) ** 2 / 12.0
        case TriangularRV():
            lower, c, upper = p
            spread = lower**2 + c**2 + upper**2 - lower * c - lower * upper - c * upper
            return (lower + c + upper) / 3.0, spread / 18.0
        case PoissonRV():
            (mu,) = p
            return mu, mu
        case NegBinomialRV():
            n, prob = p
            mean = n * (1.0 - prob) / prob
            return mean, mean / prob
        case BinomialRV():
            n, prob = p
            return n * prob, n * prob * (1.0 - prob)
        case BetaBinomialRV():
            n, alpha, beta = p
            total = alpha + beta
            mean = n * (alpha / total)
            return mean, mean * (beta / total) * (total + n) / (total + 1.0)
        case GeometricRV():
            (prob,) = p
            return 1.0 / prob, (1.0 - prob) / prob**2
        case DiscreteUniformRV():
            lower, upper = p
            return 0.5 * (lower + upper), ((upper - lower + 1.0) ** 2 - 1.0) / 12.0
    raise NotImplementedError
