"""Recognition of `pm.gp.Latent` priors in a model, and of the position of latent values in a likelihood's argument.

A PyMC model does not store its Gaussian processes, but only the variables that `pm.gp.Latent.prior` created:

- `reparameterize=True`: a free `v ~ Normal(0, 1)` and a Deterministic `mean + (cholesky(cov) @ v.T).T`.

- `reparameterize=False`: a free `f ~ MvNormal(mean, cov)`, with a leading axis if there are several outputs.

Both are recognised by these expressions and not by names of variables. In a model that PyMC has rebuilt (`pm.do`,
`model.copy`), the Deterministic is the expression itself.

Between the priors and the likelihood, only operations that move entries are allowed: transposing, stacking, indexing,
reshaping. `read_assembly` replaces each latent value by a serial number, and evaluates the operations. The numbers in
the argument show the latent function of each class. So no operation needs separate code.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.basic import Eye, Join, get_underlying_scalar_constant_value
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.errors import NotProcessesAloneError, StructureError, describe, distribution, listing
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.likelihoods.observed import A_ROW_FOR_EACH_VOTE


@dataclass(frozen=True, eq=False)
class LatentGP:
    """Gaussian process prior in a model. Its outputs are independent functions with the same covariance.

    All expressions depend on the random variables of the model. `model.replace_rvs_by_values` replaces these by value
    variables.

    Attributes
    ----------
    f : TensorVariable, shape (n,) or (outputs, n)
        Variable of the model with the latent values: a Deterministic if `rotated`, else a random variable.
    free : TensorVariable, shape of f
        The free random variable: standard normal if `rotated`, else `f` itself.
    rotated : bool
        Whether f = mean + cholesky(cov) @ free, the form of `reparameterize=True`.
    mean : TensorVariable, shape (n,) or (outputs, n)
        Prior mean, a function of hyperparameters. In the model its shape may be any that broadcasts to this shape.
    cov : TensorVariable, shape (n, n)
        Prior covariance of each output with PyMC's jitter on the diagonal, a function of hyperparameters.
    classes : tuple of int
        Index of the latent function (class) of each output; empty before the whole model is read.
    """

    f: TensorVariable
    free: TensorVariable
    rotated: bool
    mean: TensorVariable
    cov: TensorVariable
    classes: tuple[int, ...] = ()

    @property
    def rows(self) -> Any:
        """Indices of the functions of this prior among all functions: a list, or an integer if `f` has no such axis."""
        return list(self.classes) if self.f.ndim == 2 else self.classes[0]


def read_latent(variable: Variable, model: pm.Model) -> LatentGP | None:
    """Return the prior with a variable as its latent values; None if the variable is not from a prior."""
    if not isinstance(variable, TensorVariable):
        return None
    return _read_centred(variable, model) or _read_rotated(variable, model)


def latents_among(variables: Iterable[Variable], model: pm.Model) -> list[LatentGP]:
    """Return the Gaussian process priors with latent values among these variables."""
    return [latent for variable in variables if (latent := read_latent(variable, model)) is not None]


def is_process(latent: LatentGP) -> bool:
    """Return whether a prior is from `pm.gp.Latent`, not `pm.MvNormal`: its covariance has a term `jitter * eye`."""
    return any(_is_jitter(term) for term in _operands(latent.cov, Add))


def refuse_common_variables(latents: Sequence[LatentGP]) -> None:
    """Raise a StructureError if two priors have the same free variable."""
    if len({latent.free for latent in latents}) < len(latents):
        raise StructureError(
            f"The priors of {listing(latent.f for latent in latents)} use the same free variable, so they are not "
            "independent. Give each prior a free variable of its own."
        )


def without_jitter(latent: LatentGP) -> TensorVariable:
    """Return the prior covariance of a process as computed by its covariance function, without jitter."""
    terms = _operands(latent.cov, Add)
    return terms[0] if len(terms) == 2 and _is_jitter(terms[1]) else latent.cov


def jitter_of(latent: LatentGP) -> float:
    """Return the jitter that `pm.gp.Latent` added to the diagonal of the prior covariance; 0 without jitter.

    Raises
    ------
    StructureError
        If the jitter is not a number.
    """
    terms = [term for term in _operands(latent.cov, Add) if _is_jitter(term)]
    if not terms:
        return 0.0
    factors = [each for each in _operands(terms[-1], Mul) if not isinstance(getattr(each.owner, "op", None), Eye)]
    try:
        return float(np.prod([get_underlying_scalar_constant_value(factor) for factor in factors]))
    except NotScalarConstantError:
        raise StructureError(
            f"The jitter of {latent.f.name!r} is not a number. Give gp.prior(..., jitter=...) a number."
        ) from None


def _is_jitter(term: TensorVariable) -> bool:
    factors = _operands(term, Mul)
    return any(factor.owner is not None and isinstance(factor.owner.op, Eye) for factor in factors)


def _read_centred(variable: TensorVariable, model: pm.Model) -> LatentGP | None:
    node = variable.owner
    if node is None or not isinstance(node.op, MvNormalRV) or variable not in model.free_RVs:
        return None
    mean, cov = cast(list[TensorVariable], node.op.dist_params(node))
    matrix, axes = _moved_axes(cov)
    if axes == ("x", 0, 1):  # PyMC adds leading axes to parameters.
        cov = matrix
    if cov.ndim != 2 or variable.ndim > 2:
        return None
    return LatentGP(f=variable, free=variable, rotated=False, mean=mean, cov=cov)


def _read_rotated(variable: TensorVariable, model: pm.Model) -> LatentGP | None:
    node = variable.owner
    if node is None or variable not in model.deterministics:
        return None
    # After pm.do and similar functions, the Deterministic of the model is the expression itself.
    terms = _operands(node.inputs[0] if isinstance(node.op, ViewOp) else variable, Add)
    if len(terms) != 2:
        return None
    for mean, rotation in (terms, terms[::-1]):
        match _read_rotation(rotation):
            case free, cov if free in model.free_RVs and free.ndim == variable.ndim and _is_standard_normal(free):
                return LatentGP(f=variable, free=free, rotated=True, mean=mean, cov=cov)
    return None


def _read_rotation(variable: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return v and K of the expression `(cholesky(K) @ v.T).T`, where v has one or two axes; else None."""
    product, outer = _moved_axes(variable)
    if product.owner is None or not isinstance(product.owner.op, Dot):
        return None
    factor, operand = product.owner.inputs
    free, inner = _moved_axes(operand)
    # A matrix is transposed before and after the product. A vector becomes a column, and the product a vector again.
    if (free.ndim, inner, outer) not in ((2, (1, 0), (1, 0)), (1, (0, "x"), (0,))):
        return None
    if factor.owner is None:
        return None
    op = factor.owner.op.core_op if isinstance(factor.owner.op, Blockwise) else factor.owner.op
    return (free, factor.owner.inputs[0]) if isinstance(op, Cholesky) and op.lower else None


