"""Section 6.1 and figure 2: three classes that depend on two of ten inputs, and relevances by mean field.

Class 1 is uniform in the ring 0.1 < r² < 0.5 of the first two inputs, class 2 in 0.6 < r² < 1, and class 3 is N(0, 0.01
I). The other eight inputs are standard normal, and classes are equally likely. Covariance exp{−Σ_d φ_d (x_d − x'_d)²},
φ_d ~ Exponential(ψ_d), ψ_d ~ Gamma(0.001, 0.001). The first start has all φ_d = 1. A second start is the maximum of the
bound with the priors, which L-BFGS finds from there.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.approximations import VariationalBayes
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.hyper.weights import importance_estimate
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.mean_field import mean_field_steps

Array = np.ndarray

INPUTS, RELEVANT = 10, 2
TEST = 4620
VARIANTS: dict[str, dict[str, Any]] = {
    "authors": {"weights": "authors"},
    "utilities": {"weights": "utilities", "inner": 1},
    "printed": {"weights": "printed"},
    "latent": {"weights": "latent"},
    "latent, from the maximum": {"weights": "latent"},
}
FROM_MAXIMUM = "latent, from the maximum"
MAXIMUM = "none: the maximum itself"
DRAWN = ("bound", "phi", "accuracy")
DATA_SETS = 10
PRINTED = 0.9937


def draw_data(points: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Inputs (points, 10) and labels 0, 1, 2."""
    y = rng.integers(3, size=points)
    X = rng.normal(size=(points, INPUTS))
    low, high = np.array([0.1, 0.6, np.nan])[y], np.array([0.5, 1.0, np.nan])[y]
    radius, angle = np.sqrt(rng.uniform(size=points) * (high - low) + low), rng.uniform(0, 2 * np.pi, size=points)
    ring = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    X[:, :RELEVANT] = np.where(y[:, None] == 2, 0.1 * X[:, :RELEVANT], ring)
    return X, y


def covariance(X: Array, Z: Array, phi: Array) -> Array:
    """exp{−Σ_d φ_d (x_d − z_d)²}, (n, m)."""
    scaled, other = X * np.sqrt(phi), Z * np.sqrt(phi)
    squared = (scaled**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * scaled @ other.T
    return np.exp(-np.maximum(squared, 0))


ALPHA = (1e-3, 1e-3)
"""Shape σ and rate τ of the gamma prior of ψ."""


def model_of(X: Array, y: Array, ard: bool = True, alpha: tuple[float, float] = ALPHA) -> pm.Model:
    """Model with a relevance for each input, or a single relevance."""
    inputs = X.shape[1]
    shape = (inputs,) if ard else ()
    with pm.Model() as model:
        psi = pm.Gamma("psi", *alpha, shape=shape)
        phi = pm.Exponential("phi", psi, shape=shape)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(inputs, ls=1 / pm.math.sqrt(2 * phi)))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=int(y.max()) + 1).T, observed=y)
    return model


def follow(seed: int, variant: str, points: int, draws: int, steps: int) -> Arrays:
    """Bound, relevances, accuracy and effective number of draws at each step, for one data set."""
    rng = np.random.default_rng(seed)
    (X, y), (Xnew, ynew) = draw_data(points, rng), draw_data(TEST, rng)
    columns: dict[str, list[Any]] = {name: [] for name in ("bound", "phi", "accuracy", "effective")}
    with threadpool_limits(1):
        log_posterior = DenseLogPosterior(read_classifier(model_of(X, y)), VariationalBayes())
        theta = log_posterior.space.initial_point({"phi": np.ones(INPUTS)})
        if variant == FROM_MAXIMUM:
            theta = maximise(log_posterior, theta, 500).best.theta
        all_steps = mean_field_steps(log_posterior, theta, draws=draws, random_seed=seed, **VARIANTS[variant])
        for step in islice(all_steps, steps):
            phi = log_posterior.space.natural(theta[None])["phi"][0]
            k = log_posterior.moments(theta).k[0]
            means = covariance(Xnew, X, phi) @ np.linalg.solve(k, step.latent.mean.T)
            columns["bound"].append(step.latent.bound)
            columns["phi"].append(phi)
            # All classes have the same variance, so the most probable class has the largest mean.
            columns["accuracy"].append((means.argmax(axis=1) == ynew).mean())
            columns["effective"].append(importance_estimate(step.log_weights[0])[1])
            theta = step.theta
    return {name: np.array(column) for name, column in columns.items()}


