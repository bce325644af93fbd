"""Models from example galleries are fitted without changes, or refused with the reason.

`sources.txt` lists the models. The list was committed before any of the models was fitted.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.replace import graph_replace

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier
from pymc_gpep.reading.rewritten_models import with_bambi_intercept
from tests.census import others, pymc_examples  # noqa: F401
from tests.census.data import MODELS, rng

SOURCES = [
    (source, name)
    for line in Path(__file__).with_name("sources.txt").read_text().splitlines()
    if not line.startswith("#")
    for source, name, _ in [line.split(": ", 2)]
]
PREFIXED = {"bambi": "bambi_", "rethinking": "rethinking_"}
NAMES = [PREFIXED.get(source, "") + name for source, name in SOURCES]
REFUSED = {
    "bym_counts_binomial": "PyMC's density omits the power",
}
"""Refused models, with a text of the message."""
COORDS = {
    **{"predictors": range(4), "features": range(4), "splines": range(9), "month": range(12)},
    **{"time": range(40), "lagged": range(39), "series": ["a", "b"]},
}
FITTED = [
    *("glm_robust", "rugby", "disaster_switch", "gp_marginal", "gp_kron_marginal", "gp_sparse_approx", "survival_cox"),
    "wishart_mvnormal",
    *("weibull_aft_potential", "item_response_matrix", "var_two_series", "mv_random_walk", "missing_imputation_y"),
    *("zero_sum_two_axes", "probit_ordinal_dirichlet", "rats", "epil", "lsat", "rethinking_m13_2", "rethinking_m12_2"),
]
"""Models that are also fitted. They include observed arrays, potentials and links before a selection."""


CHAINS = json.loads(Path(__file__).with_name("chains.json").read_text())
"""Means and standard deviations of long chains by model. `chains.py` samples them."""
DRAWS = 4000
_STATE = rng.bit_generator.state


def declared(name):
    rng.bit_generator.state = _STATE  # some models draw their data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.startswith("bambi_"):
            return with_bambi_intercept(MODELS[name]().backend.model)
        with pm.Model(coords={} if name == "horseshoe" else COORDS) as model:
            MODELS[name]()
    return model


def test_census_contains_every_model_of_its_sources():
    assert set(NAMES) == MODELS.keys()
    assert len(NAMES) >= 90
    assert len(REFUSED) <= 0.15 * len(NAMES)


@pytest.mark.slow("evaluates each graph once")
@pytest.mark.parametrize("name", NAMES)
def test_model_is_accepted_or_refused_with_the_reason(name):
    model = declared(name)
    if name in REFUSED:
        with pytest.raises(gpep.StructureError) as raised:
            read_classifier(model, starts=True)
        assert REFUSED[name] in str(raised.value)
        return
    found = read_classifier(model, means=True, starts=True)
    assert found.n_points == sum(part.rows.stop - part.rows.start for part in found.each)
    values = {value.name: value for value in model.value_vars}
    if found.model is not model and values.keys() == {value.name for value in found.model.value_vars}:
        # The log density of the recognised model equals the log density of the given model.
        generator = np.random.default_rng(0)
        point = {key: value + 0.1 * generator.normal(size=value.shape) for key, value in model.initial_point().items()}
        given = {own: values[own.name] for own in found.model.value_vars}
        recognised = graph_replace(found.model.logp(), given, strict=False)
        assert_allclose(*model.compile_fn([recognised, model.logp()])(point), rtol=1e-9)


@pytest.mark.slow("evaluates each graph a few times")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FITTED)
def test_model_is_fitted_and_results_have_the_shapes_of_its_data(name):
    model = declared(name)
    fit = pm.fit(method="auto", model=model, hyper="map", progressbar=False)
    assert fit.converged
    assert np.isfinite(fit.loo().elpd)
    assert fit.sample(5, random_seed=1).posterior.sizes["draw"] == 5
    again = gpep.from_datatree(fit.to_datatree(), model)
    for part in fit.classifier.each if not fit.classifier.parts else ():
        dims = [part.response] if part.axes is None else part.axes.dims
        assert len(dims) == len(fit.latent["mean"].dims)
    assert_allclose(again.latent["mean"], fit.latent["mean"], rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHAINS)
def test_fit_has_the_moments_of_long_chains(name):
    drawn = pm.fit(method="auto", model=declared(name), progressbar=False).sample(DRAWS, random_seed=1).posterior
    # Three standard errors of chains and draws, in standard deviations of the posterior.
    noise = 3.0 * np.sqrt(1.0 / CHAINS[name]["effective"] + 1.0 / DRAWS)
    for variable, (mean, sd) in CHAINS[name]["moments"].items():
        values, sd = drawn[variable].values.reshape(DRAWS, *np.shape(mean)), np.asarray(sd)
        shift = np.abs(values.mean(axis=0) - mean)
        assert (shift <= (0.1 + noise) * sd).all(), variable
        varying = sd > 0.0
        assert_allclose(values.std(axis=0)[varying], sd[varying], rtol=0.15 + noise, err_msg=variable)
