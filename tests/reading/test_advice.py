"""Advice in messages about models that are not supported, tried on the models that cause the messages."""

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from scipy import integrate, stats

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier
from tests import graph_modes
from tests.advice import Advice, checked, fitted, follow

N = 40
GROUP = np.arange(N) % 8
X = np.linspace(-1.0, 1.0, N)
COUNTS = (np.arange(N) * 7) % 5
BINARY = ((np.arange(N) * 7) % 3 == 0).astype(int)
KINDS = np.arange(N) % 3
W = np.diag(np.ones(7), 1) + np.diag(np.ones(7), -1)
TWO_PARTS = W.copy()
TWO_PARTS[3, 4] = TWO_PARTS[4, 3] = 0.0
LAPLACIAN = np.diag(W.sum(axis=0)) - W
ORDERED = pm.distributions.transforms.ordered


def level(name="a"):
    return pm.Normal(name, 0, 2)


def scale(name="s"):
    return pm.HalfNormal(name, 1)


def counts(eta):
    pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS)


def binary(eta):
    pm.Bernoulli("y", logit_p=eta, observed=BINARY)


def effects(u):
    counts(level() + u[GROUP])


def binary_effects(u):
    binary(u[GROUP])


def _student_t():
    w = pm.InverseGamma("w", 4 / 2, 4 / 2, shape=8)
    counts(pm.Normal("u", 0, sigma=scale() * pt.sqrt(w), shape=8)[GROUP])


def _laplace():
    w = pm.Exponential("w", 1, shape=8)
    counts(pm.Normal("u", 0, sigma=scale() * pt.sqrt(2 * w), shape=8)[GROUP])


def _cauchy():
    w = pm.InverseGamma("w", 0.5, 0.5, shape=8)
    counts(pm.Normal("u", 0, sigma=2 * pt.sqrt(w), shape=8)[GROUP])


def _walk(heavy):
    start = pm.Normal.dist(0, 1)
    if heavy:
        return pm.RandomWalk("u", innovation_dist=pm.StudentT.dist(nu=4), init_dist=start, steps=7)
    return pm.GaussianRandomWalk("u", sigma=scale(), init_dist=start, steps=7)


def _two_areas():
    return pt.concatenate([pm.ICAR("u", TWO_PARTS[:4, :4]), pm.ICAR("v", TWO_PARTS[4:, 4:])])


def _alone():
    """Area 7 has no neighbours, and is declared as a separate normal variable."""
    return pt.concatenate([pm.CAR("u", np.zeros(7), W[:7, :7], alpha=0.9, tau=1.0), pm.Normal("v", 0, 1, shape=1)])


def _rates(log_normal):
    mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
    if log_normal:
        pm.Poisson("y", mu=pm.LogNormal("lam", mu, tau, shape=8)[GROUP] * pm.math.exp(level() * X), observed=COUNTS)
    else:
        z = pm.Normal("z", shape=8)
        pm.Poisson("y", mu=pm.math.exp((mu + tau * z)[GROUP] + level() * X), observed=COUNTS)


def _ordered(**kwargs):
    cut = pm.Normal("cut", 0, 2, shape=4, **kwargs)
    pm.OrderedLogistic("y", eta=level() * X, cutpoints=cut, compute_p=False, observed=COUNTS)


def _inflated():
    psi, mu = pm.math.invlogit(level() * X), pm.math.exp(level("b") * X)
    pm.ZeroInflatedPoisson("y", psi=psi, mu=mu, observed=COUNTS)


def _read_inflated():
    with pm.Model() as model:
        _inflated()
    assert [rv.name for rv in read_classifier(model, hyperparameters=["b"]).prior.integrated] == ["a"]


def _classes(labels=KINDS, transposed=True, outputs=3):
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.5)).prior("f", X=X[:, None], n_outputs=outputs)
    pm.Categorical("y", logit_p=f.T if transposed else f, observed=labels)


