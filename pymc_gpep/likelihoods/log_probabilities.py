"""Log probabilities of observations, and of ranges of observations, as graphs of a model's variables.

`pm.Censored` and `pm.Truncated` need probabilities of ranges. PyMC's own graphs are not used. They copy the model's
variables, lose digits if a distribution function is close to 1, and have no derivatives at infinite bounds.
"""

from typing import cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import TruncatedNormalRV, WeibullBetaRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Apply
from pytensor.tensor.random.basic import (
    BetaRV,
    BinomialRV,
    CauchyRV,
    ExponentialRV,
    GammaRV,
    LaplaceRV,
    LogisticRV,
    NegBinomialRV,
    NormalRV,
    PoissonRV,
    StudentTRV,
)
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_gpep.likelihoods.likelihood import UNBOUNDED

_SQRT_HALF = np.sqrt(0.5)  # PyTensor would convert a Python float to single precision.
_CHANGE = np.float64(-1.0)
_FAR = np.float64(26.0)  # Above this value of x, the series of exp(x²) erfc(x) is exact to rounding.


def scaled_erfc(x: TensorVariable) -> TensorVariable:
    """Return exp(x²) erfc(x). Large x use a series, since erfc of JAX 0.11 is NaN from 26.55 to 26.64."""
    is_far = x > _FAR
    near, far = pt.switch(is_far, _FAR, x), pt.switch(is_far, x, _FAR)
    u = 0.5 / (far * far)
    series = 1.0 - u * (1.0 - 3.0 * u * (1.0 - 5.0 * u * (1.0 - 7.0 * u * (1.0 - 9.0 * u * (1.0 - 11.0 * u)))))
    return cast(TensorVariable, pt.switch(is_far, series / (np.sqrt(np.pi) * far), pt.erfcx(near)))


def log_ndtr(z: TensorVariable) -> TensorVariable:
    """Return log Φ(z), with accurate first and second derivatives far into both tails.

    PyMC's function has only single precision.
    """
    # Each expression receives only values in its range. Derivatives at other values would be ∞ × 0.
    in_tail = z < _CHANGE
    low, high = pt.switch(in_tail, z, _CHANGE), pt.switch(in_tail, _CHANGE, z)
    tail = pt.log(0.5 * scaled_erfc(-low * _SQRT_HALF)) - 0.5 * low**2
    return cast(TensorVariable, pt.switch(in_tail, tail, pt.log1p(-0.5 * pt.erfc(high * _SQRT_HALF))))


_SMALL_PROBABILITY = np.float64(1e-280)  # The logarithm of a smaller probability is computed by another formula.
_ZERO = np.float64(-1e-290)
_UNBOUNDED = np.float64(UNBOUNDED)