def _moved_axes(variable: TensorVariable) -> tuple[TensorVariable, tuple[int | str, ...]]:
    """Return input and order of axes of a DimShuffle. For other variables, return the variable and its axes."""
    if variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        return variable.owner.inputs[0], variable.owner.op.new_order
    return variable, tuple(range(variable.ndim))


def _operands(variable: TensorVariable, scalar_op: type) -> list[TensorVariable]:
    """Return the operands of an elementwise sum or product; an empty list for other variables."""
    return cast(list[TensorVariable], variable.owner.inputs) if is_elementwise(variable, scalar_op) else []


def _is_standard_normal(variable: TensorVariable) -> bool:
    if not isinstance(variable.owner.op, NormalRV):
        return False
    try:
        mean, sigma = map(get_underlying_scalar_constant_value, variable.owner.op.dist_params(variable.owner))
    except NotScalarConstantError:
        return False
    return bool(mean == 0 and sigma == 1)


_SUCH_LABELS = "Likelihoods of labels are pm.Categorical(logit_p=f.T), gpep.MultinomialProbit and ordered classes."


def as_it_is(model: pm.Model) -> str:
    """Return a sentence for messages: how to sample a model that the package cannot read."""
    processes = map(is_process, latents_among([*model.free_RVs, *model.deterministics], model))
    step = "step=gpep.samplers.GuidedHMC()" if any(processes) else ""
    return f"The model as it is can be sampled by pm.sample({step})."


def instead_of_likelihood(variable: Variable) -> str:
    """Return advice for replacing an observed variable; empty if no likelihood is similar."""
    match distribution(variable):
        case "DirichletMultinomial":
            return f"If the votes are overdispersed, add a pm.Normal for each row and class to f. {A_ROW_FOR_EACH_VOTE}"
        case "Dirichlet":
            return (
                "Write class probabilities p as votes in these proportions: votes = np.rint(10 * p).astype(int). More "
                f"votes mean more certainty. {A_ROW_FOR_EACH_VOTE} {_SUCH_LABELS}"
            )
        case "MultivariateNormal" | "MvStudentT":
            return (
                f"Rows of {variable.name!r} depend on each other. Write the part that they share as a latent variable, "
                f"u = pm.MvNormal('u', np.zeros(n), cov). Observe rows given it: pm.Normal({variable.name!r}, mu + u, "
                "sigma, observed=y)."
            )
        case _ if variable.type.dtype.startswith("int"):
            return (
                "Counts are pm.Poisson(mu=pm.math.exp(f + offset)). If they are overdispersed, use "
                "pm.NegativeBinomial(mu=pm.math.exp(f + offset), alpha=alpha). If they have more zeros, add "
                "pm.gp.cov.WhiteNoise(s) to the covariance function."
            )
    return ""


