"""Callbacks are looked at before any work."""

import re

import pytest

import pymc_gpep as gpep
from pymc_gpep.variational.callback_checks import check_callbacks


def listen(fit, losses, iteration):
    """Do nothing."""


@pytest.mark.parametrize("callbacks", [None, [], [listen], (listen,)])
@pytest.mark.parametrize("batches", [True, False])
def test_functions_pass(callbacks, batches):
    check_callbacks(callbacks, "sparse_ep", batches)


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (listen, "callbacks must be a list of functions of (fit, losses, iteration), but is a function"),
        (gpep.HeldOut, "callbacks must be a list of functions of (fit, losses, iteration), but is the class HeldOut"),
        ([gpep.Checkpoint], "callbacks has the class Checkpoint"),
        (["adam"], "callbacks has 'adam'"),
    ],
)
def test_others_are_named(callbacks, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        check_callbacks(callbacks, "sparse_ep", batches=True)


def test_checkpoints_are_for_batches(tmp_path):
    checkpoint = gpep.Checkpoint(tmp_path / "run.zarr")
    check_callbacks([checkpoint], "sparse_ep", batches=True)
    with pytest.raises(TypeError, match="Give batch_size"):
        check_callbacks([checkpoint], "sparse_ep", batches=False)
