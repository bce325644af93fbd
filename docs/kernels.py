"""Kernels that run the pages, forked from one process that has imported the modules of pages.

A kernel that starts by itself imports PyMC and this package, and reads PyTensor's rewrites. This takes five seconds for
each page. A forked kernel is also a separate process with an empty namespace.
"""

import gc
import io
import json
import os
import selectors
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any
from warnings import catch_warnings

ENVIRONMENT = "PYMC_GPEP_KERNELS"
"""Environment variable with the path of the socket that accepts requests for kernels."""


def specification() -> dict[str, object]:
    """Return the kernel that Jupyter starts: a process that requests a fork, and ends with it."""
    return {
        "argv": [sys.executable, "-S", "-E", __file__, "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
    }


def read_script(text: str) -> Any:
    """Return the notebook of a script in cells, which names its kernel: without a name Jupyter starts its own.

    The last lines of a script save its picture. A page shows the picture, and would draw it twice with these lines.
    """
    import jupytext

    shown = text.partition('\nPath("output")')[0].rstrip() + ";"  # Without the semicolon the last value is printed.
    notebook = jupytext.reads(shown, fmt="py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def ask(connection_file: str) -> None:
    """Request a fork of a kernel, and wait for its end. The kernel ends as soon as this process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as kernel:
        kernel.connect(os.environ[ENVIRONMENT])
        kernel.sendall(json.dumps([connection_file, str(Path.cwd()), dict(os.environ)]).encode() + b"\n")
        kernel.recv(1)


def serve() -> None:
    """Import the modules of pages, and fork a kernel for each request, until standard input ends."""
    # ipykernel sets the first after matplotlib has read it. The second is for pyarrow, whose thread would be lost in a
    # fork.
    os.environ |= {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    os.environ |= {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
    for name in ("arviz", "ipykernel.kernelapp", "matplotlib.pyplot", "sklearn.datasets"):
        import_module(name)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import_module("tests.compile_once").compile_once()
    modes = import_module("tests.graph_modes")
    modes.make_functions_quickly()
    modes.interpret_graphs()
    sys.path.pop(0)
    hide_progress_bars()
    with catch_warnings(action="ignore"):
        fit_and_draw()
    gc.collect()
    gc.freeze()  # garbage collection in a kernel would otherwise visit and copy all earlier objects
    running = set[int]()
    with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as ready:
        server.bind(os.environ[ENVIRONMENT])
        server.listen()
        print("ready", flush=True)
        ready.register(server, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        while not any(key.fileobj is sys.stdin for key, _ in ready.select()):
            running -= {kernel for kernel in running if os.waitpid(kernel, os.WNOHANG)[0]}
            asked, _ = server.accept()
            with asked, asked.makefile() as lines:
                request = json.loads(lines.readline())
                if kernel := os.fork():
                    running.add(kernel)
                else:
                    run(asked, *request)
    for kernel in running:
        os.kill(kernel, signal.SIGTERM)
        os.waitpid(kernel, 0)


def hide_progress_bars() -> None:
    """Let rich start no bar. A bar that starts on a slow machine would leave its last state on the page.

    Without ipywidgets, its place would be taken by a warning.
    """
    from rich.live import Live

    Live.start = lambda self, refresh=False: None
    Live.stop = lambda self: None


def fit_and_draw() -> None:
    """Run the work of most pages on little data.

    A first fit reads PyTensor's rewrites and compiled kernels. Graphs that equal these are not rewritten again. A first
    picture searches for fonts.
    """
    import numpy as np
    import pymc as pm
    from matplotlib.figure import Figure

    import pymc_gpep as gpep

    for name in gpep.__all__:
        getattr(gpep, name)
    X = np.linspace(0.0, 3.0, 12)[:, None]
    y = np.arange(12) // 4
    group = np.arange(12) % 3

    def function(**shape: int) -> tuple[object, object]:
        ls, eta = pm.InverseGamma("ls", 3, 3), pm.HalfNormal("eta", 5)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
        return gp, gp.prior("f", X=X, **shape)

    def two_classes():
        gp, f = function()
        gpep.Probit("y", f, observed=y == 1)
        return gp

    def three_classes():
        gp, f = function(n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
        return gp

    def counts():
        gp, f = function()
        pm.Poisson("y", mu=pm.math.exp(f), observed=y)
        return gp

    def effects():
        of_group = pm.Normal("of_group", 0, pm.HalfNormal("s", 1), shape=3)
        eta = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 1) * X[:, 0] + of_group[group]
        pm.Bernoulli("y", logit_p=eta, observed=y == 1)

    methods = {two_classes: "ep", three_classes: "nested_ep", counts: "ep", effects: "ep"}
    for build, method in methods.items():
        with pm.Model():
            gp = build()
            fit = pm.fit(method=method, progressbar=False)
        if gp is not None:
            fit.predict(gp, X)
    figure = Figure(layout="constrained")  # pyplot would choose a backend here that shows no figures in a kernel
    figure.subplots().set(title="title", xlabel="label")
    figure.savefig(io.BytesIO(), format="png")


def run(asked: socket.socket, connection_file: str, folder: str, environment: dict[str, str]) -> None:
    """Run the kernel of a page until the requesting process ends."""
    from ipykernel.kernelapp import IPKernelApp

    Thread(target=lambda: os._exit(len(asked.recv(1))), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["kernel", "-f", connection_file, "--log-level=40"]  # errors only
    sys.argv += ["--InlineBackend.print_figure_kwargs={'bbox_inches': None}"]  # a tight box takes a second layout
    try:
        IPKernelApp.launch_instance(sys.argv[1:])
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ask(sys.argv[1])
    else:
        serve()