_JOINING = (Join,)
_SELECTING = (DimShuffle, ViewOp, Subtensor, AdvancedSubtensor, Reshape, SpecifyShape)


class Dims(NamedTuple):
    """Names of the axes over classes and points in the model, and labels of the classes."""

    class_dim: str | None = None
    point_dim: str | None = None
    class_labels: tuple[object, ...] | None = None


class Assembly(NamedTuple):
    """Priors in the argument (points, classes) of a likelihood, and for each prior the class of each output."""

    latents: tuple[LatentGP, ...]
    classes: tuple[tuple[int, ...], ...]
    n_points: int
    dims: Dims


def read_assembly(argument: TensorVariable, likelihood: TensorVariable, model: pm.Model) -> Assembly:
    """Return the priors in the argument of a likelihood, and for each prior the class of each output.

    Parameters
    ----------
    argument : TensorVariable, shape (n, c)
        The argument of the likelihood; its last axis is the class.
    likelihood : TensorVariable
        The likelihood's random variable, for messages.
    model : pm.Model

    Raises
    ------
    NotProcessesAloneError
        If the argument is not a rearrangement of latent values, or does not contain all points of the priors in order.
    StructureError
        If the argument does not have one latent function for each class.
    """
    latents, named = _walk(argument, likelihood, model)
    shapes = evaluate(get_symbolic_rv_shapes([latent.free for latent in latents]))
    sizes = [int(shape[-1]) for shape in shapes]
    if len(set(sizes)) > 1:
        raise NotProcessesAloneError(f"Latent functions of {likelihood.name!r} have different numbers of points.")
    n = sizes[0]
    if n == 0:
        raise StructureError(
            f"The latent functions of {likelihood.name!r} have no points. Declare the model with at least one row. A "
            "fit with inducing inputs can replace the rows by data=(inputs, labels)."
        )

    # Number the cells: cell i of function r, counted over all outputs of all priors, is r * n + i.
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    cells = {
        latent.f: np.arange(end - np.prod(shape), end).reshape(shape).astype(latent.f.dtype)
        for latent, shape, end in zip(latents, shapes, ends, strict=True)
    }
    codes, *named_codes = (code.astype(np.int64) for code in evaluate([argument, *named], cells))
    functions = _functions_of_classes(codes, n, likelihood, model)
    _check_one_function_per_class(functions, latents, [int(end) // n for end in ends], likelihood)
    class_of = {int(function): k for k, function in enumerate(functions)}
    classes = tuple(
        tuple(class_of[int(function)] for function in np.atleast_2d(cells[latent.f])[:, 0] // n) for latent in latents
    )
    dims = _read_dims(dict(zip(named, named_codes, strict=True)), class_of, n, model)
    return Assembly(tuple(latents), classes, n, dims)


def _walk(
    argument: TensorVariable, likelihood: TensorVariable, model: pm.Model
) -> tuple[list[LatentGP], list[TensorVariable]]:
    """Return the priors in a likelihood's argument, and the variables with dims between them and the argument."""
    latents: list[LatentGP] = []
    named: list[TensorVariable] = []
    pending = [argument]
    seen: set[TensorVariable] = set()
    while pending:
        variable = pending.pop()
        if variable in seen:
            continue
        seen.add(variable)
        if variable.name in model.named_vars_to_dims:
            named.append(variable)
        if (latent := read_latent(variable, model)) is not None:
            latents.append(latent)
        elif variable.owner is not None and isinstance(variable.owner.op, _JOINING):
            pending.extend(cast(list[TensorVariable], variable.owner.inputs[::-1]))
        elif variable.owner is not None and isinstance(variable.owner.op, _SELECTING):
            source, *how = cast(list[TensorVariable], variable.owner.inputs)
            _check_fixed(how, source, likelihood, model)
            pending.append(source)
        else:
            raise NotProcessesAloneError(f"The argument of {likelihood.name!r} is not a selection of latent values.")
    return latents, named


def _check_fixed(how: Sequence[Variable], source: Variable, likelihood: TensorVariable, model: pm.Model) -> None:
    """Raise an error if indices or shapes depend on values of random variables, and not only on their shapes."""
    shapes = [v for v in ancestors(how) if v.owner is not None and isinstance(v.owner.op, Shape | Shape_i)]
    random = [v for v in ancestors(how, blockers=shapes) if v in model.basic_RVs]
    if random:
        raise StructureError(
            f"The selection of latent values for {likelihood.name!r} depends on {listing(random)}. Select from "
            f"{describe(source)} with fixed indices only."
        )


def _functions_of_classes(
    codes: NDArray[np.int64], n: int, likelihood: TensorVariable, model: pm.Model
) -> NDArray[np.int64]:
    """Return the latent function of each class (c,), from the cell numbers of the entries of the argument (n, c)."""
    name = repr(likelihood.name)
    if _is_points_by_functions(codes, n):
        return codes[0] // n
    if codes.shape == (1, n) and _is_points_by_functions(codes.T, n):
        raise StructureError(
            f"The argument of {name} is one latent function at {n} points. A classifier of c classes needs c latent "
            "functions: gp.prior(..., n_outputs=c), and then f.T."
        )
    if _is_points_by_functions(codes.T, n):
        raise StructureError(
            f"The argument of {name} has the classes first, {codes.shape}. The class axis must be last: give it the "
            "transpose, f.T."
        )
    if codes.size == n and len(codes) < n:
        raise StructureError(
            f"The argument of {name} divides the {n} points of one latent function among the classes. Each "
            f"class needs an independent function at the same inputs: gp.prior(..., X=X, n_outputs={codes.shape[1]}). "
            f"{as_it_is(model)}"
        )
    for k, column in enumerate((codes // n).T):
        if len(set(column)) > 1:
            raise StructureError(
                f"Class {k} of {name} uses several latent functions, each at a part of the points. Give each class one "
                "function at all points."
            )
    raise NotProcessesAloneError(f"The argument of {name} must contain all points of its latent values in order.")


def _is_points_by_functions(codes: NDArray[np.int64], n: int) -> bool:
    """Return whether the first axis of cell numbers runs over all points in order, with one function per column."""
    return len(codes) == n and bool((codes == codes[0] // n * n + np.arange(n)[:, None]).all())


def _check_one_function_per_class(
    functions: NDArray[np.int64], latents: Sequence[LatentGP], ends: Sequence[int], likelihood: TensorVariable
) -> None:
    """Raise an error if a function is the argument of no class or of several classes.

    `ends` are the cumulative numbers of functions of the priors.
    """
    for function, used in enumerate(np.bincount(functions, minlength=ends[-1])):
        if used == 1:
            continue
        which = int(np.searchsorted(ends, function, side="right"))
        latent = latents[which]
        start = ends[which - 1] if which else 0
        output = f"Output {function - start} of {latent.f.name!r}" if latent.f.ndim == 2 else repr(latent.f.name)
        fed = ", ".join(map(str, np.flatnonzero(functions == function)))
        raise StructureError(
            f"{output} is the latent function of {f'the classes {fed}' if fed else 'no class'} of {likelihood.name!r}, "
            f"which has {len(functions)} classes for {ends[-1]} latent functions. Each class needs one function: give "
            f"the priors {len(functions)} outputs, n_outputs={len(functions)}."
        )


def _read_dims(
    codes: Mapping[TensorVariable, NDArray[np.int64]], class_of: Mapping[int, int], n: int, model: pm.Model
) -> Dims:
    """Return names of axes, from the variable with all classes that is nearest to the likelihood.

    Names may be missing. If each class has a separate variable, the class axis has no name.
    """
    point_dim = None
    for variable, code in codes.items():
        dims = model.named_vars_to_dims[variable.name]
        if code.ndim != 2:
            point_dim = dims[-1]
            continue
        for cells, (points, class_dim) in ((code, dims), (code.T, dims[::-1])):
            if _is_points_by_functions(cells, n) and cells.shape[1] == len(class_of):
                labels = model.coords.get(class_dim)
                order = np.argsort([class_of[int(function)] for function in cells[0] // n])
                return Dims(class_dim, points, None if labels is None else tuple(labels[k] for k in order))
    return Dims(point_dim=point_dim)


def as_gps(gp: Any) -> tuple[pm.gp.Latent, ...] | None:
    """Return a `pm.gp.Latent`, or a sequence of them, as a tuple; None for None.

    Raises
    ------
    TypeError
        If an element of `gp` has another type.
    """
    if gp is None:
        return None
    gps = tuple(gp) if isinstance(gp, Sequence) else (gp,)
    if wrong := [type(each).__name__ for each in gps if not isinstance(each, pm.gp.Latent)]:
        raise TypeError(
            f"gp must be the pm.gp.Latent that made the latent values, or a list of these, not a {wrong[0]}."
        )
    return gps


def refuse_what_was_made(model: pm.Model) -> None:
    """Raise a StructureError if the package made the model from a classifier."""
    made: str | None = getattr(model, "made_from_a_classifier", None)
    if made is not None:
        raise StructureError(made)
