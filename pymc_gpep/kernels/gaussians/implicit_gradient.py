"""The part of a Laplace approximation's gradient that comes from the mode's own dependence on the prior."""

from pymc_gpep.kernels.compile import kernel

__all__ = ["add_implicit_gradient"]


@kernel
def add_implicit_gradient(b, v, gradient):
    """Add ½ (v_k b_kᵀ + b_k v_kᵀ) to `gradient` (1 or c, n, n), summed over classes where it holds one matrix.

    The mode moves by (I + K W)⁻¹ (dm + dK b) (Rasmussen and Williams 2006, equation 5.24, with a prior mean). Let s be
    the derivative of −½ log|I + K W| with respect to the mode. Then v = (I + W K)⁻¹ s is that with respect to m.
    """
    c, n = b.shape
    for a in range(c):
        out = gradient[a if gradient.shape[0] > 1 else 0]
        for i in range(n):
            for j in range(n):
                out[i, j] += 0.5 * (v[a, i] * b[a, j] + b[a, i] * v[a, j])
