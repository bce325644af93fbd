"""The `pm.gp.Latent` prior behind a variable of a model, and advice for a model without one.

PyMC keeps no record of the Gaussian processes of a model, only the variables that `pm.gp.Latent.prior` made:

- `reparameterize=True`: a free `v ~ Normal(0, 1)` and a Deterministic `mean + (cholesky(cov) @ v.T).T`.

- `reparameterize=False`: a free `f ~ MvNormal(mean, cov)`, with a leading axis if there are several outputs.

Both are recognised by these expressions, never by the names of the variables. Where PyMC has rebuilt the model
(`pm.do`, `model.copy`), the expression itself stands in place of the Deterministic.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pymc as pm
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.basic import Eye, get_underlying_scalar_constant_value
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.errors import StructureError, distribution, listing
from pymc_gpep.likelihoods.observed import A_ROW_FOR_EACH_VOTE


@dataclass(frozen=True, eq=False)
class LatentGP:
    """One Gaussian process prior of a model: independent functions, its outputs, that share a covariance.

    All expressions are in terms of the random variables of the model; `model.replace_rvs_by_values` makes them
    expressions of its value variables.

    Attributes
    ----------
    f : TensorVariable, shape (n,) or (outputs, n)
        Variable of the model that holds the latent values: a Deterministic if `rotated`, else a random variable.
    free : TensorVariable, shape of f
        The free random variable: standard normal if `rotated`, else `f` itself.
    rotated : bool
        Whether f = mean + cholesky(cov) @ free, that is, `reparameterize=True`.
    mean : TensorVariable, shape (n,) or (outputs, n)
        Prior mean, a function of hyperparameters; as it stands in the prior it need only broadcast to this shape.
    cov : TensorVariable, shape (n, n)
        Prior covariance of each output with PyMC's jitter on the diagonal, a function of hyperparameters.
    classes : tuple of int
        Number of the function that each output is, in a classifier its class; empty until the whole model is read.
    """

    f: TensorVariable
    free: TensorVariable
    rotated: bool
    mean: TensorVariable
    cov: TensorVariable
    classes: tuple[int, ...] = ()

    @property
    def rows(self) -> Any:
        """Index of these latent values along all functions: a list, or one number where `f` has no axis for it."""
        return list(self.classes) if self.f.ndim == 2 else self.classes[0]


def read_latent(variable: Variable, model: pm.Model) -> LatentGP | None:
    """Return the prior whose latent values `variable` holds, or None if it holds those of no single prior."""
    if not isinstance(variable, TensorVariable):
        return None
    return _read_centred(variable, model) or _read_rotated(variable, model)


def latents_among(variables: Iterable[Variable], model: pm.Model) -> list[LatentGP]:
    """Return the Gaussian process priors whose latent values are among the given variables."""
    return [latent for variable in variables if (latent := read_latent(variable, model)) is not None]


def is_process(latent: LatentGP) -> bool:
    """Tell a prior made by `pm.gp.Latent` from an ordinary multivariate normal: by the jitter, `K + jitter * eye`."""
    return any(_is_jitter(term) for term in _operands(latent.cov, Add))


def refuse_common_variables(latents: Sequence[LatentGP]) -> None:
    """Raise a StructureError if two priors are made of one free variable."""
    if len({latent.free for latent in latents}) < len(latents):
        raise StructureError(
            f"The priors of {listing(latent.f for latent in latents)} are made of the same free variable, so they are "
            "not independent. Give each its own."
        )


def without_jitter(latent: LatentGP) -> TensorVariable:
    """The prior covariance as the covariance function has it, of a prior that `is_process`."""
    terms = _operands(latent.cov, Add)
    return terms[0] if len(terms) == 2 and _is_jitter(terms[1]) else latent.cov


def jitter_of(latent: LatentGP) -> float:
    """Return the jitter that `pm.gp.Latent` added to the diagonal of the prior covariance; 0 if it added no jitter.

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
    if axes == ("x", 0, 1):  # PyMC gives the parameters as many axes as the variable has
        cov = matrix
    if cov.ndim != 2 or variable.ndim > 2:
        return None
    return LatentGP(f=variable, free=variable, rotated=False, mean=mean, cov=cov)


