"""An estimator of counts in the style of scikit-learn."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import check_array, column_or_1d

from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.sklearn.estimator import GaussianProcessEstimator, quantile_levels
from pymc_gpep.sklearn.fitted import COUNTS, CountResponse

_LARGEST = np.iinfo(np.int32).max


class GaussianProcessCounts(GaussianProcessEstimator):
    """Predict counts whose rate is the exponential of a Gaussian process.

    Rows may be arrays or data frames with numbers, booleans, strings and categories. Inputs are standardised within.
    Counts are whole numbers of at least 0. scikit-learn's regressors take any number, and so its `is_regressor` is
    False for this estimator.

    Parameters
    ----------
    kernel : {"rbf", "matern32", "matern52"} or function
        Covariance function; see `GaussianProcessClassifier`.
    ard : bool
        Whether each column of numbers has a length scale of its own.
    linear : bool
        Whether latent functions have a linear part as well. Without effect where `kernel` is a function.
    likelihood : {"poisson", "negative_binomial"}
        Distribution of a count given its rate. The second has more spread.
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
        The fit, as `pm.fit` returned it.
    model_ : pm.Model
        The model in PyMC.
    columns_ : Columns
        How rows are encoded.
    relevance_ : Series
        Inverse length scale of each column.

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
        """Learn from rows and their counts.

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
            If `y` are no counts; if rows or parameters cannot be used.
        """
        check_name("likelihood", self.likelihood, COUNTS)
        table, y = self._read(X, y)
        # Half a count more keeps the level finite where all counts are 0.
        response = CountResponse(float(np.log(y.mean() + 0.5 / len(y))), self.likelihood)
        return self._fit(X, y, table, response, [])

    def _observations(self, y: Any) -> Observed:
        numbers = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype=np.float64, input_name="y")
        if (bad := (numbers < 0) | (numbers != np.floor(numbers))).any():
            raise ValueError(f"Counts must be whole numbers of at least 0, but one is {numbers[bad][0]}.")
        if (numbers > _LARGEST).any():
            raise ValueError(f"Counts must be at most {_LARGEST}, which PyMC can keep, but one is {numbers.max():.0f}.")
        counts: Observed = numbers.astype(np.int64)
        return counts

    def predict(self, X: Any) -> Array:
        """Predict the mean (m,) of a count at each new row.

        The logarithm of the rate has a normal posterior, and the mean is that of a log-normal mixture. At rows far from
        the training rows that posterior is wide, and rare large counts make the mean. If the mean is above nearly all
        predicted counts, there is a warning; `predict_interval` shows what to expect.
        """
        mean: Array = self._predicted(X)["y_mean"].values
        return mean

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Intervals (m, 2) that hold a new count with at least the probability `level`."""
        ends: Array = self._predicted(X, quantiles=quantile_levels(level))["y_quantile"].values
        return ends

    def score(self, X: Any, y: Any) -> float:
        """Share of the Poisson deviance of counts that predictions explain: 1 at best, 0 of a constant mean.

        If all counts are alike there is no deviance to explain. The score is then 0, as that of scikit-learn's own
        regressors.
        """
        if len(y) >= 2 and len(np.unique(y)) == 1:
            return 0.0
        return float(d2_tweedie_score(y, self.predict(X), power=1))
