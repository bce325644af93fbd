"""Prior of latent functions that are sums of effects: at fitted rows, at new rows, and for samplers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import AtPoint, ModelFunctions
from pymc_gpep.graphs.rows_of_graphs import CannotSplitError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import PriorAtNewRows
from pymc_gpep.processes.process_functions import ProcessFunctions
from pymc_gpep.processes.processes import CrossCovariance, functions_of, new_inputs
from pymc_gpep.sums.affine_map import AffineMap, AffineValues, ByValues, at_inputs
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.new_data import XNEW, DataBehind, refuse_labels
from pymc_gpep.sums.row_parts import MovedProcess
from pymc_gpep.sums.sum_at_new_rows import AtNewData, SumAtNewRows, by_own_normals, normals_by_output
from pymc_gpep.sums.sum_values import SumValues, SumVariables


class EffectsInMeans(PriorAtNewRows):
    """Prior moments of Gaussian processes at new inputs. Their means contain integrated effects.

    Parameters
    ----------
    prior : EffectSum
        Latent functions that are Gaussian processes with effects only in their means.
    processes : CrossCovariance
        Processes with mean 0.
    matched : list of pairs of LatentGP and ProcessFunctions
        Processes with their covariance and mean functions.
    data : dict
        Data of the model → constants with their values in the fit.
    """

    def __init__(
        self,
        prior: EffectSum,
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


class EffectsAtNewRows(AtNewData):
    """Variables of a model at new data, as functions of the hyperparameters.

    A Gaussian process is L z at its inputs in the model, with the Cholesky factor L of its covariance. At new inputs
    it is k*ᵀL⁻ᵀz plus noise, where k* is the covariance of both sets of inputs.

    Parameters
    ----------
    prior : EffectSum
    names : sequence of str
        Variables that are affine in integrated variables.
    data : dict
        Data of the model → constants with their values in the fit.
    x : array (m, d), optional
        New inputs of the Gaussian processes.
    new : dict of str to array
        Data by name → their new values.

    Raises
    ------
    ValueError
        If data do not match the model, or if a variable cannot be computed at the new data.
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
        behind = prior.processes_behind(self._variables)
        known = prior.data_behind(self._variables)
        self._from_array = False
        self._behind = DataBehind(prior.model, self._variables, known, data, prior.n_points, every=True)
        given: dict[str, Any] = dict(new)
        if unknown := [name for name in given if name not in known]:
            if not known:
                raise ValueError(
                    f"{self._called} depend on no data {unknown[0]!r}, nor on other data. Declare the covariates of "
                    "the rows as pm.Data."
                )
            listed = ", ".join(map(repr, known))
            meant = did_you_mean(unknown[:1], known)
            raise ValueError(f"{self._called} depend on no data {unknown[0]!r}, only on {listed}.{meant}")
        inputs = None if x is None else self._inputs_by(x, behind, known, given)
        self._new = new_data = self._behind.read(given, inputs)
        self._check_levels()
        self._count, self._length = len(new_data), self._behind.free_length(len(new_data))
        self._values, self._there = new_data.values(self._length), self._behind.symbols(new_data.names)
        self._shared = [known[name] for name in new_data.names if name in known]
        self._moved = behind
        if inputs is None:
            self._moved = [each for each in behind if not set(self._shared).isdisjoint(ancestors([each.cov]))]
        means = prior.recipe_means
        if made := {each.f for each in self._moved}.intersection(ancestors(means)):
            raise ValueError(f"Means of effects depend on {listing(made)}, which is unknown at new inputs.")
        self._processes: list[MovedProcess] = [prior.process(latent, None, data) for latent in self._moved]
        self._unchecked = list(self._names)  # Variables that still need the check for independent rows.

    @property
    def _called(self) -> str:
        return f"Values of {', '.join(map(repr, self._names))}"

    def _inputs_by(
        self, x: ArrayLike, behind: list[LatentGP], known: Mapping[str, SharedVariable], given: dict[str, Any]
    ) -> Array | None:
        """Store new inputs x in `given` and return None if x replaces data of the model; else return x as an array."""
        if not behind:
            raise ValueError(
                f"{self._called} depend on no Gaussian process. Give data={{...}} in place of Xnew, and declare the "
                "covariates of the rows as pm.Data."
            )
        sources = [name for name, v in known.items() if v in set(ancestors([latent.cov for latent in behind]))]
        if len(sources) == 1:
            given[sources[0]] = x
            return None
        arrays = [self._prior.process(latent, None, self._data).moments.inputs for latent in behind]
        if sources or not all(np.array_equal(each, arrays[0]) for each in arrays):
            raise ValueError(f"{self._called} depend on Gaussian processes of several inputs: give data={{...}}.")
        self._from_array, self._behind.fitted[XNEW] = True, arrays[0]
        return new_inputs(x, arrays[0].shape[1])

    def _check_levels(self) -> None:
        """Raise an error if new rows have levels that are not in the model."""
        for name, (outside, levels) in self._behind.outside(self._new).items():
            wrong = self._new.by_row[name][outside]
            refuse_labels(self._prior.model, self._behind.known[name], self._variables, wrong)
            raise ValueError(f"data[{name!r}] has {wrong[0]}, but its levels are 0 to {levels - 1}.")

    @cached_property
    def _affine(self) -> AffineMap:
        """The variables at new data in affine form. Processes at new inputs have separate terms."""
        there, inputs, by = self._there, [each.inputs for each in self._processes], None
        if self._from_array:
            inputs, by = [there[XNEW]] * len(inputs), self._from_inputs(there[XNEW])
        variables = dict(zip(self._names, self._variables, strict=True))
        data = self._behind.replaced(there)
        return AffineMap(self._prior, variables, data, self._moved, list(there.values()), inputs, by, size=self._size)

    @cached_property
    def _covariances(self) -> AtPoint:
        """Function that computes covariances of processes at inputs of the model, for processes at new inputs."""
        functions = ModelFunctions(self._prior.model, self._prior.hyperparameters, self._data)
        return functions([latent.cov for latent in self._moved])

    def _check_apart(self, name: str, axis: int, point: PointType) -> None:
        """Raise an error if an entry of a variable depends on data of other new rows."""
        rows, others = self._behind.apart(self._there, self._new)
        n = max(map(len, rows.values()))
        self._affine.check_apart(f"Values of {name!r}", name, axis, point, rows, others, n)

    def _from_inputs(self, x: TensorVariable) -> ByValues:
        """Return a function that computes variables at new inputs from standard normals and values of processes."""
        own, outputs = self._behind.fitted[XNEW], self._variables
        try:
            return at_inputs(self._called, self._prior, outputs, own, x, lambda v: _axis(v, len(own)), self._moved)
        except CannotSplitError as why:
            raise ValueError(f"{self._called} cannot be computed from Xnew without data: it {why}.") from None

    def __call__(self, point: PointType) -> AffineValues:
        """Return the variables at these hyperparameters.

        Raises
        ------
        ValueError
            If a variable depends on missing data, on none of the given data, or on several points of a process.
        """
        affine = self._affine
        try:
            values = affine(point, self._values, [self._length] * len(self._moved), self._units)
        except (ValueError, IndexError, AssertionError) as error:
            raise ValueError(
                f"{self._called} cannot be computed at {self._count} new rows. An array has an entry for each fitted "
                "row, or an index is out of range. Give data={...} for all arrays over rows."
            ) from error
        found = AffineValues(
            values.centres,
            self._widened(values.slopes),
            {name: np.zeros(each.shape) for name, each in values.centres.items()},
            {},
        )
        for i, x in enumerate(values.inputs):
            ahead, noise, normals = self._process_at(i, point, x)
            for name in self._names:
                for of_output, (one, cells, alone) in zip(normals, values.taken[name][i], strict=True):
                    if not alone:
                        raise ValueError(
                            f"{name!r} combines several points of a process, but a new row may use a single point."
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

    def _widened(self, slopes: dict[str, Array]) -> dict[str, Array]:
        """Return slopes in all standard normals, given slopes along `_units`. All other slopes are 0."""
        if self._units is None:
            return slopes
        wide = {name: np.zeros((self._prior.n_normals, *each.shape[1:])) for name, each in slopes.items()}
        for name, each in slopes.items():
            wide[name][: len(each)] = each
        return wide

    def _process_at(self, i: int, point: PointType, x: Array) -> tuple[Array, Array, NDArray[np.int64]]:
        """Return coefficients and noise variances of process i at x, and positions (outputs, n) of its normals."""
        latent, cov = self._moved[i], self._covariances(point)[i]
        ahead, noise = by_own_normals(self._processes[i].moments, cov, point, x)
        return ahead, noise, normals_by_output(self._prior, latent, cov)

    def _axis_of(self, name: str, values: Array) -> int:
        """Return the axis of new rows in the values of a variable."""
        found = [axis for axis, size in enumerate(np.shape(values)) if size == self._length]
        if not found:
            raise ValueError(f"{name!r} does not depend on the data given. Leave Xnew and data out.")
        return found[-1]


def _axis(variable: TensorVariable, length: int) -> int:
    """Return the axis of the rows of the model in a variable."""
    if variable.ndim == 1:
        return 0
    found = [axis for axis, size in enumerate(variable.type.shape) if size == length]
    if len(found) != 1:
        raise CannotSplitError(f"has {len(found)} axes that may run over the rows of {variable.name!r}")
    return found[0]


@dataclass(frozen=True, eq=False)
class LatentSum(EffectSum):
    """A sum of effects as a `LatentPrior`, with all attributes of `EffectSum`."""

    def variables(self, data: Mapping[Variable, Variable]) -> SumVariables:
        return SumVariables(self, data)

    def sampled(self, data: Mapping[Variable, Variable]) -> SumValues:
        if self.flat:
            raise StructureError(
                f"{listing(self.flat_variables)} has a flat prior, from which a sampler cannot draw a start. "
                f"{self.proper} Or sample the hyperparameters alone: pm.sample(model=gpep.marginalize(model))."
            )
        return SumValues(self, data)

    def variables_at_new_rows(
        self, names: Sequence[str], data: Mapping[Variable, Variable], x: ArrayLike | None, new: Mapping[str, ArrayLike]
    ) -> EffectsAtNewRows:
        return EffectsAtNewRows(self, names, data, x, new)

    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> PriorAtNewRows:
        if not self.alone:
            return SumAtNewRows(self, gps, data)
        processes = CrossCovariance(self.without_means(), gps, data, means=False)
        return EffectsInMeans(self, processes, functions_of(self, gps), data)


@dataclass(frozen=True, eq=False)
class SumInForm(LatentSum):
    """A sum of effects as a function of other coefficients than standard normals.

    Attributes
    ----------
    plain : LatentSum
        The same sum as a function of standard normals.
    """

    plain: LatentSum = field(kw_only=True)

    @classmethod
    def made_of(cls, plain: LatentSum, **other: Any) -> Self:
        """Return a sum of this class. It has the attributes `other`, and all other attributes of `plain`."""
        return cls(**{each.name: getattr(plain, each.name) for each in fields(LatentSum)} | other, plain=plain)

    def sampled(self, data: Mapping[Variable, Variable]) -> SumValues:
        return self.plain.sampled(data)
