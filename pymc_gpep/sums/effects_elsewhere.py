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
from pymc_gpep.graphs.interpreted import SEED, AtPoint, ModelFunctions, evaluate
from pymc_gpep.graphs.rows_apart import at_point, check_rows_apart
from pymc_gpep.graphs.rows_of_graphs import CannotSplitError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import Elsewhere
from pymc_gpep.processes.cross_covariance import CrossCovariance, new_inputs
from pymc_gpep.processes.process_functions import MovedSum, ProcessFunctions
from pymc_gpep.sums.affine_variables import AffineValues, InNormals, at_zero, slopes_of
from pymc_gpep.sums.levels import as_data, common_length, outside_levels, refuse_labels
from pymc_gpep.sums.row_parts import MovedProcess, RowSum, cells_by_probes, probes


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
        x, z = pt.dmatrix("Xnew"), pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        rows: dict[int, TensorVariable] = {}
        for latent, functions in matched:
            mean = pt.broadcast_to(functions.mean(x), (len(latent.classes), x.shape[0]))
            rows |= {k: mean[output] for output, k in enumerate(latent.classes)}
        (means,) = prior.by_normals([pt.stack([rows[k] for k in range(prior.n_functions)])], z, seen=True)
        outputs = [at_zero(means, z), slopes_of(means, z, prior.n_normals)]
        self._function = ModelFunctions(prior.model, prior.hyperparameters, data)(outputs, [x])

    @property
    def inputs(self) -> Array:
        return self._processes.inputs

    def rows(self, x: ArrayLike | None, new: Mapping[str, ArrayLike], new_levels: bool = False) -> Array:
        return self._processes.rows(x, new)

    def __call__(self, point: PointType, x: Array) -> tuple[Array, Array, Array]:
        cross, variance, _ = self._processes(point, x)
        mean, ahead = self._function(point, x)
        _, behind = self._function(point, self.inputs)
        return cross + np.einsum("qcm,qcn->cmn", ahead, behind), variance + (ahead**2).sum(axis=0), np.asarray(mean)


_INPUTS = "Xnew"


