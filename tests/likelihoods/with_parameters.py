"""Models whose likelihood is given more than latent values, with what it is given and its density by other means."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy import stats
from scipy.special import log_expit, log_ndtr

X = np.linspace(-2.0, 2.0, 12)[:, None]
EXPOSURE = np.linspace(0.5, 3.0, 12)
COUNTS = np.array([0, 1, 0, 2, 3, 2, 5, 4, 3, 6, 2, 1])
ORDERED = np.array([0, 0, 1, 0, 1, 2, 1, 2, 2, 1, 2, 2])
CUTS = np.array([-0.7, 0.9])


def poisson(f):
    slope = pm.Logistic("slope", 0.1, 0.3)  # a normal would be integrated
    place, hours = pm.Data("place", X[:, 0]), pm.Data("hours", EXPOSURE)
    pm.Poisson("y", mu=hours * pm.math.exp(f + slope * place), observed=COUNTS)


def ordered(kind):
    def observe(f):
        cut = pm.Normal("cut", 0, 2, shape=2, initval=CUTS, transform=pm.distributions.transforms.ordered)
        kind("y", eta=f, cutpoints=cut, observed=ORDERED)

    return observe


class Given(NamedTuple):
    observe: Callable[[Any], Any]
    parameters: np.ndarray
    log_probability: Callable[[Any, Any, Any], Any]
    """log p(y | f, parameters) of one point."""

    def probability(self, y, f, parameters):
        return np.exp(self.log_probability(y, f, parameters))


def interval(log_distribution):
    """log (F(upper − f) − F(lower − f)), on the side of f where both are small."""

    def log_probability(y, f, cuts):
        bounds = np.array([-np.inf, *cuts, np.inf])
        low, high = bounds[y] - f, bounds[y + 1] - f
        right = low + high > 0
        low, high = np.where(right, -high, low), np.where(right, -low, high)
        top = log_distribution(high)
        return top + np.log1p(-np.exp(log_distribution(low) - top))

    return log_probability


CASES = {
    "poisson": Given(
        poisson,
        (0.1 * X[:, 0] + np.log(EXPOSURE))[None],
        lambda y, f, offset: stats.poisson.logpmf(y, np.exp(f + offset[0])),
    ),
    "ordered_probit": Given(ordered(pm.OrderedProbit), np.repeat(CUTS[:, None], 12, 1), interval(log_ndtr)),
    "ordered_logit": Given(ordered(pm.OrderedLogistic), np.repeat(CUTS[:, None], 12, 1), interval(log_expit)),
}


def model_of(observe, eta=None):
    """A model of twelve points on a line, and what made its latent values; η given or a hyperparameter."""
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 1.0, initval=1.2) if eta is None else eta
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.2), cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=1.0))
        observe(gp.prior("f", X=X))
    return model, gp
