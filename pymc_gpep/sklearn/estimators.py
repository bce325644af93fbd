"""Estimators of classes, counts and numbers in the style of scikit-learn, and their base class."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pandas as pd
import pymc as pm
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    assert_all_finite,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from pymc_gpep.approximations import METHODS
from pymc_gpep.approximations.limits import documented
from pymc_gpep.argument_types import check_name, check_number, check_switches, check_whole
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.fits.fit import Fit
from pymc_gpep.pytensor_settings import without_traces
from pymc_gpep.reading import read_classifier
from pymc_gpep.sklearn.fitted import (
    COUNTS,
    ClassResponse,
    CountResponse,
    FittedEstimator,
    ModelRecipe,
    NoisyClassResponse,
    RealResponse,
    Response,
    TwoClassResponse,
)
from pymc_gpep.tables.columns import KERNELS, read_columns
from pymc_gpep.tables.table import Values, is_frame, mean_and_deviation, read_table
from pymc_gpep.variational.method_choice import AUTO, MethodChoice, choose_method

_LARGEST = 2**31 - 1  # Largest seed, and PyMC's largest count.
_FEWEST = 2  # Smallest number of rows.
_OWN = {"method", "model", "random_seed", "progressbar"}  # Arguments that the estimator passes to pm.fit.
_SECTION = "Attributes\n----------\n"
_ATTRIBUTES = """\
n_features_in_ : int
    Number of columns.
feature_names_in_ : array (columns,)
    Names of the columns, if the training rows are a data frame.
fit_method_ : str
    Method of the fit.
model_ : pm.Model
    The model in PyMC.
columns_ : Columns
    Encoding of rows as inputs.
relevance_ : Series
    Inverse length scale of each column.
