"""How much of the package a reader opens to follow one task: `python -m tests.structure.reading`.

The table has, for each task, the files whose functions run, the lines of these files, and the lines of these functions.
A kernel counts if a function that runs contains its name. With `--files`, the table lists each file.
The last two tasks count the files that name a class of a form of prior.
"""

import argparse
import ast
import contextlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pymc as pm
from numba.core.dispatcher import Dispatcher

import pymc_gpep as gpep
from pymc_gpep.approximations.ep import EP
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS

PACKAGE = Path(gpep.__file__).parent
# Rooms that read a model and state its prior. All other rooms treat a sum of effects like any prior.
OF_MODELS = ("graphs", "recipes", "latent", "processes", "univariate", "sums", "reading", "prior_moments")
Files = dict[str, set[int]]
"""Lines of the functions that run, by files relative to the package."""


def is_kernel(value: Any) -> bool:
    """Return whether a value is a compiled kernel. Only the type is inspected: attributes could run code."""
    return issubclass(type(value), Dispatcher)


def functions_that_run(call: Callable[[], Any]) -> set[CodeType]:
    """Return the functions of the package that a call runs, with the kernels that these name."""
    functions, kernels = set(), []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            functions.add(frame.f_code)
            named = [frame.f_globals.get(name) for name in frame.f_code.co_names]
            kernels.extend(value for value in [*named, *frame.f_locals.values()] if is_kernel(value))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    while kernels:
        function = kernels.pop().py_func
        if function.__code__ not in functions:
            functions.add(function.__code__)
            named = [function.__globals__.get(name) for name in function.__code__.co_names]
            kernels += [value for value in named if is_kernel(value)]
    return functions


def files_of(functions: set[CodeType]) -> Files:
    """Return the lines of functions, by files."""
    found = defaultdict(set)
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        found[str(Path(function.co_filename).relative_to(PACKAGE))] |= set(range(first, first + len(lines)))
    return dict(found)


def probit_ep() -> Files:
    """Return the files of one solve of EP: the probit likelihood, and a covariance matrix."""
    y = np.arange(6) % 2
    likelihood = next(each for each in LIKELIHOODS if each.name == "probit")
    solve = partial(EP().solve, np.eye(6) + 0.5, np.zeros(6), y, likelihood=likelihood)
    solve()  # kernels are compiled
    return files_of(functions_that_run(solve))


def model_with_groups(n_groups: int = 8, n: int = 600) -> pm.Model:
    """Return a probit model with group intercepts and a slope, which is fitted by rows."""
    rng = np.random.default_rng(3)
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, n - n_groups)])
    x = rng.normal(size=n)
    with pm.Model() as model:
        group, slope = pm.Data("group", groups), pm.Normal("slope", 0, 1)
        level, spread = pm.Normal("level", 0, 2), pm.HalfNormal("spread", 1)
        intercept = pm.Normal("intercept", level, spread, shape=n_groups)
        at = intercept[group] + slope * pm.Data("x", x)
        pm.Bernoulli("y", p=pm.math.invprobit(at), observed=(rng.normal(size=n) < 0.5 + x).astype(int))
    return model


def mixed_model(solve: Files) -> tuple[Files, Files]:
    """Return the files of the fit of a mixed model, and the files that its prediction opens in addition.

    Files of the fit are files in rooms of models, and files of solvers, posteriors and kernels that are not in `solve`,
    the files of the EP solve with a covariance matrix.
    """

    def fitted() -> Any:
        with model_with_groups():
            return pm.fit(method="ep", progressbar=False)

    predict = partial(fitted().predict, data={"group": np.arange(3), "x": np.zeros(3)})
    predict()
    fit = files_of(functions_that_run(fitted))
    forms = {name for name in fit.keys() - solve.keys() if name.startswith(("solvers/", "gaussians/", "kernels/"))}
    own = {name: lines for name, lines in fit.items() if name in forms or name.startswith(OF_MODELS)}
    there = {name: lines for name, lines in files_of(functions_that_run(predict)).items() if name not in fit}
    return own, there


@cache
def names_and_classes() -> dict[str, list[ast.Name | ast.ClassDef]]:
    """Return the names in code and the classes of each file."""
    code = {str(path.relative_to(PACKAGE)): ast.walk(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")}
    return {file: [each for each in own if isinstance(each, ast.Name | ast.ClassDef)] for file, own in code.items()}


def form_of_prior(kind: str) -> Files:
    """Return the files that define or name a class of a form of prior, such as `PrecisionPrior` of "Precision"."""
    names = {f"{kind}{role}" for role in ("Prior", "Algebra")}
    found = defaultdict(set)
    for file, nodes in names_and_classes().items():
        for node in nodes:
            if getattr(node, "id", getattr(node, "name", "")) in names:
                found[file] |= set(range(node.lineno, node.end_lineno + 1))
    return dict(found)


def tasks() -> dict[str, Files]:
    """Return the files of each task."""
    solve = probit_ep()
    fit, prediction = mixed_model(solve)
    return {
        "probit EP, one solve": solve,
        "mixed model by rows, fit": fit,
        "mixed model by rows, prediction": prediction,
        "form of prior: rows": form_of_prior("Row"),
        "form of prior: sparse precision": form_of_prior("Precision"),
    }


def length(name: str) -> int:
    """Return the number of lines of a file of the package."""
    return (PACKAGE / name).read_text().count("\n")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count the files and lines that a reader of one task opens.")
    parser.add_argument("--files", action="store_true", help="list the files of each task")
    every = parser.parse_args().files
    print(f"{'':46}{'files':>6}{'lines':>8}{'that run':>10}")
    for task, files in tasks().items():
        print(f"{task:46}{len(files):6}{sum(map(length, files)):8,}{sum(map(len, files.values())):10,}")
        for name, lines in sorted(files.items()) if every else ():
            print(f"  {name:50}{length(name):8,}{len(lines):10,}")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
