"""Averages of p(1 | g)ᵃ p(0 | g)ᵇ over a normal g, of likelihoods of two classes.

The powers a, b ≥ 0 are the rows of `powers` (2, n): how many rows of a group have each class. Arrays as in
`pymc_gpep.likelihoods.local_computations`.
"""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.unimodal_average import LOGISTIC, NORMAL, ROOM, SOME_AND_NONE, log_unimodal_normal


@kernel
def _average(kind, mean, variance, powers, out):
    room = np.empty(ROOM)
    for i in range(len(mean)):
        value, first, second, third, fourth, _, _ = log_unimodal_normal(
            kind, powers[0, i], powers[1, i], mean[i], variance[i], room
        )
        out[0, i] = value
        out[1, i] = first
        out[2, i] = second
        out[3, i] = third
        out[4, i] = fourth


@kernel
def logit(mean, variance, powers, out):
    """log E σ(g)ᵃ σ(−g)ᵇ and its first four derivatives in the mean into `out` (5, n)."""
    _average(LOGISTIC, mean, variance, powers, out)


@kernel
def probit(mean, variance, powers, out):
    """log E Φ(g)ᵃ Φ(−g)ᵇ and its first four derivatives in the mean into `out` (5, n)."""
    _average(NORMAL, mean, variance, powers, out)


@kernel
def complementary_log_log(mean, variance, powers, out):
    """log E (1 − exp(−eᵍ))ᵃ exp(−b eᵍ) and its first four derivatives in the mean into `out` (5, n)."""
    _average(SOME_AND_NONE, mean, variance, powers, out)
