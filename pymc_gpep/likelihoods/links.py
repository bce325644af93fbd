"""Recognition of link functions in graphs of a model, and the `Reading` of an observed variable."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable, equal_computations
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add, Exp, Log, Mul, Neg, Pow, Reciprocal, Sign, Sqr, Sqrt, Sub, TrueDiv
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.special import Softmax
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.pytensor_settings import without_c_compiler


class Reading(NamedTuple):
    """Latent values and parameters of a likelihood, read from the graph of a random variable."""

    argument: TensorVariable
    """Latent values (n, c), or (n,) without an axis for functions."""
    parameters: TensorVariable | None = None
    """Parameters (p, n), or (p, 1) for all points, as a graph of hyperparameters and data; None without parameters."""
    unbounded: TensorVariable | None = None
    """The parameters without bounds of censoring, if `parameters` contain bounds; else None."""
    totals: TensorVariable | None = None
    """Sum of the counts of each point, (n,) or one number, if the model contains this sum; else None."""
    everywhere: "Reading | None" = None
    """Reading at all rows of the data, including rows with missing responses; None without such rows."""
    likelihood: Any = None
    """Likelihood of the variable, if it differs from the likelihood that returned this reading; else None."""
    names: tuple[str, ...] = ()
    """Names of the latent functions, if the functions are not classes."""


NO_EXPOSURE = -1e100
"""Finite number in place of the logarithm of an exposure of 0, far below all latent values."""
_POINTWISE = (Elemwise, DimShuffle, ViewOp, CheckAndRaise)
"""PyTensor Ops that compute point by point. The last two Ops return their first input unchanged."""
_GRID = np.linspace(-6.0, 6.0, 41)
# A function equals a link if values differ by at most this number. Some PyMC functions use √2 in single precision.
_LINK_TOLERANCE = 1e-6
_SCALE = 1.7  # Value of the scale of the noise in a test of class probabilities.
_POWERS = {Reciprocal: -1.0, Sqr: 2.0, Sqrt: 0.5}
_PLAIN = Mode(linker="py", optimizer=None)  # Python mode, since compilation would take longer.


def argument_of(value: TensorVariable, link: Callable[[Array], Array]) -> TensorVariable | None:
    """Return the variable x for which `value` = link(x) at each point; None if such a variable does not exist.

    Parameters
    ----------
    value : TensorVariable
        Value of the function, such as a probability.
    link : callable
        Link function, from numbers (m,) to numbers (m,).
    """
    expected = link(_GRID)
    innermost = None
    for argument in _arguments(value):
        if argument.ndim > value.ndim:
            continue  # Matrix products add a second axis to vectors.
        found = _on_grid(value, argument)
        if found.shape == expected.shape and np.abs(found - expected).max() < _LINK_TOLERANCE:
            innermost = argument
            if argument.name:
                break  # Inner variables are parts of this argument.
    return innermost


def behind(value: TensorVariable) -> list[str]:
    """Return sorted names of the variables on which `value` depends. The search stops at each named variable."""
    names: set[str] = set()
    pending: list[Variable] = [value]
    while pending:
        variable = pending.pop()
        if variable.name and variable is not value:
            names.add(variable.name)
        elif variable.owner is not None:
            pending.extend(variable.owner.inputs)
    return sorted(names)


def _arguments(value: TensorVariable) -> Iterator[TensorVariable]:
    """Yield each variable x such that `value` is an elementwise function of x alone. Outer variables come first."""
    for frontier in _frontiers(value):
        if len(frontier) == 1 and frontier[0] is not value:
            yield cast(TensorVariable, frontier[0])


def _frontiers(value: TensorVariable) -> Iterator[list[Variable]]:
    """Yield sets of variables that determine `value`. Each set replaces one variable of the last set by its inputs."""
    nodes = list(toposort([value]))
    numbers: set[Variable] = set()
    for node in nodes:
        operands = _operands(node)
        if operands and all(v in numbers or _is_number(v) for v in operands):
            numbers.update(node.outputs)
    frontier: dict[Variable, None] = {value: None}
    yield list(frontier)
    for node in reversed(nodes):  # Nodes that use a variable come before the variable.
        operands = _operands(node)
        if operands and node.outputs[0] in frontier:
            del frontier[node.outputs[0]]
            frontier |= {v: None for v in operands if v not in numbers and not _is_number(v)}
            yield list(frontier)


def _operands(node: Apply) -> list[Variable]:
    """Return the inputs of a node that computes point by point; an empty list for other nodes."""
    if not isinstance(node.op, _POINTWISE):
        return []
    return node.inputs[:1] if isinstance(node.op, CheckAndRaise) else node.inputs


def _is_number(variable: Variable) -> bool:
    return isinstance(variable, TensorConstant) and variable.data.size == 1


def _on_grid(value: TensorVariable, argument: TensorVariable) -> Array:
    """Return the results of `value` if `argument` takes the values of a fixed grid."""
    axes = argument.ndim
    grid = pt.tensor("grid", dtype=_GRID.dtype, shape=(None,) * axes)
    on_grid = clone_replace([value], {argument: grid.astype(argument.dtype)}, rebuild_strict=False)
    with without_c_compiler():
        function = pytensor.function([grid], on_grid, mode=_PLAIN)
    with np.errstate(all="ignore"):
        if axes == 0:
            return np.array([function(np.asarray(x))[0] for x in _GRID]).ravel()
        (found,) = function(_GRID.reshape(-1, *[1] * (axes - 1)))
    return np.asarray(found).ravel()


type _Terms = Iterator[tuple[float, TensorVariable]]
"""Pairs of a factor and a term. A logarithm is the sum of factor × term."""


def read_log_rate(rate: TensorVariable, latents: Collection[Variable]) -> Reading | None:
    """Return f, and the offset or log exposure (1, n), of a rate exp(f + offset) or exposure · exp(f).

    Return None for a rate of another form. The offset may depend on hyperparameters.

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
    """Return f and the offset of p = n / (n + rate) = σ(−f − offset), for counts with log rate f + offset + log n.

    Arguments and results are as for `read_log_rate`.
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
    """Return `value` > 0 without latent values if they cancel, as in (c exp f)² / exp(f)²; else None.

    Arguments are as for `read_log_rate`.
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
    """Return a function of a variable. It returns whether the variable depends on latent values."""
    return lambda variable: not set(latents).isdisjoint(ancestors([variable]))


