"""In addition to the paper: estimated and integrated hyperparameters, and their cost."""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm

import pymc_gpep as gpep
from benchmarks.binary_paper.data import DRAWN, NOTE, TITLES, USPS, load
from benchmarks.binary_paper.methods import LINKS
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split, subset
from pymc_gpep.comparison.held_out_scores import information

METHODS = {
    "LA": "laplace",
    "EP": "ep",
    "KL": "kl",
    "VB": "vb",
    "FV": "fv",
    "LR": "lr",
    "TAPnaive": "tap_naive",
}
"""Name in the paper → name in `pm.fit`."""
TREATMENTS = ("map", "ccd")
READING = (
    "Squared exponential covariance, `gpep.default_priors`, hyperparameters at the maximum of evidence times priors "
    "(map), or integrated over by a central composite design around it (ccd). Information is in bits. CPU seconds of "
    "the fit include reading the model, and exclude predictions and compilation."
)
WARM = 12  # points of a first fit that compiles


def classifier(split: Split, likelihood: str) -> tuple[pm.Model, pm.gp.Latent]:
    """A squared exponential covariance with default priors."""
    with pm.Model() as model:
        ls, eta = gpep.default_priors(split.X)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(split.X.shape[1], ls=ls))
        f = gp.prior("f", X=split.X)
        if likelihood == "logit":
            pm.Bernoulli("y", logit_p=f, observed=split.y)
        else:
            gpep.Probit("y", f, observed=split.y)
    return model, gp


def fit(data: str, name: str, number: int, likelihood: str, method: str, size: list[int] | None) -> dict[str, Any]:
    """Information, errors and CPU seconds for each treatment of the hyperparameters."""
    split = load(name, data, number, size)
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report contains messages of fits
        few, _ = classifier(subset(split, WARM, WARM), likelihood)
        pm.fit(method=METHODS[method], model=few, hyper="map", progressbar=False)
        model, gp = classifier(split, likelihood)
        for treatment in TREATMENTS:
            began = time.process_time()
            fitted = pm.fit(method=METHODS[method], model=model, hyper=treatment, progressbar=False)
            found[f"{treatment} seconds"] = time.process_time() - began
            p = fitted.predict(gp, split.Xnew)["p"].values
            with np.errstate(divide="ignore"):
                density = np.log(p[np.arange(len(p)), split.ynew])
            found |= {
                f"{treatment} information": information(density, split.ynew, split.y, 2),
                f"{treatment} errors": int((p.argmax(1) != split.ynew).sum()),
                f"{treatment} evidence": fitted.log_evidence,
                f"{treatment} converged": fitted.converged,
                f"{treatment} hyperparameters": [float(x.mean()) for x in fitted.hyperparameters.values()],
            }
    return found


class Beyond(Experiment):
    title = "Hyperparameters estimated and integrated over"
    alone = True

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        names, links, size = (("crabs",), ("probit",), [30, 30]) if quick else ((*DRAWN, USPS), tuple(LINKS), None)
        methods = ("LA", "EP") if quick else tuple(METHODS)
        return [
            Cell(
                f"{name}.{number}.{likelihood}.{method}",
                fit,
                {
                    "data": data,
                    "name": name,
                    "number": number,
                    "likelihood": likelihood,
                    "method": method,
                    "size": size,
                },
            )
            for number in range(1 if quick else 3)
            for name in sorted(names, key=lambda name: DRAWN[name].n if name in DRAWN else 1000)
            if name != USPS or not number
            for likelihood in links
            for method in methods
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {name: {key: x.tolist() for key, x in cell.items()} for name, cell in found.items()}
        lines = [READING, "", NOTE, "", f"| data | likelihood | splits | what | {' | '.join(METHODS)} |"]
        lines.append("| --- " * (4 + len(METHODS)) + "|")
        for name in (*DRAWN, USPS):
            for likelihood in LINKS:
                cells = {
                    method: [
                        cell
                        for number in range(3)
                        if (cell := found.get(f"{name}.{number}.{likelihood}.{method}")) is not None
                    ]
                    for method in METHODS
                }
                splits = max(map(len, cells.values()))
                for what, form in (("information", ".3f"), ("errors", ".1f"), ("seconds", ".2f")) if splits else ():
                    for treatment in TREATMENTS:
                        shown = [
                            format(np.mean([cell[f"{treatment} {what}"] for cell in own]), form) if own else ""
                            for own in cells.values()
                        ]
                        lines.append(
                            f"| {TITLES[name]} | {likelihood} | {splits} | {what}, {treatment} | {' | '.join(shown)} |"
                        )
        failed = [
            f"{name} ({treatment})"
            for name, cell in found.items()
            for treatment in TREATMENTS
            if not cell[f"{treatment} converged"]
        ]
        lines += ["", f"Not converged: {', '.join(failed) or 'none'}."]
        return record, "\n".join(lines)


EXPERIMENT = Beyond()
