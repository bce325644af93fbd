"""Multinomial probit and step likelihood as PyMC distributions, with and without label noise.

An Op of this module computes one point. PyTensor's `Blockwise` adds batch dimensions and their gradients.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import Discrete
from pymc.distributions.shape_utils import rv_size_is_none
from pytensor.gradient import DisconnectedType, disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.kernels.compile import kernel, source_key
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient, log_probability_hessian
from pymc_gpep.likelihoods.observed import known_shape, observed_classes, refuse_others, shape_text


@kernel
def _over_points(y: np.ndarray, f: np.ndarray, values: np.ndarray, gradients: np.ndarray) -> None:
    for i in range(f.shape[0]):
        values[i] = log_probability_and_gradient(f[i], y[i], gradients[i])


@kernel
def _hessians_over_points(y: np.ndarray, f: np.ndarray, hessians: np.ndarray) -> None:
    for i in range(f.shape[0]):
        log_probability_hessian(f[i], y[i], hessians[i])


def flat_points(
    y: np.ndarray, moments: Sequence[np.ndarray], axes: Sequence[int]
) -> tuple[tuple[int, ...], list[np.ndarray]]:
    """Return the common batch shape of labels and moments, and both as arrays with a single batch axis."""
    arrays = [np.asarray(y, np.int64), *(np.asarray(each, np.float64) for each in moments)]
    axes = (0, *axes)
    batch = np.broadcast_shapes(*(x.shape[: x.ndim - k] for x, k in zip(arrays, axes, strict=True)))
    ends = [x.shape[x.ndim - k :] for x, k in zip(arrays, axes, strict=True)]
    if any(end != ends[1][:1] * k for end, k in zip(ends, axes, strict=True)):
        raise ValueError(f"The moments of a point differ in the number of classes: their shapes are {ends[1:]}.")
    whole = (np.broadcast_to(x, (*batch, *end)) for x, end in zip(arrays, ends, strict=True))
    # Arrays must be writeable: numba would compile a kernel again for read-only arrays.
    flat = (np.require(x, requirements=("C", "W")) for x in whole)
    return batch, [x.reshape(-1, *end) for x, end in zip(flat, ends, strict=True)]


def log_probabilities_and_gradients(y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log p(y | f) of many points, and its derivative with respect to f.

    Parameters
    ----------
    y : (...) array of int
        Labels, 0 ... c−1.
    f : (..., c) array
        Latent values; the batch dimensions broadcast against `y`.

    Returns
    -------
    log_probability : (...) array
    gradient : (..., c) array
    """
    batch, (labels, latent) = flat_points(y, (f,), (1,))
    values, gradients = np.empty(labels.size), np.empty(latent.shape)
    _over_points(labels, latent, values, gradients)
    return values.reshape(batch), gradients.reshape(*batch, latent.shape[1])


