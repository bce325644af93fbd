"""Likelihoods and evidence under JAX: compiled kernels as host callbacks, with derivatives for JAX.

The module is imported only if JAX compiles a graph.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from pytensor.graph.basic import Apply
from pytensor.link.jax.dispatch.basic import jax_funcify

from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.likelihoods.multinomial_probit_distribution import (
    LabelAverages,
    LogProbability,
    LogProbabilityHessian,
    log_probabilities_and_gradients,
    log_probability_hessians,
)

type Pair = tuple[jax.Array, jax.Array]

_callback = partial(jax.pure_callback, vmap_method="broadcast_all")


def log_probability_hessian(y: jax.Array, f: jax.Array) -> jax.Array:
    """Return the second derivatives of log p(y | f) at one point, (c, c)."""
    (c,) = f.shape
    return _callback(log_probability_hessians, jax.ShapeDtypeStruct((c, c), jnp.float64), y, f)


@jax.custom_jvp
def log_probability(y: jax.Array, f: jax.Array) -> Pair:
    """Return log p(y | f) at one point, and its derivative with respect to f, (c,)."""
    shapes = jax.ShapeDtypeStruct((), jnp.float64), jax.ShapeDtypeStruct(f.shape, jnp.float64)
    return _callback(log_probabilities_and_gradients, shapes, y, f)


@log_probability.defjvp
def _log_probability_jvp(primals: Pair, tangents: Pair) -> tuple[Pair, Pair]:
    y, f = primals
    _, tangent = tangents
    value, gradient = log_probability(y, f)
    # JAX drops a callback whose result is unused, so second derivatives are computed only if needed.
    return (value, gradient), (gradient @ tangent, log_probability_hessian(y, f) @ tangent)


@jax_funcify.register(LogProbability)
def _jax_log_probability(op: LogProbability, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    return log_probability


@jax_funcify.register(LogProbabilityHessian)
def _jax_log_probability_hessian(op: LogProbabilityHessian, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    return log_probability_hessian


def with_slopes(solve: Callable[..., Any], slopes: Sequence[int | None], message: str) -> Callable[..., Any]:
    """Return `solve` with derivatives for JAX: output `slopes[i]` is the derivative of output 0 in input i."""
    differentiable = jax.custom_vjp(solve)

    def forward(*inputs: jax.custom_derivatives.CustomVJPPrimal) -> tuple[tuple[jax.Array, ...], Any]:
        outputs = differentiable(*(x.value for x in inputs))
        return outputs, [None if place is None else outputs[place] for place in slopes]

    def backward(found: list[jax.Array | None], cotangents: tuple[Any, ...]) -> tuple[jax.Array | None, ...]:
        cotangent, *others = cotangents
        if not all(isinstance(other, SymbolicZero) for other in others):
            raise NotImplementedError(message)
        axes = [None if slope is None else range(cotangent.ndim, slope.ndim) for slope in found]
        return tuple(
            None if slope is None else jnp.expand_dims(cotangent, each) * slope
            for slope, each in zip(found, axes, strict=True)
        )

    differentiable.defvjp(forward, backward, symbolic_zeros=True)
    return differentiable


@jax_funcify.register(LabelAverages)
def _jax_label_averages(op: LabelAverages, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    inputs, outputs = op.axes()

    def averages(*given: jax.Array) -> tuple[jax.Array, ...]:
        sizes = op.sizes(x.shape for x in given)
        shapes = tuple(jax.ShapeDtypeStruct([sizes[a] for a in each], jnp.float64) for each in outputs)
        return _callback(type(op).compute, shapes, *given)

    last = range(len(outputs) - len(inputs) + 1, len(outputs))
    return with_slopes(averages, [None, *last], f"{op.others} are not available")


@jax_funcify.register(Evidence)
def _jax_evidence(op: Evidence, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    dtypes = [output.type.dtype for output in node.outputs]

    def solve(
        k: jax.Array, mean: jax.Array, labels: jax.Array, start: jax.Array, looseness: jax.Array, parameters: jax.Array
    ) -> tuple[jax.Array, ...]:
        shapes = (), k.shape, mean.shape, start.shape, (), (), parameters.shape
        results = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
        return jax.pure_callback(
            lambda *inputs: op.evaluate(*map(np.asarray, inputs)),
            results, k, mean, labels, start, looseness, parameters,
            vmap_method="sequential",
        )  # fmt: skip

    message = "Only the evidence itself can be differentiated, and only once."
    return with_slopes(solve, [1, 2, None, None, None, 6], message)
