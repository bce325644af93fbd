"""Run an experiment of the nested EP paper: `python -m benchmarks.paper figure8 --data FOLDER`."""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

from benchmarks.paper.experiment import compute

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
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the data sets, as CSV")
    parser.add_argument("--quick", action="store_true", help="less data and fewer draws: minutes, and rough figures")
    parser.add_argument("--size", type=int, metavar="N", help="points to learn from, where that can be chosen")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes, which share the cores; 0 reports what is there"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output/paper"), metavar="FOLDER",
        help="where results go; what is there already is not computed again",
    )  # fmt: skip
    arguments = parser.parse_args()
    if not Path(arguments.data).is_dir():
        parser.error(f"--data: there is no folder {arguments.data}.")
    experiment = importlib.import_module(f"benchmarks.paper.{arguments.experiment}").EXPERIMENT
    if arguments.size is not None:
        if not experiment.sizable:
            parser.error(f"--size: {arguments.experiment} has its own.")
        experiment.size = arguments.size
    folder = arguments.output / ("quick" if arguments.quick else "full") / arguments.experiment
    cells = experiment.cells(str(Path(arguments.data).resolve()), arguments.quick)
    found, errors = compute(cells, folder, 1 if experiment.alone else arguments.jobs)
    record, text = experiment.report(found)
    file = folder.with_suffix(".json")
    file.write_text(json.dumps({"experiment": experiment.title, "failed": errors, **record}, indent=1))
    print(f"# {experiment.title}\n\n{text}\n\nFigures in {file}.")
    if (figure := experiment.draw(found)) is not None:
        figure.savefig(folder.with_suffix(".png"), dpi=130)
        print(f"Picture in {folder.with_suffix('.png')}.")
    if errors:
        sys.exit(f"{len(errors)} of {len(cells)} cells failed: {', '.join(errors)}. The same command tries them again.")


if __name__ == "__main__":
    main()
