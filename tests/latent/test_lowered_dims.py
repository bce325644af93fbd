"""Models of `pymc.dims` against PyMC's log density of them, and against the same models without `pymc.dims`."""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytest
from numpy.testing import assert_allclose
from pymc.dims.distributions import transforms

import pymc_gpep as gpep
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.reading import read_classifier
from tests import sum_models

COORDS = {"group": range(sum_models.J), "row": range(sum_models.N), "term": ["level", "slope"], "kind": list("abc")}
X, GROUP = sum_models.X, sum_models.GROUP


def rows(values):
    return pmd.as_xtensor(np.asarray(values), dims="row")


def crossed(p):
    """Intercepts of groups and a zero-sum effect, with data that can be changed."""
    x, of = (pmd.Data if p else pm.Data)("x", X, dims="row"), (pmd.Data if p else pm.Data)("of", GROUP, dims="row")
    if p:
        s = pmd.HalfNormal("s", 1, initval=0.7)
        u = pmd.Normal("u", pmd.Normal("level", 0, 2), s, dims="group")
        z = pmd.ZeroSumNormal("z", 0.5, core_dims="term", dims="term")
        eta = u.isel(group=of) + z.isel(term=0) * x
        pmd.Bernoulli("y", logit_p=eta, observed=rows(sum_models.BINARY))
    else:
        s = pm.HalfNormal("s", 1, initval=0.7)
        u = pm.Normal("u", pm.Normal("level", 0, 2), s, dims="group")
        z = pm.ZeroSumNormal("z", 0.5, dims="term")
        pm.Bernoulli("y", logit_p=u[of] + z[0] * x, observed=sum_models.BINARY, dims="row")


def turned(p):
    """Dims in another order than the distribution's, and bounded hyperparameters."""
    if p:
        s = pmd.Uniform("s", 0.5, 2, dims="term")
        u = pmd.Normal("u", pmd.as_xtensor([0.0, 1.0], dims="term"), s, dims=("term", "group"))
        eta = u.isel(term=0, group=rows(GROUP)) + u.isel(term=1, group=rows(GROUP)) * rows(X)
        pmd.NegativeBinomial("y", mu=pmd.math.exp(eta), alpha=pmd.Gamma("size", 2, 1), observed=rows(sum_models.COUNTS))
    else:
        s = pm.Uniform("s", 0.5, 2, dims="term")
        u = pm.Normal("u", np.array([[0.0], [1.0]]), s[:, None], dims=("term", "group"))
        eta = u[0, GROUP] + u[1, GROUP] * X
        size = pm.Gamma("size", 2, 1)
        pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=size, observed=sum_models.COUNTS, dims="row")


def correlated(p):
    """Correlated slopes by a Cholesky factor, and censored lifetimes."""
    factor, t = np.array([[0.8, 0.0], [0.3, 0.5]]), np.exp(X)
    if p:
        chol = pmd.as_xtensor(factor, dims=("term", "other"))
        u = pmd.MvNormal(
            "u", pmd.as_xtensor([1.0, 0.0], dims="term"), chol=chol, core_dims=("term", "other"), dims=("group", "term")
        )
        eta = u.isel(term=0, group=rows(GROUP)) + u.isel(term=1, group=rows(GROUP)) * rows(X)
        life = pmd.Weibull.dist(pmd.HalfNormal("k", 2), pmd.math.exp(eta))
        pmd.Censored("y", life, lower=None, upper=rows(np.maximum(t, 1.0)), observed=rows(t))
    else:
        u = pm.MvNormal("u", np.array([1.0, 0.0]), chol=factor, dims=("group", "term"))
        life = pm.Weibull.dist(pm.HalfNormal("k", 2), pm.math.exp(u[GROUP, 0] + u[GROUP, 1] * X))
        pm.Censored("y", life, lower=None, upper=np.maximum(t, 1.0), observed=t, dims="row")


def softmax(p):
    """Three classes, each with its own coefficients."""
    if p:
        b = pmd.Normal("b", 0, pmd.HalfNormal("s", 1), dims=("term", "kind"))
        features = pmd.as_xtensor(sum_models.XY, dims=("row", "term"))
        eta = pmd.Deterministic("eta", features.dot(b, dim="term"), dims=("row", "kind"))
        pmd.Categorical("y", logit_p=eta, core_dims="kind", observed=rows(sum_models.KINDS))
    else:
        b = pm.Normal("b", 0, pm.HalfNormal("s", 1), dims=("term", "kind"))
        eta = pm.Deterministic("eta", sum_models.XY @ b, dims=("row", "kind"))
        pm.Categorical("y", logit_p=eta, observed=sum_models.KINDS, dims="row")


