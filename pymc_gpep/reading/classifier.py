"""A model after reading: the prior of its latent functions, its likelihood, its observations."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pymc.distributions.continuous import FlatRV
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean, rows_text
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.graphs.affine import Affinity, NotAffineError, is_elementwise
from pymc_gpep.graphs.errors import StructureError, distribution
from pymc_gpep.graphs.interpreted import ModelFunctions, evaluate, initial_point
from pymc_gpep.graphs.rows_apart import at_point, check_rows_apart
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import LatentPrior, known_data
from pymc_gpep.latent.lowered_dims import MissingResponses, missing_responses
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.processes.processes import GPModel
from pymc_gpep.recipes import why_no_recipe
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.sums.new_data import DataBehind, repeated
from pymc_gpep.sums.row_groups import RowGroups
from pymc_gpep.univariate.prior_factor import SUFFIX, is_factor

POTENTIAL = "Potential"
"""Name of the distribution of an observed variable that was a potential in the user's model."""


MARGINAL = "marginal"
"""Name of a tag of variables in a rewritten model. Such a variable contains the entries of vectors.

The tag stores the marginal distribution of the entries, and the number of axes of a vector.
"""


class ObservedAxes(NamedTuple):
    """The axes of an observed array that are read as rows, and the random variable of the array."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    array: TensorVariable
    """Random variable of all entries."""
    vectors: int = 0
    """Number of axes, counted from the last, along which noise is correlated.

    If this number is positive, `array` has the marginal distribution of the entries.
    """

    @property
    def noise(self) -> set[Variable]:
        """Variables on which only the standard deviation of the correlated noise depends."""
        if not self.vectors:
            return set()
        mean, sd = self.array.owner.op.dist_params(self.array.owner)
        return set(ancestors([sd])).difference(ancestors([mean]))


@dataclass(frozen=True, eq=False)
class GPClassifier:
    """A model after reading: latent functions with a Gaussian prior, and observations given these functions.

    Latent functions have the order of the argument of the likelihood.

    Attributes
    ----------
    prior : LatentPrior
        Prior of the latent functions.
    likelihood_model : Likelihood
        Likelihood of the observations.
    observed : tuple of TensorVariable, shape (n,)
        Observed random variable, or several variables with concatenated rows.
    labels : TensorVariable, shape (n,), or (n, c) with a number for each class
        Observations: a constant, or the shared variable of `pm.Data`. Values of several variables are concatenated.
    parameters : TensorVariable, shape (p, n)
        Parameters of the likelihood in addition to latent values, as functions of hyperparameters; p may be 0.
    given : TensorVariable, shape (p, rows) or (p, 1), or None
        The same parameters for all rows of the model, as functions of its data; None if p is 0.
    class_dim, point_dim : str or None
        Names of the axes, if the model names them (`dims`).
    class_labels : tuple or None
        Coordinates of `class_dim`, in the order of the classes 0, ..., c − 1.
    coords : dict of str to tuple or None
        Coordinates of the model when it was read. A later `pm.set_data(..., coords=)` does not change them.
    asked : tuple of str
        Names of Gaussian variables that are hyperparameters at the request of the user.
    missing : MissingResponses or None
        Rows without a response; None if all rows have one. Points are the rows with a response.
    rows : slice
        Range of the rows of this variable among all rows of the prior.
    argument : TensorVariable or None
        Argument of the likelihood for all rows of the data; None for several observed variables.
    parts : tuple of GPClassifier
        Classifiers of several observed variables; empty for a single variable.
    axes : ObservedAxes or None
        Axes of an observed array. Its entries are rows in C order. None if rows are not entries of an array.
    groups : RowGroups or None
        Groups of rows with the same latent value. The first row of a group is a point of the prior. None if each row
        is a point.

    Examples
    --------
    >>> read_classifier(model).n_points
    30
    """

    prior: LatentPrior
    likelihood_model: Likelihood
    observed: tuple[TensorVariable, ...]
    labels: TensorVariable
    parameters: TensorVariable
    given: TensorVariable | None
    unbounded: TensorVariable | None
    class_dim: str | None
    point_dim: str | None
    class_labels: tuple[object, ...] | None
    coords: Mapping[str, tuple[Any, ...] | None]
    rows: slice
    asked: tuple[str, ...] = ()
    missing: MissingResponses | None = None
    argument: TensorVariable | None = None
    parts: tuple["GPClassifier", ...] = ()
    axes: ObservedAxes | None = None
    groups: RowGroups | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the classifier itself. It does not change, and its graphs contain variables of the model."""
        return self

    @property
    def model(self) -> pm.Model:
        """The PyMC model."""
        return self.prior.model

    @property
    def n_points(self) -> int:
        """Number of points, n."""
        return self.prior.n_points if self.groups is None else len(self.groups.of)

    @property
    def at_points(self) -> tuple[TensorVariable, TensorVariable, Likelihood]:
        """Observations, parameters and likelihood at the points of the prior. A point may be a group of rows."""
        if self.groups is None:
            return self.labels, self.parameters, self.likelihood_model
        likelihood, labels, parameters = self.groups.points
        return pt.constant(labels), parameters, likelihood

    @property
    def n_functions(self) -> int:
        """Number of latent functions, c."""
        return self.prior.n_functions

    @property
    def n_rows(self) -> int:
        """Number of rows of the data, including rows without a response."""
        return self.rows.stop - self.rows.start if self.missing is None else self.missing.n_rows

    @property
    def each(self) -> tuple["GPClassifier", ...]:
        """Classifiers of the observed variables, without factors of priors. For one variable, the classifier itself."""
        return tuple(part for part in self.parts if not part.is_prior) or (self,)

    @property
    def is_prior(self) -> bool:
        """Whether the rows are factors of the prior of an effect, not observations."""
        return is_factor(self.observed[0])

    @property
    def effects_by_factors(self) -> list[str]:
        """Names of the effects with priors that are factors, in the order of the rows of the factors."""
        return [str(part.observed[0].name).removesuffix(SUFFIX) for part in self.parts if part.is_prior]

    @property
    def seen(self) -> slice:
        """Range of the observed rows. Factors of priors follow these rows."""
        return slice(0, max(part.rows.stop for part in self.each) - self.each[0].rows.start)

    @property
    def response(self) -> str:
        """Name of the observed variable in the model. Several names are joined."""
        if self.parts:
            return "_and_".join(part.response for part in self.each)
        return str(self.observed[0].name) if self.missing is None else self.missing.name

    @property
    def unobserved(self) -> list[TensorVariable]:
        """Random variables of missing responses."""
        return [part.missing.unobserved for part in self.each if part.missing is not None]

    def part(self, response: str | None, asks: str) -> "GPClassifier":
        """Return the classifier of an observed variable, with the joint prior at its rows.

        Raises
        ------
        ValueError
            If no variable has this name, or if the name is None and there are several variables. `asks` is the name
            of the caller.
        """
        found = [each for each in self.each if response in (None, each.response)]
        if response is None and len(found) > 1:
            found = [each for each in found if distribution(each.observed[0]) != POTENTIAL]
        if len(found) != 1:
            names = ", ".join(repr(each.response) for each in self.each)
            given = "the model has several" if response is None else f"the model has no {response!r}"
            meant = did_you_mean([response], [each.response for each in self.each])
            raise ValueError(f"{asks} needs one observed variable, and {given}. Give response=... from {names}.{meant}")
        (own,) = found
        if not self.parts:
            return self
        assert isinstance(self.prior, LatentSum)
        assert own.argument is not None
        fitted = None if own.missing is None else own.missing.fitted
        prior = replace(self.prior, everywhere=own.argument, fitted=fitted, n_rows=own.n_rows)
        return replace(own, prior=prior, groups=self.groups)

    def responses_of_points(self) -> NDArray[np.str_] | None:
        """Return the name of the observed variable of each point, (n,); None for a single variable."""
        if len(self.each) == 1:
            return None
        return np.concatenate([np.repeat(part.response, part.rows.stop - part.rows.start) for part in self.each])

    def coords_of_points(self) -> NDArray[Any] | None:
        """Return the coordinates of the points in the model, (n,); None if the points have no coordinates."""
        labels = self.coords.get(self.point_dim) if self.point_dim else None
        if labels is None:
            return None
        return np.asarray(labels) if self.missing is None else np.asarray(labels)[self.missing.fitted]

    def in_axes[T: (xr.Dataset, xr.DataArray)](self, found: T, dim: str) -> T:
        """Return results for fitted rows in the shape of the observed array, with NaN for entries without a response.

        Parameters
        ----------
        found : Dataset or DataArray
        dim : str
            Dim of rows. The dims of the array replace this dim, but results of several observed variables keep it.
        """
        if self.axes is None or dim not in found.dims:
            return found
        dims, shape = self.axes.dims, self.axes.shape
        if not dims:
            return found.isel({dim: 0}, drop=True)
        rows = "rows of an array"  # The dim of rows is renamed, since a dim of the array may have the same name.
        whole = found.drop_vars(dim, errors="ignore").rename({dim: rows})
        if self.missing is not None:
            whole = whole.assign_coords({rows: self.missing.fitted}).reindex({rows: range(self.n_rows)}).drop_vars(rows)
        index = pd.MultiIndex.from_product(map(range, shape), names=dims)
        whole = whole.assign_coords(xr.Coordinates.from_pandas_multiindex(index, rows)).unstack(rows)
        known = zip(dims, map(self.coords.get, dims), shape, strict=True)
        labels = {each: np.asarray(own) for each, own, size in known if own is not None and len(own) == size}
        return whole.drop_vars(dims).assign_coords(labels).transpose(*dims, ...)

    def labels_of_rows(self) -> dict[str, NDArray[Any]]:
        """Return labels of the rows (n_rows,) along each axis of an observed array, by dim; empty without an array."""
        if self.axes is None or not self.axes.dims:
            return {}
        places = np.unravel_index(np.arange(self.n_rows), self.axes.shape)
        labels = [self.coords.get(dim) for dim in self.axes.dims]
        named = zip(self.axes.dims, labels, places, strict=True)
        sizes = dict(zip(self.axes.dims, self.axes.shape, strict=True))
        own = ((dim, None if own is None or len(own) != sizes[dim] else np.asarray(own), at) for dim, own, at in named)
        return {dim: at if labels is None else labels[at] for dim, labels, at in own}

    @property
    def latents(self) -> tuple[LatentGP, ...]:
        self.check_one()
        return self.prior.latents

    def check_one(self) -> None:
        """Raise a StructureError if there are several observed variables."""
        if self.parts:
            names = " and ".join(repr(each.response) for each in self.each)
            raise StructureError(
                f"The call supports a single observed variable, but the model has {names}. Methods on all rows "
                'together fit several variables: "ep", "laplace", "kl" and similar methods. To fit one variable and '
                f"keep the rest as terms of the log density, name it: likelihood={self.each[0].response!r}."
            )

    @property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        return self.prior.hyperparameters

    @property
    def learned_parameters(self) -> list[TensorVariable]:
        """Hyperparameters from which parameters of the likelihood are computed."""
        behind = set(ancestors([self.parameters]))
        return [each for each in self.hyperparameters if each in behind]

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Reasons why variables of the prior or of the likelihood are hyperparameters, by name of variable.

        Ordered variables, and variables with a flat prior, count as thresholds and are left out among parameters of the
        likelihood.
        """
        found = self.prior.reasons
        for rv in self.learned_parameters:
            thresholds = self.model.rvs_to_transforms[rv] is not None or isinstance(rv.owner.op, FlatRV)
            if rv.name not in found and not thresholds and (why := why_no_recipe(rv, self.model)):
                found = {**found, str(rv.name): why}
        return found

    @property
    def described(self) -> str:
        others = [why for name, why in self.reasons.items() if name not in self.prior.reasons]
        return " ".join(filter(None, [self.prior.described, *others]))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.likelihood_model.n_classes(self.n_functions)

    @property
    def observes_classes(self) -> bool:
        """Whether observations are classes."""
        return self.likelihood_model.observes_classes(self.n_functions)

    @property
    def class_names(self) -> list[object]:
        """Return the names of the classes: the model's labels, or numbers."""
        return list(self.class_labels or range(self.n_classes))

    @property
    def function_dims(self) -> tuple[str, ...]:
        """Dim of the latent functions; empty if a point has one latent function without an axis."""
        return (self.class_dim or "class",) if self.likelihood_model.function_axis else ()

    @property
    def kind(self) -> str:
        """Name of the likelihood."""
        return self.likelihood_model.name


