"""Messages about searches that end without a maximum, and searches after the advice of the messages."""

from contextlib import nullcontext

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_gpep as gpep
from pymc_gpep.hyper.optimum import ran_away
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.reading import read_classifier
from tests import models
from tests.graph_modes import rewritten

X = np.random.default_rng(3).normal(size=(40, 3))
Y = (X[:, 0] + 0.5 * np.sin(2 * X[:, 1]) + 0.3 * np.random.default_rng(4).standard_normal(40) > 0).astype(int)


def pooled(scale=None, centred=True):
    """Model whose length scales have a prior with a learned location and scale."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        tau = pm.HalfNormal("tau", 1) if scale is None else scale()
        ls = pm.LogNormal("ls", mu, tau, shape=3) if centred else pt.exp(mu + tau * pm.Normal("z", 0, 1, shape=3))
        f = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(3, ls=ls)).prior("f", X=X)
        pm.Bernoulli("y", logit_p=f, observed=Y)
    return model


def squared_magnitude():
    """Model that depends on the square of a magnitude. Prior and likelihood are symmetric about its start, 0."""
    with pm.Model() as model:
        eta = pm.Normal("eta", 0, 5)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(3, ls=2.0)).prior("f", X=X)
        pm.Bernoulli("y", logit_p=f, observed=Y)
    return model


def ordered(cutpoints=(-1.0, 0.0, 1.0), **kwargs):
    """Model of four ordered classes. The second class never occurs."""
    with pm.Model() as model:
        cut = pm.Normal("cut", 0, 3, shape=3, initval=np.array(cutpoints), **kwargs)
        f = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(3, ls=2.0)).prior("f", X=X)
        labels = np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.5, -0.5, 0.5])
        pm.OrderedProbit("y", eta=f, cutpoints=cut, observed=labels, compute_p=False)
    return model


@pytest.mark.parametrize(
    ("method", "options"),
    # A search by inner updates reports the same problem as a search by L-BFGS.
    [("ep", {}), pytest.param("sparse_ep", {"inducing": 10, "update": "inner", "n": 600}, marks=pytest.mark.slow)],
)
def test_scale_of_a_prior_that_runs_to_0_is_reported(method, options):
    with (
        pooled(),
        pytest.warns(RuntimeWarning, match="'tau' ran to .*e-.*, where the prior density of the scaled variables"),
    ):
        fit = pm.fit(method=method, progressbar=False, **options)
    assert not fit.converged
    assert "NOT converged" in str(fit)


def test_batch_fit_reports_a_scale_that_runs_to_0():
    with pooled(), pytest.warns(RuntimeWarning, match=r"^Ended \('tau' ran to .* is unbounded.* after 150 steps"):
        fit = pm.fit(
            150, method="sparse_ep", inducing=5, batch_size=20, learn_inducing=False, random_seed=1,
            obj_optimizer=pm.adam(learning_rate=0.1), progressbar=False,
        )  # fmt: skip
    assert fit.hyperparameters.tau < 0.1
    assert "'tau' ran to" in str(fit)


@pytest.mark.parametrize(
    ("options", "unbounded"),
    [
        ({}, True),
        ({"scale": lambda: pm.HalfCauchy("tau", 1)}, True),
        ({"scale": lambda: pm.InverseGamma("tau", 3, 1)}, False),
        ({"scale": lambda: pm.LogNormal("tau", 0, 1)}, False),
        ({"centred": False}, False),
    ],
    ids=["half normal", "half Cauchy", "inverse gamma", "log normal", "normals"],
)
def test_unbounded_priors_at_scale_0_are_identified(options, unbounded):
    """The density of three log scales within tau of their mean is proportional to p(tau) / tau³."""
    space = Hyperparameters(read_classifier(pooled(**options)))
    first = space.initial_point()
    for size, says in ((1.0, False), (2.5, unbounded), (5.0, unbounded)):
        there = first - size * (np.array(space.owners) == "tau")
        assert bool(ran_away(space, first, there)) == says


@pytest.mark.parametrize(
    "options", [{"scale": lambda: pm.InverseGamma("tau", 3, 1)}, {"centred": False}], ids=["another prior", "normals"]
)
def test_log_posterior_with_the_advised_prior_has_a_maximum(options):
    with pooled(**options):
        fit = pm.fit(method="ep", progressbar=False)
    assert fit.converged
    assert fit.hyperparameters.tau > 0.05
    here = fit.trace.best
    assert np.abs(here.gradient).max() < 0.01
    for step in 0.1 * np.eye(here.theta.size):
        assert fit.log_posterior(here.theta + step).log_posterior < here.log_posterior
        assert fit.log_posterior(here.theta - step).log_posterior < here.log_posterior


METHODS = {
    "ep": {},
    "laplace": {"starts": 2},
    "sparse_vi": {"inducing": 12, "update": "inner", "n": 400},
    "ivm": {"active": 40, "rounds": 4},
}


@pytest.mark.variation(but=["ivm", "ep"])
@pytest.mark.filterwarnings("ignore:Hyperparameters did not .* rounds was reached:RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
def test_magnitude_that_starts_at_0_is_learned(method):
    with squared_magnitude():
        fit = pm.fit(method=method, progressbar=False, **METHODS[method])
    assert abs(fit.trace.best.gradient).max() < (0.1 if method == "ivm" else 0.01)
    # If the magnitude is 0, each label has the probability ½.
    assert fit.trace.best.evidence > len(Y) * np.log(0.5) + 3.0


def test_batch_fits_start_next_to_a_point_of_symmetry():
    begins = pytest.warns(UserWarning, match="symmetric about the initial value of 'eta'")
    with squared_magnitude(), begins:
        fit = pm.fit(4, method="sparse_ep", inducing=5, batch_size=20, progressbar=False)
    assert fit.hyperparameters.eta > 0.9
    assert np.isfinite(fit.hist).all()


def test_cutpoints_stay_ordered_during_the_search():
    """The log posterior is NaN where PyMC's log density is −∞, also for the cutpoints of a class that never occurs."""
    model = ordered()
    with model, pytest.warns(RuntimeWarning, match="came to a border. Beyond this border: The cutpoints"):
        fit = pm.fit(method="ep", progressbar=False)
    assert "Declare them with transform=pm.distributions.transforms.ordered" in fit.message
    assert (np.diff(fit.hyperparameters.cut) > 0).all()
    crossed = {"cut": np.array([0.5, -0.5, 1.0]), "f_rotated_": np.zeros(40)}
    with rewritten():  # a rewriting of PyTensor turns PyMC's check of the probabilities into a log density of −∞
        assert model.compile_logp()(crossed) == -np.inf
    assert np.isnan(fit.log_posterior(crossed["cut"]).log_posterior)
    p = fit.predict(X[:5]).p
    assert (p.values >= 0.0).all()
    np.testing.assert_allclose(p.sum("y_class" if "y_class" in p.dims else p.dims[1]), 1.0)


