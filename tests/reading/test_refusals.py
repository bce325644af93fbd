"""Refused models: messages name the finding and a remedy.

The advised model is supported and equals the refused model.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.replace import graph_replace

import pymc_gpep as gpep
from pymc_gpep.approximations.methods import approximator
from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.reading import StructureError, read_classifier, read_processes

N, C = 6, 3
X = np.linspace(0.0, 1.0, N)[:, None]
Y = np.arange(N) % C
ONE = Y % 2  # labels of two classes
COUNTS = np.tile([1, 2, 2], (N, 1))
W = np.diag(np.ones(N - 1), 1) + np.diag(np.ones(N - 1), -1)
CUTPOINTS = np.array([-1.0, 1.0])
OPERATIONS = re.compile(
    r"uses the operation|\b(Blockwise|Second|Alloc|Dot|Einsum|DimShuffle|Elemwise|Subtensor|CAReduce)\b"
)


def process(eta=1.0, mean=None, cov=None):
    mean = pm.gp.mean.Zero() if mean is None else mean
    return pm.gp.Latent(mean_func=mean, cov_func=eta**2 * (cov or pm.gp.cov.ExpQuad(1, ls=0.3)))


def one(name="f", X=X, **kwargs):
    return process(**kwargs).prior(name, X=X)


def several(name="f", outputs=C, **kwargs):
    return process(**kwargs).prior(name, X=X, n_outputs=outputs)


def softmax(f, y=Y):
    pm.Categorical("y", logit_p=f, observed=y)


def bernoulli(f):
    pm.Bernoulli("y", logit_p=f, observed=ONE)


def ordered(f, cutpoints=CUTPOINTS, **kwargs):
    pm.OrderedProbit("y", eta=f, cutpoints=cutpoints, compute_p=False, observed=Y, **kwargs)


class Pairs(pm.gp.cov.Covariance):
    """Covariance of f(a) − f(b) at rows (a, b), as on the page about custom covariance functions."""

    def __init__(self, of):
        super().__init__(2 * of.input_dim)
        self.of = of

    def full(self, X, Xs=None):
        (a, b), (c, d) = self._ends(X), self._ends(X if Xs is None else Xs)
        return self.of(a, c) - self.of(a, d) - self.of(b, c) + self.of(b, d)

    def diag(self, X):
        a, b = self._ends(X)
        return self.of(a, diag=True) + self.of(b, diag=True) - 2 * pt.diagonal(self.of(a, b))

    def _ends(self, X):
        return X[:, : self.of.input_dim], X[:, self.of.input_dim :]


A, B = np.array([0, 1, 2]), np.array([3, 4, 5])


def _difference():
    f = one()
    gpep.Probit("y", f[A] - f[B], observed=ONE[A])


def _zeros_like():
    f = several(outputs=2)
    softmax(pt.concatenate([pt.zeros_like(f[:1]), f]).T)


def _grid_of_inputs_and_classes():
    inputs = np.c_[np.repeat(X, C, axis=0), np.tile(np.arange(C), N)]
    softmax(one(X=inputs, cov=pm.gp.cov.ExpQuad(2, ls=0.3)).reshape((N, C)))


def _class_levels():
    f = several()
    softmax((pt.as_tensor(np.arange(3.0))[:, None] + f).T)


class Refused(NamedTuple):
    """A refused model, phrases of its message, and the advised model."""

    build: Callable
    phrases: list[str]
    advised: Callable | None = None
    same: bool = True
    """Whether both models have the same probability of the labels at the same values of the free variables."""


def _reference(outputs=2, below=True):
    """Functions of the other classes, and a function of negligible variance in place of zeros."""
    f = process().prior("f", X=X, n_outputs=outputs)
    zero = one("zero", eta=1e-4)
    return pt.concatenate([zero[None], f]).T


ARGUMENTS = {
    "over inputs and classes": Refused(
        _grid_of_inputs_and_classes,
        ["divides the 18 points of one latent function", "n_outputs=3"],
        lambda: softmax(several().T),
        same=False,
    ),
    "a function": Refused(lambda: bernoulli(pt.tanh(one())), ["the function 'tanh' of 'f' is not"]),
    "product": Refused(lambda: bernoulli(one("f") * one("g")), ["a product of 'f', 'g' is not", "must be affine"]),
    "ordered with sigma": Refused(
        lambda: ordered(one(), sigma=2.0),
        ["between cutpoints", "without sigma", "eta=f / sigma and cutpoints=cutpoints / sigma"],
        lambda: ordered(one() / 2.0, cutpoints=CUTPOINTS / 2.0),
    ),
    "some rows of ordered probabilities": Refused(
        lambda: pm.Categorical("y", p=pm.OrderedProbit.compute_p(one(), CUTPOINTS, 1)[Y > 0], observed=Y[Y > 0]),
        ["between cutpoints"],
    ),
    "two functions": Refused(
        lambda: pm.Bernoulli("y", p=pm.math.invlogit(one()) * pm.math.invlogit(one("g")), observed=ONE),
        ["made of 'f' and 'g'", "logit_p=f"],
    ),
}

TRIALS = np.full(N, 5)
ROWS = "need a row for each: X=np.repeat(X, votes.sum(axis=1), axis=0)"


def _votes(votes):
    """Rows and labels, as the message writes them."""
    repeated = np.repeat(X, votes.sum(axis=1), axis=0)
    labels = np.concatenate([np.repeat(np.arange(votes.shape[1]), row) for row in votes])
    pm.Categorical("y", logit_p=process().prior("f", X=repeated, n_outputs=C).T, observed=labels)


def _trials():
    """The rows that the message advises for trials with another link."""
    labels = np.concatenate([np.arange(m) < k for k, m in zip(Y, TRIALS, strict=True)])
    gpep.Probit("y", one(X=np.repeat(X, TRIALS, axis=0)), observed=labels)


def _shares(p):
    return p / p.sum(axis=-1, keepdims=True)


def _spread_out():
    noisy = pm.gp.cov.ExpQuad(1, ls=0.3) + pm.gp.cov.WhiteNoise(0.5)
    pm.Poisson("y", mu=pm.math.exp(one(cov=noisy)), observed=Y)


def _proportions():
    noisy = pm.gp.cov.ExpQuad(1, ls=0.3) + pm.gp.cov.WhiteNoise(0.5)
    pm.Binomial("y", n=TRIALS, logit_p=one(cov=noisy), observed=Y)


OBSERVED = {
    "Multinomial": Refused(
        lambda: pm.Multinomial("y", n=5, p=_shares(pm.math.invprobit(several().T)), observed=COUNTS),
        ["pm.Multinomial('y', n=n, p=pm.math.softmax(f.T, axis=-1))"],
        lambda: pm.Multinomial("y", n=5, p=pm.math.softmax(several().T, axis=-1), observed=COUNTS),
    ),
    "DirichletMultinomial": Refused(
        lambda: pm.DirichletMultinomial("y", n=5, a=pt.exp(several().T), observed=COUNTS),
        ["pm.Normal for each row and class", ROWS],
        lambda: _votes(COUNTS),
    ),
    "Dirichlet": Refused(
        lambda: pm.Dirichlet("y", a=pt.exp(several().T), observed=np.full((N, C), 1 / C)),
        ["np.rint(10 * p)", ROWS],
        lambda: _votes(np.rint(10 * np.full((N, C), 1 / C)).astype(int)),
    ),
}


def refusal_of(build) -> tuple[pm.Model, str]:
    with pm.Model() as model:
        build()
    with pytest.raises(StructureError) as raised:
        read_classifier(model)
    return model, str(raised.value)


def log_probability_of_labels(model, values):
    value_vars = model.value_vars
    (log_p,) = (pm.logp(rv, model.rvs_to_values[rv]).sum() for rv in model.observed_RVs)
    expression = model.replace_rvs_by_values([log_p])
    function = model.compile_fn(expression, inputs=value_vars, on_unused_input="ignore", mode="FAST_COMPILE")
    return float(function({v.name: values[v.name] for v in value_vars})[0])


@pytest.mark.parametrize(("case"), [*ARGUMENTS, *OBSERVED])
def test_error_for_each_refused_model_names_the_finding_and_the_advice(case):
    build, phrases, advised, _ = (ARGUMENTS | OBSERVED)[case]
    model, message = refusal_of(build)
    assert "'y'" in message
    for phrase in phrases:
        assert phrase in message
    assert not OPERATIONS.search(message)
    if case in OBSERVED:
        assert f"'y' ({case})" in message
    if "GuidedHMC" in message:  # the advised sampler can build its likelihood
        latent = LatentModel(read_processes(model))
        assert latent.log_likelihood(pt.matrix("f")).ndim == 0
    if advised is not None:
        with pm.Model() as other:
            advised()
        assert read_classifier(other).response == "y"


SAME = {name: case for name, case in ARGUMENTS.items() if case.advised is not None and case.same}


@pytest.mark.variation(but=["ordered with sigma"])
@pytest.mark.parametrize("case", SAME)
def test_advised_model_has_the_label_probabilities_of_the_refused_model(case):
    """Compared by PyMC's log probabilities, up to the jitter."""
    build, _, advised, _ = SAME[case]
    models = []
    for declare in (build, advised):
        with pm.Model() as model:
            declare()
        models.append(model)
    rng = np.random.default_rng(3)
    values = {name: rng.normal(size=np.shape(x)) for model in models for name, x in model.initial_point().items()}
    values["zero_rotated_"] = np.zeros(N)
    first, second = (log_probability_of_labels(model, values) for model in models)
    assert first == pytest.approx(second, abs=1e-4)


