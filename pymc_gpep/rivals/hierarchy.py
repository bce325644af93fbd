"""Hyperparameters in two groups: children, in the prior of the latent values, and parents, in priors of children."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.basic import transformed_conditional_logp
from pymc.pytensorf import compile as compile_random
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import INTERPRETED, flat, graph_function, slopes_of
from pymc_gpep.reading.classifier import GPClassifier


class Hierarchy:
    """Groups of hyperparameters. The prior of the latent values depends directly on children, but not on parents.

    Parameters
    ----------
    classifier : GPClassifier
    data : mapping
        Data of the model → constants that replace them.

    Attributes
    ----------
    children, parents : list of str
        Names of the hyperparameters.

    Raises
    ------
    StructureError
        If no hyperparameter is a child. If the model has further terms in addition to the priors of the hyperparameters
        and the likelihood. Draws from the priors would ignore them.
    """

    def __init__(self, classifier: GPClassifier, data: Mapping[Variable, Variable]) -> None:
        model = classifier.model
        others = [*model.potentials, *(rv for rv in model.observed_RVs if rv not in classifier.observed)]
        if others:
            raise StructureError(
                "The model has terms in addition to the likelihood and the priors of the hyperparameters: "
                f"{listing(others)}. Draws from the priors would ignore these terms. Choose another hyper."
            )
        rvs = classifier.hyperparameters
        direct = set(
            ancestors([classifier.prior.covariances(), classifier.prior.mean(), classifier.parameters], blockers=rvs)
        )
        self._children = [rv for rv in rvs if rv in direct]
        self._parents = [rv for rv in rvs if rv not in direct]
        self.children, self.parents = ([rv.name for rv in of] for of in (self._children, self._parents))
        if not self._children:
            raise StructureError(
                "The prior of the latent values depends on none of the hyperparameters "
                f"({', '.join(self.parents) or 'none'}). Choose another hyper."
            )
        self._model, self._data = model, data
        self._conditional = self._compile_conditional()

    def sampler(self, random_seed: int) -> "ChildSampler":
        """Return a sampler of the children from their priors given the parents."""
        given = {rv: rv.type(rv.name) for rv in self._parents}
        outputs = graph_replace(self._children, {**given, **self._data}, strict=False)
        function = compile_random(
            list(given.values()), outputs, random_seed=random_seed, mode=INTERPRETED, on_unused_input="ignore"
        )
        return ChildSampler(function, self.parents, self.children)

    def _compile_conditional(self) -> Any:
        model = self._model
        natural = {rv: rv.type(rv.name) for rv in self._children}
        unconstrained = {rv: model.rvs_to_values[rv] for rv in self._parents}
        terms = transformed_conditional_logp(
            [*natural, *unconstrained],
            rvs_to_values={**natural, **unconstrained},
            rvs_to_transforms=dict.fromkeys(natural) | {rv: model.rvs_to_transforms[rv] for rv in unconstrained},
        )
        value = pt.add(pt.constant(0.0), *(term.sum() for term in terms))
        inputs = list(unconstrained.values())
        outputs = graph_replace([value, flat(slopes_of(value, inputs))], dict(self._data), strict=False)
        return graph_function(model, [*inputs, *natural.values()], outputs)

    @property
    def joint(self) -> list[set[str]]:
        """Sets of names of children that are dependent given their parents.

        A set contains one variable with dependent entries, or two variables if the prior of one depends on the other.
        """
        sets = [{rv.name} for rv in self._children if rv.owner.op.ndim_supp > 0]
        for rv in self._children:
            above = set(ancestors([rv])) - {rv}
            sets += [{rv.name, other.name} for other in self._children if other in above]
        return sets

    @property
    def parent_values(self) -> list[str]:
        """Names of the parents' value variables."""
        return [self._model.rvs_to_values[rv].name for rv in self._parents]

    def conditional(self, parents: Sequence[Any], children: Mapping[str, Any]) -> tuple[float, Array]:
        """Return the log density of the parents given the children, up to a constant, and its flat gradient.

        Parameters
        ----------
        parents : sequence of array
            Values of the parents' value variables, unconstrained.
        children : mapping
            Children by name, on their natural scale.
        """
        value, slopes = self._conditional(*parents, *(children[name] for name in self.children))
        return float(value), np.asarray(slopes)


class ChildSampler:
    """Sampler of the children of a `Hierarchy` given the parents. All calls share a random number stream."""

    def __init__(self, function: Any, parents: Sequence[str], children: Sequence[str]) -> None:
        self._function, self._parents, self._children = function, parents, children

    def __call__(self, parents: Mapping[str, Any], count: int) -> list[dict[str, Array]]:
        """Return `count` draws of the children (see `Hierarchy`) by name, on their natural scale.

        Raises
        ------
        StructureError
            If a prior is improper.
        """
        given = [np.asarray(parents[name], dtype=np.float64) for name in self._parents]
        try:
            return [dict(zip(self._children, self._function(*given), strict=True)) for _ in range(count)]
        except NotImplementedError:
            raise StructureError(
                f"The priors of {', '.join(self._children)} cannot all be sampled. Give these variables proper "
                "priors, or choose another hyper."
            ) from None
