"""Problems that users of other packages reported with Gaussian processes, in small, with independent references."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.special import expit
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct

import pymc_gpep as gpep
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from tests.reference.importance import logistic, logistic_counts, softmax_counts, weighted_draws
from tests.reference.orthant import orthant_probabilities

JITTER = 1e-6
pytestmark = pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")


def squares(a, b=None):
    return ((a[:, None] - (a if b is None else b)) ** 2).sum(axis=-1)


def fitted(method, **options):
    return pm.fit(method=method, progressbar=False, random_seed=1, **options)


def log_orthant(k):
    """Log probability that normal variables with this covariance are all positive."""
    return np.log(
        multivariate_normal.cdf(np.zeros(len(k)), cov=k, abseps=1e-6, maxpts=10**5, rng=np.random.default_rng(0))
    )


def test_single_new_row_with_many_length_scales_is_predicted():
    """A classifier with several inputs and random labels, and predictions at the row X[-1, :]."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(40, 10)), rng.integers(0, 2, size=40)
    with pm.Model():
        log_ls = pm.Uniform("log_ls", np.log(1e-5), np.log(1e5))
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(10, ls=pm.math.exp(log_ls)))
        p = pm.Deterministic("p", pm.math.invlogit(gp.prior("f", X=X)))
        pm.Bernoulli("y", p=p, observed=y)
        fit = fitted("ep")
    assert fit.converged
    assert 1.0 < np.exp(fit.hyperparameters.log_ls) < 3.0
    ls2 = 2 * np.exp(2 * float(fit.hyperparameters.log_ls))
    new = X[-1:] + 0.3
    k = np.exp(-squares(X) / ls2) + JITTER * np.eye(40)
    exact = weighted_draws(k, logistic(y), draws=20_000)
    assert_allclose(fit.log_evidence, exact.evidence, atol=0.01)
    right = exact.at(np.exp(-squares(X, new) / ls2), k, np.ones(1))
    for x in (new, pd.DataFrame(new), new.tolist()):
        assert_allclose(fit.predict(x)["p"][:, 1], right, atol=0.005)
        assert_allclose(fit.predict(gp, x)["p"][:, 1], right, atol=0.005)
    with pytest.raises(ValueError, match=r"here \(points, 10\), .* one point is a row, Xnew\[None\]"):
        fit.predict(X[-1, :])
    assert fit.predict(X[:0]).sizes["new_point"] == 0


def test_several_votes_for_an_item_are_fitted():
    """Items with five votes each for three classes, as one row for each vote. The reference is importance sampling."""
    rng = np.random.default_rng(1)
    X = np.linspace(-1, 1, 6)[:, None]
    votes = rng.multinomial(5, [0.5, 0.3, 0.2], size=6)
    repeated = np.repeat(X, votes.sum(axis=1), axis=0)
    labels = np.concatenate([np.repeat(np.arange(3), row) for row in votes])
    with pm.Model():
        f = pm.gp.Latent(cov_func=2 * pm.gp.cov.ExpQuad(1, ls=0.5)).prior("f", X=repeated, n_outputs=3)
        pm.Categorical("y", logit_p=f.T, observed=labels)
        fits = {method: fitted(method) for method in ("laplace", "qep")}
    k = 2 * np.exp(-squares(X) / 0.5) + JITTER * np.eye(6)
    exact = weighted_draws(np.kron(np.eye(3), k), softmax_counts(votes), draws=20_000)
    assert exact.error < 0.01
    odds = np.exp(exact.f.reshape(-1, 3, 6))
    right = exact.average(odds / odds.sum(axis=1, keepdims=True)).T
    for method, within, of_p in (("laplace", 0.3, 0.04), ("qep", 0.05, 0.01)):
        assert_allclose(fits[method].log_evidence, exact.evidence, atol=within)
        assert_allclose(fits[method].predict(X)["p"], right, atol=of_p)


def test_many_trials_at_few_places_are_fitted():
    """One row for each trial, with all rows and with places as inducing inputs.

    The reference is a binomial likelihood.
    """
    rng = np.random.default_rng(2)
    X, trials = np.linspace(-1, 1, 6)[:, None], np.full(6, 12)
    successes = rng.binomial(trials, expit(3 * np.sin(2 * X[:, 0])))
    labels = np.concatenate([np.arange(m) < s for m, s in zip(trials, successes, strict=True)])
    with pm.Model():
        f = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(1, ls=0.7)).prior("f", X=np.repeat(X, 12, axis=0))
        pm.Bernoulli("y", logit_p=f, observed=labels)
        fits = fitted("ep"), fitted("sparse_ep", inducing=X, learn_inducing=False)
    k = 4 * np.exp(-squares(X) / (2 * 0.7**2)) + JITTER * np.eye(6)
    exact = weighted_draws(k, logistic_counts(successes, trials), draws=20_000)
    for fit in fits:
        assert_allclose(fit.log_evidence, exact.evidence, atol=0.05)
        assert_allclose(fit.predict(X)["mean"], exact.average(exact.f), atol=0.05)
        assert_allclose(fit.predict(X)["p"][:, 1], exact.average(expit(exact.f)), atol=0.005)


