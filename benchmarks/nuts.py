"""NUTS on the hyperparameters alone, latent values integrated out, against NUTS on the full model: the wine data.

    python benchmarks/nuts.py --chains 2 --draws 500 --tune 500 --json nuts.json

Times are of sampling, tuning included, compilation not; one chain to a core, linear algebra on one thread. On a machine
that does other work look at the CPU time; it includes compilation.
"""

import argparse
import json
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import arviz as az
import pymc as pm
from sklearn.datasets import load_wine
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep

NAMES = ["eta", "ls"]
SAMPLERS = ("pymc", "nutpie")


def wine() -> pm.Model:
    data = load_wine()
    X = (data.data - data.data.mean(0)) / data.data.std(0)
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 5)
        ls = pm.InverseGamma("ls", 3, 3)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
        f = gp.prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=data.target)
    return model


def run(marginal: bool, sampler: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Sample, and say how it went."""
    model = wine()
    if marginal:
        model = gpep.marginalize(model)
    # PyMC warns of every model with Gaussian processes that it copies, and of what the table says anyway.
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        begun = cpu_time()
        idata = pm.sample(
            arguments.draws, tune=arguments.tune, chains=arguments.chains, cores=arguments.chains, model=model,
            nuts_sampler=sampler, random_seed=arguments.seed, progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
        result = {"cpu_s": cpu_time() - begun} | summarise(idata)
        if marginal:
            begun = time.perf_counter()
            gpep.recover(idata, model, random_seed=arguments.seed, progressbar=False)
            result["recover_s"] = time.perf_counter() - begun
    return result


def cpu_time() -> float:
    """Seconds of processor that this process and its children that have ended took."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def summarise(idata: Any) -> dict[str, Any]:
    summary = az.summary(idata, var_names=NAMES, round_to="none")
    seconds = float(idata["posterior"].attrs["sampling_time"])
    ess = float(summary["ess_bulk"].min())
    return {
        "sampling_s": seconds,
        "divergences": int(idata["sample_stats"]["diverging"].sum()),
        "steps": int(idata["sample_stats"]["n_steps"].sum()),
        "r_hat": float(summary["r_hat"].max()),
        "ess": ess,
        "ess_tail": float(summary["ess_tail"].min()),
        "ess_per_s": ess / seconds,
        **{name: [float(summary.loc[name, "mean"]), float(summary.loc[name, "sd"])] for name in NAMES},
    }


def limited(function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], limit: float) -> dict[str, Any] | None:
    """Result of a function that runs in a process of its own, None if it takes longer than `limit` seconds."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_put, args=(queue, function, arguments))
    process.start()
    try:
        deadline = time.monotonic() + limit
        while True:
            try:
                return queue.get(timeout=min(1.0, max(deadline - time.monotonic(), 0.0)))
            except Empty:
                if not process.is_alive():
                    raise RuntimeError(f"a run ended with exit code {process.exitcode}") from None
                if time.monotonic() > deadline:
                    return None
    finally:
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def _put(queue: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.setsid()  # to be ended together with the processes that sample
    queue.put(function(*arguments))


def table(results: dict[str, dict[str, Any] | None], limit: float) -> str:
    lines = [
        f"{'':18}{'time/s':>8}{'CPU/s':>8}{'diverg.':>8}{'r-hat':>8}{'ESS':>7}{'ESS/s':>8}{'eta':>14}{'ls':>14}{'recover/s':>11}"
    ]
    for name, r in results.items():
        if r is None:
            lines.append(f"{name:18}{f'> {limit:.0f}':>8}")
            continue
        eta, ls = (f"{mean:.2f} ± {sd:.2f}" for mean, sd in (r["eta"], r["ls"]))
        recover = f"{r['recover_s']:.1f}" if "recover_s" in r else ""
        lines.append(
            f"{name:18}{r['sampling_s']:8.1f}{r['cpu_s']:8.1f}{r['divergences']:8d}{r['r_hat']:8.3f}{r['ess']:7.0f}"
            f"{r['ess_per_s']:8.2f}{eta:>14}{ls:>14}{recover:>11}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--tune", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that one run may take")
    parser.add_argument("--only", nargs="*", help='runs to make, such as "marginal pymc"; all if not given')
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results = {}
    for kind in ("marginal", "full"):
        for sampler in SAMPLERS:
            name = f"{kind} {sampler}"
            if not arguments.only or name in arguments.only:
                results[name] = limited(run, (kind == "marginal", sampler, arguments), arguments.limit)
                print(table(results, arguments.limit), end="\n\n", flush=True)
    if arguments.json:
        settings = {key: value for key, value in vars(arguments).items() if key not in {"json", "only"}}
        arguments.json.write_text(json.dumps({"settings": settings, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
