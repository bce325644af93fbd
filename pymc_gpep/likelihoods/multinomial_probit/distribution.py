"""The likelihoods, as PyMC distributions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete
from pytensor.graph.basic import Apply, Variable
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.likelihoods.keywords import refuse_others
from pymc_gpep.likelihoods.label_noise.epsilon import as_epsilon
from pymc_gpep.likelihoods.multinomial_probit.log_probability import multinomial_probit_log_probability
from pymc_gpep.likelihoods.multinomial_probit.noisy_distribution import NoisyMultinomialProbit, largest_label
from pymc_gpep.likelihoods.observed_classes import known_shape, observed_classes, shape_text


class MultinomialProbitRV(RandomVariable):
    """y = argmax_k (f_k + ε_k), ε_k ~ N(0, 1) independent."""

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
        best = 0
        highest = -np.inf
        for k in range(f.shape[0]):
            utility = f[k] + rng.standard_normal()
            if utility > highest:
                best = k
                highest = utility
        return best

    return random


multinomial_probit = MultinomialProbitRV()


class MultinomialProbit(Discrete):
    r"""Class labels of a multinomial probit: the largest of c latent values, each with its own unit normal noise.

    .. math:: p(y \mid f) = \mathbb{E}_{u \sim N(0, 1)} \prod_{j \neq y} \Phi(u + f_y - f_j)

    ========  ===================================
    Support   :math:`y \in \{0, 1, \ldots, c-1\}`
    ========  ===================================

    With two classes this is the probit of :math:`(f_1 - f_0) / \sqrt 2`. Adding the same number to all latent values
    of a point changes nothing.

    Parameters
    ----------
    f : tensor_like, (..., c)
        Latent values. The class axis is the last, as in :class:`pymc.Categorical`: latent values from
        ``pm.gp.Latent(...).prior(..., n_outputs=c)`` are (c, n), so pass ``f.T``.
    epsilon : float or TensorVariable
        Part of the labels that have nothing to do with `f`, but are drawn from all classes, from 0 to below 1. The
        probability is then :math:`(1 - \varepsilon) p(y \mid f) + \varepsilon / c`. Such a model is fitted by
        ``pm.fit(method="nested_ep" | "sparse_ep" | "sparse_vi")`` and sampled by NUTS. It may have a prior, such as
        ``pm.Beta("epsilon", 1, 19)``, for ``"nested_ep"`` and for NUTS.

    Raises
    ------
    ValueError
        If `f` has no class axis or fewer than two classes, if `epsilon` is not from 0 to below 1. Also if `observed`
        labels are all missing, not whole numbers, not among 0 ... c−1, or of a shape that does not fit `f`. Labels in
        ``pm.Data`` are checked by their present values, those in other symbolic expressions (``pm.Minibatch``) by their
        shape only. Nothing has been added to the model then.
    TypeError
        If `epsilon` is no number.

    Notes
    -----
    Log probabilities are right to about 15 digits for any `f`. Second derivatives are available, third ones are not.

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
        """A random variable outside any model; arguments as for the class."""
        refuse_others(kwargs, "gpep.MultinomialProbit", "Label noise is epsilon.")
        f, epsilon = as_latent(f, "MultinomialProbit"), as_epsilon(epsilon, "MultinomialProbit")
        noisy = _may_be_noise(epsilon)
        return NoisyMultinomialProbit.dist(f, epsilon, **kwargs) if noisy else super().dist([f], **kwargs)

    support_point = largest_label

    def logp(value: TensorVariable, f: TensorVariable) -> TensorVariable:
        """log p(value | f)."""
        return multinomial_probit_log_probability(value, f)


def _may_be_noise(epsilon: float | TensorVariable) -> bool:
    return isinstance(epsilon, Variable) or epsilon > 0.0


def as_latent(f: Any, name: str) -> TensorVariable:
    """`f` with its class axis, checked; errors call the variable by `name`."""
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
    """`observed`, checked against `f`."""
    *batch, c = known_shape(f)
    return observed_classes(
        observed,
        tuple(batch),
        c,
        name,
        given="one vector of latent values",
        coding="Code the classes as 0 ... {top}, in the order of f's last axis",
        more="for {count} classes f has to have as many functions, n_outputs={count} in gp.prior",
        shaping="The class axis of f is its last: pass f.T for latent values of shape (c, n).",
    )
