"""Section 10: log evidences by annealed importance sampling, from the prior and from approximations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.binary_paper import figures6_8
from benchmarks.binary_paper.covariances import Priors
from benchmarks.binary_paper.data import TITLES, USPS, load
from benchmarks.binary_paper.methods import EVERY, LINKS
from benchmarks.binary_paper.regimes import LABELS, REGIMES, covariance, exact
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.checks.annealed_evidence import (
    anneal,
    importance_weights,
    posterior_base,
    prior_base,
    thermodynamic_estimate,
)
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.hyper.weights import importance_estimate

Array = np.ndarray

STARTS = ("prior", "LA", "EP")
TEMPERATURES = (2, 4, 8, 16, 32)
FAR = 3.0
"""Largest number of standard errors from the exact value, beyond which a star marks the difference."""
POINTS = {
    "sonar (2, 0)": ("sonar", "probit", (2.0, 0.0)),
    "sonar (2, 2)": ("sonar", "probit", (2.0, 2.0)),
    "sonar (2, 4)": ("sonar", "probit", (2.0, 4.0)),
    "sonar (3, 4)": ("sonar", "logit", (3.0, 4.0)),
    **{f"usps35 {setting}": (USPS, "logit", setting) for setting in figures6_8.SETTINGS.values()},
}
"""Data, likelihood, and log ℓ and log σ_f."""
LONG = "long"
PAPER = (
    "The paper states: in regimes 4 to 6 a start from EP needs fewer temperatures than a start from LA, and a start "
    "from LA fewer than a start from the prior. In regimes 7 to 9 there is no difference. The evidence of EP hardly "
    "differs from the evidence by MCMC."
)


def of_regime(regime: int, runs: int, side: int) -> dict[str, Any]:
    """Log evidence and standard error (starts, numbers of temperatures), for two points and a probit."""
    K, link = covariance(*REGIMES[regime]), LINKS["probit"]
    found = [[_anneal(K, LABELS, "probit", start, count, runs) for count in TEMPERATURES] for start in STARTS]
    return {"exact": exact(K, LABELS, link, side).evidence, "found": found}


def of_data(data: str, point: str, counts: Mapping[str, int], runs: int, size: list[int] | None) -> dict[str, Any]:
    """Log evidence and standard error (starts), and EP's log evidence."""
    name, likelihood, setting = POINTS[point]
    split = load(name, data, size=size)
    k = Priors(split, "squared exponential").at(*setting).k
    ep = EVERY["EP"].solve(k, np.zeros((1, split.y.size)), split.y, likelihood=LINKS[likelihood])
    found = [_anneal(k, split.y, likelihood, start, count, runs) for start, count in counts.items()]
    return {"EP": ep.evidence, "found": found, "starts": list(counts), "temperatures": list(counts.values())}


def _anneal(k: Array, labels: Array, likelihood: str, start: str, temperatures: int, runs: int) -> list[float]:
    """Log evidence by importance sampling and its error, effective runs, and thermodynamic evidence and its error."""
    link, mean = LINKS[likelihood], np.zeros((1, labels.size))
    even = np.linspace(0.0, 1.0, temperatures)
    if start == "prior":
        base, path = prior_base(DensePrior(k[None], mean)), even**4
    else:
        base, path = posterior_base(EVERY[start].solve(k, mean, labels, likelihood=link).posterior), even

    def fit(f: Array) -> float:
        return float(link.log_density(f, labels))

    u, _ = anneal(base, fit, path, runs, 1, np.random.default_rng(1))
    estimate, effective = importance_estimate(base.log_normaliser + importance_weights(u, path))
    thermodynamic = thermodynamic_estimate(u, path)
    return [*estimate, effective, base.log_normaliser + thermodynamic.value, thermodynamic.error]