class EffectsElsewhere:
    """Variables of a model at other data, as functions of the hyperparameters.

    A Gaussian process g among them whose inputs are other ones is k*ᵀL⁻ᵀz there, with noise, where g = L z at its own
    inputs.

    Parameters
    ----------
    prior : RowSum
    names : sequence of str
        Variables that are affine in what was integrated.
    data : dict
        Data of the model → constants, as the fit had them.
    x : array (m, d), optional
        Inputs of the Gaussian processes.
    new : dict of str to array
        Other data by name.

    Attributes
    ----------
    axes : dict of str to int
        The axis of each variable that runs over new rows.

    Raises
    ------
    ValueError
        If data do not fit, or a variable cannot be had there.
    """

    def __init__(
        self,
        prior: RowSum,
        names: Sequence[str],
        data: Mapping[Variable, Variable],
        x: ArrayLike | None,
        new: Mapping[str, ArrayLike],
    ) -> None:
        self._prior, self._names, self._data = prior, list(names), data
        self._variables = [prior.model[name] for name in names]
        behind = self._processes_behind()
        known = self._known()
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
        self._values = [_rows(value, self._length) if value.ndim else value for value in self._given.values()]
        self._moved = behind
        if inputs is None:
            self._moved = [each for each in behind if not set(self._shared).isdisjoint(ancestors([each.cov]))]
        else:
            self._values.append(_rows(inputs, self._length))
        means = prior.recipe_means
        if made := {each.f for each in self._moved}.intersection(ancestors(means)):
            raise ValueError(f"Means of effects depend on {listing(made)}, which is not known at other inputs.")
        self._processes: list[MovedProcess] = [prior.process(latent, None, data) for latent in self._moved]
        self.axes: dict[str, int] = {}
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

    def _known(self) -> dict[str, SharedVariable]:
        """Return data of the model that the variables depend on, by name."""
        model, prior = self._prior.model, self._prior
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        behind = set(ancestors(model.replace_rvs_by_values(prior.by_normals(self._variables, z))))
        return {str(v.name): v for v in model.data_vars if v in behind and isinstance(v, SharedVariable)}

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
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            refuse_labels(self._prior.model, variable, self._variables, array)
        wide = array[None] if fitted.ndim and array.ndim == fitted.ndim - 1 else array
        found = as_data(variable, array, wide, ("rows", *fitted.shape[1:])[: fitted.ndim])
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
    def _functions(self) -> tuple[AtPoint, AtPoint, AtPoint, AtPoint]:
        """Functions for values, for slopes, and for covariances and inputs of processes."""
        prior = self._prior
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        values = [
            pt.tensor(f"{latent.f.name}_there", dtype="float64", shape=(*latent.f.type.shape[:-1], None))
            for latent in self._moved
        ]
        at = {latent.f: value for latent, value in zip(self._moved, values, strict=True)}
        made = (
            prior.by_normals(self._variables, z, at) if self._place is None else self._from_inputs(self._place, z, at)
        )
        there = {v: pt.tensor(v.name, dtype=v.dtype, shape=(None,) * v.ndim) for v in self._shared}
        function = ModelFunctions(prior.model, prior.hyperparameters, self._data)
        data = [*there.values(), *([] if self._place is None else [self._place])]
        centres = function([at_zero(each, z) for each in made], [*data, *values], there)
        slopes = function([slopes_of(each, z, prior.n_normals) for each in made], [*data, *values], there)
        inputs = [self._place if self._place is not None else each.inputs for each in self._processes]
        return centres, slopes, function([latent.cov for latent in self._moved]), function(inputs, data, there)

    def _check_apart(self, name: str, point: PointType) -> None:
        """Refuse a variable of which an entry depends on data of other new rows."""
        prior = self._prior
        noise = np.random.default_rng(SEED).standard_normal
        z = pt.constant(noise(prior.n_normals))
        by_point = {
            latent.f: pt.tensor(latent.f.name, dtype="float64", shape=(None,) * latent.f.ndim) for latent in self._moved
        }
        at = {f: value.T for f, value in by_point.items()}
        made = (
            prior.by_normals(self._variables, z, at) if self._place is None else self._from_inputs(self._place, z, at)
        )
        there = {v: pt.tensor(v.name, dtype=v.dtype, shape=(None,) * v.ndim) for v in self._shared}
        functions = ModelFunctions(prior.model, prior.hyperparameters, self._data)
        (output,) = functions.known([made[self._names.index(name)]], there)
        fitted = evaluate([self._data.get(v, v) for v in self._shared]) if self._shared else []
        rows = {there[v]: values for v, values in zip(self._shared, fitted, strict=True) if values.ndim}
        single = {there[v]: values for v, values in zip(self._shared, fitted, strict=True) if not values.ndim}
        if self._place is not None:
            rows[self._place] = self._own_inputs
        n = max(len(values) for values in rows.values())
        rows = {v: values[np.arange(n) % len(values)] for v, values in rows.items()}
        for latent in self._moved:
            rows[by_point[latent.f]] = noise((n, *[len(latent.classes)] * (latent.f.ndim - 1)))
        by_rows = at_point(functions, point, output, single)
        names = [str(latent.f.name) for latent in self._moved]
        check_rows_apart(f"Values of {name!r}", output, self.axes[name], rows, by_rows, processes=names)

    def _from_inputs(
        self, x: TensorVariable, z: TensorVariable, at: Mapping[TensorVariable, TensorVariable]
    ) -> list[TensorVariable]:
        """Return the variables at new inputs in place of an array, by normals and values of processes."""
        prior = self._prior
        sums = MovedSum(self._own_inputs, self._moved, prior.model.basic_RVs, x)
        try:
            sums.check_apart(prior.recipe_means)
            own = [
                sums.values[v] if v in sums.values else sums.moved(v, _axis(v, len(self._own_inputs)))
                for v in self._variables
            ]
            means = [sums.mean(latent, None) for latent in self._moved]
        except CannotSplitError as why:
            raise ValueError(f"{self._called} cannot be had at Xnew alone: it {why}.") from None
        nothing = {latent.f: pt.zeros(()) for latent in self._moved}
        made = prior.by_normals([*own, *means], z, nothing)
        values = {latent.f: mean + at[latent.f] for latent, mean in zip(self._moved, made[len(own) :], strict=True)}
        return [sums.with_values(each, values) for each in made[: len(own)]]

    def __call__(self, point: PointType) -> AffineValues:
        """Return variables at given hyperparameters.

        Raises
        ------
        ValueError
            If they depend on further data, on none of those given, or on several points of a process at once.
        """
        centres, slopes, covs, inputs = self._functions
        shapes = [(*latent.f.type.shape[:-1], self._length) for latent in self._moved]
        nothing = [np.zeros(shape) for shape in shapes]
        try:
            still = centres(point, *self._values, *nothing)
            own = slopes(point, *self._values, *nothing)
        except (ValueError, IndexError, AssertionError) as error:
            raise ValueError(
                f"{self._called} cannot be computed at {self._count} rows of the data given: a part has an entry for "
                "each fitted row. Give all data that differ between rows, as data={...}."
            ) from error
        found = AffineValues(
            dict(zip(self._names, still, strict=True)),
            dict(zip(self._names, own, strict=True)),
            {name: np.zeros(np.shape(each)) for name, each in zip(self._names, still, strict=True)},
        )
        between = list(zip(self._moved, self._processes, covs(point), inputs(point, *self._values), strict=True))
        for i, (latent, process, cov, x) in enumerate(between):
            cross, variance, _ = process.moments(point, np.asarray(x, dtype=np.float64))
            ahead = solve_triangular(np.linalg.cholesky(cov), cross[0].T, lower=True).T
            noise = np.maximum(variance[0] - (ahead**2).sum(axis=1), 0.0)
            normals = np.arange(self._prior.n_normals)[self._prior.places[latent.f]].reshape(-1, cov.shape[0])

            def changes(values: Array, i: int = i) -> list[Array]:
                moved = centres(point, *self._values, *nothing[:i], values, *nothing[i + 1 :])
                return [np.asarray(a - b) for a, b in zip(moved, still, strict=True)]

            for output, of_output in enumerate(normals):
                masked = [_masked(each, output) for each in probes(shapes[i])]
                for name, one, *others in zip(self._names, *map(changes, masked), strict=True):
                    cells, alone = cells_by_probes([one, *others], shapes[i])
                    if not alone.all():
                        raise ValueError(
                            f"An entry of {name!r} takes several points of a Gaussian process, and is not known there."
                        )
                    cells %= self._length
                    found.slopes[name][of_output] += np.moveaxis(one[..., None] * ahead[cells], -1, 0)
                    found.noise[name][...] += one**2 * noise[cells]
        self.axes = {name: self._axis_of(name, found.centres[name]) for name in self._names}
        while self._unchecked:
            self._check_apart(self._unchecked[-1], point)
            self._unchecked.pop()
        rows = np.arange(self._count)
        return AffineValues(
            {name: np.take(each, rows, self.axes[name]) for name, each in found.centres.items()},
            {name: np.take(each, rows, self.axes[name] + 1) for name, each in found.slopes.items()},
            {name: np.take(each, rows, self.axes[name]) for name, each in found.noise.items()},
        )

    def _axis_of(self, name: str, values: Array) -> int:
        """Return the axis of a variable that runs over new rows."""
        found = [axis for axis, size in enumerate(np.shape(values)) if size == self._length]
        if not found:
            raise ValueError(f"{name!r} does not depend on the data given. Leave Xnew and data out.")
        return found[-1]


def _rows(values: NDArray[Any], length: int) -> NDArray[Any]:
    """Return one row as often as is wanted, or rows with the last of them once more."""
    return values[np.minimum(np.arange(length), len(values) - 1)]


def _masked(values: Array, output: int) -> Array:
    """Return values of one output of a process, and zeros for all others."""
    return values if values.ndim == 1 else values * (np.arange(len(values)) == output)[:, None]


def _axis(variable: TensorVariable, length: int) -> int:
    """Return the axis of a variable that runs over the rows of an array."""
    if variable.ndim == 1:
        return 0
    found = [axis for axis, size in enumerate(variable.type.shape) if size == length]
    if len(found) != 1:
        raise CannotSplitError(f"has {len(found)} axes that may run over the rows of {variable.name!r}")
    return found[0]
