"""Likelihoods of one latent function, or one for each class, and their links in graphs of models."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
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
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.special import Softmax
from pytensor.tensor.variable import TensorConstant, TensorVariable
from scipy.special import ndtr

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.scalar.poisson import NO_EXPOSURE
from pymc_gpep.likelihoods.likelihood import Likelihood, Reading, gaussian_moments
from pymc_gpep.likelihoods.local_computations import GaussianAverage, PlainDensity, ScalarDensity
from pymc_gpep.likelihoods.observed import one_for_each_point, recoding, some_of, without_marks

_POINTWISE = (Elemwise, DimShuffle, ViewOp, CheckAndRaise)
"""What gives each point a value of its own; the last two hand on what they are given."""
_GRID = np.linspace(-6.0, 6.0, 41)
# Largest difference between values of a function and of its link: some functions of PyMC take √2 in single precision.
_LINK_TOLERANCE = 1e-6
_PLAIN = Mode(linker="py", optimizer=None)  # nothing is worth compiling


def argument_of(value: TensorVariable, link: Callable[[Array], Array]) -> TensorVariable | None:
    """Return the variable of which `value` is the given function, point by point; None if there is no such variable.

    Parameters
    ----------
    value : TensorVariable
        The value of the function, such as a probability.
    link : callable
        Function of numbers (m,) that returns numbers (m,).
    """
    expected = link(_GRID)
    innermost = None
    for argument in _arguments(value):
        if argument.ndim > value.ndim:
            continue  # a product of matrices gives its vectors a second axis
        found = _on_grid(value, argument)
        if found.shape == expected.shape and np.abs(found - expected).max() < _LINK_TOLERANCE:
            innermost = argument
            if argument.name:
                break  # further in is what it is made of
    return innermost


def behind(value: TensorVariable) -> list[str]:
    """Names of the nearest variables with names that a variable is made of, in alphabetical order."""
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
    """Variables that `value` is a function of, point by point, of nothing else; from the outside inwards."""
    for frontier in _frontiers(value):
        if len(frontier) == 1 and frontier[0] is not value:
            yield cast(TensorVariable, frontier[0])


def _frontiers(value: TensorVariable) -> Iterator[list[Variable]]:
    """Sets of variables that with numbers make up `value`, each by looking into one variable of the last."""
    nodes = list(toposort([value]))
    numbers: set[Variable] = set()
    for node in nodes:
        operands = _operands(node)
        if operands and all(v in numbers or _is_number(v) for v in operands):
            numbers.update(node.outputs)
    frontier: dict[Variable, None] = {value: None}
    yield list(frontier)
    for node in reversed(nodes):  # so that whatever is made of a variable has been looked into before it
        operands = _operands(node)
        if operands and node.outputs[0] in frontier:
            del frontier[node.outputs[0]]
            frontier |= {v: None for v in operands if v not in numbers and not _is_number(v)}
            yield list(frontier)


def _operands(node: Apply) -> list[Variable]:
    """Return the inputs that a node works on point by point; an empty list if it does not work point by point."""
    if not isinstance(node.op, _POINTWISE):
        return []
    return node.inputs[:1] if isinstance(node.op, CheckAndRaise) else node.inputs


def _is_number(variable: Variable) -> bool:
    return isinstance(variable, TensorConstant) and variable.data.size == 1


def _on_grid(value: TensorVariable, argument: TensorVariable) -> Array:
    """Values of the function of `argument` that `value` is."""
    axes = argument.ndim
    grid = pt.tensor("grid", dtype=_GRID.dtype, shape=(None,) * axes)
    on_grid = clone_replace([value], {argument: grid.astype(argument.dtype)}, rebuild_strict=False)
    function = pytensor.function([grid], on_grid, mode=_PLAIN)
    with np.errstate(all="ignore"):
        if axes == 0:
            return np.array([function(np.asarray(x))[0] for x in _GRID]).ravel()
        (found,) = function(_GRID.reshape(-1, *[1] * (axes - 1)))
    return np.asarray(found).ravel()


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


def softmax_argument(p: Variable) -> TensorVariable | None:
    """Return what probabilities are the softmax of over classes, class axis last; None if they are something else."""
    transposed = False
    while (found := _normalised(p)) is None:
        match p.owner and p.owner.op:
            case DimShuffle(new_order=(1, 0)):
                transposed = not transposed
            case ViewOp():  # of pm.Deterministic
                pass
            case _:
                return None
        p = p.owner.inputs[0]
    argument, axis = found
    if transposed:
        argument = argument.T
    return argument if axis == ((0,) if transposed else (argument.ndim - 1,)) else None


def _normalised(p: Variable) -> tuple[TensorVariable, tuple[int, ...]] | None:
    """Return x and its axes of a softmax, which may be written exp(x) / exp(x).sum(axis, keepdims=True)."""
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
    p: TensorVariable, latents: Collection[Variable], distribution: Callable[[Array], Array]
) -> Reading | None:
    """Read probabilities F(κ_{k+1} − f) − F(κ_k − f): f and the cutpoints (K − 1, n); None if they are others.

    Parameters
    ----------
    p : TensorVariable, shape (n, K)
    latents : collection of Variable
        The latent values of the model.
    distribution : callable
        F, from numbers to numbers of the same shape.
    """
    for latent, cut in _differences(p, latents):
        if _gives(p, latent, cut, distribution):
            return Reading(cast(TensorVariable, latent.owner.inputs[0]), cut.T.astype("float64"))
    return None


def has_cutpoints(p: TensorVariable, latents: Collection[Variable]) -> bool:
    """Whether probabilities are made of differences of latent values and cutpoints, whatever their distribution."""
    return any(True for _ in _differences(p, latents))


def _differences(p: TensorVariable, latents: Collection[Variable]) -> Iterator[tuple[TensorVariable, TensorVariable]]:
    """What is made of latent values, as a column, and what may be cutpoints, as rows, that are subtracted.

    Cutpoints may depend on Gaussian variables as well, which then cannot be integrated.
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
    p: TensorVariable, latent: TensorVariable, cut: TensorVariable, distribution: Callable[[Array], Array]
) -> bool:
    """Whether p are the probabilities of latent values with cutpoints."""
    known = cut.type.shape[1] or 2
    cuts = np.arange(known) - 0.5 * known + 0.3
    inputs = [pt.tensor("latent", dtype="float64", shape=(None, 1)), pt.tensor("cut", dtype="float64", shape=(1, None))]
    outputs = clone_replace([p], dict(zip((latent, cut), inputs, strict=True)), rebuild_strict=False)
    below = distribution(cuts - _LATENT_GRID[:, None])
    expected = np.diff(below, axis=1, prepend=0.0, append=1.0)
    try:
        with np.errstate(all="ignore"):
            (found,) = pytensor.function(inputs, outputs, mode=_PLAIN, on_unused_input="ignore")(
                _LATENT_GRID[:, None], cuts[None]
            )
    except (ValueError, IndexError):  # shapes of the data are in the way
        return False
    return found.shape == expected.shape and bool(np.abs(found - expected).max() < _LINK_TOLERANCE)


