"""Joint likelihood of several observed variables. Their rows are concatenated.

The first parameter of each row is the index of its likelihood. So a row keeps its likelihood if rows are selected,
repeated or distributed. Each likelihood computes the values at its rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    Kernel,
    ParameterSlopes,
    PlainDensity,
    ScalarDensity,
)
from pymc_gpep.likelihoods.standard_density import CombinedLikelihood
from pymc_gpep.solvers.newton import at_rows

_UNUSED = 1.0  # Placeholder in parameter rows that a likelihood does not use.


class _Part:
    """A likelihood of the stack, with methods that select its rows of arrays."""

    def __init__(self, number: int, likelihood: Likelihood, count: int) -> None:
        self.number, self.likelihood, self.own = number, likelihood, slice(1, 1 + count)

    def observed(self, y: Observed, rows: Any) -> Observed:
        """Return observations at rows, in the type of the likelihood."""
        return np.ascontiguousarray(y[rows], self.likelihood.observed_dtype)

    def parameters(self, parameters: Array, rows: Any) -> Array:
        """Return parameters of this likelihood at its rows."""
        return np.ascontiguousarray(parameters[self.own, rows])


@dataclass(frozen=True)
class StackedLikelihood(CombinedLikelihood):
    """Several likelihoods of one latent function. Each likelihood applies to a part of the rows.

    Parameters
    ----------
    parts : tuple of Likelihood
        The likelihoods.
    counts : tuple of int
        Number of parameters of each likelihood.
    """

    parts: tuple[Likelihood, ...] = ()
    counts: tuple[int, ...] = ()

    written: ClassVar[str] = "several observed variables"

    def at_rows(self, sizes: Sequence[int]) -> Self:
        """Return a copy without parameters. Its parts have these numbers of rows."""
        unknown = np.full((1 + max(self.counts), sum(sizes)), np.nan)
        unknown[0] = np.repeat(np.arange(len(sizes)), sizes)
        return self.given(unknown)

    def together(self, parameters: Sequence[TensorVariable]) -> TensorVariable:
        """Return parameters (1 + p, n) of all rows, given the parameters (p_k, n_k) of each part k."""
        most = max(self.counts)
        rows = []
        for number, (count, own) in enumerate(zip(self.counts, parameters, strict=True)):
            n = own.shape[1]
            rows.append(pt.concatenate([pt.full((1, n), float(number)), own, pt.full((most - count, n), _UNUSED)]))
        return pt.concatenate(rows, axis=1)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Names of the likelihoods."""
        return " and ".join(dict.fromkeys(part.name for part in self.parts))

    @property
    def method(self) -> str:  # type: ignore[override]
        """Default method of all likelihoods if they agree, else EP."""
        methods = {part.method for part in self.parts}
        return methods.pop() if len(methods) == 1 else "ep"

    @property
    def guide(self) -> str:  # type: ignore[override]
        """Guide of all likelihoods if they agree, else the prior."""
        guides = {part.guide for part in self.parts}
        return guides.pop() if len(guides) == 1 else "prior"

    @property
    def largest_precision(self) -> float:  # type: ignore[override]
        """Largest precision over all likelihoods."""
        return max(part.largest_precision for part in self.parts)

    @property
    def log_concave(self) -> bool:  # type: ignore[override]
        """Whether all likelihoods are log-concave."""
        return all(part.log_concave for part in self.parts)

    @property
    def of_prior(self) -> bool:  # type: ignore[override]
        """Whether a likelihood is the factor of a prior."""
        return any(part.of_prior for part in self.parts)

    @property
    def effects(self) -> list[str]:
        return [name for part in self.parts for name in part.effects]

    @property
    def local(self) -> tuple[object, ...]:  # type: ignore[override]
        """Local computations that all likelihoods offer, each computed at its rows."""
        smooth = all(part.offers(ScalarDensity) for part in self.parts)
        kernels = [
            (part.computation(ScalarDensity) if part.offers(ScalarDensity) else part.computation(PlainDensity))
            for part in self.parts
        ]
        density = self._by_part([each.derivatives for each in kernels])
        found: list[object] = [ScalarDensity(density) if smooth else PlainDensity(density)]
        if all(part.offers(GaussianAverage) for part in self.parts):
            each = [part.computation(GaussianAverage) for part in self.parts]
            terms, normal = ([getattr(one, name) for one in each] for name in ("terms", "normal"))
            repeated = partial(_Repeated, tuple(self._made()), each) if any(one.of_rows for one in each) else None
            normals = self._by_part(normal) if any(normal) else None
            found.append(GaussianAverage(self._by_part(terms), normal=normals, of_rows=repeated))
        if all(part.offers(AverageLogDensity) for part in self.parts):
            terms = [part.computation(AverageLogDensity).terms for part in self.parts]
            found.append(AverageLogDensity(self._by_part(terms)))
        given = [part.computation(ParameterSlopes) if part.offers(ParameterSlopes) else None for part in self.parts]
        if all(each or not count for each, count in zip(given, self.counts, strict=True)):
            slopes = zip(*(each or (None, None, None) for each in given), strict=True)
            found.append(ParameterSlopes(*(self._by_part(list(each), slopes=True) for each in slopes)))
        return tuple(found)

    def _by_part(self, kernels: Sequence[Kernel | None], slopes: bool = False) -> Kernel:
        """Return a kernel that calls the kernel of each likelihood at its rows.

        With `slopes`, the kernel of a likelihood without parameters is None. The slope of a row in parameters of other
        likelihoods is 0.
        """
        return partial(_at_parts, tuple(self._made()), tuple(kernels), slopes)

    def _made(self) -> Iterator[_Part]:
        for number, (likelihood, count) in enumerate(zip(self.parts, self.counts, strict=True)):
            yield _Part(number, likelihood, count)

    def priors(self) -> Iterator[tuple[NDArray[np.intp], Likelihood]]:
        return ((rows, own) for rows, own, _ in self._each(None) if own.of_prior)

    def _each(self, observed: Observed | None) -> Iterator[tuple[NDArray[np.intp], Likelihood, Observed | None]]:
        """Yield rows of each likelihood, the likelihood with parameters at these rows, and observations."""
        for part in self._made():
            rows = np.flatnonzero(self.parameters[0] == part.number)
            if rows.size:
                own = part.likelihood.given(part.parameters(self.parameters, rows))
                yield rows, own, None if observed is None else part.observed(observed, rows)

    def is_uninformative(self, observed: Observed) -> NDArray[np.bool_]:
        found = np.zeros(len(observed), dtype=bool)
        for rows, own, y in self._each(observed):
            assert y is not None
            found[rows] = own.is_uninformative(y)
        return found

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Observed:
        given = np.asarray(self.checked_shape(observed, n_functions, n_points, name), np.float64)
        for rows, own, _ in self._each(None):
            own.check(given[rows], n_functions, len(rows), name)
        return np.ascontiguousarray(given)

    def check_parameters(self, observed: Observed | None, name: str) -> None:
        for _, own, y in self._each(observed):
            own.check_parameters(y, name)

    def log_densities(self, f: Array, observed: Observed) -> Array:
        found = np.empty((*f.shape[:-2], f.shape[-1]))
        for rows, own, y in self._each(observed):
            assert y is not None
            found[..., rows] = own.log_densities(f[..., rows], y)
        return found

    def log_tail(self, mean: Array, cov: Array, observed: Observed) -> Array:
        found = np.empty(len(mean))
        for rows, own, y in self._each(observed):
            assert y is not None
            found[rows] = own.log_tail(mean[rows], cov[rows], y)
        return found

    def ends(self, observed: Observed, mean: Array, cov: Array) -> tuple[Array, Array]:
        low, high = np.empty((2, len(mean)))
        for rows, own, y in self._each(observed):
            assert y is not None
            low[rows], high[rows] = own.ends(y, mean[rows], cov[rows])
        return low, high


