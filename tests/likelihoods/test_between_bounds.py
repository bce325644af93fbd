"""Observations with bounds, computed as the middle of three ordered classes with cutpoints for each row."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from scipy.stats import norm

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier

RNG = np.random.default_rng(4)
N = 12
X = np.linspace(-1.0, 1.0, N)
LOW = np.floor(2.0 * (X + 0.5 * RNG.normal(size=N))) / 2.0
BOUNDS = np.stack([LOW, LOW + 0.5], axis=1)
BOUNDS[0, 0], BOUNDS[5, 1] = -1e10, 1e10  # these rows have one finite bound
SCALE = 0.4


def model_of(bounds):
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0, 1), pm.Normal("slope", 0, 1)
        x, cut = pm.Data("x", X), pm.Data("bounds", bounds)
        eta = (level + slope * x) / SCALE
        pm.OrderedProbit("between", eta=eta, cutpoints=cut / SCALE, observed=np.ones(N, int))
    return model


def test_moments_of_rows_between_bounds_match_integrals():
    with model_of(BOUNDS):
        fit = pm.fit(method="ep", progressbar=False)
        found = fit.predict(data={"x": [0.3], "bounds": [[0.0, 0.5]]}, observed=[1])
    z = np.linspace(-4.0, 4.0, 401)
    level, slope = (each.ravel() for each in np.meshgrid(z, z, indexing="ij"))
    f = level[:, None] + slope[:, None] * X
    inside = norm.cdf(BOUNDS[:, 1], f, SCALE) - norm.cdf(BOUNDS[:, 0], f, SCALE)
    joint = np.log(np.maximum(inside, 1e-300)).sum(axis=1) + norm.logpdf(level) + norm.logpdf(slope)
    evidence = logsumexp(joint) + 2.0 * np.log(z[1] - z[0])
    weights = np.exp(joint - logsumexp(joint))
    assert fit.log_evidence == pytest.approx(evidence, abs=0.01)
    assert_allclose([fit.mean_data["level"], fit.mean_data["slope"]], [weights @ level, weights @ slope], atol=0.005)
    there = norm.cdf(0.5, level + 0.3 * slope, SCALE) - norm.cdf(0.0, level + 0.3 * slope, SCALE)
    assert_allclose(found["log_density"], np.log(weights @ there), atol=0.01)


def test_infinite_bounds_are_refused():
    bounds = BOUNDS.copy()
    bounds[5, 1] = np.inf
    with pytest.raises(gpep.StructureError, match=r"not finite in row 5.*np\.clip\(cutpoints, -1e10, 1e10\)"):
        read_classifier(model_of(bounds))
