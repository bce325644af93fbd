"""Models with two points, so that Gauss-Hermite quadrature computes evidence and posterior."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit, ndtr

import pymc_gpep as gpep

X = np.array([[0.0], [0.7]])
Y = np.array([0, 1])
LENGTHSCALE = 1.3
MEAN = 0.4


def classifier(kind: str, rotated: bool = True) -> pm.Model:
    """Two classes with one covariance. Its magnitude η is a hyperparameter."""
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=LENGTHSCALE))
        f = gp.prior("f", X=X, n_outputs=2, reparameterize=rotated)
        if kind == "softmax":
            pm.Categorical("y", logit_p=f.T, observed=Y)
        else:
            gpep.MultinomialProbit("y", f.T, observed=Y)
    return model


def bernoulli(eta: float | None = None, rotated: bool = True) -> pm.Model:
    """One latent function with a mean, and a logistic likelihood. η is given or a hyperparameter."""
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 2) if eta is None else eta
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(MEAN), cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=LENGTHSCALE))
        f = gp.prior("f", X=X, reparameterize=rotated)
        pm.Bernoulli("y", logit_p=f, observed=Y)
    return model


def fixed_softmax(eta: float) -> pm.Model:
    """Softmax with three classes, no hyperparameters, and a covariance and a mean for each class."""
    with pm.Model() as model:
        rows = []
        for k in range(3):
            gp = pm.gp.Latent(
                mean_func=pm.gp.mean.Constant(0.3 * k),
                cov_func=(eta + k) ** 2 * pm.gp.cov.ExpQuad(1, ls=LENGTHSCALE),
            )
            rows.append(gp.prior(f"f_{k}", X=X, reparameterize=k != 1))
        pm.Categorical("y", logit_p=pt.stack(rows).T, observed=Y)
    return model


def covariance(eta: float) -> np.ndarray:
    return eta**2 * np.exp(-0.5 * (X - X.T) ** 2 / LENGTHSCALE**2) + 1e-6 * np.eye(2)


def integrate(likelihood: Callable[[np.ndarray], np.ndarray], mean: np.ndarray, K: np.ndarray) -> np.ndarray:
    """∫ likelihood(f) N(f; mean, K) df for f of a few dimensions. `likelihood` maps (p, d) to (p, ...)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss({2: 80, 6: 8}[len(mean)])
    grid = np.stack(np.meshgrid(*[nodes] * len(mean), indexing="ij"), axis=-1).reshape(-1, len(mean))
    weight = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * len(mean), indexing="ij")), axis=0).ravel()
    return np.tensordot(weight, likelihood(mean + grid @ np.linalg.cholesky(K).T), axes=1)


def classifier_evidence(kind: str, eta: float) -> float:
    """Evidence of `classifier`, from d = f_0 − f_1 ~ N(0, 2K). The probability of y = (0, 1) is F(d_0) F(−d_1)."""
    signs = np.array([1.0, -1.0])
    link = expit if kind == "softmax" else lambda d: ndtr(d / np.sqrt(2))
    return float(np.log(integrate(lambda d: link(signs * d).prod(axis=1), np.zeros(2), 2 * covariance(eta))))


def bernoulli_likelihood(f: np.ndarray) -> np.ndarray:
    return expit(f * np.array([-1.0, 1.0])).prod(axis=1)


def bernoulli_evidence(eta: float) -> float:
    return float(np.log(integrate(bernoulli_likelihood, np.full(2, MEAN), covariance(eta))))