def _read_rotated(variable: TensorVariable, model: pm.Model) -> LatentGP | None:
    node = variable.owner
    if node is None or variable not in model.deterministics:
        return None
    # A model that PyMC has rebuilt, as pm.do does, has the expression itself as its Deterministic.
    terms = _operands(node.inputs[0] if isinstance(node.op, ViewOp) else variable, Add)
    if len(terms) != 2:
        return None
    for mean, rotation in (terms, terms[::-1]):
        match _read_rotation(rotation):
            case free, cov if free in model.free_RVs and free.ndim == variable.ndim and _is_standard_normal(free):
                return LatentGP(f=variable, free=free, rotated=True, mean=mean, cov=cov)
    return None


def _read_rotation(variable: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return (v, K) of `(cholesky(K) @ v.T).T`, where v has one axis or two."""
    product, outer = _moved_axes(variable)
    if product.owner is None or not isinstance(product.owner.op, Dot):
        return None
    factor, operand = product.owner.inputs
    free, inner = _moved_axes(operand)
    # Two axes: transposed before and after. One: made a column before, and a vector again after.
    if (free.ndim, inner, outer) not in ((2, (1, 0), (1, 0)), (1, (0, "x"), (0,))):
        return None
    if factor.owner is None:
        return None
    op = factor.owner.op.core_op if isinstance(factor.owner.op, Blockwise) else factor.owner.op
    return (free, factor.owner.inputs[0]) if isinstance(op, Cholesky) and op.lower else None


def _moved_axes(variable: TensorVariable) -> tuple[TensorVariable, tuple[int | str, ...]]:
    """Return the input of a DimShuffle, and its order of axes; without a DimShuffle the variable itself."""
    if variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        return variable.owner.inputs[0], variable.owner.op.new_order
    return variable, tuple(range(variable.ndim))


def _operands(variable: TensorVariable, scalar_op: type) -> list[TensorVariable]:
    """Return the operands if the variable is an elementwise sum or product, else none."""
    return cast(list[TensorVariable], variable.owner.inputs) if is_elementwise(variable, scalar_op) else []


def _is_standard_normal(variable: TensorVariable) -> bool:
    if not isinstance(variable.owner.op, NormalRV):
        return False
    try:
        mean, sigma = map(get_underlying_scalar_constant_value, variable.owner.op.dist_params(variable.owner))
    except NotScalarConstantError:
        return False
    return bool(mean == 0 and sigma == 1)


_SUCH_LABELS = "Such labels are pm.Categorical(logit_p=f.T), gpep.MultinomialProbit, or of ordered classes."


def as_it_is(model: pm.Model) -> str:
    """A sentence that says how a model can be sampled without being read."""
    processes = map(is_process, latents_among([*model.free_RVs, *model.deterministics], model))
    step = "step=gpep.samplers.GuidedHMC()" if any(processes) else ""
    return f"The model as it is can be sampled by pm.sample({step})."


def instead_of_likelihood(variable: Variable) -> str:
    """Return the advice what to write in place of an observed variable; an empty string if nothing is near."""
    match distribution(variable):
        case "DirichletMultinomial":
            return f"Where votes are more spread out add pm.Normal for each row and class to f. {A_ROW_FOR_EACH_VOTE}"
        case "Dirichlet":
            return (
                "Probabilities of classes can be given as votes in these proportions, and the more votes the surer: "
                f"votes = np.rint(10 * p).astype(int). {A_ROW_FOR_EACH_VOTE} {_SUCH_LABELS}"
            )
        case "MultivariateNormal" | "MvStudentT":
            return (
                f"Rows of {variable.name!r} depend on each other. Write the part that they share as a latent variable, "
                f"u = pm.MvNormal('u', np.zeros(n), cov). Observe rows given it: pm.Normal({variable.name!r}, mu + u, "
                "sigma, observed=y)."
            )
        case _ if variable.type.dtype.startswith("int"):
            return (
                "Counts are pm.Poisson(mu=pm.math.exp(f + offset)); where they are more spread out than that, "
                "pm.NegativeBinomial(mu=pm.math.exp(f + offset), alpha=alpha); where they have more zeros, add "
                "pm.gp.cov.WhiteNoise(s) to the covariance function."
            )
    return ""
