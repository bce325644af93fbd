"""Figures 2, 3 and 4: EP, class-independent EP and MCMC with one input, three classes and fifteen points.

The paper does not list its points. Points here are drawn from the same distributions, five of each class. x_i is the
leftmost point of class 1. x_j is the point of class 2 or 3 whose probability of class 2 by EP is closest to the paper's
0.47. For other sets of points x_j is the input with probability 0.47, since there need not be such a point.
Probabilities are integrals of equation 25 under the posterior of the latent values of the point, which depends on its
label. For another label at the same input they would differ.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from scipy.special import ndtr
from scipy.stats import gaussian_kde, multivariate_normal
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.fixed import covariance
from pymc_gpep.approximations import NestedEP
from pymc_gpep.likelihoods.multinomial_probit import class_probabilities
from pymc_gpep.plots.canvas import MASSES, draw_density, draw_gaussian, same_frame
from pymc_gpep.rivals.class_independent_ep import IEP

Array = np.ndarray

LOG_VARIANCE, LOG_LENGTHSCALE = 4.62, 0.26
NORMALS = ((-1.0, 1.0), (2.0, 0.5), (3.0, 0.5))
PER_CLASS = 5
SEEDS = range(1, 21)
PICTURE = 2
"""Seed whose points resemble the paper's picture: classes 2 and 3 overlap, and class 1 extends far to the left."""
PAPER = {"x_i": {"MCMC": 0.95, "EP": 0.88, "IEP": 0.82}, "x_j": {"MCMC": 0.47, "EP": 0.47, "IEP": 0.47}}
"""Probability of class 1 at x_i and of class 2 at x_j."""
METHODS = ("MCMC", "EP", "IEP")
FITS = {"EP": "nested_ep", "IEP": "iep"}
CLASS_OF = {"x_i": 0, "x_j": 1}
MARKERS = ("x", "+", "o")
SHOWN = 2000
"""Number of draws of the latent values for contours."""


def points(seed: int) -> tuple[Array, Array]:
    """Inputs (15,) and labels."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(mean, sd, PER_CLASS) for mean, sd in NORMALS])
    return x, np.repeat(np.arange(len(NORMALS)), PER_CLASS)


def model_of(x: Array, y: Array) -> tuple[pm.Model, pm.gp.Latent]:
    with pm.Model(coords={"class": [1, 2, 3], "point": np.arange(y.size)}) as model:
        gp = pm.gp.Latent(cov_func=np.exp(LOG_VARIANCE) * pm.gp.cov.ExpQuad(1, ls=np.exp(LOG_LENGTHSCALE)))
        f = gp.prior("f", X=x[:, None], n_outputs=len(NORMALS), dims=("class", "point"))
        gpep.MultinomialProbit("y", f.T, observed=y, dims="point")
    return model, gp


def fits_of(model: pm.Model) -> dict[str, Any]:
    with model:
        return {name: pm.fit(method=method, progressbar=False) for name, method in FITS.items()}


def compare(seed: int, draws: int, grid: int, tune: int = 500) -> Arrays:
    """Class probabilities at the points by each method, and the contents of the figures if `grid` is not 0."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    x, y = points(seed)
    with threadpool_limits(1):
        model, gp = model_of(x, y)
        fits = fits_of(model)
        with model:
            idata = pm.sample(
                draws, tune=tune, chains=4, cores=1, step=gpep.samplers.GuidedHMC(), random_seed=seed, progressbar=False
            )
        f = idata["posterior"]["f"].transpose("chain", "draw", "class", "point")
        difference = f - f.mean(dim="class")
        between = _boundary(fits["EP"], gp)
        predicted = _predicted(between, model, gp, fits, idata)
        found = {
            "boundary": between,
            **{f"boundary {name}": at["p"].values[0] for name, at in predicted.items()},
            "x": x,
            "y": y,
            "p MCMC": of_draws(f.values.reshape(-1, *f.shape[2:])),
            "r_hat": float(az.rhat(difference).max()),
            "effective": float(az.ess(difference).min()),
            "converged": all(fit.converged for fit in fits.values()),
        }
        for name, fit in fits.items():
            mean, cov = fit.latent["mean"].values.T, fit.latent["cov"].values
            found[f"p {name}"] = class_probabilities(mean.T, cov)[0]
        if grid:
            at = np.linspace(-4.0, 5.5, grid)
            predicted = _predicted(at, model, gp, fits, idata)
            found |= {"grid": at, "f": f.values}
            found |= {f"{key} on grid {name}": x[key].values for name, x in predicted.items() for key in ("p", "mean")}
    return found