type ReadModel = GPClassifier | GPModel
"""A model after reading: with its likelihood, or only its Gaussian processes."""


def at_new_rows(
    classifier: GPClassifier,
    rows: Any,
    data: Mapping[Variable, Variable],
    new: Mapping[str, ArrayLike] | None,
    takes: Collection[str],
    positions: NDArray[np.int64] | None = None,
) -> "tuple[Any, LikelihoodAtNewRows]":
    """Return new rows of the latent functions, and the likelihood at these rows.

    A single row of the latent functions is repeated if data of likelihood parameters have several rows.
    """
    x = repeated(rows, rows_of_parameters(classifier, new))
    return x, LikelihoodAtNewRows(classifier, len(x), data, new, takes, positions)


def rows_of_parameters(classifier: GPClassifier, new: Mapping[str, ArrayLike] | None) -> int:
    """Return the number of new rows in the data of likelihood parameters; 1 without such data."""
    if classifier.given is None or not new:
        return 1
    behind = _behind(classifier, {})
    each = [name for name in behind.known if name in new and behind.each_row(name)]
    return max((len(np.atleast_1d(np.asarray(new[name]))) for name in each), default=1)


def _behind(classifier: GPClassifier, data: Mapping[Variable, Variable]) -> DataBehind:
    """Return the data on which parameters of the likelihood depend."""
    outputs = [] if classifier.given is None else [classifier.given]
    return DataBehind(classifier.model, outputs, known_data(classifier.model, outputs), data, classifier.n_rows)


