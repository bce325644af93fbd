"""Waiting times of a user: the first fit on a machine, the first prediction, and a second model.

Each column is a new process with its own caches: empty, and then filled by the first process. Ratios are relative to
stock PyMC with empty caches, which compiles and calls the density and gradient of the same model with a softmax. Times
are CPU seconds, without importing PyMC and declaring the model.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def declare(n: int, softmax: bool = False, columns: int = 3) -> tuple[Any, Any, Any]:
    """A model of n points and three classes with one length scale, its process, and its inputs."""
    import numpy as np
    import pymc as pm

    import pymc_gpep as gpep

    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, columns))
    y = (X[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int) + (X[:, 1] > 0.5)
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 5)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(columns, ls=pm.InverseGamma("ls", 3, 3)))
        f = gp.prior("f", X=X, n_outputs=3)
        if softmax:
            pm.Categorical("y", logit_p=f.T, observed=y)
        else:
            gpep.MultinomialProbit("y", f.T, observed=y)
    return model, gp, X


def cpu(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[float, Any]:
    """Seconds of CPU time that a call takes, and what it returns."""
    began = time.process_time()
    value = function(*args, **kwargs)
    return time.process_time() - began, value


def stock() -> dict[str, float]:
    """PyMC's own log density and gradient."""
    from pymc.blocking import DictToArrayBijection

    model, _, _ = declare(100, softmax=True)

    def once() -> None:
        function = model.logp_dlogp_function(ravel_inputs=True)
        function.set_extra_values({})
        function(DictToArrayBijection.map(model.initial_point()))

    return {"stock PyMC's density, compiled and called once": cpu(once)[0]}


def ours() -> dict[str, float]:
    """A fit, predictions and further models, in one process."""
    import pymc as pm

    times: dict[str, float] = {}
    model, gp, X = declare(100)
    with model:
        times["fit"], fit = cpu(pm.fit, method="nested_ep", progressbar=False)
        times["time of the fit alone"] = fit.seconds
        times["predict"], _ = cpu(fit.predict, gp, X[:5])
        times["sample"], _ = cpu(fit.sample, 100)
        times["loo"], _ = cpu(fit.loo)
        times["importance"], _ = cpu(fit.importance)
    for name, other in (("another fold", declare(93)), ("another model", declare(80, columns=5))):
        model, gp, X = other
        with model:
            times[f"{name}, fit"], fit = cpu(pm.fit, method="nested_ep", progressbar=False)
            times[f"{name}, beyond the fit itself"] = times[f"{name}, fit"] - fit.seconds
            times[f"{name}, predict"], _ = cpu(fit.predict, gp, X[:5])
    return times


def sampler() -> dict[str, float]:
    """Make a sampler, and its first draw."""
    import pymc_gpep as gpep

    model, _, _ = declare(100)
    with model:
        making, step = cpu(gpep.samplers.GuidedHMC)
        point = model.initial_point()
        first, _ = cpu(step.step, point)
    return {"making a GuidedHMC": making, "its first draw": first}


def in_process(what: str, caches: Path) -> dict[str, float]:
    """Run a function of this module in a new process, and return its result."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        "PYTENSOR_FLAGS": f"base_compiledir={caches / 'pytensor'}",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--here", what]
    return json.loads(subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", choices=["stock", "ours", "sampler"], help=argparse.SUPPRESS)
    parser.add_argument("--json", help="file to write the figures to")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(globals()[arguments.here]()))
        return
    with tempfile.TemporaryDirectory() as folder:
        unit = in_process("stock", Path(folder) / "stock")
        first, again = (in_process("ours", Path(folder) / "ours") for _ in range(2))
        first |= in_process("sampler", Path(folder) / "sampler")
        again |= in_process("sampler", Path(folder) / "sampler")
    (seconds,) = unit.values()
    print(f"{next(iter(unit))}: {seconds:.1f}\n")
    print(f"{'':40}{'first on a machine':>20}{'ratio':>10}{'first in a process':>22}")
    for name, value in first.items():
        print(f"{name:40}{value:20.2f}{seconds / value:10.1f}{again[name]:22.2f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"stock": unit, "first": first, "again": again}, indent=1))


if __name__ == "__main__":
    main()
