"""Why an argument of a likelihood is no rearrangement of latent values, and what to write instead."""

from collections.abc import Iterable

import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, walk
from pytensor.scalar.basic import Add, Mul, Neg, Second, Sub, TrueDiv
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.alternatives import as_it_is, not_latent
from pymc_gpep.structure.latent import latents_among

__all__ = ["why_not"]

_ALLOWED = "Only transposing, stacking and selecting may stand between a pm.gp.Latent prior and the likelihood"
_TO_ALL = (
    "A part that is the same for all classes, such as their mean, changes no probability and can be left out; classes "
    "that have other parts in common cannot be read."
)
_PAIRS = (
    "A difference of one function at two places, f[a] - f[b], is one function of pairs of rows: see Comparisons of "
    "pairs in the guide to own covariance functions."
)


def why_not(variable: TensorVariable, likelihood: TensorVariable, per_class: bool, model: pm.Model) -> str:
    """Say why a variable is neither the latent values of a Gaussian process nor a rearrangement of such.

    Parameters
    ----------
    variable : TensorVariable
        A part of what the likelihood is given.
    likelihood : TensorVariable
        The likelihood's random variable.
    per_class : bool
        Whether the likelihood has one function for each class.
    model : pm.Model
    """
    behind = _values_behind(variable)
    random = [v for v in behind if v in model.basic_RVs]
    argument = f"the argument of {likelihood.name!r}"
    if not random:
        which = f", {variable.name!r}" if variable.name else ""
        return (
            f"A part of {argument} is constant or data{which}. Every class needs a latent function with a pm.gp.Latent "
            "prior. One that has next to no variance stands for a function that is held fixed, "
            "pm.gp.Latent(cov_func=1e-8 * pm.gp.cov.ExpQuad(d, ls=1.0)).prior(...) in its place, with mean_func where "
            "that is not zero. Two classes by one function are pm.Bernoulli(logit_p=f) or gpep.Probit."
        )
    if not latents_among(behind, model):
        return not_latent(f"The argument of {likelihood.name!r}", random)
    scalar_op = variable.owner.op.scalar_op if isinstance(variable.owner.op, Elemwise) else None
    of_operands = {operand: latents_among(_values_behind(operand), model) for operand in variable.owner.inputs}
    parts = [found for found in of_operands.values() if found]
    others = ", ".join(_nearest_name(operand, model) for operand, found in of_operands.items() if not found)
    functions = list(dict.fromkeys(latent.f.name for found in parts for latent in found))
    names = " and ".join(map(repr, functions))
    match scalar_op:
        case Add() | Sub() if len(parts) == len(functions) > 1:
            common = f" {_TO_ALL}" if per_class else ""
            return (
                f"In {argument}, separate priors are added, {names}. Add the processes before the prior, so that there "
                f"is one: (gp1 + gp2).prior(...).{common} {as_it_is(model)}"
            )
        case Add() | Sub() if len(parts) == 1:
            return (
                f"In {argument}, {names} is shifted by {others} after its prior. {_ALLOWED}: put the offset into the "
                "prior, pm.gp.Latent(mean_func=...)."
            )
        case Neg():
            return (
                f"In {argument}, {names} has its sign changed after its prior. {_ALLOWED}: leave the sign out, and "
                "change that of a mean_func; the prior is symmetric."
            )
        case Mul() | TrueDiv() if len(parts) == 1:
            return (
                f"In {argument}, {names} is scaled by {others} after its prior. {_ALLOWED}: put the square of the "
                "scale into the prior, pm.gp.Latent(cov_func=eta**2 * ...). Scales that differ between classes need a "
                "prior for each class; one that is a function of the inputs is pm.gp.cov.ScaledCov."
            )
    return (
        f"In {argument}, latent values of {names} are combined, or a function of them is taken. {_ALLOWED}. "
        f"{_TO_ALL if per_class else _PAIRS} {as_it_is(model)}"
    )


def _values_behind(variable: Variable) -> list[Variable]:
    """Variables whose values, not only whose shapes, a variable is made of."""
    return list(walk([variable], lambda v: () if v.owner is None else _valued(v)))


def _valued(variable: Variable) -> Iterable[Variable]:
    """Inputs of a variable of which the values count."""
    match variable.owner.op:
        case Shape() | Shape_i():
            return ()
        case Alloc():
            return variable.owner.inputs[:1]
        case Elemwise(scalar_op=Second()):
            return variable.owner.inputs[1:]
    return variable.owner.inputs


def _nearest_name(variable: Variable, model: pm.Model) -> str:
    """Return the quoted name of the model variable nearest to an expression, "a constant" if there is none."""
    known = set(model.named_vars.values())
    boundary = [v for v in ancestors([variable]) if v in known]
    nearest = [v for v in ancestors([variable], blockers=boundary) if v in known]
    return " and ".join(repr(v.name) for v in nearest) or "a constant"
