"""Gaussian processes in the style of scikit-learn: `fit`, `predict`, `predict_proba`, `score`.

It needs scikit-learn, the extra `scikit-learn`.
"""

from pymc_gpep.sklearn.classifier import GaussianProcessClassifier
from pymc_gpep.sklearn.counts import GaussianProcessCounts
from pymc_gpep.sklearn.regressor import GaussianProcessRegressor

__all__ = ["GaussianProcessClassifier", "GaussianProcessCounts", "GaussianProcessRegressor"]
