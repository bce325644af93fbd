"""A sum of one Gaussian process and of effects, for methods with inducing inputs.

The process is represented by inducing values. Effects are J z with standard normals z. A row of J is computed from the
graph of the model's argument with the data of that row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.affine import Affinity
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import Elsewhere, LatentPrior, SampledValues
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.recipes import Recipe
from pymc_gpep.sums.affine_map import SumVariables
from pymc_gpep.sums.effects_of_rows import EffectsOfRows
from pymc_gpep.sums.latent_sum import LatentSum

_ALL_ROWS = 'Methods on all rows together, "ep", "laplace", "kl", "nested_ep" and their like,'


def by_inducing(classifier: GPClassifier) -> GPClassifier:
    """Return a classifier whose sum has effects beside its process; any other one is returned as it is.

    Raises
    ------
    StructureError
        If the sum has several latent functions or processes, if rows select values of the process, or if responses are
        missing.
    """
    classifier.check_one()
    whole = classifier.prior
    if not isinstance(whole, LatentSum) or whole.alone or not whole.recipes:
        return classifier
    instead = f"{_ALL_ROWS} fit it."
    if not whole.processes:
        raise StructureError(
            "Inducing inputs are those of a Gaussian process, and the latent function is a sum of effects without one. "
            f"{instead} They know it by its rows, and take a million of these."
        )
    if whole.n_functions > 1 or len(whole.processes) > 1:
        several = "latent functions" if whole.n_functions > 1 else "processes"
        names = listing(latent.f for latent in whole.processes)
        raise StructureError(
            f"Inducing inputs take effects beside one Gaussian process of one latent function, and this model has "
            f"several {several}: {names}. {instead} Or write a process as pm.gp.HSGP, with its inputs as data: "
            "hsgp.prior('g', X=pm.Data('x', X))."
        )
    if whole.fitted is not None:
        raise StructureError(
            "Methods with inducing inputs need a response of each row. Leave out the rows without one, of all data: "
            f"keep = pd.notna(y). {_ALL_ROWS} leave them out by themselves."
        )
    (latent,) = whole.processes
    if not all(term.whole for term in whole.terms) or whole.sizes != ((whole.n_points,),):
        raise StructureError(
            f"Inducing inputs take a process that is added with a value for each row, as + {latent.f.name}, and rows "
            f"select or multiply values of {latent.f.name!r}. {instead} Or give the prior the inputs of all rows, and "
            "its magnitude to cov_func."
        )
    return replace(classifier, prior=EffectsBeside(whole, whole.without_effects(latent).latents))


@dataclass(frozen=True, eq=False)
class EffectsBeside(LatentPrior):
    """The prior of a latent function that is a process and effects.

    Attributes
    ----------
    whole : LatentSum
        The sum.
    latents : tuple of LatentGP
        The process without its mean, which belongs to the effects.
    """

    whole: LatentSum
    latents: tuple[LatentGP, ...]

    @property
    def model(self) -> pm.Model:
        return self.whole.model

    @property
    def n_points(self) -> int:  # type: ignore[override]
        return self.whole.n_points

    @property
    def n_functions(self) -> int:  # type: ignore[override]
        return self.whole.n_functions

    @property
    def processes(self) -> tuple[LatentGP, ...]:  # type: ignore[override]
        return self.whole.processes

    @property
    def integrated(self) -> tuple[TensorVariable, ...]:
        return self.whole.integrated

    @property
    def held(self) -> tuple[TensorVariable, ...]:
        """See `LatentPrior`: values at rows are not held."""
        return ()

    @property
    def inputs(self) -> list[str]:
        return self.whole.inputs

    @property
    def recipes(self) -> Mapping[TensorVariable, Recipe]:  # type: ignore[override]
        return self.whole.recipes

    @property
    def implicit(self) -> tuple[TensorVariable, ...]:
        return tuple(latent.free for latent in self.whole.processes)

    @property
    def singular(self) -> bool:
        return True

    @property
    def kept(self) -> Mapping[TensorVariable, str]:  # type: ignore[override]
        return self.whole.kept

    @property
    def predictor(self) -> tuple[TensorVariable, ...]:
        return self.whole.predictor

    @property
    def sources(self) -> frozenset[Variable]:
        return self.whole.sources

    @property
    def described(self) -> str:
        return self.whole.described

    @property
    def n_normals(self) -> int:
        """See `LatentPrior`: those of the effects."""
        return self.whole.n_plain

    def covariance(self) -> TensorVariable:
        return self.whole.covariance()

    def mean(self) -> TensorVariable:
        return self.whole.mean()

    def latent_values(self) -> TensorVariable:
        return self.whole.latent_values()

    def variables(self, data: Mapping[Variable, Variable]) -> "_EffectsAlone":
        """See `LatentPrior`: effects without the process."""
        return _EffectsAlone(_Plain(self.whole), self.whole, data)

    def sampled(self, data: Mapping[Variable, Variable]) -> SampledValues:
        return self.whole.sampled(data)

    def elsewhere(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> Elsewhere:
        return self.whole.elsewhere(gps, data)

    def beside(self, inputs: TensorVariable, data: Mapping[Variable, Variable]) -> "EffectsOfRows":
        return EffectsOfRows(self.whole, inputs, data)


class _Plain:
    """A sum as its effects alone; see `pymc_gpep.sums.affine_map.InNormals`."""

    def __init__(self, whole: LatentSum) -> None:
        self._whole = whole
        self.model, self.n_functions, self.n_normals = whole.model, whole.n_functions, whole.n_plain
        self.owner: NDArray[np.int64] = whole.owner[: whole.n_plain]
        self.held: tuple[TensorVariable, ...] = ()
        self.integrated = tuple(rv for rv in whole.integrated if rv in whole.recipes)

    @cached_property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        return self._whole.hyperparameters

    @property
    def sources(self) -> frozenset[Variable]:
        return self._whole.sources

    def by_normals(
        self,
        outputs: Sequence[TensorVariable],
        z: TensorVariable,
        moved: Mapping[TensorVariable, TensorVariable] | None = None,
        *,
        seen: bool = False,
    ) -> list[TensorVariable]:
        still = [pt.zeros(shape) for shape in self._whole.sizes]
        return self._whole.by_parts(outputs, z, still, seen=seen)

    def latent_values(self) -> TensorVariable:
        return self._whole.latent_values()

    def variables_there(
        self, names: Sequence[str], data: Mapping[Variable, Variable], x: ArrayLike | None, new: Mapping[str, ArrayLike]
    ) -> Any:
        raise NotImplementedError(
            "Effects at other inputs or data are not known to a fit by inducing inputs. fit.predict(Xnew, data={...}) "
            "returns the whole latent function there."
        )


class _EffectsAlone(SumVariables):
    """Effects as affine functions of standard normals, without the values of the process at rows."""

    def __init__(self, plain: _Plain, whole: LatentSum, data: Mapping[Variable, Variable]) -> None:
        super().__init__(plain, data)
        self._whole = whole

    def _check(self, names: Sequence[str]) -> None:
        super()._check(names)
        affinity = Affinity(self._whole.sources)
        values = {latent.f for latent in self._whole.processes}
        for name in names:
            if not values.isdisjoint(affinity.behind(self._whole.model[name])):
                raise ValueError(
                    f"{name!r} has values of a Gaussian process at rows. A fit by inducing inputs has no joint "
                    "posterior of these. fit.predict(Xnew, data={...}) returns the whole latent function."
                )
