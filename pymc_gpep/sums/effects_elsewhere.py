"""Variables of a model at new data, as affine functions of standard normals and of Gaussian processes."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import solve_triangular

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.graphs.errors import listing
from pymc_gpep.graphs.interpreted import AtPoint, ModelFunctions, evaluate
from pymc_gpep.graphs.rows_of_graphs import CannotSplitError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import Elsewhere
from pymc_gpep.processes.cross_covariance import CrossCovariance, new_inputs
from pymc_gpep.processes.process_functions import MovedSum, ProcessFunctions
from pymc_gpep.sums.affine_map import AffineMap, AffineValues, ByValues, InNormals, at_inputs
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.levels import as_data, common_length, outside_levels, refuse_labels, repeated_rows
from pymc_gpep.sums.row_parts import MovedProcess


class EffectsInMeans(Elsewhere):
    """Prior moments of Gaussian processes at new inputs, with the effects in their means integrated.

    Parameters
    ----------
    prior : InNormals
        Latent functions that are processes, and nothing besides.
    processes : CrossCovariance
        The processes without their means.
    matched : list of pairs of LatentGP and ProcessFunctions
        The processes with their own means.
    data : dict
        Data of the model → constants, as the fit had them.
    """

    def __init__(
        self,
        prior: InNormals,
        processes: CrossCovariance,
        matched: Sequence[tuple[LatentGP, ProcessFunctions]],
        data: Mapping[Variable, Variable],
    ) -> None:
        self._processes, self.takes = processes, processes.takes
        x = pt.dmatrix("Xnew")
        rows: dict[int, TensorVariable] = {}
        for latent, functions in matched:
            mean = pt.broadcast_to(functions.mean(x), (len(latent.classes), x.shape[0]))
            rows |= {k: mean[output] for output, k in enumerate(latent.classes)}
        self._means = AffineMap(
            prior, {"mean": pt.stack([rows[k] for k in range(prior.n_functions)])}, data, given=[x], seen=True
        )

    @property
    def inputs(self) -> Array:
        return self._processes.inputs

    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> Array:
        return self._processes.rows(x, new)

    def __call__(self, point: PointType, x: Array) -> tuple[Array, Array, Array]:
        cross, variance, _ = self._processes(point, x)
        there, here = self._means(point, [x]), self._means(point, [self.inputs])
        ahead, behind = there.slopes["mean"], here.slopes["mean"]
        cross = cross + np.einsum("qcm,qcn->cmn", ahead, behind)
        return cross, variance + (ahead**2).sum(axis=0), there.centres["mean"]


_INPUTS = "Xnew"


class EffectsElsewhere:
    """Variables of a model at other data, as functions of the hyperparameters.

    A Gaussian process g among them whose inputs are other ones is k*ᵀL⁻ᵀz there, with noise, where g = L z at its own
    inputs.

    Parameters
    ----------
    prior : EffectSum
    names : sequence of str
        Variables that are affine in what was integrated.
    data : dict
        Data of the model → constants, as the fit had them.
    x : array (m, d), optional
        Inputs of the Gaussian processes.
    new : dict of str to array
        Other data by name.

    Raises
    ------
    ValueError
        If data do not fit, or a variable cannot be had there.
    """

    def __init__(
        self,
        prior: EffectSum,
        names: Sequence[str],
        data: Mapping[Variable, Variable],
        x: ArrayLike | None,
        new: Mapping[str, ArrayLike],
    ) -> None:
        self._prior, self._names, self._data = prior, list(names), data
        self._variables = [prior.model[name] for name in names]
        behind = self._processes_behind()
        known = prior.data_behind(self._variables)
        self._place: TensorVariable | None = None
        given: dict[str, Any] = dict(new)
        if unknown := [name for name in given if name not in known]:
            if not known:
                raise ValueError(
                    f"{self._called} depend on no data {unknown[0]!r}, nor on other data. Declare what differs between "
                    "rows as pm.Data."
                )
            listed = ", ".join(map(repr, known))
            meant = did_you_mean(unknown[:1], known)
            raise ValueError(f"{self._called} depend on no data {unknown[0]!r}, only on {listed}.{meant}")
        inputs = None if x is None else self._inputs_by(x, behind, known, given)
        self._given = {name: self._checked(known[name], value) for name, value in given.items()}
        lengths = {name: len(value) for name, value in self._given.items() if value.ndim}
        if inputs is not None:
            lengths[_INPUTS] = len(inputs)
        self._count = m = common_length(lengths)
        # More rows where lengths agree, so that no array of the fit has the length of new data by chance.
        taken = self._old_lengths(known)
        self._length = next(length for length in range(m, m + len(taken) + 1) if length not in taken)
        self._shared = [known[name] for name in self._given]
        self._values = [repeated_rows(value, self._length) if value.ndim else value for value in self._given.values()]
        self._moved = behind
        if inputs is None:
            self._moved = [each for each in behind if not set(self._shared).isdisjoint(ancestors([each.cov]))]
        else:
            self._values.append(repeated_rows(inputs, self._length))
        means = prior.recipe_means
        if made := {each.f for each in self._moved}.intersection(ancestors(means)):
            raise ValueError(f"Means of effects depend on {listing(made)}, which is not known at other inputs.")
        self._processes: list[MovedProcess] = [prior.process(latent, None, data) for latent in self._moved]
        self._unchecked = list(self._names)  # whose rows are not known to be apart

    @property
    def _called(self) -> str:
        return f"Values of {', '.join(map(repr, self._names))}"

    def _processes_behind(self) -> list[LatentGP]:
        """Return processes that the variables are made of, also by way of means."""
        processes = {latent.f: latent for latent in self._prior.processes}
        found: dict[LatentGP, None] = {}
        pending: list[Variable] = list(self._variables)
        while pending:
            for f in ancestors([pending.pop()], blockers=processes):
                if f in processes and processes[f] not in found:
                    found[processes[f]] = None
                    pending.append(processes[f].mean)
        return list(found)

    def _inputs_by(
        self, x: ArrayLike, behind: list[LatentGP], known: Mapping[str, SharedVariable], given: dict[str, Any]
    ) -> Array | None:
        """Put inputs into the data that the processes have them from; return them where these are arrays."""
        if not behind:
            raise ValueError(
                f"{self._called} depend on no Gaussian process: give data={{...}} in place of Xnew, and declare what "
                "differs between rows as pm.Data."
            )
        sources = [name for name, v in known.items() if v in set(ancestors([latent.cov for latent in behind]))]
        if len(sources) == 1:
            given[sources[0]] = x
            return None
        arrays = [self._prior.process(latent, None, self._data).moments.inputs for latent in behind]
        if sources or not all(np.array_equal(each, arrays[0]) for each in arrays):
            raise ValueError(f"{self._called} depend on Gaussian processes of several inputs: give data={{...}}.")
        self._place, self._own_inputs = pt.dmatrix(_INPUTS), arrays[0]
        return new_inputs(x, arrays[0].shape[1])

    def _checked(self, variable: SharedVariable, value: ArrayLike) -> NDArray[Any]:
        (fitted,) = evaluate([self._data.get(variable, variable)])
        shape = ("rows", *fitted.shape[1:])[: fitted.ndim]
        found = as_data(self._prior.model, variable, self._variables, value, shape)
        for outside, levels in outside_levels({variable: found}, self._variables, self._data).values():
            refuse_labels(self._prior.model, variable, self._variables, found[outside])
            raise ValueError(f"data[{variable.name!r}] has {found[outside][0]}, but its levels are 0 to {levels - 1}.")
        return found

    def _old_lengths(self, known: Mapping[str, SharedVariable]) -> set[int]:
        """Return lengths of axes in the fit."""
        arrays = evaluate([self._data.get(v, v) for v in known.values()]) if known else []
        of_coords = [len(values) for values in self._prior.model.coords.values() if values is not None]
        of_variables = [size for v in self._variables for size in v.type.shape if size is not None]
        return {self._prior.n_points, *(len(each) for each in arrays if each.ndim), *of_coords, *of_variables}

    @cached_property
    def _affine(self) -> AffineMap:
        """The variables at other data, with moved processes separate."""
        there = {v: pt.tensor(v.name, dtype=v.dtype, shape=(None,) * v.ndim) for v in self._shared}
        given, inputs, by = list(there.values()), [each.inputs for each in self._processes], None
        if self._place is not None:
            given, inputs, by = [*given, self._place], [self._place] * len(inputs), self._from_inputs(self._place)
        variables = dict(zip(self._names, self._variables, strict=True))
        return AffineMap(self._prior, variables, {**self._data, **there}, self._moved, given, inputs, by)

    @cached_property
    def _covariances(self) -> AtPoint:
        """Covariances of moved processes at their own inputs."""
        functions = ModelFunctions(self._prior.model, self._prior.hyperparameters, self._data)
        return functions([latent.cov for latent in self._moved])

    def _check_apart(self, name: str, axis: int, point: PointType) -> None:
        """Refuse a variable of which an entry depends on data of other new rows."""
        fitted = evaluate([self._data.get(v, v) for v in self._shared]) if self._shared else []
        given = self._affine.given
        rows = {v: values for v, values in zip(given, fitted, strict=False) if values.ndim}
        single = {v: values for v, values in zip(given, fitted, strict=False) if not values.ndim}
        if self._place is not None:
            rows[self._place] = self._own_inputs
        n = max(len(values) for values in rows.values())
        rows = {v: values[np.arange(n) % len(values)] for v, values in rows.items()}
        self._affine.check_apart(f"Values of {name!r}", name, axis, point, rows, single, n)

    def _from_inputs(self, x: TensorVariable) -> ByValues:
        """Return the variables at new inputs in place of an array, by normals and values of processes."""
        prior = self._prior
        sums = MovedSum(self._own_inputs, self._moved, prior.model.basic_RVs, x)
        try:
            sums.check_apart(prior.recipe_means)
            return at_inputs(prior, sums, self._variables, lambda v: _axis(v, len(self._own_inputs)), self._moved)
        except CannotSplitError as why:
            raise ValueError(f"{self._called} cannot be had at Xnew alone: it {why}.") from None

    def __call__(self, point: PointType) -> AffineValues:
        """Return variables at given hyperparameters.

        Raises
        ------
        ValueError
            If they depend on further data, on none of those given, or on several points of a process at once.
        """
        affine = self._affine
        try:
            values = affine(point, self._values, [self._length] * len(self._moved))
        except (ValueError, IndexError, AssertionError) as error:
            raise ValueError(
                f"{self._called} cannot be computed at {self._count} rows of the data given: a part has an entry for "
                "each fitted row. Give all data that differ between rows, as data={...}."
            ) from error
        found = AffineValues(
            values.centres, values.slopes, {name: np.zeros(each.shape) for name, each in values.centres.items()}, {}
        )
        of_processes = zip(self._moved, self._processes, self._covariances(point), values.inputs, strict=True)
        for i, (latent, process, cov, x) in enumerate(of_processes):
            cross, variance, _ = process.moments(point, x)
            ahead = solve_triangular(np.linalg.cholesky(cov), cross[0].T, lower=True).T
            noise = np.maximum(variance[0] - (ahead**2).sum(axis=1), 0.0)
            normals = np.arange(self._prior.n_normals)[self._prior.places[latent.f]].reshape(-1, cov.shape[0])
            for name in self._names:
                for of_output, (one, cells, alone) in zip(normals, values.taken[name][i], strict=True):
                    if not alone:
                        raise ValueError(
                            f"An entry of {name!r} takes several points of a Gaussian process, and is not known there."
                        )
                    found.slopes[name][of_output] += np.moveaxis(one[..., None] * ahead[cells], -1, 0)
                    found.noise[name][...] += one**2 * noise[cells]
        axes = {name: self._axis_of(name, found.centres[name]) for name in self._names}
        while self._unchecked:
            name = self._unchecked[-1]
            self._check_apart(name, axes[name], point)
            self._unchecked.pop()
        rows = np.arange(self._count)
        return AffineValues(
            {name: np.take(each, rows, axes[name]) for name, each in found.centres.items()},
            {name: np.take(each, rows, axes[name] + 1) for name, each in found.slopes.items()},
            {name: np.take(each, rows, axes[name]) for name, each in found.noise.items()},
            axes,
        )

    def _axis_of(self, name: str, values: Array) -> int:
        """Return the axis of a variable that runs over new rows."""
        found = [axis for axis, size in enumerate(np.shape(values)) if size == self._length]
        if not found:
            raise ValueError(f"{name!r} does not depend on the data given. Leave Xnew and data out.")
        return found[-1]


def _axis(variable: TensorVariable, length: int) -> int:
    """Return the axis of a variable that runs over the rows of an array."""
    if variable.ndim == 1:
        return 0
    found = [axis for axis, size in enumerate(variable.type.shape) if size == length]
    if len(found) != 1:
        raise CannotSplitError(f"has {len(found)} axes that may run over the rows of {variable.name!r}")
    return found[0]
