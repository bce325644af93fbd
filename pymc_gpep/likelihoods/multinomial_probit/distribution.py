"""The likelihoods, as PyMC distributions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.likelihoods.multinomial_probit.log_probability import multinomial_probit_log_probability

__all__ = ["MultinomialProbit", "MultinomialProbitRV", "multinomial_probit"]

_SHOWN = 5  # offending labels that an error message lists


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

    Raises
    ------
    ValueError
        If `f` has no class axis or fewer than two classes, or if `observed` labels are missing, not whole numbers,
        not among 0 ... c−1, or of a shape that does not fit `f`. Labels in ``pm.Data`` are checked by their present
        values, those in other symbolic expressions (``pm.Minibatch``) by their shape only. Nothing has been added to
        the model then.

    Notes
    -----
    Log probabilities are right to about 15 digits for any `f`. Second derivatives are available, third ones are not.

    Examples
    --------
    .. code-block:: python

        with pm.Model():
            gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
            f = gp.prior("f", X=X, n_outputs=3)
            gpep.MultinomialProbit("y", f.T, observed=y)
    """

    rv_op = multinomial_probit

    def __new__(cls, name: str, f: Any, *args: Any, observed: Any = None, **kwargs: Any) -> TensorVariable:
        """Check `f` and the labels, then add the variable to the model on the context stack."""
        f = _as_latent(f, name)
        if observed is not None:
            observed = _as_labels(observed, f, name)
        return super().__new__(cls, name, f, *args, observed=observed, **kwargs)

    @classmethod
    def dist(cls, f: Any, **kwargs: Any) -> TensorVariable:
        """A random variable outside any model; arguments as for the class."""
        return super().dist([_as_latent(f, "MultinomialProbit")], **kwargs)

    def support_point(rv: TensorVariable, size: Variable | None, f: TensorVariable) -> TensorVariable:
        """The label of the largest latent value."""
        largest = pt.argmax(f, axis=-1)
        return largest if rv_size_is_none(size) else pt.full(size, largest)

    def logp(value: TensorVariable, f: TensorVariable) -> TensorVariable:
        """log p(value | f)."""
        return multinomial_probit_log_probability(value, f)


def _known_shape(x: TensorVariable) -> tuple[int | None, ...]:
    """The shape of `x` as far as it is known without drawing random variables; shared data count as they are."""
    if None not in x.type.shape:
        return x.type.shape
    shape = [x.shape[i] for i in range(x.ndim)]
    current = {
        v: pt.constant(v.get_value(borrow=True)) for v in ancestors(shape) if isinstance(v, TensorSharedVariable)
    }
    folded = constant_fold(clone_replace(shape, current), raise_not_constant=False)
    return tuple(int(s) if isinstance(s, np.ndarray | np.integer | int) else None for s in folded)


def _as_latent(f: Any, name: str) -> TensorVariable:
    f = pt.as_tensor_variable(f)
    if f.ndim == 0:
        raise ValueError(f"{name}: f is a scalar, but needs a class axis, the last one")
    if f.dtype != "float64":
        f = f.astype("float64")
    classes = f.type.shape[-1]
    if classes is not None and classes < 2:
        raise ValueError(
            f"{name}: the last axis of f is the class axis and needs at least 2 classes, but f has shape "
            f"{_shape_text(f.type.shape)}. Give each class a latent function: gp.prior(..., n_outputs=c), and then f.T"
        )
    return f


def _as_labels(observed: Any, f: TensorVariable, name: str) -> np.ndarray | Variable:
    """`observed`, checked against `f`; as int64 where it is not symbolic."""
    *batch, c = _known_shape(f)
    match observed:
        case TensorSharedVariable():
            values = observed.get_value(borrow=True)
        case Constant():
            values = observed.data
        case Variable():
            _check_shape(_known_shape(observed), tuple(batch), name)
            return observed
        case _:
            values = observed
    labels = _whole_numbers(values, name)
    _check_shape(labels.shape, tuple(batch), name)
    top = "c−1" if c is None else c - 1
    wrong = labels < 0 if c is None else (labels < 0) | (labels >= c)
    _refuse(wrong, labels, name, "out of range", f"Code the classes as 0 ... {top}, in the order of f's last axis")
    return observed if isinstance(observed, Variable) else labels


def _whole_numbers(values: Any, name: str) -> np.ndarray:
    """`values` as int64, or an error that says which are not whole numbers."""
    if np.ma.isMaskedArray(values):
        mask = np.ma.getmaskarray(values)
        array = np.ma.getdata(values)
    else:
        array = np.asarray(values)
        mask = np.zeros(array.shape, bool)
    advice = "Leave those points out; draw or predict their labels from the fitted model instead"
    _refuse(mask | pd.isna(array), array, name, "missing", advice)
    try:
        numbers = array.astype(np.float64)
    except (TypeError, ValueError):
        numbers = None
    if numbers is None or array.dtype.kind in "USMmc":
        raise ValueError(
            f"{name}: observed labels must be whole numbers 0 ... c−1, but they are of type {array.dtype}, "
            f"such as {array.ravel()[0]!r}. Code them, for example with pandas.factorize(labels, sort=True); a "
            "categorical has them as labels.cat.codes"
        )
    whole = np.isfinite(numbers) & (numbers == np.round(numbers))
    _refuse(~whole, array, name, "not whole numbers", "Code the classes as 0 ... c−1")
    return numbers.astype(np.int64)


def _refuse(wrong: np.ndarray, values: np.ndarray, name: str, what: str, advice: str) -> None:
    """Raise a ValueError that lists the first labels for which `wrong` is true, if any is."""
    where = np.argwhere(wrong)
    if len(where) == 0:
        return
    shown = [f"{', '.join(map(str, i)) or '()'}: {values[tuple(i)]}" for i in where[:_SHOWN]]
    if len(where) > _SHOWN:
        shown.append("...")
    raise ValueError(
        f"{name}: {len(where)} of {values.size} observed labels are {what} (position: value is {'; '.join(shown)}). "
        f"{advice}"
    )


def _check_shape(labels: tuple[int | None, ...], batch: tuple[int | None, ...], name: str) -> None:
    """Raise a ValueError unless the batch dimensions of f can broadcast to the labels' shape; None is not known."""
    pairs = zip(labels[::-1], batch[::-1], strict=False)
    if len(labels) >= len(batch) and all(n is None or m is None or m in (1, n) for n, m in pairs):
        return
    raise ValueError(
        f"{name}: observed labels have shape {_shape_text(labels)}, but f has one vector of latent values for each of "
        f"{_shape_text(batch)}. The class axis of f is its last: pass f.T for latent values of shape (c, n). Labels "
        "are one number per point: pass labels.ravel() for a column, labels.argmax(axis=-1) for indicators (n, c)"
    )


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("?" if s is None else str(s) for s in shape) + ("," if len(shape) == 1 else "") + ")"
