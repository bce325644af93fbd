"""Number of sweeps of nested EP over a grid of hyperparameters, against plain damped EP.

At each point of the grid the solver starts cold, from the sites of its neighbours, and cold with permuted points. All
must reach the same evidence. BLAS has one thread.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import Table, read_csv
from threadpoolctl import threadpool_limits

from pymc_gpep.approximations import NestedEP

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the data sets of the tests

from pymc_gpep.approximations import Solution
from tests.reference.data import iris, squared_exponential, wine

FILES = {"new-thyroid": "new_thyroid.csv", "glass": "glass.csv", "segmentation": "segmentation_train.csv"}
LOG_VARIANCES = range(-2, 13, 2)
LOG_LENGTHSCALES = range(-2, 6)
LIMIT = 300
OURS = NestedEP()
PLAIN = {damping: NestedEP(depth=0, damping=damping, ladder=False, max_iterations=LIMIT) for damping in (0.5, 0.8)}


def measure(name: str, X: np.ndarray, y: np.ndarray, step: int) -> dict[str, Any]:
    """One row of the table: sweeps and largest differences of the evidence over the grid."""
    n, c = y.size, y.max() + 1
    order = np.random.default_rng(0).permutation(n)
    mean = np.zeros((c, n))
    cold: dict[tuple[int, int], Solution] = {}
    sweeps: dict[str, list[int]] = {"cold": [], "warm": [], "permuted": [], "0.5": [], "0.8": []}
    failed = dict.fromkeys(sweeps, 0)
    apart = dict.fromkeys(sweeps, 0.0)
    schemes: dict[str, int] = {}

    def note(kind: str, solution: Solution, evidence: float) -> None:
        sweeps[kind].append(solution.convergence.iterations)
        if solution.convergence.converged:
            apart[kind] = max(apart[kind], abs(solution.evidence - evidence))
        else:
            failed[kind] += 1

    for log_variance in LOG_VARIANCES[::step]:
        for log_lengthscale in LOG_LENGTHSCALES[::step]:
            k = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
            k += 1e-8 * np.eye(n)
            found = OURS.solve(k, mean, y)
            cold[log_variance, log_lengthscale] = found
            scheme = found.convergence.scheme
            schemes[scheme] = schemes.get(scheme, 0) + 1
            note("cold", found, found.evidence)
            for neighbour in ((log_variance - 2 * step, log_lengthscale), (log_variance, log_lengthscale - step)):
                if neighbour in cold:
                    note("warm", OURS.solve(k, mean, y, start=cold[neighbour].start), found.evidence)
            note("permuted", OURS.solve(k[order][:, order], mean, y[order]), found.evidence)
            for damping, plain in PLAIN.items():
                note(str(damping), plain.solve(k, mean, y), found.evidence)
    return {"name": name, "n": n, "c": int(c), "sweeps": sweeps, "failed": failed, "apart": apart, "schemes": schemes}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder with {', '.join(FILES.values())}; without it, iris and wine")
    parser.add_argument("--quick", action="store_true", help="every third point of the grid")
    parser.add_argument("--json", help="file to write the figures to")
    arguments = parser.parse_args()
    sets = {"iris": iris(), "wine": wine()}
    if arguments.data:
        sets |= {name: read_csv(arguments.data / file) for name, file in FILES.items()}
    with threadpool_limits(1):
        rows = [measure(name, X, y, 3 if arguments.quick else 1) for name, (X, y) in sets.items()]
    grid = len(rows[0]["sweeps"]["cold"])
    sweeps = Table(
        f"Sweeps over {grid} points of the grid: in all, largest",
        ("data", "n", "c", "cold", "warm (mean)", "damping 0.5", "failed", "damping 0.8", "failed"),
        ("", "d", "d", "", ".1f", "", "d", "", "d"),
        [
            (
                row["name"], row["n"], row["c"], _sum_and_largest(row["sweeps"]["cold"]),
                float(np.mean(row["sweeps"]["warm"])),
                _sum_and_largest(row["sweeps"]["0.5"]), row["failed"]["0.5"],
                _sum_and_largest(row["sweeps"]["0.8"]), row["failed"]["0.8"],
            )
            for row in rows
        ],
    )  # fmt: skip
    agreement = Table(
        "Largest difference of the evidence from the cold start's, and failures of the accelerated scheme",
        ("data", "warm", "permuted", "damping 0.5", "damping 0.8", "failed", "schemes"),
        ("", ".0e", ".0e", ".0e", ".0e", "d", ""),
        [
            (
                row["name"], *(row["apart"][kind] for kind in ("warm", "permuted", "0.5", "0.8")),
                sum(row["failed"][kind] for kind in ("cold", "warm", "permuted")),
                ", ".join(f"{count} {scheme}" for scheme, count in row["schemes"].items()),
            )
            for row in rows
        ],
    )  # fmt: skip
    print(sweeps, agreement, sep="\n\n")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


def _sum_and_largest(values: list[int]) -> str:
    return f"{sum(values)}, {max(values)}"


if __name__ == "__main__":
    main()
