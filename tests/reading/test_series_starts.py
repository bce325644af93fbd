"""Random walks and autoregressions with a start that is not Gaussian: later values are integrated."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.reading import read_classifier
from pymc_gpep.reading.rewritten_models import with_starts
from pymc_gpep.recipes.recipe import shape_of

T, NOISE, STEP = 5, 0.4, 0.7
Y = np.array([0.3, -0.2, 0.9, 1.4, 0.8])


def walk(start):
    return pm.GaussianRandomWalk("u", mu=0.1, sigma=pm.HalfNormal("s", 1), init_dist=start, shape=T)


def moments(model, **values):
    """Mean (n,) and covariance (n, n) of the latent function at values of the hyperparameters."""
    classifier = read_classifier(model, starts=True)
    given = {rv: values.pop(rv.name) for rv in classifier.hyperparameters}
    assert not values
    given = {rv: np.asarray(value, dtype=rv.dtype).reshape(shape_of(rv)) for rv, value in given.items()}
    mean, cov = evaluate([classifier.prior.mean(), classifier.prior.covariances()], given)
    return mean[0], cov[0]


STARTS = {
    "heavy tails": lambda: pm.StudentT.dist(nu=4, mu=1.0, sigma=pm.HalfNormal("tau", 1)),
    "bounded": lambda: pm.Uniform.dist(-5, 5),
    "positive": lambda: pm.HalfNormal.dist(2),
    "truncated": lambda: pm.Truncated.dist(pm.Normal.dist(0, 1), -1, 1),
    "mixture": lambda: pm.NormalMixture.dist(w=[0.5, 0.5], mu=[-1, 1], sigma=0.1),
}


@pytest.mark.parametrize("start", STARTS)
def test_walk_given_its_start_has_the_moments_of_summed_steps(start):
    with pm.Model() as model:
        u = walk(STARTS[start]())
        pm.Normal("y", u, NOISE, observed=Y)
    values = {"s": STEP, "u_start": 0.6} | ({"tau": 0.5} if "tau" in model.named_vars else {})
    mean, cov = moments(model, **values)
    steps = np.arange(T)
    assert_allclose(mean, 0.6 + 0.1 * steps, rtol=1e-12)
    assert_allclose(cov, STEP**2 * np.minimum.outer(steps, steps), atol=1e-12)


def test_each_of_several_series_has_its_own_start():
    with pm.Model(coords={"series": ["a", "b"], "time": range(T)}) as model:
        u = pm.GaussianRandomWalk(
            "u", sigma=pm.HalfNormal("s", 1), init_dist=pm.Uniform.dist(-3, 3), dims=("series", "time")
        )
        pm.Normal("y", u.ravel(), NOISE, observed=np.tile(Y, 2))
    mean, cov = moments(model, s=STEP, u_start=[0.6, -1.0])
    steps = np.arange(T)
    assert_allclose(mean, np.repeat([0.6, -1.0], T), rtol=1e-12)
    assert_allclose(cov, np.kron(np.eye(2), STEP**2 * np.minimum.outer(steps, steps)), atol=1e-12)


def test_multivariate_walk_given_its_start_has_the_moments_of_summed_steps():
    root = np.array([[0.5, 0.0], [0.2, 0.4]])
    with pm.Model() as model:
        start = pm.MvStudentT.dist(nu=5, mu=np.zeros(2), scale=np.eye(2))
        u = pm.MvGaussianRandomWalk("u", np.zeros(2), chol=root, init_dist=start, shape=(T, 2))
        pm.Normal("y", u.ravel(), NOISE, observed=np.repeat(Y, 2))
    mean, cov = moments(model, u_start=[0.6, -1.0])
    steps = np.arange(T)
    assert_allclose(mean, np.tile([0.6, -1.0], T), rtol=1e-12)
    assert_allclose(cov, np.kron(np.minimum.outer(steps, steps), root @ root.T), atol=1e-12)


def test_autoregression_given_its_start_has_the_moments_of_its_recursion():
    rho = np.array([0.5, 0.3])
    with pm.Model() as model:
        u = pm.AR("u", rho, sigma=pm.HalfNormal("s", 1), init_dist=pm.StudentT.dist(nu=4, shape=2), shape=T)
        pm.Normal("y", u, NOISE, observed=Y)
    mean, cov = moments(model, s=STEP, u_start=[0.6, -1.0])
    effect = np.zeros((T, 2 + T))  # coefficients of the start, and of a standard normal at each time
    effect[:2, :2] = np.eye(2)
    for t in range(2, T):
        effect[t] = rho[0] * effect[t - 1] + rho[1] * effect[t - 2]
        effect[t, 2 + t] = STEP
    assert_allclose(mean, effect[:, :2] @ [0.6, -1.0], rtol=1e-12)
    assert_allclose(cov, effect[:, 2:] @ effect[:, 2:].T, atol=1e-12)


KEPT_WHOLE = {
    "a normal start": (lambda: pm.Normal.dist(), pm.GaussianRandomWalk, ()),
    "a flat start": (lambda: pm.Flat.dist(), pm.GaussianRandomWalk, ()),
    "a walk that the user named": (lambda: pm.StudentT.dist(nu=4), pm.GaussianRandomWalk, ["u"]),
    "innovations with heavy tails": (
        lambda: pm.Uniform.dist(-5, 5),
        lambda name, sigma, init_dist, shape: pm.RandomWalk(
            name, init_dist=init_dist, innovation_dist=pm.StudentT.dist(nu=3, sigma=sigma), steps=shape - 1
        ),
        (),
    ),
}


@pytest.mark.parametrize("case", KEPT_WHOLE)
def test_series_without_an_unusual_start_are_not_changed(case):
    start, declare, asked = KEPT_WHOLE[case]
    with pm.Model() as model:
        pm.Normal("y", declare("u", sigma=1.0, init_dist=start(), shape=T), NOISE, observed=Y)
    assert with_starts(model, asked) is model


def test_walk_is_not_changed_if_the_name_of_its_start_is_taken():
    with pm.Model() as model:
        pm.HalfNormal("u_start")
        pm.Normal("y", walk(pm.Uniform.dist(-5, 5)), NOISE, observed=Y)
    assert with_starts(model) is model


def test_model_with_a_start_uses_new_data_of_the_original_model():
    with pm.Model() as model:
        place = pm.Data("place", np.arange(T))
        pm.Normal("y", walk(pm.Uniform.dist(-5, 5))[place], NOISE, observed=Y, shape=place.shape)
    pm.set_data({"place": np.arange(T)[::-1]}, model=model)
    mean, _ = moments(model, s=STEP, u_start=0.0)
    assert_allclose(mean, 0.1 * np.arange(T)[::-1], atol=1e-12)


def test_fit_of_a_walk_with_heavy_tails_at_its_start_matches_quadrature():
    """With normal noise the evidence given the starts is a normal density.

    The posterior of the starts is summed on a grid.
    """
    with pm.Model():
        u = pm.GaussianRandomWalk("u", sigma=STEP, init_dist=pm.StudentT.dist(nu=4, mu=3.0, sigma=0.3), shape=T)
        pm.Normal("y", u, NOISE, observed=Y)
        fit = pm.fit(method="ep", progressbar=False)
    steps = np.arange(T)
    cov = STEP**2 * np.minimum.outer(steps, steps)
    start = np.linspace(-3.0, 6.0, 4001)
    evidence = stats.multivariate_normal(np.zeros(T), cov + NOISE**2 * np.eye(T)).logpdf(Y - start[:, None])
    density = np.exp(evidence + stats.t(4, 3.0, 0.3).logpdf(start))
    log_evidence = np.log(np.trapezoid(density, start))
    density /= density.sum()
    gain = cov @ np.linalg.inv(cov + NOISE**2 * np.eye(T))
    means = start[:, None] + (Y - start[:, None]) @ gain.T
    mean = density @ means
    sd = np.sqrt(density @ (means - mean) ** 2 + (cov - gain @ cov).diagonal())
    found = fit.effects("u")["u"]
    assert_allclose(found.sel(moment="mean"), mean, atol=0.02 * sd.min())
    assert_allclose(found.sel(moment="sd"), sd, rtol=0.02)
    assert_allclose(fit.log_evidence, log_evidence, atol=0.01)
    assert {"u", "u_start"} <= set(fit.sample(4).posterior.data_vars)


@pytest.mark.parametrize(
    ("start", "level", "s"),
    [
        (lambda: pm.StudentT.dist(nu=4), (0.5042, 1.0276), (0.6141, 0.3275)),
        (lambda: pm.Uniform.dist(-5, 5), (0.0658, 1.8884), (0.6153, 0.3274)),
    ],
    ids=["heavy tails", "bounded"],
)
def test_walk_of_counts_matches_a_filter_on_a_grid(start, level, s):
    """The reference filters the walk on a grid of 1201 log rates, for 80 values of s."""
    rng, group = np.random.default_rng(0), np.repeat(np.arange(7), 6)
    counts = rng.poisson(np.exp(0.5 + 0.8 * rng.standard_t(4, size=7))[group])
    with pm.Model():
        u = pm.GaussianRandomWalk("u", sigma=pm.HalfNormal("s", 1), init_dist=start(), shape=7)
        pm.Poisson("y", mu=pm.math.exp(pm.Normal("level", 0, 2) + u[group]), observed=counts)
        table = pm.fit(method="ep", hyper="grid", progressbar=False).summary(["level", "s"])
    assert_allclose(table.loc["level", ["mean", "sd"]], level, atol=0.05 * level[1])
    assert_allclose(table.loc["s", ["mean", "sd"]], s, atol=0.05 * s[1])
