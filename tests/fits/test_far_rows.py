"""New rows that are far from all fitted rows: warnings, with references from explicit covariances."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.fits.prediction import unreached, warn_of_far_rows

cov = pm.gp.cov


def unreached_among(k):
    """Return the fraction of points whose correlations with all other points are negligible under the covariance k."""
    cross = k.copy()
    np.fill_diagonal(cross, np.nan)
    return unreached(cross[None], k.diagonal()[None], k.diagonal()[None]).mean()


RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = (X[:, 0] + 0.5 * RNG.normal(size=40) > 0).astype(int)
NEAR = RNG.normal(size=(3, 2))
FAR = np.vstack([NEAR, 100 + 50 * NEAR[:2]])
WHICH = np.array([0, 0, 0, 1, 1])
REACHES = {
    "ExpQuad": (cov.ExpQuad(2, ls=1.0), WHICH),
    "Matern12": (0.01 * cov.Matern12(2, ls=1.0), WHICH),
    "RatQuad": (cov.RatQuad(2, ls=1.0, alpha=1.0), WHICH),
    "a common level": (cov.ExpQuad(2, ls=1.0) + cov.Constant(30.0), WHICH),
    "noise": (cov.ExpQuad(2, ls=1.0) + cov.WhiteNoise(1.0), WHICH),
    "product": (cov.ExpQuad(2, ls=1.0) * cov.Linear(2, c=0.0), WHICH),
    # Covariances without a length scale: they never vanish, or are equal for all rows.
    "Linear": (cov.Linear(2, c=0.0), 0 * WHICH),
    "Polynomial": (cov.Polynomial(2, c=0.0, d=2, offset=1.0), 0 * WHICH),
    "Periodic": (cov.Periodic(2, period=3.0, ls=1.0), 0 * WHICH),
    "long": (cov.ExpQuad(2, ls=100.0), 0 * WHICH),
    "a trend": (cov.ExpQuad(2, ls=1.0) + cov.Linear(2, c=0.0), 0 * WHICH),
}


@pytest.mark.parametrize(("covariance", "right"), REACHES.values(), ids=REACHES)
def test_rows_beyond_all_length_scales_are_far(covariance, right):
    cross, variance, k = (
        pt.as_tensor(each).eval() for each in (covariance(FAR, X), covariance(FAR, diag=True), covariance(X))
    )
    far = unreached(cross[None], variance[None], k.diagonal()[None])
    assert_array_equal(far, right)
    # A row within reach of one of several functions is not far.
    cosines = FAR @ X.T
    both = np.stack([cross, cosines]), np.stack([variance, (FAR**2).sum(axis=1)])
    assert_array_equal(unreached(*both, np.stack([k.diagonal(), (X**2).sum(axis=1)])), 0)
    assert unreached_among(k) < 0.1


NOTHING_NEAR = {
    "noise alone": np.eye(40),
    "noise and a level": np.eye(40) + 3.0,
    "length scales of nothing": cov.ExpQuad(2, ls=1e-4)(X).eval(),
}


@pytest.mark.parametrize("k", NOTHING_NEAR.values(), ids=NOTHING_NEAR)
def test_rows_without_correlated_rows_are_all_marked_as_unreached(k):
    assert_allclose(unreached_among(k), 1.0)


def test_zero_prior_variances_and_empty_rows_cause_no_numpy_warning():
    nothing = np.zeros((1, 2, 6))
    assert_array_equal(unreached(nothing, np.zeros((1, 2)), np.ones((1, 6))), 0)
    assert unreached(np.zeros((1, 0, 6)), np.zeros((1, 0)), np.ones((1, 6))).shape == (0,)


FITS = {
    "laplace": {"method": "laplace"},
    "sparse_ep": {"method": "sparse_ep", "inducing": 6, "learn_inducing": False},
    "batches": {"n": 3, "method": "sparse_ep", "inducing": 6, "batch_size": 20},
    "ivm": {"method": "ivm", "active": 15},
}


def model_of(covariance):
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=covariance(pm.HalfNormal("eta", 2.0)))
        gpep.Probit("y", gp.prior("f", X=X), observed=Y)
    return model, gp


@pytest.mark.parametrize("options", FITS.values(), ids=FITS)
def test_distant_rows_cause_one_warning_with_their_number(options):
    model, gp = model_of(lambda eta: eta**2 * cov.ExpQuad(2, ls=1.0))
    with model:
        fit = pm.fit(**options, random_seed=1, progressbar=False)
    fit.predict(NEAR)
    fit.predict(gp, NEAR)
    for new in ((FAR,), (gp, FAR)):
        with pytest.warns(UserWarning, match=r"^2 of 5 rows of Xnew are further .* (near them|the prior)") as warned:
            found = fit.predict(*new)
        assert len(warned) == 1
        assert_allclose(found["p"][3:, 1], 0.5, atol=1e-6)
    with pytest.warns(UserWarning, match="^1 of 1 rows of Xnew is further"):
        fit.predict(FAR[-1:])


@pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")
@pytest.mark.parametrize("options", [FITS["laplace"], FITS["sparse_ep"]], ids=["laplace", "sparse_ep"])
def test_isolated_training_rows_cause_no_warning_for_new_rows(options):
    model, _ = model_of(lambda eta: cov.ExpQuad(2, ls=1e-3) * eta**2)
    with model:
        fit = pm.fit(**options, random_seed=1, progressbar=False)
    assert_allclose(fit.predict(NEAR)["p"], 0.5, atol=1e-6)


def test_loaded_fit_warns_about_distant_rows():
    model, _ = model_of(lambda eta: eta**2 * cov.ExpQuad(2, ls=1.0))
    with model:
        fit = pm.fit(**FITS["sparse_ep"], data=(X[::-1].copy(), Y[::-1].copy()), random_seed=1, progressbar=False)
        again = gpep.from_datatree(fit.to_datatree())
    with pytest.warns(UserWarning, match="^2 of 5 rows"):
        again.predict(FAR)


def test_fitted_rows_far_from_inducing_inputs_cause_a_warning():
    """A third of the rows are near (100, 100), and all inducing inputs are near 0."""
    x = np.vstack([X, X[:20] + 100.0])
    with pm.Model():
        f = pm.gp.Latent(cov_func=4 * cov.ExpQuad(2, ls=1.0)).prior("f", X=x)
        gpep.Probit("y", f, observed=np.append(Y, Y[:20]))
        fit = pm.fit(method="sparse_ep", inducing=X[:9], learn_inducing=False, progressbar=False)
    with pytest.warns(UserWarning, match="^3 of 6 .* all inducing inputs than .* the fit needs more inducing inputs"):
        fit.predict(np.vstack([x[:3], x[-3:]]))


def test_single_fitted_row_causes_no_warning():
    warn_of_far_rows(np.ones(3), lambda: np.zeros(1), "all rows")
    with pytest.warns(UserWarning, match="3 of 3 rows of Xnew are further from all rows that were fitted"):
        warn_of_far_rows(np.ones(3), lambda: np.zeros(2), "all rows")
