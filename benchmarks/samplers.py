"""Every exact sampler on the wine data, and NUTS on the hyperparameters alone: effective draws per second.

python benchmarks/samplers.py --chains 2 --json samplers.json python benchmarks/samplers.py --only "GuidedHMC" "NUTS,
PyMC"

Times are of sampling, with tuning and without compilation. Each chain has one core, and linear algebra one thread. The
table shows the smallest effective sample sizes of latent values and of hyperparameters. On a busy machine use the CPU
time, which includes compilation.
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
from typing import Any, NamedTuple

import arviz as az
import pymc as pm
from common import Table
from sklearn.datasets import load_wine
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep

NAMES = ["eta", "ls"]


class Sampler(NamedTuple):
    """A sampler and its settings."""

    step: Callable[[], Any] | None = None
    """Make the step within the model's context. None selects NUTS."""
    nuts_sampler: str = "pymc"
    marginal: bool = False
    """Whether latent values are integrated out by nested EP and drawn afterwards."""
    warm: bool = False
    """Whether evaluations of the evidence start from stored solutions at nearby points."""
    draws: int = 500
    tune: int = 500


SAMPLERS = {
    "GuidedHMC": Sampler(lambda: gpep.samplers.GuidedHMC(), draws=2000),
    "EllipticalSlice": Sampler(lambda: gpep.samplers.EllipticalSlice(), draws=1000),
    "EllipticalSlice, prior": Sampler(lambda: gpep.samplers.EllipticalSlice(guide="prior"), draws=1000),
    "ProbitGibbs, whitened": Sampler(lambda: gpep.samplers.ProbitGibbs(hyper="whitened"), draws=1000),
    "ProbitGibbs, collapsed": Sampler(lambda: gpep.samplers.ProbitGibbs(hyper="collapsed"), draws=1000),
    "ProbitGibbs, centred": Sampler(lambda: gpep.samplers.ProbitGibbs(hyper="centred"), draws=1000),
    "PseudoMarginal": Sampler(lambda: gpep.samplers.PseudoMarginal(), draws=1000),
    "NUTS, PyMC": Sampler(),
    "NUTS, nutpie": Sampler(nuts_sampler="nutpie"),
    "marginal NUTS, PyMC": Sampler(marginal=True),
    "marginal NUTS, PyMC, warm": Sampler(marginal=True, warm=True),
    "marginal NUTS, nutpie": Sampler(marginal=True, nuts_sampler="nutpie"),
}


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


def run(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Sample, and return the figures of the table."""
    sampler = SAMPLERS[name]
    model = wine()
    if sampler.marginal:
        model = gpep.marginalize(model, warm=sampler.warm)
    # PyMC warns that it copies models with Gaussian processes, and about problems that the table shows.
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        begun = time.perf_counter()
        with model:
            step = sampler.step() if sampler.step else None
        made = time.perf_counter() - begun
        begun = cpu_time()
        idata = pm.sample(
            max(int(sampler.draws * arguments.scale), 10), tune=max(int(sampler.tune * arguments.scale), 10),
            chains=arguments.chains, cores=arguments.chains, model=model, step=step,
            nuts_sampler=sampler.nuts_sampler, random_seed=arguments.seed, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
        result = {"make_s": made, "cpu_s": cpu_time() - begun} | summarise(idata)
        if sampler.marginal:
            begun = time.perf_counter()
            gpep.recover_latent(idata, model, random_seed=arguments.seed, progressbar=False)
            result["recover_s"] = time.perf_counter() - begun
    return result


def cpu_time() -> float:
    """Processor seconds of the current process and its finished child processes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def summarise(idata: Any) -> dict[str, Any]:
    summary = az.summary(idata, var_names=NAMES, round_to="none")
    seconds = float(idata["posterior"].attrs["sampling_time"])
    statistics = idata["sample_stats"]
    ess = {"ess": float(summary["ess_bulk"].min()), "ess_tail": float(summary["ess_tail"].min())}
    if "f" in idata["posterior"]:
        ess["ess_latent"] = float(az.ess(idata["posterior"]["f"].values.reshape(*statistics.sizes.values(), -1)).min())
    return {
        "sampling_s": seconds,
        "draws": int(idata["posterior"].sizes["draw"]),
        "divergences": int(statistics["diverging"].sum()) if "diverging" in statistics else None,
        "r_hat": float(summary["r_hat"].max()),
        **ess,
        **{name: [float(summary.loc[name, "mean"]), float(summary.loc[name, "sd"])] for name in NAMES},
    }


def limited(function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], limit: float) -> dict[str, Any] | None:
    """Result of a function in its own process, or None after `limit` seconds."""
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
    os.setsid()  # so that all its child processes can be ended together
    queue.put(function(*arguments))


def table(results: dict[str, dict[str, Any] | None], limit: float) -> Table:
    rows: list[tuple[Any, ...]] = []
    for name, r in results.items():
        if r is None:
            rows.append((name, *[None] * 9, f"stopped at {limit:.0f} s"))
            continue
        latent = r.get("ess_latent")
        moments = ", ".join(f"{r[n][0]:.2f} ± {r[n][1]:.2f}" for n in NAMES)
        rows.append(
            (name, r["draws"], r["sampling_s"], r["divergences"], r["r_hat"], r["ess"], r["ess"] / r["sampling_s"],
             latent, None if latent is None else latent / r["sampling_s"], r.get("recover_s"), moments)
        )  # fmt: skip
    columns = ("sampler", "draws", "time (s)", "divergences", "r-hat", "ESS θ", "ESS θ / s", "ESS f", "ESS f / s",
               "recover (s)", ", ".join(NAMES))  # fmt: skip
    return Table("Wine", columns, ("", "d", ".1f", "d", ".3f", ".0f", ".2f", ".0f", ".2f", ".1f", ""), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the numbers of draws, for a test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that one run may take")
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=SAMPLERS, help="; ".join(SAMPLERS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.only or SAMPLERS:
        results[name] = limited(run, (name, arguments), arguments.limit)
        print(table(results, arguments.limit), end="\n\n", flush=True)
    if arguments.json:
        settings = {key: value for key, value in vars(arguments).items() if key not in {"json", "only"}}
        arguments.json.write_text(json.dumps({"settings": settings, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
