"""Smooth terms: columns against SciPy's natural splines, and fits against dense restricted likelihoods."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.interpolate import CubicSpline

import pymc_gpep as gpep
from tests.reference.restricted_laplace import restricted_laplace

K = 6
RNG = np.random.default_rng(4)
X = np.column_stack([RNG.uniform(2.0, 5.0, 40), RNG.gamma(2.0, 3.0, 40)])
CURVE = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1]
Y = {
    "normal": CURVE + RNG.normal(size=40),
    "binary": (RNG.random(40) < 1 / (1 + np.exp(-CURVE))).astype(int),
    "poisson": RNG.poisson(np.exp(CURVE)),
}
WIDE = 1e3
"""Standard deviation of a nearly flat prior. Results agree with a flat prior to six digits."""


def columns_at(x, places):
    """Return the spline columns of x as a function of new values, from the graph of a model's data."""
    with pm.Model():
        columns = gpep.spline(pm.Data("x", x), K)
        pm.set_data({"x": places})
    return tuple(each.eval(mode="FAST_COMPILE") for each in columns)


def test_spline_columns_are_centred_and_scaled():
    line, bends = gpep.spline(X[:, 1], K)
    assert bends.shape == (40, K - 2)
    assert_allclose(line, (X[:, 1] - X[:, 1].mean()) / X[:, 1].std(), atol=1e-12)
    assert_allclose(bends.sum(axis=0), 0.0, atol=1e-10)
    assert_allclose(line @ bends, 0.0, atol=1e-10)
    assert_allclose((bends**2).sum(axis=1).mean(), 1.0, atol=1e-12)


def test_spline_columns_are_natural_splines_with_equal_penalties():
    knots = np.quantile(X[:, 1], np.linspace(0, 1, K))
    splines = CubicSpline(knots, columns_at(X[:, 1], knots)[1], bc_type="natural")
    within = np.linspace(knots[0], knots[-1], 300)
    assert_allclose(columns_at(X[:, 1], within)[1], splines(within), atol=1e-11)
    # Between knots the product of two second derivatives is quadratic, and Simpson's rule is exact.
    ends, middles = splines(knots, 2), splines((knots[1:] + knots[:-1]) / 2, 2)
    three = (ends[:-1], 1.0), (middles, 4.0), (ends[1:], 1.0)
    penalty = sum(weight / 6 * np.einsum("j,ji,jk", np.diff(knots), each, each) for each, weight in three)
    assert_allclose(penalty / penalty[0, 0], np.eye(K - 2), atol=1e-10)


def test_spline_columns_are_linear_beyond_the_knots():
    lower, upper = X[:, 1].min(), X[:, 1].max()
    for edge, sign in ((lower, -1.0), (upper, 1.0)):
        beyond = columns_at(X[:, 1], edge + sign * np.array([0.0, 1.0, 2.0, 300.0]))[1]
        assert_allclose(beyond[3], beyond[0] + 300 * (beyond[1] - beyond[0]), rtol=1e-7)
        assert_allclose(beyond[2] - beyond[1], beyond[1] - beyond[0], atol=1e-10)


def test_spline_columns_of_arrays_and_graphs_are_equal():
    for array, graph in zip(gpep.spline(X[:, 1], K), columns_at(X[:, 1], X[:, 1]), strict=True):
        assert_allclose(array, graph, atol=1e-12)


def test_equal_values_count_once_among_knots():
    years = np.repeat([2000, 2001, 2002, 2005], [50, 1, 1, 1])
    _, bends = gpep.spline(years, 4)
    assert np.linalg.matrix_rank(np.column_stack([np.ones(53), years, bends])) == 4
    with pytest.raises(ValueError, match="x has 4 distinct values"):
        gpep.spline(years + 1e-9 * np.arange(53), 5)


