"""Fits with inducing inputs: seconds of a step against other packages, and cost by number of rows.

`shared`: a step for classes with shared covariance and inducing inputs, and its ratio to GPflow's, for sixteen shapes.
Packages take turns, and the shortest time counts. One thread is timed by its processor, several threads by wall time.
`gpu`: the same with several threads, with JAX on a GPU and without it, and with GPyTorch in double and single
precision.

`steps`: a batch step of stochastic EP against a step of other packages' variational bound, with equal numbers of
processes, inducing inputs (each process its own, all learned), rows and columns, and Adam in double precision. `rows`:
a step with data in memory and in files, and a sweep over all rows, by number of rows. It also prints peak memory, and
the power of the number of rows that the time of a sweep grows with. `predict`: class probabilities. `active`: a
selection of active rows, and a round of ten steps of the optimiser with another selection. `ways`: fits with
hyperparameters by all rows, active rows, inducing inputs and batches: seconds and log score. Each measurement runs in
its own process. All use the given number of threads.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from step_peers import PEERS, SHARED_PEERS, clock_of

ROOT = Path(__file__).parents[1]
STEPS = {  # columns, classes, inducing inputs, rows of a batch
    "MNIST": (784, 10, 200, 200),
    "Satellite": (36, 6, 200, 200),
    "small": (36, 6, 50, 100),
}
SHAPES = [(m, b, d, c) for m in (150, 500) for b in (200, 1000) for d in (10, 784) for c in (3, 10)]
"""Inducing inputs, rows of a batch, columns and classes."""
ON_GPU = (150, 200, 784, 10), (500, 1000, 784, 10), (500, 10_000, 784, 10)
"""Shapes as in `SHAPES`, for a GPU."""
KINDS = {
    "quadrature": {"method": "sparse_ep", "sites": "quadrature"},
    "pairwise": {"method": "sparse_ep", "sites": "pairwise"},
    "bound": {"method": "sparse_vi", "sites": "pairwise"},
}
"""Methods for steps with shared inducing inputs."""
ROWS = (10_000, 100_000, 1_000_000)
WAYS: dict[str, dict[str, Any]] = {
    "all rows": {"method": "nested_ep"},
    "active rows": {"method": "ivm", "active": 200},
    "inducing inputs": {"method": "sparse_ep", "inducing": 60, "shared_inducing": True, "learn_inducing": False},
    "batches": {
        "method": "sparse_ep", "inducing": 60, "shared_inducing": True, "learn_inducing": False, "batch_size": 500,
        "steps": 1000,
    },
}  # fmt: skip
MOST = {"all rows": 2000}
"""Largest number of rows for a way of fitting."""
MEMORIES = "stateless", "sites"
SITES = {"sparse_ep": "pairwise", "gfitc": "latent_pairs"}
"""Sites of the methods that use all rows at once."""
BACKENDS = ("", "numba", "jax")


def data(n: int, d: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, d), and labels that depend on them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.argmax(X[:, :c] + rng.normal(size=(n, c)), axis=1)


def model_of(d: int, c: int, *, shared: bool, fixed: bool = False) -> Any:
    """A classifier declared on a few rows, with one squared exponential for each class or for all classes."""
    import pymc as pm
    import pytensor.tensor as pt

    import pymc_gpep as gpep

    X, _ = data(2 * c, d, c)
    with pm.Model() as model:
        size = () if shared else (c,)
        ls = 2.0 * np.sqrt(d) if fixed else pm.LogNormal("ls", 0.5 * np.log(d), 1.0, shape=size)
        eta = 3.0 if fixed else pm.HalfNormal("eta", 3.0, shape=size)
        if shared:
            f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(d, ls=ls)).prior("f", X=X, n_outputs=c)
        else:
            each = [pm.gp.Latent(cov_func=eta[k] ** 2 * pm.gp.cov.ExpQuad(d, ls=ls[k])) for k in range(c)]
            f = pt.stack([gp.prior(f"f_{k}", X=X) for k, gp in enumerate(each)])
        gpep.MultinomialProbit("y", f.T, observed=np.arange(2 * c) % c)
    return model


def ours(case: str, count: int, backend: str, threads: int, bits: int = 0) -> dict[str, float]:
    """Steps of `"sparse_sep"`: seconds of the fastest step, and seconds until the end of the first step."""
    import pymc as pm

    _with_bits(bits)
    d, c, m, b = STEPS[case]
    clock = clock_of(threads)

    def note(fit: Any, losses: np.ndarray, step: int) -> None:
        times.append(clock())

    X, y = data(10 * b, d, c)
    with model_of(d, c, shared=False):
        times = [clock()]
        pm.fit(
            count, method="sparse_sep", inducing=X[:m] + 0.01, batch_size=b, sites="pairwise", data=(X, y), warmup=0,
            callbacks=[note], progressbar=False, backend=backend or None, random_seed=1,
        )  # fmt: skip
    return _of_steps(times)


def _with_bits(bits: int) -> None:
    """Within this context, steps use 64 bits throughout if requested. 0 selects the default."""
    from pymc_gpep.streaming import step as array_step

    if bits == 64:
        array_step._MANY = np.inf  # type: ignore[assignment]  # for this process, whose only purpose it is


def theirs(peer: str, case: str, count: int, threads: int) -> dict[str, float]:
    """Steps of another package, as `ours`."""
    d, c, m, b = STEPS[case]
    return _of_steps(PEERS[peer](*data(10 * b, d, c), c, m, b, count, threads))


def shared_ours(
    m: int, b: int, d: int, c: int, count: int, threads: int, kind: str, backend: str = "", bits: int = 0
) -> dict[str, float]:
    """Steps of a kind with default precision or 64 bits throughout, including the selection of their rows."""
    import pymc as pm

    from pymc_gpep.streaming.run import Run

    _with_bits(bits)
    clock, plain = clock_of(threads), Run.advance

    def timed(self: Any) -> Any:
        taken = plain(self)
        times.append(clock())
        return taken

    Run.advance = timed  # type: ignore[method-assign]  # for this process too
    X, y = data(10 * b, d, c)
    with model_of(d, c, shared=True):
        times = [clock()]
        pm.fit(
            count, inducing=X[:m] + 0.01, batch_size=b, data=(X, y), warmup=0, progressbar=False, random_seed=1,
            backend=backend or None, **KINDS[kind],
        )  # fmt: skip
    return _of_steps(times)


def shared_theirs(peer: str, m: int, b: int, d: int, c: int, count: int, *more: Any) -> dict[str, float]:
    """Steps of another package, by number of threads, and for GPyTorch by precision and device."""
    return _of_steps(SHARED_PEERS[peer](*data(10 * b, d, c), c, m, b, count, *more))


def all_rows(n: int, m: int, method: str) -> dict[str, float]:
    """Sweeps over all rows at fixed hyperparameters."""
    import pymc as pm

    X, y = data(n, 8, 3)
    with model_of(8, 3, shared=True, fixed=True):
        fit = pm.fit(
            method=method, inducing=m, shared_inducing=True, learn_inducing=False, sites=SITES[method], data=(X, y),
            progressbar=False, random_seed=1,
        )  # fmt: skip
        first = int(fit.trace.best.iterations)
        began = time.perf_counter(), time.process_time()
        sweeps = fit.solve().convergence.iterations
        spent = time.perf_counter() - began[0], time.process_time() - began[1]
    return {"sweep": spent[0] / sweeps, "CPU": spent[1] / sweeps, "sweeps from nothing": first, "MB": _megabytes()}


def by_batches(n: int, m: int, memory: str) -> dict[str, float]:
    """Fifty steps of 200 rows, with stored sites of rows."""
    import pymc as pm

    times: list[float] = []
    X, y = data(n, 8, 3)
    before = _megabytes()
    with model_of(8, 3, shared=True):
        pm.fit(
            50, method="sparse_ep", inducing=m, shared_inducing=True, batch_size=200, sites="pairwise", warmup=0,
            data=(X, y), progressbar=False, random_seed=1, memory=memory,
            callbacks=[lambda fit, losses, step: times.append(time.perf_counter())],
        )  # fmt: skip
    return {"step": float(np.median(np.diff(times))), "MB of the data": before, "MB": _megabytes()}


def from_files(n: int, m: int) -> dict[str, float]:
    """Steps of `"sparse_sep"` with data in memory-mapped files: two hundred steps of 200 rows."""
    import pymc as pm

    with tempfile.TemporaryDirectory() as folder:
        inputs, labels = Path(folder) / "inputs", Path(folder) / "labels"
        with inputs.open("wb") as of_inputs, labels.open("wb") as of_labels:
            for first in range(0, n, 10_000):  # not all in memory at once, since memory is measured
                X, y = data(min(10_000, n - first), 8, 3)
                X.tofile(of_inputs)
                y.tofile(of_labels)
        mapped = np.memmap(inputs, np.float64, "r", shape=(n, 8)), np.memmap(labels, np.int64, "r", shape=(n,))
        with model_of(8, 3, shared=True):
            fit = pm.fit(
                200, method="sparse_sep", inducing=m, shared_inducing=True, batch_size=200, sites="pairwise", warmup=0,
                data=mapped, progressbar=False, random_seed=1,
            )  # fmt: skip
    return {"loss at the end": float(fit.hist[-1]), "MB": _megabytes()}


def active_rows(n: int, active: int, rows: int) -> dict[str, float]:
    """Selection of active rows with the bound over some rows, and a further round: ten steps and another selection."""
    import pymc as pm

    def fit(X: np.ndarray, y: np.ndarray, rounds: int, **options: int) -> tuple[float, float]:
        with model_of(10, 3, shared=True):
            began = time.process_time()
            found = pm.fit(method="ivm", rounds=rounds, data=(X, y), progressbar=False, random_seed=1, **options)
        return found.seconds, time.process_time() - began

    X, y = data(n, 10, 3)
    fit(X[:200], y[:200], 1, active=10)  # compiles
    before = _megabytes()
    choice, with_round = (np.array(fit(X, y, rounds, active=active, rows=rows)) for rounds in (0, 1))
    (first, cpu), (of_round, cpu_of_round) = choice, with_round - choice
    return {
        "choice": first, "CPU": cpu, "round": of_round, "its CPU": cpu_of_round, "MB before": before,
        "MB": _megabytes(),
    }  # fmt: skip


def predictions(n: int, m: int) -> dict[str, float]:
    """Probabilities of ten classes at n points."""
    import pymc as pm

    X, y = data(4000, 10, 10)
    with model_of(10, 10, shared=False):
        fit = pm.fit(50, method="sparse_sep", inducing=m, batch_size=200, data=(X, y), progressbar=False, random_seed=1)
        times = [time.perf_counter()]
        for _ in range(2):
            fit.predict(data(n, 10, 10)[0])
            times.append(time.perf_counter())
    first, again = np.diff(times)
    return {"first, with its graphs": float(first), "again": float(again)}


def by_way(way: str, n: int) -> dict[str, float]:
    """Processor seconds of a fit, and the log score of 2000 new rows, for the data of the how-to page."""
    import pymc as pm

    import pymc_gpep as gpep

    rng = np.random.default_rng(1)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.uniform(-3, 3, size=(count, 2))
        f = 2 * np.stack([np.sin(2 * X[:, 0]), np.cos(1.5 * X[:, 1]), X.prod(axis=1) / 4])
        return X, (f + rng.standard_normal(f.shape)).argmax(axis=0)

    (Xnew, ynew), (X, y) = draw(2000), draw(n)
    options = dict(WAYS[way])
    with pm.Model():
        ls = pm.InverseGamma("ls", 3, 3)
        eta = pm.HalfNormal("eta", 5)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, observed=y)
        if "batch_size" in options:
            options["obj_optimizer"] = pm.adam(learning_rate=0.02)
        began = time.process_time()
        fit = pm.fit(options.pop("steps", 10_000), progressbar=False, random_seed=1, **options)
        spent = time.process_time() - began
    p = fit.predict(Xnew, covariances=False)["p"].values
    score = float(np.log(p[np.arange(len(ynew)), ynew]).mean())
    return {"seconds of the processor": spent, "log score": score, "MB": _megabytes()}


def volume(n: int, m: int, c: int, workers: int, sites: str) -> dict[str, float]:
    """Amount of data that each worker of a cluster receives and sends in a sweep, in numbers of eight bytes."""
    import cloudpickle
    import pymc as pm
    from distributed import Client, LocalCluster

    from pymc_gpep.cluster.rounds import Rounds

    plain, sent, returned = Rounds._sum, [], []

    def counted(self: Any, parts: Any, task: Any) -> Any:
        sent.append(len(cloudpickle.dumps(task)))
        total = plain(self, parts, task)
        returned.append(len(cloudpickle.dumps(total)))
        return total

    Rounds._sum = counted  # type: ignore[method-assign]  # for this process, whose only purpose it is
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        model_of(10, c, shared=True, fixed=True),
    ):
        fit = pm.fit(
            method="sparse_ep", inducing=m, shared_inducing=True, learn_inducing=False, sites=sites,
            data=data(n, 10, c), progressbar=False, random_seed=1, client=client,
        )  # fmt: skip
    sweeps = int(fit.trace.best.iterations)
    return {
        "rounds": len(sent) / sweeps,
        "sent": sum(sent) / 8 / sweeps,
        "returned": sum(returned) / 8 / sweeps,
        "posterior": (c if sites == "nested" else 1) * c * m * m + c * m,
        "sweeps": sweeps,
    }


def _of_steps(times: list[float]) -> dict[str, float]:
    """Shortest time of a step, and the time of the first, which includes compilation."""
    first, *taken = np.diff(times)
    return {"step": float(np.min(taken)), "median": float(np.median(taken)), "first": float(first)}


def _megabytes() -> float:
    """Peak memory of the current process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    each.__name__: each for each in (
        ours, theirs, shared_ours, shared_theirs, all_rows, by_batches, from_files, active_rows,
        predictions, by_way, volume,
    )
}  # fmt: skip


