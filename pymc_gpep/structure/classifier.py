"""Reading a whole model: its likelihood, the latent functions behind it, and what is left as hyperparameters."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Observed
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.gaussians.whitening import Sampled
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood, Reading
from pymc_gpep.likelihoods.observed_classes import missing_labels, to_one_axis
from pymc_gpep.likelihoods.observed_numbers import rows_text
from pymc_gpep.structure.alternatives import as_it_is, instead_of_likelihood
from pymc_gpep.structure.assembly import Dims, read_assembly
from pymc_gpep.structure.elementwise import is_elementwise
from pymc_gpep.structure.errors import NotProcessesAloneError, StructureError, listing
from pymc_gpep.structure.integrated import Gaussians, gaussians_of
from pymc_gpep.structure.integrated_variables import IntegratedVariables
from pymc_gpep.structure.interpreted import evaluate
from pymc_gpep.structure.latent import LatentGP, latents_among
from pymc_gpep.structure.latent_prior import Elsewhere, LatentPrior, RowsBeside
from pymc_gpep.structure.latent_sum import LatentSum
from pymc_gpep.structure.lowered_dims import lower_dims
from pymc_gpep.structure.missing_responses import MissingResponses, missing_responses, unobserved_responses
from pymc_gpep.structure.processes import GPModel, check_priors, refuse_what_was_made, with_functions
from pymc_gpep.structure.recipes import why_no_recipes
from pymc_gpep.structure.sampled_values import SampledValues
from pymc_gpep.structure.sum_reading import read_sum
from pymc_gpep.structure.univariate.likelihood import ANY_UNIVARIATE

__all__ = ["GPClassifier", "read_classifier"]


@dataclass(frozen=True, eq=False)
class GPClassifier(LatentPrior):
    """The kind of a model, read from its graph: latent functions with a Gaussian prior, and observations given them.

    A classifier has all attributes of its prior; functions are in the order in which the likelihood takes them.

    Attributes
    ----------
    prior : LatentPrior
        The prior of the latent functions.
    likelihood_model : Likelihood
        The likelihood of the observations.
    likelihood : TensorVariable, shape (n,)
        The observed random variable.
    labels : TensorVariable, shape (n,), or (n, c) where there is a number for each class
        Value of `likelihood`: a constant, or the shared variable of `pm.Data`.
    parameters : TensorVariable, shape (p, n)
        Parameters of the likelihood besides latent values, a function of hyperparameters; p is 0 for most.
    given : TensorVariable, shape (p, rows) or (p, 1), or None
        The same parameters as they stand in the model at all rows, in terms of its data; None without parameters.
    class_dim, point_dim : str or None
        Names of the axes, where the model names them (`dims`).
    class_labels : tuple or None
        Coordinates of `class_dim`, in the order of the classes 0..c-1.
    asked : tuple of str
        Names of Gaussian variables that stay hyperparameters because a user said so.
    missing : MissingResponses or None
        Where responses of some rows are missing: points are then the rows that have one.

    Examples
    --------
    >>> gpep.read_classifier(model).n_points
    30
    """

    prior: LatentPrior
    likelihood_model: Likelihood
    likelihood: TensorVariable
    labels: TensorVariable
    parameters: TensorVariable
    given: TensorVariable | None
    unbounded: TensorVariable | None
    class_dim: str | None
    point_dim: str | None
    class_labels: tuple[object, ...] | None
    asked: tuple[str, ...] = ()
    missing: MissingResponses | None = None

    @property
    def model(self) -> pm.Model:
        """The model."""
        return self.prior.model

    @property
    def n_points(self) -> int:  # type: ignore[override]
        """Number of points, n."""
        return self.prior.n_points

    @property
    def n_functions(self) -> int:  # type: ignore[override]
        """Number of latent functions, c."""
        return self.prior.n_functions

    @property
    def n_rows(self) -> int:
        """Number of rows of the data, those without a response among them."""
        return self.n_points if self.missing is None else self.missing.n_rows

    @property
    def response(self) -> str:
        """Name that the user gave to what was observed."""
        return str(self.likelihood.name) if self.missing is None else self.missing.name

    def coords_of_points(self) -> NDArray[Any] | None:
        """Return the coordinates (n,) that the model has for its points."""
        labels = self.model.coords.get(self.point_dim) if self.point_dim else None
        if labels is None:
            return None
        return np.asarray(labels) if self.missing is None else np.asarray(labels)[self.missing.fitted]

    @property
    def latents(self) -> tuple[LatentGP, ...]:  # type: ignore[override]
        """See `LatentPrior`."""
        return self.prior.latents

    @property
    def processes(self) -> tuple[LatentGP, ...]:  # type: ignore[override]
        """See `LatentPrior`."""
        return self.prior.processes

    @property
    def integrated(self) -> tuple[TensorVariable, ...]:
        """See `LatentPrior`."""
        return self.prior.integrated

    @property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        """See `LatentPrior`."""
        return self.prior.hyperparameters

    @property
    def learned_parameters(self) -> list[TensorVariable]:
        """Hyperparameters that parameters of the likelihood depend on."""
        behind = set(ancestors([self.parameters]))
        return [each for each in self.hyperparameters if each in behind]

    @property
    def held(self) -> tuple[TensorVariable, ...]:
        """See `LatentPrior`."""
        return self.prior.held

    @property
    def inputs(self) -> list[str]:
        """See `LatentPrior`."""
        return self.prior.inputs

    def elsewhere(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> Elsewhere:
        """See `LatentPrior`."""
        return self.prior.elsewhere(gps, data)

    @property
    def effects(self) -> tuple[TensorVariable, ...]:
        """See `LatentPrior`."""
        return self.prior.effects

    def beside(self, inputs: TensorVariable, data: Mapping[Variable, Variable]) -> RowsBeside | None:
        """See `LatentPrior`."""
        return self.prior.beside(inputs, data)

    @property
    def implicit(self) -> tuple[TensorVariable, ...]:
        """See `LatentPrior`."""
        return self.prior.implicit

    @property
    def singular(self) -> bool:
        """See `LatentPrior`."""
        return self.prior.singular

    @property
    def described(self) -> str:
        """See `LatentPrior`."""
        return self.prior.described

    def covariance(self) -> TensorVariable:
        """See `LatentPrior`."""
        return self.prior.covariance()

    def covariances(self) -> TensorVariable:
        """See `LatentPrior`."""
        return self.prior.covariances()

    def mean(self) -> TensorVariable:
        """See `LatentPrior`."""
        return self.prior.mean()

    def latent_values(self) -> TensorVariable:
        """See `LatentPrior`."""
        return self.prior.latent_values()

    @property
    def arrays(self) -> Mapping[type[DensePrior], Callable[[], TensorVariable]]:
        """See `LatentPrior`."""
        return self.prior.arrays

    def bound(
        self, prior_type: type[DensePrior], data: Mapping[Variable, Variable]
    ) -> tuple[Any, TensorVariable] | None:
        """See `LatentPrior`."""
        return self.prior.bound(prior_type, data)

    @property
    def n_normals(self) -> int:
        """See `LatentPrior`."""
        return self.prior.n_normals

    def roots(self) -> TensorVariable | None:
        """See `LatentPrior`."""
        return self.prior.roots()

    def supported(self) -> TensorVariable | None:
        """See `LatentPrior`."""
        return self.prior.supported()

    def variables(self, data: Mapping[Variable, Variable]) -> IntegratedVariables:
        """See `LatentPrior`."""
        return self.prior.variables(data)

    @property
    def sampled_type(self) -> type[Sampled]:
        """See `LatentPrior`."""
        return self.prior.sampled_type

    def sampled(self, data: Mapping[Variable, Variable]) -> SampledValues:
        """See `LatentPrior`."""
        return self.prior.sampled(data)

    @property
    def n_classes(self) -> int:
        """Number of classes that a label may be."""
        return self.likelihood_model.n_classes(self.n_functions)

    @property
    def observes_classes(self) -> bool:
        """Whether an observation is one of the classes."""
        return self.likelihood_model.observes_classes(self.n_functions)

    @property
    def class_names(self) -> list[object]:
        """Return the names of the classes: the labels of the model, or numbers."""
        return list(self.class_labels or range(self.n_classes))

    @property
    def function_dims(self) -> tuple[str, ...]:
        """Name of the axis of latent functions; none where a point has one function and no axis for it."""
        return (self.class_dim or "class",) if self.likelihood_model.function_axis else ()

    @property
    def kind(self) -> str:
        """Name of the likelihood."""
        return self.likelihood_model.name


def read_classifier(
    model: pm.Model,
    likelihood: str | None = None,
    hyperparameters: Sequence[str] = (),
    *,
    means: bool = False,
) -> GPClassifier:
    """Read from the graph of a model what its likelihood is, and the Gaussian prior of its latent functions.

    Parameters
    ----------
    model : pm.Model
        A model with one likelihood whose argument is affine in Gaussian variables, such as `pm.gp.Latent` priors. One
        of `pymc.dims` is read as `lower_dims` makes it.
    likelihood : str, optional
        Name of the likelihood, needed if the model has several.
    hyperparameters : sequence of str
        Names of Gaussian variables that are not to be integrated.
    means : bool
        Whether Gaussian variables in the means of Gaussian processes are integrated where latent functions are these
        processes alone. In sums with other effects they always are.

    Returns
    -------
    GPClassifier

    Raises
    ------
    StructureError
        If the model is not such a classifier. The message says what was looked for, what was found instead, and what
        to change.

    Examples
    --------
    >>> gpep.read_classifier(model).n_points
    30
    """
    refuse_what_was_made(model)
    model = lower_dims(model)
    gaussians = gaussians_of(model, hyperparameters)
    likelihood_model, rv, reading = _find_likelihood(model, likelihood, gaussians.sources)
    missing = missing_responses(model).get(rv)
    _check_missing(model, missing)
    prior, reading, dims = _read_prior(model, gaussians, likelihood_model, rv, reading, means, missing)
    likelihood_model = reading.likelihood or likelihood_model
    _check_apart(prior, rv, reading)
    parameters, count = _parameters(reading, prior.n_points)
    # What is known of parameters as yet is how many there are.
    likelihood_model = likelihood_model.given(np.full((count, prior.n_points), np.nan))
    labels = model.rvs_to_values[rv]
    _check_labels(likelihood_model, rv, labels, prior.n_functions, prior.n_points)
    _check_totals(reading, rv, labels)
    if count and set(model.free_RVs).isdisjoint(ancestors([parameters])):
        _check_parameters(likelihood_model, rv, *evaluate([parameters, labels]))
    _check_hyperparameters(prior, rv)
    name = rv.name if missing is None else missing.name
    point_dim, *_ = model.named_vars_to_dims.get(name) or (dims.point_dim,)
    return GPClassifier(
        prior=prior,
        likelihood_model=likelihood_model,
        likelihood=rv,
        labels=labels,
        parameters=parameters,
        given=(reading.everywhere or reading).parameters,
        unbounded=(reading.everywhere or reading).unbounded,
        class_dim=dims.class_dim,
        point_dim=point_dim,
        class_labels=dims.class_labels,
        asked=tuple(hyperparameters),
        missing=missing,
    )


def _read_prior(
    model: pm.Model,
    gaussians: Gaussians,
    likelihood_model: Likelihood,
    rv: TensorVariable,
    reading: Reading,
    means: bool,
    missing: MissingResponses | None,
) -> tuple[LatentPrior, Reading, Dims]:
    """Return the prior of the latent functions, what the likelihood is given, and names of axes.

    Latent functions that are Gaussian processes, and no sums, keep their processes for predictions at other inputs.
    """
    try:
        assembly = read_assembly(_by_functions(likelihood_model, reading.argument, rv), rv, model)
        check_priors(assembly.latents, model)
        if any(latent.free in gaussians.kept for latent in assembly.latents):
            raise NotProcessesAloneError("Some latent values stay hyperparameters.")
    except NotProcessesAloneError:
        return _read_sum(model, gaussians, likelihood_model, rv, missing)
    except StructureError as error:
        try:
            return _read_sum(model, gaussians, likelihood_model, rv, missing)
        except StructureError:
            raise error from None  # it knows more of Gaussian processes
    each = zip(assembly.latents, assembly.classes, strict=True)
    latents = tuple(with_functions(*pair, model) for pair in each)
    in_means = frozenset(gaussians.recipes).intersection(ancestors([latent.mean for latent in latents]))
    kept = {v: why for v, why in gaussians.kept.items() if v in ancestors([latent.mean for latent in latents])}
    if means and in_means:
        try:
            found, reading_of_sum, _ = _read_sum(model, gaussians, likelihood_model, rv, missing)
        except StructureError:
            kept |= gaussians.kept
            kept |= dict.fromkeys(in_means - set(kept), "a mean depends on it in a way that is not integrated")
        else:
            if found.recipes:
                return replace(found, alone=latents), reading_of_sum, assembly.dims
            kept |= found.kept
    elif in_means:
        kept |= dict.fromkeys(in_means, "this method does not integrate means of Gaussian processes")
    return GPModel(model, latents, assembly.n_points, kept=kept), reading, assembly.dims


def _read_sum(
    model: pm.Model,
    gaussians: Gaussians,
    likelihood_model: Likelihood,
    rv: TensorVariable,
    missing: MissingResponses | None,
) -> tuple[LatentSum, Reading, Dims]:
    """Return the same of latent functions that are sums."""
    reading = gaussians.settle(lambda sources: _reading(likelihood_model, rv, frozenset(sources), missing), rv)
    by_class, sees_common = likelihood_model.function_axis, likelihood_model.sees_common
    found = read_sum(model, gaussians, reading.argument, rv, by_class, sees_common)
    if missing is not None and reading.everywhere is not None:
        found = replace(found, everywhere=reading.everywhere.argument, fitted=missing.fitted, n_rows=missing.n_rows)
    return found, reading, found.dims()


def _find_likelihood(
    model: pm.Model, name: str | None, gaussian: Set[Variable]
) -> tuple[Likelihood, TensorVariable, Reading]:
    """Return the one likelihood that can be read, or that of the given name: which, its variable, what it is given.

    `gaussian` are the variables that may be integrated.
    """
    missing = missing_responses(model)
    found: dict[str, tuple[Likelihood, TensorVariable, Reading]] = {}
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
        found = {key: triple for key, triple in found.items() if name in (key, called.get(key))}
        refused = [rv for rv in refused if name in (rv.name, called.get(rv.name))] or refused
    if not found:
        found = _other_readings(refused, latents, processes, missing)
    if len(found) > 1:
        names = ", ".join(map(repr, found))
        of_each = [latents.intersection(ancestors([rv])) for _, rv, _ in found.values()]
        if len(set().union(*of_each)) < sum(map(len, of_each)):
            raise StructureError(
                f"The model has several likelihoods of the same latent values, {names}, of which one can be fitted. "
                f"Take the others out of the model. {as_it_is(model)}"
            )
        raise StructureError(f"The model has several likelihoods that can be read, {names}. Choose one: likelihood=...")
    if not found:
        raise StructureError(_no_likelihood(model, name, latents, unobserved, refused))
    return next(iter(found.values()))


def _other_readings(
    variables: Sequence[TensorVariable],
    latents: Set[Variable],
    processes: Set[Variable],
    missing: Mapping[TensorVariable, MissingResponses],
) -> dict[str, tuple[Likelihood, TensorVariable, Reading]]:
    """Return what is read of observed variables by their log density alone; classes are no numbers."""
    found = {}
    for rv in variables:
        whole = missing[rv].whole if rv in missing else rv
        if any(each.may_be(whole) and each.n_classes(2 if each.function_axis else 1) for each in LIKELIHOODS):
            continue
        for sources in (latents, processes):
            reading = _reading(ANY_UNIVARIATE, rv, frozenset(sources), missing.get(rv))
            if reading is not None:
                found[rv.name] = (reading.likelihood or ANY_UNIVARIATE, rv, reading)
                break
    return found


def _first_reading(
    rv: TensorVariable, latents: Set[Variable], missing: Mapping[TensorVariable, MissingResponses]
) -> tuple[Likelihood, TensorVariable, Reading] | None:
    """Return the first likelihood that fits a random variable, the variable, and its reading; None if none fits."""
    for likelihood in LIKELIHOODS:
        # With more axes PyMC has given them to the parameters, too.
        if rv.ndim > likelihood.observed_axes:
            continue
        if (reading := _reading(likelihood, rv, frozenset(latents), missing.get(rv))) is not None:
            return likelihood, rv, reading
    return None


def _reading(
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
    written = " or ".join(likelihood.written for likelihood in (*LIKELIHOODS, ANY_UNIVARIATE))
    named = "" if name is None else f" named {name!r}"
    advice = f" {listing(unobserved)} is not observed: give it the labels, observed=y." if unobserved else ""
    sampled = f" {as_it_is(model)}" if near else ""
    return (
        f"The model has no likelihood to read. Looked for an observed {written}{named}; found as observed variables "
        f"{listing(model.observed_RVs)}.{advice}{''.join(f' {why}' for why in near if why)}{sampled}"
    )


def _check_apart(prior: LatentPrior, rv: TensorVariable, reading: Reading) -> None:
    """Refuse parameters of a likelihood that depend on what is integrated."""
    if reading.parameters is None:
        return
    behind = set(ancestors([reading.parameters]))
    values = {latent.free: latent.f for latent in prior.processes}
    if found := [values.get(free, free) for free in prior.integrated if free in behind]:
        raise StructureError(
            f"A parameter of {rv.name!r} besides its argument depends on {listing(found)}. It may depend on "
            f"hyperparameters only. {as_it_is(prior.model)}"
        )


def _parameters(reading: Reading, n_points: int) -> tuple[TensorVariable, int]:
    """Parameters of a likelihood at every point (p, n), and p."""
    if reading.parameters is None:
        return pt.constant(np.empty((0, n_points))), 0
    (shape,) = evaluate(get_symbolic_rv_shapes([reading.parameters]))
    count = int(shape[0])
    return pt.broadcast_to(reading.parameters, (count, n_points)).astype("float64"), count


def _check_missing(model: pm.Model, missing: MissingResponses | None) -> None:
    """Refuse missing values of variables other than the likelihood, and terms that depend on missing responses."""
    if missing is not None:
        missing.check(model)
    for other in missing_responses(model).values():
        if missing is None or other.observed is not missing.observed:
            raise StructureError(missing_labels(other.missing, f"Values of {other.name!r}"))


def _as_given(labels: Variable) -> Variable:
    """Labels before PyMC made whole numbers of them, where that can be seen."""
    return labels.owner.inputs[0] if is_elementwise(labels, Cast) else labels


def _by_functions(likelihood: Likelihood, argument: TensorVariable, rv: TensorVariable) -> TensorVariable:
    """The argument of a likelihood as (n, c)."""
    if likelihood.function_axis:
        if argument.ndim != 2:
            raise StructureError(
                f"The argument of {rv.name!r} must have two axes, (points, classes), but its number of axes is "
                f"{argument.ndim}. Give it f.T, where f has one row per class. Two classes by one function are "
                "pm.Bernoulli(logit_p=f)."
            )
        return argument
    if argument.ndim != 1:
        raise NotProcessesAloneError(f"The argument of {rv.name!r} has no value for each point.")
    return argument[:, None]


def _check_labels(
    likelihood: Likelihood, rv: TensorVariable, labels: Variable, n_functions: int, n_points: int
) -> None:
    try:
        likelihood.check_functions(n_functions)
    except ValueError as error:
        how_many = "one latent function only" if n_functions == 1 else f"{n_functions} latent functions"
        raise StructureError(f"{rv.name!r} has {how_many}. {error}") from None
    (values,) = evaluate([_as_given(labels)])
    plural = "" if n_functions == 1 else "s"
    try:
        likelihood.check(
            values, n_functions, n_points, f"labels of {rv.name!r}, which has {n_functions} latent function{plural},"
        )
    except ValueError as error:
        raise StructureError(str(error)) from None


def _check_totals(reading: Reading, rv: TensorVariable, labels: Variable) -> None:
    """Refuse observations of several numbers that do not sum to what a model says."""
    if reading.totals is None:
        return
    totals, values = evaluate([reading.totals, labels])
    sums = values.sum(axis=1)
    if (bad := sums != totals).any():
        i = int(bad.argmax())
        said = np.broadcast_to(totals, sums.shape)[i]
        raise StructureError(
            f"Counts of {rv.name!r} must sum to n at each point, but do not in {rows_text(bad)}: row {i} has {sums[i]} "
            f"of n = {said}. Give n the sums of what is observed: n=y.sum(axis=1)."
        )


def _check_parameters(
    likelihood: Likelihood, rv: TensorVariable, parameters: NDArray[np.float64], labels: Observed
) -> None:
    """Refuse numbers that a likelihood cannot be given; those that depend on hyperparameters are checked at a point."""
    try:
        likelihood.given(parameters).check_parameters(labels, repr(rv.name))
    except ValueError as error:
        raise StructureError(str(error)) from None


def _check_hyperparameters(prior: LatentPrior, rv: TensorVariable) -> None:
    """Refuse terms beside the likelihood that depend on integrated variables, and discrete hyperparameters."""
    model = prior.model
    values = {latent.free: latent.f for latent in prior.processes}
    own = {rv, *prior.integrated, *unobserved_responses(model)}
    for free in prior.integrated:
        dependent = [
            term for term in (*model.basic_RVs, *model.potentials) if term not in own and free in ancestors([term])
        ]
        if dependent:
            raise StructureError(
                f"Not only {rv.name!r} depends on the latent values {values.get(free, free).name!r}: "
                f"{listing(dependent)} does too. "
                "Hyperparameters, potentials and other likelihoods must not depend on them (a Deterministic may). Take "
                "these terms out of the model; add predictions to it only after fitting."
            )
    discrete = [variable for variable in prior.hyperparameters if np.dtype(variable.dtype).kind != "f"]
    if discrete:
        raise StructureError(
            f"The model has discrete hyperparameters: {listing(discrete)}. All free variables must be continuous; sum "
            "over discrete ones, or fix them with pm.do."
        )
