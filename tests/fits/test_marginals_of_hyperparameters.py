"""Marginals of hyperparameters in summaries and draws, against grids of closed forms."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp

LEVELS = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
RNG = np.random.default_rng(4)
GROUPS, EACH, NOISE = 6, 5, 0.5
GROUP = np.repeat(np.arange(GROUPS), EACH)
X = RNG.normal(size=GROUP.size)
EFFECTS = RNG.normal(size=(GROUPS, 2)) @ np.array([[0.8, 0.3], [0.0, 0.4]])
Y = RNG.normal(EFFECTS[GROUP, 0] + EFFECTS[GROUP, 1] * X, NOISE)


def marginal(values, weights):
    """Quantiles, mean and standard deviation of values (k,) with weights (k,)."""
    weights = weights / weights.sum()
    mean = weights @ values
    quantiles = np.interp(LEVELS, np.cumsum(weights) - 0.5 * weights, values)
    return quantiles, mean, np.sqrt(weights @ (values - mean) ** 2)


def exact_slopes():
    """Marginals of two standard deviations and a correlation, from the normal density of each group's rows."""
    sd = np.linspace(0.01, 3.0, 40)
    rho = np.linspace(-0.995, 0.995, 41)
    first, second, corr = np.meshgrid(sd, sd, rho, indexing="ij")
    cov = np.stack(
        [np.stack([first**2, corr * first * second], -1), np.stack([corr * first * second, second**2], -1)], -1
    )
    logs = -0.5 * (first**2 + second**2) + np.log1p(-(corr**2))  # half-normal prior of scale 1, LKJ prior with eta = 2
    for g in range(GROUPS):
        design = np.column_stack([np.ones(EACH), X[g == GROUP]])
        own = design @ cov @ design.T + NOISE**2 * np.eye(EACH)
        solved = np.linalg.solve(own, np.broadcast_to(Y[g == GROUP, None], (*corr.shape, EACH, 1)))[..., 0]
        logs -= 0.5 * (np.linalg.slogdet(own)[1] + solved @ Y[g == GROUP])
    weights = np.exp(logs - logs.max())
    axes = {"sd[0]": (sd, (1, 2)), "sd[1]": (sd, (0, 2)), "rho": (rho, (0, 1))}
    return {name: marginal(values, weights.sum(axis=others)) for name, (values, others) in axes.items()}


@pytest.fixture(scope="module")
def slopes():
    with pm.Model():
        chol, *_ = pm.LKJCholeskyCov("chol", eta=2, n=2, sd_dist=pm.HalfNormal.dist(1.0))
        u = pm.MvNormal("u", np.zeros(2), chol=chol, shape=(GROUPS, 2))
        pm.Normal("y", u[GROUP, 0] + u[GROUP, 1] * X, NOISE, observed=Y)
        return pm.fit(method="ep", progressbar=False, random_seed=1)


def test_standard_deviations_and_correlations_of_slopes_have_their_exact_quantiles(slopes):
    posterior = slopes.sample(2000, random_seed=1)["posterior"]
    draws = {f"sd[{i}]": posterior["chol_stds"].values[0, :, i] for i in range(2)}
    draws["rho"] = posterior["chol_corr"].values[0, :, 0, 1]
    for name, (quantiles, mean, sd) in exact_slopes().items():
        assert_allclose((np.quantile(draws[name], LEVELS) - quantiles) / sd, 0, atol=0.15, err_msg=name)
        assert draws[name].mean() == pytest.approx(mean, abs=0.08 * sd)


