"""The log probability of the multinomial probit as a PyTensor Op, with derivatives up to the second.

The Ops treat one point; `Blockwise` gives them batch dimensions, broadcasting and their gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.tensor.blockwise import Blockwise

from pymc_gpep.kernels.compile import kernel, source_key
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient, log_probability_hessian


@kernel
def _over_points(y: np.ndarray, f: np.ndarray, values: np.ndarray, gradients: np.ndarray) -> None:
    for i in range(f.shape[0]):
        values[i] = log_probability_and_gradient(f[i], y[i], gradients[i])


@kernel
def _hessians_over_points(y: np.ndarray, f: np.ndarray, hessians: np.ndarray) -> None:
    for i in range(f.shape[0]):
        log_probability_hessian(f[i], y[i], hessians[i])


def _flatten_points(y: np.ndarray, f: np.ndarray) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """Batch shape of labels (...,) and latent values (..., c), and both with one batch dimension."""
    y, f = np.asarray(y, np.int64), np.asarray(f, np.float64)
    batch = np.broadcast_shapes(y.shape, f.shape[:-1])
    c = f.shape[-1]
    # Kernels are compiled once more for arrays that may not be written to.
    y = np.require(np.broadcast_to(y, batch), requirements=("C", "W")).reshape(-1)
    f = np.require(np.broadcast_to(f, (*batch, c)), requirements=("C", "W")).reshape(y.size, c)
    return batch, y, f


def log_probabilities_and_gradients(y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log p(y | f) of many points, and its derivative with respect to f.

    Parameters
    ----------
    y : (...) array of int
        Labels, 0 ... c−1.
    f : (..., c) array
        Latent values; the batch dimensions broadcast against those of `y`.

    Returns
    -------
    log_probability : (...) array
    gradient : (..., c) array
    """
    batch, y, f = _flatten_points(y, f)
    values, gradients = np.empty(y.size), np.empty(f.shape)
    _over_points(y, f, values, gradients)
    return values.reshape(batch), gradients.reshape(*batch, f.shape[1])


def log_probability_hessians(y: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Second derivative of log p(y | f) with respect to f of many points, (..., c, c); arguments as above."""
    batch, y, f = _flatten_points(y, f)
    c = f.shape[1]
    hessians = np.empty((y.size, c, c))
    _hessians_over_points(y, f, hessians)
    return hessians.reshape(*batch, c, c)


def _point(y: Any, f: Any) -> list[Variable]:
    y, f = pt.as_tensor_variable(y), pt.as_tensor_variable(f)
    if y.ndim != 0 or f.ndim != 1 or y.dtype != "int64" or f.dtype != "float64":
        raise TypeError(f"expected an int64 scalar label and a float64 vector of latent values, got {y.type}, {f.type}")
    return [y, f]


class LogProbability(Op):
    """log p(y | f) of one point, and as a second output its derivative with respect to f (the kernel's by-product)."""

    __props__ = ()
    gufunc_signature = "(),(c)->(),(c)"
    gufunc_spec = (f"{__name__}.log_probabilities_and_gradients", 2, 2)

    def make_node(self, y: Any, f: Any) -> Apply:
        y, f = _point(y, f)
        return Apply(self, [y, f], [pt.dscalar(), f.type()])

    def perform(self, node: Apply, inputs: list[np.ndarray], output_storage: list[list[np.ndarray | None]]) -> None:
        value, gradient = log_probabilities_and_gradients(*inputs)
        output_storage[0][0], output_storage[1][0] = value, gradient

    def infer_shape(self, node: Apply, input_shapes: list[tuple[Variable, ...]]) -> list[tuple[Variable, ...]]:
        return [(), input_shapes[1]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False, False], [True, True]]

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        value_cotangent, gradient_cotangent = cotangents
        result = []
        if not isinstance(value_cotangent.type, DisconnectedType):
            result.append(value_cotangent * outputs[1])
        if not isinstance(gradient_cotangent.type, DisconnectedType):
            result.append((_hessian(*inputs) * gradient_cotangent).sum(axis=-1))
        return [disconnected_type(), sum(result)]


class LogProbabilityHessian(Op):
    """Second derivative of log p(y | f) of one point with respect to f, (c, c)."""

    __props__ = ()
    gufunc_signature = "(),(c)->(c,c)"
    gufunc_spec = (f"{__name__}.log_probability_hessians", 2, 1)

    def make_node(self, y: Any, f: Any) -> Apply:
        y, f = _point(y, f)
        return Apply(self, [y, f], [pt.tensor(dtype="float64", shape=(f.type.shape[0],) * 2)])

    def perform(self, node: Apply, inputs: list[np.ndarray], output_storage: list[list[np.ndarray | None]]) -> None:
        output_storage[0][0] = log_probability_hessians(*inputs)

    def infer_shape(self, node: Apply, input_shapes: list[tuple[Variable, ...]]) -> list[tuple[Variable, ...]]:
        [c] = input_shapes[1]
        return [(c, c)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False], [True]]

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        reason = "third derivatives of the multinomial probit are not available"
        return [disconnected_type(), grad_not_implemented(self, 1, inputs[1], reason)]


@register_funcify_default_op_cache_key(LogProbability)
def _numba_log_probability(op: LogProbability, node: Apply, **kwargs: Any) -> tuple[Callable[..., Any], int]:
    @numba_njit
    def log_probability(y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gradient = np.empty(f.shape[0])
        value = log_probability_and_gradient(f, y.item(), gradient)
        return np.asarray(value), gradient

    return log_probability, source_key(__file__)


@register_funcify_default_op_cache_key(LogProbabilityHessian)
def _numba_log_probability_hessian(
    op: LogProbabilityHessian, node: Apply, **kwargs: Any
) -> tuple[Callable[..., Any], int]:
    @numba_njit
    def hessian(y: np.ndarray, f: np.ndarray) -> np.ndarray:
        result = np.empty((f.shape[0], f.shape[0]))
        log_probability_hessian(f, y.item(), result)
        return result

    return hessian, source_key(__file__)


_log_probability = Blockwise(LogProbability())
_hessian = Blockwise(LogProbabilityHessian())


def multinomial_probit_log_probability(y: Any, f: Any) -> Variable:
    """log p(y | f) as a PyTensor expression.

    Parameters
    ----------
    y : (...) tensor of integers
        Labels, 0 ... c−1; others have a log probability of −inf.
    f : (..., c) tensor
        Latent values; the batch dimensions broadcast against those of `y`.
    """
    y = pt.as_tensor_variable(y).astype("int64")
    return _log_probability(y, pt.as_tensor_variable(f).astype("float64"))[0]
