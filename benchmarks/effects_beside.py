"""Effects of groups and columns plus a Gaussian process, with inducing inputs and rows in a file.

The rows are simulated in blocks and written to files that NumPy maps, so that no process holds all of them. Each fit
runs in its own process: sweeps over all rows by one process or by workers of a Dask cluster, or steps over batches. The
command prints seconds, processor seconds, sweeps or steps, peak memory of the fitting process, and the evidence or its
estimate by batches. Errors are root mean squared errors of the coefficients of the columns, in standard deviations of
their posterior.

    python -m benchmarks.effects_beside --rows 1000000 --workers 0 1 2 --batch-size 2000
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

BLOCK = 100_000


def table(rng: np.random.Generator, n: int, levels: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (n, 2 + columns) of an input, a level and columns, and responses (n,)."""
    x, group = rng.uniform(-3, 3, n), rng.integers(0, levels, n)
    others = rng.normal(size=(n, columns))
    argument = np.sin(2 * x) + np.cos(group) + 0.3 * others.sum(axis=1) / np.sqrt(columns)
    return np.column_stack([x, group, others]), (rng.random(n) < 1 / (1 + np.exp(-argument))).astype(np.int64)


def written(folder: Path, n: int, levels: int, columns: int) -> None:
    """Write n rows into files of a folder."""
    rng = np.random.default_rng(1)
    inputs = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float64, (n, 2 + columns))
    labels = np.lib.format.open_memmap(folder / "y.npy", "w+", np.int64, (n,))
    for start in range(0, n, BLOCK):
        rows = slice(start, min(start + BLOCK, n))
        inputs[rows], labels[rows] = table(rng, rows.stop - rows.start, levels, columns)
    inputs.flush()
    labels.flush()


def fitted(folder: Path, way: str, given: argparse.Namespace) -> None:
    """Fit and print. `way` is a number of workers, None for one process, or `batches`."""
    levels, columns = given.levels, given.columns
    import pymc as pm
    from distributed import Client, LocalCluster

    import pymc_gpep  # noqa: F401 - it lets pm.fit know its methods

    workers = 0 if way == "batches" else int(way)

    some, y = table(np.random.default_rng(2), levels, levels, columns)
    with pm.Model() as model:
        x, group, others = pm.Data("x", some[:, :1]), pm.Data("group", np.arange(levels)), pm.Data("c", some[:, 2:])
        cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ls", 3, 3))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=x)
        a = pm.Normal("a", 0, pm.HalfNormal("s", 1), shape=levels)
        b = pm.Normal("b", 0, 1, shape=columns)
        pm.Bernoulli("y", logit_p=pm.Normal("level", 0, 3) + a[group] + others @ b + f, observed=y)
    inducing = np.linspace(-3, 3, given.inducing)[:, None]
    options = {"model": model, "method": "sparse_ep", "inducing": inducing, "hyper": "map", "learn_inducing": False}
    options |= {"data": (str(folder / "x.npy"), str(folder / "y.npy")), "progressbar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the search ends after a few iterations
        began = time.perf_counter(), time.process_time()
        if workers:
            with (
                LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
                Client(cluster) as client,
            ):
                fit = pm.fit(given.iterations, client=client, **options)
        elif way == "batches":
            fit = pm.fit(_steps(given), batch_size=given.batch_size, random_seed=1, **options)
        else:
            fit = pm.fit(given.iterations, **options)
    spent, used = time.perf_counter() - began[0], time.process_time() - began[1]
    # On Linux `ru_maxrss` includes the process that started this one and wrote the rows.
    memory = int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1e3
    b = fit.effects("b")["b"]
    error = (b.sel(moment="mean") - 0.3 / np.sqrt(columns)) / b.sel(moment="sd")
    if way == "batches":
        done, number = f"{len(fit.hist)} steps", f"log normaliser {fit.solution.objective:.3f}"
    else:
        done, number = f"last solve {fit.trace.best.iterations} sweeps", f"log evidence {fit.log_evidence:.9f}"
    named = f"{workers} workers" if workers else "batches" if way == "batches" else "one process"
    print(
        f"{named:12}  {spent:8.1f} s  CPU {used:8.1f} s  {done}  {memory:7.0f} MB  {number}  "
        f"errors {float(np.sqrt((error**2).mean())):.2f}",
        flush=True,
    )


def _steps(given: argparse.Namespace) -> int:
    """Run steps over batches for the given number of epochs."""
    return max(1, round(given.epochs * given.rows / given.batch_size))


def main() -> None:
    """Write the rows, and fit them in each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--levels", type=int, default=280)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--inducing", type=int, default=100)
    parser.add_argument(
        "--iterations", type=int, default=0, help="largest number of iterations of the search for hyperparameters"
    )
    parser.add_argument(
        "--workers", type=int, nargs="*", default=[], help="numbers of workers for sweeps; 0: no cluster"
    )
    parser.add_argument("--batch-size", type=int, help="number of rows of a batch")
    parser.add_argument("--epochs", type=float, default=1.0, help="number of epochs of batch steps")
    parser.add_argument("--fit", nargs=2, metavar=("FOLDER", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fit:
        fitted(Path(given.fit[0]), given.fit[1], given)
        return
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), given.rows, given.levels, given.columns)
        for way in (*map(str, given.workers), *["batches"] * (given.batch_size is not None)):
            again = [sys.executable, "-m", "benchmarks.effects_beside", *sys.argv[1:], "--fit", folder, way]
            subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
