"""The best of several searches. Several threads return the same digits as one thread."""

import concurrent.futures.thread
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.hyper import several_starts
from pymc_gpep.hyper.several_starts import Listener, maximise_from, starting_points
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.reading import read_classifier
from pymc_gpep.solvers.problem import History
from pymc_gpep.solvers.team import gather_for_solves, one_blas_thread
from tests import models
from tests.interrupted_calls import interrupt, moments_of


class TwoHills:
    """Log posterior log(exp(−2 (θ+2)²) + exp(3 − 2 (θ−2)²)), with maxima of 0 near −2 and of 3 near 2."""

    def __init__(self, fails_below=-np.inf):
        self.fails_below = fails_below

    def __call__(self, theta, start=None):
        heights = np.array([0.0, 3.0]) - 2 * (theta[0] - np.array([-2.0, 2.0])) ** 2
        value = np.logaddexp(*heights)
        gradient = (np.exp(heights - value) * -4 * (theta[0] - np.array([-2.0, 2.0]))).sum()
        value = np.nan if theta[0] < self.fails_below else value
        return Evaluation(np.array(theta), value, np.array([gradient]), value, 1, 0, np.empty(0))

    compiled = False

    def loosely(self):
        return self

    def roughly(self):
        return self

    def point(self, theta):
        return {"theta": theta}

    def each(self, function, items):
        with one_blas_thread(), gather_for_solves(1, 1) as together:
            return together.each(function, items)

    def check_moments(self, theta):
        raise ValueError("no start")


def test_best_of_several_searches_is_kept():
    found = maximise_from(TwoHills(), np.array([[-2.5], [1.0], [-1.5]]), 100)
    assert found.converged
    assert found.best.log_posterior == pytest.approx(3, abs=1e-5)
    assert found.history[0].theta == 1.0
    assert_allclose([end.log_posterior for end in found.ends], [0, 3, 0], atol=1e-2)
    assert found.agreement == "1 of 3 starts ended there, the others up to 3.00 below"


def test_text_states_agreement_of_searches():
    def said(*points):
        return maximise_from(TwoHills(), np.array(points)[:, None], 100).agreement

    assert said(1.0, 2.5) == "both starts ended there"
    assert said(1.0, -2.5) == "1 of 2 starts ended there, the other 3.00 below"


def test_search_stops_near_the_end_of_an_earlier_search():
    posterior = DenseLogPosterior(read_classifier(models.shared()[0]), NestedEP())
    points = starting_points(posterior, posterior.space.initial_point(), 4)
    alone = [len(maximise_from(posterior, point[None], 100).history) for point in points]
    lengths = [0] * len(points)

    def count(history, which):
        lengths[which] = len(history)

    together = maximise_from(posterior, points, 100, count)
    assert together.converged
    assert together.agreement == "all 4 starts ended there"
    assert {end.log_posterior for end in together.ends} == {together.best.log_posterior}
    assert lengths[0] == alone[0]
    assert sum(lengths[1:]) < 0.8 * sum(alone[1:])


def test_failed_later_start_is_counted_and_failed_first_start_raises():
    found = maximise_from(TwoHills(fails_below=-5.0), np.array([[1.0], [-6.0]]), 100)
    assert found.agreement == "1 of 2 starts ended there, 1 failed"
    with pytest.raises(ValueError, match="no start"):
        maximise_from(TwoHills(fails_below=-5.0), np.array([[-6.0], [1.0]]), 100)


@pytest.mark.parametrize(("error", "interrupted"), [(StopIteration, False), (KeyboardInterrupt, True)])
def test_callback_or_interrupt_ends_all_searches(error, interrupted):
    def callback(history, which):
        if which == 1:
            raise error

    found = maximise_from(TwoHills(), np.array([[1.0], [-2.5], [2.5]]), 100, callback)
    assert found.message == ("Interrupted." if interrupted else "Stopped by a callback.")
    assert len(found.ends) == 2
    assert found.best.log_posterior == pytest.approx(3, abs=1e-5)
    assert (found.converged, found.interrupted) == (False, interrupted)


