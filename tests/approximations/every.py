"""Every approximation with every likelihood that it supports, for tests of properties that all of them share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from pymc_gpep.approximations import APPROXIMATIONS, Approximator, Solution
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rivals.computations import DifferenceQuadrature
from pymc_gpep.rivals.factorial_variational import FactorialVariational
from pymc_gpep.rivals.qep import QEP

__all__ = [
    "EVERY",
    "FUNCTION_PER_CLASS",
    "Case",
    "approximations",
    "in_turn",
    "of_functions_per_class",
    "of_symmetric_links",
    "with_one_of",
]

VARIANTS = [QEP(full=True)]
"""Approximations whose options select another algorithm."""


class Case(NamedTuple):
    """An approximation and a likelihood that it supports."""

    approximator: Approximator
    likelihood: Likelihood

    def __str__(self) -> str:
        changed = [name for name, value in self.options.items() if value is True]
        return "-".join([type(self.approximator).__name__, *changed, self.likelihood.name])

    @property
    def options(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        default = type(self.approximator)()
        return {name: value for name, value in vars(self.approximator).items() if value != getattr(default, name)}

    @property
    def by_quadrature(self) -> bool:
        """Whether a quadrature in several dimensions computes tilted moments.

        The quadrature depends on the order of the classes. It needs cavities of full rank and few classes.
        """
        return DifferenceQuadrature in self.approximator.needs

    @property
    def needs_inverse(self) -> bool:
        """Whether a singular prior covariance is refused."""
        return isinstance(self.approximator, FactorialVariational)

    @property
    def n_functions(self) -> int:
        """A valid number of latent functions."""
        return 3 if self.likelihood.function_axis else 1

    @property
    def n_classes(self) -> int:
        """Number of classes for `n_functions` functions."""
        return self.likelihood.n_classes(self.n_functions)

    def __call__(self, **options: Any) -> "Case":
        """Return the case with other options."""
        return self._replace(approximator=replace(self.approximator, **options))

    def solve(self, *arguments: Any, **keywords: Any) -> Solution:
        return self.approximator.solve(*arguments, likelihood=self.likelihood, **keywords)

    def run(self, *arguments: Any, **keywords: Any) -> Any:
        return self.approximator.run(*arguments, likelihood=self.likelihood, **keywords)

    def response(self, solution: Solution) -> Any:
        return self.approximator.response(solution)

    @property
    def start_size(self) -> Callable[[int, int], int]:
        return self.approximator.start_size


EVERY = [
    Case(approximator, likelihood)
    for likelihood in LIKELIHOODS
    for approximator in [*(kind() for kind in APPROXIMATIONS), *VARIANTS]
    if approximator.approximates(likelihood) and not likelihood.has_parameters and likelihood.observes_classes(2)
]
approximations = pytest.mark.parametrize("approximation", EVERY, ids=str)


def in_turn(cases: int, values: int) -> list[tuple[int, int]]:
    """Pairs (case, value), such that each case has a value and each value has a case.

    Values are assigned with a step between cases, so that each value has cases of several kinds.
    """
    step = next(step for step in (5, 7, 11) if cases % step)
    return [(step * i % cases, i % values) for i in range(max(cases, values))]


def with_one_of(
    name: str, values: Sequence[Any], ids: Iterable[str] | None = None, among: Sequence[Case] = EVERY
) -> pytest.MarkDecorator:
    """Each approximation with one of the values in turn, for checks that are the same for all approximations."""
    names = list(map(str, values)) if ids is None else list(ids)
    return pytest.mark.parametrize(
        ("approximation", name),
        [pytest.param(among[a], values[v], id=f"{among[a]}-{names[v]}") for a, v in in_turn(len(among), len(values))],
    )


FUNCTION_PER_CLASS = [case for case in EVERY if case.likelihood.function_axis]
of_functions_per_class = pytest.mark.parametrize("approximation", FUNCTION_PER_CLASS, ids=str)
"""Approximations of likelihoods with a latent function for each class."""
of_symmetric_links = pytest.mark.parametrize(
    "approximation", [case for case in EVERY if case.likelihood.name in ("probit", "logit")], ids=str
)
"""Approximations of two classes whose likelihood is symmetric."""
