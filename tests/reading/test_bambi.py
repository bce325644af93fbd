"""Models that bambi builds from formulas are fitted without changes after `build()`."""

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

from pymc_gpep.graphs.interpreted import graph_function
from pymc_gpep.prior_moments.prior_functions import frozen_data
from pymc_gpep.reading import StructureError, read_classifier

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of its dependencies at import
    bmb: Any = pytest.importorskip("bambi")

N = 40
_rng = np.random.default_rng(1)
DATA = pd.DataFrame(
    {
        "x": _rng.normal(5.0, size=N),  # not centred at 0: bambi centres predictors by default
        "x2": _rng.normal(-3.0, size=N),
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

# Formula, options, and integrated variables. Where bambi sets no prior, it is set here.
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
    "ratings that stop": ("rating ~ 0 + x + (1 | g)", {"family": "sratio"}, {"x", "1|g_offset"}),
    "ratings by a probit": ("rating ~ 0 + x", {"family": "cumulative", "link": "probit"}, {"x"}),
}  # fmt: skip


@cache
def built(name: str) -> Any:
    """Return a model of bambi, built."""
    formula, options, _ = FORMULAS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bambi's own warnings
        model = bmb.Model(formula, DATA, **{"family": "bernoulli"} | options)
        model.build()
    return model


def _stopped(stops):
    """Probabilities of classes by stopping ratios."""
    columns = [stops[:, k] * (1 - stops[:, :k]).prod(axis=1) for k in range(stops.shape[1])]
    return np.column_stack([*columns, (1 - stops).prod(axis=1)])


def _ordered(distribution: Callable[[np.ndarray], np.ndarray], f: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    return np.diff(distribution(cuts - f[:, None]), axis=1, prepend=0.0, append=1.0)


@pytest.mark.variation(but=["ratings", "counts", "classes and groups", "spline"])
@pytest.mark.parametrize("name", FORMULAS)
def test_argument_equals_the_linear_predictor_of_the_formula(name: str) -> None:
    model: pm.Model = built(name).backend.model
    classifier = read_classifier(model)
    assert {rv.name for rv in classifier.prior.integrated} == FORMULAS[name][2]
    # Random standard normals, transformed to variables of the model and to latent functions.
    space = [model.rvs_to_values[rv] for rv in classifier.hyperparameters]
    point = model.initial_point()
    roots, mean = model.replace_rvs_by_values([classifier.prior.roots(), classifier.prior.mean()])
    j, m = graph_function(model, space, [roots, mean])(*(point[v.name] for v in space))
    z = np.random.default_rng(2).standard_normal((1, *j.shape[:1], j.shape[2]))
    f = m + np.einsum("knq,kq->kn", j, z[0])
    drawn = classifier.prior.variables(frozen_data(model)).draws(point, f[None], z)
    values = {rv: drawn[rv.name][0] for rv in classifier.prior.integrated}
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
        "stopping_logit": lambda: _stopped(expit(cuts[0] - f[0][:, None])),
    }[classifier.kind]()
    assert_allclose(np.broadcast_to(found, np.shape(expected)), expected, rtol=1e-6, atol=1e-12)


# Formula, options, and probabilities of bambi's `predict`, computed from the variable "p" of the model.
PREDICTED: dict[str, tuple[str, dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = {
    "groups": ("y ~ x + (1 | g)", {"family": "bernoulli"}, lambda p: p),
    "centred by the formula": ("y ~ center(x)", {"family": "bernoulli"}, lambda p: p),
    "slopes of a category": ("y ~ x + (h | g)", {"family": "bernoulli"}, lambda p: p),
    "splines": (f"y ~ {_SPLINE} + x", FORMULAS["spline"][1], lambda p: p),
    "ratings and groups": (
        "rating ~ x + (1 | g)", {"family": "cumulative"}, lambda p: np.diff(p, prepend=0.0, append=1.0),
    ),
    "classes and groups": ("kind ~ x + (1 | g)", {"family": "categorical"}, lambda p: p),
}  # fmt: skip


def drawn(model: Any, draws: int = 10, **kwargs: Any) -> Any:
    """Return draws of a fit, with groups as the last axis of variables with several classes."""
    pymc_model = model.backend.model
    fit = pm.fit(model=pymc_model, method="laplace", progressbar=False, **kwargs)
    idata = fit.sample(draws, chains=2, random_seed=1)
    if "g__factor_dim" in idata["posterior"].dims and model.family.name == "categorical":
        idata["posterior"] = idata["posterior"].dataset.transpose(..., "g__factor_dim")
    return idata


def uncentred(name: str, **kwargs: Any) -> Any:
    formula, options, _ = PREDICTED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bambi's own warnings
        model = bmb.Model(formula, DATA, **{"family": "bernoulli", "center_predictors": False} | options | kwargs)
        model.build()
    return model


@pytest.mark.variation(but=["ratings and groups", "centred by the formula"])
@pytest.mark.parametrize("name", PREDICTED)
def test_bambi_predicts_from_draws_of_a_fit(name: str) -> None:
    """For each draw and row, bambi's prediction is the probability of the PyMC model."""
    model = uncentred(name)
    idata = drawn(model, hyper="map")
    own = PREDICTED[name][2](idata["posterior"]["p"].values)
    assert own.std(axis=(0, 1)).min() > 0
    found = model.predict(idata, data=DATA, inplace=False)["posterior"]["p"]
    assert_allclose(found.values, own, atol=1e-10)


@pytest.mark.parametrize(
    ("formula", "options"),
    [("y ~ x + h + (1 | g)", {}), ("kind ~ x", {"family": "categorical"})],
    ids=["groups", "classes"],
)
def test_intercept_of_predictors_that_bambi_centred_is_corrected(formula: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bambi's own warnings
        model = bmb.Model(formula, DATA, **{"family": "bernoulli"} | options)
        model.build()
    idata = drawn(model, hyper="map")
    found = model.predict(idata, data=DATA, inplace=False)["posterior"]["p"]
    assert_allclose(found.values, idata["posterior"]["p"].values, atol=1e-10)


def test_intercept_that_cannot_be_corrected_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prior = {"Intercept": bmb.Prior("StudentT", nu=3, mu=0, sigma=2)}
        model = bmb.Model("y ~ x + (1 | g)", DATA, family="bernoulli", priors=prior)
        model.build()
    with pytest.raises(StructureError, match=r"the prior of .Intercept. is not normal.*center_predictors=False"):
        pm.fit(model=model.backend.model, method="ep", progressbar=False)


def test_fit_with_flat_priors_of_bambi_equals_least_squares() -> None:
    response = DATA["x"] + 0.1 * DATA["x2"] + np.random.default_rng(99).normal(size=len(DATA))
    data = DATA.assign(response=response)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bambi's own warnings
        model = bmb.Model("response ~ x + x2", data, auto_scale=False)
        model.build()
    fit = pm.fit(model=model.backend.model, method="ep", hyper="map", progressbar=False)
    columns = np.column_stack([np.ones(len(data)), data["x"], data["x2"]])
    expected = np.linalg.lstsq(columns, response, rcond=None)[0]
    assert_allclose(fit.summary(["Intercept", "x", "x2"])["mean"], expected, rtol=1e-7)


def test_centring_in_the_formula_equals_centring_by_bambi() -> None:
    fits = []
    for formula, centre in (("y ~ x + x2", True), ("y ~ center(x) + center(x2)", False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bambi's own warnings
            model = bmb.Model(formula, DATA, family="bernoulli", center_predictors=centre)
            model.build()
        fits.append(pm.fit(model=model.backend.model, method="ep", progressbar=False))
    assert_allclose(fits[0].log_evidence, fits[1].log_evidence, atol=1e-8)
    corrected, centred = (fit.effects().sel(moment="mean") for fit in fits)
    moved = DATA["x"].mean() * centred["center(x)"] + DATA["x2"].mean() * centred["center(x2)"]
    assert_allclose(corrected["Intercept"], centred["Intercept"] - moved, rtol=1e-6)


def test_bambi_interprets_draws_of_a_fit() -> None:
    """Compare x with x + 1 in one group. The reference uses the coefficients of each draw."""
    model = uncentred("groups")
    idata = drawn(model, draws=200, hyper="map")
    draws = idata["posterior"]
    rest = draws["Intercept"] + draws["1|g"].sel(g__factor_dim="a")
    change = expit(rest + 6.0 * draws["x"]) - expit(rest + 5.0 * draws["x"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = bmb.interpret.comparisons(model, idata, {"x": [5.0, 6.0]}, {"g": ["a"]}).summary
    assert_allclose(summary["estimate"], change.mean(), atol=1e-8)


@pytest.mark.calibration
@pytest.mark.parametrize("name", ["ratings and groups", "classes and groups"])
def test_predictions_match_the_sampler_of_bambi(name: str) -> None:
    model = uncentred(name)
    fit = pm.fit(model=model.backend.model, method="qep" if "classes" in name else "ep", progressbar=False)
    idata = fit.sample(1000, chains=2, random_seed=1)
    if "classes" in name:
        idata["posterior"] = idata["posterior"].dataset.transpose(..., "g__factor_dim")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampled = model.fit(draws=120, tune=100, chains=1, cores=1, random_seed=1, progressbar=False)
    new = pd.DataFrame({"x": [4.0, 5.0, 6.0], "g": ["a", "c", "f"]})
    found, expected = (
        model.predict(each, data=new, inplace=False)["posterior"]["p"].mean(("chain", "draw"))
        for each in (idata, sampled)
    )
    assert_allclose(found, expected, atol=0.05)


def test_weighted_rows_equal_weighted_least_squares():
    data = DATA.assign(v=_rng.normal(size=N))
    priors = {"x": bmb.Prior("Normal", mu=0, sigma=2), "Intercept": bmb.Prior("Normal", mu=0, sigma=3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from bambi's use of pandas
        made = bmb.Model("weighted(v, E) ~ x", data, priors=priors, center_predictors=False)
        made.build()
    fit = pm.fit(method="ep", model=made.backend.model, hyper="map", progressbar=False)
    design, precision = (
        np.column_stack([np.ones(N), data["x"]]),
        data["E"].values / float(fit.hyperparameters["sigma"]) ** 2,
    )
    inverse = np.linalg.inv(np.diag([1 / 9, 1 / 4]) + design.T @ (design * precision[:, None]))
    expected = inverse @ design.T @ (precision * data["v"].values)
    found = fit.effects(["Intercept", "x"])
    assert_allclose([found["Intercept"][0], found["x"][0]], expected, rtol=1e-6)
    assert_allclose([found["Intercept"][1], found["x"][1]], np.sqrt(inverse.diagonal()), rtol=1e-6)