def test_interrupt_before_a_search_keeps_earlier_searches():
    class Interrupted(TwoHills):
        def __call__(self, theta, start=None):
            if theta[0] == -2.5:
                raise KeyboardInterrupt
            return super().__call__(theta, start)

    found = maximise_from(Interrupted(), np.array([[1.0], [-2.5], [2.5]]), 100)
    assert found.best.log_posterior == pytest.approx(3, abs=1e-5)
    assert (found.converged, found.interrupted, len(found.ends)) == (False, True, 1)


def test_fit_from_several_starts_keeps_the_best(tmp_path):
    seen = []
    model, _ = models.probit()
    with model:
        fit = pm.fit(
            method="nested_ep",
            starts=3,
            progressbar=False,
            callbacks=[lambda _, losses, i: seen.append((i, len(losses)))],
        )
        alone = pm.fit(method="nested_ep", progressbar=False)
    assert "; all 3 starts ended there; nested_ep" in str(fit)
    assert "start" not in alone.message.replace("started near", "")
    assert fit.log_evidence == pytest.approx(alone.log_evidence, abs=1e-3)
    assert [i for i, _ in seen] == list(range(1, len(seen) + 1))
    assert sum(length == 2 for _, length in seen) == 3
    assert fit.starts.sizes["start"] == 3
    assert_allclose(fit.starts["log_posterior"], -fit.hist[-1])
    assert_allclose(fit.starts["ls"], fit.hyperparameters["ls"])
    assert alone.starts.sizes["start"] == 1
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert str(again) == str(fit)
    xr.testing.assert_allclose(again.starts, fit.starts)
    with model, pytest.raises(ValueError, match="starts must be at least 1, but is 0"):
        pm.fit(method="nested_ep", starts=0)
    with model, pytest.raises(TypeError, match=r"starts must be a whole number, but is 2\.5"):
        pm.fit(method="nested_ep", starts=2.5)


@pytest.mark.variation(but=["210"])
@pytest.mark.parametrize("points", [30, 210])
def test_searches_do_not_depend_on_the_number_of_threads(threads, points):
    """The digits are equal. With 210 points each solve has a team of threads of its own."""
    X, y = models.data() if points == 30 else random_classes(points)
    with pm.Model() as model:
        ls, eta = pm.LogNormal("ls", 0, 1), pm.HalfNormal("eta", 3)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)

    def search(count):
        threads(count)
        posterior = DenseLogPosterior(read_classifier(model), NestedEP())
        starts = starting_points(posterior, posterior.space.initial_point(), 5 if points == 30 else 3)
        calls = [[] for _ in starts]
        return maximise_from(posterior, starts, 100, lambda history, which: calls[which].append(history)), calls

    one, calls_of_one = search(1)
    three, calls_of_three = search(3)
    assert one.message == three.message
    assert one.agreement == three.agreement
    for a, b in zip(one.ends, three.ends, strict=True):
        assert a.log_posterior == b.log_posterior
        np.testing.assert_array_equal(a.gradient, b.gradient)
        np.testing.assert_array_equal(a.start, b.start)
    for a, b in zip(calls_of_one, calls_of_three, strict=True):
        assert [len(history) for history in a] == [len(history) for history in b]
        assert [each.log_posterior for each in a[-1]] == [each.log_posterior for each in b[-1]]


def random_classes(points):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(points, 2))
    return X, (X + 0.5 * rng.normal(size=X.shape)).argmax(axis=1) + (X.sum(axis=1) > 1)


