"""Moments of priors with inducing inputs as functions of the hyperparameters, compiled once for each form.

Covariances of one form with parameters of their own differ in numbers alone. One function serves all of them and takes
these numbers as inputs; another returns the numbers of each. A graph takes as long to make as thousands of
evaluations.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.alike_graphs import differences
from pymc_gpep.graphs.interpreted import ModelFunctions, graph_function
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import RowsBeside
from pymc_gpep.processes.process_functions import ProcessFunctions
from pymc_gpep.processes.stationary import Stationary, stationary
from pymc_gpep.reading.classifier import GPClassifier


def moment_graphs(
    of: ModelFunctions,
    latent: LatentGP,
    functions: ProcessFunctions,
    z: TensorVariable,
    x: TensorVariable,
    beside: RowsBeside | None = None,
) -> list[TensorVariable]:
    """Moments of one prior with inducing inputs z (M, d) and rows x (B, d), in terms of value variables.

    Covariance (M, M) of the inducing values, (M, B) of these with the rows, variance (B,) and mean (outputs, B) of the
    rows. With effects beside the prior x is a table, whose first columns are inputs, and their coefficients (p, B)
    follow.
    """
    inputs: TensorVariable = x
    others: Sequence[TensorVariable]
    if beside is None:
        others = (pt.broadcast_to(functions.mean(x), (len(latent.classes), x.shape[0])),)
    else:
        inputs, others = x[:, : z.type.shape[1]], beside.moments(x)
    outputs = [functions.covariance(z, z), functions.covariance(z, inputs), functions.variance(inputs), *others]
    return [out.astype("float64") for out in of.known(outputs)]


class MomentFunctions:
    """Moments as functions of hyperparameters, own numbers, inducing inputs z (M, d) and rows x (B, d).

    Parameters
    ----------
    model : pm.Model
    values : sequence of Variable
        The hyperparameters.
    graphs : sequence of TensorVariable
        Graphs that `moment_graphs` returns, in terms of these and of the following variables.
    numbers : sequence of TensorVariable
    z, x : TensorVariable
    compile_kwargs : dict
    """

    def __init__(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        graphs: Sequence[TensorVariable],
        numbers: Sequence[TensorVariable],
        z: TensorVariable,
        x: TensorVariable,
        compile_kwargs: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._values = list(values)
        self._numbers = list(numbers)
        self._inducing, *self._block = graphs
        self._z, self._x = z, x
        self._kwargs = compile_kwargs

    def _function(self, inputs: Sequence[Variable], outputs: Any) -> Any:
        return graph_function(self._model, [*self._values, *self._numbers, *inputs], outputs, **self._kwargs)

    def _slopes(self, outputs: Sequence[TensorVariable], bars: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Derivatives of Σ bar · output in the hyperparameters, flat, in z, and in the numbers that have any."""
        wanted = [*self._values, self._z, *_continuous(self._numbers)]
        slopes = pytensor.grad(_weighted(outputs, bars), wanted, disconnected_inputs="ignore")
        count = len(self._values)
        return [_flat(slopes[:count]), *slopes[count:]]

    def stationary(self, points: Sequence[Sequence[Array]]) -> Stationary | None:
        """The form of the covariance at `points`, values of hyperparameters and own numbers; see `stationary`.

        There are no effects beside it.
        """
        graphs = [self._inducing, *self._block]
        return stationary(self._model, [*self._values, *self._numbers], graphs, self._z, self._x, points)

    def with_numbers(self, found: Stationary, numbers: Sequence[TensorVariable]) -> Stationary:
        """The same form of a prior that has these numbers."""
        places = dict(zip(self._numbers, numbers, strict=True))
        return Stationary(found.profile, *graph_replace(list(found[1:]), places, strict=False))

    @cached_property
    def inducing(self) -> Any:
        """Function of (hyperparameters, numbers, z)."""
        return self._function([self._z], self._inducing)

    @cached_property
    def block(self) -> Any:
        """Function of (hyperparameters, numbers, z, x)."""
        return self._function([self._z, self._x], self._block)

    @cached_property
    def inducing_slopes(self) -> Any:
        """Function of (hyperparameters, numbers, z, derivatives in the result of `inducing`)."""
        bar = pt.dmatrix("inducing_bar")
        return self._function([self._z, bar], self._slopes([self._inducing], [bar]))

    @cached_property
    def block_slopes(self) -> Any:
        """Function of (hyperparameters, numbers, z, x, derivatives in each result of `block`)."""
        bars = [out.type() for out in self._block]
        return self._function([self._z, self._x, *bars], self._slopes(self._block, bars))


