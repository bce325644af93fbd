"""From draws of the free variables to a trace of all that a model records."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytensor
from pymc.backends.ndarray import NDArray as Trace
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.interpreted import graph_function

__all__ = ["Recorder"]


class Recorder:
    """Compute what `pm.sample` records, from value variables and latent values.

    Latent values are taken as given, also where they are deterministic: to factorise the prior covariance for every
    draw would cost O(n³) each.

    Parameters
    ----------
    classifier : GPClassifier
    free : sequence of TensorVariable
        Free variables, in the order in which they are recorded; those of the latent values may be missing.
    deterministics : sequence of TensorVariable
    data : dict
        Data of the model → constants that take their place.
    seed : int
        For what the model draws anew, such as responses that are missing.
    """

    def __init__(
        self,
        classifier: GPClassifier,
        free: Sequence[TensorVariable],
        deterministics: Sequence[TensorVariable],
        data: Mapping[Variable, Variable],
        seed: int,
    ) -> None:
        self._model = model = classifier.model
        value_vars = [model.rvs_to_values[rv] for rv in free]
        given = {f: f.type(f.name) for f in classifier.held}
        transformed = [rv for rv in free if model.rvs_to_transforms[rv] is not None]
        missing = classifier.unobserved
        drawn = [each.missing.drawn() for each in classifier.each if each.missing is not None]
        computed = graph_replace([*drawn, *transformed, *missing, *deterministics], given, strict=False)
        computed = graph_replace(model.replace_rvs_by_values(computed), data, strict=False)
        if missing:
            first, computed = computed[: len(missing)], computed[len(missing) :]
            places = [model.rvs_to_values[each] for each in missing]
            computed = graph_replace(computed, dict(zip(places, first, strict=True)), strict=False)
        self._recorded = [*value_vars, *transformed, *missing, *deterministics]
        self._compute = graph_function(
            model,
            [pytensor.In(v, borrow=True) for v in [*value_vars, *given.values()]],
            [pytensor.Out(v, borrow=True) for v in [*value_vars, *computed]],
            draws=True,  # a Deterministic may be made of draws of its own, as PyMC's sampling makes it
            random_seed=seed,
        )

    def trace(self, values: Mapping[str, Array], chain: int) -> Trace:
        """Trace of a chain, from draws (s, ...) of value variables and of deterministic latent values, by name."""
        first = self._compute(*(value[0] for value in values.values()))
        trace = Trace(
            model=self._model,
            vars=self._recorded,
            fn=self._compute,
            var_shapes={v.name: np.shape(x) for v, x in zip(self._recorded, first, strict=True)},
            var_dtypes={v.name: np.asarray(x).dtype for v, x in zip(self._recorded, first, strict=True)},
        )
        draws = len(next(iter(values.values())))
        trace.setup(draws=draws, chain=chain)
        for i in range(draws):
            trace.record({name: value[i] for name, value in values.items()}, in_warmup=False)
        trace.close()
        return trace