class Toy(Experiment):
    title = "Section 6.1 of Girolami and Rogers (2006): ten inputs, two of them relevant"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"points": 90, "draws": 100, "steps": 6} if quick else {"points": 240, "draws": 500, "steps": 50}
        return [
            Cell(f"{variant} {seed}", follow, {"seed": seed, "variant": variant, **size})
            for variant in VARIANTS
            for seed in range(1 if quick else DATA_SETS)
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| weights | data sets | accuracy at the end | at the highest bound | bound: first, highest (step), last "
            "| φ₁, φ₂ at the end | largest other | ratio | effective draws |",
            "| --- " * 9 + "|",
        ]
        record: dict[str, Any] = {}
        for variant in (*VARIANTS, MAXIMUM):
            runs = of_variant(variant, found)
            if not runs:
                lines.append(f"| {variant} | 0 |{' not computed |' * 7}")
                continue
            rows = [summary(run) for run in runs]
            record[variant] = rows
            middle = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
            worst, best = (f([row["accuracy"] for row in rows]) for f in (min, max))
            lines.append(
                f"| {variant} | {len(rows)} | {middle['accuracy']:.4f} ({worst:.4f} to {best:.4f}) "
                f"| {middle['accuracy_at_highest']:.4f} | {middle['first']:.1f}, {middle['highest']:.1f} "
                f"({middle['step']:.0f}), {middle['last']:.1f} | {middle['phi_1']:.3g}, {middle['phi_2']:.3g} "
                f"| {middle['largest_other']:.2g} | {middle['ratio']:.3g} | {middle['effective']:.1f} |"
            )
        notes = (
            "Medians over data sets, and the range of the accuracy. The bound is the bound of the evidence at the "
            "mean of the relevances, without the constant by which the printed bound is too low. The ratio is the "
            "smaller of φ₁ and φ₂ divided by the largest of the other eight relevances, at the end. Effective draws "
            "are (Σw)² / Σw², the median over steps. In the last row no step was made. The paper prints an accuracy "
            f"of {PRINTED:.2%}, of one data set, and says that the bound converges steadily, that the eight irrelevant "
            "inputs are removed, and that accuracy follows the bound. The Bayes rate is 99.78 %, if classes are "
            "uniform over their rings, which the paper does not say."
        )
        return record, "\n".join([*lines, "", notes])

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        first = {variant: runs[0] for variant in VARIANTS if (runs := of_variant(variant, found))}
        return {f"{variant} 0": {name: run[name] for name in DRAWN} for variant, run in first.items()}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        shown = {variant: runs[0] for variant in VARIANTS if (runs := of_variant(variant, found))}
        if not shown:
            return None
        figure = Figure(figsize=(11, 3.2 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), 3, squeeze=False)
        for row, (variant, run) in zip(axes, shown.items(), strict=True):
            at = np.arange(1, len(run["bound"]) + 1)
            row[0].plot(at, run["bound"], color="black")
            row[0].set_title(f"{variant}: bound", fontsize=10)
            row[1].semilogy(at, run["phi"][:, RELEVANT:], color="#999999", linewidth=0.8)
            row[1].semilogy(at, run["phi"][:, :RELEVANT], color="#0072b2")
            row[1].set_title("φ: relevant in blue", fontsize=10)
            row[2].plot(at, run["accuracy"], color="black")
            row[2].set_title("accuracy", fontsize=10)
            for ax in row:
                ax.set_xlabel("step")
        return figure


def of_variant(variant: str, found: Mapping[str, Arrays]) -> list[Arrays]:
    """Available runs of a variant in the order of their data sets."""
    if variant == MAXIMUM:  # the start of the other variants
        return [{name: x[:1] for name, x in run.items() if x.ndim} for run in of_variant(FROM_MAXIMUM, found)]
    return [found[name] for seed in range(DATA_SETS) if (name := f"{variant} {seed}") in found]


def summary(run: Arrays) -> dict[str, float]:
    """Summary of one data set."""
    last, top = run["phi"][-1], int(run["bound"].argmax())
    other = float(last[RELEVANT:].max())
    return {
        "accuracy": float(run["accuracy"][-1]),
        "accuracy_at_highest": float(run["accuracy"][top]),
        "first": float(run["bound"][0]),
        "highest": float(run["bound"][top]),
        "step": float(top + 1),
        "last": float(run["bound"][-1]),
        "phi_1": float(last[0]),
        "phi_2": float(last[1]),
        "largest_other": other,
        "ratio": float(last[:RELEVANT].min() / other),
        "effective": float(np.median(run["effective"])),
    }


EXPERIMENT = Toy()