def test_refused_model_can_be_sampled():
    model, message = refusal_of(lambda: bernoulli(pt.tanh(one())))
    assert "pm.sample(step=gpep.samplers.GuidedHMC())" in message
    with model:
        idata = pm.sample(2, tune=2, chains=1, step=gpep.samplers.GuidedHMC(), progressbar=False, random_seed=1,
                          compute_convergence_checks=False)  # fmt: skip
    assert np.isfinite(idata["posterior"]["f"]).all()


def test_class_with_zero_latent_values_can_be_written_as_a_function_of_tiny_variance():
    """The reference for the log evidence of Bernoulli(logit_p=f) is another implementation of Laplace's method."""
    evidence = []
    for declare in (lambda: softmax(pt.stack([one("zero", eta=1e-4), one()]).T, ONE), lambda: bernoulli(one())):
        with pm.Model() as model:
            declare()
        found = read_classifier(model)
        likelihood, k = found.likelihood_model, found.prior.covariances().eval()
        solver = approximator("laplace", likelihood, {})
        mean = np.zeros((found.n_functions, N))
        evidence.append(solver.solve(k, mean, ONE, likelihood=likelihood).evidence)
    assert evidence[0] == pytest.approx(evidence[1], abs=1e-5)


def test_advised_rows_of_trials_and_votes_match_observations():
    with pm.Model() as model:
        _trials()
    labels = model.rvs_to_values[model["y"]].eval()
    assert_allclose(labels.reshape(N, 5).sum(axis=1), Y)
    with pm.Model() as model:
        _votes(COUNTS)
    labels = model.rvs_to_values[model["y"]].eval().reshape(N, 5)
    assert_allclose([np.bincount(row, minlength=C) for row in labels], COUNTS)


