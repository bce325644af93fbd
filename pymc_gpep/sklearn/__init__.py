"""Estimators in the style of scikit-learn: `fit`, `predict`, `predict_proba`, `score`.

It needs scikit-learn, the extra `scikit-learn`.

fitted: likelihoods of the estimators, their models, and the fits of these
estimator: base class: table, model and fit
classifier: classes
counts: counts
regressor: numbers
"""

from pymc_gpep.sklearn.classifier import GaussianProcessClassifier
from pymc_gpep.sklearn.counts import GaussianProcessCounts
from pymc_gpep.sklearn.regressor import GaussianProcessRegressor

__all__ = ["GaussianProcessClassifier", "GaussianProcessCounts", "GaussianProcessRegressor"]
