"""The contracts of a prior of latent functions: the prior, its integrated variables, its sampled values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PriorForm
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.lowered_dims import unobserved_responses
from pymc_gpep.recipes import Recipe, why_no_recipe
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.inducing import row_blocks


def known_data(model: pm.Model, expressions: Sequence[TensorVariable]) -> dict[str, SharedVariable]:
    """Return data of the model that expressions of its random variables depend on, by name."""
    behind = set(ancestors(model.replace_rvs_by_values(list(expressions)))) if expressions else set()
    return {str(v.name): v for v in model.data_vars if v in behind and isinstance(v, SharedVariable)}


class PosteriorFunctions(Protocol):
    """Latent functions at one point of the hyperparameters, for moments of variables."""

    def whitened(self) -> tuple[Array, Array]:
        """Return means and variances of the standard normals, (c, q)."""

    def marginals(self) -> tuple[Array, Array]:
        """Return means and variances (c, n) of the latent values."""

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return the covariance (c, ·, c, ·) of standard normals for functions that are `rotated`, else of values."""


class Joint:
    """A Gaussian of several variables: mean + Σ slopes · z, z with a covariance.

    Parameters
    ----------
    means : dict of str to array
        Means by name, in the shape of the variable.
    slopes : mapping of str to array (q, ...)
        Slopes by name.
    cov : array (q, q), or an operator that multiplies columns (q, s)
        Covariance of z.
    noise : mapping of str to array, optional
        Variances of independent noise of each entry.
    """

    def __init__(
        self,
        means: dict[str, Array],
        slopes: Mapping[str, Array],
        cov: Any,
        noise: Mapping[str, Array] | None = None,
    ) -> None:
        self.means, self._slopes, self._cov, self._noise = means, slopes, cov, noise

    @property
    def size(self) -> int:
        """Number of entries of z, q."""
        return len(self._cov)

    def columns(self, name: str, some: slice = slice(None)) -> Array:
        """Return the slopes of a variable, (q, size), or of some of its entries."""
        return self._slopes[name].reshape(len(self._cov), -1)[:, some]

    def combined(self, name: str, weights: Array) -> Array:
        """Return the slopes (q,) of the sum of a variable times weights."""
        return np.asarray(self.columns(name) @ weights.ravel())

    def moved(self, columns: Array) -> Array:
        """Return the covariance (q, s) of z with variables of slopes (q, s)."""
        return np.asarray(self._cov @ columns)

    def covariance(self, columns: Array) -> Array:
        """Return the covariance (s, s) of variables with slopes (q, s)."""
        return np.asarray(columns.T @ self.moved(columns))

    def variances(self) -> dict[str, Array]:
        """Return variances by name."""
        found = {}
        for name, slopes in self._slopes.items():
            flat = self.columns(name)
            variance = np.einsum("js,js->s", flat, self._cov @ flat)
            found[name] = np.maximum(variance, 0.0).reshape(slopes.shape[1:])
            if self._noise is not None:
                found[name] += self._noise[name]
        return found


