"""A regressor in the style of scikit-learn."""

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, column_or_1d

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.sklearn.estimator import GaussianProcessEstimator, quantile_levels
from pymc_gpep.sklearn.fitted import RealResponse
from pymc_gpep.tables.table import mean_and_deviation


class GaussianProcessRegressor(RegressorMixin, GaussianProcessEstimator):
    """Predict numbers by a Gaussian process with normal noise, whose size is learned.

    Rows may be arrays or data frames with numbers, booleans, strings and categories. Inputs and `y` are standardised
    within. Given the hyperparameters the posterior is exact.

    Parameters
    ----------
    kernel : {"rbf", "matern32", "matern52"} or function
        Covariance function; see `GaussianProcessClassifier`.
    ard : bool
        Whether each column of numbers has a length scale of its own.
    linear : bool
        Whether latent functions have a linear part as well. Without effect where `kernel` is a function.
    method : str
        `"auto"`, or a method of `pm.fit`.
    hyper : str, optional
        `"map"`, or a way to integrate over hyperparameters, such as `"ccd"`; see `pm.fit`.
    max_dense_rows : int
        Most rows; more are refused, since all are fitted together.
    missing : {"error", "impute"}
        Whether missing values are refused, or take the mean of a number and a category of their own.
    unseen : {"error", "new"}
        Whether new categories are refused when predicting, or taken for a level of their own.
    fit_options : dict, optional
        Further arguments of `pm.fit`.
    random_state : int, RandomState or None
        Seed for what is drawn.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : array (columns,)
        Names of the columns, where training rows were a data frame.
    fit_method_ : str
        Method that was taken.
    fit_ : Fit
        The fit, of standardised numbers.
    model_ : pm.Model
        The model in PyMC.
    columns_ : Columns
        How rows are encoded.
    relevance_ : Series
        Inverse length scale of each column.

    Examples
    --------
    >>> from pymc_gpep.sklearn import GaussianProcessRegressor
    >>> regressor = GaussianProcessRegressor().fit(X, y)
    >>> mean, deviation = regressor.predict(Xnew, return_std=True)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows and their numbers.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If rows or parameters cannot be used; the message names the column.
        """
        table, y = self._read(X, y)
        self._mean, deviation = mean_and_deviation(y)
        self._deviation = deviation or 1.0
        return self._fit(X, (y - self._mean) / self._deviation, table, RealResponse(), [])

    def _observations(self, y: Any) -> Observed:
        numbers = column_or_1d(y, warn=True)
        checked: Observed = check_array(numbers, ensure_2d=False, dtype=np.float64, input_name="y")
        return checked

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict numbers at new rows.

        Parameters
        ----------
        X : array (m, columns) or DataFrame
        return_std : bool
            Whether to return the standard deviation of a new observation as well, noise and all.

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
        """Intervals (m, 2) that hold a new observation with the probability `level`."""
        quantiles = self._predicted(X, quantiles=quantile_levels(level))["y_quantile"].values
        ends: Array = self._mean + self._deviation * quantiles
        return ends
