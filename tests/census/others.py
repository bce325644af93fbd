"""Models of bambi's documentation, of posteriordb, and of Statistical Rethinking, as their sources write them."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from tests.census.data import (
    BINARY,
    CENSORED,
    CHOICE,
    COUNTS,
    EFFECT,
    GROUP,
    HITS,
    MATRIX,
    OTHER,
    PASSED,
    PLACES,
    RATINGS,
    SERIES,
    SHARE,
    TIMES,
    TIMES_SEEN,
    TRIALS,
    VISITS,
    J,
    K,
    N,
    P,
    T,
    X,
    Y,
    Z,
    model,
    rng,
)

ORDERED = pm.distributions.transforms.ordered
FRAME = pd.DataFrame(
    {"y": Y, "x": X, "z": Z, "g": pd.Categorical(GROUP), "o": pd.Categorical(OTHER), "count": COUNTS, "hit": HITS,
     "n": TRIALS, "b": BINARY, "rating": pd.Categorical(RATINGS, ordered=True), "time": TIMES + 0.01, "share": SHARE,
     "kind": pd.Categorical(np.array(list("abc"))[CHOICE]), "status": np.where(CENSORED, "right", "none"),
     "seen": TIMES_SEEN + 0.01}
)  # fmt: skip


def bambi(formula, **kwargs):
    """Build a model of bambi outside of the current model context, and return its PyMC model."""
    import bambi as bmb

    made = bmb.Model(formula, FRAME, **kwargs)
    made.build()
    return made


@model
def bambi_negative_binomial():
    return bambi("count ~ x * z", family="negativebinomial")


@model
def bambi_sleepstudy():
    return bambi("y ~ 1 + x + (x | g)")


@model
def bambi_hierarchical_binomial():
    return bambi("p(hit, n) ~ 1 + (1 | g)", family="binomial")


@model
def bambi_logistic_regression():
    return bambi("b ~ x + z + o", family="bernoulli")


@model
def bambi_t_regression():
    return bambi("y ~ x", family="t")


@model
def bambi_beta_regression():
    return bambi("share ~ x", family="beta")


@model
def bambi_gamma_regression():
    return bambi("time ~ x + z", family="gamma", link="log")


@model
def bambi_wald():
    return bambi("time ~ x", family="wald", link="log")


@model
def bambi_cumulative():
    return bambi("rating ~ x", family="cumulative")


@model
def bambi_zero_inflated():
    return bambi("count ~ x", family="zero_inflated_poisson")


@model
def bambi_hurdle():
    return bambi("count ~ x", family="hurdle_poisson")


@model
def bambi_quantile():
    return bambi("y ~ x", family="asymmetriclaplace", priors={"kappa": 1.5})


@model
def bambi_splines():
    return bambi("y ~ bs(x, df=6)")


@model
def bambi_categorical():
    return bambi("kind ~ x", family="categorical")


@model
def bambi_distributional():
    import bambi as bmb

    return bambi(bmb.Formula("y ~ x", "sigma ~ x"))


@model
def bambi_survival():
    return bambi("censored(seen, status) ~ x", family="exponential", link="log")


@model
def bambi_survival_discrete():
    return bambi("b ~ 0 + o + x", family="bernoulli", link="cloglog")


@model
def bambi_hsgp_1d():
    return bambi("y ~ 0 + hsgp(x, m=10, c=2)")


@model
def bambi_polynomial():
    return bambi("y ~ poly(x, 3)")


@model
def bambi_multinomial():
    import bambi as bmb

    frame = pd.DataFrame({**{f"y{k}": rng.poisson(3, 30) for k in range(3)}, "x": X[:30]})
    made = bmb.Model("c(y0, y1, y2) ~ x", frame, family="multinomial")
    made.build()
    return made


@model
def bambi_beta_binomial():
    return bambi("p(hit, n) ~ x", family="beta_binomial")


@model
def kidiq():
    beta = pm.Flat("beta", shape=3)
    mu = beta[0] + beta[1] * X + beta[2] * Z
    pm.Normal("kid_score", mu, pm.HalfCauchy("sigma", 2.5), observed=Y)


@model
def radon_hierarchical():
    mu_alpha, sigma_alpha = pm.Normal("mu_alpha", 0, 10), pm.HalfNormal("sigma_alpha", 1)
    alpha = pm.Normal("alpha", mu_alpha, sigma_alpha, shape=J)
    pm.Normal("log_radon", alpha[GROUP] + X * pm.Normal("beta", 0, 10), pm.HalfNormal("sigma_y", 1), observed=Y)


@model
def seeds():
    alpha = pm.Normal("alpha", 0.0, 1.0e3, shape=4)
    tau = pm.Gamma("tau", 1.0e-3, 1.0e-3)
    b = pm.Normal("b", 0, sigma=pm.Deterministic("sigma", 1.0 / pt.sqrt(tau)), shape=N)
    x1, x2 = (X > 0).astype(int), (Z > 0).astype(int)
    eta = alpha[0] + alpha[1] * x1 + alpha[2] * x2 + alpha[3] * x1 * x2 + b
    pm.Binomial("n", n=TRIALS, p=pm.math.invlogit(eta), observed=HITS)


@model
def rats():
    weeks = np.array([8.0, 15, 22, 29, 36]) - 22
    tau_c, tau_a, tau_b = (pm.Gamma(f"tau_{k}", 1e-3, 1e-3) for k in "cab")
    alpha = pm.Normal("alpha", pm.Normal("mu_a", 0, 100), tau=tau_a, shape=P)
    beta = pm.Normal("beta", pm.Normal("mu_b", 0, 100), tau=tau_b, shape=P)
    mu = alpha[:, None] + beta[:, None] * weeks[None, :]
    pm.Normal("y", mu, tau=tau_c, observed=5 * MATRIX + 240 + 0.6 * weeks)


@model
def epil():
    base, age = rng.normal(size=P), rng.normal(size=P)
    a = pm.Normal("a", 0, 100, shape=4)
    b1 = pm.Normal("b1", 0, 1 / pt.sqrt(pm.Gamma("tau_b1", 1e-3, 1e-3)), shape=P)
    b = pm.Normal("b", 0, 1 / pt.sqrt(pm.Gamma("tau_b", 1e-3, 1e-3)), shape=(P, K))
    last = (np.arange(K) == K - 1).astype(float)
    eta = (a[0] + a[1] * base + a[2] * age + b1)[:, None] + a[3] * last + b
    pm.Poisson("y", pm.math.exp(eta), observed=VISITS)


@model
def surgical():
    mu, tau = pm.Normal("mu", 0, 1000), pm.Gamma("sigmasq_inv", 1e-3, 1e-3)
    b = pm.Normal("b", mu, 1 / pt.sqrt(tau), shape=P)
    pm.Binomial("r", n=np.full(P, 150), p=pm.math.invlogit(b), observed=rng.binomial(150, 0.08, P))


@model
def dugongs_linear():
    alpha, beta = pm.Normal("alpha", 0, 100), pm.Normal("beta", 0, 100)
    m = alpha - beta * 0.85 ** np.abs(3 * X)
    pm.Normal("y", m, tau=pm.Gamma("tau", 1e-3, 1e-3), observed=Y)


@model
def irt_2pl_known():
    slopes = np.array([0.8, 1.2, 1.0, 1.5, 0.6])
    theta, b = (
        pm.Normal("theta", 0, 1, shape=P),
        pm.Normal("b", pm.Normal("mu_b", 0, 5), pm.HalfCauchy("s_b", 2), shape=K),
    )
    pm.Bernoulli("y", logit_p=slopes * (theta[:, None] - b[None, :]), observed=PASSED)


@model
def dyes():
    theta = pm.Normal("theta", 0, 100)
    between, within = pm.Gamma("tau_between", 1e-3, 1e-3), pm.Gamma("tau_within", 1e-3, 1e-3)
    mu = pm.Normal("mu", theta, 1 / pt.sqrt(between), shape=P)
    pm.Normal("y", mu[:, None], 1 / pt.sqrt(within), observed=MATRIX)


@model
def nes():
    design = np.column_stack([np.ones(N), X, Z, X * Z, np.eye(K)[OTHER][:, 1:]])
    pm.Normal("partyid7", design @ pm.Flat("beta", shape=8), pm.HalfFlat("sigma"), observed=Y)


@model
def pilots():
    a = pm.Normal("a", 10 * pm.Normal("mu_a", 0, 1), pm.Uniform("sigma_a", 0, 100), shape=K)
    b = pm.Normal("b", 10 * pm.Normal("mu_b", 0, 1), pm.Uniform("sigma_b", 0, 100), shape=J)
    pm.Normal("y", a[OTHER] + b[GROUP], pm.Uniform("sigma_y", 0, 100), observed=Y)


@model
def garch_free():
    level = pm.GaussianRandomWalk("mu", sigma=pm.HalfNormal("s", 1), init_dist=pm.Normal.dist(0, 5), shape=T)
    pm.Normal("y", level, pm.HalfNormal("sigma_irreg", 1), observed=SERIES)


@model
def arma_lags():
    alpha, beta = pm.Normal("alpha", 0, 10), pm.Normal("beta", 0, 10, shape=2)
    mean = alpha + beta[0] * SERIES[1:-1] + beta[1] * SERIES[:-2]
    pm.Normal("y", mean, pm.HalfCauchy("sigma", 2.5), observed=SERIES[2:])


@model
def mesquite():
    logs = np.log(1 + np.abs(rng.normal(size=(N, 6))))
    pm.Normal("log_weight", pm.Flat("b0") + logs @ pm.Flat("beta", shape=6), pm.HalfFlat("sigma"), observed=Y)


@model
def electric():
    pair, grade = rng.integers(0, 20, N), rng.integers(0, 4, N)
    eta = pm.Normal("eta", 0, 1, shape=20)
    a = 100 * pm.Normal("mu_a", 0, 1) + pm.Uniform("sigma_a", 0, 100) * eta
    b = pm.Normal("b", 0, 100, shape=4)
    sigma_y = pm.Uniform("sigma_y", 0, 100, shape=4)
    pm.Normal("y", a[pair] + b[grade] * (X > 0), sigma_y[grade], observed=Y)


@model
def lsat():
    theta, alpha = pm.Normal("theta", 0, 1, shape=P), pm.Normal("alpha", 0, 100, shape=K)
    beta = pm.HalfNormal("beta", 100)
    pm.Bernoulli("r", p=pm.math.invlogit(beta * theta[:, None] - alpha), observed=PASSED)


@model
def rethinking_m8_5():
    continent = (Z > 0).astype(int)
    a, b = pm.Normal("a", 1, 0.1, shape=2), pm.Normal("b", 0, 0.3, shape=2)
    mu = a[continent] + b[continent] * (X - X.mean())
    pm.Normal("log_gdp", mu, pm.Exponential("sigma", 1), observed=Y)


@model
def rethinking_m11_4():
    treatment = OTHER % 4
    a, b = pm.Normal("a", 0, 1.5, shape=J), pm.Normal("b", 0, 0.5, shape=4)
    pm.Binomial("pulled_left", 1, pm.Deterministic("p", pm.math.invlogit(a[GROUP] + b[treatment])), observed=BINARY)


@model
def rethinking_m13_2():
    a_bar, sigma = pm.Normal("a_bar", 0.0, 1.5), pm.Exponential("sigma", 1.0)
    a = pm.Normal("a", a_bar, sigma, shape=P)
    tank = np.arange(P)
    p = pm.Deterministic("p", pm.math.invlogit(a))
    pm.Binomial("surv", n=25, p=p[tank], observed=rng.binomial(25, 0.7, P))


@model
def rethinking_m12_5():
    cutpoints = pm.Normal("cutpoints", 0, 1.5, shape=4, transform=ORDERED, initval=np.arange(4) - 1.5)
    b_a, b_i = pm.Normal("bA", 0, 0.5), pm.Normal("bI", 0, 0.5)
    pm.OrderedLogistic("response", eta=b_a * X + b_i * Z, cutpoints=cutpoints, observed=RATINGS)


@model
def rethinking_m14_1():
    chol, _, _ = pm.LKJCholeskyCov("chol_cov", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0), compute_corr=True)
    ab_bar = pm.Normal("ab_bar", 0, 5, shape=2)
    ab_cafe = pm.MvNormal("ab_cafe", mu=ab_bar, chol=chol, shape=(J, 2))
    mu = ab_cafe[:, 0][GROUP] + ab_cafe[:, 1][GROUP] * (X > 0)
    pm.Normal("wait", mu, pm.Exponential("sigma", 1.0), observed=Y)


@model
def rethinking_m14_8():
    etasq, ls_inv = pm.Exponential("etasq", 2.0), pm.HalfNormal("ls_inv", 2.0)
    distances = np.sqrt(((PLACES[:, None] - PLACES) ** 2).sum(-1))
    k = pm.MvNormal("k", mu=np.zeros(J), cov=etasq * pt.exp(-(distances**2) * ls_inv**2) + 0.01 * np.eye(J))
    a, b = pm.Normal("a", 1, 1), pm.Normal("b", 0, 1)
    pm.Poisson("total_tools", pm.math.exp(a + b * EFFECT + k[np.arange(J)]), observed=rng.poisson(4, J))


@model
def rethinking_m15_1():
    a, b_a, b_m = pm.Normal("a", 0, 0.2), pm.Normal("bA", 0, 0.5), pm.Normal("bM", 0, 0.5)
    d_true = pm.Normal("D_true", a + b_a * X + b_m * Z, pm.Exponential("sigma", 1.0), shape=N)
    pm.Normal("D_obs", d_true, np.full(N, 0.3), observed=Y)


@model
def rethinking_m12_2():
    gid = (X > 0).astype(int)
    a, phi = pm.Normal("a", 0.0, 1.5, shape=2), pm.Exponential("phi", 1.0)
    pbar = pm.Deterministic("pbar", pm.math.invlogit(a))
    theta = phi + 2.0
    pm.BetaBinomial("A", alpha=pbar[gid] * theta, beta=(1.0 - pbar[gid]) * theta, n=TRIALS, observed=HITS)