def _missing(**kwargs):
    x = np.where(np.arange(N) == 3, np.nan, X)
    kept = np.isfinite(x) if kwargs else slice(None)
    pm.Poisson("y", mu=pm.math.exp(level() * x[kept]), observed=COUNTS[kept])


def _exposed(exposure):
    pm.Poisson("y", mu=exposure * pm.math.exp(level() * X), observed=COUNTS)


def _several():
    pm.Poisson("other", mu=pm.math.exp(level() + X), observed=COUNTS)
    _classes()


def _positive(**options):
    u = pm.Normal("u", 0, pm.HalfNormal("s", 1, default_transform=None, **options), shape=8)
    counts(level() + u[GROUP])


def _without_factors(declare):
    """Read a model like methods with inducing inputs, which do not support factors of priors."""

    def read():
        with pm.Model() as model:
            declare()
        read_classifier(model, starts=True)

    return read


VARIABLES = {
    "Student t": Advice(
        _without_factors(lambda: counts(pm.StudentT("u", nu=4, sigma=scale(), shape=8)[GROUP])),
        r"sigma=sigma \* pt\.sqrt\(w\)\) with w = pm\.InverseGamma\('w', nu / 2, nu / 2, shape=8\)",
        fitted(_student_t, hyper="map"),
    ),
    "Laplace": Advice(
        _without_factors(lambda: counts(pm.Laplace("u", 0, scale(), shape=8)[GROUP])),
        r"sigma=b \* pt\.sqrt\(2 \* w\)\) with w = pm\.Exponential\('w', 1, shape=8\)",
        fitted(_laplace, hyper="map"),
    ),
    "Cauchy": Advice(
        _without_factors(lambda: counts(pm.Cauchy("u", 0, 2, shape=8)[GROUP])),
        r"sigma=beta \* pt\.sqrt\(w\)\) with w = pm\.InverseGamma\('w', 0\.5, 0\.5, shape=8\)",
        fitted(_cauchy, hyper="map"),
    ),
    "multivariate t": Advice(
        fitted(lambda: counts(pm.MvStudentT("u", nu=4, mu=np.zeros(8), scale=np.eye(8))[GROUP])),
        r"pm\.MvNormal\(\.\.\., cov=w \* scale\) with w = pm\.InverseGamma\('w', nu / 2, nu / 2\)",
        fitted(lambda: counts(pm.MvNormal("u", np.zeros(8), cov=pm.InverseGamma("w", 2, 2) * np.eye(8))[GROUP])),
    ),
    "flat": Advice(
        fitted(lambda: counts(pm.Flat("u") + pm.Flat("v") * (0 * X + 2))),
        r"columns of 'u', 'v' are linearly dependent.*give its coefficient a density: pm\.Normal\('u', 0, s\)",
        fitted(lambda: counts(pm.Normal("u", 0, 1000) + pm.Flat("v") * (0 * X + 2))),
    ),
    "flat and far from zero": Advice(
        fitted(lambda: counts(pm.Flat("u") + pm.Flat("v") * (X + 1e8))),
        r"Subtract the mean of a covariate, x - x\.mean\(\)",
        fitted(lambda: counts(pm.Flat("u") + pm.Flat("v") * (X + 1e8 - (X + 1e8).mean()))),
    ),
    "flat start without rows": Advice(
        fitted(
            lambda: counts(
                pm.Flat("u") + pm.GaussianRandomWalk("w", sigma=1, init_dist=pm.Flat.dist(), shape=(2, N))[0]
            )
        ),
        r"give it a density: init_dist=pm\.Normal\.dist\(0, s\)",
        fitted(lambda: counts(pm.GaussianRandomWalk("w", sigma=1, init_dist=pm.Normal.dist(0, 9), shape=(2, N))[0])),
    ),
    "bounds that decide": Advice(
        fitted(lambda: pm.Poisson("y", pm.math.exp(pm.Uniform("u", -9, 9) * np.ones(N)), observed=0 * COUNTS)),
        "method='ep' integrates within them",
        fitted(lambda: pm.Poisson("y", pm.math.exp(pm.Uniform("u", -9, 9) * np.ones(N)), observed=0 * COUNTS), "ep"),
    ),
    "transform": Advice(
        fitted(lambda: counts(pm.Normal("u", 0, 1, shape=8, transform=ORDERED, initval=np.arange(8.0))[GROUP])),
        "Leave the transform out",
        fitted(lambda: counts(pm.Normal("u", 0, 1, shape=8)[GROUP])),
    ),
    "scale of ICAR": Advice(
        fitted(lambda: effects(pm.ICAR("u", W, sigma=scale()))),
        r"Write sigma \* pm\.ICAR\('u', W\)",
        fitted(lambda: effects(scale() * pm.ICAR("u", W))),
    ),
    "two parts of ICAR": Advice(
        fitted(lambda: counts(pm.ICAR("u", TWO_PARTS)[GROUP])),
        "Give each connected part a pm.ICAR of its own",
        fitted(lambda: counts(_two_areas()[GROUP])),
    ),
    "innovations of a walk": Advice(
        fitted(lambda: counts(_walk(heavy=True)[GROUP])),
        r"pm\.GaussianRandomWalk has normal innovations",
        fitted(lambda: counts(_walk(heavy=False)[GROUP])),
    ),
    "product": Advice(
        fitted(lambda: counts(level() * pm.Normal("b", 1, 1) * X), "fv"),
        r"pm\.fit\(\.\.\., hyperparameters=\['a'\]\)",
        fitted(lambda: counts(level() * pm.Normal("b", 1, 1) * X), hyperparameters=["a"], hyper="map"),
    ),
    "log-normal rates": Advice(
        fitted(lambda: _rates(log_normal=True)),
        r"'lam' is not Gaussian, but its logarithm is\. .* pm\.math\.exp\(mu \+ tau \* z\) with z = pm\.Normal\('z'",
        fitted(lambda: _rates(log_normal=False)),
    ),
}


