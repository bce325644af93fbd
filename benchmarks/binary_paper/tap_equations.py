"""Equation (11), second line, at the fixed point of EP: whether it gives the precisions of the sites.

The first line is the derivative α of the log normaliser of a tilted distribution in the mean of its cavity. It holds at
every fixed point. The second line is [W⁻¹]_ii = σ²_¬i (1 / (α_i [Kα]_i) − 1). For a probit Φ(y f) it holds if K and the
cavities contain the noise of variance 1. Then the likelihood is a step, and W⁻¹ belongs to f plus noise.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.binary_paper.methods import LINKS, METHODS
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment

SIZES = (5, 20, 100)


def differences(likelihood: str, points: int, seed: int) -> dict[str, Any]:
    """Site variances of EP, and largest differences of both lines and of the second line with noise in K."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, points)
    y = (rng.uniform(size=points) < 0.5 + 0.4 * np.sin(2 * x)).astype(np.int64)
    K = 4.0 * np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-6 * np.eye(points)
    posterior = METHODS["EP"].solve(K, np.zeros((1, points)), y, likelihood=LINKS[likelihood]).posterior
    variance, alpha = 1 / posterior.precision[0], posterior.weights[0]
    cavity = 1 / np.diag(np.linalg.inv(K + np.diag(variance))) - variance
    mean = K @ alpha - cavity * alpha
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    at = mean[:, None] + np.sqrt(cavity)[:, None] * nodes
    densities = LINKS[likelihood].link((2 * y - 1)[:, None] * at) * weights
    first = (densities * nodes).sum(axis=1) / np.sqrt(cavity) / densities.sum(axis=1)
    second = cavity * (1 / (alpha * (K @ alpha)) - 1)
    with_noise = (cavity + 1) * (1 / (alpha * (K @ alpha + alpha)) - 1) + 1
    return {
        "sites": variance,
        "first": np.abs(first - alpha).max(),
        "second": np.abs(second - variance).max(),
        "with noise": np.abs(with_noise - variance).max(),
    }


class TapEquations(Experiment):
    title = "Equation (11) at the fixed point of EP"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        return [
            Cell(f"{likelihood}, {points} points", differences, {"likelihood": likelihood, "points": points, "seed": 1})
            for likelihood in LINKS
            for points in SIZES[: 1 if quick else None]
        ]

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        columns = "likelihood, points", "site variances", "first line", "second line", "second line, noise in K"
        rows = [
            (name, f"{x['sites'].min():.2f} to {x['sites'].max():.1f}", x["first"], x["second"],
             x["with noise"] if name.startswith("probit") else None)
            for name, x in found.items()
        ]  # fmt: skip
        return {"differences": Table("Largest differences", columns, ("", "", ".0e", ".3g", ".0e"), rows)}

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        return {name: {key: values.tolist() for key, values in cell.items()} for name, cell in found.items()}, str(
            self.tables(found)["differences"]
        )


EXPERIMENT = TapEquations()
