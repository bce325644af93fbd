"""Models that bambi makes of formulas are read as `build()` leaves them."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.replace import graph_replace
from scipy.special import expit, log_softmax, ndtr

import pymc_gpep as gpep
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.structure.prior_functions import frozen_data

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its dependencies, at import
    bmb: Any = pytest.importorskip("bambi")

N = 40
_rng = np.random.default_rng(1)
DATA = pd.DataFrame(
    {
        "x": _rng.normal(size=N),
        "x2": _rng.normal(size=N),
        "t": np.linspace(0, 1, N),
        "E": _rng.uniform(1, 3, N),
        "g": _rng.choice(list("abcdef"), N),
        "h": _rng.choice(list("uvw"), N),
        "y": _rng.integers(0, 2, N),
        "c": _rng.poisson(2.0, N),
        "kind": pd.Categorical(_rng.choice(["red", "green", "blue"], N)),
        "rating": pd.Categorical(_rng.integers(0, 4, N), ordered=True),
    }
)
_SPLINE = "bs(t, df=6)"

# Formula, options, and what is integrated. What bambi gives no prior of its own has one here.
FORMULAS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "common effects": ("y ~ x + x2", {}, {"Intercept", "x", "x2"}),
    "no intercept": ("y ~ 0 + x + x2", {}, {"x", "x2"}),
    "not centred": ("y ~ x + x2", {"center_predictors": False}, {"Intercept", "x", "x2"}),
    "standardised": ("y ~ scale(x) + x2", {}, {"Intercept", "scale(x)", "x2"}),
    "categorical": ("y ~ h + x", {}, {"Intercept", "h", "x"}),
    "categorical without intercept": ("y ~ 0 + h", {}, {"h"}),
    "interaction": ("y ~ x * h", {}, {"Intercept", "x", "h", "x:h"}),
    "intercept alone": ("y ~ 1", {}, {"Intercept"}),
    "groups": ("y ~ x + (1 | g)", {}, {"Intercept", "x", "1|g_offset"}),
    "centred groups": ("y ~ x + (1 | g)", {"noncentered": False}, {"Intercept", "x", "1|g"}),
    "slopes": ("y ~ x + (x | g)", {}, {"Intercept", "x", "1|g_offset", "x|g_offset"}),
    "centred slopes": ("y ~ x + (x | g)", {"noncentered": False}, {"Intercept", "x", "1|g", "x|g"}),
    "slopes alone": ("y ~ x + (0 + x | g)", {}, {"Intercept", "x", "x|g_offset"}),
    "categorical slopes": ("y ~ h + (h | g)", {}, {"Intercept", "h", "1|g_offset", "h|g_offset"}),
    "crossed": ("y ~ x + (1 | g) + (1 | h)", {}, {"Intercept", "x", "1|g_offset", "1|h_offset"}),
    "nested": ("y ~ x + (1 | g/h)", {}, {"Intercept", "x", "1|g_offset", "1|g:h_offset"}),
    "groups of pairs": ("y ~ x + (1 | g:h)", {}, {"Intercept", "x", "1|g:h_offset"}),
    "spline": (f"y ~ {_SPLINE}", {"priors": {_SPLINE: bmb.Prior("Normal", mu=0, sigma=1)}}, {"Intercept", _SPLINE}),
    "basis": ("y ~ 0 + hsgp(t, m=8, c=1.5)", {}, {"hsgp(t, m=8, c=1.5)_weights_raw"}),
    "basis by group": (
        "y ~ 1 + hsgp(t, by=h, m=5, c=1.5)", {}, {"Intercept", "hsgp(t, by=h, m=5, c=1.5)_weights_raw"},
    ),
    "centred basis": (
        "y ~ 1 + hsgp(x, x2, m=4, c=1.5, centered=True)", {},
        {"Intercept", "hsgp(x, x2, m=4, c=1.5, centered=True)_weights"},
    ),
    "probit": ("y ~ x + (1 | g)", {"link": "probit"}, {"Intercept", "x", "1|g_offset"}),
    "counts": ("c ~ x + offset(log(E)) + (1 | g)", {"family": "poisson"}, {"Intercept", "x", "1|g_offset"}),
    "classes": ("kind ~ x", {"family": "categorical"}, {"Intercept", "x"}),
    "classes and groups": ("kind ~ x + (1 | g)", {"family": "categorical"}, {"Intercept", "x", "1|g_offset"}),
    "ratings": ("rating ~ 0 + x + (1 | g)", {"family": "cumulative"}, {"x", "1|g_offset"}),
    "ratings by a probit": ("rating ~ 0 + x", {"family": "cumulative", "link": "probit"}, {"x"}),
}  # fmt: skip


@cache
def built(name: str) -> Any:
    """Return a model of bambi, built."""
    formula, options, _ = FORMULAS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bambi, on its own code
        model = bmb.Model(formula, DATA, **{"family": "bernoulli"} | options)
        model.build()
    return model


def _ordered(distribution: Callable[[np.ndarray], np.ndarray], f: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    return np.diff(distribution(cuts - f[:, None]), axis=1, prepend=0.0, append=1.0)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_argument_of_a_formula_is_that_of_its_model(name: str) -> None:
    model: pm.Model = built(name).backend.model
    classifier = gpep.read_classifier(model)
    assert {rv.name for rv in classifier.integrated} == FORMULAS[name][2]
    # Random standard normals, as variables of the model and as latent functions.
    space = [model.rvs_to_values[rv] for rv in classifier.hyperparameters]
    point = model.initial_point()
    roots, mean = model.replace_rvs_by_values([classifier.roots(), classifier.mean()])
    j, m = graph_function(model, space, [roots, mean])(*(point[v.name] for v in space))
    z = np.random.default_rng(2).standard_normal((1, *j.shape[:1], j.shape[2]))
    f = m + np.einsum("knq,kq->kn", j, z[0])
    drawn = classifier.variables(frozen_data(model)).draws(point, f[None], z)
    values = {rv: drawn[rv.name][0] for rv in classifier.integrated}
    (rv,) = model.observed_RVs
    (parameter,) = rv.owner.op.dist_params(rv.owner)
    outputs = [parameter, *(v for v in classifier.hyperparameters if v.name == "threshold")]
    free = {v: v.type() for v in values}
    outputs = model.replace_rvs_by_values(graph_replace(outputs, free, strict=False))
    found, *cuts = graph_function(model, [*free.values(), *space], outputs)(
        *values.values(), *(point[v.name] for v in space)
    )
    expected = {
        "logit": lambda: expit(f[0]),
        "probit": lambda: ndtr(f[0]),
        "poisson": lambda: np.exp(f[0]) * DATA["E"],
        "softmax": lambda: np.exp(log_softmax(f, axis=0)).T,
        "ordered_logit": lambda: _ordered(expit, f[0], cuts[0]),
        "ordered_probit": lambda: _ordered(ndtr, f[0], cuts[0]),
    }[classifier.kind]()
    assert_allclose(np.broadcast_to(found, np.shape(expected)), expected, rtol=1e-6, atol=1e-12)


def test_bambi_predicts_and_interprets_by_draws_of_a_fit() -> None:
    model = built("groups")
    fit = pm.fit(model=model.backend.model, method="ep", hyper="map", progressbar=False)
    idata = fit.sample(400, chains=2, random_seed=1)
    new = pd.DataFrame({"x": [-1.0, 1.0], "g": ["a", "b"]})
    predicted = model.predict(idata, data=new, inplace=False)
    p = predicted["posterior"]["p"].mean(("chain", "draw")).values
    # The same probabilities by the fit's own Gaussian: rows of the data with these groups.
    at = [int(np.flatnonzero(DATA["g"] == group)[0]) for group in "ab"]
    own = fit.sample(400, chains=2, random_seed=1)["posterior"]
    slope = own["x"].values[..., None] * (new["x"].values - DATA["x"].values[at])
    eta = np.log(own["p"].values[..., at] / (1 - own["p"].values[..., at])) + slope
    assert_allclose(p, expit(eta).mean((0, 1)), atol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = bmb.interpret.comparisons(model, idata, "x").summary
    assert np.isfinite(summary["estimate"]).all()
