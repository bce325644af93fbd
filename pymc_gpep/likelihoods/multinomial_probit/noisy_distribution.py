"""The multinomial probit with label noise as a PyMC distribution, which `MultinomialProbit(..., epsilon=...)` makes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete
from pymc.distributions.shape_utils import rv_size_is_none
from pytensor.graph.basic import Apply, Variable
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.likelihoods.keywords import refuse_others
from pymc_gpep.likelihoods.label_noise.epsilon import with_label_noise, with_random_labels
from pymc_gpep.likelihoods.multinomial_probit.log_probability import multinomial_probit_log_probability


class NoisyMultinomialProbitRV(RandomVariable):
    """y = argmax_k (f_k + e_k), e_k ~ N(0, 1) independent, with probability 1 − ε, else any class."""

    name = "noisy_multinomial_probit"
    signature = "(c),()->()"
    dtype = "int64"
    _print_name = ("MultinomialProbit", "\\operatorname{MultinomialProbit}")

    @classmethod
    def rng_fn(
        cls, rng: np.random.Generator, f: np.ndarray, epsilon: np.ndarray, size: tuple[int, ...] | None
    ) -> np.ndarray:
        """Draw labels of shape `size`, or the batch shape of `f` (..., c)."""
        batch = np.broadcast_shapes(f.shape[:-1], np.shape(epsilon)) if size is None else tuple(size)
        c = f.shape[-1]
        return with_random_labels(rng, np.argmax(f + rng.standard_normal((*batch, c)), axis=-1), epsilon, c)


@numba_core_rv_funcify.register(NoisyMultinomialProbitRV)
def _numba_noisy_multinomial_probit(op: NoisyMultinomialProbitRV, node: Apply) -> Callable[..., Any]:
    @numba_njit
    def random(rng: np.random.Generator, f: np.ndarray, epsilon: np.ndarray) -> int:
        if rng.random() < epsilon.item():
            return int(rng.integers(0, f.shape[0]))
        return int(np.argmax(f + rng.standard_normal(f.shape[0])))

    return random


noisy_multinomial_probit = NoisyMultinomialProbitRV()


def largest_label(
    rv: TensorVariable, size: Variable | None, f: TensorVariable, *others: TensorVariable
) -> TensorVariable:
    """Return the label of the largest latent value, which is where variables of such distributions begin."""
    largest = pt.argmax(f, axis=-1)
    return largest if rv_size_is_none(size) else pt.full(size, largest)


class NoisyMultinomialProbit(Discrete):
    """Class labels of a multinomial probit, but for a part ε of them, which are drawn from all classes.

    See `MultinomialProbit`, which checks what it is given.
    """

    rv_op = noisy_multinomial_probit

    @classmethod
    def dist(cls, f: TensorVariable, epsilon: float | TensorVariable, **kwargs: Any) -> TensorVariable:
        """A random variable outside any model."""
        refuse_others(kwargs, "gpep.MultinomialProbit", "Label noise is epsilon.")
        return super().dist([f, epsilon], **kwargs)

    support_point = largest_label

    def logp(value: TensorVariable, f: TensorVariable, epsilon: TensorVariable) -> TensorVariable:
        """log p(value | f)."""
        c = f.shape[-1]
        label = pt.as_tensor_variable(value).astype("int64")
        noisy = with_label_noise(multinomial_probit_log_probability(label, f), epsilon, c)
        return pt.switch(pt.and_(pt.ge(label, 0), pt.lt(label, c)), noisy, -np.inf)
