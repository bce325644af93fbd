"""Every public name has an example that runs in its docstring, and appears on the page of public names.

In tests, examples use fewer draws and a temporary folder.
"""

import doctest
import inspect
import io
import math
import re
from contextlib import redirect_stdout
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep import diagnostics, methods, plots, progress, samplers, sklearn
from pymc_gpep.approximations.methods import APPROXIMATIONS, FURTHER_METHODS, SPARSE_APPROXIMATIONS
from pymc_gpep.rivals.active_log_posterior import ActiveRows
from pymc_gpep.rivals.ivm import IVM
from pymc_gpep.streaming.memories import STREAMING_METHODS
from pymc_gpep.variational.plans.batches import ByBatches
from pymc_gpep.variational.plans.inducing_inputs import InducingInputs
from tests.models import interpreted_sampler
from tests.registered import restore_tables

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
OPTIONS = PAGE.with_name("options.md")
ROOMS = ("methods", "samplers", "diagnostics", "plots", "sklearn")
PUBLIC = {
    gpep: [name for name in gpep.__all__ if name not in ROOMS],
    methods: dir(methods),
    samplers: [*dict.fromkeys([*samplers.__all__, *samplers.SAMPLERS.names])],
    diagnostics: list(diagnostics.DIAGNOSTICS.names),
    plots: [*dict.fromkeys([*plots.__all__, *plots.PLOTS.names])],
    sklearn: sklearn.__all__,
}
NAMES = [(module, name) for module, names in PUBLIC.items() for name in names]
RESULTS = re.findall(r"^   ([a-z_.]+)\.([A-Z]\w+)$", PAGE.read_text(), flags=re.MULTILINE)
"""Module and name of each type of results."""
WITH_EXAMPLES = [
    *NAMES,
    *((import_module(f"pymc_gpep.{module}"), name) for module, name in RESULTS if "Solution" not in name),
]


@pytest.fixture(scope="module")
def names(shared):
    """Names that examples may use without import, as the page of public names states."""
    X, y = shared.X, shared.y
    county, x = np.arange(30) % 10, np.linspace(-1, 1, 30)
    with pm.Model(coords={"place": range(10)}):
        effect = pm.Normal("county", 0, pm.HalfNormal("sigma", 1), dims="place")
        slope = pm.Normal("slope", 0, 1)
        gpep.Probit("y", effect[county] + slope * x, observed=y == 2)
        mixed = pm.fit(method="ep", hyper="grid", progressbar=False)
    with pm.Model():
        f = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X)
        gpep.Probit("y", f, observed=y == 2)
        binary = pm.fit(method="ep", progressbar=False)
    squares = ((X[:, None] - X) ** 2).sum(axis=-1)
    return {
        "np": np,
        "pd": pd,
        "pm": pm,
        "gpep": gpep,
        "X": X,
        "y": y,
        "Xnew": X[::3] + 0.1,
        "ynew": y[::3],
        "model": shared.model,
        "gp": shared.gp,
        "ep": shared.fit,
        "mcmc": shared.fit.sample(20, chains=2, random_seed=1),
        "mixed": mixed,
        "binary": binary,
        "K": 4.0 * np.exp(-0.5 * squares) + 1e-6 * np.eye(len(y)),
        "mean": np.zeros((3, len(y))),
    }


def few_draws(sample):
    def cut(*args, **kwargs):
        short = {
            "draws": 3,
            "tune": 3,
            "chains": 1,
            "progressbar": False,
            "compute_convergence_checks": False,
            "random_seed": 1,
        }
        if "step" not in kwargs:
            short["nuts"] = {"max_treedepth": 2, "early_max_treedepth": 2}
        return sample(*args[1:], **kwargs | short)

    return cut


@interpreted_sampler
@pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning")
@pytest.mark.parametrize(("module", "name"), WITH_EXAMPLES, ids=[name for _, name in WITH_EXAMPLES])
def test_example_in_each_docstring_runs(module, name, names, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    restore_tables(monkeypatch)  # one example registers a method
    monkeypatch.setattr(pm, "sample", few_draws(pm.sample))
    monkeypatch.setattr(progress, "_PATIENCE", math.inf)  # progress must not depend on the speed of the machine
    text = inspect.getdoc(getattr(module, name)) or ""
    examples = doctest.DocTestParser().get_examples(text.partition("Examples\n--------\n")[2])
    assert examples
    known = dict(names)
    for example in examples:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(example.source, name, "single"), known)
        if example.want:
            assert doctest.OutputChecker().check_output(example.want, printed.getvalue(), doctest.NORMALIZE_WHITESPACE)
    plt.close("all")


def test_page_of_public_names_contains_every_public_name():
    listed = re.findall(r"^   (\w+)$", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(name for _, name in NAMES)


def test_modules_list_their_own_and_registered_names():
    assert {"ep", "ivm", "iep", "gfitc"} <= set(PUBLIC[methods])
    for module, names in PUBLIC.items():
        assert set(module.__all__) - set(ROOMS) <= set(names) <= set(dir(module))


@pytest.mark.parametrize("name", PUBLIC[methods])
def test_functions_of_arrays_document_each_option_that_they_take(name):
    function = getattr(methods, name)
    listed = re.findall(r"^([\w, ]+) : ", inspect.getdoc(function).partition("Parameters\n")[2], flags=re.MULTILINE)
    assert sorted(", ".join(listed).split(", ")) == sorted(inspect.signature(function).parameters)


@pytest.mark.parametrize("kind", [*APPROXIMATIONS, *SPARSE_APPROXIMATIONS, *FURTHER_METHODS])
def test_options_of_a_class_and_its_bases_are_documented_once(kind):
    listed = re.findall(r"^([\w, ]+) : ", inspect.getdoc(kind).partition("Parameters\n")[2], flags=re.MULTILINE)
    assert sorted(", ".join(listed).split(", ")) == sorted(option.name for option in fields(kind))


@pytest.mark.parametrize(
    ("heading", "plan", "kinds"),
    [
        ("Active rows", ActiveRows, [IVM]),
        ("Inducing inputs, all rows", InducingInputs, SPARSE_APPROXIMATIONS),
        ("Batches", ByBatches, [memory for memories in STREAMING_METHODS.values() for memory in memories]),
    ],
)
def test_page_of_options_contains_each_option(heading, plan, kinds):
    section = OPTIONS.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    there = {*plan.names(), *(option.name for kind in kinds for option in fields(kind)), "start", "random_seed"}
    assert set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) == there - {"starts"}
