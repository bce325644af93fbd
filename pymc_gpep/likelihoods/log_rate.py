"""The logarithm of a rate or of odds in a model's graph, as a latent function and an offset."""

from collections.abc import Callable, Collection, Iterator
from typing import cast

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add, Exp, Log, Mul, Neg, Pow, Reciprocal, Sign, Sqr, Sqrt, Sub, TrueDiv
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_gpep.kernels.scalar.poisson import NO_EXPOSURE
from pymc_gpep.likelihoods.likelihood import Reading

type _Terms = Iterator[tuple[float, TensorVariable]]
"""Terms of a logarithm, with their factors."""


def read_log_rate(rate: TensorVariable, latents: Collection[Variable]) -> Reading | None:
    """Read exp(f + offset), or exposure · exp(f): f, and the offset or the logarithm of the exposure (1, n).

    None if the rate is something else. What is added to f may depend on hyperparameters.

    Parameters
    ----------
    rate : TensorVariable, shape (n,)
    latents : collection of Variable
        The latent values of the model.
    """
    depends = _depends(latents)
    try:
        return _of_terms(list(_of_logarithm(1, rate, latents, depends)), depends)
    except _NotExponentialError:
        return None


def read_log_odds(p: TensorVariable, latents: Collection[Variable]) -> Reading | None:
    """Read a probability σ(−f − offset), as PyMC makes one of a rate, or n / (n + rate), where f is log rate − log n.

    Arguments and what is returned are those of `read_log_rate`.
    """
    depends = _depends(latents)
    try:
        match p.owner and p.owner.op:
            case Elemwise(scalar_op=Sigmoid()):
                terms = [(-sign, term) for sign, term in _of_sum(1, p.owner.inputs[0], latents, depends)]
            case Elemwise(scalar_op=TrueDiv()):
                n, total = cast(list[TensorVariable], p.owner.inputs)
                added = total.owner is not None and isinstance(getattr(total.owner.op, "scalar_op", None), Add)
                if not added or len(total.owner.inputs) != 2:
                    return None
                (rate,) = [term for term in total.owner.inputs if not equal_computations([term], [n])] or [n]
                terms = [*_of_logarithm(1, rate, latents, depends), *_of_logarithm(-1, n, latents, depends)]
            case _:
                return None
    except _NotExponentialError:
        return None
    return _of_terms(terms, depends)


def free_of_latents(value: TensorVariable, latents: Collection[Variable]) -> TensorVariable | None:
    """Return a positive number without the latent values that cancel in it, as (c exp f)² / exp(f)²; None if some stay.

    Arguments are those of `read_log_rate`.
    """
    depends = _depends(latents)
    if not depends(value):
        return value
    try:
        terms = _merged(list(_of_logarithm(1, value, latents, depends)))
    except _NotExponentialError:
        return None
    if any(depends(term) for _, term in terms):
        return None
    return cast(TensorVariable, pt.exp(sum((factor * term for factor, term in terms), start=pt.constant(0.0))))


def _depends(latents: Collection[Variable]) -> Callable[[Variable], bool]:
    """Whether a variable is made of latent values."""
    return lambda variable: not set(latents).isdisjoint(ancestors([variable]))


def _of_terms(terms: list[tuple[float, TensorVariable]], depends: Callable[[Variable], bool]) -> Reading | None:
    """The terms of a logarithm that are made of latent values, and the offset that the others are."""
    arguments = _merged([(factor, term) for factor, term in terms if depends(term)])
    if not arguments:
        return None
    first, *others = (term if factor == 1 else factor * term for factor, term in arguments)
    argument = sum(others, start=first)
    offset = sum((factor * term for factor, term in terms if not depends(term)), start=pt.constant(0.0))
    bounded = pt.switch(pt.eq(offset, -np.inf), pt.constant(NO_EXPOSURE, dtype="float64"), offset)
    return Reading(argument, pt.atleast_1d(bounded)[None])


