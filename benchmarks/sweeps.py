"""A sweep of EP with inducing inputs over all rows, and its gradient, against the necessary work of a sweep.

Functions that are independent given the data each need a Gram matrix of features (dsyrk) and a product with a
triangular root (dtrmm): this is their floor. Nested sites need both for each pair of functions. They also need a factor
of the precision of all functions, its inverse and the inverse of the precision (dpotrf, dtrtri, dlauum). Both floors
include the time of the sites of the rows, as computed here. Products are of blocks of rows that fit into a core's
cache. All times are the shortest of several turns, in processor time of one thread, with a covariance that all classes
share.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg.blas import dsyrk, dtrmm
from scipy.linalg.lapack import dlauum, dpotrf, dtrtri

from pymc_gpep.approximations.site_rules import Nested, Pairs, SiteRule, WholePoint
from pymc_gpep.approximations.sparse_ep import sweep_of
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.solvers.inducing import Block, RowFeatures, whitening
from pymc_gpep.solvers.sparse_sweeps import SiteSweeps
from pymc_gpep.solvers.team import ALONE

BLOCK = 1000
RULES: dict[str, Callable[[], SiteRule]] = {"quadrature": WholePoint, "pairwise": Pairs, "nested": Nested}


class Prior:
    """A squared exponential that c functions share, at rows X (n, 10), the first M of which are inducing inputs."""

    n_effects = 0

    def __init__(self, X: Array, c: int, m: int) -> None:
        self.n_points, self.n_functions = len(X), c
        self._X, self._Z = X, X[:m]

    def inducing(self) -> Array:
        return self._covariance(self._Z)[None]

    def block(self, rows: slice) -> Block:
        X = self._X[rows]
        return Block(self._covariance(X)[None], np.full((1, len(X)), 4.0), np.zeros((self.n_functions, len(X))))

    def _covariance(self, X: Array) -> Array:
        squared = (self._Z**2).sum(1)[:, None] + (X**2).sum(1) - 2.0 * self._Z @ X.T
        covariance: Array = 4.0 * np.exp(-squared / 8.0)
        return covariance


def least(turns: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Shortest processor time of each function, in ms. The functions take turns."""
    found = dict.fromkeys(works, np.inf)
    for _ in range(turns):
        for name, work in works.items():
            began = time.process_time()
            work()
            found[name] = min(found[name], 1e3 * (time.process_time() - began))
    return found


def converged(sweeps: SiteSweeps[Any, Any], shape: tuple[int, ...]) -> Array:
    """Sites after ten damped sweeps from zero sites."""
    sites, target, scale = np.zeros((2, *shape)), np.zeros((2, *shape)), np.zeros(shape)
    for _ in range(10):
        assert sweep_of(sweeps)(sites, target, scale)[0]
        sites += 0.8 * (target - sites)
    return sites


def products(n: int, m: int, count: int) -> Callable[[], object]:
    """The work of `count` Gram matrices and triangular products of n rows."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(BLOCK, m))
    lower, gram = np.tril(rng.normal(size=(m, m))), np.zeros((m, m), order="F")

    def work() -> None:
        for _ in range(0, n, BLOCK):
            for _ in range(count):
                dsyrk(1.0, rows.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
                dtrmm(1.0, lower.T, rows.T, trans_a=True)

    return work


def inverse(size: int) -> Callable[[], object]:
    """The work of the factor of a precision, its inverse, and the inverse of the precision."""
    rng = np.random.default_rng(2)
    root = rng.normal(size=(size, size)) / np.sqrt(size)
    precision = np.asfortranarray(np.eye(size) + root @ root.T)
    return lambda: dlauum(dtrtri(dpotrf(precision, lower=1)[0], lower=1)[0], lower=1)


def beside_floor(rule: str, n: int, c: int, m: int, turns: int) -> dict[str, float]:
    """Milliseconds of a sweep, a gradient, the floor, and their ratios."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 10))
    y = (X @ rng.normal(size=(10, c)) + rng.normal(size=(n, c))).argmax(axis=1)
    prior = Prior(X, c, m)
    white = whitening(prior.inducing(), 1e-6)
    assert white is not None
    sites_of = RULES[rule]().factors(MultinomialProbitLikelihood(), y, c)
    sweeps = sites_of.sweeps(RowFeatures(prior, white), ALONE)
    sites = converged(sweeps, sites_of.shape)
    posterior = sweeps.posterior(sites)
    target, scale = np.zeros_like(sites), np.zeros(sites_of.shape)
    nested = rule == "nested"
    works: dict[str, Callable[[], object]] = {
        "sweep": lambda: sweep_of(sweeps)(sites.copy(), target, scale),
        "gradient": lambda: list(sweeps.bars(sites, posterior)),
        "products": products(n, m, c * (c + 1) // 2 if nested else c),
        "sites": row_sites(rule, sites_of, c, y, sites),
    }
    if nested:
        works["inverse"] = inverse(c * m)
    found = least(turns, works)
    floor = sum(ms for name, ms in found.items() if name not in ("sweep", "gradient"))
    return {
        "sweep": found["sweep"], "floor": floor, "sweep to floor": found["sweep"] / floor,
        "gradient": found["gradient"], "gradient to sweep": found["gradient"] / found["sweep"],
    }  # fmt: skip


def row_sites(rule: str, sites_of: Any, c: int, y: Any, sites: Array) -> Callable[[], object]:
    """The work on the sites of all rows, from given moments."""
    rng = np.random.default_rng(3)
    n, count = sites_of.shape
    if rule != "nested":
        mean, variance = rng.normal(size=(n, count)), rng.uniform(0.1, 1.0, size=(n, count))
        return lambda: sites_of.tilted(slice(0, n), mean, variance)
    moments = rng.normal(size=(c, n)), np.tile(0.3 * np.eye(c) + 0.1, (n, 1, 1))
    target, scale, rest = np.zeros_like(sites), np.zeros(sites.shape[1:]), np.full((c, n), 0.1)
    return lambda: sites_of.update(*moments, y, rest, *sites, 1, 0.0, *target, scale)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--inducing", type=int, default=150)
    parser.add_argument("--classes", type=int, nargs="*", default=[3, 6, 10])
    parser.add_argument("--turns", type=int, default=8)
    arguments = parser.parse_args()
    for c in arguments.classes:
        for rule in RULES:
            figures = beside_floor(rule, arguments.rows, c, arguments.inducing, arguments.turns)
            print(f"{c:3} classes, {rule:10}", "  ".join(f"{key} {value:.3g}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
