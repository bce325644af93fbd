"""Hyperparameters at which PyMC's density of Gaussian variables is zero, such as negative standard deviations."""

import numpy as np
import pymc as pm
import pytest
from scipy.optimize import minimize_scalar

import pymc_gpep as gpep
from pymc_gpep.approximations import EP
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier

J = 6
GROUP = np.arange(24) % J
Y = np.random.default_rng(0).integers(0, 2, 24)
W = np.eye(J, k=1) + np.eye(J, k=-1)

# Parameters with a normal prior. PyMC allows negative values of some.
DECLARED = {
    "normal": lambda s: pm.Normal("u", 0, s, shape=J),
    "precision of a normal": lambda s: pm.Normal("u", 0, tau=s, shape=J),
    "zero sum": lambda s: pm.ZeroSumNormal("u", s, shape=J),
    "steps": lambda s: pm.GaussianRandomWalk("u", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=J),
    "start": lambda s: pm.GaussianRandomWalk("u", sigma=1, init_dist=pm.Normal.dist(0, s), shape=J),
    "series": lambda s: pm.AR("u", rho=[0.4], sigma=s, shape=J, init_dist=pm.Normal.dist(0, 1)),
    "coefficient": lambda s: pm.AR("u", rho=[s], sigma=1, shape=J, init_dist=pm.Normal.dist(0, 1)),
    "areas": lambda s: pm.CAR("u", mu=np.zeros(J), W=W, alpha=0.5, tau=s),
    "dependence": lambda s: pm.CAR("u", mu=np.zeros(J), W=W, alpha=1.6 * s, tau=1),
    "mean of areas": lambda s: pm.ICAR("u", W=W, zero_sum_stdev=s),
    "covariance": lambda s: pm.MvNormal("u", np.zeros(J), cov=np.eye(J) * s),
    "root": lambda s: pm.MvNormal("u", np.zeros(J), chol=np.eye(J) * s),
    "matrix": lambda s: pm.MatrixNormal("u", mu=np.zeros((2, 3)), rowchol=np.eye(2) * s, colchol=np.eye(3)),
    "noise": lambda s: pm.KroneckerNormal("u", mu=np.zeros(J), covs=[np.eye(2), np.eye(3)], sigma=s),
    "non-centred": lambda s: s * pm.Normal("u", shape=J),
}


def declared(name, prior=(1, 0.5)):
    with pm.Model() as model:
        u = DECLARED[name](pm.Normal("s", *prior, initval=0.5))
        pm.Bernoulli("y", logit_p=u.ravel()[GROUP], observed=Y)
    return model


@pytest.mark.variation(but=["normal", "areas"])
@pytest.mark.filterwarnings("ignore:.*trace is deprecated:FutureWarning", "ignore:.* encountered in .*:RuntimeWarning")
@pytest.mark.parametrize("name", DECLARED)
def test_log_posterior_is_finite_where_the_density_of_the_model_is_finite(name):
    model = declared(name)
    density = model.compile_logp(mode="FAST_COMPILE")
    log_posterior = DenseLogPosterior(read_classifier(model), EP())
    for s in (0.5, -0.7):
        expected = np.isfinite(density(model.initial_point() | {"s": np.array(s)}))
        assert np.isfinite(log_posterior(np.array([s])).log_posterior) == expected


def test_log_posterior_is_minus_infinity_outside_the_support():
    model = declared("normal")
    found = DenseLogPosterior(read_classifier(model), EP())(np.array([-0.7]))
    assert found.log_posterior == -np.inf
    marginal = gpep.marginalize(model, "ep")
    assert marginal.compile_logp()({"s": np.array(-0.7)}) == -np.inf
    assert np.isfinite(marginal.compile_logp()({"s": np.array(0.7)}))


@pytest.mark.parametrize("prior", [(1, 0.5), (0, 1)])
@pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")
def test_search_finds_the_positive_maximum(prior):
    model = declared("normal", prior)
    log_posterior = DenseLogPosterior(read_classifier(model), EP())
    with model:
        fit = pm.fit(method="ep", hyper="map", progressbar=False)
    best = minimize_scalar(
        lambda s: -log_posterior(np.array([s])).log_posterior, bounds=(0.0, 4.0), options={"xatol": 1e-8}
    )
    assert fit.converged
    assert fit.trace.best.log_posterior == pytest.approx(-best.fun, abs=1e-5)


@pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")
def test_nodes_of_a_positive_scale_have_no_negative_values():
    with declared("normal", (0.4, 0.5)):
        fit = pm.fit(method="ep", hyper="ccd", progressbar=False)
    nodes = fit.nodes
    assert float(nodes["weight"][nodes["s"] < 0].sum()) == 0.0
    assert float(nodes["weight"].sum()) == pytest.approx(1.0)
