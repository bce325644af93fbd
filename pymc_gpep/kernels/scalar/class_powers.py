"""Averages of p(1 | g)ᵃ p(0 | g)ᵇ over a normal g, of likelihoods of two classes.

The powers a, b ≥ 0 are the rows of `powers` (2, n): how many rows of a group have each class. Arrays as in
`pymc_gpep.likelihoods.local_computations`.
"""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.unimodal_average import LOGISTIC, NORMAL, ROOM, SOME_AND_NONE, log_unimodal_normal


@kernel
def average_of(kind, mean, variance, powers, out, slopes):
    """Average of a `kind` of `log_unimodal_normal` and its derivatives into `out` (5, n), slopes in a, b to (2, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        terms = log_unimodal_normal(kind, powers[0, i], powers[1, i], mean[i], variance[i], room)
        for k in range(5):
            out[k, i] = terms[k]
        for k in range(2):
            slopes[k, i] = terms[5 + k]


@kernel
def logit(mean, variance, powers, out):
    """log E σ(g)ᵃ σ(−g)ᵇ and its first four derivatives in the mean into `out` (5, n)."""
    average_of(LOGISTIC, mean, variance, powers, out, np.empty(powers.shape))


@kernel
def probit(mean, variance, powers, out):
    """log E Φ(g)ᵃ Φ(−g)ᵇ and its first four derivatives in the mean into `out` (5, n)."""
    average_of(NORMAL, mean, variance, powers, out, np.empty(powers.shape))


@kernel
def complementary_log_log(mean, variance, powers, out):
    """log E (1 − exp(−eᵍ))ᵃ exp(−b eᵍ) and its first four derivatives in the mean into `out` (5, n)."""
    average_of(SOME_AND_NONE, mean, variance, powers, out, np.empty(powers.shape))
