"""Base classes for a prior of latent functions, for its integrated variables, and for its values in samplers."""

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
    """Return the data of the model on which expressions depend, by name."""
    behind = set(ancestors(model.replace_rvs_by_values(list(expressions)))) if expressions else set()
    return {str(v.name): v for v in model.data_vars if v in behind and isinstance(v, SharedVariable)}


class PosteriorFunctions(Protocol):
    """Posterior of latent functions at fixed hyperparameters, for moments of variables."""

    def whitened(self) -> tuple[Array, Array]:
        """Return means and variances of the standard normals, (c, q)."""

    def marginals(self) -> tuple[Array, Array]:
        """Return means and variances (c, n) of the latent values."""

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return a covariance (c, ·, c, ·), of standard normals for functions in the mask, else of latent values."""


class Joint:
    """Joint Gaussian of several variables, mean + Σ slopes · z + noise. z has mean 0 and covariance `cov`.

    Parameters
    ----------
    means : dict of str to array
        Means by name, each in the shape of the variable.
    slopes : mapping of str to array (q, ...)
        Slopes by name.
    cov : array (q, q), or an operator that multiplies columns (q, s)
        Covariance of z.
    noise : mapping of str to array, optional
        Variances of independent noise by name, one for each entry.
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
        """Return the slopes (q, size) of a variable, or of a slice of its entries."""
        return self._slopes[name].reshape(len(self._cov), -1)[:, some]

    def combined(self, name: str, weights: Array) -> Array:
        """Return the slopes (q,) of the sum of a variable's entries times weights."""
        return np.asarray(self.columns(name) @ weights.ravel())

    def moved(self, columns: Array) -> Array:
        """Return the covariance (q, s) of z with s linear functions of z with slopes `columns` (q, s)."""
        return np.asarray(self._cov @ columns)

    def covariance(self, columns: Array) -> Array:
        """Return the covariance (s, s) of s linear functions of z with slopes `columns` (q, s)."""
        return np.asarray(columns.T @ self.moved(columns))

    def variances(self) -> dict[str, Array]:
        """Return the variances of all entries, by name of variable."""
        found = {}
        for name, slopes in self._slopes.items():
            flat = self.columns(name)
            variance = np.einsum("js,js->s", flat, self._cov @ flat)
            found[name] = np.maximum(variance, 0.0).reshape(slopes.shape[1:])
            if self._noise is not None:
                found[name] += self._noise[name]
        return found


