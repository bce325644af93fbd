"""Differences of latent values that the likelihood of a label sees: the label's own value less each of the others."""

from pymc_gpep.kernels.compile import kernel


@kernel
def label_differences(mean, cov, y, m, s):
    """Moments of f_y − f_j, j ≠ y, from those of f (c,), (c, c): into `m` (c − 1) and `s` (c − 1, c − 1)."""
    others = m.shape[0]
    for j in range(others):
        a = j + (j >= y)
        m[j] = mean[y] - mean[a]
        for k in range(j + 1):
            b = k + (k >= y)
            s[j, k] = cov[y, y] - cov[y, a] - cov[y, b] + cov[a, b]
            s[k, j] = s[j, k]
