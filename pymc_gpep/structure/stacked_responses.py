"""Several observed variables read as one: their rows, likelihoods and arguments one after another."""

from collections.abc import Collection, Mapping, Sequence

import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.stacked import StackedLikelihood
from pymc_gpep.structure.affine import Affinity
from pymc_gpep.structure.interpreted import evaluate
from pymc_gpep.structure.likelihood_search import FoundLikelihood, read_response
from pymc_gpep.structure.missing_responses import MissingResponses


class StackedResponses:
    """Observed variables that are fitted together.

    Parameters
    ----------
    model : pm.Model
    found : sequence of FoundLikelihood
        Likelihoods of one latent function.
    missing : mapping
        Missing responses by observed variable.

    Attributes
    ----------
    variables : list of TensorVariable
        The observed variables.
    values : list of TensorVariable
        Observations of each.
    sizes : list of int
        How many rows with a response each has.
    """

    def __init__(
        self, model: pm.Model, found: Sequence[FoundLikelihood], missing: Mapping[TensorVariable, MissingResponses]
    ) -> None:
        self._found, self._missing = found, missing
        self.variables = [each.variable for each in found]
        self.values = [model.rvs_to_values[each] for each in self.variables]
        self.sizes = [int(n) for n in evaluate([v.size for v in self.values])]

    def readings(self, sources: Collection[Variable]) -> list[Reading | None]:
        """Return what each variable is given; None where the argument cannot be told from other parameters."""
        known = frozenset(sources)
        return [
            read_response(each.likelihood, each.variable, known, self._missing.get(each.variable))
            for each in self._found
        ]

    def read(self, sources: Collection[Variable]) -> Reading | None:
        """Return what those are given together whose argument can be told; None if there is no such variable."""
        readings = self.readings(sources)
        return self.together(readings) if any(readings) else None

    def together(self, readings: Sequence[Reading | None]) -> Reading:
        """Return one reading of those of the variables."""
        told = [each for each in zip(readings, self._found, self.sizes, strict=True) if each[0] is not None]
        made = [parameters_at_points(reading, n) for reading, _, n in told if reading is not None]
        arguments = [reading.argument.astype("float64") + pt.zeros(n) for reading, _, n in told if reading is not None]
        likelihood = StackedLikelihood(
            parts=tuple((reading and reading.likelihood) or each.likelihood for reading, each, _ in told),
            counts=tuple(count for _, count in made),
        )
        parameters = likelihood.together([each for each, _ in made])
        return Reading(pt.concatenate(arguments), parameters, likelihood=likelihood.at_rows([n for *_, n in told]))

    def observed(self) -> TensorVariable:
        """Return all observations as numbers, (n,)."""
        return pt.concatenate([each.astype("float64") for each in self.values])

    def apart(self, sources: frozenset[Variable]) -> list[FoundLikelihood]:
        """Return those whose argument cannot be told, or depends on no variable that is integrated."""
        affinity = Affinity(sources)
        pairs = zip(self._found, self.readings(sources), strict=True)
        return [each for each, reading in pairs if reading is None or not affinity.behind(reading.argument)]


def parameters_at_points(reading: Reading, n_points: int) -> tuple[TensorVariable, int]:
    """Return parameters of a likelihood at every point (p, n), and p."""
    if reading.parameters is None:
        return pt.zeros((0, n_points)), 0
    (shape,) = evaluate(get_symbolic_rv_shapes([reading.parameters]))
    count = int(shape[0])
    return pt.broadcast_to(reading.parameters, (count, n_points)).astype("float64"), count
