"""Models of PyMC's example gallery, as their notebooks write them."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from tests.census.data import (
    BINARY,
    CENSORED,
    CHOICE,
    COUNTS,
    CURVE,
    DAYS,
    GROUP,
    HITS,
    LINE,
    MATRIX,
    OTHER,
    PASSED,
    PLACES,
    RATINGS,
    SERIES,
    SERIES_COUNTS,
    TIMES,
    TIMES_SEEN,
    TRIALS,
    TWO_SERIES,
    XZ,
    J,
    K,
    N,
    P,
    T,
    W,
    X,
    Y,
    Z,
    model,
    rng,
)

ORDERED = pm.distributions.transforms.ordered


@model
def glm_linear():
    intercept, slope = pm.Normal("Intercept", 0, sigma=20), pm.Normal("slope", 0, sigma=20)
    pm.Normal("y", mu=intercept + slope * X, sigma=pm.HalfCauchy("sigma", beta=10), observed=Y)


@model
def glm_robust():
    xdata = pm.Data("x", X, dims="obs_id")
    mu = pm.Deterministic("mu", pm.Normal("intercept", 0, 1) + pm.Normal("slope", 0, 1) * xdata, dims="obs_id")
    nu = pm.InverseGamma("nu", alpha=3, beta=10)
    pm.StudentT("y", mu=mu, sigma=pm.HalfCauchy("sigma", beta=2), nu=nu, observed=Y, dims="obs_id")


@model
def glm_robust_outliers():
    beta = pm.Normal("beta", 0, 10, shape=2)
    y_in = beta[0] + beta[1] * X
    good = pm.Normal.dist(mu=y_in, sigma=np.full(N, 0.7))
    bad = pm.Normal.dist(mu=pm.Normal("y_out", 0, 10), sigma=pm.HalfNormal("sigma_out", 10) + 0.7)
    fraction = pm.Uniform("frac", 0, 0.5)
    pm.Mixture("y", w=pt.stack([1 - fraction, fraction]), comp_dists=[good, bad], observed=Y)


@model
def glm_poisson():
    alcohol, med = (X > 0).astype(int), (Z > 0).astype(int)
    b0, b1 = pm.Normal("Intercept", 0, sigma=10), pm.Normal("alcohol", 0, sigma=10)
    b2, b3 = pm.Normal("nomeds", 0, sigma=10), pm.Normal("alcohol:nomeds", 0, sigma=10)
    theta = b0 + b1 * alcohol + b2 * med + b3 * alcohol * med
    pm.Poisson("y", mu=pm.math.exp(theta), observed=COUNTS)


@model
def glm_negative_binomial():
    b = pm.Normal("b", 0, 5, dims="predictors")
    design = pm.Data("design", np.column_stack([np.ones(N), X, Z, X * Z]))
    pm.NegativeBinomial("y", mu=pm.math.exp(design @ b), alpha=pm.Exponential("alpha", 0.5), observed=COUNTS)


@model
def glm_binomial():
    beta0, beta1 = pm.Normal("beta0", mu=0, sigma=1), pm.Normal("beta1", mu=0, sigma=1)
    mu = beta0 + beta1 * pm.Data("x", X, dims="observation")
    p = pm.Deterministic("p", pm.math.invlogit(mu), dims="observation")
    pm.Binomial("y", n=TRIALS, p=p, observed=HITS, dims="observation")


@model
def glm_truncated():
    keep = Y > -0.5
    slope, intercept = pm.Normal("slope", mu=0, sigma=1), pm.Normal("intercept", mu=0, sigma=1)
    distribution = pm.Normal.dist(mu=slope * X[keep] + intercept, sigma=pm.HalfNormal("sigma", sigma=1))
    pm.Truncated("y", distribution, lower=-0.5, upper=6.0, observed=Y[keep])


@model
def glm_censored():
    bounded = np.clip(Y, -0.5, 1.5)
    mu = pm.Normal("slope", mu=0, sigma=1) * X + pm.Normal("intercept", mu=0, sigma=1)
    latent = pm.Normal.dist(mu=mu, sigma=pm.HalfNormal("sigma", sigma=1))
    pm.Censored("obs", latent, lower=-0.5, upper=1.5, observed=bounded)


@model
def glm_ordinal():
    cutpoints = pm.Normal("cutpoints", mu=np.linspace(-2, 2, 4), sigma=1, transform=ORDERED, shape=4)
    beta = pm.Normal("beta", 0, 1, shape=2)
    pm.OrderedLogistic("y", cutpoints=cutpoints, eta=pm.math.dot(XZ, beta), observed=RATINGS)


@model
def glm_hierarchical_radon():
    county = pm.Data("county_idx", GROUP, dims="obs_id")
    mu_a, mu_b = pm.Normal("mu_a", mu=0.0, sigma=100.0), pm.Normal("mu_b", mu=0.0, sigma=100.0)
    a_offset, b_offset = pm.Normal("a_offset", 0, 1, shape=J), pm.Normal("b_offset", 0, 1, shape=J)
    a = pm.Deterministic("a", mu_a + a_offset * pm.HalfNormal("sigma_a", 5.0))
    b = pm.Deterministic("b", mu_b + b_offset * pm.HalfNormal("sigma_b", 5.0))
    pm.Normal("y", a[county] + b[county] * X, sigma=pm.HalfCauchy("eps", 5.0), observed=Y, dims="obs_id")


@model
def glm_rolling_regression():
    steps_a, steps_b = pm.Exponential("sigma_alpha", 50.0), pm.Exponential("sigma_beta", 50.0)
    alpha = pm.GaussianRandomWalk("alpha", sigma=steps_a, init_dist=pm.Normal.dist(0, 10), shape=T)
    beta = pm.GaussianRandomWalk("beta", sigma=steps_b, init_dist=pm.Normal.dist(0, 10), shape=T)
    pm.Normal("y", mu=alpha + beta * X[:T], sigma=pm.HalfNormal("sd", sigma=0.1), observed=SERIES)


@model
def glm_out_of_sample():
    coefficients = {name: pm.Normal(name, mu=0, sigma=1) for name in ("intercept", "b1", "b2", "b12")}
    x1, x2 = pm.Data("x1", X, dims="obs"), pm.Data("x2", Z, dims="obs")
    mu = coefficients["intercept"] + coefficients["b1"] * x1 + coefficients["b2"] * x2 + coefficients["b12"] * x1 * x2
    p = pm.Deterministic("p", pm.math.invlogit(mu), dims="obs")
    pm.Bernoulli("obs_y", p=p, observed=pm.Data("y", BINARY, dims="obs"), dims="obs")


@model
def glm_simpsons_paradox():
    b0_mean, b1_mean = pm.Normal("intercept_mu", 0, 1), pm.Normal("slope_mu", 0, 1)
    b0 = pm.Normal("b0", b0_mean, pm.Gamma("intercept_sigma", 2, 2), shape=J)
    b1 = pm.Normal("b1", b1_mean, pm.Gamma("slope_sigma", 2, 2), shape=J)
    g = pm.Data("g", GROUP)
    pm.Normal("y", mu=b0[g] + b1[g] * pm.Data("x", X), sigma=pm.Gamma("sigma", 2, 2), observed=Y)


@model
def multilevel_radon_correlated():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(0.5), compute_corr=True)
    g = pm.Normal("g", mu=0.0, sigma=5.0, shape=2)
    z = pm.Normal("z", 0.0, 1.0, shape=(2, J))
    u = pm.Deterministic("u", pt.dot(chol, z).T)
    mu = g[0] + u[GROUP, 0] + (g[1] + u[GROUP, 1]) * X
    pm.Normal("y", mu=mu, sigma=pm.Exponential("sigma", 1.0), observed=Y)


@model
def multilevel_radon_uranium():
    uranium = PLACES[:, 0]
    g = pm.Normal("g", mu=0.0, sigma=10.0, shape=2)
    mu_a = pm.Deterministic("mu_a", g[0] + g[1] * uranium)
    a = pm.Normal("alpha", mu=mu_a, sigma=pm.Exponential("sigma_a", 1), shape=J)
    theta = a[GROUP] + pm.Normal("beta", mu=0.0, sigma=10.0) * X
    pm.Normal("y", theta, sigma=pm.Exponential("sigma_y", 1), observed=Y)


@model
def hierarchical_baseball():
    at_bats, hits = np.full(P, 45), rng.binomial(45, 0.27, P)
    mu, sd = pm.Normal("mu", -1, 1), pm.HalfNormal("sd", 1)
    theta = pm.Normal("theta", mu, sd, shape=P)
    pm.Binomial("y", n=at_bats, p=pm.math.invlogit(theta), observed=hits)


@model
def eight_schools():
    errors, effects = np.array([15.0, 10, 16, 11, 9, 11, 10, 18]), np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    mu, tau = pm.Normal("mu", mu=0, sigma=10), pm.HalfNormal("tau", 10)
    theta_tilde = pm.Normal("theta_t", mu=0, sigma=1, shape=8)
    theta = pm.Deterministic("theta", mu + tau * theta_tilde)
    pm.Normal("obs", mu=theta, sigma=errors, observed=effects)


@model
def rugby():
    teams = 6
    home, away = (
        np.array(each) for each in zip(*[(i, j) for i in range(teams) for j in range(teams) if i != j], strict=True)
    )
    home_goals, away_goals = rng.poisson(3.0, len(home)), rng.poisson(2.0, len(home))
    home_advantage, intercept = pm.Normal("home", mu=0, sigma=1), pm.Normal("intercept", mu=3, sigma=1)
    sd_att, sd_def = pm.HalfNormal("sd_att", sigma=2), pm.HalfNormal("sd_def", sigma=2)
    atts_star, defs_star = (
        pm.Normal("atts_star", 0, sd_att, shape=teams),
        pm.Normal("defs_star", 0, sd_def, shape=teams),
    )
    atts = pm.Deterministic("atts", atts_star - pt.mean(atts_star))
    defs = pm.Deterministic("defs", defs_star - pt.mean(defs_star))
    home_theta = pt.exp(intercept + home_advantage + atts[home] + defs[away])
    away_theta = pt.exp(intercept + atts[away] + defs[home])
    pm.Poisson("home_points", mu=home_theta, observed=home_goals)
    pm.Poisson("away_points", mu=away_theta, observed=away_goals)


@model
def disaster_switch():
    early, late = pm.Normal("early", 1, 1), pm.Normal("late", 0, 1)
    log_rate = pm.math.switch(np.arange(T) < 20, early, late)
    pm.Poisson("disasters", pm.Deterministic("rate", pm.math.exp(log_rate)), observed=SERIES_COUNTS)


@model
def stochastic_volatility():
    returns = np.exp(-2 + 0.5 * SERIES) * rng.standard_t(5, T)
    step = pm.Exponential("step_size", 10)
    volatility = pm.GaussianRandomWalk("volatility", sigma=step, init_dist=pm.Normal.dist(0, 10), shape=T)
    pm.StudentT("returns", nu=pm.Exponential("nu", 0.1) + 2, lam=np.exp(-2 * volatility), observed=returns)


@model
def car_scotland():
    beta0, beta1 = pm.Normal("beta0", 0.0, tau=1e-1), pm.Normal("beta1", 0.0, tau=1e-1)
    theta = pm.Normal("theta", mu=0, tau=pm.Gamma("tau_ind", alpha=3.2761, beta=1.81), shape=J)
    phi = pm.CAR("phi", mu=np.zeros(J), tau=pm.Gamma("tau_spat", alpha=1.0, beta=1.0), alpha=0.9, W=W)
    cases = rng.poisson(5, J)
    pm.Poisson("Yi", mu=pt.exp(np.log(np.full(J, 5.0)) + beta0 + beta1 * PLACES[:, 0] + theta + phi), observed=cases)


@model
def icar_new_york():
    beta0, beta1 = pm.Normal("beta0", 0, 1), pm.Normal("beta1", 0, 1)
    theta, phi = pm.Normal("theta", 0, 1, shape=J), pm.ICAR("phi", W=W)
    mixture = pm.HalfNormal("sigma_theta", 1) * theta + pm.HalfNormal("sigma_phi", 1) * phi
    pm.Poisson("y", mu=pm.math.exp(np.log(5.0) + beta0 + beta1 * PLACES[:, 1] + mixture), observed=rng.poisson(5, J))


@model
def besag_york_mollie():
    beta0, beta1 = pm.Normal("beta0", 0, 1), pm.Normal("beta1", 0, 1)
    theta, phi = pm.Normal("theta", 0, 1, shape=J), pm.ICAR("phi", W=W)
    sigma, rho = pm.HalfNormal("sigma", 1), pm.Beta("rho", 0.5, 0.5)
    mixture = pm.Deterministic("mixture", pt.sqrt(1 - rho) * theta + pt.sqrt(rho / 0.6) * phi)
    mu = pt.exp(np.log(np.full(J, 5.0)) + beta0 + beta1 * PLACES[:, 0] + sigma * mixture)
    pm.Poisson("y_i", mu, observed=rng.poisson(6, J))


@model
def gp_marginal():
    ell, eta = pm.Gamma("ell", alpha=2, beta=1), pm.HalfCauchy("eta", beta=5)
    gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.Matern52(1, ell))
    gp.marginal_likelihood("y", X=LINE, y=CURVE, sigma=pm.HalfCauchy("sigma", beta=5))


@model
def gp_latent_student():
    ell, eta = pm.Gamma("ell", alpha=2, beta=1), pm.HalfNormal("eta", sigma=5)
    f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell)).prior("f", X=LINE)
    nu = pm.Deterministic("nu", 1 + pm.Gamma("nu_minus_one", alpha=2, beta=0.1))
    pm.StudentT("y", mu=f, lam=1.0 / pm.HalfNormal("sigma", sigma=2.0), nu=nu, observed=CURVE)


@model
def gp_latent_binary():
    ell, eta = pm.InverseGamma("ell", mu=1.0, sigma=0.5), pm.Exponential("eta", lam=1.0)
    f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell)).prior("f", X=LINE)
    pm.Bernoulli("y", p=pm.Deterministic("p", pm.math.invlogit(f)), observed=(CURVE > 0).astype(int))


@model
def gp_kron_marginal():
    ls, sigma = pm.Gamma("ls", 2, 1, shape=2), pm.HalfNormal("sigma", 1)
    covs = [pm.gp.cov.ExpQuad(1, ls[0]), pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.Matern52(1, ls[1])]
    xs = [np.linspace(0, 1, 5)[:, None], np.linspace(0, 1, 5)[:, None]]
    pm.gp.MarginalKron(cov_funcs=covs).marginal_likelihood("y", Xs=xs, y=CURVE, sigma=sigma)


@model
def gp_kron_latent():
    ls = pm.Gamma("ls", 2, 1, shape=2)
    covs = [pm.gp.cov.ExpQuad(1, ls[0]), pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.Matern52(1, ls[1])]
    xs = [np.linspace(0, 1, 5)[:, None], np.linspace(0, 1, 5)[:, None]]
    f = pm.gp.LatentKron(cov_funcs=covs).prior("f", Xs=xs)
    pm.Normal("y", f, pm.HalfNormal("sigma", 1), observed=CURVE)


@model
def gp_sparse_approx():
    cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.Matern52(1, pm.Gamma("ell", 2, 1))
    gp = pm.gp.MarginalApprox(cov_func=cov, approx="VFE")
    gp.marginal_likelihood("y", X=LINE, Xu=LINE[::4], y=CURVE, sigma=pm.HalfCauchy("sigma", beta=5))


@model
def gp_sparse_fitc():
    cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.Matern52(1, pm.Gamma("ell", 2, 1))
    gp = pm.gp.MarginalApprox(cov_func=cov, approx="FITC")
    gp.marginal_likelihood("obs", X=LINE, Xu=LINE[::4], y=CURVE, sigma=pm.HalfCauchy("sigma", beta=5))


@model
def gp_mauna_loa():
    periodic = pm.gp.cov.Periodic(1, period=1, ls=pm.Gamma("l_psmooth", 4, 3)) * pm.gp.cov.Matern52(1, 5.0)
    seasonal = pm.gp.Marginal(cov_func=pm.HalfCauchy("eta_per", 2) ** 2 * periodic)
    trend = pm.gp.Marginal(cov_func=pm.HalfCauchy("eta_trend", 3) ** 2 * pm.gp.cov.ExpQuad(1, 2.0))
    noise = pm.gp.cov.Matern32(1, 0.3) * pm.HalfNormal("eta_noise", 0.5) ** 2 + pm.gp.cov.WhiteNoise(
        pm.HalfNormal("sigma", 0.25)
    )
    (seasonal + trend).marginal_likelihood("y", X=LINE, y=CURVE, sigma=noise)


@model
def gp_poisson_coal():
    cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.ExpQuad(1, pm.Gamma("ls", 2, 1))
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(pm.Normal("mean", 0, 2)), cov_func=cov)
    pm.Poisson("y", mu=pm.math.exp(gp.prior("f", DAYS[:, None])), observed=SERIES_COUNTS)


@model
def gp_smoothing():
    smoothing = pm.Data("smoothing", 0.9)
    z = pm.GaussianRandomWalk("z", mu=0.0, sigma=pt.sqrt(1 - smoothing), init_dist=pm.Normal.dist(0, 10), shape=T)
    pm.Normal("obs", mu=z, tau=1.0 / smoothing, observed=SERIES)


@model
def gp_heteroskedastic():
    cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.ExpQuad(1, pm.InverseGamma("ell", mu=1, sigma=0.5))
    f = pm.gp.Latent(cov_func=cov).prior("f", X=LINE)
    lg = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior("lg", X=LINE)
    pm.Normal("y", mu=f, sigma=pm.math.exp(lg), observed=CURVE)


@model
def gp_means_and_covs():
    mean = pm.gp.mean.Linear(coeffs=pm.Normal("slope", 0, 1, shape=1), intercept=pm.Normal("intercept", 0, 1))
    gp = pm.gp.Marginal(mean_func=mean, cov_func=pm.gp.cov.Exponential(1, pm.Gamma("ls", 2, 1)))
    gp.marginal_likelihood("y", X=LINE, y=CURVE, sigma=pm.HalfNormal("sigma", 1))


@model
def gp_circular():
    cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.Circular(
        1, period=3.0, tau=pm.Deterministic("tau", 4 + pm.Gamma("tau_", 2, 1))
    )
    gp = pm.gp.Marginal(cov_func=cov)
    gp.marginal_likelihood("y", X=LINE, y=CURVE, sigma=pm.HalfNormal("sigma", 1))


@model
def gp_coregion():
    x = np.vstack([np.column_stack([LINE[:, 0], np.full(25, i)]) for i in range(2)])
    w, kappa = pm.Normal("W", 0, 3, shape=(2, 1), initval=np.ones((2, 1))), pm.Gamma("kappa", 1.5, 1, shape=2)
    coreg = pm.gp.cov.Coregion(input_dim=2, active_dims=[1], kappa=kappa, W=w)
    cov = pm.gp.cov.ExpQuad(2, ls=pm.Gamma("ell", 2, 1), active_dims=[0]) * coreg
    pm.gp.Marginal(cov_func=cov).marginal_likelihood("y", x, np.tile(CURVE, 2), sigma=pm.HalfNormal("sigma", 3))


@model
def gp_births_hsgp():
    cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.ExpQuad(1, pm.InverseGamma("ell", mu=0.5, sigma=0.3))
    gp = pm.gp.HSGP(m=[10], c=1.5, cov_func=cov)
    phi, sqrt_psd = gp.prior_linearized(X=DAYS[:, None])
    f = pm.Deterministic("f", phi @ (sqrt_psd * pm.Normal("beta", size=10)))
    periodic = pm.gp.HSGPPeriodic(
        m=5, scale=pm.HalfNormal("scale", 1), cov_func=pm.gp.cov.Periodic(1, period=0.2, ls=1.0)
    )
    g = periodic.prior("g", X=DAYS[:, None])
    weekday = pm.ZeroSumNormal("weekday", sigma=1, shape=7)
    nu = pm.Gamma("nu", alpha=8, beta=2)
    pm.StudentT("y", mu=f + g + weekday[np.arange(T) % 7], nu=nu, sigma=pm.HalfNormal("sigma", 1), observed=SERIES)


@model
def hsgp_basic():
    cov = pm.Exponential("eta", 1) ** 2 * pm.gp.cov.ExpQuad(1, pm.InverseGamma("ell", 5, 5))
    f = pm.gp.HSGP(m=[20], c=1.5, cov_func=cov).prior("f", X=LINE)
    pm.Normal("y", mu=f, sigma=pm.Exponential("sigma", 1), observed=CURVE)


@model
def hsgp_advanced():
    cov = pm.Exponential("eta", 1) ** 2 * pm.gp.cov.Matern52(1, pm.InverseGamma("ell", 5, 5))
    gp = pm.gp.HSGP(m=[10], c=1.5, cov_func=cov)
    phi, sqrt_psd = gp.prior_linearized(LINE)
    beta = pm.Normal("beta", shape=(10, 3))
    f = pm.Deterministic("f", pm.Normal("level", 0, 2) + phi @ (sqrt_psd[:, None] * beta))
    pm.Normal("y", mu=f, sigma=pm.Exponential("sigma", 1), observed=CURVE[:, None] + 0.3 * rng.normal(size=(25, 3)))


@model
def log_gaussian_cox():
    cells = np.array([(i, j) for i in range(6) for j in range(6)], float)
    cov = pm.InverseGamma("variance", 2, 1) * pm.gp.cov.Matern52(2, ls=pm.Uniform("rho", 0.5, 6))
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(pm.Normal("mu", 0, 3)), cov_func=cov)
    intensity = pm.math.exp(gp.prior("log_intensity", X=cells))
    pm.Poisson("counts", mu=intensity * 2.0, observed=rng.poisson(3, 36))


BASIS = np.exp(-0.5 * ((DAYS[:, None] - np.linspace(0, 1, 9)) / 0.1) ** 2)


@model
def spline_cherry():
    a, w = pm.Normal("a", 0, 5), pm.Normal("w", mu=0, sigma=3, size=BASIS.shape[1], dims="splines")
    mu = pm.Deterministic("mu", a + pm.math.dot(np.asarray(BASIS, order="F"), w.T))
    pm.Normal("D", mu=mu, sigma=pm.Exponential("sigma", 1), observed=SERIES)


@model
def bspline_bike_rentals():
    tau = pm.HalfCauchy("tau", 1)
    beta = pm.Normal("beta", mu=0, sigma=tau, shape=BASIS.shape[1])
    mu = pm.Deterministic("mu", pm.math.dot(BASIS, beta))
    pm.Normal("rentals", mu, pm.HalfNormal("sigma", 1), observed=SERIES)


EXPOSURE = np.clip(TIMES_SEEN[:, None] - np.arange(5) * 0.5, 0, 0.5)
DEATH = (
    (TIMES_SEEN[:, None] > np.arange(5) * 0.5) & (TIMES_SEEN[:, None] <= np.arange(1, 6) * 0.5) & ~CENSORED[:, None]
).astype(int)


@model
def survival_cox():
    lambda0 = pm.Gamma("lambda0", 0.01, 0.01, shape=5)
    beta = pm.Normal("beta", 0, sigma=10)
    lambda_ = pm.Deterministic("lambda_", pt.outer(pt.exp(beta * X), lambda0))
    pm.Poisson("obs", pm.Deterministic("mu", EXPOSURE * lambda_), observed=DEATH)


@model
def survival_cox_time_varying():
    log_hazard = pm.Normal("log_lambda0", -1, 2, shape=5)
    beta = pm.GaussianRandomWalk("beta", sigma=pm.HalfNormal("tau", 1), init_dist=pm.Normal.dist(0, 2), shape=5)
    lambda_ = pm.Deterministic("h", pt.exp(log_hazard)) * pt.exp(pt.outer(pt.constant(X), beta))
    pm.Poisson("obs", pm.Deterministic("mu", EXPOSURE * lambda_), observed=DEATH)


@model
def weibull_aft_potential():
    mu = pm.Normal("mu", 0, 10) + pm.Normal("b", 0, 5) * X
    alpha = pm.Deterministic("alpha", 1.0 / pm.HalfNormal("inv_alpha", 2))
    beta = pm.Deterministic("beta", pm.math.exp(mu))
    pm.Weibull("y_obs", alpha=alpha, beta=beta[~CENSORED], observed=TIMES[~CENSORED])
    pm.Potential("y_cens", -((TIMES_SEEN[CENSORED] / beta[CENSORED]) ** alpha))


@model
def weibull_aft_censored():
    mu = pm.Normal("mu", 0, 10) + pm.Normal("b", 0, 5) * X
    latent = pm.Weibull.dist(alpha=pm.HalfNormal("alpha", 2), beta=pm.math.exp(mu))
    pm.Censored("y", latent, lower=None, upper=np.where(CENSORED, 2.5, np.inf), observed=TIMES_SEEN)


@model
def log_logistic_aft():
    s, y = pm.HalfNormal("s", 5.0), np.log(TIMES_SEEN)
    eta = pm.Deterministic("eta", pm.math.dot(np.column_stack([np.ones(N), X]), pm.Normal("beta", 0, 5, shape=2)))
    pm.Logistic("y_obs", eta[~CENSORED], s, observed=y[~CENSORED])
    pm.Potential("y_cens", -pt.softplus((y[CENSORED] - eta[CENSORED]) / s))


@model
def frailty_aft():
    frailty = pm.Normal("frailty", 0, pm.HalfNormal("sd", 1), shape=J)
    eta = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 1) * X + frailty[GROUP]
    scale, alpha = pm.math.exp(eta), pm.HalfNormal("alpha", 2)
    pm.Weibull("y", alpha, scale[~CENSORED], observed=TIMES[~CENSORED])
    censored = pm.Weibull.dist(alpha, scale[CENSORED])
    pm.Potential("y_cens", pt.log1mexp(pm.logcdf(censored, TIMES_SEEN[CENSORED])))


@model
def bayes_ab():
    theta = pm.Normal("theta", 0, 1.5, shape=2)
    p = pm.Deterministic("p", pm.math.sigmoid(theta))
    pm.Binomial("y", n=np.array([200, 220]), p=p, observed=np.array([30, 50]))
    pm.Deterministic("reluplift", p[1] / p[0] - 1)


@model
def item_response_nba():
    mu_theta = pm.Normal("μ_θ", 0.0, 100.0)
    sigma_theta, sigma_b = pm.HalfCauchy("σ_θ", 2.5), pm.HalfCauchy("σ_b", 2.5)
    theta = pm.Deterministic("θ", sigma_theta * pm.Normal("Δ_θ", 0.0, 1.0, shape=J) + mu_theta)
    b = pm.Deterministic("b", sigma_b * pm.Normal("Δ_b", 0.0, 1.0, shape=K))
    pm.Bernoulli("foul", logit_p=pm.Deterministic("η", theta[GROUP] - b[OTHER]), observed=BINARY)


@model
def item_response_matrix():
    ability, difficulty = pm.Normal("ability", 0, 1, shape=P), pm.Normal("difficulty", 0, 2, shape=K)
    p = pm.Deterministic("p", pm.math.sigmoid(ability[:, None] - difficulty[None, :]))
    pm.Bernoulli("y", p=p, observed=PASSED)


@model
def bym_counts_binomial():
    phi = pm.ICAR("phi", W=W, sigma=pm.HalfNormal("s", 1))
    pm.Binomial("y", n=np.full(J, 30), logit_p=pm.Normal("a", 0, 1) + phi, observed=rng.binomial(30, 0.4, J))


@model
def ar_by_hand():
    r = pm.Normal("r", 0, 1, shape=2)
    pm.Normal("y", r[0] + r[1] * SERIES[:-1], pm.HalfNormal("sigma", 1), observed=SERIES[1:])


@model
def ar_observed():
    rho, tau = pm.Normal("rho", mu=0.0, sigma=1.0, shape=2), pm.Exponential("tau", lam=0.5)
    pm.AR("likelihood", rho=rho, tau=tau, constant=True, init_dist=pm.Normal.dist(0, 10), observed=SERIES)


@model
def var_two_series():
    lag = pm.Normal("lag_coefs", 0, 0.5, shape=(2, 2))
    alpha = pm.Normal("alpha", 0, 1, shape=2)
    mean = pm.Deterministic("mean", alpha + pm.math.dot(TWO_SERIES[:-1], lag.T))
    pm.Normal(
        "obs", mu=mean, sigma=pm.HalfNormal("noise", 1, shape=2), observed=TWO_SERIES[1:], dims=("lagged", "series")
    )


@model
def structural_series():
    level = pm.GaussianRandomWalk("level", sigma=pm.HalfNormal("s", 0.5), init_dist=pm.Normal.dist(0, 2), shape=T)
    month = pm.ZeroSumNormal("season", sigma=pm.HalfNormal("s_month", 1), shape=4)
    mu = level + month[np.arange(T) % 4]
    pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=SERIES)


@model
def air_passengers():
    fourier = np.column_stack([f(2 * np.pi * k * DAYS * 4) for k in (1, 2) for f in (np.sin, np.cos)])
    trend = pm.Deterministic("trend", pm.Normal("alpha", 0, 0.5) + pm.Normal("beta", 0, 0.5) * DAYS)
    seasonality = pm.Deterministic(
        "seasonality", pm.math.dot(pm.Normal("beta_fourier", 0, 0.1, dims="features"), fourier.T)
    )
    mu = trend * 1.0 + seasonality
    pm.Normal("likelihood", mu=mu, sigma=pm.HalfNormal("sigma", sigma=0.1), observed=SERIES)


@model
def mv_random_walk():
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfCauchy.dist(2.5), compute_corr=True)
    alpha = pm.MvGaussianRandomWalk(
        "alpha", mu=np.zeros(2), chol=chol, init_dist=pm.MvNormal.dist(np.zeros(2), 25 * np.eye(2)), shape=(T, 2)
    )
    pm.Normal("y", mu=alpha, sigma=pm.HalfNormal("sigma", 1), observed=TWO_SERIES, dims=("time", "series"))


@model
def excess_deaths():
    mu_trend = pm.GaussianRandomWalk("trend", sigma=pm.HalfNormal("s", 0.1), init_dist=pm.Normal.dist(0, 1), shape=T)
    months = pm.ZeroSumNormal("month mu", sigma=15, dims="month")
    mu = pm.Normal("intercept", 0, 10) + months[np.arange(T) % 12] + mu_trend
    pm.Normal("obs", mu=mu, sigma=pm.HalfNormal("sigma", 2), observed=SERIES)


@model
def difference_in_differences():
    group, treated = (X > 0).astype(int), (Z > 0).astype(int)
    mu_control, group_effect = pm.Normal("intercept", 0, 5), pm.Normal("group_effect", 0, 5)
    mu = mu_control + group_effect * group + pm.Normal("trend", 0, 1) * Z + pm.Normal("Δ", 0, 1) * (group * treated)
    pm.Normal("obs", mu, pm.HalfNormal("sigma", 1), observed=Y)


@model
def regression_discontinuity():
    treated = (X < 0.2).astype(int)
    effect = pm.Cauchy("effect", alpha=0, beta=1) if False else pm.Normal("effect", 0, 1)
    mu = pm.Deterministic("mu", X + effect * pm.Data("treated", treated))
    pm.Normal("y", mu=mu, sigma=pm.HalfNormal("sigma", 1), observed=Y)


@model
def interrupted_time_series():
    design = np.column_stack([np.ones(T), DAYS])
    beta = pm.Normal("beta", 0, 10, shape=2)
    pm.Normal(
        "obs",
        mu=pm.Deterministic("mu", pm.math.dot(pm.Data("pre", design), beta)),
        sigma=pm.HalfNormal("s", 1),
        observed=SERIES,
    )


@model
def counterfactuals_deaths():
    month = pm.Data("month_idx", np.arange(T) % 12 + 1)
    months = pm.ZeroSumNormal("month mu", sigma=15, shape=12)
    mu = pm.Deterministic("mu", pm.Normal("int", 0, 5) + pm.Normal("lin", 0, 5) * DAYS + months[month - 1])
    pm.TruncatedNormal("obs", mu=mu, sigma=pm.HalfNormal("sigma", 2), lower=-20, observed=SERIES)


@model
def moderation():
    b = [pm.Normal(f"β{i}", mu=0, sigma=10) for i in range(4)]
    x, m = pm.Data("x", X), pm.Data("m", Z)
    mu = pm.Deterministic("μ", b[0] + (b[1] * x) + (b[2] * x * m) + (b[3] * m))
    pm.Normal("y", mu=mu, sigma=pm.HalfCauchy("σ", 1), observed=Y)


@model
def mediation():
    im, iy = pm.Normal("im", 0, 10), pm.Normal("iy", 0, 10)
    a, b, cprime = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10), pm.Normal("cprime", 0, 10)
    pm.Normal("m_likelihood", im + a * X, pm.HalfCauchy("σm", 1), observed=Z)
    pm.Normal("y_likelihood", iy + b * Z + cprime * X, pm.HalfCauchy("σy", 1), observed=Y)


@model
def dirichlet_conditional_logit():
    prices, quality = rng.normal(size=(N, 3)), rng.normal(size=(N, 3))
    b, alphas = pm.Normal("b", 0, 1, shape=2), pm.Normal("alphas", 0, 1, shape=2)
    utilities = pt.stack(
        [b[0] * prices[:, k] + b[1] * quality[:, k] + (alphas[k] if k < 2 else 0.0) for k in range(3)], axis=1
    )
    pm.Categorical("y", p=pm.math.softmax(utilities, axis=1), observed=CHOICE)


@model
def missing_imputation_y():
    holes = np.where(rng.random(MATRIX.shape) < 0.15, np.nan, MATRIX)
    mu = pm.Normal("a", 0, 1, shape=P)[:, None] + pm.Normal("b", 0, 1, shape=K)
    pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=holes)


@model
def zero_sum_two_axes():
    cells = pm.ZeroSumNormal("cells", sigma=pm.HalfNormal("s", 1), n_zerosum_axes=2, shape=(P, K))
    a, b = pm.ZeroSumNormal("a", shape=P), pm.ZeroSumNormal("b", shape=K)
    mu = pm.Normal("level", 0, 2) + a[:, None] + b + cells
    pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=MATRIX)


@model
def mrp():
    state = pm.Normal("state", 0, pm.HalfNormal("s_state", 1), shape=J)
    age = pm.Normal("age", 0, pm.HalfNormal("s_age", 1), shape=K)
    eta = pm.Normal("a", 0, 2) + state[GROUP] + age[OTHER] + pm.Normal("male", 0, 1) * (X > 0)
    pm.Binomial("abortion", n=TRIALS, p=pm.math.invlogit(eta), observed=HITS)


@model
def wishart_mvnormal():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
    beta = pm.Normal("beta", 0, 1, shape=(2, 2))
    pm.MvNormal("y", mu=pm.math.dot(np.column_stack([np.ones(T), DAYS]), beta), chol=chol, observed=TWO_SERIES)


@model
def probit_ordinal_dirichlet():
    theta = pm.Dirichlet("theta", a=np.ones(3))
    cutpoints = pm.Deterministic("cutpoints", pt.concatenate([[-1.5], -1.5 + 3.5 * pt.cumsum(theta)]))
    mu = pm.math.dot(XZ, pm.Normal("beta", 0, 1, shape=2))
    pm.OrderedProbit("y", eta=mu, cutpoints=cutpoints, observed=RATINGS)


@model
def lasso_block():
    beta = pm.Laplace("beta", 0, 1, shape=2)
    pm.Normal("y", pm.Normal("a", 0, 1) + pm.math.dot(XZ, beta), pm.HalfNormal("sigma", 1), observed=Y)


@model
def horseshoe():
    design = rng.normal(size=(N, 8))
    tau, lam = pm.HalfStudentT("tau", 2, 0.1), pm.HalfStudentT("lam", 5, dims="predictors", shape=8)
    z = pm.Normal("z", 0, 1, shape=8)
    beta = pm.Deterministic("beta", z * tau * lam)
    pm.Normal("y", pm.Normal("beta0", 0, 10) + pm.math.dot(design, beta), pm.HalfNormal("sigma", 1), observed=Y)


@model
def quantile_bmi():
    mu = pm.Normal("a", 0, 2) + pm.math.dot(BASIS, pm.Normal("w", 0, 1, shape=9))
    pm.AsymmetricLaplace("y", mu=mu, b=pm.HalfNormal("b", 1), q=0.9, observed=SERIES)


@model
def discrete_choice_mixed():
    prices = rng.normal(size=(N, 3))
    slopes = pm.Normal("slopes", pm.Normal("b", 0, 1), pm.HalfNormal("s", 1), shape=J)
    alphas = pt.concatenate([pm.Normal("alphas", 0, 1, shape=2), [0.0]])
    pm.Categorical("y", logit_p=alphas + slopes[GROUP][:, None] * prices, observed=CHOICE)