_FEWEST, _MOST = 32, 2048  # nodes of the rule for distribution functions
_RANGE = 8.5  # standard deviations that it reaches
_EDGE = 1e-13  # distance from 0 and 1 at which a distribution function is taken to be there
_STEPS = 50  # of halving
_PROBABILITY_TOLERANCE = 1e-8  # Largest change of a probability with twice the nodes that counts as converged.


@dataclass(frozen=True)
class OneFunction(Likelihood, ABC):
    """A likelihood of one latent value for each point, whose argument in a model is (n,)."""

    function_axis: ClassVar[bool] = False
    sees_common: ClassVar[bool] = True
    ways: ClassVar[tuple[str, ...]] = ("average",)

    def check_functions(self, n_functions: int) -> None:
        if n_functions != 1:
            raise ValueError(
                f"A {self.name} likelihood has one latent function, gp.prior(...) without n_outputs, and a prior mean "
                f"(1, n), but there are {n_functions}."
            )

    def checked_shape(self, observed: ArrayLike, n_functions: int, n_points: int, name: str) -> NDArray[Any]:
        """Observations as an array, one for each point."""
        self.check_functions(n_functions)
        return one_for_each_point(observed, n_points, name, classes=self.n_classes(1) > 0)

    def log_densities(self, f: Array, observed: Observed) -> Array:
        values = f[..., 0, :]
        repeats = values.size // values.shape[-1]
        out = np.empty((4, values.size))
        smooth = self.offers(ScalarDensity)
        kernel, *_ = self.computation(ScalarDensity) if smooth else self.computation(PlainDensity)
        kernel(values.ravel(), np.tile(observed, repeats), np.tile(self._rows(f), (1, repeats)), out)
        return out[0].reshape(values.shape)

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        self.check_way(how)
        mean, cov = gaussian_moments(mean, cov, tolerance, at_least=1)
        self.check_functions(mean.shape[1])
        classes = range(self.n_classes(1))
        p = np.stack([np.exp(self.log_tail(mean, cov, np.full(len(mean), y))) for y in classes], axis=1)
        total = p.sum(axis=1)
        return p / total[:, None], np.abs(total - 1.0)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        """Probability (k, m) that an observation is at most y (m,), given latent values (k, m)."""
        raise TypeError(f"Observations of a {self.name} likelihood are classes, which have no order.")

    def cumulative(self, y: Array, mean: Array, cov: Array) -> Array:
        # An observation grows with its latent value, so that what is integrated falls from 1 to 0: where it does, and
        # where the normal distribution is, are found by halving, however narrow the fall is.
        location, sd = mean[:, 0], np.sqrt(cov[:, 0, 0])

        def given(z: Array) -> Array:
            with np.errstate(all="ignore"):
                return self.cumulative_given(y, location + sd * z)

        first, last = (_fall(given, edge, len(location)) for edge in (1.0 - _EDGE, _EDGE))
        half = 0.5 * (last - first)
        found = np.zeros(len(location))
        nodes = _FEWEST
        while nodes <= _MOST:
            x, weights = _gauss_legendre(nodes)
            z = first + half * (1.0 + x[:, None])
            before = found
            inside = (weights[:, None] * given(z) * np.exp(-0.5 * z**2)).sum(axis=0) * half / math.sqrt(2.0 * math.pi)
            found = np.clip(ndtr(first) + inside, 0.0, 1.0)
            if nodes > _FEWEST and np.abs(found - before).max(initial=0.0) < _PROBABILITY_TOLERANCE:
                break
            nodes *= 2
        return np.asarray(found)

    def log_tail(self, mean: Array, cov: Array, observed: Observed) -> Array:
        # Exact in the tails and everywhere else.
        means, variance = np.ascontiguousarray(mean[:, 0]), np.ascontiguousarray(cov[:, 0, 0])
        terms = np.empty((5, len(means)))
        labels = np.ascontiguousarray(observed, self.observed_dtype)
        self.computation(GaussianAverage).terms(means, variance, labels, self._rows(mean.T), terms)
        return terms[0]

    def _rows(self, f: Array) -> Array:
        """Parameters (p, n) for latent values (..., n)."""
        return self.parameters if self.has_parameters else np.empty((0, f.shape[-1]))


