"""PyTensor operation for coefficients of rows on inducing values, and for residual standard deviations.

Values of a process at rows x are W v + r e, with independent standard normals v and e. The values at inducing inputs z
are u = L v, with covariance L Lᵀ. With the covariance k(x, z) and the prior variances κ at the rows,

    W = k(x, z) L⁻ᵀ,   r² = κ − Σ_j W_j².

See `pymc_gpep.solvers.inducing`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import SEED, ModelFunctions, flat, interpreted, pulled_back
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.processes.process_functions import ProcessFunctions
from pymc_gpep.processes.processes import CrossCovariance, functions_of
from pymc_gpep.processes.stationary import stationary
from pymc_gpep.solvers.inducing import InducingWhitening, whitening
from pymc_gpep.solvers.step_algebra import InducingMoments, Profile, RowMoments, StationaryBlocks

JITTER = 1e-6
"""Jitter added to the diagonal of the covariance of inducing values, relative to the mean of the diagonal."""
# Smaller residual variances, relative to the prior variance, are raised to this number. Their derivative is 0.
_LEAST = 1e-12


_NUMBERS = 400_000  # Number of entries in a block, 3 MB. It fits into a processor's cache.


class _Numbers:
    """Scales (d,), variance and noise variance as numbers, with the methods of `ScaleFunctions`."""

    def __init__(self, *given: Array) -> None:
        self._given = given

    def __call__(self, theta: Array) -> tuple[Array, Array, Array]:
        scales, variance, noise = (np.asarray(each, np.float64)[None] for each in self._given)
        return scales, variance, noise

    def pulled(self, theta: Array, scales: Array, variances: Array, noises: Array) -> Array:
        return np.concatenate([scales[0], variances, noises])


class _Written:
    """Prior moments for a covariance function v φ(r²), in closed form.

    The leaves are the scales (d,), the variance v, and the noise variance of a row.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def at(self, leaves: Sequence[Array], z: Array) -> InducingMoments:
        return StationaryBlocks([self._profile], _Numbers(*leaves), [0]).at(np.empty(0), z[None])


class _ByGraphs:
    """Prior moments for any covariance function, computed by graphs of the model from values of their leaves."""

    def __init__(
        self,
        leaves: Sequence[TensorVariable],
        graphs: Sequence[TensorVariable],
        z: TensorVariable,
        x: TensorVariable,
    ) -> None:
        found = [each.astype("float64") for each in graphs]
        self._parts = [([*leaves, z], found[:1]), ([*leaves, z, x], found[1:])]

    @cached_property
    def values(self) -> list[Any]:
        """Two functions: of leaves and z, and of leaves, z and x.

        They return the covariance of inducing values; and their covariance with rows, and variances of rows.
        """
        return [interpreted(*part) for part in self._parts]

    @cached_property
    def slopes(self) -> list[Any]:
        """Two functions for derivatives in leaves and z, from inputs of `values`, and derivatives in results."""
        made = []
        for inputs, graphs in self._parts:
            bars, found = pulled_back(graphs, self._parts[0][0])
            made.append(interpreted([*inputs, *bars], [flat(found)]))
        return made

    def at(self, leaves: Sequence[Array], z: Array) -> InducingMoments:
        return _GraphMoments(self, [*leaves, z])


class _GraphMoments:
    """Moments at given leaves and inducing inputs, see `InducingMoments`."""

    def __init__(self, by: _ByGraphs, given: Sequence[Array]) -> None:
        self._by, self._given, self._x = by, list(given), np.empty((0, 0))
        self.covariances: list[Array] = [np.asarray(by.values[0](*given)[0])]

    def rows(self, x: Array) -> list[RowMoments]:
        self._x = x
        cross, variance = self._by.values[1](*self._given, x)
        return [RowMoments(np.array(cross.T, order="C"), np.asarray(variance), None)]

    def pulled(self, covariances: Sequence[Array], rows: Sequence[RowMoments]) -> tuple[Array, Array]:
        of_inducing, of_block = self._by.slopes
        ((own,), (bar,)), z = (covariances, rows), self._given[-1]
        found = of_block(*self._given, self._x, bar.cross.T, bar.variance)[0]
        if own.any():
            found = found + of_inducing(*self._given, own)[0]
        return found[: -z.size], found[-z.size :].reshape(1, *z.shape)


