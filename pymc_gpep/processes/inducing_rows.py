"""Rows of the standard normals of inducing values, and standard deviations of residuals, as one PyTensor operation.

Values of a process at rows x are W v + r e with the normals v of inducing values u = L v. The covariance of u is L Lᵀ.
With the covariance k(x, z) and the prior variance κ of rows

    W = k(x, z) L⁻ᵀ,   r² = κ − Σ_j W_j².

See `pymc_gpep.solvers.inducing`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
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
from pymc_gpep.graphs.interpreted import ModelFunctions, interpreted
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.processes.process_functions import ProcessFunctions
from pymc_gpep.processes.processes import CrossCovariance, functions_of
from pymc_gpep.solvers.inducing import InducingWhitening, whitening

JITTER = 1e-6
"""Number on the diagonal of the covariance of inducing values, relative to its mean."""
# Least variance of a residual in units of the prior variance; below it the residual has no derivative.
_LEAST = 1e-12


_NUMBERS = 2_000_000  # of the rows of a block, 16 MB


class InducingRows(Op):
    """(W | r) (n, M + 1) as a function of hyperparameters and inputs x (n, d), computed block by block.

    No other array has an axis over all rows. All is NaN if the covariance of inducing values has no Cholesky factor.

    Parameters
    ----------
    leaves : sequence of TensorVariable
        Hyperparameters.
    moments : callable
        From inputs (B, d) to covariances (M, M) of inducing values, (M, B) with rows, and variances (B,), in terms of
        the leaves.
    shape : tuple of int
        Number of inducing inputs, and of columns of the inputs, (M, d).
    """

    def __init__(
        self,
        leaves: Sequence[TensorVariable],
        moments: Callable[[TensorVariable], Sequence[TensorVariable]],
        shape: tuple[int, int],
    ) -> None:
        given = [each.type() for each in leaves]
        self._m = shape[0]
        self._x = pt.tensor("rows", dtype="float64", shape=(None, shape[1]))
        places = dict(zip(leaves, given, strict=True))
        self._given = given
        outputs = [each.astype("float64") for each in moments(self._x)]
        self._graphs = graph_replace(outputs, places, strict=False)
        self._inducing = interpreted(given, self._graphs[:1])
        self._block = interpreted([*given, self._x], self._graphs[1:])

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the operation to hyperparameters and inputs (n, d)."""
        made = [pt.as_tensor_variable(each) for each in inputs]
        return Apply(self, made, [pt.dmatrix("inducing_rows")])

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Inputs of rows are data, in which there are no derivatives."""
        return [*([True] for _ in self._given), [False]]

    def blocks(self, n: int, m: int) -> Iterator[slice]:
        """Slices of n rows with m numbers each."""
        step = max(1, _NUMBERS // m)
        return (slice(start, min(start + step, n)) for start in range(0, n, step))

    def whitening(self, leaves: Sequence[Array]) -> tuple[InducingWhitening, Array] | None:
        """Factor L of the covariance of inducing values, and L⁻¹; None if it has no factor."""
        white = whitening(self._inducing(*leaves)[0][None], JITTER)
        return None if white is None else (white, dtrtri(white.factor[0], lower=1)[0])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Evaluate."""
        *leaves, x = inputs
        found = self.whitening(leaves)
        m = self._m
        out = np.empty((len(x), m + 1))
        if found is None:
            out[:] = np.nan
        else:
            for rows in self.blocks(len(x), m):
                cross, variance = self._block(*leaves, x[rows])
                w = out[rows, :m]
                w[:] = dtrmm(1.0, found[1], cross, lower=1).T
                rest = variance - np.einsum("ij,ij->i", w, w)
                out[rows, m] = np.sqrt(np.maximum(rest, _LEAST * variance))
        output_storage[0][0] = out

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        """Cotangents of the hyperparameters."""
        return [*_InducingRowsPullback(self)(*inputs, outputs[0], cotangents[0], return_list=True), disconnected_type()]

    @cached_property
    def slopes(self) -> tuple[Any, Any]:
        """Functions that pull derivatives back to the leaves: of covariances of inducing values, and of a block."""
        made = []
        for graphs, x in ((self._graphs[:1], []), (self._graphs[1:], [self._x])):
            bars = [each.type() for each in graphs]
            total = pt.add(0.0, *((bar * each).sum() for bar, each in zip(bars, graphs, strict=True)))
            found = pytensor.grad(total, self._given, disconnected_inputs="ignore") if self._given else []
            made.append(interpreted([*self._given, *x, *bars], found))
        return made[0], made[1]