class IntegratedVariables(ABC):
    """Free variables of a model that are integrated out, computed from latent values f or standard normals z."""

    @abstractmethod
    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        """Return draws (s, ...) of value variables, and of variables in the prior, by name.

        Parameters
        ----------
        point : dict
            Values of the value variables of the hyperparameters.
        f : array (s, c, n)
            Latent values.
        z : array (s, c, q)
            Standard normals from which the latent values are computed.
        """

    @abstractmethod
    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return posterior means and variances, by name of value variable."""

    @abstractmethod
    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        """Return the posterior covariance (size, size) of the entries of value variables. `places` are their slices."""

    @abstractmethod
    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        """Return a function that computes the joint posterior of these variables of the model.

        Raises
        ------
        ValueError
            If a variable is not in the model, or is not affine in integrated variables.
        """

    @abstractmethod
    def at_new_rows(
        self, names: Sequence[str], x: ArrayLike | None, data: Mapping[str, ArrayLike]
    ) -> Callable[[PointType, PosteriorFunctions], tuple[Joint, Mapping[str, int]]]:
        """Return a function that computes the posterior of these variables at new inputs and data.

        The function also returns the axis over rows of each variable. Its `Joint` has variances of entries, but no
        joint covariance.

        Raises
        ------
        ValueError
            If `affine` raises a ValueError, or if a variable cannot be computed at the new rows.
        """

    @abstractmethod
    def latent_values(self, values: Mapping[str, Array]) -> Array:
        """Return latent values (s, c, n) for draws (s, ...) of variables by name."""


class SampledValues(ABC):
    """Values x that samplers update in place of integrated variables, at given hyperparameters.

    The prior of x is Gaussian. If latent values have a density, x are latent values; else x are their standard normals.

    Attributes
    ----------
    shape : tuple of int
        Shape of x.
    data : mapping
        Replacements of data of the model, in all expressions.
    """

    shape: tuple[int, int]
    data: Mapping[Variable, Variable]

    @property
    @abstractmethod
    def names(self) -> Mapping[TensorVariable, TensorVariable]:
        """Variable with the user's name for each free variable, value variable and variable of latent values."""

    @property
    @abstractmethod
    def moments(self) -> list[TensorVariable]:
        """Expressions for the arguments of `prior`, in terms of the model's random variables."""

    @abstractmethod
    def prior(self, *moments: Array) -> Sampled:
        """Return the prior of x for values of the expressions `moments`."""

    @abstractmethod
    def parts(self) -> list[TensorVariable]:
        """Return symbols for parts of x. The likelihood of the parts needs no factor of the prior covariance."""

    @abstractmethod
    def in_parts(self, outputs: Sequence[TensorVariable], parts: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return expressions in which the symbols `parts` replace integrated variables.

        Raises
        ------
        StructureError
            If an expression depends on an integrated variable other than through latent values.
        """

    @abstractmethod
    def parts_of(self, x: Array, prior: Sampled) -> list[Array]:
        """Return the values of the parts, given x."""

    @abstractmethod
    def slope_of(self, slopes: Sequence[Array], prior: Sampled) -> Array:
        """Return the derivative of a function in x, from its derivatives in the parts."""

    @abstractmethod
    def by_white(self, outputs: Sequence[TensorVariable], z: TensorVariable) -> list[TensorVariable]:
        """Return expressions in hyperparameters and in standard normals z, in the shape of x."""

    @abstractmethod
    def from_point(self, point: PointType, prior: Sampled, rng: np.random.Generator) -> Array:
        """Return x at a point of the model. Entries of x that the point does not determine are drawn."""

    @abstractmethod
    def to_point(self, point: PointType, x: Array, prior: Sampled) -> PointType:
        """Return the values of integrated variables, by name of value variable.

        Parameters
        ----------
        point : dict
            Values of the value variables of the hyperparameters, for which the prior was computed.
        x : array
        prior : DensePrior or NormalsPrior
        """


class RowsOfNormals(NamedTuple):
    """Latent functions at m rows as functions f = mean + J z + e of the standard normals z of a model."""

    rows: Coefficients
    """Coefficients J, (cm, q)."""
    residual_covariance: Array
    """Covariance (m, c, c) of the residual e at each row. Residuals of different rows are independent."""
    mean: Array
    """Prior mean, (c, m)."""

    @classmethod
    def exact(cls, rows: Coefficients, mean: Array) -> "RowsOfNormals":
        """Return rows without residuals, f = mean + J z."""
        return cls(rows, np.zeros((mean.shape[1], len(mean), len(mean))), mean)


class EffectRows(Protocol):
    """Effects as functions of rows of a table. The first columns of the table are the inputs of the processes."""

    n_effects: int
    """Number of standard normals, p."""

    @property
    def takes(self) -> list[str]:
        """Return the names of the data of the model that define new rows."""

    @property
    def columns(self) -> list[str]:
        """Name of each column of the table."""

    def moments(self, x: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        """Return graphs of mean (1, B) and coefficients (p, B) of the effects at rows of a table."""

    def table(self) -> Array:
        """Return the table (n, columns) of the model's rows."""

    def new_rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike]) -> Array:
        """Return the table (m, columns) of new rows, given inputs of the processes and data of the model by name."""

    def check(self, x: Array, first: int = 0) -> None:
        """Raise an error if rows of a table have levels outside the model. The number of the first row is `first`."""

    def check_names(self, given: Sequence[str]) -> None:
        """Raise an error if column names of a table have names of model data at other positions than `columns`."""


