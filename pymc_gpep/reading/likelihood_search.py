"""The likelihoods of a model among its observed variables, and several observed variables read as one."""

from collections.abc import Collection, Mapping, Sequence, Set
from typing import NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LogNormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.graphs.affine import Affinity
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.latent.gp_latent import as_it_is, instead_of_likelihood, latents_among
from pymc_gpep.latent.missing_responses import MissingResponses, missing_responses
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood, Reading
from pymc_gpep.likelihoods.observed import to_one_axis
from pymc_gpep.likelihoods.stacked import StackedLikelihood
from pymc_gpep.recipes import why_no_recipes
from pymc_gpep.univariate.likelihood import ANY_UNIVARIATE


class FoundLikelihood(NamedTuple):
    """An observed variable that can be read."""

    likelihood: Likelihood
    variable: TensorVariable
    reading: Reading


def find_likelihoods(model: pm.Model, name: str | None, gaussian: Set[Variable]) -> list[FoundLikelihood]:
    """Return the likelihoods that can be read, or the one of the given name; `gaussian` may be integrated.

    Raises
    ------
    StructureError
        If there is no likelihood to read, or if there are several that are not fitted together.
    """
    missing = missing_responses(model)
    if name not in {None, *(rv.name for rv in model.basic_RVs), *(each.name for each in missing.values())}:
        raise StructureError(
            f"likelihood={name!r} is not a variable of the model. Observed variables are "
            f"{listing(model.observed_RVs)}.{did_you_mean([name], [rv.name for rv in model.observed_RVs])}"
        )
    found: dict[str, FoundLikelihood] = {}
    processes = {latent.f for latent in latents_among([*model.free_RVs, *model.deterministics], model)}
    latents = processes | gaussian
    unobserved = []
    refused: list[TensorVariable] = []
    apart = {each.unobserved for each in missing.values()}
    for rv in model.basic_RVs:
        if rv in apart:
            continue
        read = _first_reading(rv, latents, missing) or _first_reading(rv, processes, missing)
        if read is None:
            refused += [rv] * (rv in model.observed_RVs)
        elif rv in model.observed_RVs:
            found[rv.name] = read
        else:
            unobserved.append(rv)
    if name is not None:
        called = {each.observed.name: each.name for each in missing.values()}
        found = {key: each for key, each in found.items() if name in (key, called.get(key))}
        refused = [rv for rv in refused if name in (rv.name, called.get(rv.name))] or refused
    by_class = [each for each in found.values() if each.likelihood.function_axis]
    if not found or (name is None and not by_class):
        found |= _other_readings(refused, latents, processes, missing)
    if not found:
        raise StructureError(_no_likelihood(model, name, latents, unobserved, refused))
    if by_class and len(found) > 1:
        names = ", ".join(map(repr, found))
        raise StructureError(
            f"The model has several observed variables that can be read, {names}. They are fitted together where each "
            f"has one latent function, but {listing(each.variable for each in by_class)} has one for each class. "
            f"Choose one, likelihood={next(iter(found))!r}, or take the others out of the model. {as_it_is(model)}"
        )
    return [found[rv.name] for rv in model.basic_RVs if rv.name in found]


def _other_readings(
    variables: Sequence[TensorVariable],
    latents: Set[Variable],
    processes: Set[Variable],
    missing: Mapping[TensorVariable, MissingResponses],
) -> dict[str, FoundLikelihood]:
    """Return what is read of observed variables by their log density alone; classes are no numbers."""
    found = {}
    for rv in variables:
        whole = missing[rv].whole if rv in missing else rv
        if any(each.may_be(whole) and each.n_classes(2 if each.function_axis else 1) for each in LIKELIHOODS):
            continue
        for sources in (latents, processes):
            reading = read_response(ANY_UNIVARIATE, rv, frozenset(sources), missing.get(rv))
            if reading is not None:
                found[rv.name] = FoundLikelihood(reading.likelihood or ANY_UNIVARIATE, rv, reading)
                break
    return found


def _first_reading(
    rv: TensorVariable, latents: Set[Variable], missing: Mapping[TensorVariable, MissingResponses]
) -> FoundLikelihood | None:
    """Return the first likelihood that fits a random variable; None if there is no such likelihood."""
    for likelihood in LIKELIHOODS:
        # With more axes PyMC has given them to the parameters, too.
        if rv.ndim > likelihood.observed_axes:
            continue
        if (reading := read_response(likelihood, rv, frozenset(latents), missing.get(rv))) is not None:
            return FoundLikelihood(likelihood, rv, reading)
    return None


def read_response(
    likelihood: Likelihood, rv: TensorVariable, latents: frozenset[Variable], missing: MissingResponses | None
) -> Reading | None:
    """Return what a random variable is given at rows that have a response; None if its likelihood is another one."""
    return likelihood.read(rv, latents) if missing is None else missing.read(likelihood, latents)


