import numpy as np
import pytest

from pymc_gpep.gaussians.dense_prior import check_prior

C, N = 3, 4
K = np.eye(N) + 0.5
MEAN = np.zeros((C, N))


@pytest.mark.parametrize(
    ("k", "shape"),
    [(K, (1, N, N)), (K[None], (1, N, N)), (np.stack([K] * C), (C, N, N)), (K.tolist(), (1, N, N))],
    ids=["shared", "shared, three axes", "per class", "list"],
)
def test_gives_what_kernels_want(k, shape):
    covariance, mean = check_prior(k, np.asfortranarray(MEAN))
    assert (covariance.shape, covariance.dtype) == (shape, np.float64)
    assert (mean.shape, mean.dtype) == ((C, N), np.float64)
    assert all(array.flags.c_contiguous for array in (covariance, mean))
    assert (covariance == K).all()


def test_one_point_zero_covariance_and_rounding_are_fine():
    assert check_prior([[0.0]], np.zeros((2, 1)))[0].shape == (1, 1, 1)
    rounded = 1e6 * K
    rounded[0, 1] += 1e-4
    check_prior(rounded, MEAN)


def replace(array, value, *index):
    result = np.array(array, float)
    result[index] = value
    return result


@pytest.mark.parametrize(
    ("k", "mean", "message"),
    [
        (K, MEAN[0], r"mean must be \(c, n\).*has shape \(4,\)"),
        (K, MEAN[:0], "c ≥ 1"),
        (np.empty((0, 0)), np.empty((3, 0)), "n ≥ 1"),
        (K[:3], MEAN, r"k must be \(4, 4\) or \(3, 4, 4\).*has shape \(3, 4\)"),
        (np.stack([K] * 2), MEAN, r"k must be .* has shape \(2, 4, 4\)"),
        (K, replace(MEAN, np.nan, 0, 0), "mean must be finite, but has 1 values"),
        (replace(K, np.inf, slice(2), 0), MEAN, "k must be finite, but has 2 values"),
        (replace(K, 0.6, 0, 1), MEAN, "k must be symmetric"),
        (replace(K, -0.1, 2, 2), MEAN, "k must have no negative variance"),
    ],
)
def test_says_what_is_wrong(k, mean, message):
    with pytest.raises(ValueError, match=message):
        check_prior(k, mean)