class PriorAtNewRows(ABC):
    """Prior moments of latent functions at new rows, as a function of hyperparameters.

    Attributes
    ----------
    takes : collection of str
        Names of data of the model that define new rows.
    """

    takes: Collection[str] = ()

    @abstractmethod
    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        """Return new rows from inputs, or from data by name. The result has a length and can be sliced.

        If `new_levels`, data may have levels that are not in the model.

        Raises
        ------
        ValueError
            If inputs or data do not match the model.
        TypeError
            If both inputs and data are missing.
        """

    def missing_rows(self) -> Any:
        """Return the rows of the model without a response, in the form of `rows`.

        Raises
        ------
        ValueError
            If all rows have a response.
        """
        raise ValueError("All rows of the model have a response: no row is missing. Leave out missing=True.")

    @abstractmethod
    def __call__(self, point: PointType, x: Any) -> tuple[Array, Array, Array]:
        """Return prior moments at m new rows for a point with values of the value variables.

        The covariance with the rows of the model is (1 or c, m, n), the variance (1 or c, m), the mean (c, m).
        """

    def of_new_levels(self, point: PointType, x: Any, points: NDArray[np.intp]) -> Array | None:
        """Return the part of covariances (c, m, s) with points (s,) from new levels; None without new levels."""
        return None

    def between(self, point: PointType, x: Any, points: NDArray[np.intp]) -> Array:
        """Return prior covariances (1 or c, m, s) of new rows with points (s,), for independent effects."""
        return self(point, x)[0][:, :, points]

    @property
    @abstractmethod
    def inputs(self) -> Array:
        """Inputs of the model's points, (n, d)."""

    def by_normals(self, point: PointType, x: Any) -> RowsOfNormals:
        """Return latent functions at m new rows as functions of the standard normals of the model.

        Raises
        ------
        TypeError
            If the prior does not express latent functions by few standard normals.
        """
        raise TypeError(f"{type(self).__name__} cannot express its rows by standard normals. Predict by moments.")

    def at(self, point: PointType, x: Any, by_normals: bool) -> tuple[Any, Array, Array]:
        """Return m new rows in the form that a prior uses: `by_normals`, or as prior moments."""
        return self.by_normals(point, x) if by_normals else self(point, x)

    def draws(
        self, point: PointType, x: Any, prior: PriorForm, rng: np.random.Generator, f: Array, z: Array
    ) -> Iterator[tuple[slice, Array]]:
        """Yield draws (count, c, B) at blocks of new rows, given draws f (count, c, n) and z at the data."""
        for rows in row_blocks(len(x), f.shape[1] * max(prior.size, len(f))):
            yield rows, prior.draw_at(rng, f, z, *self.at(point, x[rows], prior.by_normals))


