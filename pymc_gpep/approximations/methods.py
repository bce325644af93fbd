"""Table of the approximations by name, and of the likelihoods that each approximation supports."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, fields
from typing import Any, ClassVar, NamedTuple, Protocol

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.ep import EP
from pymc_gpep.approximations.kl import KL, QuadraticVB
from pymc_gpep.approximations.laplace import Laplace, LaplaceProbit, ScalarLaplace
from pymc_gpep.approximations.nested_ep import NestedEP, NoisyNestedEP, QEPSoftmax
from pymc_gpep.approximations.several_predictors import EPPredictors, KLPredictors, LaplacePredictors
from pymc_gpep.approximations.sparse_ep import SparseApproximation, SparseEP
from pymc_gpep.approximations.sparse_vi import SparseVI
from pymc_gpep.approximations.variational_bayes import VariationalBayes
from pymc_gpep.argument_types import check_name, did_you_mean, plain
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage, PredictorsDensity
from pymc_gpep.registry import Registry

COVARIANCE = """\
k : array (n, n) or (c, n, n)
    Prior covariance of the latent values, shared by the latent functions or one for each.
"""
"""Documentation of the covariance parameter of a function of arrays."""


class ArrayMethod(NamedTuple):
    """Method as a function of arrays, with parts of its documentation.

    Attributes
    ----------
    function : function
        Function of prior moments, labels, the name of a likelihood, and options.
    prior : str
        Docstring entries of the parameters for prior moments.
    more : str
        Docstring entries of the parameters after the name of the likelihood.
    arrays : str
        Code of the array arguments, for an example.
    number : str
        Name of an attribute of the solution, for an example.
    """

    function: Callable[..., Any]
    prior: str
    more: str
    arrays: str
    number: str


class FurtherMethod(ABC):
    """Options of a method that is neither in `APPROXIMATIONS` nor in `SPARSE_APPROXIMATIONS`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    name: ClassVar[str]
    by: ClassVar[str]
    """Text after "by" in messages, such as "active rows"."""
    example: ClassVar[str]
    """Code of options, for an example."""

    @classmethod
    @abstractmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Return whether the method fits a likelihood."""

    @classmethod
    @abstractmethod
    def on_arrays(cls) -> ArrayMethod:
        """Return the method as a function of arrays."""


_OWN: tuple[type[Approximator], ...] = (
    NestedEP,
    EP,
    EPPredictors,
    Laplace,
    QEPSoftmax,
    NoisyNestedEP,
    LaplaceProbit,
    ScalarLaplace,
    LaplacePredictors,
    VariationalBayes,
    KL,
    KLPredictors,
    QuadraticVB,
)


def _for_different_likelihoods(one: type[Approximator], other: type[Approximator]) -> bool:
    return not any(one.approximates(each) and other.approximates(each) for each in LIKELIHOODS)


APPROXIMATIONS: Registry[type[Approximator]] = Registry(
    "approximation", _OWN, of=Approximator, together=_for_different_likelihoods
)
"""Approximations that work on all rows together. Several approximations with one name support different likelihoods."""

SPARSE_APPROXIMATIONS: Registry[type[SparseApproximation]] = Registry(
    "sparse_approximation", (SparseEP, SparseVI), of=SparseApproximation, apart=[APPROXIMATIONS]
)
"""Approximations with inducing inputs."""

FURTHER_METHODS: Registry[type[FurtherMethod]] = Registry(
    "method", (), of=FurtherMethod, apart=[APPROXIMATIONS, SPARSE_APPROXIMATIONS]
)
"""Methods that other modules register, such as active rows. They do not use a matrix of all rows."""

METHODS = APPROXIMATIONS.names
"""Names for `pm.fit(method=...)` of methods that work on all rows together."""


def approximator(
    method: str | None,
    likelihood: Likelihood,
    options: dict[str, Any],
    besides: str = "",
    others: Collection[str] = (),
    singular: bool = False,
) -> Approximator:
    """Return the approximation that a method uses for a likelihood.

    Parameters
    ----------
    method : str or None
        Name in `METHODS`, in upper or lower case; None stands for the default of the likelihood.
    likelihood : Likelihood
        Likelihood of the posterior.
    options : dict
        Options of the approximation.
    besides : str
        Text with other options of the caller, for the message about an unknown option.
    others : collection of str
        Names of the other options of the caller, for a suggestion.
    singular : bool
        Whether the prior is of a sum of effects and processes, for the message about an unsuitable method.

    Raises
    ------
    ValueError
        If the method is unknown, or does not support the likelihood.
    TypeError
        If an option is not an option of the approximation.
    """
    fitting = {kind.name: kind for kind in APPROXIMATIONS if kind.approximates(likelihood)}
    method = (method or likelihood.method).lower()
    check_name("method", method, METHODS)
    if method not in fitting:
        named = [kind for kind in APPROXIMATIONS if kind.name == method]
        raise ValueError(
            _refusal(
                method,
                lambda each: any(kind.approximates(each) for kind in named),
                likelihood,
                _names(likelihood, singular),
            )
        )
    own = {each.name for each in fields(fitting[method])}
    for option in options.keys() - own:
        theirs = [kind for kind in APPROXIMATIONS if kind.name == method and option in {f.name for f in fields(kind)}]
        if theirs:
            names = ", ".join(each.name for each in LIKELIHOODS if any(kind.approximates(each) for kind in theirs))
            raise TypeError(f"{method} has the option {option} for {names}, not for {likelihood.name}.")
    return with_options(fitting[method], options, besides, others)


def takes_predictors(method: str) -> bool:
    """Return whether a method supports likelihoods of several linear predictors."""
    return any(kind.name == method.lower() and PredictorsDensity in kind.needs for kind in APPROXIMATIONS)


def takes_bounds(method: str | None) -> bool:
    """Return whether a method supports priors of effects with a bound; None stands for the default method."""
    return any(
        kind.name == (method or kind.name).lower() and kind.needs == (GaussianAverage,) for kind in APPROXIMATIONS
    )


def likelihood_named(name: str) -> Likelihood:
    """Return the likelihood with this name; raise a ValueError if it is unknown."""
    check_name("likelihood", name, LIKELIHOODS.names)
    return LIKELIHOODS[name]


def check_fits(method: str, fits: Callable[[Likelihood], bool], likelihood: Likelihood, singular: bool = False) -> None:
    """Raise a ValueError unless a method supports a likelihood. The message lists the supporting methods.

    For the `singular` prior of a sum, the message omits methods that invert it or have no matrix of all rows.
    """
    if not fits(likelihood):
        names = _names(likelihood, singular)
        if not singular:
            names += [kind.name for kind in SPARSE_APPROXIMATIONS if kind.approximates(likelihood)]
            names += [kind.name for kind in FURTHER_METHODS if kind.approximates(likelihood)]
        raise ValueError(_refusal(method, fits, likelihood, names))


def _names(likelihood: Likelihood, singular: bool) -> list[str]:
    """Return names of the methods that work on all rows and support a likelihood."""
    kinds = [kind for kind in APPROXIMATIONS if kind.approximates(likelihood)]
    return [kind.name for kind in kinds if not (singular and kind.inverts_prior)]


def _refusal(method: str, fits: Callable[[Likelihood], bool], likelihood: Likelihood, names: Iterable[str]) -> str:
    """Return an error message: likelihoods that the method supports, and methods that support this likelihood."""
    theirs = ", ".join(each.name for each in LIKELIHOODS if fits(each))
    effects = likelihood.effects
    kept = f" Or keep the effects with non-normal priors at their maximum: hyperparameters={effects}." * bool(effects)
    return (
        f"method {method!r} supports these likelihoods: {theirs}. The likelihood of the model is {likelihood.name}. "
        f"Methods for this likelihood are {', '.join(map(repr, names))}.{kept}{likelihood.refused}"
    )


class _Options(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    name: ClassVar[str]

    def __init__(self, **options: Any) -> None: ...


def with_options[A: _Options](
    kind: type[A], options: Mapping[str, Any], besides: str = "", others: Collection[str] = ()
) -> A:
    """Return an approximation with its options; raise the TypeError of `approximator` for an unknown option."""
    known = [field.name for field in fields(kind)]
    if unknown := sorted(set(options) - set(known)):
        elsewhere = [name for name in unknown if name in others]
        advice = did_you_mean([name for name in unknown if name not in elsewhere], [*known, *others])
        if elsewhere:
            ways = ["'sparse_ep' uses inducing inputs or batches"]
            ways += [f"{other.name!r} by {other.by}" for other in FURTHER_METHODS]
            advice += f" Other methods support {', '.join(elsewhere)}: {', '.join(ways)}."
        listed = ", ".join(known)
        raise TypeError(f"{kind.name} has no option {', '.join(unknown)}. Options: {listed}{besides}.{advice}")
    return kind(**plain(options))