def _predicted(x: Array, model: pm.Model, gp: pm.gp.Latent, fits: Mapping[str, Any], idata: Any) -> dict[str, Any]:
    predicted = {name: fit.predict(gp, x[:, None]) for name, fit in fits.items()}
    predicted["MCMC"] = gpep.predict_draws(idata, gp, x[:, None], model=model, draws=1000, progressbar=False)
    return predicted


def _boundary(fit: Any, gp: pm.gp.Latent) -> Array:
    """Input (1,) at which class 2 has probability 0.47 and class 3 most of the remaining probability."""
    x = np.linspace(1.5, 4.0, 501)
    p = fit.predict(gp, x[:, None])["p"].values
    far = np.abs(p[:, 1] - PAPER["x_j"]["EP"]) + (p[:, 0] > p[:, 2])
    return x[[far.argmin()]]


def of_draws(f: Array) -> Array:
    """Class probabilities (n, c) from draws of the latent values (s, c, n)."""
    s, c, n = f.shape
    p, _ = class_probabilities(np.moveaxis(f, 1, 2).reshape(-1, c), np.zeros((s * n, c, c)))
    return p.reshape(s, n, c).mean(axis=0)


def positions(cell: Arrays) -> dict[str, int]:
    """Indices of x_i and x_j."""
    x, y = cell["x"], cell["y"]
    first = np.flatnonzero(y == 0)
    others = np.flatnonzero(y > 0)
    boundary = np.abs(cell["p EP"][others, CLASS_OF["x_j"]] - PAPER["x_j"]["EP"]).argmin()
    return {"x_i": int(first[x[first].argmin()]), "x_j": int(others[boundary])}


