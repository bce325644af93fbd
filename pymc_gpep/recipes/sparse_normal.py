"""Multivariate normal with a sparse precision, as a PyMC distribution.

The precision is represented by the entries of its lower triangle, so derivatives need no matrix. One sparse factor
determines the log determinant and its derivative, entries of the inverse.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import pytensor.sparse as ps
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import Continuous, SymbolicRandomVariable
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.pytensorf import normalize_rng_param
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import generate_fallback_impl, numba_funcify
from pytensor.scalar.basic import Neg
from pytensor.sparse.basic import CSM, Cast, CSMProperties, Transpose
from pytensor.sparse.math import AddSparseSparse, MultiplySparseDense, MultiplySparseSparse
from pytensor.tensor.random.utils import normalize_size_param
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import csc_array, csc_matrix, issparse

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.private_names import log_density, support_point
from pymc_gpep.solvers.sparse_precision import FactorPattern, SparsePrecision

type Indices = NDArray[np.int64]

# A matrix counts as symmetric if its asymmetry, relative to its largest entry, is at most this number.
_ASYMMETRY = 1e-9


class _Pattern(NamedTuple):
    """Sparsity pattern of the factor of a precision, and positions (slots) of the precision's entries in it."""

    factor: FactorPattern
    slots: Indices


@lru_cache(maxsize=16)
def _pattern(size: int, first: bytes, second: bytes) -> _Pattern:
    rows, columns = (np.frombuffer(each, np.int64) for each in (first, second))
    factor = FactorPattern(size, rows, columns)
    return _Pattern(factor, factor.slots(rows, columns))


def _factorised(entries: Array, first: Indices, second: Indices, size: int) -> tuple[SparsePrecision | None, Indices]:
    """Return the factorised precision (None if it is not positive definite), and the slots of its entries."""
    pattern = _pattern(size, first.tobytes(), second.tobytes())
    total = np.bincount(pattern.slots, entries, pattern.factor.entries + 1)
    return SparsePrecision.factorised(pattern.factor, total, np.zeros((0, size)), np.zeros(0)), pattern.slots