def test_softmax_with_one_function_fixed_near_zero_matches_logistic_likelihood():
    """A softmax of (0, f) is a logistic function of f."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(25, 1))
    y = (X[:, 0] + rng.normal(size=25) > 0).astype(int)
    k = np.exp(-squares(X) / 2)
    exact = weighted_draws(2 * k + JITTER * np.eye(25), logistic(y))
    with pm.Model():
        zero = pm.gp.Latent(cov_func=1e-8 * pm.gp.cov.ExpQuad(1, ls=1.0)).prior("zero", X=X)
        f = pm.gp.Latent(cov_func=2 * pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        pm.Categorical("y", logit_p=pt.stack([zero, f]).T, observed=y)
        fit = fitted("qep")
    assert_allclose(fit.log_evidence, exact.evidence, atol=0.02)
    assert_allclose(fit.predict(X[:5])["p"][:, 1], exact.average(expit(exact.f))[:5], atol=0.005)


def test_cross_validation_by_set_data_is_fitted():
    """Folds differ in size. One lacks a class, and one is a data frame. The reference is importance sampling."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(18, 2))
    y = np.digitize(X[:, 0] + 0.3 * rng.normal(size=18), [-0.5, 0.5])
    new = rng.normal(size=(3, 2))
    with pm.Model(coords={"row": np.arange(4), "column": ["a", "b"]}) as model:
        inputs = pm.Data("X", X[:4], dims=("row", "column"))
        labels = pm.Data("labels", y[:4], dims="row")
        gp = pm.gp.Latent(cov_func=2 * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=inputs, n_outputs=3)
        pm.Categorical("y", logit_p=f.T, observed=labels, dims="row")
    for rows, form in (
        (np.arange(9), np.asarray),
        (np.arange(5, 17), pd.DataFrame),
        (np.flatnonzero(y != 1), np.asarray),
    ):
        with model:
            pm.set_data({"X": form(X[rows]), "labels": y[rows]}, coords={"row": rows})
            fit = fitted("qep")
        n = len(rows)
        k = 2 * np.exp(-squares(X[rows]) / 2) + JITTER * np.eye(n)
        exact = weighted_draws(np.kron(np.eye(3), k), softmax_counts(np.eye(3, dtype=int)[y[rows]]), draws=10_000)
        assert_allclose(fit.log_evidence, exact.evidence, atol=0.03 + 3 * exact.error)
        odds = np.exp(exact.f.reshape(-1, 3, n))
        right = exact.average(odds / odds.sum(axis=1, keepdims=True)).T
        found = fit.predict(X[rows])["p"]
        assert_allclose(found, right, atol=0.02)
        assert_allclose(fit.predict(gp, new)["p"], fit.predict(new)["p"], rtol=1e-6)


@pytest.mark.variation(but=["sparse_ep-noise last"])
@pytest.mark.parametrize("first", [True, False], ids=["noise first", "noise last"])
@pytest.mark.parametrize(
    ("method", "options"), [("ep", {}), ("sparse_ep", {"inducing": 8, "jitter": 1e-10})], ids=["ep", "sparse_ep"]
)
def test_learned_label_noise_is_fitted(method, options, first):
    """With a probit and latent noise of variance s², labels are signs of normals with covariance K + (1 + s²) I."""
    X = np.linspace(-1.5, 1.5, 8)[:, None]
    y = np.array([1, 1, 0, 1, 0, 0, 1, 0])
    with pm.Model():
        s = pm.HalfNormal("s", 2.0)
        cov, noise = 6 * pm.gp.cov.ExpQuad(1, ls=1.0), pm.gp.cov.WhiteNoise(s)
        f = pm.gp.Latent(cov_func=noise + cov if first else cov + noise).prior("f", X=X)
        gpep.Probit("y", f, observed=y)
        fit = fitted(method, **options)
    signs = np.outer(2 * y - 1, 2 * y - 1)
    k = 6 * np.exp(-squares(X) / 2)

    def evidence(s):
        return log_orthant(signs * (k + (1 + s**2 + JITTER) * np.eye(8)))

    found = float(fit.hyperparameters.s)
    assert_allclose(fit.log_evidence, evidence(found), atol=0.02)
    # the fit maximises over log s, whose density has the additional factor s
    best = minimize_scalar(
        lambda s: -evidence(s) - norm.logpdf(s, 0, 2) - np.log(s),
        bounds=(0.2, 6),
        method="bounded",
        options={"xatol": 1e-2},
    )
    assert_allclose(found, best.x, rtol=0.05)
    new = np.array([[0.4]])
    joint = 6 * np.exp(-squares(np.vstack([X, new])) / 2) + (1 + found**2) * np.eye(9)
    both = np.append(2 * y - 1, 1)
    right = np.exp(log_orthant(np.outer(both, both) * joint) - evidence(found))
    assert_allclose(fit.predict(new)["p"][0, 1], right, atol=0.005)