def _fall(values: Callable[[Array], Array], edge: float, m: int) -> Array:
    """Where each of m falling functions, (1, m) of numbers (1, m), goes below an edge, within the range of a rule."""
    low, high = np.full((1, m), -_RANGE), np.full((1, m), _RANGE)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        holds = values(middle) >= edge
        low, high = np.where(holds, middle, low), np.where(holds, high, middle)
    return np.asarray(low[0])


@lru_cache
def _gauss_legendre(nodes: int) -> tuple[Array, Array]:
    """Nodes and weights on [−1, 1]."""
    x, weights = np.polynomial.legendre.leggauss(nodes)
    return x, weights


@dataclass(frozen=True)
class TwoClasses(OneFunction, ABC):
    """p(y = 1 | f) = F(f), and p(y = 0 | f) = 1 − F(f)."""

    @abstractmethod
    def link(self, f: Array) -> Array:
        """F, by which the likelihood is known in a Bernoulli variable."""

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Read pm.Bernoulli with a probability that is F of something, however it is written."""
        op = variable.owner.op
        if not isinstance(op, BernoulliRV):
            return None
        (p,) = op.dist_params(variable.owner)
        argument = argument_of(p, self.link)
        return None if argument is None else Reading(argument)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        (p,) = variable.owner.op.dist_params(variable.owner)
        of = " and ".join(map(repr, behind(p))) or "numbers alone"
        name = repr(variable.name)
        return (
            f"{name} is a Bernoulli, but its probability, made of {of}, is not the logistic function, the standard "
            f"normal distribution function or 1 − exp(−exp(f)) of one variable. Write pm.Bernoulli({name}, logit_p=f) "
            f"or gpep.Probit({name}, f), with offsets and scales within f. In place of a lapse rate there is label "
            f"noise, gpep.MultinomialProbit({name}, f.T, epsilon=0.05) of two functions, gp.prior(..., n_outputs=2). "
            "Other links cannot be read, unless you add a likelihood: gpep.register('likelihood', ...)."
        )

    def n_classes(self, n_functions: int) -> int:
        """Two."""
        return 2

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        given = self.checked_shape(observed, n_functions, n_points, name)
        classes = f"{name} must be 0 or 1"
        if given.dtype.kind not in "biuf":
            raise ValueError(f"{classes}, but are of type {given.dtype}.")
        if not np.isin(given, (0, 1)).all():
            how = recoding(given, 2)
            advice = f"Write {how}" if how else "Write (labels == one) for one class against the others"
            raise ValueError(
                f"{classes}, but among them are {some_of(given)}. {advice}; more classes need more latent functions, "
                f"and gpep.MultinomialProbit or pm.Categorical(logit_p=...).{'' if how else without_marks(given)}"
            )
        return np.ascontiguousarray(given, np.int64)


@dataclass(frozen=True)
class OneFunctionPerClass(Likelihood, ABC):
    """A likelihood of c classes with c latent functions."""

    sees_common: ClassVar[bool] = False

    def n_classes(self, n_functions: int) -> int:
        """As many as functions."""
        return n_functions

    def check_functions(self, n_functions: int) -> None:
        if n_functions < 2:
            raise ValueError(
                f"A {self.name} of c classes needs c ≥ 2 latent functions, gp.prior(..., n_outputs=c), and a prior "
                f"mean (c, n), but there is {n_functions}. Two classes by one function are pm.Bernoulli(logit_p=f) or "
                "gpep.Probit."
            )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        self.check_functions(n_functions)
        given = one_for_each_point(observed, n_points, name)
        classes = f"{name} must be integers 0…{n_functions - 1}"
        if given.dtype.kind not in "biuf":
            such = f", such as '{given[0]}'" if n_points else ""
            raise ValueError(
                f"{classes}, but are of type {given.dtype}{such}. Code them in the way of the labels that were fitted."
            )
        numbers = given.astype(np.float64)
        if (odd := np.flatnonzero(numbers != np.round(numbers))).size:
            raise ValueError(f"{classes}, but {odd.size} are no whole numbers: that at {odd[0]} is {given[odd[0]]}.")
        if not ((given >= 0) & (given < n_functions)).all():
            found = f"{classes}, but run from {given.min()} to {given.max()}. Code the classes from 0"
            if how := recoding(given, n_functions):
                raise ValueError(f"{found}: {how} does so.")
            more = "" if given.min() < 0 else ", or give the prior as many outputs (n_outputs=c) as there are classes"
            raise ValueError(f"{found}{more}.{without_marks(given)}")
        return np.ascontiguousarray(given, np.int64)
