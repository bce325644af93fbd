"""Sums of weights times points and their squares, in loops: expressions of arrays take long to compile."""

from pymc_gpep.kernels.compile import kernel


@kernel
def rescale(mean, cov, factor):
    """Multiply sums of weighted points (d,) and of their squares (d, d) by `factor`; 0 clears them."""
    for j in range(mean.shape[0]):
        mean[j] = factor * mean[j] if factor > 0.0 else 0.0
        for i in range(j + 1):
            cov[j, i] = factor * cov[j, i] if factor > 0.0 else 0.0


@kernel
def centre(mean, cov, total):
    """Make means and covariances of such sums, the latter of their lower triangle, with weights of sum `total`."""
    for j in range(mean.shape[0]):
        mean[j] /= total
        for i in range(j + 1):
            cov[j, i] = cov[j, i] / total - mean[j] * mean[i]
            cov[i, j] = cov[j, i]
