"""The multinomial probit with normal latent values integrated out: utilities whose noise has a variance of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete
from pytensor.gradient import DisconnectedType, disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.kernels.compile import kernel, source_key
from pymc_gpep.kernels.methods.factors import point_derivatives
from pymc_gpep.likelihoods.multinomial_probit.noisy_distribution import largest_label


@kernel
def _with_slopes(
    mean: np.ndarray,
    variance: np.ndarray,
    y: np.ndarray,
    log_z: np.ndarray,
    of_mean: np.ndarray,
    of_variance: np.ndarray,
) -> None:
    """log Z and its derivatives of n points; −∞ and zeros for a label that is no class."""
    n, c = mean.shape
    parameters = np.empty((0, n))
    for i in range(n):
        if 0 <= y[i] < c:
            one = slice(i, i + 1)
            point_derivatives(mean[one], variance[one], y[one], parameters, log_z[one], of_mean[one], of_variance[one])
            for k in range(c):
                of_variance[i, k] = 0.5 * (of_mean[i, k] * of_mean[i, k] - of_variance[i, k])
        else:
            log_z[i] = -np.inf
            of_mean[i] = 0.0
            of_variance[i] = 0.0


def log_averages_and_gradients(
    y: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log ∫ p(y | f) ∏ N(f_k | mean_k, variance_k) df of many points, and its derivatives.

    Parameters
    ----------
    y : (...) array of int
        Labels, 0 ... c−1.
    mean, variance : (..., c) array
        Moments of the latent values; the batch dimensions broadcast against those of `y`.

    Returns
    -------
    log_average : (...) array
    of_mean, of_variance : (..., c) array
    """
    y, mean, variance = np.asarray(y, np.int64), np.asarray(mean, np.float64), np.asarray(variance, np.float64)
    batch = np.broadcast_shapes(y.shape, mean.shape[:-1], variance.shape[:-1])
    c = mean.shape[-1]
    # Kernels are compiled once more for arrays that may not be written to.
    labels = np.require(np.broadcast_to(y, batch), requirements=("C", "W")).reshape(-1)
    whole = (np.broadcast_to(x, (*batch, c)) for x in (mean, variance))
    flat = (np.require(x, requirements=("C", "W")).reshape(-1, c) for x in whole)
    log_z, slopes = np.empty(labels.size), np.empty((2, labels.size, c))
    _with_slopes(*flat, labels, log_z, *slopes)
    return log_z.reshape(batch), slopes[0].reshape(*batch, c), slopes[1].reshape(*batch, c)


class LogAverage(Op):
    """The log average of one point, with the derivatives in mean and variance as further outputs."""

    __props__ = ()
    gufunc_signature = "(),(c),(c)->(),(c),(c)"
    gufunc_spec = (f"{__name__}.log_averages_and_gradients", 3, 3)

    def make_node(self, y: Any, mean: Any, variance: Any) -> Apply:
        y, mean, variance = (pt.as_tensor_variable(each) for each in (y, mean, variance))
        if y.ndim or mean.ndim != 1 or variance.ndim != 1 or (y.dtype, mean.dtype, variance.dtype) != _TYPES:
            raise TypeError(
                f"expected an int64 label and two float64 vectors, got {y.type}, {mean.type}, {variance.type}"
            )
        return Apply(self, [y, mean, variance], [pt.dscalar(), mean.type(), mean.type()])

    def perform(self, node: Apply, inputs: list[np.ndarray], output_storage: list[list[np.ndarray | None]]) -> None:
        for storage, value in zip(output_storage, log_averages_and_gradients(*inputs), strict=True):
            storage[0] = value

    def infer_shape(self, node: Apply, input_shapes: list[tuple[Variable, ...]]) -> list[tuple[Variable, ...]]:
        return [(), input_shapes[1], input_shapes[1]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False] * 3, [True] * 3, [True] * 3]

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        of_value, *of_slopes = cotangents
        if not all(isinstance(each.type, DisconnectedType) for each in of_slopes):
            reason = "second derivatives of the multinomial probit with unequal noise are not available"
            return [disconnected_type(), *(grad_not_implemented(self, i, inputs[i], reason) for i in (1, 2))]
        return [disconnected_type(), *(of_value * slope for slope in outputs[1:])]


