"""Fits of sums of effects have the moments of long chains, which `python -m benchmarks.sums` stored."""

import json
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_array_less

from benchmarks.sums import MODELS, methods
from benchmarks.sums_samplers import run
from pymc_gpep.reading import read_classifier

CHAINS = json.loads((Path(__file__).parent / "long_chains_of_sums.json").read_text())
SAMPLED = ("binary", "crossed", "slopes", "walk", "ordered")


@pytest.mark.parametrize("name", list(MODELS))
def test_moments_match_long_chains(name):
    with pm.Model() as model:
        MODELS[name]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.exceptions.ShapeWarning)
            fit = pm.fit(method=methods(name)[0], progressbar=False)
    integrated = {rv.name for rv in read_classifier(model).prior.integrated}
    means, sds = fit.mean_data, fit.std_data
    for variable, chains in CHAINS[name].items():
        if variable not in means:  # a Deterministic
            continue
        own = variable in integrated or variable.endswith("_zerosum__")
        sd, error, error_of_sd = (np.array(chains[key]) for key in ("sd", "error of mean", "error of sd"))
        apart = np.abs(np.ravel(means[variable]) - chains["mean"])
        assert_array_less(apart, (0.1 if own else 0.2) * sd + 4 * error, err_msg=variable)
        wider = np.abs(np.ravel(sds[variable]) - sd)
        assert_array_less(wider, (0.1 if own else 0.15) * sd + 4 * error_of_sd, err_msg=variable)


@pytest.mark.parametrize(
    ("name", "sampler", "draws"),
    [
        pytest.param("binary", "GuidedHMC", 300, marks=pytest.mark.slow),
        *(pytest.param(name, "GuidedHMC", 1500, marks=pytest.mark.calibration) for name in SAMPLED),
        pytest.param("binary", "EllipticalSlice", 1500, marks=pytest.mark.calibration),
        pytest.param("slopes", "PseudoMarginal", 1500, marks=pytest.mark.calibration),
        pytest.param("classes", "ProbitGibbs", 1500, marks=pytest.mark.calibration),
        pytest.param("binary", "marginal NUTS", 1500, marks=pytest.mark.calibration),
    ],
)
def test_sampler_means_match_long_chains(name, sampler, draws):
    found = run(name, sampler, draws, CHAINS[name])
    assert found["worst error"] < 4.5
    assert found["effective"] > 0.05 * draws