class LikelihoodAtNewRows:
    """The likelihood at m new rows, as a function of the hyperparameters.

    Its parameters are expressions of the model, evaluated for new data.

    Parameters
    ----------
    classifier : GPClassifier
    n_points : int
        Number of new rows, m.
    data : dict
        Data of the model → their replacements, from `frozen_data`. All other data have their current values.
    new : dict of str to array_like, optional
        Data of the new rows by name, with a number for each row, or one number for all rows.
    others : collection of str
        Names of the data on which latent functions depend. `new` may contain these data, too.
    positions : array (m,), optional
        Indices of the new rows among the rows of the model, if they are rows of the model.

    Raises
    ------
    ValueError
        If the likelihood does not depend on some data in `new`, or if values have the wrong shape.
    """

    def __init__(
        self,
        classifier: GPClassifier,
        n_points: int,
        data: Mapping[Variable, Variable],
        new: Mapping[str, ArrayLike] | None = None,
        others: Collection[str] = (),
        positions: NDArray[np.int64] | None = None,
    ) -> None:
        self._likelihood = classifier.likelihood_model
        self._name = classifier.response
        self._n_points, self._positions, self._n_rows = n_points, positions, classifier.n_rows
        behind = _behind(classifier, data)
        given = dict(new or {})
        if unknown := [name for name in given if name not in behind.known and name not in others]:
            has = [*others, *behind.known]
            depends = f"the data {_listing(has)}" if has else "no data except through latent values"
            advice = did_you_mean(unknown, has) if has else " Declare the covariates of the rows as pm.Data."
            raise ValueError(f"data names {_listing(unknown)}, but {self._name!r} depends on {depends}.{advice}")
        given = {name: value for name, value in given.items() if name in behind.known}
        self._missing = [name for name in behind.known if name not in given]
        if classifier.given is None:
            return
        x = behind.read(given, rows=n_points, infinite=True)
        for name, (outside, count) in behind.outside(x).items():
            raise ValueError(
                f"data[{name!r}] has {x.by_row[name][outside][0]}, but parameters of the likelihood of {self._name!r} "
                f"have values for the levels 0 to {count - 1} only. Predict rows of these levels."
            )
        self._rows = behind.free_length(n_points) if given else None
        self._values, there = x.values(self._rows or n_points), behind.symbols(x.names)
        self._apart = behind.apart(there, x)
        self._functions = ModelFunctions(classifier.model, classifier.hyperparameters, behind.replaced(there))
        # The first call checks that parameters of a row do not depend on other rows.
        self._unchecked = [each for each in (classifier.given, classifier.unbounded) if each is not None]
        made = [self._functions([each], list(there.values())) for each in self._unchecked]
        self._function, self._unbounded = made[0], made[1] if len(made) > 1 else None

    def _check_apart(self, output: TensorVariable, point: PointType) -> None:
        """Raise an error if parameters of a row depend on other rows."""
        rows, others = self._apart
        (known,) = self._functions.known([output])
        by_rows = at_point(self._functions, point, known, others)
        check_rows_apart(f"Parameters of the likelihood of {self._name!r}", known, 1, rows, by_rows)

    def __call__(self, point: PointType, observed: Observed | None = None) -> Likelihood:
        """Return the likelihood at the new rows, for values of the value variables.

        Raises
        ------
        ValueError
            If parameters of the likelihood differ between rows and are not given for the new rows. If parameters are
            invalid, or contradict the observations (m,).
        """
        if not self._likelihood.has_parameters:
            return self._likelihood
        while self._unchecked:
            self._check_apart(self._unchecked[-1], point)
            self._unchecked.pop()
        try:
            parameters = self._parameters(self._function, point)
        except ValueError:
            # A future observation is not censored.
            if self._unbounded is None or observed is not None:
                raise
            parameters = self._parameters(self._unbounded, point)
        at_each: Array = np.broadcast_to(parameters, (len(parameters), max(self._n_points, parameters.shape[1])))
        likelihood = self._likelihood.given(at_each[:, : self._n_points])
        likelihood.check_parameters(observed, f"{self._name!r} at new points")
        if not np.isfinite(parameters).all():
            raise ValueError(f"At new points, parameters of the likelihood of {self._name!r} are not finite.")
        return likelihood

    def _parameters(self, function: Callable[..., Any], point: PointType) -> Array:
        """Return parameters (p, m) at the new rows, or (p, 1) for all rows. The result may have further rows."""
        try:
            (parameters,) = function(point, *self._values)
        except (ValueError, IndexError, AssertionError) as error:
            raise ValueError(self._refusal) from error
        if self._positions is not None:
            parameters = np.broadcast_to(parameters, (len(parameters), self._n_rows))[:, self._positions]
        elif self._rows is None and (parameters == parameters[:, :1]).all():
            parameters = parameters[:, :1]
        if self._positions is None and parameters.shape[1] not in (1, self._rows):
            raise ValueError(self._refusal)
        return np.asarray(parameters)

    @property
    def _refusal(self) -> str:
        what = f"Parameters of the likelihood of {self._name!r} differ between points"
        if self._missing:
            return f"{what} and depend on data. Give these data at Xnew: data={{{self._missing[0]!r}: ...}}."
        return (
            f"{what}, and depend on arrays that are not data. Declare these arrays as pm.Data, such as exposure = "
            "pm.Data('exposure', ...), and give their values at Xnew: data={'exposure': ...}."
        )