def _no_likelihood(
    model: pm.Model,
    name: str | None,
    latents: Set[Variable],
    unobserved: Sequence[TensorVariable],
    refused: Sequence[TensorVariable],
) -> str:
    """Say why none of the observed variables is a likelihood that can be read."""
    near: dict[str, None] = {}
    for rv in sorted(refused, key=lambda rv: latents.isdisjoint(ancestors([rv]))):
        likely = [likelihood for likelihood in LIKELIHOODS if likelihood.may_be(rv)]
        random = [each for each in ancestors([rv]) if each in model.basic_RVs and each is not rv]
        if likely and rv.ndim > likely[0].observed_axes and not near:
            (labels,) = evaluate([model.rvs_to_values[rv]])
            values = "" if likely[0].function_axis else ", and latent values of one axis, f as gp.prior(...) returns it"
            return (
                f"{rv.name!r} is observed with shape {labels.shape}, but must have one label for each point, in one "
                f"axis{values}.{to_one_axis(labels.shape, likely[0].n_classes(1) > 0)}"
            )
        if likely and random and latents.isdisjoint(ancestors([rv])) and not near:
            return (
                f"The argument of {rv.name!r} must be made of Gaussian variables, but is made of {listing(random)}. "
                f"{why_no_recipes(random, model)} {as_it_is(model)}"
            )
        each = [*likely, ANY_UNIVARIATE]
        whys = [why for likelihood in each if (why := likelihood.why_not(rv, latents))] or [instead_of_likelihood(rv)]
        near |= dict.fromkeys(whys[:1])
    named = "" if name is None else f" named {name!r}"
    advice, observed = " ".join(filter(None, near)), listing(model.observed_RVs)
    sentences = [
        f"The model has no likelihood to read{named}: "
        + (f"its observed variables are {observed}." if model.observed_RVs else "no variable is observed."),
        "" if model.observed_RVs else _unobserved(unobserved),
        advice,
        *_log_normals(model, refused),
        as_it_is(model) if near else "",
    ]
    if model.observed_RVs and not advice:
        sentences.append(f"Likelihoods are {', '.join(each.written for each in (*LIKELIHOODS, ANY_UNIVARIATE))}.")
    return " ".join(filter(None, sentences))


def _unobserved(variables: Sequence[TensorVariable]) -> str:
    """Say which variables may be the response, where a model has no observed variable."""
    if variables:
        return f"{listing(variables)} is not observed: give it the labels, observed=y."
    return "Give the response to its distribution: observed=y."


def _log_normals(model: pm.Model, refused: Sequence[TensorVariable]) -> list[str]:
    """Return how log-normal variables behind a refused response are written by normals."""
    behind = set(ancestors(refused))
    return [
        f"{rv.name!r} is not Gaussian, and its logarithm is: add mu + tau * z with z = pm.Normal('z', shape=...) "
        "within the exponential."
        for rv in model.free_RVs
        if rv in behind and isinstance(rv.owner.op, LogNormalRV)
    ]


class StackedResponses:
    """Observed variables that are fitted together.

    Parameters
    ----------
    model : pm.Model
    found : sequence of FoundLikelihood
        Likelihoods of one latent function.
    missing : mapping
        Missing responses by observed variable.

    Attributes
    ----------
    variables : list of TensorVariable
        The observed variables.
    values : list of TensorVariable
        Observations of each.
    sizes : list of int
        How many rows with a response each has.
    """

    def __init__(
        self, model: pm.Model, found: Sequence[FoundLikelihood], missing: Mapping[TensorVariable, MissingResponses]
    ) -> None:
        self._found, self._missing = found, missing
        self.variables = [each.variable for each in found]
        self.values = [model.rvs_to_values[each] for each in self.variables]
        self.sizes = [int(n) for n in evaluate([v.size for v in self.values])]

    def readings(self, sources: Collection[Variable]) -> list[Reading | None]:
        """Return what each variable is given; None where the argument cannot be told from other parameters."""
        known = frozenset(sources)
        return [
            read_response(each.likelihood, each.variable, known, self._missing.get(each.variable))
            for each in self._found
        ]

    def read(self, sources: Collection[Variable]) -> Reading | None:
        """Return what those are given together whose argument can be told; None if there is no such variable."""
        readings = self.readings(sources)
        return self.together(readings) if any(readings) else None

    def together(self, readings: Sequence[Reading | None]) -> Reading:
        """Return one reading of those of the variables."""
        told = [each for each in zip(readings, self._found, self.sizes, strict=True) if each[0] is not None]
        made = [parameters_at_points(reading, n) for reading, _, n in told if reading is not None]
        arguments = [reading.argument.astype("float64") + pt.zeros(n) for reading, _, n in told if reading is not None]
        likelihood = StackedLikelihood(
            parts=tuple((reading and reading.likelihood) or each.likelihood for reading, each, _ in told),
            counts=tuple(count for _, count in made),
        )
        parameters = likelihood.together([each for each, _ in made])
        return Reading(pt.concatenate(arguments), parameters, likelihood=likelihood.at_rows([n for *_, n in told]))

    def observed(self) -> TensorVariable:
        """Return all observations as numbers, (n,)."""
        return pt.concatenate([each.astype("float64") for each in self.values])

    def apart(self, sources: frozenset[Variable]) -> list[FoundLikelihood]:
        """Return those whose argument cannot be told, or depends on no variable that is integrated."""
        affinity = Affinity(sources)
        pairs = zip(self._found, self.readings(sources), strict=True)
        return [each for each, reading in pairs if reading is None or not affinity.behind(reading.argument)]


def parameters_at_points(reading: Reading, n_points: int) -> tuple[TensorVariable, int]:
    """Return parameters of a likelihood at every point (p, n), and p."""
    if reading.parameters is None:
        return pt.zeros((0, n_points)), 0
    (shape,) = evaluate(get_symbolic_rv_shapes([reading.parameters]))
    count = int(shape[0])
    return pt.broadcast_to(reading.parameters, (count, n_points)).astype("float64"), count
