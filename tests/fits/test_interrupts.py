"""Interrupts (Ctrl-C) at seventy random moments: files stay complete, and later results are equal."""

import os
import signal

import numpy as np
import pymc as pm
import pytensor
import pytest
from numpy.testing import assert_allclose
from pymc.model.core import MODEL_MANAGER
from threadpoolctl import ThreadpoolController

from pymc_gpep.fits.saving import _checksums, read_tree
from pymc_gpep.graphs.interpreted import caused_by_an_interrupt
from tests import models
from tests.sum_models import made, varying_intercepts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of processor time"),
    # Python ignores an interrupt that arrives during the finalisation of an object.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning"),
]
NEW = np.random.default_rng(0).uniform(-2, 2, size=(6, 2))


def fitted(model=None, n=None, **options):
    """Return a fit, by nested EP with its default search unless there are options."""
    options = options or {"method": "nested_ep"}
    return pm.fit(*[n] * bool(n), model=model or models.probit()[0], progressbar=False, random_seed=1, **options)


def by_batches():
    options = {"method": "sparse_ep", "inducing": 5, "batch_size": 10}
    return fitted(models.bernoulli_probit()[0], n=20, **options)


def means(found):
    return found.latent["mean"]


def settings():
    """Return settings of NumPy, PyTensor and BLAS that a fit changes, and the number of models in a context."""
    blas = [each.num_threads for each in ThreadpoolController().select(user_api="blas").lib_controllers]
    config = pytensor.config
    return np.geterr(), config.cxx, config.traceback__limit, config.mode, blas, len(MODEL_MANAGER.active_contexts)


WORK = {
    "fit": (lambda fit, path: fitted(), lambda found: found.predict(NEW)["p"]),
    "fit of rows": (lambda fit, path: fitted(made(varying_intercepts), method="ep", hyper="map"), means),
    "fit and adaptive integral": (
        lambda fit, path: fitted(made(varying_intercepts), method="ep", hyper="adaptive"),
        means,
    ),
    "fit by batches": (lambda fit, path: by_batches(), means),
    "fit and integral": (lambda fit, path: fitted(made(varying_intercepts), method="laplace"), means),
    "draws": (
        lambda fit, path: [(fit.predict(NEW)["p"], fit.sample(20, random_seed=1)["posterior/f"]) for _ in range(5)][-1],
        lambda found: np.concatenate([np.ravel(each) for each in found]),
    ),
    "fit.nc": (lambda fit, path: fit.save(path), None),
    "fit.zarr": (lambda fit, path: fit.save(path), None),
}


@pytest.fixture(scope="module")
def probit():
    return fitted()


@pytest.fixture
def interrupted():
    """Return a function that calls `work`, and returns its result and whether it was interrupted."""

    def interrupt(*_):
        raise KeyboardInterrupt

    def run(work, seconds):
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            try:
                return work(), False
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        except KeyboardInterrupt:
            pass
        except Exception as error:
            # Numba's C code raises another error if an interrupt arrives in Numba's own Python. Python's import
            # statement raises a TypeError without the interrupt.
            if not caused_by_an_interrupt(error) and "expected a message argument" not in str(error):
                raise
        return None, True

    before = signal.signal(signal.SIGVTALRM, interrupt)
    yield run
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("name", WORK)
def test_interrupts_leave_complete_files_and_equal_results(probit, interrupted, name, tmp_path):
    work, numbers = WORK[name]
    path = tmp_path / name
    work(probit, path)
    before = settings()
    began, first = os.times().user, work(probit, path)  # the time that the timer counts
    seconds, stopped = os.times().user - began, 0
    for share in np.random.default_rng(1).uniform(size=10):
        found, raised = interrupted(lambda: work(probit, path), max(1e-4, share * seconds))
        kept = hasattr(found, "trace")
        late = not (raised or (kept and found.trace.interrupted))
        stopped += not late
        seconds *= 0.7 if late else 1.0  # The timer counts in steps of up to 10 ms, and the work can be faster now.
        if kept:
            assert np.isfinite(found.log_evidence)
        if numbers is None:
            checksum, stored = _checksums(path)
            assert checksum == stored
        assert settings() == before
    assert stopped > 2
    again = work(probit, path)
    if numbers is None:
        assert read_tree(path).attrs["message"] == probit.message
        assert [each.name for each in tmp_path.iterdir()] == [name]
    else:
        assert_allclose(numbers(again), numbers(first), rtol=1e-12)
