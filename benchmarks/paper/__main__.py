"""Run experiments of the nested EP paper: `python -m benchmarks.paper figure8 --data FOLDER`, or `all` of them."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping
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
    parser.add_argument("--size", type=int, metavar="N", help="points that figure11 learns from, 1000 if not given")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes, which share the cores; 0 reports what is there"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output/paper"), metavar="FOLDER",
        help="where results go; what is there already is not computed again, so remove it when the code has changed",
    )  # fmt: skip
    arguments = parser.parse_args()
    names = EXPERIMENTS if "all" in arguments.experiments else tuple(dict.fromkeys(arguments.experiments))
    chosen: dict[str, Experiment] = {
        name: importlib.import_module(f"benchmarks.paper.{name}").EXPERIMENT for name in names
    }
    if not Path(arguments.data).is_dir():
        parser.error(f"--data: there is no folder {arguments.data}.")
    if arguments.jobs < 0:
        parser.error(f"--jobs must be at least 0, but is {arguments.jobs}.")
    if arguments.size is not None:
        _resize(parser, chosen, arguments)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output: {error}.")
    try:
        failed = [cell for name, experiment in chosen.items() for cell in run(name, experiment, arguments)]
    except KeyboardInterrupt:
        print("Interrupted. What was finished is kept, and the same command goes on.", file=sys.stderr)
        sys.exit(130)
    if failed:
        sys.exit(f"Without results: {', '.join(failed)}. The same command tries again what failed.")


def _resize(parser: argparse.ArgumentParser, chosen: Mapping[str, Experiment], arguments: argparse.Namespace) -> None:
    """Give experiments another number of points, or refuse."""
    if not all(experiment.sizable for experiment in chosen.values()):
        parser.error("--size is for figure11 alone; the other experiments have their own.")
    if arguments.quick:
        parser.error("--size: quick forms have their own.")
    if arguments.size < 1:
        parser.error(f"--size must be at least 1, but is {arguments.size}.")
    for experiment in chosen.values():
        experiment.size = arguments.size


def run(name: str, experiment: Experiment, arguments: argparse.Namespace) -> list[str]:
    """Compute what is missing, write and print the report; returns what has no result although it should."""
    folder = arguments.output / ("quick" if arguments.quick else "full") / name
    cells = experiment.cells(str(Path(arguments.data).resolve()), arguments.quick)
    found, errors = compute(cells, folder, min(1, arguments.jobs) if experiment.alone else arguments.jobs)
    if not found:
        # An empty report would only take the place of one of other settings.
        others = len(list(folder.glob("*.npz")))
        print(f"# {experiment.title}\n\n{folder} has no results of these settings, and {others} of others.\n")
        return [f"{name} {cell.name}" for cell in cells]
    record, text = experiment.report(found)
    file = folder.with_suffix(".json")
    file.write_text(json.dumps({"experiment": experiment.title, "failed": errors, **record}, indent=1))
    print(f"# {experiment.title}\n\n{text}\n\nFigures in {file}.")
    if (figure := experiment.draw(found)) is not None:
        figure.savefig(folder.with_suffix(".png"), dpi=130)
        print(f"Picture in {folder.with_suffix('.png')}.")
    print(flush=True)
    return [f"{name} {cell}" for cell in errors]


if __name__ == "__main__":
    main()
