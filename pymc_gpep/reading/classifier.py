"""A model that was read: the prior of its latent functions, its likelihood, its observations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.latent.missing_responses import MissingResponses
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.processes.processes import GPModel
from pymc_gpep.recipes import why_no_recipe
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.sums.row_groups import RowGroups


@dataclass(frozen=True, eq=False)
class GPClassifier:
    """The kind of a model, read from its graph: latent functions with a Gaussian prior, and observations given them.

    Latent functions are in the order in which the likelihood takes them.

    Attributes
    ----------
    prior : LatentPrior
        The prior of the latent functions.
    likelihood_model : Likelihood
        The likelihood of the observations.
    observed : tuple of TensorVariable, shape (n,)
        The observed random variable, or several whose rows stand one after another.
    labels : TensorVariable, shape (n,), or (n, c) where there is a number for each class
        Observations: a constant, or the shared variable of `pm.Data`; numbers of all variables where there are several.
    parameters : TensorVariable, shape (p, n)
        Parameters of the likelihood besides latent values, a function of hyperparameters; p is 0 for most.
    given : TensorVariable, shape (p, rows) or (p, 1), or None
        The same parameters as they stand in the model at all rows, in terms of its data; None without parameters.
    class_dim, point_dim : str or None
        Names of the axes, where the model names them (`dims`).
    class_labels : tuple or None
        Coordinates of `class_dim`, in the order of the classes 0..c-1.
    coords : dict of str to tuple or None
        Coordinates of the model when this was read. Later `pm.set_data(..., coords=)` does not change them.
    asked : tuple of str
        Names of Gaussian variables that stay hyperparameters because a user said so.
    missing : MissingResponses or None
        Where responses of some rows are missing: points are then the rows that have one.
    rows : slice
        Places of its rows among all that the prior has.
    argument : TensorVariable or None
        The argument of the likelihood at all rows of the data; None of several observed variables.
    parts : tuple of GPClassifier
        The classifier of each of several observed variables; empty where there is one.
    groups : RowGroups or None
        Groups of rows with the same latent value, whose first rows are the points of the prior. None where the prior
        has all rows.

    Examples
    --------
    >>> read_classifier(model).n_points
    30
    """

    prior: LatentPrior
    likelihood_model: Likelihood
    observed: tuple[TensorVariable, ...]
    labels: TensorVariable
    parameters: TensorVariable
    given: TensorVariable | None
    unbounded: TensorVariable | None
    class_dim: str | None
    point_dim: str | None
    class_labels: tuple[object, ...] | None
    coords: Mapping[str, tuple[Any, ...] | None]
    rows: slice
    asked: tuple[str, ...] = ()
    missing: MissingResponses | None = None
    argument: TensorVariable | None = None
    parts: tuple["GPClassifier", ...] = ()
    groups: RowGroups | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the classifier itself, since it does not change and its expressions belong to the model."""
        return self

    @property
    def model(self) -> pm.Model:
        """The model."""
        return self.prior.model

    @property
    def n_points(self) -> int:
        """Number of points, n."""
        return self.prior.n_points if self.groups is None else len(self.groups.of)

    @property
    def at_points(self) -> tuple[TensorVariable, TensorVariable, Likelihood]:
        """Observations, parameters and likelihood at the points of the prior, of groups where there are any."""
        if self.groups is None:
            return self.labels, self.parameters, self.likelihood_model
        likelihood, labels, parameters = self.groups.points
        return pt.constant(labels), parameters, likelihood

    @property
    def n_functions(self) -> int:
        """Number of latent functions, c."""
        return self.prior.n_functions

    @property
    def n_rows(self) -> int:
        """Number of rows of the data, those without a response among them."""
        return self.rows.stop - self.rows.start if self.missing is None else self.missing.n_rows

    @property
    def each(self) -> tuple["GPClassifier", ...]:
        """The classifier of each observed variable: itself, where there is one."""
        return self.parts or (self,)

    @property
    def response(self) -> str:
        """Name that the user gave to what was observed; of several, their names together."""
        if self.parts:
            return "_and_".join(part.response for part in self.parts)
        return str(self.observed[0].name) if self.missing is None else self.missing.name

    @property
    def unobserved(self) -> list[TensorVariable]:
        """Random variables of responses that are missing."""
        return [part.missing.unobserved for part in self.each if part.missing is not None]

    def part(self, response: str | None, asks: str) -> "GPClassifier":
        """Return the classifier of an observed variable, whose prior is that of this one at the rows of the variable.

        Raises
        ------
        ValueError
            If there is no such variable, or if there are several and none is named; `asks` is what wants the name.
        """
        found = [each for each in self.each if response in (None, each.response)]
        if len(found) != 1:
            names = ", ".join(repr(each.response) for each in self.each)
            given = "it has to be said of which" if response is None else f"the model has no {response!r}"
            meant = did_you_mean([response], [each.response for each in self.each])
            raise ValueError(
                f"{asks} is of one observed variable, and {given}. Name one: response=... of {names}.{meant}"
            )
        (own,) = found
        if not self.parts:
            return self
        assert isinstance(self.prior, LatentSum)
        assert own.argument is not None
        fitted = None if own.missing is None else own.missing.fitted
        prior = replace(self.prior, everywhere=own.argument, fitted=fitted, n_rows=own.n_rows)
        return replace(own, prior=prior, groups=self.groups)

    def responses_of_points(self) -> NDArray[np.str_] | None:
        """Return the name of what was observed at each point (n,), where that is one of several variables."""
        if not self.parts:
            return None
        return np.concatenate([np.repeat(part.response, part.rows.stop - part.rows.start) for part in self.parts])

    def coords_of_points(self) -> NDArray[Any] | None:
        """Return the coordinates (n,) that the model has for its points."""
        labels = self.coords.get(self.point_dim) if self.point_dim else None
        if labels is None:
            return None
        return np.asarray(labels) if self.missing is None else np.asarray(labels)[self.missing.fitted]

    @property
    def latents(self) -> tuple[LatentGP, ...]:
        self.check_one()
        return self.prior.latents

    def check_one(self) -> None:
        """Raise a StructureError if there are several observed variables."""
        if self.parts:
            names = " and ".join(repr(each.response) for each in self.each)
            raise StructureError(
                f"This works on one observed variable, and the model has {names}. Methods on all rows "
                'together fit several: "ep", "laplace", "kl" and their like. To fit one, with others as terms '
                f"beside it, name it: likelihood={self.each[0].response!r}."
            )

    @property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        return self.prior.hyperparameters

    @property
    def learned_parameters(self) -> list[TensorVariable]:
        """Hyperparameters that parameters of the likelihood depend on."""
        behind = set(ancestors([self.parameters]))
        return [each for each in self.hyperparameters if each in behind]

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Return reasons by name of variable: those of the prior, and of further parameters of the likelihood.

        Thresholds have an order or no density, and say nothing.
        """
        found = self.prior.reasons
        for rv in self.learned_parameters:
            thresholds = self.model.rvs_to_transforms[rv] is not None or isinstance(rv.owner.op, FlatRV)
            if rv.name not in found and not thresholds and (why := why_no_recipe(rv, self.model)):
                found = {**found, str(rv.name): why}
        return found

    @property
    def described(self) -> str:
        others = [why for name, why in self.reasons.items() if name not in self.prior.reasons]
        return " ".join(filter(None, [self.prior.described, *others]))

    @property
    def n_classes(self) -> int:
        """Number of classes that a label may be."""
        return self.likelihood_model.n_classes(self.n_functions)

    @property
    def observes_classes(self) -> bool:
        """Whether an observation is one of the classes."""
        return self.likelihood_model.observes_classes(self.n_functions)

    @property
    def class_names(self) -> list[object]:
        """Return the names of the classes: the labels of the model, or numbers."""
        return list(self.class_labels or range(self.n_classes))

    @property
    def function_dims(self) -> tuple[str, ...]:
        """Name of the axis of latent functions; none where a point has one function and no axis for it."""
        return (self.class_dim or "class",) if self.likelihood_model.function_axis else ()

    @property
    def kind(self) -> str:
        """Name of the likelihood."""
        return self.likelihood_model.name


type ReadModel = GPClassifier | GPModel
"""A model as it was read: with its likelihood, or by its Gaussian processes alone."""
