"""ε as distributions take it, and what it makes of probabilities and of draws."""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.variable import TensorVariable


def as_epsilon(epsilon: Any, name: str) -> float | TensorVariable:
    """ε as a number, or as a variable of a model that is a number.

    Raises
    ------
    TypeError, ValueError
        If it is neither, or a number that is not from 0 to below 1.
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
            f"{name}: epsilon must be from 0 to below 1, but is {value}: it is the part of labels that are drawn from "
            "all classes alike."
        )
    return value


def with_label_noise(log_p: TensorVariable, epsilon: TensorVariable, c: TensorVariable) -> TensorVariable:
    """log((1 − ε) p + ε / c), −∞ where p is that of no class."""
    noisy = pt.logaddexp(pt.log1p(-epsilon) + log_p, pt.log(epsilon / c))
    return pt.switch(pt.eq(epsilon, 0.0), log_p, noisy)


def with_random_labels(
    rng: np.random.Generator, labels: NDArray[np.int64], epsilon: np.ndarray, c: int
) -> NDArray[np.int64]:
    """Labels, a part ε of them drawn anew from c classes."""
    anew = rng.random(labels.shape) < epsilon
    drawn: NDArray[np.int64] = np.where(anew, rng.integers(c, size=labels.shape), labels)
    return drawn
