"""Fits of every kind equal their stored results. `fits.py` says when stored results may change."""

import json

import numpy as np
import pytest

from tests.golden.fits import AT_A_FIXED_POINT, FITS, summary
from tests.golden.make import FILE

KEPT = json.loads(FILE.read_text())
OF_AN_OPTIMISER, AT_A_POINT = 1e-6, 1e-9


def error(found, kept):
    """Return the largest difference relative to the largest stored number. NaN equals NaN."""
    found, kept = np.array(found, float), np.array(kept, float)
    if found.shape != kept.shape or not np.array_equal(np.isnan(found), np.isnan(kept)):
        return np.inf
    known = ~np.isnan(kept)
    return np.abs(found - kept)[known].max(initial=0.0) / max(np.abs(kept[known]).max(initial=0.0), 1e-300)


def test_stored_results_cover_all_fits():
    assert list(KEPT) == list(FITS)


# Quick cases test fits with the same steps and the same sites, and other tests compare these fits with references.
SLOW = {"batches, sites kept", "batches, bound", "nested EP, a covariance for each class"}


@pytest.mark.variation(
    but=["nested EP", "sparse EP", "batches", "KL of a logit", "Laplace of a softmax", "variational Bayes"]
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in FITS]
)
def test_fit_equals_stored_results(name):
    found, kept = summary(name), KEPT[name]
    assert kept.keys() <= found.keys()
    words = {key for key in kept if isinstance(kept[key], (str, bool))}
    assert {key: found[key] for key in words} == {key: kept[key] for key in words}
    errors = {key: error(found[key], kept[key]) for key in kept.keys() - words}
    fixed = set(kept) if name in AT_A_FIXED_POINT else {"slope"}
    allowed = {key: AT_A_POINT if key in fixed and not key.startswith("sample") else OF_AN_OPTIMISER for key in errors}
    assert {key: value for key, value in errors.items() if value > allowed[key]} == {}
