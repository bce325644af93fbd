"""Methods of `pm.fit` as functions of arrays: one function for each method, with all its likelihoods.

Each function selects an approximation by the method's name and the likelihood. Options of the approximation are keyword
arguments of the function.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import options_of
from pymc_gpep.approximations.methods import (
    APPROXIMATIONS,
    COVARIANCE,
    FURTHER_METHODS,
    SPARSE_APPROXIMATIONS,
    FurtherMethod,
    approximator,
    check_fits,
    likelihood_named,
    with_options,
)
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.approximations.sparse_ep import InducedArrays, SparseApproximation, SparseSolution
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.registry import Names

__all__ = ["ep", "kl", "laplace", "nested_ep", "qep", "sparse_ep", "sparse_vi", "vb"]

_INDUCING = """\
inducing : array (M, M) or (c, M, M)
    Prior covariance of the inducing values, one for all latent functions, or one for each.
cross : array (M, n) or (c, M, n)
    Prior covariance between inducing values and latent values.
variance : array (n,) or (c, n)
    Prior variance of the latent values.
"""
_OBSERVED = """\
mean : array (c, n), or (n,) for one latent function
    Prior mean of the latent values.
labels : array (n,)
    Observations. Classes are counted from 0.
likelihood : {{{likelihoods}}}
    Name of the likelihood.
"""
_START = """\
start : array, optional
    `start` of the solution of a similar problem. Without it, the solver begins at its default sites.
"""
_PARAMETERS = """\
parameters : array (p, n), optional
    Parameters of the likelihood at each point, in addition to latent values. The rows are:
    {rows}. An offset is the logarithm of an exposure. The bounds lower and upper
    limit a censored observation, and are infinite for an uncensored observation.
"""
_RAISES = """\
Raises
------
ValueError
    If shapes do not agree, numbers are not finite, or labels are not classes. If the method does not fit the
    likelihood, or the value of an option is outside its limits.
TypeError
    If the method does not have an option.
