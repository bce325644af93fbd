"""Section 3 of Girolami and Rogers: hyper-hyperparameters α = (σ, τ) by type-II maximum likelihood, on the toy.

The paper mentions this option, and uses vague priors in its experiments. After each step of the mean field, α maximises
Π_d p(φ̃_d | σ, τ) with ψ_d integrated out: p(φ | σ, τ) = σ τ^σ / (τ + φ)^{σ + 1}.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from benchmarks.active_sets.toy import ALPHA, INPUTS, RELEVANT, TEST, covariance, draw_data, model_of
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.approximations import VariationalBayes
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.mean_field import mean_field_steps

Array = np.ndarray

DATA_SETS = 1
LATE = 10
PRIORS = {"vague": "σ = τ = 0.001", "learned": "learned", "late": f"learned from step {LATE}"}
FIRST = {"vague": np.inf, "learned": 0, "late": LATE}
"""First step after which α is learned."""
_BOUND = np.log(1e6)


def most_likely_alpha(phi: Array) -> tuple[float, float]:
    """Return σ and τ that maximise the density of relevances (d,) with ψ integrated out, between 1e-6 and 1e6."""

    def negative(logs: Array) -> float:
        shape, rate = np.exp(logs)
        return -float(np.sum(logs[0] + shape * logs[1] - (shape + 1.0) * np.log(rate + phi)))

    first = np.array([0.0, np.log(np.median(phi))])
    found = minimize(negative, first, method="Nelder-Mead", bounds=[(-_BOUND, _BOUND)] * 2)
    shape, rate = np.exp(found.x)
    return float(shape), float(rate)


def relevances(
    X: Array, y: Array, first: float, draws: int, seed: int
) -> Iterator[tuple[Array, Array, tuple[float, float]]]:
    """Relevances (d,), latent means (3, n) and α of each step of the mean field with the authors' weights.

    α is learned from the step `first` on.
    """
    alpha, theta, utilities = ALPHA, None, None
    for step in count():
        log_posterior = DenseLogPosterior(read_classifier(model_of(X, y, alpha=alpha)), VariationalBayes())
        if theta is None:
            theta = log_posterior.space.initial_point({"phi": np.ones(INPUTS)})
        phi = log_posterior.space.natural(theta[None])["phi"][0]
        (taken,) = islice(
            mean_field_steps(
                log_posterior, theta, draws=draws, weights="authors", utilities=utilities, random_seed=seed + 100 * step
            ),
            1,
        )
        yield phi, taken.latent.mean, alpha
        theta, utilities = taken.theta, taken.latent.utilities
        if step >= first:
            alpha = most_likely_alpha(log_posterior.space.natural(theta[None])["phi"][0])


def follow(seed: int, prior: str, points: int, draws: int, steps: int) -> dict[str, Any]:
    """Relevances, α and the accuracy at the last step, for one data set."""
    rng = np.random.default_rng(seed)
    (X, y), (Xnew, ynew) = draw_data(points, rng), draw_data(TEST, rng)
    with threadpool_limits(1):
        *_, (phi, mean, alpha) = islice(relevances(X, y, FIRST[prior], draws, seed), steps)
        k = covariance(X, X, phi) + 1e-6 * np.eye(points)
        means = covariance(Xnew, X, phi) @ np.linalg.solve(k, mean.T)
    return {"phi": phi, "alpha": alpha, "accuracy": (means.argmax(axis=1) == ynew).mean()}


class Alpha(Experiment):
    title = "Type-II maximum likelihood of α, on the toy of Girolami and Rogers (2006)"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"points": 60, "draws": 50, "steps": 3} if quick else {"points": 240, "draws": 200, "steps": 20}
        return [
            Cell(f"{prior} {seed}", follow, {"seed": seed, "prior": prior, **size})
            for seed in range(1 if quick else DATA_SETS)
            for prior in PRIORS
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record = {name: run["phi"].tolist() for name, run in found.items()}
        return record, "\n\n".join(map(str, self.tables(found).values()))

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        rows = []
        for seed in range(DATA_SETS):
            for prior, title in PRIORS.items():
                if (run := found.get(f"{prior} {seed}")) is not None:
                    phi = run["phi"]
                    relevant, alpha = (", ".join(f"{x:.3g}" for x in each) for each in (phi[:RELEVANT], run["alpha"]))
                    rows.append((title, seed, float(run["accuracy"]), relevant, phi[RELEVANT:].max(), alpha))
        columns = ("α", "data set", "accuracy", "φ₁, φ₂", "largest other", "σ, τ at the end")
        formats = ("", "d", ".4f", "", ".2g", "")
        return {"priors": Table("Vague and learned priors of relevances", columns, formats, rows)} if rows else {}


EXPERIMENT = Alpha()
