"""Gaussian variables in the mean of a process are equivalent to separate effects."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.reading import GPModel, read_classifier
from tests.sum_models import BINARY, KINDS, XY, made

NEW = np.array([[0.3, -0.2], [1.1, 0.4], [-0.7, 2.0]])
SMALL = {"n": 30, "progressbar": False, "random_seed": 1}
pytestmark = pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")


class Trend(pm.gp.mean.Mean):
    """Mean function of a user, with a row for each class, affine in Gaussian variables."""

    def __init__(self, coeffs, intercept):
        self.coeffs, self.intercept = coeffs, intercept

    def __call__(self, X):
        return (pt.dot(X, self.coeffs) + self.intercept).T


def gp_of(mean):
    return pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 3, 3)))


def linear(x, inside):
    b, a = pm.Normal("b", shape=2), pm.Normal("a", pm.Normal("level"), 0.5)
    f = gp_of(pm.gp.mean.Linear(coeffs=b, intercept=a) if inside else pm.gp.mean.Zero()).prior("f", X=x)
    pm.Bernoulli("y", logit_p=f if inside else f + x @ b + a, observed=BINARY)


def constant(x, inside):
    c = pm.Normal("c", 0, 2)
    f = gp_of(pm.gp.mean.Constant(c) if inside else pm.gp.mean.Zero()).prior("f", X=x, reparameterize=False)
    gpep.Probit("y", f if inside else f + c, observed=BINARY)


def classes(x, inside):
    b, a = pm.Normal("b", shape=(2, 3)), pm.Normal("a", shape=3)
    f = gp_of(Trend(b, a) if inside else pm.gp.mean.Zero()).prior("f", X=x, n_outputs=3)
    gpep.MultinomialProbit("y", f.T if inside else f.T + x @ b + a, observed=KINDS)


def beside_another(x, inside):
    """The process has a mean, and the model has one more effect."""
    b, c = pm.Normal("b", shape=2), pm.Normal("c")
    mean = pm.gp.mean.Linear(coeffs=b) if inside else pm.gp.mean.Zero()
    f = gp_of(mean).prior("f", X=x, reparameterize=False)
    pm.Bernoulli("y", logit_p=(f if inside else f + x @ b) + c, observed=BINARY)


def fitted(declare, inside, data=False, **kwargs):
    with made(lambda: declare(pm.Data("X", XY) if data else XY, inside)):
        method = "nested_ep" if declare is classes else "ep"
        return pm.fit(**{"method": method, "hyper": "map"} | SMALL | kwargs)


def test_summary_of_an_effect_in_a_mean_equals_summary_of_a_separate_effect():
    inside, beside = (fitted(constant, each).summary(["c"]) for each in (True, False))
    assert_allclose(inside, beside, rtol=1e-6)


@pytest.mark.variation(but=["beside another effect"])
@pytest.mark.parametrize(
    ("form", "data"),
    [(classes, True), (beside_another, False)],
    ids=["classes", "beside another effect"],
)
def test_coefficients_in_a_mean_equal_separate_effects(form, data):
    inside, beside = (fitted(form, inside, data) for inside in (True, False))
    assert set(inside.hyperparameters.data_vars) == {"ls"}
    assert inside.log_evidence == pytest.approx(beside.log_evidence, abs=1e-8)
    names = [name for name in ("a", "b", "c", "level") if name in inside.model.named_vars]
    found, expected = inside.effects(names), beside.effects(names)
    for name in names:
        assert_allclose(found[name], expected[name], atol=1e-8)
    new, same = (fit.predict(NEW, progressbar=False) for fit in (inside, beside))
    for name in {"mean", "p", "variance", "cov"} & set(new.data_vars):
        assert_allclose(new[name], same[name], atol=1e-8)


@pytest.fixture(scope="module")
def model():
    return made(lambda: linear(XY, True))


@pytest.fixture(scope="module")
def fit(model):
    with model:
        return pm.fit(method="ep", **SMALL)


def test_hyperparameters_of_processes_with_effects_in_means_are_integrated(fit):
    assert fit.hyper_posterior.name == "adaptive"
    assert fit.nodes.sizes["node"] > 1
    assert "Integrated: b, level, a, f_rotated_." in str(fit)


@pytest.mark.variation
def test_draws_of_effects_in_means_have_fitted_moments(fit):
    draws, effects = fit.sample(3000, random_seed=2)["posterior"], fit.effects(["a", "b"])
    for name, moments in effects.items():
        mean, sd = moments.values
        values = draws[name].values[0]
        assert_allclose(values.mean(axis=0), mean, atol=0.08)
        assert_allclose(values.std(axis=0), sd, rtol=0.08)
    there = fit.sample(3000, Xnew=NEW, random_seed=2)["posterior"]["f"].values[0]
    expected = fit.predict(NEW, progressbar=False)
    assert_allclose(there.mean(axis=0), expected["mean"], atol=0.12)
    assert_allclose(there.var(axis=0), expected["variance"], rtol=0.15)


def test_saved_fit_equals_the_fit(fit, model):
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert again.log_evidence == pytest.approx(fit.log_evidence, abs=1e-9)
    assert_allclose(again.effects()["b"], fit.effects()["b"], atol=1e-7)


def test_file_of_a_fit_with_effects_in_means_as_hyperparameters_is_read(model):
    with model:
        before = pm.fit(method="ep", hyper="map", hyperparameters=["a", "b", "level"], **SMALL)
    tree = before.to_datatree()
    del tree.attrs["asked"]
    again = gpep.from_datatree(tree, model)
    assert set(again.hyperparameters.data_vars) == {"ls", "a", "b", "level"}
    assert again.log_evidence == pytest.approx(before.log_evidence, abs=1e-9)


@pytest.mark.variation
def test_marginal_models_integrate_effects_in_means(model):
    marginal = gpep.marginalize(model)
    assert [rv.name for rv in marginal.free_RVs] == ["ls"]
    with model:
        fit = pm.fit(method="ep", hyper="map", **SMALL)
    ls = np.full((1, 200), fit.hyperparameters["ls"].item())
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"ls": (("chain", "draw"), ls)})})
    draws = gpep.recover_latent(idata, marginal, random_seed=2, progressbar=False)["posterior"]
    for name, moments in fit.effects(["a", "b"]).items():
        mean, sd = moments.values
        assert_allclose(draws[name].values[0].mean(axis=0), mean, atol=0.2)
        assert_allclose(draws[name].values[0].std(axis=0), sd, rtol=0.2)


def test_evidence_grids_integrate_effects_in_means(fit, model):
    values = fit.nodes["ls"].values[:2]
    grid = gpep.diagnostics.evidence_grid(model, {"ls": values}, method="ep", tolerance=1e-9, Xnew=NEW, ynew=[0, 1, 1])
    assert_allclose(grid["evidence"], fit.nodes["evidence"].values[:2], atol=1e-6)
    one = gpep.diagnostics.evidence_grid(
        model, {"ls": values[:1]}, at={"a": 0.0, "b": [0.0, 0.0], "level": 0.0}, method="ep"
    )
    with made(lambda: pm.Bernoulli("y", logit_p=gp_of(pm.gp.mean.Zero()).prior("f", X=XY), observed=BINARY)) as other:
        plain = gpep.diagnostics.evidence_grid(other, {"ls": values[:1]}, method="ep")
    assert_allclose(one["evidence"], plain["evidence"], atol=1e-8)


@pytest.mark.filterwarnings("ignore:Hyperparameters did not converge:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:The model is symmetric about:UserWarning")
@pytest.mark.parametrize(
    ("method", "options"),
    [("sparse_ep", {"inducing": 5}), ("ivm", {"active": 10}), ("sparse_ep", {"inducing": 5, "batch_size": 10})],
    ids=["inducing inputs", "active rows", "batches"],
)
def test_methods_that_do_not_integrate_means_keep_their_effects_as_hyperparameters(method, options, model):
    with model, pytest.warns(UserWarning, match=r"'b' \(Normal\), 'a' \(Normal\) are maximised with other"):
        fit = pm.fit(method=method, **SMALL | {"n": 2, "hyper": "map"} | options)
    assert set(fit.hyperparameters.data_vars) == {"ls", "a", "b", "level"}
    assert "'b' stays a hyperparameter: this method does not integrate means of Gaussian processes." in str(fit)


def test_effect_in_a_mean_named_by_the_user_stays_a_hyperparameter(model):
    with model:
        fit = pm.fit(method="ep", hyper="map", hyperparameters=["b"], **SMALL)
    assert set(fit.hyperparameters.data_vars) == {"ls", "b"}
    assert "'b' stays a hyperparameter: hyperparameters=[...] names it." in str(fit)


def test_method_that_inverts_the_covariance_keeps_effects_in_means_as_hyperparameters():
    fit = fitted(constant, True, method="fv")
    assert set(fit.hyperparameters.data_vars) == {"ls", "c"}
    assert "'c' stays a hyperparameter: this method does not integrate means" in str(fit)
    with made(lambda: constant(XY, True)) as model:
        assert {rv.name for rv in gpep.marginalize(model, method="fv").free_RVs} == {"ls", "c"}


NOT_INTEGRATED = {
    "an exponential": (lambda v: pm.gp.mean.Constant(pm.math.exp(v("c"))), {"c": "the function 'exp' of it"}),
    "a product": (lambda v: pm.gp.mean.Constant(v("c") * v("d")), {"c": "is not integrated", "d": "is not integrated"}),
}


@pytest.mark.parametrize("case", NOT_INTEGRATED)
def test_variable_that_enters_nonlinearly_stays_a_hyperparameter(case):
    mean, whys = NOT_INTEGRATED[case]
    model = made(lambda: pm.Bernoulli("y", logit_p=gp_of(mean(pm.Normal)).prior("f", X=XY), observed=BINARY))
    found = read_classifier(model, means=True)
    assert isinstance(found.prior, GPModel)
    assert {rv.name for rv in found.hyperparameters} == {"ls", *whys}
    for name, why in whys.items():
        assert f"'{name}' stays a hyperparameter" in found.described
        assert why in found.described


def test_coefficients_of_a_mean_that_classes_share_are_integrated():
    def declare():
        f = gp_of(pm.gp.mean.Linear(coeffs=pm.Normal("b", shape=2))).prior("f", X=XY, n_outputs=3)
        gpep.RobustMax("y", f.T, epsilon=0.01, observed=KINDS)

    found = read_classifier(made(declare), means=True)
    assert {rv.name for rv in found.hyperparameters} == {"ls"}