class OwnNumbers:
    """Numbers that each prior has of its own, as functions of the hyperparameters.

    Attributes
    ----------
    graphs : list of list of TensorVariable
        These numbers in terms of the hyperparameters.

    Parameters
    ----------
    model : pm.Model
    values : sequence of Variable
        The hyperparameters.
    numbers : sequence of sequence of TensorVariable
        Numbers of each prior, as many as every other has.
    compile_kwargs : dict
    """

    def __init__(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        numbers: Sequence[Sequence[TensorVariable]],
        compile_kwargs: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._values = list(values)
        self.graphs = [list(own) for own in numbers]
        self._all = [each for own in numbers for each in own]
        self._kwargs = compile_kwargs

    @cached_property
    def _function(self) -> Any:
        return graph_function(self._model, self._values, self._all, **self._kwargs)

    @cached_property
    def _slopes(self) -> Any:
        outputs = _continuous(self._all)
        bars = [each.type() for each in outputs]
        slopes = pytensor.grad(_weighted(outputs, bars), self._values, disconnected_inputs="ignore")
        return graph_function(self._model, [*self._values, *bars], _flat(slopes), **self._kwargs)

    def __call__(self, values: Sequence[Array]) -> list[list[Array]]:
        """Return the numbers of each prior."""
        count = len(self.graphs[0])
        found = self._function(*values) if count else []
        return [list(found[k * count : (k + 1) * count]) for k in range(len(self.graphs))]

    def pulled(self, values: Sequence[Array], bars: Mapping[int, Sequence[Array]]) -> Array | float:
        """Derivatives in the hyperparameters, flat, from those in the numbers of some priors."""
        if not _continuous(self.graphs[0]) or not self._values:
            return 0.0
        nothing = [0.0 * each for each in next(iter(bars.values()))]
        found: Array = self._slopes(*values, *(bar for k in range(len(self.graphs)) for bar in bars.get(k, nothing)))
        return found


class PriorMoments(NamedTuple):
    """Moments of the priors of a model."""

    functions: list[MomentFunctions]
    """Functions of each prior; the same for priors that are alike."""
    numbers: OwnNumbers

    def stationary(self, points: Sequence[Sequence[Array]]) -> list[Stationary] | None:
        """The form of each covariance, at values of the hyperparameters; None unless all have one."""
        numbers = [self.numbers(point) for point in points]
        found: dict[MomentFunctions, Stationary] = {}
        for each in dict.fromkeys(self.functions):
            alike = [k for k, other in enumerate(self.functions) if other is each]
            form = each.stationary(
                [[*point, *own[k]] for point, own in zip(points, numbers, strict=True) for k in alike]
            )
            if form is None:
                return None
            found[each] = form
        return [
            each.with_numbers(found[each], own) for each, own in zip(self.functions, self.numbers.graphs, strict=True)
        ]


def moment_functions(
    classifier: GPClassifier,
    matched: Sequence[tuple[LatentGP, ProcessFunctions]],
    data: Mapping[Variable, Variable],
    columns: int,
    beside: RowsBeside | None,
    compile_kwargs: Mapping[str, Any],
) -> PriorMoments:
    """Make the functions of moments of the priors of a model.

    Parameters
    ----------
    classifier : GPClassifier
    matched : sequence of LatentGP and ProcessFunctions
        Priors and their functions, as `functions_of` returns them.
    data : dict
        Data of the model → constants that take their place.
    columns : int
        Number of columns of the inputs.
    beside : RowsBeside or None
        Effects beside the priors.
    compile_kwargs : dict
        For `pytensor.function`.
    """
    model = classifier.model
    of = ModelFunctions(model, classifier.hyperparameters, data)
    values = of.values
    z = pt.tensor("inducing_inputs", dtype="float64", shape=(None, columns))
    x = pt.tensor("rows", dtype="float64", shape=(None, len(beside.columns) if beside else columns))
    graphs = [moment_graphs(of, latent, functions, z, x, beside) for latent, functions in matched]
    own = differences(graphs, {z, x}) if len(graphs) > 1 else {}
    if own is None:
        functions = [MomentFunctions(model, values, each, [], z, x, compile_kwargs) for each in graphs]
        return PriorMoments(functions, OwnNumbers(model, values, [[] for _ in graphs], compile_kwargs))
    places = {first: first.type() for first in own}
    alike = graph_replace(graphs[0], places, strict=False)
    of_all = MomentFunctions(model, values, alike, list(places.values()), z, x, compile_kwargs)
    numbers = [[(first, *others)[k] for first, others in own.items()] for k in range(len(graphs))]
    return PriorMoments([of_all] * len(graphs), OwnNumbers(model, values, numbers, compile_kwargs))


def _continuous(variables: Sequence[TensorVariable]) -> list[TensorVariable]:
    return [each for each in variables if each.dtype.startswith("float")]


def _weighted(outputs: Sequence[TensorVariable], bars: Sequence[TensorVariable]) -> TensorVariable:
    """Σ bar · output."""
    return pt.add(0.0, *((bar * out).sum() for bar, out in zip(bars, outputs, strict=True)))


def _flat(slopes: Sequence[TensorVariable]) -> TensorVariable:
    return pt.concatenate([slope.ravel() for slope in slopes]) if slopes else pt.zeros(0)
