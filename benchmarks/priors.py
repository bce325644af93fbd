"""Default priors of hyperparameters, starts of the optimiser, and integration against the maximum.

`python -m benchmarks.priors --data FOLDER`: cross-validation on small data sets, with one length scale or one for each
input. Finished folds are stored, and the same command continues.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_gpep as gpep
from benchmarks.command import run
from benchmarks.common import read_csv
from benchmarks.experiment import Arrays, Cell, Experiment, returned
from benchmarks.paper.data import folds
from pymc_gpep.approximations import NestedEP
from pymc_gpep.fits.fit import Fit
from pymc_gpep.hyper import hyper_method
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.hyper.several_starts import starting_points
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier

LENGTH_SCALES: dict[str, Callable[[int], Callable[..., Any]]] = {
    "LogNormal(½ log d, 1.5)": lambda d: lambda shape: pm.LogNormal("ls", math.log(d) / 2, 1.5, shape=shape),
    "HalfStudentT(4, 10)": lambda d: lambda shape: pm.HalfStudentT("ls", nu=4, sigma=10, shape=shape),
    "InverseGamma(3, 3√d)": lambda d: lambda shape: pm.InverseGamma("ls", 3, 3 * math.sqrt(d), shape=shape),
    "LogNormal(½ log d, 0.75)": lambda d: lambda shape: pm.LogNormal("ls", math.log(d) / 2, 0.75, shape=shape),
    "InverseGamma(5, 5)": lambda d: lambda shape: pm.InverseGamma("ls", 5, 5, shape=shape),
    "HalfStudentT(4, √d)": lambda d: lambda shape: pm.HalfStudentT("ls", nu=4, sigma=math.sqrt(d), shape=shape),
}
MAGNITUDES: dict[str, Callable[[], Any]] = {
    "LogNormal(1, 1.5)": lambda: pm.LogNormal("eta", 1, 1.5),
    "LogNormal(1.5, 1)": lambda: pm.LogNormal("eta", 1.5, 1),
    "HalfNormal(5)": lambda: pm.HalfNormal("eta", 5),
    "HalfNormal(10)": lambda: pm.HalfNormal("eta", 10),
    "HalfNormal(200)": lambda: pm.HalfNormal("eta", 200),
}
FIRST_SCALE, FIRST_MAGNITUDE = next(iter(LENGTH_SCALES)), next(iter(MAGNITUDES))
SCALES = [(scale, FIRST_MAGNITUDE) for scale in LENGTH_SCALES if scale != FIRST_SCALE]
OTHER_MAGNITUDES = [(FIRST_SCALE, magnitude) for magnitude in MAGNITUDES if magnitude != FIRST_MAGNITUDE]
PAIRS = [(FIRST_SCALE, FIRST_MAGNITUDE), *SCALES, *OTHER_MAGNITUDES]
"""Only one of the two priors is varied at a time, so that there are tens of fits, not hundreds."""

DATA = (
    "teaching", "iris", "wine", "new_thyroid", "crabs", "sonar", "glass",
    "segmentation_train", "ionosphere", "svmguide2", "breast_wisconsin", "pima", "vehicle", "vowel",
)  # fmt: skip
"""Data sets of up to a thousand rows, in order of increasing time."""
SMALL = DATA[:7]
HALVES = ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
STARTS = 4


def work(
    folder: str, name: str, ard: bool, scale: str, magnitude: str, numbers: list[int], starts: int, ccd: bool
) -> dict[str, Any]:
    """Some folds of ten of a data set: fits from several starts, with or without integration, and predictions."""
    X, y = read_csv(Path(folder) / f"{name}.csv")
    d, classes = X.shape[1], int(y.max()) + 1
    rows: dict[str, list[Any]] = {}
    for number in numbers:
        held_out = np.isin(np.arange(y.size), folds(y.size)[number])
        with pm.Model() as model:
            ls = LENGTH_SCALES[scale](d)((d,) if ard else ())
            gp = pm.gp.Latent(cov_func=MAGNITUDES[magnitude]() ** 2 * pm.gp.cov.ExpQuad(d, ls=ls))
            f = gp.prior("f", X=X[~held_out], n_outputs=classes)
            gpep.MultinomialProbit("y", f.T, observed=y[~held_out])
        log_posterior = DenseLogPosterior(read_classifier(model), NestedEP())
        points = starting_points(log_posterior, log_posterior.space.initial_point(), starts)
        optima = [maximise(log_posterior, point, 1000) for point in points]
        best = max(optima, key=lambda optimum: optimum.best.log_posterior)
        scores = {
            key: score(Fit(log_posterior, optimum), gp, X, y, held_out)
            for key, optimum in (("first", optima[0]), ("best", best))
        }
        if ccd:
            integrated = Fit(log_posterior, best, hyper_method("ccd").integrate(log_posterior, best))
            scores["ccd"] = score(integrated, gp, X, y, held_out)
        found = {
            "fold": number,
            "log_posterior": [optimum.best.log_posterior for optimum in optima],
            "evidence": [optimum.best.evidence for optimum in optima],
            "sweeps": [sum(each.iterations for each in optimum.history) for optimum in optima],
            "theta": [optimum.best.theta for optimum in optima],
            **{f"{key}_{what}": value for key, values in scores.items() for what, value in values.items()},
        }
        for key, value in found.items():
            rows.setdefault(key, []).append(value)
    return {key: np.array(values) for key, values in rows.items()}


def score(fit: Fit, gp: pm.gp.Latent, X: np.ndarray, y: np.ndarray, held_out: np.ndarray) -> dict[str, float]:
    """Mean log predictive density and error rate of held-out points."""
    p = fit.predict(gp, X[held_out])["p"].values
    truth = y[held_out]
    return {
        "mlpd": float(np.log(p[np.arange(truth.size), truth]).mean()),
        "error": float((p.argmax(axis=1) != truth).mean()),
    }


class Priors(Experiment):
    """Every prior on every data set, with all finished results."""

    title = "Default priors, numbers of starts, and integration over hyperparameters"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        listed: list[Cell] = []

        def add(
            names: Sequence[str], pairs: Sequence[tuple[str, str]], numbers: list[int], ard: bool = False,
            starts: int = 2, ccd: bool = False,
        ) -> None:  # fmt: skip
            for scale, magnitude in pairs:
                for name in names:
                    settings = {"name": name, "ard": ard, "scale": scale, "magnitude": magnitude, "numbers": numbers,
                                "starts": starts, "ccd": ccd}  # fmt: skip
                    title = f"{name} {'ard' if ard else 'one'} {scale} {magnitude} {''.join(map(str, numbers))}"
                    title = title.replace("√", "root ").replace("½", "half")
                    listed.append(Cell(title, work, {"folder": data} | settings))

        if quick:
            add(["iris"], PAIRS[:1], [0], starts=STARTS, ccd=True)
            return listed
        first = PAIRS[:1]
        narrow = [pair for pair in PAIRS if pair[0] in ("InverseGamma(3, 3√d)", "HalfStudentT(4, 10)")]
        for names in (DATA[7:11], DATA[11:]):
            add(names, [*first, *narrow], HALVES[0][:3])
        for numbers in HALVES:
            add(SMALL[:5], first, numbers, starts=STARTS, ccd=True)
            add(SMALL[:4], SCALES, numbers)
            add(SMALL[:4], first, numbers[:3], ard=True, starts=STARTS, ccd=True)
            add(SMALL[:4], SCALES, numbers[:3], ard=True)
            add(SMALL[:4], OTHER_MAGNITUDES, numbers)
            add(SMALL[5:], first, numbers, starts=STARTS, ccd=True)
            add(SMALL[4:], SCALES, numbers)
        return listed

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        """Means over folds, and effects of starts and integration."""
        settings = {cell.name: cell.arguments for cell in self.cells("", False)}
        groups: dict[tuple[Any, ...], list[Arrays]] = {}
        for title, arrays in found.items():
            chosen = settings[title]
            groups.setdefault((chosen["ard"], chosen["scale"], chosen["magnitude"], chosen["name"]), []).append(arrays)
        results = {key: joined(parts) for key, parts in groups.items()}
        record = {
            " ".join(["ard" if key[0] else "one", *key[1:]]): {what: values.tolist() for what, values in result.items()}
            for key, result in results.items()
        }
        return record, "\n\n".join([*(densities(results, ard) for ard in (False, True)), comparison(results)])


def joined(parts: Sequence[Arrays]) -> Arrays:
    """The folds of several cells, with the starts that all folds have."""
    starts = min(part["log_posterior"].shape[1] for part in parts)
    keys = [key for key in returned(parts[0]) if all(key in part for part in parts)]
    return {
        key: np.concatenate([part[key][:, :starts] if part[key].ndim > 1 else part[key] for part in parts])
        for key in keys
    }


def densities(results: Mapping[tuple[Any, ...], Arrays], ard: bool) -> str:
    """Mean log predictive densities from the best of two starts or more, one row for each pair of priors."""
    names = [name for name in DATA if any(key[0] == ard and key[3] == name for key in results)]
    lines = [
        f"## {'A length scale for each input' if ard else 'One length scale'}: mean log predictive density",
        f"| length scale | magnitude | {' | '.join(names)} |",
        "| --- " * (2 + len(names)) + "|",
    ]
    for pair in PAIRS:
        row = [results.get((ard, *pair, name)) for name in names]
        if any(row):
            cells = ["" if one is None else f"{one['best_mlpd'].mean():.3f} ({one['fold'].size})" for one in row]
            lines.append(f"| {' | '.join([*pair, *cells])} |")
    return "\n".join([lines[0], "", *lines[1:], "", "Brackets contain the number of folds, of ten."])


def comparison(results: Mapping[tuple[Any, ...], Arrays]) -> str:
    """One start against several, and the maximum against integration, with the widest priors."""
    lines = [
        "## Starts and integration",
        "",
        "| data | length scales | folds | first start | of two | of four | ccd | two end higher in | by at most "
        "| second start's sweeps, over the first's |",
        "| --- " * 10 + "|",
    ]
    for (ard, scale, magnitude, name), one in results.items():
        if (scale, magnitude) != PAIRS[0]:
            continue
        best = np.maximum.accumulate(np.nan_to_num(one["log_posterior"], nan=-np.inf), axis=1)
        gain = best[:, 1] - best[:, 0]
        two = one["best_mlpd"] if np.allclose(best[:, 1], best[:, -1], atol=0.1) else None
        ccd = f"{one['ccd_mlpd'].mean():.3f}" if "ccd_mlpd" in one else ""
        lines.append(
            f"| {name} | {'each' if ard else 'one'} | {gain.size} | {one['first_mlpd'].mean():.3f} "
            f"| {'' if two is None else f'{two.mean():.3f}'} | {one['best_mlpd'].mean():.3f} | {ccd} "
            f"| {np.count_nonzero(gain > 0.1)} | {gain.max():.1f} "
            f"| {one['sweeps'][:, 1].sum() / one['sweeps'][:, 0].sum():.2f} |"
        )
    return "\n".join(lines)


EXPERIMENT = Priors()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.priors", description=__doc__)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the data sets, as CSV")
    parser.add_argument("--quick", action="store_true", help="one fold of one data set")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="compute only pieces with these names"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes; 0 only reports stored results")
    parser.add_argument("--output", type=Path, default=Path("output/priors"), metavar="FOLDER")
    # `__main__` would be another module in other processes
    run("priors", import_module("benchmarks.priors").EXPERIMENT, parser.parse_args())


if __name__ == "__main__":
    main()