# ---- sums that have the prior of one process ----

t = np.arange(N)
GRID = [X[:2], X[:3]]


def _kronecker():
    parts = [pm.gp.cov.ExpQuad(1, ls=0.3), pm.gp.cov.Matern32(1, ls=0.5)]
    bernoulli(pm.gp.LatentKron(cov_funcs=parts).prior("f", GRID))


def _product():
    cov = pm.gp.cov.ExpQuad(2, ls=0.3, active_dims=[0]) * pm.gp.cov.Matern32(2, ls=0.5, active_dims=[1])
    bernoulli(pm.gp.Latent(cov_func=cov).prior("f", X=pm.math.cartesian(*GRID)))


def normal(cov):
    return lambda: bernoulli(pm.MvNormal("f", np.zeros(N), cov))


ONE_PROCESS = {
    "a row of zeros": (
        lambda: softmax(pt.concatenate([np.zeros((1, N)), several(outputs=2)]).T),
        lambda: softmax(_reference()),
    ),
    "zeros like": (_zeros_like, lambda: softmax(_reference())),
    "zeros and one function": (
        lambda: softmax(pt.stack([np.zeros(N), one()]).T, ONE),
        lambda: softmax(pt.stack([one("zero", eta=1e-4), one()]).T, ONE),
    ),
    "sum of priors": (
        lambda: bernoulli(one("f") + one("g")),
        lambda: bernoulli((process() + process()).prior("f", X=X)),
    ),
    "difference": (
        _difference,
        lambda: gpep.Probit("y", one(cov=Pairs(pm.gp.cov.ExpQuad(1, ls=0.3)), X=np.c_[X[A], X[B]]), observed=ONE[A]),
    ),
    "given level": (lambda: bernoulli(0.7 + one()), lambda: bernoulli(one(mean=pm.gp.mean.Constant(0.7)))),
    "level": (
        lambda: bernoulli(pm.Normal("a", 0.2, 2.0) + one()),
        lambda: bernoulli(
            one(mean=pm.gp.mean.Constant(0.2), cov=pm.gp.cov.ExpQuad(1, ls=0.3) + pm.gp.cov.Constant(4.0))
        ),
    ),
    "levels of classes": (
        _class_levels,
        lambda: softmax(several(mean=pm.gp.mean.Constant(np.arange(3.0)[:, None])).T),
    ),
    "scaled": (
        lambda: bernoulli(pm.HalfNormal("eta") * one()),
        lambda: bernoulli(one(eta=pm.HalfNormal("eta"))),
    ),
    "scaled by inputs": (
        lambda: bernoulli((1 + X[:, 0]) * one()),
        lambda: bernoulli(one(cov=pm.gp.cov.ScaledCov(1, pm.gp.cov.ExpQuad(1, ls=0.3), lambda X: 1 + X))),
    ),
    "classes scaled apart": (
        lambda: softmax((np.array([[1.0], [2.0]]) * several(outputs=2)).T, ONE),
        lambda: softmax(pt.stack([one("f"), one("g", eta=2.0)]).T, ONE),
    ),
    "negated": (lambda: bernoulli(-one()), lambda: bernoulli(one())),
    "linear model": (
        lambda: bernoulli(X @ pm.Normal("b", sigma=2.0, shape=1)),
        lambda: bernoulli(pm.gp.Latent(cov_func=2.0**2 * pm.gp.cov.Linear(1, c=np.zeros(1))).prior("f", X=X)),
    ),
    "Kronecker": (_kronecker, _product),
    "random walk": (
        lambda: bernoulli(pm.GaussianRandomWalk("f", sigma=0.7, init_dist=pm.Normal.dist(0.0, 1.3), steps=N - 1)),
        normal(1.3**2 + 0.7**2 * np.minimum.outer(t, t)),
    ),
    "AR": (
        lambda: bernoulli(
            pm.AR("f", [0.6], sigma=0.7, init_dist=pm.Normal.dist(0.0, 0.7 / np.sqrt(1 - 0.6**2)), steps=N - 1)
        ),
        normal(0.7**2 / (1 - 0.6**2) * 0.6 ** abs(t[:, None] - t)),
    ),
    "CAR": (
        lambda: bernoulli(pm.CAR("f", np.zeros(N), W, alpha=0.9, tau=1.7)),
        normal(np.linalg.inv(1.7 * (np.diag(W.sum(axis=1)) - 0.9 * W))),
    ),
    "points taken twice": (
        lambda: gpep.Probit("y", one(X=X[:2])[[0, 0, 1]], observed=[1, 1, 0]),
        lambda: gpep.Probit("y", one(X=X[[0, 0, 1]]), observed=[1, 1, 0]),
    ),
    "points in another order": (lambda: bernoulli(one()[::-1]), lambda: bernoulli(one(X=X[::-1].copy()))),
    "some points": (lambda: bernoulli(one(X=np.r_[X, X])[:N]), lambda: bernoulli(one())),
}