def log_probability_hessians(y: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Return the second derivatives of log p(y | f) with respect to f of many points, (..., c, c)."""
    batch, (labels, latent) = flat_points(y, (f,), (1,))
    c = latent.shape[1]
    hessians = np.empty((labels.size, c, c))
    _hessians_over_points(labels, latent, hessians)
    return hessians.reshape(*batch, c, c)


class LabelAverages(Op):
    """PyTensor operation on labels and on moments of latent values.

    The first output is the log of an average of the likelihood. The last outputs are its derivatives in the moments.
    Only the first output has derivatives.
    """

    __props__ = ()
    gufunc_signature: ClassVar[str]
    compute: ClassVar[Callable[..., tuple[np.ndarray, ...]]]
    """Function of arrays that returns the outputs, with broadcasting over leading axes."""
    others: ClassVar[str]
    """Names of derivatives that are not available, for messages."""

    def axes(self) -> tuple[list[str], list[str]]:
        """Return the axes of each input and of each output, with a letter for each axis."""
        inputs, outputs = (side.split("),(") for side in self.gufunc_signature.split("->"))
        return [re.sub("[(),]", "", each) for each in inputs], [re.sub("[(),]", "", each) for each in outputs]

    def sizes(self, shapes: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """Return the length of each axis by letter, from the shapes of inputs; the last input with the axis counts."""
        return {
            axis: size for each, shape in zip(self.axes()[0], shapes, strict=True)
            for axis, size in zip(each, shape, strict=True)
        }  # fmt: skip

    def make_node(self, y: Any, *moments: Any) -> Apply:
        given = [pt.as_tensor_variable(each) for each in (y, *moments)]
        inputs, outputs = self.axes()
        types = [("float64" if i else "int64", len(each)) for i, each in enumerate(inputs)]
        if [(x.dtype, x.ndim) for x in given] != types:
            expected = " and ".join(f"{dtype} with {ndim} axes" for dtype, ndim in types)
            raise TypeError(f"expected {expected}, got {', '.join(str(x.type) for x in given)}")
        sizes = self.sizes(x.type.shape for x in given)
        return Apply(self, given, [pt.tensor(dtype="float64", shape=[sizes[a] for a in each]) for each in outputs])

    def perform(self, node: Apply, inputs: list[np.ndarray], output_storage: list[list[np.ndarray | None]]) -> None:
        for storage, value in zip(output_storage, type(self).compute(*inputs), strict=True):
            storage[0] = value

    def infer_shape(self, node: Apply, input_shapes: list[tuple[Variable, ...]]) -> list[tuple[Variable, ...]]:
        sizes = self.sizes(input_shapes)
        return [tuple(sizes[a] for a in each) for each in self.axes()[1]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[i > 0] * len(node.outputs) for i in range(len(node.inputs))]

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        of_value, *of_others = cotangents
        if not all(isinstance(each.type, DisconnectedType) for each in of_others):
            reason = f"{self.others} are not available"
            return [
                disconnected_type(),
                *(grad_not_implemented(self, i, x, reason) for i, x in enumerate(inputs) if i),
            ]
        slopes = outputs[1 - len(inputs) :]
        shaped = (pt.shape_padright(of_value, slope.ndim - of_value.ndim) for slope in slopes)
        return [disconnected_type(), *(each * slope for each, slope in zip(shaped, slopes, strict=True))]


class LogProbability(LabelAverages):
    """Operation that returns log p(y | f) of one point, and its derivative with respect to f."""

    gufunc_signature = "(),(c)->(),(c)"
    gufunc_spec = (f"{__name__}.log_probabilities_and_gradients", 2, 2)
    compute = staticmethod(log_probabilities_and_gradients)
    others = "third derivatives of the multinomial probit"

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


class LogProbabilityHessian(LabelAverages):
    """Operation that returns the second derivatives of log p(y | f) of one point with respect to f, (c, c)."""

    gufunc_signature = "(),(c)->(c,c)"
    gufunc_spec = (f"{__name__}.log_probability_hessians", 2, 1)
    compute = staticmethod(lambda y, f: (log_probability_hessians(y, f),))
    others = "third derivatives of the multinomial probit"

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        return [disconnected_type(), grad_not_implemented(self, 1, inputs[1], f"{self.others} are not available")]


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
    """Return log p(y | f) of the multinomial probit as a PyTensor expression.

    Parameters
    ----------
    y : (...) tensor of integers
        Labels, 0 ... c−1; other labels have a log probability of −inf.
    f : (..., c) tensor
        Latent values; the batch dimensions broadcast against `y`.
    """
    y = pt.as_tensor_variable(y).astype("int64")
    return _log_probability(y, pt.as_tensor_variable(f).astype("float64"))[0]


def as_epsilon(epsilon: Any, name: str) -> float | TensorVariable:
    """Return ε as a number, or as a scalar variable of a model.

    Raises
    ------
    TypeError, ValueError
        If ε is neither a number nor a variable, or not in [0, 1).
    """
    if isinstance(epsilon, Variable) and not isinstance(epsilon, Constant):
        free = pt.as_tensor_variable(epsilon)
        if free.ndim:
            raise ValueError(
                f"{name}: epsilon must be one number for all labels, but {epsilon} has {free.ndim} axes. Give it a "
                'prior without a shape, such as pm.Beta("epsilon", 1, 19).'
            )
        return free.astype("float64")
    if isinstance(epsilon, Constant):
        epsilon = epsilon.data
    try:
        value = float(epsilon)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: epsilon must be a number, but is {epsilon!r}.") from None
    if not 0.0 <= value < 1.0:
        raise ValueError(
            f"{name}: epsilon must be from 0 to below 1, but is {value}: it is the share of labels drawn uniformly "
            "from all classes."
        )
    return value


def with_label_noise(log_p: TensorVariable, epsilon: TensorVariable, c: TensorVariable) -> TensorVariable:
    """Return log((1 − ε) p + ε / c); −∞ for a label outside the classes."""
    noisy = pt.logaddexp(pt.log1p(-epsilon) + log_p, pt.log(epsilon / c))
    return pt.switch(pt.eq(epsilon, 0.0), log_p, noisy)


def with_random_labels(
    rng: np.random.Generator, labels: NDArray[np.int64], epsilon: np.ndarray, c: int
) -> NDArray[np.int64]:
    """Replace a share ε of the labels by labels drawn uniformly from c classes."""
    anew = rng.random(labels.shape) < epsilon
    drawn: NDArray[np.int64] = np.where(anew, rng.integers(c, size=labels.shape), labels)
    return drawn


class NoisyLabelsRV(RandomVariable):
    """Random label: with probability 1 − ε the class with the largest utility, else a class drawn uniformly."""

    signature = "(c),()->()"
    dtype = "int64"
    with_noise: ClassVar[bool]
    """Whether utilities are latent values plus independent noise e ~ N(0, 1)."""

    @classmethod
    def rng_fn(
        cls, rng: np.random.Generator, f: np.ndarray, epsilon: np.ndarray, size: tuple[int, ...] | None
    ) -> np.ndarray:
        """Draw labels of shape `size`, or the batch shape of `f` (..., c)."""
        batch = np.broadcast_shapes(f.shape[:-1], np.shape(epsilon)) if size is None else tuple(size)
        shape = (*batch, f.shape[-1])
        utilities = f + rng.standard_normal(shape) if cls.with_noise else np.broadcast_to(f, shape)
        return with_random_labels(rng, np.argmax(utilities, axis=-1), epsilon, f.shape[-1])


@numba_core_rv_funcify.register(NoisyLabelsRV)
def _numba_noisy_labels(op: NoisyLabelsRV, node: Apply) -> Callable[..., Any]:
    with_noise = op.with_noise

    @numba_njit
    def random(rng: np.random.Generator, f: np.ndarray, epsilon: np.ndarray) -> int:
        if rng.random() < epsilon.item():
            return int(rng.integers(0, f.shape[0]))
        return int(np.argmax(f + rng.standard_normal(f.shape[0]) if with_noise else f))

    return random


class NoisyMultinomialProbitRV(NoisyLabelsRV):
    """Random label: with probability 1 − ε argmax_k (f_k + e_k), e_k ~ N(0, 1), else a class drawn uniformly."""

    name = "noisy_multinomial_probit"
    _print_name = ("MultinomialProbit", "\\operatorname{MultinomialProbit}")
    with_noise = True


noisy_multinomial_probit = NoisyMultinomialProbitRV()


def largest_label(
    rv: TensorVariable, size: Variable | None, f: TensorVariable, *others: TensorVariable
) -> TensorVariable:
    """Return the class with the largest latent value, the initial value of a sampler."""
    largest = pt.argmax(f, axis=-1)
    return largest if rv_size_is_none(size) else pt.full(size, largest)


class NoisyMultinomialProbit(Discrete):
    """Class labels of a multinomial probit, with a share ε of labels drawn from all classes.

    See `MultinomialProbit`, which checks its arguments.
    """

    rv_op = noisy_multinomial_probit

    @classmethod
    def dist(cls, f: TensorVariable, epsilon: float | TensorVariable, **kwargs: Any) -> TensorVariable:
        """Return a random variable that belongs to no model."""
        refuse_others(kwargs, "gpep.MultinomialProbit", "Label noise is epsilon.")
        return super().dist([f, epsilon], **kwargs)

    support_point = largest_label

    def logp(value: TensorVariable, f: TensorVariable, epsilon: TensorVariable) -> TensorVariable:
        """Return log p(value | f)."""
        c = f.shape[-1]
        label = pt.as_tensor_variable(value).astype("int64")
        noisy = with_label_noise(multinomial_probit_log_probability(label, f), epsilon, c)
        return pt.switch(pt.and_(pt.ge(label, 0), pt.lt(label, c)), noisy, -np.inf)


class MultinomialProbitRV(RandomVariable):
    """Random variable y = argmax_k (f_k + ε_k) with independent ε_k ~ N(0, 1)."""

    name = "multinomial_probit"
    signature = "(c)->()"
    dtype = "int64"
    _print_name = ("MultinomialProbit", "\\operatorname{MultinomialProbit}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, f: np.ndarray, size: tuple[int, ...] | None) -> np.ndarray:
        """Draw labels of shape `size`, or the batch shape of `f` (..., c)."""
        batch = f.shape[:-1] if size is None else tuple(size)
        return np.argmax(f + rng.standard_normal((*batch, f.shape[-1])), axis=-1)


@numba_core_rv_funcify.register(MultinomialProbitRV)
def _numba_multinomial_probit(op: MultinomialProbitRV, node: Apply) -> Callable[..., Any]:
    @numba_njit
    def random(rng: np.random.Generator, f: np.ndarray) -> int:
        return int(np.argmax(f + rng.standard_normal(f.shape[0])))

    return random


multinomial_probit = MultinomialProbitRV()


class MultinomialProbit(Discrete):
    r"""Class labels of a multinomial probit: the class of the largest of c latent values with unit normal noise.

    .. math:: p(y \mid f) = \mathbb{E}_{u \sim N(0, 1)} \prod_{j \neq y} \Phi(u + f_y - f_j)

    ========  ===================================
    Support   :math:`y \in \{0, 1, \ldots, c-1\}`
    ========  ===================================

    With two classes this is the probit of :math:`(f_1 - f_0) / \sqrt 2`. A common shift of all latent values of a point
    has no effect.

    Parameters
    ----------
    f : tensor_like, (..., c)
        Latent values. The class axis is the last, as in :class:`pymc.Categorical`: latent values from
        ``pm.gp.Latent(...).prior(..., n_outputs=c)`` are (c, n), so pass ``f.T``.
    epsilon : float or TensorVariable
        Share of labels that are drawn from all classes independently of `f`, from 0 to below 1. The probability is then
        :math:`(1 - \varepsilon) p(y \mid f) + \varepsilon / c`. The default is 0. Models with ε are fitted by
        ``pm.fit(method="nested_ep" | "sparse_ep" | "sparse_vi")`` and sampled by NUTS. ε may have a prior, such as
        ``pm.Beta("epsilon", 1, 19)``, for ``"nested_ep"`` and for NUTS.

    Raises
    ------
    ValueError
        If `f` has no class axis or fewer than two classes, or `epsilon` is not in [0, 1). If `observed` labels are all
        missing, not integers, not among 0 ... c−1, or of a shape that does not fit `f`. Labels in ``pm.Data`` are
        checked by their present values. For labels in other symbolic expressions (``pm.Minibatch``) only the shape is
        checked. The model is unchanged after an error.
    TypeError
        If `epsilon` is not a number.

    Notes
    -----
    Log probabilities are accurate to about 15 digits for any `f`. Second derivatives are available, third derivatives
    are not.

    Examples
    --------
    >>> with pm.Model():
    ...     gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
    ...     f = gp.prior("f", X=X, n_outputs=3)
    ...     gpep.MultinomialProbit("y", f.T, observed=y)
    """

    rv_op = multinomial_probit

    def __new__(
        cls, name: str, f: Any, *args: Any, epsilon: Any = 0.0, observed: Any = None, **kwargs: Any
    ) -> TensorVariable:
        """Check `f`, `epsilon` and the labels, then add the variable to the model on the context stack."""
        f, epsilon = as_latent(f, name), as_epsilon(epsilon, name)
        if observed is not None:
            observed = as_labels(observed, f, name)
        if _may_be_noise(epsilon):
            return NoisyMultinomialProbit(name, f, epsilon, *args, observed=observed, **kwargs)
        return super().__new__(cls, name, f, *args, observed=observed, **kwargs)

    @classmethod
    def dist(cls, f: Any, *, epsilon: Any = 0.0, **kwargs: Any) -> TensorVariable:
        """Return a random variable that belongs to no model; arguments as for the class."""
        refuse_others(kwargs, "gpep.MultinomialProbit", "Label noise is epsilon.")
        f, epsilon = as_latent(f, "MultinomialProbit"), as_epsilon(epsilon, "MultinomialProbit")
        noisy = _may_be_noise(epsilon)
        return NoisyMultinomialProbit.dist(f, epsilon, **kwargs) if noisy else super().dist([f], **kwargs)

    support_point = largest_label

    def logp(value: TensorVariable, f: TensorVariable) -> TensorVariable:
        """Return log p(value | f)."""
        return multinomial_probit_log_probability(value, f)


def _may_be_noise(epsilon: float | TensorVariable) -> bool:
    return isinstance(epsilon, Variable) or epsilon > 0.0


def as_latent(f: Any, name: str) -> TensorVariable:
    """Check the class axis of `f` and return `f`; `name` is for messages."""
    f = pt.as_tensor_variable(f)
    if f.ndim == 0:
        raise ValueError(f"{name}: f is a scalar, but needs a class axis, the last one")
    if f.dtype != "float64":
        f = f.astype("float64")
    classes = f.type.shape[-1]
    if classes is not None and classes < 2:
        raise ValueError(
            f"{name}: the last axis of f is the class axis and needs at least 2 classes, but f has shape "
            f"{shape_text(f.type.shape)}. Give each class a latent function: gp.prior(..., n_outputs=c), and then f.T"
        )
    return f


def as_labels(observed: Any, f: TensorVariable, name: str) -> np.ndarray | Variable:
    """Check labels against `f` and return them."""
    *batch, c = known_shape(f)
    return observed_classes(
        observed,
        tuple(batch),
        c,
        name,
        given="one vector of latent values",
        coding="Code the classes as 0 ... {top}, in the order of f's last axis",
        more="for {count} classes f needs {count} latent functions: n_outputs={count} in gp.prior",
        shaping="The class axis of f is its last: pass f.T for latent values of shape (c, n).",
    )


class RobustMaxRV(NoisyLabelsRV):
    """Random label: argmax_k f_k with probability 1 − ε, else a class drawn uniformly."""

    name = "robust_max"
    _print_name = ("RobustMax", "\\operatorname{RobustMax}")
    with_noise = False


robust_max = RobustMaxRV()


class RobustMax(Discrete):
    r"""Class labels of the largest of c latent values, except a share ε of labels drawn from all classes.

    .. math:: p(y \mid f) = (1 - \varepsilon) \, [y = \arg\max_k f_k] + \varepsilon / c

    ========  ===================================
    Support   :math:`y \in \{0, 1, \ldots, c-1\}`
    ========  ===================================

    Parameters
    ----------
    f : tensor_like, (..., c)
        Latent values. The class axis is the last, as in :class:`pymc.Categorical`: latent values from
        ``pm.gp.Latent(...).prior(..., n_outputs=c)`` are (c, n), so pass ``f.T``.
    epsilon : float or variable of the model
        Share of labels that are independent of `f`, from 0 to below 1. The class of the largest value has the
        probability 1 − ε + ε/c, each other class ε/c. If ε has a prior, such as ``pm.Beta("epsilon", 1, 19)``,
        ``"nested_ep"`` and ``"qiep"`` learn it.

    Raises
    ------
    ValueError
        If `f` has no class axis or fewer than two classes, or `epsilon` is not in [0, 1). If `observed` labels are all
        missing, not integers, not among 0 ... c−1, or of a shape that does not fit `f`. The model is unchanged after an
        error.
    TypeError
        If `epsilon` is neither a number nor a variable.

    Notes
    -----
    The likelihood of Hernández-Lobato, Hernández-Lobato and Dupont (2011), and of Villacampa-Calvo and
    Hernández-Lobato (2017), equation 13. Some authors write 1 − ε for the largest and ε/(c − 1) for each other class:
    their ε is (c − 1)/c times this ε.

    The log probability is piecewise constant in `f`: its derivative is zero except at jumps. So samplers based on
    gradients (NUTS) do not work. ``pm.fit(method="nested_ep" | "qiep")`` and fits with inducing inputs average over
    `f`, and :class:`EllipticalSlice` needs no gradients.

    Noise of the utilities is a part of the covariance, ``+ pm.gp.cov.WhiteNoise(1.0)``. With unit variance the model
    equals :class:`MultinomialProbit` with the same `epsilon`.

    Examples
    --------
    >>> with pm.Model():
    ...     gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0) + pm.gp.cov.WhiteNoise(0.1))
    ...     f = gp.prior("f", X=X, n_outputs=3)
    ...     gpep.RobustMax("y", f.T, epsilon=1e-3, observed=y)
    """

    rv_op = robust_max

    def __new__(
        cls, name: str, f: Any, epsilon: Any, *args: Any, observed: Any = None, **kwargs: Any
    ) -> TensorVariable:
        """Check `f`, `epsilon` and the labels, then add the variable to the model on the context stack."""
        f, epsilon = as_latent(f, name), as_epsilon(epsilon, name)
        if observed is not None:
            observed = as_labels(observed, f, name)
        return super().__new__(cls, name, f, epsilon, *args, observed=observed, **kwargs)

    @classmethod
    def dist(cls, f: Any, epsilon: Any, **kwargs: Any) -> TensorVariable:
        """Return a random variable that belongs to no model; arguments as for the class."""
        refuse_others(kwargs, "gpep.RobustMax", "Label noise is epsilon.")
        return super().dist([as_latent(f, "RobustMax"), as_epsilon(epsilon, "RobustMax")], **kwargs)

    support_point = largest_label

    def logp(value: TensorVariable, f: TensorVariable, epsilon: TensorVariable) -> TensorVariable:
        """Return log p(value | f)."""
        c = f.shape[-1]
        label = pt.as_tensor_variable(value).astype("int64")
        of_largest, of_others = pt.log1p(-epsilon * (1.0 - 1.0 / c)), pt.log(epsilon / c)
        log_p = pt.switch(pt.eq(label, pt.argmax(f, axis=-1)), of_largest, of_others)
        return pt.switch(pt.and_(pt.ge(label, 0), pt.lt(label, c)), log_p, -np.inf)
