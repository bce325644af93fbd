"""Warnings about hyperparameters that are maximised jointly with effects."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pymc.distributions.transforms import ordered
from scipy import stats

from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.reading import read_classifier
from pymc_gpep.variational.model_warnings import poor_maxima

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


def shares_of_a_variance():
    phi, tau = pm.Dirichlet("phi", np.ones(G)), scale("tau")
    binary(pm.Normal("beta", 0, pt.sqrt(phi) * tau, shape=G)[GROUP])


def two_responses():
    u, own = pm.Laplace("u", 0, scale(), shape=G), level()
    pm.Poisson("y", mu=pm.math.exp(own + u[GROUP]), observed=COUNTS)
    pm.Normal("z", own + 0.5 * X, scale("noise"), observed=X)


def effects_of_classes():
    b, a = pm.Normal("b", 0, 1, shape=(2, 3)), pm.StudentT("a", 4, shape=(G, 3))
    pm.Categorical("y", logit_p=np.column_stack([X, X**2]) @ b + a[GROUP], observed=np.arange(N) % 3)


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
    "shares of a variance": (shares_of_a_variance, {"phi"}),
    "an offset of one of two responses": (two_responses, {"u"}),
    "effects of classes": (effects_of_classes, {"a"}),
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
        "y",
        eta=level() * X,
        cutpoints=pm.Normal("cut", [-1, 1], 1, shape=2),
        compute_p=False,
        observed=np.arange(N) % 3,
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
def test_effects_with_a_poor_joint_maximum_are_detected(case):
    declare, expected = POOR[case]
    assert poor(declare) == expected


@pytest.mark.parametrize("case", FINE)
def test_hyperparameters_with_a_good_joint_maximum_are_not_detected(case):
    assert poor(FINE[case]) == set()


def test_named_variables_and_integrated_variables_are_not_detected():
    declare, found = POOR["heavy tails"]
    assert poor(declare) == found
    assert poor(declare, asked=["u"]) == set()
    assert poor(declare, kept=["s"]) == set()


# ---- the warning of a fit ----

RNG = np.random.default_rng(0)
OF_ROW = np.repeat(np.arange(7), 6)
EVENTS = RNG.poisson(np.exp(0.5 + 0.8 * RNG.standard_t(4, size=7))[OF_ROW])


FEW = OF_ROW < 4


def frailties():
    a = pm.Gamma("a", 2, 1)
    w = pm.Gamma("w", a, a, shape=4)
    pm.Poisson("y", mu=pm.math.exp(level() + pm.math.log(w)[OF_ROW[FEW]]), observed=EVENTS[FEW])


def exact_frailties():
    """Mean and standard deviation of the level and of a. Given both, counts of a group are negative binomial."""
    rate, a = np.exp(np.linspace(-3, 4, 150))[:, None], np.exp(np.linspace(np.log(0.01), np.log(40), 150))
    log_p = stats.norm(0, 2).logpdf(np.log(rate)) + stats.gamma(2).logpdf(a) + np.log(a)
    for total in np.bincount(OF_ROW[FEW], EVENTS[FEW]):
        log_p = log_p + stats.nbinom(a, a / (a + 6 * rate)).logpmf(total)
    weights = np.exp(log_p - log_p.max())
    moments = []
    for values in (np.log(rate), a):
        mean = (weights * values).sum() / weights.sum()
        moments.append((mean, np.sqrt((weights * (values - mean) ** 2).sum() / weights.sum())))
    return moments


def fitted(declare, **options):
    with pm.Model():
        declare()
        return pm.fit(method="ep", progressbar=False, **options)


def ordered_effects():
    """Effects with a joint maximum: the prior density of the scale is zero at 0."""
    u = pm.Normal("u", 0, pm.InverseGamma("s", 3, 2), shape=4, transform=ordered, initval=np.arange(4))
    pm.Poisson("y", mu=pm.math.exp(level() + u[OF_ROW[FEW]]), observed=EVENTS[FEW])


def test_fit_warns_once_that_effects_are_maximised_jointly():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = fitted(ordered_effects, hyper="map")
        fit.refine(1, progressbar=False)
        fit.summary()
    (warning,) = [each for each in caught if "maximised with other" in str(each.message)]
    assert issubclass(warning.category, UserWarning)
    assert warning.filename == __file__
    for phrase in (
        "'u' (Normal) is maximised with other hyperparameters, not integrated",
        "hyper='adaptive'",
        "pm.sample()",
    ):
        assert phrase in str(warning.message)


def test_frailties_are_integrated_to_their_exact_posterior():
    (mean, sd), (mean_of_a, sd_of_a) = exact_frailties()
    table = fitted(frailties, hyper="ccd").summary(["level", "a"])
    assert_allclose(table.loc["level", ["mean", "sd"]], [mean, sd], atol=0.15 * sd)
    assert_allclose(table.loc["a", ["mean", "sd"]], [mean_of_a, sd_of_a], atol=0.15 * sd_of_a)


def test_named_variables_stay_at_the_maximum_without_a_warning():
    fit = fitted(frailties, hyper="map", hyperparameters=["w"])
    assert fit.at_maximum == ["a", "w"]


def heavy_tails_as_normals():
    s, w = scale(), pm.InverseGamma("w", 2, 2, shape=7)
    poisson_of_groups(pm.Normal("u", 0, s * pm.math.sqrt(w), shape=7))


def poisson_of_groups(u):
    pm.Poisson("y", mu=pm.math.exp(level() + u[OF_ROW]), observed=EVENTS)


def test_advice_for_heavy_tails_has_the_exact_posterior():
    """The reference is a sum over level, scale and each StudentT(4) effect on a grid."""
    table = fitted(heavy_tails_as_normals, hyper="ccd").summary(["level", "s"])
    assert_allclose(table.loc["level", ["mean", "sd"]], [0.3829, 0.2574], atol=0.1 * 0.2574)
    assert_allclose(table.loc["s", ["mean", "sd"]], [0.4642, 0.2451], atol=0.1 * 0.2451)


@pytest.mark.filterwarnings("ignore:Hyperparameters did not converge:RuntimeWarning")
@pytest.mark.parametrize(
    ("method", "options"),
    [("sparse_ep", {"inducing": 4}), ("sparse_ep", {"inducing": 4, "batch_size": 10}), ("ivm", {"active": 8})],
    ids=["inducing inputs", "batches", "active rows"],
)
def test_methods_for_many_rows_warn_of_a_trend(method, options):
    with pm.Model():
        trend_of_a_process()
        with pytest.warns(UserWarning, match=r"'b' \(StudentT\) is maximised with other.*pm\.InverseGamma"):
            fit = pm.fit(2, method=method, hyper="map", progressbar=False, **options)
    assert set(fit.at_maximum) == {"b", "eta", "ls"}


def basis(name):
    gp = pm.gp.HSGP(m=[4], c=1.5, cov_func=scale("eta") ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 2, 1)))
    if name is None:
        return gp.prior("f", X=X[:, None])
    columns, sqrt_psd = gp.prior_linearized(X=X[:, None])
    return columns @ (pm.Normal(name, shape=4) * sqrt_psd)


def test_names_of_variables_do_not_change_integration():
    """The same basis by `HSGP.prior`, by hand, and by hand with the name of `HSGP.prior`'s coefficients."""
    fits = [fitted(lambda name=name: binary(basis(name))) for name in (None, "z", "f_hsgp_coeffs")]
    assert all(fit.at_maximum == [] for fit in fits)
    assert all(len(fit.classifier.prior.effects) == 2 for fit in fits)
    for fit in fits[1:]:
        assert_allclose(fit.hyper_posterior.log_evidence, fits[0].hyper_posterior.log_evidence, atol=1e-6)
        assert_allclose(fit.hyper_posterior.weights, fits[0].hyper_posterior.weights, atol=1e-6)