def _merged(terms: list[tuple[float, TensorVariable]]) -> list[tuple[float, TensorVariable]]:
    """Terms of which none stands twice."""
    merged: list[tuple[float, TensorVariable]] = []
    for factor, term in terms:
        for i, (other, same) in enumerate(merged):
            if same is term or equal_computations([same], [term]):
                merged[i] = other + factor, same
                break
        else:
            merged.append((factor, term))
    return [(factor, term) for factor, term in merged if factor != 0]


class _NotExponentialError(Exception):
    """Latent values reach a rate otherwise than through an exponential."""


def _of_logarithm(
    sign: float, rate: TensorVariable, latents: Collection[Variable], depends: Callable[[Variable], bool]
) -> _Terms:
    """Terms, with their factors, that so many times the logarithm of a rate is the sum of."""
    if not depends(rate):
        exposure = rate.astype("float64")  # PyTensor keeps numbers in as few digits as show them
        none = pt.eq(exposure, 0.0)
        usable = pt.ge(exposure, 0.0)  # neither negative nor NaN
        logarithm = pt.log(pt.switch(none | ~usable, 1.0, exposure))  # with a derivative where there is no exposure
        yield sign, pt.switch(usable, pt.switch(none, -np.inf, logarithm), np.nan)
        return
    if rate in latents or rate.owner is None:
        raise _NotExponentialError
    operands = cast(list[TensorVariable], rate.owner.inputs)
    match rate.owner.op:
        case Elemwise(scalar_op=Exp()):
            yield from _of_sum(sign, operands[0], latents, depends)
        case Elemwise(scalar_op=Mul()):
            for operand in operands:
                yield from _of_logarithm(sign, operand, latents, depends)
        case Elemwise(scalar_op=TrueDiv()):
            yield from _of_logarithm(sign, operands[0], latents, depends)
            yield from _of_logarithm(-sign, operands[1], latents, depends)
        case Elemwise(scalar_op=Reciprocal()):
            yield from _of_logarithm(-sign, operands[0], latents, depends)
        case Elemwise(scalar_op=Sqr()):
            yield from _of_logarithm(2 * sign, operands[0], latents, depends)
        case Elemwise(scalar_op=Sqrt()):
            yield from _of_logarithm(0.5 * sign, operands[0], latents, depends)
        case Elemwise(scalar_op=Pow()) if _number(operands[1]) is not None:
            yield from _of_logarithm(cast(float, _number(operands[1])) * sign, operands[0], latents, depends)
        case Elemwise(scalar_op=Sign()):
            # NaN unless what stands before the exponentials is positive
            each = _of_logarithm(1, operands[0], latents, depends)
            yield from ((sign, 0.0 * term) for _, term in each if not depends(term))
        case ViewOp() | CheckAndRaise():
            yield from _of_logarithm(sign, operands[0], latents, depends)
        case _:
            raise _NotExponentialError


def _number(variable: Variable) -> float | None:
    """The value of a constant that is one number; None for others."""
    while isinstance(variable.owner and variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    return float(variable.data.item()) if isinstance(variable, TensorConstant) and variable.data.size == 1 else None


def _of_sum(
    sign: float, variable: TensorVariable, latents: Collection[Variable], depends: Callable[[Variable], bool]
) -> _Terms:
    """Terms, with their factors, that so many times a variable is the sum of."""
    if variable in latents or variable.owner is None or not depends(variable):
        yield sign, variable
        return
    operands = cast(list[TensorVariable], variable.owner.inputs)
    match variable.owner.op:
        case Elemwise(scalar_op=Add()):
            for operand in operands:
                yield from _of_sum(sign, operand, latents, depends)
        case Elemwise(scalar_op=Sub()):
            yield from _of_sum(sign, operands[0], latents, depends)
            yield from _of_sum(-sign, operands[1], latents, depends)
        case Elemwise(scalar_op=Neg()):
            yield from _of_sum(-sign, operands[0], latents, depends)
        case Elemwise(scalar_op=Log()):
            yield from _of_logarithm(sign, operands[0], latents, depends)
        case ViewOp():
            yield from _of_sum(sign, operands[0], latents, depends)
        case _:
            yield sign, variable