def processes(p):
    """A Gaussian process, which `pymc.dims` does not offer, and an effect."""
    gp = pm.gp.Latent(cov_func=pm.HalfNormal("s", 1) ** 2 * pm.gp.cov.ExpQuad(1, ls=0.5))
    f = gp.prior("f", X=X[:, None], dims="row")
    if p:
        level = pmd.Normal("level", 0, 1)
        pmd.Poisson("y", mu=pmd.math.exp(level + pmd.as_xtensor(f, dims="row")), observed=rows(sum_models.COUNTS))
    else:
        pm.Poisson("y", mu=pm.math.exp(pm.Normal("level", 0, 1) + f), observed=sum_models.COUNTS, dims="row")


FORMS = {form.__name__: form for form in (crossed, turned, correlated, softmax, processes)}


def model(form, p):
    with pm.Model(coords=COORDS) as made:
        form(p)
    return made


@pytest.mark.variation(but=["correlated"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_model_without_dims_has_the_density_names_and_prior_of_the_model_with_dims(form):
    by_dims, plain = model(form, True), model(form, False)
    lowered, point = gpep.samplers.lower_dims(by_dims), by_dims.initial_point()
    for name, value in lowered.initial_point().items():
        assert_allclose(value, point[name])
    noise = np.random.default_rng(1)
    there = {name: value + 0.3 * noise.standard_normal(np.shape(value)) for name, value in point.items()}
    density = by_dims.compile_logp()(there)
    assert_allclose(lowered.compile_logp()(there), density, rtol=1e-12)
    assert_allclose(plain.compile_logp()(there), density, rtol=1e-10)
    named = {name: dims for name, dims in by_dims.named_vars_to_dims.items() if dims}
    assert {name: tuple(dims) for name, dims in lowered.named_vars_to_dims.items()} == named | (
        {"f": ("row",)} if "f" in by_dims.named_vars else {}
    )
    ours, theirs = read_classifier(by_dims), read_classifier(plain)
    assert [v.name for v in ours.prior.integrated] == [v.name for v in theirs.prior.integrated]
    assert ours.kind == theirs.kind
    assert ours.point_dim == "row"
    moments, others = (prior_moments(each)(there) for each in (ours, theirs))
    for field in ("k", "mean", "labels"):
        assert_allclose(getattr(moments, field), getattr(others, field), rtol=1e-10, atol=1e-12)


@pytest.mark.variation
def test_results_of_a_model_with_dims_match_the_ordinary_model_and_have_its_dims():
    by_dims, plain = model(crossed, True), model(crossed, False)
    fit, other = (pm.fit(method="laplace", hyper="map", model=each, progressbar=False) for each in (by_dims, plain))
    assert_allclose(fit.log_evidence, other.log_evidence, rtol=1e-10)
    assert_allclose(fit.effects(["u", "z"])["u"], other.effects(["u", "z"])["u"], rtol=1e-10)
    assert fit.effects(["z"])["z"].dims == ("moment", "term")
    new = {"x": [0.0, 1.0], "of": [3, 3]}
    assert_allclose(fit.predict(data=new)["p"], other.predict(data=new)["p"], rtol=1e-10)
    pm.set_data({"x": X + 1.0}, model=by_dims)
    assert_allclose(read_classifier(by_dims).model["x"].get_value(), X + 1.0)
    assert_allclose(fit.model["x"].get_value(), X + 1.0)
    with pytest.raises(gpep.StructureError, match=r"with gpep\.samplers\.lower_dims"):
        gpep.samplers.GuidedHMC(model=by_dims)
    assert gpep.samplers.lower_dims(plain) is plain


def test_unsupported_features_of_pymc_dims_are_refused_by_name():
    class Doubled(transforms.DimTransform):
        name = "doubled"

        def forward(self, value, *inputs):
            return value / 2

        def backward(self, value, *inputs):
            return 2 * value

        def log_jac_det(self, value, *inputs):
            return pmd.zeros_like(value)

    with pm.Model(coords=COORDS) as strange:
        pmd.Normal("u", 0, 1, dims="group", transform=Doubled())
    with pytest.raises(gpep.StructureError, match=r"'u' has the transform .* of pymc\.dims"):
        gpep.samplers.lower_dims(strange)
    with pm.Model(coords=COORDS) as strange:
        pmd.ZeroSumNormal("z", 1, core_dims="term", dims=("term", "group"))
    with pytest.raises(gpep.StructureError, match="The dims of 'z' are in an order"):
        gpep.samplers.lower_dims(strange)
