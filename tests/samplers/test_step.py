"""Common validation of step methods."""

import pymc as pm
import pytest

import pymc_gpep as gpep
from tests import models

STEPS = (
    gpep.samplers.EllipticalSlice,
    gpep.samplers.GuidedHMC,
    gpep.samplers.ProbitGibbs,
    gpep.samplers.PseudoMarginal,
    gpep.samplers.ScaledMetropolis,
)


@pytest.mark.parametrize("step", STEPS)
def test_error_for_unknown_options_names_the_step(step):
    with (
        pm.Model(),
        pytest.raises(TypeError, match=rf"{step.__name__} has no option sweps, target. Options: .*, rng, "),
    ):
        step(sweps=3, target=0.5)  # refused before the unsupported model is read


def test_invalid_option_of_the_base_class_raises_value_error():
    with models.probit()[0], pytest.raises(ValueError, match="hyper_moves must be at least 1"):
        gpep.samplers.EllipticalSlice(hyper_moves=0)
