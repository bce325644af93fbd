"""Starts of solves, extrapolated from earlier solves at nearby hyperparameters."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import KL, NestedEP, QuadraticVB
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.rivals.class_independent_ep import IEP
from pymc_gpep.rivals.qep import QEP
from tests.reference.data import iris, squared_exponential

C = 3
LOGIT = next(likelihood for likelihood in LIKELIHOODS if likelihood.name == "logit")
X, LABELS = (values[::3] for values in iris())


def solve(approximation, place, start=None):
    variance, lengthscale = np.exp(place)
    k = squared_exponential(X, variance=variance, lengthscale=lengthscale) + 1e-6 * np.eye(LABELS.size)
    return approximation.solve(k, np.zeros((C, LABELS.size)), LABELS, start)


def around(approximation, centre, distance):
    """Solutions at a centre and on both sides of it along each axis."""
    places = [centre, *(centre + sign * step for step in distance * np.eye(2) for sign in (-1, 1))]
    return Neighbours(tuple(places), tuple(solve(approximation, place).start for place in places))


@pytest.mark.parametrize("approximation", [NestedEP(), IEP()], ids=lambda each: each.name)
def test_predicted_start_saves_sweeps_and_keeps_the_result(approximation):
    centre, place = np.array([2.0, 0.5]), np.array([2.4, 0.2])
    near = around(approximation, centre, 0.5)
    cold, nearest = solve(approximation, place), solve(approximation, place, near.starts[0])
    predicted = solve(approximation, place, near.predict(approximation, place))
    assert predicted.evidence == pytest.approx(cold.evidence, abs=1e-5)
    assert predicted.convergence.residual[0] < 0.3 * nearest.convergence.residual[0]
    assert predicted.convergence.iterations < nearest.convergence.iterations < cold.convergence.iterations


@pytest.mark.parametrize(("approximation", "left"), [(KL(), 0.5), (QuadraticVB(), 0.9)], ids=str)
def test_extrapolation_of_scalar_bounds_lowers_the_residual(approximation, left):
    """Precisions vary by orders of magnitude along σ_f. The new point lies beyond the known solutions."""
    y = (LABELS == 1).astype(np.int64)

    def solve(place, start=None):
        k = squared_exponential(X, variance=np.exp(place[0]), lengthscale=np.exp(place[1])) + 1e-6 * np.eye(y.size)
        return approximation.solve(k, np.zeros((1, y.size)), y, start, likelihood=LOGIT)

    places = [np.array([variance, 0.5]) for variance in (2.0, 3.0, 4.0)]
    near = Neighbours(tuple(places), tuple(solve(place).start for place in places))
    place = np.array([5.0, 0.5])
    last, predicted = solve(place, near.starts[-1]), solve(place, near.predict(approximation, place))
    assert predicted.evidence == pytest.approx(last.evidence, abs=1e-5)
    assert predicted.convergence.residual[0] < left * last.convergence.residual[0]


def test_extrapolation_at_a_stored_point_equals_the_stored_sites():
    near = around(NestedEP(), np.array([2.0, 0.5]), 0.5)
    for place, start in zip(*near[:2], strict=True):
        assert_allclose(near.predict(NestedEP(), place), start, rtol=1e-4)


def test_extrapolation_does_not_change_with_units_of_the_root():
    near = around(NestedEP(), np.array([2.0, 0.5]), 0.5)
    root = np.array([[3.0, 0.0], [1.0, 0.1]])
    scaled = near._replace(places=tuple(root @ place for place in near.places), root=root)
    place = np.array([2.2, 0.6])
    assert_allclose(scaled.predict(NestedEP(), root @ place), near.predict(NestedEP(), place), rtol=1e-6)


def test_memory_stores_only_the_last_solutions():
    near = Neighbours((np.zeros(1),), (np.zeros(4),))
    for number in range(1, 5):
        near = near.joined(np.full(1, number), np.full(4, number), 3)
    assert [float(place[0]) for place in near.places] == [2, 3, 4]
    assert len(near.starts) == 3


def test_predicted_precisions_stay_valid_at_any_distance():
    """Predicted precisions lie between 0 and the largest known precision.

    If one of the precisions is 0, the prediction is the precision of the nearest solution.
    """
    starts = np.array([[0.5, 0.9, 0.0, 1.0, 2.0, 0.3], [0.25, 0.1, 0.2, 0.5, 1.0, 0.4]])
    for weights in ([40.0, -39.0], [-39.0, 40.0]):
        start = NestedEP().between(starts, np.array(weights), 0)
        assert np.isfinite(start).all()
        assert (start[:3] >= 0).all()
        assert (start[:3] <= starts[:, :3].max(axis=0)).all()
        assert start[2] == 0.0
        assert start[5] == 0.3


def test_predicted_start_has_the_full_precision_matrices_of_the_nearest_solution():
    starts = np.random.default_rng(0).normal(size=(2, 10))
    assert (QEP(full=True).between(starts, np.array([3.0, -2.0]), 1) == starts[1]).all()


def test_posterior_of_zero_sites_is_the_prior():
    """The reference is a solve with negligible sites, for which the solver factorises matrices."""
    options = {"max_iterations": 1, "ladder": False}
    place, tiny = np.array([2.0, 0.5]), np.full(2 * (C - 1) * LABELS.size, 1e-12)
    zero, small = (solve(NestedEP(**options), place, start) for start in (0 * tiny, tiny))
    assert_allclose(zero.convergence.evidence, small.convergence.evidence, rtol=1e-6)
    assert_allclose(zero.convergence.residual, small.convergence.residual, rtol=1e-6)
    assert_allclose(zero.cov, small.cov, atol=1e-5)


class Combined:
    @staticmethod
    def between(starts, weights, nearest):
        return np.concatenate([weights @ starts, starts[nearest]])


def test_predicted_start_combines_the_nearest_solutions():
    rng = np.random.default_rng(1)
    places = 3.0 * rng.normal(size=(60, 2))
    starts = np.column_stack([np.ones(60), np.sin(places[:, 0] / 3.0), np.arange(60.0)])
    place = np.array([0.3, -0.2])
    closest = np.sort(np.argsort(((places - place) ** 2).sum(axis=1))[:16])
    every, some = (
        Neighbours(tuple(places[own]), tuple(starts[own])).predict(Combined, place) for own in (np.arange(60), closest)
    )
    assert_allclose(every, some, rtol=1e-12)
    assert_allclose(every[:2], [1.0, np.sin(0.1)], atol=1e-3)
    assert every[5] == ((places - place) ** 2).sum(axis=1).argmin()
