"""Updates of hyperparameters after each sweep of EP: step lengths, search, and comparison of its end with L-BFGS."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.hyper.inducing_inputs import OptimiserSteps, SignedSteps, alternate_updates
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, OUT_OF_ITERATIONS
from pymc_gpep.log_posteriors.evaluation import Evaluation
from tests import models
from tests.hyper.test_sparse_log_posterior import log_posterior


class Hill:
    """Log posterior −|x − top|² / 2. Evaluations fail if the first coordinate exceeds `wall`."""

    name = "hill"

    def __init__(self, top, wall=np.inf):
        self.top, self.wall = np.asarray(top), wall

    def evaluation(self, theta, status):
        value = -0.5 * float(((theta - self.top) ** 2).sum())
        if theta[0] > self.wall:
            value, status = np.nan, NOT_FINITE
        return Evaluation(np.array(theta), value, self.top - theta, value, 1, status, np.ones(1))

    def __call__(self, theta, start=None):
        return self.evaluation(theta, CONVERGED)

    def after_one_sweep(self, theta, start):
        return self.evaluation(theta, OUT_OF_ITERATIONS)

    def loosely(self):
        return self

    def roughly(self):
        return self

    def point(self, theta):
        return {"theta": theta}


def quietly(history):
    """Callback that does nothing."""


@pytest.mark.parametrize("direction", [SignedSteps, lambda: OptimiserSteps(pm.adam(learning_rate=0.1))])
def test_inner_updates_find_the_maximum(direction):
    found = alternate_updates(Hill([1.0, -2.0]), np.zeros(2), 400, quietly, direction(), 1e-8)
    assert_allclose(found.best.theta, [1.0, -2.0], atol=1e-2)
    assert found.converged
    assert len(found.history) < 400


def test_step_lengths_grow_and_are_halved_for_each_parameter():
    step = SignedSteps()
    first, second, third = (step(np.array(slope)) for slope in ([3.0, -1.0, 0.0], [1e-3, 1.0, 0.0], [5.0, 1.0, 0.0]))
    assert_allclose(first, [0.02, -0.02, 0.0])
    assert_allclose(second, [0.022, 0.01, 0.0])
    assert_allclose(third, [0.0242, 0.011, 0.0])


def test_optimiser_of_pymc_determines_the_steps():
    step = OptimiserSteps(pm.adam(learning_rate=0.1))
    # the first step of Adam does not depend on the size of the gradient
    assert_allclose(step(np.array([5.0, -0.2])), [0.1, -0.1], rtol=1e-5)
    step.shorten()
    for length in (0.05, 0.0515):  # after shortening, the steps grow again
        assert_allclose(step(np.array([5.0, -0.2])), [length, -length], rtol=1e-5)
    for most, third in ((1.0, 0.5), (1.05, 0.525), (2.0, 0.5 * 1.03**2)):
        plain = OptimiserSteps(pm.sgd(learning_rate=0.5), most)
        assert_allclose(plain(np.array([1.0, -3.0])), [0.5, -1.5])
        plain(np.ones(2))
        assert_allclose(plain(np.ones(2)), [third, third])


def test_steps_stop_at_failures():
    found = alternate_updates(Hill([1.0, 0.0], wall=0.3), np.zeros(2), 200, quietly, SignedSteps(), 1e-8)
    assert found.best.theta[0] == pytest.approx(0.3, abs=0.02)
    assert np.isfinite(found.best.log_posterior)


@pytest.mark.parametrize("direction", [SignedSteps, lambda: OptimiserSteps(pm.adam(learning_rate=0.3))])
def test_steps_that_lower_a_bound_are_refused(direction):
    top, start = np.array([1.0, -2.0]), np.array([-3.0, -2.0])
    free, refusing = (
        alternate_updates(Hill(top), start, 120, quietly, direction(), 0.0, bounded) for bounded in (False, True)
    )
    rises = [np.diff([each.log_posterior for each in found.history]) for found in (free, refusing)]
    assert rises[0].min() < -1e-4  # the first search passes the maximum
    assert rises[1].min() >= 0.0
    assert_allclose(refusing.best.theta, top, atol=1e-2)
    assert not any(each.start.size for each in refusing.history[:-1])


@pytest.mark.parametrize(("wall", "converged"), [(np.inf, True), (0.0, False)])
def test_search_ends_at_a_maximum_or_at_failures(wall, converged):
    found = alternate_updates(
        Hill([1e-9 if converged else 1.0], wall), np.zeros(1), 60, quietly, SignedSteps(), 0.0, bounded=True
    )
    assert (found.converged, found.message) == (converged, "No step raises the log posterior.")


def test_momentum_is_reset_after_a_decrease():
    class Backwards(SignedSteps):
        """Steps point downhill until the momentum is reset."""

        sign = -1.0

        def __call__(self, gradient):
            return self.sign * super().__call__(gradient)

        def forget(self):
            super().forget()
            self.sign = 1.0

    found = alternate_updates(Hill([1.0]), np.zeros(1), 200, quietly, Backwards(), 0.0, bounded=True)
    assert_allclose(found.best.theta, [1.0], atol=1e-3)


def test_momentum_of_an_optimiser_is_reset():
    step = OptimiserSteps(pm.adam(learning_rate=0.1))
    first = step(np.ones(2))
    for _ in range(5):
        step(np.ones(2))
    step.forget()
    assert_allclose(step(-np.ones(2)), -first)


def test_final_solve_without_convergence_is_kept_if_it_raises_the_bound():
    class Unsolved(Hill):
        """The final solve runs out of iterations, and ends higher than the search."""

        def __call__(self, theta, start=None):
            found = self.evaluation(theta, OUT_OF_ITERATIONS)
            return found._replace(log_posterior=found.log_posterior + 0.5, gradient=np.full(1, np.nan), start=start)

    class Worse(Unsolved):
        """The final solve ends lower than the search."""

        def __call__(self, theta, start=None):
            return super().__call__(theta, start)._replace(log_posterior=-99.0)

    for hill, bounded, gain in ((Unsolved, True, 0.5), (Unsolved, False, 0.0), (Worse, True, 0.0)):
        found = alternate_updates(hill([1.0]), np.zeros(1), 5, quietly, SignedSteps(), 0.0, bounded)
        assert found.best.log_posterior - found.history[-1].log_posterior == pytest.approx(gain)
        assert not found.best.usable


@pytest.mark.parametrize(("error", "interrupted"), [(StopIteration, False), (KeyboardInterrupt, True)])
def test_callback_stops_inner_updates(error, interrupted):
    def stop(history):
        if len(history) == 4:
            raise error

    found = alternate_updates(Hill([9.0]), np.zeros(1), 50, stop, SignedSteps(), 1e-8)
    assert (len(found.history), found.interrupted, found.converged) == (4, interrupted, False)
    assert found.message == ("Interrupted." if interrupted else "Stopped by a callback.")
    assert found.best.start.size
    assert not any(each.start.size for each in found.history[:-1])


def test_interrupt_of_the_last_solve_keeps_the_best_point():
    class Interrupted(Hill):
        """The final solve, at the end of the search, is interrupted."""

        def __call__(self, theta, start=None):
            if theta.any():
                raise KeyboardInterrupt
            return super().__call__(theta, start)

    found = alternate_updates(Interrupted([1.0]), np.zeros(1), 5, quietly, SignedSteps(), 0.0)
    assert (found.interrupted, found.converged, found.message) == (True, False, "Interrupted.")
    assert_allclose(found.best.theta, found.history[-1].theta)
    assert len(found.history) == 6


@pytest.mark.parametrize("sites", ["nested", "quadrature", "pairwise"])
def test_sweep_at_the_fixed_point_changes_nothing(sites):
    posterior = log_posterior(models.shared, sites=sites)
    theta = posterior.flat(posterior.space.initial_point())
    solved = posterior(theta)
    swept = posterior.after_one_sweep(theta, solved.start)
    assert_allclose(swept.log_posterior, solved.log_posterior, rtol=1e-7)
    assert_allclose(swept.gradient, solved.gradient, atol=1e-4 * np.abs(solved.gradient).max())
    assert swept.iterations == 1


@pytest.mark.variation(but=["sparse_ep"])
@pytest.mark.parametrize("method", ["sparse_ep", "sparse_vi"])
def test_inner_updates_end_at_the_maximum_of_l_bfgs(method):
    model, gp = models.probit() if method == "sparse_ep" else models.bernoulli_probit()
    options = {"method": method, "gp": gp, "inducing": 6, "learn_inducing": False, "random_seed": 3,
               "progressbar": False}  # fmt: skip
    seen = []
    with model:
        outer = pm.fit(**options)
        inner = pm.fit(400, **options, update="inner", callbacks=[lambda fit, losses, i: seen.append((losses[-1], i))])
    assert inner.converged
    assert_allclose(inner.theta, outer.theta, atol=0.02)
    name = "log_evidence" if method == "sparse_ep" else "lower_bound"
    assert_allclose(getattr(inner, name), getattr(outer, name), atol=1e-3)
    assert_allclose([loss for loss, _ in seen], inner.hist[1:])
    assert [i for _, i in seen] == list(range(1, len(inner.hist)))


def test_unsupported_options_are_refused():
    model, gp = models.probit()
    with model:
        with pytest.raises(ValueError, match="update is 'both', but must be 'outer' or 'inner'"):
            pm.fit(method="sparse_ep", gp=gp, update="both", progressbar=False)
        with pytest.raises(ValueError, match='obj_optimizer is for update="inner"'):
            pm.fit(method="sparse_ep", gp=gp, obj_optimizer=pm.adam(), progressbar=False)
