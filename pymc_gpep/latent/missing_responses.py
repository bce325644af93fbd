"""Observed variables some of whose responses are missing.

PyMC declares an observed variable for the rows that have a response, a free one for the others, and a Deterministic of
both. The parameters of each are those of all rows, cut to its own.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.likelihoods.likelihood import Likelihood, Reading
from pymc_gpep.likelihoods.observed import missing_labels, to_one_axis


@dataclass(frozen=True, eq=False)
class MissingResponses:
    """A variable of which PyMC observes some rows.

    Attributes
    ----------
    name : str
        Name that the user gave it.
    observed, unobserved : TensorVariable
        Random variables of the rows with a response, and of those without.
    missing : array of bool
        Which entries have no response.
    whole : TensorVariable
        The random variable of all rows, or of one where all have the same parameters.
    """

    name: str
    observed: TensorVariable
    unobserved: TensorVariable
    missing: NDArray[np.bool_]
    whole: TensorVariable

    @property
    def n_rows(self) -> int:
        """Number of rows, with a response or without."""
        return len(self.missing)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Positions of the rows without a response."""
        return np.flatnonzero(self.missing)

    @property
    def fitted(self) -> NDArray[np.int64]:
        """Positions of the rows with a response."""
        return np.flatnonzero(~self.missing)

    def read(self, likelihood: Likelihood, latents: frozenset[Variable]) -> Reading | None:
        """Return what the observed rows are given, if this is the likelihood."""
        found = likelihood.read(self.whole, latents)
        if found is None:
            return None
        argument, parameters = found.argument, found.parameters
        if argument.ndim == 1 + likelihood.function_axis and argument.type.shape[0] != 1:
            argument = argument[self.fitted]
        if parameters is not None:
            parameters = pt.broadcast_to(parameters, (parameters.shape[0], self.n_rows))[:, self.fitted]
        return Reading(argument, parameters, everywhere=found, likelihood=found.likelihood)

    def drawn(self) -> TensorVariable:
        """Return a random variable like the unobserved one outside of the model, where no value takes its place."""
        node = self.unobserved.owner
        made: TensorVariable = node.clone().outputs[node.outputs.index(self.unobserved)]
        return made

    def check(self, model: pm.Model) -> None:
        """Refuse terms of a model that depend on responses that are missing, and one without any response.

        Raises
        ------
        StructureError
            The message names them.
        """
        if self.missing.all():
            raise StructureError(missing_labels(self.missing, f"Values of {self.name!r}"))
        terms = [term for term in (*model.basic_RVs, *model.potentials) if term is not self.unobserved]
        if dependent := [term for term in terms if self.unobserved in ancestors([term])]:
            raise StructureError(
                f"Responses of {self.name!r} are missing, and {listing(dependent)} depends on them. They are left out "
                "of a fit, so that no term of the model but a Deterministic may depend on them. Take it out of the "
                f"model, or leave out the rows where {self.name!r} is missing."
            )


def missing_responses(model: pm.Model) -> dict[TensorVariable, MissingResponses]:
    """Find the observed variables of a model that have missing responses, by the variable of the rows that have one.

    Raises
    ------
    StructureError
        If one has several axes.
    """
    found = {}
    observed = {rv.name: rv for rv in model.observed_RVs}
    for rv in model.free_RVs:
        name = rv.name.removesuffix("_unobserved")
        if name == rv.name or f"{name}_observed" not in observed or name not in model.named_vars:
            continue
        # PyMC puts the unobserved values where a mask says. One value has its shape specified before.
        behind = list(ancestors([model[name]]))
        nodes = [each.owner for each in behind if each.owner]
        alike = {rv, *(node.outputs[0] for node in nodes if isinstance(node.op, SpecifyShape) and rv in node.inputs)}
        setters = [node for node in nodes if not alike.isdisjoint(node.inputs)]
        masks = [v.data for node in setters for v in node.inputs if isinstance(v, Constant) and v.type.dtype == "bool"]
        if not masks:
            continue
        (missing,) = masks
        if missing.ndim != 1:
            raise StructureError(
                f"{name!r} is observed with shape {missing.shape}, but must have one label for each point, in one "
                f"axis.{to_one_axis(missing.shape)}"
            )
        own = observed[f"{name}_observed"]
        found[own] = MissingResponses(name, own, rv, missing, _whole(own, ~missing, name))
    return found


def unobserved_responses(model: pm.Model) -> frozenset[TensorVariable]:
    """Return the free variables of a model that are responses which are missing."""
    return frozenset(each.unobserved for each in missing_responses(model).values())


def _whole(observed: TensorVariable, mask: NDArray[np.bool_], name: str) -> TensorVariable:
    """Return the random variable of all rows of which one is some, or itself if its parameters have no rows."""
    node = observed.owner
    op = node.op
    if isinstance(op, PartialObservedRV):  # of mixtures and others that are made of several random variables
        inner = node.inputs[0].owner
        whole = inner.clone().outputs[inner.outputs.index(node.inputs[0])]
        whole.name = name
        return cast(TensorVariable, whole)
    if not isinstance(op, RandomVariable):
        return observed
    parameters = op.dist_params(node)
    whole = [_uncut(each, mask) for each in parameters]
    if all(a is b for a, b in zip(parameters, whole, strict=True)):
        return observed
    made: TensorVariable = op.make_node(op.rng_param(node), None, *whole).outputs[node.outputs.index(observed)]
    made.name = name
    return made


def _uncut(parameter: Variable, mask: NDArray[np.bool_]) -> Variable:
    """Return what a parameter was before its rows were selected, which may all have the first one."""
    node = parameter.owner
    if node is None:
        return parameter
    if isinstance(node.op, DimShuffle) and node.op.new_order[:1] == ("x",):
        first = node.inputs[0].owner
        if first is not None and isinstance(first.op, Subtensor) and first.inputs[0].type.shape[:1] == (1,):
            return first.inputs[0]
    if not isinstance(node.op, AdvancedSubtensor):
        return parameter
    source, *index = node.inputs
    same = [isinstance(each, Constant) and np.array_equal(each.data, mask) for each in index]
    return source if same == [True] else parameter
