"""The logarithm of a rate in a model's graph, as a latent function and an offset."""

from collections.abc import Callable, Collection, Iterator
from typing import cast

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add, Exp, Mul, Neg, Sub, TrueDiv
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.kernels.scalar.poisson import NO_EXPOSURE
from pymc_gpep.likelihoods.likelihood import Reading

__all__ = ["read_log_rate"]

type _Terms = Iterator[tuple[int, TensorVariable]]


def read_log_rate(rate: TensorVariable, latents: Collection[Variable]) -> Reading | None:
    """Read exp(f + offset), or exposure · exp(f): f, and the offset or the logarithm of the exposure (1, n).

    None if the rate is something else. What is added to f may depend on hyperparameters.

    Parameters
    ----------
    rate : TensorVariable, shape (n,)
    latents : collection of Variable
        The latent values of the model.
    """

    def depends(variable: Variable) -> bool:
        return not set(latents).isdisjoint(ancestors([variable]))

    try:
        terms = list(_of_logarithm(1, rate, latents, depends))
    except _NotExponentialError:
        return None
    arguments = [(sign, term) for sign, term in terms if depends(term)]
    if not arguments:
        return None
    (first_sign, argument), *others = arguments
    argument = argument if first_sign > 0 else -argument
    argument = sum((sign * term for sign, term in others), start=argument)
    offset = sum((sign * term for sign, term in terms if not depends(term)), start=pt.constant(0.0))
    bounded = pt.switch(pt.eq(offset, -np.inf), pt.constant(NO_EXPOSURE, dtype="float64"), offset)
    return Reading(argument, pt.atleast_1d(bounded)[None])


class _NotExponentialError(Exception):
    """Latent values reach a rate otherwise than through an exponential."""


def _of_logarithm(
    sign: int, rate: TensorVariable, latents: Collection[Variable], depends: Callable[[Variable], bool]
) -> _Terms:
    """Terms, with their signs, that the logarithm of a rate is the sum of."""
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
        case ViewOp():
            yield from _of_logarithm(sign, operands[0], latents, depends)
        case _:
            raise _NotExponentialError


def _of_sum(
    sign: int, variable: TensorVariable, latents: Collection[Variable], depends: Callable[[Variable], bool]
) -> _Terms:
    """Terms, with their signs, that a variable is the sum of."""
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
        case ViewOp():
            yield from _of_sum(sign, operands[0], latents, depends)
        case _:
            yield sign, variable