class Annealing(Experiment):
    title = "Section 10: annealed importance sampling"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        runs, side = (40, 301) if quick else (400, 1201)
        few = {"prior": 40, "LA": 10, "EP": 10}
        # Started at the prior, or with as many temperatures started at LA, 767 labels would take too long.
        many = {"sonar": {"prior": 200, "LA": 50, "EP": 50}, USPS: {"EP": 30}}
        long = {"sonar": {"EP": 1000}, USPS: {"EP": 400}}
        points = list(POINTS)[:1] if quick else list(POINTS)
        common = {"data": data, "runs": 10 if quick else 50, "size": [40, 10] if quick else None}
        return [
            *(Cell(f"regime {r}", of_regime, {"regime": r, "runs": runs, "side": side}) for r in REGIMES),
            *(
                Cell(point, of_data, common | {"point": point, "counts": few if quick else many[POINTS[point][0]]})
                for point in points
            ),
            *(
                Cell(f"{point} {LONG}", of_data, common | {"point": point, "counts": long[POINTS[point][0]]})
                for point in points
                if not quick
            ),
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {name: {key: x.tolist() for key, x in cell.items()} for name, cell in found.items()}
        lines = [
            PAPER, "", "## Two points, probit: standard error of the log evidence", "",
            f"| regime | exact | start | {' | '.join(f'{count} temperatures' for count in TEMPERATURES)} |",
            "| --- " * (3 + len(TEMPERATURES)) + "|",
        ]  # fmt: skip
        for regime in REGIMES:
            if (cell := found.get(f"regime {regime}")) is None:
                continue
            for start, row in zip(STARTS, cell["found"], strict=True):
                off = [abs(x[0] - cell["exact"]) / x[1] for x in row]
                shown = " | ".join(f"{x[1]:.4f} ({z:.1f})" for x, z in zip(row, off, strict=True))
                lines.append(f"| {regime} | {float(cell['exact']):.4f} | {start} | {shown} |")
        lines += [
            "", "Brackets contain the distance of the estimate from the exact value, in standard errors.", "",
            "## Data", "",
            "| data (log ℓ, log σ_f) | likelihood | EP | start | temperatures | annealed | effective runs "
            "| thermodynamic |",
            "| --- " * 8 + "|",
        ]  # fmt: skip
        parts = {f"{point}{of}": where for point, where in POINTS.items() for of in ("", f" {LONG}")}
        for point, (name, likelihood, setting) in parts.items():
            if (cell := found.get(point)) is None:
                continue
            for start, count, x in zip(cell["starts"], cell["temperatures"], cell["found"], strict=True):
                lines.append(
                    f"| {TITLES[name]} {setting} | {likelihood} | {float(cell['EP']):.3f} | {start} | {int(count)} "
                    f"| {x[0]:.3f} ± {x[1]:.3f} | {x[2]:.0f} | {x[3]:.3f} ± {x[4]:.3f} |"
                )
        return record, "\n".join(lines)

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        return _of_two_points(found) | _of_data(found)


def _of_two_points(found: Mapping[str, Arrays]) -> dict[str, Table]:
    """Table of standard errors for two points."""
    rows = []
    for regime in REGIMES:
        if (cell := found.get(f"regime {regime}")) is not None:
            off = np.abs(cell["found"][..., 0] - cell["exact"]) > FAR * cell["found"][..., 1]
            texts = [
                ", ".join(
                    f"{x[i, 1]:.3f}{'*' * bool(far[i])}" for x, far in zip(cell["found"], off, strict=True)
                )
                for i in range(len(TEMPERATURES))
            ]  # fmt: skip
            rows.append((str(regime), *texts))
    first, *others = map(str, TEMPERATURES)
    columns = ("regime", f"{first} temperatures", *others)
    return {"two points": Table("Standard errors", columns, ("",) * len(columns), rows)} if rows else {}


def _of_data(found: Mapping[str, Arrays]) -> dict[str, Table]:
    """Table of the log evidence of Sonar by EP and by annealing."""
    rows = []
    for point, (name, likelihood, setting) in POINTS.items():
        cells = [found.get(f"{point}{of}") for of in ("", f" {LONG}")]
        if name != USPS and all(cell is not None for cell in cells):
            runs = [run for cell in cells for run in cell["found"]]
            texts = [_with_error(value, error) for value, error, *_ in runs]
            title = f"{TITLES[name]} ({setting[0]:g}, {setting[1]:g}), {likelihood}"
            rows.append((title, f"{float(cells[0]['EP']):.3f}", *texts, f"{runs[-1][2]:.0f}"))
    columns = (
        "data (log ℓ, log σ_f), likelihood", "EP", "from the prior, 200 temperatures", "from LA, 50", "from EP, 50",
        "from EP, 1000", "effective runs, EP, 1000",
    )  # fmt: skip
    return {"data": Table("Log evidence of data", columns, ("",) * len(columns), rows)} if rows else {}


def _with_error(value: float, error: float) -> str:
    """A number with its error, both with two digits of the error, at most three after the point."""
    digits = int(np.clip(1 - np.floor(np.log10(error)), 0, 3))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


EXPERIMENT = Annealing()