@checked(VARIABLES)
def test_variables_in_the_advised_form_are_integrated(advice):
    follow(advice)


MIXTURES = {
    "Student t": (stats.t(4, scale=1.5), 1.5, stats.invgamma(2, scale=2)),
    "Cauchy": (stats.cauchy(scale=2), 2.0, stats.invgamma(0.5, scale=0.5)),
    "Laplace": (stats.laplace(scale=1.5), 1.5 * np.sqrt(2), stats.expon()),
}


@pytest.mark.parametrize("case", MIXTURES)
def test_advised_mixtures_have_the_density_of_the_prior(case):
    """The reference is quadrature over the scale w."""
    density, size, mixing = MIXTURES[case]
    for x in (0.3, 1.0, 4.0):
        found, _ = integrate.quad(lambda w, x=x: stats.norm.pdf(x, 0, size * np.sqrt(w)) * mixing.pdf(w), 0, np.inf)
        assert found == pytest.approx(density.pdf(x), rel=1e-5)


RESPONSES = {
    "nothing observed": Advice(
        fitted(lambda: pm.Poisson("y", mu=pm.math.exp(level() * X), shape=N)),
        r"give it the labels, observed=y|distribution: observed=y",
        fitted(lambda: counts(level() * X)),
    ),
    "several places": Advice(
        fitted(_inflated, "fv"),
        r"pm\.fit\(\.\.\., hyperparameters=\['b'\]\)",
        _read_inflated,
    ),
    "identity link": Advice(
        fitted(lambda: pm.Poisson("y", mu=level() * X, observed=COUNTS)),
        r"log density is not finite at the prior mean in rows 1, .*write a mean above 0 as pm\.math\.exp\(f\)",
        fitted(lambda: counts(level() * X)),
    ),
    "classes first": Advice(
        fitted(lambda: _classes(transposed=False), "qep"), r"transpose, f\.T", fitted(_classes, "qep")
    ),
    "labels from 1": Advice(
        fitted(lambda: _classes(KINDS + 1), "qep"), "labels - 1 does so", fitted(lambda: _classes(KINDS + 1 - 1), "qep")
    ),
    "signs": Advice(
        fitted(lambda: gpep.Probit("y", level() * X, observed=2 * BINARY - 1)),
        r"\(labels == 1\) does so",
        fitted(lambda: gpep.Probit("y", level() * X, observed=2 * BINARY - 1 == 1)),
    ),
    "columns": Advice(
        fitted(lambda: pm.Poisson("y", mu=pm.math.exp(level() * X), observed=COUNTS[:, None])),
        r"np\.ravel\(y\)",
        fitted(lambda: pm.Poisson("y", mu=pm.math.exp(level() * X), observed=np.ravel(COUNTS[:, None]))),
    ),
    "cutpoints": Advice(
        fitted(_ordered),
        r"transform=pm\.distributions\.transforms\.ordered, and with initval=",
        fitted(lambda: _ordered(transform=ORDERED, initval=np.arange(4.0) - 1.5), hyper="map"),
    ),
    "missing covariate": Advice(fitted(_missing), "Look for missing values", fitted(lambda: _missing(kept=True))),
    "exposure of zero": Advice(
        fitted(lambda: _exposed(np.where(COUNTS == 2, 0.0, 1.0))),
        "Correct the exposure",
        fitted(lambda: _exposed(np.where(COUNTS == 2, 0.5, 1.0))),
    ),
    "several responses": Advice(
        fitted(_several, "qep"), r"Choose a variable, likelihood=", fitted(_several, "qep", likelihood="y")
    ),
    "a discrete variable": Advice(
        fitted(lambda: counts(level() * X + pm.Bernoulli("z", 0.5))),
        r"fix them with pm\.do",
        fitted(lambda: counts(level() * X + 1)),
    ),
    "a distribution without a name": Advice(
        fitted(lambda: counts(level() * X + pm.Normal.dist(0, 1, shape=N))),
        r"pm\.Normal\('name', \.\.\.\)",
        fitted(lambda: counts(level() * X + pm.Normal("name", 0, 1, shape=N))),
    ),
    "a start outside": Advice(
        fitted(lambda: _positive(initval=-1.0)),
        r"prior density of this start is 0\. Give a start within the support: initval=\.\.\.",
        fitted(lambda: _positive(initval=1.0), hyper="map"),
    ),
}


