"""Figures 5 and 6: class probabilities and latent marginals against MCMC, USPS 3 vs. 5 vs. 7."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from scipy.linalg import cho_factor, cho_solve

import pymc_gpep as gpep
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import NOTES, Split, pixels
from benchmarks.paper.fixed import (
    JITTER,
    Prior,
    at_held_out,
    distances,
    of_labels,
    probabilities,
    squared_exponential,
)
from pymc_gpep.approximations import Laplace, NestedEP, VariationalBayes
from pymc_gpep.approximations.laplace import tierney_kadane_probabilities
from pymc_gpep.plots.canvas import MARKERS, MASSES, NEUTRAL, colours, draw_density, draw_gaussian, same_frame
from pymc_gpep.rivals.class_independent_ep import IEP

Array = np.ndarray

LOG_VARIANCE, LOG_LENGTHSCALE = 4.0, 2.0
CLASS = 1  # class of the point in figure 6: digit 5, class 2 in the paper
DIGITS = (3, 5, 7)
METHODS = {"EP": NestedEP(), "IEP": IEP(), "VB": VariationalBayes(), "LA": Laplace()}
CORRECTED = "LA-TKP"
MODELS = {"multinomial_probit": "probit", "softmax": "softmax"}
PARTS = ("training", "test")
COLUMNS = 5  # columns of figure 5, the first of `comparisons`
SHOWN = 2000  # draws of the latent values for contours
R_HAT, ESS = 1.01, 400  # limits beyond which the report names a chain

PAPER = (
    "The paper (section 5.3): EP is the most accurate; IEP slightly underestimates probabilities of training points "
    "and is accurate at test points; VB and LA underestimate probabilities of test points; LA-TKP clearly improves "
    "LA. As in the paper, LA and LA-TKP are compared with MCMC for the softmax, which is their model, and other "
    "methods with MCMC for the multinomial probit. LA is also compared with MCMC for the multinomial probit. The "
    "paper prints no numbers."
)


def points_and_prior(data: str, size: Sequence[int] | None) -> tuple[Split, Prior]:
    points = pixels(data, size)
    return points, squared_exponential(distances(points), LOG_VARIANCE, LOG_LENGTHSCALE)


def fit(data: str, method: str, size: Sequence[int] | None) -> dict[str, Any]:
    """Probabilities of the labels, and the posterior at each training point."""
    points, prior = points_and_prior(data, size)
    solver = METHODS[method]
    solution = solver.solve(prior.k, np.zeros((points.classes, points.y.size)), points.y)
    return {
        "training": of_labels(probabilities(solver.first_likelihood().name, solution.mean.T, solution.cov), points.y),
        "test": of_labels(probabilities(solver.first_likelihood().name, *at_held_out(solution, prior)), points.ynew),
        "mean": solution.mean,
        "cov": solution.cov,
        "evidence": solution.evidence,
        "converged": solution.convergence.converged,
        "y": points.y,
        "ynew": points.ynew,
    }


def correct(data: str, part: str, chosen: Sequence[int], size: Sequence[int] | None) -> dict[str, Any]:
    """Probabilities of the labels by LA-TKP at some of the points."""
    points, prior = points_and_prior(data, size)
    solution = METHODS["LA"].solve(prior.k, np.zeros((points.classes, points.y.size)), points.y)
    cross, labels = {"training": (prior.k, points.y), "test": (prior.cross, points.ynew)}[part]
    p = tierney_kadane_probabilities(
        solution,
        cross[None, chosen],
        np.full((1, len(chosen)), prior.variance + JITTER),
        np.zeros((points.classes, len(chosen))),
    )
    return {"points": chosen, "p": of_labels(p, labels[chosen]), "converged": solution.convergence.converged}


def sample(
    data: str, likelihood: str, seed: int, draws: int, tune: int, thin: int, size: Sequence[int] | None
) -> dict[str, Any]:
    """One chain: for every `thin`-th draw, probabilities of the labels, and latent values at the points of `CLASS`.

    HMC moves latent values in coordinates whitened by EP or Laplace's method.
    """
    points, prior = points_and_prior(data, size)
    logging.getLogger("pymc").setLevel(logging.ERROR)  # show the progress of cells only
    with warnings.catch_warnings():
        # PyMC warns about copies of models with Gaussian processes, and about problems that the table shows.
        warnings.simplefilter("ignore")
        with pm.Model():
            kernel = np.exp(LOG_VARIANCE) * pm.gp.cov.ExpQuad(points.X.shape[1], ls=np.exp(LOG_LENGTHSCALE))
            f = pm.gp.Latent(cov_func=kernel).prior("f", X=points.X, n_outputs=points.classes, jitter=JITTER)
            if likelihood == "softmax":
                pm.Categorical("y", logit_p=f.T, observed=points.y)
            else:
                gpep.MultinomialProbit("y", f.T, observed=points.y)
            idata = pm.sample(
                draws, tune=tune, chains=1, cores=1, step=gpep.samplers.GuidedHMC(), random_seed=seed,
                progressbar=False, compute_convergence_checks=False,
            )  # fmt: skip
    latent = idata["posterior"]["f"].values[0, ::thin]  # (draws, c, n)
    # Given the values at the training points, the values at the test points are Gaussian and independent between
    # classes.
    weights = cho_solve(cho_factor(prior.k), prior.cross.T)
    variance = np.maximum(prior.variance - np.einsum("mn,nm->m", prior.cross, weights), 0.0)
    cov = variance[:, None, None] * np.eye(points.classes)
    training = np.empty((len(latent), points.y.size), np.float32)
    test = np.empty((len(latent), points.ynew.size), np.float32)
    for i, values in enumerate(latent):
        certain = np.zeros((points.y.size, points.classes, points.classes))
        training[i] = of_labels(probabilities(likelihood, values.T, certain), points.y)
        test[i] = of_labels(probabilities(likelihood, (values @ weights).T, cov), points.ynew)
    statistics = idata["sample_stats"]
    return {
        "training": training,
        "test": test,
        "latent": latent[:, :, points.y == CLASS].astype(np.float32),
        "diverging": int(statistics["diverging"].sum()),
        "acceptance": float(statistics["acceptance_rate"].mean()),
    }


OF_PAPER = {
    "EP": ("the most accurate", "the most accurate"),
    "IEP": ("underestimates slightly", "performs well"),
    "VB": ("somewhat consistent", "underestimates"),
    "LA": ("inaccurate", "underestimates"),
    CORRECTED: ("clearly better than LA", "clearly better than LA"),
}
"""The paper's words about figure 5, for training and test points."""


