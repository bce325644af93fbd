"""Run the experiments of a paper: `python -m benchmarks.PAPER NAME --data FOLDER`, or `all` of them."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.experiment import Experiment, InThisProcess, compute, workers
from benchmarks.stored import FOLDER, TABLES, store, store_tables
from tests.compile_once import compile_once

_NAMED = 8  # largest number of pieces that a message names


def run_paper(paper: str, names: Sequence[str], title: str) -> None:
    """Run the experiments that the command line names, and report them.

    Parameters
    ----------
    paper : str
        Folder of `benchmarks` with a module for each experiment, which is its `EXPERIMENT`.
    names : sequence of str
        Names of the modules to run, in the order in which `all` runs them.
    title : str
        Title of the paper, for the help text.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{paper}", description=f"Run experiments of {title}.")
    parser.add_argument("experiments", nargs="+", choices=(*names, "all"), metavar="NAME",
                        help=f"{', '.join(names)}, or all")  # fmt: skip
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the data sets, as CSV")
    parser.add_argument("--quick", action="store_true", help="a few pieces with little data: a test that takes minutes")
    parser.add_argument(
        "--size", type=int, metavar="N", help="number of training points, for experiments that allow it"
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN",
                        help="compute only pieces whose names match, such as 'wine, *, fold [0-4]'; the report has "
                        "all stored results")  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="number of processes; 0 only reports stored results"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output") / paper, metavar="FOLDER",
        help="folder of results; stored results are not computed again: remove them after a change of the code",
    )  # fmt: skip
    parser.add_argument(
        "--store",
        nargs="?",
        const="all",
        choices=("all", "pictures", "tables"),
        help=f"store the numbers for pictures and tables of the pages in {FOLDER.relative_to(FOLDER.parents[1])} and "
        f"{TABLES.relative_to(TABLES.parents[1])}",
    )
    arguments = parser.parse_args()
    asked = tuple(names) if "all" in arguments.experiments else tuple(dict.fromkeys(arguments.experiments))
    chosen: dict[str, Experiment] = {
        name: importlib.import_module(f"benchmarks.{paper}.{name}").EXPERIMENT for name in asked
    }
    if not Path(arguments.data).is_dir():
        parser.error(f"--data: there is no folder {arguments.data}.")
    if arguments.jobs < 0:
        parser.error(f"--jobs must be at least 0, but is {arguments.jobs}.")
    if arguments.store and (arguments.quick or arguments.size is not None):
        parser.error("--store requires full runs: leave out --quick and --size.")
    if arguments.size is not None:
        _resize(parser, chosen, arguments)
    _check_patterns(parser, chosen, arguments)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output: {error}.")
    compile_once()
    try:
        with _shared_pool(arguments.quick, arguments.jobs) as pool:
            folder = paper if arguments.store else None
            failed = [
                cell for name, experiment in chosen.items() for cell in run(name, experiment, arguments, pool, folder)
            ]
    except KeyboardInterrupt:
        print("Interrupted. Finished pieces are stored, and the same command continues.", file=sys.stderr)
        sys.exit(130)
    if failed:
        sys.exit(f"Without results: {_listed(failed)}. The same command repeats the failed pieces.")


def _shared_pool(quick: bool, jobs: int) -> AbstractContextManager[Executor | None]:
    """Return the pool that experiments share, or None.

    Quick forms share their processes, which take longer to start than most of these pieces to compute. A single process
    is the current one. A long experiment has its own pool, so that a killed process affects no other experiment.
    """
    if not quick or jobs == 0:
        return nullcontext()
    return InThisProcess() if jobs == 1 else workers(jobs)


def _resize(parser: argparse.ArgumentParser, chosen: Mapping[str, Experiment], arguments: argparse.Namespace) -> None:
    """Give experiments another number of points, or refuse."""
    if fixed := [name for name, experiment in chosen.items() if not experiment.sizable]:
        parser.error(f"--size is not available for {', '.join(fixed)}, which use the points of the paper.")
    if arguments.quick:
        parser.error("--size: quick forms have their own.")
    if arguments.size < 1:
        parser.error(f"--size must be at least 1, but is {arguments.size}.")
    for experiment in chosen.values():
        experiment.size = arguments.size


def _check_patterns(
    parser: argparse.ArgumentParser, chosen: Mapping[str, Experiment], arguments: argparse.Namespace
) -> None:
    """Raise an error for patterns that match no piece."""
    pieces = [cell.name for each in chosen.values() for cell in each.cells(arguments.data, arguments.quick)]
    for pattern in arguments.only:
        if not any(fnmatchcase(piece, pattern) for piece in pieces):
            parser.error(f"--only: no piece matches {pattern!r}. The pieces are {_listed(pieces)}.")


def _listed(pieces: Sequence[str]) -> str:
    others = f" and {len(pieces) - _NAMED} others" if len(pieces) > _NAMED else ""
    return f"{'; '.join(pieces[:_NAMED])}{others}"


def run(
    name: str,
    experiment: Experiment,
    arguments: argparse.Namespace,
    pool: Executor | None = None,
    paper: str | None = None,
) -> list[str]:
    """Compute missing pieces, and write and print the report. Return the names of pieces without a result.

    If `paper` is given, the numbers of its pictures are stored with the documentation.
    """
    folder = arguments.output / ("quick" if arguments.quick else "full") / name
    cells = experiment.cells(str(Path(arguments.data).resolve()), arguments.quick)
    alone = experiment.alone and arguments.jobs > 1
    found, errors = compute(cells, folder, 1 if alone else arguments.jobs, arguments.only, None if alone else pool)
    if not found:
        # an empty report would replace a report of other settings
        others = len(list(folder.glob("*.npz")))
        print(f"# {experiment.title}\n\n{folder} has no results of these settings, and {others} of others.\n")
        return [f"{name} {cell.name}" for cell in cells]
    record, text = experiment.report(found)
    file = folder.with_suffix(".json")
    file.write_text(json.dumps({"experiment": experiment.title, "failed": errors, **record}, indent=1))
    print(f"# {experiment.title}\n\n{text}\n\nFigures in {file}.")
    if (figure := experiment.draw(experiment.pictured(found))) is not None:
        figure.savefig(folder.with_suffix(".png"), dpi=130)
        print(f"Picture in {folder.with_suffix('.png')}.")
        if paper is not None and arguments.store != "tables":
            print(f"Numbers of the picture are in {store(paper, name, experiment, found, arguments.only, FOLDER)}.")
    if paper is not None and arguments.store != "pictures" and experiment.tables(found):
        print(f"Tables of the page in {store_tables(paper, name, experiment, found, arguments.only, TABLES)}.")
    print(flush=True)
    return [f"{name} {cell}" for cell in errors]
