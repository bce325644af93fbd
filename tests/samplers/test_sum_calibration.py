"""Simulation-based calibration of a sampler on sums of effects, with data from an independent simulation.

As in `tests/samplers/test_calibration.py`, chains start at the true values. The limit for p values accounts for their
number.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_gpep as gpep
from tests.reference.rank_uniformity import ecdf_p_value, histogram_p_value

FALSE_ALARM = 1e-3
DRAWS, THIN, TUNE = 15, 4, 120
GROUP = np.repeat(np.arange(6), 4)
X = np.linspace(-1.0, 1.0, 24)
URANIUM = np.array([-1.0, -0.6, -0.2, 0.2, 0.6, 1.0])


class Problem(NamedTuple):
    """A model, and a simulation of its variables and observations."""

    draw: Callable[[np.random.Generator], tuple[dict[str, np.ndarray], np.ndarray]]
    declare: Callable[[np.ndarray], None]


def _draw_intercepts(rng):
    level, gamma, beta, sigma = *rng.standard_normal(3), abs(rng.standard_normal())
    alpha = level + gamma * URANIUM + sigma * rng.standard_normal(6)
    y = (rng.random(24) < expit(alpha[GROUP] + beta * X)).astype(int)
    return {"level": level, "gamma": gamma, "beta": beta, "alpha": alpha, "sigma_log__": np.log(sigma)}, y


def _intercepts(y):
    level, gamma, beta = (pm.Normal(name, 0, 1) for name in ("level", "gamma", "beta"))
    sigma = pm.HalfNormal("sigma", 1)
    alpha = pm.Normal("alpha", level + gamma * URANIUM, sigma)
    pm.Bernoulli("y", logit_p=alpha[GROUP] + beta * X, observed=y)


def _draw_walk(rng):
    level, s, size = rng.standard_normal(), abs(0.5 * rng.standard_normal()), rng.gamma(2.0, 2.0)
    walk = np.cumsum(np.append(rng.standard_normal(), s * rng.standard_normal(11)))
    y = rng.poisson(np.exp(level + walk) * rng.gamma(size, 1.0 / size, 12))
    return {"level": level, "walk": walk, "s_log__": np.log(s), "size_log__": np.log(size)}, y


def _walk(y):
    level, s, size = pm.Normal("level", 0, 1), pm.HalfNormal("s", 0.5), pm.Gamma("size", 2, 0.5)
    walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=12)
    pm.NegativeBinomial("y", mu=pm.math.exp(level + walk), alpha=size, observed=y)


PROBLEMS = {"varying intercepts": Problem(_draw_intercepts, _intercepts), "walk": Problem(_draw_walk, _walk)}


def rank(problem, seed):
    """Ranks of all true values among the draws."""
    rng = np.random.default_rng(seed)
    truth, y = problem.draw(rng)
    with pm.Model():
        problem.declare(y)
        step = gpep.samplers.GuidedHMC()
    step.setup_chain(rng, TUNE, DRAWS)
    point, draws = {name: np.asarray(value) for name, value in truth.items()}, []
    for i in range(TUNE + DRAWS * THIN):
        if i == TUNE:
            step.stop_tuning()
        point, _ = step.step(point)
        if i >= TUNE and (i - TUNE) % THIN == THIN - 1:
            draws.append(point)

    def flat(values):
        return np.concatenate([np.ravel(values[name]) for name in truth])

    return (np.stack([flat(each) for each in draws]) < flat(truth)).sum(axis=0)


@pytest.mark.calibration
@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_of_draws_from_a_sum_of_effects_are_uniform(name):
    ranks = np.stack([rank(PROBLEMS[name], seed) for seed in range(200)])
    p = np.array([(histogram_p_value(each, DRAWS, 16), ecdf_p_value(each, DRAWS)) for each in ranks.T])
    assert p.min() > FALSE_ALARM / p.size, p