def _of_terms(terms: list[tuple[float, TensorVariable]], depends: Callable[[Variable], bool]) -> Reading | None:
    """Return the reading of a log rate, a sum of terms. Terms with latent values form f, other terms the offset."""
    arguments = _merged([(factor, term) for factor, term in terms if depends(term)])
    if not arguments:
        return None
    first, *others = (term if factor == 1 else factor * term for factor, term in arguments)
    argument = sum(others, start=first)
    offset = sum((factor * term for factor, term in terms if not depends(term)), start=pt.constant(0.0))
    bounded = pt.switch(pt.eq(offset, -np.inf), pt.constant(NO_EXPOSURE, dtype="float64"), offset)
    return Reading(argument, pt.atleast_1d(bounded)[None])


def _merged(terms: list[tuple[float, TensorVariable]]) -> list[tuple[float, TensorVariable]]:
    """Return pairs (factor, term) with one pair for equal terms: their factors are added."""
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
    """Raised if a rate is not the exponential of latent values."""


def _of_logarithm(
    sign: float, rate: TensorVariable, latents: Collection[Variable], depends: Callable[[Variable], bool]
) -> _Terms:
    """Yield pairs (factor, term). The sum of factor × term is `sign` times the logarithm of the rate."""
    if not depends(rate):
        exposure = rate.astype("float64")  # PyTensor stores constants in the smallest exact type.
        none = pt.eq(exposure, 0.0)
        usable = pt.ge(exposure, 0.0)  # Neither negative nor NaN.
        logarithm = pt.log(pt.switch(none | ~usable, 1.0, exposure))  # Differentiable also at exposure 0.
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
        case Elemwise(scalar_op=Reciprocal() | Sqr() | Sqrt() as power):
            yield from _of_logarithm(_POWERS[type(power)] * sign, operands[0], latents, depends)
        case Elemwise(scalar_op=Pow()) if _number(operands[1]) is not None:
            yield from _of_logarithm(cast(float, _number(operands[1])) * sign, operands[0], latents, depends)
        case Elemwise(scalar_op=Sign()):
            # log sign(c eᶠ) is written as 0 × log c: this is 0 for c > 0, else NaN.
            each = _of_logarithm(1, operands[0], latents, depends)
            yield from ((sign, 0.0 * term) for _, term in each if not depends(term))
        case ViewOp() | CheckAndRaise():
            yield from _of_logarithm(sign, operands[0], latents, depends)
        case _:
            raise _NotExponentialError


