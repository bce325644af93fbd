"""Responses that are missing, as samplers keep them: each draw has its own, given latent values and hyperparameters.

A step moves all else as if they were integrated out, and draws them anew at its end. That leaves the joint posterior
as it is.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import pytensor
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.graph.at_point import AtPoint
from pymc_gpep.structure.missing_responses import MissingResponses
from pymc_gpep.structure.sampled_values import SampledValues

__all__ = ["MissingValues", "drawn_value"]


def drawn_value(
    model: pm.Model, missing: MissingResponses, in_parts: Callable[[Sequence[Variable]], Sequence[Variable]]
) -> TensorVariable:
    """Return a draw of a missing response, as its value variable has it.

    Parameters
    ----------
    model : pm.Model
    missing : MissingResponses
    in_parts : callable
        Function that rewrites expressions in random variables of the model in terms of the values that samplers move.
    """
    node = missing.unobserved.owner
    random = [isinstance(v.type, RandomType) for v in node.inputs]
    moved = iter(in_parts([v for v, is_random in zip(node.inputs, random, strict=True) if not is_random]))
    inputs = [pytensor.shared(np.random.default_rng()) if is_random else next(moved) for is_random in random]
    drawn: TensorVariable = node.clone_with_new_inputs(inputs).outputs[node.outputs.index(missing.unobserved)]
    transform = model.rvs_to_transforms[missing.unobserved]
    return drawn if transform is None else transform.forward(drawn, *inputs)


class MissingValues:
    """Draws of the value variables of missing responses; a class, so that it can be pickled.

    Parameters
    ----------
    values : SampledValues
    names : sequence of str
        Names of the value variables.
    function : AtPoint
        Makes draws of a point and of the parts of x.
    """

    def __init__(self, values: SampledValues, names: Sequence[str], function: AtPoint) -> None:
        self._values, self._names, self._function = values, names, function

    def seed(self, rng: np.random.Generator) -> None:
        """Begin a chain."""
        self._function.seed(int(rng.integers(2**63)))

    def __call__(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        """Return draws by name."""
        return dict(zip(self._names, self._function(point, *self._values.parts_of(x, prior)), strict=True))
