import numpy as np
import pytest

from pymc_gpep.gaussians.dense_prior import check_prior

C, N = 3, 4
K = np.eye(N) + 0.5
MEAN = np.zeros((C, N))
LABELS = np.array([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("k", "shape"),
    [(K, (1, N, N)), (K[None], (1, N, N)), (np.stack([K] * C), (C, N, N)), (K.tolist(), (1, N, N))],
    ids=["shared", "shared, three axes", "per class", "list"],
)
@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(float), LABELS.astype("int8"), LABELS.tolist()], ids=repr)
def test_gives_what_kernels_want(k, shape, labels):
    covariance, mean, classes = check_prior(k, np.asfortranarray(MEAN), labels)
    assert (covariance.shape, covariance.dtype) == (shape, np.float64)
    assert (mean.shape, mean.dtype) == ((C, N), np.float64)
    assert (classes.shape, classes.dtype) == ((N,), np.int64)
    assert all(array.flags.c_contiguous for array in (covariance, mean, classes))
    assert (covariance == K).all()
    assert (classes == LABELS).all()


def test_one_point_zero_covariance_and_rounding_are_fine():
    assert check_prior([[0.0]], np.zeros((2, 1)), [1])[0].shape == (1, 1, 1)
    rounded = 1e6 * K
    rounded[0, 1] += 1e-4
    check_prior(rounded, MEAN, LABELS)


def replace(array, value, *index):
    result = np.array(array, float)
    result[index] = value
    return result


@pytest.mark.parametrize(
    ("k", "mean", "labels", "message"),
    [
        (K, MEAN[0], LABELS, r"mean must be \(c, n\).*has shape \(4,\)"),
        (K, MEAN[:1], LABELS, "c ≥ 2"),
        (np.empty((0, 0)), np.empty((3, 0)), [], "n ≥ 1"),
        (K[:3], MEAN, LABELS, r"k must be \(4, 4\) or \(3, 4, 4\).*has shape \(3, 4\)"),
        (np.stack([K] * 2), MEAN, LABELS, r"k must be .* has shape \(2, 4, 4\)"),
        (K, replace(MEAN, np.nan, 0, 0), LABELS, "mean must be finite, but has 1 values"),
        (replace(K, np.inf, slice(2), 0), MEAN, LABELS, "k must be finite, but has 2 values"),
        (replace(K, 0.6, 0, 1), MEAN, LABELS, "k must be symmetric"),
        (replace(K, -0.1, 2, 2), MEAN, LABELS, "k must have no negative variance"),
        (K, MEAN, LABELS[:3], r"labels must be \(4,\).*have shape \(3,\)"),
        (K, MEAN, LABELS[:, None], r"labels must be \(4,\)"),
        (K, MEAN, LABELS + 1, "labels must be integers 0…2, but run from 1 to 3"),
        (K, MEAN, LABELS - 1, "labels must be integers 0…2, but run from -1 to 1"),
        (K, MEAN, LABELS / 2, "labels must be integers"),
    ],
)
def test_says_what_is_wrong(k, mean, labels, message):
    with pytest.raises(ValueError, match=message):
        check_prior(k, mean, labels)
