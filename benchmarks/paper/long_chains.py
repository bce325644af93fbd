"""Four data sets: agreement of long chains of latent values and hyperparameters with distant starts."""

from collections.abc import Mapping, Sequence
from typing import Any

import arviz as az
import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper import predictive
from benchmarks.paper.data import TITLES
from benchmarks.paper.scores import ESS, R_HAT
from pymc_gpep.plots.canvas import colours

Array = np.ndarray

CHAINS = {
    "teaching": (6, 1000, 10_000, 6),
    "glass": (4, 500, 4000, 12),
    "new-thyroid": (2, 400, 3000, 6),
    "wine": (2, 400, 3000, 12),
}
"""Number of chains, tuning draws, draws, and proposals of hyperparameters."""
SPREAD = 1.0  # standard deviation of the log hyperparameters of starts
SHARES = (0.125, 0.25, 0.5, 1.0)  # first fractions of a chain for which r-hat is computed
SHOWN = 1000  # draws of a chain in the picture
SHORT = 0.15  # Length scale below which points that differ in one input have nearly independent latent values.


class LongChains(Experiment):
    """One fold of each data set."""

    title = "Long chains for four data sets, from several starts"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        chains = {"teaching": (2, 10, 20, 2)} if quick else CHAINS
        size = [40, 10] if quick else None
        fits = [
            Cell(f"{name}.0.EP", predictive.approximate,
                 {"folder": data, "name": name, "number": 0, "method": "EP", "size": size})
            for name in chains
        ]  # fmt: skip
        return fits + [
            Cell(f"{name}.0.MCMC.{seed}", predictive.chain,
                 {"folder": data, "name": name, "number": 0, "size": size, "tune": tune,
                  "draws": draws, "seed": seed, "hyper_moves": moves, "spread": SPREAD})
            for name, (count, tune, draws, moves) in chains.items()
            for seed in range(count)
        ]  # fmt: skip

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {}
        lines: list[str] = []
        for name, chains in by_data(found).items():
            theta = predictive.log_hyperparameters(chains)
            if len(theta) < 2:
                continue
            agreed = {share: predictive.agreement(first_part(theta, share)) for share in SHARES}
            record[name] = {"agreement": agreed, "chains": [of_chain(x) for x in chains]}
            r_hat, effective = agreed[1.0]
            verdict = "mixed" if r_hat <= R_HAT and effective >= ESS else "not mixed"
            lines += [
                f"## {TITLES[name]}", "",
                f"{len(theta)} chains of {theta.shape[1]} draws: **{verdict}**.", "",
                "| fraction of the draws | worst r-hat | smallest effective sample size | hyperparameter |",
                "| --- " * 4 + "|",
                *(f"| {share:g} | {r:.3f} | {n:.0f} | {label(worst_of(theta, share))} |"
                  for share, (r, n) in agreed.items()),
                "", "| chain | mean log predictive density | accuracy | log σ² | inputs with a length scale below "
                f"{SHORT} in more than half of the draws | share of draws with one |", "| --- " * 6 + "|",
            ]  # fmt: skip
            for seed, row in enumerate(record[name]["chains"]):
                short = ", ".join(map(str, row["short"])) or "none"
                lines.append(f"| {seed} | {row['mlpd']:.3f} | {row['accuracy']:.3f} | {row['log_magnitude']:.2f} "
                             f"| {short} | {row['any_short']:.2f} |")  # fmt: skip
            both = density(np.mean([x["p"] for x in chains], axis=(0, 1)), chains[0]["y"])
            record[name]["mlpd"] = both
            lines += ["", f"All chains together: {both:.3f}.", ""]
        lines.append("Fold 0. Chains start at random hyperparameters. Their logarithms have a standard deviation of "
                     f"{SPREAD:g} around the initial values of fits.")  # fmt: skip
        return record, "\n".join(lines)

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table of data sets with an EP fit. Other tables were printed before there were records."""
        rows = []
        for name, chains in by_data(found).items():
            if len(chains) > 1 and (fit := found.get(f"{name}.0.EP")) is not None:
                theta = predictive.log_hyperparameters(chains)
                r_hat, effective = predictive.agreement(theta)
                p = np.mean([x["p"] for x in chains], axis=(0, 1))
                rows.append((TITLES[name], f"{len(theta)} × {theta.shape[1]}", r_hat, effective,
                             density(p, chains[0]["y"]), density(fit["p"], fit["y"])))  # fmt: skip
        columns = ("data", "chains", "worst r-hat", "smallest effective sample size", "density, MCMC", "density, EP")
        formats = ("", "", ".3f", ".0f", ".3f", ".3f")
        return {"first fold": Table("Long chains of one fold", columns, formats, rows)} if rows else {}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        sets = {name: chains for name, chains in by_data(found).items() if len(chains) > 1}
        if not sets:
            return None
        figure = Figure(figsize=(9, 2.8 * len(sets)), layout="constrained")
        for ax, (name, chains) in zip(figure.subplots(len(sets), squeeze=False)[:, 0], sets.items(), strict=True):
            theta = predictive.log_hyperparameters(chains)
            which = worst_of(theta, 1.0)
            for draws, colour in zip(theta[:, :, which], colours(len(theta)), strict=True):
                every = max(1, draws.size // SHOWN)
                ax.plot(np.arange(draws.size)[::every], draws[::every], color=colour, linewidth=0.6)
            ax.set(title=TITLES[name], xlabel="draw", ylabel=f"log of {label(which)}")
        return figure


def by_data(found: Mapping[str, Arrays]) -> dict[str, list[Arrays]]:
    """Chains of each data set in their order."""
    return {
        name: own
        for name in CHAINS
        if (own := [found[key] for key in sorted(found) if key.startswith(f"{name}.0.MCMC")])
    }


def first_part(theta: Array, share: float) -> Array:
    """The first fraction of the draws (chains, draws, parameters)."""
    return theta[:, : max(4, int(share * theta.shape[1]))]


def worst_of(theta: Array, share: float) -> int:
    """Index of the parameter with the largest r-hat in the first fraction of the draws."""
    some = first_part(theta, share)
    return int(np.argmax([float(az.rhat(x)) for x in np.moveaxis(some, 2, 0)]))


def label(parameter: int) -> str:
    """Label of a column of `log_hyperparameters`."""
    return f"length scale {parameter - 1}" if parameter else "σ²"


def of_chain(chain: Arrays) -> dict[str, Any]:
    """Predictions of held-out labels by one chain, and its length scales."""
    p = chain["p"].mean(axis=0)
    short = chain["length_scale"] < SHORT
    return {
        "mlpd": density(p, chain["y"]),
        "accuracy": float((p.argmax(axis=1) == chain["y"]).mean()),
        "log_magnitude": float(np.log(chain["magnitude"]).mean()),
        "short": np.flatnonzero(short.mean(axis=0) > 0.5).tolist(),
        "any_short": float(short.any(axis=1).mean()),
    }


def density(p: Array, labels: Array) -> float:
    """Mean log predictive density of labels."""
    return float(np.log(p[np.arange(len(p)), labels]).mean())


EXPERIMENT = LongChains()
