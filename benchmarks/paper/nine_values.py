"""Section 5.4: processor times of the posterior at nine hyperparameter values of figure 7, USPS 3 vs. 5 vs. 7."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import arviz as az
import numpy as np
import xarray as xr
from threadpoolctl import threadpool_limits

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment, returned
from benchmarks.paper import gibbs
from benchmarks.paper.data import NOTES, pixels
from benchmarks.paper.figure7 import METHODS
from benchmarks.paper.fixed import JITTER, distances, squared_exponential
from benchmarks.paper.plain_iep import plain_iep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.laplace import tierney_kadane_probabilities
from pymc_gpep.rivals.class_independent_ep import IEP

LOG_LENGTHSCALES, LOG_VARIANCES = (1.5, 2.5, 4.0), (2.0, 6.0, 10.0)
SWEEPS, BURN = 1000, 100
CORRECTED = 10
"""Number of points for LA-TKP."""
DAMPING = 0.5
PLAIN = "plain, "
"""First word of the pieces that count iterations without acceleration."""
WITHIN = 0.01
"""Distance of the log evidence from its limit at which an iteration counts as converged."""
MOST = 60
"""Largest number of iterations."""
COUNTED: dict[str, type[AcceleratedEP]] = {"EP": NestedEP, "IEP": IEP}
IEP_OF_THE_PAPER = "IEP of the paper"

PAPER = (
    "The paper (section 5.4): LA was the fastest, EP and VB took about three times as long, and MCMC more than a "
    "hundred times; LA-TKP takes c + 1 times the processor time of LA for each point that it predicts; EP took fewer "
    "outer iterations than IEP. It does not state its nine values."
)


def times(
    data: str, log_lengthscale: float, log_variance: float, sweeps: int, size: Sequence[int] | None
) -> dict[str, Any]:
    """Processor seconds of each method from a cold start, and the number of its iterations."""
    points = pixels(data, size)
    prior = squared_exponential(distances(points), log_variance, log_lengthscale)
    nothing = np.zeros((points.classes, points.y.size))
    found: dict[str, Any] = {}
    with threadpool_limits(1):
        for method, solver in METHODS.items():
            solver.solve(prior.k[:9, :9], nothing[:, :9], points.y[:9])  # compiles
            seconds, solution = _timed(partial(solver.solve, prior.k, nothing, points.y))
            found[method] = seconds
            found[f"{method}, iterations"] = solution.convergence.iterations
            found[f"{method}, converged"] = solution.convergence.converged
            if method == "LA":
                laplace = solution
        cross, variance = prior.cross[None, :CORRECTED], np.full((1, CORRECTED), prior.variance + JITTER)
        mean = np.zeros((points.classes, CORRECTED))
        corrected, _ = _timed(lambda: tierney_kadane_probabilities(laplace, cross, variance, mean))
        found["LA-TKP, a point"] = corrected / CORRECTED
        run = {"chains": 1, "sweeps": sweeps, "burn": BURN, "seed": 1}
        found["MCMC"], chain = _timed(lambda: gibbs.sample(prior.k, points.y.size, points.y, points.classes, **run))
    kept = xr.DataArray(chain["draws"], dims=("chain", "draw", "class", "point"))
    return found | {"effective": float(az.ess(kept).median()), "sweeps": sweeps}


def plain_counts(
    data: str, log_lengthscale: float, log_variance: float, most: int, size: Sequence[int] | None
) -> dict[str, Any]:
    """Log evidence after each damped iteration without acceleration, and the limit, by method.

    An iteration is one outer update of all sites with one inner iteration. The limit is the evidence of the
    accelerated solve.
    """
    points = pixels(data, size)
    prior = squared_exponential(distances(points), log_variance, log_lengthscale)
    nothing = np.zeros((points.classes, points.y.size))
    found: dict[str, Any] = {}
    with threadpool_limits(1):
        for method, kind in COUNTED.items():
            found[f"{method}, limit"] = kind().solve(prior.k, nothing, points.y).evidence
            plain = kind(depth=0, damping=DAMPING, max_inner=1, max_iterations=most, ladder=False)
            found[method] = plain.solve(prior.k, nothing, points.y).convergence.evidence
        steps = islice(plain_iep(prior.k, points.y, points.classes, DAMPING, 1), most)
        found[IEP_OF_THE_PAPER] = [solution.evidence for solution in steps]
    return found


def iterations_to(evidence: np.ndarray, limit: float) -> int | None:
    """Number of iterations after which the evidence stays within `WITHIN` of the limit, or None."""
    far = np.flatnonzero(~(np.abs(evidence - limit) <= WITHIN))
    first = int(far[-1]) + 1 if far.size else 0
    return first if first < len(evidence) else None


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


class NineValues(Experiment):
    title = "Section 5.4: processor times at nine hyperparameter values, USPS 3 vs. 5 vs. 7"
    alone = True

    def cells(self, data: str, quick: bool) -> list[Cell]:
        size, sweeps, most = ([60, 20], 100, 10) if quick else (None, SWEEPS, MOST)
        places = [
            {"data": data, "log_lengthscale": log_lengthscale, "log_variance": log_variance, "size": size}
            for log_lengthscale in (LOG_LENGTHSCALES[:1] if quick else LOG_LENGTHSCALES)
            for log_variance in LOG_VARIANCES
        ]
        return [
            *(Cell(_place(place), times, place | {"sweeps": sweeps}) for place in places),
            *(Cell(f"{PLAIN}{_place(place)}", plain_counts, place | {"most": most}) for place in places),
        ]

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table of the iterations without acceleration. The table of times was printed before there were records."""
        rows = []
        for name, cell in found.items():
            if name.startswith(PLAIN):
                counts = []
                for method in (*COUNTED, IEP_OF_THE_PAPER):
                    limit = float(cell[f"{method.split()[0]}, limit"])
                    count = iterations_to(cell[method], limit)
                    gap = abs(float(cell[method][-1]) - limit)
                    counts.append(f"{count}" if count is not None else f"more than {MOST}, {gap:.2g} off")
                rows.append((name.removeprefix(PLAIN), *counts))
        columns = ("log ℓ, log σ²", *COUNTED, IEP_OF_THE_PAPER)
        found_rows = {"iterations": Table("Iterations without acceleration", columns, ("",) * 4, rows)}
        return found_rows if rows else {}

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        others = [method for method in METHODS if method != "LA"]
        lines = [
            f"| log ℓ, log σ² | LA, s | {' | '.join(f'{method} over LA' for method in others)} "
            f"| iterations of {', '.join(METHODS)} | MCMC over LA | sweeps for an effective draw "
            "| LA-TKP, a point over LA |",
            "| --- " * (6 + len(others)) + "|",
        ]
        record = {
            at: {key: float(value) for key, value in returned(cell).items()}
            for at, cell in found.items()
            if not at.startswith(PLAIN)
        }
        for at, cell in record.items():
            unit = cell["LA"]
            iterations = ", ".join(
                f"{cell[f'{method}, iterations']:.0f}" + ("" if cell[f"{method}, converged"] else "†")
                for method in METHODS
            )
            lines.append(
                f"| {at} | {unit:.2f} | {' | '.join(f'{cell[method] / unit:.1f}' for method in others)} | {iterations} "
                f"| {cell['MCMC'] / unit:.0f} | {cell['sweeps'] / cell['effective']:.0f} "
                f"| {cell['LA-TKP, a point'] / unit:.2f} |"
            )
        notes = (
            f"{PAPER}\n\n{NOTES['usps357']} Pixels are not standardised. All methods start cold, with one thread. MCMC "
            f"is one chain of Gibbs sampling, with {SWEEPS} sweeps after {BURN}. The number of sweeps for an effective "
            "draw is the median over latent values. A † marks a solve that did not converge."
        )
        return record, "\n".join([*lines, "", notes, *(f"\n{each}" for each in self.tables(found).values())])


def _place(place: Mapping[str, Any]) -> str:
    return f"{place['log_lengthscale']:g}, {place['log_variance']:g}"


EXPERIMENT = NineValues()
