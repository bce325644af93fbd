"""Estimators in the style of scikit-learn: `fit`, `predict`, `predict_proba`, `score`.

It needs scikit-learn, the extra `scikit-learn`.

fitted: likelihoods of the estimators, their models, and the fits of these
estimators: estimators of classes, numbers and counts, and their base class
"""

from pymc_gpep.sklearn.estimators import (
    GaussianProcessClassifier,
    GaussianProcessCounts,
    GaussianProcessRegressor,
)

__all__ = ["GaussianProcessClassifier", "GaussianProcessCounts", "GaussianProcessRegressor"]
