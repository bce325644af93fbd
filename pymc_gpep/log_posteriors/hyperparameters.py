"""The hyperparameters of a model as a flat vector, their log prior, and checks of labels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import NDArray
from pymc.blocking import DictToArrayBijection, PointType, RaveledVars
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.logprob.basic import transformed_conditional_logp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import (
    INTERPRETED,
    AtPoint,
    ModelFunctions,
    flat,
    graph_function,
    initial_point,
    slopes_of,
)
from pymc_gpep.latent.latent_prior import IntegratedVariables, LatentPrior
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.prior_moments.prior_functions import frozen_data
from pymc_gpep.reading import GPClassifier
from pymc_gpep.rows.rows import RowError, Rows, chunks


def checked_labels(rows: Rows, likelihood: Likelihood, functions: int) -> NDArray[np.int64]:
    """Check and return the labels (n,) of all rows.

    Raises
    ------
    RowError
        If a label is invalid. The message describes the first invalid label.
    """
    found = np.empty(rows.n_rows, np.int64)
    for chunk, labels in checked_chunks(rows, likelihood, functions):
        found[chunk] = labels
    return found


def checked_chunks(rows: Rows, likelihood: Likelihood, functions: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yield the labels of all rows in chunks. Raise the errors of `checked_labels`."""
    first = int(getattr(rows, "first", 0))
    for chunk in chunks(rows):
        here = rows.labels(chunk)
        if _why(here, likelihood, functions):
            row = _first_bad(here, likelihood, functions)
            of_all = _why(_different(rows), likelihood, functions) or _why(here, likelihood, functions)
            raise RowError(f"has the label {here[row]}: {of_all}", first + chunk.start + row, _name(rows))
        yield chunk, here


def _different(rows: Rows) -> NDArray[np.int64]:
    """Return the distinct labels of all rows, for a message; empty if a row cannot be read."""
    found = np.empty(0, np.int64)
    try:
        for chunk in chunks(rows):
            found = np.union1d(found, rows.labels(chunk))
    except (TypeError, ValueError):
        return np.empty(0, np.int64)
    return found


def _first_bad(labels: NDArray[np.int64], likelihood: Likelihood, functions: int) -> int:
    start, stop = 0, len(labels)
    while stop - start > 1:
        middle = (start + stop) // 2
        start, stop = (start, middle) if _why(labels[start:middle], likelihood, functions) else (middle, stop)
    return start


def _why(labels: NDArray[np.int64], likelihood: Likelihood, functions: int) -> str:
    """Return the reason why labels are invalid; empty if they are valid."""
    try:
        if labels.size:
            likelihood.check(labels, functions, len(labels))
    except ValueError as error:
        return str(error)
    return ""


def _name(rows: Rows) -> str:
    return str(getattr(rows, "label_name", ""))


def log_prior(classifier: GPClassifier) -> TensorVariable:
    """Return a graph of log priors, log Jacobians and other terms of the model, as a function of value variables.

    The value is minus infinity if an integrated variable has no density, for example because of a negative standard
    deviation. Otherwise it equals `model.logp(vars=...)`. PyMC's function is slower, since it rewrites the whole model
    and computes constant matrices such as distances between inputs.
    """
    model = classifier.model
    terms = [*classifier.hyperparameters, *(rv for rv in model.observed_RVs if rv not in classifier.observed)]
    factors = transformed_conditional_logp(
        terms,
        rvs_to_values={rv: model.rvs_to_values[rv] for rv in terms},
        rvs_to_transforms={rv: model.rvs_to_transforms[rv] for rv in terms},
    )
    factors += model.replace_rvs_by_values(model.potentials)
    if (supported := classifier.prior.supported()) is not None:
        (there,) = model.replace_rvs_by_values([supported])
        factors.append(pt.switch(there, 0.0, -np.inf))
    return pt.add(*(factor.sum() for factor in factors)) if len(factors) > 1 else pt.sum(factors[0] if factors else 0.0)


