"""Rows with an exposure of 0, against models without these rows; refusals of invalid exposures."""

import re

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from tests.likelihoods.with_parameters import COUNTS, EXPOSURE, X

EMPTY = np.array([1, 6, 11])
REST = np.setdiff1d(np.arange(12), EMPTY)
HOURS = np.where(np.isin(np.arange(12), EMPTY), 0.0, EXPOSURE)
SEEN = np.where(HOURS > 0.0, COUNTS, 0)
OTHERS = np.array([[-1.1], [0.4]])


def as_data(hours, f):
    return pm.Data("hours", hours) * pm.math.exp(f)


def as_numbers(hours, f):
    return hours * pm.math.exp(f)


def as_offset(hours, f):
    with np.errstate(divide="ignore"):
        return pm.math.exp(f + np.log(hours))


def times_a_hyperparameter(hours, f):
    return pm.HalfNormal("rate", 1.0) * hours * pm.math.exp(f)


WRITTEN = [as_data, as_numbers, as_offset, times_a_hyperparameter]


def model(rows, hours=HOURS, counts=SEEN, written=as_data):
    with pm.Model() as made:
        eta = pm.HalfNormal("eta", 1.0)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.5), cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=1.0))
        f = gp.prior("f", X=X[rows])
        pm.Poisson("y", mu=written(hours[rows], f), observed=counts[rows])
    return made, gp


def fit(made, method="laplace"):
    with made:
        return pm.fit(method=method, progressbar=False, random_seed=1)


@pytest.mark.variation(but=["fv-as_data"])
@pytest.mark.parametrize(
    ("method", "written"),
    [("ep", as_data), ("fv", as_data), *(("laplace", each) for each in WRITTEN if each != as_data)],
)
def test_row_without_exposure_equals_a_removed_row(method, written):
    all_rows, gp = model(slice(None), written=written)
    without, other_gp = model(REST, written=written)
    found, expected = fit(all_rows, method), fit(without, method)
    assert found.converged
    assert_allclose(found.log_evidence, expected.log_evidence, rtol=1e-9)
    assert_allclose(found.hyperparameters.eta, expected.hyperparameters.eta, rtol=1e-6)
    loo = found.loo()
    assert_array_equal(loo.elpd_i[EMPTY], 0.0)
    assert_allclose(loo.elpd, expected.loo().elpd, rtol=1e-7)
    if written is as_data:
        at = {"data": {"hours": 1.0}}
        assert_allclose(
            found.predict(gp, OTHERS, **at).y_mean, expected.predict(other_gp, OTHERS, **at).y_mean, rtol=1e-6
        )


@pytest.mark.parametrize("method", ["ep", "fv"])
def test_rows_without_exposure_follow_the_prior_given_remaining_rows(method):
    """Moments of rows without exposure match predictions from a fit of the remaining rows, up to the jitter."""
    all_rows, _ = model(slice(None))
    without, gp = model(REST)
    found, others = fit(all_rows, method), fit(without, method)
    predicted = others.predict(gp, X[EMPTY], data={"hours": 1.0})
    for name in ("mean", "variance"):
        assert_allclose(found.latent[name][EMPTY], predicted[name], atol=1e-5)
        assert_allclose(found.latent[name][REST], others.latent[name], atol=1e-6)
    assert_allclose(found.solution.lower_bound, others.solution.lower_bound, rtol=1e-6)
    draws = found.sample(4000, random_seed=1)["posterior"]["f"].values[0]
    assert_allclose(draws.mean(axis=0), found.latent["mean"], atol=5 * np.sqrt(found.latent["variance"].max() / 4000))
    assert_allclose(draws.var(axis=0), found.latent["variance"], rtol=0.15)


def test_evidence_is_1_if_all_exposures_are_0():
    nothing, _ = model(slice(None), hours=np.zeros(12), counts=np.zeros(12, dtype=int))
    found = fit(nothing, "fv")
    assert_allclose(found.log_evidence, 0.0, atol=1e-12)


def test_predicted_count_without_exposure_is_zero():
    made, gp = model(slice(None))
    predicted = fit(made).predict(gp, OTHERS, data={"hours": [0.0, 1.0]}, observed=[0, 2])
    for name in ("y_mean", "y_variance", "log_density"):
        assert predicted[name][0] == 0.0
        assert predicted[name][1] != 0.0


@pytest.mark.parametrize("written", WRITTEN)
def test_count_without_exposure_is_refused_with_its_row(written):
    made, _ = model(slice(None), counts=np.where(np.arange(12) == 6, 4, SEEN), written=written)
    with pytest.raises(ValueError, match=r"exposure of .* is 0 in row 6, but the count is more than 0"):
        fit(made)


CANNOT_BE = [
    (as_data, -1.0),
    (as_data, np.inf),  # PyMC refuses NaN in `pm.Data`
    *((written, wrong) for written in (as_numbers, times_a_hyperparameter) for wrong in (-1.0, np.inf, np.nan)),
]


@pytest.mark.parametrize(("written", "wrong"), CANNOT_BE)
def test_invalid_exposures_are_refused_with_their_rows(written, wrong):
    made, _ = model(slice(None), hours=np.where(np.isin(np.arange(12), [2, 4]), wrong, EXPOSURE), written=written)
    with pytest.raises(ValueError, match=r"must be numbers of at least 0.* in rows 2, 4\."):
        fit(made)
    if written is as_numbers:
        with pytest.raises(ValueError, match=r"must be numbers of at least 0.* in rows 2, 4\."):
            gpep.marginalize(made, "laplace")


def test_message_names_the_first_of_many_rows():
    made, _ = model(slice(None), hours=-EXPOSURE)
    with pytest.raises(gpep.StructureError, match=re.escape("in rows 0, 1, 2, 3, 4 and 7 more.")):
        fit(made)


def test_invalid_exposures_at_new_points_are_refused():
    made, gp = model(slice(None))
    fitted = fit(made)
    with pytest.raises(ValueError, match=r"of 'y' at new points must be numbers of at least 0.* in row 1\."):
        fitted.predict(gp, OTHERS, data={"hours": [1.0, -1.0]})
    with pytest.raises(ValueError, match=r"exposure of 'y' at new points is 0 in row 0"):
        fitted.predict(gp, OTHERS, data={"hours": [0.0, 1.0]}, observed=[3, 1])