def _listing(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def as_given(labels: Variable) -> Variable:
    """Return labels before PyMC casts them to integers."""
    return labels.owner.inputs[0] if is_elementwise(labels, Cast) else labels


def check_labels(likelihood: Likelihood, rv: TensorVariable, labels: Variable, n_functions: int, n_points: int) -> None:
    """Raise an error if a likelihood does not accept the number of latent functions, or the observations."""
    try:
        likelihood.check_functions(n_functions)
    except ValueError as error:
        how_many = "one latent function only" if n_functions == 1 else f"{n_functions} latent functions"
        raise StructureError(f"{rv.name!r} has {how_many}. {error}") from None
    (values,) = evaluate([as_given(labels)])
    plural = "" if n_functions == 1 else "s"
    try:
        likelihood.check(
            values, n_functions, n_points, f"labels of {rv.name!r}, which has {n_functions} latent function{plural},"
        )
    except ValueError as error:
        raise StructureError(str(error)) from None


def check_totals(reading: Reading, rv: TensorVariable, labels: Variable) -> None:
    """Raise an error if vectors of counts do not sum to the totals in the model."""
    if reading.totals is None:
        return
    totals, values = evaluate([reading.totals, labels])
    sums = values.sum(axis=1)
    if (bad := sums != totals).any():
        i = int(bad.argmax())
        said = np.broadcast_to(totals, sums.shape)[i]
        raise StructureError(
            f"Counts of {rv.name!r} must sum to n at each point, but do not in {rows_text(bad)}: row {i} has {sums[i]} "
            f"of n = {said}. Give n the sums of the observed counts: n=y.sum(axis=1)."
        )


def check_parameters(
    likelihood: Likelihood, rv: TensorVariable, parameters: NDArray[np.float64], labels: Observed
) -> None:
    """Raise an error if a likelihood does not accept its parameters. Only constant parameters are checked here."""
    try:
        likelihood.given(parameters).check_parameters(labels, repr(rv.name))
    except ValueError as error:
        raise StructureError(str(error)) from None


def check_missing(model: pm.Model, own: Sequence[MissingResponses]) -> None:
    """Raise an error for missing data outside the response, and for terms that depend on missing responses."""
    for each in own:
        each.check(model)
    for other in missing_responses(model).values():
        if not any(other.observed is each.observed for each in own):
            where = rows_text(other.missing)
            raise StructureError(
                f"{other.name!r} has no value in {where}, and PyMC would draw these values. A fit needs all data "
                "that a likelihood depends on. Put numbers in place of NaN, such as "
                f"np.where(np.isnan(x), np.nanmean(x), x), or leave {where} out. pm.sample() draws from the model as "
                "it is."
            )


def names_of_effects(classifier: GPClassifier) -> list[str]:
    """Return names of integrated variables, and of Deterministics that are affine in them, in the order of the model.

    A Deterministic such as `pm.Deterministic("u", sigma * z)` is an effect if it depends on an integrated variable z
    of the same shape. It replaces z if it depends on no other integrated variable, and if no other term of the model
    depends on z directly.
    """
    own = _integrated(classifier)
    if not classifier.prior.singular:
        return [str(v.name) for v in own]
    model = classifier.model
    affinity = Affinity(frozenset(own))
    made: dict[TensorVariable, frozenset[Variable]] = {}
    for variable in model.deterministics:
        if variable not in own and (behind := _sources(affinity, variable)):
            made[variable] = behind
    shapes = _shapes(model, [*own, *made])
    alike = {v: [each for each in behind if shapes[each] == shapes[v]] for v, behind in made.items()}
    replaced = {
        z: v for v, same in alike.items() if len(made[v]) == 1 for z in same if not _reaches_beside(model, z, v)
    }
    names: dict[str, None] = {}
    for z in own:
        names[str(replaced.get(z, z).name)] = None
    return list(names | {str(v.name): None for v, same in alike.items() if same})


def sources_of_effects(classifier: GPClassifier, names: list[str]) -> dict[str, frozenset[Variable]]:
    """Return the integrated variables on which each effect depends."""
    affinity = Affinity(frozenset(_integrated(classifier)))
    return {name: _sources(affinity, classifier.model[name]) for name in names}


def _integrated(classifier: GPClassifier) -> list[TensorVariable]:
    """Return the integrated variables. Latent values replace standard normals from which they are computed."""
    held = {latent.free: latent.f for latent in classifier.prior.processes}
    return [held.get(rv, rv) for rv in classifier.prior.integrated if rv not in classifier.prior.implicit]


def _sources(affinity: Affinity, variable: Variable) -> frozenset[Variable]:
    try:
        return affinity.behind(variable)
    except NotAffineError:
        return frozenset()


def _shapes(model: pm.Model, variables: list[TensorVariable]) -> Mapping[Variable, tuple[int, ...]]:
    """Return the shapes of variables. A shape with unknown lengths is evaluated."""
    shapes = {v: v.type.shape for v in variables}
    unknown = [v for v, shape in shapes.items() if None in shape]
    if unknown:
        found = ModelFunctions(model, model.free_RVs)([v.shape for v in unknown])(initial_point(model))
        shapes |= {v: tuple(np.asarray(shape).tolist()) for v, shape in zip(unknown, found, strict=True)}
    return shapes


def _reaches_beside(model: pm.Model, z: TensorVariable, by: TensorVariable) -> bool:
    """Return whether the model depends on `z` along a path that does not contain the variable `by`."""
    others = [v for v in [*model.basic_RVs, *model.potentials, *model.deterministics] if v not in (z, by)]
    return z in set(ancestors(others, blockers=[by]))
