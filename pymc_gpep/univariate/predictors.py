"""Likelihood of a univariate observed variable with several linear predictors in each row, from its log density.

The *affine frontier* of a random variable is a set of affine functions of Gaussian variables. The random variable
depends on Gaussian variables only through these functions. Examples are a mean and a log scale, or the factors of a
product.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import combinations_with_replacement
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.prior_form import covariance_root
from pymc_gpep.graphs.affine import Affinity
from pymc_gpep.likelihoods.factor_averages import normal_rule
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import PredictorsDensity, PredictorsDerivatives, PredictorsNodes
from pymc_gpep.likelihoods.stacked import StackedLikelihood
from pymc_gpep.likelihoods.standard_density import reading_of
from pymc_gpep.likelihoods.tilted_rows import MOST_OUTER, NodesDensity, Split, TiltedParts, TiltedRows
from pymc_gpep.univariate.density import RowDensity, row_graph
from pymc_gpep.univariate.likelihood import UnivariateLikelihood, affine_frontier, depends_on_draws
from pymc_gpep.univariate.row_cut import RowsMixedError, compiled_rows, row_derivatives, row_slopes, stable


def names_of(functions: Collection[TensorVariable], sources: Collection[Variable]) -> tuple[str, ...]:
    """Return a name for each function: the name of the variable, or the names of its Gaussian variables."""
    affinity = Affinity(frozenset(sources))
    names: list[str] = []
    for function in functions:
        own = affinity.behind(function)
        name = function.name or " + ".join(str(v.name) for v in reversed(list(ancestors([function]))) if v in own)
        names.append(name if name not in names else f"{name} ({len(names)})")
    return tuple(names)


class JointRowDensity(RowDensity):
    """Log density of rows with k latent values each, and derivatives in all latent values."""

    @property
    def k(self) -> int:
        """Number of latent values in each row."""
        return len(self.graph.functions)

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        return list(combinations_with_replacement(range(self.k), 2))

    @cached_property
    def _given(self) -> list[TensorVariable]:
        return [*self.graph.functions, self.graph.y, *self.graph.rows]

    @cached_property
    def _gradient(self) -> list[TensorVariable]:
        value = self.graph.output.astype("float64")
        return [row_derivatives(value, each, 2)[1] for each in self.graph.functions]

    @cached_property
    def _hessian(self) -> list[TensorVariable]:
        return [row_derivatives(self._gradient[i], self.graph.functions[j], 2)[1] for i, j in self._pairs]

    @cached_property
    def _moved_density(self) -> tuple[list[TensorVariable], TensorVariable, TensorVariable]:
        """Return symbols S (by pair), u (by function), ½ Σ S ∂²ℓ, ℓ + ½ Σ S ∂²ℓ + Σ u ∂ℓ, for the log density ℓ."""
        spread = [pt.dvector(f"spread_{i}_{j}") for i, j in self._pairs]
        moved = [pt.dvector(f"moved_{i}") for i in range(self.k)]
        terms = [
            (0.5 if i == j else 1.0) * s * h for (i, j), s, h in zip(self._pairs, spread, self._hessian, strict=True)
        ]
        bent = pt.add(*terms)
        shift = [u * g for u, g in zip(moved, self._gradient, strict=True)]
        return [*spread, *moved], bent, pt.add(self.graph.output.astype("float64"), bent, *shift)

    @cached_property
    def _first_function(self) -> Any:
        return compiled_rows(self._given, [self._value, *self._gradient])

    @cached_property
    def _second_function(self) -> Any:
        return compiled_rows(self._given, self._hessian)

    @cached_property
    def _third_functions(self) -> tuple[Any, Any]:
        numbers, bent, whole = self._moved_density
        spread = numbers[: len(self._pairs)]
        slopes = [row_derivatives(bent, each, 2)[1] for each in self.graph.functions]
        wanted = [row for row, learned in zip(self.graph.rows, self.learned, strict=True) if learned]
        of_rows = [row_slopes([whole], row, self.graph.f)[0] for row in wanted]
        return (
            compiled_rows([*self._given, *spread], slopes),
            compiled_rows([*self._given, *numbers], of_rows) if of_rows else None,
        )

    def _called(self, function: Any, f: Array, y: NDArray[Any], parameters: Array, *more: Array) -> Array:
        with self._lock:
            found = function(*f, np.asarray(y, self.graph.y.dtype), *parameters[: len(self.graph.rows)], *more)
        return np.stack([np.broadcast_to(each, f.shape[-1]) for each in found])

    def with_gradient(self, f: Array, y: NDArray[Any], parameters: Array) -> Array:
        """Return the log density and its gradient, (1 + k, m), at latent values (k, m)."""
        return self._called(self._first_function, f, y, parameters)

    def hessian(self, f: Array, y: NDArray[Any], parameters: Array) -> Array:
        """Return the Hessian (m, k, k) at latent values (k, m)."""
        found = self._called(self._second_function, f, y, parameters)
        whole = np.empty((f.shape[-1], self.k, self.k))
        for (i, j), own in zip(self._pairs, found, strict=True):
            whole[:, i, j] = whole[:, j, i] = own
        return whole

    @property
    def nodes(self) -> NodesDensity:
        """Computations of the density at the nodes of a quadrature."""
        return NodesDensity(self.columns, self.column_values, self.inner, self.derivatives, self.row_slopes, self.split)

    @cached_property
    def _inner_functions(self) -> dict[tuple[int, ...], Any]:
        return {}

    def inner(self, f: Array, columns: Array, inner: NDArray[np.int64]) -> tuple[Array, Array, Array]:
        """Return the log density (m,), and its derivatives (q, m) and (q, q, m) in the inner latent values."""
        key, q = tuple(map(int, inner)), len(inner)
        with self._lock:
            if key not in self._inner_functions:
                *given, value = self._orders(1)
                slopes = [row_derivatives(value, self._moved[i], 2)[1] for i in key]
                bent = [row_derivatives(slopes[i], self._moved[key[j]], 2)[1] for i in range(q) for j in range(i, q)]
                self._inner_functions[key] = compiled_rows(given, [value, *slopes, *bent])
            found = self._inner_functions[key](*f, *columns)
        value, *found = [np.broadcast_to(each, f.shape[-1]) for each in found]
        hessian, rest = np.empty((q, q, f.shape[-1])), iter(found[q:])
        for i in range(q):
            for j in range(i, q):
                hessian[i, j] = hessian[j, i] = next(rest)
        return value, np.stack(found[:q]), hessian

    def split(self, y: Observed, parameters: Array) -> Split:
        """Return the split into inner and outer latent values, from Hessians of a few rows at random points.

        The log density is quadratic in the inner latent values: its second derivatives in these depend only on outer
        values. If it is not quadratic in any latent value, the value whose second derivative varies least is inner.
        """
        rows = np.unique(np.linspace(0, len(y) - 1, _LOOKED_AT).astype(int))
        rng, k = np.random.default_rng(0), self.k
        own = np.tile(rows, _PLACES_EACH)
        f, moved = rng.standard_normal((2, k, len(own)))
        at = self.hessian(f, y[own], parameters[:, own])

        def changes(inner: list[int]) -> Array:
            there = f.copy()
            there[inner] = moved[inner]
            found = self.hessian(there, y[own], parameters[:, own])
            change = np.abs(found - at)[:, inner][:, :, inner] / (1.0 + np.abs(at[:, inner][:, :, inner]))
            return np.append(change[np.isfinite(change)], [] if np.isfinite(change).any() else np.inf)

        inner: list[int] = []
        for i in range(k):
            if len(inner) < k - 1 and (changes([*inner, i]) < _UNCHANGED).all():
                inner.append(i)
        normal = bool(inner)
        if not normal:
            inner = [min(range(k), key=lambda i: float(np.median(changes([i]))))]
        order = np.array([i for i in range(k) if i not in inner] + inner, np.int64)
        return Split(order, k - len(inner), normal)

    @cached_property
    def has_nodes(self) -> bool:
        """Whether the outer latent values are few enough for quadrature."""
        if self.k <= MOST_OUTER + 1:
            return True
        rng = np.random.default_rng(1)
        y = np.ones(_LOOKED_AT, self.graph.y.dtype)
        return self.split(y, rng.uniform(0.5, 1.5, (len(self.graph.rows), _LOOKED_AT))).outer <= MOST_OUTER

    @cached_property
    def _column_function(self) -> Any:
        *given, value = self._orders(1)
        return compiled_rows(given, [value])

    def column_values(self, f: Array, columns: Array) -> Array:
        """Return the log density (m,) at latent values (k, m), for columns (q, m)."""
        with self._lock:
            (found,) = self._column_function(*f, *columns)
        return np.broadcast_to(found, f.shape[-1])

    def derivatives(self, f: Array, y: NDArray[Any], parameters: Array) -> tuple[Array, Array, Array]:
        """Return log density (m,), gradient (k, m) and Hessian (m, k, k) at latent values (k, m)."""
        value, *gradient = self.with_gradient(f, y, parameters)
        return value, np.stack(gradient), self.hessian(f, y, parameters)

    def row_slopes(self, f: Array, y: NDArray[Any], parameters: Array) -> Array:
        """Return derivatives (p, m) of the log density in the parameters of rows."""
        return self.slopes(f, y, parameters, 1)[:, 0]

    # The computations of `PredictorsDensity`.

    def log_density(self, f: Array, y: Observed, parameters: Array, gradient: Array) -> float:
        """See `PredictorsDensity`."""
        value, *gradient[:] = self.with_gradient(f, y, parameters)
        return float(value.sum())

    def curvature(self, f: Array, y: Observed, parameters: Array, w: Array) -> None:
        """See `PredictorsDensity`."""
        np.negative(self.hessian(f, y, parameters), out=w)

    def curvature_slope(self, f: Array, y: Observed, parameters: Array, cov: Array, slope: Array) -> None:
        """See `PredictorsDensity`."""
        spread = [cov[:, i, j] for i, j in self._pairs]
        slope[:] = self._called(self._third_functions[0], f, y, parameters, *spread)

    def parameter_slopes(self, f: Array, y: Observed, parameters: Array, cov: Array, moved: Array, out: Array) -> None:
        """See `PredictorsDensity`."""
        out[:] = 0.0
        if (learned := np.flatnonzero(self.learned)).size:
            spread = [cov[:, i, j] for i, j in self._pairs]
            out[learned] = self._called(self._third_functions[1], f, y, parameters, *spread, *moved)


@dataclass(frozen=True)
class PredictorsLikelihood(UnivariateLikelihood):
    """Likelihood of numbers or counts by PyMC's log density, for several latent values in each row.

    Parameters
    ----------
    predictors : tuple of str
        Names of the linear predictors; empty before a model is read.
    """

    predictors: tuple[str, ...] = ()

    name: ClassVar[str] = "distributional"
    written: ClassVar[str] = "univariate distribution of PyMC with several affine arguments"
    function_axis: ClassVar[bool] = True
    fewest: ClassVar[int] = 2
    """Smallest number of linear predictors of a variable that this likelihood reads."""

    @property
    def method(self) -> str:  # type: ignore[override]
        """Name of the recommended method."""
        return "ep" if self.density is not None and self.joint.has_nodes else "laplace"

    @property
    def options(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Options of the recommended method."""
        return {} if self.method == "ep" else {"smoothed_mean": True}

    @property
    def local(self) -> tuple[object, ...]:  # type: ignore[override]
        """Log density, curvature and their derivatives. With few latent values also nodes of quadratures."""
        if self.density is None:
            return ()
        own = self.joint
        density = PredictorsDensity(own.log_density, own.curvature, own.curvature_slope, own.parameter_slopes)
        derivatives = PredictorsDerivatives(own.derivatives, own.row_slopes)
        nodes = PredictorsNodes(partial(TiltedRows, own.nodes))
        return (density, derivatives, nodes) if own.has_nodes else (density, derivatives)

    def with_functions(self, k: int) -> Self:
        """Return the likelihood with k latent values in each row. Added latent values have no effect."""
        density = self.joint
        more = [pt.dvector(f"without_effect_{i}") for i in range(density.k, k)]
        graph = replace(density.graph, others=[*density.graph.others, *more])
        names = (*self.predictors, *(f"({i + 1}, unused)" for i in range(density.k, k)))
        return replace(self, density=JointRowDensity(graph, density.learned), predictors=names)

    @property
    def refused(self) -> str:
        """Reason why EP cannot fit the likelihood, with a remedy; empty if EP can fit it."""
        if self.density is None or self.joint.has_nodes:
            return ""
        names = ", ".join(map(repr, self.predictors))
        return (
            f" Its log density depends on {self.joint.k} linear predictors, {names}. EP integrates {MOST_OUTER} of "
            "these by quadrature, and the rest only if the log density is quadratic in them. Take method='laplace', or "
            "keep effects at their maximum: pm.fit(..., hyperparameters=[...])."
        )

    @property
    def joint(self) -> JointRowDensity:
        """Log density of rows."""
        density = self._known
        assert isinstance(density, JointRowDensity)
        return density

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable) or (frontier := affine_frontier(variable, latents)) is None:
            return None
        functions = frontier.functions
        if len(functions) < self.fewest:
            return None
        try:
            graph, parts = row_graph(variable, *functions, same=frontier.same)
        except (RowsMixedError, NotImplementedError):
            return None
        graph = replace(graph, output=stable(graph.output))
        density = JointRowDensity(graph, [depends_on_draws(part) for part in parts])
        whole = np.dtype(variable.dtype).kind in "iub"
        likelihood = replace(self, density=density, observed_dtype="int64" if whole else "float64")
        each = [pt.atleast_1d(function.astype("float64")) for function in functions]
        rows = next((own for own in each if not own.type.broadcastable[0]), None)
        spread = [own if rows is None or not own.type.broadcastable[0] else pt.second(rows, own[0]) for own in each]
        reading = reading_of(pt.stack(spread, axis=-1), *(parts or [pt.constant(0.0)]))
        likelihood = replace(likelihood, predictors=names_of(functions, latents))
        return reading._replace(likelihood=likelihood, names=likelihood.predictors)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        return None

    def check_functions(self, n_functions: int) -> None:
        if self.density is not None and n_functions != self.joint.k:
            raise ValueError(f"This density has {self.joint.k} latent functions, but there are {n_functions}.")

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        density = self.joint
        if density.graph.first is None:
            raise TypeError("PyMC has no formula for the mean of this distribution with several linear predictors.")
        y = np.zeros(1, density.graph.y.dtype)

        def moments(f: Array, rows: Array) -> Array:
            seen = np.broadcast_to(y, f.shape[1])
            return np.stack([density.other(name, f, seen, rows) for name in ("first", "second")])

        return self._averaged(moments, mean, cov)

    def cumulative(self, y: Array, mean: Array, cov: Array) -> Array:
        density = self.joint
        if density.graph.cumulative is None:
            raise TypeError("PyMC has no distribution function for this likelihood, so quantiles cannot be computed.")
        each = np.clip(np.floor(y), -(2.0**53), 2.0**53) if self.observed_dtype == "int64" else y

        def below(f: Array, rows: Array) -> Array:
            return density.other("cumulative", f, np.tile(each, f.shape[1] // len(each)), rows)[None]

        return np.clip(self._averaged(below, mean, cov)[0], 0.0, 1.0)

    def _averaged(self, values: Any, mean: Array, cov: Array) -> Array:
        """Return averages (p, m) of p functions over normal latent values. `values` evaluates them, (p, nodes · m)."""
        z, weights = _rule(mean.shape[1])
        root = covariance_root(cov)
        f = (mean + np.einsum("mij,dj->dmi", root, z)).reshape(-1, mean.shape[1]).T
        found = values(f, np.tile(self.parameters, (1, len(z))))
        return np.einsum("d,pdm->pm", weights, found.reshape(len(found), len(z), -1))

    def log_tail(self, mean: Array, cov: Array, observed: Observed) -> Array:
        """Return the log average of the density over normal latent values, by quadrature near the modes."""
        y = np.ascontiguousarray(observed, self.observed_dtype)
        if self.joint.has_nodes:
            rows = TiltedRows(self.joint.nodes, y, self.parameters, mean.shape[1])
            root = rows.cavities(mean, cov)
            rows.moments(mean, root)
            rows.refine(mean, root)
            return rows.moments(mean, root).log_z
        root = covariance_root(cov)
        z, weights = _rule(mean.shape[1])
        f = (mean + np.einsum("mij,dj->dmi", root, z)).reshape(-1, mean.shape[1]).T
        values = self._values(f, np.tile(y, len(z)), np.tile(self.parameters, (1, len(z)))).reshape(len(z), -1)
        return np.asarray(logsumexp(np.where(np.isnan(values), -np.inf, values), axis=0, b=weights[:, None]))


SEVERAL_PREDICTORS = PredictorsLikelihood()
"""Reader of observed variables with several linear predictors."""


@dataclass(frozen=True)
class AnyPredictorsLikelihood(PredictorsLikelihood):
    """Likelihood of one or several linear predictors, for models where another observed variable has several."""

    fewest: ClassVar[int] = 1


ANY_PREDICTORS = AnyPredictorsLikelihood()
"""Reader of observed variables in models where at least one variable has several linear predictors."""


class _Rows(NamedTuple):
    """Rows of one density, with observations and parameters."""

    density: JointRowDensity
    y: Observed
    parameters: Array


@dataclass(frozen=True)
class StackedPredictors(StackedLikelihood):
    """Several likelihoods, one after another, with the same number of latent values in each row."""

    parts: tuple[PredictorsLikelihood, ...] = ()

    function_axis: ClassVar[bool] = True

    @property
    def options(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Options of the recommended method."""
        return {} if self.method == "ep" else {"smoothed_mean": True}

    @property
    def method(self) -> str:  # type: ignore[override]
        """Method that fits all likelihoods."""
        return "ep" if all(part.method == "ep" for part in self.parts) else "laplace"

    @property
    def refused(self) -> str:
        """Reason why EP cannot fit the likelihoods, with a remedy; empty if EP can fit them."""
        return next(filter(None, (part.refused for part in self.parts)), "")

    def check_functions(self, n_functions: int) -> None:
        for part in self.parts:
            part.check_functions(n_functions)

    @property
    def local(self) -> tuple[object, ...]:  # type: ignore[override]
        """Local computations of all likelihoods, each at its rows."""
        density = PredictorsDensity(self._log_density, self._curvature, self._curvature_slope, self._parameter_slopes)
        found = density, PredictorsDerivatives(self._derivatives, self._row_slopes)
        return (*found, PredictorsNodes(self._tilted)) if self.method == "ep" else found

    def _at(self, y: Observed, parameters: Array) -> Iterator[tuple[NDArray[np.intp], slice, _Rows]]:
        """Yield rows of each likelihood, the slice of its parameters, and its density, observations and parameters.

        Rows may occur several times, for example at quadrature nodes.
        """
        for part in self._made():
            rows = np.flatnonzero(parameters[0] == part.number)
            if rows.size:
                own = part.observed(y, rows), part.parameters(parameters, rows)
                yield rows, part.own, _Rows(part.likelihood.joint, *own)  # type: ignore[attr-defined]

    def _tilted(self, y: Observed, parameters: Array, k: int) -> TiltedParts:
        return TiltedParts(
            [
                (rows, places, TiltedRows(own.density.nodes, own.y, own.parameters, k))
                for rows, places, own in self._at(y, parameters)
            ]
        )

    def _log_density(self, f: Array, y: Observed, parameters: Array, gradient: Array) -> float:
        total = 0.0
        for rows, _, own in self._at(y, parameters):
            value, *gradient[:, rows] = own.density.with_gradient(f[:, rows], own.y, own.parameters)
            total += float(value.sum())
        return total

    def _curvature(self, f: Array, y: Observed, parameters: Array, w: Array) -> None:
        for rows, _, own in self._at(y, parameters):
            w[rows] = -own.density.hessian(f[:, rows], own.y, own.parameters)

    def _curvature_slope(self, f: Array, y: Observed, parameters: Array, cov: Array, slope: Array) -> None:
        for rows, _, own in self._at(y, parameters):
            part = np.empty((len(f), len(rows)))
            own.density.curvature_slope(f[:, rows], own.y, own.parameters, cov[rows], part)
            slope[:, rows] = part

    def _parameter_slopes(self, f: Array, y: Observed, parameters: Array, cov: Array, moved: Array, out: Array) -> None:
        out[:] = 0.0
        for rows, places, own in self._at(y, parameters):
            part = np.empty(own.parameters.shape)
            own.density.parameter_slopes(f[:, rows], own.y, own.parameters, cov[rows], moved[:, rows], part)
            out[places][:, rows] = part

    def _derivatives(self, f: Array, y: Observed, parameters: Array) -> tuple[Array, Array, Array]:
        k, m = f.shape
        found = np.empty(m), np.empty((k, m)), np.empty((m, k, k))
        for rows, _, own in self._at(y, parameters):
            value, gradient, hessian = own.density.derivatives(f[:, rows], own.y, own.parameters)
            found[0][rows], found[1][:, rows], found[2][rows] = value, gradient, hessian
        return found

    def _row_slopes(self, f: Array, y: Observed, parameters: Array) -> Array:
        out = np.zeros(parameters.shape)
        for rows, places, own in self._at(y, parameters):
            out[places][:, rows] = own.density.row_slopes(f[:, rows], own.y, own.parameters)
        return out


def of_common_functions(readings: Sequence[Reading | None]) -> list[Reading | None]:
    """Return the readings of several likelihoods, extended to the same number of latent functions."""
    k = max((each.likelihood.joint.k for each in readings if each is not None), default=0)
    return [None if each is None else _with_functions(each, k) for each in readings]


def _with_functions(reading: Reading, k: int) -> Reading:
    own, argument = reading.likelihood.with_functions(k), reading.argument
    # Zeros with as many rows as new data have. The length of `pt.zeros` would not change.
    nothing = 0.0 * argument[:, :1]
    everywhere = None if reading.everywhere is None else _with_functions(reading.everywhere, k)
    argument = pt.concatenate([argument, *[nothing] * (k - reading.likelihood.joint.k)], axis=1)
    return reading._replace(argument=argument, likelihood=own, names=own.predictors, everywhere=everywhere)


# Number of rows, and number of points in each row, at which Hessians are compared.
_LOOKED_AT, _PLACES_EACH = 32, 4
_UNCHANGED = 1e-9
_NODES = {1: 64, 2: 32, 3: 14}  # Number of Gauss-Hermite nodes for each latent value, by number of latent values.
_DRAWS = 4096  # Number of quasi-random nodes for more latent values.


@lru_cache
def _rule(k: int) -> tuple[Array, Array]:
    """Return nodes (d, k) and weights (d,) for averages over k independent standard normals."""
    if k not in _NODES:
        z = ndtri(qmc.Sobol(k, rng=np.random.default_rng(0)).random(_DRAWS))
        return z, np.full(_DRAWS, 1.0 / _DRAWS)
    z, weights = normal_rule(_NODES[k], k)
    kept = weights > weights.max() * 1e-16
    return z[kept], weights[kept]