class Pairs(pm.gp.cov.Covariance):
    """Covariance of f(a) − f(b) at rows (a, b)."""

    def full(self, X, Xs=None):
        of = pm.gp.cov.ExpQuad(1, ls=0.7)
        X, Xs = X, X if Xs is None else Xs
        (a, b), (c, d) = ((x[:, :1], x[:, 1:]) for x in (X, Xs))
        return of(a, c) - of(a, d) - of(b, c) + of(b, d)

    def diag(self, X):
        return pt.diagonal(self.full(X))


@pytest.mark.variation
def test_preferences_between_pairs_are_fitted():
    x = np.linspace(0, 2, 7)
    better, worse = np.array([0, 1, 2, 3, 6, 1]), np.array([4, 3, 5, 5, 0, 6])
    won = np.array([1, 1, 1, 1, 0, 1])
    with pm.Model():
        f = pm.gp.Latent(cov_func=4 * Pairs(2)).prior("f", X=np.column_stack([x[better], x[worse]]))
        gpep.Probit("y", f, observed=won)
        fits = fitted("ep"), fitted("sparse_ep", inducing=6, learn_inducing=False)
    k = 4 * np.exp(-squares(x[:, None]) / (2 * 0.7**2))
    to = np.eye(7)[better] - np.eye(7)[worse]
    new = np.eye(7)[[2]] - np.eye(7)[[6]]
    both = np.vstack([(2 * won - 1)[:, None] * to, new])
    joint = both @ k @ both.T + np.eye(7)
    evidence = log_orthant(joint[:6, :6])
    for fit in fits:
        assert_allclose(fit.log_evidence, evidence, atol=0.05)
        found = fit.predict(np.array([[x[2], x[6]]]))["p"][0, 1]
        assert_allclose(found, np.exp(log_orthant(joint) - evidence), atol=0.01)


class Overlap(pm.gp.cov.Covariance):
    """Tanimoto similarity: number of bits in both rows divided by number of bits in either row."""

    def full(self, X, Xs=None):
        X, Xs = map(pt.as_tensor_variable, self._slice(X, X if Xs is None else Xs))
        both = X @ Xs.T
        return both / (X.sum(axis=1)[:, None] + Xs.sum(axis=1) - both)

    def diag(self, X):
        return pt.ones(X.shape[0])


@pytest.mark.parametrize("dtype", ["int8", "bool"])
def test_kernel_of_bit_fingerprints_is_fitted(dtype):
    rng = np.random.default_rng(8)
    bits = np.column_stack([np.ones(20), rng.integers(0, 2, size=(20, 7))])
    y = (bits[:, 1] + rng.normal(size=20) > 0.5).astype(int)

    def overlap(a, b):
        both = a @ b.T
        return both / (a.sum(axis=1)[:, None] + b.sum(axis=1) - both)

    k = 3 * overlap(bits, bits) + JITTER * np.eye(20)
    new = np.column_stack([np.ones(3), rng.integers(0, 2, size=(3, 7))])
    exact = weighted_draws(k, logistic(y))
    right = exact.at(3 * overlap(bits, new), k, np.full(3, 3.0))
    with pm.Model():
        gp = pm.gp.Latent(cov_func=3 * Overlap(8))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=bits.astype(dtype)), observed=y)
        fit = fitted("ep")
        sparse = fitted("sparse_ep", inducing=bits, learn_inducing=False)
    assert_allclose(fit.log_evidence, exact.evidence, atol=0.02)
    for found in (fit.predict(new), fit.predict(gp, new), fit.predict(new.astype(dtype)), sparse.predict(new)):
        assert_allclose(found["p"][:, 1], right, atol=0.01)


WORDS = [
    "adenine",
    "guanine",
    "cytosine",
    "thymine",
    "uracil",
    "xanthine",
    "inosine",
    "cytidine",
    "guanosine",
    "uridine",
]


class OfStrings(pm.gp.cov.Covariance):
    """A kernel of strings in a table, indexed by row numbers."""

    def full(self, X, Xs=None):
        rows, columns = (pt.as_tensor_variable(x)[:, 0] for x in (X, X if Xs is None else Xs))
        return pt.constant(SHARED)[rows][:, columns]

    def diag(self, X):
        return pt.ones(X.shape[0])


