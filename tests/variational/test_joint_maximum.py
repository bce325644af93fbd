"""Which hyperparameters are warned of because their joint maximum with others says little of their posterior."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import ordered

from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.structure import read_classifier
from pymc_gpep.variational.joint_maximum import poor_maxima

G, N = 5, 20
GROUP = np.arange(N) % G
X = np.linspace(-1, 1, N)
COUNTS = np.arange(N) % 4
BINARY = (np.arange(N) % 3 == 0).astype(int)
POSITIVE = 0.5 + np.arange(N) % 7
TWO_MAPS = np.array([[0, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0]])


def scale(name="s"):
    return pm.HalfNormal(name, 1)


def level():
    return pm.Normal("level", 0, 2)


def poisson(effect):
    pm.Poisson("y", mu=pm.math.exp(level() + effect), observed=COUNTS)


def binary(effect):
    pm.Bernoulli("y", logit_p=level() + effect, observed=BINARY)


def normal(effect):
    pm.Normal("y", level() + effect, scale("noise"), observed=X)


def zero_inflated(effect):
    pm.ZeroInflatedPoisson("y", psi=0.7, mu=pm.math.exp(level() + effect), observed=COUNTS)


def weibull(effect):
    pm.Weibull("y", scale("shape"), pm.math.exp(level() + effect), observed=POSITIVE)


def beta_binomial(effect):
    p = pm.math.invlogit(level() + effect)
    pm.BetaBinomial("y", n=5, alpha=4 * p, beta=4 * (1 - p), observed=COUNTS)


def potential_on_effects():
    u = pm.Normal("u", 0, scale(), shape=G)
    pm.Potential("sum", -0.5 * (u.sum() / 0.01) ** 2)
    poisson(u[GROUP])


def flat_with_a_potential():
    u, s = pm.Flat("u", shape=G), scale()
    pm.Potential("prior", pm.logp(pm.Normal.dist(0, s), u).sum())
    binary(u[GROUP])


def effects_in_cutpoints(s):
    u = pm.Normal("u", 0, s, shape=G)
    cut = np.array([-1.0, 1.0]) + u[GROUP][:, None]
    pm.OrderedProbit("y", eta=level() * X, cutpoints=cut, compute_p=False, observed=np.arange(N) % 3)


def horseshoe():
    tau, lam = pm.HalfCauchy("tau", 1), pm.HalfCauchy("lam", 1, shape=G)
    beta = pm.Normal("beta", 0, tau * lam, shape=G)
    binary(beta[GROUP])


def non_centred_horseshoe():
    tau, lam = pm.HalfCauchy("tau", 1), pm.HalfCauchy("lam", 1, shape=G)
    z = pm.Normal("z", shape=G)
    binary(pt.dot(np.eye(G)[GROUP], z * tau * lam))


def trend_of_a_process():
    b = pm.StudentT("b", 4, shape=2)
    mean = pm.gp.mean.Linear(coeffs=b, intercept=0.0)
    cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.ExpQuad(2, ls=pm.Gamma("ls", 2, 1, shape=2))
    f = pm.gp.Latent(mean_func=mean, cov_func=cov).prior("f", X=np.column_stack([X, X**2]))
    pm.Bernoulli("y", logit_p=f, observed=BINARY)


def effects_beside_a_process():
    f = pm.gp.Latent(cov_func=scale("eta") ** 2 * pm.gp.cov.ExpQuad(1, ls=0.5)).prior("f", X=X[:, None])
    pm.Poisson("y", mu=pm.math.exp(f + pm.Laplace("u", 0, scale(), shape=G)[GROUP]), observed=COUNTS)


def difficulties_and_slopes():
    slopes = pm.LogNormal("a", 0, pm.HalfNormal("s_a", 1), shape=3)
    ability = pm.Normal("ability", 0, 1, shape=N)
    item = np.arange(3 * N) % 3
    pm.Bernoulli("y", logit_p=slopes[item] * ability[np.arange(3 * N) // 3], observed=np.arange(3 * N) % 2)


POOR = {
    "heavy tails": (lambda: poisson(pm.StudentT("u", 4, sigma=scale(), shape=G)[GROUP]), {"u"}),
    "heavy tails times a scale": (lambda: binary((scale() * pm.StudentT("u", 4, shape=G))[GROUP]), {"u"}),
    "heavy tails of numbers": (lambda: normal(pm.StudentT("u", 4, sigma=scale(), shape=G)[GROUP]), {"u"}),
    "Laplace of a zero-inflated count": (lambda: zero_inflated(pm.Laplace("u", 0, scale(), shape=G)[GROUP]), {"u"}),
    "Laplace of a time": (lambda: weibull(pm.Laplace("u", 0, scale(), shape=G)[GROUP]), {"u"}),
    "Cauchy of a share": (lambda: beta_binomial(pm.Cauchy("u", 0, scale(), shape=G)[GROUP]), {"u"}),
    "gamma frailty": (
        lambda: pm.Poisson("y", mu=pm.math.exp(level()) * pm.Gamma("w", 2, 2, shape=G)[GROUP], observed=COUNTS),
        {"w"},
    ),
    "gamma frailty of a learned shape": (
        lambda: poisson(pt.log(pm.Gamma("w", *[pm.Gamma("a", 2, 1)] * 2, shape=G))[GROUP]),
        {"w"},
    ),
    "two maps": (lambda: poisson((scale() * pm.ICAR("phi", TWO_MAPS))[GROUP]), {"phi"}),
    "ordered effects": (
        lambda: poisson(pm.Normal("u", 0, scale(), shape=G, transform=ordered, initval=np.arange(G))[GROUP]),
        {"u"},
    ),
    "walk of heavy tails": (
        lambda: binary(
            pm.RandomWalk(
                "u", init_dist=pm.Normal.dist(), innovation_dist=pm.StudentT.dist(nu=3, sigma=scale()), steps=G - 1
            )[GROUP]
        ),
        {"u"},
    ),
    "effects with a Potential": (potential_on_effects, {"u"}),
    "a flat variable whose density is a Potential": (flat_with_a_potential, {"u"}),
    "effects in cutpoints": (lambda: effects_in_cutpoints(scale()), {"u"}),
    "effects in cutpoints of a known scale": (lambda: effects_in_cutpoints(1.0), {"u"}),
    "horseshoe": (horseshoe, {"lam"}),
    "non-centred horseshoe": (non_centred_horseshoe, {"lam"}),
    "local scales of heavy tails": (
        lambda: binary(pm.Normal("u", 0, scale() * pt.sqrt(pm.InverseGamma("w", 2, 2, shape=G)), shape=G)[GROUP]),
        {"w"},
    ),
    "a coefficient with a learned scale": (lambda: poisson(X * pm.StudentT("b", 4, sigma=scale())), {"b"}),
    "a polynomial of robust coefficients": (
        lambda: normal(np.column_stack([X, X**2]) @ pm.StudentT("b", 4, shape=2)),
        {"b"},
    ),
    "trend of a process": (trend_of_a_process, {"b"}),
    "effects beside a process": (effects_beside_a_process, {"u"}),
    "slopes of a learned spread": (difficulties_and_slopes, {"a"}),
    "dispersions of a learned scale": (
        lambda: pm.NegativeBinomial(
            "y", mu=pm.math.exp(level() + 0 * X), alpha=pm.Gamma("d", 2, scale(), shape=G)[GROUP], observed=COUNTS
        ),
        {"d"},
    ),
}


def two_factors(count=2):
    s = pm.HalfNormal("s", 1, shape=count)
    binary(sum(s[k] * pm.Normal(f"z{k}", shape=4)[(np.arange(N) // (k + 1)) % 4] for k in range(count)))


def correlated_slopes():
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
    u = pm.Normal("z", shape=(G, 2)) @ chol.T
    binary(u[GROUP, 0] + u[GROUP, 1] * X)


def relevance():
    binary(np.column_stack([X, X**2, X**3]) @ pm.Normal("b", 0, pm.HalfNormal("s", 1, shape=3), shape=3))


def thresholds_of_items():
    cut = pm.Normal("cut", [-1, 0, 1], 1, shape=(3, 3), transform=ordered, initval=[[-1.0, 0.0, 1.0]] * 3)
    pm.OrderedLogistic(
        "y", eta=level() * X, cutpoints=cut[np.arange(N) % 3], compute_p=False, observed=np.arange(N) % 4
    )


def process():
    tau = pm.HalfNormal("tau", 1)
    cov = pm.HalfNormal("eta", tau) ** 2 * pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 3, tau, shape=2))
    f = pm.gp.Latent(cov_func=cov).prior("f", X=np.column_stack([X, X**2]))
    pm.Bernoulli("y", logit_p=f + pm.StudentT("a", 4), observed=BINARY)


FINE = {
    "scales of factors": two_factors,
    "factor of a covariance": correlated_slopes,
    "a scale for each coefficient": relevance,
    "thresholds": thresholds_of_items,
    "gaussian thresholds": lambda: pm.OrderedProbit(
        "y", eta=level() * X, cutpoints=pm.Normal("cut", [-1, 1], 1, shape=2), compute_p=False, observed=np.arange(N) % 3
    ),
    "flat coefficients": lambda: poisson(np.column_stack([X, X**2]) @ pm.Flat("b", shape=2)),
    "a coefficient": lambda: poisson(X * pm.StudentT("b", 4)),
    "noise of groups": lambda: pm.Normal("y", level() + 0 * X, pm.HalfNormal("e", 1, shape=G)[GROUP], observed=X),
    "dispersions": lambda: pm.NegativeBinomial(
        "y", mu=pm.math.exp(level() + 0 * X), alpha=pm.Gamma("d", 2, 1, shape=G)[GROUP], observed=COUNTS
    ),
    "hyperparameters of a process": process,
    "autoregression": lambda: binary(
        pm.AR("u", pm.Normal("rho", 0, 0.3, shape=2), scale(), init_dist=pm.Normal.dist(), shape=2 * G)[GROUP]
    ),
}


def poor(declare, asked=(), kept=None):
    with pm.Model() as model:
        declare()
    space = Hyperparameters(read_classifier(model, None, asked, means=True))
    names = [rv.name for rv in space.classifier.hyperparameters] if kept is None else kept
    return {rv.name for rv in poor_maxima(space, space.initial_point(), names)}


@pytest.mark.parametrize("case", POOR)
def test_part_of_the_predictor_at_a_joint_maximum_is_found(case):
    declare, expected = POOR[case]
    assert poor(declare) == expected


@pytest.mark.parametrize("case", FINE)
def test_hyperparameters_by_nature_are_not_found(case):
    assert poor(FINE[case]) == set()


def test_named_and_integrated_hyperparameters_are_not_found():
    declare, found = POOR["heavy tails"]
    assert poor(declare) == found
    assert poor(declare, asked=["u"]) == set()
    assert poor(declare, kept=["s"]) == set()
