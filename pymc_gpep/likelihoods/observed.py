"""Checks of observed classes, counts and numbers."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.local_likelihood import missing_values, plain_array

A_ROW_FOR_EACH_VOTE = (
    "Numbers of votes for each class are pm.Multinomial(n=votes.sum(axis=1), p=pm.math.softmax(f.T, axis=-1)). "
    "Without a softmax, votes need a row for each: X=np.repeat(X, votes.sum(axis=1), axis=0), and "
    "labels np.concatenate([np.repeat(np.arange(votes.shape[1]), row) for row in votes])."
)
"""Advice on how to declare votes (n, classes)."""


_SHOWN = 5  # Largest number of offending labels in an error message.


def recoding(labels: np.ndarray, n_classes: int) -> str:
    """Return code that recodes labels of c classes as 0 ... c−1; empty for other labels."""
    found = np.unique(labels)
    if n_classes == 2 and found.size == 2:
        return f"(labels == {found[1]})"
    if found.size == n_classes and found[-1] - found[0] == n_classes - 1:
        return f"labels - {found[0]}" if found[0] > 0 else f"labels + {-found[0]}"
    return ""


def to_one_axis(shape: tuple[int | None, ...], classes: bool = True) -> str:
    """Return advice on how to reshape labels to one axis, after a space; empty if they have one axis."""
    if len(shape) < 2:
        return ""
    if sum(size != 1 for size in shape) < 2:
        return " Give them one axis: np.ravel(y)."
    sizes = [size for size in shape[1:] if size is not None]
    times = math.prod(sizes) if len(sizes) == len(shape) - 1 else "k"
    several = f" For {times} values of each point repeat the point: X=np.repeat(X, {times}, axis=0), and np.ravel(y)."
    indicators = " Indicators of classes become labels by np.argmax(y, axis=1)."
    return f"{indicators}{several} {A_ROW_FOR_EACH_VOTE}" if classes else several


def missing_labels(missing: NDArray[np.bool_], name: str) -> str:
    """Return a message on missing observations, with the remedy."""
    where = [", ".join(map(str, i)) for i in np.argwhere(missing)[:_SHOWN]]
    more = "; ..." if missing.sum() > _SHOWN else ""
    return (
        f"{name} are missing at {missing.sum()} of {missing.size} points (position {'; '.join(where)}{more}). "
        "Remove these points from X and y: X[keep] and y[keep].astype(int) with keep = pd.notna(y), or "
        "~y.mask of a masked array. Draw or predict their labels from the fitted model."
    )


def some_of(labels: NDArray[Any]) -> str:
    """Return a text with the smallest distinct labels, for messages."""
    return ", ".join(map(str, np.unique(labels)[:_SHOWN].tolist()))


def without_marks(labels: NDArray[Any]) -> str:
    """Return a sentence (after a space) on how to leave out points with the label −1; empty without such points."""
    if labels.dtype.kind not in "if" or labels.min(initial=0) != -1:
        return ""
    return " If -1 marks a missing label, remove these points: X[keep] and y[keep] with keep = y >= 0."


def shape_text(shape: tuple[int | None, ...]) -> str:
    """Return a shape as text, with ? for unknown lengths."""
    return "(" + ", ".join("?" if s is None else str(s) for s in shape) + ("," if len(shape) == 1 else "") + ")"


_OF_PYMC = {"shape", "size", "rng", "dtype", "name", "return_next_rng"}


def refuse_others(keywords: Collection[str], written: str, advice: str = "") -> None:
    """Raise a TypeError if a distribution has unknown keywords, with advice."""
    others = sorted(set(keywords) - _OF_PYMC)
    if others:
        raise TypeError(f"{written} has no argument {', '.join(map(repr, others))}.{advice and ' '}{advice}")


_WHOLE = "Code the classes as 0 ... c−1. For several votes on a row, repeat the row: np.repeat(X, ..., axis=0)."


def known_shape(x: TensorVariable) -> tuple[int | None, ...]:
    """Return the present shape of `x`, with None for lengths that depend on random draws."""
    if None not in x.type.shape:
        return x.type.shape
    shape = [x.shape[i] for i in range(x.ndim)]
    current = {
        v: pt.constant(v.get_value(borrow=True)) for v in ancestors(shape) if isinstance(v, TensorSharedVariable)
    }
    folded = constant_fold(clone_replace(shape, current), raise_not_constant=False)
    return tuple(int(s) if isinstance(s, np.ndarray | np.integer | int) else None for s in folded)


def observed_classes(
    observed: Any,
    batch: tuple[int | None, ...],
    n_classes: int | None,
    name: str,
    *,
    given: str,
    coding: str,
    more: str,
    shaping: str,
) -> np.ndarray | Variable:
    """Check labels and return them, as int64 unless they are symbolic, and masked if some are missing.

    Labels in `pm.Data` are checked by their present values. For labels in other symbolic expressions only the shape is
    checked.

    Parameters
    ----------
    observed : array_like or Variable
    batch : tuple of int or None
        Shape that the labels must match, None for unknown lengths.
    n_classes : int or None
        Number of classes, None if unknown.
    name : str
        Name of the variable, for messages.
    given : str
        Text on the argument of the distribution for each label.
    coding, more, shaping : str
        Advice for messages. `coding`: labels out of range, {top} is the last class. `more`: too many classes ({count}).
        `shaping`: a wrong shape.

    Raises
    ------
    ValueError
        If labels are not integers, not among the classes, or of a wrong shape. If all labels are missing, or if labels
        in `pm.Data` are missing.
    """
    match observed:
        case TensorSharedVariable():
            values = observed.get_value(borrow=True)
        case Constant():
            values = observed.data
        case Variable():
            _check_shape(known_shape(observed), batch, n_classes, name, given, shaping)
            return observed
        case _:
            values = observed
    top = "c−1" if n_classes is None else n_classes - 1
    _check_shape(np.shape(values), batch, n_classes, name, given, shaping)
    missing = missing_values(values)
    if missing.any() and (isinstance(observed, Variable) or missing.all()):
        raise ValueError(missing_labels(missing, f"{name}: observed labels"))
    labels = _whole_numbers(values, name, missing)
    wrong = labels < 0 if n_classes is None else (labels < 0) | (labels >= n_classes)
    advice = f"{coding.format(top=top)}."
    if wrong.any() and n_classes is not None and (how := recoding(labels[~missing], n_classes)):
        advice = f"{advice[:-1]}: {how} does so."
    elif wrong.any() and labels.min() >= 0:
        advice = f"{advice[:-1]}; {more.format(count=labels.max() + 1)}."
    _refuse(wrong, labels, name, "out of range", advice + without_marks(labels))
    if isinstance(observed, Variable):
        return observed
    return np.ma.masked_array(labels, missing) if missing.any() else labels


def _whole_numbers(values: Any, name: str, missing: NDArray[np.bool_]) -> np.ndarray:
    """Return `values` as int64 with 0 for missing values. Raise an error with the values that are not integers."""
    array = plain_array(values)
    if missing.any() and array.dtype.kind not in "USMmc":
        array = np.where(missing, 0, array)
    try:
        numbers = array.astype(np.float64)
    except (TypeError, ValueError):
        numbers = None
    if numbers is None or array.dtype.kind in "USMmc":
        raise ValueError(
            f"{name}: observed labels must be whole numbers 0 ... c−1, but they are of type {array.dtype}, "
            f"such as {array.ravel()[0]!r}. Code them, for example with pandas.factorize(labels, sort=True); a "
            "categorical has them as labels.cat.codes."
        )
    whole = np.isfinite(numbers) & (numbers == np.round(numbers))
    _refuse(~whole, array, name, "not whole numbers", _WHOLE)
    return numbers.astype(np.int64)


def _refuse(wrong: np.ndarray, values: np.ndarray, name: str, what: str, advice: str) -> None:
    """Raise a ValueError if a label is invalid. The message lists the first labels in the mask `wrong`."""
    where = np.argwhere(wrong)
    if len(where) == 0:
        return
    shown = [f"{', '.join(map(str, i)) or '()'}: {values[tuple(i)]}" for i in where[:_SHOWN]]
    if len(where) > _SHOWN:
        shown.append("...")
    raise ValueError(
        f"{name}: {len(where)} of {values.size} observed labels are {what} (value by position: {'; '.join(shown)}). "
        f"{advice}"
    )


def _check_shape(
    labels: tuple[int | None, ...],
    batch: tuple[int | None, ...],
    n_classes: int | None,
    name: str,
    given: str,
    shaping: str,
) -> None:
    """Raise a ValueError if the batch dimensions of f cannot broadcast to the shape of labels (None is unknown)."""
    pairs = zip(labels[::-1], batch[::-1], strict=False)
    if len(labels) >= len(batch) and all(n is None or m is None or m in (1, n) for n, m in pairs):
        return
    turned = labels[-1:] == (n_classes,) and len(labels) == len(batch)
    advice = shaping if turned or len(labels) < len(batch) else "Give each of these points one label."
    raise ValueError(
        f"{name}: observed labels have shape {shape_text(labels)}, but the points of f have shape {shape_text(batch)}, "
        f"with {given} each. {advice}{to_one_axis(labels)}"
    )


_LARGEST = 2**53


def checked_counts(given: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Check counts (n,) and return them as int64.

    Raises
    ------
    ValueError
        If they are not 0, 1, 2, ..., or too large for exact floating-point numbers.
    """
    numbers = given.dtype.kind in "biuf"
    wrong = (given < 0) | (given != np.round(given)) if numbers else np.full(len(given), True)
    if wrong.any():
        raise ValueError(
            f"{name} must be counts, 0, 1, 2, ..., but among them are {some_of(given[wrong])}.{without_marks(given)}"
        )
    if (given > _LARGEST).any():
        raise ValueError(f"{name} must be counts up to {_LARGEST}, but run up to {given.max()}.")
    return np.ascontiguousarray(given, np.int64)


def checked_numbers(given: NDArray[Any], name: str, *, positive: bool = False) -> Array:
    """Check real numbers (n,) and return them as float64.

    Raises
    ------
    ValueError
        If they are not finite, or not positive if required.
    """
    numbers = given.dtype.kind in "biuf"
    wrong = ~np.isfinite(given) if numbers else np.full(len(given), True)
    if positive and numbers:
        wrong |= ~(given > 0.0)
    if wrong.any():
        wanted = "positive numbers" if positive else "finite numbers"
        marked = without_marks(given) if positive else ""
        raise ValueError(f"{name} must be {wanted}, but among them are {some_of(given[wrong])}.{marked}")
    return np.ascontiguousarray(given, np.float64)
