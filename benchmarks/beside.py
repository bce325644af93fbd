"""Time of a fit alone, and together with other work on the same processors.

Two processes prepare. Then one of them works alone, and both work at once, in turn. "Busy" is a process together with a
loop that keeps one processor busy. The figure is the best over all turns of the median time of a turn, of the slower
process. Solves and predictions are at fixed hyperparameters. Draws are by `GuidedHMC`.
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
sys.path.insert(0, str(ROOT))  # for code that benchmarks share

SIZES = (100, 200, 400, 676, 1000, 2000)
CLASSES = 4
WHAT = ("solve", "predict", "draw")


def repeated(what: str, n: int, c: int, sweeps: int) -> Callable[[], Any]:
    """Timed work: a solve from a cold start, a prediction at half as many points, or three draws."""
    from benchmarks.solver import problem
    from pymc_gpep import NestedEP

    k, mean, labels = problem(n, c)
    solver = NestedEP(max_iterations=sweeps)
    if what == "solve":
        return lambda: solver.solve(k, mean, labels)
    if what == "predict":
        posterior = solver.solve(k, mean, labels).posterior
        half = n // 2
        return lambda: posterior.predict(k[None, :half], k.diagonal()[None, :half], mean[:, :half])
    return draws(n, c, labels)


def draws(n: int, c: int, labels: np.ndarray) -> Callable[[], Any]:
    """Draws of latent values and of a hyperparameter with a narrow posterior, for which the guide is fitted quickly."""
    import pymc as pm

    import pymc_gpep as gpep

    X = np.random.default_rng(0).normal(size=(n, 16))  # as in the problem
    with pm.Model() as model:
        eta = pm.LogNormal("eta", 2.0, 0.05)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(16, ls=np.exp(2.0)))
        f = gp.prior("f", X=X, n_outputs=c)
        gpep.MultinomialProbit("y", f.T, observed=labels)
        step = gpep.samplers.GuidedHMC(rng=1)
    start = model.initial_point()

    def once() -> None:
        step.setup_chain(np.random.default_rng(1), tune=0, draws=3)  # the same draws each time
        point = start
        for _ in range(3):
            point, _ = step.step(point)

    return once


def work(once: Callable[[], Any]) -> None:
    """Print "ready".

    Then read numbers of seconds, line by line: repeat the work for this time, and print the median time.
    """
    once()
    print("ready", flush=True)
    for line in sys.stdin:
        times: list[float] = []
        while len(times) < 3 or sum(times) < float(line):
            began = time.perf_counter()
            once()
            times.append(time.perf_counter() - began)
        print(np.median(times), flush=True)


def start_worker(what: str, n: int, sweeps: int, threads: int) -> subprocess.Popen[str]:
    """Start a process and wait until it is prepared. BLAS uses this number of threads, or its default if 0."""
    environment = {name: x for name, x in os.environ.items() if name not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
    if threads:
        environment["OPENBLAS_NUM_THREADS"] = environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, __file__, "--work", what, str(n), str(sweeps)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def turn(workers: list[subprocess.Popen[str]], seconds: float) -> float:
    """Let workers work at the same time. Return the median time of the slower worker."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{seconds}\n")
        worker.stdin.flush()
    return max(float(worker.stdout.readline()) for worker in workers if worker.stdout is not None)


def row(what: str, n: int, sweeps: int, threads: int, busy: bool, turns: int, seconds: float) -> dict[str, Any]:
    """Seconds alone, with a second process, and with a busy processor if requested, and the ratios."""
    workers = [start_worker(what, n, sweeps, threads) for _ in range(2)]
    found: dict[str, list[float]] = {"alone": [], "two at once": [], "busy": []}
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for _ in range(turns):
            found["alone"].append(turn(workers[:1], seconds))
            found["two at once"].append(turn(workers, seconds))
            if busy:
                with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as idler:
                    found["busy"].append(turn(workers[:1], seconds))
                    idler.kill()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    best = {name: min(times) for name, times in found.items() if times}
    ratios = {f"{name} / alone": best[name] / best["alone"] for name in list(best)[1:]}
    return {"what": what, "n": n, "threads": threads or "default"} | best | ratios


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--what", nargs="*", default=WHAT, choices=WHAT)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="numbers of points")
    parser.add_argument("--sweeps", type=int, default=200, help="largest number of iterations")
    parser.add_argument("--threads", nargs="*", type=int, default=[0], help="threads of BLAS; 0 is its default")
    parser.add_argument("--busy", action="store_true", help="also measure with a busy processor")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each turn")
    parser.add_argument("--json", help="file to write the figures to")
    arguments = parser.parse_args()
    if arguments.work:
        what, n, sweeps = arguments.work
        work(repeated(what, int(n), CLASSES, int(sweeps)))
        return
    rows = []
    for what in arguments.what:
        for n in arguments.sizes:
            for threads in arguments.threads:
                rows.append(row(what, n, arguments.sweeps, threads, arguments.busy, arguments.turns, arguments.seconds))
                print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
