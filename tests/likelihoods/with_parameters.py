"""Models of likelihoods with parameters: observed variable, parameters, and log density by SciPy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats
from scipy.special import expit, gammaln, log_expit, log_ndtr

from pymc_gpep.likelihoods.likelihood import UNBOUNDED

X = np.linspace(-2.0, 2.0, 12)[:, None]
EXPOSURE = np.linspace(0.5, 3.0, 12)
COUNTS = np.array([0, 1, 0, 2, 3, 2, 5, 4, 3, 6, 2, 1])
ORDERED = np.array([0, 0, 1, 0, 1, 2, 1, 2, 2, 1, 2, 2])
CUTS = np.array([-0.7, 0.9])


def poisson(f):
    slope = pm.Logistic("slope", 0.1, 0.3)  # not normal, since a normal slope would be integrated
    place, hours = pm.Data("place", X[:, 0]), pm.Data("hours", EXPOSURE)
    pm.Poisson("y", mu=hours * pm.math.exp(f + slope * place), observed=COUNTS)


def ordered(kind):
    def observe(f):
        cut = pm.Normal("cut", 0, 2, shape=2, initval=CUTS, transform=pm.distributions.transforms.ordered)
        kind("y", eta=f, cutpoints=cut, observed=ORDERED)

    return observe


def stopping(link):
    """Declare classes by stopping ratios."""

    def observe(f):
        cut = pm.Normal("cut", 0, 2, shape=2, initval=CUTS)
        stops = link(cut - f[:, None])
        p = pt.stack([stops[:, 0], stops[:, 1] * (1 - stops[:, 0]), (1 - stops[:, 0]) * (1 - stops[:, 1])], axis=-1)
        pm.Categorical("y", p=p, observed=ORDERED)

    return observe


class Given(NamedTuple):
    observe: Callable[[Any], Any]
    parameters: np.ndarray
    log_probability: Callable[[Any, Any, Any], Any]
    """log p(y | f, parameters) of one point."""
    y: np.ndarray = COUNTS
    data: tuple[int, ...] = ()
    """Rows of the parameters that are data. They have no derivatives."""

    def probability(self, y, f, parameters):
        return np.exp(self.log_probability(y, f, parameters))


def interval(log_distribution):
    """log (F(upper − f) − F(lower − f)), computed in the tail where both terms are small."""

    def log_probability(y, f, cuts):
        bounds = np.array([-np.inf, *cuts, np.inf])
        low, high = bounds[y] - f, bounds[y + 1] - f
        right = low + high > 0
        low, high = np.where(right, -high, low), np.where(right, -low, high)
        top = log_distribution(high)
        return top + np.log1p(-np.exp(log_distribution(low) - top))

    return log_probability


def stopped(log_distribution):
    """log F(κ_y − f) + Σ_{k<y} log F(f − κ_k)."""

    def log_probability(y, f, cuts):
        passed = sum((log_distribution(f - cut) for cut in cuts[:y]), np.zeros(np.shape(f)))
        return passed + (log_distribution(cuts[y] - f) if y < len(cuts) else 0.0)

    return log_probability


CASES = {
    "poisson": Given(
        poisson,
        (0.1 * X[:, 0] + np.log(EXPOSURE))[None],
        lambda y, f, offset: stats.poisson.logpmf(y, np.exp(f + offset[0])),
    ),
    "ordered_probit": Given(ordered(pm.OrderedProbit), np.repeat(CUTS[:, None], 12, 1), interval(log_ndtr), ORDERED),
    "ordered_logit": Given(ordered(pm.OrderedLogistic), np.repeat(CUTS[:, None], 12, 1), interval(log_expit), ORDERED),
    "stopping_probit": Given(stopping(pm.math.invprobit), np.repeat(CUTS[:, None], 12, 1), stopped(log_ndtr), ORDERED),
    "stopping_logit": Given(stopping(pm.math.sigmoid), np.repeat(CUTS[:, None], 12, 1), stopped(log_expit), ORDERED),
}


def scale(initial):
    """Add a positive hyperparameter `scale` with an initial value to the model."""
    return pm.HalfNormal("scale", 2.0, initval=initial)


def rows(*values):
    return np.stack([np.broadcast_to(value, 12) for value in values]).astype(float)


def censored_log_probability(distribution):
    """Log density between the bounds, and log probability beyond them for observations at a bound."""

    def log_probability(y, f, parameters):
        *own, low, high = parameters
        given = distribution(f, *own)
        return given.logsf(y) if y >= high else given.logcdf(y) if y <= low else given.logpdf(y)

    return log_probability


TRIALS = np.array([1, 1, 3, 2, 3, 6, 5, 9, 4, 8, 2, 7])
NUMBERS = np.round(1.5 * np.sin(2.0 * X[:, 0]) + np.array([0.3, -0.8, 1.2, 0.1, -0.4, 0.9] * 2), 2)
TIMES = np.minimum(np.round(np.exp(NUMBERS), 3), 3.0)
BELOW, ABOVE = -1.0, 1.3
CENSORED = np.clip(NUMBERS, BELOW, ABOVE)
LATE = np.maximum(TIMES, 0.5)


def noisy(f, cut, observe):
    """The distribution `observe(f)`, censored with bounds for each row."""
    return pm.Censored("y", observe(f), lower=pm.Data("low", np.full(12, BELOW)), upper=ABOVE, observed=cut)


def log_ways(y, trials):
    return gammaln(trials + 1.0) - gammaln(y + 1.0) - gammaln(trials - y + 1.0)


STANDARD = {
    "binomial": Given(
        lambda f: pm.Binomial("y", n=TRIALS, logit_p=f, observed=COUNTS),
        rows(TRIALS),
        lambda y, f, given: stats.binom.logpmf(y, given[0], expit(f)),
        data=(0,),
    ),
    "binomial_probit": Given(
        lambda f: pm.Binomial("y", n=TRIALS, p=pm.math.invprobit(f), observed=COUNTS),
        rows(TRIALS),
        lambda y, f, given: log_ways(y, given[0]) + y * log_ndtr(f) + (given[0] - y) * log_ndtr(-f),
        data=(0,),
    ),
    "binomial_log_log": Given(
        lambda f: pm.Binomial("y", n=TRIALS, p=1 - pm.math.exp(-pm.math.exp(f)), observed=COUNTS),
        rows(TRIALS),
        lambda y, f, given: log_ways(y, given[0]) + y * np.log(-np.expm1(-np.exp(f))) - (given[0] - y) * np.exp(f),
        data=(0,),
    ),
    "negative_binomial": Given(
        lambda f: pm.NegativeBinomial("y", mu=EXPOSURE * pm.math.exp(f), alpha=scale(1.7), observed=COUNTS),
        rows(np.log(EXPOSURE / 1.7), 1.7),
        lambda y, f, given: stats.nbinom.logpmf(y, given[1], expit(-f - given[0])),
    ),
    "normal": Given(
        lambda f: noisy(f, CENSORED, lambda f: pm.Normal.dist(f, scale(0.7))),
        rows(0.7, BELOW, ABOVE),
        censored_log_probability(stats.norm),
        CENSORED,
        (1, 2),
    ),
    "log_normal": Given(
        lambda f: pm.Censored("y", pm.LogNormal.dist(f, scale(0.7)), lower=None, upper=3.0, observed=TIMES),
        rows(0.7, -UNBOUNDED, 3.0),
        censored_log_probability(lambda f, sigma: stats.lognorm(sigma, scale=np.exp(f))),
        TIMES,
        (1, 2),
    ),
    "logistic": Given(
        lambda f: noisy(f, CENSORED, lambda f: pm.Logistic.dist(f, scale(0.7))),
        rows(0.7, BELOW, ABOVE),
        censored_log_probability(stats.logistic),
        CENSORED,
        (1, 2),
    ),
    "asymmetric_laplace": Given(
        lambda f: pm.AsymmetricLaplace("y", mu=f, b=scale(1.3), q=0.8, observed=NUMBERS),
        rows(1.3, 2.0),
        lambda y, f, given: stats.laplace_asymmetric.logpdf(given[0] * (y - f), given[1]) + np.log(given[0]),
        NUMBERS,
    ),
    "gamma": Given(
        lambda f: pm.Gamma("y", alpha=scale(1.3), beta=1.3 / pm.math.exp(f), observed=TIMES),
        rows(-np.log(1.3), 1.3),
        lambda y, f, given: stats.gamma.logpdf(y, given[1], scale=np.exp(f + given[0])),
        TIMES,
    ),
    "weibull": Given(
        lambda f: pm.Censored(
            "y", pm.Weibull.dist(alpha=scale(1.3), beta=2.0 * pm.math.exp(f)), lower=0.5, upper=3.0, observed=LATE
        ),
        rows(np.log(2.0), 1.3, 0.5, 3.0),
        censored_log_probability(lambda f, offset, alpha: stats.weibull_min(alpha, scale=np.exp(f + offset))),
        LATE,
        (2, 3),
    ),
}
EVERY = CASES | STANDARD


def model_of(observe, eta=None):
    """Return a model of twelve points on a line and its Gaussian process. η is a hyperparameter if not given."""
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 1.0, initval=1.2) if eta is None else eta
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.2), cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=1.0))
        observe(gp.prior("f", X=X))
    return model, gp
