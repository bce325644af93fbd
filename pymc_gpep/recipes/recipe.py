"""Random variables as affine functions of independent standard normals: recipes, and roots of covariances.

A root is any square matrix R with R Rᵀ equal to the covariance. It depends only on parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, Self, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.multivariate import ZeroSumNormalRV
from pymc.distributions.transforms import ZeroSumTransform
from pymc.pytensorf import get_symbolic_rv_shapes, resolve_shapes
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Second
from pytensor.tensor.basic import Alloc
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.inverse import MatrixInverse
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.errors import StructureError, describe
from pymc_gpep.graphs.interpreted import SEED, evaluate

Shape = tuple[int, ...]
Make = Callable[[TensorVariable, Sequence[TensorVariable], Sequence[TensorVariable]], TensorVariable]


@dataclass(frozen=True, eq=False)
class Field:
    """Gaussian random variable as a function of a vector x with the sparse precision Q + V W⁻¹ Vᵀ.

    Attributes
    ----------
    make : callable
        Function like `Recipe.make`, with x in place of standard normals.
    first, second : array (m,)
        Rows and columns of entries of Q: (i, j) or (j, i), not both. Duplicate entries are added.
    entries : callable
        Function of the recipe's scales that returns these entries, (m,).
    columns : array (p, size)
        The matrix V transposed.
    widths : array (p,)
        The diagonal of W.
    blocks : tuple of tuple of int
        Shapes of the parts of x. An entry of the variable has one number in each part. Empty for the shape of the
        variable.
    independent : bool
        Whether the entries of x are independent standard normals.
    """

    make: Make
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    entries: Callable[[Sequence[TensorVariable]], TensorVariable]
    columns: NDArray[np.float64]
    widths: NDArray[np.float64]
    blocks: tuple[Shape, ...] = ()
    independent: bool = False

    @classmethod
    def plain(cls, size: int, make: Make, flat: Sequence[int] = ()) -> Self:
        """Return independent standard normals as a field. The precision has no entries for `flat` positions."""
        every = np.delete(np.arange(size), np.array(flat, np.int64))
        no_columns = np.zeros((0, size))
        return cls(make, every, every, lambda scales: pt.ones(every.size), no_columns, np.zeros(0), (), not len(flat))

    def cumulated(self, begin: int, shape: Shape) -> "Field":
        """Return the field as a function of running sums y of a part x of its vector, along the last axis.

        The precision of y is Dᵀ Q D, where x = D y are the differences of successive sums.

        Parameters
        ----------
        begin : int
            Position of the first entry of the part.
        shape : tuple of int
            Shape of the part.
        """
        end = begin + prod(shape)

        def make(
            y: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]
        ) -> TensorVariable:
            sums = y[begin:end].reshape(shape)
            steps = pt.concatenate([sums[..., :1], sums[..., 1:] - sums[..., :-1]], axis=-1)
            return self.make(pt.concatenate([y[:begin], steps.ravel(), y[end:]]), means, scales)

        before = np.arange(-1, self.columns.shape[1] - 1)
        before[:begin] = before[end:] = before[begin : end : shape[-1]] = -1
        after = np.flatnonzero(before >= 0)
        columns = self.columns.copy()
        columns[:, after - 1] -= self.columns[:, after]
        m, diagonal = len(self.first), self.first == self.second
        rows = np.stack([self.first, self.first, before[self.first], before[self.first]])
        others = np.stack([self.second, before[self.second], self.second, before[self.second]])
        # An entry off the diagonal is for (i, j) and (j, i). Both are added if they move to the diagonal of Dᵀ Q D.
        weights = np.array([1.0, -1.0, -1.0, 1.0])[:, None] * np.where((rows == others) & ~diagonal, 2.0, 1.0)
        there = (rows >= 0) & (others >= 0)
        there[2] &= ~diagonal
        kept, weights = np.tile(np.arange(m), (4, 1))[there], weights[there]

        def entries(scales: Sequence[TensorVariable]) -> TensorVariable:
            return cast(TensorVariable, self.entries(scales)[pt.constant(kept)] * weights)

        first, second = np.maximum(rows, others)[there], np.minimum(rows, others)[there]
        return Field(make, first, second, entries, columns, self.widths, self.blocks)


@dataclass(frozen=True, eq=False)
class Recipe:
    """Gaussian random variable as an affine function of independent standard normals.

    Attributes
    ----------
    size : int
        Number of standard normals. It exceeds the dimension of a singular distribution.
    means : tuple of TensorVariable
        Parameters in which the variable is affine. They may depend on other Gaussian variables.
    scales : tuple of TensorVariable
        Other parameters. They may not depend on variables that are integrated out.
    make : callable
        `make(z, means, scales)` returns the variable as a graph in double precision, with the shape of the random
        variable when it was read. The graph is affine in `z` (size,) and in the means.
    positive : tuple of TensorVariable
        Parameters that must not be negative: PyMC's density is then 0, although `make` accepts them.
    field : Field, optional
        The same variable as a function of `size` numbers with a sparse precision.
    flat : tuple of int
        Positions in z, and in the vector of the field, with a flat prior in place of a standard normal one.
    bounded : bool
        Whether flat entries have the bounds −½ and ½. The bounds are ignored: their effect is negligible.
    wide : tuple of float
        Standard deviations of normal priors that replaced the flat priors, one for each flat entry.
    """

    size: int
    means: tuple[TensorVariable, ...]
    scales: tuple[TensorVariable, ...]
    make: Make
    positive: tuple[TensorVariable, ...] = ()
    field: Field | None = None
    flat: tuple[int, ...] = ()
    bounded: bool = False
    wide: tuple[float, ...] = ()

    def widened(self, deviations: NDArray[np.float64]) -> "Recipe":
        """Return the recipe with flat priors replaced by normal priors with these standard deviations (p,)."""
        units = np.ones(self.size)
        units[list(self.flat)] = deviations
        make = self.make
        return replace(
            self, make=lambda z, means, scales: make(z * units, means, scales),
            field=None, flat=(), wide=tuple(map(float, deviations)),
        )  # fmt: skip

    @property
    def as_field(self) -> Field:
        """Field of the recipe; for a recipe without a field, a field of independent standard normals."""
        return self.field or Field.plain(self.size, self.make, self.flat)

    def by_field(self, field: Field | None = None) -> "Recipe":
        """Return the recipe as a function of a field's vector (by default `as_field`), not of standard normals."""
        return replace(self, make=(field or self.as_field).make)