_STEP = 1e-3  # Step of finite differences of slopes of log priors, for second derivatives.
_MANY = 100  # With at least this number of points, one graph computes all points.


def _computed(outputs: Sequence[Variable]) -> list[Variable]:
    """Return all variables in the graphs of `outputs` that are results of operations."""
    return [v for v in ancestors(outputs) if v.owner is not None]


def check_start(start: Any) -> None:
    """Raise a TypeError unless `start` is None or a dict of initial values by name."""
    if start is not None and not isinstance(start, Mapping):
        raise TypeError(
            f"start must be initial values of hyperparameters, by name, but is {start!r}. The file of a Checkpoint "
            "is for fits by batches, which have a batch_size."
        )


class Hyperparameters:
    """Hyperparameters of a classifier, with a copy of its data.

    Attributes
    ----------
    data : dict
        Constants that replace data of the model. Therefore later calls of `pm.set_data` do not change this object.
    value_vars : list of TensorVariable
        Unconstrained value variables, in the order of the flat vector.
    """

    def __init__(self, classifier: GPClassifier) -> None:
        self.classifier = classifier
        model = classifier.model
        self.data = frozen_data(model)
        self.functions = ModelFunctions(model, classifier.hyperparameters, self.data)
        self.value_vars = self.functions.values
        self._layout: RaveledVars | None = None

    @cached_property
    def variables(self) -> IntegratedVariables:
        """Integrated variables of the model as functions of its latent functions."""
        return self.classifier.prior.variables(self.data)

    @cached_property
    def prior(self) -> TensorVariable:
        """Graph of the sum of log priors, log Jacobians and other terms of the model, without the evidence."""
        (prior,) = graph_replace([log_prior(self.classifier)], self.data, strict=False)
        return prior

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the object itself, since it is immutable and its graphs belong to the model."""
        return self

    @property
    def labels(self) -> TensorVariable:
        """Observations, a constant (n,)."""
        (labels,) = graph_replace([self.classifier.labels], self.data, strict=False)
        return labels

    def initial_point(self, start: Mapping[str, Any] | None = None, random_seed: int = 0) -> Array:
        """Return the initial point of the model as a flat vector. `start` contains other initial values by name."""
        check_start(start)
        model = self.classifier.model
        names = {name for v in self.value_vars for name in (v.name, model.values_to_rvs[v].name)}
        if unknown := sorted(set(start or {}) - names):
            known = [str(rv.name) for rv in self.classifier.hyperparameters]
            raise ValueError(
                f"start names {', '.join(unknown)}, but the hyperparameters of the model are: "
                f"{', '.join(known) or 'none'}.{did_you_mean(unknown, known)}"
            )
        # Values may be DataArrays, such as the hyperparameters of another fit.
        values = {
            name: value.values if isinstance(value, xr.DataArray) else value for name, value in (start or {}).items()
        }
        point = initial_point(model, values, random_seed, list(self.classifier.hyperparameters))
        if outside := [model.values_to_rvs[v].name for v in self.value_vars if not np.isfinite(point[v.name]).all()]:
            which = f": start is {values}" if values else ". Give it one inside: initval=..., where it is declared"
            raise ValueError(f"The initial value of {', '.join(outside)} is outside the support of its prior{which}.")
        self._layout = DictToArrayBijection.map({v.name: point[v.name] for v in self.value_vars})
        return np.asarray(self._layout.data, dtype=np.float64)

    def point(self, theta: Array) -> PointType:
        """Return the values of value variables for a flat vector."""
        return DictToArrayBijection.rmap(RaveledVars(np.asarray(theta, np.float64), self._point_map))

    def flat(self, point: Mapping[str, Any]) -> Array:
        """Return the flat vector of values of value variables, the inverse of `point`."""
        return np.concatenate([np.zeros(0), *(np.ravel(point[v.name]) for v in self.value_vars)]).astype(np.float64)

    @property
    def _point_map(self) -> Any:
        if self._layout is None:
            shapes = {v: v.type.shape for v in self.value_vars}
            if any(None in shape for shape in shapes.values()):
                self.initial_point()
            else:
                zeros = {v.name: np.zeros(shape, v.dtype) for v, shape in shapes.items()}
                self._layout = DictToArrayBijection.map(zeros)
        assert self._layout is not None
        return self._layout.point_map_info

    @cached_property
    def size(self) -> int:
        """Number of elements of the flat vector of hyperparameters."""
        return len(self.owners)

    @property
    def parameters(self) -> list[str]:
        """Name of each element of a flat vector: the name of the value variable, and the position in an array."""
        return [
            name + (f"[{', '.join(map(str, place))}]" if place else "")
            for name, shape, *_ in self._point_map
            for place in np.ndindex(*shape)
        ]

    @property
    def owners(self) -> list[str]:
        """Name of the hyperparameter to which each element of a flat vector belongs."""
        rv_of = {v.name: rv.name for v, rv in self.classifier.model.values_to_rvs.items()}
        return [rv_of[name] for name, shape, *_ in self._point_map for _ in np.ndindex(*shape)]

    @cached_property
    def scales_of_priors(self) -> frozenset[str]:
        """Names of transformed hyperparameters on which priors of other hyperparameters depend."""
        rvs = self.classifier.hyperparameters
        above = {rv: set(ancestors(rv.owner.inputs)) for rv in rvs}
        transforms = self.classifier.model.rvs_to_transforms
        return frozenset(rv.name for rv in rvs if transforms[rv] and any(rv in of for of in above.values()))

    @property
    def without_density(self) -> NDArray[np.bool_]:
        """Mask (d,): whether an element has a flat prior, on the whole line or on one side of 0."""
        names = [rv.name for rv in self.classifier.hyperparameters if isinstance(rv.owner.op, FlatRV | HalfFlatRV)]
        return np.isin(self.owners, names)

    @property
    def transformed(self) -> NDArray[np.bool_]:
        """Mask (d,): whether an element belongs to a hyperparameter with a transform."""
        transforms = self.classifier.model.rvs_to_transforms
        return np.isin(self.owners, [rv.name for rv in self.classifier.hyperparameters if transforms[rv]])

    def in_graphs(self, graphs: Sequence[Variable]) -> NDArray[np.bool_]:
        """Return a mask (d,): whether an element belongs to an untransformed hyperparameter in the graphs."""
        model, behind = self.classifier.model, set(ancestors(graphs))
        names = {rv.name for rv in self.classifier.hyperparameters if rv in behind and not model.rvs_to_transforms[rv]}
        return np.isin(self.owners, list(names))

    def prior_curvature(self, theta: Array, which: NDArray[np.bool_]) -> Array:
        """Return minus the second derivatives (k, k) of the log prior. `which` (d,) is a mask of k elements."""
        flat = {rv.name for rv in self.classifier.hyperparameters if isinstance(rv.owner.op, FlatRV)}
        if all(owner in flat for owner, own in zip(self.owners, which, strict=True) if own):
            return np.zeros((which.sum(), which.sum()))
        _, here = self.log_prior_and_slope(theta)
        units = _STEP * np.maximum(1.0, np.abs(theta))
        rows = [(here - self.log_prior_and_slope(theta + units * unit)[1])[which] for unit in np.eye(theta.size)[which]]
        matrix = np.array(rows) / units[which][:, None]
        return np.nan_to_num(0.5 * (matrix + matrix.T))

    def log_prior(self, theta: Array) -> float:
        """Return the sum of log priors, log Jacobians and other terms of the model at one point."""
        return float(self._log_prior(self.point(theta))[0])

    @cached_property
    def _log_prior(self) -> AtPoint:
        return self.functions([self.prior])

    def log_prior_and_slope(self, theta: Array) -> tuple[float, Array]:
        """Return the value of `log_prior` and its derivatives (d,)."""
        value, slope = self._log_prior_and_slope(self.point(theta))
        return float(value), np.asarray(slope)

    @cached_property
    def _log_prior_and_slope(self) -> AtPoint:
        # A variable with a flat prior may be absent from the graph, since its prior is constant.
        return self.functions([self.prior, flat(slopes_of(self.prior, self.value_vars))])

    def natural(self, thetas: Array) -> dict[str, Array]:
        """Return hyperparameters (s, ...) on their natural scale by name, for flat vectors (s, d)."""
        rvs = self.classifier.hyperparameters
        known = self.functions.known(rvs)
        if len(thetas) < _MANY or not all(isinstance(v.owner.op, Elemwise | DimShuffle) for v in _computed(known)):
            function = self.functions(rvs)
            values = [function(self.point(theta)) for theta in thetas]
            return {rv.name: np.array(column) for rv, column in zip(rvs, zip(*values, strict=True), strict=True)}
        every = {v.name: v.type.clone(shape=(None, *v.type.shape))(name=v.name) for v in self.value_vars}
        outputs = vectorize_graph(known, {v: every[v.name] for v in self.value_vars})
        sizes = {name: (shape, int(np.prod(shape))) for name, shape, *_ in self._point_map}
        parts = np.split(np.asarray(thetas, np.float64), np.cumsum([size for _, size in sizes.values()])[:-1], axis=1)
        given = {
            name: part.reshape(-1, *shape).astype(every[name].dtype)
            for (name, (shape, _)), part in zip(sizes.items(), parts, strict=True)
        }
        found = graph_function(self.classifier.model, list(every.values()), outputs)(*(given[name] for name in every))
        return {rv.name: np.asarray(value) for rv, value in zip(rvs, found, strict=True)}

    def draw_prior(self, count: int, random_seed: int = 0) -> Array:
        """Return unconstrained draws (count, d) from the priors of the hyperparameters.

        If a prior cannot be sampled, such as `pm.HalfFlat`, its draws are standard normal around the initial point.
        """
        rng = np.random.default_rng(random_seed)
        initial = self.initial_point()
        try:
            draws = [draw_hyperparameters(self.classifier.prior, seed) for seed in rng.integers(2**30, size=count)]
        except NotImplementedError:
            return np.asarray(initial + rng.standard_normal((count, initial.size)))
        return np.array([self.flat(draw) for draw in draws]).reshape(count, initial.size)


def unconstrain(prior: LatentPrior) -> Callable[[Mapping[str, Any]], PointType]:
    """Return a function that maps values of hyperparameters to values of their value variables, both by name.

    Values have the shapes of the hyperparameters. Values of other variables are ignored.
    """
    model = prior.model
    rvs = list(prior.hyperparameters)
    given = {rv: rv.type(rv.name) for rv in rvs}
    transforms = [model.rvs_to_transforms[rv] for rv in rvs]
    values = [
        rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        for rv, transform in zip(rvs, transforms, strict=True)
    ]
    function = graph_function(model, list(given.values()), graph_replace(values, given, strict=False) if values else [])
    names = [model.rvs_to_values[rv].name for rv in rvs]

    def point(of: Mapping[str, Any]) -> PointType:
        arguments = (np.asarray(of[rv.name], dtype=rv.dtype) for rv in rvs)
        return dict(zip(names, function(*arguments), strict=True))

    return point


def draw_hyperparameters(prior: LatentPrior, random_seed: int) -> PointType:
    """Draw hyperparameters from their priors; return values of the value variables by name.

    Raises
    ------
    NotImplementedError
        If a prior is improper.
    """
    rvs = list(prior.hyperparameters)
    drawn = pm.draw(rvs, random_seed=random_seed, mode=INTERPRETED)
    return unconstrain(prior)(dict(zip((rv.name for rv in rvs), drawn, strict=True)))
