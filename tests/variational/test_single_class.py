"""Data with labels of a single class."""

import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from tests import models

CLASSES = {
    "two": lambda f, n: gpep.Probit("y", f, observed=np.ones(n, int)),
    "named": lambda f, n: gpep.MultinomialProbit("y", f.T, observed=np.full(n, 1), dims=("flower",)),
    "counts": lambda f, n: pm.Poisson("y", mu=pm.math.exp(f), observed=np.ones(n, int)),
}


def fit(observe, outputs, **options):
    X, _ = models.data()
    with pm.Model(coords={"species": models.SPECIES, "flower": np.arange(len(X))}):
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        dims = ("species", "flower") if outputs > 1 else ("flower",)
        observe(gp.prior("f", X=X, dims=dims, **({"n_outputs": outputs} if outputs > 1 else {})), len(X))
        return pm.fit(progressbar=False, **options)


@pytest.mark.parametrize(
    ("classes", "outputs", "options", "name"),
    [
        ("two", 1, {"method": "ep"}, "1"),
        ("named", 3, {"method": "nested_ep"}, "'versicolor'"),
        ("two", 1, {"method": "sparse_ep", "inducing": 4, "learn_inducing": False}, "1"),
        ("named", 3, {"method": "sparse_ep", "inducing": 4, "batch_size": 10, "n": 1}, "'versicolor'"),
        ("two", 1, {"method": "ivm", "active": 4}, "1"),
    ],
)
def test_single_class_causes_one_warning(classes, outputs, options, name):
    with pytest.warns(UserWarning, match=f"All 30 labels of 'y' are of the class {name}, .* rows of other") as found:
        fit(CLASSES[classes], outputs, **options)
    assert len(found) == 1


def test_equal_counts_cause_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(CLASSES["counts"], 1, method="ep")
