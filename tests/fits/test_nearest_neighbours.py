"""Fits by nearest neighbours, against fits of all rows, and against dense algebra on the implied covariance."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations.laplace import ScalarLaplace
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.solvers.neighbour_precision import NeighbourSets, PlaceTree
from pymc_gpep.solvers.sparse_precision import FactorPattern

JITTER = 1e-6
RNG = np.random.default_rng(8)
PLACES, N, GROUPS = 16, 24, 3
X = RNG.uniform(0.0, 4.0, size=(PLACES, 2))
PLACE = np.r_[np.arange(PLACES), RNG.integers(0, PLACES, N - PLACES)]
GROUP = RNG.integers(0, GROUPS, N)
COUNTS = RNG.poisson(np.exp(np.sin(X[PLACE, 0]) + 0.3 * GROUP))
FIXED = {"hyper": "map", "progressbar": False}


def matern(a, b, scales=(0.9, 0.9)):
    r = np.sqrt(((a[:, None] - b) ** 2 / np.square(scales)).sum(axis=2))
    return 1.44 * (1.0 + np.sqrt(3.0) * r) * np.exp(-np.sqrt(3.0) * r)


def by_regressions(x, m, sets, scales=(0.9, 0.9)):
    """Implied covariance of places x in the max-min order, each regressed on the predecessors in its set.

    A set contains the m nearest predecessors, and at most half as many others.
    """
    moved, order = x / scales, [int(((x / scales - (x / scales).mean(axis=0)) ** 2).sum(axis=1).argmin())]
    while len(order) < len(x):
        least = ((moved[:, None] - moved[order]) ** 2).sum(axis=2).min(axis=1)
        order.append(int(least.argmax()))
    k = matern(x, x, scales) + JITTER * np.eye(len(x))
    b, d = np.zeros_like(k), np.zeros(len(x))
    for place, i in enumerate(order):
        before = np.array(order[:place], int)
        near = before[sets.cells[place, : sets.counts[place]]]
        assert len(set(near)) == len(near) <= m + (m + 1) // 2
        assert set(before[np.argsort(((moved[before] - moved[i]) ** 2).sum(axis=1))[:m]]) <= set(near)
        b[i, near] = np.linalg.solve(k[np.ix_(near, near)], k[near, i])
        d[i] = k[i, i] - k[i, near] @ b[i, near]
    root = np.linalg.inv(np.eye(len(x)) - b)
    return root @ np.diag(d) @ root.T


def model_of(rows, learned=True, offset=0.0):
    """A process at rows or at places that rows select, plus groups and a slope."""
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 3, 3) if learned else 0.9
        gp = pm.gp.Latent(cov_func=1.44 * pm.gp.cov.Matern32(2, ls=ls))
        u, beta = pm.Normal("u", 0.0, 0.7, shape=GROUPS), pm.Normal("beta", 0.0, 1.0)
        group, z = pm.Data("group", GROUP), pm.Data("z", np.linspace(-1.0, 1.0, N))
        f = gp.prior("f", X=pm.Data("x", X[PLACE])) if rows else gp.prior("f", X=X + offset)[pm.Data("place", PLACE)]
        pm.Poisson("y", mu=pm.math.exp(beta * z + u[group] + f), observed=COUNTS)
    return model


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.variation)], ids=["rows", "places"])
def pair(request):
    """A fit with all places as neighbours, and the fit of all rows."""
    model = model_of(request.param)
    with model:
        fits = [pm.fit(method="laplace", **FIXED, **own) for own in ({"neighbours": N}, {})]
    return SimpleNamespace(model=model, rows=request.param, few=fits[0], whole=fits[1])


def test_fit_with_all_places_as_neighbours_equals_fit_of_all_rows(pair):
    few, whole = pair.few, pair.whole
    assert few.log_evidence == pytest.approx(whole.log_evidence, abs=1e-5)  # equal places share their jitter
    assert_allclose(few.trace.best.theta, whole.trace.best.theta, atol=1e-5)
    assert_allclose(few.latent["mean"], whole.latent["mean"], atol=1e-5)
    assert_allclose(few.latent["variance"], whole.latent["variance"], atol=1e-5)
    assert_allclose(few.effects("u")["u"], whole.effects("u")["u"], atol=1e-5)


def test_predictions_with_all_places_as_neighbours_equal_fit_of_all_rows(pair):
    new = {"z": np.array([0.0, 1.0]), "group": np.array([0, GROUPS])}
    new |= {"x": np.array([[1.0, 1.0], [2.0, 3.0]])} if pair.rows else {"place": np.array([3, 5])}
    few, whole = (
        each.predict(data=new, new_levels=True, progressbar=False)[["mean", "variance"]].to_array()
        for each in (pair.few, pair.whole)
    )
    assert_allclose(few, whole, atol=1e-5)
    functions = next(pair.few.functions())
    (part,) = functions.draw_at(np.random.default_rng(1), 4000, functions.new_rows(None, new, True))
    assert_allclose(part[1][:, 0].mean(axis=0), few.sel(variable="mean").values.ravel(), atol=0.1)
    assert_allclose(part[1][:, 0].var(axis=0), few.sel(variable="variance").values.ravel(), rtol=0.15)
    if pair.rows:
        at = {"Xnew": X[:3] + 0.1}
        assert_allclose(pair.few.effects("f", **at)["f"], pair.whole.effects("f", **at)["f"], atol=1e-5)


def test_left_out_rows_and_draws_with_all_places_as_neighbours_agree_with_fit_of_all_rows(pair):
    few, whole = (each.loo() for each in (pair.few, pair.whole))
    assert_allclose(few.elpd_i, whole.elpd_i, atol=1e-4)
    draws = pair.few.sample(400, random_seed=1).posterior["beta"].values.ravel()
    mean, sd = (float(pair.whole.effects("beta")["beta"].sel(moment=each)) for each in ("mean", "sd"))
    assert draws.mean() == pytest.approx(mean, abs=4.0 * sd / 20.0)
    assert draws.std() == pytest.approx(sd, rel=0.15)


def test_loaded_fit_has_the_neighbours_of_the_fit(pair):
    with model_of(pair.rows):
        again = gpep.from_datatree(pair.few.to_datatree())
    assert again.log_evidence == pytest.approx(pair.few.log_evidence, abs=1e-9)
    assert str(N) in str(again.log_posterior.described()["neighbours"])
    assert "nearest neighbours of 16 places" in str(again)


class Units:
    """Generator whose rows are zeros for draws at places of the data, and then unit vectors."""

    def standard_normal(self, shape):
        return np.eye(*shape, k=shape[1] - shape[0])


def test_joint_draws_at_new_places_have_the_covariance_of_the_process(pair):
    """Draws are a linear map of values at fitted places and of noise. Unit vectors give the matrix of the map."""
    at, new = pair.few.log_posterior, np.concatenate([X[:3] + 0.05, X[:3] + 0.06, X[:1]])
    point, prior = at.point(pair.few.trace.best.theta), at.classifier.prior
    known, values = prior.ordered + prior.centre, np.eye(PLACES + len(new), PLACES)
    matrix = prior.drawn(point, new, values, Units())
    scales = (np.exp(pair.few.trace.best.theta[0]),) * 2
    within = np.eye(len(matrix))
    within[:PLACES, :PLACES] = matern(known, known, scales)
    assert_allclose(matrix.T @ within @ matrix, matern(new, new, scales), atol=1e-4)
    few = replace(prior, neighbours=3).drawn(point, new, values, Units())
    cov = few.T @ within @ few
    assert (cov[range(3), range(3, 6)] > 0.99 * cov.diagonal()[:3]).all()


@pytest.mark.parametrize("x", [RNG.normal(size=(60, 1)), RNG.normal(size=(150, 3)), np.argwhere(np.ones((9, 9))) + 0.0])
def test_order_and_neighbours_by_a_tree_match_brute_force(x):
    order = PlaceTree(x - x.mean(axis=0)).maximin()
    squares = ((x[order][:, None] - x[order]) ** 2).sum(axis=2)
    for k in range(1, len(x)):  # each place is the farthest from its predecessors
        assert squares[k, :k].min() == pytest.approx(squares[k:, :k].min(axis=1).max(), rel=1e-12)
    cells = PlaceTree(x[order]).nearest(x[order], 5, np.arange(len(x)))
    for k in range(5, len(x)):
        assert_allclose(squares[k, cells[k]], np.sort(squares[k, :k])[:5])


def test_added_neighbours_are_near_and_need_no_entries_of_a_factor():
    x = RNG.uniform(size=(300, 2))
    x = x[PlaceTree(x - x.mean(axis=0)).maximin()]
    sets = NeighbourSets.chosen(PlaceTree(x).nearest(x, 6, np.arange(300)))
    more, pattern = sets.extended(x, 9), FactorPattern(300, sets.first, sets.second, x)
    assert more.counts.mean() > 7.0
    for k in range(300):
        near = more.cells[k, : more.counts[k]]
        assert len(set(near)) == len(near)
        assert (near[: sets.counts[k]] == sets.cells[k, : sets.counts[k]]).all()
        assert (near < max(k, 1)).all()
        clique = np.r_[k, near]
        assert (pattern.slots(*np.meshgrid(clique, clique)) < pattern.nothing).all()
        assert {*near[sets.counts[k] :]}.isdisjoint(near[: sets.counts[k]])


def test_evidence_matches_the_covariance_of_regressions():
    """Inputs are in metres with a large offset."""
    with model_of(False, learned=False, offset=np.array([5e5, 5e6])):
        fit = pm.fit(method="laplace", neighbours=3, tolerance=1e-10, **FIXED)
    j = np.column_stack([0.7 * np.eye(GROUPS)[GROUP], np.linspace(-1.0, 1.0, N)])
    k = by_regressions(X, 3, fit.log_posterior.classifier.prior.sets)[np.ix_(PLACE, PLACE)] + j @ j.T
    likelihood = LIKELIHOODS["poisson"].given(np.zeros((1, N)))
    exact = ScalarLaplace(tolerance=1e-10).solve(k, np.zeros((1, N)), COUNTS, likelihood=likelihood)
    assert fit.log_evidence == pytest.approx(exact.evidence, abs=1e-7)
    assert_allclose(fit.latent["mean"].values.ravel(), exact.mean.ravel(), atol=1e-6)


@pytest.mark.parametrize("method", ["laplace", pytest.param("ep", marks=pytest.mark.variation)])
def test_gradient_matches_differences(method):
    with model_of(False):
        fit = pm.fit(method=method, neighbours=3, tolerance=1e-11, **FIXED)
    at, step = fit.log_posterior, 1e-4
    ends = [at(np.array([0.3 + sign * step])).log_posterior for sign in (1.0, -1.0)]
    assert at(np.array([0.3])).gradient[0] == pytest.approx((ends[0] - ends[1]) / (2.0 * step), rel=1e-5)


def test_neighbours_depend_on_the_length_scales():
    """With length scales 0.1 and 10 only the first column matters. For a sum, correlations select neighbours."""
    x = RNG.uniform(0.0, 4.0, size=(40, 2))
    moved = x / [0.1, 10.0]
    order = PlaceTree(moved - moved.mean(axis=0)).maximin()
    cells = PlaceTree(moved[order]).nearest(moved[order], 4, np.arange(40))
    found = {}
    for name, cov in (
        ("scaled", pm.gp.cov.Matern32(2, ls=[0.1, 10.0])),
        ("sum", pm.gp.cov.Matern32(2, ls=[0.1, 10.0]) + 0.5 * pm.gp.cov.Matern32(2, ls=[0.1, 10.0])),
    ):
        with pm.Model():
            f = pm.gp.Latent(cov_func=cov).prior("f", X=x)
            pm.Bernoulli("y", logit_p=f, observed=(x[:, 0] > 2.0).astype(int))
            found[name] = pm.fit(method="laplace", neighbours=4, **FIXED).log_posterior.classifier.prior
    assert_allclose(found["scaled"].ordered + found["scaled"].centre, x[order])
    for i in range(4, 40):
        assert set(found["scaled"].sets.cells[i, :4]) == set(cells[i])
    by_value, r = found["sum"], None
    for i in (10, 39):
        r = np.sqrt((((by_value.ordered[:i] - by_value.ordered[i]) / [0.1, 10.0]) ** 2).sum(axis=1))
        assert set(by_value.sets.cells[i, :4]) == set(np.argsort(r)[:4])


def test_unsupported_neighbours_are_refused():
    with model_of(False):
        with pytest.raises(ValueError, match="neighbours and inducing are two approximations"):
            pm.fit(method="ep", neighbours=3, inducing=3)
        with pytest.raises(ValueError, match="neighbours must be at least 1"):
            pm.fit(method="ep", neighbours=0)
    with pm.Model():
        u = pm.Normal("u", 0.0, 1.0, shape=GROUPS)
        pm.Poisson("y", mu=pm.math.exp(u[GROUP]), observed=COUNTS)
        with pytest.raises(StructureError, match="Leave neighbours out"):
            pm.fit(method="ep", neighbours=3)
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(2, ls=1.0)).prior("f", X=X[PLACE])
        gpep.Probit("y", f, observed=COUNTS > 1)
        with pytest.raises(ValueError, match="without neighbours"):
            pm.fit(method="tap_naive", neighbours=3)
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(2, ls=1.0)).prior("f", X=X[PLACE], n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=GROUP)
        with pytest.raises(StructureError, match="for one latent function"):
            pm.fit(method="laplace", neighbours=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Matern12", "Matern52"])
def test_twenty_neighbours_agree_with_fit_of_all_rows(kind):
    """Both inputs have learned length scales, so that neighbours are selected again."""
    rng = np.random.default_rng(1)
    x, new = rng.uniform(0.0, 5.0, size=(300, 2)), rng.uniform(0.2, 4.8, size=(60, 2))
    y = rng.poisson(np.exp(np.sin(2.0 * x[:, 0]) * np.cos(0.5 * x[:, 1]) + 0.5))
    with pm.Model():
        ls, eta = pm.InverseGamma("ls", 3, 3, shape=2), pm.HalfNormal("eta", 1)
        f = pm.gp.Latent(cov_func=eta**2 * getattr(pm.gp.cov, kind)(2, ls=ls)).prior("f", X=pm.Data("x", x))
        pm.Poisson("y", mu=pm.math.exp(f), observed=y)
        few, whole = (pm.fit(method="laplace", **FIXED, **own) for own in ({"neighbours": 20}, {}))
    assert few.converged
    assert abs(few.log_evidence - whole.log_evidence) < 0.1
    sd = np.sqrt(whole.latent["variance"].values)
    assert np.abs((few.latent["mean"].values - whole.latent["mean"].values) / sd).max() < 0.1
    assert_allclose(np.sqrt(few.latent["variance"].values), sd, rtol=0.02)
    few, whole = (each.predict(new, progressbar=False) for each in (few, whole))
    sd = np.sqrt(whole["variance"].values)
    off = (few["mean"].values - whole["mean"].values) / sd
    assert np.sqrt((off**2).mean()) < 0.05
    assert_allclose(np.sqrt(few["variance"].values), sd, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["normal rows", "duplicates", "lattice", "one input"])
def test_twenty_neighbours_agree_with_fit_of_all_rows_for_special_inputs(case):
    rng = np.random.default_rng(1)
    x = rng.uniform(0.0, 4.0, size=(220, 1 if case == "one input" else 2))
    x = {"duplicates": np.r_[x[:150], x[:70]], "lattice": np.argwhere(np.ones((15, 15))) / 4.0}.get(case, x)
    mean = np.sin(x[:, 0])
    with pm.Model():
        ls, eta = pm.InverseGamma("ls", 3, 3), pm.HalfNormal("eta", 1)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern32(x.shape[1], ls=ls)).prior("f", X=pm.Data("x", x))
        if case == "normal rows":
            pm.Normal("y", f, pm.HalfNormal("s", 1), observed=mean + 0.3 * rng.normal(size=len(x)))
        else:
            pm.Poisson("y", mu=pm.math.exp(f), observed=rng.poisson(np.exp(mean)))
        few, whole = (pm.fit(method="laplace", **FIXED, **own) for own in ({"neighbours": 20}, {}))
    sd = np.sqrt(whole.latent["variance"].values)
    assert np.abs((few.latent["mean"].values - whole.latent["mean"].values) / sd).max() < 0.07
    assert few.log_evidence == pytest.approx(whole.log_evidence, abs=0.05)
