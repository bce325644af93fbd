"""Likelihood of a univariate observed variable with one latent value in each row, from its log density."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import rows_text
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.graphs.affine import Affinity, NotAffineError
from pymc_gpep.likelihoods.averages_over_cells import (
    average_log_terms,
    average_slopes,
    log_average_terms,
    normal_slopes,
)
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    ColumnDensity,
    GaussianAverage,
    ParameterSlopes,
    ScalarDensity,
)
from pymc_gpep.likelihoods.observed import checked_numbers, known_shape, some_of
from pymc_gpep.likelihoods.standard_density import OfNumbers, reading_of
from pymc_gpep.univariate.density import RowDensity, row_graph
from pymc_gpep.univariate.kept_nodes import KeptAverage
from pymc_gpep.univariate.outcomes import average_moments, count_moments, number_moments
from pymc_gpep.univariate.row_cut import RowsMixedError

MOST_NUMBERS = 5
"""Largest number of entries in Gaussian variables that stay hyperparameters, such as a scale."""


class Argument(NamedTuple):
    """The affine function through which a random variable depends on Gaussian variables."""

    variable: TensorVariable
    """Affine function of Gaussian variables, with one number for each row, or one number for all rows."""
    others: frozenset[Variable]
    """Gaussian variables with few entries that the random variable also depends on in other ways."""


def argument_of_variable(variable: TensorVariable, sources: Collection[Variable]) -> Argument | None:
    """Return the largest affine function through which a random variable depends on its Gaussian variables.

    Parameters
    ----------
    variable : TensorVariable
    sources : collection of Variable
        Gaussian variables of the model.

    Returns
    -------
    Argument or None
        None if this function does not exist, or is not unique.
    """
    every = frozenset(sources)
    inputs = [each for each in variable.owner.inputs if not isinstance(each.type, RandomType)]
    behind = every.intersection(ancestors(inputs))
    if not behind:
        return None
    affinity = Affinity(every)
    best: tuple[int, int, Argument] | None = None
    nodes = toposort(inputs, blockers=behind)
    candidates = [*(node.outputs[0] for node in reversed(list(nodes))), *behind]
    for place, each in enumerate(candidates):
        if not isinstance(each, TensorVariable) or each.ndim > 1 or isinstance(each.type, RandomType):
            continue
        own = behind.intersection([each, *ancestors([each])])
        if not own or not _affine(affinity, every, each):
            continue
        rest = behind.intersection(ancestors(inputs, blockers=[each])) - {each}
        if own <= rest:
            continue
        if not rest:
            return Argument(peeled(each, behind), frozenset())
        size = _size(rest)
        if size <= MOST_NUMBERS and size < _size(own) and (best is None or (size, place) < best[:2]):
            best = (size, place, Argument(each, frozenset(rest)))
    return None if best is None else best[2]._replace(variable=peeled(best[2].variable, behind))


def peeled(variable: TensorVariable, sources: frozenset[Variable]) -> TensorVariable:
    """Return a variable without constant factors and terms, for example f for −f/√2."""
    while variable not in sources and variable.owner is not None and isinstance(variable.owner.op, Elemwise):
        inputs = variable.owner.inputs
        inner = [each for each in inputs if not _is_number(each)]
        if len(inner) != 1 or not all(all(each.type.broadcastable) for each in inputs if each is not inner[0]):
            break
        variable = cast(TensorVariable, inner[0])
    return variable


class Frontier(NamedTuple):
    """The affine functions of Gaussian variables that a random variable is a function of."""

    functions: list[TensorVariable]
    """Functions with a number for each row or one number for all rows."""
    same: dict[TensorVariable, TensorVariable]
    """Copies → the functions that they are equal to."""


def affine_frontier(variable: TensorVariable, sources: Collection[Variable]) -> Frontier | None:
    """Return the affine frontier of a random variable; None if Gaussian variables also affect it by other paths."""
    every = frozenset(sources)
    affinity = Affinity(every)
    reached = {each for each in ancestors([variable]) if not every.isdisjoint(ancestors([each]))}
    found = Frontier([], {})
    seen: set[Variable] = set()
    pending = list(reversed(variable.owner.inputs))
    while pending:
        each = pending.pop()
        if each in seen or each not in reached or isinstance(each.type, RandomType):
            continue
        seen.add(each)
        if each.owner is not None and isinstance(each.owner.op, Shape | Shape_i):
            continue
        if isinstance(each, TensorVariable) and each.ndim < 2 and (own := _behind(affinity, each)) is not None:
            if own:
                _add(found, peeled(each, every))
        elif each in every or each.owner is None:
            return None
        else:
            pending += reversed(each.owner.inputs)
    return found


def _behind(affinity: Affinity, variable: TensorVariable) -> frozenset[Variable] | None:
    """Return the sources that a variable is affine in; None if it is not affine."""
    try:
        return affinity.behind(variable)
    except NotAffineError:
        return None


def _add(found: Frontier, function: TensorVariable) -> None:
    """Add a function unless it is present. Record a function that equals a present function as its copy."""
    if function in found.same or function in found.functions:
        return
    for known in found.functions:
        if equal_computations([known], [function]):
            found.same[function] = known
            return
    found.functions.append(function)


def _is_number(variable: Variable) -> bool:
    """Return whether a variable is computed from constants alone."""
    return all(isinstance(each, Constant) for each in ancestors([variable]) if each.owner is None)


def _affine(affinity: Affinity, sources: frozenset[Variable], variable: Variable) -> bool:
    """Return whether a variable is affine in the sources, or becomes affine if one factor of a product is fixed."""
    try:
        affinity.behind(variable)
    except NotAffineError as error:
        if len(error.sides) < 2:
            return False
        least = min(error.sides, key=_size)
        try:
            Affinity(sources - least).behind(variable)
        except NotAffineError:
            return False
    return True


def _size(variables: Collection[Variable]) -> int:
    sizes = [known_shape(each) for each in variables if isinstance(each, TensorVariable)]
    return sum(int(np.prod([1 if length is None else length for length in shape])) for shape in sizes)


_MOST_KEPT = 2  # Largest number of variables that a message suggests to treat as hyperparameters.
_TOGETHER = 4096  # Number of rows in a block, if moments have formulas.
# Latent values at which the density of an observation is checked.
_PLACES = np.array([0.0, 1.0, -1.0, 3.0, -3.0, 10.0, -10.0])


@dataclass(frozen=True)
class UnivariateLikelihood(OfNumbers):
    """Likelihood of numbers or counts by PyMC's log density, which may be any function of the latent value.

    Parameters
    ----------
    density : RowDensity
        Log density as a function of arrays; None before a model is read.
    observed_dtype : {"int64", "float64"}
        Dtype of observations.
    """

    density: RowDensity | None = None
    observed_dtype: str = "float64"  # type: ignore[misc]  # set by `read`

    name: ClassVar[str] = "univariate"
    written: ClassVar[str] = "univariate distribution of PyMC with one affine argument"
    distributions: ClassVar[tuple[type[Op], ...]] = ()
    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "prior"
    largest_precision: ClassVar[float] = np.inf
    log_concave: ClassVar[bool] = False

    @property
    def local(self) -> tuple[object, ...]:  # type: ignore[override]
        """All local computations that need only a log density; empty before a model is read."""
        if self.density is None:
            return ()
        made = _Computations(self.density)
        return (
            ScalarDensity(made.derivatives),
            ColumnDensity(self.density.columns, self.density.two_derivatives),
            GaussianAverage(made.average, of_rows=made.of_rows),
            AverageLogDensity(made.average_log),
            ParameterSlopes(made.slopes, made.average_slopes, made.average_log_slopes),
        )

    def may_be(self, variable: TensorVariable) -> bool:
        """Return whether a random variable has one number for each row."""
        return variable.ndim < 2 and getattr(variable.owner.op, "ndim_supp", 0) == 0

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        found, same = argument_of_variable(variable, latents), dict[TensorVariable, TensorVariable]()
        if found is None:  # A model may compute the argument twice.
            frontier = affine_frontier(variable, latents)
            if frontier is None or len(frontier.functions) != 1:
                return None
            (argument,), same = frontier
        else:
            argument = found.variable
        try:
            graph, parts = row_graph(variable, argument, same=same)
        except (RowsMixedError, NotImplementedError):
            return None
        density = RowDensity(graph, [depends_on_draws(part) for part in parts])
        whole = np.dtype(variable.dtype).kind in "iub"
        likelihood = replace(self, density=density, observed_dtype="int64" if whole else "float64")
        reading = reading_of(argument, *(parts or [pt.constant(0.0)]))
        return reading._replace(likelihood=likelihood)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        name = repr(variable.name)
        if not self.may_be(variable) or set(latents).isdisjoint(ancestors(variable.owner.inputs)):
            return None
        argument = argument_of_variable(variable, latents)
        if argument is None:
            kept = _in_the_way(variable, latents)
            return (
                f"{name} has no single argument: its Gaussian variables enter in several places, or not by an affine "
                f"function.{f' Keep some as hyperparameters: pm.fit(..., hyperparameters={kept}).' if kept else ''}"
            )
        try:
            row_graph(variable, argument.variable)
        except RowsMixedError as error:
            op = type(getattr(error.node.op, "core_op", error.node.op)).__name__ if error.node else "a selection"
            return f"The log density of {name} is not computed row by row: it contains the operation {op!r}."
        except NotImplementedError:
            bounds = isinstance(variable.owner.op, CensoredRV | TruncatedRV)
            lacks = " Its bounds need a logcdf: write the distribution within as a pm.CustomDist with logcdf=."
            return f"PyMC has no log density of {name}.{lacks if bounds else ''}"
        return None

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Observed:
        given = self.checked_shape(observed, n_functions, n_points, name)
        if self.observed_dtype == "float64":
            return checked_numbers(given, name)
        numbers = given.dtype.kind in "biuf"
        wrong = (given != np.round(given)) | ~np.isfinite(given) if numbers else np.full(len(given), True)
        if wrong.any():
            raise ValueError(f"{name} must be whole numbers, but among them are {some_of(given[wrong])}.")
        return np.ascontiguousarray(given, np.int64)

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        if (bad := np.isnan(self.parameters).any(axis=0)).any():
            raise ValueError(f"A parameter of {name} is not a number in {rows_text(bad)}.")
        if observed is None or not self.parameters.shape[1]:
            return
        k = len(self._known.graph.functions)
        values = np.stack([self._values(np.full((k, len(observed)), f), observed, self.parameters) for f in _PLACES])
        bad = np.isnan(values).all(axis=0)
        if self.observed_dtype == "int64":
            bad |= (np.isnan(values) | np.isneginf(values)).all(axis=0)
        if bad.any():
            raise ValueError(
                f"{name} has no log density in {rows_text(bad)}: its distribution does not allow an observation or a "
                "parameter there."
            )

    def log_densities(self, f: Array, observed: Observed) -> Array:
        values = np.moveaxis(f, -2, 0)
        repeats = values[0].size // max(values.shape[-1], 1)
        flat = values.reshape(len(values), -1)
        found = self._values(flat, np.tile(observed, repeats), np.tile(self.parameters, (1, repeats)))
        return np.asarray(found).reshape(values.shape[1:])

    def cumulative_given(self, y: Array, f: Array) -> Array:
        density = self._known
        if density.graph.cumulative is None:
            raise TypeError("PyMC has no distribution function for this likelihood, so quantiles cannot be computed.")
        repeats = f.size // f.shape[-1]
        each = np.floor(y) if self.observed_dtype == "int64" else y
        # 2⁵³ exceeds all observed counts.
        each = np.clip(each, -(2.0**53), 2.0**53) if self.observed_dtype == "int64" else each
        found = density.other("cumulative", f.ravel(), np.tile(each, repeats), np.tile(self.parameters, (1, repeats)))
        return np.asarray(found).reshape(f.shape)

    def ends(self, observed: Observed, mean: Array, cov: Array) -> tuple[Array, Array]:
        low, high = super().ends(observed, mean, cov)
        if self._known.graph.side is None:
            return low, high
        side = self._known.other("side", np.zeros(len(observed)), observed, self.parameters)
        return np.where(side < 0.0, 0.0, low), np.where(side > 0.0, 1.0, high)

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        """Return moments by formulas, or by integrals or sums over an observation, with or without censoring.

        An infinite moment is ∞. A moment is NaN if it does not exist, or if its integral does not converge.
        """
        density = self._known
        formulas = density.graph.first is not None
        censored = density.graph.uncensored is not None
        values = partial(density.other, "uncensored") if censored else density.values
        by_density = count_moments if self.observed_dtype == "int64" else number_moments

        def moments(f: Array, rows: NDArray[np.intp]) -> Array:
            own = self.parameters[:, rows]
            if formulas:
                y = np.zeros(len(f))
                return np.stack([density.other(name, f, y, own) for name in ("first", "second")])

            def log_density(y: NDArray[Any]) -> Array:
                found = values(np.tile(f, len(y)), y.ravel(), np.tile(own, (1, len(y))))
                return np.asarray(found).reshape(y.shape)

            return by_density(log_density, f)

        together = {"together": _TOGETHER} if formulas else {}
        return average_moments(moments, mean[:, 0], np.sqrt(cov[:, 0, 0]), **together)

    @property
    def _known(self) -> RowDensity:
        if self.density is None:
            raise ValueError("This likelihood has no log density until a model is read.")
        return self.density

    def _values(self, f: Array, y: NDArray[Any], parameters: Array) -> Array:
        return self._known.values(f, y, parameters)


class _Computations:
    """Local computations by quadrature of a log density."""

    def __init__(self, density: RowDensity) -> None:
        self._density = density

    def derivatives(self, f: Array, y: Observed, parameters: Array, out: Array) -> None:
        columns = self._density.columns(y, parameters)
        out[:3] = self._density.two_derivatives(f, columns)
        out[3] = self._density.third_derivative(f, columns)

    def average(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        """See `GaussianAverage`. For variances 0, the average is the log density, and its fourth derivative is NaN."""
        if not variance.any():
            out[4] = np.nan
            self.derivatives(mean, y, parameters, out[:4])
            return
        out[:] = log_average_terms(self._density, mean, variance, self._density.columns(y, parameters))

    def of_rows(self, y: Observed, parameters: Array, *, rough: bool = False) -> KeptAverage:
        return KeptAverage(self._density, self._density.columns(y, parameters), rough=rough)

    def average_log(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = average_log_terms(self._density, mean, variance, self._density.columns(y, parameters))

    def slopes(self, f: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = self._density.slopes(f, y, parameters, 3)

    def average_slopes(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        self._averaged(average_slopes, mean, variance, y, parameters, out)

    def average_log_slopes(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        self._averaged(normal_slopes, mean, variance, y, parameters, out)

    def _averaged(self, kind: Any, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        learned = np.flatnonzero(self._density.learned)

        def slopes(f: Array, points: NDArray[np.intp]) -> Array:
            repeats = len(f)
            own = np.tile(parameters[:, points], (1, repeats))
            found = self._density.slopes(f.ravel(), np.tile(y[points], repeats), own, 1)
            return found[learned, 0].reshape(learned.size, *f.shape)

        out[:] = 0.0
        if learned.size:
            columns = self._density.columns(y, parameters)
            out[learned] = kind(self._density, mean, variance, columns, slopes, learned.size)


def depends_on_draws(part: TensorVariable) -> bool:
    """Return whether a variable depends on random draws."""
    return any(isinstance(cast(Variable, each).type, RandomType) for each in ancestors([part]))


def _in_the_way(variable: TensorVariable, latents: Collection[Variable]) -> list[str]:
    """Return names of at most two variables which, as hyperparameters, leave one argument; else an empty list."""
    behind = [each for each in ancestors(variable.owner.inputs) if each in set(latents)]
    for count in range(1, min(len(behind), _MOST_KEPT + 1)):
        for kept in combinations(behind, count):
            if argument_of_variable(variable, set(behind).difference(kept)) is not None:
                return [str(each.name) for each in kept]
    return []


ANY_UNIVARIATE = UnivariateLikelihood()
"""Reader of observed variables that no other likelihood reads."""