def _letters(word):
    pairs = np.zeros((26, 26))
    for a, b in pairwise(word):
        pairs[ord(a) - 97, ord(b) - 97] += 1
    return pairs.ravel() / np.linalg.norm(pairs)


SHARED = np.array([_letters(word) for word in WORDS]) @ np.array([_letters(word) for word in WORDS]).T


def test_kernel_of_strings_by_a_table_is_fitted():
    rows, new = np.arange(8)[:, None], np.array([[8], [9]])
    y = np.array([1, 1, 1, 0, 0, 1, 0, 1])
    k = 4 * SHARED[:8, :8] + JITTER * np.eye(8)
    exact = weighted_draws(k, logistic(y))
    right = exact.at(4 * SHARED[:8, 8:], k, np.full(2, 4.0))
    with pm.Model():
        gp = pm.gp.Latent(cov_func=4 * OfStrings(1))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=rows.astype("int8")), observed=y)
        fit = fitted("ep")
        others = fitted("sparse_ep", inducing=rows, learn_inducing=False), fitted("ivm", active=8)
    assert_allclose(fit.log_evidence, exact.evidence, atol=0.02)
    for found in (fit.predict(new), fit.predict(gp, new), *(other.predict(new) for other in others)):
        assert_allclose(found["p"][:, 1], right, atol=0.01)


@pytest.mark.variation(but=["sparse_ep"])
@pytest.mark.parametrize("method", ["laplace", "sparse_ep", "ivm"])
def test_prediction_of_a_row_does_not_depend_on_further_rows(method):
    """Rows of seven classes in pieces and shuffled. SciPy computes the orthant probabilities from the moments."""
    rng = np.random.default_rng(9)
    X, new = rng.normal(size=(28, 2)), rng.normal(size=(40, 2))
    y = np.arange(28) % 7
    options = {"sparse_ep": {"inducing": 6, "learn_inducing": False}, "ivm": {"active": 14}}.get(method, {})
    with pm.Model():
        f = pm.gp.Latent(cov_func=3 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X, n_outputs=7)
        gpep.MultinomialProbit("y", f.T, observed=y)
        fit = fitted(method, **options)
    whole = fit.predict(new)["p"].values
    for size in (1, 16, 33):
        pieces = [fit.predict(new[start : start + size])["p"].values for start in range(0, 40, size)][: 200 // size]
        assert_allclose(np.concatenate(pieces), whole[: sum(map(len, pieces))], atol=1e-5)
    order = rng.permutation(40)
    assert_allclose(fit.predict(new[order])["p"], whole[order], atol=1e-12)
    assert_allclose(fit.predict(new)["p"], whole, rtol=0)
    at = fit.predict(new[:2])
    for i in range(2):
        right = orthant_probabilities(at["mean"].values[i], at["cov"].values[i] + np.eye(7), 1e-5)
        assert_allclose(whole[i], right, atol=1e-4)


def test_exclusive_or_is_learned_by_a_squared_linear_covariance():
    """The reference is scikit-learn's Laplace's method, with narrow to flat priors."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.logical_xor(X[:, 0] > 0, X[:, 1] > 0).astype(int)
    theirs = GaussianProcessClassifier(DotProduct(1.0) ** 2, optimizer=None).fit(X, y)
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.Polynomial(2, c=0.0, d=2, offset=1.0)).prior("f", X=X, jitter=1e-10)
        pm.Bernoulli("y", logit_p=f, observed=y)
        fit = fitted("laplace")
    assert_allclose(fit.log_evidence, theirs.log_marginal_likelihood_value_, rtol=1e-5)
    far = np.array([[1e4, -1e4], [1e4, 1e4], [1e6, -1e6], [1e12, -1e12]])
    p = fit.predict(far)["p"][:, 1]
    assert_allclose(p, [1, 0, 1, 1], atol=0.05)
    for scale in (10.0, 1e5):
        with pm.Model():
            eta = pm.HalfCauchy("eta", scale) if scale > 100 else pm.HalfNormal("eta", scale)
            f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Polynomial(2, c=0.0, d=2, offset=1.0)).prior("f", X=X)
            pm.Bernoulli("y", logit_p=f, observed=y)
            if scale > 100:
                flat = fitted("laplace")
                with pytest.raises(
                    NotPositiveDefiniteError, match=r"larger jitter.*or give hyperparameters informative priors"
                ):
                    flat.sample(2)
            else:
                wide = fitted("laplace")
    assert wide.converged
    assert np.isfinite(wide.predict(far)["p"]).all()
    theirs = GaussianProcessClassifier(
        ConstantKernel(float(wide.hyperparameters.eta) ** 2) * DotProduct(1.0) ** 2, optimizer=None
    )
    assert_allclose(wide.log_evidence, theirs.fit(X, y).log_marginal_likelihood_value_, rtol=1e-4)
