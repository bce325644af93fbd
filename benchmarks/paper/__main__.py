"""Run experiments of the nested EP paper: `python -m benchmarks.paper figure8 --data FOLDER`, or `all` of them."""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

from benchmarks.paper.experiment import Experiment, compute

EXPERIMENTS = (
    "figure1",
    "table1",
    "figures2_4",
    "figures5_6",
    "figure7",
    "table2",
    "figure8",
    "figures9_10",
    "figure11",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("experiments", nargs="+", choices=(*EXPERIMENTS, "all"), metavar="NAME",
                        help=f"{', '.join(EXPERIMENTS)}, or all")  # fmt: skip
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the data sets, as CSV")
    parser.add_argument("--quick", action="store_true", help="less data and fewer draws: minutes, and rough figures")
    parser.add_argument("--size", type=int, metavar="N", help="points to learn from, where that can be chosen")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes, which share the cores; 0 reports what is there"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output/paper"), metavar="FOLDER",
        help="where results go; what is there already is not computed again, so remove it when the code has changed",
    )  # fmt: skip
    arguments = parser.parse_args()
    if not Path(arguments.data).is_dir():
        parser.error(f"--data: there is no folder {arguments.data}.")
    names = EXPERIMENTS if "all" in arguments.experiments else tuple(dict.fromkeys(arguments.experiments))
    chosen: dict[str, Experiment] = {
        name: importlib.import_module(f"benchmarks.paper.{name}").EXPERIMENT for name in names
    }
    if arguments.size is not None:
        if fixed := [name for name, experiment in chosen.items() if not experiment.sizable]:
            parser.error(f"--size: {', '.join(fixed)} has its own.")
        for experiment in chosen.values():
            experiment.size = arguments.size
    failed = [line for name, experiment in chosen.items() for line in run(name, experiment, arguments)]
    if failed:
        sys.exit("These failed, and the same command tries them again:\n" + "\n".join(failed))


def run(name: str, experiment: Experiment, arguments: argparse.Namespace) -> list[str]:
    """Compute what is missing, write and print the report; returns a line for each cell that failed."""
    folder = arguments.output / ("quick" if arguments.quick else "full") / name
    cells = experiment.cells(str(Path(arguments.data).resolve()), arguments.quick)
    found, errors = compute(cells, folder, min(1, arguments.jobs) if experiment.alone else arguments.jobs)
    record, text = experiment.report(found)
    file = folder.with_suffix(".json")
    file.write_text(json.dumps({"experiment": experiment.title, "failed": errors, **record}, indent=1))
    print(f"# {experiment.title}\n\n{text}\n\nFigures in {file}.")
    if (figure := experiment.draw(found)) is not None:
        figure.savefig(folder.with_suffix(".png"), dpi=130)
        print(f"Picture in {folder.with_suffix('.png')}.")
    print(flush=True)
    return [f"{name}, {cell}: {error}" for cell, error in errors.items()]


if __name__ == "__main__":
    main()
