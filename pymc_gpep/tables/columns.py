"""Columns of a table as inputs of a Gaussian process, with a covariance function and priors for these inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pymc_gpep.argument_types import check_name, did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.tables.table import CategoryColumn, Column, Missing, NumberColumn, Unseen, Values, column_of, read_table

KERNELS: dict[str, Callable[..., Any]] = {
    "rbf": pm.gp.cov.ExpQuad,
    "matern32": pm.gp.cov.Matern32,
    "matern52": pm.gp.cov.Matern52,
}
"""Stationary covariance functions, by name."""

_SPREAD_OF_SCALE = 1.5  # Prior standard deviation of the log of a length scale, as in `default_priors`.
_MAGNITUDE = 1.0, 1.5  # Prior mean and standard deviation of the log magnitude, as in `default_priors`.


@dataclass(frozen=True)
class Columns:
    """The columns of a table, as `gpep.columns` returns them.

    A column of numbers or booleans becomes one standardised input. A column of categories becomes indicator inputs (0
    or 1). These inputs share one length scale, so all pairs of categories have the same distance.

    Attributes
    ----------
    columns : tuple of Column
        The columns, with the constants of their encoding, such as means.
    X : array (n, d)
        Inputs of the training rows.

    Examples
    --------
    >>> table = gpep.columns(pd.DataFrame({"age": [31.0, 45.0], "city": ["Rome", "Oslo"]}))
    >>> table.encode(pd.DataFrame({"age": [28.0], "city": ["Rome"]})).shape
    (1, 4)
    """

    columns: tuple[Column, ...]
    X: Array = field(repr=False)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    @property
    def coords(self) -> dict[str, Sequence[Any]]:
        """Coordinates for `pm.Model(coords=...)`: the names of the columns, as labels of length scales."""
        return {"column": self.names}

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Index of the column of each of the d inputs, (d,)."""
        return np.repeat(np.arange(len(self.columns)), [column.width for column in self.columns])

    def encode(self, table: Any) -> Array:
        """Return inputs at new rows, scaled and encoded as in training.

        Parameters
        ----------
        table : DataFrame, dict of str to array, or array (m, columns)
            New rows. Columns of a frame are matched by name, and further columns are ignored. Columns of an array are
            matched by position.

        Returns
        -------
        array (m, d)

        Raises
        ------
        ValueError
            If a column is missing; if a value is missing, infinite or an unseen category.
        TypeError
            If the type of a column differs from training.
        """
        given = {values.name: values for values in read_table(table)}
        if absent := [name for name in self.names if name not in given]:
            listed = ", ".join(map(repr, given))
            raise ValueError(
                f"The table lacks the column {absent[0]!r}; it has {listed}.{did_you_mean(absent[:1], given)}"
            )
        return self.encoded([given[name] for name in self.names])

    def encoded(self, table: Sequence[Values]) -> Array:
        """Return inputs (m, d) for columns in the order of the training columns."""
        blocks = [column.encode(values) for column, values in zip(self.columns, table, strict=True)]
        return np.concatenate(blocks, axis=1)

    def covariance(
        self,
        kernel: str = "matern52",
        *,
        ard: bool = False,
        linear: bool = True,
        names: tuple[str, str] = ("ls", "eta"),
        magnitude: tuple[float, float] = _MAGNITUDE,
    ) -> Any:
        """Add priors of length scales and magnitude to the current model. Return a covariance function with them.

        Columns of numbers share one length scale; with `ard` each has a separate length scale. A column of categories
        always has a separate length scale ls. Rows of two different categories have the distance √2/ls. The factor of
        `"rbf"` for this distance is exp(−1/ls²). For p columns, length scales are log-normal with the median √p. The
        magnitude is log-normal with the median e. With `linear` a linear function of the inputs is added. The standard
        deviation of its slopes is the variable `slope`.

        Parameters
        ----------
        kernel : {"rbf", "matern32", "matern52"}
        ard : bool
            Whether each column has a separate length scale. The variable has the dim `column` if the model has this
            dim.
        linear : bool
            Whether latent functions have a linear part in addition.
        names : (str, str)
            Names of the length scale and of the magnitude. Without `ard`, the name of the length scales of categories
            ends in `_category`.
        magnitude : (float, float)
            Mean and standard deviation of the log magnitude. The linear part has the same prior magnitude if all
            numbers of a row are one standard deviation from their means.

        Returns
        -------
        pm.gp.cov.Covariance
            For `pm.gp.Latent(cov_func=...)` with inputs `X`.

        Raises
        ------
        TypeError
            If no model is current.
        ValueError
            If the kernel is unknown.

        Examples
        --------
        >>> table = gpep.columns(frame)
        >>> with pm.Model(coords=table.coords):
        ...     f = pm.gp.Latent(cov_func=table.covariance()).prior("f", X=table.X)
        ...     gpep.Probit("y", f, observed=y)
        ...     fit = pm.fit(method="ep")
        >>> fit.predict(table.encode(new))
        """
        check_name("kernel", kernel, KERNELS)
        scales = self._length_scales(names[0], ard)
        eta, d = pm.LogNormal(names[1], *magnitude), self.X.shape[1]
        covariance = eta**2 * KERNELS[kernel](d, ls=scales[self.places] if scales.ndim else scales)
        if not linear:
            return covariance
        mean, deviation = magnitude
        slope = pm.LogNormal("slope", mean - np.log(len(self.columns)) / 2, deviation)
        return covariance + slope**2 * pm.gp.cov.Linear(d, c=np.zeros(d))

    def _length_scales(self, name: str, ard: bool) -> Any:
        """Add a prior of length scales to the model. Return the length scale of each column (p,) or of all columns."""
        prior = {"mu": np.log(len(self.columns)) / 2, "sigma": _SPREAD_OF_SCALE}
        known = "column" in pm.modelcontext(None).coords
        if ard:
            return pm.LogNormal(name, **prior, **({"dims": "column"} if known else {"shape": len(self.columns)}))
        category = np.array([isinstance(column, CategoryColumn) for column in self.columns])
        if not category.any():
            return pm.LogNormal(name, **prior)
        of_categories = pm.LogNormal(f"{name}_category", **prior, shape=int(category.sum()))
        if category.all():
            return of_categories
        # The vector has one length scale for all columns of numbers, then one for each column of categories.
        where = np.where(category, np.cumsum(category), 0)
        return pt.concatenate([pm.LogNormal(name, **prior)[None], of_categories])[where]

    def length_scales(self, hyperparameters: Any, names: tuple[str, str] = ("ls", "eta")) -> Array:
        """Return the length scale of each column, (p,), from the hyperparameters of a fit. The model uses `covariance`.

        The length scale of a constant column of numbers is infinite.

        Raises
        ------
        ValueError
            If the hyperparameters do not include the length scales of `covariance`.
        """
        name, category = names[0], np.array([isinstance(column, CategoryColumn) for column in self.columns])
        known = {key: np.asarray(hyperparameters[key]) for key in (name, f"{name}_category") if key in hyperparameters}
        found = np.full(len(self.columns), np.nan)
        if name in known and (known[name].ndim == 0 or known[name].shape == found.shape):
            found[:] = known[name]
        if f"{name}_category" in known:
            found[category] = known[f"{name}_category"]
        if np.isnan(found).any():
            raise ValueError("The hyperparameters lack the length scales of Columns.covariance. Use this covariance.")
        constant = [isinstance(column, NumberColumn) and not column.deviation for column in self.columns]
        return np.where(constant, np.inf, found)


