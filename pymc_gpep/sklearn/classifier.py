"""A classifier in the style of scikit-learn."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, column_or_1d

from pymc_gpep.argument_types import check_number
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.sklearn.estimator import GaussianProcessEstimator, check_level
from pymc_gpep.sklearn.fitted import ClassResponse, NoisyClassResponse, Response, TwoClassResponse


class GaussianProcessClassifier(ClassifierMixin, GaussianProcessEstimator):
    """Classify by Gaussian processes: probit for two classes, multinomial probit for more.

    Rows may be arrays or data frames with numbers, booleans, strings and categories. Inputs are standardised within.
    Two classes are fitted by EP, more by nested EP. Hyperparameters are learned.

    Parameters
    ----------
    kernel : {"rbf", "matern32", "matern52"} or function
        Covariance function. A function is called in the context of a model with the `Columns` of the training rows. It
        declares priors there, and returns one of `pm.gp.cov` for `columns.X`.
    ard : bool, optional
        Whether each column of numbers has a length scale of its own. If not given, beyond `max_dense_rows`: few rows
        do not tell so many length scales.
    linear : bool
        Whether latent functions have a linear part as well. Without effect where `kernel` is a function.
    method : str
        `"auto"`: all rows up to `max_dense_rows`, as far as memory goes. Beyond there are inducing inputs that batches
        learn. Otherwise a method of `pm.fit`.
    hyper : str, optional
        `"map"`, or a way to integrate over hyperparameters, such as `"ccd"`; see `pm.fit`.
    label_noise : float
        Part of the labels that are drawn from all classes alike.
    max_dense_rows : int
        Most rows that are fitted all together.
    missing : {"error", "impute"}
        Whether missing values are refused, or take the mean of a number and a category of their own.
    unseen : {"error", "new"}
        Whether new categories are refused when predicting, or taken for a level of their own.
    fit_options : dict, optional
        Further arguments of `pm.fit`, such as `{"inducing": 200}`.
    random_state : int, RandomState or None
        Seed for what is drawn, such as inducing inputs.

    Attributes
    ----------
    classes_ : array (c,)
        Labels in order.
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
        """Learn from rows and their labels.

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
            If there is one class only, or rows or parameters cannot be used; the message names the column.
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
        """Probabilities (m, c) of the classes at new rows, in the order of `classes_`."""
        p: Array = self._predicted(X, covariances=False)["p"].values
        return p / p.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Observed:
        """Return the most probable class at each new row, (m,)."""
        largest = self.predict_proba(X).argmax(axis=1)
        labels: Observed = self.classes_[largest]
        return labels

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Intervals of the probabilities of the classes: how far the training rows leave these open.

        Parameters
        ----------
        X : array (m, columns) or DataFrame
        level : float
            Posterior probability that an interval holds.

        Returns
        -------
        array (m, c, 2)
            Lower and upper end.
        """
        ends: Array = self._predicted(X, covariances=False, intervals=check_level(level))["p_interval"].values
        return ends
