"""The base of the estimators: tables, the model that is made of them, and the fit."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pandas as pd
import pymc as pm
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from pymc_gpep.approximations import METHODS
from pymc_gpep.argument_types import check_name, check_number, check_switches, check_whole
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits.fit import Fit
from pymc_gpep.graphs.interpreted import without_traces
from pymc_gpep.reading import read_classifier
from pymc_gpep.sklearn.fitted import FittedEstimator, ModelRecipe, Response
from pymc_gpep.tables.columns import KERNELS, read_columns
from pymc_gpep.tables.table import Values, is_frame, read_table
from pymc_gpep.variational.method_choice import AUTO, MethodChoice, choose_method

_LARGEST_SEED = 2**31 - 1
_FEWEST = 2  # rows
_OWN = {"method", "model", "random_seed", "progressbar"}  # arguments of pm.fit that the estimator gives itself
_SOME = 200  # rows whose fit says where the search among many more begins
_AGAIN = 300  # most rows for which the maximum is looked for from two starts: few rows leave several maxima


class GaussianProcessEstimator(BaseEstimator, ABC):
    """An estimator whose model is a Gaussian process with one of the likelihoods of this package.

    Subclasses check observations and choose a likelihood. scikit-learn reads parameters from the signature of a
    constructor. One with parameters of its own lists them all.
    """

    def __init__(
        self,
        kernel: Any = "matern52",
        *,
        ard: bool | None = False,
        linear: bool = True,
        method: str = "auto",
        hyper: str | None = None,
        max_dense_rows: int = 3000,
        missing: Any = "error",
        unseen: Any = "error",
        fit_options: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.ard = ard
        self.linear = linear
        self.method = method
        self.hyper = hyper
        self.max_dense_rows = max_dense_rows
        self.missing = missing
        self.unseen = unseen
        self.fit_options = fit_options
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Say what kinds of tables are read."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.categorical = True
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    def _fit(self, X: Any, y: Observed, table: list[Values], response: Response, classes: list[Any]) -> Self:
        """Make a model of rows and fit it."""
        self._check_parameters()
        columns = read_columns(table, self.missing, self.unseen)
        ard = len(y) > self.max_dense_rows if self.ard is None else self.ard
        recipe = ModelRecipe(columns, y, response, self.kernel, ard, self.linear, classes)
        with without_traces():
            (model, gp), given = recipe.build(), dict(self.fit_options or {})
            choice = self._choice(model, given, len(y))
            seed = int(check_random_state(self.random_state).randint(_LARGEST_SEED))
            options = (
                {"hyper": self.hyper or "map", **choice.options} | ({} if choice.n is None else {"n": choice.n}) | given
            )
            long = choice.method in METHODS and len(y) >= 2 * _SOME
            if long and not callable(self.kernel) and "start" not in options:
                options["start"] = _fit_of_some(recipe, choice.method, seed)
            fit = pm.fit(model=model, method=choice.method, random_seed=seed, progressbar=False, **options)
        self._fitted = FittedEstimator(recipe, fit, gp)
        self.fit_method_ = str(choice._replace(options={**choice.options, **given}, n=options.get("n")))
        return self

    def _choice(self, model: pm.Model, given: Mapping[str, Any], rows: int) -> MethodChoice:
        """Return the method, and what it takes where the user does not say it."""
        choice = MethodChoice(self.method, {}, None, "it was asked for.")
        if self.method == AUTO:
            choice = choose_method(read_classifier(model), given, self.max_dense_rows)
            if choice.method in METHODS and rows > self.max_dense_rows:
                raise ValueError(
                    f"There are {rows} rows, and max_dense_rows is {self.max_dense_rows}. Numbers and "
                    "counts are fitted by all rows together, in a time that grows with the cube of their number. Raise "
                    "max_dense_rows, or fit fewer."
                )
        starts = {"starts": 2} if choice.method in METHODS and rows <= _AGAIN else {}
        return choice._replace(options={**starts, **choice.options})

    def _check_parameters(self) -> None:
        """Refuse parameters of a wrong type or value before any work."""
        if not callable(self.kernel) and self.kernel not in KERNELS:
            check_name("kernel", self.kernel, KERNELS, ", or a function of columns")
        check_switches(linear=self.linear, **({} if self.ard is None else {"ard": self.ard}))
        if not isinstance(self.fit_options, Mapping | None):
            raise TypeError(f"fit_options must be a dictionary of arguments of pm.fit, but is {self.fit_options!r}.")
        if own := sorted(_OWN & set(self.fit_options or ())):
            raise ValueError(
                f"fit_options has {', '.join(map(repr, own))}, which the estimator gives to pm.fit itself. Its "
                "parameters method and random_state say what they are."
            )
        check_whole("max_dense_rows", self.max_dense_rows)

    def _read(self, X: Any, y: Any) -> tuple[list[Values], Any]:
        """Read training rows: columns, and observations that are one for each."""
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        table = self._table(X, reset=True)
        y = self._observations(y)
        check_consistent_length(X, y)
        if len(y) < _FEWEST:
            raise ValueError(f"A fit needs two rows or more, but there is {len(y)} sample.")
        return table, y

    @abstractmethod
    def _observations(self, y: Any) -> Observed:
        """Check observations, and return them as an array (n,)."""

    def _table(self, X: Any, *, reset: bool) -> list[Values]:
        """Columns of a table, with the names that training rows had."""
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return read_table(X)
        if not hasattr(X, "dtype") and np.asarray(X).dtype.kind in "US":
            X = np.array(X, dtype=object)  # numbers beside strings stay numbers
        finite = "allow-nan" if self.missing == "impute" else True
        X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=finite)
        table = read_table(X)
        if reset or not hasattr(self, "feature_names_in_"):
            return table
        return [values._replace(name=str(name)) for values, name in zip(table, self.feature_names_in_, strict=True)]

    def _inputs(self, X: Any) -> Array:
        """Inputs of new rows."""
        check_is_fitted(self)
        return self._fitted.recipe.columns.encoded(self._table(X, reset=False))

    def _predicted(self, X: Any, **options: Any) -> Any:
        inputs = self._inputs(X)
        with without_traces():
            return self._fitted.predict(inputs, **options)

    @property
    def fit_(self) -> Fit:
        """The fit, as `pm.fit` returned it."""
        check_is_fitted(self, "_fitted")
        return self._fitted.fit

    @property
    def model_(self) -> pm.Model:
        """The model in PyMC that was fitted."""
        check_is_fitted(self, "_fitted")
        return self._fitted.model

    @property
    def columns_(self) -> Any:
        """The columns of the training rows, which encode new ones; see `gpep.columns`."""
        check_is_fitted(self, "_fitted")
        return self._fitted.recipe.columns

    @property
    def relevance_(self) -> pd.Series:
        """Inverse length scale of each column, by name: how fast the curved part of latent functions varies along it.

        A straight effect of a column is not in it: `sklearn.inspection.permutation_importance` says which columns
        matter. Numbers that share a length scale have the same relevance. A column that does not vary has 0.

        Raises
        ------
        ValueError
            If the covariance is the user's own.
        """
        columns = self.columns_
        return pd.Series(1.0 / columns.length_scales(self.fit_.hyperparameters), columns.names, name="relevance")


def _fit_of_some(recipe: ModelRecipe, method: str, seed: int) -> Fit | None:
    """Fit few of the rows, of all classes alike: a search among all rows that begins there is short.

    None where so few rows cannot be fitted. All of them may.
    """
    some = np.argsort(recipe.y, kind="stable")[np.linspace(0, len(recipe.y) - 1, _SOME).astype(int)]
    columns = replace(recipe.columns, X=recipe.columns.X[some])
    model, _ = replace(recipe, columns=columns, y=recipe.y[some]).build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is all rows that a user is warned of
        try:
            fit: Fit = pm.fit(model=model, method=method, hyper="map", random_seed=seed, progressbar=False)
        except (ArithmeticError, ValueError):
            return None
    return fit


def check_level(level: Any) -> float:
    """Raise an error unless a number is a probability between 0 and 1, and return it."""
    check_number("level", level)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1, but is {level}.")
    return float(level)


def quantile_levels(level: Any) -> list[float]:
    """Levels of the two quantiles between which a share `level` lies."""
    tail = (1.0 - check_level(level)) / 2.0
    return [tail, 1.0 - tail]