def log_probability(variable: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Return the log probability (n,) of a random variable; NaN beyond bounds.

    Raises
    ------
    NotImplementedError
        If PyMC has no log density, or no distribution function for bounds.
    """
    op, *others = distribution_parts(variable)
    if isinstance(op, CensoredRV):
        distribution, lower, upper = others
        above, below = pt.ge(value, upper), pt.le(value, lower)
        # Bounds of uncensored rows are infinite and must not enter the derivative.
        beyond = log_above(distribution, _before(distribution, pt.switch(above, upper, value)))
        short = log_below(distribution, pt.switch(below, lower, value))
        inside = pt.switch(above, beyond, pt.switch(below, short, log_probability(distribution, value)))
        return cast(TensorVariable, pt.switch(pt.gt(value, upper) | pt.lt(value, lower), np.nan, inside))
    if isinstance(op, TruncatedRV | TruncatedNormalRV):
        distribution, lower, upper = others
        between = _before(distribution, _bound(lower)), _bound(upper)
        inside = log_probability(distribution, value) - _log_between(distribution, *between, value)
        return cast(TensorVariable, pt.switch(pt.gt(value, upper) | pt.lt(value, lower), np.nan, inside))
    return cast(TensorVariable, pm.logp(variable, value, warn_rvs=False))


def uncensored(variable: TensorVariable) -> TensorVariable:
    """Return the inner distribution of a censored variable. Other variables are returned unchanged."""
    op, *others = distribution_parts(variable)
    return others[0] if isinstance(op, CensoredRV) else variable


def bounds(variable: TensorVariable) -> list[TensorVariable]:
    """Return the bounds of a censored or truncated variable, and of its inner distribution."""
    op, *others = distribution_parts(variable)
    if not isinstance(op, CensoredRV | TruncatedRV | TruncatedNormalRV):
        return []
    distribution, *own = others
    return [*own, *bounds(distribution)]


def censored_sides(variable: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Return 1 for values at the upper bound of a censored variable, −1 at the lower bound, 0 otherwise."""
    _, _, lower, upper = distribution_parts(variable)
    above, below = pt.ge(value, upper), pt.le(value, lower)
    return cast(TensorVariable, pt.switch(above, 1.0, pt.switch(below, -1.0, 0.0)))


def log_below(distribution: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Return log P(Y ≤ value) for a variable Y with this distribution."""
    op, *others = distribution_parts(distribution)
    match op:
        case TruncatedRV() | TruncatedNormalRV():
            base, lower, upper = others
            below = _before(base, _bound(lower))
            whole = _log_between(base, below, _bound(upper), value)
            part = _log_between(base, below, value, value) - whole
            found = pt.switch(pt.ge(value, upper), 0.0, part)
            return cast(TensorVariable, pt.switch(pt.lt(value, lower), -np.inf, found))
        case NormalRV():
            mu, sigma = others
            return log_ndtr((value - mu) / sigma)
        case GammaRV():
            alpha, scale = others
            return _log_gamma_below(alpha, _at_least(value, 0.0) / scale)
        case PoissonRV():
            (mu,) = others
            count = pt.floor(value)
            found = _log_gamma_above(_at_least(count, 0.0) + 1.0, mu)
            return cast(TensorVariable, pt.switch(pt.lt(count, 0.0), -np.inf, found))
    return cast(TensorVariable, pm.logcdf(distribution, value, warn_rvs=False))


def log_above(distribution: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Return log P(Y > value) for a variable Y with this distribution, accurate even if P(Y ≤ value) rounds to 1."""
    op, *others = distribution_parts(distribution)
    match op:
        case TruncatedRV() | TruncatedNormalRV():
            base, lower, upper = others
            whole = _log_between(base, _before(base, _bound(lower)), _bound(upper), value)
            part = _log_between(base, value, _bound(upper), value) - whole
            found = pt.switch(pt.lt(value, lower), 0.0, part)
            return cast(TensorVariable, pt.switch(pt.ge(value, upper), -np.inf, found))
        case NormalRV():
            mu, sigma = others
            return log_ndtr((mu - value) / sigma)
        case LaplaceRV() | LogisticRV() | CauchyRV() | StudentTRV():  # Symmetric distributions.
            mu = others[1 if isinstance(op, StudentTRV) else 0]
            return log_below(distribution, 2.0 * mu - value)
        case WeibullBetaRV():
            alpha, beta = others
            return cast(TensorVariable, -((_at_least(value, 0.0) / beta) ** alpha))
        case ExponentialRV():
            (scale,) = others
            return cast(TensorVariable, -_at_least(value, 0.0) / scale)
        case GammaRV():
            alpha, scale = others
            return _log_gamma_above(alpha, _at_least(value, 0.0) / scale)
        case PoissonRV():
            (mu,) = others
            count = pt.floor(value)
            return _of_counts(count, np.inf, _log_gamma_below(_at_least(count, 0.0) + 1.0, mu))
        case NegBinomialRV():
            n, p = others
            count = pt.floor(value)
            return _of_counts(count, np.inf, pt.log(pt.betainc(_at_least(count, 0.0) + 1.0, n, 1.0 - p)))
        case BinomialRV():
            n, p = others
            count = pt.floor(value)
            kept = pt.clip(count, 0.0, n - 1.0)
            return _of_counts(count, n, pt.log(pt.betainc(kept + 1.0, n - kept, p)))
        case BetaRV():
            alpha, beta = others
            return cast(TensorVariable, pt.log(pt.betainc(beta, alpha, 1.0 - pt.clip(value, 0.0, 1.0))))
    return cast(TensorVariable, pm.logccdf(distribution, value, warn_rvs=False))


def distribution_parts(variable: TensorVariable) -> list:  # type: ignore[type-arg]  # an Op, and variables
    """Return the Op and parameters of a random variable. A bounded variable has a distribution and finite bounds."""
    node = variable.owner
    while isinstance(node.op, SpecifyShape):
        node = node.inputs[0].owner
    op = node.op
    match op:
        case CensoredRV():
            distribution, *ends = node.inputs[:3]
            return [op, distribution, *map(_clipped, ends)]
        case TruncatedNormalRV():
            mu, sigma, *ends = op.dist_params(node)
            return [op, pm.Normal.dist(mu, sigma), *map(_clipped, ends)]
        case TruncatedRV():
            *inputs, lower, upper = node.inputs
            base = op.base_rv_op.make_node(*inputs).default_output()
            return [op, base, _clipped(lower), _clipped(upper)]
        case RandomVariable():
            return [op, *op.dist_params(node)]
        case SymbolicRandomVariable() if op.extended_signature is not None:
            return [op, *op.dist_params(cast(Apply, node))]
    return [op]


def _bound(bound: TensorVariable) -> TensorVariable | None:
    """Return a bound, or None for an infinite constant."""
    return None if isinstance(bound, TensorConstant) and (np.abs(bound.data) >= _UNBOUNDED).all() else bound


def _clipped(bound: TensorVariable) -> TensorVariable:
    """Return a bound clipped to finite numbers."""
    if isinstance(bound, TensorConstant):
        return pt.constant(np.clip(bound.data.astype("float64"), -_UNBOUNDED, _UNBOUNDED))
    return cast(TensorVariable, pt.clip(bound.astype("float64"), -_UNBOUNDED, _UNBOUNDED))


def _before[Number: TensorVariable | None](distribution: TensorVariable, value: Number) -> Number:
    """Return the largest number below `value` in the support; `value` for continuous distributions."""
    if value is None or distribution.dtype.startswith("float"):
        return value
    return cast(Number, pt.ceil(value) - 1.0)


def _log_between(
    distribution: TensorVariable, lower: TensorVariable | None, upper: TensorVariable | None, inside: TensorVariable
) -> TensorVariable:
    """Return log P(lower < Y ≤ upper). A bound None is infinite.

    If the probability beyond a bound is 0, `inside` replaces the bound. Derivatives are then finite.
    """
    if lower is None and upper is None:
        return cast(TensorVariable, pt.zeros_like(inside, dtype="float64"))
    if lower is not None:
        lower = pt.switch(no_lower := pt.le(lower, -_UNBOUNDED), inside, lower)
        no_lower = no_lower | pt.isinf(log_below(distribution, lower))
        lower = pt.switch(no_lower, inside, lower)
        beyond_lower = pt.switch(no_lower, 0.0, log_above(distribution, lower))
        if upper is None:
            return cast(TensorVariable, beyond_lower)
    upper = pt.switch(no_upper := pt.ge(upper, _UNBOUNDED), inside, upper)
    no_upper = no_upper | pt.isinf(log_above(distribution, upper))
    upper = pt.switch(no_upper, inside, upper)
    up_to_upper = pt.switch(no_upper, 0.0, log_below(distribution, upper))
    if lower is None:
        return cast(TensorVariable, up_to_upper)
    below, above = log_below(distribution, lower), log_above(distribution, upper)
    upper_half = pt.gt(below, -np.log(2.0))
    more, less = pt.switch(upper_half, beyond_lower, up_to_upper), pt.switch(upper_half, above, below)
    gap = pt.switch(no_lower | no_upper | pt.gt(less - more, _ZERO), _ZERO, less - more)
    both = more + pt.log1mexp(gap)
    return cast(TensorVariable, pt.switch(no_lower | no_upper, beyond_lower + up_to_upper, both))


def _at_least(value: TensorVariable, least: float) -> TensorVariable:
    """Return the larger of two numbers, with a derivative that PyTensor's rewrites support."""
    return cast(TensorVariable, pt.switch(pt.gt(value, least), value, least))


def _of_counts(count: TensorVariable, last: TensorVariable | float, found: TensorVariable) -> TensorVariable:
    """Return log P(Y > count): 0 if `count` < 0, −∞ if `count` ≥ `last`, else `found`."""
    return cast(TensorVariable, pt.switch(pt.lt(count, 0.0), 0.0, pt.switch(pt.ge(count, last), -np.inf, found)))


def _log_gamma_above(a: TensorVariable, x: TensorVariable) -> TensorVariable:
    """Return log Γ(a, x)/Γ(a). If the ratio underflows, use the first term of its series for large x."""
    p = pt.gammaincc(a, x)
    far = pt.switch(pt.lt(p, _SMALL_PROBABILITY), x, a)
    return _log_or(p, a * pt.log(far) - far - pt.gammaln(a) - pt.log(far - a + 1.0))


def _log_gamma_below(a: TensorVariable, x: TensorVariable) -> TensorVariable:
    """Return log γ(a, x)/Γ(a). If the ratio underflows, use the first terms of its series for small x."""
    p = pt.gammainc(a, x)
    near = pt.switch(pt.lt(p, _SMALL_PROBABILITY), x, a)
    return _log_or(p, a * pt.log(near) - near - pt.gammaln(a + 1.0) - pt.log(1.0 - near / (a + 1.0)))


def _log_or(p: TensorVariable, log_small: TensorVariable) -> TensorVariable:
    small = pt.lt(p, _SMALL_PROBABILITY)
    return cast(TensorVariable, pt.switch(small, log_small, pt.log(pt.switch(small, 1.0, p))))