_Reader = Callable[[TensorVariable, Shape], Recipe | None]
_READERS: dict[type[Op], _Reader] = {}


def reads(op: type[Op]) -> Callable[[_Reader], _Reader]:
    """Register a function that returns the recipe of random variables of exactly this Op.

    The function takes the variable and its shape. It returns None for a variable without a recipe.
    """

    def register(reader: _Reader) -> _Reader:
        _READERS[op] = reader
        return reader

    return register


def is_read(variable: Variable) -> bool:
    """Return whether recipes exist for the distribution of a variable."""
    return variable.owner is not None and type(variable.owner.op) in _READERS


def recipe(variable: TensorVariable, model: pm.Model) -> Recipe | None:
    """Return the recipe of a random variable of a model.

    Returns
    -------
    Recipe or None
        None for a variable that is not Gaussian, has no recipe, or has a transform that is not linear.
    """
    if not is_read(variable) or not keeps_gaussian(variable, model):
        return None
    return recipe_of(variable, shape_of(variable))


def recipe_of(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """Return the recipe of a random variable with this shape. It may be a part of another distribution."""
    return _READERS[type(variable.owner.op)](variable, shape) if is_read(variable) else None


def keeps_gaussian(variable: TensorVariable, model: pm.Model) -> bool:
    """Return whether a Gaussian variable is also Gaussian after the transform that PyMC applies."""
    transform = model.rvs_to_transforms.get(variable)
    if not isinstance(variable.owner.op, ZeroSumNormalRV):
        return transform is None
    axes = tuple(range(-variable.owner.op.ndim_supp, 0))
    return isinstance(transform, ZeroSumTransform) and transform.zerosum_axes == axes


def shape_of(variable: TensorVariable) -> Shape:
    """Return the present shape of a variable as integers. New data may change the shape."""
    known = variable.type.shape
    if all(length is not None for length in known):
        return cast(Shape, tuple(known))
    return tuple(int(length) for length in evaluate(get_symbolic_rv_shapes([variable]))[0])


def parameters(variable: TensorVariable) -> list[TensorVariable]:
    """Return the parameters of a random variable, without generator and size if the Op has these as separate inputs."""
    op = variable.owner.op
    if isinstance(op, SymbolicRandomVariable):
        return list(variable.owner.inputs)
    return list(op.dist_params(variable.owner))


def is_random(variable: Variable) -> bool:
    """Return whether a variable is a random variable, or depends on a random variable."""
    return any(each.owner is not None and isinstance(each.owner.op, RNGConsumerOp) for each in ancestors([variable]))


def unbroadcast(mean: TensorVariable) -> TensorVariable:
    """Return a mean before its broadcast to the shape of a distribution. The broadcast depends on the covariance."""
    while (node := mean.owner) is not None:
        if is_elementwise(mean, Second):
            mean = cast(TensorVariable, node.inputs[1])
        elif isinstance(node.op, Alloc) or _adds_axes_in_front(mean):
            mean = cast(TensorVariable, node.inputs[0])
        else:
            break
    return mean


def as_matrix(variable: TensorVariable) -> TensorVariable:
    """Return a matrix, or a batch of matrices, without the leading axes that PyMC added."""
    while variable.ndim > 2 and _adds_axes_in_front(variable):
        inner = cast(TensorVariable, variable.owner.inputs[0])
        if inner.ndim < 2:
            break
        variable = inner
    return variable


def _adds_axes_in_front(variable: TensorVariable) -> bool:
    if variable.owner is None or not isinstance(variable.owner.op, DimShuffle):
        return False
    order, before = variable.owner.op.new_order, cast(TensorVariable, variable.owner.inputs[0]).ndim
    return order == ("x",) * (len(order) - before) + tuple(range(before))


def as_double(variable: TensorVariable) -> TensorVariable:
    """Return a variable in double precision."""
    return cast(TensorVariable, pt.cast(variable, "float64"))


class Root(NamedTuple):
    """Parameter of a distribution, and a function that computes a root of the covariance from it."""

    scale: TensorVariable
    of: Callable[[TensorVariable], TensorVariable]


def read_root(cov: TensorVariable) -> Root:
    """Return the parameter of a covariance, and the function that computes a root from it.

    If the graph has the covariance as L Lᵀ, the root is L. If the graph inverts a precision, the root needs no inverse.
    """
    cov = as_matrix(cov)
    node = cov.owner
    op = None if node is None else _core(node.op)
    if isinstance(op, Dot):
        factor, other = cast(list[TensorVariable], node.inputs)
        if _are_transposed(factor, other) and _is_square(factor):
            return Root(factor, as_double)
    if isinstance(op, MatrixInverse):
        return Root(as_matrix(cast(TensorVariable, node.inputs[0])), inverse_root)
    return Root(cov, lower_root)


def lower_root(cov: TensorVariable) -> TensorVariable:
    """Return the lower Cholesky factor of a covariance."""
    return cast(TensorVariable, pt.linalg.cholesky(as_double(cov)))


def inverse_root(precision: TensorVariable) -> TensorVariable:
    """Return the root L⁻ᵀ of the inverse of a precision L Lᵀ."""
    lower = pt.linalg.cholesky(as_double(precision))
    return cast(TensorVariable, solved(lower).mT)


def solved(lower: TensorVariable) -> TensorVariable:
    """Return the inverse of lower triangular matrices, (..., n, n)."""
    return cast(TensorVariable, pt.linalg.solve_triangular(lower, pt.eye(lower.shape[-1]), lower=True, b_ndim=2))


def pattern_of(precision: TensorVariable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of nonzero entries in the lower triangle of a precision, at random hyperparameters."""
    random = [v for v in ancestors([precision]) if v.owner is not None and isinstance(v.owner.op, RNGConsumerOp)]
    given = [cast(TensorVariable, v) for v in random if not isinstance(v.type, RandomType)]
    rng = np.random.default_rng(SEED)
    shapes = evaluate(get_symbolic_rv_shapes(given)) if given else []
    there = False
    for _ in range(2):
        values = {v: rng.uniform(0.2, 0.8, size=tuple(shape)) for v, shape in zip(given, shapes, strict=True)}
        (found,) = evaluate([precision], {v: value.astype(v.dtype) for v, value in values.items()})
        there = there | (found != 0.0)
    return np.nonzero(np.tril(there))


def times(root: TensorVariable, vectors: TensorVariable) -> TensorVariable:
    """Return the products of matrices (..., n, m) with vectors (..., m)."""
    if root.ndim == 2:
        return cast(TensorVariable, pt.matmul(vectors, root.mT))
    return cast(TensorVariable, pt.matmul(root, vectors[..., None])[..., 0])


def _core(op: Op) -> Op:
    return cast(Op, op.core_op) if isinstance(op, Blockwise) else op


def _are_transposed(one: TensorVariable, other: TensorVariable) -> bool:
    return _is_transpose(one, other) or _is_transpose(other, one)


def _is_transpose(variable: TensorVariable, of: TensorVariable) -> bool:
    node = variable.owner
    if node is None or not isinstance(node.op, DimShuffle) or node.inputs[0] is not of:
        return False
    *batch, last, first = node.op.new_order
    return [*batch, first, last] == list(range(of.ndim))


def _is_square(matrix: TensorVariable) -> bool:
    """Return whether a factor of a covariance is square. Other factors would need more standard normals than rows."""
    if getattr(matrix.tag, "lower_triangular", False):
        return True
    rows, columns = matrix.type.shape[-2:]
    if rows is None or columns is None:
        rows, columns = evaluate(resolve_shapes([matrix.shape]))[0][-2:]
    return bool(rows == columns)


@reads(NormalRV)
def read_normal(variable: TensorVariable, shape: Shape) -> Recipe:
    """Return the recipe mean + scale · z of independent normals."""
    mu, sigma = parameters(variable)
    given = sigma
    while given.owner is not None and isinstance(given.owner.op, DimShuffle):
        given = given.owner.inputs[0]
    if isinstance(given, Constant) and (wrong := [each for each in np.ravel(given.data) if not each >= 0]):
        raise StructureError(f"{describe(variable)} has the standard deviation {wrong[0]}, which must be at least 0.")
    return Recipe(
        prod(shape), (mu,), (sigma,), lambda z, means, scales: means[0] + scales[0] * z.reshape(shape), (sigma,)
    )