"""
"""Attributes of all estimators, for their docstrings."""
_SOME = 200  # If there are at least twice as many rows, a fit of this number of rows gives the start.
_AGAIN = 300  # Up to this number of rows the search has two starts, since few rows may have several maxima.


class GaussianProcessEstimator(BaseEstimator, ABC):
    """Base class of estimators: a Gaussian process with a likelihood of PyMC or of this package.

    Subclasses check observations and choose a likelihood. scikit-learn reads parameters from the signature of the
    constructor. So the constructor of a subclass lists all parameters.

    Parameters
    ----------
    kernel : {"rbf", "matern32", "matern52"} or function
        Covariance function. A function is called in the context of a model with the `Columns` of the training rows. It
        declares priors in this model, and returns a covariance function of `pm.gp.cov` for `columns.X`.
    ard : bool
        Whether each column of numbers has a separate length scale.
    linear : bool
        Whether latent functions also have a linear part. It has no effect if `kernel` is a function.
    method : str
        `"auto"`, or a method of `pm.fit`.
    hyper : str, optional
        `"map"`, or a rule of integration over hyperparameters, such as `"ccd"`; see `pm.fit`.
    max_dense_rows : int
        Largest number of rows for which a fit uses the covariance matrix. Fits of more rows use 200 inducing inputs.
    missing : {"error", "impute"}
        With "error" missing values raise an error. With "impute" they become the mean of the column, or a separate
        category.
    unseen : {"error", "new"}
        With "error" unseen categories in predictions raise an error. With "new" they become an additional category.
    fit_options : dict, optional
        Further arguments of `pm.fit`, such as `{"inducing": 200}`.
    random_state : int, RandomState or None
        Seed of random choices, such as inducing inputs.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if doc := documented(cls, GaussianProcessEstimator):
            cls.__doc__ = doc.replace(_SECTION, _SECTION + _ATTRIBUTES)

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
        """Return the tags by which scikit-learn recognises supported tables."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.categorical = True
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    def _fit(self, X: Any, y: Observed, table: list[Values], response: Response, classes: list[Any]) -> Self:
        """Build a model of the rows and fit it. Return the estimator itself."""
        self._check_parameters()
        columns = read_columns(table, self.missing, self.unseen)
        ard = len(y) > self.max_dense_rows if self.ard is None else self.ard
        recipe = ModelRecipe(columns, y, response, self.kernel, ard, self.linear, classes)
        with without_traces():
            (model, gp), given = recipe.build(), dict(self.fit_options or {})
            choice = self._choice(model, given, len(y))
            seed = int(check_random_state(self.random_state).randint(_LARGEST))
            options = (
                {"hyper": self.hyper or "map", **choice.options} | ({} if choice.n is None else {"n": choice.n}) | given
            )
            long = choice.method in METHODS and len(y) >= 2 * _SOME
            if long and not callable(self.kernel) and "start" not in options:
                options["start"] = _fit_of_some(recipe, choice.method, seed)
            fit = pm.fit(model=model, method=choice.method, random_seed=seed, progressbar=False, **options)
        if self.hyper is None and "hyper" not in given:
            fit.why_maximum = "the default of estimators is hyper='map'"
        self._fitted = FittedEstimator(recipe, fit, gp)
        self.fit_method_ = str(choice._replace(options={**choice.options, **given}, n=options.get("n")))
        return self

    def _choice(self, model: pm.Model, given: Mapping[str, Any], rows: int) -> MethodChoice:
        """Return the method of the fit, and default values of its options."""
        choice = MethodChoice(self.method, {}, None, "the parameter method names it.")
        if self.method == AUTO:
            choice = choose_method(read_classifier(model), given, self.max_dense_rows)
            by_inducing = "inducing" in {**choice.options, **given}
            if choice.method in METHODS and rows > self.max_dense_rows and not by_inducing:
                raise ValueError(
                    f"There are {rows} rows, and max_dense_rows is {self.max_dense_rows}. Methods with inducing inputs "
                    "do not support the model, so all rows are fitted together. Increase max_dense_rows."
                )
        starts = {"starts": 2} if choice.method in METHODS and rows <= _AGAIN else {}
        return choice._replace(options={**starts, **choice.options})

    def _check_parameters(self) -> None:
        """Raise an error if a parameter has a wrong type or value."""
        if not callable(self.kernel) and self.kernel not in KERNELS:
            check_name("kernel", self.kernel, KERNELS, ", or a function of columns")
        check_switches(linear=self.linear, **({} if self.ard is None else {"ard": self.ard}))
        if not isinstance(self.fit_options, Mapping | None):
            raise TypeError(f"fit_options must be a dictionary of arguments of pm.fit, but is {self.fit_options!r}.")
        if own := sorted(_OWN & set(self.fit_options or ())):
            raise ValueError(
                f"fit_options has {', '.join(map(repr, own))}, which the estimator passes to pm.fit itself. Set the "
                "parameters method and random_state of the estimator."
            )
        check_whole("max_dense_rows", self.max_dense_rows)

    def _read(self, X: Any, y: Any) -> tuple[list[Values], Any]:
        """Return the columns of training rows, and one observation for each row."""
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
        """Check observations `y`. Return them as an array (n,)."""

    def _table(self, X: Any, *, reset: bool) -> list[Values]:
        """Return the columns of a table. Names of new columns must equal the names in training."""
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return read_table(X)
        if not hasattr(X, "dtype") and np.asarray(X).dtype.kind in "US":
            X = np.array(X, dtype=object)  # Without this type, NumPy would convert numbers beside strings to strings.
        finite = "allow-nan" if self.missing == "impute" else True
        X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=finite)
        table = read_table(X)
        if reset or not hasattr(self, "feature_names_in_"):
            return table
        return [values._replace(name=str(name)) for values, name in zip(table, self.feature_names_in_, strict=True)]

    def _inputs(self, X: Any) -> Array:
        """Return the numbers that encode new rows, the inputs of the Gaussian process."""
        check_is_fitted(self)
        return self._fitted.recipe.columns.encoded(self._table(X, reset=False))

    def _predicted(self, X: Any, **options: Any) -> Any:
        inputs = self._inputs(X)
        with without_traces():
            return self._fitted.predict(inputs, **options)

    @property
    def fit_(self) -> Fit:
        """The fit, the result of `pm.fit`."""
        check_is_fitted(self, "_fitted")
        return self._fitted.fit

    @property
    def model_(self) -> pm.Model:
        """The fitted PyMC model."""
        check_is_fitted(self, "_fitted")
        return self._fitted.model

    @property
    def columns_(self) -> Any:
        """The columns of the training rows, see `gpep.columns`. New rows are encoded in the same way."""
        check_is_fitted(self, "_fitted")
        return self._fitted.recipe.columns

    @property
    def relevance_(self) -> pd.Series:
        """Inverse length scale of each column, by name. It measures how fast the nonlinear part of functions varies.

        The linear effect of a column is not included: use `sklearn.inspection.permutation_importance` to rank columns.
        Columns that share a length scale have the same relevance. The relevance of a constant column is 0.

        Raises
        ------
        ValueError
            If the covariance is a function of the user.
        """
        columns = self.columns_
        return pd.Series(1.0 / columns.length_scales(self.fit_.hyperparameters), columns.names, name="relevance")


def _fit_of_some(recipe: ModelRecipe, method: str, seed: int) -> Fit | None:
    """Return a fit of a few rows. It is the start of the fit of all rows, and shortens the search.

    The few rows are evenly spaced in the order of their observations. None is returned if the fit fails.
    """
    some = np.argsort(recipe.y, kind="stable")[np.linspace(0, len(recipe.y) - 1, _SOME).astype(int)]
    columns = replace(recipe.columns, X=recipe.columns.X[some])
    model, _ = replace(recipe, columns=columns, y=recipe.y[some]).build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The fit of all rows raises the same warnings.
        try:
            fit: Fit = pm.fit(model=model, method=method, hyper="map", random_seed=seed, progressbar=False)
        except (ArithmeticError, ValueError):
            return None
    return fit


def check_level(level: Any) -> float:
    """Return `level` if it lies between 0 and 1, else raise an error."""
    check_number("level", level)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1, but is {level}.")
    return float(level)


def quantile_levels(level: Any) -> list[float]:
    """Return the levels of two quantiles. Between them lies the probability `level`, and outside equal tails."""
    tail = (1.0 - check_level(level)) / 2.0
    return [tail, 1.0 - tail]


class GaussianProcessClassifier(ClassifierMixin, GaussianProcessEstimator):
    """Classify by Gaussian processes: probit for two classes, multinomial probit for more.

    Rows may be arrays or data frames with numbers, booleans, strings and categories. Inputs are
    standardised internally. Two classes are fitted by EP, more classes by nested EP. Hyperparameters are learned.

    Parameters
    ----------
    ard : bool, optional
        Whether each column of numbers has a separate length scale. The default is True for more than `max_dense_rows`
        rows only, since few rows do not determine many length scales.
    method : str
        `"auto"`, or a method of `pm.fit`. With `"auto"`, up to `max_dense_rows` rows are fitted together, if memory
        allows. More rows are fitted by batches with learned inducing inputs.
    label_noise : float
        Probability that a label is replaced by a random class. All classes are then equally probable.
    max_dense_rows : int
        Largest number of rows for a fit of all rows together.

    Attributes
    ----------
    classes_ : array (c,)
        Labels in order.
    fit_ : Fit
        The fit, the result of `pm.fit`.

    Examples
    --------
    >>> from pymc_gpep.sklearn import GaussianProcessClassifier
    >>> classifier = GaussianProcessClassifier().fit(X, y)
    >>> classifier.predict_proba(Xnew)
    """

    def __init__(
        self,
        kernel: Any = "matern52",
        *,
        ard: bool | None = None,
        linear: bool = True,
        method: str = "auto",
        hyper: str | None = None,
        label_noise: float = 0.0,
        max_dense_rows: int = 1000,
        missing: str = "error",
        unseen: str = "error",
        fit_options: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            kernel,
            ard=ard,
            linear=linear,
            method=method,
            hyper=hyper,
            max_dense_rows=max_dense_rows,
            missing=missing,
            unseen=unseen,
            fit_options=fit_options,
            random_state=random_state,
        )
        self.label_noise = label_noise

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the estimator to rows and their labels.

        Parameters
        ----------
        X : array (n, columns) or DataFrame
        y : array (n,)
            Labels: numbers, strings or booleans.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If there is only one class, or if rows or parameters are invalid; the message names the column.
        """
        table, y = self._read(X, y)
        classes, numbers = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"Labels must be of two classes or more, but there is one class: {classes.tolist()}.")
        self.classes_ = classes
        return self._fit(X, numbers, table, self._response(), classes.tolist())

    def _observations(self, y: Any) -> Observed:
        labels = column_or_1d(y, warn=True)
        if labels.dtype.kind == "f":
            assert_all_finite(labels, input_name="y")
        elif (missing := pd.isna(labels)).any():
            (rows,) = np.nonzero(missing)
            raise ValueError(f"Labels y have a missing value in row {rows[0]}. Leave out rows without a label.")
        check_classification_targets(labels)
        return labels

    def _response(self) -> Response:
        check_number("label_noise", self.label_noise)
        if not 0.0 <= self.label_noise < 1.0:
            raise ValueError(f"label_noise must be at least 0 and below 1, but is {self.label_noise}.")
        if self.label_noise:
            return NoisyClassResponse(len(self.classes_), float(self.label_noise))
        return TwoClassResponse() if len(self.classes_) == 2 else ClassResponse(len(self.classes_))

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities (m, c) of the classes at new rows, in the order of `classes_`."""
        p: Array = self._predicted(X, covariances=False)["p"].values
        return p / p.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Observed:
        """Return the most probable class at each new row, (m,)."""
        largest = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[largest])

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Return intervals of the class probabilities at new rows. Training rows do not determine these exactly.

        Parameters
        ----------
        X : array (m, columns) or DataFrame
        level : float
            Posterior probability of an interval.

        Returns
        -------
        array (m, c, 2)
            Lower and upper ends.
        """
        return np.asarray(self._predicted(X, covariances=False, intervals=check_level(level))["p_interval"].values)