class _InducingRowsPullback(Op):
    """Derivatives in the hyperparameters of `InducingRows` from derivatives in its output."""

    __props__ = ("rows",)

    def __init__(self, rows: InducingRows) -> None:
        self.rows = rows

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the operation to inputs and output of the rows, and derivatives in the output."""
        given = [pt.as_tensor_variable(each) for each in inputs]
        return Apply(self, given, [each.type() for each in given[:-3]])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Evaluate."""
        *leaves, x, out, bar = inputs
        found, m = self.rows.whitening(leaves), out.shape[1] - 1
        of_inducing, of_block = self.rows.slopes
        if found is None or not np.isfinite(bar).all():
            total: list[Array] = [np.full_like(each, np.nan) for each in leaves]
        else:
            white, inverse = found
            total, product = [np.zeros_like(each) for each in leaves], np.zeros((m, m))
            for rows in self.rows.blocks(len(x), m):
                w, r = out[rows, :m], out[rows, m]
                known = r * r + np.einsum("ij,ij->i", w, w)
                of_rest = np.where(r * r > 2.0 * _LEAST * known, 0.5 * bar[rows, m] / r, 0.0)
                of_w = bar[rows, :m] - 2.0 * of_rest[:, None] * w
                product += of_w.T @ w
                of_cross = np.ascontiguousarray(dtrmm(1.0, inverse, of_w.T, lower=1, trans_a=1, overwrite_b=1))
                own = of_block(*leaves, x[rows], of_cross, of_rest)
                total = [a + b for a, b in zip(total, own, strict=True)]
            own = of_inducing(*leaves, white.pull_factor(product[None])[0])
            total = [a + b for a, b in zip(total, own, strict=True)]
        for storage, value, variable in zip(output_storage, total, node.outputs, strict=True):
            storage[0] = np.asarray(value, variable.type.dtype)


def inducing_rows(model: pm.Model, functions: ProcessFunctions, z: Array, x: TensorVariable) -> TensorVariable:
    """Return (W | r) (n, M + 1) of a process at inputs x (n, d), with inducing inputs z (M, d).

    Raises
    ------
    StructureError
        If inputs depend on random variables.
    """
    places, stop = pt.constant(z), set(model.basic_RVs)

    def moments(at: TensorVariable) -> list[TensorVariable]:
        return [functions.covariance(places, places), functions.covariance(places, at), functions.variance(at)]

    if behind := stop.intersection(ancestors([x], blockers=stop)):
        raise StructureError(
            f"Inputs of the process depend on {listing(behind)}, and a fit by inducing inputs takes data. Leave "
            "inducing out."
        )
    behind = stop.intersection(ancestors(moments(pt.tensor(dtype="float64", shape=(None, z.shape[1]))), blockers=stop))
    leaves = [rv for rv in model.basic_RVs if rv in behind]
    found: TensorVariable = InducingRows(leaves, moments, (len(z), z.shape[1]))(*leaves, x)
    return found


class InducedProcess(CrossCovariance):
    """A process at new inputs, by the normals of its inducing values.

    Parameters
    ----------
    prior : LatentPrior
        The process alone.
    gps : sequence of pm.gp.Latent or None
    data : mapping
        Data of the model → constants, as the fit had them.
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
        rows = inducing_rows(prior.model, functions, z, x)
        self._rows_at = ModelFunctions(prior.model, prior.hyperparameters, data)([rows], [x])

    def at_inputs(self, point: PointType, x: Array) -> tuple[Array, Array]:
        """Return W (m, M) and r (m,) at inputs x (m, d)."""
        (found,) = self._rows_at(point, x)
        return found[:, :-1], found[:, -1]