"""


def _on_dense(name: str) -> Callable[..., Solution]:
    """Return a function of arrays for the method `name` with a prior covariance matrix."""

    def method(
        k: ArrayLike,
        mean: ArrayLike,
        labels: ArrayLike,
        likelihood: str,
        *,
        parameters: ArrayLike | None = None,
        start: Array | None = None,
        **options: Any,
    ) -> Solution:
        found = likelihood_named(likelihood)
        solver = approximator(name, found, options)
        matrix, centre = np.asarray(k, np.float64), np.atleast_2d(np.asarray(mean, np.float64))
        return solver.solve(
            matrix, centre, np.asarray(labels), start, likelihood=_bound(found, parameters, labels, *centre.shape)
        )

    kinds = [kind for kind in APPROXIMATIONS if kind.name == name]
    of_one = not kinds[0].first_likelihood().function_axis
    arrays = "K, mean[0], y == 2" if of_one else "K, mean, y"
    return _documented(method, name, kinds, COVARIANCE, _PARAMETERS + _START, arrays, "log_evidence")


def _on_inducing(name: str) -> Callable[..., SparseSolution]:
    """Return a function of arrays for the method `name` with inducing inputs."""
    kind = SPARSE_APPROXIMATIONS[name]

    def method(
        inducing: ArrayLike,
        cross: ArrayLike,
        variance: ArrayLike,
        mean: ArrayLike,
        labels: ArrayLike,
        likelihood: str,
        *,
        parameters: ArrayLike | None = None,
        start: Array | None = None,
        **options: Any,
    ) -> SparseSolution:
        found = likelihood_named(likelihood)
        check_fits(name, kind.approximates, found)
        prior, solver = InducedArrays(inducing, cross, variance, mean), with_options(kind, options)
        bound = _bound(found, parameters, labels, prior.n_functions, prior.n_points)
        return solver.solve(prior, labels, start, likelihood=bound)

    arrays = "K[:5, :5], K[:5], K.diagonal(), mean, y"
    return _documented(method, name, [kind], _INDUCING, _PARAMETERS + _START, arrays, "objective")


def _further(name: str) -> Callable[..., Any]:
    """Return a function of arrays for the method `name` of `FURTHER_METHODS`."""
    kind = FURTHER_METHODS[name]
    function, prior, more, arrays, number = kind.on_arrays()
    return _documented(function, name, [kind], prior, more, arrays, number)


def _bound(likelihood: Likelihood, parameters: ArrayLike | None, labels: ArrayLike, c: int, n: int) -> Likelihood:
    """Check parameters and labels for c latent functions at n points. Return the likelihood with these parameters."""
    found = likelihood.given(likelihood.checked_parameters(parameters, n))
    found.check_parameters(found.check(labels, c, n), "labels")
    return found


def _docstring(kind: type) -> str:
    """Return the docstring of a class; empty if it is the signature that Python generates for a dataclass."""
    written = inspect.getdoc(kind) or ""
    return "" if written.startswith(f"{kind.__name__}(") else written


type _Kind = type[Approximator | SparseApproximation | FurtherMethod]


def _documented[F: Callable[..., Any]](
    method: F, name: str, kinds: Sequence[_Kind], prior: str, more: str, arrays: str, number: str
) -> F:
    """Return the function with a signature and a docstring made from its approximations."""
    theirs = {kind: [each.name for each in LIKELIHOODS if kind.approximates(each)] for kind in kinds}
    words: list[str] = []
    options: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    for kind, names in theirs.items():
        own = _docstring(kind)
        text = own.partition("Parameters\n")[0].partition("Examples\n")[0].strip()
        words += [f"For {', '.join(names)}:", text] if len(kinds) > 1 else [text.partition("\n\n")[2]]
        defaults |= {option.name: option.default for option in fields(kind) if option.name not in defaults}
        for listed, described in options_of(own).items():
            lacks = [other for other in kinds if listed.split(", ")[0] not in {each.name for each in fields(other)}]
            options.setdefault(listed, described + f"    Only for {', '.join(names)}.\n" * bool(lacks))
    likelihoods = ", ".join(f'"{each}"' for names in theirs.values() for each in names)
    first = next(iter(theirs.values()))[0]
    with_rows = [each for each in LIKELIHOODS if each.rows and any(each.name in names for names in theirs.values())]
    rows = "; ".join(f"{each.name}: {', '.join(each.rows)}" for each in with_rows)
    given = prior + _OBSERVED.format(likelihoods=likelihoods) + more.format(rows=rows) + "".join(options.values())
    summary = _docstring(kinds[0]).partition("\n\n")[0]
    signature = inspect.signature(method)
    method.__doc__ = (
        "\n\n".join(filter(None, [summary, f"The method {name!r} of `pm.fit` on arrays.", *words]))
        + f"\n\nParameters\n----------\n{given}\nReturns\n-------\n{signature.return_annotation.__name__}\n\n"
        + f"{_RAISES}\nExamples\n--------\n"
        + f'>>> solution = gpep.methods.{name}({arrays}, "{first}")\n>>> solution.{number}\n'
    )
    method.__name__ = method.__qualname__ = name
    method.__module__ = __name__
    arguments = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    keywords = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default)
        for option, default in defaults.items()
    ]
    method.__signature__ = signature.replace(parameters=[*arguments, *keywords])  # type: ignore[attr-defined]  # `help` reads it
    return method


_MAKERS = ((APPROXIMATIONS, _on_dense), (SPARSE_APPROXIMATIONS, _on_inducing), (FURTHER_METHODS, _further))


@cache
def _made(name: str, _tables: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the function of a method. It is cached for the current contents of the tables."""
    return next(maker(name) for table, maker in _MAKERS if name in table.names)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in __dir__():
        module = sys.modules[__name__]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=module)
    return _made(name, (*APPROXIMATIONS, *SPARSE_APPROXIMATIONS, *FURTHER_METHODS, *LIKELIHOODS))


def __dir__() -> list[str]:
    """Names of all methods, registered methods included."""
    return sorted(Names(APPROXIMATIONS, SPARSE_APPROXIMATIONS, FURTHER_METHODS))


if TYPE_CHECKING:  # These functions are made on demand by `__getattr__`.
    nested_ep: Callable[..., Solution]
    qep: Callable[..., Solution]
    ep: Callable[..., Solution]
    laplace: Callable[..., Solution]
    vb: Callable[..., Solution]
    kl: Callable[..., Solution]
    sparse_ep: Callable[..., SparseSolution]
    sparse_vi: Callable[..., SparseSolution]
