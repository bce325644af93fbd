"""Models and options of small fits by batches, and results of their first steps.

`steps.json` has the results of another implementation: one PyTensor graph, with automatic derivatives and no kernel.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_gpep as gpep
from pymc_gpep.streaming.memories import Stateless, Stochastic, StoredMemory, Variational
from tests import models
from tests.streaming.problems import Small, small

FILE = Path(__file__).with_name("steps.json")


def matern(d, ls):
    return pm.gp.cov.Matern32(d, ls=ls)


def exponential(d, ls):
    return pm.gp.cov.ExpQuad(d, ls=ls)


def noisy(d, ls):
    return pm.gp.cov.Matern52(d, ls=ls) + pm.gp.cov.WhiteNoise(0.3 * ls[0])


def quadratic(d, ls):
    """A covariance function without a hand-written derivative."""
    return pm.gp.cov.RatQuad(d, ls=ls, alpha=2.0)


def classes(covariance, observe=gpep.MultinomialProbit, **options):
    """A model of flowers. All classes share a covariance."""

    def build():
        X, y = models.data()
        with pm.Model() as model:
            ls = pm.InverseGamma("ls", 3, 3, shape=2)
            eta = pm.HalfNormal("eta", 3)
            gp = pm.gp.Latent(cov_func=eta**2 * covariance(2, ls))
            observe("y", gp.prior("f", X=X, n_outputs=3).T, observed=y, **options)
        return model, gp

    return build


def own_covariances(*kinds, shared=0, level=False, **options):
    """A model with a level.

    The first classes share a covariance, and each further class has a covariance of its own.
    """

    def build():
        X, y = models.data()
        with pm.Model() as model:
            ls = pm.LogNormal("ls", 0, 0.5, shape=(len(kinds), 2))
            eta = pm.HalfNormal("eta", 3, shape=len(kinds))
            gps, rows = [], []
            for k, covariance in enumerate(kinds):
                mean = pm.gp.mean.Constant(pm.Normal("level", 0, 1)) if level and not k else pm.gp.mean.Zero()
                gps.append(pm.gp.Latent(mean_func=mean, cov_func=eta[k] ** 2 * covariance(2, ls[k])))
                f = gps[-1].prior(f"f_{k}", X=X, **({"n_outputs": shared} if shared and not k else {}))
                rows.append(pt.atleast_2d(f))
            gpep.MultinomialProbit("y", pt.concatenate(rows).T, observed=y, **options)
        return model, gps

    return build


ONE = {"bernoulli_probit": models.bernoulli_probit, "bernoulli_logit": models.bernoulli_logit}
SEVERAL = {
    "pairwise": (classes(matern), "pairwise", 1e-7),
    "quadrature": (models.shared, "quadrature", 1e-4),
    "label noise": (classes(matern, epsilon=0.05), None, 1e-4),
    "robust max": (classes(noisy, gpep.RobustMax, epsilon=0.02), None, 1e-2),  # integrals have four digits
}
BOUNDED = {"pairwise", "label noise", "robust max"}
STEPS: dict[str, tuple[Any, Any, str | None, float, bool]] = {
    **{
        f"{memory.name}, {name}": (build, memory, None, 1e-7, True)
        for memory in (Stateless(), Stochastic(), StoredMemory(), Variational())
        for name, build in ONE.items()
    },
    **{
        f"{memory.name}, {name}": (build, memory, sites, tolerance, True)
        for memory in (Stateless(), Stochastic(), StoredMemory(), Variational())
        for name, (build, sites, tolerance) in SEVERAL.items()
        if memory.functional == "log normaliser" or name in BOUNDED
    },
    "three local iterations": (classes(matern), Stateless(local_iterations=4), "pairwise", 1e-7, True),
    "effects beside a process": (models.effects_beside, Stochastic(), None, 1e-7, True),
    "effects beside a process, sites": (models.effects_beside, StoredMemory(), None, 1e-7, True),
    "own covariances with means": (models.per_class, Stateless(), "pairwise", 1e-9, False),
    "own covariances with means, sites": (models.per_class, StoredMemory(), "pairwise", 1e-9, False),
    "own covariances, the same inducing inputs": (
        own_covariances(matern, exponential, matern), Stochastic(), "pairwise", 1e-9, True,
    ),
    "own covariances and inducing inputs": (
        own_covariances(matern, matern, matern), Stateless(), "quadrature", 1e-4, False,
    ),
    "own covariances with noise": (own_covariances(noisy, matern, noisy), Stateless(), "pairwise", 1e-9, False),
    "a bound of pairs, own covariances": (
        own_covariances(matern, exponential, noisy), Variational(), "pairwise", 1e-7, False,
    ),
    "a bound with label noise, own covariances": (
        own_covariances(noisy, matern, noisy, epsilon=0.05), Variational(), None, 1e-3, False,
    ),
    "own inducing inputs": (classes(matern), Stochastic(), "pairwise", 1e-9, False),
    "own inducing inputs, sites": (classes(matern), StoredMemory(), "pairwise", 1e-9, False),
    "two that share a covariance": (
        own_covariances(matern, exponential, shared=2), Stateless(), "pairwise", 1e-9, True,
    ),
    "two that share a covariance, sites": (
        own_covariances(matern, exponential, shared=2), StoredMemory(), "pairwise", 1e-9, True,
    ),
    "two that share another covariance": (
        own_covariances(quadratic, matern, shared=2, level=True), Stateless(), "pairwise", 1e-9, True,
    ),
}  # fmt: skip


def problem_of(name: str) -> Small:
    """Return the fit of a name, with batches of unequal sizes."""
    build, memory, sites, _, together = STEPS[name]
    return small(build, memory, sites, 13, together=together)


def numbers(problem: Small, step: Any) -> dict[str, list[float]]:
    """Results of five steps, the first two without learning: values, θ, and sums over each array of the state."""
    batches = problem.batches.after(0)
    problem.state.set_values(problem.state.values())  # as a resumed fit does
    taken = [step(*next(batches), 0.3, i >= 2) for i in range(5)]
    assert all(each.went_well for each in taken)
    found = {
        "log posterior": [float(each.log_posterior) for each in taken],
        "floored": [float(each.floored) for each in taken],
    }
    for name, each in problem.state.values().items():
        flat = np.asarray(each, np.float64).ravel()
        whole = name in {"theta", "inducing"}
        weights = np.cos(np.arange(flat.size))
        found[name] = flat.tolist() if whole else [flat.sum(), flat @ weights, np.sqrt(flat @ flat)]
    return found


def kept() -> dict[str, dict[str, list[float]]]:
    """Return the stored results of the graph."""
    return dict(json.loads(FILE.read_text()))