@pytest.mark.parametrize("case", ONE_PROCESS)
def test_sum_of_a_single_process_has_the_prior_of_the_process(case):
    """The priors agree up to PyMC's jitter."""
    found = []
    for declare in ONE_PROCESS[case]:
        with pm.Model() as model:
            declare()
        prior = read_classifier(model)
        c, n = prior.n_functions, prior.n_points
        given = {rv: pt.constant(0.8) for rv in prior.hyperparameters}
        moments = graph_replace([prior.prior.mean(), prior.prior.covariances()], given, strict=False)
        mean, k = (each.eval() for each in moments)
        found.append((mean, np.broadcast_to(k, (c, n, n))))
    (mean, k), (their_mean, theirs) = found
    assert_allclose(mean, their_mean, atol=1e-12)
    assert_allclose(k, theirs, atol=1e-5)


@pytest.mark.parametrize("likelihood", ["logit", "ordered", "poisson"])
def test_message_names_the_variable_behind_an_argument(likelihood):
    observe = {
        "logit": bernoulli,
        "ordered": ordered,
        "poisson": lambda f: pm.Poisson("y", mu=pm.math.exp(f), observed=Y),
    }[likelihood]
    gp = pm.gp.TP(scale_func=pm.gp.cov.ExpQuad(1, ls=0.3), nu=4)
    _, message = refusal_of(lambda: observe(gp.prior("z", X=X)))
    assert re.search(r"argument of 'y' .* Gaussian variable.* 'z_rotated_' \(StudentT\) is not Gaussian", message)
    assert "number of axes" not in message