def _at_parts(parts: Sequence[_Part], kernels: Sequence[Kernel | None], slopes: bool, *given: Array) -> None:
    """Call the kernel of each likelihood at its rows. `given` are latent values or moments, y, parameters, `out`."""
    *points, y, parameters, out = given
    out[:] = 0.0 if slopes else np.nan
    for part, kernel in zip(parts, kernels, strict=True):
        rows: Any = np.flatnonzero(parameters[0] == part.number)
        if kernel is None or not rows.size:
            continue
        if rows[-1] - rows[0] + 1 == rows.size:
            rows = slice(rows[0], rows[-1] + 1)
        own = part.parameters(parameters, rows)
        n = own.shape[1]
        found = np.empty((own.shape[0] if slopes else out.shape[0], *out.shape[1:-1], n))
        kernel(*(np.ascontiguousarray(each[rows]) for each in points), part.observed(y, rows), own, found)
        if slopes:
            out[part.own][..., rows] = found
        else:
            out[..., rows] = found


class _Repeated:
    """Function of `GaussianAverage.of_rows` for the rows of all likelihoods."""

    def __init__(
        self,
        parts: Sequence[_Part],
        averages: Sequence[GaussianAverage],
        y: Observed,
        parameters: Array,
        *,
        rough: bool = False,
    ) -> None:
        self._kernels: dict[int, Kernel] = {}
        self._number = parameters[0].astype(np.intp)
        self._place = np.zeros(len(self._number), np.intp)
        for part, average in zip(parts, averages, strict=True):
            rows = np.flatnonzero(self._number == part.number)
            if rows.size:
                self._place[rows] = np.arange(rows.size)
                given = part.observed(y, rows), part.parameters(parameters, rows)
                faster = average.of_rows and average.of_rows(*given, rough=rough)
                self._kernels[part.number] = faster or at_rows(average.terms, *given)

    def __call__(self, mean: Array, variance: Array, out: Array, rows: NDArray[np.intp] | None = None) -> None:
        number, place = (each if rows is None else each[rows] for each in (self._number, self._place))
        for own, kernel in self._kernels.items():
            chosen = np.flatnonzero(number == own)
            found = np.empty((5, chosen.size))
            kernel(mean[chosen], variance[chosen], found, place[chosen])
            out[:, chosen] = found