class GaussianProcessRegressor(RegressorMixin, GaussianProcessEstimator):
    """Predict numbers by a Gaussian process with normal noise. The standard deviation of the noise is learned.

    Rows may be arrays or data frames with numbers, booleans, strings and categories. Inputs and `y` are standardised
    internally. The posterior of the latent function given the hyperparameters is exact.

    Attributes
    ----------
    fit_ : Fit
        The fit to standardised numbers.

    Examples
    --------
    >>> from pymc_gpep.sklearn import GaussianProcessRegressor
    >>> regressor = GaussianProcessRegressor().fit(X, y)
    >>> mean, deviation = regressor.predict(Xnew, return_std=True)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the estimator to rows and their numbers.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If rows or parameters are invalid; the message names the column.
        """
        table, y = self._read(X, y)
        self._mean, deviation = mean_and_deviation(y)
        self._deviation = deviation or 1.0
        return self._fit(X, (y - self._mean) / self._deviation, table, RealResponse(), [])

    def _observations(self, y: Any) -> Observed:
        numbers = column_or_1d(y, warn=True)
        return np.asarray(check_array(numbers, ensure_2d=False, dtype=np.float64, input_name="y"))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predicted numbers at new rows.

        Parameters
        ----------
        X : array (m, columns) or DataFrame
        return_std : bool
            Whether the standard deviation of a new observation, noise included, is also returned.

        Returns
        -------
        array (m,), or a pair of them
        """
        found = self._predicted(X)
        mean = self._mean + self._deviation * found["y_mean"].values
        if not return_std:
            return mean
        return mean, self._deviation * np.sqrt(found["y_variance"].values)

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Return intervals (m, 2) that contain a new observation with the probability `level`."""
        quantiles = self._predicted(X, quantiles=quantile_levels(level))["y_quantile"].values
        return np.asarray(self._mean + self._deviation * quantiles)