def columns(table: Any, *, missing: Missing = "error", unseen: Unseen = "error") -> Columns:
    """Read the columns of a table as inputs of a Gaussian process.

    Parameters
    ----------
    table : DataFrame of pandas or polars, dict of str to array, or array (n, columns)
        Training rows. Numbers and booleans are standardised; strings and categories become categories.
    missing : {"error", "impute"}
        Treatment of missing values. `"error"` raises an error with the name of the column. `"impute"` replaces a number
        by the mean of the column, and a category by an additional category for missing values.
    unseen : {"error", "new"}
        Treatment in `encode` of categories that are not in the training rows. `"error"` raises an error with the name
        of the column. `"new"` replaces them by one additional level.

    Returns
    -------
    Columns
        `X`, `covariance()` with priors for a model, and `encode` for new rows.

    Raises
    ------
    TypeError
        If a column has values that are neither numbers nor strings.
    ValueError
        If there is no row or column, if values are missing or infinite, or if an option is unknown.

    Examples
    --------
    >>> table = gpep.columns(pd.DataFrame({"age": [31.0, 45.0, 28.0], "city": ["Rome", "Oslo", "Rome"]}))
    >>> table.X.shape  # 1 input for age, and 3 for two cities and a new level
    (3, 4)
    """
    return read_columns(read_table(table), missing, unseen)


def read_columns(table: Sequence[Values], missing: Missing = "error", unseen: Unseen = "error") -> Columns:
    """Return `Columns` for a list of columns with their values; see `columns`."""
    for name, value, known in (("missing", missing, ("error", "impute")), ("unseen", unseen, ("error", "new"))):
        check_name(name, value, known)
    if not table or not table[0].size:
        raise ValueError("The table has no rows or no columns.")
    made = tuple(column_of(values, missing, unseen) for values in table)
    X = np.concatenate([column.encode(values) for column, values in zip(made, table, strict=True)], axis=1)
    return Columns(made, X)