def _number(variable: Variable) -> float | None:
    """Return the value of a scalar constant; None for other variables."""
    while isinstance(variable.owner and variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    return float(variable.data.item()) if isinstance(variable, TensorConstant) and variable.data.size == 1 else None


def _of_sum(
    sign: float, variable: TensorVariable, latents: Collection[Variable], depends: Callable[[Variable], bool]
) -> _Terms:
    """Yield pairs (factor, term). The sum of factor × term is `sign` times the variable."""
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


def softmax_argument(p: Variable) -> TensorVariable | None:
    """Return x if p is the softmax of x over the last axis; else None."""
    transposed = False
    while (found := _normalised(p)) is None:
        match p.owner and p.owner.op:
            case DimShuffle(new_order=(1, 0)):
                transposed = not transposed
            case ViewOp():  # pm.Deterministic adds a ViewOp.
                pass
            case _:
                return None
        p = p.owner.inputs[0]
    argument, axis = found
    if transposed:
        argument = argument.T
    return argument if axis == ((0,) if transposed else (argument.ndim - 1,)) else None


def _normalised(p: Variable) -> tuple[TensorVariable, tuple[int, ...]] | None:
    """Return x and the axes of a softmax p of x, also in the form exp(x) / exp(x).sum(axis, keepdims=True)."""
    match p.owner and p.owner.op:
        case Softmax(axis=axis):
            return cast(TensorVariable, p.owner.inputs[0]), axis
        case Elemwise(scalar_op=TrueDiv()):
            above, below = p.owner.inputs
        case _:
            return None
    match above.owner and above.owner.op, below.owner and below.owner.op:
        case Elemwise(scalar_op=Exp()), DimShuffle(new_order=order):
            (total,) = below.owner.inputs
        case _:
            return None
    if not isinstance(total.owner and total.owner.op, Sum) or not equal_computations(total.owner.inputs, [above]):
        return None
    axis = tuple(range(above.type.ndim)) if total.owner.op.axis is None else total.owner.op.axis
    kept = iter(range(above.type.ndim - len(axis)))
    if order != tuple("x" if i in axis else next(kept) for i in range(above.type.ndim)):
        return None
    return cast(TensorVariable, above.owner.inputs[0]), axis


_LATENT_GRID = np.linspace(-4.0, 4.0, 9)


def read_cutpoints(
    p: TensorVariable, latents: Collection[Variable], classes: Callable[[Array], Array]
) -> Reading | None:
    """Return f / σ and cutpoints κ / σ (K − 1, n) of ordered classes with noise of scale σ; None for another form.

    Parameters
    ----------
    p : TensorVariable, shape (n, K)
    latents : collection of Variable
        The latent values of the model.
    classes : callable
        Function of (κ − f) / σ (..., K − 1) that returns probabilities (..., K).
    """
    for latent, cut in _differences(p, latents):
        argument = cast(TensorVariable, latent.owner.inputs[0])
        if _gives(p, latent, cut, classes):
            return Reading(argument, cut.T.astype("float64"))
        for scale in _numbers(p, latent, cut):
            if _gives(p, latent, cut, classes, scale):
                unit = cast(TensorVariable, scale.dimshuffle().astype("float64"))
                return Reading(argument / unit, cut.T.astype("float64") / unit)
    return None


def _numbers(p: TensorVariable, *blockers: Variable) -> list[TensorVariable]:
    """Return the scalar variables on which p depends. Constants and ancestors of `blockers` are left out."""
    found = [each for each in ancestors([p], blockers=blockers) if not isinstance(each, TensorConstant)]
    floats = [each for each in found if isinstance(each, TensorVariable) and each.dtype.startswith("float")]
    return [each for each in floats if all(each.type.broadcastable)]


def has_cutpoints(p: TensorVariable, latents: Collection[Variable]) -> bool:
    """Return whether p contains differences of latent values and cutpoints, for any distribution of the noise."""
    return any(True for _ in _differences(p, latents))


def _differences(p: TensorVariable, latents: Collection[Variable]) -> Iterator[tuple[TensorVariable, TensorVariable]]:
    """Yield both terms of each difference in p: a column of latent values, and rows of possible cutpoints.

    If cutpoints depend on Gaussian variables, these variables are not integrated out.
    """
    known = set(latents)
    for node in toposort([p]):
        if not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Sub):
            continue
        for latent, cut in (node.inputs, node.inputs[::-1]):
            column = latent.owner is not None and isinstance(latent.owner.op, DimShuffle)
            if not column or latent.owner.op.new_order != (0, "x") or cut.ndim != 2:
                continue
            if not known.isdisjoint(ancestors([latent])):
                yield latent, cut


def _gives(
    p: TensorVariable,
    latent: TensorVariable,
    cut: TensorVariable,
    classes: Callable[[Array], Array],
    scale: TensorVariable | None = None,
) -> bool:
    """Return whether p equals the class probabilities of latent values and cutpoints, both divided by `scale`."""
    known = cut.type.shape[1] or (p.type.shape[1] or 3) - 1
    cuts = np.arange(known) - 0.5 * known + 0.3
    inputs = [pt.tensor("latent", dtype="float64", shape=(None, 1)), pt.tensor("cut", dtype="float64", shape=(1, None))]
    of_scale = {} if scale is None else {scale: pt.constant(np.full((1,) * scale.ndim, _SCALE, scale.dtype))}
    outputs = clone_replace([p], dict(zip((latent, cut), inputs, strict=True)) | of_scale, rebuild_strict=False)
    expected = classes((cuts - _LATENT_GRID[:, None]) / (1.0 if scale is None else _SCALE))
    try:
        with without_c_compiler():
            function = pytensor.function(inputs, outputs, mode=_PLAIN, on_unused_input="ignore")
        with np.errstate(all="ignore"):
            (found,) = function(_LATENT_GRID[:, None], cuts[None])
    except (ValueError, IndexError):  # The data have incompatible shapes.
        return False
    return found.shape == expected.shape and bool(np.abs(found - expected).max() < _LINK_TOLERANCE)
