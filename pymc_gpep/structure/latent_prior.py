"""The contract of a Gaussian prior of latent functions as it is read from a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.structure.integrated_variables import IntegratedVariables
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.missing_responses import unobserved_responses
from pymc_gpep.structure.recipes import Recipe, why_no_recipe
from pymc_gpep.structure.sampled_values import SampledValues


class RowsOfNormals(NamedTuple):
    """Latent functions at m rows, f = m + J z + e, with the standard normals z of a model."""

    rows: Coefficients
    """J, (cm, q)."""
    beside: Array
    """Variance (c, m) of e, which no row of the model knows."""
    mean: Array
    """m, (c, m)."""


class RowsBeside(Protocol):
    """Effects at rows of a table, whose first columns are the inputs of the processes."""

    n_effects: int
    """Number of standard normals, p."""

    @property
    def takes(self) -> list[str]:
        """Names of data of the model that say what new rows are."""

    @property
    def columns(self) -> list[str]:
        """Name of each column of the table."""

    def moments(self, x: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        """Return mean (1, B) and coefficients J (p, B) at rows of a table, in terms of the model's random variables."""

    def table(self) -> Array:
        """Return the table (n, columns) of the model's own rows."""

    def new_rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike]) -> Array:
        """Return the table (m, columns) of new rows, from inputs of the processes and data of the model by name."""

    def check(self, x: Array, first: int = 0) -> None:
        """Refuse rows of a table that the model does not know, counted from a `first` row."""

    def check_names(self, given: Sequence[str]) -> None:
        """Refuse names of the columns of a table of which one stands where the model has other data."""


class Elsewhere(ABC):
    """Prior moments of latent functions at new rows, as a function of the hyperparameters.

    Attributes
    ----------
    takes : collection of str
        Names of data of the model that say what new rows are.
    """

    takes: Collection[str] = ()

    @abstractmethod
    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        """Return new rows, which have a length and slices, from what a user gives: inputs, or data by name.

        With `new_levels`, data may name levels of groups that the model does not have.

        Raises
        ------
        ValueError
            If what is given does not fit the model.
        TypeError
            If nothing is given.
        """

    def missing_rows(self) -> Any:
        """Return the rows of the model whose responses are missing, as `rows` returns others.

        Raises
        ------
        ValueError
            If all rows have a response.
        """
        raise ValueError("All rows of the model have a response, so that there are no missing ones to predict.")

    @abstractmethod
    def __call__(self, point: PointType, x: Any) -> tuple[Array, Array, Array]:
        """Return moments at m new rows, given values of the value variables.

        Covariance with the rows of the model (1 or c, m, n), variance (1 or c, m) and mean (c, m).
        """

    @property
    @abstractmethod
    def inputs(self) -> Array:
        """Inputs of the model, (n, d)."""

    def by_normals(self, point: PointType, x: Any) -> RowsOfNormals:
        """Return latent functions at m new rows by the standard normals of the model, given value variables.

        Raises
        ------
        TypeError
            If latent functions are not made of few standard normals.
        """
        raise TypeError(f"{type(self).__name__} knows no coefficients of standard normals.")


class There(NamedTuple):
    """New rows at given hyperparameters, as posteriors ask for them."""

    elsewhere: Elsewhere
    point: PointType
    """Values of the value variables."""
    x: Any
    """The rows, as `Elsewhere.rows` returns them."""

    def moments(self) -> tuple[Array, Array, Array]:
        """Return prior moments, see `Elsewhere`."""
        return self.elsewhere(self.point, self.x)

    def by_normals(self) -> RowsOfNormals:
        """Return coefficients of standard normals, see `Elsewhere`."""
        return self.elsewhere.by_normals(self.point, self.x)


