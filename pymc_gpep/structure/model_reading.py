"""Reading a whole model: its likelihood, the latent functions behind it, and what is left as hyperparameters."""

from collections.abc import Sequence
from dataclasses import replace

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
from pymc_gpep.likelihoods.likelihood import Likelihood, Reading
from pymc_gpep.likelihoods.observed_classes import missing_labels
from pymc_gpep.likelihoods.observed_numbers import rows_text
from pymc_gpep.structure.alternatives import as_it_is
from pymc_gpep.structure.assembly import Dims, evaluate, read_assembly
from pymc_gpep.structure.classifier import GPClassifier
from pymc_gpep.structure.elementwise import is_elementwise
from pymc_gpep.structure.errors import NotProcessesAloneError, StructureError, listing
from pymc_gpep.structure.integrated import Gaussians, gaussians_of
from pymc_gpep.structure.latent_prior import LatentPrior
from pymc_gpep.structure.latent_sum import LatentSum
from pymc_gpep.structure.likelihood_search import find_likelihood, read_response
from pymc_gpep.structure.lowered_dims import lower_dims
from pymc_gpep.structure.missing_responses import MissingResponses, missing_responses, unobserved_responses
from pymc_gpep.structure.processes import GPModel, check_priors, refuse_what_was_made, with_functions
from pymc_gpep.structure.sum_reading import read_sum

__all__ = ["read_classifier"]


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
    likelihood_model, rv, reading = find_likelihood(model, likelihood, gaussians.sources)
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
    reading = gaussians.settle(lambda sources: read_response(likelihood_model, rv, frozenset(sources), missing), rv)
    by_class, sees_common = likelihood_model.function_axis, likelihood_model.sees_common
    found = read_sum(model, gaussians, reading.argument, rv, by_class, sees_common)
    if missing is not None and reading.everywhere is not None:
        found = replace(found, everywhere=reading.everywhere.argument, fitted=missing.fitted, n_rows=missing.n_rows)
    return found, reading, found.dims()


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