def measured(python: str, seconds: float, threads: int, name: str, *values: Any) -> dict[str, float] | str:
    """A measurement in its own process, or the reason why it is missing."""
    command = [python, __file__, "one", json.dumps([name, *values])]
    count = str(threads)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count, "PYTHONPATH": paths}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return f"more than {seconds:g} s"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _lower(least: dict[str, float], name: str, found: dict[str, float] | str) -> None:
    """Update the shortest times of a step and of a first step."""
    if isinstance(found, str):
        raise RuntimeError(f"{name}: {found}")
    for each, seconds in ((name, found["step"]), (f"first {name}", found["first"])):
        least[each] = min(least.get(each, np.inf), seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", choices=("steps", "shared", "gpu", "rows", "active", "predict", "ways", "volume", "one")
    )
    parser.add_argument("one", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="*", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--backends", nargs="*", default=["", "jax"], choices=BACKENDS, help="'' for none")
    parser.add_argument("--count", type=int, default=20, help="steps")
    parser.add_argument(
        "--bits",
        type=int,
        default=0,
        choices=(0, 64),
        help="number of bits of this package's numbers; 0 selects the default",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of `shared`, in which packages alternate")
    parser.add_argument("--shapes", type=int, nargs="*", default=list(range(len(SHAPES))), help="kinds of `shared`")
    parser.add_argument("--sizes", type=int, nargs="*", default=ROWS)
    parser.add_argument(
        "--methods", nargs="*", default=list(SITES), choices=list(SITES), help="method for all rows at once"
    )
    parser.add_argument("--inducing", type=int, default=20)
    parser.add_argument("--active", type=int, default=200, help="active rows")
    parser.add_argument("--gpflow", metavar="PYTHON", help="the Python of an environment that has GPflow")
    parser.add_argument("--gpytorch", metavar="PYTHON", help="the Python of an environment that has GPyTorch")
    parser.add_argument("--device", default="cuda", help="device of GPyTorch in `gpu`; JAX uses its default device")
    parser.add_argument("--python", default=sys.executable, help="mode of this package's steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds that one measurement may take")
    arguments = parser.parse_args()
    if arguments.what == "one":
        name, *values = json.loads(arguments.one)
        print(json.dumps(MEASUREMENTS[name](*values)))
        return
    here = arguments.python, arguments.seconds, arguments.threads

    def report(label: str, found: dict[str, float] | str) -> None:
        figures = found if isinstance(found, str) else "  ".join(f"{key} {value:.4g}" for key, value in found.items())
        print(f"{label:40}  {figures}", flush=True)

    if arguments.what == "steps":
        for case in arguments.cases:
            for backend in arguments.backends:
                report(
                    f"{case}: here, {backend or 'nothing compiled'}",
                    measured(*here, "ours", case, arguments.count, backend, arguments.threads, arguments.bits),
                )
            for peer, python in (("GPflow", arguments.gpflow), ("GPyTorch", arguments.gpytorch)):
                if python:
                    found = measured(python, *here[1:], "theirs", peer, case, arguments.count, arguments.threads)
                    report(f"{case}: {peer}", found)
    elif arguments.what == "shared":
        for m, b, d, c in (SHAPES[i] for i in arguments.shapes):
            least: dict[str, float] = {}
            for _ in range(arguments.rounds):
                problem = m, b, d, c, arguments.count, arguments.threads
                for kind in KINDS:
                    _lower(least, kind, measured(*here, "shared_ours", *problem, kind, "", arguments.bits))
                if arguments.gpflow:
                    _lower(least, "GPflow", measured(arguments.gpflow, *here[1:], "shared_theirs", "GPflow", *problem))
            figures = {name: 1e3 * seconds for name, seconds in least.items()}
            if "GPflow" in least:
                figures |= {f"{kind} to it": least[kind] / least["GPflow"] for kind in KINDS}
            report(f"M {m}, batches of {b}, {d} columns, {c} classes, ms", figures)
    elif arguments.what == "gpu":
        gpytorch = arguments.gpytorch or arguments.python
        for m, b, d, c in ON_GPU:
            problem = m, b, d, c, arguments.count, arguments.threads
            for kind, backend in product(KINDS, ("jax", "")):
                found = measured(*here, "shared_ours", *problem, kind, backend)
                report(f"{m}, {b}, {d}, {c}: {kind}, {backend or 'nothing compiled'}", found)
            for bits in (64, 32):
                found = measured(gpytorch, *here[1:], "shared_theirs", "GPyTorch", *problem, bits, arguments.device)
                report(f"{m}, {b}, {d}, {c}: GPyTorch, {bits} bits", found)
    elif arguments.what == "rows":
        for n in arguments.sizes:
            for memory in MEMORIES:
                report(f"{n} rows, by batches, {memory}", measured(*here, "by_batches", n, arguments.inducing, memory))
            report(f"{n} rows, by batches, from files", measured(*here, "from_files", n, arguments.inducing))
        for method in arguments.methods:
            sweeps = []
            for n in arguments.sizes:
                found = measured(*here, "all_rows", n, arguments.inducing, method)
                report(f"{n} rows, all at once, {method}", found)
                if not isinstance(found, str):
                    sweeps.append((n, found["CPU"]))
            for (n, spent), (n_next, spent_next) in pairwise(sweeps):
                power = np.log(spent_next / spent) / np.log(n_next / n)
                report(f"{n} to {n_next} rows, {method}", {"power of their number": power})
    elif arguments.what == "active":
        for n in arguments.sizes:
            most = min(n, 20_000)
            report(f"{n} rows, {arguments.active} active", measured(*here, "active_rows", n, arguments.active, most))
    elif arguments.what == "ways":
        for n in arguments.sizes:
            for way in WAYS:
                if n <= MOST.get(way, n):
                    report(f"{n} rows, {way}", measured(*here, "by_way", way, n))
    elif arguments.what == "volume":
        for c, m, sites in ((3, 20, "pairwise"), (10, 100, "pairwise"), (3, 20, "nested"), (10, 100, "nested")):
            report(f"{c} classes, {m} inducing inputs, {sites}", measured(*here, "volume", 20_000, m, c, 2, sites))
    else:
        report("10 000 points, ten classes", measured(*here, "predictions", 10_000, 200))


if __name__ == "__main__":
    main()