_TYPES = ("int64", "float64", "float64")


@register_funcify_default_op_cache_key(LogAverage)
def _numba_log_average(op: LogAverage, node: Apply, **kwargs: Any) -> tuple[Callable[..., Any], int]:
    @numba_njit
    def log_average(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        c = mean.shape[0]
        label, value = np.empty(1, np.int64), np.empty(1)
        label[0] = y.item()
        of_mean, of_variance = np.empty((1, c)), np.empty((1, c))
        means, variances = np.empty((1, c)), np.empty((1, c))
        means[0], variances[0] = mean, variance
        _with_slopes(means, variances, label, value, of_mean, of_variance)
        return np.asarray(value[0]), of_mean[0], of_variance[0]

    return log_average, source_key(__file__)


_log_average = Blockwise(LogAverage())


class UnequalNoiseProbitRV(RandomVariable):
    """y = argmax_k (m_k + e_k), e_k ~ N(0, 1 + s_k) independent."""

    name = "unequal_noise_probit"
    signature = "(c),(c)->()"
    dtype = "int64"
    _print_name = ("UnequalNoiseProbit", "\\operatorname{UnequalNoiseProbit}")

    @classmethod
    def rng_fn(
        cls, rng: np.random.Generator, mean: np.ndarray, variance: np.ndarray, size: tuple[int, ...] | None
    ) -> np.ndarray:
        """Draw labels of shape `size`, or the batch shape of the parameters (..., c)."""
        batch = np.broadcast_shapes(mean.shape, variance.shape)[:-1] if size is None else tuple(size)
        noise = rng.standard_normal((*batch, mean.shape[-1]))
        return np.argmax(mean + np.sqrt(1.0 + variance) * noise, axis=-1)


@numba_core_rv_funcify.register(UnequalNoiseProbitRV)
def _numba_unequal_noise_probit(op: UnequalNoiseProbitRV, node: Apply) -> Callable[..., Any]:
    @numba_njit
    def random(rng: np.random.Generator, mean: np.ndarray, variance: np.ndarray) -> int:
        best = 0
        highest = -np.inf
        for k in range(mean.shape[0]):
            utility = mean[k] + np.sqrt(1.0 + variance[k]) * rng.standard_normal()
            if utility > highest:
                best = k
                highest = utility
        return best

    return random


unequal_noise_probit = UnequalNoiseProbitRV()


class UnequalNoiseProbit(Discrete):
    r"""Class labels of a multinomial probit whose latent values are normal, independent, and integrated out.

    .. math:: p(y \mid m, s) = \int p(y \mid f) \prod_k N(f_k \mid m_k, s_k) \, df

    The class is that of the largest of c utilities with means m and noise of variance 1 + s. With s = 0 this is the
    multinomial probit.

    Parameters
    ----------
    mean : tensor_like (..., c)
        Means of the latent values.
    variance : tensor_like (..., c)
        Variances of the latent values.

    Notes
    -----
    The integral is that of class-independent EP by quadrature, right to about 14 digits. There are first derivatives.
    """

    rv_op = unequal_noise_probit

    @classmethod
    def dist(cls, mean: Any, variance: Any, **kwargs: Any) -> TensorVariable:
        """A random variable outside any model; arguments as for the class."""
        return super().dist([pt.as_tensor_variable(each).astype("float64") for each in (mean, variance)], **kwargs)

    support_point = largest_label

    def logp(value: TensorVariable, mean: TensorVariable, variance: TensorVariable) -> TensorVariable:
        """log p(value | mean, variance)."""
        return _log_average(pt.as_tensor_variable(value).astype("int64"), mean, variance)[0]