class Figures2to4(Experiment):
    title = "Figures 2 to 4: a synthetic example with one input at log σ² = 4.62, log ℓ = 0.26"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        draws, more = (60, {"tune": 60}) if quick else (4000, {})
        seeds = (PICTURE, 1) if quick else (PICTURE, *(seed for seed in SEEDS if seed != PICTURE))
        return [
            Cell(
                f"seed {seed}",
                compare,
                {"seed": seed, "draws": draws, "grid": (9 if quick else 96) if seed == PICTURE else 0} | more,
            )
            for seed in seeds
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {"sets": {name: _at_positions(cell) for name, cell in found.items()}}
        lines = [
            "The paper's points are not published. The points here are other draws from the same distributions.",
            "",
        ]
        own = record["sets"].get(_PICTURED)
        lines += [f"## The points of the picture (seed {PICTURE})", "", *(_one(own) if own else ["Not computed."]), ""]
        record["all"], text = _all(record["sets"])
        return record, "\n".join([*lines, *text])

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table of both probabilities: of the paper, of the set of the picture, and of all sets."""
        if _PICTURED not in found:
            return {}
        sets = {name: _at_positions(cell) for name, cell in found.items()}
        rows = [
            ("class 1 at x_i, paper", *(f"{p:.2f}" for p in PAPER["x_i"].values())),
            ("set of the picture", *(f"{sets[_PICTURED]['x_i'][method]:.3f}" for method in METHODS)),
        ]
        for name, paper in (("x_i", None), ("boundary", PAPER["x_j"])):
            if paper is not None:
                chosen = (f"{p:.2f}{' (chosen)' * (method == 'EP')}" for method, p in paper.items())
                rows.append(("class 2 at the boundary, paper", *chosen))
            p = [np.array([own[name][method] for own in sets.values()]) for method in METHODS]
            rows.append((f"{len(sets)} sets, median", *(f"{np.median(x):.3f}" for x in p)))
            rows.append((f"{len(sets)} sets, smallest to largest", *(f"{x.min():.3f} to {x.max():.3f}" for x in p)))
        return {"probabilities": Table("Probabilities", ("", *METHODS), ("",) * 4, rows)}

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        if _PICTURED not in found:
            return {}
        cell = dict(found[_PICTURED])
        f = np.moveaxis(cell.pop("f"), 2, -1).reshape(-1, len(cell["x"]), len(NORMALS))  # (s, n, c)
        some = np.linspace(0, len(f) - 1, min(SHOWN, len(f))).astype(int)
        return {_PICTURED: cell | {f"f at {name}": f[some, i] for name, i in positions(cell).items()}}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        return _draw(found[_PICTURED]) if _PICTURED in found else None


_PICTURED = f"seed {PICTURE}"


def _at_positions(cell: Arrays) -> dict[str, Any]:
    record: dict[str, Any] = {key: cell[key].item() for key in ("r_hat", "effective", "converged")}
    for name, i in positions(cell).items():
        p = {method: float(cell[f"p {method}"][i, CLASS_OF[name]]) for method in METHODS}
        record[name] = {"x": float(cell["x"][i]), "class": int(cell["y"][i]) + 1, **p}
    at = {method: float(cell[f"boundary {method}"][CLASS_OF["x_j"]]) for method in METHODS}
    record["boundary"] = {"x": float(cell["boundary"][0]), **at}
    return record


def _one(own: Mapping[str, Any]) -> list[str]:
    lines = [
        f"| position | class of the label | probability of | {' | '.join(f'{m} (paper)' for m in METHODS)} |",
        "| --- " * 6 + "|",
    ]
    for name, label in CLASS_OF.items():
        cells = [f"{own[name][method]:.3f} ({PAPER[name][method]:.2f})" for method in METHODS]
        lines.append(
            f"| {name} = {own[name]['x']:.2f} | {own[name]['class']} | class {label + 1} | {' | '.join(cells)} |"
        )
    verdict = "" if _trusted(own) else " **Not to be trusted.**"
    return [*lines, "", f"r-hat {own['r_hat']:.3f}, effective size at least {own['effective']:.0f}.{verdict}"]


def _trusted(own: Mapping[str, Any]) -> bool:
    return own["r_hat"] < 1.01 and own["effective"] > 400 and own["converged"]


def _all(drawn: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Ranges over all sets of points."""
    bad = [name for name, own in drawn.items() if not _trusted(own)]
    lines = [f"## {len(drawn)} sets of points", ""]
    if bad:
        lines += [f"Unreliable chains or fits (r-hat, effective size, convergence): {', '.join(bad)}.", ""]
    if not drawn:
        return {}, [*lines, "Not computed."]
    lines += ["| probability | method | median | smallest | largest | paper |", "| --- " * 6 + "|"]
    record: dict[str, Any] = {"not trusted": bad}
    for name, what, paper in (
        ("x_i", "class 1 at x_i", PAPER["x_i"]),
        ("boundary", "class 2 at the boundary", PAPER["x_j"]),
    ):
        p = {method: np.array([own[name][method] for own in drawn.values()]) for method in METHODS}
        rows = {method: (values, f"{paper[method]:.2f}") for method, values in p.items()}
        rows |= {f"{a} − {b}": (p[a] - p[b], f"{paper[a] - paper[b]:+.2f}") for a, b in (("MCMC", "EP"), ("EP", "IEP"))}
        for row, (values, theirs) in rows.items():
            record[f"{what}: {row}"] = [float(np.median(values)), float(values.min()), float(values.max())]
            cells = " | ".join(f"{x:.3f}" for x in record[f"{what}: {row}"])
            lines.append(f"| {what} | {row} | {cells} | {theirs} |")
    ordered = sum(own["x_i"]["MCMC"] > own["x_i"]["EP"] > own["x_i"]["IEP"] for own in drawn.values())
    record["ordered"] = ordered
    return record, [*lines, "", f"MCMC > EP > IEP at x_i, as in the paper, in {ordered} of {len(drawn)} sets."]


def _draw(cell: Arrays) -> Figure:
    figure = Figure(figsize=(10.5, 14.5), layout="constrained")
    parts = figure.subfigures(3, 1, height_ratios=(1.1, 1.75, 1.75))
    where = positions(cell)
    curves = parts[0].subplots(1, 2)
    _draw_curves(curves, cell, where)
    parts[0].legend(*curves[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    moments = _moments(cell["x"], cell["y"])
    # Figure 3 shows the latent values of classes 1 and 2 at x_i. Figure 4 shows classes 2 and 3 at x_j.
    for part, (name, pair) in zip(parts[1:], {"x_i": [0, 1], "x_j": [1, 2]}.items(), strict=True):
        above, below = part.subplots(2, len(METHODS))
        part.suptitle(f"{name} = {cell['x'][where[name]]:.2f}: latent values above, g with their likelihood below")
        own = {method: (mean[:, where[name]], cov[where[name]]) for method, (mean, cov) in moments.items()}
        _draw_pair(above, cell[f"f at {name}"], own, pair)
        p = {method: float(cell[f"p {method}"][where[name], CLASS_OF[name]]) for method in METHODS}
        _draw_tilted(below, cell[f"f at {name}"], own, CLASS_OF[name], p)
    return figure


def _moments(x: Array, y: Array) -> dict[str, tuple[Array, Array]]:
    """Means (c, n) and covariances (n, c, c) of the latent values by each approximation."""
    K, zeros = covariance(x[:, None], LOG_VARIANCE, LOG_LENGTHSCALE), np.zeros((len(NORMALS), len(x)))
    solutions = {"EP": NestedEP().solve(K, zeros, y), "IEP": IEP().solve(K, zeros, y)}
    return {name: (solution.mean, solution.cov) for name, solution in solutions.items()}


def _draw_pair(axes: Any, f: Array, moments: Mapping[str, tuple[Array, Array]], pair: Sequence[int]) -> None:
    """Latent values of two classes at one point: draws, and Gaussians over their density."""
    for ax, name in zip(axes, METHODS, strict=True):
        style = {"colors": "#a6a6a6"} if name in moments else {"colors": "black"}
        draw_density(ax, f[:, pair], MASSES, name not in moments, style, {}, "MCMC")
        if name in moments:
            mean, cov = moments[name]
            draw_gaussian(ax, mean[pair], cov[np.ix_(pair, pair)], MASSES, {"color": "black"}, name)
        ax.set_title(name)
        ax.set_xlabel(f"f, class {pair[0] + 1}")
    axes[0].set_ylabel(f"f, class {pair[1] + 1}")
    same_frame(axes)


def _draw_curves(axes: Any, cell: Arrays, where: Mapping[str, int]) -> None:
    """Figure 2: class probabilities and latent means along the input."""
    colours, styles = ("#0072b2", "#d55e00", "#009e73"), {"MCMC": "-", "EP": "--", "IEP": ":"}
    for ax, key, title in zip(axes, ("p", "mean"), ("class probabilities", "latent means"), strict=True):
        for method, style in styles.items():
            for k, colour in enumerate(colours):
                label = f"{method}, class {k + 1}" if key == "p" else None
                ax.plot(cell["grid"], cell[f"{key} on grid {method}"][:, k], style, color=colour, label=label)
        floor, height = ax.get_ylim()[0], np.ptp(ax.get_ylim())
        for k, (colour, marker) in enumerate(zip(colours, MARKERS, strict=True)):
            x = cell["x"][cell["y"] == k]
            options = {"facecolors": "none", "edgecolors": colour} if marker == "o" else {"color": colour}
            ax.scatter(x, np.full(x.size, floor), marker=marker, **options)
        for name, i in where.items():
            ax.axvline(cell["x"][i], color="#555555", linewidth=0.6)
            ax.annotate(f"${name}$", (cell["x"][i], floor + 0.95 * height), xytext=(3, 0), textcoords="offset points")
        ax.set_title(title)
        ax.set_xlabel("x")


def _draw_tilted(
    axes: Any, f: Array, latent: Mapping[str, tuple[Array, Array]], y: int, p: Mapping[str, float]
) -> None:
    """Contours of the tilted distribution of g, equation 25, at one point."""
    others = np.delete(np.arange(len(NORMALS)), y)
    B = np.delete(np.eye(len(NORMALS))[[y]].T - np.eye(len(NORMALS)), y, axis=1)
    g = f @ B + np.random.default_rng(1).standard_normal((len(f), 1))
    moments = {name: (B.T @ mean, B.T @ cov @ B + 1.0) for name, (mean, cov) in latent.items()}
    low = np.full(2, -4.0)  # below this the probit factors are negligible
    high = np.max(
        [np.quantile(g, 0.999, axis=0), *(m + 2.5 * np.sqrt(np.diag(C)) for m, C in moments.values())], axis=0
    )
    grid = np.stack(np.meshgrid(*np.linspace(low, high, 90).T))
    densities = {"MCMC": gaussian_kde(g.T)(grid.reshape(2, -1)).reshape(grid.shape[1:])}
    densities |= {name: multivariate_normal(m, C).pdf(np.moveaxis(grid, 0, -1)) for name, (m, C) in moments.items()}
    tilted = {name: density * ndtr(grid).prod(axis=0) for name, density in densities.items()}
    levels = tilted["MCMC"].max() * np.array([0.05, 0.1, 0.25, 0.5, 0.75])
    for ax, name in zip(axes, METHODS, strict=True):
        if name != "MCMC":
            ax.contour(*grid, tilted["MCMC"], levels=levels, colors="#a6a6a6", linewidths=1.0)
        ax.contour(*grid, tilted[name], levels=levels, colors="black", linewidths=1.3)
        ax.axhline(0, color="#555555", linewidth=0.6, linestyle=":")
        ax.axvline(0, color="#555555", linewidth=0.6, linestyle=":")
        ax.set_title(f"{name}: class {y + 1} has {p[name]:.2f}")
        ax.set_xlabel(f"g, class {others[0] + 1}")
    axes[0].set_ylabel(f"g, class {others[1] + 1}")


EXPERIMENT = Figures2to4()
