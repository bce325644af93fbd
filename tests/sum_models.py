"""Small models of sums of effects, in the form that users write."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_gpep as gpep

__all__ = ["MODELS", "SUMS"]

J, N = 8, 30
_rng = np.random.default_rng(3)
GROUP = np.concatenate([np.arange(J), _rng.integers(0, J, N - J)])
OTHER = _rng.integers(0, 5, N)
X = _rng.normal(size=N)
XY = np.column_stack([X, _rng.normal(size=N)])
BINARY = (_rng.random(N) < 1 / (1 + np.exp(-0.5 - X))).astype(int)
COUNTS = _rng.poisson(np.exp(0.3 * X))
KINDS = np.concatenate([np.arange(3), _rng.integers(0, 3, N - 3)])
RATINGS = np.concatenate([np.arange(5), _rng.integers(0, 5, N - 5)])
HOURS = _rng.uniform(0.5, 2.0, N)
PLACES = _rng.uniform(0, 1, size=(J, 1))


def varying_intercepts() -> None:
    where, floor = pm.Data("where", GROUP), pm.Data("floor", X)
    level, gamma = pm.Normal("level", 0, 2), pm.Normal("gamma", 0, 1)
    sigma = pm.HalfNormal("sigma", 1)
    alpha = pm.Normal("alpha", level + gamma * PLACES[:, 0], sigma, dims="group")
    beta = pm.Normal("beta", 0, 1)
    pm.Bernoulli("y", logit_p=alpha[where] + beta * floor, observed=BINARY)


def non_centred_intercepts() -> None:
    where, floor = pm.Data("where", GROUP), pm.Data("floor", X)
    level, gamma = pm.Normal("level", 0, 2), pm.Normal("gamma", 0, 1)
    sigma = pm.HalfNormal("sigma", 1)
    z = pm.Normal("z", dims="group")
    alpha = pm.Deterministic("alpha", level + gamma * PLACES[:, 0] + sigma * z, dims="group")
    beta = pm.Normal("beta", 0, 1)
    pm.Bernoulli("y", logit_p=alpha[where] + beta * floor, observed=BINARY)


def correlated_slopes() -> None:
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
    mean = pm.Normal("mean", 0, 1, shape=2)
    z = pm.Normal("z", shape=(J, 2))
    u = pm.Deterministic("u", mean + z @ chol.T)
    pm.Poisson("y", mu=HOURS * pm.math.exp(u[GROUP, 0] + u[GROUP, 1] * X), observed=COUNTS)


def centred_slopes() -> None:
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
    mean = pm.Normal("mean", 0, 1, shape=2)
    u = pm.MvNormal("u", mean, chol=chol, shape=(J, 2))
    pm.Poisson("y", mu=pm.math.exp(u[GROUP, 0] + u[GROUP, 1] * X + np.log(HOURS)), observed=COUNTS)


def persons_and_items() -> None:
    s_person, s_item = pm.HalfNormal("s_person", 1), pm.HalfNormal("s_item", 1)
    mean = pm.Normal("mean", 0, 2)
    ability = pm.Normal("ability", 0, s_person, dims="group")
    difficulty = pm.ZeroSumNormal("difficulty", s_item, shape=5)
    pm.Bernoulli("y", logit_p=mean + ability[GROUP] - difficulty[OTHER], observed=BINARY)


def ordered_ratings() -> None:
    beta, s = pm.Normal("beta", 0, 2), pm.HalfNormal("s", 1)
    u = pm.Normal("u", 0, s, dims="group")
    cut = pm.Normal(
        "cutpoints", 0, 3, shape=4, initval=[-2.0, -0.5, 0.5, 2.0], transform=pm.distributions.transforms.ordered
    )
    pm.OrderedProbit("y", eta=beta * X + u[GROUP], cutpoints=cut, observed=RATINGS)


def random_walk() -> None:
    level, s = pm.Normal("level", 0, 2), pm.HalfNormal("s", 0.5)
    walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 1), dims="group")
    pm.Poisson("y", mu=pm.math.exp(level + walk[GROUP]), observed=COUNTS)


def summed_walk() -> None:
    level, s = pm.Normal("level", 0, 2), pm.HalfNormal("s", 0.5)
    first, steps = pm.Normal("first", 0, 1), pm.Normal("steps", 0, 1, shape=J - 1)
    walk = pt.concatenate([first[None], first + s * pt.cumsum(steps)])
    pm.Poisson("y", mu=pm.math.exp(level + walk[GROUP]), observed=COUNTS)


def _lattice() -> np.ndarray:
    w = np.zeros((J, J), int)
    w[range(J - 1), range(1, J)] = 1
    return w + w.T


def areas() -> None:
    level, beta = pm.Normal("level", 0, 2), pm.Normal("beta", 0, 1)
    sigma, rho = pm.HalfNormal("sigma", 1), pm.Beta("rho", 0.5, 0.5)
    phi = pm.ICAR("phi", W=_lattice(), dims="group")
    theta = pm.Normal("theta", 0, 1, dims="group")
    b = pm.Deterministic("b", sigma * (pt.sqrt(1 - rho) * theta + pt.sqrt(rho / 0.6) * phi), dims="group")
    pm.Poisson("y", mu=HOURS * pm.math.exp(level + beta * X + b[GROUP]), observed=COUNTS)


def field_by_basis() -> None:
    where, x = pm.Data("where", XY), pm.Data("x", X**2)
    eta, ls = pm.HalfNormal("eta", 1), pm.InverseGamma("ls", 3, 1, shape=2)
    gp = pm.gp.HSGP(m=[4, 4], c=1.5, cov_func=eta**2 * pm.gp.cov.Matern52(2, ls=ls))
    field = gp.prior("field", X=where)
    beta, level = pm.Normal("beta", 0, 1), pm.Normal("level", 0, 2)
    pm.Bernoulli("y", logit_p=level + beta * x + field, observed=BINARY)


def process_and_trend() -> None:
    inputs = pm.Data("X", XY)
    ls, eta = pm.InverseGamma("ls", 3, 3), pm.HalfNormal("eta", 2)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
    f = gp.prior("f", X=inputs)
    b, a = pm.Normal("b", 0, 1, shape=2), pm.Normal("a", 0, 1)
    pm.Bernoulli("y", logit_p=f + inputs @ b + a, observed=BINARY)


def process_at_places() -> None:
    ls, eta = pm.InverseGamma("ls", 3, 1), pm.HalfNormal("eta", 1)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
    f = gp.prior("f", X=PLACES)
    where, beta = pm.Data("where", GROUP), pm.Normal("beta", 0, 1)
    gpep.Probit("y", f[where] + beta * X, observed=BINARY)


def process_of_sums() -> None:
    f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.5)).prior("f", X=PLACES)
    members = (np.arange(N)[:, None] % 3 == np.arange(J) % 3).astype(float)
    pm.Poisson("y", mu=pm.math.exp(members @ f + pm.Normal("a", 0, 1)), observed=COUNTS)


def two_processes() -> None:
    eta = pm.HalfNormal("eta", 1)
    f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X[:, None])
    g = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=0.5)).prior("g", X=XY[:, 1:], reparameterize=False)
    pm.Bernoulli("y", logit_p=f + 0.5 * X * g, observed=BINARY)


def classes_with_trend() -> None:
    inputs = pm.Data("X", XY)
    ls, eta = pm.InverseGamma("ls", 3, 3), pm.HalfNormal("eta", 2)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
    f = gp.prior("f", X=inputs, n_outputs=3)
    s = pm.HalfNormal("s", 1)
    b = pm.Normal("b", 0, s, dims=("input", "kind"))
    a = pm.Normal("a", 0, 1, dims="kind")
    gpep.MultinomialProbit("y", f.T + inputs @ b + a, observed=KINDS)


def softmax_with_reference() -> None:
    s = pm.HalfNormal("s", 1)
    b = pm.Normal("b", 0, s, shape=(2, 2))
    pm.Categorical("y", logit_p=pt.concatenate([pt.zeros((N, 1)), XY @ b], axis=1), observed=KINDS)


def plain_classes() -> None:
    s = pm.HalfNormal("s", 1)
    b = pm.Normal("b", 0, s, dims=("input", "kind"))
    a = pm.Normal("a", 0, 2, dims="kind")
    gpep.MultinomialProbit("y", XY @ b + a, observed=KINDS)


def splines() -> None:
    knots = np.maximum(X[:, None] - np.linspace(-1, 1, 5), 0.0)
    wiggle = pm.HalfNormal("wiggle", 1)
    d = np.diff(np.eye(5), 2, axis=0)
    w = pm.MvNormal("w", 0, tau=d.T @ d / wiggle**2 + np.eye(5) / 100)
    pm.Bernoulli("y", logit_p=knots @ w, observed=BINARY)


def constant_alone() -> None:
    pm.Bernoulli("y", logit_p=pm.Normal("level", 0, 1), observed=BINARY)


def moved_and_scaled() -> None:
    u = pm.Normal("u", 0, 1, shape=(J, 2))
    s = pm.HalfNormal("s", 1)
    ones = pt.take(u, GROUP, axis=0)
    weights = pm.Data("weights", np.column_stack([X, 1 - X]))
    pm.Bernoulli("y", logit_p=-(s * (ones * weights).sum(axis=1) - 0.3) / 2, observed=BINARY)


def process_on_process() -> None:
    class Values(pm.gp.mean.Mean):
        def __call__(self, X: object) -> object:
            return g

    eta = pm.HalfNormal("eta", 1)
    g = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=1.0)).prior("g", X=X[:, None])
    f = pm.gp.Latent(mean_func=Values(), cov_func=pm.gp.cov.Matern32(1, ls=0.5)).prior("f", X=X[:, None])
    pm.Bernoulli("y", logit_p=f, observed=BINARY)


def differences_of_a_process() -> None:
    eta = pm.HalfNormal("eta", 1)
    f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=0.5)).prior("f", X=PLACES)
    gpep.Probit("y", f[GROUP] - f[OTHER], observed=BINARY)


def sum_of_products() -> None:
    s = pm.HalfNormal("s", 1)
    beta = pm.Normal("beta", 0, s, shape=(J, 2))
    pm.Bernoulli("y", logit_p=pt.einsum("nk,nk->n", pt.as_tensor(XY), beta[GROUP]), observed=BINARY)


def autoregression() -> None:
    level, rho, s = pm.Normal("level", 0, 2), pm.Beta("rho", 2, 2), pm.HalfNormal("s", 0.5)
    u = pm.AR("u", [rho], sigma=s, init_dist=pm.Normal.dist(0, 1), steps=J - 1)
    pm.Poisson("y", mu=pm.math.exp(level + u[GROUP]), observed=COUNTS)


def covariance_of_areas() -> None:
    alpha, tau = pm.Beta("alpha", 2, 2), pm.HalfNormal("tau", 1)
    u = pm.CAR("u", np.full(J, 0.3), _lattice(), alpha=alpha, tau=tau)
    pm.Poisson("y", mu=pm.math.exp(u[GROUP]), observed=COUNTS)


def classes_of_one_draw() -> None:
    eta = pm.HalfNormal("eta", 1)
    cov = pt.stack([(1.0 + k) * eta**2 * pt.eye(J) + 0.5 for k in range(3)])
    f = pm.MvNormal("f", np.zeros((3, J)), cov)
    pm.Categorical("y", logit_p=f.T[GROUP], observed=KINDS)


SUMS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        varying_intercepts, non_centred_intercepts, correlated_slopes, centred_slopes, persons_and_items,
        ordered_ratings, random_walk, summed_walk, areas, field_by_basis, process_and_trend, process_at_places,
        process_of_sums, two_processes, classes_with_trend, softmax_with_reference,
        plain_classes, splines, constant_alone, moved_and_scaled,
        process_on_process, differences_of_a_process, sum_of_products, autoregression, covariance_of_areas,
        classes_of_one_draw,
    )
}  # fmt: skip


def made(declare: Callable[[], None]) -> pm.Model:
    """Return the model that a function declares."""
    with pm.Model(coords={"group": range(J), "input": ["p", "q"], "kind": ["r", "s", "t"]}) as model:
        declare()
    return model


MODELS = {name: (lambda declare=declare: made(declare)) for name, declare in SUMS.items()}
