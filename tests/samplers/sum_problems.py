"""Sums of effects for a few rows, as models and as draws from their priors, for tests of samplers."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

import pymc_gpep as gpep
from tests.reference.prior_sampling import posterior_moments
from tests.reference.stored import stored
from tests.samplers.exactness import standard_errors

DRAWS = 100_000
GROUP = np.array([0, 0, 0, 1, 1, 1])
ITEM = np.array([0, 1, 2, 0, 1, 2])
X = np.array([-1.2, 0.3, 0.8, -0.4, 1.5, -0.7])
PLACES = np.array([[0.0], [0.5]])
BINARY = np.array([0, 1, 1, 0, 1, 1])
KEPT = np.array([True, True, False, True, True, False])
KINDS = np.array([2, 0, 1, 1, 0, 2])


class SumProblem(NamedTuple):
    """A model and draws from its prior."""

    kind: str
    labels: np.ndarray
    declare: Callable[[], None]
    draw: Callable[[np.random.Generator], tuple[dict[str, np.ndarray], np.ndarray]]
    """Draw variables of the model by name, and latent values (draws, c, n)."""


def _crossed() -> None:
    s, level = pm.LogNormal("s", 0, 0.5), pm.Normal("level", 0.3, 1)
    ability = pm.Normal("ability", level, s, shape=2)
    difficulty = pm.ZeroSumNormal("difficulty", 1.5, shape=3)
    pm.Bernoulli("y", logit_p=ability[GROUP] - difficulty[ITEM], observed=BINARY)


def _crossed_draws(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    s, level = np.exp(0.5 * rng.standard_normal(DRAWS)), 0.3 + rng.standard_normal(DRAWS)
    ability = level[:, None] + s[:, None] * rng.standard_normal((DRAWS, 2))
    difficulty = 1.5 * rng.standard_normal((DRAWS, 3))
    difficulty -= difficulty.mean(axis=1, keepdims=True)
    f = ability[:, GROUP] - difficulty[:, ITEM]
    return {"s": s, "level": level, "ability": ability, "difficulty": difficulty}, f[:, None]


def _missing() -> None:
    s, level = pm.LogNormal("s", 0, 0.5), pm.Normal("level", 0.3, 1)
    ability = pm.Normal("ability", level, s, shape=2)
    labels = np.ma.masked_array(BINARY, ~KEPT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
        gpep.Probit("y", ability[GROUP] + 0.5 * X, observed=labels)


def _missing_draws(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    s, level = np.exp(0.5 * rng.standard_normal(DRAWS)), 0.3 + rng.standard_normal(DRAWS)
    ability = level[:, None] + s[:, None] * rng.standard_normal((DRAWS, 2))
    f = ability[:, GROUP] + 0.5 * X
    unobserved = rng.standard_normal((DRAWS, 2)) < f[:, ~KEPT]
    values = {"s": s, "level": level, "ability": ability, "y_unobserved": unobserved.astype(float)}
    return values, f[:, None, KEPT]


def _mixed() -> None:
    s, eta = pm.LogNormal("s", 0, 0.5), pm.LogNormal("eta", 0, 0.5)
    z, beta = pm.Normal("z", 0, 1, shape=3), pm.Normal("beta", 0, 1)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=1.0))
    g = gp.prior("g", X=PLACES, reparameterize=False)
    u = pm.Deterministic("u", s * z)
    gpep.Probit("y", u[ITEM] + beta * X + g[GROUP] + 0.2, observed=BINARY)


def _mixed_draws(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    s, eta = np.exp(0.5 * rng.standard_normal((2, DRAWS)))
    u, beta = s[:, None] * rng.standard_normal((DRAWS, 3)), rng.standard_normal(DRAWS)
    root = np.linalg.cholesky(np.exp(-0.5 * (PLACES - PLACES.T) ** 2))
    g = eta[:, None] * (rng.standard_normal((DRAWS, 2)) @ root.T)
    f = u[:, ITEM] + beta[:, None] * X + g[:, GROUP] + 0.2
    return {"s": s, "eta": eta, "beta": beta, "u": u, "g": g}, f[:, None]


def _classes() -> None:
    s = pm.LogNormal("s", 0, 0.5)
    b = pm.Normal("b", 0, s, shape=3)
    a = pm.ZeroSumNormal("a", 1.0, shape=3)
    gpep.MultinomialProbit("y", X[:, None] * b + a, observed=KINDS)


def _classes_draws(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    s = np.exp(0.5 * rng.standard_normal(DRAWS))
    b, a = s[:, None] * rng.standard_normal((DRAWS, 3)), rng.standard_normal((DRAWS, 3))
    a -= a.mean(axis=1, keepdims=True)
    return {"s": s, "b": b, "a": a}, b[:, :, None] * X + a[:, :, None]


SUM_PROBLEMS = {
    "crossed": SumProblem("bernoulli", BINARY, _crossed, _crossed_draws),
    "missing": SumProblem("bernoulli_probit", BINARY[KEPT], _missing, _missing_draws),
    "mixed": SumProblem("bernoulli_probit", BINARY, _mixed, _mixed_draws),
    "classes": SumProblem("multinomial_probit", KINDS, _classes, _classes_draws),
}


def build(name: str) -> pm.Model:
    """The model of a problem."""
    with pm.Model() as model:
        SUM_PROBLEMS[name].declare()
    return model


def _columns(values: dict[str, np.ndarray]) -> np.ndarray:
    """All variables and their squares, with scales by their logarithms, (..., columns)."""
    ndim = next(each.ndim for name, each in values.items() if name == "s")
    logs = {name: np.log(each) if name in ("s", "eta") else each for name, each in values.items()}
    columns = np.concatenate([each.reshape(*each.shape[:ndim], -1) for each in logs.values()], axis=-1)
    return np.concatenate([columns, columns**2], axis=-1)


@cache
def expected(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means of the variables and their squares, and the standard errors of these means."""
    mean, error, effective = moments(name, SUM_PROBLEMS[name].labels, GROUP, ITEM, X, PLACES, KEPT)
    assert effective[0] > 2000
    return mean, error


@stored
def moments(name: str, labels: np.ndarray, *_inputs: np.ndarray) -> np.ndarray:
    """Return the means and their errors. A third row has the effective number of draws in all columns."""
    problem = SUM_PROBLEMS[name]
    values, f = problem.draw(np.random.default_rng(0))
    columns = _columns(values)
    mean, error, effective = posterior_moments(problem.kind, labels, columns, f)
    count = columns.shape[1]
    return np.array([mean[:count], error[:count], np.full(count, effective)])


def assert_exact(name: str, idata: xr.DataTree, least_effective: float = 100.0) -> None:
    """Compare draws with the expected means, within 4.5 standard errors."""
    mean, error = expected(name)
    posterior = idata["posterior"].to_dataset()
    names = SUM_PROBLEMS[name].draw(np.random.default_rng(0))[0]
    sampled = _columns({each: posterior[each].values for each in names})
    monte_carlo = standard_errors(sampled)
    z = (sampled.mean(axis=(0, 1)) - mean) / np.hypot(error, monte_carlo)
    assert np.abs(z).max() < 4.5, z
    assert monte_carlo[0] < 1.5 / np.sqrt(least_effective), monte_carlo[0]