def test_close_values_do_not_move_distant_knots():
    """As in mgcv, knots are quantiles of the distinct values, also if two values are close."""
    x = np.append(np.linspace(0.0, 10.0, 50), 7.0 + 1e-7)
    knots = np.quantile(np.unique(x), np.linspace(0, 1, K))
    line, bends = gpep.spline(x, K)
    curve = CubicSpline(knots, np.sin(knots), bc_type="natural")(x)
    columns = np.column_stack([np.ones(x.size), line, bends])
    assert_allclose(columns @ np.linalg.lstsq(columns, curve, rcond=None)[0], curve, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "k", "error", "message"),
    [
        (X, 5, ValueError, r"x must be one column with rows, \(n,\), but has shape \(40, 2\)"),
        ([], 3, ValueError, r"with rows, \(n,\), but has shape \(0,\)"),
        ([1.0, np.nan, 2.0], 3, ValueError, "x must be finite, but has 1 values"),
        ([1, 2, 3, 4, 4], 5, ValueError, "x has 4 distinct values, .* take k=4 at most"),
        ([0, 1, 1, 0], 3, ValueError, "x has 2 distinct values, .* take the line"),
        (["a", "b"], 3, TypeError, "x must have numbers"),
        (X[:, 0], 2, ValueError, "k must be at least 3"),
        (X[:, 0], 4.0, TypeError, "k must be a whole number"),
    ],
)
def test_invalid_spline_arguments_raise_errors(x, k, error, message):
    with pytest.raises(error, match=message):
        gpep.spline(x, k)


def test_spline_of_a_random_variable_is_refused():
    with pm.Model(), pytest.raises(TypeError, match="depends on the random variable 'z'"):
        gpep.spline(pm.Normal("z", shape=20))


@pytest.mark.variation(but=["poisson"])
@pytest.mark.parametrize("response", Y)
def test_spline_fit_matches_the_restricted_likelihood(response):
    """Wide normal priors replace flat priors: their log density at zero is subtracted from the evidence."""
    y, s = Y[response], np.array([0.7, 0.3])
    with pm.Model():
        data = pm.Data("a", X[:, 0]), pm.Data("b", X[:, 1])
        terms = [gpep.spline(each, K) for each in data]
        free, log_s = pm.Normal("free", 0, WIDE, shape=3), pm.Flat("log_s", shape=2)
        bend = pm.Normal("bend", 0, pm.math.exp(log_s)[:, None], shape=(2, K - 2))
        f = free[0] + sum(line * free[i + 1] + bends @ bend[i] for i, (line, bends) in enumerate(terms))
        if response == "normal":
            pm.Normal("y", f, 1.0, observed=y)
        elif response == "binary":
            pm.Bernoulli("y", logit_p=f, observed=y)
        else:
            pm.Poisson("y", mu=pm.math.exp(f), observed=y)
        with pytest.warns(RuntimeWarning, match="did not converge"):
            fit = pm.fit(0, method="laplace", hyper="map", start={"log_s": np.log(s)}, progressbar=False)

    def columns(places):
        pairs = [columns_at(x, new) for x, new in zip(X.T, places.T, strict=True)]
        return np.column_stack([np.ones(len(places)), *(line for line, _ in pairs), *(bends for _, bends in pairs)])

    sds = np.concatenate([np.full(3, np.inf), np.repeat(s, K - 2)])
    evidence, mode = restricted_laplace(response, y, columns(X), sds)
    assert_allclose(fit.log_evidence + 3 * np.log(np.sqrt(2 * np.pi) * WIDE), evidence, rtol=0, atol=2e-6)
    assert_allclose(fit.mean_data["free"], mode[:3], atol=1e-5)
    new = np.array([[2.5, 1.0], [4.0, 60.0]])
    found = fit.predict(data={"a": new[:, 0], "b": new[:, 1]}, progressbar=False)["mean"]
    if response == "normal":
        assert_allclose(found.squeeze(), columns(new) @ mode, atol=1e-5)
