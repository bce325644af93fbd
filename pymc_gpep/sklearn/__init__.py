"""Estimators in the style of scikit-learn: `fit`, `predict`, `predict_proba`, `score`.

The module needs scikit-learn: `pip install "pymc-gpep[scikit-learn]"`.

fitted: likelihoods, models and fits of the estimators
estimators: estimators of classes, numbers and counts, and their base class
"""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'pymc_gpep.sklearn needs scikit-learn: pip install "pymc-gpep[scikit-learn]".', name="sklearn"
    ) from missing

from pymc_gpep.sklearn.estimators import (
    GaussianProcessClassifier,
    GaussianProcessCounts,
    GaussianProcessRegressor,
)

__all__ = ["GaussianProcessClassifier", "GaussianProcessCounts", "GaussianProcessRegressor"]
