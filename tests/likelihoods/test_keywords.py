"""Unknown keyword arguments of distributions raise errors and are not ignored."""

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep

DECLARED = {
    "probit": (lambda **more: gpep.Probit("y", np.zeros(3), **more), "two functions"),
    "several classes": (lambda **more: gpep.MultinomialProbit("y", np.zeros((3, 2)), **more), "Label noise is epsilon"),
    "label noise": (lambda **more: gpep.MultinomialProbit("y", np.zeros((3, 2)), epsilon=0.1, **more), "is epsilon"),
    "a step": (lambda **more: gpep.RobustMax("y", np.zeros((3, 2)), epsilon=0.1, **more), "Label noise is epsilon"),
}


@pytest.mark.parametrize(("declare", "advice"), DECLARED.values(), ids=DECLARED)
def test_unknown_keywords_are_refused(declare, advice):
    other = "epsilon" if advice == "two functions" else "eps"
    with pm.Model() as model:
        with pytest.raises(TypeError, match=f"has no argument '{other}'.*{advice}"):
            declare(**{other: 0.3})
        assert not model.basic_RVs
        declare(observed=[0, 1, 1], total_size=6)