@checked(RESPONSES)
def test_responses_in_the_advised_form_are_fitted(advice):
    follow(advice)


def car(alpha, weights=W):
    return pm.CAR("u", np.zeros(8), weights, alpha=alpha, tau=scale("tau"))


SHARED = np.ones((8, 8))
PRIORS = {
    "CAR at its limit": Advice(
        fitted(lambda: effects(car(1.0))),
        r"'u' \(CAR\) has no proper density at alpha = 1.*alpha=0\.99",
        fitted(lambda: effects(car(0.99))),
    ),
    "CAR at its limit, as ICAR": Advice(
        fitted(lambda: effects(car(1.0))),
        r"or write sigma \* pm\.ICAR\('u', W\)",
        fitted(lambda: effects(scale("sigma") * pm.ICAR("u", W))),
    ),
    "an area without neighbours": Advice(
        fitted(lambda: binary_effects(car(0.9, np.pad(W[:7, :7], (0, 1))))),
        "area 7 has no neighbours.*Leave such areas out of W, and give each a pm.Normal of its own",
        fitted(lambda: binary_effects(_alone())),
    ),
    "a precision without an inverse": Advice(
        fitted(lambda: binary_effects(pm.MvNormal("u", np.zeros(8), tau=LAPLACIAN * scale()))),
        r"precision tau of 'u' .* singular to rounding.*tau \+ 1e-05 \* np\.eye\(8\)",
        fitted(lambda: binary_effects(pm.MvNormal("u", np.zeros(8), tau=(LAPLACIAN + 1e-5 * np.eye(8)) * scale()))),
    ),
    "a sparse precision without an inverse": Advice(
        fitted(lambda: binary_effects(gpep.SparseNormal("u", 0, tau=sp.csr_array(LAPLACIAN)))),
        r"precision tau of 'u' .* singular to rounding.*tau \+ 1e-05 \* scipy\.sparse\.eye_array\(8\)",
        fitted(lambda: binary_effects(gpep.SparseNormal("u", 0, tau=sp.csr_array(LAPLACIAN) + 1e-5 * sp.eye_array(8)))),
    ),
    "a singular covariance": Advice(
        fitted(lambda: binary_effects(pm.MvNormal("u", np.zeros(8), cov=SHARED))),
        r"covariance cov of 'u' .* singular to rounding.*cov \+ 1e-05 \* np\.eye\(8\)",
        fitted(lambda: binary_effects(pm.MvNormal("u", np.zeros(8), cov=SHARED + 1e-5 * np.eye(8)))),
    ),
    "a matrix that is not a covariance": Advice(
        fitted(lambda: binary_effects(pm.MvNormal("u", np.zeros(8), cov=SHARED - 0.5 * np.eye(8)))),
        r"not positive semi-definite \(smallest eigenvalue -0\.5\)\. No jitter",
        fitted(lambda: binary_effects(pm.MvNormal("u", np.zeros(8), cov=SHARED + 0.5 * np.eye(8)))),
    ),
}