@pytest.mark.parametrize("transform", [{"default_transform": None}, {}], ids=["no transform", "PyMC's transform"])
def test_message_reports_that_the_support_of_a_prior_ends_before_the_maximum(transform):
    """The best magnitude is about 4 (see `test_magnitude_that_starts_at_0_is_learned`). The prior allows at most 2."""
    with pm.Model():
        eta = pm.Uniform("eta", 0.1, 2.0, **transform)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(3, ls=2.0)).prior("f", X=X)
        pm.Bernoulli("y", logit_p=f, observed=Y)
        with (
            pytest.warns(RuntimeWarning, match="border, beyond which hyperparameters are outside the support")
            if transform
            else nullcontext()
        ):
            fit = pm.fit(method="laplace", progressbar=False)
    assert fit.converged != bool(transform)
    assert 1.5 < fit.hyperparameters.eta < 2.0


def test_fit_with_the_advised_transform_converges():
    with ordered(transform=pm.distributions.transforms.ordered):
        fit = pm.fit(method="ep", progressbar=False)
    assert fit.converged


def test_descending_initial_cutpoints_are_refused():
    with ordered((0.0, 0.0, 0.0)), pytest.raises(ValueError, match=r"must ascend, but are 0, 0, 0\. Declare them"):
        pm.fit(method="ep", progressbar=False)


class Distances(pm.gp.cov.Covariance):
    """exp(−√(|x − x'|² + ε) / ls) as users often write it, with ε = `little`."""

    def __init__(self, ls, little):
        super().__init__(3)
        self.ls, self.little = ls, little

    def diag(self, X):
        return pt.ones(X.shape[0])

    def full(self, X, Xs=None):
        other = X if Xs is None else Xs
        squared = (X**2).sum(1)[:, None] + (other**2).sum(1)[None] - 2 * X @ other.T
        squared = pt.clip(squared, 0, np.inf) / self.ls**2
        return pt.exp(-pt.sqrt(squared + self.little))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ep", {}),
        pytest.param("sparse_ep", {"inducing": 10}, marks=pytest.mark.slow),
        ("ivm", {"active": 20}),
    ],
)
def test_root_of_distances_is_refused_and_the_advice_works(method, options):
    def model_with(little):
        x = pm.Data("X", X)
        f = pm.gp.Latent(cov_func=4 * Distances(pm.InverseGamma("ls", 3, 3), little)).prior("f", X=x)
        pm.Bernoulli("y", logit_p=f, observed=Y)

    with pm.Model() as model:
        model_with(0.0)
    with pytest.raises(ValueError, match=r"with respect to ls_log__.* are not finite .* Another start does not help"):
        pm.fit(model=model, method=method, progressbar=False, **options)
    with pm.Model():
        model_with(1e-12)
        fit = pm.fit(method=method, progressbar=False, **options)
    assert fit.converged


def test_loaded_fit_has_the_message_of_the_fit(tmp_path):
    model = squared_magnitude()
    with model:
        fit = pm.fit(method="ep", progressbar=False)
        assert "having left a stationary point" in str(fit)
        fit.to_datatree().to_netcdf(tmp_path / "fit.nc")
        again = gpep.from_datatree(xr.open_datatree(tmp_path / "fit.nc"))
    assert again.message.split(";")[0] == fit.message.split(";")[0]


@pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning")
@pytest.mark.parametrize("update", ["outer", "inner"])
def test_inducing_inputs_are_learned_without_hyperparameters(update):
    with models.fixed()[0]:
        fit = pm.fit(5, method="sparse_ep", update=update, inducing=4, learn_inducing=True, progressbar=False)
    assert fit.hist[-1] < fit.hist[0]
