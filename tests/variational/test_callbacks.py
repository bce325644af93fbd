"""Callbacks of `pm.fit`: validation before any computation, fits that do not change later, and errors with a fit."""

import re

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.fits.callbacks import Callback, call, check_callbacks, finish
from tests import models


def listen(fit, losses, iteration):
    """Callback that does nothing."""


@pytest.mark.parametrize("callbacks", [None, [], [listen], (listen,)])
@pytest.mark.parametrize("batches", [True, False])
def test_functions_are_accepted_as_callbacks(callbacks, batches):
    check_callbacks(callbacks, "sparse_ep", batches)


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (listen, "callbacks must be a list of functions of (fit, losses, iteration), but is a function"),
        (
            gpep.EarlyStopping,
            "callbacks must be a list of functions of (fit, losses, iteration), but is the class EarlyStopping",
        ),
        ([gpep.Checkpoint], "callbacks contains the class Checkpoint"),
        (["adam"], "callbacks contains 'adam'"),
    ],
)
def test_error_names_unsupported_callbacks(callbacks, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        check_callbacks(callbacks, "sparse_ep", batches=True)


def test_checkpoints_are_refused_without_batches(tmp_path):
    checkpoint = gpep.Checkpoint(tmp_path / "run.zarr")
    check_callbacks([checkpoint], "sparse_ep", batches=True)
    with pytest.raises(TypeError, match="Give batch_size"):
        check_callbacks([checkpoint], "sparse_ep", batches=False)


class Full(Callback):
    """Callback that writes to a full disk."""

    def begin(self, method, batches):
        pass

    def __call__(self, fit, losses, iteration):
        raise OSError("No space left on device")

    def finish(self, fit):
        raise OSError("No space left on device")


@pytest.mark.parametrize(
    "told", [lambda callbacks: call(callbacks, "the fit", [], 1), lambda callbacks: finish(callbacks, "the fit")]
)
def test_error_of_a_callback_carries_the_fit(told):
    with pytest.raises(OSError, match="No space left") as raised:
        told([listen, Full()])
    assert raised.value.fit == "the fit"
    assert "attribute fit of this error" in raised.value.__notes__[0]


def test_stop_before_the_first_evaluation_raises_stop_iteration():
    def stop(fit, losses, iteration):
        raise StopIteration

    with pytest.raises(StopIteration) as raised:
        call([stop], "the fit", [], 1)
    assert not hasattr(raised.value, "fit")


KINDS = {
    "all latent values": {"method": "laplace"},
    "inducing inputs": {"method": "sparse_ep", "inducing": 4},
    "active rows": {"method": "ivm", "active": 6, "random_seed": 1},
    "batches": {"method": "sparse_ep", "inducing": 4, "batch_size": 10, "warmup": 0},
}


@pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning")
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_fit_given_to_a_callback_never_changes(options):
    model, _ = models.bernoulli_probit()
    kept, ended = [], []

    class Keeps(Callback):
        def begin(self, method, batches):
            pass

        def __call__(self, fit, losses, iteration):
            kept.append((fit, losses.copy(), float(fit.hyperparameters["ls"]) if iteration % 2 else None))

        def finish(self, fit):
            ended.append(fit)

    with model:
        fit = pm.fit(4, callbacks=[Keeps()], progressbar=False, **options)
    assert len(kept) >= 3
    scales = [float(each.hyperparameters["ls"]) for each, *_ in kept]
    assert len(set(scales)) == len(scales)
    for (each, losses, scale), later in zip(kept, scales, strict=True):
        assert scale in (None, later)
        assert_array_equal(each.hist, losses)
        assert each.message != fit.message
    p = [each.predict(models.data()[0][:3])["p"].values for each, *_ in kept]
    assert np.abs(np.diff(p, axis=0)).max(axis=(1, 2)).min() > 0.0
    assert [type(each) for each in ended] == [type(fit)]
    assert_array_equal(ended[0].predict(models.data()[0][:3])["p"], fit.predict(models.data()[0][:3])["p"])
