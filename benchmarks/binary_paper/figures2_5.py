"""Figures 2 to 5: Gaussian process classification in one dimension, and two points in nine regimes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.binary_paper.covariances import COVARIANCES, JITTER, Pairs
from benchmarks.binary_paper.methods import EVERY, LINKS
from benchmarks.binary_paper.regimes import LABELS, REGIMES, covariance, effective, exact
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment, returned
from pymc_gpep.plots.canvas import NEUTRAL, draw_gaussian

Array = np.ndarray

METHODS = ("LA", "EP", "VB", "KL", "FV", "LR", "TAPnaive")
SHOWN = ("best Gaussian", "LA", "EP", "VB", "KL")
"""Columns of figures 4 and 5."""
REGIME, MASS = 2, 0.9
"""Regime of figures 4 and 5, and the probability within the drawn contours."""
FOOTNOTE = np.array([[7.0, 6.0], [6.0, 7.0]])
"""K of footnote 2, with two labels that are 1 and a probit."""
PRINTED = ((0.142, -0.017), (-0.017, 0.142))
POINTS = (7, 20)
DRAWS = 3


def regimes(likelihood: str, side: int) -> dict[str, Any]:
    """Log evidences, bounds, means and standard deviations of f_1 and f_2 by all methods, and exact values."""
    link = LINKS[likelihood]
    rows: dict[str, list[Any]] = {name: [] for name in ("evidence", "bound", "mean", "cov", "converged")}
    for at in REGIMES.values():
        K = covariance(*at)
        true = exact(K, LABELS, link, side)
        solutions = [EVERY[method].solve(K, np.zeros((1, 2)), LABELS, likelihood=link) for method in METHODS]
        rows["evidence"].append([true.evidence, *(solution.evidence for solution in solutions)])
        rows["bound"].append([true.evidence, *(solution.lower_bound for solution in solutions)])
        rows["mean"].append([true.mean, *(solution.mean[0] for solution in solutions)])
        covs = [s.posterior.joint_covariance(K[None], K[None]).reshape(2, 2) for s in solutions]
        rows["cov"].append([true.cov, *covs])
        rows["converged"].append([True, *(solution.convergence.converged for solution in solutions)])
    return rows


def footnote(side: int) -> dict[str, Any]:
    """Precisions of the effective likelihoods of the best Gaussian and of EP."""
    labels, link = np.array([1, 1]), LINKS["probit"]
    true = exact(FOOTNOTE, labels, link, side)
    solution = EVERY["EP"].solve(FOOTNOTE, np.zeros((1, 2)), labels, likelihood=link)
    return {
        "precision": effective(true.mean, true.cov, FOOTNOTE)[0],
        "mean": true.mean,
        "evidence": true.evidence,
        "EP precision": solution.posterior.precision,
        "EP mean": solution.mean[0],
        "EP evidence": solution.evidence,
    }


def one_dimension(seed: int) -> dict[str, Any]:
    """Latent functions given 0, 7 and 20 labels by EP: moments and draws over a line. Labels come from one draw."""
    rng = np.random.default_rng(seed)
    line = np.linspace(-6.0, 6.0, 200)
    x = rng.uniform(-5.0, 5.0, POINTS[-1])
    log_lengthscale, log_magnitude, link = 0.2, 0.8, LINKS["probit"]

    def k(a: Array, b: Array, lengthscale: float = np.exp(log_lengthscale)) -> Array:
        pairs = Pairs.between(a[:, None], b[:, None]).over(lengthscale)
        return np.exp(2.0 * log_magnitude) * COVARIANCES["squared exponential"](pairs)

    ridge = JITTER * np.eye(len(line))
    both = np.concatenate([line, x])
    truth = np.linalg.cholesky(k(both, both) + JITTER * np.eye(len(both))) @ rng.standard_normal(len(both))
    y = (link.link(truth[len(line) :]) > rng.uniform(size=x.size)).astype(np.int64)
    found: dict[str, Any] = {"line": line, "x": x, "y": y}
    normals = rng.standard_normal((len(line), DRAWS))
    for lengthscale in (0.3, 1.0, 3.0):
        found[f"functions {lengthscale}"] = np.linalg.cholesky(k(line, line, lengthscale) + ridge) @ normals
    for n in (0, *POINTS):
        mean, cov = np.zeros(len(line)), k(line, line)
        if n:
            K = k(x[:n], x[:n]) + JITTER * np.eye(n)
            posterior = EVERY["EP"].solve(K, np.zeros((1, n)), y[:n], likelihood=link).posterior
            left = k(x[:n], line)
            mean = left.T @ posterior.weights[0]
            cov = cov - left.T @ np.linalg.solve(K + np.diag(1.0 / posterior.precision[0]), left)
        found |= {f"mean {n}": mean, f"sd {n}": np.sqrt(cov.diagonal())}
        found[f"draws {n}"] = mean[:, None] + np.linalg.cholesky(cov + 1e-5 * np.eye(len(line))) @ normals
    return found


class Figures2To5(Experiment):
    title = "Figures 2 to 5: one dimension, and two points in nine regimes"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        del data  # no data needed
        side = 301 if quick else 1201
        cells = [Cell(likelihood, regimes, {"likelihood": likelihood, "side": side}) for likelihood in LINKS]
        return [*cells, Cell("footnote", footnote, {"side": side}), Cell("line", one_dimension, {"seed": 5})]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {}
        lines = [
            "Log evidences; Jensen's lower bound in brackets if it differs; and after / the mean and standard "
            "deviation of f_1, divided by the exact values.", "",
        ]  # fmt: skip
        for likelihood in LINKS:
            if likelihood not in found:
                continue
            cell = found[likelihood]
            record[likelihood] = {name: values.tolist() for name, values in returned(cell).items()}
            lines += [f"## {likelihood}", "", f"| regime | exact | {' | '.join(METHODS)} |"]
            lines.append("| --- " * (2 + len(METHODS)) + "|")
            lines += [f"| {regime} | {' | '.join(_row(cell, i))} |" for i, regime in enumerate(REGIMES)]
            lines.append("")
        if "footnote" in found:
            cell = found["footnote"]
            record["footnote"] = {name: values.tolist() for name, values in cell.items()}
            ours = "; ".join(", ".join(f"{x:.4f}" for x in row) for row in cell["precision"])
            lines += [
                f"Footnote 2, precision of the best Gaussian likelihood: {ours}; printed {PRINTED}. EP's: "
                f"{cell['EP precision'].ravel()[0]:.4f} on the diagonal.", "",
            ]  # fmt: skip
        return record, "\n".join(lines)

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        if "probit" not in found:
            return {}
        cell, rows = found["probit"], []
        ours = [j for j, method in enumerate(METHODS, start=1) if method != "LR"]
        for i, regime in enumerate(REGIMES):
            off = cell["evidence"][i] - cell["evidence"][i, 0]
            mean = cell["mean"][i, :, 0] / cell["mean"][i, 0, 0]
            sd = np.sqrt(cell["cov"][i, :, 0, 0] / cell["cov"][i, 0, 0, 0])
            shown = [f"{off[j]:+.3f}; {mean[j]:.2f}, {sd[j]:.2f}" for j in ours]
            rows.append((str(regime), f"{cell['evidence'][i, 0]:.4f}", *shown))
        columns = ("regime", "exact", *(METHODS[j - 1] for j in ours))
        return {"regimes": Table("Two points in nine regimes, probit", columns, ("",) * len(columns), rows)}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if "line" not in found or "probit" not in found:
            return None
        figure = Figure(figsize=(11.5, 16), layout="constrained")
        line, nine, four, five = figure.subfigures(4, 1, height_ratios=(0.9, 1.5, 0.55, 0.55))
        _draw_line(line, found["line"])
        _draw_regimes(nine)
        _draw_gaussians(four, five, found["probit"])
        return figure


def _row(cell: Arrays, i: int) -> list[str]:
    true = cell["evidence"][i, 0]
    entries = [f"{true:.4f}"]
    for j in range(1, len(METHODS) + 1):
        evidence, bound = cell["evidence"][i, j], cell["bound"][i, j]
        of_bound = f" ({bound:.4f})" if abs(bound - evidence) > 1e-4 else ""
        mean = cell["mean"][i, j, 0] / cell["mean"][i, 0, 0]
        sd = np.sqrt(cell["cov"][i, j, 0, 0] / cell["cov"][i, 0, 0, 0])
        entries.append(f"{evidence:.4f}{of_bound} / {mean:.2f}, {sd:.2f}")
    return entries


def _draw_line(part: Any, cell: Arrays) -> None:
    part.suptitle("Figure 2: prior and posterior of a latent function and of the probability of class 1, by EP")
    axes = part.subplots(2, 4)
    line = cell["line"]
    for lengthscale, style in ((0.3, ":"), (1.0, "-"), (3.0, "--")):
        axes[0, 0].plot(line, cell[f"functions {lengthscale}"][:, 0], style, label=f"ℓ = {lengthscale}")
    axes[0, 0].legend(fontsize=7)
    axes[0, 0].set_title("draws from priors")
    axes[1, 0].set_axis_off()
    sig = LINKS["probit"].link
    for column, n in enumerate((0, *POINTS), start=1):
        mean, sd, draws = (cell[f"{of} {n}"] for of in ("mean", "sd", "draws"))
        p = sig(mean / np.sqrt(1.0 + sd**2))
        ranges = (mean, mean - sd, mean + sd), (p, sig(mean - sd), sig(mean + sd))
        for ax, (middle, low, high), thin, levels in zip(
            axes[:, column], ranges, (draws, sig(draws)), ((-6.0, 6.0), (0.0, 1.0)), strict=True
        ):
            ax.fill_between(line, low, high, color="#d9d9d9")
            ax.plot(line, thin, linewidth=0.7)
            ax.plot(line, middle, color="black", linewidth=2.0)
            own = cell["y"][:n]
            for label, marker in ((0, "_"), (1, "+")):
                at = cell["x"][:n][own == label]
                ax.plot(at, np.full(at.size, levels[label]), marker, color="black")
            ax.set_ylim(levels[0] - 0.05 * np.ptp(levels), levels[1] + 0.05 * np.ptp(levels))
        axes[0, column].set_title(f"n = {n}: f" if n else "prior: f")
        axes[1, column].set_title("sig(f)")
        axes[1, column].set_xlabel("x")


def _draw_regimes(part: Any) -> None:
    part.suptitle("Figure 3: prior (ellipses), likelihood (lines) and exact posterior (filled), probit")
    axes = part.subplots(3, 3)
    link = LINKS["probit"]
    for ax, (regime, at) in zip(axes.ravel(), REGIMES.items(), strict=True):
        K = covariance(*at)
        true = exact(K, LABELS, link, 201)
        ax.contourf(
            *true.f, np.exp(true.log_density - true.log_density.max()), levels=np.linspace(0.03, 1.0, 8), cmap="Blues"
        )
        draw_gaussian(ax, np.zeros(2), K, (0.5, 0.9), {"color": NEUTRAL, "linewidth": 0.7}, "prior")
        _likelihood(ax, link, 3.2 * np.exp(at[1]))
        ax.set_title(f"{regime}: log ℓ = {at[0]:g}, log σ_f = {at[1]:g}")
    _name_axes(axes)


def _draw_gaussians(four: Any, five: Any, cell: Arrays) -> None:
    """Regime 2: Gaussians over the exact posterior, and their effective Gaussian likelihoods."""
    four.suptitle(f"Figure 4: Gaussians (black) and the exact posterior, regime {REGIME}, probit")
    five.suptitle("Figure 5: effective likelihoods (black), prior (ellipse) and likelihood (lines)")
    i = list(REGIMES).index(REGIME)
    K, link = covariance(*REGIMES[REGIME]), LINKS["probit"]
    true = exact(K, LABELS, link, 301)
    weights = np.sort(np.exp(true.log_density - true.log_density.max()).ravel())[::-1]
    level = weights[np.searchsorted(weights.cumsum(), MASS * weights.sum())]
    numbers = {"best Gaussian": 0} | {method: j for j, method in enumerate(METHODS, start=1)}
    uppers, lowers = four.subplots(1, len(SHOWN), squeeze=False), five.subplots(1, len(SHOWN), squeeze=False)
    for upper, lower, name in zip(uppers[0], lowers[0], SHOWN, strict=True):
        mean, cov = cell["mean"][i, numbers[name]], cell["cov"][i, numbers[name]]
        density = np.exp(true.log_density - true.log_density.max())
        upper.contour(*true.f, density, levels=[level], colors=NEUTRAL)
        mode = np.unravel_index(density.argmax(), density.shape)
        upper.plot(*true.f[(slice(None), *mode)], "x", color=NEUTRAL)
        draw_gaussian(upper, mean, cov, (MASS,), {"color": "black"}, name)
        upper.plot(*mean, "o", color="black", markersize=3)
        precision, location = effective(mean, cov, K)
        _likelihood(lower, link, 12.0)
        draw_gaussian(lower, np.zeros(2), K, (MASS,), {"color": NEUTRAL}, "prior")
        values, vectors = np.linalg.eigh(precision)
        if (values > 0.0).all():
            draw_gaussian(lower, location, (vectors / values) @ vectors.T, (0.1, 0.3, 0.5), {"color": "black"}, name)
        for ax, reach in ((upper, 12.0), (lower, 12.0)):
            ax.set(xlim=(-0.4 * reach, reach), ylim=(-reach, 0.4 * reach), aspect="equal", title=name)
    _name_axes(uppers)
    _name_axes(lowers)


def _name_axes(axes: Any) -> None:
    """Write axis labels below the last row and left of the first column."""
    for ax in axes[-1]:
        ax.set_xlabel("f₁")
    for ax in axes[:, 0]:
        ax.set_ylabel("f₂")


def _likelihood(ax: Any, link: Any, reach: float) -> None:
    """Contours of p(y_1 | f_1) p(y_2 | f_2)."""
    axis = np.linspace(-reach, reach, 200)
    first, second = np.meshgrid(axis, axis)
    ax.contour(first, second, link.link(first) * link.link(-second), levels=[0.1, 0.5, 0.9], colors=NEUTRAL,
               linewidths=0.7, linestyles=":")  # fmt: skip
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach))


EXPERIMENT = Figures2To5()