def test_slope_that_does_not_vary_is_integrated_without_a_warning():
    """Warnings are errors in tests. In PyMC's coordinates of the factor, the search would end at a border."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(12), 5), rng.normal(size=60)
    y = rng.normal(rng.normal(scale=0.8, size=12)[group] + 0.5 * x, 0.5)
    with pm.Model():
        chol, *_ = pm.LKJCholeskyCov("chol", eta=2, n=2, sd_dist=pm.Exponential.dist(1.0))
        u = pm.MvNormal("u", np.zeros(2), chol=chol, shape=(12, 2))
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", b[0] + u[group, 0] + (b[1] + u[group, 1]) * x, 0.5, observed=y)
        fit = pm.fit(method="ep", progressbar=False, random_seed=1)
    assert fit.converged
    sds = fit.sample(1000, random_seed=1)["posterior"]["chol_stds"].values[0]
    assert 0.02 < np.median(sds[:, 1]) < 0.3 < np.median(sds[:, 0])


def test_summary_of_effects_averages_over_hyperparameters(slopes):
    """Moments of the effects are compared with the moments of draws, which also vary with the hyperparameters."""
    effects = slopes.effects("u")["u"]
    draws = slopes.sample(2000, random_seed=2)["posterior"]["u"].values[0]
    sd = effects.sel(moment="sd").values
    assert_allclose((draws.mean(axis=0) - effects.sel(moment="mean").values) / sd, 0, atol=0.12)
    assert_allclose(draws.std(axis=0) / sd, 1, atol=0.12)


@pytest.mark.parametrize("groups", [5, 12])
def test_scales_of_few_groups_with_wide_priors_match_quadrature(groups):
    """The reference is a sum over both standard deviations: rows of a group have a normal density in closed form."""
    rng = np.random.default_rng(groups)
    rows = 4
    y = rng.normal(rng.normal(scale=0.8, size=(groups, 1)), 1.0, size=(groups, rows))
    with pm.Model():
        s, e = pm.HalfNormal("s", 5), pm.HalfNormal("e", 5)
        u = pm.Normal("u", 0, s, shape=groups)
        pm.Normal("y", u[np.repeat(np.arange(groups), rows)], e, observed=y.ravel())
        fit = pm.fit(method="ep", progressbar=False, random_seed=1)
    axis = {"s": np.linspace(1e-3, 20, 1200), "e": np.linspace(0.2, 4, 300)}
    s, e = axis["s"][:, None], axis["e"]
    means, within = y.mean(axis=1), ((y - y.mean(axis=1, keepdims=True)) ** 2).sum()
    total = e**2 / rows + s**2
    logs = -0.5 * groups * (np.log(total) + (rows - 1) * np.log(e**2)) - 0.5 * (
        within / e**2 + (means**2).sum() / total
    )
    logs -= 0.5 * (s**2 + e**2) / 25
    weights = np.exp(logs - logsumexp(logs))
    table, draws = fit.summary(["s", "e"], ci_prob=0.95), fit.sample(4000, random_seed=1)["posterior"]
    for name, own in (("s", weights.sum(axis=1)), ("e", weights.sum(axis=0))):
        quantiles, mean, sd = marginal(axis[name], own)
        assert_allclose((np.quantile(draws[name].values, LEVELS) - quantiles) / sd, 0, atol=0.12)
        found = table.loc[name, ["mean", "eti95_lb", "eti95_ub"]].to_numpy(float)
        assert_allclose((found - [mean, quantiles[0], quantiles[-1]]) / sd, 0, atol=0.12)
        assert table.loc[name, "sd"] == pytest.approx(sd, rel=0.05)


def test_scale_of_groups_with_few_binary_rows_matches_quadrature():
    """The weights include the correction of EP's evidence.

    Without the correction, the scale is 0.04 standard deviations too small.
    """
    rng = np.random.default_rng(7)
    groups, rows = 60, 4
    x = rng.normal(size=(groups, rows))
    y = rng.random((groups, rows)) < 1 / (1 + np.exp(-1.2 * rng.normal(size=(groups, 1)) - 0.5 * x))
    with pm.Model():
        s = pm.HalfNormal("s", 2)
        u = pm.Normal("u", 0, s, shape=groups)
        logit = u[np.repeat(np.arange(groups), rows)] + 0.5 * x.ravel()
        pm.Bernoulli("y", logit_p=logit, observed=y.ravel().astype(int))
        found = {
            corrected: pm.fit(method="ep", hyper_options={"corrected": corrected}, progressbar=False, random_seed=1)
            for corrected in (True, False)
        }
    z, w = np.polynomial.hermite_e.hermegauss(60)
    axis = np.linspace(0.01, 4, 120)
    sign = np.where(y, 1.0, -1.0)[..., None]
    logs = [
        logsumexp(
            -np.logaddexp(0, -sign * (s * z + 0.5 * x[..., None])).sum(axis=1) + np.log(w / w.sum()), axis=1
        ).sum()
        - 0.5 * (s / 2) ** 2
        for s in axis
    ]
    _, mean, sd = marginal(axis, np.exp(np.array(logs) - max(logs)))
    errors = {c: float(fit.summary("s").loc["s", "mean"] - mean) / sd for c, fit in found.items()}
    assert abs(errors[True]) < 0.03
    assert errors[False] < -0.03
