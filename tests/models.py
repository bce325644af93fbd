"""Small classifiers that many tests of fits share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_gpep as gpep
from tests.reference.data import iris

# NumPy's warnings about far steps of a sampler with interpreted graphs, and PyTensor's warning about BLAS from pip.
interpreted_sampler = pytest.mark.filterwarnings(
    "ignore:.* encountered in .*:RuntimeWarning", "ignore:PyTensor could not link to a BLAS:UserWarning"
)

SPECIES = ("setosa", "versicolor", "virginica")
MEANS = tuple(f"mean_{name}" for name in SPECIES)
"""Means of `per_class` that stay hyperparameters in its fits."""


class Fitted(NamedTuple):
    """A model, its Gaussian processes, its data, and its fit."""

    model: pm.Model
    gp: Any
    X: np.ndarray
    y: np.ndarray
    fit: gpep.Fit


def data(points: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Every fifth flower of iris, with the two standardised petal features."""
    X, y = iris()
    chosen = np.arange(0, 150, 150 // points)
    return X[chosen][:, 2:], y[chosen]


def shared(rotated: bool = True) -> tuple[pm.Model, pm.gp.Latent]:
    """One covariance for all classes, named dims, a transformed and a vector-valued hyperparameter."""
    X, y = data()
    coords = {"species": SPECIES, "flower": np.arange(y.size) + 100, "petal": ["length", "width"]}
    with pm.Model(coords=coords) as model:
        ls = pm.InverseGamma("ls", 3, 3, dims="petal")
        eta = pm.HalfNormal("eta", 3)
        pm.Deterministic("eta_squared", eta**2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=X, n_outputs=3, dims=("species", "flower"), reparameterize=rotated)
        pm.Deterministic("f_of_virginica", f[2], dims="flower")
        gpep.MultinomialProbit("y", f.T, observed=y, dims="flower")
    return model, gp


def flat_prior() -> tuple[pm.Model, pm.gp.Latent]:
    """One hyperparameter with a constant prior density."""
    X, y = data()
    with pm.Model() as model:
        log_ls = pm.Flat("log_ls", initval=0.3)
        gp = pm.gp.Latent(cov_func=2.0 * pm.gp.cov.ExpQuad(X.shape[1], ls=pm.math.exp(log_ls)))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, observed=y)
    return model, gp


def per_class() -> tuple[pm.Model, list[pm.gp.Latent]]:
    """A covariance and a prior mean for each class, stacked. One process is centred."""
    X, y = data()
    with pm.Model() as model:
        gps, rows = [], []
        for k, name in enumerate(SPECIES):
            ls = pm.LogNormal(f"ls_{name}", 0, 0.5)
            mean = pm.gp.mean.Constant(pm.Normal(f"mean_{name}", 0, 1))
            gps.append(pm.gp.Latent(mean_func=mean, cov_func=9 * pm.gp.cov.Matern52(2, ls=ls)))
            rows.append(gps[-1].prior(f"f_{name}", X=X, reparameterize=k != 1))
        gpep.MultinomialProbit("y", pt.stack(rows).T, observed=y)
    return model, gps


def fixed() -> tuple[pm.Model, pm.gp.Latent]:
    """A model without hyperparameters."""
    X, y = data()
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    return model, gp


def _one_hyperparameter(observe: Callable[[Any, np.ndarray], Any]) -> tuple[pm.Model, pm.gp.Latent]:
    X, y = data()
    with pm.Model(coords={"species": SPECIES, "flower": np.arange(y.size) + 100}) as model:
        ls = pm.InverseGamma("ls", 3, 3)
        gp = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=X, n_outputs=3, dims=("species", "flower"))
        observe(f.T, y)
    return model, gp


def softmax() -> tuple[pm.Model, pm.gp.Latent]:
    """One covariance with one hyperparameter, and a softmax."""
    return _one_hyperparameter(lambda f, y: pm.Categorical("y", logit_p=f, observed=y, dims="flower"))


def probit() -> tuple[pm.Model, pm.gp.Latent]:
    """One covariance with one hyperparameter, and a multinomial probit."""
    return _one_hyperparameter(lambda f, y: gpep.MultinomialProbit("y", f, observed=y, dims="flower"))


def _two_classes(observe: Callable[[Any, np.ndarray], Any], apart: bool = False) -> tuple[pm.Model, pm.gp.Latent]:
    """Whether a flower is a virginica, by one latent function with a mean. With `apart` all inputs differ."""
    X, y = data()
    X = X + 1e-6 * np.arange(len(X))[:, None] if apart else X
    with pm.Model(coords={"flower": np.arange(y.size) + 100}) as model:
        ls = pm.InverseGamma("ls", 3, 3)
        mean = pm.gp.mean.Constant(-0.5)
        gp = pm.gp.Latent(mean_func=mean, cov_func=9 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=X, dims="flower")
        observe(f, y == 2)
    return model, gp


def bernoulli_probit(apart: bool = False) -> tuple[pm.Model, pm.gp.Latent]:
    """One latent function with one hyperparameter, and a probit. With `apart` all inputs differ."""
    return _two_classes(lambda f, y: gpep.Probit("y", f, observed=y, dims="flower"), apart)


def bernoulli_logit() -> tuple[pm.Model, pm.gp.Latent]:
    """One latent function with one hyperparameter, and a logit."""
    return _two_classes(lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y, dims="flower"))


def bernoulli_complementary() -> tuple[pm.Model, pm.gp.Latent]:
    """One latent function with one hyperparameter, and a complementary log-log link."""
    return _two_classes(
        lambda f, y: pm.Bernoulli("y", p=1 - pm.math.exp(-pm.math.exp(f)), observed=y, dims="flower"), apart=True
    )


def effects_beside() -> tuple[pm.Model, pm.gp.Latent]:
    """A process with a mean, plus levels and a slope whose coefficients depend on hyperparameters."""
    rows, levels = 40, 4
    rng = np.random.default_rng(6)
    x, c = rng.uniform(-2, 2, size=(rows, 1)), rng.normal(size=rows)
    group = np.concatenate([np.arange(levels), rng.integers(0, levels, rows - levels)])
    y = (rng.random(rows) < 1 / (1 + np.exp(-np.sin(2 * x[:, 0]) - c))).astype(int)
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ls", 3, 3))
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Linear(coeffs=[0.5]), cov_func=cov)
        f = gp.prior("f", X=pm.Data("x", x))
        a = pm.Normal("a", pm.Normal("centre", 0, 3), pm.HalfNormal("s", 1), shape=levels)
        pm.Bernoulli("y", logit_p=a[pm.Data("group", group)] + pm.Normal("b", 0, 2) * pm.Data("c", c) + f, observed=y)
    return model, gp


def at_hyperparameters(fitted: Fitted, expression: Any) -> np.ndarray:
    """Value of an expression of the model's random variables at the hyperparameters of a fit."""
    values = fitted.fit.hyperparameters
    return np.asarray(
        expression.eval({fitted.model[name]: values[name].values for name in values}, on_unused_input="ignore")
    )
