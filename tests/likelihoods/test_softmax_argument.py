"""A softmax that is written as a quotient is recognised if it is over classes."""

import pymc as pm
import pytensor.tensor as pt

from pymc_gpep.likelihoods.links import softmax_argument


def test_softmax_written_as_a_quotient_is_recognised():
    x = pt.matrix("x")
    once = pm.math.exp(x)
    assert softmax_argument(once / once.sum(axis=-1, keepdims=True)) is x
    assert softmax_argument(pm.math.exp(x) / pm.math.exp(x).sum(axis=1, keepdims=True)) is x
    transposed = (once / once.sum(axis=0, keepdims=True)).T
    assert softmax_argument(transposed).owner.inputs[0] is x


def test_quotient_by_another_sum_is_not_recognised_as_a_softmax():
    x, y = pt.matrices("xy")
    one, other = pm.math.exp(x), pm.math.exp(y)
    assert softmax_argument(one / one.sum(axis=0, keepdims=True)) is None
    assert softmax_argument(one / one.sum(axis=1)) is None
    assert softmax_argument(one / other.sum(axis=1, keepdims=True)) is None
    assert softmax_argument(one / 2.0) is None
