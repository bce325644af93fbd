"""Names of effects as the model has them: integrated variables, and Deterministics that stand for these."""

from collections.abc import Mapping

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.affine import Affinity, NotAffineError
from pymc_gpep.structure.initial_point import initial_point
from pymc_gpep.structure.interpreted import graph_function

__all__ = ["names_of_effects", "sources_of_effects"]


def names_of_effects(classifier: GPClassifier) -> list[str]:
    """Return names of integrated variables, and of Deterministics that are affine in them, in the order of the model.

    A Deterministic is an effect where it has the shape of an integrated variable that it is made of, as
    `pm.Deterministic("u", sigma * z)` has. It then takes the place of z, if it is made of z alone and z reaches the
    rest of the model through it alone.

    Parameters
    ----------
    classifier : GPClassifier

    Returns
    -------
    list of str
    """
    own = _own(classifier)
    if not classifier.prior.singular:
        return [str(v.name) for v in own]
    model = classifier.model
    affinity = Affinity(frozenset(own))
    made: dict[TensorVariable, frozenset[Variable]] = {}
    for variable in model.deterministics:
        if variable not in own and (behind := _behind(affinity, variable)):
            made[variable] = behind
    shapes = _shapes(model, [*own, *made])
    alike = {v: [each for each in behind if shapes[each] == shapes[v]] for v, behind in made.items()}
    replaced = {
        z: v for v, same in alike.items() if len(made[v]) == 1 for z in same if not _reaches_beside(model, z, v)
    }
    names: dict[str, None] = {}
    for z in own:
        names[str(replaced.get(z, z).name)] = None
    return list(names | {str(v.name): None for v, same in alike.items() if same})


def sources_of_effects(classifier: GPClassifier, names: list[str]) -> dict[str, frozenset[Variable]]:
    """Return the integrated variables that each of some effects is made of.

    Parameters
    ----------
    classifier : GPClassifier
    names : list of str

    Returns
    -------
    dict of str to frozenset of Variable
    """
    affinity = Affinity(frozenset(_own(classifier)))
    return {name: _behind(affinity, classifier.model[name]) for name in names}


def _own(classifier: GPClassifier) -> list[TensorVariable]:
    """Return integrated variables, and latent values in place of their standard normals."""
    held = {latent.free: latent.f for latent in classifier.processes}
    return [held.get(rv, rv) for rv in classifier.integrated if rv not in classifier.implicit]


def _behind(affinity: Affinity, variable: Variable) -> frozenset[Variable]:
    try:
        return affinity.behind(variable)
    except NotAffineError:
        return frozenset()


def _shapes(model: pm.Model, variables: list[TensorVariable]) -> Mapping[Variable, tuple[int, ...]]:
    """Return shapes of variables, computed where their types do not say them."""
    shapes = {v: v.type.shape for v in variables}
    unknown = [v for v, shape in shapes.items() if None in shape]
    if unknown:
        point = initial_point(model)
        outputs = model.replace_rvs_by_values([v.shape for v in unknown])
        found = graph_function(model, model.value_vars, outputs)(*(point[v.name] for v in model.value_vars))
        shapes |= {v: tuple(np.asarray(shape).tolist()) for v, shape in zip(unknown, found, strict=True)}
    return shapes


def _reaches_beside(model: pm.Model, z: TensorVariable, by: TensorVariable) -> bool:
    """Tell whether anything of the model but one variable depends on another without that one."""
    others = [v for v in [*model.basic_RVs, *model.potentials, *model.deterministics] if v not in (z, by)]
    return z in set(ancestors(others, blockers=[by]))