def test_searches_run_in_parallel_and_callbacks_run_in_the_calling_thread(threads):
    """The first evaluation of each search waits for the first evaluation of the other search."""
    threads(2)
    meeting = threading.Barrier(2, timeout=10)
    here, met = threading.get_ident(), set()

    class Meeting(TwoHills):
        def __call__(self, theta, start=None):
            if theta[0] in (-2.5, 2.5):
                meeting.wait()
                met.add(threading.get_ident())
            return super().__call__(theta, start)

    called = []
    maximise_from(
        Meeting(), np.array([[1.0], [-2.5], [2.5]]), 100, lambda _, which: called.append((which, threading.get_ident()))
    )
    assert len(met) == 2
    assert {which for which, _ in called} == {0, 1, 2}
    assert {thread for _, thread in called} == {here}


def sweep_for(seconds):
    """Simulate a solve that takes the given number of seconds."""
    history = History(10**9)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)
        history.add(0.0, 1.0)


@pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt])
def test_exception_of_a_callback_ends_running_searches(threads, error):
    """The callback raises during a long solve of another search. The result of the finished search is kept."""
    threads(2)
    main, climbing = threading.get_ident(), threading.Event()

    class Long(TwoHills):
        def __call__(self, theta, start=None):
            if threading.get_ident() != main and theta[0] == -2.5:
                climbing.set()
                sweep_for(10)
            return super().__call__(theta, start)

    def callback(history, which):
        if which == 2:
            assert climbing.wait(10)
            raise error("enough")

    found = maximise_from(Long(), np.array([[-1.3], [-2.5], [0.7]]), 100, callback)
    assert [end.log_posterior > 1 for end in found.ends] == [False, True]
    assert found.best.log_posterior > 1
    assert (found.converged, found.interrupted) == (False, error is KeyboardInterrupt)
    assert found.message == "enough"


def test_interrupt_of_running_searches_keeps_their_best_points(threads):
    """The signal arrives while the main thread waits for solves in other threads."""
    threads(2)

    class Interrupted(TwoHills):
        def __call__(self, theta, start=None):
            if threading.get_ident() != main and theta[0] not in (1.0, -2.5):
                if only.acquire(blocking=False):
                    signal.raise_signal(signal.SIGINT)
                sweep_for(10)
            return super().__call__(theta, start)

    main, only = threading.get_ident(), threading.Lock()
    began = time.monotonic()
    found = maximise_from(Interrupted(), np.array([[-1.3], [1.0], [-2.5], [2.0]]), 100)
    assert time.monotonic() - began < 5
    assert (found.converged, found.interrupted, found.message) == (False, True, "Interrupted.")
    assert found.best.theta == 1.0
    assert len(found.ends) == 3


def test_value_error_of_a_callback_is_raised():
    def callback(history, which):
        if which == 1:
            raise ValueError("a mistake of the user's")

    with pytest.raises(ValueError, match="a mistake"):
        maximise_from(TwoHills(), np.array([[1.0], [-2.5], [2.5]]), 100, callback)


def test_many_searches_run_in_batches():
    points = np.array([[-2.5], *[[x] for x in np.linspace(0.6, 2.6, 12)]])
    numbers = []
    found = maximise_from(TwoHills(), points, 100, lambda _, which: numbers.append(which))
    assert found.agreement == "12 of 13 starts ended there, the other 3.00 below"
    assert set(numbers) == set(range(13))
    # Searches of the second batch are compared with the ends of the first batch. Searches of the first batch are not.
    assert len({id(end) for end in found.ends[:9]}) == 9
    assert len({id(end) for end in found.ends[1:]}) < 12


def test_interrupt_at_any_call_ends_work_in_another_thread():
    def work():
        listener = Listener(lambda: None)
        assert listener.during(lambda: [listener.call() for _ in range(2)]) == [None, None]

    files = {several_starts.__file__, concurrent.futures.thread.__file__}
    before = threading.active_count()
    for moment in range(moments_of(work, files)):
        with suppress(KeyboardInterrupt), interrupt(moment, files):
            work()
        until = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() == before, moment