@checked(PRIORS)
def test_priors_in_the_advised_form_have_a_density(advice):
    with graph_modes.rewritten():  # without rewriting, an inverse is computed and fails before the model is read
        follow(advice)


PLACES = np.random.default_rng(1).uniform(-100, 100, size=(60, 2))
INSIDE = (PLACES[:, 0] + np.random.default_rng(2).normal(0, 50, size=60) > 0).astype(int)
METRES = np.array([5.2e6, 4.5e5])


def _map(places):
    eta, ls = pm.HalfNormal("eta", 3), pm.LogNormal("ls", np.log(50.0), 0.3)
    f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=places)
    pm.Bernoulli("y", logit_p=f, observed=INSIDE)


@pytest.mark.parametrize(
    ("method", "options"), [("ep", {}), ("laplace", {}), ("sparse_ep", {"inducing": 8}), ("ivm", {"active": 15})]
)
def test_coordinates_in_metres_are_fitted_without_their_offset(method, options):
    offset = r"Column 0 of the inputs of 'f' is 5\.2e\+06 ± 5\d: .*Subtract the offset .*: X - X\.mean\(axis=0\)"
    moved = PLACES + METRES
    follow(
        Advice(
            fitted(lambda: _map(moved), method, **options),
            offset,
            fitted(lambda: _map(moved - moved.mean(axis=0)), method, **options),
        )
    )


def test_error_for_coordinates_in_metres_names_eigenvalue_and_offset():
    found = r"\(smallest eigenvalue (.*?)\)\. Column 0"
    with pytest.warns(UserWarning, match="squared distances lose"), pytest.raises(ValueError, match=found) as raised:
        fitted(lambda: _map(PLACES + METRES), "ep")()
    assert "WhiteNoise" not in str(raised.value)
    least = float(re.search(found, str(raised.value))[1])
    with pm.Model():
        cov = 9.0 * pm.gp.cov.ExpQuad(2, ls=50.0)(PLACES + METRES)
        expected = np.linalg.eigvalsh(cov.eval() + 1e-6 * np.eye(60)).min()
    assert_allclose(least, expected, rtol=0.5)
    assert least < 0.0


def test_years_and_small_offsets_cause_no_warning():
    fitted(lambda: _map(PLACES + 2000.0), "ep")()
