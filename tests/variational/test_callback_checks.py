"""Callbacks are looked at before any work, and an error of one does not lose the fit."""

import re

import pytest

import pymc_gpep as gpep
from pymc_gpep.fits.callback import Callback, call, finish
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


class Full(Callback):
    """Writes on a full disk."""

    def begin(self, method, batches):
        pass

    def __call__(self, fit, losses, iteration):
        raise OSError("No space left on device")

    def finish(self, fit):
        raise OSError("No space left on device")


@pytest.mark.parametrize(
    "told", [lambda callbacks: call(callbacks, "the fit", [], 1), lambda callbacks: finish(callbacks, "the fit")]
)
def test_an_error_hands_the_fit_over(told):
    with pytest.raises(OSError, match="No space left") as raised:
        told([listen, Full()])
    assert raised.value.fit == "the fit"
    assert "attribute fit of this error" in raised.value.__notes__[0]


def test_what_stops_a_fit_is_no_error():
    def stop(fit, losses, iteration):
        raise StopIteration

    with pytest.raises(StopIteration) as raised:
        call([stop], "the fit", [], 1)
    assert not hasattr(raised.value, "fit")
