"""Centres of the rows of each class, as inducing inputs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.variational import class_centres as module

# Each of three classes has two distant groups of points. Classes are further apart.
AT = np.array([[0.0, 0.0], [0.0, 9.0], [30.0, 0.0], [30.0, 9.0], [60.0, 0.0], [60.0, 9.0]])
X = np.repeat(AT, 20, axis=0) + 0.1 * np.random.default_rng(0).normal(size=(120, 2))
Y = np.repeat([0, 1, 2], 40)


def counts(z):
    """Number of inducing inputs within each class."""
    return np.bincount(np.rint(z[:, 0] / 30.0).astype(int), minlength=3).tolist()


def test_half_of_the_centres_lie_in_the_class_and_half_outside():
    z = gpep.class_centres((X, Y), 4)
    assert z.shape == (3, 4, 2)
    for k, own in enumerate(z):
        assert counts(own)[k] == 2
        assert_allclose(own[:2][np.argsort(own[:2, 1])], AT[2 * k : 2 * k + 2], atol=0.1)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_centres_scale_with_inputs_of_any_magnitude(scale):
    """Squares of such numbers overflow. Scaling the result gives the same centres."""
    assert_allclose(gpep.class_centres((scale * X, Y), 4) / scale, gpep.class_centres((X, Y), 4), rtol=1e-12)


def test_shared_centres_are_equally_many_for_each_class():
    z = gpep.class_centres((X, Y), 5, shared=True)
    assert z.shape == (5, 2)
    assert counts(z) == [2, 2, 1]


@pytest.mark.parametrize(
    ("rows", "size", "own"),
    [(slice(38, None), 8, [2, 4, 4]), (slice(40, None), 4, [0, 2, 2]), ([0, 1, 40, 41, 80, 81], 6, [2, 2, 2])],
    ids=["two rows", "none", "as many centres as rows"],
)
def test_own_centres_of_a_small_class_are_limited_by_its_rows(rows, size, own):
    z = gpep.class_centres((X[rows], Y[rows]), size, classes=3)
    assert z.shape == (3, size, 2)
    assert [counts(each)[k] for k, each in enumerate(z)] == own


def test_small_classes_leave_shared_centres_to_other_classes():
    z = gpep.class_centres((X[38:], Y[38:]), 12, shared=True)
    assert counts(z) == [2, 5, 5]
    z = gpep.class_centres((X[40:], Y[40:]), 5, classes=4, shared=True)
    assert counts(z) == [0, 3, 2]


def test_centres_of_many_rows_use_a_sample(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 20)
    z = gpep.class_centres((X, Y), 4)
    for k, own in enumerate(z):
        assert_allclose(own[:2][np.argsort(own[:2, 1])], AT[2 * k : 2 * k + 2], atol=0.2)
    assert gpep.class_centres((X, Y), 90).shape == (3, 90, 2)  # a sample of rows still gives all centres


def test_many_centres_of_few_rows_are_distinct():
    for own in gpep.class_centres((X, Y), 60):
        assert len(np.unique(own, axis=0)) == 60


def test_rows_in_files_have_the_centres_of_arrays(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    files = str(tmp_path / "X.npy"), str(tmp_path / "y.npy")
    assert_array_equal(gpep.class_centres(files, 4, random_seed=3), gpep.class_centres((X, Y), 4, random_seed=3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 121}, ValueError, "size must be at most 120, the number of rows, but is 121"),
        ({"size": 0}, ValueError, "size must be at least 1, but is 0"),
        ({"size": 4, "classes": 0}, ValueError, "classes must be at least 1, but is 0"),
        ({"size": 4, "classes": "3"}, TypeError, "classes must be a whole number, but is '3'"),
        ({"size": 2.5}, TypeError, "size must be a whole number, but is 2.5"),
        ({"size": True}, TypeError, "size must be a whole number, but is True"),
        ({"size": 4, "classes": 2}, ValueError, "labels must be from 0 to 1, but are from 0 to 2"),
    ],
)
def test_invalid_numbers_of_centres_raise_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        gpep.class_centres((X, Y), **arguments)


def test_labels_not_starting_at_0_are_refused_without_classes():
    with pytest.raises(ValueError, match=r"labels are from 1 to 3, but .*Subtract 1.*classes=4"):
        gpep.class_centres((X, Y + 1), 4)
    assert gpep.class_centres((X, Y + 1), 4, classes=4).shape == (4, 4, 2)
