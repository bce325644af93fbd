"""How long a fit takes alone, and beside other work on the same processors.

Everything runs in processes of its own that begin together. "Two at once" is two such processes; "busy" is one beside a
loop that does nothing but keep one processor busy. Times are medians, at fixed hyperparameters.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for what the benchmarks share

SIZES = (100, 200, 400, 676, 1000, 2000)
CLASSES = 4


def measure_here(n: int, c: int, what: str, begin: float, seconds: float) -> dict[str, float]:
    """Median seconds of a solve, or of a prediction, repeated from the moment `begin` for so many seconds."""
    import numpy as np

    from benchmarks.solver import problem
    from pymc_gpep import NestedEP

    k, mean, labels = problem(n, c)
    small = NestedEP().solve(k[:50, :50], mean[:, :50], labels[:50])  # compiles
    solution = NestedEP().solve(k, mean, labels) if what == "predict" else small

    def once() -> None:
        if what == "solve":
            NestedEP().solve(k, mean, labels)
        else:
            solution.posterior.predict(k[None, : n // 2], k.diagonal()[None, : n // 2], mean[:, : n // 2])

    once()
    late = time.time() - begin
    while time.time() < begin:
        time.sleep(0.001)
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        once()
        times.append(time.perf_counter() - start)
    return {"median": float(np.median(times)), "late": late, "count": len(times)}


def run_together(n: int, c: int, what: str, processes: int, threads: int | None, busy: bool, seconds: float) -> float:
    """The slowest process's median."""
    environment = dict(os.environ)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        environment.pop(name, None)
        if threads:
            environment[name] = str(threads)
    # Time to start, and to solve once beside each other.
    begin = time.time() + 8.0 + 4e-9 * n**3 * processes
    idler = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    command = [sys.executable, __file__, "--here", str(n), str(c), what, str(begin), str(seconds)]
    try:
        running = [
            subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(processes)
        ]
        found = [json.loads(process.communicate()[0]) for process in running]
    finally:
        if idler:
            idler.kill()
            idler.wait()
    if any(each["late"] > 0.0 for each in found):
        print(f"n = {n}: began {max(each['late'] for each in found):.1f} s late", file=sys.stderr)
    return max(each["median"] for each in found)


def row(n: int, c: int, what: str, threads: int | None, seconds: float) -> dict[str, Any]:
    """Seconds alone, twice at once, beside a busy processor; and how much longer than alone."""
    alone = run_together(n, c, what, 1, threads, False, seconds)
    twice = run_together(n, c, what, 2, threads, False, seconds)
    busy = run_together(n, c, what, 1, threads, True, seconds)
    return {
        "what": what, "n": n, "threads": threads or "default",
        "alone": alone, "two at once": twice, "busy": busy, "two / alone": twice / alone, "busy / alone": busy / alone,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="numbers of points")
    parser.add_argument("--what", nargs="*", default=["solve"], choices=["solve", "predict"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 0], help="that BLAS may use; 0 is its default")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    parser.add_argument("--json", help="file to write the figures to")
    arguments = parser.parse_args()
    if arguments.here:
        n, c, what, begin, seconds = arguments.here
        print(json.dumps(measure_here(int(n), int(c), what, float(begin), float(seconds))))
        return
    rows = []
    for what in arguments.what:
        for n in arguments.sizes:
            for threads in arguments.threads:
                rows.append(row(n, CLASSES, what, threads or None, arguments.seconds))
                print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