class LatentPrior(ABC):
    """The prior of c latent functions at n points, as a function of hyperparameters.

    Expressions are in terms of the random variables of the model; `model.replace_rvs_by_values` makes them expressions
    of its value variables. They follow the data of the model (`pm.set_data`); the counts, being numbers, do not.

    Attributes
    ----------
    model : pm.Model
    n_points : int
        n.
    n_functions : int
        c.
    latents : tuple of LatentGP
        The Gaussian processes that the latent functions are. A StructureError says so where they are something else.
    processes : tuple of LatentGP
        The Gaussian processes among what is integrated.
    recipes : mapping of TensorVariable to Recipe
        Integrated variables outside of Gaussian processes, and what they are made of.
    kept : mapping of TensorVariable to str
        Gaussian variables that stay hyperparameters, and why.
    """

    model: pm.Model
    n_points: int
    n_functions: int
    latents: tuple[LatentGP, ...]
    processes: tuple[LatentGP, ...]
    recipes: Mapping[TensorVariable, Recipe]
    kept: Mapping[TensorVariable, str]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: it never changes, and its expressions belong to the model."""
        return self

    @property
    @abstractmethod
    def integrated(self) -> tuple[TensorVariable, ...]:
        """Free random variables that are integrated out."""

    @property
    @abstractmethod
    def held(self) -> tuple[TensorVariable, ...]:
        """Deterministics that hold values of Gaussian processes, which draws give so that no graph computes them."""

    @cached_property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        """All free random variables that the model had when it was read, and that are not integrated.

        Responses that are missing do not count.
        """
        others = {*self.integrated, *unobserved_responses(self.model)}
        return tuple(rv for rv in self.model.free_RVs if rv not in others)

    @property
    @abstractmethod
    def predictor(self) -> tuple[TensorVariable, ...]:
        """The argument of the likelihood, and means of integrated variables, as far as these are not such variables."""

    @property
    @abstractmethod
    def sources(self) -> frozenset[Variable]:
        """Integrated variables as the argument of the likelihood has them: latent values of processes, and others."""

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Sentences that say why variables stay hyperparameters, by name, in the order of the model."""
        behind = set(ancestors(list(self.predictor), blockers=self.sources))
        found = {}
        for rv in self.hyperparameters:
            if rv in self.kept:
                found[str(rv.name)] = f"{rv.name!r} stays a hyperparameter: {self.kept[rv]}."
            elif rv in behind and (why := why_no_recipe(rv, self.model)):
                found[str(rv.name)] = why
        return found

    @property
    @abstractmethod
    def inputs(self) -> list[str]:
        """Names of the data (`pm.Data`) that the covariances are computed from."""

    @abstractmethod
    def covariance(self) -> TensorVariable:
        """Return the prior covariance, (n, n) if all functions share it, else (c, n, n) in their order."""

    def covariances(self) -> TensorVariable:
        """Return `covariance` as matrices of functions, (1, n, n) if all share one, else (c, n, n)."""
        return pt.atleast_3d(self.covariance(), left=True)

    @abstractmethod
    def mean(self) -> TensorVariable:
        """Return the prior mean, (c, n) in the order of the functions."""

    @abstractmethod
    def latent_values(self) -> TensorVariable:
        """Return the latent values, (c, n) in the order of the functions."""

    @property
    def arrays(self) -> Mapping[type[DensePrior], Callable[[], TensorVariable]]:
        """Types of priors and what makes their arrays, the one that suits the size of the problem first.

        An array has three axes. Each approximation that sees this prior has to find a type whose form it takes. All of
        them take that of `DensePrior`.
        """
        return {DensePrior: self.covariances}

    def bound(
        self, prior_type: type[DensePrior], data: Mapping[Variable, Variable]
    ) -> tuple[Any, TensorVariable] | None:
        """Return what makes priors of one of `arrays`' types, with what data fix of it, and the array that this takes.

        None where data fix nothing of it.
        """
        return None

    @property
    def n_normals(self) -> int:
        """How many standard normals the latent functions are made of, q."""
        return self.n_functions * self.n_points

    def roots(self) -> TensorVariable | None:
        """Return J (c, n, q) of f = m + J z with independent standard normals z.

        None where J is the Cholesky factor of the covariance, which those compute that need it.
        """
        return None

    def supported(self) -> TensorVariable | None:
        """Return whether the model's density of integrated variables is positive, True or False.

        None where it is for all hyperparameters for which there is a covariance.
        """
        return None

    @abstractmethod
    def variables(self, data: Mapping[Variable, Variable]) -> IntegratedVariables:
        """Return how integrated variables are made of latent functions, with data of the model as given."""

    @property
    def sampled_type(self) -> type[Sampled]:
        """The type of the prior of what samplers move."""
        return DensePrior

    @abstractmethod
    def sampled(self, data: Mapping[Variable, Variable]) -> SampledValues:
        """Return what samplers move of the integrated variables, with data of the model as given."""

    @abstractmethod
    def elsewhere(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> Elsewhere:
        """Return the prior at new rows, with data of the model as given; `gps` made the Gaussian processes, if known.

        Raises
        ------
        ValueError
            If `gps` did not make the latent values.
        StructureError
            If `gps` are missing, and the graph of the model does not say what the prior is at other inputs.
        """

    def beside(self, inputs: TensorVariable, data: Mapping[Variable, Variable]) -> "RowsBeside | None":
        """Return effects beside the processes at any rows, with inputs (n, d) of these and data of the model as given.

        None where latent functions are the processes alone.
        """
        return None

    @property
    def effects(self) -> tuple[TensorVariable, ...]:
        """Integrated variables outside of Gaussian processes."""
        return tuple(self.recipes)

    @property
    def implicit(self) -> tuple[TensorVariable, ...]:
        """Integrated variables whose values a posterior does not hold one by one, so that fits name no moments."""
        return ()

    @property
    def singular(self) -> bool:
        """Whether covariances of latent values may be singular, as those of few effects are."""
        return False

    @property
    def described(self) -> str:
        """Sentences that name what was integrated, and what not; empty where it is all latent values."""
        return " ".join(self.reasons.values())
