"""Methods named in errors about unsupported methods are valid for the likelihood."""

import re
from functools import cache
from itertools import cycle

import pytest

from pymc_gpep.approximations import METHODS
from pymc_gpep.approximations.methods import FURTHER_METHODS, SPARSE_APPROXIMATIONS, approximator
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.reading import read_classifier
from pymc_gpep.streaming.memories import STREAMING_METHODS
from pymc_gpep.variational.inference import GPInference
from tests.reading.test_refused_labels import declared, labels

made = cache(lambda likelihood: declared(likelihood, labels(likelihood)))
"""A model of each likelihood. It is shared: do not change it."""
WAYS = (*METHODS, *SPARSE_APPROXIMATIONS.names, *FURTHER_METHODS.names)
read = cache(read_classifier)


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    """Read each model once for all methods."""
    monkeypatch.setattr("pymc_gpep.variational.inference.read_classifier", read)


@pytest.mark.parametrize("likelihood", [each.name for each in LIKELIHOODS])
def test_methods_named_by_a_refusal_exist(likelihood):
    model = made(likelihood)
    fitting, refusals = set(), {}
    for name in WAYS:
        with model:
            try:
                GPInference(name)
                fitting.add(name)
            except ValueError as error:
                refusals[name] = str(error)
    assert fitting
    for name, message in refusals.items():
        (advice,) = re.findall(r"(?:Methods for this likelihood are|With inducing inputs there is) (.*)", message)
        named = set(re.findall(r"""['"](\w+)['"]""", advice))
        assert named, name
        assert named <= fitting, name


@pytest.mark.parametrize(
    ("likelihood", "method"),
    list(zip([each.name for each in LIKELIHOODS], cycle(STREAMING_METHODS), strict=False)),
)
def test_methods_named_by_a_refusal_of_batches_exist(likelihood, method):
    with made(likelihood):
        try:
            GPInference(method, batch_size=3)
        except ValueError as error:
            if "leave batch_size out" in str(error):
                GPInference(method)
            else:
                (advice,) = re.findall(r"Methods for this likelihood are (.*)\.", str(error))
                for name in re.findall(r"'(\w+)'", advice):
                    GPInference(name)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: each.name)
def test_methods_named_by_a_refusal_of_marginal_models_exist(likelihood):
    for method in METHODS:
        try:
            approximator(method, likelihood, {})
        except ValueError as error:
            for name in re.findall(r"'(\w+)'", str(error).partition("Methods for this likelihood are")[2]):
                approximator(name, likelihood, {})
