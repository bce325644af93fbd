"""How long a fit takes alone, and beside other work on the same processors.

Everything runs in processes of its own that begin together. "Two at once" is two such processes; "busy" is one beside a
loop that does nothing but keep one processor busy. Times are medians, of solves and predictions at fixed
hyperparameters and of draws of `GuidedHMC`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for what the benchmarks share

SIZES = (100, 200, 400, 676, 1000, 2000)
CLASSES = 4
PREPARE = {"solve": 0.0, "predict": 1.0, "draw": 30.0}
"""What can be timed, and about how long it takes to make ready, besides a solve: nanoseconds times n³."""


def repeated(n: int, c: int, what: str, sweeps: int) -> Callable[[], Any]:
    """What is timed: a solve from cold, a prediction at half as many points, or a draw of `GuidedHMC`."""
    from benchmarks.solver import problem
    from pymc_gpep import NestedEP

    k, mean, labels = problem(n, c)
    NestedEP().solve(k[:50, :50], mean[:, :50], labels[:50])  # compiles
    solver = NestedEP(max_iterations=sweeps)
    if what == "solve":
        return lambda: solver.solve(k, mean, labels)
    if what == "predict":
        posterior = solver.solve(k, mean, labels).posterior
        half = n // 2
        return lambda: posterior.predict(k[None, :half], k.diagonal()[None, :half], mean[:, :half])
    return draw(n, c, labels)


def draw(n: int, c: int, labels: np.ndarray) -> Callable[[], Any]:
    """Draws of the latent values and of a hyperparameter that is nearly known, so that its guide is soon fitted."""
    import pymc as pm

    import pymc_gpep as gpep

    X = np.random.default_rng(0).normal(size=(n, 16))  # as in the problem
    with pm.Model() as model:
        eta = pm.LogNormal("eta", 2.0, 0.05)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(16, ls=np.exp(2.0)))
        f = gp.prior("f", X=X, n_outputs=c)
        gpep.MultinomialProbit("y", f.T, observed=labels)
        step = gpep.GuidedHMC(rng=1)
    step.setup_chain(np.random.default_rng(1), tune=0, draws=100)
    point = model.initial_point()

    def once() -> None:
        nonlocal point
        point, _ = step.step(point)

    return once


def measure_here(n: int, c: int, what: str, sweeps: int, begin: float, seconds: float) -> dict[str, float]:
    """Median seconds, repeated from the moment `begin` for so many seconds."""
    once = repeated(n, c, what, sweeps)
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


def run_together(
    n: int, c: int, what: str, sweeps: int, processes: int, threads: int | None, busy: bool, seconds: float
) -> float:
    """The slowest process's median."""
    environment = dict(os.environ)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        environment.pop(name, None)
        if threads:
            environment[name] = str(threads)
    # Time to start, and to make ready beside each other.
    begin = time.time() + 8.0 + (1.5e-10 * min(sweeps, 16) + PREPARE[what] * 1e-9) * n**3 * processes
    idler = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    command = [sys.executable, __file__, "--here", str(n), str(c), what, str(sweeps), str(begin), str(seconds)]
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


def row(n: int, c: int, what: str, sweeps: int, threads: int | None, busy: bool, seconds: float) -> dict[str, Any]:
    """Seconds alone, twice at once, and beside a busy processor if wanted; and how much longer than alone."""
    alone = run_together(n, c, what, sweeps, 1, threads, False, seconds)
    twice = run_together(n, c, what, sweeps, 2, threads, False, seconds)
    figures = {"alone": alone, "two at once": twice, "two / alone": twice / alone}
    if busy:
        beside = run_together(n, c, what, sweeps, 1, threads, True, seconds)
        figures |= {"busy": beside, "busy / alone": beside / alone}
    return {"what": what, "n": n, "threads": threads or "default"} | figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="numbers of points")
    parser.add_argument("--what", nargs="*", default=["solve"], choices=list(PREPARE))
    parser.add_argument("--sweeps", type=int, default=200, help="after which solves are stopped")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 0], help="that BLAS may use; 0 is its default")
    parser.add_argument("--busy", action="store_true", help="measure beside a busy processor as well")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    parser.add_argument("--json", help="file to write the figures to")
    arguments = parser.parse_args()
    if arguments.here:
        n, c, what, sweeps, begin, seconds = arguments.here
        print(json.dumps(measure_here(int(n), int(c), what, int(sweeps), float(begin), float(seconds))))
        return
    rows = []
    for what in arguments.what:
        for n in arguments.sizes:
            for threads in arguments.threads:
                rows.append(row(n, CLASSES, what, arguments.sweeps, threads or None, arguments.busy, arguments.seconds))
                print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
