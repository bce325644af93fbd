"""Groups of rows as a user names them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Constant, Variable

from pymc_gpep.checks.left_out_groups import Groups
from pymc_gpep.structure import GPClassifier

__all__ = ["groups_of_rows"]


def groups_of_rows(
    classifier: GPClassifier,
    groups: ArrayLike | str | Mapping[str, ArrayLike | str],
    data: Mapping[Variable, Variable],
) -> Groups:
    """Return the rows of each group, of those that were fitted.

    Parameters
    ----------
    classifier : GPClassifier
    groups : array_like (n,), str or dict of these
        A label for each row, or the name of data of the model that are such labels. With several observed variables it
        is a dict that has them by the name of each.
    data : mapping
        Data of the model → constants, as they were fitted.

    Raises
    ------
    ValueError
        If there is no label for a row, if all rows have the same one, or if the model has no data of that name.
    """
    by_name = groups if isinstance(groups, Mapping) else {classifier.response: groups}
    if by_name.keys() != (own := {part.response for part in classifier.each}):
        raise ValueError(
            f"groups must have labels for the rows of each observed variable, {', '.join(map(repr, sorted(own)))}: "
            "groups={name: labels, ...}."
        )
    names = {each if isinstance(each, str) else "group" for each in by_name.values()}
    name = names.pop() if len(names) == 1 else "group"
    given = np.concatenate([_labels_at(part, by_name[part.response], data) for part in classifier.each])
    if unknown := [i for i, label in enumerate(given.tolist()) if label is None or label != label]:  # NaN
        raise ValueError(f"groups has no label for {len(unknown)} rows, the first of which is {unknown[0]}.")
    found, place = np.unique(given, return_inverse=True)
    if len(found) < 2:
        raise ValueError("groups has one label for all rows. There must be another group to predict one from.")
    order = np.argsort(place, kind="stable")
    return Groups(name, found, np.split(order, np.cumsum(np.bincount(place))[:-1]))


def _labels_at(classifier: GPClassifier, groups: ArrayLike | str, data: Mapping[Variable, Variable]) -> NDArray[Any]:
    """Return labels of the rows of an observed variable that were fitted."""
    given = np.asarray(_labels_of(classifier, groups, data) if isinstance(groups, str) else groups)
    n, rows = classifier.rows.stop - classifier.rows.start, classifier.n_rows
    if given.shape not in ((n,), (rows,)):
        raise ValueError(f"groups must be a label for each of {rows} rows, ({rows},), but has the shape {given.shape}.")
    return given[classifier.missing.fitted] if classifier.missing is not None and given.shape == (rows,) else given


def _labels_of(classifier: GPClassifier, name: str, data: Mapping[Variable, Variable]) -> ArrayLike:
    by_name = {str(v.name): value.data for v, value in data.items() if isinstance(value, Constant)}
    own = [v.name for v in classifier.model.data_vars]
    if name not in own or name not in by_name:
        raise ValueError(
            f"groups is {name!r}, but the data of the model are {', '.join(map(repr, own)) or 'none'}. Give an array "
            "of labels, or put the index into the model as pm.Data."
        )
    values: ArrayLike = by_name[name]
    return values