class _LogDeterminant(Op):
    """Operation for the log determinant of a precision with entries (m,), and for the same entries of its inverse.

    If the precision is not positive definite, the log determinant is −∞, and the entries are NaN.
    """

    __props__ = ()

    def make_node(self, entries: Any, first: Any, second: Any, size: Any) -> Apply:
        given = [
            pt.as_tensor(entries).astype("float64"),
            *(pt.as_tensor(each, dtype="int64") for each in (first, second, size)),
        ]
        return Apply(self, given, [pt.dscalar(), pt.dvector()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        entries, first, second, size = inputs
        found, slots = _factorised(entries, first, second, int(size))
        if found is None:
            determinant, inverse = -np.inf, np.full(len(entries), np.nan)
        else:
            determinant, inverse = found.log_det, found.entries(slots, first, second)
        output_storage[0][0], output_storage[1][0] = np.asarray(determinant), inverse

    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        return [(), shapes[0]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        if not isinstance(cotangents[1].type, DisconnectedType):
            raise NotImplementedError("gpep.SparseNormal has no second derivatives with respect to tau.")
        _, first, second, _ = inputs
        twice = pt.switch(pt.eq(first, second), 1.0, 2.0)
        others = [DisconnectedType()() for _ in inputs[1:]]
        return [cotangents[0] * twice * outputs[1], *others]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True, True], *([[False, False]] * 3)]


class _Spread(Op):
    """Operation for draws from N(0, Q⁻¹), computed from standard normals (..., n) and entries of Q."""

    __props__ = ()

    def make_node(self, noise: Any, entries: Any, first: Any, second: Any) -> Apply:
        given = [pt.as_tensor(each) for each in (noise, entries, first, second)]
        return Apply(self, given, [given[0].type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        noise, entries, first, second = inputs
        found, _ = _factorised(np.asarray(entries, np.float64), first, second, noise.shape[-1])
        if found is None:
            raise ValueError("The precision of a gpep.SparseNormal is not positive definite. Increase its diagonal.")
        drawn = found.spread(noise.reshape(-1, noise.shape[-1]))
        output_storage[0][0] = drawn.reshape(noise.shape).astype(noise.dtype)

    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        return [shapes[0]]


@numba_funcify.register(_LogDeterminant)
@numba_funcify.register(_Spread)
def _numba(op: Op, node: Apply | None = None, storage_map: Any = None, **kwargs: Any) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Numba warns that the code calls Python.
        return cast(Callable[..., Any], generate_fallback_impl(op, node, storage_map, **kwargs))


class SparseNormalRV(SymbolicRandomVariable):
    """Multivariate normal with mean (..., n), and a precision given by entries (m,), their rows and their columns."""

    name = "sparse_normal"
    extended_signature = "[rng],[size],(n),(m),(m),(m)->[rng],(n)"
    _print_name = ("SparseNormal", "\\operatorname{SparseNormal}")

    @classmethod
    def rv_op(
        cls, mu: Any, entries: Any, first: Any, second: Any, *, size: Any = None, rng: Any = None
    ) -> TensorVariable:
        mu, entries, first, second = (pt.as_tensor(each) for each in (mu, entries, first, second))
        rng, size = normalize_rng_param(rng), normalize_size_param(size)
        shape = tuple(mu.shape) if rv_size_is_none(size) else (*size, mu.shape[-1])
        next_rng, noise = pt.random.normal(size=shape, rng=rng, return_next_rng=True)
        drawn = mu + _Spread()(noise, entries, first, second)
        op = cls(inputs=[rng, size, mu, entries, first, second], outputs=[next_rng, drawn])
        return cast(TensorVariable, op(rng, size, mu, entries, first, second))


@support_point.register(SparseNormalRV)
def _mean(op: SparseNormalRV, rv: TensorVariable, rng: Any, size: Any, mu: Any, *precision: Any) -> TensorVariable:
    return cast(TensorVariable, mu + pt.zeros_like(rv))


@log_density.register(SparseNormalRV)
def _log_density(
    op: SparseNormalRV, values: Any, rng: Any, size: Any, mu: Any, entries: Any, first: Any, second: Any, **kwargs: Any
) -> TensorVariable:
    apart = values[0] - mu
    n = apart.shape[-1]
    products = apart[..., first] * apart[..., second] * pt.switch(pt.eq(first, second), 1.0, 2.0)
    determinant, _ = _LogDeterminant()(entries, first, second, n)
    return cast(TensorVariable, 0.5 * (determinant - n * np.log(2.0 * np.pi) - products @ entries))


class SparseNormal(Continuous):
    r"""Multivariate normal with a sparse precision Q.

    .. math:: \log p(x) = \tfrac12 \log|Q| - \tfrac n2 \log 2\pi - \tfrac12 (x - \mu)^T Q (x - \mu)

    Models with many effects, written as sums, are fitted by Q without arrays of size n².

    Parameters
    ----------
    mu : tensor_like, shape (n,) or scalar
    tau : sparse matrix (n, n), or a sparse variable
        Precision, symmetric and positive definite: a SciPy matrix, or an expression of such matrices by
        `pytensor.sparse`. Matrices may be added, subtracted, and multiplied by hyperparameters.

    Raises
    ------
    ValueError
        If `tau` is not square and symmetric, or has an unsupported operation. If the length of `mu` is not n.
    TypeError
        If `tau` is not sparse.

    Notes
    -----
    A mesh of finite elements for a Matérn field gives matrices C and G with Q = τ(κ⁴C + 2κ²G + G C⁻¹ G) (Lindgren, Rue
    and Lindström 2011). Second derivatives with respect to the precision are not implemented.

    Examples
    --------
    >>> import pytensor.sparse
    >>> import scipy.sparse as sp
    >>> steps = sp.diags([2.0, -1.0, -1.0], [0, 1, -1], shape=(len(y), len(y)), format="csc")
    >>> Q = pytensor.sparse.as_sparse_variable(steps)  # takes matrices of SciPy, sp.csc_matrix
    >>> with pm.Model():
    ...     u = gpep.SparseNormal("u", 0, pm.HalfNormal("tau", 1) * Q)
    """

    rv_type = SparseNormalRV
    rv_op = SparseNormalRV.rv_op

    @classmethod
    def dist(cls, mu: Any, tau: Any, **kwargs: Any) -> TensorVariable:
        """Return a random variable outside any model; see the class for arguments."""
        if issparse(tau):
            tau = ps.as_sparse_variable(csc_matrix(tau, dtype=np.float64))
        if not isinstance(getattr(tau, "type", None), ps.SparseTensorType):
            raise TypeError(
                f"tau must be a sparse matrix of SciPy or of pytensor.sparse, not a {type(tau).__name__}. For a dense "
                "matrix use pm.MvNormal(tau=...). Q / s is dense in PyTensor: write Q * (1 / s)."
            )
        matrices = list(dict.fromkeys(_matrices(tau)))
        n = matrices[0].data.shape[0]
        there = csc_array((n, n))
        for each in matrices:
            matrix = csc_array(each.data, dtype=np.float64)
            if matrix.shape != (n, n):
                raise ValueError(f"Each matrix in tau must have the shape {(n, n)}, not {matrix.shape}.")
            if abs(matrix - matrix.T).max() > _ASYMMETRY * abs(matrix).max():
                raise ValueError(
                    "tau must be symmetric, but contains an asymmetric matrix. Replace the matrix Q by (Q + Q.T) / 2."
                )
            there = there + abs(matrix)
        there = there.tocoo()
        below = (there.row >= there.col) & (there.data != 0.0)
        first, second = (np.asarray(each[below], np.int64) for each in (there.row, there.col))
        entries = _entries(tau, first, second)
        mu = pt.as_tensor_variable(mu).astype("float64")
        if mu.ndim == 0:
            mu = pt.alloc(mu, n)
        elif (length := mu.type.shape[-1]) not in (n, None):
            raise ValueError(f"mu must be a scalar or have an entry for each of the {n} rows of tau, but has {length}.")
        return super().dist([mu, entries, first, second], **kwargs)


_PASSED = AddSparseSparse | MultiplySparseDense | MultiplySparseSparse | Cast | Transpose


def _is_sparse(variable: Variable) -> bool:
    return isinstance(variable.type, ps.SparseTensorType)


def _negated(tau: Variable) -> Variable | None:
    """Return A if a precision is −A in the form that PyTensor uses for a negation; else None."""
    if not isinstance(tau.owner.op, CSM) or not is_elementwise(tau.owner.inputs[0], Neg):
        return None
    (data,) = tau.owner.inputs[0].owner.inputs
    others = tau.owner.inputs[1:]
    if data.owner is None or not isinstance(data.owner.op, CSMProperties) or data.owner.outputs[1:] != others:
        return None
    return cast(Variable, data.owner.inputs[0])


def _matrices(tau: Variable) -> list[Constant]:
    """Return the constant matrices in the expression of a precision."""
    if isinstance(tau, Constant):
        return [tau]
    if tau.owner is not None:
        op = tau.owner.op
        if (negated := _negated(tau)) is not None:
            return _matrices(negated)
        by_matrix = isinstance(op, MultiplySparseDense) and tau.owner.inputs[1].type.ndim > 0
        if isinstance(op, _PASSED) and not by_matrix:
            return [each for given in filter(_is_sparse, tau.owner.inputs) for each in _matrices(given)]
    what = "data that may change" if tau.owner is None else f"the operation {type(op).__name__}"
    raise ValueError(
        f"tau contains {what}, so that its entries cannot be read. Write it as a sum of SciPy matrices times numbers."
    )


def _entries(tau: Variable, first: Indices, second: Indices) -> TensorVariable:
    """Return the entries (m,) of a precision as a graph."""
    if isinstance(tau, Constant):
        found = csc_array(tau.data)[first, second]
        return cast(TensorVariable, pt.constant(np.asarray(found, np.float64).ravel()))
    if (negated := _negated(tau)) is not None:
        return cast(TensorVariable, -_entries(negated, first, second))
    entries, *others = (
        _entries(each, first, second) if _is_sparse(each) else each.astype("float64") for each in tau.owner.inputs
    )
    match tau.owner.op:
        case AddSparseSparse():
            return cast(TensorVariable, entries + others[0])
        case MultiplySparseSparse() | MultiplySparseDense():
            return cast(TensorVariable, entries * others[0])
    return cast(TensorVariable, entries)  # This is a cast, or the transpose of a symmetric matrix.
