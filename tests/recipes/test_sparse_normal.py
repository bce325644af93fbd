"""`gpep.SparseNormal` equals `pm.MvNormal` with the same precision: density, slopes, draws and fits."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse as ps
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import EP
from pymc_gpep.log_posteriors import dense_log_posterior
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.prior_moments import precision_sum
from pymc_gpep.reading import read_classifier

N = 12
STEPS = sp.csc_matrix(sp.diags([2.0, -1.0, -1.0], [0, 1, -1], shape=(N, N)))
G, C = ps.as_sparse_variable(STEPS), ps.as_sparse_variable(sp.csc_matrix(sp.diags(np.linspace(1, 2, N))))
DENSE, DIAGONAL = STEPS.toarray(), np.diag(np.linspace(1, 2, N))
PLACE = np.random.default_rng(4).integers(N - 2, size=40)
COUNTS = np.random.default_rng(5).poisson(np.exp(0.1 * PLACE))


def field(sparse):
    with pm.Model(coords={"place": range(N)}) as model:
        kappa, tau, level = pm.HalfNormal("kappa", 1), pm.HalfNormal("tau", 2), pm.Normal("level", 0, 1)
        where = pm.Data("where", PLACE)
        if sparse:
            u = gpep.SparseNormal("u", level, tau * (C * kappa**4 + 2 * kappa**2 * G - (-G)), dims="place")
        else:
            q = tau * (DIAGONAL * kappa**4 + 2 * kappa**2 * DENSE + DENSE)
            u = pm.MvNormal("u", level * np.ones(N), tau=q, dims="place")
        pm.Poisson("y", mu=pm.math.exp(u[where]), observed=COUNTS)
    return model


MODELS = {sparse: field(sparse) for sparse in (True, False)}


def test_density_and_slopes_match_dense_algebra():
    rng = np.random.default_rng(1)
    point = {k: v + 0.3 * rng.standard_normal(np.shape(v)) for k, v in MODELS[True].initial_point().items()}
    ours, theirs = MODELS[True], MODELS[False]
    assert_allclose(ours.compile_logp()(point), theirs.compile_logp()(point), rtol=1e-12)
    assert_allclose(ours.compile_dlogp()(point), theirs.compile_dlogp()(point), rtol=1e-10, atol=1e-10)


def test_indefinite_precision_has_log_density_of_minus_infinity():
    value = np.zeros(N)
    bad = pm.logp(gpep.SparseNormal.dist(0.0, STEPS - 3 * sp.eye(N)), value)
    assert bad.eval() == -np.inf


def test_draws_have_the_covariance():
    drawn = pm.draw(gpep.SparseNormal.dist(np.arange(N), STEPS, size=4000), random_seed=1)
    assert_allclose(drawn.mean(axis=0), np.arange(N), atol=0.15)
    assert_allclose(np.cov(drawn.T), np.linalg.inv(DENSE), atol=0.3)


def test_invalid_precision_raises_errors():
    with pytest.raises(TypeError, match=r"pm\.MvNormal"):
        gpep.SparseNormal.dist(0.0, DENSE)
    with pytest.raises(ValueError, match="symmetric"):
        gpep.SparseNormal.dist(0.0, sp.csc_matrix(np.tri(3)))
    with pytest.raises(ValueError, match=r"must have the shape \(2, 2\), not \(2, 3\)"):
        gpep.SparseNormal.dist(0.0, sp.csc_matrix(np.ones((2, 3))))
    with pytest.raises(ValueError, match="mu must be a scalar or have an entry for each"):
        gpep.SparseNormal.dist(np.zeros(N - 1), STEPS)
    with pytest.raises(ValueError, match="data that may change"):
        gpep.SparseNormal.dist(0.0, pytensor.shared(STEPS) + G)
    with pytest.raises(ValueError, match="the operation TrueDot"):
        gpep.SparseNormal.dist(0.0, ps.true_dot(G, G))


def test_fit_with_a_singular_precision_is_refused():
    ends = np.diag([1.0, *[0.0] * (N - 2), 1.0])
    with pm.Model() as model:
        walk = gpep.SparseNormal("u", 0, sp.csc_matrix(DENSE - ends))
        pm.Poisson("y", mu=pm.math.exp(walk[PLACE]), observed=COUNTS)
    with pytest.raises(ValueError, match=r"singular to rounding.*Add to its diagonal: tau"):
        pm.fit(model=model, method="ep", progressbar=False)


@pytest.mark.variation
def test_fits_with_a_sparse_precision_match_dense_fits():
    options = {"method": "ep", "hyper": "map", "progressbar": False}
    dense = pm.fit(model=MODELS[False], **options)
    plain = DenseLogPosterior(read_classifier(MODELS[True]), EP())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_log_posterior, "_MANY", 1)
        patch.setattr(precision_sum, "_DENSE", np.inf)
        fit = pm.fit(model=MODELS[True], **options)
    assert "By a sparse precision: 10 rows of 13 numbers" in str(fit)
    theta = dense.theta + 0.2
    expected, new = dense.log_posterior(theta), {"where": [0, N - 1]}
    for found in (plain(theta), fit.log_posterior(theta)):
        assert_allclose(found.log_posterior, expected.log_posterior, rtol=1e-10)
        assert_allclose(found.gradient, expected.gradient, rtol=1e-5, atol=1e-7)
    assert_allclose(fit.effects(["u"])["u"], dense.effects(["u"])["u"], atol=1e-5)
    assert_allclose(fit.predict(data=new)["mean"], dense.predict(data=new)["mean"], rtol=1e-5)
    again = gpep.from_datatree(fit.to_datatree(), MODELS[True])
    assert_allclose(again.predict(data=new)["mean"], dense.predict(data=new)["mean"], rtol=1e-5)
    drawn = fit.sample(400, random_seed=1)["posterior"]["u"]
    assert drawn.dims == ("chain", "draw", "place")
    mean, sd = dense.effects(["u"])["u"].values
    assert (abs(drawn.mean(("chain", "draw")).values - mean) < 0.25 * sd).all()
