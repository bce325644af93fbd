"""Effects with a zero sum over classes are equivalent to independent effects if only differences matter."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep

N, D, C = 20, 2, 3
_rng = np.random.default_rng(3)
X = _rng.normal(size=(N, D))
Y = np.concatenate([np.arange(C), _rng.integers(0, C, N - C)])


def fitted(zero_sum: bool, softmax: bool) -> gpep.Fit:
    normal = pm.ZeroSumNormal if zero_sum else pm.Normal
    with pm.Model(coords={"input": range(D), "kind": range(C)}):
        x = pm.Data("X", X)
        f = x @ normal("b", sigma=0.8, dims=("input", "kind")) + normal("a", sigma=1.2, dims="kind")
        if softmax:
            pm.Categorical("y", logit_p=f, observed=Y)
        else:
            gpep.MultinomialProbit("y", f, observed=Y)
        return pm.fit(method="laplace" if softmax else "nested_ep", progressbar=False)


@pytest.mark.variation(but=["True"])
@pytest.mark.parametrize("softmax", [False, True])
def test_classes_that_sum_to_zero_have_the_probabilities_of_unconstrained_classes(softmax):
    plain, zero = fitted(False, softmax), fitted(True, softmax)
    assert_allclose(zero.log_evidence, plain.log_evidence, atol=1e-8)
    new = {"X": X[:4] + 0.3}
    assert_allclose(*(fit.predict(data=new, progressbar=False)["p"] for fit in (zero, plain)), atol=1e-8)
    mean, sd = zero.effects("b")["b"].values
    assert_allclose(mean.sum(axis=1), 0.0, atol=1e-10)
    # After subtraction of their mean over classes, the effects are equal.
    contrasts = {f"{i} {k}": {"b": np.outer(np.eye(D)[i], np.eye(C)[k] - 1 / C)} for i in range(D) for k in range(C)}
    other = plain.contrast(contrasts)
    assert_allclose(mean.ravel(), other["mean"], atol=1e-7)
    assert_allclose(sd.ravel(), other["sd"], atol=1e-7)
    draws = zero.sample(20, random_seed=1)["posterior"]["b"].values
    assert_allclose(draws.sum(axis=-1), 0.0, atol=1e-12)