class GaussianProcessCounts(GaussianProcessEstimator):
    """Predict counts. The rate of a count is the exponential of a Gaussian process.

    Rows may be arrays or data frames with numbers, booleans, strings and categories. Inputs are
    standardised internally. Counts are whole numbers of at least 0. Regressors of scikit-learn accept any number, so
    `sklearn.base.is_regressor` is False for this estimator.

    Parameters
    ----------
    likelihood : {"poisson", "negative_binomial"}
        Distribution of a count given its rate. The negative binomial has a larger variance.

    Attributes
    ----------
    fit_ : Fit
        The fit, the result of `pm.fit`.

    Examples
    --------
    >>> from pymc_gpep.sklearn import GaussianProcessCounts
    >>> counts = GaussianProcessCounts().fit(X, y)
    >>> counts.predict(Xnew)
    """

    def __init__(
        self,
        kernel: Any = "matern52",
        *,
        ard: bool = False,
        linear: bool = True,
        likelihood: str = "poisson",
        method: str = "auto",
        hyper: str | None = None,
        max_dense_rows: int = 3000,
        missing: str = "error",
        unseen: str = "error",
        fit_options: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            kernel,
            ard=ard,
            linear=linear,
            method=method,
            hyper=hyper,
            max_dense_rows=max_dense_rows,
            missing=missing,
            unseen=unseen,
            fit_options=fit_options,
            random_state=random_state,
        )
        self.likelihood = likelihood

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the estimator to rows and their counts.

        Parameters
        ----------
        X : array (n, columns) or DataFrame
        y : array (n,)
            Whole numbers of at least 0.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If `y` contains invalid counts; if rows or parameters are invalid.
        """
        check_name("likelihood", self.likelihood, COUNTS)
        table, y = self._read(X, y)
        # Half a count is added to the sum, so that the log of the mean is finite if all counts are 0.
        response = CountResponse(float(np.log(y.mean() + 0.5 / len(y))), self.likelihood)
        return self._fit(X, y, table, response, [])

    def _observations(self, y: Any) -> Observed:
        numbers = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype=np.float64, input_name="y")
        if (bad := (numbers < 0) | (numbers != np.floor(numbers))).any():
            raise ValueError(f"Counts must be whole numbers of at least 0, but a count is {numbers[bad][0]}.")
        if (numbers > _LARGEST).any():
            raise ValueError(f"Counts must be at most {_LARGEST}, PyMC's largest, but a count is {numbers.max():.0f}.")
        return np.asarray(numbers.astype(np.int64))

    def predict(self, X: Any) -> Array:
        """Return the predicted mean (m,) of a count at each new row.

        The log rate has a normal posterior, so the rate is log-normal. Far from the training rows the variance of the
        log rate is large, and rare large counts dominate the mean. If the mean exceeds nearly all predicted counts, the
        method warns. `predict_interval` returns the range of counts.
        """
        return np.asarray(self._predicted(X)["y_mean"].values)

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Return intervals (m, 2) that contain a new count with at least the probability `level`."""
        return np.asarray(self._predicted(X, quantiles=quantile_levels(level))["y_quantile"].values)

    def score(self, X: Any, y: Any) -> float:
        """Return the share of the Poisson deviance explained by predictions: 1 at best, 0 for a constant mean.

        If all counts are equal, the deviance to explain is 0. The score is then 0, as in regressors of scikit-learn.
        """
        if len(y) >= 2 and len(np.unique(y)) == 1:
            return 0.0
        return float(d2_tweedie_score(y, self.predict(X), power=1))
