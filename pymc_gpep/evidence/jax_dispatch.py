"""Likelihood and evidence under JAX: compiled kernels as host callbacks, with derivatives for JAX.

Imported once JAX is in use, and by nothing else.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from pytensor.graph.basic import Apply
from pytensor.link.jax.dispatch.basic import jax_funcify

from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.graphs.repeated import Repeated
from pymc_gpep.likelihoods.multinomial_probit_distribution import (
    LogProbability,
    LogProbabilityHessian,
    log_probabilities_and_gradients,
    log_probability_hessians,
)

type Pair = tuple[jax.Array, jax.Array]

_callback = partial(jax.pure_callback, vmap_method="broadcast_all")


def log_probability_hessian(y: jax.Array, f: jax.Array) -> jax.Array:
    """Second derivative of log p(y | f) of one point, (c, c)."""
    (c,) = f.shape
    return _callback(log_probability_hessians, jax.ShapeDtypeStruct((c, c), jnp.float64), y, f)


@jax.custom_jvp
def log_probability(y: jax.Array, f: jax.Array) -> Pair:
    """log p(y | f) of one point, and its derivative with respect to f (c,)."""
    shapes = jax.ShapeDtypeStruct((), jnp.float64), jax.ShapeDtypeStruct(f.shape, jnp.float64)
    return _callback(log_probabilities_and_gradients, shapes, y, f)


@log_probability.defjvp
def _log_probability_jvp(primals: Pair, tangents: Pair) -> tuple[Pair, Pair]:
    y, f = primals
    _, tangent = tangents
    value, gradient = log_probability(y, f)
    # A callback whose result nothing uses is dropped by the compiler: first derivatives do not pay for the second.
    return (value, gradient), (gradient @ tangent, log_probability_hessian(y, f) @ tangent)


@jax_funcify.register(LogProbability)
def _jax_log_probability(op: LogProbability, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    return log_probability


@jax_funcify.register(LogProbabilityHessian)
def _jax_log_probability_hessian(op: LogProbabilityHessian, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    return log_probability_hessian


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

    evidence = jax.custom_vjp(solve)

    def forward(*inputs: jax.custom_derivatives.CustomVJPPrimal) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
        outputs = evidence(*(x.value for x in inputs))
        _, gradient_k, gradient_mean, *_, gradient_parameters = outputs
        return outputs, (gradient_k, gradient_mean, gradient_parameters)

    def backward(gradients: tuple[jax.Array, ...], cotangents: tuple[Any, ...]) -> tuple[jax.Array | None, ...]:
        cotangent, *others = cotangents
        if not all(isinstance(other, SymbolicZero) for other in others):
            raise NotImplementedError("Only the evidence itself can be differentiated, and only once.")
        gradient_k, gradient_mean, gradient_parameters = gradients
        return cotangent * gradient_k, cotangent * gradient_mean, None, None, None, cotangent * gradient_parameters

    evidence.defvjp(forward, backward, symbolic_zeros=True)
    return evidence


@jax_funcify.register(Repeated)
def _jax_repeated(op: Repeated, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    step = jax_funcify(op.piece())

    def repeated(*inputs: jax.Array) -> Any:
        start, given = inputs[: op.changing], inputs[op.changing :]
        found = jax.lax.fori_loop(0, op.times, lambda _, values: tuple(step(*values, *given)), start)
        return found if len(found) > 1 else found[0]

    return repeated