class Figures5And6(Experiment):
    title = "Figures 5 and 6: class probabilities and latent marginals against MCMC, USPS 3 vs. 5 vs. 7"

    def cells(self, data: str, quick: bool) -> list[Cell]:
        size = [60, 40] if quick else None
        draws, tune, chains, thin = (30, 20, 2, 1) if quick else (1500, 250, 2, 2)
        corrected, step = (8, 8) if quick else (None, 25)
        common = {"data": data, "size": size}
        cells = [Cell(method, fit, common | {"method": method}) for method in METHODS]
        counts = dict(zip(PARTS, size or (1157, 1175), strict=True))
        for part, count in counts.items():
            chosen = np.random.default_rng(1).permutation(count)[:corrected].tolist()
            cells += [
                Cell(f"{CORRECTED}-{part}-{i}", correct, common | {"part": part, "chosen": chosen[i : i + step]})
                for i in range(0, len(chosen), step)
            ]
        chain = {"draws": draws, "tune": tune, "thin": thin} | common
        cells += [
            Cell(f"{short}-{seed}", sample, chain | {"likelihood": likelihood, "seed": seed})
            for likelihood, short in MODELS.items()
            for seed in range(1, chains + 1)
        ]
        return cells

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| method | MCMC | points | number of them | mean of the absolute difference | largest | mean difference "
            "(method − MCMC) | converged |",
            "| --- " * 8 + "|",
        ]
        record: dict[str, Any] = {"rows": [], "chains": {}}
        references = {short: chains_of(found, short) for short in MODELS.values()}
        for short, chains in references.items():
            if chains:
                record["chains"][short] = quality(chains)
        for method, short in comparisons():
            for part in PARTS:
                chosen, p, converged = method_probabilities(found, method, part)
                if p.size == 0 or not references[short]:
                    lines.append(f"| {method} | {short} | {part} | 0 | not computed | | | |")
                    continue
                difference = p - averaged(references[short], part)[chosen]
                row = {
                    "mean_absolute": float(np.abs(difference).mean()),
                    "largest": float(np.abs(difference).max()),
                    "mean": float(difference.mean()),
                }
                record["rows"].append(
                    {"method": method, "reference": short, "points": part, "count": int(p.size), "converged": converged}
                    | row
                )
                lines.append(
                    f"| {method} | {short} | {part} | {p.size} | "
                    + " | ".join(f"{x:+.4f}" if name == "mean" else f"{x:.4f}" for name, x in row.items())
                    + f" | {'yes' if converged else 'no'} |"
                )
        chains = [
            f"MCMC, {short}: {q['chains']} chains of {q['draws']} draws; of the probabilities of labels r-hat is at "
            f"most {q['r_hat']:.3f}, the effective size at least {q['ess']:.0f}, their Monte Carlo error "
            f"{q['error']:.4f} on average and {q['largest_error']:.4f} at most; {q['diverging']} divergences"
            + ("." if q["good"] else ". THESE CHAINS ARE TOO SHORT: do not trust comparisons with them.")
            for short, q in record["chains"].items()
        ] or ["There are no chains."]
        notes = (
            f"{PAPER}\n\n{NOTES['usps357']} Inputs are the pixels as they are, from −1 to 1 (see figure 7). For LA-TKP "
            "each point takes as long as three fits. Figure 6 shows the image of digit 5 whose label has the lowest "
            "probability by MCMC."
        )
        return record, "\n".join([*lines, "", *(f"{line}\n" for line in chains), notes])

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        references = {short: chains_of(found, short) for short in MODELS.values()}
        corrected = [f"{CORRECTED}-{part}-0" for part in PARTS]
        if not all(references.values()) or any(each not in found for each in (*METHODS, *corrected)):
            return {}
        chosen: dict[str, Arrays] = {}
        for part, key in zip(PARTS, ("y", "ynew"), strict=True):
            labels = found["EP"][key]
            own = {short: averaged(chains, part) for short, chains in references.items()}
            for method, _ in comparisons()[:COLUMNS]:
                points, p, _ = method_probabilities(found, method, part)
                own[method] = np.full(labels.shape, np.nan)
                own[method][points] = p
            chosen[part] = {"label": labels} | own
        candidates = np.flatnonzero(found["EP"]["y"] == CLASS)
        hardest = int(averaged(references["probit"], "training")[candidates].argmin())
        for short, chains in references.items():
            f = np.concatenate([chain["latent"][:, :, hardest] for chain in chains]).astype(float)
            chosen[short] = {"f": f[np.linspace(0, len(f) - 1, min(SHOWN, len(f))).astype(int)].round(2)}
        for method in METHODS:
            point = candidates[hardest]
            chosen[method] = {"mean": found[method]["mean"][:, point], "cov": found[method]["cov"][point]}
        return chosen

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Differences of the probabilities of labels from MCMC with the same likelihood."""
        rows = []
        for method, short in comparisons()[:COLUMNS]:
            for part, of_paper in zip(PARTS, OF_PAPER[method], strict=True):
                gap = pictured[part][method] - pictured[part][short]
                rows.append((method, part, np.abs(gap).mean(), np.abs(gap).max(), gap.mean(), of_paper))
        columns = ("method", "points", "mean absolute difference", "largest", "mean difference", "the paper")
        return {"probabilities": Table("Differences from MCMC", columns, ("", "", ".4f", ".3f", "+.4f", ""), rows)}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if not found:
            return None
        figure = Figure(figsize=(15, 15), layout="constrained")
        above, below = figure.subfigures(2, 1, height_ratios=(2, 3))
        above.suptitle("Figure 5: probabilities of labels")
        below.suptitle(f"Figure 6: latent values of a training point of digit {DIGITS[CLASS]}")
        draw_probabilities(above.subplots(len(PARTS), COLUMNS, sharex=True, sharey=True), found)
        draw_pairs(below.subplots(3, 1 + len(METHODS)), found)
        return figure


def comparisons() -> list[tuple[str, str]]:
    """Methods, and the models of the MCMC they are compared with."""
    own = [(method, MODELS[solver.first_likelihood().name]) for method, solver in METHODS.items()]
    return [*own, (CORRECTED, "softmax"), ("LA", "probit"), (CORRECTED, "probit")]


def chains_of(found: Mapping[str, Arrays], short: str) -> list[Arrays]:
    return [arrays for name, arrays in found.items() if name.startswith(f"{short}-")]


def averaged(chains: Sequence[Arrays], part: str) -> Array:
    return np.mean([chain[part].mean(axis=0, dtype=float) for chain in chains], axis=0)


def quality(chains: Sequence[Arrays]) -> dict[str, Any]:
    """Worst r-hat, effective size and Monte Carlo error over all points that vary noticeably."""
    p = np.concatenate([np.stack([chain[part] for chain in chains]) for part in PARTS], axis=-1).astype(float)
    p = p[:, :, p.std(axis=(0, 1)) > 1e-4]
    r_hat = az.rhat(p, chain_axis=0, draw_axis=1) if len(chains) > 1 else np.array(np.nan)
    ess = az.ess(p, chain_axis=0, draw_axis=1)
    error = p.std(axis=(0, 1)) / np.sqrt(ess)
    return {
        "chains": len(chains),
        "draws": p.shape[1],
        "r_hat": float(np.max(r_hat)),
        "ess": float(np.min(ess)),
        "error": float(error.mean()),
        "largest_error": float(error.max()),
        "diverging": int(sum(chain["diverging"] for chain in chains)),
        "good": bool(np.max(r_hat) < R_HAT and np.min(ess) > ESS),
    }


def method_probabilities(found: Mapping[str, Arrays], method: str, part: str) -> tuple[Array, Array, bool]:
    """Points, probabilities of their labels, and whether the method converged."""
    if method != CORRECTED:
        if method not in found:
            return np.empty(0, int), np.empty(0), False
        return np.arange(found[method][part].size), found[method][part], bool(found[method]["converged"])
    pieces = [arrays for name, arrays in found.items() if name.startswith(f"{CORRECTED}-{part}-")]
    if not pieces:
        return np.empty(0, int), np.empty(0), False
    chosen, p = (np.concatenate([piece[key] for piece in pieces]) for key in ("points", "p"))
    return chosen, p, all(bool(piece["converged"]) for piece in pieces)


def draw_probabilities(axes: Array, found: Mapping[str, Arrays]) -> None:
    for row, part in zip(axes, PARTS, strict=True):
        own = found[part]
        for ax, (method, short) in zip(row, comparisons(), strict=False):
            ax.axline((0, 0), slope=1, color=NEUTRAL, linewidth=0.8, zorder=0)
            for k, colour in enumerate(colours(len(DIGITS))):
                of = own["label"] == k
                ax.scatter(
                    own[short][of], own[method][of], s=16, marker=MARKERS[k], facecolor="none", edgecolor=colour,
                    linewidth=0.8, label=str(DIGITS[k]),
                )  # fmt: skip
            ax.set(aspect="equal", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), title=f"{method}, {part}")
            ax.set_xlabel(f"MCMC, {short}")
    for ax in axes[:, 0]:
        ax.set_ylabel("the method's probability of the label")
    axes[0, 0].legend(title="digit")


def draw_pairs(axes: Array, found: Mapping[str, Arrays]) -> None:
    latent = {short: found[short]["f"] for short in MODELS.values()}
    grey = {"colors": "#a6a6a6", "linewidths": 1.0}
    for row, (a, b) in zip(axes, combinations(range(len(DIGITS)), 2), strict=True):
        draw_density(row[0], latent["probit"][:, [a, b]], MASSES, True, {"colors": "black"}, {}, "MCMC")
        for ax, (method, solver) in zip(row[1:], METHODS.items(), strict=True):
            draws = latent[MODELS[solver.first_likelihood().name]][:, [a, b]]
            draw_density(ax, draws, MASSES, False, grey, {}, "MCMC")
            mean, cov = found[method]["mean"][[a, b]], found[method]["cov"][np.ix_([a, b], [a, b])]
            draw_gaussian(ax, mean, cov, MASSES, {"color": "black"}, method)
        same_frame(row)
        row[0].set_ylabel(f"latent value, {DIGITS[b]}")
        for ax in row:
            ax.set_xlabel(f"latent value, {DIGITS[a]}")
    for ax, title in zip(axes[0], ("MCMC, probit", *METHODS), strict=True):
        ax.set_title(title if title != "LA" else "LA (over MCMC, softmax)")


EXPERIMENT = Figures5And6()
