"""Advice in messages about fits, tried on the fits that cause the messages."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_gpep as gpep
from pymc_gpep.evidence import memory_check
from tests import models
from tests.advice import Advice, checked, fitted, follow
from tests.graph_modes import rewritten

N = 40
GROUP = np.arange(N) % 8
X = np.linspace(-1.0, 1.0, N)
COUNTS = (np.arange(N) * 7) % 5
SIGNS = (X + 0.5 * np.sin(5 * np.arange(N)) > 0).astype(int)
KINDS = np.arange(N) % 3


def effects():
    a, s = pm.Normal("a", 0, 2), pm.HalfNormal("s", 1)
    pm.Poisson("y", mu=pm.math.exp(a + pm.Normal("u", 0, s, shape=8)[GROUP]), observed=COUNTS)


def four_scales():
    s = [pm.HalfNormal(f"s{i}", 1) for i in range(4)]
    u, v = pm.Normal("u", 0, 1, shape=8), pm.Normal("v", 0, 1, shape=5)
    eta = s[0] * u[GROUP] + s[1] * v[np.arange(N) % 5] + s[2] * X * pm.Normal("w") + s[3] * X**2 * pm.Normal("q")
    pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS)


def binary(x=X, cov=None, labels=SIGNS, **kwargs):
    eta, ls = pm.HalfNormal("eta", 2), pm.InverseGamma("ls", 3, 3)
    gp = pm.gp.Latent(cov_func=cov if cov is not None else eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    pm.Bernoulli("y", logit_p=gp.prior("f", X=x[:, None], **kwargs), observed=labels)


def squared():
    """Model with the square of a magnitude that starts at 0."""
    binary(cov=pm.Normal("size", 0, 1) ** 2 * pm.gp.cov.ExpQuad(1, ls=1.0))


def noisy(noise, jitter=1e-6):
    cov = pm.HalfNormal("size", 1) ** 2 * pm.gp.cov.ExpQuad(1, ls=1.0)
    binary(cov=cov + pm.gp.cov.WhiteNoise(noise) if noise else cov, jitter=jitter)


def largest(noise):
    cov = pm.HalfNormal("size", 1) ** 2 * pm.gp.cov.ExpQuad(1, ls=1.0)
    cov = cov + pm.gp.cov.WhiteNoise(noise) if noise else cov
    f = pm.gp.Latent(cov_func=cov).prior("f", X=X[:, None], n_outputs=3)
    gpep.RobustMax("y", f.T, epsilon=0.01, observed=KINDS)


class Exponential(pm.gp.cov.Covariance):
    """Exponential covariance function. The derivative of its root at 0 is finite only with a small constant added."""

    def __init__(self, ls, under):
        super().__init__(1)
        self.ls, self.under = ls, under

    def full(self, X, Xs=None):
        other = X if Xs is None else Xs
        squared = ((pt.as_tensor(X) - pt.as_tensor(other).T) / self.ls) ** 2
        return pt.exp(-pt.sqrt(squared + self.under))

    def diag(self, X):
        return pt.ones(X.shape[0])


def rooted(under):
    binary(cov=Exponential(pm.Gamma("scale", 2, 1), under))


def outliers():
    """Observations with heavy tails. The density of one level has two modes between two groups of observations."""
    level = pm.Normal("a", 0, 3)
    pm.StudentT("y", nu=4, mu=level + np.zeros(6), sigma=0.3, observed=[-3.0, -3.1, -2.9, 3.0, 3.1, 2.9])


def open_end(prior):
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("a", 0, 2) + pm.Normal("u", 0, pm.HalfNormal("s", 1), shape=8)[GROUP]
                                   + 0 * prior("k")), observed=COUNTS)  # fmt: skip


def improper(scale):
    pm.Normal("y", pm.Flat("a") + pm.Normal("u", 0, scale, shape=2)[GROUP % 2], 1, observed=COUNTS)


def scales(way):
    """Effects whose scales are log-normal with median 1 and a learned spread, in several forms."""
    tau = pm.InverseGamma("tau", 2, 1) if way == "held" else pm.HalfNormal("tau", 1)
    each = pm.math.exp(tau * pm.Normal("z", shape=8)) if way == "normals" else pm.LogNormal("lam", 0, tau, shape=8)
    u = pm.Normal("u", 0, each, shape=8)
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("a", 0, 2) + u[GROUP]), observed=COUNTS)


def shapes(prior):
    """Effects whose scales have a gamma density about 1 that narrows as its shape increases."""
    k = prior("k", 1)
    u = pm.Normal("u", 0, pm.Gamma("lam", k, k, shape=8), shape=8)
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("a", 0, 2) + u[GROUP]), observed=COUNTS)


def summed(held):
    """The same scales with a potential, which hides that they are scales."""
    tau = pm.InverseGamma("tau", 2, 1) if held else pm.HalfNormal("tau", 1)
    lam = pm.HalfFlat("lam", shape=8)
    pm.Potential("prior", pm.logp(pm.LogNormal.dist(0, tau), lam).sum())
    u = pm.Normal("u", 0, lam, shape=8)
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("a", 0, 2) + u[GROUP]), observed=COUNTS)


def with_graphs_of_users(fit):
    """The same fit with rewritten graphs, as users have them: a scale of 0 has log density −∞ and raises no error."""

    def found():
        with rewritten():
            return fit()

    return found


def drowned(most):
    cov = pm.Uniform("size", 0.01, most) ** 2 * pm.gp.cov.ExpQuad(1, ls=1.0)
    binary(cov=cov)


def process(name="f", places=None):
    cov = pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma(f"ls_{name}", 3, 3))
    return pm.gp.Latent(cov_func=cov).prior(name, X=(X if places is None else places)[:, None])


def beside(eta, labels=SIGNS):
    pm.Bernoulli("y", logit_p=eta + pm.Normal("a", 0, 2), observed=labels)


def with_basis(x):
    gp = pm.gp.HSGP(m=[8], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
    return gp.prior("g", X=pm.Data("x", x[:, None]))


PLACES = np.linspace(-1.0, 1.0, 8)
NO_LABEL = np.ma.masked_array(SIGNS, np.arange(N) == 3)


def several():
    a = pm.Normal("a", 0, 2)
    pm.Poisson("v", mu=pm.math.exp(a + X), observed=COUNTS)
    pm.Bernoulli("w", logit_p=a - X, observed=SIGNS)


HOLED = np.where(np.arange(N) == 3, np.nan, X)
KEEP = np.isfinite(HOLED)
SPARSE = {"method": "sparse_ep", "inducing": 5}
FITS = {
    "missing inputs": Advice(
        fitted(lambda: binary(HOLED), "ep"),
        r"not finite in row 3\. Remove these rows .*: X\[keep\] and y\[keep\] with keep = np\.isfinite\(X\)",
        fitted(lambda: binary(HOLED[KEEP], labels=SIGNS[KEEP]), "ep"),
    ),
    "missing inputs, by inducing inputs": Advice(
        fitted(lambda: binary(HOLED), **SPARSE),
        "first is row 3. Remove these rows from inputs and labels",
        fitted(lambda: binary(HOLED[KEEP], labels=SIGNS[KEEP]), **SPARSE),
    ),
    "two processes": Advice(
        fitted(lambda: beside(process() + process("g", X[::-1].copy())), **SPARSE),
        r"Or write a process as pm\.gp\.HSGP, with its inputs as data: hsgp\.prior\('g', X=pm\.Data\('x', X\)\)",
        fitted(lambda: beside(process() + with_basis(X[::-1].copy())), **SPARSE),
    ),
    "selected values of a process": Advice(
        fitted(lambda: beside(process("f", PLACES)[GROUP]), **SPARSE),
        r"give \.prior\(X=\.\.\.\) the inputs of all rows",
        fitted(lambda: beside(process("f", PLACES[GROUP])), **SPARSE),
    ),
    "a sum without a process": Advice(
        fitted(lambda: beside(pm.Normal("u", 0, 1, shape=8)[GROUP]), **SPARSE),
        r"Methods on all rows together, \"ep\", .* fit it\.",
        fitted(lambda: beside(pm.Normal("u", 0, 1, shape=8)[GROUP]), "ep"),
    ),
    "rows without a label": Advice(
        fitted(lambda: beside(process(), NO_LABEL), **SPARSE),
        r"Leave out the rows without one, of all data: keep = pd\.notna\(y\)",
        fitted(lambda: beside(process("f", np.delete(X, 3)), np.delete(SIGNS, 3)), **SPARSE),
    ),
    "several responses": Advice(
        fitted(several, **SPARSE), 'Methods on all rows together fit several variables: "ep"', fitted(several, "ep")
    ),
    "a spread that vanishes": Advice(
        with_graphs_of_users(fitted(lambda: scales("open"), hyper="map")),
        r"'tau' ran to .*, such as pm\.InverseGamma",
        fitted(lambda: scales("held"), hyper="map"),
    ),
    "a spread that vanishes, by normals": Advice(
        with_graphs_of_users(fitted(lambda: scales("open"), hyper="map")),
        r"standard normals z = pm\.Normal\('z', shape=\.\.\.\): pm\.math\.exp\(mu \+ tau \* z\)",
        fitted(lambda: scales("normals"), hyper="map"),
    ),
    "a shape that grows": Advice(
        fitted(lambda: shapes(pm.HalfCauchy), hyper="map"),
        r"'k' ran to .* at large values, such as pm\.Exponential",
        fitted(lambda: shapes(pm.Exponential), hyper="map"),
    ),
    "a density without a bound": Advice(
        with_graphs_of_users(fitted(lambda: summed(held=False), hyper="map")),
        r"had no upper bound.* narrows in .*'tau'.*little mass near 0, such as pm\.InverseGamma",
        fitted(lambda: summed(held=True), hyper="map"),
    ),
    "a magnitude that noise drowns": Advice(
        fitted(lambda: drowned(0.05), "ep"),
        "Allow a larger magnitude: check the prior of 'size'",
        fitted(lambda: drowned(5.0), "ep"),
    ),
    "grid of four": Advice(fitted(four_scales, hyper="grid"), "Use hyper='ccd'", fitted(four_scales, hyper="ccd")),
    "a treatment for another method": Advice(
        fitted(effects, hyper="mean_field"),
        "Use such a method, or hyper='importance', which supports every method",
        fitted(effects, hyper="importance"),
    ),
    "root of zero": Advice(
        fitted(lambda: rooted(0.0), "ep"),
        r"pm\.math\.sqrt\(squared \+ 1e-12\)",
        fitted(lambda: rooted(1e-12), "ep"),
    ),
    "iterations of the solver": Advice(
        fitted(effects, "ep", max_iterations=1), "Increase max_iterations", fitted(effects, "ep", max_iterations=100)
    ),
    "iterations of the search": Advice(
        fitted(effects, "laplace", n=1, hyper="map"),
        "REACHED LIMIT|limit of n=1",
        fitted(effects, "laplace", n=50, hyper="map"),
    ),
    "no curvature": Advice(
        fitted(lambda: open_end(pm.Flat), hyper="ccd"),
        r"give its coefficient a density: pm\.Normal\('k', 0, s\)",
        fitted(lambda: open_end(lambda name: pm.Normal(name, 0, 1)), hyper="ccd"),
    ),
    "an improper scale": Advice(
        fitted(lambda: improper(pm.HalfFlat("s"))),
        r"such as pm\.HalfNormal\('s', s\), or keep it at its maximum: hyper='map'",
        fitted(lambda: improper(pm.HalfNormal("s", 1))),
    ),
    "an optimiser": Advice(
        fitted(effects, obj_optimizer=pm.adam()), "it uses L-BFGS. Leave obj_optimizer out", fitted(effects)
    ),
    "options of batches": Advice(
        fitted(binary, "sparse_ep", inducing=5, decay=0.1),
        "give batch_size, or leave them out",
        fitted(binary, "sparse_ep", inducing=5),
    ),
    "an optimiser of outer updates": Advice(
        fitted(binary, "sparse_ep", inducing=5, obj_optimizer=pm.adam(learning_rate=0.1)),
        'obj_optimizer is for update="inner"',
        fitted(binary, "sparse_ep", inducing=5),
    ),
    "an address for a cluster's client": Advice(
        fitted(binary, "sparse_ep", inducing=5, client="tcp://127.0.0.1:8786"),
        r"client must be a dask\.distributed\.Client, .* Leave client out",
        fitted(binary, "sparse_ep", inducing=5),
    ),
    "inducing inputs of a sum": Advice(
        fitted(effects, "sparse_ep", inducing=5),
        'Methods on all rows together, "ep", "laplace", "kl"',
        fitted(effects, "kl"),
    ),
    "more inducing inputs than rows": Advice(
        fitted(binary, "sparse_ep", inducing=100),
        "A fit without inducing inputs, by method='nested_ep' or 'ep'",
        fitted(binary, "ep"),
    ),
    "jitter as noise": Advice(
        fitted(lambda: noisy(0.0, jitter=0.1), "sparse_ep", inducing=5),
        r"\+ pm\.gp\.cov\.WhiteNoise\(0\.316\)",
        fitted(lambda: noisy(0.316), "sparse_ep", inducing=5),
    ),
    "free magnitude": Advice(
        fitted(lambda: largest(0.0), "sparse_ep", inducing=5),
        r"\+ pm\.gp\.cov\.WhiteNoise\(1\.0\)",
        fitted(lambda: largest(1.0), "sparse_ep", inducing=5),
    ),
    "one class": Advice(
        fitted(lambda: binary(labels=0 * SIGNS), "ep"), "add rows of other classes", fitted(binary, "ep")
    ),
    "inputs far apart": Advice(
        fitted(lambda: binary(1e3 * X), "ep"),
        "'ls' is far below the distances between points. Standardise the inputs",
        fitted(lambda: binary(X / X.std()), "ep"),
    ),
    "inputs close together": Advice(
        fitted(lambda: binary(1e-3 * X), "ep"),
        "'ls' is far above the range of the inputs. Standardise the inputs",
        fitted(lambda: binary(X / X.std()), "ep"),
    ),
    "a callback by itself": Advice(
        fitted(effects, callbacks=lambda fit, losses, i: None),
        "Put it into a list",
        fitted(effects, callbacks=[lambda fit, losses, i: None]),
    ),
    "the inverse of a singular prior": Advice(fitted(effects, "fv"), "Use method='kl'", fitted(effects, "kl")),
}


@checked(FITS)
def test_advised_fit_converges_without_the_message(advice):
    follow(advice)


@pytest.mark.variation
def test_advised_method_needs_no_log_concavity():
    message = "Take method='ep', which needs no concavity"
    follow(Advice(fitted(outliers, "laplace"), message, fitted(outliers, "ep")))


def test_advised_start_avoids_the_point_of_symmetry():
    batches = {"method": "sparse_ep", "batch_size": 10, "n": 3}
    message = "symmetric about the initial value of 'size'.*give start="
    follow(Advice(fitted(squared, **batches), message, fitted(squared, **batches, start={"size": 1.0})))


def test_advised_method_fits_into_memory(monkeypatch):
    """Simulates a machine whose memory is too small for matrices of all rows."""
    monkeypatch.setattr(memory_check, "available_memory", lambda: 20_000.0)
    provoke = fitted(binary, "ep")
    with pytest.raises(MemoryError, match="sparse_ep") as raised:
        provoke()
    assert "inducing=" in str(raised.value) or "batch_size=" in str(raised.value)
    monkeypatch.undo()
    assert fitted(binary, "sparse_ep", inducing=5)().converged


def test_advised_step_methods_accept_the_model(shared):
    """Steps receive variables instead of names, and all latent values together."""
    model = shared.model
    with model:
        follow(
            Advice(
                lambda: gpep.samplers.GuidedHMC(vars=["ls"]),
                r"vars must be variables, not names: model\['ls'\] in place of 'ls'",
                lambda: gpep.samplers.GuidedHMC(vars=[model["f"], model["ls"]]),
            )
        )
        follow(
            Advice(
                lambda: gpep.samplers.GuidedHMC(vars=[model["ls"]]),
                "leaves out latent values, 'f'.*or leave vars out",
                lambda: gpep.samplers.GuidedHMC(),
            )
        )


def test_advised_labels_of_arrays_are_fitted():
    x, y = models.data()
    k = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=-1))
    solve = gpep.methods.nested_ep
    follow(
        Advice(
            lambda: solve(k, np.zeros((3, len(y))), y + 1, "multinomial_probit"),
            "labels - 1 does so",
            lambda: solve(k, np.zeros((3, len(y))), y, "multinomial_probit"),
        )
    )