def test_covariance_of_differences_matches_the_matrix_product():
    """The reference is D K Dᵀ with the matrix of differences D."""
    of = pm.gp.cov.ExpQuad(1, ls=0.3)
    pairs = np.c_[X[A], X[B]]
    D = np.eye(N)[A] - np.eye(N)[B]
    expected = D @ of(X).eval() @ D.T
    cov = Pairs(of)
    assert_allclose(cov(pairs).eval(), expected, atol=1e-12)
    assert_allclose(cov(pairs, pairs[:2]).eval(), expected[:, :2], atol=1e-12)
    assert_allclose(cov(pairs, diag=True).eval(), expected.diagonal(), atol=1e-12)


def test_message_does_not_name_an_unrelated_variable():
    def build():
        pm.Bernoulli("other", p=pm.Beta("rate", 1, 1), observed=ONE)
        pm.Bernoulli("y", p=pm.math.invlogit(one()) * pm.math.invlogit(one("g")), observed=ONE)

    _, message = refusal_of(build)
    assert "'y' is a Bernoulli" in message


@pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")
@pytest.mark.parametrize("by", ["rows", "selection"])
def test_repeated_points_have_one_latent_value(by):
    """Two labels 1 of one latent value N(0, 4) have the probability 1/4 + arcsin(4/5) / (2 π), of an orthant.

    A third label 0 at a distant point has probability ½. EP's evidence is within 0.01 of the product. With separate
    latent values the first factor would be 1/4, not 0.398.
    """
    index, labels, x = np.array([0, 0, 1]), np.array([1, 1, 0]), np.array([[0.0], [9.0]])
    with pm.Model():
        f = one(X=x, eta=2.0)[index] if by == "selection" else one(X=x[index], eta=2.0)
        gpep.Probit("y", f, observed=labels)
        fit = pm.fit(method="ep", progressbar=False)
    assert_allclose(2 * np.exp(fit.log_evidence), 0.25 + np.arcsin(0.8) / (2 * np.pi), atol=0.01)