class InducingRows(Op):
    """Operation for the matrix (W | r) (n, M + 1), with coefficients W and residual standard deviations r of rows.

    Its inputs are leaves, inducing inputs z (M, d) and inputs x (n, d). It is computed by blocks: no other array has an
    axis over all rows. Entries are NaN if the covariance of inducing values cannot be factorised.

    Parameters
    ----------
    moments : object
        Object with a method `at` that returns the `InducingMoments` of one function for values of the leaves and z.
    """

    def __init__(self, moments: _Written | _ByGraphs) -> None:
        self.moments = moments

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node for leaves, inducing inputs (M, d) and inputs (n, d)."""
        made = [pt.as_tensor_variable(each) for each in inputs]
        return Apply(self, made, [pt.dmatrix("inducing_rows")])

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Return which inputs have derivatives: all except the inputs of the rows, which are data."""
        return [*([True] for _ in node.inputs[:-1]), [False]]

    def blocks(self, n: int, m: int) -> Iterator[slice]:
        """Return slices of n rows. Each slice is a block of an array with m columns."""
        step = max(1, _NUMBERS // m)
        return (slice(start, min(start + step, n)) for start in range(0, n, step))

    def whitened(self, inputs: Sequence[Any]) -> tuple[InducingMoments, InducingWhitening, Array] | None:
        """Return moments, the factor L of the covariance of inducing values, and L⁻¹; None if L does not exist."""
        *leaves, z, _ = inputs
        moments = self.moments.at(leaves, z)
        white = whitening(moments.covariances[0][None], JITTER)
        return None if white is None else (moments, white, dtrtri(white.factor[0], lower=1)[0])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Compute the matrix (W | r)."""
        x, found, m = inputs[-1], self.whitened(inputs), len(inputs[-2])
        out = np.empty((len(x), m + 1))
        if found is None:
            out[:] = np.nan
        else:
            moments, _, inverse = found
            for rows in self.blocks(len(x), m):
                (own,) = moments.rows(x[rows])
                w = dtrmm(1.0, inverse, own.cross.T, lower=1, overwrite_b=1).T
                out[rows, :m] = w
                rest = own.variance - np.einsum("ij,ij->i", w, w)
                out[rows, m] = np.sqrt(np.maximum(rest, _LEAST * own.variance))
        output_storage[0][0] = out

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        """Return the derivatives with respect to leaves and inducing inputs."""
        return [*_InducingRowsPullback(self)(*inputs, outputs[0], cotangents[0], return_list=True), disconnected_type()]


class _InducingRowsPullback(Op):
    """Operation for derivatives in leaves and inducing inputs, from derivatives in the result of `InducingRows`."""

    __props__ = ("rows",)

    def __init__(self, rows: InducingRows) -> None:
        self.rows = rows

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node for inputs and output of `InducingRows`, and derivatives with respect to the output."""
        given = [pt.as_tensor_variable(each) for each in inputs]
        return Apply(self, given, [each.type() for each in given[:-3]])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Compute the derivatives."""
        *given, out, bar = inputs
        *wanted, x = given
        found, m = self.rows.whitened(given), out.shape[1] - 1
        sizes = [np.size(each) for each in wanted]
        total = np.full(sum(sizes), np.nan)
        if found is not None and np.isfinite(bar.sum()):
            moments, white, inverse = found
            total[:], product, covariance = 0.0, np.zeros((m, m)), np.zeros((m, m))
            for rows in self.rows.blocks(len(x), m):
                w, r = out[rows, :m], out[rows, m]
                known = moments.rows(x[rows])[0].variance
                of_rest = np.where(r * r > 2.0 * _LEAST * known, 0.5 * bar[rows, m] / r, 0.0)
                of_w = bar[rows, :m] - (2.0 * of_rest)[:, None] * w
                product += of_w.T @ w
                if rows.stop == len(x):
                    covariance = white.pull_factor(product[None])[0]
                of_cross = dtrmm(1.0, inverse, of_w.T, lower=1, trans_a=1, overwrite_b=1).T
                of_leaves, of_z = moments.pulled([covariance], [RowMoments(of_cross, of_rest, None)])
                total += np.concatenate([of_leaves, of_z.ravel()])
        parts = np.split(total, np.cumsum(sizes)[:-1])
        for storage, value, own, variable in zip(output_storage, parts, wanted, node.outputs, strict=True):
            storage[0] = np.asarray(value.reshape(np.shape(own)), variable.type.dtype)


def inducing_rows(
    prior: LatentPrior,
    functions: ProcessFunctions,
    z: Array,
    x: TensorVariable,
    data: Mapping[Variable, Variable],
) -> TensorVariable:
    """Return a graph of (W | r) (n, M + 1) of a process at inputs x (n, d), see `InducingRows`.

    Parameters
    ----------
    prior : LatentPrior
    functions : ProcessFunctions
    z : array (M, d)
    x : TensorVariable
    data : mapping
        Data of the model → constants.

    Raises
    ------
    StructureError
        If inputs depend on random variables of the model.
    """
    model, shape = prior.model, z.shape
    stop, of = set(model.basic_RVs), ModelFunctions(model, prior.hyperparameters, data)
    if behind := stop.intersection(ancestors([x], blockers=stop)):
        raise StructureError(
            f"Inputs of the process depend on {listing(behind)}, but inducing= needs inputs from data. Leave "
            "inducing out."
        )
    places = pt.tensor("inducing", dtype="float64", shape=(None, shape[1]))
    rows = pt.tensor("rows", dtype="float64", shape=(None, shape[1]))
    graphs = [functions.covariance(places, places), functions.covariance(places, rows), functions.variance(rows)]
    graphs = graph_replace(graphs, data, strict=False)
    behind = stop.intersection(ancestors(graphs, blockers=stop))
    leaves = [rv for rv in model.basic_RVs if rv in behind]
    given = [each.type() for each in leaves]
    graphs = graph_replace(graphs, dict(zip(leaves, given, strict=True)), strict=False)
    at, rng = of(leaves), np.random.default_rng(SEED)
    points = [at(of.nearby(rng)) for _ in range(2)]
    form = stationary(model, given, [*graphs, pt.zeros((1, rows.shape[0]))], places, rows, points)
    op, taken = InducingRows(_ByGraphs(given, graphs, places, rows)), leaves
    if form is not None:
        known = dict(zip(given, leaves, strict=True))
        op, taken = InducingRows(_Written(form.profile)), graph_replace(list(form[1:]), known, strict=False)
    found: TensorVariable = op(*(each.astype("float64") for each in taken), pt.constant(z), x)
    return found


class InducedProcess(CrossCovariance):
    """Process at new inputs, as a function of the standard normals of its inducing values.

    Parameters
    ----------
    prior : LatentPrior
        Prior of the process, without effects.
    gps : sequence of pm.gp.Latent or None
    data : mapping
        Data of the model → constants with the values of the fit.
    z : array (M, d)
        Inducing inputs.
    """

    def __init__(
        self,
        prior: LatentPrior,
        gps: Sequence[pm.gp.Latent] | None,
        data: Mapping[Variable, Variable],
        z: Array,
    ) -> None:
        super().__init__(prior, gps, data, means=False)
        x = pt.dmatrix("Xnew")
        ((_, functions),) = functions_of(prior, gps)
        rows = inducing_rows(prior, functions, z, x, data)
        self._rows_at = ModelFunctions(prior.model, prior.hyperparameters, data)([rows], [x])

    def at_inputs(self, point: PointType, x: Array) -> tuple[Array, Array]:
        """Return coefficients W (m, M) and residual standard deviations r (m,) at inputs x (m, d)."""
        (found,) = self._rows_at(point, x)
        return found[:, :-1], found[:, -1]