class IntegratedVariables(ABC):
    """The free variables that were integrated, as functions of latent values f and of standard normals z."""

    @abstractmethod
    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        """Return draws (s, ...) of value variables, and of a prior's variables, by name.

        Parameters
        ----------
        point : dict
            Values of the value variables of the hyperparameters.
        f : array (s, c, n)
            Latent values.
        z : array (s, c, q)
            The standard normals behind them.
        """

    @abstractmethod
    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return posterior means and variances by name of value variable."""

    @abstractmethod
    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        """Return the covariance (size, size) of a flat vector in which each value variable has its place."""

    @abstractmethod
    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        """Return the function that computes the joint posterior of some variables of the model.

        Raises
        ------
        ValueError
            If a variable is not affine in integrated variables, or not in the model.
        """

    @abstractmethod
    def at_new_rows(
        self, names: Sequence[str], x: ArrayLike | None, data: Mapping[str, ArrayLike]
    ) -> Callable[[PointType, PosteriorFunctions], tuple[Joint, Mapping[str, int]]]:
        """Return the function for the posterior of variables at new inputs and data, and their row axes.

        The result has variances of entries, but no joint covariance.

        Raises
        ------
        ValueError
            See `affine`; also if a variable cannot be computed at the new rows.
        """

    @abstractmethod
    def latent_values(self, values: Mapping[str, Array]) -> Array:
        """Return latent values (s, c, n) of draws (s, ...) of variables by name."""


class SampledValues(ABC):
    """The values that samplers move in place of integrated variables, at given hyperparameters.

    They are an array x with a Gaussian prior: latent values if these have a density, else their standard normals.

    Attributes
    ----------
    shape : tuple of int
        Shape of x.
    data : mapping
        Data of the model → their replacements in all expressions.
    """

    shape: tuple[int, int]
    data: Mapping[Variable, Variable]

    @property
    @abstractmethod
    def names(self) -> Mapping[TensorVariable, TensorVariable]:
        """Variables that replace an integrated variable → the user's variable."""

    @property
    @abstractmethod
    def moments(self) -> list[TensorVariable]:
        """Expressions of the random variables of the model that make the prior."""

    @abstractmethod
    def prior(self, *moments: Array) -> Sampled:
        """Return the prior, given values of `moments`."""

    @abstractmethod
    def parts(self) -> list[TensorVariable]:
        """Return new symbols for the parts of x from which the likelihood is computed without covariance factors."""

    @abstractmethod
    def in_parts(self, outputs: Sequence[TensorVariable], parts: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return expressions in terms of these symbols in place of integrated variables.

        Raises
        ------
        StructureError
            If an expression depends on a variable other than through latent values.
        """

    @abstractmethod
    def parts_of(self, x: Array, prior: Sampled) -> list[Array]:
        """Return values of the parts of x."""

    @abstractmethod
    def slope_of(self, slopes: Sequence[Array], prior: Sampled) -> Array:
        """Return the derivative in x of a function with these derivatives in parts of x."""

    @abstractmethod
    def by_white(self, outputs: Sequence[TensorVariable], z: TensorVariable) -> list[TensorVariable]:
        """Return expressions in terms of standard normals z, in the shape of x, and of hyperparameters."""

    @abstractmethod
    def from_point(self, point: PointType, prior: Sampled, rng: np.random.Generator) -> Array:
        """Return the x of a point of the model; values that the point does not determine are drawn."""

    @abstractmethod
    def to_point(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        """Return values of the integrated variables by the names of their value variables.

        Parameters
        ----------
        point : dict
            Values of the value variables of the hyperparameters, at which the prior was computed.
        x : array
        prior : DensePrior or NormalsPrior
        """


class RowsOfNormals(NamedTuple):
    """Latent functions at m rows, f = m + J z + e, with the standard normals z of a model."""

    rows: Coefficients
    """J, (cm, q)."""
    residual_covariance: Array
    """Covariance (m, c, c) of e between the functions of each row; e is independent of all rows of the model."""
    mean: Array
    """m, (c, m)."""

    @classmethod
    def exact(cls, rows: Coefficients, mean: Array) -> "RowsOfNormals":
        """Return rows without e."""
        return cls(rows, np.zeros((mean.shape[1], len(mean), len(mean))), mean)


class EffectRows(Protocol):
    """Effects at rows of a table whose first columns are the inputs of the processes."""

    n_effects: int
    """Number of standard normals, p."""

    @property
    def takes(self) -> list[str]:
        """Names of data of the model that define new rows."""

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
        """Refuse rows of a table with levels outside the model; row numbers begin at `first`."""

    def check_names(self, given: Sequence[str]) -> None:
        """Refuse column names of a table if the name of model data is at another position."""


class PriorAtNewRows(ABC):
    """Prior moments of latent functions at new rows, as a function of the hyperparameters.

    Attributes
    ----------
    takes : collection of str
        Names of data of the model that define new rows.
    """

    takes: Collection[str] = ()

    @abstractmethod
    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        """Return new rows, which have a length and slices, from inputs or from data by name.

        With `new_levels`, data may have levels outside the model.

        Raises
        ------
        ValueError
            If the inputs or data do not match the model.
        TypeError
            If neither inputs nor data are given.
        """

    def missing_rows(self) -> Any:
        """Return the rows of the model with missing responses, in the form of `rows`.

        Raises
        ------
        ValueError
            If all rows have a response.
        """
        raise ValueError("All rows of the model have a response: no row is missing. Leave out missing=True.")

    @abstractmethod
    def __call__(self, point: PointType, x: Any) -> tuple[Array, Array, Array]:
        """Return moments at m new rows, given values of the value variables.

        Covariance with the rows of the model (1 or c, m, n), variance (1 or c, m) and mean (c, m).
        """

    def of_new_levels(self, point: PointType, x: Any, points: NDArray[np.intp]) -> Array | None:
        """Return covariances (c, m, s) of new levels, by placeholders, with points (s,); None without new levels."""
        return None

    def between(self, point: PointType, x: Any, points: NDArray[np.intp]) -> Array:
        """Return prior covariances (1 or c, m, s) with points (s,), for effects that are independent a priori."""
        return self(point, x)[0][:, :, points]

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
        raise TypeError(f"{type(self).__name__} cannot express its rows by standard normals. Predict by moments.")

    def at(self, point: PointType, x: Any, by_normals: bool) -> tuple[Any, Array, Array]:
        """Return m new rows in the form that a prior needs: by standard normals, or by moments."""
        return self.by_normals(point, x) if by_normals else self(point, x)

    def draws(
        self, point: PointType, x: Any, prior: PriorForm, rng: np.random.Generator, f: Array, z: Array
    ) -> Iterator[tuple[slice, Array]]:
        """Yield draws (count, c, B) at new rows, part by part, given draws f (count, c, n) at the data and their z."""
        for rows in row_blocks(len(x), f.shape[1] * max(prior.size, len(f))):
            yield rows, prior.draw_at(rng, f, z, *self.at(point, x[rows], prior.by_normals))


class LatentPrior(ABC):
    """The prior of c latent functions at n points, as a function of hyperparameters.

    Expressions are in terms of the random variables of the model; `model.replace_rvs_by_values` makes them expressions
    of its value variables. They follow changes of the data (`pm.set_data`). The counts of points and functions do not.

    Attributes
    ----------
    model : pm.Model
    n_points : int
        n.
    n_functions : int
        c.
    latents : tuple of LatentGP
        The Gaussian processes of the latent functions. A StructureError is raised if the functions are not only
        processes.
    processes : tuple of LatentGP
        The Gaussian processes among integrated variables.
    recipes : mapping of TensorVariable to Recipe
        Integrated variables outside of Gaussian processes, with their recipes from standard normals.
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
    samples_values: ClassVar[bool] = True
    """Whether samplers move latent values, and not the standard normals behind them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: it never changes, and its expressions belong to the model."""
        return self

    @property
    @abstractmethod
    def integrated(self) -> tuple[TensorVariable, ...]:
        """Free random variables that are integrated out."""

    @property
    @abstractmethod
    def held(self) -> tuple[TensorVariable, ...]:
        """Deterministics with values of Gaussian processes. Draws contain the values, so no graph computes them."""

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
        """The argument of the likelihood, and means of integrated variables unless themselves integrated."""

    @property
    @abstractmethod
    def sources(self) -> frozenset[Variable]:
        """Integrated variables in the argument of the likelihood: latent values of processes, and effects."""

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Reasons why variables stay hyperparameters, by name, in the order of the model."""
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
    def flat(self) -> tuple[int, ...]:
        """Positions of coefficients with a flat prior among the standard normals of the latent functions."""
        return ()

    @property
    def bounded_variables(self) -> tuple[TensorVariable, ...]:
        """Integrated uniform variables whose bounds are taken to be without effect."""
        return ()

    @property
    def arrays(self) -> Mapping[Any, Callable[[], TensorVariable]]:
        """Types of priors and the makers of their arrays, the most suitable for the problem's size first.

        An array has three axes. Each approximation uses the first type that it supports. All support `DensePrior`,
        which flat priors do not have.
        """
        return {DensePrior: self.covariances}

    @cached_property
    def made(self) -> dict[str, Any]:
        """Cache of objects derived from the prior, by name."""
        return {}

    def bound(
        self, prior_type: type[PriorForm], data: Mapping[Variable, Variable]
    ) -> tuple[Any, TensorVariable] | None:
        """Return the maker of priors of a type in `arrays`, bound to the data, and the array that it takes.

        None if the data do not determine any part of the prior.
        """
        return None

    @property
    def n_normals(self) -> int:
        """Number of standard normals of the latent functions, q."""
        return self.n_functions * self.n_points

    def roots(self) -> TensorVariable | None:
        """Return J (c, n, q) of f = m + J z with independent standard normals z.

        None if J is the Cholesky factor of the covariance, which its users compute.
        """
        return None

    def supported(self) -> TensorVariable | None:
        """Return whether the model's density of integrated variables is positive, True or False.

        None if it is positive for all hyperparameters with a proper covariance.
        """
        return None

    @abstractmethod
    def variables(self, data: Mapping[Variable, Variable]) -> IntegratedVariables:
        """Return integrated variables as functions of latent functions, with the given data of the model."""

    @abstractmethod
    def sampled(self, data: Mapping[Variable, Variable]) -> SampledValues:
        """Return the values that samplers move for the integrated variables, with the given data of the model."""

    @abstractmethod
    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> PriorAtNewRows:
        """Return the prior at new rows, with the given data of the model and Gaussian processes.

        Raises
        ------
        ValueError
            If `gps` are not the processes of the latent values.
        StructureError
            If `gps` are missing, and the graph of the model does not determine the prior at new inputs.
        """

    def effect_rows(self, inputs: TensorVariable, data: Mapping[Variable, Variable]) -> "EffectRows | None":
        """Return the effects in addition to the processes at any rows, with inputs (n, d) and data of the model.

        None if the latent functions are only processes.
        """
        return None

    @property
    def effects(self) -> tuple[TensorVariable, ...]:
        """Integrated variables outside of Gaussian processes."""
        return tuple(self.recipes)

    @property
    def implicit(self) -> tuple[TensorVariable, ...]:
        """Integrated variables without separate values in a posterior, so that fits return no moments."""
        return ()

    @property
    def singular(self) -> bool:
        """Whether covariances of latent values may be singular, as for few effects."""
        return False

    @property
    def described(self) -> str:
        """Sentences that name integrated variables and kept variables; empty if only latent values are integrated."""
        return " ".join(self.reasons.values())
