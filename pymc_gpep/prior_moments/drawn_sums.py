"""Latent functions that are sums, as a function of draws of a model's variables."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import GraphFunction, interpreted
from pymc_gpep.graphs.rows_apart import check_rows_apart
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.sums.levels import NewData, repeated


def drawn_sum(classifier: GPClassifier) -> "DrawnSum | None":
    """Return the sum that the latent functions of a model are, for its draws; None where they are processes alone."""
    return DrawnSum(classifier.prior) if isinstance(classifier.prior, LatentSum) else None


class DrawnSum:
    """Values of latent functions, given those of all variables that they are made of."""

    def __init__(self, prior: LatentSum) -> None:
        self._prior = prior

    @property
    def variables(self) -> list[Variable]:
        """The variables behind the argument: free ones of the model, and values of Gaussian processes."""
        prior = self._prior
        own: set[Variable] = {latent.f for latent in prior.processes}
        behind = set(ancestors([prior.argument], blockers=own))
        return [v for v in (*prior.model.free_RVs, *own) if v in behind]

    def at_own_rows(self) -> Callable[[Sequence[Array]], Array]:
        """Return the function of values of `variables` that makes (c, n) of them, at the rows that were fitted."""
        function = _function(self.variables, self._prior.argument)
        return lambda values: self._by_function(function(*values), self._prior.n_points)

    def at_new_rows(
        self, data: Mapping[str, ArrayLike] | None, count: int = 1
    ) -> tuple[int, Callable[[Sequence[Array]], Array]]:
        """Return the number of new rows m, and the function that makes (c, m). A single row is repeated `count` times.

        Raises
        ------
        StructureError
            If Gaussian processes are among the terms: their values at other inputs are not among draws.
        """
        prior = self._prior
        if prior.processes:
            raise StructureError(
                f"Draws have the values of {listing([latent.f for latent in prior.processes])} at the rows of the "
                "model alone. Predict by a fit, fit.predict, or by pm.sample_posterior_predictive."
            )
        new: NewData = repeated(prior.elsewhere(None, {}).rows(None, data or {}), count)
        given = {**new.by_row, **new.others}
        known = {name: prior.model[name] for name in given}
        there = {v: pt.tensor(name, dtype=v.dtype, shape=(None,) * v.ndim) for name, v in known.items()}
        argument = prior.argument if prior.everywhere is None else prior.everywhere
        (moved,) = graph_replace([argument], there, strict=False)
        function, m = _function([*self.variables, *there.values()], moved), len(new)
        unchecked = [there[known[name]] for name in new.by_row]

        def check(values: Sequence[Array]) -> None:
            """Refuse an argument whose rows depend on each other, given values of `variables`."""

            def partly(inputs: Sequence[Variable]) -> Callable[..., Any]:
                others = {v: given[name] for name, v in zip(given, there.values(), strict=True) if v not in inputs}
                made = _function([*self.variables, *others, *inputs], moved)
                return partial(made, *values, *others.values())

            axis = moved.ndim - 1 - prior.by_class
            rows = {v: np.asarray(known[v.name].get_value()) for v in unchecked}
            check_rows_apart(
                "Latent functions", moved, axis if axis >= 0 else None, rows, partly, stop=prior.model.basic_RVs
            )
            unchecked.clear()

        def at(values: Sequence[Array]) -> Array:
            if unchecked:
                check(values)
            try:
                return self._by_function(function(*values, *given.values()), m)
            except (ValueError, IndexError) as error:
                behind = [v.name for v in prior.model.data_vars if v in ancestors([argument]) and v.name not in given]
                more = f" It depends on {', '.join(map(repr, behind))} as well." if behind else ""
                raise ValueError(
                    f"The argument of the likelihood cannot be computed at {m} new rows from the data given.{more}"
                ) from error

        return m, at

    def _by_function(self, found: Any, n: int) -> Array:
        """Values of the argument as (c, n)."""
        prior = self._prior
        spread = np.broadcast_to(found, (n, prior.n_functions)[: 1 + prior.by_class])
        return np.asarray(spread.T if prior.by_class else spread[None], np.float64)


def _function(inputs: Sequence[Variable], output: Variable) -> Callable[..., Any]:
    made = GraphFunction(interpreted(inputs, [output]))
    return lambda *values: made(*values)[0]