class LatentPrior(ABC):
    """Prior of c latent functions at n points, as a function of hyperparameters.

    Expressions depend on the random variables of the model. `model.replace_rvs_by_values` replaces these by value
    variables. Expressions follow changes of the data (`pm.set_data`), but the numbers of points and functions do not.

    Attributes
    ----------
    model : pm.Model
    n_points : int
        Number of points, n.
    n_functions : int
        Number of latent functions, c.
    latents : tuple of LatentGP
        Gaussian processes of the latent functions. Reading it raises a StructureError if a function is not a process.
    processes : tuple of LatentGP
        Gaussian processes among the integrated variables.
    recipes : mapping of TensorVariable to Recipe
        Recipes of the integrated variables that are not Gaussian processes.
    kept : mapping of TensorVariable to str
        Gaussian variables that stay hyperparameters, and the reasons.
    """

    model: pm.Model
    n_points: int
    n_functions: int
    latents: tuple[LatentGP, ...]
    processes: tuple[LatentGP, ...]
    recipes: Mapping[TensorVariable, Recipe]
    kept: Mapping[TensorVariable, str]
    samples_values: ClassVar[bool] = True
    """Whether samplers update latent values. If not, they update standard normals that determine the latent values."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the prior itself: it never changes, and its expressions belong to the model."""
        return self

    @property
    @abstractmethod
    def integrated(self) -> tuple[TensorVariable, ...]:
        """Free random variables that are integrated out."""

    @property
    @abstractmethod
    def held(self) -> tuple[TensorVariable, ...]:
        """Deterministics that are values of Gaussian processes. Draws include them, so no graph computes them."""

    @cached_property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        """Free random variables at the time of reading that are not integrated out, without missing responses."""
        others = {*self.integrated, *unobserved_responses(self.model)}
        return tuple(rv for rv in self.model.free_RVs if rv not in others)

    @property
    @abstractmethod
    def predictor(self) -> tuple[TensorVariable, ...]:
        """Means of integrated variables, and the argument of the likelihood unless it consists of latent values."""

    @property
    @abstractmethod
    def sources(self) -> frozenset[Variable]:
        """Integrated variables in the argument of the likelihood: latent values of processes, and effects."""

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Reasons why Gaussian variables stay hyperparameters, by name, in the order of the model."""
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
        """Names of the data (`pm.Data`) from which covariances are computed."""

    @abstractmethod
    def covariance(self) -> TensorVariable:
        """Return the prior covariance: (n, n) if all functions share it, else (c, n, n)."""

    def covariances(self) -> TensorVariable:
        """Return the prior covariance with an axis of functions: (1, n, n) if functions share it, else (c, n, n)."""
        return pt.atleast_3d(self.covariance(), left=True)

    @abstractmethod
    def mean(self) -> TensorVariable:
        """Return the prior mean, (c, n)."""

    @abstractmethod
    def latent_values(self) -> TensorVariable:
        """Return the latent values, (c, n)."""

    @property
    def flat(self) -> tuple[int, ...]:
        """Positions among the standard normals at which the prior is flat."""
        return ()

    @property
    def bounded_variables(self) -> tuple[TensorVariable, ...]:
        """Integrated uniform variables whose bounds are ignored."""
        return ()

    @property
    def arrays(self) -> Mapping[Any, Callable[[], TensorVariable]]:
        """Functions that return the array of a prior, by type of prior, in order of preference for the problem's size.

        An array has three axes. An approximation uses the first type that it supports. Every approximation supports
        `DensePrior`. Flat priors do not have this type.
        """
        return {DensePrior: self.covariances}

    @cached_property
    def made(self) -> dict[str, Any]:
        """Cache of objects that are computed from the prior, by name."""
        return {}

    def bound(
        self, prior_type: type[PriorForm], data: Mapping[Variable, Variable]
    ) -> tuple[Any, TensorVariable] | None:
        """Return a constructor of priors of a type in `arrays`, with these data, and the graph of its argument.

        None if the data determine no part of the prior.
        """
        return None

    @property
    def n_normals(self) -> int:
        """Number of standard normals of all latent functions, q."""
        return self.n_functions * self.n_points

    def roots(self) -> TensorVariable | None:
        """Return J (c, n, q) of f = m + J z with independent standard normals z.

        None if J is the Cholesky factor of the covariance. Callers compute this factor.
        """
        return None

    def supported(self) -> TensorVariable | None:
        """Return a boolean graph: whether the model's density of integrated variables is positive.

        None if the density is positive for all hyperparameters with a proper covariance.
        """
        return None

    @abstractmethod
    def variables(self, data: Mapping[Variable, Variable]) -> IntegratedVariables:
        """Return the integrated variables as functions of latent functions, with these data of the model."""

    @abstractmethod
    def sampled(self, data: Mapping[Variable, Variable]) -> SampledValues:
        """Return the values that samplers update, with these data of the model."""

    @abstractmethod
    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> PriorAtNewRows:
        """Return the prior at new rows, with these data of the model and these Gaussian processes.

        Raises
        ------
        ValueError
            If `gps` are not the processes of the latent values.
        StructureError
            If `gps` is None, and the graph of the model does not determine the prior at new inputs.
        """

    def effect_rows(self, inputs: TensorVariable, data: Mapping[Variable, Variable]) -> "EffectRows | None":
        """Return the effects that are added to the processes, at rows with inputs (n, d) and data of the model.

        None if the latent functions are processes without effects.
        """
        return None

    @property
    def effects(self) -> tuple[TensorVariable, ...]:
        """Integrated variables that are not Gaussian processes."""
        return tuple(self.recipes)

    @property
    def implicit(self) -> tuple[TensorVariable, ...]:
        """Integrated variables without a separate representation in the posterior. Fits return no moments of them."""
        return ()

    @property
    def singular(self) -> bool:
        """Whether covariances of latent values may be singular, for example with few effects."""
        return False

    @property
    def described(self) -> str:
        """Sentences about integrated variables and hyperparameters; empty if only latent values are integrated out."""
        return " ".join(self.reasons.values())
