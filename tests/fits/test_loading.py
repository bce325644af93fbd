"""Loaded fits that need no solve: files of other models are refused."""

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep.fits.loading import check_covariance
from tests import models

X, Y = models.data()


def model_with(covariance, likelihood=gpep.Probit):
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 3, 3)
        f = pm.gp.Latent(cov_func=9 * covariance(2, ls=ls)).prior("f", X=X)
        likelihood("y", f, observed=(Y == 2).astype(int))
    return model


def logit(name, f, observed):
    return pm.Bernoulli(name, logit_p=f, observed=observed)


@pytest.mark.variation(but=["batches"])
@pytest.mark.filterwarnings("ignore:Hyperparameters did not converge")
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sparse_ep", {"inducing": 5, "learn_inducing": False}),
        ("sparse_ep", {"inducing": 5, "batch_size": 15}),
        ("ivm", {"active": 8, "rounds": 0}),
    ],
    ids=["inducing inputs", "batches", "active rows"],
)
def test_loading_with_another_model_is_refused(method, options):
    model = model_with(pm.gp.cov.ExpQuad)
    tree = pm.fit(2, model=model, method=method, random_seed=1, progressbar=False, **options).to_datatree()
    gpep.from_datatree(tree, model)
    with pytest.raises(ValueError, match="the prior covariance of its inputs differs"):
        gpep.from_datatree(tree, model_with(pm.gp.cov.Matern52))
    with pytest.raises(ValueError, match="its likelihood is logit, not probit"):
        gpep.from_datatree(tree, model_with(pm.gp.cov.ExpQuad, logit))


def test_loading_accepts_another_jitter():
    k = np.array([[[2.0, 1.0], [1.0, 2.0]]])
    check_covariance(k, k + 0.1 * np.eye(2))
    with pytest.raises(ValueError, match="Compare covariance functions"):
        check_covariance(k, k * [[1.0, 1.001], [1.001, 1.0]])


def test_loading_detects_a_single_changed_covariance():
    k = np.array([[[2.0, 1.0], [1.0, 2.0]]] * 2)
    other = k.copy()
    other[1, 0, 1] = other[1, 1, 0] = 1.001
    with pytest.raises(ValueError, match="Compare covariance functions"):
        check_covariance(k, other)
